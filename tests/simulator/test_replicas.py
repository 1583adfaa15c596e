"""Several engines behind one URL: shared work, pools, exact times, and nothing lost over real HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from loadgen.roofline.fleet import Fleet
from loadgen.roofline.serving import ServingRequest
from loadgen.simulator.tokens import count_tokens
from tests.simulator.test_server import CHAT, COMPLETIONS, USAGE, body, serving

PROMPT = "word " * 300


async def many(count: int, tokens: int, **behaviour: Any) -> dict[str, float]:
    """So many requests at once, all of which must be complete; what the endpoint counted."""
    async with serving({"max_sequences": 2}, **behaviour) as client:
        replies = await asyncio.gather(*(client.post(CHAT, body(tokens, **USAGE)) for _ in range(count)))
        counted = await client.metrics()
    assert [reply.events[-1]["usage"]["completion_tokens"] for reply in replies] == [tokens] * count
    return counted


@pytest.mark.parametrize("router", ["round_robin", "least_loaded"])
async def test_replicas_share_the_work(router: str) -> None:
    counted = await many(6, 30, replicas=3, router=router)
    assert counted["vllm:generation_tokens_total"] == 180
    # Two places in each of three batches: nobody waits for a place. With one replica four of six would.
    alone = await many(6, 30)
    share = "vllm:time_to_first_token_seconds_sum"
    if not counted["simulator_schedule_resets_total"] + alone["simulator_schedule_resets_total"]:
        assert counted[share] < 0.5 * alone[share]


async def test_a_prefill_pool_hands_over_and_both_pools_are_counted() -> None:
    counted = await many(6, 30, replicas=2, prefill_replicas=1, transfer_token_s=1e-4)
    assert counted["vllm:generation_tokens_total"] == 180
    assert counted["vllm:time_to_first_token_seconds_count"] == 6
    assert counted["vllm:inter_token_latency_seconds_count"] == 6 * 29


async def test_pools_keep_the_fleets_times() -> None:
    """One request: its first token after the prefill, the second after the transfer and a decode step."""
    async with serving(time_scale=20.0, prefill_replicas=1, transfer_token_s=1e-4) as client:
        await client.post(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 9, "stream": True})
        counted = await client.metrics()
        engine = client.simulator.config.engine
    fleet = Fleet(engine, prefill=engine, transfer_token_s=1e-4)
    fleet.submit(ServingRequest(0, count_tokens(PROMPT), 9), 0.0)
    ends = []
    while fleet.has_work:
        ends += [when for when, step in fleet.advance(fleet.due_s) if step.tokens]
    if not counted["simulator_schedule_resets_total"]:
        assert counted["vllm:time_to_first_token_seconds_sum"] == pytest.approx(ends[0] / 20, rel=1e-6)
        assert counted["vllm:inter_token_latency_seconds_sum"] == pytest.approx((ends[-1] - ends[0]) / 20, rel=1e-6)


async def test_a_client_that_leaves_frees_both_pools() -> None:
    async with serving(time_scale=1.0, prefill_replicas=1, replicas=2) as client:
        leaving = asyncio.create_task(client.post(CHAT, body(100_000)))
        while not sum(engine.running for engine in client.simulator.engines):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        leaving.cancel()
        while sum(engine.running for engine in client.simulator.engines):  # noqa: ASYNC110 - the state is another's
            await asyncio.sleep(0.01)
        assert all(engine.kv_usage == 0 for engine in client.simulator.engines)


async def test_the_queue_of_all_replicas_is_what_is_limited() -> None:
    behaviour = {"time_scale": 1.0, "max_queue": 0, "replicas": 2}
    async with serving({"max_sequences": 1}, **behaviour) as client:
        busy = [asyncio.create_task(client.post(CHAT, body(10_000))) for _ in range(2)]
        while sum(engine.running for engine in client.simulator.engines) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        reply = await client.post(CHAT, body(5))
        for task in busy:
            task.cancel()
    assert reply.status == 503
