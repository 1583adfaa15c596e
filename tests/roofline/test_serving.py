"""The engine: closed forms at the limits, conservation laws on random loads, and each mechanism's signature."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.passes import LITERATURE, Deployment, constants_law, decode_pass, prefill_pass, step_law
from loadgen.roofline.precision import Dtypes
from loadgen.roofline.predict import predict
from loadgen.roofline.serving import Engine, EngineConfig, ServingRequest, engine_config
from tests.roofline.driving import drive

LAW = step_law(Deployment(catalog.gpu("h100"), 1, catalog.shape("llama-3.1-8b"), Dtypes()), LITERATURE)
PLAIN = EngineConfig(LAW)
SIMPLE = EngineConfig(constants_law(1e-5, 5e-3, 5e-5))


def requests(*pairs: tuple[int, int], **more: object) -> list[ServingRequest]:
    return [ServingRequest(i, prompt, output, **more) for i, (prompt, output) in enumerate(pairs)]  # type: ignore[arg-type]


# --- limits with a closed form ------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize(("prompt", "output"), [(1, 1), (200, 2), (2000, 200), (8000, 50)])
def test_a_request_alone_takes_what_the_page_predicts(prompt: int, output: int, chunked: bool) -> None:
    seen = drive(replace(PLAIN, chunked=chunked), requests((prompt, output)), concurrency=1)
    page = predict(LAW, prompt_tokens=prompt, output_tokens=output)
    assert seen.first(0) == pytest.approx(page.ttft_s, rel=1e-9)
    assert seen.last(0) == pytest.approx(page.e2e_s, rel=1e-6)


def test_a_long_prompt_alone_is_the_sum_of_its_chunks() -> None:
    seen = drive(replace(PLAIN, token_budget=512), requests((2000, 1)), concurrency=1)
    chunks = [(0, 512), (512, 512), (1024, 512), (1536, 464)]
    head = LAW.head_flops / LAW.compute_rate  # only the last chunk samples
    expected = sum(prefill_pass(LAW, tokens, start).time_s for start, tokens in chunks) - 3 * head
    assert seen.first(0) == pytest.approx(expected, rel=1e-9)


def test_a_saturated_batch_decodes_at_the_predicted_rate() -> None:
    """64 users, one-token prompts: after the first step every step is a decode of 64."""
    seen = drive(PLAIN, requests(*[(1, 400)] * 64), concurrency=64)
    rate = 64 * 399 / (seen.end - seen.first(0))
    contexts = np.arange(2, 401)
    mean_step = np.mean([decode_pass(LAW, 64, float(c)).time_s for c in contexts])
    assert rate == pytest.approx(64 / mean_step, rel=1e-9)


def test_request_overhead_is_linear_in_the_prompt() -> None:
    config = replace(SIMPLE, request_s=3e-3, prompt_token_s=2e-6)
    for prompt in (100, 1000):
        seen = drive(config, requests((prompt, 1)), concurrency=1)
        assert seen.first(0) == pytest.approx(3e-3 + 2e-6 * prompt + 1e-5 * prompt)


# --- laws that hold for any load ----------------------------------------------------------------------------------

configs = st.builds(
    EngineConfig,
    law=st.just(SIMPLE.law),
    token_budget=st.integers(4, 300),
    chunked=st.booleans(),
    max_sequences=st.integers(1, 12),
    kv_tokens=st.one_of(st.none(), st.integers(260, 700)),
    block_tokens=st.sampled_from([1, 4, 16]),
    prefix_cache=st.booleans(),
    draft_tokens=st.integers(0, 3),
    acceptance=st.floats(0, 1),
    prompt_token_s=st.sampled_from([0.0, 1e-5]),
)
loads = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 40), st.integers(0, 2)), min_size=1, max_size=25)


@given(config=configs, load=loads, users=st.integers(1, 15))
def test_tokens_and_blocks_are_conserved_and_everybody_is_served(
    config: EngineConfig, load: list[tuple[int, int, int]], users: int
) -> None:
    block = config.block_tokens
    wanted = [
        ServingRequest(i, prompt, output, tuple((group, k) for k in range(prompt // block)))
        for i, (prompt, output, group) in enumerate(load)
    ]
    engine = Engine(config, np.random.default_rng(1))
    seen = drive(config, wanted, concurrency=users, engine=engine)
    for request in wanted:
        assert sum(tokens for _, tokens in seen.events[request.request_id]) == request.output_tokens
    finished = Counter(i for _, step in seen.steps for i in step.finished)
    assert finished == Counter(range(len(load)))
    assert (engine.running, engine.waiting, engine.pool.used, engine.pool.private) == (0, 0, 0, 0)
    admitted = Counter(i for _, step in seen.steps for i, _ in step.admitted)
    preempted = Counter(i for _, step in seen.steps for i in step.preempted)
    assert all(admitted[i] == 1 + preempted[i] for i in range(len(load)))
    assert sum(preempted.values()) == engine.preemptions


@given(config=configs, load=loads)
def test_limits_hold_in_every_step(config: EngineConfig, load: list[tuple[int, int, int]]) -> None:
    engine = Engine(config, np.random.default_rng(1))
    for i, (prompt, output, _) in enumerate(load):
        engine.submit(ServingRequest(i, prompt, output), 0.0)
    now = 0.0
    while engine.has_work:
        step = engine.step(now)
        now += step.duration_s
        assert engine.running <= config.max_sequences
        assert 0 <= engine.pool.used <= engine.pool.blocks
        if config.chunked:
            assert step.prefill_tokens + step.decodes <= config.token_budget
        else:
            assert step.prefill_tokens == 0 or step.decodes == 0


def test_littles_law() -> None:
    """Mean number in the system = arrival rate * mean time in it, exactly, over a run that starts and ends empty."""
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(0.02, 300)).tolist()
    load = requests(
        *[(int(p), int(o)) for p, o in zip(rng.integers(1, 800, 300), rng.integers(1, 60, 300), strict=True)]
    )
    config = replace(PLAIN, max_sequences=8)
    engine, now, area, due = Engine(config), 0.0, 0.0, list(zip(arrivals, load, strict=True))
    done: dict[int, float] = {}
    while due or engine.has_work:
        while due and due[0][0] <= now:
            when, request = due.pop(0)
            engine.submit(request, when)
            area += now - when  # it was in the system while the running step hid it
        if not engine.has_work:
            now = due[0][0]
            continue
        inside = engine.running + engine.waiting
        step = engine.step(now)
        now += step.duration_s
        area += inside * step.duration_s
        done.update(dict.fromkeys(step.finished, now))
    spent = [done[request.request_id] - when for when, request in zip(arrivals, load, strict=True)]
    assert area / now == pytest.approx(len(spent) / now * np.mean(spent), rel=1e-9)


def test_the_same_seed_gives_the_same_run_and_another_seed_does_not() -> None:
    config = replace(PLAIN, draft_tokens=4, acceptance=0.6)
    load = requests(*[(100, 80)] * 10)
    runs = [drive(config, load, concurrency=4, seed=seed).events for seed in (7, 7, 8)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


# --- signatures of the mechanisms ---------------------------------------------------------------------------------


def test_chunked_prefill_bounds_the_stall_and_whole_prompts_do_not() -> None:
    """A 16,000-token prompt arrives while another streams: its gap is one chunk, or the whole prefill."""
    load = requests((100, 300), (16_000, 2))
    chunked = drive(replace(PLAIN, token_budget=1024), load, arrivals=[0.0, 0.5])
    whole = drive(replace(PLAIN, chunked=False, token_budget=1024), load, arrivals=[0.0, 0.5])
    prefill = prefill_pass(LAW, 16_000).time_s
    assert whole.max_gap(0) >= prefill
    assert chunked.max_gap(0) < prefill / 8
    stalls = sum(step.prefill_tokens > 0 and step.decodes > 0 for _, step in chunked.steps)
    assert stalls == 16  # 16,000 tokens at 1,023 beside one decode


def test_beyond_the_sequence_cap_itl_is_flat_and_ttft_grows_linearly() -> None:
    config = replace(SIMPLE, max_sequences=16)
    means = []
    for users in (16, 32, 48, 64):
        seen = drive(config, requests(*[(100, 50)] * (users * 4)), concurrency=users)
        later = range(users * 2, users * 4)
        ttft = np.mean([seen.first(i) - seen.sent[i] for i in later])
        tpot = np.mean([(seen.last(i) - seen.first(i)) / 49 for i in later])
        means.append((ttft, tpot))
    ttfts, tpots = zip(*means, strict=True)
    assert max(tpots) == pytest.approx(min(tpots), rel=0.05)
    growth = np.diff(ttfts)
    assert growth == pytest.approx(np.full(3, growth.mean()), rel=0.1)
    assert growth.mean() == pytest.approx(16 * (ttfts[0] + 49 * tpots[0]) / 16, rel=0.1)  # one service per 16 more


def test_exhausted_memory_preempts_the_youngest_and_recomputes() -> None:
    config = replace(SIMPLE, kv_tokens=320, block_tokens=16)
    seen = drive(config, requests((100, 100), (100, 100)), concurrency=2)
    preempted = [i for _, step in seen.steps for i in step.preempted]
    assert preempted == [1]
    recomputed = sum(step.prefill_tokens for _, step in seen.steps) - 200
    assert recomputed > 100  # the prompt again, and what it had generated
    assert seen.max_gap(1) > 10 * seen.max_gap(0)


def test_memory_that_suffices_is_never_preempted() -> None:
    config = replace(SIMPLE, kv_tokens=416, block_tokens=16)
    assert not any(step.preempted for _, step in drive(config, requests((100, 100), (100, 100)), concurrency=2).steps)


def test_a_cached_prefix_is_not_computed_again() -> None:
    config = replace(PLAIN, prefix_cache=True, kv_tokens=4096)
    hashes = tuple(range(62))
    load = [ServingRequest(0, 1000, 5, hashes), ServingRequest(1, 1000, 5, (*hashes[:31], *range(100, 131)))]
    engine = Engine(config)
    seen = drive(config, load, concurrency=1, engine=engine)
    admitted = dict(entry for _, step in seen.steps for entry in step.admitted)
    assert admitted == {0: 0, 1: 31 * 16}
    assert (engine.prefix_hits, engine.prefix_queries) == (496, 2000)
    assert seen.first(1) - seen.sent[1] < seen.first(0) - seen.sent[0]


def test_a_whole_prompt_in_the_cache_still_computes_its_last_block() -> None:
    config = replace(PLAIN, prefix_cache=True)
    load = [ServingRequest(i, 64, 2, (1, 2, 3, 4)) for i in range(2)]
    seen = drive(config, load, concurrency=1)
    assert [step.prefill_tokens for _, step in seen.steps if step.prefill_tokens] == [64, 16]


def test_the_least_recently_used_prefix_is_forgotten_first() -> None:
    config = replace(SIMPLE, prefix_cache=True, kv_tokens=12 * 16)
    a, b, c = (tuple(f"{name}{k}" for k in range(4)) for name in "abc")
    load = [ServingRequest(i, 64, 1, hashes) for i, hashes in enumerate((a, b, a, c, c, a, b))]
    # capacity 12 blocks holds three prefixes of 4; make a fourth push out the oldest
    load.append(ServingRequest(7, 16 * 8, 1, ()))
    load += [ServingRequest(8, 64, 1, b), ServingRequest(9, 64, 1, c)]
    seen = drive(config, load, concurrency=1)
    admitted = dict(entry for _, step in seen.steps for entry in step.admitted)
    assert [admitted[i] for i in range(7)] == [0, 0, 48, 0, 48, 48, 48]
    assert admitted[8] > 0  # the most recent stays
    assert admitted[9] == 0  # the oldest was pushed out


def test_speculation_groups_tokens_and_speeds_up_as_the_acceptance_says() -> None:
    config = replace(PLAIN, draft_tokens=3, acceptance=0.7)
    seen = drive(config, requests((100, 4000)), concurrency=1, seed=5)
    groups = [tokens for _, tokens in seen.events[0][1:]]
    assert set(groups) == {1, 2, 3, 4}
    assert np.mean(groups) == pytest.approx(1 + 0.7 + 0.49 + 0.343, rel=0.05)
    assert {tokens for _, tokens in drive(PLAIN, requests((100, 50)), concurrency=1).events[0]} == {1}


def test_cancelled_requests_free_their_memory_and_are_never_heard_of_again() -> None:
    engine = Engine(replace(PLAIN, kv_tokens=4096, max_sequences=2))
    for request in requests(*[(200, 50)] * 4):
        engine.submit(request, 0.0)
    now = engine.step(0.0).duration_s
    for i in (0, 2, 99):
        engine.cancel(i)
    heard = set()
    while engine.has_work:
        step = engine.step(now)
        now += step.duration_s
        heard |= {i for i, _ in step.tokens}
    assert heard == {1, 3}
    assert engine.pool.used == 0


def test_what_cannot_be_served_is_refused_at_once() -> None:
    engine = Engine(replace(PLAIN, kv_tokens=160))
    for request in (ServingRequest(0, 161, 1), ServingRequest(0, 0, 1), ServingRequest(0, 1, 0)):
        with pytest.raises(UsageError):
            engine.submit(request, 0.0)
    engine.submit(ServingRequest(0, 160, 1), 0.0)
    with pytest.raises(UsageError, match="served already"):
        engine.submit(ServingRequest(0, 1, 1), 0.0)


def test_the_engine_of_a_deployment_knows_its_memory() -> None:
    where = Deployment(catalog.gpu("h100"), 1, catalog.shape("llama-3.1-8b"), Dtypes())
    assert engine_config(where).kv_tokens == where.kv_capacity_tokens()
    assert engine_config(where, kv_tokens=None, chunked=False).blocks is None
