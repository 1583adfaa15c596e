"""The order of a matrix: drift adds the same to everything that is measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from loadgen.plan.interleave import rounds


@given(some.integers(1, 8), some.integers(0, 9), some.integers(0, 99))
def test_every_round_has_everything_once_and_every_second_runs_backwards(things: int, repeats: int, seed: int) -> None:
    found = rounds(things, repeats, seed)
    assert len(found) == repeats
    assert all(sorted(order) == list(range(things)) for order in found)
    assert all(back == forth[::-1] for forth, back in zip(found[::2], found[1::2], strict=False))
    assert rounds(things, repeats + 3, seed)[:repeats] == found


@pytest.mark.parametrize("repeats", [2, 4])
def test_a_steady_drift_is_no_difference(repeats: int) -> None:
    order = [thing for one in rounds(3, repeats, 5) for thing in one]
    means = [sum(place for place, thing in enumerate(order) if thing == one) / repeats for one in range(3)]
    assert len(set(means)) == 1


def test_pairs_of_rounds_and_seeds_have_orders_of_their_own() -> None:
    assert len({rounds(6, 8, 0)[i] for i in range(0, 8, 2)}) > 1
    assert len({rounds(6, 1, seed)[0] for seed in range(8)}) > 1
