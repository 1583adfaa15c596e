"""The result of a fit: parameters with their intervals, the knobs, the error, and each cell beside its model.

Knows: names and units of what was estimated. Must not know: how (`fit`), or what follows from it in words (`causes`).
Why: the estimator, the explanations, the report and the JSON meet at this value and at nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from loadgen.model import Finding
from loadgen.roofline.cells import Cell
from loadgen.roofline.figures import Figure
from loadgen.roofline.passes import Deployment
from loadgen.roofline.serving import EngineConfig


@dataclass(frozen=True, slots=True)
class Parameter:
    """One estimated number in SI units; `value` is nan and `low`..`high` a range where it is not identified."""

    name: str
    unit: str
    value: float
    low: float
    high: float
    identified: bool
    settle: str = ""  # what experiment would settle it, where it is not identified or depends on a prior


@dataclass(frozen=True, slots=True)
class FitCell:
    """A measured cell beside the model's value; seconds, nan where not measured. `low`..`high`: 90 % of the model."""

    cell: Cell
    ttft_fit_s: float
    itl_fit_s: float
    ttft_low_s: float = math.nan
    ttft_high_s: float = math.nan
    itl_low_s: float = math.nan
    itl_high_s: float = math.nan
    held_out: bool = False
    outlier: bool = False  # far from a law that the other cells agree on: named, and not averaged in


@dataclass(frozen=True, slots=True)
class Errors:
    """Absolute relative errors: medians and 90th percentiles of TTFT and ITL; nan where no cell has it."""

    ttft: float
    itl: float
    ttft_p90: float
    itl_p90: float
    n: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another explanation that fits about as well, and the experiment that would decide."""

    name: str  # a stable word: "window", "fp8_kv", "overlap", "prefix_cache" ...
    explanation: str
    decide: str
    loss_ratio: float  # its loss / the best loss
    # The numbers of the explanation, and how far off it is beside the best fit: ttft_error, ttft_error_here ...
    figures: Mapping[str, Figure] = field(default_factory=dict)
    parameters: Mapping[str, float] = field(default_factory=dict)  # all of them, as fitted to it


@dataclass(frozen=True, slots=True)
class Misfit(Finding):
    """A finding of a fit: with the numbers of its message, and the cells that it is about."""

    figures: Mapping[str, Figure] = field(default_factory=dict)
    of: tuple[FitCell, ...] = ()


@dataclass(frozen=True, slots=True)
class Fit:
    """What a set of cells says about one serving engine (the cells may come from several deployments of it).

    engine: for each deployment of the cells (by `Cell.label`), the engine with the best parameters put in.
    draws: plausible engines (bootstrap or posterior), for intervals of anything that is computed from the fit.
    """

    deployment: Deployment | None  # of the first label; None: black-box constants alone
    parameters: tuple[Parameter, ...]
    engine: Mapping[str, EngineConfig]
    draws: Mapping[str, tuple[EngineConfig, ...]]
    cells: tuple[FitCell, ...]
    in_sample: Errors
    held_out: Errors | None
    # On the same held-out cells: "engine_alone" (without what it leaves over), "interpolation", "regression".
    baselines: Mapping[str, Errors] = field(default_factory=dict)
    alternatives: tuple[Alternative, ...] = ()
    findings: tuple[Finding, ...] = ()  # of the estimation itself: bounds hit, refused shape, outlying cells
    refused: str = ""  # why the physics was refused (wrong GPU or shape), with black-box constants in its place
