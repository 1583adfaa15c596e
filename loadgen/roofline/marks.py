"""What a cell beside its model says to the rules that look for misfits: residuals, evidence, trends, names.

Knows: `FitCell` and its cell's evidence, and how a finding is made of a sentence and its figures. Must not know: which
cause leaves which mark (`misfit`, `misfit_run`, `caps`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from loadgen.model import Severity
from loadgen.roofline.cells import Cell
from loadgen.roofline.figures import Figure, named_in, read, told
from loadgen.roofline.fitted import Fit, FitCell, Misfit
from loadgen.roofline.words import count, loads

Floats = npt.NDArray[np.float64]
SEVERAL = 1.05  # tokens per event
SURE = 4.5  # standard errors of a trend
FAR = 0.4  # of |log(measured / fit)|, and FAR_SPREADS times the fit's spread: a cell that follows another law
LONG = 512  # tokens of a prompt that is computed long enough to judge


def name(cell: Cell) -> str:
    """A cell in few words: `2,000 -> 200 tokens at 32 users`."""
    lengths = f"{count(cell.prompt_tokens)} → {count(cell.output_tokens)} tokens at {loads(cell.load_kind, cell.load)}"
    return f"{lengths}, {cell.label}" if cell.label else lengths


def misfit(
    severity: Severity,
    code: str,
    template: str,
    value: float | None,
    advice: str,
    of: Sequence[FitCell] = (),
    **more: Figure | str,
) -> Misfit:
    """A finding whose sentence is made of its figures; `{cells}` is how many it is about, `{cell}` the first of them.

    more: by name what else the template asks for: figures, and words that hold no number but a cell's name.
    """
    figures = {key: one for key, one in more.items() if isinstance(one, Figure)}
    words = {key: one for key, one in more.items() if isinstance(one, str)}
    if of:
        figures["cells"] = read(len(of), "cells", "cells")
        words.setdefault("cell", name(of[0].cell))
    figures = {key: one for key, one in figures.items() if key in named_in(template)}
    return Misfit(severity, code, told(template, figures, **words), value, advice, figures=figures, of=tuple(of))


def first(worst: FitCell, some: Sequence[FitCell]) -> tuple[FitCell, ...]:
    """The cells, the one that is named at their head."""
    return worst, *(one for one in some if one is not worst)


def evidence(cell: Cell, what: str, without: float = math.nan) -> float:
    """A further measurement of the cell; `without` where it has none."""
    return cell.evidence.get(what, without)


def residual(one: FitCell, metric: str) -> float:
    """log(measured / fit); nan where either is missing."""
    measured, fitted = getattr(one.cell, f"{metric}_s"), getattr(one, f"{metric}_fit_s")
    return math.log(measured / fitted) if measured > 0 and fitted > 0 else math.nan


def spread_of(fit: Fit, metric: str) -> tuple[float, float]:
    """(median, standard deviation by the median distance from it) of the residuals; zeros where there are none."""
    values = np.array([residual(one, metric) for one in fit.cells])
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 0.0
    middle = float(np.median(values))
    return middle, 1.4826 * float(np.median(np.abs(values - middle)))


def lowest_loads(fit: Fit) -> list[FitCell]:
    """Cells of each kind of request at its lowest load, where nothing waits."""
    best: dict[tuple[str, float, float], FitCell] = {}
    for one in sorted(fit.cells, key=lambda one: one.cell.load):
        best.setdefault((one.cell.label, one.cell.prompt_tokens, one.cell.output_tokens), one)
    return list(best.values())


def trend(
    x: Floats,
    y: Floats,
    cells: Sequence[FitCell],
    *,
    covariates: bool,
) -> tuple[float, float]:
    """(slope, its standard error) of y over x; (0, inf) with too few cells.

    covariates: load and prompt length are regressed out (in logarithms), so that a law that is off for one of them is
    not taken for a trend.
    """
    good = np.isfinite(x) & np.isfinite(y)
    columns = [np.ones(len(x)), x]
    if covariates:
        columns += [np.log([one.cell.load for one in cells]), np.log([one.cell.prompt_tokens for one in cells])]
    design = np.stack([column[good] for column in columns], axis=1) if len(x) else np.zeros((0, len(columns)))
    free = len(design) - design.shape[1]
    if free < 4 or np.ptp(x[good]) == 0 or np.linalg.matrix_rank(design / np.abs(design).max(axis=0)) < design.shape[1]:
        return 0.0, math.inf
    solution, *_ = np.linalg.lstsq(design, y[good], rcond=None)
    rest = y[good] - design @ solution
    covariance = float(rest @ rest) / free * np.linalg.inv(design.T @ design)
    return float(solution[1]), math.sqrt(max(float(covariance[1, 1]), 1e-18))


def skipped(one: FitCell) -> bool:
    """A TTFT far below the fit's beside an ITL that is not: of a prompt long enough to tell."""
    ttft, itl = residual(one, "ttft"), residual(one, "itl")
    return ttft < -FAR and one.cell.prompt_tokens >= LONG and not itl < -FAR / 2
