"""What the engine leaves over, and how much of it can be learnt: a smooth surface through the residuals.

Knows: residuals of some cells, and that those of their neighbours may be alike. Must not know: engines or parameters.
Why: an engine has effects that no law of thirty numbers holds - a slower all-reduce from some size on, a padded batch.
They are smooth over neighbouring cells, so the best prediction of a cell among measured ones is the engine's times what
its neighbours had over. It is only for such predictions: explanations and other GPUs are the engine's alone.

The surface is a Gaussian process over log prompt, log output and log load with mean 0 - far from all cells it says
nothing. How long its lengths are and how much of the residuals is noise is not known, and few cells cannot tell: it is
the mean over all choices, noise alone among them, each weighted by how likely it makes the training residuals. The
likeliest choice alone is too sure of itself where cells are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from loadgen.roofline.cells import Cell
from loadgen.roofline.fit_baselines import coordinates
from loadgen.roofline.serving_kernel import Floats, Ints

LENGTHS = (0.8, 2.0, 5.0)  # over which residuals are alike, in natural logarithms: a factor of 2.2, 7, 150
SIGNAL = (1.0, 4.0, 16.0)  # variance of the surface / variance of the noise
FEWEST = 5  # cells, below which nothing is learnt


def leftover(cells: Sequence[Cell], residuals: Floats, train: Ints, test: Ints) -> Floats:
    """Factors (cell, [TTFT, ITL]) on the engine's times for the test cells; 1 where nothing can be learnt.

    Args:
        cells: all cells.
        residuals: log(engine / measured) of all cells; only those of `train` are looked at. nan: not to be used.
        train: indices of the cells to learn from.
        test: indices of the cells to predict.
    """
    where = coordinates(cells)
    out = np.zeros((len(test), 2))
    for label in dict.fromkeys(cells[i].label for i in test):
        asked = np.array([k for k, i in enumerate(test) if cells[i].label == label])
        for column in range(2):
            known = np.array([i for i in train if cells[i].label == label and np.isfinite(residuals[i, column])], int)
            if len(known) >= FEWEST:
                out[asked, column] = _surface(where[known], -residuals[known, column], where[test[asked]])
    factors: Floats = np.exp(out)
    return factors


def _surface(known: Floats, values: Floats, asked: Floats) -> Floats:
    """The mean of the surfaces through noisy values, by their likelihood, at the places asked."""
    axes = np.flatnonzero(np.ptp(known, axis=0) > 1e-9)
    likely, found = [_likelihood(np.eye(len(known)), values)], [np.zeros(len(asked))]
    for lengths in product(LENGTHS, repeat=axes.size):
        near = _alike(known[:, axes], known[:, axes], np.array(lengths))
        across = _alike(asked[:, axes], known[:, axes], np.array(lengths))
        for signal in SIGNAL:
            covariance = signal * near + np.eye(len(known))
            likely.append(_likelihood(covariance, values))
            found.append(signal * across @ np.linalg.solve(covariance, values))
    weights = np.exp(np.array(likely) - max(likely))
    surface: Floats = weights @ np.array(found) / np.sum(weights)
    return surface


def _alike(a: Floats, b: Floats, lengths: Floats) -> Floats:
    distance = np.sum(((a[:, None, :] - b[None, :, :]) / lengths) ** 2, axis=2)
    alike: Floats = np.exp(-distance / 2)
    return alike


def _likelihood(covariance: Floats, values: Floats) -> float:
    """Log likelihood of the values, their common scale at its best, up to a constant."""
    count = len(values)
    _, volume = np.linalg.slogdet(covariance)
    scale = float(values @ np.linalg.solve(covariance, values)) / count
    return -0.5 * float(count * np.log(max(scale, 1e-12)) + volume)
