"""Several workers that run one plan together: the parent's side.

Knows: how workers agree on a start, who lends slots to whom, what the loss of one means, how their records become one.
Must not know: where a worker runs and how words reach it (`links`), how a stage is run (`runner` does).

Theory of operation. The parent probes, warms up and calibrates; then every worker gets the same stage and its slice
of the plan (request k goes to worker k mod n), so the schedule is the same for any number of workers. Workers build
bodies ahead and say `ready`; the parent names one start, which each is told on its own clock.
In closed loop the users are divided; a worker whose slice has ended gives its slots back and the parent lends them to
those that still have work, so that the whole concurrency stays exact. Each worker writes a part of the run file of its
own; counters come to the parent twice a second. Of a worker that is lost, what it had finished is kept, what it had
sent is marked, and the next stage is divided among those that are left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from loadgen.analysis.tally import merged
from loadgen.engine.clock import MonotonicClock
from loadgen.engine.links import Link, Staff, Word
from loadgen.engine.lost import Lost
from loadgen.engine.runner import Live
from loadgen.engine.units import Slice
from loadgen.engine.worker import Seat, Task
from loadgen.errors import LoadgenError
from loadgen.model import Ended, StageInfo

_ADD_UP_S = 0.5
_SUMS = ("receives", "peak_connections", "spent_tokens", "spent_cost")


@dataclass(slots=True)
class _Worker:
    number: int
    link: Link
    live: Live = field(default_factory=Live)
    task: Task | None = None  # of the stage that runs
    sent_before: int = 0
    ready: bool = False
    result: StageInfo | None = None
    ended_plan: bool = False
    lost_ns: int | None = None


class Crew:
    """`start()` once, `stage()` for each stage, `close()` at the end."""

    def __init__(self, seats: list[Seat], staff: Staff, clock: MonotonicClock, live: Live) -> None:
        self._seats, self._staff, self._clock, self._live = seats, staff, clock, live
        self._workers: list[_Worker] = []
        self._changed = asyncio.Event()
        self._spare = self._lent = 0
        self._error: LoadgenError | None = None
        self._adding: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Start the workers."""
        for seat, link in zip(
            self._seats, await asyncio.gather(*(self._staff.hire(seat) for seat in self._seats)), strict=True
        ):
            worker = _Worker(seat.number, link)
            self._workers.append(worker)
            self._attend(worker)

    def _attend(self, worker: _Worker) -> None:
        worker.link.listen(lambda words: self._hear(worker, words), lambda: self._lose(worker))

    async def stage(self, task: Task, stop: asyncio.Event) -> list[Lost]:
        """Run one stage on all workers that are alive and fill in its record; returns those that were lost in it."""
        self._spare = self._lent = 0
        mine = self._alive()
        for index, worker in enumerate(mine):
            worker.ready, worker.result, worker.ended_plan = False, None, False
            worker.task = replace(task, part=Slice(index, len(mine)))
            worker.link.send(("stage", worker.task))
        await self._until(lambda: all(w.ready for w in self._alive()))
        start_ns = self._clock.now_ns() + self._staff.lead_ns
        for worker in self._alive():
            worker.link.send(("go", start_ns + worker.link.shift_ns))
        stopper = asyncio.create_task(self._pass_on(stop))
        try:
            await self._until(lambda: all(w.result is not None for w in self._alive()))
        finally:
            stopper.cancel()
        await asyncio.gather(*(worker.link.settle() for worker in mine))
        self._add_up()
        return self._merge(task.info, mine, start_ns)

    def end(self, ended: Ended) -> None:
        """End the running stage before its time, on every worker."""
        for worker in self._alive():
            worker.link.send(("end", ended))

    async def close(self) -> None:
        """End every worker; one that does not listen is killed."""
        if self._adding is not None:
            self._adding.cancel()
        await asyncio.gather(*(worker.link.close() for worker in self._workers))

    def facts(self) -> dict[str, Any]:
        """Where the workers run and how well their clocks are known; nothing for processes of this machine."""
        told = [
            {"worker": worker.number, **facts, "lost": worker.lost_ns is not None}
            for worker in self._workers
            if (facts := worker.link.facts())
        ]
        return self._staff.facts() | {"workers": told} if told else {}

    # -- what workers say ---------------------------------------------------------------------------------------

    def _hear(self, worker: _Worker, words: list[Word]) -> None:
        try:
            for word, value in words:
                self._obey(worker, word, value)
        except LoadgenError as bad:  # raised where the stage waits: nobody waits for a reader's callback
            self._error = self._error or bad
        self._changed.set()

    def _obey(self, worker: _Worker, word: str, value: Any) -> None:
        if word == "ready":
            worker.ready, worker.sent_before = True, value
        elif word == "counts":
            worker.live = value
            if self._adding is None:
                self._adding = asyncio.get_running_loop().call_later(_ADD_UP_S, self._add_up)
        elif word == "spare":
            worker.ended_plan = True
            self._spare += value
            self._lend()
        elif word == "done":
            worker.result = value
        elif word == "error":
            kind, what, where, do = value
            raise kind(what, where=where, do=do)

    def _lend(self) -> None:
        """Give spare slots to the workers that still have requests, in turn."""
        takers = [w for w in self._alive() if not w.ended_plan and w.result is None]
        for index in range(self._spare if takers else 0):
            takers[index % len(takers)].link.send(("lend", 1))
        if takers:
            self._lent += self._spare
            self._spare = 0

    def _lose(self, worker: _Worker) -> None:
        if worker.lost_ns is None:
            worker.lost_ns = self._clock.now_ns()
            self._changed.set()

    def _add_up(self) -> None:
        """Sum up what all have counted: for many workers too much to do it at each word of one of them."""
        if self._adding is not None:
            self._adding.cancel()
            self._adding = None
        lives = [w.live for w in self._workers]
        self._live.sent = sum(x.sent for x in lives)
        self._live.finished = sum(x.finished for x in lives)
        self._live.failed = sum(x.failed for x in lives)
        self._live.in_flight = sum(w.live.in_flight for w in self._alive())
        if self._live.tally is not None:
            self._live.tally = merged(x.tally for x in lives if x.tally is not None)

    # -- small parts --------------------------------------------------------------------------------------------

    def _alive(self) -> list[_Worker]:
        return [w for w in self._workers if w.lost_ns is None]

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._changed.clear()
            await self._changed.wait()
            if self._error is not None:
                raise self._error
        if not self._alive():
            raise LoadgenError("every worker process died", do="what they had finished is in the run's folder")

    async def _pass_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        for worker in self._alive():
            worker.link.send(("stop", None))

    def _merge(self, info: StageInfo, mine: list[_Worker], start_ns: int) -> list[Lost]:
        """One record from those of the workers: windows agree, counts add up, the worst of the client counts."""
        done = [(w.result, w.link.shift_ns) for w in mine if w.result is not None]
        results = [result for result, _ in done]
        info.start_ns = start_ns
        info.window_start_ns = start_ns + max(
            ((r.window_start_ns or 0) - (r.start_ns or 0) for r in results), default=0
        )
        info.window_end_ns = max((r.window_end_ns - by for r, by in done if r.window_end_ns is not None), default=None)
        info.end_ns = max((r.end_ns - by for r, by in done if r.end_ns is not None), default=None)
        info.planned = sum(r.planned for r in results)
        info.unsent = sum(r.unsent for r in results)
        info.stopped = next((r.stopped for r in results if r.stopped), None)
        info.reached = next((r.reached for r in results if r.reached), None)
        info.health = merged_health([r.health for r in results])
        lost = [w for w in mine if w.result is None]
        info.health |= {
            "workers": float(len(mine)),
            "workers_lost": float(len(lost)),
            "slots_lent": float(self._lent),
        }
        if not self._staff.here:
            errors = [w.link.facts()["error_ns"] for w in mine]
            info.health["worker_clock_error_ns"] = float(max(errors))
        for worker in lost:  # what one had spent that died, nobody knows: take it that all of its share is
            if worker.task is not None and worker.task.purse is not None and worker.ready:
                part = worker.task.part
                share = worker.task.purse.share(part.index, part.count).spent
                info.health["spent_tokens"] = info.health.get("spent_tokens", 0.0) + (share.tokens or 0)
                info.health["spent_cost"] = info.health.get("spent_cost", 0.0) + (share.cost or 0.0)
        return [
            Lost(w.number, w.task.part, w.live.sent - w.sent_before if w.ready else 0, w.lost_ns or 0)
            for w in lost
            if w.task is not None
        ]


def merged_health(parts: list[dict[str, float]]) -> dict[str, float]:
    """Counts add up; of everything else the worst worker stands for the whole (the least for `kernel_stamps`)."""
    merged: dict[str, float] = {}
    for key in sorted({key for part in parts for key in part}):
        values = [part[key] for part in parts if key in part]
        if key in _SUMS:
            merged[key] = sum(values)
        else:
            merged[key] = min(values) if key == "kernel_stamps" else max(values)
    late = [part["start_late_ns"] for part in parts if "start_late_ns" in part]
    if late:
        merged["start_skew_ns"] = max(late) - min(late)
    merged["client_cpu_total_s"] = sum(part.get("client_cpu_s", 0.0) for part in parts)
    return merged
