"""What is told of a fitted point: parameters with intervals, derived numbers, knobs, plausible engines, cells.

Knows: which numbers follow from the parameters (the floor of a decode step, the cost of a context token) and how the
spread around the best point becomes their intervals. Must not know: how the point or the spread were found.
Why: utilisations are not what an endpoint shows; the floor is, and it is known well where its two parts are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from loadgen.roofline.fit_intervals import RISE, Spread, clipped, derived_interval, interval
from loadgen.roofline.fit_model import Model, Problem, World
from loadgen.roofline.fit_parameters import NO_CAP, TOP_MBU, Knobs, engine_of, law_of, named
from loadgen.roofline.fit_search import BUDGETS, WORTH, Point, Search, caps_around
from loadgen.roofline.fitted import FitCell, Parameter
from loadgen.roofline.passes import StepLaw, decode_pass
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.serving_kernel import Floats

Flags = npt.NDArray[np.bool_]
SAME_BYTES = 1.1  # factor of weights per GPU, up to which deployments say the same of bandwidth and overhead

# What an endpoint shows whatever its parts are: name, unit, how it follows from the law.
DERIVED: tuple[tuple[str, str, Callable[[StepLaw], float]], ...] = (
    ("floor_s", "s per step of one sequence", lambda law: decode_pass(law, 1, 0.0).time_s),
    ("kv_token_s", "s per context token and step", lambda law: law.kv_bytes / law.kv_rate),
)


def engines(world: World, values: Floats, knobs: Knobs) -> dict[str, EngineConfig]:
    """The engine of each label."""
    by_name = named(world.table, values)
    return {label: engine_of(one, by_name, knobs) for label, one in world.deployments.items()}


def draws(world: World, best: Point, around: Spread) -> dict[str, tuple[EngineConfig, ...]]:
    """Plausible engines of each label: the draws, each shifted by one of the errors that many cells may share."""
    shifts = np.array([(-1.0) ** k * around.misfit[k % len(around.misfit)] for k in range(len(around.draws))])
    found = [engines(world, one, best.knobs) for one in np.clip(around.draws + shifts, *_bounds(world))]
    return {label: tuple(one[label] for one in found) for label in world.deployments}


def _bounds(world: World) -> tuple[Floats, Floats]:
    return np.log([one.low for one in world.table]), np.log([one.high for one in world.table])


def parameters(search: Search, best: Point, around: Spread) -> tuple[Parameter, ...]:
    """Everything estimated: the continuous parameters, what follows from them, and the knobs."""
    return (*_continuous(best, around), *_derived(search.world, best, around), *_knobs(search, best))


def _continuous(best: Point, around: Spread) -> Iterable[Parameter]:
    open_ends = _floor_ends(best)
    for i, one in enumerate(best.model.world.table):
        low, high, identified = interval(i, best, around)
        if one.name in open_ends:
            identified = False
            low, high = min(low, open_ends[one.name][0]), max(high, open_ends[one.name][1])
        low, high = clipped(one, low, high)
        value = math.exp(best.values[i]) if identified else math.nan
        yield Parameter(one.name, one.unit, value, low, high, identified, "" if identified else one.settle)


def _floor_ends(best: Point) -> dict[str, tuple[float, float]]:
    """What bandwidth and overhead may be where every deployment reads as many bytes a GPU and step: their sum is seen.

    All of the floor is weights (no overhead), or these are read as fast as anything is (TOP_MBU) and overhead is the
    rest. What sets the two apart on one deployment is the model's knee, which real engines need not have.
    """
    world, knobs = best.model.world, best.knobs
    values = named(world.table, best.values)
    laws = [law_of(one, values, knobs.overlap) for one in world.deployments.values()]
    read = [(law.dense_bytes + law.expert_bytes * law.expert_share) / law.gpus for law in laws]
    if "mbu" not in values or max(read) > SAME_BYTES * min(read):
        return {}
    law, weights = laws[0], read[0] * laws[0].gpus
    floor = max(weights / law.weight_rate, law.step_s) if knobs.overlap else weights / law.weight_rate + law.step_s
    slow, fast = weights / (floor * law.peak_bytes_per_s), max(TOP_MBU, values["mbu"])
    most = floor if knobs.overlap else floor - weights / (fast * law.peak_bytes_per_s)
    return {"mbu": (slow, fast), "step_s": (0.0, most)}


def _derived(world: World, best: Point, around: Spread) -> Iterable[Parameter]:
    for label in world.deployments:
        of = f" of {label}" if len(world.deployments) > 1 else ""
        for name, unit, formula in DERIVED:

            def at(point: Floats, formula: Callable[[StepLaw], float] = formula, label: str = label) -> float:
                return formula(law_of(world.deployments[label], named(world.table, point), best.knobs.overlap))

            value = at(best.values)
            low, high = derived_interval(
                [at(one) for one in around.draws], value, [at(best.values + one) for one in around.misfit]
            )
            yield Parameter(name + of, unit, value, low, high, high / low < 2.0)


def _knobs(search: Search, best: Point) -> Iterable[Parameter]:
    knobs = best.knobs
    budgets = [
        one
        for one in BUDGETS
        if one == knobs.token_budget or _rise(search, best, replace(knobs, token_budget=one)) < WORTH
    ]
    alone = len(budgets) == 1
    yield Parameter(
        "token_budget",
        "tokens per step",
        float(knobs.token_budget) if alone else math.nan,
        float(min(budgets)),
        float(max(budgets)),
        alone,
        "" if alone else "many users at once with prompts of several thousand tokens: TTFT and the longest gaps",
    )
    if knobs.max_sequences == NO_CAP:
        yield Parameter(
            "batch_cap", "sequences", math.nan, search.most_users, math.inf, False, "more users than any cell had"
        )
    else:
        low, high = _range(search, best, [one.max_sequences for one in caps_around(knobs)], knobs.max_sequences)
        yield Parameter("batch_cap", "sequences", float(knobs.max_sequences), low, high, high / low < 1.3)
    if knobs.kv is not None:
        sizes = [one.kv_tokens or math.inf for one in engines(search.world, best.values, knobs).values()]
        yield Parameter("kv_tokens", "context tokens", sizes[0], 0.9 * sizes[0], 1.1 * sizes[0], True)


def _range(search: Search, best: Point, caps: Sequence[int], value: int) -> tuple[float, float]:
    """The neighbours of the caps that the loss allows: the ends of what is not ruled out."""
    tried = sorted({value, *caps})
    allowed = [one == value or _rise(search, best, replace(best.knobs, max_sequences=one)) < RISE for one in tried]
    first, last = allowed.index(True), len(allowed) - 1 - allowed[::-1].index(True)
    return float(tried[max(0, first - 1)]), float(tried[min(len(tried) - 1, last + 1)])


def _rise(search: Search, best: Point, knobs: Knobs) -> float:
    one = search.at(knobs, best.values, best.scale, 8)
    return math.inf if one is None else one.loss - best.loss


def fit_cells(
    whole: Problem, model: Model, best: Point, around: Spread, predicted: Floats, held: Flags, outliers: Flags
) -> tuple[FitCell, ...]:
    """Each cell of the model beside it; a held-out one beside what the others predicted. 90 % bounds hold the scale."""
    times = model.times(best.values)
    drawn = np.log(np.array([model.times(one) for one in around.draws]) / times)
    spread = np.maximum(np.abs(np.quantile(drawn, 0.05, axis=0)), np.abs(np.quantile(drawn, 0.95, axis=0)))
    factor = np.exp(np.hypot(np.nan_to_num(spread), 1.64 * best.scale))
    shown = np.where(held[model.index, None], predicted[model.index], times)
    low, high = shown / factor, shown * factor
    return tuple(
        FitCell(
            cell=whole.cells[i],
            ttft_fit_s=float(shown[k, 0]),
            itl_fit_s=float(shown[k, 1]),
            ttft_low_s=float(low[k, 0]),
            ttft_high_s=float(high[k, 0]),
            itl_low_s=float(low[k, 1]),
            itl_high_s=float(high[k, 1]),
            held_out=bool(held[i]),
            outlier=bool(outliers[i]),
        )
        for k, i in enumerate(model.index)
    )
