"""A server that does exactly what a test's script says, in threads of its own, and a client to send to it.

Knows: sockets, HTTP bytes written by hand. Must not know: the code under test beyond `Transport.stream`.
Why: every oddity of a real server is a few `send` calls at known times, and the send stamps are the truth.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import ssl
import struct
import sys
import termios
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType

from loadgen.engine.clock import MonotonicClock
from loadgen.engine.sockets import StampingSelector
from loadgen.engine.timeouts import Limits
from loadgen.engine.transport import Security, Transport
from loadgen.model import Capture, Message, PlannedRequest

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
LAST = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


EVENTS = (chunk(ROLE), chunk(TOKEN), chunk(TOKEN), chunk(DONE))
BODY = b"".join(EVENTS)
WHOLE = CHUNKED + BODY + LAST


class Peer:
    """The server's side of one connection."""

    def __init__(self, sock: socket.socket, halt: threading.Event) -> None:
        self.sock, self.halt = sock, halt
        self.sends: list[tuple[int, int]] = []  # CLOCK_MONOTONIC before and after each send
        self._rest = b""

    def request(self) -> bytes:
        """Read one whole request; returns head and body. Raises ConnectionError when the client has gone."""
        data = self._rest
        while True:
            head, found, body = data.partition(b"\r\n\r\n")
            if found:
                length = next(
                    (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
                )
                if len(body) >= length:
                    self._rest = body[length:]
                    return head + found + body[:length]
            more = self.sock.recv(1 << 20)
            if not more:
                raise ConnectionError("the client closed")
            data += more

    def send(self, *parts: bytes, gap_s: float = 0.0) -> None:
        """Send each part by itself, `gap_s` after the one before."""
        for index, part in enumerate(parts):
            if index and gap_s:
                self.wait(gap_s)
            before = time.monotonic_ns()
            self.sock.sendall(part)
            self.sends.append((before, time.monotonic_ns()))

    def wait(self, seconds: float) -> None:
        """Pause, but not past the end of the test; and until the client has received what was sent, if it is slow.

        So what is sent next is a receive of its own, however busy the machine is.
        """
        self.halt.wait(seconds)
        patience = time.monotonic() + 5
        while not self.halt.is_set() and time.monotonic() < patience and self._unread():
            self.halt.wait(0.002)

    def _unread(self) -> int:
        """Bytes that lie in the socket of the client, which is one of this process's own."""
        here = self.sock.getpeername()
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # it may be closed at any moment: by another thread
                if not str(entry.readlink()).startswith("socket:"):
                    continue
                with socket.socket(fileno=os.dup(int(entry.name))) as theirs:
                    if theirs.family == socket.AF_INET and theirs.getsockname() == here:
                        left = fcntl.ioctl(theirs.fileno(), termios.FIONREAD, b"\0" * 4)
                        return int.from_bytes(left, sys.byteorder)
        return 0

    def hold(self) -> None:
        """Keep the connection open until the test is over."""
        self.halt.wait(20)

    def reset(self) -> None:
        """Close with RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class Scripted:
    """Runs `script(peer)` in a thread for each connection and closes it afterwards. `peers` in order of arrival."""

    def __init__(self, script: Callable[[Peer], None], tls: ssl.SSLContext | None = None) -> None:
        self._script, self._tls = script, tls
        self.peers: list[Peer] = []
        self.halt = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._listener.getsockname()[1]}/v1/chat/completions"
        self._threads = [threading.Thread(target=self._accept)]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(sock,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            peer = Peer(sock, self.halt)
            self.peers.append(peer)
            self._script(peer)
        except OSError:
            pass  # the client went away, which some tests are about
        finally:
            sock.close()

    def __enter__(self) -> Scripted:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.halt.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()


def sends(*parts: bytes, gap_s: float = 0.01, hold: bool = True) -> Callable[[Peer], None]:
    """A script: read the request, send the parts one by one, then stay open (or close)."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(*parts, gap_s=gap_s)
        if hold:
            peer.hold()

    return script


class Client:
    """A transport in a running loop. `stamps` are absolute: the run starts at 0 of CLOCK_MONOTONIC."""

    def __init__(self, transport: Transport, selector: StampingSelector | None) -> None:
        self.transport, self.selector = transport, selector

    async def ask(self, url: str, body: bytes = b'{"stream":true}', due_in_ns: int | None = None) -> Capture:
        planned = PlannedRequest(0, 0, "test", (Message("user", "hello"),), 1, 1)
        now = self.transport.clock.now_ns()
        capture = Capture(planned, "chat", dispatched_ns=now)
        capture.scheduled_ns = None if due_in_ns is None else now + due_in_ns
        await self.transport.stream(capture, url, body)
        return capture


def last_token(capture: Capture) -> int | None:
    """Latest token event as the scripts send it: not the role chunk, not comments."""
    stamps = [stamp for stamp, data, _ in capture.body if b'"content":"x"' in data]
    return stamps[-1] if stamps else None


def with_client(
    use: Callable[[Client], Awaitable[None]],
    *,
    limits: Limits | None = None,
    security: Security | None = None,
    stamping: bool = True,
) -> None:
    """Run `use` on an event loop over the stamping selector (or a plain one), bounded in time."""
    selector = StampingSelector(0) if stamping else None

    async def bounded() -> None:
        transport = Transport(
            MonotonicClock(0),
            selector=selector,
            headers={"Authorization": "Bearer none"},
            limits=limits or Limits(),
            security=security or Security(),
            last_token_ns=last_token,
        )
        async with asyncio.timeout(20), transport:
            await use(Client(transport, selector))

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(bounded())


def ask_once(
    script: Callable[[Peer], None],
    *,
    limits: Limits | None = None,
    security: Security | None = None,
    stamping: bool = True,
    tls: ssl.SSLContext | None = None,
    body: bytes = b'{"stream":true}',
) -> tuple[Capture, Scripted]:
    """One request to one script."""
    got: list[Capture] = []
    with Scripted(script, tls) as server:

        async def use(client: Client) -> None:
            got.append(await client.ask(server.url, body))

        with_client(use, limits=limits, security=security, stamping=stamping)
    return got[0], server


def received(capture: Capture) -> bytes:
    """All bytes of the body as they came."""
    return b"".join(data for _, data, _ in capture.body)


def failed_with(capture: Capture, kind: str, words: str) -> None:
    """Assert the kind of the failure and some words of its message."""
    assert capture.failure is not None
    assert capture.failure.kind == kind
    assert words in capture.failure.message
