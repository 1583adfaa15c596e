"""Capacity planning against a queue with a known answer, and the command around it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from loadgen.cli.plan_capacity import command, read_targets
from loadgen.errors import UsageError
from loadgen.plan.lengths import parse_length
from loadgen.plan.workload import Prefix, Turns, Workload
from loadgen.report.fitjson import plain
from loadgen.roofline import catalog
from loadgen.roofline.capacity import MOST_OF_A_DAY, Mix, Target, operate, plan_capacity, replica_rate, simulate_day
from loadgen.roofline.fitread import fitted_engine
from loadgen.roofline.named import NOTHING
from loadgen.roofline.passes import Deployment, Efficiency, constants_law
from loadgen.roofline.precision import Dtypes
from loadgen.roofline.serving import EngineConfig, engine_config

# One sequence at a time, 100 ms of prefill, one token: a queue M/D/1 with a service time of 0.1 s.
MD1 = EngineConfig(constants_law(1e-3, 1e-9, 0.0), max_sequences=1)


def asks(prompt: str, output: str, **more: Any) -> Workload:
    return Workload("made", "noise", parse_length(prompt), parse_length(output), **more)


MIX = Mix(((asks("100", "1"), 1.0),))
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


def test_of_a_fast_replica_a_shorter_day_is_seen() -> None:
    fast, targets = EngineConfig(constants_law(1e-5, 1e-9, 0.0), max_sequences=1), (Target("ttft", 0.99, 0.01),)
    day = simulate_day(fast, MIX, targets, mean_rate=1e5, swing=0.5, replicas=200, sample=2)
    assert day.requests < 2 * MOST_OF_A_DAY
    assert day.share == pytest.approx(MOST_OF_A_DAY / (750 * 86_400))
    assert day.worst_hour < day.attainment


def test_the_mix_has_the_lengths_and_weights_that_were_asked() -> None:
    mix = Mix(((asks("uniform:1600..2400", "200"), 70.0), (asks("20000", "lognormal:100±50"), 30.0)))
    prompts, outputs, cached = mix.draw(20_000, np.random.default_rng(0))
    assert np.mean(prompts > 10_000) == pytest.approx(0.3, abs=0.01)
    assert outputs.mean() == pytest.approx(mix.output_tokens, rel=0.01)
    assert mix.output_tokens == pytest.approx(170, rel=0.01)
    assert (prompts.min(), prompts.max()) == (1600, 20_000)
    assert not cached.any()


def test_shared_prefixes_are_cached_where_the_server_caches() -> None:
    shared = asks("1000", "10", prefix=Prefix(900))
    mix = Mix(((shared, 1.0), (asks("1000", "10"), 1.0)), prefix_cache=True)
    assert set(mix.draw(100, np.random.default_rng(0)).cached.tolist()) == {0, 900}
    config, targets = EngineConfig(constants_law(1e-4, 1e-3, 0.0)), (Target("ttft", 0.9, 0.5),)
    rates = [replica_rate(config, Mix(((shared, 1.0),), cache), targets) for cache in (False, True)]
    assert rates[0] is not None
    assert rates[1] is not None
    assert rates[1].rate > 3 * rates[0].rate


def test_what_has_no_lengths_cannot_be_planned() -> None:
    turns = Turns(parse_length("3"), parse_length("50"), parse_length("1000"))
    with pytest.raises(UsageError, match="conversation"):
        Mix(((asks("10", "10", turns=turns), 1.0),))
    with pytest.raises(UsageError, match="weight"):
        Mix(())


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
    assert "unvalidated, all plans: the efficiencies are assumed" in text


def plans(*flags: str) -> dict[str, Any]:
    done = CliRunner().invoke(command, [*flags, "--slo", "p99(ttft) < 3s", "--format", "json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    got: dict[str, Any] = json.loads(done.stdout)
    return got


FIT = {
    "gpu": "H100-SXM",
    "gpus": 1,
    "shape": "llama-3.1-8b",
    "dtype": "bf16",
    "parameters": {
        "mfu": {"value": 0.6, "low": 0.55, "high": 0.65, "identified": True},
        "mbu": {"value": None, "low": 0.5, "high": 0.98, "identified": False},
        "overhead_s": {"value": 2e-3, "low": 1e-3, "high": 3e-3, "identified": True},
        "overhead_per_request_s": {"value": 5e-3, "low": 1e-3, "high": 9e-3, "identified": True},
    },
    "error": {"held_out": {"ttft": 0.05, "itl": 0.02, "n": 3}},
}


def test_a_plan_rests_on_a_fit_and_says_what_it_was_not_held_against(tmp_path: Path) -> None:
    file = tmp_path / "fit.json"
    file.write_text(json.dumps(FIT), encoding="utf-8")
    flags = ["--rate", "20", "--gpus", "1", "--batch-cap", "64", "-w", "chat"]
    fitted = plans(*flags, "--fit", str(file), "--gpu", "h100-sxm,h200-sxm")
    assert "held-out error TTFT 5.0%, ITL 2.0%" in fitted["efficiencies"]
    there, elsewhere = sorted(fitted["plans"], key=lambda plan: str(plan["gpu"]))
    assert there["unvalidated"] == []
    assert "carried over" in elsewhere["unvalidated"][0]
    # The same efficiencies as flags give the same plan, but for the request's own overhead.
    same = plans(*flags, "--mfu", "0.6", "--mbu", "0.7", "--overhead", "2ms")["plans"][0]
    assert there["replica_rate_per_s"] == pytest.approx(same["replica_rate_per_s"], rel=0.03)
    assert "assumed" in same["unvalidated"][0]


def test_the_law_of_a_fit_is_taken_as_it_stands(tmp_path: Path) -> None:
    efficiency = Efficiency(mfu=0.5, mbu=0.7, kv_mbu=0.6, sharpness=2.0, step_s=3e-3, sequence_s=1e-5)
    engine = engine_config(WHERE, efficiency, max_sequences=77, kv_tokens=100_000, request_s=4e-3)
    made = FIT | {"engine": {"a": plain(asdict(engine) | {"law": engine.law._asdict()})}}
    assert fitted_engine(made, "x", NOTHING).engine == engine
    with pytest.raises(UsageError, match="refused"):
        fitted_engine(FIT | {"refused": "the shape is wrong"}, "x", NOTHING)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "is no fit"),
        ("{}", "does not say which GPU"),
        ('{"gpu": "h100", "shape": "llama-3.1-8b", "parameters": {}}', "no mfu"),
        ('{"gpu": "h100", "shape": "llama-3.1-8b", "parameters": {"mfu": 3}}', "no fit that can be read"),
        (None, "no such file"),
    ],
)
def test_a_fit_that_cannot_be_read_is_one_line(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "fit.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=said):
        plans("--rate", "1", "--fit", str(file))
    with pytest.raises(UsageError, match="beside --fit"):
        plans("--rate", "1", "--fit", str(file), "--mfu", "0.5")


def test_a_larger_batch_cap_never_lowers_the_rate_of_a_queue_that_shares_its_steps() -> None:
    config = EngineConfig(constants_law(1e-6, 5e-3, 1e-6), max_sequences=1)
    mix, targets = Mix(((asks("uniform:80..120", "uniform:40..60"), 1.0),)), (Target("ttft", 0.95, 1.0),)
    rates = [found.rate for cap in (1, 8) if (found := replica_rate(replace(config, max_sequences=cap), mix, targets))]
    assert rates[1] > 5 * rates[0]
