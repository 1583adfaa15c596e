"""What a fit has to beat: interpolation and plain regression on the same cells.

Knows: nothing but the cells' lengths, loads and times. Must not know: engines, GPUs or parameters.
Why: a model that loses to drawing a line between the neighbours explains nothing, and the tool must say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from loadgen.roofline.cells import Cell
from loadgen.roofline.serving_kernel import Floats, Ints

NEIGHBOURS = 3  # of its label, for a cell outside of what interpolation can span


def coordinates(cells: Sequence[Cell]) -> Floats:
    """log(prompt, output, load), one row per cell."""
    out: Floats = np.log(np.array([[one.prompt_tokens, one.output_tokens, one.load] for one in cells], float))
    return out


def interpolation(cells: Sequence[Cell], measured: Floats, train: Ints, test: Ints) -> Floats:
    """Log-log interpolation per label: linear where the cell lies between measured ones, the nearest ones else."""
    return _by_label(cells, measured, train, test, _interpolated)


def regression(cells: Sequence[Cell], measured: Floats, train: Ints, test: Ints) -> Floats:
    """Least squares per label: log time against the logarithms of the lengths and the load, and their squares."""
    return _by_label(cells, measured, train, test, _regressed)


BASELINES: dict[str, Callable[[Sequence[Cell], Floats, Ints, Ints], Floats]] = {
    "interpolation": interpolation,
    "regression": regression,
}


def _by_label(
    cells: Sequence[Cell],
    measured: Floats,
    train: Ints,
    test: Ints,
    predict: Callable[[Floats, Floats, Floats], Floats],
) -> Floats:
    where = coordinates(cells)
    out = np.full((len(test), 2), np.nan)
    for label in dict.fromkeys(cells[i].label for i in test):
        asked = np.array([k for k, i in enumerate(test) if cells[i].label == label])
        for column in range(2):
            known = np.array([i for i in train if cells[i].label == label and measured[i, column] > 0], int)
            if known.size:
                values = predict(where[known], np.log(measured[known, column]), where[test[asked]])
                out[asked, column] = np.exp(values)
    return out


def _varying(known: Floats) -> Ints:
    return np.flatnonzero(np.ptp(known, axis=0) > 1e-9)


def _interpolated(known: Floats, values: Floats, asked: Floats) -> Floats:
    axes = _varying(known)
    spread = known[:, axes].std(axis=0)
    points, places = known[:, axes] / spread, asked[:, axes] / spread
    found = np.full(len(asked), np.nan)
    if axes.size == 1:
        order = np.argsort(points[:, 0])
        inside = (places[:, 0] >= points[:, 0].min()) & (places[:, 0] <= points[:, 0].max())
        found[inside] = np.interp(places[inside, 0], points[order, 0], values[order])
    elif axes.size > 1 and len(known) > axes.size + 1:
        from scipy.interpolate import LinearNDInterpolator
        from scipy.spatial import QhullError

        try:
            found = LinearNDInterpolator(points, values)(places)
        except QhullError:  # all on a plane
            found = np.full(len(asked), np.nan)
    for k in np.flatnonzero(np.isnan(found)):
        distance = np.sum((points - places[k]) ** 2, axis=1) if axes.size else np.zeros(len(known))
        near = np.argsort(distance, kind="stable")[:NEIGHBOURS]
        weight = 1.0 / (distance[near] + 1e-9)
        found[k] = float(np.sum(weight * values[near]) / np.sum(weight))
    return found


def _regressed(known: Floats, values: Floats, asked: Floats) -> Floats:
    axes = _varying(known)

    def columns(where: Floats) -> Floats:
        picked = where[:, axes] - known[:, axes].mean(axis=0)
        parts = [np.ones((len(where), 1)), picked]
        if len(known) >= 2 * (1 + 2 * axes.size):
            parts.append(picked**2)
        return np.hstack(parts)

    found: Floats = columns(asked) @ np.linalg.lstsq(columns(known), values, rcond=None)[0]
    return found
