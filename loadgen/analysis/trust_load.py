"""Checks on the load: did the server get what the plan promised, and steadily?

Knows: plan, sends and flights. Must not know: why the load was not reached beyond what the stamps tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from loadgen.analysis import ending, steady
from loadgen.analysis import severity as rule
from loadgen.analysis.measured import Measured
from loadgen.analysis.numbers import quantity
from loadgen.model import Finding, RunInfo

_LATE = 0.1  # of the window
_LOCKED = 0.5  # of the resultant length of phases; about 0.9 / sqrt(n) by chance


def rate_not_reached(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Requests due in the window that were not even sent in it."""
    c = m.columns
    due = ~np.isnan(c.scheduled_ns)
    if not m.window.open_loop or not due.any() or m.info.duration_ns is None:
        return
    # What was tried in time and met a server that takes no connection was not the client's to send.
    begun = np.where(np.isnan(c.sent_ns), c.dispatched_ns, c.sent_ns)[due]
    late = np.isnan(begun) | (begun > m.window.end_ns)
    share = (float(late.sum()) + m.window.unsent) / (float(due.sum()) + m.window.unsent)
    severity = rule.of_share(share)
    if severity == "info":
        return
    capped = m.info.load.cap is not None
    why = (
        f"the cap of {m.info.load.cap} requests in flight held them back"
        if capped
        else "the client could not send them"
    )
    text = f"{quantity(share, '1')} of the requests due in the window were not sent in it: {why}"
    advice = "read the _scheduled metrics: they count the waiting" if capped else "use --workers 2, or a lower rate"
    yield Finding(
        rule.at_most("questionable", severity) if capped else severity, "rate_not_reached", text, share, advice
    )


def unsent(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Requests that were owed and never sent."""
    if m.window.unsent:
        share = m.window.unsent / m.window.offered
        text = f"{m.window.unsent} of {m.window.offered} requests were never sent"
        yield Finding(rule.of_share(share), "unsent", text, share, "lower the rate, raise the cap, or allow more time")


def concurrency_not_reached(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """A closed loop that never had all of its users in flight at once."""
    users = m.info.load.value
    if m.window.open_loop or m.flight is None or m.window.interrupted or not len(m.columns):
        return
    if (m.requests.session_id[m.columns.rows] >= 0).any():
        return  # users of sessions think between turns: fewer in flight is the plan
    reached = max(float(m.flight.peak), m.info.health.get("peak_in_flight", 0.0))
    share = 1.0 - reached / users if users else 0.0
    severity = rule.of_share(share)
    if severity != "info":
        text = f"at most {reached:.0f} of {users:.0f} users were in flight at once"
        advice = "ask for more requests" if m.window.offered < users else "use --workers 2: the client cannot keep up"
        yield Finding(severity, "concurrency_not_reached", text, share, advice)


def drift(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """The second half of the window was slower or faster than the first; worse: it moved one way all through."""
    for one in steady.series(m):
        values = one.values
        if len(values) < steady.MIN_REQUESTS or abs(steady.rank_z(values)) < steady.DRIFT_Z:
            continue
        first, second = (float(np.median(half)) for half in np.array_split(values, 2))
        error = abs(second - first) / 2
        severity = rule.at_most("questionable", rule.of_error(error, float(np.median(values))))
        if severity != "info":
            moving = steady.trend(values)
            text = f"median {one.name} went from {quantity(first, 's', 4)} to {quantity(second, 's', 4)} "
            text += "between the halves of the window"
            text = text if moving is None else f"never became steady: {text}, and {moving} quarter after quarter"
            advice = "no steady state: a longer warm-up, a longer run, or a load that the server can sustain"
            code = "drift" if moving is None else "not_steady"
            yield Finding(severity, code, text, second / first - 1.0 if first > 0 else None, advice)
            return


def settled(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """An opening that took a notable part of the window to settle."""
    for one in steady.series(m):
        after = steady.settled_after(one)
        if after is None or not after > _LATE * m.window.seconds or steady.trend(one.values) is not None:
            continue
        began = one.begun_ns < one.begun_ns[0] + after * 1e9
        opening, rest = float(np.median(one.values[began])), float(np.median(one.values[~began]))
        if rule.of_error(abs(opening - rest), rest) == "info":
            continue
        text = f"{one.name} settled {quantity(after, 's')} into the window of {quantity(m.window.seconds, 's')}: "
        text += f"its median was {quantity(opening, 's', 4)} before and {quantity(rest, 's', 4)} after"
        yield Finding("info", "settled_late", text, after, "a longer warm-up, or a longer run")
        return


def phase_locked(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Users of a closed loop who all send at the same moment of their cycle: prefills meet prefills, never decodes."""
    c = m.columns.where(m.columns.streamed_ok)
    users = m.info.load.value
    if m.window.open_loop or users < 4 or len(c) < 4 * users:
        return
    cycle = float(np.median(c.last_ns - c.sent_ns))
    if not cycle > 0.0:
        return
    phases = np.exp(2j * math.pi * (c.sent_ns - c.sent_ns.min()) / cycle)
    # Judged within stretches of two cycles: over many, any error of the cycle smears the phases.
    stretch = ((c.sent_ns - c.sent_ns.min()) // (2 * cycle)).astype(np.int64)
    sums = np.bincount(stretch, phases.real) + 1j * np.bincount(stretch, phases.imag)
    locked = float(np.abs(sums).sum()) / len(c)
    if locked > _LOCKED:
        text = f"the streams run in step (phase coherence {locked:.2f}): requests start together, wave after wave"
        yield Finding(
            "info", "phase_locked", text, locked, "vary the output length; with --burst-start, leave that out"
        )


def paused(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Users of a closed loop who waited because the server took no connection."""
    seconds = m.info.health.get("paused_s", 0.0)
    if seconds > 0.0:
        text = f"each user paused for {quantity(seconds, 's')} in the mean after connections that nobody took"
        yield Finding("info", "paused", text, seconds, "read the errors: the server was gone for that time")


def until_not_reached(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """The interval that --until asks for was not reached in the longest time."""
    text = info.spec.get("until")
    if not text or m.info.reached is not None or m.window.interrupted or not len(m.columns):
        return
    until = ending.parse_until(text)
    share = ending.half_width(until, m)
    if share <= until.share:
        return
    shown = f"it is {share * 100:.2g} %" if math.isfinite(share) else "too few requests for an interval"
    yield Finding("info", "until_not_reached", f"{text} was not reached: {shown}", share, "allow more requests or time")


CHECKS = (rate_not_reached, unsent, concurrency_not_reached, drift, settled, phase_locked, paused, until_not_reached)
