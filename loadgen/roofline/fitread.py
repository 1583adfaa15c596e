"""A fit as it was written down, back as an engine: what a plan for other hardware or other loads starts from.

Knows: the names of `fit --format json`. Must not know: files, or how the fit was made.
Why: utilisations that were measured replace those that are assumed. A file that holds the engine's law says everything;
one that holds only the parameters, as another tool may write it, says enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from loadgen.errors import UsageError
from loadgen.roofline.named import Known, Words, deployment
from loadgen.roofline.passes import Deployment, Efficiency, StepLaw, step_law
from loadgen.roofline.serving import EngineConfig, engine_config

# Name in the file -> field of Efficiency. `kv_bandwidth` is bytes/s of one GPU, or a share of its peak.
_EFFICIENCY = {
    "mfu": "mfu",
    "mbu": "mbu",
    "kv_bandwidth": "kv_mbu",
    "kv_mbu": "kv_mbu",
    "attention_mfu": "attention_mfu",
    "sharpness": "sharpness",
    "overhead_s": "step_s",
    "step_s": "step_s",
    "sequence_s": "sequence_s",
}
_ENGINE = {"overhead_per_request_s": "request_s", "request_s": "request_s", "prompt_token_s": "prompt_token_s"}


@dataclass(frozen=True, slots=True)
class Measured:
    """An engine that was fitted, where it ran, and the median errors of its held-out cells (nan: none were)."""

    where: Deployment
    engine: EngineConfig
    ttft_error: float
    itl_error: float


def fitted_engine(found: Mapping[str, Any], source: str, known: Known) -> Measured:
    """The engine of a fit's JSON.

    Args:
        found: the JSON document.
        source: its file, for messages.
        known: what the user says of the fitted deployment where the file does not (a model of his own).

    Raises:
        UsageError: it names no GPU or model, was refused, or lacks the parameters.
    """
    if found.get("refused"):
        raise UsageError(f"the fit was refused: {found['refused']}", where=source, do="a plan needs one that holds")
    where = deployment(_words(found), known)
    if where is None:
        raise UsageError(
            "the fit does not say which GPU and model it is of", where=source, do="fit with --gpu, --shape"
        )
    try:
        engine = _whole(found) or _from_parameters(found.get("parameters") or {}, where)
    except (TypeError, ValueError, AttributeError, KeyError) as bad:
        raise UsageError(
            f"is no fit that can be read: {bad}", where=source, do="write it by fit --format json"
        ) from bad
    held_out = (found.get("error") or {}).get("held_out") or {}
    errors = (held_out.get(name) for name in ("ttft", "itl"))
    return Measured(where, engine, *(math.nan if one is None else float(one) for one in errors))


def _words(found: Mapping[str, Any]) -> Words:
    def text(key: str) -> str:
        return str(found.get(key) or "")

    kinds = found.get("dtypes") or {}
    dtype = text("dtype")
    return Words(
        gpu=text("gpu"),
        gpus=int(found.get("gpus") or 1),
        shape=text("shape"),
        dtype="" if "/" in dtype else dtype,
        **{name: str(kinds.get(name) or "") for name in ("weights", "compute", "kv")},
    )


def _whole(found: Mapping[str, Any]) -> EngineConfig | None:
    """The first engine with its law; null there is what JSON has no word for, the default of every such field."""
    for engine in (found.get("engine") or {}).values():
        law = {name: float(engine["law"][name]) for name in StepLaw._fields if engine["law"].get(name) is not None}
        names = {field.name for field in fields(EngineConfig)} - {"law"}
        return EngineConfig(StepLaw(**law), **{name: value for name, value in engine.items() if name in names})
    return None


def _from_parameters(parameters: Mapping[str, Any], where: Deployment) -> EngineConfig:
    values = {name: _value(one) for name, one in parameters.items() if name in _EFFICIENCY or name in _ENGINE}
    if missing := [name for name in ("mfu", "mbu") if name not in values]:
        raise UsageError(f"the fit has no {missing[0]}", do="a plan needs the parameters mfu and mbu")
    if values.get("kv_bandwidth", 0.0) > 1.0:
        values["kv_bandwidth"] /= where.gpu.bandwidth_bytes_per_s
    shares: dict[str, Any] = {_EFFICIENCY[name]: value for name, value in values.items() if name in _EFFICIENCY}
    efficiency = Efficiency(**shares)
    knobs = {_ENGINE[name]: value for name, value in values.items() if name in _ENGINE}
    step_law(where, efficiency)  # told here, with the file's name, if the GPU has no such rate
    return engine_config(where, efficiency, **knobs)


def _value(parameter: Mapping[str, Any]) -> float:
    """The estimate; of a parameter that is not identified the (geometric) middle of its range."""
    if parameter.get("value") is not None:
        return float(parameter["value"])
    return math.sqrt(float(parameter["low"]) * float(parameter["high"]))
