"""A whole run: probe, warm-up and calibration, then stage after stage.

Knows: the order of things in a run, and what is written down about it. Must not know: aiohttp, metrics, files, flags.
Why: everything that a run needs to be repeated stands in `Settings` and the stage specs; both can be sent to a worker.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from loadgen.engine.clock import MonotonicClock
from loadgen.engine.health import HealthMeter
from loadgen.engine.host import Secrets, ensure_capacity, public_url
from loadgen.engine.probe import Probe, Probed
from loadgen.engine.runner import Live, Runner, Target
from loadgen.engine.sockets import HAS_KERNEL_STAMPS, StampingSelector
from loadgen.engine.timeouts import Limits
from loadgen.engine.transport import Security, Transport
from loadgen.errors import EndpointError
from loadgen.model import Capture, Exchange, Failure, Features, PlannedRequest, RunInfo, StageInfo
from loadgen.plan.schedule import StageSpec, plan_stage
from loadgen.plan.tokens import Calibration, calibrate
from loadgen.wire.timeline import decode, last_token_ns

_IDS_PER_STAGE = 1 << 40  # request ids of a stage never meet those of another
_WARMUP_USERS = 4


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach an endpoint and what to send with every request. `headers` hold the key: never store them."""

    url: str
    model: str | None = None
    dialect: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    features: Features = field(default_factory=Features)
    limits: Limits = field(default_factory=Limits)
    security: Security = field(default_factory=Security)
    seed: int = 0
    nonce: str = ""
    warmup: int = 2
    burst_start: bool = False
    keep_text: bool = False
    workers: int = 1


class RunSink(Protocol):
    """Where a run is written: rows as they finish, and what is known about the run whenever it changes."""

    def write(self, exchange: Exchange) -> None: ...

    def update(self, info: RunInfo) -> None: ...


class Observer(Protocol):
    """Who watches a run (the progress line)."""

    def stage(self, info: StageInfo | None) -> None: ...


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
    interrupted: bool = False
    _runner: Runner | None = None
    _calibrations: dict[str, Calibration] = field(default_factory=dict)
    _service_ns: dict[str, int] = field(default_factory=dict)

    async def run(self, stages: Sequence[StageSpec]) -> None:
        """Measure every stage. Raises EndpointError when the endpoint cannot be used at all."""
        settings = self.settings
        note = ensure_capacity(max((int(s.load.cap or s.load.value) for s in stages), default=1))
        if note:
            self.say(note)
        async with self._transport() as transport:
            probed = await self._probe(transport)
            runner = Runner(
                self.clock,
                transport,
                probed.target,
                _ScrubbingSink(self.sink, Secrets.of(settings.url, settings.headers)),
                look=self.selector.drain if self.selector is not None else lambda: None,
                keep_text=settings.keep_text,
            )
            self._runner = runner
            self._catch_signals(runner)
            observer = self.observe(runner.live) if self.observe is not None else None
            for spec in stages:
                if runner.stop.is_set():
                    break
                if observer is not None:
                    observer.stage(None)
                await self._warm_up(runner, spec)
                if not runner.stop.is_set():
                    await self._stage(runner, transport, spec, observer)
            self.interrupted = runner.stop.is_set()

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

    async def _probe(self, transport: Transport) -> Probed:
        settings = self.settings
        secrets = Secrets.of(settings.url, settings.headers)

        async def trial(target: Target, planned: PlannedRequest) -> Exchange:
            capture = Capture(planned, target.dialect, dispatched_ns=self.clock.now_ns())
            await transport.stream(capture, target.url, target.body(planned))
            return _scrubbed(decode(capture), secrets)

        probe = Probe(settings.headers, settings.security, trial, self.say)
        try:
            probed = await probe.run(
                settings.url, model=settings.model, dialect=settings.dialect, wanted=settings.features
            )
        except EndpointError as bad:
            where = public_url(bad.where) if "://" in bad.where else bad.where
            raise EndpointError(secrets.scrub(bad.what), where=where, do=bad.do) from None
        target = probed.target
        self.info.endpoint = {
            "url": public_url(target.url),
            "model": target.model,
            "dialect": target.dialect,
            "engine": probed.engine,
            "version": probed.version,
            "context_limit": probed.context_limit,
            "rtt_ns": probed.rtt_ns,
            "ignore_eos": target.features.ignore_eos,
            "min_tokens": target.features.min_tokens,
            "include_usage": target.features.include_usage,
            "max_tokens_field": target.features.max_tokens_field,
            "provenance": probed.provenance,
            "trials": list(probed.trials),
        }
        self.sink.update(self.info)
        return probed

    async def _warm_up(self, runner: Runner, spec: StageSpec) -> None:
        """Send the stage's warm-up requests; learn from the server's `usage` how long prompts really are."""
        for workload, _ in spec.mix:
            if workload.name in self._calibrations or not self.settings.warmup:
                continue
            seen: list[Exchange] = []
            runner.on_exchange = seen.append
            warm = replace(spec, mix=((workload, 1.0),), requests=self.settings.warmup, duration_ns=None)
            plan = itertools.islice(
                plan_stage(
                    warm,
                    seed=self.settings.seed,
                    nonce=f"{self.settings.nonce}w",
                    first_id=-(1 << 40) + len(self._calibrations) * 10_000,
                    sizer=None,
                ),
                self.settings.warmup,
            )
            users = min(self.settings.warmup, _WARMUP_USERS)
            info = StageInfo(-1, f"{workload.name} warm-up", workload.name, replace(spec.load, kind="concurrency"))
            info.load = replace(info.load, value=users, arrivals="closed")
            info.requests = self.settings.warmup
            await runner.run(info, (replace(p, warmup=True, stage=-1, offset_ns=None) for p in plan))
            runner.on_exchange = lambda exchange: None
            good = [e for e in seen if e.outcome == "ok"]
            self._calibrations[workload.name] = calibrate(
                [(e.prompt_chars, e.prompt_tokens) for e in good if e.prompt_chars and e.prompt_tokens]
            )
            took = [e.event_ns[-1] - e.sent_ns for e in good if e.event_ns and e.sent_ns is not None]
            self._service_ns[workload.name] = sum(took) // len(took) if took else 0

    async def _stage(self, runner: Runner, transport: Transport, spec: StageSpec, observer: Observer | None) -> None:
        info = stage_info(spec)
        self.info.stages.append(info)
        self.sink.update(self.info)
        if observer is not None:
            observer.stage(info)
        meter = HealthMeter(self.selector)
        meter.start()
        try:
            await runner.run(info, self.plan(spec), stagger_ns=self._stagger_ns(spec))
        finally:
            info.health = meter.stop()
            info.health["peak_connections"] = float(transport.peak_connections)
            self.info.clock = clock_facts(self.clock, self.selector)
            self.sink.update(self.info)

    def plan(self, spec: StageSpec) -> Iterator[PlannedRequest]:
        """The stage's requests, sized by what the warm-up taught."""
        return plan_stage(
            spec,
            seed=self.settings.seed,
            nonce=self.settings.nonce,
            first_id=spec.stage * _IDS_PER_STAGE,
            sizer=self._calibrations or None,
        )

    def _stagger_ns(self, spec: StageSpec) -> int:
        if self.settings.burst_start or spec.load.kind != "concurrency" or spec.load.value <= 1:
            return 0
        times = [self._service_ns.get(workload.name, 0) for workload, _ in spec.mix]
        return sum(times) // max(len(times), 1)

    def _catch_signals(self, runner: Runner) -> None:
        """Ctrl-C and SIGTERM end the run and keep it; a second one ends the process as usual."""
        loop = asyncio.get_running_loop()

        def stop(number: signal.Signals) -> None:
            runner.stop.set()
            loop.remove_signal_handler(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)


@dataclass(slots=True)
class _ScrubbingSink:
    """Takes secrets out of rows (a server may echo the key in its error) before they are written."""

    sink: RunSink
    secrets: Secrets

    def write(self, exchange: Exchange) -> None:
        self.sink.write(_scrubbed(exchange, self.secrets))


def _scrubbed(exchange: Exchange, secrets: Secrets) -> Exchange:
    if exchange.failure is None or not secrets.values:
        return exchange
    failure = exchange.failure
    return replace(exchange, failure=Failure(failure.kind, secrets.scrub(failure.message)))


def stage_info(spec: StageSpec) -> StageInfo:
    """The empty record of a stage that is about to run."""
    workload = "+".join(w.name for w, _ in spec.mix)
    return StageInfo(spec.stage, spec.name, workload, spec.load, spec.requests, spec.duration_ns)


def clock_facts(clock: MonotonicClock, selector: StampingSelector | None) -> dict[str, object]:
    """Where stamps come from, and how wrong they can be."""
    if selector is None or not HAS_KERNEL_STAMPS:
        return {"stamp_source": "process", "clock": "CLOCK_MONOTONIC", "origin_ns": clock.origin_ns}
    return {
        "stamp_source": "kernel",
        "clock": "CLOCK_MONOTONIC",
        "origin_ns": clock.origin_ns,  # the run's start, so that another log on the same clock can be compared
        "error_ns": selector.wall.error_ns,
        "resyncs": selector.wall.resyncs,
        "steps": selector.wall.steps,
    }


def run_session(
    settings: Settings,
    stages: Sequence[StageSpec],
    info: RunInfo,
    sink: RunSink,
    *,
    say: Callable[[str], None] = lambda line: None,
    observe: Callable[[Live], Observer] | None = None,
) -> bool:
    """Run in an event loop of its own; returns True when the run was interrupted. Blocks until it is over."""
    clock = MonotonicClock(time.monotonic_ns())
    selector = StampingSelector(clock.origin_ns) if sys.platform.startswith("linux") else None
    session = Session(settings, info, sink, clock, selector, say, observe)
    loop = asyncio.SelectorEventLoop(selector)
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(session.run(stages))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    return session.interrupted
