"""Replicas and pools: one replica is the engine itself, work is shared out, and nothing is lost on the way."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.roofline.fleet import Fleet
from loadgen.roofline.kvpool import KvPool
from loadgen.roofline.passes import constants_law
from loadgen.roofline.serving import EngineConfig, ServingRequest
from tests.roofline.driving import drive

CONFIG = EngineConfig(constants_law(1e-5, 5e-3, 5e-5))


def run_fleet(fleet: Fleet, arrivals: list[float], load: list[ServingRequest]) -> dict[int, list[tuple[float, int]]]:
    events: dict[int, list[tuple[float, int]]] = {}
    due = list(zip(arrivals, load, strict=True))
    finished: list[int] = []
    while due or fleet.has_work:
        now = min(fleet.due_s, due[0][0] if due else math.inf)
        for when, step in fleet.advance(now):
            for i, tokens in step.tokens:
                events.setdefault(i, []).append((when, tokens))
            finished += step.finished
        while due and due[0][0] <= now:
            fleet.submit(due[0][1], due.pop(0)[0])
    assert sorted(finished) == sorted(request.request_id for request in load)
    return events


loads = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 30)), min_size=1, max_size=30)


@given(load=loads, seed=st.integers(0, 9), overhead=st.sampled_from([0.0, 1e-5]))
def test_a_fleet_of_one_is_the_engine(load: list[tuple[int, int]], seed: int, overhead: float) -> None:
    config = replace(CONFIG, prompt_token_s=overhead, max_sequences=4)
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(0.01, len(load))).tolist()
    wanted = [ServingRequest(i, p, o) for i, (p, o) in enumerate(load)]
    events = run_fleet(Fleet(config), arrivals, wanted)
    alone = drive(config, wanted, arrivals=arrivals).events
    assert events.keys() == alone.keys()
    for i, entries in events.items():
        assert [when for when, _ in entries] == pytest.approx([when for when, _ in alone[i]], rel=1e-9)


@given(
    load=loads,
    seed=st.integers(0, 9),
    replicas=st.integers(1, 4),
    prefills=st.integers(0, 3),
    router=st.sampled_from(["round_robin", "least_loaded"]),
)
def test_every_token_arrives_once_whatever_the_pools(
    load: list[tuple[int, int]], seed: int, replicas: int, prefills: int, router: str
) -> None:
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(0.01, len(load))).tolist()
    pool = CONFIG if prefills else None
    fleet = Fleet(
        CONFIG, replicas, router=router, prefill=pool, prefill_replicas=max(1, prefills), transfer_token_s=1e-6
    )
    wanted = [ServingRequest(i, p, o) for i, (p, o) in enumerate(load)]
    events = run_fleet(fleet, arrivals, wanted)
    for i, (_, output) in enumerate(load):
        assert sum(tokens for _, tokens in events[i]) == output
        assert all(a < b for (a, _), (b, _) in zip(events[i], events[i][1:], strict=False))
    assert all(engine.pool.used == 0 for engine in fleet.engines)


def test_two_pools_keep_prompts_out_of_the_way_of_decodes() -> None:
    """One stream, then a long prompt: together the prompt stalls it, apart it does not; the transfer is a gap."""
    load, arrivals = [ServingRequest(0, 100, 200), ServingRequest(1, 8000, 10)], [0.0, 0.3]
    together = run_fleet(Fleet(replace(CONFIG, chunked=False)), arrivals, load)
    apart = run_fleet(Fleet(CONFIG, prefill=CONFIG, transfer_token_s=1e-5), arrivals, load)

    def worst(entries: list[tuple[float, int]]) -> float:
        return float(max(np.diff([when for when, _ in entries])))

    assert worst(together[0]) > 0.08
    assert worst(apart[0][1:]) < 0.01
    assert apart[1][1][0] - apart[1][0][0] >= 8000 * 1e-5


def test_the_least_loaded_router_evens_out_what_round_robin_does_not() -> None:
    load = [ServingRequest(i, 10, 400 if i % 2 == 0 else 2) for i in range(64)]
    arrivals = [0.2 * i for i in range(64)]  # the long ones: too many for one replica, not for two
    config = replace(CONFIG, max_sequences=4)
    ends = {
        router: max(entries[-1][0] for entries in run_fleet(Fleet(config, 2, router=router), arrivals, load).values())
        for router in ("round_robin", "least_loaded")
    }
    assert ends["least_loaded"] < ends["round_robin"] - 1.0


def test_a_cancelled_request_is_forgotten_in_both_pools() -> None:
    fleet = Fleet(CONFIG, prefill=CONFIG, transfer_token_s=1e-3)
    for i in range(3):
        fleet.submit(ServingRequest(i, 100, 5), 0.0)
    list(fleet.advance(fleet.due_s))
    fleet.cancel(1)
    heard: set[int] = set()
    while fleet.has_work:
        heard |= {i for _, step in fleet.advance(fleet.due_s) for i, _ in step.tokens}
    assert 1 not in heard


def test_a_fleet_that_cannot_be_is_refused() -> None:
    for bad in ({"router": "random"}, {"replicas": 0}):
        with pytest.raises(UsageError):
            Fleet(CONFIG, **bad)  # type: ignore[arg-type]


def test_the_pool_forgets_the_tail_of_a_prefix_first() -> None:
    pool = KvPool(3)
    assert pool.reserve(3)
    assert all(pool.publish(name) for name in "abc")
    pool.drop("abc")
    assert (pool.used, pool.cached) == (0, 3)
    assert pool.reserve(1)
    assert pool.hits("abc", 3) == 2
    assert not pool.reserve(3)
    pool.acquire("ab")
    assert pool.available == 0
