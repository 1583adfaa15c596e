"""Did a stage settle? When its latencies stopped moving, or that they never did.

Knows: a stage's requests in the order in which they began. Must not know: severities, what a finding says.
Why: a figure over a window in which the queue still grows is about the length of the window, not about the server; and
a load is only sustained where it settles.

Sources: MSER-5 for the end of the opening transient (White, 1997: the cut that makes the standard error of the mean of
the rest smallest, over means of five); Wilcoxon's rank sum for a drift between halves.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadgen.analysis import formulas as f
from loadgen.analysis.measured import Measured
from loadgen.analysis.stats import Floats, Ints

MIN_REQUESTS = 40
DRIFT_Z = 4.0  # of a rank test between the halves: one false alarm in 15,000
_BATCH = 5
_QUARTERS = 4
_LIVES = 10.0  # times the duration of a request, before a rise can be told from the opening
_RISE = 1.2  # between the medians of the first and the last quarter, at least

Trend = Literal["rises", "falls"]


@dataclass(frozen=True, slots=True)
class Series:
    """A latency of the stage's answered requests, in the order in which they were due (closed loop: sent)."""

    name: str
    values: Floats  # seconds
    begun_ns: Floats


def series(m: Measured) -> tuple[Series, ...]:
    """TTFT (in open loop from the schedule) and TPOT; without requests that have none."""
    c = m.columns.where(m.columns.streamed_ok)
    begun = np.where(np.isnan(c.scheduled_ns) | (not m.window.open_loop), c.sent_ns, c.scheduled_ns)
    order: Ints = np.argsort(begun, kind="stable")
    ttft = f.ttft_scheduled if m.window.open_loop else f.ttft
    of = (("TTFT from schedule" if m.window.open_loop else "TTFT", ttft(c)), ("TPOT", f.tpot(c)))
    found = []
    for name, values in of:
        kept = order[~np.isnan(values[order])]
        found.append(Series(name, values[kept], begun[kept]))
    return tuple(found)


def trend(values: Floats) -> Trend | None:
    """Whether a latency moved one way all through the window: the medians of its quarters in order, the last at least
    a fifth from the first, and the halves apart by more than chance. None: it settled, or there are too few."""
    if len(values) < MIN_REQUESTS or abs(z := rank_z(values)) < DRIFT_Z:
        return None
    medians = [float(np.median(part)) for part in np.array_split(values, _QUARTERS)]
    if z < 0:
        medians.reverse()
    moved = all(a < b for a, b in itertools.pairwise(medians)) and medians[-1] > _RISE * medians[0]
    return None if not moved else "rises" if z > 0 else "falls"


def falls_behind(m: Measured) -> float:
    """By how many seconds the wait for the first token grows in a second, where it grew all through an open loop of at
    least ten requests' length; 0.0 else. A server that is offered x times what it carries falls behind by 1 - 1/x."""
    ttft = series(m)[0]
    c = m.columns.where(m.columns.streamed_ok)
    if not m.window.open_loop or trend(ttft.values) != "rises":
        return 0.0
    span = float(ttft.begun_ns[-1] - ttft.begun_ns[0]) / 1e9
    if span < _LIVES * float(np.median(f.e2e(c)[: len(c) // _QUARTERS])):
        return 0.0  # the server may still be filling up
    first, *_, last = np.array_split(ttft.values, _QUARTERS)
    return float(np.median(last) - np.median(first)) / (span * (1.0 - 1.0 / _QUARTERS))


def settled_after(one: Series) -> float | None:
    """Seconds from the first request until the latency had settled; 0.0 where it had from the start. None: it had not
    by the middle of the window, or there are too few requests."""
    if len(one.values) < MIN_REQUESTS:
        return None
    count = len(one.values) // _BATCH
    means = one.values[: count * _BATCH].reshape(count, _BATCH).mean(axis=1)
    left = np.arange(count, 0, -1, dtype=np.float64)
    sums, squares = np.cumsum(means[::-1])[::-1], np.cumsum(means[::-1] ** 2)[::-1]
    error = np.maximum(squares - sums**2 / left, 0.0) / left**2
    cut = int(np.argmin(error[: count // 2 + 1]))
    if cut >= count // 2:
        return None
    return float(one.begun_ns[cut * _BATCH] - one.begun_ns[0]) / 1e9


def rank_z(values: Floats) -> float:
    """z of the Wilcoxon rank sum of the second half against the first; ties get the mean rank."""
    half = len(values) // 2
    distinct, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(distinct) == 1:
        return 0.0
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[where]
    n, a, b = len(values), half, len(values) - half
    ties = float((counts.astype(np.float64) ** 3 - counts).sum())
    spread = a * b / 12.0 * (n + 1 - ties / (n * (n - 1)))
    return (float(ranks[half:].sum()) - b * (n + 1) / 2) / math.sqrt(spread) if spread > 0.0 else 0.0
