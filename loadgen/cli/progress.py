"""The progress line of a run: requests, errors, current TTFT and TPOT, time left. Silent when not on a terminal.

Knows: the runner's live counters. Must not know: metrics; its percentiles are those of histograms that any number of
workers add up to, and the line says how far off they can be.
"""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType
from typing import TYPE_CHECKING

from loadgen.analysis.tally import ERROR_SHARE, Histogram, Tally, merged

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
        self._before = Tally()
        self._task: asyncio.Task[None] | None = None

    def stage(self, info: StageInfo | None) -> None:
        """From now on the line is about this stage."""
        self._info = info
        self._begun_s = asyncio.get_running_loop().time()
        self._sent_before = self._live.finished
        self._before = merged([self._live.tally or Tally()])

    async def __aenter__(self) -> Progress:
        if sys.stderr.isatty():
            self._live.tally = self._live.tally or Tally()
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
        done = live.finished - self._sent_before
        parts = [f"{info.name}: {done} done, {live.in_flight} in flight, {live.failed} failed"]
        parts += self._percentiles(live.tally or Tally())
        left = self._left_s(done)
        parts += [f"about {left:.0f} s left"] if left is not None else []
        return " | ".join(parts)

    def _percentiles(self, tally: Tally) -> list[str]:
        shown = []
        for name, now, before in (("TTFT", tally.ttft, self._before.ttft), ("ITL", tally.gap, self._before.gap)):
            here = Histogram(now.bounds, now.counts - before.counts)
            if here.counts.sum() > 0:
                p50, p99 = (f"{here.quantile(q) * 1e3:.3g}" for q in (0.5, 0.99))
                shown.append(f"{name} p50 {p50} p99 {p99} ms")
        return [f"{', '.join(shown)} (±{ERROR_SHARE * 100:.0f} %)"] if shown else []

    def _left_s(self, done: int) -> float | None:
        assert self._info is not None
        elapsed = asyncio.get_running_loop().time() - self._begun_s
        if self._info.duration_ns is not None:
            return max(self._info.duration_ns / 1e9 - elapsed, 0.0)
        if self._info.requests and done:
            return elapsed / done * (self._info.requests - done)
        return None
