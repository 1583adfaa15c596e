"""Is one figure of one run larger than the same figure of another? The ratio, its interval, and why there may be none.

Knows: two measured stages and a statistic. Must not know: which statistics a comparison shows, limits, verdicts, files.
Why: an interval of each run says little about their ratio; and requests of a loaded server are no independent draws, so
every error here comes from blocks of neighbouring requests (or of time), joined until they no longer correlate.

Means and rates: Welch's interval on the log of the ratio (Welch 1947), the error of a log mean by the delta method from
block sums. Percentiles: the same, with the error from a block bootstrap of the log percentile. Shares (of failures):
the difference, from two exact intervals (Newcombe 1998, method 10, with Clopper and Pearson's bounds in place of
Wilson's). When both runs sent the very same plan (one seed), each block is paired with its twin, so that lengths and
arrivals, which both runs share, cancel out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import special

from loadgen.analysis import formulas, stats
from loadgen.analysis.definitions import METRICS, Metric, estimate
from loadgen.analysis.formulas import quantile_of
from loadgen.analysis.measured import Measured
from loadgen.analysis.stats import MAX_BLOCKS, MIN_BLOCKS, Floats, Ints, Resampler

BETWEEN_RUNS = 0.005  # standard deviation by which two runs of one server differ, as a share: see README, Comparing
MIN_VALUES = 5  # fewer tell nothing of their own spread
_BINS = 1024  # of a resampled percentile
_RESAMPLERS = Resampler((0,)), Resampler((1,))  # one for each side, so that chance does not pair them
_ONE_SIGMA = float(special.ndtr(-1.0))
SHARES = (
    "error_rate",
    "slo_attainment",
    "guard_right",
)  # compared by their difference: a ratio to no failure at all says nothing


class Contrast(Protocol):
    """The change from the baseline to the other run: `value`, and its bounds, each missed with probability `tail`."""

    @property
    def value(self) -> float: ...

    def bounds(self, tail: float) -> tuple[float, float]: ...


@dataclass(frozen=True, slots=True)
class Ratio:
    """Other / baseline. `se` is the standard error of its log with `df` degrees of freedom."""

    log: float
    se: float
    df: float

    @property
    def value(self) -> float:
        return math.exp(self.log)

    def bounds(self, tail: float) -> tuple[float, float]:
        half = student(self.df, tail) * self.se
        low, high = self.log - half, self.log + half
        return math.exp(max(low, -700.0)), math.exp(high) if high < 700.0 else math.inf

    def inverse(self) -> Ratio:
        """The ratio of the reciprocals."""
        return Ratio(-self.log, self.se, self.df)


@dataclass(frozen=True, slots=True)
class Difference:
    """Other - baseline, of two shares `hits / n`."""

    base: tuple[int, int]
    other: tuple[int, int]

    @property
    def value(self) -> float:
        return self.other[0] / self.other[1] - self.base[0] / self.base[1]

    def bounds(self, tail: float) -> tuple[float, float]:
        a, b = stats.proportion(*self.base, tail), stats.proportion(*self.other, tail)
        low = self.value - math.hypot(b.value - b.low, a.high - a.value)
        high = self.value + math.hypot(b.high - b.value, a.value - a.low)
        return max(low, -1.0), min(high, 1.0)


@dataclass(frozen=True, slots=True)
class Nothing:
    """No comparison is possible, and why."""

    why: str


def student(df: float, tail: float) -> float:
    """Upper quantile of Student's t: exceeded with probability `tail`."""
    return float(special.stdtrit(df, 1.0 - tail))


def contrast(
    base: Measured,
    other: Measured,
    metric: Metric,
    stat: str,
    between: float = BETWEEN_RUNS,
    lost: tuple[float, float] = (0.0, 0.0),
) -> Contrast | Nothing:
    """Compare one statistic of one metric.

    Args:
        base: a stage of the baseline.
        other: the same workload and load of the other run.
        metric: of the table of metrics.
        stat: one that the metric has, or any percentile.
        between: standard deviation of the log ratio of two runs of one server, beside what the requests show.
        lost: share of the requests on either side that a percentile ranks behind all others, because they failed.
    """
    if metric.name in SHARES:
        sides = _share(base, metric), _share(other, metric)
        return Difference(*sides) if sides[0][1] and sides[1][1] else Nothing("no request was offered")
    if metric.name == "output_tokens_per_s_per_user":
        found = contrast(base, other, METRICS["tpot"], stat, between, lost)
        return found.inverse() if isinstance(found, Ratio) else found
    q = quantile_of(stat)
    if metric.of == "stage":
        return _of_rates(base, other, metric, stat, between)
    if q is None and stat != "mean":
        return Nothing(f"{stat} has no interval")
    if max(lost) >= 1.0:
        return Nothing("nothing was measured")
    sides_of = _gaps if metric.of == "gap" else _requests
    a, b = sides_of(base, metric), sides_of(other, metric)
    paired = metric.of == "request" and same_plan(base, other)
    if metric.name == "itl" and q not in (None, 0.5) and max(_several(base), _several(other)) > formulas.MANY_SHARE:
        return Nothing("itl percentiles are not defined when events hold several tokens: see chunk_gap")
    ranks = (None, None) if q is None else (q / (1.0 - lost[0]), q / (1.0 - lost[1]))
    return _of_series(a, b, ranks, paired, between)


def relative_spread(m: Measured, metric: Metric, stat: str) -> float:
    """The standard deviation of single requests over their mean that explains the error of this statistic: n requests
    have a relative standard error of spread / sqrt(n), correlation included. NaN where the stage cannot tell."""
    series, q = _requests(m, metric), quantile_of(stat)
    if _lacking(series, q) or not series.value(q) > 0.0:
        return math.nan
    errors = _errors(series, q, stats.block_size(series.sums, series.counts), _RESAMPLERS[0])
    return math.nan if errors is None else math.sqrt(errors.variance * series.n)


# -- what both runs asked for ---------------------------------------------------------------------------------------


def same_plan(base: Measured, other: Measured) -> bool:
    """Whether both stages sent the same requests: number for number of the same asked lengths, drawn from one seed."""
    if base.seed != other.seed or len(base.columns) != len(other.columns):
        return False
    a, b = _in_plan_order(base), _in_plan_order(other)
    return np.array_equal(_numbers(base)[a], _numbers(other)[b]) and all(
        np.array_equal(getattr(base.columns, name)[a], getattr(other.columns, name)[b])
        for name in ("prompt_requested", "output_requested")
    )


def _numbers(m: Measured) -> Ints:
    """The requests' places in the plan of their stage."""
    return m.requests.request_id[m.columns.rows] & 0xFFFFFFFF


def _in_plan_order(m: Measured) -> Ints:
    return np.argsort(_numbers(m), kind="stable")


# -- series of values in blocks -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Series:
    """`n` values in blocks of neighbours: sums (seconds, as all request metrics) and counts of each block, exact
    quantiles, and those of resampled blocks (quantile, resamples, how many blocks are joined)."""

    n: int
    sums: Floats
    counts: Floats
    quantile: Callable[[float], float]
    drawn: Callable[[float, Resampler, int], Floats]

    def value(self, q: float | None) -> float:
        """The statistic itself: quantile `q`, or the mean."""
        if self.n == 0:
            return math.nan
        return float(self.sums.sum() / self.counts.sum()) if q is None else self.quantile(q)


def _requests(m: Measured, metric: Metric) -> _Series:
    """A metric of each success, in blocks of equally many neighbours of the plan, those without a value among them."""
    assert metric.per_request is not None
    order = _in_plan_order(m)
    values = np.where(m.columns.ok, metric.per_request(m.columns), np.nan)[order]
    blocks = min(MAX_BLOCKS, len(order))
    place = np.arange(len(order)) * blocks // max(len(order), 1)
    known = ~np.isnan(values)
    values, place = np.maximum(values[known], 0.0), place[known]
    ascending = np.argsort(values, kind="stable")
    ordered, owner = values[ascending], place[ascending]

    def drawn(q: float, resampler: Resampler, size: int) -> Floats:
        # A histogram of equally full bins: up to _BINS values each has its own, so that draws are exact.
        bins = min(_BINS, len(ordered))
        bin_of = np.arange(len(ordered)) * bins // len(ordered)
        flat = np.bincount(owner * bins + bin_of, minlength=blocks * bins)
        joined = stats.join(flat.reshape(blocks, bins).astype(np.float64), size)
        if np.count_nonzero(joined.any(axis=1)) < MIN_BLOCKS:
            return np.zeros(0)
        starts = np.searchsorted(bin_of, np.arange(bins))
        low, high = ordered[starts], ordered[np.append(starts[1:], len(ordered)) - 1]
        return stats.bin_quantiles(np.cumsum(resampler.weights(len(joined)) @ joined, axis=1), low, high, q)

    return _Series(
        len(ordered),
        np.bincount(place, weights=values, minlength=blocks).astype(np.float64),
        np.bincount(place, minlength=blocks).astype(np.float64),
        lambda q: stats.quantile_sorted(ordered, q),
        drawn,
    )


def _gaps(m: Measured, metric: Metric) -> _Series:
    """Gaps between token events, in blocks of time."""
    tally, blocks = (
        (m.events.gap, m.events.gap_blocks) if metric.name == "chunk_gap" else (m.events.itl, m.events.itl_blocks)
    )
    return _Series(
        tally.n,
        blocks.sums,
        blocks.counts,
        tally.quantile,
        lambda q, resampler, size: blocks.drawn({q}, resampler, size)[q],
    )


def _several(m: Measured) -> float:
    return m.events.several if m.events.gap.n else 0.0


# -- errors ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Errors:
    """Deviations of the log of an estimate: one for each block, whose squares add up to its variance, or, `resampled`,
    one for each resample."""

    deviations: Floats
    resampled: bool
    blocks: int
    correlation: float  # left between neighbouring blocks
    df: float

    @property
    def variance(self) -> float:
        """See `stats.widening` for the two factors."""
        found = float(np.var(self.deviations) if self.resampled else self.deviations @ self.deviations)
        return found * self.blocks / (self.blocks - 1) * (1.0 + 2.0 * max(self.correlation, 0.0))

    def minus(self, twin: _Errors) -> _Errors:
        """Those of the difference, block by block (resample by resample) of the same part of one plan."""
        left = max(self.correlation, twin.correlation)
        return _Errors(
            self.deviations - twin.deviations,
            self.resampled,
            min(self.blocks, twin.blocks),
            left,
            min(self.df, twin.df),
        )


def _errors(series: _Series, q: float | None, size: int, resampler: Resampler) -> _Errors | None:
    """None where there are too few blocks for a bootstrap."""
    sums, counts = stats.join(series.sums, size), stats.join(series.counts, size)
    filled = int(np.count_nonzero(counts))
    left = stats.neighbour_correlation(sums, counts)
    if q is None:
        mean = series.value(None)
        return _Errors((sums - mean * counts) / (mean * counts.sum()), False, filled, left, filled - 1)
    draws = series.drawn(q, resampler, size)
    if len(draws) == 0:
        return None
    # No quantile is known better than the values on its shorter side tell.
    df = max(min(filled - 1.0, series.n * min(q, 1.0 - q)), 1.0)
    return _Errors(np.log(np.maximum(draws, 1e-9)), True, filled, left, df)


def _of_series(
    a: _Series, b: _Series, ranks: tuple[float | None, float | None], paired: bool, between: float
) -> Contrast | Nothing:
    for series, q in ((a, ranks[0]), (b, ranks[1])):
        if why := _lacking(series, q):
            return Nothing(why)
    points = a.value(ranks[0]), b.value(ranks[1])
    if not min(points) > 0.0:
        return Nothing("a value of 0 has no ratio")
    sizes = [stats.block_size(one.sums, one.counts) for one in (a, b)]
    sizes = [max(sizes)] * 2 if paired else sizes
    draws = _RESAMPLERS[0], _RESAMPLERS[0 if paired else 1]
    of_a, of_b = (_errors(one, q, size, draw) for one, q, size, draw in zip((a, b), ranks, sizes, draws, strict=True))
    if of_a is None or of_b is None:
        return Nothing(f"a percentile needs {MIN_BLOCKS} blocks of requests to compare")
    parts = [of_b.minus(of_a)] if paired else [of_a, of_b]
    return _welch(math.log(points[1] / points[0]), [(part.variance, part.df) for part in parts], between)


def _welch(log: float, parts: Sequence[tuple[float, float]], between: float) -> Ratio:
    """Independent (variance, degrees of freedom) together, by Welch and Satterthwaite; `between` is taken as known."""
    total = sum(variance for variance, _ in parts) + between**2
    weight = sum(variance**2 / df for variance, df in parts)
    return Ratio(log, math.sqrt(total), total**2 / weight if weight > 0.0 else 1e9)


def _lacking(series: _Series, q: float | None) -> str:
    """Why these values cannot be compared; "" where they can."""
    if series.n == 0:
        return "nothing was measured"
    least = MIN_VALUES if q is None else stats.needed(q) if q < 1.0 else math.inf
    if series.n < least:
        what = "a mean" if q is None else f"p{q * 100:.3g}"
        return f"{what} needs at least {least:g} values, there are {series.n}"
    return ""


# -- metrics of a whole stage ---------------------------------------------------------------------------------------


def _of_rates(base: Measured, other: Measured, metric: Metric, stat: str, between: float) -> Contrast | Nothing:
    """Rates and the like, whose errors the table of metrics knows: their bounds at one standard deviation."""
    found = [estimate(m, metric, stat, _ONE_SIGMA) for m in (base, other)]
    for one in found:
        if math.isnan(one.value):
            return Nothing("nothing was measured")
        if not one.value > 0.0:
            return Nothing("a value of 0 has no ratio")
    if all(one.low == one.high for one in found):
        return Nothing("no measurement: it follows from the plan, or is a single extreme")
    log = math.log(found[1].value / found[0].value)
    if metric.name in _BY_CYCLE and (cycle := _cycle(base, other, between)) is not None:
        return Ratio(log, cycle.se, cycle.df)
    if not all(one.low > 0.0 and math.isfinite(one.high) for one in found):
        return Nothing("the run is too short for an interval")
    parts = [((math.log(one.high / one.low) / 2.0) ** 2, MIN_BLOCKS - 1.0) for one in found]
    return _welch(log, parts, between)


# In closed loop these are users / time of a request (Little's law), and known as well as that time is.
_BY_CYCLE = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")


def _cycle(base: Measured, other: Measured, between: float) -> Ratio | None:
    """The error of a closed loop's rate: that of the mean request, and of when the last requests end (a share of
    users / requests of the whole, times their spread). Blocks of time would take the regular waves of a closed loop
    for chance. None in open loop, and where requests failed, which take other times."""
    edges = 0.0
    for m in (base, other):
        users, values = m.info.load.value, formulas.values_of(m, "e2e", formulas.e2e)
        if m.window.open_loop or len(values) < max(MIN_VALUES, m.window.offered):
            return None
        edges += (users / len(values) * float(np.std(values) / np.mean(values))) ** 2
    found = contrast(base, other, METRICS["e2e"], "mean", between)
    return Ratio(found.log, math.sqrt(found.se**2 + edges), found.df) if isinstance(found, Ratio) else None


def _share(m: Measured, metric: Metric) -> tuple[int, int]:
    """(hits, of) of a share."""
    found = estimate(m, metric, "rate")
    return (0, 0) if math.isnan(found.value) else (round(found.value * found.n), found.n)
