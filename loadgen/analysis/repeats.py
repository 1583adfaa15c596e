"""A figure that was measured several times: its mean, its interval, and the change between two servers.

Knows: cells of repeats, how the error within a run and between runs come together. Must not know: what a repeat is of,
layout.
Why: one run knows the spread of its requests, but not by how much the next start of the same server would differ. The
repeats of all cells together do, and where they show more than a comparison of single runs assumes, that counts.

With log values y_r of R repeats, each with variance s_r^2 from its own requests, the variance between runs is pooled
over all cells, t^2 = mean over cells of (var(y) - mean(s^2)), and never below what two runs of one server are taken to
differ by; the mean has variance (mean(s^2) + t^2) / R (the moment estimate of DerSimonian and Laird 1986, pooled).
Changes between two servers: the same on the logs of their ratios, repeat by repeat, so that what both shared cancels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from loadgen.analysis import stats
from loadgen.analysis.compare_sides import Cell
from loadgen.analysis.compare_stats import BETWEEN_RUNS, SHARES, Contrast, Difference, Nothing, Ratio, student
from loadgen.analysis.definitions import METRICS
from loadgen.analysis.stats import CONFIDENCE

_TAIL = (1.0 - CONFIDENCE) / 2
_TWO_SIDED = 2.0 * float(special.ndtri(1.0 - _TAIL))
_KNOWN = 1e9  # degrees of freedom of what is taken as known


@dataclass(frozen=True, slots=True)
class Over:
    """A figure over its repeats, SI units: geometric mean (of shares the share of all), 95 % interval. None is n/a."""

    value: float | None
    low: float | None
    high: float | None
    repeats: int
    unit: str


@dataclass(frozen=True, slots=True)
class _Between:
    """The variance between runs, and how well it is known."""

    variance: float
    df: float


def over(groups: Sequence[Sequence[Cell]], metric: str, stat: str) -> list[Over]:
    """One figure of each group of repeats; the groups share what is known of the spread between runs."""
    unit = METRICS[metric].unit
    if metric in SHARES:
        return [_share(cells, metric, unit) for cells in groups]
    found = [_logs(cells, metric, stat) for cells in groups]
    between = _pooled([logs for logs, _ in found], [within for _, within in found], BETWEEN_RUNS / math.sqrt(2.0))
    return [_mean(logs, within, between, unit) for logs, within in found]


def _logs(cells: Sequence[Cell], metric: str, stat: str) -> tuple[list[float], list[float]]:
    """Log values, and the variance of each by its own requests (NaN: not known)."""
    logs, within = [], []
    for cell in cells:
        found = None if cell.stage is None else cell.stage.get(metric, stat)
        if found is None or found.value is None or not found.value > 0.0:
            continue
        logs.append(math.log(found.value))
        bounded = found.ci_low is not None and found.ci_high is not None and found.ci_low > 0.0
        width = math.log(found.ci_high / found.ci_low) if bounded and found.ci_high and found.ci_low else math.nan
        within.append((width / _TWO_SIDED) ** 2)
    return logs, within


def _pooled(groups: Iterable[Sequence[float]], within: Iterable[Sequence[float]], least: float) -> _Between:
    """The variance between runs over all groups; `least` is the standard deviation that it is taken to have anyhow."""
    excess, df = 0.0, 0
    for logs, own in zip(groups, within, strict=True):
        if len(logs) > 1 and not np.isnan(own).any():
            excess += (len(logs) - 1) * (float(np.var(logs, ddof=1)) - float(np.mean(own)))
            df += len(logs) - 1
    if df and excess / df > least**2:
        return _Between(excess / df, float(df))
    return _Between(least**2, _KNOWN)


def _mean(logs: Sequence[float], within: Sequence[float], between: _Between, unit: str) -> Over:
    if not logs:
        return Over(None, None, None, 0, unit)
    n, middle = len(logs), float(np.mean(logs))
    if np.isnan(within).any():
        return Over(math.exp(middle), None, None, n, unit)
    own, shared = float(np.mean(within)) / n, between.variance / n
    df = (own + shared) ** 2 / (shared**2 / between.df)
    half = student(df, _TAIL) * math.sqrt(own + shared)
    return Over(math.exp(middle), math.exp(middle - half), math.exp(middle + half), n, unit)


def _share(cells: Sequence[Cell], metric: str, unit: str) -> Over:
    """Hits of all repeats over requests of all repeats, with exact bounds."""
    found = [cell.stage.get(metric, "rate") for cell in cells if cell.stage is not None]
    known = [one for one in found if one is not None and one.value is not None and one.n]
    total = sum(one.n for one in known)
    if not total:
        return Over(None, None, None, 0, unit)
    hits = sum(round((one.value or 0.0) * one.n) for one in known)
    share = stats.proportion(hits, total)
    return Over(share.value, share.low, share.high, len(known), unit)


# -- changes -------------------------------------------------------------------------------------------------------


def joined(groups: Sequence[Sequence[Contrast | Nothing]], between: float = BETWEEN_RUNS) -> list[Contrast | Nothing]:
    """For each group of repeats one contrast of them all. The contrasts come without any spread between runs (see
    `compare_stats.contrast`); it is pooled over the groups here, and is no smaller than `between`."""
    ratios = [[one for one in group if isinstance(one, Ratio)] for group in groups]
    shared = _pooled(
        [[r.log for r in group] for group in ratios], [[r.se**2 for r in group] for group in ratios], between
    )
    return [_joined(group, mine, shared) for group, mine in zip(groups, ratios, strict=True)]


def _joined(group: Sequence[Contrast | Nothing], ratios: Sequence[Ratio], between: _Between) -> Contrast | Nothing:
    if ratios:
        n = len(ratios)
        own, shared = sum(one.se**2 for one in ratios) / n**2, between.variance / n
        weight = sum((one.se**2 / n**2) ** 2 / one.df for one in ratios) + shared**2 / between.df
        log = sum(one.log for one in ratios) / n
        return Ratio(log, math.sqrt(own + shared), (own + shared) ** 2 / weight if weight > 0.0 else _KNOWN)
    shares = [one for one in group if isinstance(one, Difference)]
    if shares:
        base, other = ((sum(side[0] for side in of), sum(side[1] for side in of)) for of in _sides(shares))
        return Difference(base, other)
    return next((one for one in group if isinstance(one, Nothing)), Nothing("nothing was measured"))


def _sides(shares: Sequence[Difference]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    return [one.base for one in shares], [one.other for one in shares]
