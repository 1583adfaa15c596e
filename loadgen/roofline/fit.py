"""The fit: from measured cells to the parameters of the engine that served them, with how sure that is.

Knows: the order of the work - folds, the search on all cells, what was found - and the value that comes out. Must not
know: files, runs, or what the parameters mean to a reader.
Why: the one entry for everything that has cells. Black-box constants always exist; the physics is fitted where GPU and
model are known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from loadgen.errors import UsageError
from loadgen.model import Finding
from loadgen.roofline.cells import Cell
from loadgen.roofline.fit_alternatives import alternatives
from loadgen.roofline.fit_baselines import BASELINES
from loadgen.roofline.fit_intervals import spread
from loadgen.roofline.fit_leftover import leftover
from loadgen.roofline.fit_model import Model, World, problem
from loadgen.roofline.fit_parameters import BLACK_BOX, quantities
from loadgen.roofline.fit_refusal import refusal
from loadgen.roofline.fit_results import Flags, draws, engines, fit_cells, parameters
from loadgen.roofline.fit_search import Search
from loadgen.roofline.fit_trace import cell_times
from loadgen.roofline.fitted import Errors, Fit
from loadgen.roofline.passes import Deployment
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.serving_kernel import Floats, Ints

Holdout = Literal["alternate", "shape", "none"]
ENGINE_ALONE = "engine_alone"  # among the baselines: the held-out prediction without what the engine leaves over
FEWEST = 6  # cells, below which none can be spared for holding out
FOLDS = 4  # of whole shapes


def fit(cells: Sequence[Cell], *, holdout: Holdout = "alternate", priors: bool = True, rng: np.random.Generator) -> Fit:
    """Estimate the engine behind these cells: physics where GPU and model are known and can be right, else constants.

    Args:
        cells: measured points; those of one label are of one deployment, several labels are deployments of one engine.
        holdout: which cells are predicted from the others: every second one, whole shapes in turn, or none.
        priors: use what kernel measurements say about the utilisations (`fit_parameters`).
        rng: for starting points and resampling.

    Raises:
        UsageError: no cells, cells without times, or deployments that cannot be fitted together.
    """
    whole = problem(cells)
    world = world_of(whole.cells)
    everything = np.arange(len(whole.cells))
    kept_back = np.flatnonzero([one.held_out for one in whole.cells])
    seen = np.setdiff1d(everything, kept_back)
    search = Search(whole, world, seen, priors=priors, rng=rng)
    best = search.best()
    refused = refusal(search, best)
    if refused is not None:
        if len(world.deployments) > 1:
            raise UsageError(
                f"these deployments cannot be fitted together: {refused.message}", do="fit them one at a time"
            )
        search = Search(whole, World(dict.fromkeys(world.deployments), BLACK_BOX), seen, priors=priors, rng=rng)
        best = search.best()
    folds = [kept_back] if kept_back.size else split(whole.cells, holdout)
    predicted, guesses = hold_out(search, folds)
    around = spread(search, best, rng)
    model = Model(whole, search.world, best.knobs, best.values)
    times = model.times(best.values)
    outliers = strays(model.residuals(best.values), best.scale)
    held = np.isin(everything, np.concatenate(folds)) if folds else np.zeros(len(everything), bool)
    use = held & ~outliers
    held_out = errors(predicted, whole.measured, use) if folds else None
    baselines = {name: errors(guess, whole.measured, use) for name, guess in guesses.items()} if folds else {}
    return Fit(
        deployment=next(iter(search.world.deployments.values())),
        parameters=parameters(search, best, around),
        engine=engines(search.world, best.values, best.knobs),
        draws=draws(search.world, best, around),
        cells=fit_cells(whole, model, best, around, predicted, held, outliers),
        in_sample=errors(times, whole.measured, ~outliers),
        held_out=held_out,
        baselines=baselines,
        alternatives=alternatives(search, best),
        findings=tuple(findings(refused, held_out, baselines)),
        refused=refused.message if refused is not None else "",
    )


def hold_out(search: Search, folds: Sequence[Ints]) -> tuple[Floats, dict[str, Floats]]:
    """What the other cells predict for each fold: the model, its knobs chosen from them alone, and the baselines.

    (cell, [TTFT, ITL]) in seconds; nan outside of the folds. The model is the engine times what it leaves over.
    """
    whole = search.problem
    predicted = np.full(whole.measured.shape, np.nan)
    guesses = {name: predicted.copy() for name in (ENGINE_ALONE, *BASELINES)}
    for test in folds:
        train = np.setdiff1d(np.arange(len(whole.cells)), test)
        found = Search(whole, search.world, train, priors=search.priors, rng=search.rng).best()
        alone = Model(whole, search.world, found.knobs, found.values, test).times(found.values)
        own = np.full(whole.measured.shape, np.nan)
        own[train] = usable(found.model.residuals(found.values), found.scale)
        guesses[ENGINE_ALONE][test] = alone
        predicted[test] = alone * leftover(whole.cells, own, train, test)
        for name, guess in BASELINES.items():
            guesses[name][test] = guess(whole.cells, whole.measured, train, test)
    return predicted, guesses


def usable(residuals: Floats, scale: Floats) -> Floats:
    """The residuals without those of cells that are far from what the others agree on."""
    return np.where(strays(residuals, scale)[:, None], np.nan, residuals)


def findings(refused: Finding | None, held_out: Errors | None, baselines: Mapping[str, Errors]) -> Iterable[Finding]:
    """What must be known of the estimation itself."""
    if refused is not None:
        yield refused
    for metric in ("ttft", "itl"):
        own = getattr(held_out, metric, math.nan)
        for name in BASELINES.keys() & baselines.keys():
            other = baselines[name]
            theirs = getattr(other, metric)
            if theirs < own:
                yield Finding(
                    "info",
                    "loses_to_baseline",
                    f"{name} predicts the held-out cells' {metric.upper()} better than the model: {theirs:.1%} against "
                    f"{own:.1%} median error",
                    own,
                    f"between measured cells trust {name}; the model is for what lies outside of them",
                )


def world_of(cells: Sequence[Cell]) -> World:
    """What the cells say that they ran on.

    Raises:
        UsageError: one label on two deployments, or several deployments of which one is not known.
    """
    deployments: dict[str, Deployment | None] = {}
    for one in cells:
        if deployments.setdefault(one.label, one.deployment) != one.deployment:
            raise UsageError(f"{one.label!r} names two deployments", where=one.where, do="give them different labels")
    if len(deployments) > 1 and None in deployments.values():
        raise UsageError("only known GPUs and models can be fitted together", do="name them, or fit one at a time")
    return World(deployments, quantities(list(deployments.values())))


def split(cells: Sequence[Cell], holdout: Holdout) -> list[Ints]:
    """The cells to hold out, fold by fold; none where there are too few."""
    if holdout == "none" or len(cells) < FEWEST:
        return []
    order = sorted(range(len(cells)), key=lambda i: (cells[i].label, *_shape(cells[i]), cells[i].load))
    if holdout == "alternate":
        return [np.array(order[1::2])]
    shapes: dict[tuple[object, ...], list[int]] = {}
    for i in order:
        shapes.setdefault((cells[i].label, *_shape(cells[i])), []).append(i)
    count = min(FOLDS, len(shapes))
    if count < 2:
        return []
    groups = list(shapes.values())
    return [np.array([i for group in groups[k::count] for i in group]) for k in range(count)]


def _shape(cell: Cell) -> tuple[float, float]:
    return cell.prompt_tokens, cell.output_tokens


def errors(predicted: Floats, measured: Floats, use: Flags) -> Errors:
    """Medians and 90th percentiles of |predicted / measured - 1| over the cells to use."""
    off = np.abs(predicted / measured - 1.0)[use]

    def quantile(column: int, q: float) -> float:
        known = off[np.isfinite(off[:, column]), column]
        return float(np.quantile(known, q)) if known.size else float("nan")

    return Errors(quantile(0, 0.5), quantile(1, 0.5), quantile(0, 0.9), quantile(1, 0.9), int(np.sum(use)))


def strays(residuals: Floats, scale: Floats) -> Flags:
    """Cells far from a law that the others agree on: beyond eight scales and a factor of 1.4."""
    far: Flags = np.any(np.abs(np.nan_to_num(residuals)) > np.maximum(8.0 * scale, np.log(1.4)), axis=1)
    return far


def predict_cells(fitted: Fit, engine: str | EngineConfig, cells: Sequence[Cell]) -> tuple[Floats, Floats]:
    """What the fitted engine would have shown for cells: mean TTFT and ITL, seconds, one entry per cell.

    Args:
        fitted: the fit.
        engine: the label of one of its deployments - then with what the engine leaves over between the measured cells
            (`fit_leftover`) - or an engine by itself (a draw, another GPU's).
        cells: points to predict; their times are not looked at.

    Raises:
        UsageError: no such label, or a cell that the engine cannot run.
    """
    if isinstance(engine, EngineConfig):
        return _columns([cell_times(engine, one, seed) for seed, one in enumerate(cells)])
    if engine not in fitted.engine:
        raise UsageError(f"the fit has no deployment {engine!r}", do=f"one of: {', '.join(fitted.engine)}")
    config = fitted.engine[engine]
    known = [one.cell for one in fitted.cells if one.cell.label == engine and not (one.outlier or one.cell.held_out)]
    both = [*known, *(replace(one, label=engine) for one in cells)]
    times = np.array([cell_times(config, one, seed) for seed, one in enumerate(both)]).reshape(-1, 2)
    measured = np.array([[one.ttft_s, one.itl_s] for one in both]).reshape(-1, 2)
    train, test = np.arange(len(known)), np.arange(len(known), len(both))
    with np.errstate(divide="ignore", invalid="ignore"):
        residuals = np.log(times / measured)
    return _columns(times[test] * leftover(both, np.where(np.isfinite(residuals), residuals, np.nan), train, test))


def _columns(times: npt.ArrayLike) -> tuple[Floats, Floats]:
    table = np.array(times, float).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def transfer(fitted: Fit, deployment: Deployment) -> tuple[EngineConfig, tuple[EngineConfig, ...]]:
    """The fitted engine, and its plausible ones, on another deployment: utilisations and overheads stay, facts change.

    Raises:
        UsageError: the fit is one of constants, or the deployment cannot serve (weights do not fit, no such rate).
    """
    from loadgen.roofline.whatif import Situation, moved

    if fitted.deployment is None:
        raise UsageError("constants hold where they were measured alone", do="name GPU and model to fit the physics")
    label = next(iter(fitted.engine))
    cell = next(one.cell for one in fitted.cells if one.cell.label == label)
    found = [
        moved(Situation(cell, one, fitted.deployment), deployment).engine
        for one in (fitted.engine[label], *fitted.draws[label])
    ]
    return found[0], tuple(found[1:])
