"""The endpoint: routes, refusals, and the life of one request.

Knows: which part answers what. Must not know: step times, event bytes, how faults strike in a stream, sockets.

Theory of operation. aiohttp parses requests and writes response heads; the body of a stream is written by the step loop
straight to the transport as ready-made HTTP chunks, because a coroutine per token and stream would cost more than the
token. The handler only waits for the end. A client that goes away cancels its handler, which frees the engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any
from zlib import crc32

import numpy as np
from aiohttp import web

from loadgen import __version__
from loadgen.errors import EndpointError
from loadgen.plan.guard import solve
from loadgen.roofline.fleet import Fleet
from loadgen.roofline.serving import Engine, ServingRequest, Step
from loadgen.simulator.config import SimulatorConfig
from loadgen.simulator.faults import REFUSALS, Fault
from loadgen.simulator.listener import Handler, Listener, Received
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
from loadgen.simulator.tokens import Prefixes, asked_last, pages, token_ids, write_book

_BUSY = "The engine is busy and cannot accept new requests. Please try again later."
_REFUSALS: dict[str, Refused] = {
    "429": Refused(429, "Rate limit reached. Please try again later.", "Too Many Requests", None, 1),
    "500": Refused(500, "Internal server error.", "InternalServerError"),
    "503": Refused(503, _BUSY, "Service Unavailable", None, 1),
}
_ID_CHARACTERS = 64
assert set(REFUSALS) == set(_REFUSALS)


class Simulator:
    """A simulated endpoint on 127.0.0.1: `async with Simulator(config) as sim: ... sim.url`."""

    def __init__(self, config: SimulatorConfig, port: int = 0) -> None:
        self.config, self._port = config, port
        self.counters = Counters()
        self.url = ""
        rng = np.random.default_rng(config.seed)
        self._engine_seed = int(rng.integers(1 << 62))
        self._faults_rng = np.random.default_rng(rng.integers(1 << 62))
        self._eos_rng = np.random.default_rng(rng.integers(1 << 62))
        self._prefixes = Prefixes(config.engine.block_tokens, np.random.default_rng(rng.integers(1 << 62)))
        self._text = EscapedBook.of(write_book(rng))
        self._numbers = 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def engines(self) -> tuple[Engine, ...]:
        """All engines, a prefill pool first."""
        return self._stepper.fleet.engines

    async def __aenter__(self) -> Simulator:
        self._stepper = Stepper(self._fleet, self.counters, self.config.time_scale)
        routes: dict[tuple[str, str], Handler] = {
            ("POST", "/v1/chat/completions"): partial(self._generate, "chat"),
            ("POST", "/v1/completions"): partial(self._generate, "completions"),
            ("GET", "/v1/models"): self._models,
            ("POST", "/tokenize"): self._tokenize,
            ("GET", "/health"): _health,
            ("GET", "/version"): _version,
            ("GET", "/metrics"): self._metrics,
        }
        self._listener = Listener(routes, self._port)
        try:
            self.url = await self._listener.start()
        except EndpointError:
            self._stepper.close()
            raise
        if self.config.keep_alive_s is not None:
            self._tasks.append(asyncio.create_task(self._keep_alive(self.config.keep_alive_s)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await self._listener.stop()
        self._stepper.close()

    def _fleet(self, started: Callable[[Step], None]) -> Fleet:
        config = self.config
        return Fleet(
            config.engine,
            config.replicas,
            router=config.router,
            prefill=config.engine if config.prefill_replicas else None,
            prefill_replicas=max(config.prefill_replicas, 1),
            transfer_token_s=config.transfer_token_s,
            seed=self._engine_seed,
            started=started,
        )

    async def _keep_alive(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            for stream in list(self._stepper.streams.values()):
                stream.keep_alive()

    # -- one request --------------------------------------------------------------------------------------------

    async def _generate(self, dialect: Dialect, got: Received) -> web.StreamResponse:
        ask = read_ask(dialect, got.body, model=self.config.model, max_model_len=self.config.max_model_len)
        fault = self.config.faults.draw(self._faults_rng)
        if fault is not None:
            self.counters.faults[fault.kind] = self.counters.faults.get(fault.kind, 0) + 1
            if fault.kind in REFUSALS:
                raise _REFUSALS[fault.kind]
            if fault.kind == "slow_headers":
                await asyncio.sleep(fault.span_s)
                got = replace(got, arrival_s=time.monotonic())
        if self.config.max_queue is not None and self._place_in_queue() > self.config.max_queue:
            return await self._overloaded(got, ask)
        self._numbers += 1
        answer = self._answer(ask, fault)
        if not self._stepper.fleet.fits(ServingRequest(self._numbers, ask.prompt_tokens, answer.tokens)):
            raise bad_request("The request needs more KV cache than the engine has.")
        return await (self._stream if ask.stream else self._whole)(got, ask, answer)

    async def _stream(self, got: Received, ask: Ask, answer: Answer) -> web.StreamResponse:
        events = Events(ask.dialect, self._answer_id(got, ask.dialect), int(time.time()), self.config.model)
        response = await got.open_stream()  # first: from `submit` on the step loop may write
        interval, send = self.config.stream_interval, got.transport.write
        stream = self._make(ask, answer, events=events, interval=interval, send=send)
        self._stepper.submit(stream, got.arrival_s)
        try:
            ending = await stream.done
        finally:
            self._stepper.cancel(stream)
        if ending in ("truncate", "reset"):
            got.cut(reset=ending == "reset")
        else:
            await response.write_eof()
        return response

    async def _whole(self, got: Received, ask: Ask, answer: Answer) -> web.StreamResponse:
        answer_id = self._answer_id(got, ask.dialect)
        stream = self._make(ask, answer)
        self._stepper.submit(stream, got.arrival_s)
        try:
            await stream.done
        finally:
            self._stepper.cancel(stream)
        text = (answer.own or self._text).book.text(answer.start, answer.tokens)
        reason, use = answer.finish_reason.decode(), stream.usage(answer.tokens)
        body = whole_answer(ask.dialect, answer_id, int(time.time()), self.config.model, text, reason, use)
        if answer.fault is None:
            return web.Response(body=body, content_type="application/json")
        return await self._whole_with_fault(got, body, answer.fault)

    async def _whole_with_fault(self, got: Received, body: bytes, fault: Fault) -> web.StreamResponse:
        """A document can be late, wrong or incomplete; what concerns streams only leaves it as it is."""
        half = body[: len(body) // 2]
        if fault.kind in ("truncate", "reset"):
            headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            response = web.StreamResponse(headers=headers)
            await response.prepare(got.http)
            await response.write(half)
            got.cut(reset=fault.kind == "reset")
            return response
        if fault.kind == "stall":
            await asyncio.sleep(fault.span_s)
        body = {"error200": BROKEN.document(), "malformed": half}.get(fault.kind, body)
        return web.Response(body=body, content_type="application/json")

    def _make(self, ask: Ask, answer: Answer, **wire: Any) -> Stream:
        stream = Stream(self._numbers, ask, answer, answer.own or self._text, **wire)
        if self.config.engine.prefix_cache:
            stream.block_hashes = self._prefixes.hashes(ask.prompt, ask.starts)
        return stream

    def _place_in_queue(self) -> int:
        """Where a request that came now would stand in the queue; 0: it would join the batch at the next step."""
        fleet = self._stepper.fleet
        behind = fleet.left_waiting + 1 if fleet.left_waiting else 0  # for memory, free places or not
        return max(fleet.waiting + 1 - fleet.places_free, behind, 0)

    async def _overloaded(self, got: Received, ask: Ask) -> web.StreamResponse:
        self.counters.refused += 1
        if self.config.overload != "200" or not ask.stream:
            raise _REFUSALS["503" if self.config.overload == "200" else self.config.overload]
        response = await got.open_stream()
        got.transport.write(error_event(_REFUSALS["503"]) + frame(DONE))
        await response.write_eof()
        return response

    def _answer(self, ask: Ask, fault: Fault | None) -> Answer:
        """How long the answer will be, why it ends, and where in the book it starts (which depends on the prompt)."""
        known = None if self.config.wrong_answers or ask.ignore_eos else solve(asked_last(ask.prompt))
        if known is not None:
            own = EscapedBook.of(pages(known))
            tokens = min(len(own.pieces), ask.max_tokens)
            return Answer(tokens, 0, b"stop" if tokens == len(own.pieces) else b"length", fault, own)
        tokens = ask.max_tokens
        if self.config.eos_rate > 0 and not ask.ignore_eos:
            natural = int(self._eos_rng.geometric(self.config.eos_rate))
            tokens = min(tokens, max(natural, ask.min_tokens))
        if fault is not None and fault.kind == "short":
            tokens = max(fault.at(tokens), 1)
        start = (crc32(ask.prompt) ^ self.config.seed) % len(self._text.pieces)
        return Answer(tokens, start, b"stop" if tokens < ask.max_tokens else b"length", fault)

    def _answer_id(self, got: Received, dialect: Dialect) -> str:
        given = got.http.headers.get("X-Request-Id", "")[:_ID_CHARACTERS]
        prefix = "chatcmpl" if dialect == "chat" else "cmpl"
        return f"{prefix}-{given or f'{self._numbers:016x}'}"

    # -- what else is asked -------------------------------------------------------------------------------------

    async def _models(self, got: Received) -> web.Response:
        entry = {"id": self.config.model, "object": "model", "owned_by": "loadgen-simulator"}
        entry["root"] = self.config.model
        return web.json_response({"object": "list", "data": [{**entry, "max_model_len": self.config.max_model_len}]})

    async def _tokenize(self, got: Received) -> web.Response:
        body = read_body(got.body)
        check_model(body, self.config.model)
        text = prompt_text(body, "completions" if body.messages is None else "chat")
        ids = token_ids(text)
        return web.json_response({"count": len(ids), "max_model_len": self.config.max_model_len, "tokens": ids})

    async def _metrics(self, got: Received) -> web.Response:
        now = [
            Gauges(
                running=engine.running,
                waiting=engine.waiting,
                kv_usage=engine.kv_usage,
                prefix_queries=engine.prefix_queries,
                prefix_hits=engine.prefix_hits,
                preemptions=engine.preemptions,
            )
            for engine in self.engines
        ]
        return web.Response(text=render(self.counters, now, self.config.model, self._cache_facts()))

    def _cache_facts(self) -> dict[str, object]:
        engine = self.config.engine
        return {
            "block_size": engine.block_tokens,
            "num_gpu_blocks": engine.blocks,
            "enable_prefix_caching": engine.prefix_cache,
        }


async def _health(got: Received) -> web.Response:
    return web.Response()


async def _version(got: Received) -> web.Response:
    return web.json_response({"version": f"loadgen-simulator {__version__}"})
