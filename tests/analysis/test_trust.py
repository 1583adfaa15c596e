"""Each finding fires on its own cause, with the severity of the error that it implies, and on no clean run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadgen.analysis import severity, trust
from loadgen.analysis.measured import measure, row_facts
from loadgen.model import Exchange, Finding, RunInfo, StageInfo
from tests.analysis.made import failed, frame, ok, run, stage

HEALTH = {"client_cpu_s": 1.0, "wall_s": 10.0, "loop_lag_p99_ns": 1e5, "clock_error_ns": 2e3, "kernel_stamps": 1.0}


def found(exchanges: list[Exchange], *infos: StageInfo, **of_run: Any) -> dict[str, Finding]:
    info: RunInfo = run(*(infos or (stage(requests=len(exchanges), health=dict(HEALTH)),)), **of_run)
    requests = frame(exchanges)
    facts = row_facts(requests)
    stages = [measure(one, requests, facts, 1) for one in info.stages]
    return {finding.code: finding for finding in trust.judge(info, stages)}


def steady(n: int = 300, *, every: float = 0.03, ttft: float = 0.2, gap: float = 0.01, **more: Any) -> list[Exchange]:
    """A clean closed loop of one user at a time, with a little noise that has no trend."""
    rng = np.random.default_rng(7)
    wobble = rng.normal(1.0, 0.01, size=n)
    return [ok(i, sent=every * i, events=[(ttft + gap * k) * wobble[i] for k in range(20)], **more) for i in range(n)]


def test_a_clean_run_is_valid() -> None:
    findings = found(steady())
    assert findings == {}
    assert trust.verdict(list(findings.values())) == "valid"


@pytest.mark.parametrize(
    ("error", "of", "expected"),
    [
        (0.5e-3, 2.0, "info"),
        (0.5e-3, 2e-3, "questionable"),  # 25 %, but under 1 ms
        (0.1e-3, 1e-3, "info"),  # 10 %, but under 0.2 ms
        (3e-3, 0.1, "questionable"),
        (11e-3, 0.1, "invalid"),
        (2e-3, 0.0, "invalid"),
        (float("nan"), 0.1, "info"),
    ],
)
def test_severity_follows_the_implied_error(error: float, of: float, expected: str) -> None:
    assert severity.of_error(error, of) == expected


@pytest.mark.parametrize(("share", "expected"), [(0.01, "info"), (0.03, "questionable"), (0.11, "invalid")])
def test_severity_of_a_share(share: float, expected: str) -> None:
    assert severity.of_share(share) == expected


def test_limits_and_the_worst_of_severities() -> None:
    assert severity.at_most("questionable", "invalid") == "questionable"
    assert severity.at_most("questionable", "info") == "info"
    assert severity.worst("info", "invalid", "questionable") == "invalid"
    assert severity.worst() == "info"


# -- the client ---------------------------------------------------------------------


@pytest.mark.parametrize(("delay", "expected"), [(0.002, None), (0.01, "questionable"), (0.05, "invalid")])
def test_client_delay_in_open_loop_is_beside_ttft(delay: float, expected: str | None) -> None:
    exchanges = [
        ok(i, scheduled=0.1 * i, dispatched=0.1 * i + delay, sent=0.1 * i + delay, events=(0.2, 0.21, 0.22))
        for i in range(100)
    ]
    finding = found(exchanges, stage(kind="rate", requests=100)).get("client_delay")
    assert (finding and finding.severity) == expected
    if finding:
        assert finding.message.endswith("of the p50 TTFT from schedule")  # not the one from `sent`


def test_client_delay_in_closed_loop_is_idle_time_of_a_slot() -> None:
    exchanges = [ok(i, sent=float(i), ready=i - 0.02, dispatched=float(i), events=(0.2, 0.39)) for i in range(100)]
    finding = found(exchanges)["client_delay"]
    assert finding.severity == "questionable"  # 20 ms beside 390 ms
    assert "20.0 ms" in finding.message
    assert "--workers" in finding.advice


def test_waiting_for_a_slot_is_not_the_clients_fault() -> None:
    exchanges = [ok(i, scheduled=0.0, ready=0.5 * i, dispatched=0.5 * i, sent=0.5 * i) for i in range(60)]
    assert "client_delay" not in found(exchanges, stage(kind="rate", requests=60))


def test_late_bytes_are_told_and_connecting_is_not() -> None:
    late = [ok(i, sent=float(i), dispatched=i - 0.05, events=(0.2, 0.3)) for i in range(1, 50)]
    assert found(late)["send_delay"].severity == "invalid"
    connecting = [
        ok(i, sent=float(i), dispatched=i - 0.05, connect_start_ns=int((i - 0.05) * 1e9), connected_ns=i * 10**9)
        for i in range(1, 50)
    ]
    assert "send_delay" not in found(connecting)


def test_lag_matters_where_stamps_are_the_process_s() -> None:
    lagging = HEALTH | {"loop_lag_p99_ns": 5e6}
    exchanges = steady()
    assert "loop_lag" not in found(exchanges, stage(requests=300, health=lagging))
    in_process = lagging | {"kernel_stamps": 0.0}
    assert found(exchanges, stage(requests=300, health=in_process))["loop_lag"].severity == "invalid"  # gaps of 10 ms


def test_a_busy_client_is_named_with_its_lag() -> None:
    busy = HEALTH | {"client_cpu_s": 9.5, "loop_lag_p99_ns": 60e6}
    finding = found(steady(), stage(requests=300, health=busy))["client_cpu"]
    assert finding.severity == "invalid"
    assert finding.value == pytest.approx(0.95)
    assert "client_cpu" not in found(steady(), stage(requests=300, health=busy | {"workers": 2.0}))


def test_a_doubtful_clock_and_lost_workers() -> None:
    doubtful = HEALTH | {"clock_error_ns": 3e6, "clock_steps": 2.0, "workers": 4.0, "workers_lost": 1.0}
    findings = found(steady(), stage(requests=300, health=doubtful))
    assert findings["clock_error"].severity == "invalid"
    assert findings["clock_stepped"].severity == "questionable"
    assert findings["workers_lost"].severity == "invalid"


@pytest.mark.parametrize(
    ("wait_ns", "expected"), [(100_000, "info"), (900_000, "questionable"), (4_000_000, "invalid")]
)
def test_shared_receives_weigh_by_how_long_the_client_did_not_look(wait_ns: int, expected: str) -> None:
    exchanges = steady(shared_events=2, shared_wait_ns=wait_ns)
    assert found(exchanges)["shared_receives"].severity == expected


def test_a_machine_that_wakes_the_client_late_is_named_and_more_workers_are_not_advised() -> None:
    exchanges = steady(shared_events=2, shared_wait_ns=4_000_000)
    assert "--workers" in found(exchanges)["shared_receives"].advice
    late = found(exchanges, stage(requests=300, health=HEALTH | {"wake_late_p99_ns": 8e6}))["shared_receives"]
    assert "8 ms late" in late.advice or "8.00 ms late" in late.advice
    assert "--workers" not in late.advice


def test_process_stamps_are_mentioned() -> None:
    assert found(steady(stamp_source="process"))["process_stamps"].severity == "info"


# -- the load ---------------------------------------------------------------------


def test_offered_rate_that_was_not_sent() -> None:
    exchanges = [
        ok(i, scheduled=0.1 * i, ready=0.1 * i, dispatched=0.15 * i, sent=0.15 * i, events=(0.2, 0.3))
        for i in range(100)
    ]
    uncapped = stage(kind="rate", value=10.0, duration=10.0)
    assert found(exchanges, uncapped)["rate_not_reached"].severity == "invalid"
    capped = stage(kind="rate", value=10.0, duration=10.0)
    capped.load = type(capped.load)("rate", 10.0, "poisson", cap=4)
    finding = found(exchanges, capped)["rate_not_reached"]
    assert finding.severity == "questionable"
    assert "cap of 4" in finding.message


def test_a_server_that_takes_no_connection_is_not_the_clients_fault() -> None:
    refused = [
        replace(failed(i, sent=i / 10.0), sent_ns=None, dispatched_ns=i * 10**8, scheduled_ns=i * 10**8)
        for i in range(100)
    ]
    assert "rate_not_reached" not in found(refused, stage(kind="rate", value=10.0, duration=10.0))


def test_unsent_requests_and_missing_users() -> None:
    assert found(steady(), stage(kind="rate", requests=350, unsent=50))["unsent"].severity == "invalid"
    few = [ok(i, sent=0.0) for i in range(5)]
    finding = found(few, stage(value=8.0, requests=5))["concurrency_not_reached"]
    assert "5 of 8" in finding.message


def test_drift_is_seen_and_noise_is_not() -> None:
    growing = [ok(i, sent=0.1 * i, events=(0.2 + 0.002 * i, 0.3 + 0.002 * i)) for i in range(200)]
    finding = found(growing)["not_steady"]
    assert finding.severity == "questionable"
    assert "never became steady: median TTFT" in finding.message
    stepped = [ok(i, sent=0.1 * i, events=(0.2 if i < 100 else 0.4, 0.5)) for i in range(200)]
    assert found(stepped)["drift"].severity == "questionable"
    assert not {"drift", "not_steady", "settled_late"} & found(steady()).keys()
    late = [ok(i, sent=0.1 * i, events=(2.0 if i < 60 else 0.2, 2.1)) for i in range(200)]
    assert found(late)["settled_late"].value == pytest.approx(6.0, abs=0.5)


def test_streams_in_step_are_told() -> None:
    def sends(in_step: bool) -> list[Exchange]:
        return [
            ok(8 * wave + user, sent=0.41 * wave + (0.0 if in_step else 0.05 * user), events=(0.2, 0.41))
            for wave in range(20)
            for user in range(8)
        ]

    assert found(sends(True), stage(value=8.0, requests=160))["phase_locked"].value == pytest.approx(1.0, abs=0.05)
    assert "phase_locked" not in found(sends(False), stage(value=8.0, requests=160))


# -- what came back ---------------------------------------------------------------------


def test_a_proxy_that_holds_everything_back() -> None:
    exchanges = [ok(i, sent=0.5 * i, events=[0.4] * 20) for i in range(50)]
    finding = found(exchanges)["bursts"]
    assert finding.severity == "invalid"
    assert "in one piece" in finding.message


def test_bursts_of_four() -> None:
    events = [0.2 + 0.08 * (k // 4) for k in range(20)]
    exchanges = [ok(i, sent=0.5 * i, events=events) for i in range(50)]
    finding = found(exchanges)["bursts"]
    assert finding.severity == "invalid"  # (4 - 1) gaps of 20 ms beside a TTFT of 200 ms
    assert "in bursts of about" in finding.message


def test_a_quick_server_is_not_a_burst() -> None:
    rng = np.random.default_rng(1)
    exchanges = [ok(i, sent=0.5 * i, events=list(0.01 + np.cumsum(rng.exponential(1e-4, size=50)))) for i in range(50)]
    assert found(exchanges).get("bursts", Finding("info", "", "")).severity == "info"


def test_lengths_counts_and_caches() -> None:
    assert found(steady(output_tokens_requested=40))["output_shorter"].severity == "questionable"
    longer = found(steady(output_tokens_requested=1))["output_longer"]
    assert longer.severity == "invalid"
    assert "output_longer" not in found(steady())
    assert found(steady(prompt_tokens=110))["prompt_tokens"].severity == "questionable"
    assert found(steady(prompt_tokens=2060, prompt_tokens_requested=2000))["prompt_tokens"].value == pytest.approx(0.03)
    assert "prompt_tokens" not in found(steady(prompt_tokens=103))
    assert found(steady(flags=("counts_disagree",)))["counts_disagree"].severity == "questionable"
    assert found(steady(cached_tokens=64))["cache_hits"].severity == "invalid"
    assert "cache_hits" not in found(steady(cached_tokens=0))
    assert "cache_hits" not in found(steady(cached_tokens=64, repeated_tokens=64))


def test_errors_by_kind() -> None:
    finding = found([*steady(), failed(900), failed(901, kind="timeout"), failed(902)])["errors"]
    assert finding.severity == "info"
    assert "3 of 303 requests failed (http 2, timeout 1)" in finding.message
    assert found([*steady(), *(failed(900 + i) for i in range(100))])["errors"].severity == "questionable"
    assert found([failed(i) for i in range(3)])["all_failed"].severity == "invalid"


def test_small_samples_say_what_they_cannot_support() -> None:
    finding = found(steady(100))["too_few_samples"]
    assert finding.severity == "info"
    assert "p99 (at least 299" in finding.message
    assert found(steady(3))["too_few_samples"].severity == "questionable"


def test_nothing_at_all_is_invalid() -> None:
    assert found([], stage(requests=0))["nothing_measured"].severity == "invalid"
    assert found([])["nothing_measured"].severity == "invalid"


def test_faster_than_the_named_hardware() -> None:
    named = {"roofline": {"gpu": "h100-sxm", "gpus": 1, "shape": "llama-3.1-8b", "dtype": "bf16"}}
    quick = steady(ttft=0.05, gap=0.001)  # one weight read alone takes 4.8 ms
    finding = found(quick, spec=named)["faster_than_hardware"]
    assert finding.severity == "questionable"
    assert "--gpu" in finding.advice
    assert "faster_than_hardware" not in found(steady(), spec=named)
    unknown = {"roofline": {"gpu": "abacus", "shape": "llama-3.1-8b"}}
    assert "faster_than_hardware" not in found(quick, spec=unknown)


def test_tokens_that_do_not_add_up_break_the_measurement() -> None:
    assert found(steady(output_tokens=30))["tokens_not_conserved"].severity == "invalid"
    assert "tokens_not_conserved" not in found(steady(output_tokens=30, reasoning_tokens=10))


def test_an_interrupted_run_says_so() -> None:
    assert found(steady(), status="interrupted")["interrupted"].severity == "info"


# -- telling ---------------------------------------------------------------------


def test_the_same_finding_on_several_stages_is_told_once() -> None:
    same = [Finding("info", "too_few_samples", f"chat@{n}: 10 requests ...", stage=i) for i, n in enumerate((1, 8, 32))]
    other = Finding("invalid", "bursts", "chat@8: ...", stage=1)
    told = trust.merged([other, *same])
    assert [finding.code for finding in told] == ["bursts", "too_few_samples"]
    assert told[1].message.endswith("(likewise chat@8, chat@32)")
    assert told[1].stage is None


def test_each_stage_has_its_own_reasons_to_be_invalid() -> None:
    requests = frame([])
    facts = row_facts(requests)
    stages = [measure(stage(number=n), requests, facts, 1) for n in (0, 1)]
    findings = [Finding("invalid", "a", "", stage=0), Finding("questionable", "b", "", stage=1)]
    assert trust.invalid_codes(findings, stages) == {0: ("a",), 1: ()}
    assert trust.invalid_codes([Finding("invalid", "c", "")], stages) == {0: ("c",), 1: ("c",)}


def test_a_goal_that_was_not_reached_and_pauses_are_told() -> None:
    exchanges = [ok(i, sent=0.1 * i, events=(0.2 + 0.01 * (i % 20), 0.6)) for i in range(60)]

    def of(goal: str) -> dict[str, Finding]:
        return found(exchanges, stage(requests=60), spec={"until": goal})

    assert "not reached: it is" in of("p50(ttft) within 1%")["until_not_reached"].message
    assert "until_not_reached" not in of("p50(ttft) within 90%")
    assert "too few requests" in of("p99.9(ttft) within 90%")["until_not_reached"].message
    assert found(exchanges, stage(requests=60, health={"paused_s": 2.0}))["paused"].value == 2.0
