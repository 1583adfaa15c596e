"""Durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.plan.units import duration_ns, format_duration


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("500ms", 500_000_000),
        ("60s", 60_000_000_000),
        ("5m", 300_000_000_000),
        ("1.5m", 90_000_000_000),
        (" 2 h ", 7_200_000_000_000),
        ("1h30m", 5_400_000_000_000),
        ("0.1us", 100),
        (".5s", 500_000_000),
        ("0", 0),
        ("0s", 0),
        ("0.3ms", 300_000),  # decimal, not 299,999
    ],
)
def test_durations_are_read_exactly(text: str, ns: int) -> None:
    assert duration_ns(text) == ns


@pytest.mark.parametrize(
    "text", ["", "5", "-5s", "5 parsecs", "s", "1e3s", "5s!", "5ss", "nan s", "1,5s", "999999999d"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        duration_ns(text)


@given(st.integers(0, 10**16))
def test_a_duration_survives_being_written_and_read(ns: int) -> None:
    assert duration_ns(format_duration(ns)) == ns
