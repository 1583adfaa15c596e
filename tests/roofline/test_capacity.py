"""Capacity planning against a queue with a known answer, and the command around it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from loadgen.cli.plan_capacity import command, parse_mix, read_targets
from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.capacity import Kind, Mix, Target, operate, plan_capacity, replica_rate, simulate_day
from loadgen.roofline.passes import Deployment, constants_law
from loadgen.roofline.precision import Dtypes
from loadgen.roofline.serving import EngineConfig

# One sequence at a time, 100 ms of prefill, one token: a queue M/D/1 with a service time of 0.1 s.
MD1 = EngineConfig(constants_law(1e-3, 1e-9, 0.0), max_sequences=1)
MIX = Mix((Kind(100, 1),), spread=0.0)
WHERE = Deployment(catalog.gpu("h100"), 1, catalog.shape("llama-3.1-8b"), Dtypes())


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_mean_waiting_is_that_of_a_queue_with_constant_service(load: float) -> None:
    """Pollaczek-Khinchine for M/D/1: mean time in the system = s * (1 + load / (2 * (1 - load)))."""
    target = Target("ttft", None, 1.0)
    means = [operate(MD1, MIX, (target,), load / 0.1, seed).values[0] for seed in range(12)]
    assert np.mean(means) == pytest.approx(0.1 * (1 + load / (2 * (1 - load))), rel=0.08)


def test_the_highest_rate_is_where_the_formula_puts_it() -> None:
    """A mean of 0.2 s: load / (2 (1 - load)) = 1, so load = 2/3."""
    rates = [found.rate for seed in range(12) if (found := replica_rate(MD1, MIX, (Target("ttft", None, 0.2),), seed))]
    assert len(rates) == 12
    assert np.mean(rates) == pytest.approx(2 / 3 / 0.1, rel=0.05)


def test_a_limit_on_tpot_alone_does_not_hide_a_growing_queue() -> None:
    """Nobody limits TTFT, yet an unstable server is no plan: the rate stays below 1 / service time."""
    found = replica_rate(MD1, MIX, (Target("tpot", 0.95, 1.0),))
    assert found is not None
    assert 8 < found.rate < 10.8
    assert not operate(MD1, MIX, (Target("tpot", 0.95, 1.0),), 12.0).stable


def test_a_limit_below_the_service_time_cannot_be_planned() -> None:
    assert replica_rate(MD1, MIX, (Target("ttft", 0.5, 0.05),)) is None


def test_replicas_carry_the_peak_and_cost_what_they_cost() -> None:
    target = Target("ttft", None, 0.2)
    plan = plan_capacity(WHERE, MD1, MIX, (target,), peak_rate=100.0, price_per_gpu_hour=2.0)
    assert plan is not None
    assert plan.replicas == -(-100 // plan.at.rate)
    assert plan.utilisation == pytest.approx(100 / plan.replicas / plan.at.rate)
    assert plan.cost_per_hour == 2.0 * plan.gpus
    assert plan.cost_per_million_output_tokens == pytest.approx(2.0 * plan.gpus / (100 * 3600) * 1e6)
    assert plan.goodput <= 100
    free = plan_capacity(WHERE, MD1, MIX, (target,), peak_rate=100.0)
    assert free is not None
    assert free.cost_per_hour is None


def test_a_day_of_thousands_of_replicas_is_seen_on_a_few() -> None:
    slow, targets = EngineConfig(constants_law(1e-2, 1e-9, 0.0), max_sequences=1), (Target("ttft", 0.99, 10.0),)
    day = simulate_day(slow, MIX, targets, mean_rate=500, swing=0.6, replicas=1000, sample=3)
    assert day.sampled == 3
    assert day.requests == pytest.approx(3 * 0.5 * 86_400, rel=0.02)
    assert day.worst_hour < day.attainment < 1
    flat = simulate_day(slow, MIX, targets, mean_rate=500, swing=0.0, replicas=1000, sample=3)
    assert flat.attainment > day.attainment  # the same mean rate, without the rush hour
    # Two independent samples differ by what the stated error allows (three replicas: a wide allowance).
    other = simulate_day(slow, MIX, targets, mean_rate=500, swing=0.6, replicas=1000, sample=3, seed=9)
    assert abs(other.attainment - day.attainment) < 6 * (day.error + other.error) + 1e-3


def test_the_mix_has_the_lengths_and_weights_that_were_asked() -> None:
    mix = parse_mix("2000/200:70,20000/100:30")
    prompts, outputs = mix.draw(20_000, np.random.default_rng(0))
    assert np.mean(prompts > 10_000) == pytest.approx(0.3, abs=0.01)
    assert outputs.mean() == pytest.approx(mix.output_tokens, rel=0.01)
    assert (prompts.min(), prompts.max()) == (1600, pytest.approx(24_000, abs=5))


def test_limits_are_read_from_the_slo_language() -> None:
    assert read_targets(["p99(ttft) < 1s, p95(tpot) <= 50ms, mean(e2e) < 10s"]) == (
        Target("ttft", 0.99, 1.0),
        Target("tpot", 0.95, 0.05),
        Target("e2e", None, 10.0),
    )
    for bad in ("error_rate < 1%", "p99(ttft) > 1s", "chat: p99(ttft) < 1s", ""):
        with pytest.raises(UsageError):
            read_targets([bad])


def test_the_command_lists_plans_and_what_was_left_out() -> None:
    flags = ["--rate", "5", "--slo", "p99(ttft) < 3s", "--shape", "llama-3.1-70b", "--gpus", "1,4", "--batch-cap", "16"]
    done = CliRunner().invoke(command, [*flags, "--price", "2.5", "--swing", "0.3", "--format", "json"])
    assert done.exit_code == 0, done.output
    got = json.loads(done.stdout)
    (plan,) = got["plans"]
    assert (plan["gpus_per_replica"], plan["cost_per_hour"]) == (4, 2.5 * plan["gpus"])
    assert plan["at_replica_rate"]["p99(ttft)"] <= 3
    assert 0 < plan["day"]["attainment"] <= 1
    assert "no room" in got["left_out"][0]
    text = CliRunner().invoke(command, flags).output
    assert "n/a" in text  # no price was given
    assert "Not validated" in text


@pytest.mark.parametrize("text", ["2000", "2000/x", "0/10", "10/10:-1"])
def test_a_bad_mix_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_mix(text)


def test_a_larger_batch_cap_never_lowers_the_rate_of_a_queue_that_shares_its_steps() -> None:
    config = EngineConfig(constants_law(1e-6, 5e-3, 1e-6), max_sequences=1)
    mix, targets = Mix((Kind(100, 50),)), (Target("ttft", 0.95, 1.0),)
    rates = [found.rate for cap in (1, 8) if (found := replica_rate(replace(config, max_sequences=cap), mix, targets))]
    assert rates[1] > 5 * rates[0]
