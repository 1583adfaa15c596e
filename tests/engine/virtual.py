"""Virtual time for the engine: a clock on async-solipsism's loop, and an endpoint that answers in it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from typing import ParamSpec

import async_solipsism

from loadgen.model import Capture, Exchange, Failure, Message, PlannedRequest

MS = 1_000_000
S = 1_000_000_000
P = ParamSpec("P")


def virtual(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test in virtual time: a loop that jumps to its next timer when nothing else is left to do."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = async_solipsism.EventLoop()
        try:
            loop.run_until_complete(test(*args, **kwargs))
        finally:
            loop.close()

    # pytest must see the arguments, but not that there is a coroutine function behind.
    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    del run.__wrapped__  # type: ignore[attr-defined]
    return run


class VirtualClock:
    """The loop's own time, which async-solipsism advances to the next timer at once."""

    def now_ns(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e9)

    async def sleep_until(self, when_ns: int) -> None:
        loop = asyncio.get_running_loop()
        if when_ns <= self.now_ns():
            return
        woken: asyncio.Future[None] = loop.create_future()
        tick_s = -(-when_ns // 1000) * 1e-6  # async-solipsism advances by whole microseconds
        loop.call_at(tick_s, lambda: woken.done() or woken.set_result(None))
        await woken


class Endpoint:
    """Answers after `ttft_ns(now)` with `tokens` events `gap_ns` apart, as a close-delimited SSE body."""

    def __init__(self, clock: VirtualClock, ttft_ns: Callable[[int], int], gap_ns: int = 0, tokens: int = 1) -> None:
        self.clock, self.ttft_ns, self.gap_ns, self.tokens = clock, ttft_ns, gap_ns, tokens
        self.open = self.peak = 0
        self.bodies: list[bytes] = []

    lead_ns = 0

    async def stream(self, capture: Capture, url: str, body: bytes) -> None:
        self.bodies.append(body)
        self.open += 1
        self.peak = max(self.peak, self.open)
        capture.sent_ns = capture.sent_end_ns = self.clock.now_ns()
        capture.status, capture.framing = 200, "close"
        capture.headers = (("content-type", "text/event-stream"),)
        try:
            await self.clock.sleep_until(capture.sent_ns + self.ttft_ns(capture.sent_ns))
            capture.headers_ns = self.clock.now_ns()
            for index in range(self.tokens):
                if index:
                    await self.clock.sleep_until(self.clock.now_ns() + self.gap_ns)
                capture.body.add(self.clock.now_ns(), b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', 0)
            usage = b'{"prompt_tokens":7,"completion_tokens":%d}' % self.tokens
            end = b'data: {"choices":[{"delta":{},"finish_reason":"length"}],"usage":%s}\n\ndata: [DONE]\n\n' % usage
            capture.body.add(self.clock.now_ns(), end, 0)
            capture.complete = True
        except asyncio.CancelledError:
            capture.failure = Failure("cancelled", "cancelled by the client")
        finally:
            capture.end_ns = self.clock.now_ns()
            self.open -= 1


class Rows:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.rows: list[Exchange] = []

    def write(self, exchange: Exchange) -> None:
        self.rows.append(exchange)


def requests(count: int | None, offsets: Iterator[int] | None = None, stage: int = 0) -> Iterator[PlannedRequest]:
    """A plain plan: `count` requests (None: endless), due at `offsets` where given."""
    index = 0
    while count is None or index < count:
        due = None if offsets is None else next(offsets, None)
        if offsets is not None and due is None:
            return
        yield PlannedRequest(index, stage, "chat", (Message("user", f"request {index}"),), 7, 1, due)
        index += 1
