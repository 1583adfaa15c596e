"""A whole run: probe, warm-up and calibration, then stage after stage.

Knows: the order of things in a run, and what is written down about it. Must not know: aiohttp, metrics, files, flags.
Why: one place where it can be read what happens in a run, and in which order.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from loadgen.engine import provenance
from loadgen.engine.clock import MonotonicClock
from loadgen.engine.contact import Contact
from loadgen.engine.course import Course
from loadgen.engine.guard import Guard
from loadgen.engine.health import HealthMeter
from loadgen.engine.host import ScrubbingSink, Secrets, ensure_capacity
from loadgen.engine.links import Processes, Staff
from loadgen.engine.lost import book, loss_of
from loadgen.engine.probe import Probed
from loadgen.engine.runner import Live, Runner
from loadgen.engine.settings import Observer, RunSink, Settings
from loadgen.engine.sockets import StampingSelector, clock_facts
from loadgen.engine.stage import spent_limit
from loadgen.engine.transport import Transport
from loadgen.engine.umpire import Umpire, watch
from loadgen.engine.units import Slice
from loadgen.engine.warmup import WarmUp
from loadgen.engine.watch import ServerWatch
from loadgen.engine.worker import Task, seats_for
from loadgen.engine.workers import Crew
from loadgen.errors import EndpointError, UsageError
from loadgen.model import PlannedRequest, RunInfo, StageInfo
from loadgen.plan.budget import Purse
from loadgen.plan.schedule import StageSpec, plan_stage, too_long
from loadgen.plan.tokens import Sizer
from loadgen.wire.timeline import last_token_ns

_IDS_PER_STAGE = 1 << 32  # request ids of a stage never meet those of another
_STOPS = (signal.SIGINT, signal.SIGTERM)  # what asks a run to end; it keeps what was measured


@dataclass(slots=True)
class Session:
    """One run in one process. `info` is filled in as things become known and handed to `sink.update`."""

    settings: Settings
    info: RunInfo
    sink: RunSink
    clock: MonotonicClock
    selector: StampingSelector | None
    say: Callable[[str], None] = lambda line: None
    observe: Callable[[Live], Observer] | None = None
    staff: Staff = field(default_factory=Processes)
    interrupted: bool = False
    _runner: Runner | None = None
    _crew: Crew | None = None
    _observer: Observer | None = None
    _guard: Guard | None = None
    _server: ServerWatch | None = None
    _umpire: Umpire | None = None
    _purse: Purse | None = None
    _reuse: bool = True
    _warm_up: WarmUp = field(init=False)

    def __post_init__(self) -> None:
        self._purse = Purse(self.settings.budget) if self.settings.budget else None
        self._warm_up = WarmUp(self.settings, self.say)

    async def run(self, course: Course) -> None:
        """Measure what the course asks for. Raises EndpointError when the endpoint cannot be used at all."""
        settings = self.settings
        self._make_room(course.foreseen)
        async with self._transport() as transport, AsyncExitStack() as watching:
            probed = await self._meet(transport)
            target, *others = [one.target for one in probed]
            runner = Runner(
                self.clock,
                transport,
                target,
                ScrubbingSink(self.sink, Secrets.of(settings.url, settings.headers)),
                look=self.selector.drain if self.selector is not None else lambda: None,
                keep_text=settings.keep_text,
                purse=self._purse,
                count_tokens=settings.tokenizer,
                others=others,
            )
            if self.observe is not None:
                self._observer = await watching.enter_async_context(self.observe(runner.live))
            self._runner = runner
            self._guard = Guard(runner, _next=settings.asked) if settings.guard else None
            if self.interrupted:
                return
            self._warm_up.meet(probed[0])
            self._crew = await self._hire(runner)
            if course.ending:
                self._umpire = Umpire(course.ending, settings.seed, self.sink.tail())
            try:
                self._server = ServerWatch.of(settings, probed, self.clock.now_ns, self.sink.telemetry, self.say)
                if self._server is not None:
                    self._record(await self._server.open())
                await self._follow(course, runner, transport)
            finally:
                self.interrupted |= runner.stop.is_set()
                if self._umpire is not None:
                    await asyncio.to_thread(self._umpire.close)
                if self._crew is not None:
                    await self._crew.close()
                    self._record_crew()
                if self._server is not None:
                    self._record(await self._server.close())

    async def _follow(self, course: Course, runner: Runner, transport: Transport) -> None:
        """Stage after stage, until the course ends or somebody stops it."""
        rows, told, begun = self.sink.tail()(), set[str](), False
        known = (self.info.endpoint, *self.info.endpoint.get("others", ()))
        limit = min((one["context_limit"] for one in known if one["context_limit"] is not None), default=None)
        while not runner.stop.is_set():
            if self._observer is not None:
                self._observer.stage(None)
            if self._purse is not None and self._purse.empty:
                self.info.limit = f"{self._purse.empty} is spent"
            spec = await asyncio.to_thread(course.next, self.info, rows)
            if spec is None:
                return
            self._make_room([spec])
            if limit is not None and (line := too_long(spec, limit)) and line not in told:
                told.add(line)
                self.say(line)
            if begun and self.settings.cooldown_ns:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(runner.stop.wait(), self.settings.cooldown_ns / 1e9)
            begun = True
            if not runner.stop.is_set():
                await self._warm_up.run(runner, spec)
                self.info.endpoint["prompts"] = self._warm_up.told()
            if not runner.stop.is_set():
                await self._stage(runner, transport, spec)

    # -- the parts ----------------------------------------------------------------------------------------------

    def _transport(self) -> Transport:
        settings = self.settings
        return Transport(
            self.clock,
            selector=self.selector,
            headers=settings.headers,
            limits=settings.limits,
            security=settings.security,
            last_token_ns=last_token_ns,
        )

    async def _meet(self, transport: Transport) -> list[Probed]:
        """Probe every endpoint and write down what was learned."""
        contact = Contact(self.settings, transport, self.clock, self._purse, self.say)
        known = self.info.endpoint
        given = known.get("given") or (known.get("provenance") or {}).get("given") or {}
        probed, record = await contact.all(given)
        if known.get("url") not in (None, record["url"]):
            raise UsageError(f"the run was made against {known['url']}", where=record["url"], do="start a new run")
        self._reuse = contact.reuse
        self.info.endpoint = record
        self.info.endpoint["unknown"] = self._unknown()
        self.sink.update(self.info)
        return probed

    def _unknown(self) -> list[str]:
        """What nobody told of the server; the GPU may have been named for the roofline."""
        return provenance.unknown({"gpu": self.info.spec.get("roofline", {}).get("gpu"), **self.info.endpoint})

    def _record(self, telemetry: dict[str, Any]) -> None:
        """What is known of the server's metrics, into the run's record."""
        secrets = Secrets.of(self.settings.url, self.settings.headers)
        self.info.endpoint["telemetry"] = provenance.scrub(telemetry, secrets.scrub)
        self.info.endpoint["unknown"] = self._unknown()
        self.sink.update(self.info)

    async def _mark(self) -> None:
        """The server's counters at the edge of a stage, when nothing is in flight."""
        if self._server is not None:
            await self._server.mark()

    async def _stage(self, runner: Runner, transport: Transport, spec: StageSpec) -> None:
        info = stage_info(spec)
        self.info.stages.append(info)
        self.sink.update(self.info)
        if self._observer is not None:
            self._observer.stage(info)
        await self._mark()
        if self._guard is not None:
            self._guard.begin()
        plan = partial(_part_of_plan, spec, self.settings, dict(self._warm_up.sizers))
        stagger_ns = self._stagger_ns(spec)
        judge = self._judge(info, runner)
        try:
            if self._crew is not None:
                task = Task(info, plan, stagger_ns, purse=self._purse)
                for lost in await self._crew.stage(task, runner.stop):
                    rows = await asyncio.to_thread(self.sink.tail()(), info.stage)
                    book(info, await asyncio.to_thread(loss_of, lost, task, rows), runner.sink)
                self._record_crew()
                if self._purse is not None:
                    self._purse.book(int(info.health.pop("spent_tokens")), info.health.pop("spent_cost"))
                    self._purse.empty = spent_limit(info)
            else:
                meter = HealthMeter(self.selector)

                async def start() -> int:
                    meter.quiet()
                    meter.start()
                    return self.clock.now_ns()

                try:
                    await runner.run(info, plan(Slice()), stagger_ns=stagger_ns, agreed_start=start)
                finally:
                    info.health |= meter.stop()
                    info.health["peak_connections"] = float(transport.peak_connections)
            await self._mark()
        finally:
            judge.cancel()
            self.info.clock = clock_facts(self.clock, self.selector)
            if self._guard is not None:
                info.health |= await self._guard.end()
                secrets = Secrets.of(self.settings.url, self.settings.headers)
                self.info.endpoint["guard"] = provenance.scrub(self._guard.record(), secrets.scrub)
            self.sink.update(self.info)

    def _record_crew(self) -> None:
        if self._crew is not None and (facts := self._crew.facts()):
            self.info.host["ray"] = facts

    def _judge(self, info: StageInfo, runner: Runner) -> asyncio.Future[None]:
        """Watches the stage that begins, where something may end it before its time."""
        umpire = self._umpire
        if umpire is None:
            return asyncio.get_running_loop().create_future()
        end = runner.end if self._crew is None else self._crew.end
        return asyncio.ensure_future(watch(self.clock, lambda: umpire.ask(info), end))

    def _make_room(self, stages: Sequence[StageSpec]) -> None:
        """For as many connections as these stages surely need at a time."""
        note = ensure_capacity(max((_connections(spec) for spec in stages), default=1)) if self.staff.here else None
        if note:
            self.say(note)

    async def _hire(self, runner: Runner) -> Crew | None:
        """The worker processes, where more than one is wanted."""
        settings = self.settings
        if settings.workers <= 1 and self.staff.here:
            return None
        tally = runner.live.tally is not None
        seats = seats_for(
            settings, runner.targets, self.clock.origin_ns, self.sink.parts(), reuse=self._reuse, tally=tally
        )
        crew = Crew(seats, self.staff, self.clock, runner.live)
        await crew.start()
        return crew

    def _stagger_ns(self, spec: StageSpec) -> int:
        if self.settings.burst_start or spec.load.kind != "concurrency" or spec.load.value <= 1:
            return 0
        times = [self._warm_up.service_ns.get(workload.name, 0) for workload, _ in spec.mix]
        return sum(times) // max(len(times), 1)

    def interrupt(self, task: asyncio.Task[None]) -> None:
        """Ctrl-C or SIGTERM: stop sending, keep what there is. It takes a moment; further signals change nothing."""
        if self.interrupted:
            return
        self.interrupted = True
        if self._runner is not None:
            self._runner.stop.set()
        else:
            task.cancel()


def _connections(spec: StageSpec) -> int:
    """The most connections that a stage surely needs at a time (an open loop without a cap: nobody knows)."""
    users = spec.load.value if spec.load.kind == "concurrency" else spec.load.cap or 1
    return int(min(users, spec.requests if spec.requests is not None else users))


def _part_of_plan(
    spec: StageSpec, settings: Settings, sizers: dict[str, Sizer], part: Slice
) -> Iterator[PlannedRequest]:
    """The requests of one worker's slice of a stage, sized by what the warm-up taught. Picklable with its arguments."""
    return plan_stage(
        spec,
        seed=settings.seed,
        nonce=settings.nonce,
        first_id=spec.stage * _IDS_PER_STAGE,
        sizer=sizers,
        part=(part.index, part.count),
    )


def stage_info(spec: StageSpec) -> StageInfo:
    """The empty record of a stage that is about to run."""
    workload = "+".join(w.name for w, _ in spec.mix)
    return StageInfo(
        spec.stage, spec.name, workload, spec.load, spec.requests, spec.duration_ns, held_out=spec.held_out
    )


def _origin_ns(info: RunInfo) -> int:
    """Where the run's time begins: now; of a run that is resumed so that time goes on a second after its last stamp."""
    stamps = [
        at for stage in info.stages for at in (stage.start_ns, stage.window_end_ns, stage.end_ns) if at is not None
    ]
    return time.monotonic_ns() - (max(stamps) + 1_000_000_000 if stamps else 0)


def run_session(
    settings: Settings,
    course: Course,
    info: RunInfo,
    sink: RunSink,
    *,
    say: Callable[[str], None] = lambda line: None,
    observe: Callable[[Live], Observer] | None = None,
    staff: Staff | None = None,
) -> bool:
    """Run in an event loop of its own; returns True when the run was interrupted. Blocks until it is over."""
    clock = MonotonicClock(_origin_ns(info))
    selector = StampingSelector(clock.origin_ns) if sys.platform.startswith("linux") else None
    session = Session(settings, info, sink, clock, selector, say, observe, staff or Processes())
    loop = asyncio.SelectorEventLoop(selector)
    asyncio.set_event_loop(loop)
    try:
        task = loop.create_task(session.run(course))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, session.interrupt, task)
        loop.run_until_complete(task)
    except (asyncio.CancelledError, EndpointError):
        if not session.interrupted:  # else it was stopped before the endpoint had answered
            raise
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        asyncio.set_event_loop(None)
        # A loop that closes leaves SIGTERM deadly, and for a moment a signal would write to what it no longer reads: so
        # signals wait. After an interruption what is left is short: a second signal must not cost it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        loop.close()
        after = signal.SIG_IGN if session.interrupted else signal.default_int_handler
        for number in _STOPS:
            signal.signal(number, after)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    return session.interrupted
