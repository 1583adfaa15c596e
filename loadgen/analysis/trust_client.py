"""Checks on the client itself: was the load generator late, busy, blind, or unsure of the time?

Knows: the client's own stamps and health figures, and the error that each implies. Must not know: how they were taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from loadgen.analysis import formulas as f
from loadgen.analysis import severity as rule
from loadgen.analysis import stats
from loadgen.analysis.measured import Measured
from loadgen.analysis.numbers import quantity
from loadgen.analysis.stats import Floats
from loadgen.model import Finding, RunInfo, Severity

_MORE_WORKERS = "use --workers 2, a faster machine, or less load"
_QUIET_MACHINE = (
    "this machine lets even a waiting client run up to {} late (p99 of its wakes): other programs, or the hypervisor, "
    "take its time - give it a core of its own or a quieter machine"
)
_LATE_WAKE_S = 1e-3  # an idle Linux machine wakes a process in well under 0.1 ms
_BUSY = 0.8  # of one core, from where waiting for the client grows quickly
_FEW_SHARED = 0.01  # each makes at most one gap too long: below this no p99 is touched


def client_delay(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """The client took requests up later than it could have."""
    yield from _late(
        m,
        np.maximum(f.client_delay(m.columns), 0.0),
        "client_delay",
        "the client took requests up {} late",
    )


def send_delay(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Between taking a request up and its first byte, connecting not counted."""
    c = m.columns
    connecting = np.nan_to_num((c.connected_ns - c.connect_start_ns) / 1e9)
    late = np.maximum((c.sent_ns - c.dispatched_ns) / 1e9 - connecting, 0.0)
    yield from _late(m, late, "send_delay", "requests reached the socket {} after they were taken up")


def _late(m: Measured, delays: Floats, code: str, text: str) -> Iterator[Finding]:
    """Open loop: a user waits the delay on top of TTFT, quantile by quantile. Closed loop: the slot idles meanwhile."""
    delays = delays[~np.isnan(delays)]
    if len(delays) == 0:
        return
    if m.window.open_loop:
        reference = f.values_of(m, "ttft_scheduled", f.ttft_scheduled)
        pairs = [
            (stats.quantile(delays, q), f"p{q * 100:g}", stats.quantile_sorted(reference, q), "TTFT from schedule")
            for q in (0.5, 0.99)
        ]
    else:
        reference = f.values_of(m, "e2e", f.e2e)
        whole = float(reference.mean()) if len(reference) else math.nan
        pairs = [(float(delays.mean()), "mean", whole, "e2e")]
    for error, stat, metric, name in pairs:
        severity = rule.of_error(error, metric)
        if severity != "info":
            share = f"{quantity(error / metric, '1')} of the" if metric > 0.0 else "more than the whole"
            message = f"{text.format(quantity(error, 's'))} ({stat}), {share} {stat} {name}"
            yield Finding(severity, code, message, error, advised(m))
            return


def advised(m: Measured, otherwise: str = _MORE_WORKERS) -> str:
    """More workers help a client that is busy, a look at proxies helps against bunched tokens; neither helps where the
    machine leaves the client waiting (and with it whatever else runs there)."""
    late = late_wake_s(m)
    return _QUIET_MACHINE.format(quantity(late, "s")) if late > _LATE_WAKE_S else otherwise


def late_wake_s(m: Measured) -> float:
    """How late the machine let a waiting client run (p99 of its wakes), seconds; 0 where that is not known."""
    return m.info.health.get("wake_late_p99_ns", 0.0) / 1e9


def loop_lag(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """With stamps taken in the process, a busy event loop is an error of every arrival stamp."""
    lag = m.info.health.get("loop_lag_p99_ns", math.nan) / 1e9
    in_kernel = m.info.health.get("kernel_stamps", 1.0)
    if math.isnan(lag) or in_kernel > 0.99:
        return
    severity = _against_headlines(m, lag)
    if severity != "info":
        message = f"arrivals are stamped in the process, and its event loop lagged {quantity(lag, 's')} (p99)"
        yield Finding(severity, "loop_lag", message, lag, advised(m))


def client_cpu(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """A client near the limit of its core sends late, however precise its stamps of arrival are."""
    cpu, wall = m.info.health.get("client_cpu_s", math.nan), m.info.health.get("wall_s", math.nan)
    busy = cpu / wall / max(m.info.health.get("workers", 1.0), 1.0) if wall > 0.0 else math.nan
    if not busy > _BUSY:
        return
    lag = m.info.health.get("loop_lag_p99_ns", math.nan) / 1e9
    values = f.values_of(m, "ttft", f.ttft) if m.window.open_loop else f.values_of(m, "e2e", f.e2e)
    severity = rule.of_error(lag, stats.quantile_sorted(values, 0.5))
    message = f"the client used {busy * 100:.0f} % of a core and lagged {quantity(lag, 's')} (p99)"
    yield Finding(severity, "client_cpu", message, busy, _MORE_WORKERS)


def clock(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """How well arrival stamps are known on the client's clock."""
    error = m.info.health.get("clock_error_ns", math.nan) / 1e9
    severity = _against_headlines(m, error)
    if severity != "info":
        text = f"arrival stamps are known to {quantity(error, 's')} only"
        yield Finding(severity, "clock_error", text, error, "let the system's clock settle, and run again")
    steps = m.info.health.get("clock_steps", 0.0)
    if steps:
        text = f"the system's clock was stepped {steps:.0f} times during the stage"
        yield Finding("questionable", "clock_stepped", text, steps, "run again while no one sets the clock")
    in_process = float(np.mean(m.requests.holds("stamp_source", "process")[m.columns.rows])) if len(m.columns) else 0.0
    if in_process > 0.01:
        text = f"{in_process * 100:.0f} % of the requests have stamps of the process, not of the kernel"
        yield Finding("info", "process_stamps", text, in_process)


def shared_receives(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Several events in one receive have one stamp. The error is at most the time that the client had not looked."""
    c = m.columns.where(m.columns.streamed_ok)
    events, shared = float(c.events.sum()), float(c.shared_events.sum())
    if not shared > _FEW_SHARED * events:
        return
    waits = c.shared_wait_ns[c.shared_events > 0] / 1e9
    wait, share = stats.quantile(waits, 0.5), shared / events
    tail = rule.of_error(wait, m.events.gap.quantile(0.99))
    middle = rule.of_error(wait, m.events.gap.quantile(0.5)) if share > 0.25 else "info"
    severity = rule.worst(tail, middle)
    text = f"{quantity(share, '1')} of the events shared a receive"
    text += f", up to {quantity(wait, 's')} after the client last looked"
    advice = advised(m) if severity != "info" else "they did arrive together: the server or a proxy sends in groups"
    yield Finding(severity, "shared_receives", text, share, advice)


def workers_lost(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """A worker that died took its share of the load with it."""
    lost, workers = m.info.health.get("workers_lost", 0.0), m.info.health.get("workers", 1.0)
    if lost:
        share = lost / max(workers, lost)
        text = f"{lost:.0f} of {workers:.0f} workers died: their part of the load is missing"
        if flying := m.info.health.get("requests_lost", 0.0):
            text += f"; {flying:.0f} requests that they had in flight are marked"
        yield Finding(rule.of_share(share), "workers_lost", text, share, "run again with fewer workers or more memory")


def workers_apart(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Workers that did not begin together, or whose clocks are not well known, give the load another shape than the
    plan's. Each request's own figures are of one clock and stay right."""
    health = m.info.health
    skew, known = health.get("start_skew_ns", math.nan) / 1e9, health.get("worker_clock_error_ns", math.nan) / 1e9
    if math.isnan(skew) or health.get("workers", 1.0) < 2:
        return
    error = skew + (0.0 if math.isnan(known) else known)
    whole = stats.quantile_sorted(f.values_of(m, "e2e", f.e2e), 0.5)
    severity = rule.at_most("questionable", rule.of_error(error, whole))
    if severity == "info" and math.isnan(known):
        return
    text = f"{health['workers']:.0f} workers began within {quantity(skew, 's')} of each other"
    text += "" if math.isnan(known) else f"; their clocks are known to {quantity(known, 's')}"
    advice = "" if severity == "info" else "use fewer workers, or nodes that are less busy and closer together"
    yield Finding(severity, "workers_apart", text, error, advice)


def _against_headlines(m: Measured, error_s: float) -> Severity:
    """An error of any one stamp, against the median TTFT and the median gap."""
    ttft = stats.quantile_sorted(f.values_of(m, "ttft", f.ttft), 0.5)
    return rule.worst(rule.of_error(error_s, ttft), rule.of_error(error_s, m.events.gap.quantile(0.5)))


CHECKS = (client_delay, send_delay, loop_lag, client_cpu, clock, shared_receives, workers_lost, workers_apart)
