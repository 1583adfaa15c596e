"""How sure a fit is: profiles of the loss, a bootstrap over cells, and what systematic errors of the model could do.

Knows: the loss around the best point, with and without priors. Must not know: what the parameters mean in words.
Why: a bootstrap alone hides what the data cannot tell - a flat direction stays where the search began - and both ignore
that a model is wrong in the same way in many cells at once. So the reported interval is the wider of profile and
bootstrap, then widened by the misfit; a parameter that the data leave open over a factor of more than IDENTIFIED is
given as a range without a value.

    profile: all values at which the loss, minimised over the others, rises by less than 2.71 (90 %)
    bootstrap: cells weighted at random (Dirichlet, D. B. Rubin's Bayesian bootstrap, 1981: as varied as drawing them
        with replacement, but none is gone, and few may know a parameter); prior medians drawn from the priors, so that
        what they decide varies, too
    misfit: shifts if all TTFT or all ITL, or their slopes with load or prompt length, were off by half a scale
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.roofline.fit_baselines import coordinates
from loadgen.roofline.fit_parameters import Quantity
from loadgen.roofline.fit_search import Objective, Point, Search, minimise
from loadgen.roofline.serving_kernel import Floats

RISE = 2.706  # of the loss at the ends of a 90 % interval: chi-squared with one degree of freedom
IDENTIFIED = 1.35  # high / low up to which a parameter counts as identified by the data
DRAWS = 40
QUICK = 12


@dataclass(frozen=True, slots=True)
class Spread:
    """Around the best point, in logarithms: data alone (`low`, `high`, unwidened) and the plausible points `draws`."""

    low: Floats
    high: Floats
    draws: Floats  # (draw, parameter)
    misfit: Floats  # (pattern, parameter): shifts under systematic errors


def spread(search: Search, best: Point, rng: np.random.Generator) -> Spread:
    """Profiles of every parameter from the data alone, bootstrap draws, misfit shifts."""
    data = Objective(best.model, best.scale, priors=False)
    start, lowest = minimise(data, best.values, search)
    width = _widths(data.slopes(start))
    low, high = start.copy(), start.copy()
    for i in range(start.size):
        for sign, ends in ((-1.0, low), (1.0, high)):
            ends[i] = _end(search, data, start, lowest, i, sign, width[i])
    return Spread(low, high, _bootstrap(search, best, rng), _misfit(best, search))


def _widths(matrix: Floats) -> Floats:
    """Deviations from curvature; large where there is none."""
    inverse = np.linalg.pinv(matrix.T @ matrix + 1e-6 * np.eye(matrix.shape[1]))
    widths: Floats = np.sqrt(np.clip(np.diag(inverse), 1e-8, 9.0))
    return widths


def _end(search: Search, data: Objective, start: Floats, lowest: float, i: int, sign: float, width: float) -> float:
    """Where the profile of parameter i crosses the threshold on one side, or its bound."""
    bound = search.low[i] if sign < 0 else search.high[i]
    inner, outer = start[i], start[i]
    inner_rise = 0.0
    step = 1.64 * width
    point = start
    for _ in range(8):
        outer = start[i] + sign * step
        at_bound = sign * (outer - bound) >= 0
        outer = bound if at_bound else outer
        point, loss = _fixed(search, data, point, i, outer)
        rise = loss - lowest
        if rise >= RISE:
            break
        if at_bound:
            return float(bound)
        inner, inner_rise = outer, max(rise, 0.0)
        step *= 2.0 if rise < RISE / 2 else 1.4
    else:
        return float(outer)
    for _ in range(3):  # the rise is about a square: interpolate its root
        a, b, c = math.sqrt(inner_rise), math.sqrt(rise), math.sqrt(RISE)
        middle = inner + (outer - inner) * (c - a) / max(b - a, 1e-9)
        if abs(outer - inner) < 0.02 * max(abs(outer - start[i]), 1e-3):
            break
        _, loss = _fixed(search, data, point, i, middle)
        if loss - lowest >= RISE:
            outer, rise = middle, loss - lowest
        else:
            inner, inner_rise = middle, max(loss - lowest, 0.0)
    return float(inner + (outer - inner) * (math.sqrt(RISE) - math.sqrt(inner_rise))
                 / max(math.sqrt(rise) - math.sqrt(inner_rise), 1e-9))  # fmt: skip


def _fixed(search: Search, data: Objective, start: Floats, i: int, value: float) -> tuple[Floats, float]:
    """The other parameters at their best with parameter i held."""
    point = start.copy()
    point[i] = value
    return minimise(data, point, search, QUICK, held=i)


def _bootstrap(search: Search, best: Point, rng: np.random.Generator) -> Floats:
    table = search.world.table
    width = np.array([one.prior[1] for one in table])
    cells = len(search.index)
    found = []
    for _ in range(DRAWS):
        weights = cells * rng.dirichlet(np.ones(cells))
        shift = width * rng.standard_normal(width.size)
        drawn = Objective(best.model, best.scale, search.priors, weights, shift)
        start = best.values + 0.3 * shift
        found.append(minimise(drawn, start, search, QUICK)[0])
    return np.array(found)


def _misfit(best: Point, search: Search) -> Floats:
    """Shifts of the best point under errors of half a scale that many cells share."""
    objective = Objective(best.model, best.scale, search.priors)
    matrix = objective.slopes(best.values)
    gain = np.linalg.pinv(matrix.T @ matrix) @ matrix.T
    cells = [search.problem.cells[i] for i in search.index]
    where = coordinates(cells)[:, [0, 2]]
    centred = where - where.mean(axis=0)
    reach = np.abs(centred).max(axis=0)
    tilts = [np.ones(len(cells))] + [centred[:, k] / reach[k] for k in range(2) if reach[k] > 0]
    shifts = []
    for column in range(2):
        for tilt in tilts:
            pattern = np.zeros((len(cells), 2))
            pattern[:, column] = 0.5 * tilt
            padded = np.concatenate([pattern.ravel()[objective.keep], np.zeros(len(search.world.table))])
            shifts.append(gain @ padded)
    return np.array(shifts)


def interval(name_at: int, best: Point, around: Spread) -> tuple[float, float, bool]:
    """(low, high, identified) of one parameter of the table, not in logarithms."""
    value = best.values[name_at]
    low, high = around.low[name_at], around.high[name_at]
    data_alone = high - low
    drawn = np.quantile(around.draws[:, name_at], [0.05, 0.95])
    low, high = min(low, drawn[0], value), max(high, drawn[1], value)
    extra = 1.64 * float(np.sqrt(np.sum(around.misfit[:, name_at] ** 2)))
    return (
        math.exp(value - math.hypot(value - low, extra)),
        math.exp(value + math.hypot(high - value, extra)),
        data_alone <= math.log(IDENTIFIED),
    )


def clipped(one: Quantity, low: float, high: float) -> tuple[float, float]:
    """An interval inside the parameter's bounds."""
    return max(low, one.low), min(high, one.high)


def derived_interval(values: Sequence[float], value: float, misfits: Sequence[float]) -> tuple[float, float]:
    """90 % of a number computed from the draws, widened by its shifts under misfit. All positive."""
    low, high = np.quantile(values, [0.05, 0.95])
    extra = 1.64 * float(np.sqrt(np.sum(np.log(np.array(misfits) / value) ** 2)))
    below = math.hypot(math.log(value / min(low, value)), extra)
    above = math.hypot(math.log(max(high, value) / value), extra)
    return value * math.exp(-below), value * math.exp(above)
