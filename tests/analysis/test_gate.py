"""The language of objectives, and their verdicts."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis import gate
from loadgen.analysis.gate import SloResult
from loadgen.analysis.measured import measure, row_facts
from loadgen.analysis.slo import parse
from loadgen.errors import UsageError
from loadgen.model import Exchange, StageInfo
from tests.analysis.made import failed, frame, ok, stage


def judged(
    expressions: str | list[str],
    exchanges: list[Exchange],
    *infos: StageInfo,
    invalid: dict[int, tuple[str, ...]] | None = None,
) -> list[SloResult]:
    requests = frame(exchanges)
    facts = row_facts(requests)
    stages = [measure(info, requests, facts, 1) for info in infos or (stage(),)]
    slos = parse([expressions] if isinstance(expressions, str) else expressions)
    gate.apply_limits(slos, stages)
    return list(gate.evaluate(slos, stages, invalid or {}))


def outcomes(expressions: str | list[str], exchanges: list[Exchange], *infos: StageInfo, **more: Any) -> list[str]:
    return [result.outcome for result in judged(expressions, exchanges, *infos, **more)]


def many(n: int, ttft: float = 0.5, **more: Any) -> list[Exchange]:
    return [ok(i, sent=0.01 * i, events=(ttft, ttft + 0.02, ttft + 0.04), **more) for i in range(n)]


# -- the language ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "stat", "op", "value"),
    [
        ("p99(ttft) < 1s", "ttft", "p99", "<", 1.0),
        ("p95(tpot) <= 50ms", "tpot", "p95", "<=", 0.05),
        ("mean(e2e)<10s", "e2e", "mean", "<", 10.0),
        ("error_rate < 0.1%", "error_rate", "rate", "<", 0.001),
        ("error_rate < 0.001", "error_rate", "rate", "<", 0.001),
        ("output_tokens_per_s > 4000", "output_tokens_per_s", "rate", ">", 4000.0),
        ("output_tokens_per_s >= 4e3 tokens/s", "output_tokens_per_s", "rate", ">=", 4000.0),
        ("p99.9( max_gap ) < 250 us", "max_gap", "p99.9", "<", 250e-6),
        ("median(chunk_gap) < .5s", "chunk_gap", "p50", "<", 0.5),
        ("max(in_flight) <= 64", "in_flight", "max", "<=", 64.0),
        ("p75(ttft) < 2min", "ttft", "p75", "<", 120.0),
    ],
)
def test_conditions(text: str, name: str, stat: str, op: str, value: float) -> None:
    ((slo),) = parse([text])
    (limit,) = slo.limits
    assert (limit.metric.name, limit.stat, limit.op) == (name, stat, op)
    assert limit.value == pytest.approx(value)


def test_commas_and_scopes_and_conjunctions() -> None:
    slos = parse(["p99(ttft) < 1s, chat@32: p95(tpot) < 50ms", "story: ttft < 1s and tpot < 50ms"])
    assert [(slo.text, slo.scope, slo.per_request) for slo in slos] == [
        ("p99(ttft) < 1s", "", False),
        ("chat@32: p95(tpot) < 50ms", "chat@32", False),
        ("story: ttft < 1s and tpot < 50ms", "story", True),
    ]
    assert len(parse(["p99(ttft) < 1s and error_rate < 1%"])) == 2


def test_a_rate_for_a_user_is_its_tpot() -> None:
    (slo,) = parse(["p99(output_tokens_per_s_per_user) > 20"])
    (limit,) = slo.limits
    assert (limit.metric.name, limit.op, limit.value, limit.inverse) == ("tpot", "<", 0.05, True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("p99(ttft) < 1", "is a time"),
        ("p99(ttft) < 1%", "is a time"),
        ("p99(tttf) < 1s", "did you mean ttft"),
        ("p99 ttft < 1s", "cannot read"),
        ("p99(ttft < 1s", "cannot read"),
        ("ttft", "cannot read"),
        ("p99(ttft) = 1s", "cannot read"),
        ("p100(ttft) < 1s", "no statistic"),
        ("maen(ttft) < 1s", "did you mean"),
        ("p99(error_rate) < 1%", "no statistic"),
        ("chunk_gap < 50ms", "limit max_gap"),
        ("error_rate < 1ms", "a share"),
        ("ttft < 1s and p99(tpot) < 50ms", "comma"),
        ("goodput > 3", "needs a limit on each request"),
        (": p99(ttft) < 1s", "before the colon"),
        ("p99(ttft) < nan s", "cannot read"),
    ],
)
def test_mistakes_are_told_with_the_expression(text: str, told: str) -> None:
    with pytest.raises(UsageError) as mistake:
        parse([text])
    assert told in str(mistake.value)
    assert "SLO" in str(mistake.value)


@given(st.text(alphabet="p9(tfe) <=>1.s%m,:@and_r", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse([text])


# -- the verdict ---------------------------------------------------------------------


@pytest.mark.parametrize(("n", "outcome"), [(298, "undecidable"), (299, "pass"), (3, "undecidable")])
def test_a_pass_needs_the_sample_that_supports_it(n: int, outcome: str) -> None:
    (result,) = judged("p99(ttft) < 1s", many(n))
    assert result.outcome == outcome
    assert result.n == n
    assert (result.high is None) == (n < 299)


def test_a_failure_can_be_seen_early() -> None:
    assert outcomes("p99(ttft) < 1s", many(20, ttft=2.0)) == ["fail"]


def test_between_the_bounds_nothing_is_decided() -> None:
    exchanges = many(395) + [ok(1000 + i, events=(2.0, 2.1)) for i in range(5)]  # 1.25 % over the limit, of 400
    (result,) = judged("p99(ttft) < 1s", exchanges)
    assert result.outcome == "undecidable"
    assert "run longer" in result.why
    assert result.low is not None
    assert result.low <= 1.0


def test_nobody_passes_by_failing() -> None:
    exchanges = many(400) + [failed(1000 + i) for i in range(40)]
    (result,) = judged("p99(ttft) < 1s", exchanges)
    assert (result.outcome, result.observed, result.n) == ("fail", None, 440)
    assert "infinity" in result.why
    assert outcomes("p99(ttft) < 1s", many(400) + [failed(1000, outcome="cancelled")] * 40) == ["fail"]
    assert outcomes("p99(ttft) < 1s", many(400), stage(kind="rate", unsent=40)) == ["fail"]
    assert outcomes("p99(chunk_gap) < 1s", exchanges)[0] != "pass"
    assert outcomes("max(ttft) < 1s", exchanges) == ["fail"]
    assert outcomes("p50(output_tokens_per_s_per_user) > 10", [failed(i) for i in range(50)]) == ["fail"]


def test_a_lower_limit_ranks_failures_at_the_other_end() -> None:
    exchanges = many(60) + [failed(1000 + i) for i in range(60)]
    assert outcomes("p25(output_tokens) > 2", exchanges) == ["fail"]
    assert outcomes("p25(output_tokens) > 2", many(60)) == ["pass"]


def test_a_mean_with_failures_needs_a_limit_on_errors() -> None:
    exchanges = [*many(400), failed(1000)]
    assert outcomes("mean(e2e) < 10s", exchanges) == ["undecidable"]
    assert outcomes("mean(e2e) < 10s", many(400)) == ["pass"]
    assert outcomes("mean(e2e) < 10s, error_rate < 5%", exchanges) == ["pass", "pass"]
    assert outcomes("mean(e2e) < 10s, error_rate > 0.01%", exchanges)[0] == "undecidable"


def test_error_rate_goes_by_its_exact_bound() -> None:
    assert outcomes("error_rate < 0.1%", many(400)) == ["undecidable"]
    assert outcomes("error_rate < 1%", many(400)) == ["pass"]
    assert outcomes("error_rate < 1%", many(90) + [failed(1000 + i) for i in range(10)]) == ["fail"]


def test_open_loop_means_the_scheduled_one_and_says_so() -> None:
    exchanges = [ok(i, scheduled=0.0, sent=0.01 * i, events=(0.1, 0.2)) for i in range(300)]
    (result,) = judged("p99(ttft) < 1s", exchanges, stage(kind="rate"))
    assert (result.outcome, result.metric) == ("fail", "ttft_scheduled")
    assert "ttft means ttft_scheduled" in result.why
    assert outcomes("p99(ttft) < 1s", exchanges, stage()) == ["pass"]
    (each,) = judged("ttft < 1s", exchanges, stage(kind="rate"))
    assert each.outcome == "fail"
    assert "ttft means ttft_scheduled" in each.why


def test_a_later_turn_in_open_loop_is_judged_from_its_send() -> None:
    turns = [ok(i, sent=0.1 * i, session_id="a", turn=i + 1) for i in range(5)]
    assert outcomes("ttft < 1s", turns, stage(kind="rate")) == ["pass"]
    assert judged("p50(ttft) < 1s", turns, stage(kind="rate"))[0].n == 5


def test_an_invalid_measurement_passes_nothing_and_still_fails() -> None:
    found = judged("p99(ttft) < 1s, p99(ttft) < 1ms", many(400), invalid={0: ("client_delay",)})
    assert [result.outcome for result in found] == ["undecidable", "fail"]
    assert "INVALID (client_delay)" in found[0].why


def test_scopes_choose_stages() -> None:
    fast, slow = stage(value=8, number=0), stage(value=32, number=1)
    exchanges = many(300) + [ok(1000 + i, stage=1, events=(2.0, 2.1)) for i in range(300)]
    assert outcomes("chat@8: p99(ttft) < 1s", exchanges, fast, slow) == ["pass"]
    assert outcomes("chat@32: p99(ttft) < 1s", exchanges, fast, slow) == ["fail"]
    assert outcomes("chat: p99(ttft) < 1s", exchanges, fast, slow) == ["pass", "fail"]
    with pytest.raises(UsageError, match="chat@8, chat@32"):
        judged("story: p99(ttft) < 1s", exchanges, fast, slow)


# -- limits on each request ---------------------------------------------------------------------


def test_goodput_counts_offered_requests() -> None:
    exchanges = [*many(6), ok(10, events=(3.0, 3.1)), failed(11)]
    found = judged(
        "ttft < 1s and tpot < 50ms, slo_attainment > 50%, goodput > 0.1", exchanges, stage(unsent=2, kind="rate")
    )
    assert [result.metric for result in found] == ["slo_attainment", "goodput"]
    assert found[0].observed == pytest.approx(6 / 10)
    assert found[1].observed == pytest.approx(0.6)


def test_a_limit_on_each_request_by_itself_is_owed_by_all() -> None:
    assert outcomes("ttft < 1s and tpot < 50ms", many(3)) == ["pass"]
    assert outcomes("ttft < 1s and tpot < 50ms", [*many(3), failed(9)]) == ["fail"]
    assert outcomes("ttft < 1s and tpot < 10ms", many(3)) == ["fail"]
    assert outcomes("ttft < 1s", []) == ["undecidable"]


def test_one_token_meets_a_limit_on_tpot_but_not_one_on_a_ttft_that_is_unknown() -> None:
    assert outcomes("ttft < 1s and tpot < 1ms", [ok(events=(0.5,))]) == ["pass"]
    unknown = ok(events=(0.5,), flags=("not_streamed",))
    assert outcomes("ttft < 1s", [unknown]) == ["fail"]
    assert outcomes("e2e < 1s", [unknown]) == ["pass"]


# -- nothing to decide on ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ttft", "tpot", "chunk_gap", "itl", "max_gap", "connect", "cached_tokens"])
@pytest.mark.parametrize("stat", ["p99", "mean", "max"])
def test_without_requests_nothing_is_decided(name: str, stat: str) -> None:
    unit = "" if name == "cached_tokens" else "s"
    (result,) = judged(f"{stat}({name}) < 1{unit}", [])
    assert (result.outcome, result.observed, result.n) == ("undecidable", None, 0)


@pytest.mark.parametrize("text", ["output_tokens_per_s > 1", "error_rate < 1%", "in_flight < 3", "requests_per_s > 1"])
def test_a_stage_without_requests_decides_no_rate(text: str) -> None:
    assert outcomes(text, [], stage(end=None)) == ["undecidable"]


def test_itl_percentiles_of_grouped_tokens_are_not_decided() -> None:
    exchanges = [ok(i, events=(0.1, 0.2, 0.3), tokens=(4, 4, 4)) for i in range(300)]
    (result,) = judged("p99(itl) < 1s", exchanges)
    assert result.outcome == "undecidable"
    assert "chunk_gap" in result.why


def test_results_hold_no_number_that_json_cannot_say() -> None:
    for exchanges in ([], many(1), [failed(0)], many(300)):
        for result in judged("p99(ttft) < 1s, max(e2e) < 1s, mean(tpot) > 0s, output_tokens_per_s > 1", exchanges):
            for number in (result.observed, result.low, result.high):
                assert number is None or math.isfinite(number)
