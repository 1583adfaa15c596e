"""A fit carried to another GPU: predicted cells with their intervals, beside what was measured there.

Knows: which cells are predicted, what they are held against, and how good "nothing changes" and "it scales with the
bandwidth" would have been. Must not know: how a law is carried over (`whatif`), files, how a table is drawn.
Why: a prediction of an engine that nobody measured is worth what it adds over the two guesses that anybody can make.

    ratio = value there / value here, predicted and measured; error = |predicted ratio / measured ratio - 1|
    no change: predicted ratio 1.   bandwidth: (bandwidth there / bandwidth here)^-1 for times, ^+1 for rates; all GPUs.

    interval = value * exp(-+ sqrt((1.645 d)^2 + (1.645 e)^2 + u^2)), d: deviation of log value over plausible engines,
    e: the fit's own error (1.4826 * median |error| of the engine alone on cells held out; of a rate the larger of
    TTFT's and ITL's),
    u: how far the ends of what is not known lie from the value on that side (bandwidth against overhead where one
    deployment cannot tell them apart; the clocks of a power-capped GPU)

"Here" is the same cell as it was measured on a GPU that was fitted, where there is one (of the fit, or beside the
measurement from there), else the fit's own value of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from loadgen.errors import UsageError
from loadgen.roofline.causes import ends
from loadgen.roofline.cells import Cell
from loadgen.roofline.fitted import Fit
from loadgen.roofline.named import clock_ends
from loadgen.roofline.passes import Deployment
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.whatif import Outcome, Situation, moved, outcome

METRICS = ("ttft", "itl", "output_tokens_per_s")
GUESSES = ("model", "no_change", "bandwidth")
ABSOLUTE = "absolute"  # |predicted / measured - 1|, which the fit's own error is part of
DRAWS = 8  # plausible engines that the spread is computed from: each costs a simulation per cell
Z = 1.645  # standard deviations of a 90 % interval
SIGMA = 1.4826  # a standard deviation in medians of absolute errors


@dataclass(frozen=True, slots=True)
class Predicted:
    """One metric of one cell there. SI units; nan where not known. `here*`: of the same cell on the fitted GPU."""

    metric: str
    value: float
    low: float
    high: float
    measured: float
    here: float  # as the fit has it
    here_measured: float


@dataclass(frozen=True, slots=True)
class PredictedCell:
    """A cell on the other GPU. `cell` holds what was measured there, if anything was."""

    cell: Cell
    values: Mapping[str, Predicted]


@dataclass(frozen=True, slots=True)
class Prediction:
    """A fit on another deployment. `errors[guess][metric]`: median errors over `n[metric]` measured cells."""

    where: Deployment
    of: Deployment
    cells: tuple[PredictedCell, ...]
    errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    n: Mapping[str, int] = field(default_factory=dict)
    refused: str = ""  # why nothing can be predicted there


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a prediction is made from: the best engine, plausible ones, and the ends of what is not known."""

    where: Deployment
    of: Deployment
    best: EngineConfig
    draws: tuple[EngineConfig, ...]
    ends: tuple[EngineConfig, ...]
    own_error: Mapping[str, float]


def predict_on(fit: Fit, where: Deployment, measured: Sequence[Cell] = ()) -> Prediction:
    """The fit on `where`: at the cells measured there (any of `measured` that are), else at the fit's own cells.

    Raises:
        UsageError: the fit is one of black-box constants.
    """
    label, of = _source(fit, where)
    there = [cell for cell in measured if cell.deployment == where]
    own = {_key(one.cell): one.cell for one in fit.cells if one.cell.label == label}
    wanted = there or [
        replace(cell, deployment=where, ttft_s=math.nan, itl_s=math.nan, evidence={}) for cell in own.values()
    ]
    law = fit.engine[label]
    plan = _Plan(where, of, law, _spread(fit.draws.get(label, ())), tuple(ends(fit, law)), _own_error(fit))
    known = {_key(one.cell): one.cell for one in fit.cells}
    known |= {_key(cell): cell for cell in measured if cell.deployment is not None and cell.deployment.gpu == of.gpu}
    try:
        cells = tuple(_predicted(cell, plan, known.get(_key(cell, where))) for cell in wanted)
    except UsageError as cannot:
        return Prediction(where, of, (), refused=cannot.what)
    errors, n = _errors(cells, where, of)
    return Prediction(where, of, cells, errors, n)


def _source(fit: Fit, where: Deployment) -> tuple[str, Deployment]:
    """The label of the fit's deployment that is most like `where`, and that deployment."""
    known = {one.cell.label: one.cell.deployment for one in fit.cells if one.cell.label in fit.engine}
    rows = [(label, one) for label, one in known.items() if one is not None]
    if not rows or fit.refused:
        raise UsageError("black-box constants hold for the GPU that was measured alone", do="name --gpu and --shape")
    return max(rows, key=lambda row: (row[1].shape == where.shape, row[1].gpus == where.gpus))


def _own_error(fit: Fit) -> dict[str, float]:
    """How far off the fit is where it was measured, as a deviation of the logarithm; 0 where nobody knows."""
    errors = fit.baselines.get("engine_alone") or fit.held_out or fit.in_sample  # its leftovers are not carried over
    known = {name: SIGMA * x if math.isfinite(x := getattr(errors, name)) else 0.0 for name in ("ttft", "itl")}
    return known | {"output_tokens_per_s": max(known.values())}


def _spread(draws: Sequence[EngineConfig]) -> tuple[EngineConfig, ...]:
    """At most DRAWS of the plausible engines, evenly chosen."""
    if len(draws) <= DRAWS:
        return tuple(draws)
    return tuple(draws[round(i * (len(draws) - 1) / (DRAWS - 1))] for i in range(DRAWS))


def _key(cell: Cell, where: Deployment | None = None) -> tuple[object, ...]:
    """What makes two cells the same but for the GPU."""
    of = where or cell.deployment
    names = () if of is None else (of.shape, of.dtypes, of.gpus)
    return (cell.prompt_tokens, cell.output_tokens, cell.load_kind, cell.load, *names)


def _predicted(cell: Cell, plan: _Plan, same: Cell | None) -> PredictedCell:
    """The cell there by the best engine, its interval by the plausible ones, and the same cell here."""
    where, of = plan.where, plan.of
    best = outcome(_there(cell, where, of, plan.best))
    base = _here(cell, replace(where, gpu=of.gpu), of, plan.best)
    others = [outcome(_there(cell, where, of, engine)) for engine in plan.draws]
    extremes = [outcome(_there(cell, where, of, engine)) for engine in plan.ends]
    clocks = zip(
        clock_ends(of.gpu) or (of.gpu, of.gpu), reversed(clock_ends(where.gpu) or (where.gpu,) * 2), strict=True
    )
    for here, there in clocks if where.gpu != of.gpu else ():
        extremes.append(outcome(_there(cell, replace(where, gpu=there), replace(of, gpu=here), plan.best)))
    values = {}
    for metric in METRICS:
        value = getattr(best, metric)
        drawn, off = ([getattr(one, metric) for one in some] for some in (others, extremes))
        low, high = _interval(value, drawn, off, plan.own_error[metric])
        measured = _measured(cell, metric)
        before = math.nan if same is None else _measured(same, metric)
        values[metric] = Predicted(metric, value, low, high, measured, float(getattr(base, metric)), before)
    return PredictedCell(cell, values)


def _interval(value: float, draws: Sequence[float], extremes: Sequence[float], error: float) -> tuple[float, float]:
    """90 % of a value: see the head of this file."""
    logs = [math.log(x) for x in draws if x > 0]
    wide = Z * math.hypot(float(np.std(logs)) if len(logs) > 1 else 0.0, error)
    off = [0.0, *(math.log(x / value) for x in extremes if x > 0 and value > 0)]
    return value * math.exp(-math.hypot(wide, min(off))), value * math.exp(math.hypot(wide, max(off)))


def _there(cell: Cell, where: Deployment, of: Deployment, engine: EngineConfig) -> Situation:
    """The cell on `where`. A KV cache that the fit found no end of ends there where the memory does."""
    if engine.kv_tokens is None and cell.load_kind != "batch":
        engine = replace(engine, kv_tokens=of.kv_capacity_tokens())
    now = Situation(cell, engine, of)
    return now if where == of else moved(now, where)


def _here(cell: Cell, where: Deployment, of: Deployment, engine: EngineConfig) -> Outcome:
    """The cell on the fitted GPU, everything else as there; nan where it does not fit into its memory."""
    try:
        return outcome(_there(cell, where, of, engine))
    except UsageError:
        return Outcome(math.nan, math.nan, math.nan, math.nan)


def _measured(cell: Cell, metric: str) -> float:
    if metric == "output_tokens_per_s":
        return cell.evidence.get(metric, math.nan)
    return cell.ttft_s if metric == "ttft" else cell.itl_s


def _errors(
    cells: Sequence[PredictedCell], where: Deployment, of: Deployment
) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """Median ratio errors of the model and of the two guesses, for each metric that was measured there."""
    found: dict[str, dict[str, list[float]]] = {guess: {} for guess in (*GUESSES, ABSOLUTE)}
    for one in cells:
        for value in one.values.values():
            for guess, error in _ratio_errors(value, where, of):
                found[guess].setdefault(value.metric, []).append(error)
    medians = {guess: {metric: float(np.median(x)) for metric, x in errors.items()} for guess, errors in found.items()}
    return medians, {metric: len(errors) for metric, errors in found[ABSOLUTE].items()}


def _ratio_errors(value: Predicted, where: Deployment, of: Deployment) -> Iterator[tuple[str, float]]:
    if not value.measured > 0 or not value.value > 0:
        return
    yield ABSOLUTE, abs(value.value / value.measured - 1.0)
    if not value.here > 0:
        return
    real = value.measured / (value.here_measured if value.here_measured > 0 else value.here)
    bandwidth = where.gpu.bandwidth_bytes_per_s / of.gpu.bandwidth_bytes_per_s
    scaled = bandwidth if value.metric == "output_tokens_per_s" else 1.0 / bandwidth
    for guess, ratio in zip(GUESSES, (value.value / value.here, 1.0, scaled), strict=True):
        yield guess, abs(ratio / real - 1.0)


def prediction_json(one: Prediction) -> dict[str, object]:
    """A prediction as plain values; SI units, nan where not known. `from`: what was fitted."""
    return {
        "gpu": one.where.gpu.name,
        "gpus": one.where.gpus,
        "shape": one.where.shape.name,
        "dtypes": asdict(one.where.dtypes),
        "note": one.where.gpu.note if one.where.gpu.note.startswith("power-capped") else "",
        "from": {"gpu": one.of.gpu.name, "gpus": one.of.gpus, "shape": one.of.shape.name},
        "error": {guess: dict(errors) for guess, errors in one.errors.items()},
        "n": dict(one.n),
        "refused": one.refused,
        "cells": [
            {
                "isl": cell.cell.prompt_tokens,
                "osl": cell.cell.output_tokens,
                "load": cell.cell.load,
                "load_kind": cell.cell.load_kind,
                "where": cell.cell.where,
                **dict(pair for value in cell.values.values() for pair in _plain(value)),
            }
            for cell in one.cells
        ],
    }


def _plain(value: Predicted) -> Iterator[tuple[str, float]]:
    """`ttft_s`, `ttft_low_s` ... `ttft_here_measured_s`; rates without the unit at the end."""
    unit = "" if value.metric == "output_tokens_per_s" else "_s"
    for name in ("value", "low", "high", "measured", "here", "here_measured"):
        yield f"{value.metric}{'' if name == 'value' else f'_{name}'}{unit}", getattr(value, name)
