"""A fit and its explanation as plain values: `fit --format json`, and what every page with a fit is drawn from.

Knows: the names that users script against, and what belongs beside a number so that it can be computed again. Must not
know: sentences' wording (`roofline.tell`), layout, files.
Why: the page of a run is drawn long after the fit. If it can be drawn from the JSON alone, the JSON lacks nothing.

SI units; null for n/a. Formulas are in the names of the `inputs` beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from loadgen.model import Finding
from loadgen.roofline.account import parameters, scripted
from loadgen.roofline.catalog import spelled
from loadgen.roofline.causes import FORMULAS, Cause
from loadgen.roofline.fitted import Errors, Fit, FitCell, Misfit
from loadgen.roofline.passes import Deployment
from loadgen.roofline.precision import PRESETS
from loadgen.roofline.remedies import Remedy
from loadgen.roofline.tell import sentence


def fit_json(
    fit: Fit,
    causes: Sequence[Cause] = (),
    remedies: Sequence[Remedy] = (),
    findings: Sequence[Finding] = (),
    prediction: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Everything that is known about the fit. `prediction`: other GPUs' cells, as they are.

    Args:
        fit: the fit.
        causes: `roofline.causes.find_causes` of it.
        remedies: `roofline.remedies.find_remedies` of it.
        findings: `roofline.misfit.find_misfits` of it.
        prediction: what the fit says of other GPUs, ready as JSON.
    """
    numbers = {id(one): i for i, one in enumerate(fit.cells)}
    found = {
        **_facts(fit.deployment),
        "deployments": [{"label": label} | _facts(_deployment(fit, label)) for label in fit.engine],
        "refused": fit.refused,
        "parameters": {p.name: _without(asdict(p), "name") for p in parameters(fit)},
        "engine": {label: _engine(engine) for label, engine in fit.engine.items()},
        "limits": [_limit(cause, numbers) for cause in causes],
        "findings": [_finding(finding, numbers) for finding in findings],
        "remedies": [_remedy(remedy, numbers) for remedy in remedies],
        "alternatives": [asdict(other) | {"parameters": scripted(other.parameters)} for other in fit.alternatives],
        "error": {
            "in_sample": _errors(fit.in_sample),
            "held_out": _errors(fit.held_out),
            **{f"baseline_{name}": _errors(errors) for name, errors in fit.baselines.items()},
        },
        "prediction": list(prediction),
        "cells": [_cell(one) for one in fit.cells],
    }
    return plain(found)  # type: ignore[no-any-return]


def _deployment(fit: Fit, label: str) -> Deployment | None:
    return next((one.cell.deployment for one in fit.cells if one.cell.label == label), fit.deployment)


def _facts(where: Deployment | None) -> dict[str, Any]:
    """What serves, in the words of the flags; peaks are of all GPUs."""
    if where is None:
        return dict.fromkeys(("gpu", "gpus", "shape", "dtype", "dtypes", "peak_flop_per_s", "peak_bytes_per_s"))
    types = (where.dtypes.weights, where.dtypes.compute, where.dtypes.kv)
    rate = where.gpu.rate(where.dtypes.compute)
    return {
        "gpu": where.gpu.name,
        "gpus": where.gpus,
        "shape": spelled(where.shape),
        "dtype": next((name for name, preset in PRESETS.items() if preset == types), "/".join(types)),
        "dtypes": asdict(where.dtypes),
        "peak_flop_per_s": None if rate is None else where.gpus * rate,
        "peak_bytes_per_s": where.gpus * where.gpu.bandwidth_bytes_per_s,
        "source": where.gpu.source,
    }


def _engine(engine: Any) -> dict[str, Any]:
    """The engine's knobs and its cost law, every number of it."""
    return _without(asdict(engine), "law") | {"law": engine.law._asdict()}


def _finding(finding: Finding, numbers: Mapping[int, int]) -> dict[str, Any]:
    """The finding; of a fit with the numbers of its message, and the places of the cells that it is about."""
    of, figures = (finding.of, finding.figures) if isinstance(finding, Misfit) else ((), {})
    plainly = {name: asdict(figure) for name, figure in figures.items()}
    places = [numbers[id(one)] for one in of if id(one) in numbers]
    told = {name: getattr(finding, name) for name in ("severity", "code", "message", "value", "advice")}
    return told | {"figures": plainly, "cells": places}


def _limit(cause: Cause, numbers: Mapping[int, int]) -> dict[str, Any]:
    cell = cause.of.cell
    return {
        "phase": cause.phase,
        "bound": cause.bound,
        "distance_to_roof": cause.distance,
        "distance_to_fitted_roof": cause.fitted_distance,
        "rivals": list(cause.rivals),
        "sentence": sentence(cause),
        "cell": numbers[id(cause.of)],
        "isl": cell.prompt_tokens,
        "osl": cell.output_tokens,
        "load": cell.load,
        "load_kind": cell.load_kind,
        "label": cell.label,
        "measured_s": cause.measured_s,
        "fit_s": cause.fit_s,
        "roof_s": cause.roof_s,
        "fitted_roof_s": cause.fitted_roof_s,
        "passes_s": cause.passes_s,
        "bound_share": cause.bound_share,
        "formulas": FORMULAS,
        "roof_inputs": dict(cause.roof_inputs),
        "batch": cause.batch,
        "work": asdict(cause.work),
        "parts": [asdict(part) for part in cause.parts],
    }  # fmt: skip


def _remedy(remedy: Remedy, numbers: Mapping[int, int]) -> dict[str, Any]:
    cell = remedy.of.cell
    rate = remedy.metric == "output_tokens_per_s"
    return _without(asdict(remedy), "of", "change") | {
        "cell": numbers[id(remedy.of)],
        "isl": cell.prompt_tokens,
        "osl": cell.output_tokens,
        "load": cell.load,
        "load_kind": cell.load_kind,
        "label": cell.label,
        "formula": "gain = after / before - 1" if rate else "gain = 1 - after / before",
        "change": {name: {"from": a, "to": b} for name, (a, b) in remedy.change.items()},
    }


def _cell(one: FitCell) -> dict[str, Any]:
    cell = one.cell
    return {
        "isl": cell.prompt_tokens,
        "osl": cell.output_tokens,
        "load": cell.load,
        "load_kind": cell.load_kind,
        "label": cell.label,
        "where": cell.where,
        "ttft_s": cell.ttft_s,
        "itl_s": cell.itl_s,
        **_without(asdict(one), "cell"),
        "protocol": asdict(cell.protocol),
        "evidence": dict(cell.evidence),
    }


def _errors(of: Errors | None) -> dict[str, Any] | None:
    return None if of is None else asdict(of)


def _without(of: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in of.items() if name not in names}


def plain(value: Any) -> Any:
    """The same with what JSON has no word for (nan, inf) as null, and tuples as lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.item() if hasattr(value, "item") else value
