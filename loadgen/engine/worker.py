"""One worker: a process that runs its slice of each stage and says what came of it.

Knows: how it is started, what its parent may say to it and what it says back. Must not know: the other workers, how a
stage is run (`runner` does), where its rows go (a function comes in that opens the place), on which machine it runs.

A worker builds bodies ahead and says `ready`; it is told one `go` with the common start; it counts aloud twice a second
and ends each stage with `done`. Slots that it has no more requests for it gives back with `spare`, and it may be lent
others. A parent that is gone ends it: what is in flight is ended and written first.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from loadgen.analysis.tally import Tally
from loadgen.engine.clock import MonotonicClock
from loadgen.engine.health import HealthMeter
from loadgen.engine.host import ScrubbingSink, Secrets, ensure_capacity
from loadgen.engine.runner import Runner, Target
from loadgen.engine.settings import PartSink, Settings
from loadgen.engine.sockets import StampingSelector
from loadgen.engine.timeouts import Limits
from loadgen.engine.transport import Security, Transport
from loadgen.engine.units import Slice
from loadgen.errors import LoadgenError
from loadgen.model import PlannedRequest, StageInfo
from loadgen.plan.budget import Purse
from loadgen.wire.timeline import last_token_ns

_COUNTS_S = 0.5


@dataclass(frozen=True, slots=True)
class Seat:
    """What a worker process is started with; picklable. `open_part(folder, number)` opens its part of the run file."""

    number: int  # of the worker, on each of its rows
    origin_ns: int  # the run's start on the worker's own clock
    targets: tuple[Target, ...]
    url: str = field(repr=False)  # as the user gave it: its secrets are scrubbed from rows
    headers: dict[str, str] = field(repr=False)
    limits: Limits
    security: Security
    keep_text: bool
    count_tokens: Callable[[str], int] | None
    reuse: bool  # of connections
    folder: Path
    open_part: Callable[[Path, int], PartSink]
    tally: bool = False  # somebody looks while the run goes on


def seats_for(
    settings: Settings,
    targets: tuple[Target, ...],
    origin_ns: int,
    parts: tuple[Path, Callable[[Path, int], PartSink]],
    *,
    reuse: bool,
    tally: bool,
) -> list[Seat]:
    """A seat for each worker of a run; `parts` as `RunSink.parts` gives them."""
    return [
        Seat(
            number,
            origin_ns,
            targets,
            settings.url,
            settings.headers,
            settings.limits,
            settings.security,
            settings.keep_text,
            settings.tokenizer,
            reuse,
            *parts,
            tally,
        )
        for number in range(settings.workers)
    ]


@dataclass(frozen=True, slots=True)
class Task:
    """One stage for one worker; picklable. `plan(part)` makes the requests of its slice."""

    info: StageInfo
    plan: Callable[[Slice], Iterator[PlannedRequest]]
    stagger_ns: int
    part: Slice = field(default_factory=Slice)
    purse: Purse | None = None  # of all workers together; each holds its share


def main(seat: Seat, pipe: Connection) -> None:
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
                ScrubbingSink(seat.open_part(seat.folder, seat.number), Secrets.of(seat.url, seat.headers)),
                look=self._selector.drain,
                keep_text=seat.keep_text,
                count_tokens=seat.count_tokens,
                worker=seat.number,
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
        part = task.part
        ensure_capacity(part.share(_most_open(info)))
        runner.purse = None if task.purse is None else task.purse.share(part.index, part.count)
        self._start = asyncio.get_running_loop().create_future()
        meter = HealthMeter(self._selector)
        counts = asyncio.create_task(self._count(runner))

        async def agreed_start() -> int:
            assert self._start is not None
            meter.quiet()
            self._pipe.send(("ready", runner.live.sent))
            start = await self._start
            meter.start()
            await self._clock.sleep_until(start)
            info.health["start_late_ns"] = float(self._clock.now_ns() - start)
            return start

        try:
            await runner.run(
                info,
                task.plan(part),
                stagger_ns=task.stagger_ns,
                part=part,
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


def _most_open(info: StageInfo) -> int:
    """The most connections that all workers together surely need for a stage at a time."""
    users = info.load.value if info.load.kind == "concurrency" else info.load.cap or 1
    return int(min(users, info.requests if info.requests is not None else users))
