"""Quantiles and bounds against numpy, tables from the literature, and their promised coverage."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis import stats
from loadgen.analysis.stats import Resampler

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@given(values, st.floats(0.0, 1.0))
def test_quantile_is_numpys_linear_rule(sample: list[float], q: float) -> None:
    assert stats.quantile(sample, q) == pytest.approx(float(np.quantile(sample, q)), rel=1e-9, abs=1e-6)


def test_quantile_of_nothing_is_not_a_number() -> None:
    assert math.isnan(stats.quantile([], 0.5))


@pytest.mark.parametrize(
    ("sample", "q", "expected"),
    [
        ([1.0, 2.0, math.inf], 0.5, 2.0),
        ([1.0, 2.0, math.inf], 0.75, math.inf),
        ([1.0, math.inf, math.inf], 0.9, math.inf),
        ([-math.inf, 1.0, 2.0], 0.25, 1.0),
        ([math.inf], 0.5, math.inf),
    ],
)
def test_infinite_values_rank_and_never_become_nan(sample: list[float], q: float, expected: float) -> None:
    assert stats.quantile(sample, q) == expected


@pytest.mark.parametrize(("q", "n"), [(0.99, 299), (0.95, 59), (0.9, 29), (0.5, 5), (0.01, 299), (0.999, 2995)])
def test_needed_sample_size(q: float, n: int) -> None:
    assert stats.needed(q) == n
    assert stats.order_ranks(n, q, stats.GATE_TAIL) != (0, n + 1)
    if q > 0.5:
        assert stats.order_ranks(n, q, stats.GATE_TAIL)[1] == n
        assert stats.order_ranks(n - 1, q, stats.GATE_TAIL)[1] == n  # one beyond the sample: no bound


def test_order_ranks_of_the_median_of_a_thousand() -> None:
    assert stats.order_ranks(1000, 0.5, 0.025) == (469, 532)  # David and Nagaraja: 500.5 +- 31.5


@given(st.integers(1, 400), st.sampled_from([0.5, 0.9, 0.95, 0.99]), st.sampled_from([0.025, 0.05]))
def test_ranks_keep_their_promise_and_no_tighter_ones_would(n: int, q: float, tail: float) -> None:
    below = [math.comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(n + 1)]
    low, high = stats.order_ranks(n, q, tail)
    assert sum(below[:low]) <= tail + 1e-9  # P(B < low)
    assert sum(below[high:]) <= tail + 1e-9  # P(B >= high)
    assert sum(below[: low + 1]) > tail - 1e-9
    assert sum(below[high - 1 :]) > tail - 1e-9


@pytest.mark.parametrize("q", [0.5, 0.9])
def test_percentile_bounds_cover(q: float) -> None:
    rng = np.random.default_rng(3)
    truth = -math.log(1 - q)
    hits = 0
    for _ in range(400):
        found = stats.percentile_sorted(np.sort(rng.exponential(size=200)), q)
        hits += found.low <= truth <= found.high
    assert hits >= 372  # 93 % of 400: promised 95


@given(values)
def test_bounds_hold_the_point(sample: list[float]) -> None:
    ordered = np.sort(np.array(sample))
    for q in (0.5, 0.9, 0.99):
        found = stats.percentile_sorted(ordered, q)
        assert found.low <= found.value <= found.high
        assert found.supported == (len(sample) >= stats.needed(q))
    middle = stats.mean(ordered)
    assert middle.low <= middle.value <= middle.high


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(0, 10, 0.0, 0.3085), (1, 10, 0.0025, 0.4450), (5, 10, 0.1871, 0.8129), (10, 10, 0.6915, 1.0), (0, 1, 0.0, 0.975)],
)
def test_clopper_pearson_table(hits: int, n: int, low: float, high: float) -> None:
    found = stats.proportion(hits, n)
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_one_sided_bound_of_no_failures() -> None:
    assert stats.proportion(0, 2995, stats.GATE_TAIL).high == pytest.approx(1 - 0.05 ** (1 / 2995))


def test_nothing_is_not_available_everywhere() -> None:
    for found in (stats.mean(np.zeros(0)), stats.percentile_sorted(np.zeros(0), 0.5), stats.proportion(0, 0)):
        assert math.isnan(found.value)
        assert not found.supported


def test_one_value_has_no_interval_of_its_mean() -> None:
    found = stats.mean(np.array([2.0]))
    assert (found.value, found.low, found.high) == (2.0, -math.inf, math.inf)


@given(st.floats(0.1, 10.0), st.floats(0.0, 0.09), st.floats(0.0, 5.0))
def test_reciprocal_turns_bounds_round(value: float, down: float, up: float) -> None:
    found = stats.reciprocal(stats.Estimate(value, value - down, value + up, 9))
    assert found.low <= found.value <= found.high
    assert found.value == 1.0 / value


def test_reciprocal_of_zero_and_of_an_open_bound() -> None:
    found = stats.reciprocal(stats.Estimate(0.0, -math.inf, math.inf, 1))
    assert (found.value, found.low, found.high) == (math.inf, 0.0, math.inf)


@pytest.mark.parametrize(("phi", "least"), [(0.0, 186), (0.6, 172)])
def test_block_bootstrap_covers_a_correlated_rate(phi: float, least: int) -> None:
    """Autoregressive amounts: of 200 runs at least 93 and 86 %; draws of independent blocks would cover 65 % at 0.6."""
    rng = np.random.default_rng(5)
    hits = 0
    for run in range(200):
        level, series = 0.0, []
        for step in rng.normal(size=stats.MAX_BLOCKS + 50):
            level = phi * level + step
            series.append(10.0 + level)
        amounts = np.array(series[50:])
        found = stats.ratio_of_sums(amounts, np.ones(len(amounts)), Resampler((run,)), n=1000)
        hits += found.low <= 10.0 <= found.high
    assert hits >= least


def test_rate_of_equal_blocks_is_exact() -> None:
    found = stats.ratio_of_sums(np.full(64, 5.0), np.full(64, 2.0), Resampler((0,)), n=320)
    assert (found.value, found.low, found.high) == (2.5, 2.5, 2.5)


def test_a_rate_is_never_negative_and_needs_blocks() -> None:
    one = np.zeros(64)
    one[3] = 1.0
    assert stats.ratio_of_sums(one, np.ones(64), Resampler((0,)), n=1).low >= 0.0
    few = stats.ratio_of_sums(np.ones(3), np.ones(3), Resampler((0,)), n=3)
    assert not few.supported
    assert few.high == math.inf


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(0, 3))
def test_joining_blocks_keeps_the_sum(sums: list[int], doublings: int) -> None:
    joined = stats.join(np.array(sums, dtype=np.float64), 2**doublings)
    assert joined.sum() == sum(sums)


@pytest.mark.parametrize(
    "of",
    [
        lambda tail: stats.percentile_sorted(np.arange(400.0), 0.99, tail),
        lambda tail: stats.mean(np.arange(400.0), tail),
        lambda tail: stats.proportion(3, 400, tail),
        lambda tail: stats.ratio_of_sums(np.arange(64.0), np.ones(64), stats.Resampler([1]), n=64, tail=tail),
    ],
)
def test_without_bounds_the_value_is_the_same_and_its_bounds_are_not_known(
    of: Callable[[float], stats.Estimate],
) -> None:
    bare, full = of(stats.NO_BOUNDS), of(stats.TABLE_TAIL)
    assert (bare.value, bare.n, bare.supported) == (full.value, full.n, full.supported)
    assert math.isnan(bare.low)
    assert math.isnan(bare.high)
    assert full.low < full.value < full.high
