"""Whole summaries: every odd run still builds, says n/a, and is plain JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.analysis.summary import Summary, summarise, to_json
from loadgen.errors import UsageError
from loadgen.model import Exchange
from tests.analysis.made import failed, frame, ok, run, stage

ODD: dict[str, list[Exchange]] = {
    "none": [],
    "one": [ok(0)],
    "three": [ok(i, sent=float(i)) for i in range(3)],
    "one token": [ok(i, sent=float(i), events=(0.5,)) for i in range(3)],
    "all failed": [failed(i, sent=float(i)) for i in range(3)],
    "never sent": [failed(0, sent=None, dispatched=0.0, ready=0.0, end=1.0, kind="connect")],
    "equal": [ok(i, sent=0.0) for i in range(50)],
    "cancelled": [failed(0, outcome="cancelled", kind="cancelled", events=(0.2,), end=1.0)],
    "not streamed": [ok(0, events=(), tokens=(), end=1.0, output_tokens=5, flags=("not_streamed",))],
    "all at once": [ok(0, events=(0.5,), tokens=(20,))],
    "warm-up only": [ok(0, warmup=True)],
}


def of(exchanges: list[Exchange], *slo: str, **of_stage: Any) -> Summary:
    return summarise(run(stage(requests=len(exchanges), **of_stage)), frame(exchanges), slo)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("end", [10.0, None])
def test_odd_runs_build_and_are_json(name: str, end: float | None) -> None:
    exchanges = ODD[name]
    summary = of(exchanges, "p99(ttft) < 1s, mean(itl) < 1s, error_rate < 1%, ttft < 1s and tpot < 50ms", end=end)
    plain = json.loads(json.dumps(to_json(summary), allow_nan=False))
    (only,) = plain["stages"]
    for line in only["metrics"]:
        assert line["value"] is not None or line["ci_low"] is None
        if line["n"] == 0:  # nothing counted: a rate of 0 is a fact where requests were sent, anything else is n/a
            facts = bool(exchanges) and line["stat"] in ("rate", "max")
            assert line["value"] is None or (facts and line["value"] == 0.0), line
    assert only["requests"]["sent"] == sum(not exchange.warmup for exchange in exchanges)


def test_answers_that_were_not_streamed_count_for_the_server() -> None:
    only = of(ODD["not streamed"], end=10.0).stages[0]
    rate, peak = only.get("output_tokens_per_s", "rate"), only.get("output_tokens_per_s", "max")
    assert rate is not None
    assert peak is not None
    assert (rate.value, peak.value) == (pytest.approx(0.5), pytest.approx(5.0))


def test_json_has_the_keys_that_users_script_against() -> None:
    plain = to_json(of([ok(i, sent=0.1 * i) for i in range(20)], "p50(ttft) < 1s", value=8))
    assert set(plain) >= {"trust", "stages", "conventions", "slo", "fit"}
    assert plain["trust"]["verdict"] in ("valid", "questionable", "invalid")
    assert set(plain["trust"]["findings"][0]) >= {"severity", "code", "message", "value", "advice"}
    only = plain["stages"][0]
    assert (only["stage"], only["workload"], only["load"]) == ("chat@8", "chat", {"kind": "concurrency", "value": 8})
    assert set(only["requests"]) >= {"sent", "ok", "failed", "cancelled", "unsent"}
    assert set(only["metrics"][0]) >= {"metric", "stat", "value", "unit", "n", "ci_low", "ci_high"}
    assert set(plain["conventions"][0]) >= {"tool", "metric", "definition", "value", "ours", "why"}
    assert set(plain["slo"][0]) >= {"expr", "outcome", "observed", "bound", "low", "high", "n"}


def test_counts_and_errors() -> None:
    exchanges = [ok(0), failed(1), failed(2, kind="timeout", flags=("censored",)), failed(3, outcome="cancelled")]
    only = of(exchanges, unsent=2).stages[0]
    counts = only.counts
    assert (counts.sent, counts.ok, counts.failed, counts.cancelled, counts.unsent, counts.censored) == (
        4,
        1,
        2,
        1,
        2,
        1,
    )
    assert only.errors == {"http": 2, "timeout": 1}


def test_values_are_found_by_name_and_statistic() -> None:
    only = of([ok(0, events=(0.5, 0.6))]).stages[0]
    found = only.get("ttft", "p50")
    assert found is not None
    assert (found.value, found.unit, found.n, found.supported) == (pytest.approx(0.5), "s", 1, False)
    assert only.get("ttft_scheduled", "p50") is None  # closed loop
    assert only.get("goodput", "rate") is None  # no limit on each request
    assert only.get("ttft", "p12") is None


def test_the_objectives_of_the_run_apply_unless_others_are_given() -> None:
    info = run(stage(requests=1), spec={"slo": ["p50(ttft) < 1s"]})
    requests = frame([ok(0)])
    assert [result.expr for result in summarise(info, requests).slo] == ["p50(ttft) < 1s"]
    assert [result.expr for result in summarise(info, requests, ["max(e2e) < 1s"]).slo] == ["max(e2e) < 1s"]


def test_an_invalid_stage_does_not_taint_another() -> None:
    late = [
        ok(i, scheduled=0.1 * i, dispatched=0.1 * i + 0.1, sent=0.1 * i + 0.1, events=(0.2, 0.21)) for i in range(300)
    ]
    fine = [ok(1000 + i, stage=1, scheduled=0.1 * i, sent=0.1 * i, events=(0.2, 0.21)) for i in range(300)]
    info = run(stage(kind="rate", value=4, requests=300), stage(kind="rate", value=8, number=1, requests=300))
    summary = summarise(info, frame(late + fine), ["p99(ttft) < 1s"])
    assert summary.verdict == "invalid"
    assert [(result.stage, result.outcome) for result in summary.slo] == [("chat@4", "undecidable"), ("chat@8", "pass")]


def test_a_wrong_objective_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        of([ok(0)], "p99(ttft) < 1 parsec")


def test_the_same_run_gives_the_same_figures() -> None:
    exchanges = [
        ok(i, sent=0.1 * i, events=[0.1 + 0.01 * k + 0.001 * (i * k % 7) for k in range(20)]) for i in range(90)
    ]
    assert to_json(of(exchanges)) == to_json(of(exchanges))
