"""How numbers are written: digits, units, intervals; missing is n/a and never 0."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis import numbers


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.043123, 4, "0.04312"),
        (1234.5, 4, "1,234"),
        (1235.5, 4, "1,236"),
        (9.9996, 4, "10.00"),
        (99_999.0, 3, "100,000"),
        (-1.5, 2, "-1.5"),
        (0.0, 4, "0"),
        (None, 4, "n/a"),
        (math.nan, 4, "n/a"),
        (math.inf, 4, "n/a"),
    ],
)
def test_significant(value: float | None, digits: int, text: str) -> None:
    assert numbers.significant(value, digits) == text


@given(st.floats(1e-6, 1e12), st.integers(1, 6))
def test_significant_is_off_by_less_than_half_a_digit(value: float, digits: int) -> None:
    read_back = float(numbers.significant(value, digits).replace(",", ""))
    assert read_back == pytest.approx(value, rel=0.5001 * 10 ** (1 - digits), abs=0.5001)
    assert "e" not in numbers.significant(value, digits)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0431, "s", "43.1 ms"),
        (0.000_043_1, "s", "43.1 µs"),
        (6.604, "s", "6.60 s"),
        (0.62, "1", "62.0 %"),
        (4848.0, "tokens/s", "4,850 tokens/s"),
        (9.89e14, "FLOP/s", "989 TFLOP/s"),
        (None, "s", "n/a"),
    ],
)
def test_quantity(value: float | None, unit: str, text: str) -> None:
    assert numbers.quantity(value, unit) == text


def test_a_column_has_the_unit_of_its_median() -> None:
    assert numbers.scale_for("s", [0.005, 0.006, None, 4.0]) == (1e3, "ms")
    assert numbers.scale_for("s", [math.nan, None]) == (1e6, "µs")
    assert numbers.scale_for("tokens/s", [1.0]) == (1.0, "tokens/s")


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.0, 2.0, "1.000 – 2.000"),
        (1.0, None, "≥ 1.000"),
        (None, 2.0, "≤ 2.000"),
        (None, None, ""),
        (0.0, None, ""),
        (1.0, 1.0, ""),
    ],
)
def test_interval(low: float | None, high: float | None, text: str) -> None:
    assert numbers.interval(low, high) == text


@pytest.mark.parametrize(("share", "text"), [(0.931, "93 %"), (0.0042, "0.4 %"), (0.0, "0 %"), (None, "n/a")])
def test_percent(share: float | None, text: str) -> None:
    assert numbers.percent(share) == text
