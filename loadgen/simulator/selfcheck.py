"""What this client can honestly measure on this machine, found by measuring a null endpoint whose truth is logged.

Knows: the client (`Runner` over `Transport`), the null endpoint and its log, a ladder of event rates. Must not know:
how results are printed.
Why: a load generator that cannot say where its own limits are cannot be believed near them.

A trial holds `streams` users in closed loop on answers of `TOKENS` tokens, one event each, and compares every gap that
the client saw with the gap between the server's own send stamps. The ladder doubles the rate until a trial fails twice,
then halves the interval (geometrically). Rates are token events per second of all streams together.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from loadgen.engine.clock import MonotonicClock
from loadgen.engine.health import HealthMeter
from loadgen.engine.host import ensure_capacity
from loadgen.engine.runner import Runner, Target
from loadgen.engine.sockets import HAS_KERNEL_STAMPS, StampingSelector
from loadgen.engine.timeouts import Limits
from loadgen.engine.transport import Security, Transport
from loadgen.errors import EndpointError, UsageError
from loadgen.model import Exchange, Load, Message, PlannedRequest, StageInfo
from loadgen.simulator.null import NullEndpoint, Sent
from loadgen.wire.timeline import last_token_ns

STREAMS = (32, 256, 1024)
TOKENS = 200  # of each answer
SHARED_LIMIT = 0.01  # of events that came in one receive with another
GAP_ERROR_LIMIT_NS = 500_000  # p99
OPEN_LOOP_PER_S = 1000.0
_FIRST_PER_S, _HIGHEST_PER_S = 20_000.0, 160_000.0
_FINE = 1.12  # the ladder ends when pass and fail lie within this ratio
_OPENING_NS = 500_000  # between the first sends of a trial
_SETTLE_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class Trial:
    """One rate at one number of streams. `rate_per_s` is what the server really sent; None where nothing arrived."""

    streams: int
    asked_per_s: float
    rate_per_s: float
    events: int
    failed: int  # requests
    shared: float  # share of events that came in one receive with another
    gap_error_p99_ns: float | None
    stamp_error_p50_ns: float | None  # arrival - send stamp, the way through the kernel included
    stamp_error_p99_ns: float | None
    server_late_p99_ns: float | None
    client_cpu: float  # of one core
    lag_p99_ns: float
    lag_max_ns: float

    @property
    def trouble(self) -> str | None:
        """Why the figures of this trial could not be believed, None when they can."""
        if self.failed:
            return "failed requests"
        if self.gap_error_p99_ns is None:
            return "no events"
        if self.shared >= SHARED_LIMIT:
            return "shared receives"
        return "ITL error" if self.gap_error_p99_ns >= GAP_ERROR_LIMIT_NS else None

    @property
    def starved(self) -> bool:
        """The null endpoint did not reach the rate that was asked for."""
        return self.rate_per_s < 0.9 * self.asked_per_s


@dataclass(frozen=True, slots=True)
class Rung:
    """The result for one number of streams: the best trial that passed, and what ended the ladder."""

    streams: int
    best: Trial | None
    limit: str  # what failed above `best`; "null endpoint" or "time" when the client's own limit was not found
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Send lateness (sent - drawn schedule) of a Poisson open loop of 1-token answers."""

    rate_per_s: float
    requests: int
    failed: int
    late_p50_ns: float
    late_p99_ns: float
    late_max_ns: float


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """Everything that the self-check found."""

    cores: int
    load: float  # of the machine before it began: how many other threads wanted to run
    pinned: bool  # client and null endpoint had a core each
    stamp_source: str
    clock_error_ns: int  # half-width of the reading that ties the kernel's clock to the monotonic one
    ladder: tuple[Rung, ...]
    open_loop: OpenLoop
    wall_s: float


class _Rows:
    def __init__(self) -> None:
        self.rows: list[Exchange] = []

    def write(self, exchange: Exchange) -> None:
        self.rows.append(exchange)


@dataclass(slots=True)
class _Measured:
    """Rows with stamps on CLOCK_MONOTONIC (the run starts at 0 there), the server's log by number, and health."""

    rows: list[Exchange]
    log: dict[int, Sent]
    health: dict[str, float]
    clock_error_ns: int


def selfcheck(budget_s: float, say: Callable[[str], None] = lambda line: None) -> SelfCheck:
    """Measure for about `budget_s` seconds. Raises UsageError where the system lacks epoll or descriptors."""
    if not HAS_KERNEL_STAMPS:
        raise UsageError("selfcheck needs Linux: other systems have no kernel stamps, the client stamps in the process")
    ensure_capacity(2 * max(STREAMS))
    begun, load = time.monotonic(), os.getloadavg()[0]
    cores = sorted(os.sched_getaffinity(0))
    pinned = len(cores) > 1
    with on_core(cores[0] if pinned else None), NullEndpoint(cores[-1] if pinned else None) as null:
        say(f"open loop: {OPEN_LOOP_PER_S:,.0f} requests/s")
        open_loop, clock_error_ns = run_open_loop(null, min(max(budget_s / 10, 1.0), 5.0))
        rungs = []
        for index, streams in enumerate(STREAMS):
            left = budget_s - (time.monotonic() - begun)
            rungs.append(_climb(null, streams, left / (len(STREAMS) - index), say))
    source = "kernel" if HAS_KERNEL_STAMPS else "process"
    return SelfCheck(
        len(cores), load, pinned, source, clock_error_ns, tuple(rungs), open_loop, time.monotonic() - begun
    )


# -- the ladder -----------------------------------------------------------------------------------------------------


def _climb(null: NullEndpoint, streams: int, budget_s: float, say: Callable[[str], None]) -> Rung:
    """Find the highest rate that passes."""
    until = time.monotonic() + budget_s
    window_s = min(max(budget_s / 12, 0.5), 1.5)
    trials: list[Trial] = []

    def attempt(rate: float) -> Trial:
        trial = run_trial(null, streams, rate, window_s)
        trials.append(trial)
        say(f"{streams} streams, {rate:,.0f} events/s: {trial.trouble or 'good'}")
        return trial

    best, limit, low, high = None, "time", 0.0, None
    rate = _FIRST_PER_S
    while time.monotonic() < until and (high is None or high / max(low, 1.0) > _FINE):
        trial = attempt(rate)
        if trial.trouble is not None and time.monotonic() < until:
            trial = attempt(rate)  # a machine hiccups: only twice in a row is a limit
        if trial.trouble is None:
            best = trial if best is None or trial.rate_per_s > best.rate_per_s else best
            low = rate
            if trial.starved or rate >= _HIGHEST_PER_S:
                limit = "null endpoint"
                break
        else:
            high, limit = rate, trial.trouble
        rate = rate * 2 if high is None else (low * high) ** 0.5 if low else high / 2
    return Rung(streams, best, limit, tuple(trials))


def run_trial(null: NullEndpoint, streams: int, rate_per_s: float, window_s: float) -> Trial:
    """Hold `streams` users at `rate_per_s` token events for `window_s` seconds, and compare with the server's log."""
    gap_us = max(round(streams / rate_per_s * 1e6), 1)
    opening_ns = streams * _OPENING_NS
    lead_ns = opening_ns + gap_us * 1000 + _SETTLE_NS
    span_ns = round(window_s * 1e9)
    info = StageInfo(0, f"null@{streams}", "null", Load("concurrency", streams))
    measured = _measure(
        null, f"t{gap_us}-i{gap_us}", info, _steady(streams), stagger_ns=opening_ns, window_ns=(lead_ns, span_ns)
    )
    begin = (info.start_ns or 0) + lead_ns
    seen = _compare(measured, begin, begin + span_ns)
    health = measured.health
    return Trial(
        streams,
        rate_per_s,
        seen.sent / window_s,
        len(seen.stamp_errors_ns),
        sum(row.outcome == "failed" for row in measured.rows),
        seen.shared / max(len(seen.stamp_errors_ns), 1),
        _quantile(seen.gap_errors_ns, 0.99),
        _quantile(seen.stamp_errors_ns, 0.5),
        _quantile(seen.stamp_errors_ns, 0.99),
        _quantile(seen.late_ns, 0.99),
        health["client_cpu_s"] / health["wall_s"],
        health.get("loop_lag_p99_ns", 0.0),
        health.get("loop_lag_max_ns", 0.0),
    )


def _steady(streams: int) -> Iterator[PlannedRequest]:
    """Requests without end. The first of each user are shorter, each by another length, so that ends are spread."""
    for number in count():
        tokens = TOKENS if number >= streams else 1 + TOKENS * (number * 7919 % streams) // streams
        yield PlannedRequest(number, 0, "null", (Message("user", f"request #{number}"),), 2, tokens)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the client saw of the window, against what the server says it sent."""

    sent: int  # events, by the server's stamps
    shared: int  # events that came in one receive with an earlier one of their stream, so with the same stamp
    gap_errors_ns: NDArray[np.int64]  # absolute
    stamp_errors_ns: NDArray[np.int64]
    late_ns: NDArray[np.int64]  # of the server


def _compare(measured: _Measured, begin_ns: int, end_ns: int) -> _Seen:
    """Match every event with its send. Requests that the client never saw an event of count as sent only."""
    gaps, stamps, late, sent, shared = [], [], [], 0, 0
    rows = {row.request_id: row for row in measured.rows}
    for number, record in measured.log.items():
        sends = np.array(record.sends_ns, dtype=np.int64)
        sent += int(np.count_nonzero((sends >= begin_ns) & (sends < end_ns)))
        arrivals = np.array(rows[number].event_ns if number in rows else (), dtype=np.int64)[: len(sends)]
        sends = sends[: len(arrivals)]
        inside = (arrivals >= begin_ns) & (arrivals < end_ns)
        steps = np.diff(arrivals)
        shared += int(np.count_nonzero(steps[inside[1:]] == 0))
        gaps.append(np.abs(steps - np.diff(sends))[inside[1:]])
        stamps.append((arrivals - sends)[inside])
        due = record.first_due_ns + record.gap_ns * np.arange(len(sends), dtype=np.int64)
        late.append((sends - due)[inside])
    none = np.zeros(0, dtype=np.int64)
    return _Seen(
        sent, shared, np.concatenate([none, *gaps]), np.concatenate([none, *stamps]), np.concatenate([none, *late])
    )


# -- the open loop --------------------------------------------------------------------------------------------------


def run_open_loop(null: NullEndpoint, seconds: float) -> tuple[OpenLoop, int]:
    """A Poisson process of 1-token answers; also returns the clock error bound."""
    requests = round(seconds * OPEN_LOOP_PER_S)
    offsets = np.cumsum(np.random.default_rng(0).exponential(1e9 / OPEN_LOOP_PER_S, requests)).astype(np.int64)
    plan = (
        PlannedRequest(number, 0, "null", (Message("user", f"request #{number}"),), 2, 1, int(offset))
        for number, offset in enumerate(offsets)
    )
    info = StageInfo(0, "null", "null", Load("rate", OPEN_LOOP_PER_S, "poisson"), requests=requests)
    measured = _measure(null, "t1000-i1000", info, plan)
    late = np.array(
        [row.sent_ns - row.scheduled_ns for row in measured.rows if row.sent_ns is not None and row.scheduled_ns],
        dtype=np.int64,
    )
    if not len(late):
        raise EndpointError("the null endpoint on this machine could not be reached")
    failed = sum(row.outcome != "ok" for row in measured.rows)
    p50, p99 = np.quantile(late, [0.5, 0.99])
    found = OpenLoop(OPEN_LOOP_PER_S, requests, failed, float(p50), float(p99), float(late.max()))
    return found, measured.clock_error_ns


# -- one stage ------------------------------------------------------------------------------------------------------


def _measure(
    null: NullEndpoint,
    model: str,
    info: StageInfo,
    plan: Iterator[PlannedRequest],
    *,
    stagger_ns: int = 0,
    window_ns: tuple[int, int] | None = None,
) -> _Measured:
    """Run one stage of the real client in an event loop of its own.

    With `window_ns` (when it begins after the start, how long it is) the stage is stopped at its end, and health is
    that of the window alone; a little before it, because the meter collects garbage first.
    """
    selector = StampingSelector(0)
    sink = _Rows()
    health: dict[str, float] = {}

    async def stage() -> None:
        clock = MonotonicClock(0)
        async with Transport(
            clock,
            selector=selector,
            headers={},
            limits=Limits(),
            security=Security(),
            last_token_ns=last_token_ns,
        ) as transport:
            runner = Runner(clock, transport, Target(null.url, "chat", model), sink, look=selector.drain)
            meter = HealthMeter(selector)
            meter.quiet()

            def end() -> None:
                health.update(meter.stop())
                runner.stop.set()

            if window_ns is None:
                meter.start()
            else:
                lead_ns, span_ns = window_ns
                asyncio.get_running_loop().call_later((lead_ns - _SETTLE_NS // 2) * 1e-9, meter.start)
                asyncio.get_running_loop().call_later((lead_ns + span_ns) * 1e-9, end)
            await runner.run(info, plan, stagger_ns=stagger_ns)
            if window_ns is None:
                end()

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as loop:
        loop.run(stage())
    log = {sent.number: sent for sent in null.log()}
    return _Measured(sink.rows, log, health, selector.wall.error_ns)


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Keep this process on one core meanwhile."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _quantile(values: NDArray[np.int64], q: float) -> float | None:
    return float(np.quantile(values, q)) if len(values) else None
