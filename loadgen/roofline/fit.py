"""The fit: from measured cells to the parameters of the engine that served them, with how sure that is.

Knows: the order of the work - folds, the search on all cells, what was found - and the value that comes out. Must not
know: files, runs, or what the parameters mean to a reader.
Why: the one entry for everything that has cells. Black-box constants always exist; the physics is fitted where GPU and
model are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from loadgen.errors import UsageError
from loadgen.model import Finding
from loadgen.roofline.cells import Cell
from loadgen.roofline.figures import read
from loadgen.roofline.fit_alternatives import alternatives
from loadgen.roofline.fit_baselines import BASELINES
from loadgen.roofline.fit_intervals import Spread, spread
from loadgen.roofline.fit_leftover import leftover
from loadgen.roofline.fit_model import Model, Problem, World, problem
from loadgen.roofline.fit_parameters import BLACK_BOX, quantities
from loadgen.roofline.fit_refusal import refusal
from loadgen.roofline.fit_results import Flags, draws, engines, fit_cells, parameters
from loadgen.roofline.fit_search import Point, Search
from loadgen.roofline.fit_trace import cell_times
from loadgen.roofline.fitted import Errors, Fit, FitCell, Parameter
from loadgen.roofline.marks import misfit
from loadgen.roofline.passes import Deployment
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.serving_kernel import Floats, Ints

Holdout = Literal["alternate", "shape", "none"]
ENGINE_ALONE = "engine_alone"  # among the baselines: the held-out prediction without what the engine leaves over
FEWEST = 6  # cells, below which none can be spared for holding out
FOLDS = 4  # of whole shapes


@dataclass(frozen=True, slots=True)
class Part:
    """Cells that were fitted together: those of every deployment by one physics, or of one label by its constants."""

    search: Search
    best: Point
    around: Spread
    model: Model  # of all its cells, those held back too

    @property
    def times(self) -> Floats:
        """(cell of `model.index`, [TTFT, ITL]) in seconds."""
        return self.model.times(self.best.values)


def fit(
    cells: Sequence[Cell],
    *,
    holdout: Holdout = "alternate",
    priors: bool = True,
    rng: np.random.Generator,
    tell: Callable[[str], None] = lambda step: None,
) -> Fit:
    """Estimate the engine behind these cells: physics where GPU and model are known and can be right, else constants.

    Deployments that cannot be the same engine, or not these, get constants too, each its own.

    Args:
        cells: measured points; those of one label are of one deployment, several labels are deployments of one engine.
        holdout: which cells are predicted from the others: every second one, whole shapes in turn, or none.
        priors: use what kernel measurements say about the utilisations (`fit_parameters`).
        rng: for starting points and resampling.
        tell: is called with what comes next, in words; a fit takes seconds to a minute.

    Raises:
        UsageError: no cells, cells without times, or deployments that cannot be fitted together.
    """
    whole = problem(cells)
    world = world_of(whole.cells)
    held = {_cell_key(one) for one in whole.cells if one.held_out}
    kept_back = np.flatnonzero([_cell_key(one) in held for one in whole.cells])
    seen = np.setdiff1d(np.arange(len(whole.cells)), kept_back)
    physics = Search(whole, world, seen, priors=priors, rng=rng)
    tell("searching parameters and scheduler")
    best = physics.best()
    refused = refusal(physics, best)
    if refused is not None and len(world.deployments) > 1:
        refused = replace(refused, advice=f"{refused.advice}, or fit them one at a time: one engine need not serve all")
    found = [(physics, best)] if refused is None else [(one, one.best()) for one in by_constants(physics)]
    folds = [kept_back] if kept_back.size else split(whole.cells, holdout)
    tell("predicting held-out cells from the others")
    predicted, guesses = hold_out([search for search, _ in found], folds)
    tell("intervals")
    parts = [
        Part(
            search,
            point,
            spread(search, point, rng),
            Model(whole, search.world, point.knobs, point.values, _of(search)),
        )
        for search, point in found
    ]
    tell("other explanations")
    return _told(whole, parts, folds, predicted, guesses, refused)


def by_constants(physics: Search) -> Iterator[Search]:
    """Each label's own constants: nothing of them carries over from one deployment to another."""
    whole = physics.problem
    for label in physics.world.deployments:
        index = np.array([i for i in physics.index if whole.cells[i].label == label], np.int64)
        if index.size:
            world = World({label: None}, BLACK_BOX)
            yield Search(whole, world, index, priors=physics.priors, rng=physics.rng)


def _of(search: Search) -> Ints:
    """All cells of the search's labels."""
    return np.flatnonzero([one.label in search.world.deployments for one in search.problem.cells])


def _told(
    whole: Problem,
    parts: Sequence[Part],
    folds: Sequence[Ints],
    predicted: Floats,
    guesses: Mapping[str, Floats],
    refused: Finding | None,
) -> Fit:
    """What was found, part by part, as one value."""
    times = np.full(whole.measured.shape, np.nan)
    outliers = np.zeros(len(whole.cells), bool)
    for one in parts:
        times[one.model.index] = one.times
        outliers[one.model.index] = strays(one.model.residuals(one.best.values), one.best.scale)
    held = np.isin(np.arange(len(whole.cells)), np.concatenate(folds)) if folds else np.zeros(len(whole.cells), bool)
    use = held & ~outliers
    held_out = errors(predicted, whole.measured, use) if folds else None
    baselines = {name: errors(guess, whole.measured, use) for name, guess in guesses.items()} if folds else {}
    beside = [FitCell(one, math.nan, math.nan) for one in whole.cells]  # of a label without a cell to fit: as measured
    for one in parts:
        for i, cell in zip(
            one.model.index, fit_cells(whole, one.model, one.best, one.around, predicted, held, outliers), strict=True
        ):
            beside[i] = cell
    return Fit(
        deployment=None if refused else next(iter(parts[0].search.world.deployments.values())),
        parameters=tuple(_parameters(parts)),
        engine={k: v for one in parts for k, v in engines(one.search.world, one.best.values, one.best.knobs).items()},
        draws={k: v for one in parts for k, v in draws(one.search.world, one.best, one.around).items()},
        cells=tuple(beside),
        in_sample=errors(times, whole.measured, ~outliers),
        held_out=held_out,
        baselines=baselines,
        alternatives=() if refused else alternatives(parts[0].search, parts[0].best),
        findings=tuple(findings(refused, held_out, baselines)),
        refused=refused.message if refused is not None else "",
    )


def _parameters(parts: Sequence[Part]) -> Iterator[Parameter]:
    for one in parts:
        (label, *_) = one.search.world.deployments
        for parameter in parameters(one.search, one.best, one.around):
            yield replace(parameter, name=f"{parameter.name} of {label}") if len(parts) > 1 else parameter


def hold_out(searches: Sequence[Search], folds: Sequence[Ints]) -> tuple[Floats, dict[str, Floats]]:
    """What the other cells predict for each fold: the model, its knobs chosen from them alone, and the baselines.

    (cell, [TTFT, ITL]) in seconds; nan outside of the folds. The model is the engine times what it leaves over.
    """
    whole = searches[0].problem
    predicted = np.full(whole.measured.shape, np.nan)
    guesses = {name: predicted.copy() for name in (ENGINE_ALONE, *BASELINES)}
    for fold in folds:
        for search in searches:
            test = np.intersect1d(fold, _of(search))
            train = np.setdiff1d(_of(search), fold)
            if not test.size or not train.size:
                continue
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
                yield misfit(
                    "info",
                    "loses_to_baseline",
                    "{name} predicts the held-out cells' {metric} better than the model: {theirs} against {own} "
                    "median error",
                    own,
                    f"between measured cells trust {name}; the model is for what lies outside of them",
                    name=name,
                    metric=metric.upper(),
                    theirs=read(theirs, "share", f"baseline_{name}_{metric}"),
                    own=read(own, "share", f"held_out_{metric}"),
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
    """The cells to hold out, fold by fold; none where there are too few. Repeats of a cell are held out together: a fit
    that saw one of them has seen the others."""
    repeats: dict[tuple[str, float, float, float, str], list[int]] = {}
    for i, cell in enumerate(cells):
        repeats.setdefault(_cell_key(cell), []).append(i)
    if holdout == "none" or len(repeats) < FEWEST:
        return []
    distinct = [repeats[key] for key in sorted(repeats)]
    order = [i for same in distinct for i in same]
    if holdout == "alternate":
        return [np.array([i for same in distinct[1::2] for i in same])]
    shapes: dict[tuple[object, ...], list[int]] = {}
    for i in order:
        shapes.setdefault((cells[i].label, *_shape(cells[i])), []).append(i)
    count = min(FOLDS, len(shapes))
    if count < 2:
        return []
    groups = list(shapes.values())
    return [np.array([i for group in groups[k::count] for i in group]) for k in range(count)]


def _cell_key(cell: Cell) -> tuple[str, float, float, float, str]:
    """What repeats of one cell have in common."""
    return cell.label, *_shape(cell), cell.load, cell.load_kind


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
