"""Lengths: spelling, seeded laws, ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.plan.lengths import parse_length, table, tie

_U = np.random.default_rng(11).random(200_000)


@pytest.mark.parametrize(
    ("text", "mean", "deviation"),
    [
        ("2000", 2000, 0),
        ("2_000", 2000, 0),
        ("uniform:100..500", 300, np.sqrt((401**2 - 1) / 12)),  # discrete uniform on 401 values
        ("normal:2000±200", 2000, 200),
        ("normal:2000+-200", 2000, 200),
        ("lognormal: 2000 ± 800", 2000, 800),
        ("lognormal:300+/-300", 300, 300),
    ],
)
def test_mean_and_deviation_are_those_asked_for(text: str, mean: float, deviation: float) -> None:
    values = parse_length(text).at(_U)
    assert values.dtype == np.int64
    assert values.mean() == pytest.approx(mean, rel=0.01)
    assert values.std() == pytest.approx(deviation, rel=0.02, abs=1e-9)
    assert parse_length(text).mean() == pytest.approx(values.mean(), rel=0.01)


def test_uniform_reaches_both_ends_equally_often() -> None:
    values, counts = np.unique(parse_length("uniform:3..6").at(_U), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    assert counts == pytest.approx(len(_U) / 4, rel=0.02)


def test_zipf_frequencies_follow_the_exponent() -> None:
    values = parse_length("zipf:1.5,1..1000").at(_U)
    ones, eights = (values == 1).sum(), (values == 8).sum()
    assert ones / eights == pytest.approx(8**1.5, rel=0.1)
    assert values.min() == 1
    assert values.max() <= 1000


def test_clips_hold_and_nothing_goes_below_one_token() -> None:
    clipped = parse_length("normal:1000±900,200..1500").at(_U)
    assert (clipped.min(), clipped.max()) == (200, 1500)
    assert parse_length("normal:10±50").at(_U).min() == 1


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_a_length_grows_with_its_quantile(a: float, b: float) -> None:
    low, high = sorted((a, b))
    for text in ("uniform:1..50", "normal:50±20", "lognormal:50±80", "zipf:1.1,2..90"):
        one, other = parse_length(text).at(np.array([low, high]))
        assert one <= other


@pytest.mark.parametrize(
    "text",
    ["", "0", "-3", "2.5", "abc", "uniform:5", "uniform:5..2", "uniform:0..5", "normal:5", "normal:0±1", "gauss:1±1",
     "lognormal:5±1,", "lognormal:5±1,9..2", "zipf:1..5", "zipf:x,1..5", "1e99", "nan", "999999999999", "uniform:",
     "zipf:1,1..99999999"],
)  # fmt: skip
def test_what_is_no_length_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as bad:
        parse_length(text)
    assert "\n" not in str(bad.value)
    assert repr(text) in str(bad.value)


def test_tied_lengths_have_the_correlation_and_keep_their_law() -> None:
    other = np.random.default_rng(12).random(len(_U))
    for wanted in (-0.8, 0.0, 0.5, 1.0):
        tied = tie(_U, other, wanted)
        # Spearman's rank correlation under a Gaussian copula: 6/pi asin(r/2)
        assert np.corrcoef(_U, tied)[0, 1] == pytest.approx(6 / np.pi * np.arcsin(wanted / 2), abs=0.01)
        assert np.histogram(tied, 10, (0, 1))[0] == pytest.approx(len(_U) / 10, rel=0.05)
        assert tied.max() < 1


def test_a_table_draws_its_rows_equally_often() -> None:
    values, counts = np.unique(table("t", (5, 7, 7, 100)).at(_U), return_counts=True)
    assert values.tolist() == [5, 7, 100]
    assert counts / len(_U) == pytest.approx([0.25, 0.5, 0.25], abs=0.01)
