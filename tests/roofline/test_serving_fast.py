"""The compiled simulator gives every request of a random load the times that `Engine` gives it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.passes import Deployment, Efficiency, StepLaw, step_law
from loadgen.roofline.precision import Dtypes
from loadgen.roofline.serving import EngineConfig, ServingRequest
from loadgen.roofline.serving_fast import Served, simulate_closed, simulate_open
from tests.roofline.driving import Seen, drive

EFFICIENCY = Efficiency(mfu=0.5, mbu=0.7, sharpness=3.0, step_s=1e-3, sequence_s=1e-5, padding=True, eager_s=1e-3)


def law_of(name: str, gpus: int) -> StepLaw:
    return step_law(Deployment(catalog.gpu("h100"), gpus, catalog.shape(name), Dtypes()), EFFICIENCY)


LAWS = [law_of("llama-3.1-8b", 1), law_of("gpt-oss-20b", 2), law_of("llama-4-scout", 8), law_of("deepseek-v3", 8)]
LAWS += [LAWS[0]._replace(overlap=1.0), LAWS[2]._replace(window_tokens=40.0)]  # Llama 4 has windows in chunks
configs = st.builds(
    EngineConfig,
    law=st.sampled_from(LAWS),
    token_budget=st.integers(4, 300),
    chunked=st.booleans(),
    prompts_per_step=st.sampled_from([None, None, 1, 2]),
    late_tokens=st.booleans(),
    max_sequences=st.integers(1, 12),
    kv_tokens=st.one_of(st.none(), st.integers(260, 700)),
    block_tokens=st.sampled_from([1, 4, 16]),
    draft_tokens=st.integers(0, 3),
    acceptance=st.sampled_from([0.0, 1.0]),  # anything between is drawn, and drawn differently
    draft_token_s=st.sampled_from([0.0, 1e-4]),
    request_s=st.sampled_from([0.0, 2e-3]),
    prompt_token_s=st.sampled_from([0.0, 1e-4]),
)
loads = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=30)


def assert_same(seen: Seen, served: Served) -> None:
    n = served.prompt_tokens.size
    for i in range(n):
        assert served.sent_s[i] == pytest.approx(seen.sent[i], rel=1e-9, abs=1e-12)
        assert served.first_s[i] == pytest.approx(seen.first(i), rel=1e-9)
        assert served.last_s[i] == pytest.approx(seen.last(i), rel=1e-9)
        assert served.max_gap_s[i] == pytest.approx(seen.max_gap(i), rel=1e-6, nan_ok=True)
    assert served.steps == len(seen.steps)
    assert served.preemptions == sum(len(step.preempted) for _, step in seen.steps)


@given(
    config=configs,
    load=loads,
    users=st.integers(1, 15),
    stagger=st.sampled_from([0.0, 0.05, 2.0]),
    turnaround=st.sampled_from([0.0, 5e-4, 0.1]),
)
def test_closed_loop(
    config: EngineConfig, load: list[tuple[int, int, int]], users: int, stagger: float, turnaround: float
) -> None:
    prompts, outputs, cached = (np.array(column) for column in zip(*load, strict=True))
    wanted = [ServingRequest(i, p, o, prefilled_tokens=c) for i, (p, o, c) in enumerate(load)]
    more = {"stagger_s": stagger, "turnaround_s": turnaround}
    served = simulate_closed(config, users, prompts, outputs, cached_tokens=cached, **more)
    assert_same(drive(config, wanted, concurrency=users, stagger=stagger, turnaround=turnaround), served)


@given(config=configs, load=loads, gap=st.sampled_from([1e-3, 2e-2, 0.3]), seed=st.integers(0, 9))
def test_open_loop(config: EngineConfig, load: list[tuple[int, int, int]], gap: float, seed: int) -> None:
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(gap, len(load)))
    prompts, outputs, cached = (np.array(column) for column in zip(*load, strict=True))
    wanted = [ServingRequest(i, p, o, prefilled_tokens=c) for i, (p, o, c) in enumerate(load)]
    served = simulate_open(config, arrivals, prompts, outputs, cached_tokens=cached)
    assert_same(drive(config, wanted, arrivals=arrivals.tolist()), served)


def test_drafts_are_accepted_at_the_rate_that_was_asked() -> None:
    config = EngineConfig(LAWS[0], draft_tokens=3, acceptance=0.7)
    served = simulate_closed(config, 1, [100], [20_000])
    per_step = (20_000 - 1) / (served.steps - 1)
    assert per_step == pytest.approx(1 + 0.7 + 0.49 + 0.343, rel=0.03)
    again = simulate_closed(config, 1, [100], [20_000])
    other = simulate_closed(config, 1, [100], [20_000], seed=1)
    assert served.last_s == again.last_s
    assert served.last_s != other.last_s


def test_a_staggered_start_spreads_the_first_requests() -> None:
    served = simulate_closed(EngineConfig(LAWS[0]), 4, np.full(8, 10), 10, stagger_s=2.0)
    assert served.sent_s[:4] == pytest.approx([0.0, 0.5, 1.0, 1.5])


def test_an_hour_and_a_sweep_conserve_their_requests() -> None:
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(1 / 5, 18_000))
    served = simulate_open(EngineConfig(LAWS[0]), arrivals, rng.integers(1, 2000, 18_000), rng.integers(1, 400, 18_000))
    assert np.all(np.isfinite(served.last_s))
    assert np.all(served.first_s > served.sent_s)
    assert np.all(np.diff(served.sent_s) >= 0)


def test_impossible_loads_are_refused() -> None:
    config = replace(EngineConfig(LAWS[0]), kv_tokens=160)
    for prompts, outputs in (([161], [1]), ([0], [1]), ([1], [0])):
        with pytest.raises(UsageError):
            simulate_closed(config, 1, prompts, outputs)
    with pytest.raises(UsageError, match="ascending"):
        simulate_open(config, [1.0, 0.5], [1, 1], 1)
