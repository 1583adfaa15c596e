"""The progress line of a run: requests, errors, current TTFT and TPOT, time left. Silent when not on a terminal.

Knows: the runner's live counters. Must not know: metrics; what it shows are medians of the last hundred requests.
"""

from __future__ import annotations

import asyncio
import sys
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.engine.runner import Live
    from loadgen.model import StageInfo

_REFRESH_S = 0.5


class Progress:
    """An async context manager around a run; `stage(info)` names what is running."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._info: StageInfo | None = None
        self._begun_s = 0.0
        self._sent_before = 0
        self._task: asyncio.Task[None] | None = None

    def stage(self, info: StageInfo | None) -> None:
        """From now on the line is about this stage."""
        self._info = info
        self._begun_s = asyncio.get_running_loop().time()
        self._sent_before = self._live.finished

    async def __aenter__(self) -> Progress:
        if sys.stderr.isatty():
            self._task = asyncio.create_task(self._draw())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _draw(self) -> None:
        from rich.console import Console
        from rich.live import Live as Display

        with Display(console=Console(stderr=True), auto_refresh=False, transient=True) as display:
            while True:
                display.update(self.line(), refresh=True)
                await asyncio.sleep(_REFRESH_S)

    def line(self) -> str:
        """One line of text."""
        live, info = self._live, self._info
        if info is None:
            return "probing and warming up ..."
        recent = [e for e in live.recent if e.outcome == "ok" and e.event_ns and e.sent_ns is not None]
        ttfts = [(e.event_ns[0] - e.sent_ns) / 1e6 for e in recent if e.sent_ns is not None]
        tpots = [
            (e.event_ns[-1] - e.event_ns[0]) / 1e6 / (sum(e.event_tokens) - 1)
            for e in recent
            if sum(e.event_tokens) > 1
        ]
        done = live.finished - self._sent_before
        parts = [f"{info.name}: {done} done, {live.in_flight} in flight, {live.failed} failed"]
        parts += [f"TTFT {median(ttfts):.1f} ms"] if ttfts else []
        parts += [f"TPOT {median(tpots):.2f} ms"] if tpots else []
        left = self._left_s(done)
        parts += [f"about {left:.0f} s left"] if left is not None else []
        return " | ".join(parts)

    def _left_s(self, done: int) -> float | None:
        assert self._info is not None
        elapsed = asyncio.get_running_loop().time() - self._begun_s
        if self._info.duration_ns is not None:
            return max(self._info.duration_ns / 1e9 - elapsed, 0.0)
        if self._info.requests and done:
            return elapsed / done * (self._info.requests - done)
        return None
