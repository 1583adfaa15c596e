"""The language of `--fault`, and that faults strike as often as asked, the same way for a seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.simulator.faults import KINDS, Fault, FaultRate, Faults, parse_faults


def test_kinds_spans_and_rates_are_read() -> None:
    assert parse_faults("429:0.01, stall:250ms:0.05,slow_headers:0.2,").rates == (
        FaultRate("429", 0.01),
        FaultRate("stall", 0.05, 0.25),
        FaultRate("slow_headers", 0.2, 0.5),
    )
    assert parse_faults("slow_headers:1s").rates == (FaultRate("slow_headers", 1.0, 1.0),)


def test_every_kind_can_stand_alone() -> None:
    for kind, (_, span_s) in KINDS.items():
        assert parse_faults(kind).rates == (FaultRate(kind, 1.0, span_s or 0.0),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense:0.1", "unknown fault"),
        ("429:2", "rate from 0 to 1"),
        ("429:-0.1", "rate from 0 to 1"),
        ("429:nan", "rate from 0 to 1"),
        ("429:x", "rate from 0 to 1"),
        ("429:0.1:0.2", "rate from 0 to 1"),
        ("429:20ms:0.1", "takes no duration"),
        ("429:0.6,503:0.6", "add up"),
    ],
)
def test_mistakes_are_named(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_faults(text)


def test_faults_strike_as_often_as_asked() -> None:
    faults, rng = parse_faults("429:0.1,truncate:0.2"), np.random.default_rng(3)
    drawn = [fault.kind if (fault := faults.draw(rng)) else None for _ in range(20_000)]
    for kind, rate in (("429", 0.1), ("truncate", 0.2), (None, 0.7)):
        assert abs(drawn.count(kind) / len(drawn) - rate) < 5 * (rate * (1 - rate) / len(drawn)) ** 0.5


def test_the_seed_decides() -> None:
    faults = parse_faults("429:0.3,reset:0.3")
    many = [[faults.draw(rng) for _ in range(50)] for rng in map(np.random.default_rng, (1, 1, 2))]
    assert many[0] == many[1] != many[2]


def test_without_rates_nothing_is_drawn() -> None:
    assert Faults().draw(np.random.default_rng(0)) is None


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 500))
def test_a_fault_strikes_before_the_last_token_and_after_the_first_where_it_can(place: float, tokens: int) -> None:
    at = Fault("truncate", place).at(tokens)
    assert min(1, tokens - 1) <= at <= tokens - 1
