"""A matrix in figures: intervals that hold, a front that is one, the best setting, what a reader is told."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from loadgen.analysis.compare import compare
from loadgen.analysis.compare_repeats import compare_repeats
from loadgen.analysis.compare_sides import Cell, Side, side_of_run
from loadgen.analysis.compare_stats import Difference, Nothing, Ratio
from loadgen.analysis.matrix import CellOver, Matrix, Visit, _with_front, matrix, whole_side
from loadgen.analysis.matrix_findings import judge
from loadgen.analysis.repeats import Over, _mean, _pooled, joined
from loadgen.analysis.summary import summarise
from loadgen.cli.matrix import exit_code
from loadgen.errors import EndpointError
from loadgen.model import Load
from tests import synthetic
from tests.synthetic import StageCase

CASES = (StageCase("brief", value=2, requests=40), StageCase("brief", value=8, requests=120))
SLO = ("p50(ttft) < 60s",)


@cache
def side(name: str, slower: float = 1.0, seed: int = 1, slo: tuple[str, ...] = SLO, gpus: int = 1) -> Side:
    info, rows = synthetic.build(tuple(replace(case, slower=slower) for case in CASES), seed)
    info.spec = info.spec | {"roofline": {"gpu": "h100-sxm", "gpus": gpus, "price_per_gpu_hour": 2.5}}
    return whole_side(side_of_run(name, summarise(info, synthetic.frame(rows), slo)))


def made(*settings: tuple[str, float], rounds: int = 2, slo: tuple[str, ...] = SLO) -> Matrix:
    visits = [
        Visit(name, number, "done", side(name, slower, number, slo), f"r{number}-{name}")
        for number in range(1, rounds + 1)
        for name, slower in settings
    ]
    return matrix([name for name, _ in settings], visits)


# -- intervals over repeats ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("between", [0.0, 0.05])
def test_the_interval_of_a_mean_over_rounds_holds_what_it_should(between: float) -> None:
    """Log values with known errors within and between runs, 12 cells of 2 rounds: 95 of 100 intervals hold 0."""
    rng, hits, tries = np.random.default_rng(3), 0, 60
    within = 0.02**2
    for _ in range(tries):
        groups = [list(rng.normal(0.0, math.sqrt(within + between**2), 2)) for _ in range(12)]
        own = [[within, within]] * 12
        pooled = _pooled(groups, own, 0.0035)
        found = [_mean(logs, mine, pooled, "s") for logs, mine in zip(groups, own, strict=True)]
        hits += sum(one.low < 1.0 < one.high for one in found if one.low is not None and one.high is not None)
    assert 0.92 <= hits / tries / 12 <= 0.98


def test_what_differs_between_rounds_widens_every_interval() -> None:
    calm = joined([[Ratio(0.1, 0.01, 20.0), Ratio(0.1, 0.01, 20.0)]] * 4)[0]
    wild = joined([[Ratio(0.0, 0.01, 20.0), Ratio(0.2, 0.01, 20.0)]] * 4)[0]
    once = joined([[Ratio(0.1, 0.01, 20.0)]])[0]
    assert isinstance(calm, Ratio)
    assert isinstance(wild, Ratio)
    assert isinstance(once, Ratio)
    assert calm.log == pytest.approx(wild.log)
    assert calm.se < once.se < wild.se
    assert once.se == pytest.approx(math.hypot(0.01, 0.005))  # as two single runs are compared


def test_shares_are_added_up_and_nothing_stays_nothing() -> None:
    share, none = joined([[Difference((1, 10), (2, 10)), Difference((0, 10), (3, 10))], [Nothing("why"), Nothing("x")]])
    assert isinstance(share, Difference)
    assert (share.base, share.other) == ((1, 20), (5, 20))
    assert none == Nothing("why")


def test_one_round_is_compared_as_two_runs_are() -> None:
    a, b = side("a"), side("b", 1.3)
    whole, (plain,) = compare_repeats([(a, b)]), compare(a, [b])
    assert whole.verdicts == plain.verdicts
    for x, y in zip(whole.pairs, plain.pairs, strict=True):
        assert [row.verdict for row in x.rows] == [row.verdict for row in y.rows]
        for one, other in zip(x.rows, y.rows, strict=True):
            assert one.change == pytest.approx(other.change)
            assert (one.low is None) == (other.low is None)
            assert one.low is None or one.low == pytest.approx(other.low, rel=0.02, abs=1e-6)


# -- the whole -----------------------------------------------------------------------------------------------------


def test_every_cell_is_over_its_rounds_and_the_slower_setting_is_worse() -> None:
    found = made(("fast", 1.0), ("slow", 1.4))
    assert [(cell.setting, cell.name, len(cell.cells)) for cell in found.cells] == [
        (name, cell, 2) for name in ("fast", "slow") for cell in ("brief@2", "brief@8")
    ]
    key = ("tpot", "p50")
    for cell in found.cells:
        over, each = cell.get(key), [one.value(*key) for one in cell.cells]
        assert over is not None
        assert over.value == pytest.approx(math.sqrt((each[0] or 0.0) * (each[1] or 0.0)))
        assert over.low is not None
        assert over.low < (over.value or 0.0)
        assert cell.outcome == "pass"
        assert cell.costs.per_million is not None
    (versus,) = found.versus
    verdicts = {
        row.verdict for pair in versus.pairs for row in pair.rows if row.metric == "tpot" and row.stat == "mean"
    }
    assert verdicts == {"worse"}
    (best,) = found.best
    assert [(row.setting, row.verdict) for row in best.rows] == [("fast", "best"), ("slow", "worse")]
    assert best.rows[0].cell is not None
    assert best.rows[0].cell.name == "brief@8"
    assert {cell.front for cell in found.cells if cell.setting == "slow"} <= {"behind", "within the error"}
    assert all(cell.front == "front" for cell in found.cells if cell.setting == "fast")


def test_two_settings_that_are_one_show_no_difference() -> None:
    a = made(("one", 1.0), ("two", 1.0))
    assert all(
        row.verdict in ("no difference shown", "not decidable") for v in a.versus for p in v.pairs for row in p.rows
    )
    assert a.best[0].rows[1].verdict == "no difference shown"
    assert all(cell.front in ("front", "within the error") for cell in a.cells)


def test_several_objectives_are_judged_together_and_each() -> None:
    slo = ("p50(ttft) < 60s", "p50(ttft) < 1us")
    found = made(("a", 1.0), slo=slo)
    assert [(one.expr, one.outcome) for one in found.best] == [("", "fail"), (slo[0], "pass"), (slo[1], "fail")]


def test_rates_are_by_gpu_where_every_setting_says_how_many_it_has() -> None:
    visits = [Visit("a", 1, "done", side("a")), Visit("b", 1, "done", side("b", gpus=2))]
    found = matrix(["a", "b"], visits)
    assert found.by_gpu
    by_name = {(cell.setting, cell.name): cell for cell in found.cells}
    one, two = (by_name[name, "brief@8"].per_gpu for name in ("a", "b"))
    assert one is not None
    assert two is not None
    assert (one.value or 0.0) == pytest.approx(2 * (two.value or 0.0))


def test_a_stage_that_was_cut_and_done_again_counts_once() -> None:
    info, rows = synthetic.build((CASES[0], CASES[0]))
    info.stages[0].stopped = "interrupted"
    found = whole_side(side_of_run("a", summarise(info, synthetic.frame(rows))))
    assert [cell.stage.info.stage for cell in found.cells if cell.stage] == [1]


def _point(user: float, server: float, error: float = 0.01) -> CellOver:
    figures = {
        ("output_tokens_per_s_per_user", "p50"): Over(user, user * (1 - error), user * (1 + error), 2, "tokens/s"),
        ("output_tokens_per_s", "rate"): Over(server, server * (1 - error), server * (1 + error), 2, "tokens/s"),
    }
    return CellOver("s", f"{user}", "w", Load("concurrency", 1), (), figures, {})


def test_the_front_holds_what_no_other_beats_in_both() -> None:
    points = [_point(100, 100), _point(50, 300), _point(99.5, 99.5), _point(40, 200), _point(10, 301)]
    assert [cell.front for cell in _with_front(points)] == ["front", "front", "within the error", "behind", "front"]


# -- findings and the exit code ------------------------------------------------------------------------------------


def _codes(found: Matrix) -> dict[str, str]:
    return {one.code: one.severity for one in judge(found)}


def test_what_was_not_measured_is_a_finding_and_the_others_stand() -> None:
    visits = [
        Visit("a", 1, "done", side("a"), "r1-a"),
        Visit("b", 1, "failed", error="the server ended with exit code 1"),
        Visit("c", 1, "died", side("c"), "r1-c", "the server was killed by signal 9"),
        Visit("a", 2, "waiting"),
    ]
    found = matrix(["a", "b", "c"], visits)
    codes = _codes(found)
    assert codes["not_measured"] == "invalid"
    assert codes["server_died"] == "invalid"
    assert codes["incomplete"] == "questionable"
    assert any("exit code 1" in one.message for one in judge(found))
    assert found.measured == ("a", "c")


def test_rounds_that_differ_and_a_common_drift_are_told() -> None:
    names = ("a", "b")
    visits = [
        Visit(name, number, "done", side(name, 1.0 if number == 1 else 1.5, number), f"r{number}-{name}")
        for number in (1, 2)
        for name in names
    ]
    codes = _codes(matrix(names, visits))
    assert codes["rounds_differ"] == "questionable"
    assert codes["drift"] == "info"
    calm = _codes(made(("a", 1.0), ("b", 1.0)))
    assert "drift" not in calm
    assert "rounds_differ" not in calm
    assert "one_round" in _codes(made(("a", 1.0), rounds=1))


def test_the_exit_code_follows_the_best_setting() -> None:
    class Report:
        def __init__(self, matrix: Matrix) -> None:
            self.matrix, self.folder = matrix, "M"

    assert exit_code(Report(made(("a", 1.0), ("b", 1.4)))) == 0  # type: ignore[arg-type]
    assert exit_code(Report(made(("a", 1.0), slo=("p50(ttft) < 1us",)))) == 1  # type: ignore[arg-type]
    assert exit_code(Report(made(("a", 1.0), slo=("p99.9(ttft) < 60s",)))) == 3  # type: ignore[arg-type]
    with pytest.raises(EndpointError, match="no setting"):
        exit_code(Report(matrix(["a"], [Visit("a", 1, "failed")])))  # type: ignore[arg-type]


def test_a_cell_of_another_tool_has_no_figures_here() -> None:
    foreign = Side("x", (Cell("c", "w", Load("concurrency", 1), 1.0, 1.0),))
    assert whole_side(foreign).cells == ()
