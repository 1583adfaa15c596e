"""The numbers behind the charts, thinned out: a chart has as many points for a hundred requests as for a million.

Knows: how distributions, time series and heat maps come from a stage's columns. Must not know: plotly, colours, HTML.
Why: the size of a report must not grow with its run. Whatever is thinned out keeps its extremes, and says so.

Everything returned is plain: lists of floats rounded to five digits, None for a gap in a line. Times in seconds; those
on a time axis count from the run's start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis import formulas
from loadgen.analysis.measured import Measured
from loadgen.analysis.stats import MAX_BLOCKS, Floats
from loadgen.report.stages import Placed, WorkloadGroup

CURVE_POINTS = 140  # of one distribution
LOADS = 8  # drawn in one chart of distributions
DOTS = 3000  # of one scatter, over all stages
_PER_OCTAVE = (32, 16, 8, 4)  # bins of a heat map for each factor of two: as fine as MAX_ROWS allows
_TTFT_PER_OCTAVE = (8, 4, 2)  # a stage has far fewer requests than gaps
_MAX_ROWS = 48
_OCTAVES_BELOW = 5  # from the median down; what is shorter shares the lowest row
HEAT_REQUESTS = 20  # of a stage; with fewer, the dots of the timeline say more than a map
# chart of a distribution -> metrics it is made of
DISTRIBUTIONS = {"ttft": "TTFT", "tpot": "TPOT", "chunk_gap": "Gap between token events", "e2e": "End to end"}


def rounded(values: npt.ArrayLike) -> list[float | None]:
    """Five significant digits; None where there is no number."""
    return [float(f"{x:.5g}") if math.isfinite(x) else None for x in np.asarray(values, dtype=np.float64).tolist()]


# -- distributions --------------------------------------------------------------------------------------------------


def distributions(group: WorkloadGroup) -> dict[str, list[dict[str, Any]]]:
    """The empirical distribution of each metric at each load; of many loads some, the lowest and highest included."""
    last = len(group.measured) - 1
    chosen = {round(k * last / (LOADS - 1)) for k in range(LOADS)} if last >= LOADS else set(range(last + 1))
    stages = [stage for k, stage in enumerate(group.measured) if k in chosen]
    found: dict[str, list[dict[str, Any]]] = {}
    for name in DISTRIBUTIONS:
        curves = [(stage, curve(stage.summary.measured, name)) for stage in stages]
        found[name] = [{"load": stage.label, "x": x, "share": y} for stage, (x, y) in curves if len(x)]
    return found


def curve(m: Measured, name: str) -> tuple[list[float | None], list[float | None]]:
    """The empirical distribution of one of DISTRIBUTIONS: seconds, and the share of all at or below each."""
    return _curve(*_values(m, name))


def _values(m: Measured, name: str) -> tuple[Floats, Floats]:
    """Ascending values and how often each occurs."""
    if name == "chunk_gap":
        return m.events.gap.values, m.events.gap.counts.astype(np.float64)
    formula = {"ttft": formulas.ttft, "tpot": formulas.tpot, "e2e": formulas.e2e}[name]
    values = formulas.values_of(m, name, formula)
    return values, np.ones(len(values))


def _curve(values: Floats, counts: Floats) -> tuple[list[float | None], list[float | None]]:
    """Values and the share of all at or below each, thinned to points of which none is made up. A log axis has no room
    for zero, which counts for the share alone."""
    if len(values) == 0:
        return [], []
    share = np.cumsum(counts) / counts.sum()
    if len(values) > CURVE_POINTS:
        body = np.linspace(0.0, 1.0, CURVE_POINTS - 40)
        tail = 1.0 - np.logspace(-1.0, -5.0, 40)  # the tail is what the chart is read for
        keep = np.unique(np.minimum(np.searchsorted(share, np.concatenate((body, tail))), len(values) - 1))
        values, share = values[keep], share[keep]
    drawn = values > 0.0
    return rounded(values[drawn]), rounded(share[drawn])


# -- over time ------------------------------------------------------------------------------------------------------


def timeline(workloads: tuple[WorkloadGroup, ...]) -> list[dict[str, Any]]:
    """For each stage its window in equal blocks: requests in flight, output rate, failures; and TTFT as dots."""
    stages = [stage for group in workloads for stage in group.stages]
    dots = max(DOTS // max(len(stages), 1), 40)
    found = [_stage_timeline(stage, dots) for stage in stages]
    return sorted((one for one in found if one is not None), key=lambda one: one["start"])


def _stage_timeline(stage: Placed, dots: int) -> dict[str, Any] | None:
    m = stage.summary.measured
    window, flight = m.window, m.flight
    if math.isnan(window.seconds) or flight is None:
        return None
    edges = np.linspace(window.start_ns, window.end_ns, MAX_BLOCKS + 1) / 1e9
    seconds = window.seconds / MAX_BLOCKS
    failed = m.block_counts(np.clip(m.columns.end_ns[m.columns.missed], window.start_ns, window.end_ns))
    sent, ttft = _dots(m, dots)
    return {
        "name": m.info.name,
        "workload": m.info.workload,
        "start": rounded([edges[0]])[0],
        "end": rounded([edges[-1]])[0],
        "edges": rounded(edges),
        "waiting": rounded(flight.waiting / flight.seconds),
        "streaming": rounded(flight.streaming / flight.seconds),
        "tokens_per_s": rounded(m.events.tokens / seconds),
        "failed": rounded(failed),
        "sent": sent,
        "ttft": ttft,
        "ttft_heat": _ttft_heat(m),
        "gap_heat": _gap_heat(m),
    }


def _dots(m: Measured, most: int) -> tuple[list[float | None], list[float | None]]:
    """(send time, TTFT) of requests in the order of sending: of each group of neighbours the slowest."""
    c = m.columns.where(m.columns.streamed_ok)
    order = np.argsort(c.sent_ns, kind="stable")
    sent, ttft = c.sent_ns[order] / 1e9, formulas.ttft(c)[order]
    if len(sent) > most:
        starts = np.linspace(0, len(sent), most, endpoint=False).astype(np.int64)
        ends = [*starts[1:].tolist(), len(sent)]
        keep = [low + int(np.argmax(ttft[low:high])) for low, high in zip(starts.tolist(), ends, strict=True)]
        sent, ttft = sent[keep], ttft[keep]
    return rounded(sent), rounded(ttft)


def _gap_heat(m: Measured) -> dict[str, Any] | None:
    """Gaps between token events by time and size."""
    c = m.columns.where(m.columns.streamed_ok)
    if len(c) == 0:
        return None
    times = np.linspace(float(c.sent_ns.min()), float(c.last_ns.max()), MAX_BLOCKS + 1) / 1e9
    return _heat(m.events.gap_blocks.coarse, _PER_OCTAVE, times)


def _ttft_heat(m: Measured) -> dict[str, Any] | None:
    """TTFT of requests by the time of their send."""
    c = m.columns.where(m.columns.streamed_ok)
    if len(c) < HEAT_REQUESTS:
        return None
    logs = np.log2(np.maximum(formulas.ttft(c), 1e-6))
    times = np.linspace(float(c.sent_ns.min()), float(c.sent_ns.max()), min(len(c) // 4, MAX_BLOCKS) + 1) / 1e9
    block = np.clip(np.searchsorted(times, c.sent_ns / 1e9, side="right") - 1, 0, len(times) - 2)

    def coarse(per_octave: int) -> tuple[Floats, Floats]:
        bins = np.floor(logs * per_octave).astype(np.int64)
        lowest, count = int(bins.min()), int(np.ptp(bins)) + 1
        cells = np.bincount(block * count + bins - lowest, minlength=(len(times) - 1) * count)
        edges = 2.0 ** ((lowest + np.arange(count + 1)) / per_octave)
        return cells.reshape(-1, count).astype(np.float64), edges

    return _heat(coarse, _TTFT_PER_OCTAVE, times)


def _heat(
    coarse: Callable[[int], tuple[Floats, Floats]], per_octave: Sequence[int], times: Floats
) -> dict[str, Any] | None:
    """Of each moment the share in each bin. `coarse` counts [moments, bins] at a fineness, and tells the bin edges."""
    for fineness in per_octave:
        counts, edges = coarse(fineness)
        used = np.flatnonzero(counts.any(axis=0))
        if len(used) == 0:
            return None
        # Events of one receive lie microseconds apart: they would take half of the chart.
        middle = int(np.searchsorted(np.cumsum(counts.sum(axis=0)), counts.sum() / 2))
        low = max(int(used[0]), middle - _OCTAVES_BELOW * fineness)
        if used[-1] - low < _MAX_ROWS:
            break
    shorter = counts[:, :low].sum(axis=1)
    counts, edges = counts[:, low : used[-1] + 1], edges[low : used[-1] + 2]
    counts[:, 0] += shorter
    edges[0] = max(edges[0], edges[1] / 2)  # a log axis has no zero
    total = counts.sum(axis=1, keepdims=True)
    share = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    filled = np.where(share > 0, np.round(share, 4), np.nan)
    return {"times": rounded(times), "sizes": rounded(edges), "share": [rounded(row) for row in filled.T]}


# -- arrivals -------------------------------------------------------------------------------------------------------


def arrivals(workloads: tuple[WorkloadGroup, ...]) -> list[dict[str, Any]]:
    """Times between requests as scheduled and as sent, of each open-loop stage."""
    found = []
    for group in workloads:
        for stage in group.stages:
            c = stage.summary.measured.columns
            both = ~np.isnan(c.scheduled_ns) & ~np.isnan(c.sent_ns)
            if np.count_nonzero(both) < 3:
                continue
            curves = {
                name: _curve(np.sort(np.diff(np.sort(stamps[both]))) / 1e9, np.ones(np.count_nonzero(both) - 1))
                for name, stamps in (("scheduled", c.scheduled_ns), ("sent", c.sent_ns))
            }
            found.append({"name": stage.summary.info.name, **{key: list(curve) for key, curve in curves.items()}})
    return found
