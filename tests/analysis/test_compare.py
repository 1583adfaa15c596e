"""Ratios with intervals, verdicts that share one error, conditions that take one away, the regression gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.compare import Compared, Versus, compare
from loadgen.analysis.compare_gate import Decision, decide, parse
from loadgen.analysis.compare_power import needed_requests
from loadgen.analysis.compare_sides import Side, side_of_cells, side_of_run
from loadgen.analysis.compare_stats import (
    BETWEEN_RUNS,
    Difference,
    Nothing,
    Ratio,
    contrast,
    relative_spread,
    same_plan,
)
from loadgen.analysis.definitions import METRICS
from loadgen.analysis.measured import Measured, measure, row_facts
from loadgen.analysis.summary import summarise
from loadgen.errors import UsageError
from loadgen.roofline.cells import Cell as Foreign
from tests import synthetic
from tests.synthetic import StageCase

BASE = StageCase("brief", requests=400)
KNOWN = {"unknown": [], "engine": "vllm", "version": "1.0"}


def side(name: str, *cases: StageCase, seed: int = 1, **changed: Any) -> Side:
    """A run of these stages; `changed` are fields of its RunInfo, dictionaries merged into what is there."""
    made = _made(cases, seed)
    assert made.summary is not None
    info = made.summary.info
    fields = {key: getattr(info, key) | value if isinstance(value, dict) else value for key, value in changed.items()}
    return replace(made, name=name, summary=replace(made.summary, info=replace(info, **fields)))


@cache
def _made(cases: tuple[StageCase, ...], seed: int) -> Side:
    info, rows = synthetic.build(cases, seed)
    return side_of_run("", summarise(info, synthetic.frame(rows)))


@cache
def base() -> Side:
    return side("base", BASE)


def versus(a: Side, b: Side) -> Versus:
    (found,) = compare(a, [b])
    return found


def row(of: Versus, metric: str, stat: str = "mean", cell: int = 0) -> Compared:
    return next(r for r in of.pairs[cell].rows if (r.metric, r.stat) == (metric, stat))


def verdicts(of: Versus) -> Counter[str]:
    return Counter(r.verdict for pair in of.pairs for r in pair.rows)


# -- statistics -----------------------------------------------------------------------------------------------------


def test_the_ratio_is_that_of_the_printed_figures() -> None:
    other = side("other", replace(BASE, slower=1.1), seed=2)
    for r in versus(base(), other).pairs[0].rows:
        a, b = (one.cells[0].value(r.metric, r.stat) for one in (base(), other))
        assert a is not None
        assert b is not None
        assert (r.base, r.other) == (a, b)
        assert r.change == pytest.approx(b - a if r.is_share else b / a)


@cache
def stages() -> tuple[Measured, ...]:
    found = []
    for seed in range(10, 50):
        info, rows = synthetic.build((replace(BASE, requests=320, warmup=0),), seed)
        requests = synthetic.frame(rows)
        found.append(measure(info.stages[0], requests, row_facts(requests), seed))
    return tuple(found)


@pytest.mark.parametrize("stat", ["mean", "p50", "p90"])
@pytest.mark.parametrize("metric", ["ttft", "tpot"])
def test_an_interval_of_one_sigma_is_as_wide_as_the_ratios_of_many_runs_scatter(metric: str, stat: str) -> None:
    """The claimed standard error against the truth: the scatter of log ratios over 20 pairs of runs."""
    found = [contrast(a, b, METRICS[metric], stat, 0.0) for a, b in zip(stages()[::2], stages()[1::2], strict=True)]
    ratios = [one for one in found if isinstance(one, Ratio)]
    assert len(ratios) == 20
    scatter = float(np.sqrt(np.mean([one.log**2 for one in ratios])))
    claimed = float(np.sqrt(np.mean([one.se**2 for one in ratios])))
    assert 0.7 < claimed / scatter < 1.7


def test_pairs_of_the_same_requests_show_what_two_draws_cannot() -> None:
    """A slowdown of 2 % of one recorded noise: each request is 2 % slower than its twin."""
    wide = replace(BASE, requests=100)
    twin, stranger = (side("b", replace(wide, slower=1.02), seed=seed) for seed in (1, 2))
    a = side("a", wide)
    paired, apart = (versus(a, other) for other in (twin, stranger))
    assert (paired.pairs[0].paired, apart.pairs[0].paired) == (True, False)
    assert row(paired, "ttft").verdict == "worse"
    assert row(apart, "ttft").verdict == "no difference shown"


def test_a_plan_is_the_same_only_with_the_same_seed_and_requests() -> None:
    a = base().cells[0].measured
    assert a is not None
    for other, same in (
        (side("x", BASE), True),
        (side("x", BASE, seed=2), False),
        (side("x", replace(BASE, requests=399)), False),
    ):
        b = other.cells[0].measured
        assert b is not None
        assert same_plan(a, b) is same


def test_two_runs_may_differ_by_what_two_starts_of_a_server_do() -> None:
    a, b = base().cells[0].measured, side("b", BASE, seed=5).cells[0].measured
    assert a is not None
    assert b is not None
    found = [contrast(a, b, METRICS["tpot"], "mean", between) for between in (0.0, 0.01)]
    assert all(isinstance(one, Ratio) for one in found)
    assert found[1].se ** 2 - found[0].se ** 2 == pytest.approx(1e-4)  # type: ignore[union-attr]


@given(
    st.tuples(st.integers(0, 50), st.integers(1, 50)), st.tuples(st.integers(0, 50), st.integers(1, 50)),
    st.floats(1e-5, 0.4),
)  # fmt: skip
def test_the_difference_of_two_shares_lies_within_its_bounds(
    a: tuple[int, int], b: tuple[int, int], tail: float
) -> None:
    one = Difference((min(a), max(a)), (min(b), max(b)))
    low, high = one.bounds(tail)
    assert -1.0 <= low <= one.value + 1e-12
    assert one.value - 1e-12 <= high <= 1.0


def test_the_interval_of_a_difference_of_shares_by_hand() -> None:
    """Newcombe's example 56/70 - 48/80 = 0.2; Wilson's bounds give 0.0524 to 0.3339, exact ones a bit more."""
    low, high = Difference((48, 80), (56, 70)).bounds(0.025)
    assert low == pytest.approx(0.0524, abs=0.012)
    assert low < 0.0524
    assert high == pytest.approx(0.3339, abs=0.012)
    assert high > 0.3339


@pytest.mark.parametrize(
    ("metric", "stat", "why"),
    [
        ("ttft", "p99.9", "p99.9 needs at least 2995 values, there are 400"),
        ("ttft", "max", "max has no interval"),
        ("requests_per_s_offered", "rate", "no measurement"),
        ("goodput", "rate", "nothing was measured"),
        ("ttft_scheduled", "mean", "nothing was measured"),
    ],
)
def test_what_has_no_interval_says_why(metric: str, stat: str, why: str) -> None:
    a = base().cells[0].measured
    assert a is not None
    found = contrast(a, a, METRICS[metric], stat)
    assert isinstance(found, Nothing)
    assert why in found.why


# -- how many requests ----------------------------------------------------------------------------------------------


def test_needed_requests_by_the_formula_for_two_means() -> None:
    # Cohen: n = 2 (z + z)^2 cv^2 / log(1.05)^2 with z = 1.96 and 1.2816, a little more for Student's t.
    plain = 2 * (1.95996 + 1.28155) ** 2 * 0.5**2 / np.log(1.05) ** 2
    assert plain < needed_requests(0.5, 0.05, between=0.0) < 1.12 * plain
    assert needed_requests(0.5, 0.05) > needed_requests(0.5, 0.05, between=0.0)
    assert needed_requests(0.5, 0.05, verdicts=40) > 1.5 * needed_requests(0.5, 0.05)
    assert needed_requests(0.0, 0.05) == 5


def test_what_no_number_of_requests_shows() -> None:
    with pytest.raises(UsageError, match="plan for more than 1"):
        needed_requests(0.1, 0.01)
    with pytest.raises(UsageError):
        needed_requests(float("nan"), 0.05)


def test_the_spread_of_a_run_is_that_of_its_requests() -> None:
    m = base().cells[0].measured
    assert m is not None
    values = m.cache["ttft"]
    assert relative_spread(m, METRICS["ttft"], "mean") == pytest.approx(values.std() / values.mean(), rel=0.25)
    assert np.isnan(relative_spread(m, METRICS["ttft"], "p99.9"))


# -- verdicts -------------------------------------------------------------------------------------------------------


def test_the_same_endpoint_shows_no_difference() -> None:
    found = versus(base(), side("again", BASE, seed=2))
    assert set(verdicts(found)) == {"no difference shown"}
    assert found.verdicts == 13


def test_a_slower_one_is_worse_in_times_and_rates_and_a_faster_one_better() -> None:
    other = side("other", replace(BASE, slower=1.2), seed=2)
    slower, faster = versus(base(), other), versus(other, base())
    for metric, stat in (("ttft", "mean"), ("tpot", "p99"), ("e2e", "p50"), ("output_tokens_per_s", "rate")):
        assert row(slower, metric, stat).verdict == "worse"
        assert row(faster, metric, stat).verdict == "better"


def test_all_verdicts_of_a_comparison_share_one_error() -> None:
    one = row(versus(base(), side("b", BASE, seed=2)), "tpot")
    cases = (BASE, *(replace(BASE, value=users) for users in (9, 10, 11)))
    four = row(versus(side("a", *cases), side("b", *cases, seed=2)), "tpot")
    assert one.high is not None
    assert four.high is not None
    assert four.high - four.low > one.high - one.low  # type: ignore[operator]


def test_cells_without_a_twin_are_listed() -> None:
    a = side("a", replace(BASE, value=1, requests=9), replace(BASE, value=9))
    b = side("b", replace(BASE, value=9), replace(BASE, value=2), replace(BASE, kind="rate", value=1.0), seed=2)
    found = versus(a, b)
    assert [pair.name for pair in found.pairs] == ["brief@9"]
    assert [cell.name for cell in found.only_base] == ["brief@1"]
    assert [cell.load.kind for cell in found.only_other] == ["concurrency", "rate"]


def test_open_loop_compares_from_the_scheduled_time() -> None:
    case = replace(BASE, kind="rate", value=8.0)
    names = {r.metric for r in versus(side("a", case), side("b", case, seed=2)).pairs[0].rows}
    assert {"ttft_scheduled", "e2e_scheduled"} <= names
    assert not {"ttft", "e2e"} & names


ODD = ("open", "failures", "censored", "grouped", "reasoning", "interrupted", "none", "empty", "one", "all_failed")


@pytest.mark.parametrize("name", ODD)
def test_every_odd_run_can_be_compared(name: str) -> None:
    a, b = (side_of_run("a", summarise(*synthetic.run(name, seed))) for seed in (1, 2))
    for x, y in ((a, b), (a, base()), (base(), a)):
        assert set(verdicts(versus(x, y))) <= {"no difference shown", "not decidable", "better", "worse"}
    assert not {"better", "worse"} & set(verdicts(versus(a, b)))


def test_one_or_three_requests_decide_nothing_about_times() -> None:
    for name in ("one", "three"):
        a, b = (side_of_run("a", summarise(*synthetic.run(name, seed))) for seed in (1, 2))
        assert row(versus(a, b), "ttft").verdict == "not decidable"


def test_an_invalid_measurement_is_never_decided() -> None:
    bad = side_of_run("bad", summarise(*synthetic.run("late_client")))
    good = side("good", StageCase(kind="rate", value=8.0), seed=2)
    assert bad.cells[0].invalid
    for found in (versus(bad, good), versus(good, bad)):
        assert set(verdicts(found)) == {"not decidable"}
        assert "INVALID" in row(found, "tpot").why


def test_who_drops_requests_is_not_faster_for_it() -> None:
    other = side("drops", replace(BASE, failed=0.2, slower=0.8), seed=2)
    found = versus(base(), other)
    assert row(found, "tpot").verdict == "not decidable"
    assert "survived" in row(found, "tpot").why
    assert row(found, "error_rate", "rate").verdict == "worse"
    assert row(versus(other, base()), "tpot").verdict == "not decidable"


# -- conditions -----------------------------------------------------------------------------------------------------


def kinds(of: Versus) -> dict[str, str]:
    return {condition.what: condition.kind for condition in of.all_conditions}


def test_what_nobody_told_is_never_called_alike() -> None:
    unknown = versus(base(), side("b", BASE))
    assert unknown.likeness == "unknown"
    assert kinds(unknown) == {"what the endpoint is": "unknown"}
    partly = versus(side("a", BASE, endpoint=KNOWN | {"unknown": ["GPU"]}), side("b", BASE, endpoint=KNOWN))
    assert partly.likeness == "unknown"
    assert kinds(partly) == {"GPU": "unknown"}
    known = versus(side("a", BASE, endpoint=KNOWN), side("b", BASE, endpoint=KNOWN))
    assert known.likeness == "alike"


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"versions": {"loadgen": "0.0.1"}}, "client version"),
        ({"clock": {"stamp_source": "process"}}, "stamp source"),
        ({"host": {"cpus": 3, "cpu": "other"}}, "client's processor"),
        ({"spec": {"warmup": 0}}, "warm-up requests"),
        ({"endpoint": {"ignore_eos": False}}, "output length forced by ignore_eos"),
        ({"endpoint": {"rtt_ns": 30_000_000}}, "network round trip"),
        ({"status": "interrupted"}, "state of the run"),
        ({"host": {"load_average_1m": 7.0, "cores": 2}}, "other work on the client's machine"),
    ],
)
def test_how_it_was_measured_must_be_alike(changed: dict[str, Any], what: str) -> None:
    idle = {"load_average_1m": 0.1, "cores": 2}
    found = versus(side("a", BASE, endpoint=KNOWN, host=idle), side("b", BASE, **({"endpoint": {}} | changed)))
    assert kinds(found)[what] == "unlike"
    assert found.likeness == "unlike"
    assert row(found, "tpot").verdict == "no difference shown"


def test_what_is_bad_on_both_sides_alike_is_no_difference() -> None:
    busy = {"load_average_1m": 5.35, "cores": 2}
    found = versus(*(side(name, BASE, endpoint=KNOWN, host=busy, status="interrupted") for name in "ab"))
    assert kinds(found) == {"state of the run": "both", "other work on the client's machine": "both"}
    assert {one.words for one in found.conditions} == {"interrupted", "load 5.35 on 2 cores"}
    assert found.likeness == "alike"


def test_what_is_compared_may_differ_and_is_listed() -> None:
    other = KNOWN | {"version": "2.0", "model": "other", "provenance": {"version": {"version": "2.0"}}}
    found = versus(side("a", BASE, endpoint=KNOWN), side("b", BASE, endpoint=other))
    assert found.likeness == "alike"
    assert kinds(found) == {"model": "subject", "version": "subject", "version: version": "subject"}


def _spec(prompt: str) -> dict[str, Any]:
    mix = [{"workload": "brief", "weight": 1.0, "prompt_tokens": prompt, "output_tokens": "20"}]
    return {"stages": [{"name": "brief@8", "mix": mix}]}


@pytest.mark.parametrize("by", ["spec", "requests", "arrivals", "cap"])
def test_another_question_is_refused(by: str) -> None:
    a, b = side("a", BASE), side("b", BASE, seed=2)
    if by == "spec":
        a, b = side("a", BASE, spec=_spec("2000")), side("b", BASE, spec=_spec("uniform:100..500"), seed=2)
    elif by == "requests":
        b = side("b", replace(BASE, workload="story", requests=40))
        b = replace(b, cells=(replace(b.cells[0], name="brief@8", workload="brief"),))
    else:
        load = replace(b.cells[0].load, **{"arrivals": {"arrivals": "constant"}, "cap": {"cap": 4}}[by])  # type: ignore[arg-type]
        b = replace(b, cells=(replace(b.cells[0], load=load),))
    found = versus(a, b)
    assert "refused" in kinds(found).values()
    assert set(verdicts(found)) == {"not decidable"}


def test_shorter_answers_are_not_a_faster_server() -> None:
    found = versus(base(), side("b", replace(BASE, short_by=4), seed=2))
    assert kinds(found)["output tokens got"] == "unlike"
    assert row(found, "e2e").verdict == "not decidable"
    assert "output tokens got" in row(found, "e2e").why
    assert row(found, "tpot").verdict == "no difference shown"


def test_another_tools_means_are_matched_by_load_and_lengths_and_not_decided() -> None:
    cells = (
        Foreign(510, 20, "concurrency", 8.0, ttft_s=0.05, itl_s=0.006),
        Foreign(600, 20, "concurrency", 8.0, ttft_s=0.05, itl_s=0.006),
        Foreign(500, 20, "batch", 8.0, ttft_s=0.05, itl_s=0.006),
    )
    found = versus(base(), side_of_cells("theirs.json", cells))
    assert found.likeness == "unknown"
    assert len(found.pairs) == 1
    assert len(found.only_other) == 1
    tpot = row(found, "tpot")
    assert tpot.change == pytest.approx(0.006 / (tpot.base or 0.0))
    assert (tpot.verdict, tpot.low) == ("not decidable", None)
    assert "no interval" in tpot.why


# -- the gate -------------------------------------------------------------------------------------------------------


def decisions(a: Side, b: Side, *expressions: str) -> list[Decision]:
    return list(decide(parse(expressions), compare(a, [b]), BETWEEN_RUNS))


@pytest.mark.parametrize(
    ("expression", "slower", "outcome"),
    [
        ("mean(tpot) worse by 5%", 1.0, "pass"),
        ("mean(tpot) worse by 5%", 1.2, "fail"),
        ("mean(tpot) worse by 5%", 1.05, "undecidable"),
        ("median(e2e) worse by 5 %", 0.8, "pass"),
        ("output_tokens_per_s worse by 5%", 1.2, "fail"),
        ("p50(output_tokens_per_s_per_user) worse by 5%", 1.2, "fail"),
        ("p50(output_tokens_per_s_per_user) worse by 5%", 1.0, "pass"),
        ("p99(chunk_gap) worse by 5%", 1.2, "fail"),
        ("p99(ttft) worse by 5%", 1.0, "undecidable"),
        ("error_rate worse by 3%", 1.0, "pass"),
        ("brief: mean(tpot) worse by 5%", 1.2, "fail"),
        ("brief@8: mean(tpot) worse by 5%", 1.2, "fail"),
    ],
)
def test_a_gate_is_decided_by_the_bound(expression: str, slower: float, outcome: str) -> None:
    (found,) = decisions(base(), side("b", replace(BASE, slower=slower), seed=2), expression)
    assert (found.outcome, found.expr) == (outcome, expression)


@pytest.mark.parametrize("expression", ["mean(tpot) worse by 5%", "p99(ttft) worse by 5%", "goodput worse by 5%"])
def test_a_run_that_sent_nothing_is_told_as_that(expression: str) -> None:
    (made,) = side("z", BASE).cells
    assert made.stage is not None
    assert made.measured is not None
    window = replace(made.measured.window, rows=made.measured.window.rows[:0])
    cell = replace(made, stage=replace(made.stage, measured=replace(made.measured, window=window)))
    (found,) = decisions(base(), replace(side("z", BASE), cells=(cell,)), expression)
    assert (found.outcome, "no request of the run was sent" in found.why) == ("undecidable", True)


def test_failed_requests_rank_as_infinitely_slow() -> None:
    few = side("few", replace(BASE, failed=0.2, slower=0.5), seed=2)
    assert [d.outcome for d in decisions(base(), few, "p99(ttft) worse by 50%")] == ["fail"]
    (mean,) = decisions(base(), few, "mean(ttft) worse by 50%")
    assert (mean.outcome, "error_rate" in mean.why) == ("undecidable", True)
    both = decisions(base(), few, "mean(ttft) worse by 50%, error_rate worse by 1%")
    assert [d.outcome for d in both] == ["pass", "fail"]
    # The median with failures behind is the 62nd percentile of the successes.
    same = side("same", replace(BASE, failed=0.2), seed=2)
    (half,) = decisions(base(), same, "p50(ttft) worse by 5%")
    plain = row(versus(base(), same), "ttft", "p50")
    assert half.change is not None
    assert plain.change is not None
    assert half.change > plain.change + 0.05


def test_what_was_not_measured_does_not_pass() -> None:
    two = side("two", BASE, StageCase("brief", value=9), seed=2)
    cut = side("cut", BASE, seed=3, status="interrupted")
    found = decisions(two, cut, "mean(tpot) worse by 10%")
    assert [(d.cell, d.outcome) for d in found] == [("brief@8", "pass"), ("brief@9", "undecidable")]
    apart = decisions(base(), side("x", StageCase("brief", value=9)), "mean(tpot) worse by 10%")
    assert [d.outcome for d in apart] == ["undecidable"]
    bad = side_of_run("bad", summarise(*synthetic.run("all_failed")))
    for a, b in ((base(), bad), (bad, base())):
        assert [d.outcome for d in decisions(a, b, "mean(tpot) worse by 10%")] == ["undecidable"]


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("ttft worse by 5%", "say which statistic"),
        ("p99(ttft) worse by 5", "write it as"),
        ("p99(ttft) worse", "write it as"),
        ("p99(ttft) > 5%", "write it as"),
        ("", "write it as"),
        ("p99(tftt) worse by 5%", "did you mean ttft"),
        ("mean(prompt_tokens) worse by 5%", "neither more nor less"),
        ("p999(error_rate) worse by 5%", "no statistic"),
        ("nowhere: p99(ttft) worse by 5%", "stages: brief@8"),
    ],
)
def test_a_mistake_says_what_would_be_right(expression: str, told: str) -> None:
    with pytest.raises(UsageError, match="--fail-on") as bad:
        decisions(base(), base(), expression)
    assert told in str(bad.value)


def test_more_gates_make_a_false_alarm_no_more_likely() -> None:
    other = side("b", replace(BASE, slower=1.061), seed=2)
    one = decisions(base(), other, "mean(tpot) worse by 5%")
    many: Sequence[Decision] = decisions(base(), other, *["mean(tpot) worse by 5%"] * 200)
    assert one[0].outcome == "fail"
    assert {d.outcome for d in many} == {"undecidable"}
