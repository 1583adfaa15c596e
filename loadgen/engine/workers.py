"""Several processes that run one plan together.

Knows: how a parent and its workers talk, agree on a start, lend slots, and what the death of one means. Must not know:
how a stage is run (`runner` does), or where rows go (a factory that comes in makes each worker's sink).

Theory of operation. The parent probes, warms up and calibrates; then every worker gets the same stage and its slice
of the plan (request k goes to worker k mod n), so the schedule is the same for any number of workers. Workers build
bodies ahead and say `ready`; the parent names one start on CLOCK_MONOTONIC, which all processes of a machine share.
In closed loop the users are divided; a worker whose slice has ended gives its slots back and the parent lends them to
those that still have work, so that the whole concurrency stays exact. Each worker writes a part of the run file of its
own; counters come to the parent twice a second. A worker that dies is counted, its finished rows are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from loadgen.analysis.tally import Tally, merged
from loadgen.engine.clock import MonotonicClock
from loadgen.engine.health import HealthMeter
from loadgen.engine.host import ScrubbingSink, Secrets
from loadgen.engine.runner import Live, Runner, Target
from loadgen.engine.sockets import StampingSelector
from loadgen.engine.timeouts import Limits
from loadgen.engine.transport import Security, Transport
from loadgen.engine.units import Slice
from loadgen.errors import LoadgenError
from loadgen.model import Ended, PlannedRequest, Sink, StageInfo
from loadgen.plan.budget import Purse
from loadgen.wire.timeline import last_token_ns

_LEAD_NS = 100_000_000  # between the last `ready` and the common start
_COUNTS_S = 0.5
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Seat:
    """What a worker process is started with; picklable. `make_sink(worker)` opens its part of the run file."""

    part: Slice
    origin_ns: int
    targets: tuple[Target, ...]
    url: str  # as the user gave it: its secrets are scrubbed from rows
    headers: dict[str, str]
    limits: Limits
    security: Security
    keep_text: bool
    count_tokens: Callable[[str], int] | None
    reuse: bool  # of connections
    make_sink: Callable[[int], Sink]
    tally: bool = False  # somebody looks while the run goes on


@dataclass(frozen=True, slots=True)
class Task:
    """One stage for one worker; picklable. `plan(part)` makes the requests of its slice."""

    info: StageInfo
    plan: Callable[[Slice], Iterator[PlannedRequest]]
    stagger_ns: int
    purse: Purse | None = None  # of all workers together; each holds its share


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    live: Live = field(default_factory=Live)
    ready: bool = False
    result: StageInfo | None = None
    ended_plan: bool = False
    lost: bool = False


class Crew:
    """The parent's side. `start()` once, `stage()` for each stage, `close()` at the end."""

    def __init__(self, seats: list[Seat], clock: MonotonicClock, live: Live) -> None:
        self._seats, self._clock, self._live = seats, clock, live
        self._workers: list[_Worker] = []
        self._changed = asyncio.Event()
        self._spare = 0
        self._error: LoadgenError | None = None

    def start(self) -> None:
        """Spawn the processes (never fork: a forked event loop shares its epoll)."""
        context = multiprocessing.get_context("spawn")
        loop = asyncio.get_running_loop()
        for seat in self._seats:
            ours, theirs = context.Pipe()
            process = context.Process(target=_main, args=(seat, theirs), daemon=True)
            process.start()
            theirs.close()
            worker = _Worker(process, ours)
            self._workers.append(worker)
            loop.add_reader(ours.fileno(), self._hear, worker)

    async def stage(self, task: Task, stop: asyncio.Event) -> StageInfo:
        """Run one stage on all workers that are alive; returns their merged record."""
        self._spare = 0
        for worker in self._workers:
            worker.ready, worker.result, worker.ended_plan = False, None, False
        for worker in self._alive():
            self._send(worker, ("stage", task))
        await self._until(lambda: all(w.ready for w in self._alive()))
        start_ns = self._clock.now_ns() + _LEAD_NS
        for worker in self._alive():
            self._send(worker, ("go", start_ns))
        stopper = asyncio.create_task(self._pass_on(stop))
        try:
            await self._until(lambda: all(w.result is not None for w in self._alive()))
        finally:
            stopper.cancel()
        merged = self._merge(task.info)
        for worker, seat in zip(self._workers, self._seats, strict=True):
            # What a worker had spent that died, nobody knows: take it that all of its share is.
            if task.purse is not None and worker.ready and worker.result is None:
                share = task.purse.share(seat.part.index, seat.part.count).spent
                merged.health["spent_tokens"] += share.tokens or 0
                merged.health["spent_cost"] += share.cost or 0.0
        return merged

    def end(self, ended: Ended) -> None:
        """End the running stage before its time, on every worker."""
        for worker in self._alive():
            self._send(worker, ("end", ended))

    async def close(self) -> None:
        """End every process; one that does not listen is killed."""
        loop = asyncio.get_running_loop()
        for worker in self._workers:
            if not worker.lost:
                self._send(worker, ("quit", None))
        for worker in self._workers:
            await loop.run_in_executor(None, worker.process.join, 10)
            if worker.process.is_alive():
                worker.process.kill()
            if not worker.lost:
                loop.remove_reader(worker.pipe.fileno())
            worker.pipe.close()

    # -- what workers say ---------------------------------------------------------------------------------------

    def _hear(self, worker: _Worker) -> None:
        try:
            while worker.pipe.poll():
                word, value = worker.pipe.recv()
                self._obey(worker, word, value)
        except (EOFError, OSError):
            self._lose(worker)
        except LoadgenError as bad:  # raised where the stage waits: nobody waits for a reader's callback
            self._error = self._error or bad
        self._changed.set()

    def _obey(self, worker: _Worker, word: str, value: Any) -> None:
        if word == "ready":
            worker.ready = True
        elif word == "counts":
            worker.live = value
            self._add_up()
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
            self._send(takers[index % len(takers)], ("lend", 1))
        if takers:
            self._spare = 0

    def _lose(self, worker: _Worker) -> None:
        if not worker.lost:
            worker.lost = True
            asyncio.get_running_loop().remove_reader(worker.pipe.fileno())

    def _add_up(self) -> None:
        lives = [w.live for w in self._workers]
        self._live.sent = sum(x.sent for x in lives)
        self._live.finished = sum(x.finished for x in lives)
        self._live.failed = sum(x.failed for x in lives)
        self._live.in_flight = sum(x.in_flight for x in lives)
        if self._live.tally is not None:
            self._live.tally = merged(x.tally for x in lives if x.tally is not None)
        self._live.recent.extend(e for x in lives for e in list(x.recent)[-20:])

    # -- small parts --------------------------------------------------------------------------------------------

    def _alive(self) -> list[_Worker]:
        return [w for w in self._workers if not w.lost]

    def _send(self, worker: _Worker, message: tuple[str, Any]) -> None:
        try:
            worker.pipe.send(message)
        except OSError:
            self._lose(worker)

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
            self._send(worker, ("stop", None))

    def _merge(self, info: StageInfo) -> StageInfo:
        """One record from those of the workers: windows agree, counts add up, the worst of the client counts."""
        results = [w.result for w in self._workers if w.result is not None]
        first = results[0]
        info.start_ns, info.window_start_ns = first.start_ns, first.window_start_ns
        info.window_end_ns = max((r.window_end_ns for r in results if r.window_end_ns is not None), default=None)
        info.end_ns = max((r.end_ns for r in results if r.end_ns is not None), default=None)
        info.planned = sum(r.planned for r in results)
        info.unsent = sum(r.unsent for r in results)
        info.stopped = next((r.stopped for r in results if r.stopped), None)
        info.reached = next((r.reached for r in results if r.reached), None)
        if info.requests is not None and info.reached is None:
            info.unsent += info.requests - info.planned
            info.planned = info.requests
        info.health = _merged_health([r.health for r in results])
        info.health["workers"] = float(len(self._workers))
        info.health["workers_lost"] = float(sum(w.lost for w in self._workers))
        return info


def _merged_health(parts: list[dict[str, float]]) -> dict[str, float]:
    """Counts add up; of everything else the worst worker stands for the whole (the least for `kernel_stamps`)."""
    merged: dict[str, float] = {}
    for key in sorted({key for part in parts for key in part}):
        values = [part[key] for part in parts if key in part]
        if key in ("receives", "peak_connections", "spent_tokens", "spent_cost"):
            merged[key] = sum(values)
        else:
            merged[key] = min(values) if key == "kernel_stamps" else max(values)
    merged["client_cpu_total_s"] = sum(part.get("client_cpu_s", 0.0) for part in parts)
    return merged


# -- the worker's side --------------------------------------------------------------------------------------------


def _main(seat: Seat, pipe: Connection) -> None:
    """The entry point of a worker process. Ctrl-C reaches the whole group; the parent alone decides what it means."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    selector = StampingSelector(seat.origin_ns)
    loop = asyncio.SelectorEventLoop(selector)
    with contextlib.suppress(EOFError, OSError):  # the parent is gone: the rows are on disk, nobody listens
        try:
            loop.run_until_complete(_Seated(seat, pipe, selector).serve())
        except LoadgenError as bad:
            pipe.send(("error", (type(bad), bad.what, bad.where, bad.do)))


class _Seated:
    """One worker at work."""

    def __init__(self, seat: Seat, pipe: Connection, selector: StampingSelector) -> None:
        self._seat, self._pipe, self._selector = seat, pipe, selector
        self._clock = MonotonicClock(seat.origin_ns)
        self._orders: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._start: asyncio.Future[int] | None = None
        self._runner: Runner | None = None

    async def serve(self) -> None:
        seat = self._seat
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._hear)
        transport = Transport(
            self._clock,
            selector=self._selector,
            headers=seat.headers,
            limits=seat.limits,
            security=seat.security,
            last_token_ns=last_token_ns,
        )
        async with transport:
            if not seat.reuse:
                transport.never_reuse()
            self._runner = Runner(
                self._clock,
                transport,
                seat.targets[0],
                ScrubbingSink(seat.make_sink(seat.part.index), Secrets.of(seat.url, seat.headers)),
                look=self._selector.drain,
                keep_text=seat.keep_text,
                count_tokens=seat.count_tokens,
                worker=seat.part.index,
                others=seat.targets[1:],
            )
            self._runner.live.tally = Tally() if seat.tally else None
            while (order := await self._orders.get())[0] != "quit":
                await self._stage(self._runner, transport, order[1])

    def _hear(self) -> None:
        try:
            while self._pipe.poll():
                self._obey(*self._pipe.recv())
        except (EOFError, OSError):  # the parent is gone: end what is in flight, write it, and leave
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            if self._runner is not None:
                self._runner.stop.set()
            if self._start is not None and not self._start.done():
                self._start.set_exception(EOFError())
            self._orders.put_nowait(("quit", None))

    def _obey(self, word: str, value: Any) -> None:
        assert self._runner is not None
        if word == "go" and self._start is not None:
            self._start.set_result(value)
        elif word == "lend":
            self._runner.lend(value)
        elif word == "stop":
            self._runner.stop.set()
        elif word == "end":
            self._runner.end(value)
        else:
            self._orders.put_nowait((word, value))

    async def _stage(self, runner: Runner, transport: Transport, task: Task) -> None:
        info = replace(task.info, health={})
        part = self._seat.part
        runner.purse = None if task.purse is None else task.purse.share(part.index, part.count)
        self._start = asyncio.get_running_loop().create_future()
        meter = HealthMeter(self._selector)
        counts = asyncio.create_task(self._count(runner))

        async def agreed_start() -> int:
            assert self._start is not None
            self._pipe.send(("ready", None))
            start = await self._start
            meter.start()
            return start

        try:
            await runner.run(
                info,
                task.plan(self._seat.part),
                stagger_ns=task.stagger_ns,
                part=self._seat.part,
                agreed_start=agreed_start,
                give_back=lambda slots: self._pipe.send(("spare", slots)),
            )
        except LoadgenError as bad:
            self._pipe.send(("error", (type(bad), bad.what, bad.where, bad.do)))
        finally:
            counts.cancel()
        info.health |= meter.stop()
        info.health["peak_connections"] = float(transport.peak_connections)
        if runner.purse is not None:
            info.health["spent_tokens"] = float(runner.purse.spent.spent_tokens)
            info.health["spent_cost"] = runner.purse.spent.spent_cost
        self._pipe.send(("counts", runner.live))
        self._pipe.send(("done", info))

    async def _count(self, runner: Runner) -> None:
        while True:
            await asyncio.sleep(_COUNTS_S)
            self._pipe.send(("counts", runner.live))
