"""Residuals that neighbours share are learnt; noise is not, and neither is anything outside of the training cells."""

from __future__ import annotations

import numpy as np

from loadgen.roofline.cells import Cell
from loadgen.roofline.fit_leftover import leftover

CELLS = [Cell(p, 128, "concurrency", c, 1.0, 1.0) for p in (512, 1024, 2048, 4096) for c in (1, 2, 4, 8, 16, 32)]
EVERY = np.arange(len(CELLS))
TEST = EVERY[1::2]
TRAIN = EVERY[::2]


def test_what_neighbours_have_over_is_taken_back_for_the_metric_that_has_it() -> None:
    noise = 0.01 * np.random.default_rng(0).standard_normal((len(CELLS), 2))
    bias = np.array([0.3 * np.log2(one.load) / 5 for one in CELLS])
    residuals = noise + np.stack([bias, np.zeros(len(CELLS))], axis=1)
    factors = leftover(CELLS, residuals, TRAIN, TEST)
    left = np.abs(np.log(factors[:, 0]) + bias[TEST])
    assert np.median(left) < 0.03 < 0.1 < np.median(np.abs(bias[TEST]))
    assert np.max(np.abs(np.log(factors[:, 1]))) < 0.01  # noise alone: less than the noise itself
    residuals[TEST] = 9.0  # the cells to predict are not looked at
    assert np.array_equal(leftover(CELLS, residuals, TRAIN, TEST), factors)


def test_cells_that_are_not_to_be_used_and_too_few_cells_change_nothing() -> None:
    residuals = np.full((len(CELLS), 2), np.nan)
    assert np.all(leftover(CELLS, residuals, TRAIN, TEST) == 1.0)
    residuals[TRAIN[:4]] = 0.5
    assert np.all(leftover(CELLS, residuals, TRAIN, TEST) == 1.0)
