"""HTTP as the simulator needs it: a table of routes, the stamp of a request's last byte, and ways to end a response.

Knows: aiohttp.web's low-level server, sockets. Must not know: what is served.
Why: when a request has come in is what its simulated latency counts from, so the stamp is the kernel's where there is
one: neither the time that this process takes to wake up, nor what it needs to parse, tokenise and answer is part of the
latency (unless it takes longer than the simulated engine does, which shows as lateness).
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from loadgen.engine.clock import WallOffset
from loadgen.engine.sockets import ANCILLARY_BYTES, HAS_KERNEL_STAMPS, SO_TIMESTAMPNS
from loadgen.errors import EndpointError
from loadgen.simulator.protocol import Refused

_MAX_BODY_BYTES = 64 << 20
_KEEP_CONNECTION_S = 3600.0
_BACKLOG = 4096
_SHUTDOWN_S = 0.1
_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


@dataclass(frozen=True, slots=True, eq=False)
class Received:
    """One request: its whole body, and when its last byte came on `time.monotonic`."""

    http: web.BaseRequest
    body: bytes
    arrival_s: float

    @property
    def transport(self) -> asyncio.Transport:
        """The connection. Raises ConnectionResetError when the client has gone."""
        transport = self.http.transport
        if transport is None:
            raise ConnectionResetError("the client has gone")
        assert isinstance(transport, asyncio.Transport)
        return transport

    async def open_stream(self) -> web.StreamResponse:
        """Send the head of a chunked stream; its chunks may then be written straight to `transport`."""
        if self.http.version < (1, 1):
            raise Refused(505, "streams need HTTP/1.1", "BadRequestError")
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        response.enable_chunked_encoding()
        await response.prepare(self.http)
        return response

    def cut(self, *, reset: bool) -> None:
        """End the connection in the middle of a response: with FIN, or with RST."""
        transport = self.transport
        if not reset:
            transport.close()
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


Handler = Callable[[Received], Awaitable[web.StreamResponse]]


class _Socket(socket.socket):
    """A connection that remembers when its latest bytes came, and the listening socket that makes such connections."""

    wall: WallOffset
    came_ns = 0  # on CLOCK_MONOTONIC

    def accept(self) -> tuple[socket.socket, Any]:
        fd, address = self._accept()  # type: ignore[attr-defined]
        made = _Socket(self.family, self.type, self.proto, fileno=fd)
        made.wall = self.wall
        return made, address

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        data, ancillary, _, _ = self.recvmsg(bufsize, ANCILLARY_BYTES, flags)
        now_ns = time.monotonic_ns()
        if now_ns > self.wall.due_ns:
            self.wall.measure()
        self.came_ns = self.wall.stamp_ns(ancillary, now_ns) if ancillary else now_ns
        return data


class _Protocol(web.RequestHandler):
    """aiohttp's own, with a stamp in front."""

    __slots__ = ("arrival_s", "sock")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.sock: _Socket = transport.get_extra_info("socket")._sock
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.arrival_s = self.sock.came_ns * 1e-9
        super().data_received(data)


class _Server(web.Server):
    """Makes stamping protocols."""

    def __call__(self) -> _Protocol:
        return _Protocol(self, loop=asyncio.get_running_loop(), **self._kwargs)


def _large_request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=_MAX_BODY_BYTES)


class Listener:
    """Listens on 127.0.0.1 and answers by `routes`, a table from (method, path) to handler."""

    def __init__(self, routes: Mapping[tuple[str, str], Handler], port: int) -> None:
        self._routes, self._port = routes, port

    async def start(self) -> str:
        """Listen; returns the URL. Raises EndpointError when the port cannot be had."""
        server = _Server(
            self._answer,
            request_factory=_large_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=_KEEP_CONNECTION_S,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=_SHUTDOWN_S)
        await self._runner.setup()
        try:
            await web.SockSite(self._runner, self._listening(), backlog=_BACKLOG).start()
        except OSError as taken:
            await self.stop()
            reason = os.strerror(taken.errno or 0)
            raise EndpointError(f"cannot listen: {reason}", where=f"127.0.0.1:{self._port}") from taken
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def _listening(self) -> _Socket:
        sock = _Socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.wall = WallOffset()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if HAS_KERNEL_STAMPS:  # connections inherit it
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            sock.bind(("127.0.0.1", self._port))
        except OSError:
            sock.close()
            raise
        return sock

    async def stop(self) -> None:
        """Close every connection and stop listening."""
        await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        handler = self._routes.get((request.method, request.path))
        if handler is None:
            known = any(path == request.path for _, path in self._routes)
            status, reason = (405, "Method Not Allowed") if known else (404, "Not Found")
            return web.json_response({"detail": reason}, status=status)
        try:
            body = await request.read()
            protocol = request.protocol
            assert isinstance(protocol, _Protocol)
            return await handler(Received(request, body, protocol.arrival_s))
        except ConnectionResetError:
            return web.Response(status=499)  # the client has gone: nobody reads it, and it is no error of this server's
        except Refused as refused:
            document = refused.document()
            return web.Response(
                status=refused.status, body=document, content_type="application/json", headers=refused.headers
            )
        except web.HTTPRequestEntityTooLarge:
            return web.json_response({"detail": f"over {_MAX_BODY_BYTES >> 20} MiB"}, status=413)
