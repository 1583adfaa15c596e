"""The HTTP side: routes, refusals, and the life of one request.

Knows: aiohttp.web, and which room answers what. Must not know: step times, event bytes, how faults strike in a stream.

Theory of operation. aiohttp parses requests and writes response heads; the body of a stream is written by the step loop
straight to the transport as ready-made HTTP chunks, because a coroutine per token and stream would cost more than the
token. The handler only waits for the end. A client that goes away cancels its handler, which frees the engine.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any
from zlib import crc32

import numpy as np
from aiohttp import web

from loadgen import __version__
from loadgen.errors import EndpointError
from loadgen.roofline.serving import Engine, ServingRequest
from loadgen.simulator.config import SimulatorConfig
from loadgen.simulator.faults import REFUSALS, Fault
from loadgen.simulator.metrics import Counters, Gauges, render
from loadgen.simulator.protocol import (
    DONE,
    Ask,
    Dialect,
    Events,
    Refused,
    bad_request,
    check_model,
    error_event,
    frame,
    prompt_text,
    read_ask,
    read_body,
    whole_answer,
)
from loadgen.simulator.stepper import Stepper
from loadgen.simulator.stream import BROKEN, Answer, EscapedBook, Stream
from loadgen.simulator.tokens import Prefixes, token_ids, write_book

_MAX_BODY_BYTES = 64 << 20
_BUSY = "The engine is busy and cannot accept new requests. Please try again later."
_REFUSALS: dict[str, Refused] = {
    "429": Refused(429, "Rate limit reached. Please try again later.", "Too Many Requests", None, 1),
    "500": Refused(500, "Internal server error.", "InternalServerError"),
    "503": Refused(503, _BUSY, "Service Unavailable", None, 1),
}
_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
_ID_CHARACTERS = 64
_KEEP_CONNECTION_S = 3600.0
assert set(REFUSALS) == set(_REFUSALS)


class Simulator:
    """A simulated endpoint on 127.0.0.1: `async with Simulator(config) as sim: ... sim.url`."""

    def __init__(self, config: SimulatorConfig, port: int = 0) -> None:
        self.config, self._port = config, port
        self.counters = Counters()
        self.url = ""
        rng = np.random.default_rng(config.seed)
        self.engine = Engine(config.engine, np.random.default_rng(rng.integers(1 << 62)))
        self._faults_rng = np.random.default_rng(rng.integers(1 << 62))
        self._eos_rng = np.random.default_rng(rng.integers(1 << 62))
        self._prefixes = Prefixes(config.engine.block_tokens, np.random.default_rng(rng.integers(1 << 62)))
        self._text = EscapedBook.of(write_book(rng))
        self._numbers = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Simulator:
        self._stepper = Stepper(self.engine, self.counters, self.config.time_scale)
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_errors_as_json])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completions),
                web.get("/v1/models", self._models),
                web.post("/tokenize", self._tokenize),
                web.get("/health", _health),
                web.get("/version", _version),
                web.get("/metrics", self._metrics),
            ]
        )
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=_KEEP_CONNECTION_S,
            shutdown_timeout=0.1,
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=4096).start()
        except OSError as taken:
            await self.__aexit__(None, None, None)
            reason = os.strerror(taken.errno or 0)
            raise EndpointError(f"cannot listen: {reason}", where=f"127.0.0.1:{self._port}") from taken
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        if self.config.keep_alive_s is not None:
            self._tasks.append(asyncio.create_task(self._keep_alive(self.config.keep_alive_s)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await self._runner.cleanup()
        self._stepper.close()

    async def _keep_alive(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            for stream in list(self._stepper.streams.values()):
                stream.keep_alive()

    # -- one request --------------------------------------------------------------------------------------------

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "chat")

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "completions")

    async def _generate(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        body = await request.read()
        arrival_s = time.monotonic()  # parsing and tokenising are this host's work, not the simulated engine's
        ask = read_ask(dialect, body, model=self.config.model, max_model_len=self.config.max_model_len)
        fault = self.config.faults.draw(self._faults_rng)
        if fault is not None:
            self.counters.faults[fault.kind] = self.counters.faults.get(fault.kind, 0) + 1
            if fault.kind in REFUSALS:
                raise _REFUSALS[fault.kind]
            if fault.kind == "slow_headers":
                await asyncio.sleep(fault.span_s)
                arrival_s = time.monotonic()
        if self.config.max_queue is not None and self._place_in_queue() > self.config.max_queue:
            return await self._overloaded(request, ask)
        self._numbers += 1
        answer = self._answer(ask, fault)
        if not self.engine.fits(ServingRequest(self._numbers, ask.prompt_tokens, answer.tokens)):
            raise bad_request("The request needs more KV cache than the engine has.")
        answer_id = self._answer_id(request, dialect)
        if not ask.stream:
            return await self._whole(request, ask, answer, answer_id, arrival_s)
        return await self._stream(request, ask, answer, answer_id, arrival_s)

    async def _stream(
        self, request: web.Request, ask: Ask, answer: Answer, answer_id: str, arrival_s: float
    ) -> web.StreamResponse:
        events = Events(ask.dialect, answer_id, int(time.time()), self.config.model)
        response = await _open_stream(request)  # first: from `submit` on the step loop may write
        transport = _transport(request)
        stream = self._make(ask, answer, events=events, interval=self.config.stream_interval, send=transport.write)
        self._stepper.submit(stream, arrival_s)
        try:
            ending = await stream.done
        finally:
            self._stepper.cancel(stream)
        if ending in ("truncate", "reset"):
            _cut(transport, ending == "reset")
        else:
            await response.write_eof()
        return response

    async def _whole(
        self, request: web.Request, ask: Ask, answer: Answer, answer_id: str, arrival_s: float
    ) -> web.StreamResponse:
        stream = self._make(ask, answer)
        self._stepper.submit(stream, arrival_s)
        try:
            await stream.done
        finally:
            self._stepper.cancel(stream)
        text = self._text.book.text(answer.start, answer.tokens)
        reason, use = answer.finish_reason.decode(), stream.usage(answer.tokens)
        body = whole_answer(ask.dialect, answer_id, int(time.time()), self.config.model, text, reason, use)
        fault = answer.fault.kind if answer.fault is not None else ""
        if answer.fault is not None and fault == "stall":
            await asyncio.sleep(answer.fault.span_s)
        if fault == "error200":
            body = BROKEN.document()
        if fault == "malformed":
            body = body[: len(body) // 2]
        if fault not in ("truncate", "reset"):
            return web.Response(body=body, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(body))})
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        _cut(_transport(request), fault == "reset")
        return response

    def _make(self, ask: Ask, answer: Answer, **wire: Any) -> Stream:
        stream = Stream(self._numbers, ask, answer, self._text, **wire)
        if self.config.engine.prefix_cache:
            stream.block_hashes = self._prefixes.hashes(ask.prompt, ask.starts)
        return stream

    def _place_in_queue(self) -> int:
        """Where a request that came now would stand in the queue; 0: it would join the batch at the next step."""
        free = self.config.engine.max_sequences - self.engine.running
        behind = self._stepper.left_waiting + 1 if self._stepper.left_waiting else 0  # for memory, free places or not
        return max(self.engine.waiting + 1 - free, behind, 0)

    async def _overloaded(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        self.counters.refused += 1
        if self.config.overload != "200" or not ask.stream:
            raise _REFUSALS["503" if self.config.overload == "200" else self.config.overload]
        response = await _open_stream(request)
        _transport(request).write(error_event(_REFUSALS["503"]) + frame(DONE))
        await response.write_eof()
        return response

    def _answer(self, ask: Ask, fault: Fault | None) -> Answer:
        """How long the answer will be, why it ends, and where in the book it starts (which depends on the prompt)."""
        tokens = ask.max_tokens
        if self.config.eos_rate > 0 and not ask.ignore_eos:
            own = int(self._eos_rng.geometric(self.config.eos_rate))
            tokens = min(tokens, max(own, ask.min_tokens))
        if fault is not None and fault.kind == "short":
            tokens = max(fault.at(tokens), 1)
        start = (crc32(ask.prompt) ^ self.config.seed) % len(self._text.pieces)
        return Answer(tokens, start, b"stop" if tokens < ask.max_tokens else b"length", fault)

    def _answer_id(self, request: web.Request, dialect: Dialect) -> str:
        given = request.headers.get("X-Request-Id", "")[:_ID_CHARACTERS]
        prefix = "chatcmpl" if dialect == "chat" else "cmpl"
        return f"{prefix}-{given or f'{self._numbers:016x}'}"

    # -- what else is asked -------------------------------------------------------------------------------------

    async def _models(self, request: web.Request) -> web.Response:
        entry = {"id": self.config.model, "object": "model", "owned_by": "loadgen-simulator"}
        entry["root"] = self.config.model
        return web.json_response({"object": "list", "data": [{**entry, "max_model_len": self.config.max_model_len}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = read_body(await request.read())
        check_model(body, self.config.model)
        text = prompt_text(body, "completions" if body.messages is None else "chat")
        ids = token_ids(text)
        return web.json_response({"count": len(ids), "max_model_len": self.config.max_model_len, "tokens": ids})

    async def _metrics(self, request: web.Request) -> web.Response:
        engine = self.engine
        now = Gauges(
            running=engine.running,
            waiting=engine.waiting,
            kv_usage=engine.kv_usage,
            prefix_queries=engine.prefix_queries,
            prefix_hits=engine.prefix_hits,
            preemptions=engine.preemptions,
            block_tokens=self.config.engine.block_tokens,
            blocks=self.config.engine.blocks,
            prefix_cache=self.config.engine.prefix_cache,
        )
        return web.Response(text=render(self.counters, now, self.config.model))


def _transport(request: web.Request) -> asyncio.Transport:
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has gone")
    assert isinstance(transport, asyncio.Transport)
    return transport


async def _open_stream(request: web.Request) -> web.StreamResponse:
    """Send the head of a chunked stream."""
    if request.version < (1, 1):
        raise Refused(505, "streams need HTTP/1.1", "BadRequestError")
    response = web.StreamResponse(headers=_STREAM_HEADERS)
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


def _cut(transport: asyncio.Transport, reset: bool) -> None:
    """End the connection in the middle of a response: with FIN, or with RST."""
    if not reset:
        transport.close()
        return
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def _health(request: web.Request) -> web.Response:
    return web.Response()


async def _version(request: web.Request) -> web.Response:
    return web.json_response({"version": f"loadgen-simulator {__version__}"})


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as refused:
        return web.Response(
            status=refused.status, body=refused.document(), content_type="application/json", headers=refused.headers
        )
    except web.HTTPException as other:
        if other.status < 400:
            raise
        return web.json_response({"detail": other.reason}, status=other.status)
