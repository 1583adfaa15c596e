"""The experiment for a fit: what it holds, its order, and what it learns of a server's speed as it goes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadgen.plan.profile import GUESS, Cost, design, learned, seconds, tokens


def parts(seed: int = 0, cost: Cost = GUESS):  # type: ignore[no-untyped-def]
    return design(np.random.default_rng(seed), cost)


def test_every_part_of_the_experiment_is_there() -> None:
    by_purpose: dict[str, list[tuple[float, float]]] = {}
    for part in parts():
        spec = part.spec
        by_purpose.setdefault(part.purpose, []).append((spec.load.value, spec.mix[0][0].prompt_tokens.mean()))
        assert spec.held_out == (part.purpose == "held out")
        assert spec.requests is not None
        assert spec.requests >= (4 if spec.load.value == 1 else max(30, 3 * spec.load.value))
    assert {users for users, _ in by_purpose["prompt length"]} == {1}
    assert max(prompt for _, prompt in by_purpose["prompt length"]) > 100_000
    assert {3, 12, 33, 129, 257} <= {users for users, _ in by_purpose["concurrency"]}
    assert len({prompt for _, prompt in by_purpose["long prompts"]}) == 2
    assert len(by_purpose["held out"]) == 3


def test_stages_are_numbered_in_their_order_cheapest_first_with_names_of_their_own() -> None:
    made = [part.spec for part in parts()]
    assert [spec.stage for spec in made] == list(range(len(made)))
    assert [seconds(spec, GUESS) for spec in made] == sorted(seconds(spec, GUESS) for spec in made)
    assert len({spec.name for spec in made}) == len(made)


def test_held_out_cells_are_drawn_by_the_seed_and_lie_inside_the_grid() -> None:
    def held(seed: int) -> list[str]:
        return [part.spec.name for part in parts(seed) if part.spec.held_out]

    assert held(1) == held(1) != held(2)
    for seed in range(20):
        for part in parts(seed):
            if part.spec.held_out:
                assert 2 <= part.spec.load.value <= 128
                assert 128 <= part.spec.mix[0][0].prompt_tokens.mean() <= 8192


def test_times_are_learned_from_the_stages_that_are_done() -> None:
    real = Cost(prompt_s=90e-6, step_s=20e-3, user_s=3e-4)
    specs = [part.spec for part in parts()]
    assert learned([], specs[0]) is None
    done = [(spec, seconds(spec, real)) for spec in specs[:12]]
    for spec in specs[12:]:
        assert learned(done, spec) == pytest.approx(seconds(spec, real), rel=0.01)
    same = learned(done[:1], specs[0])
    assert same == pytest.approx(done[0][1])


def test_a_stage_without_a_measured_time_teaches_nothing() -> None:
    spec = parts()[0].spec
    assert learned([(spec, 0.0)], spec) is None
    assert tokens(replace(spec)) > 32 + 16
