"""`guard_right` as a metric of a stage: its gate, its finding, and what is said when nobody asked."""

from __future__ import annotations

import pytest

from loadgen.analysis.summary import summarise
from tests.analysis.made import frame, ok, run, stage


@pytest.mark.parametrize(
    ("right", "asked", "codes", "outcome"),
    [
        (32, 32, set(), "pass"),
        (30, 32, set(), "undecidable"),
        (0, 32, {"wrong_answers"}, "fail"),
        (8, 32, {"wrong_answers"}, "fail"),
        (2, 5, set(), "fail"),  # too few to accuse
        (0, 0, {"guard_unanswered"}, "undecidable"),
    ],
)
def test_the_gate_and_the_finding(right: int, asked: int, codes: set[str], outcome: str) -> None:
    info = run(stage(requests=300))
    info.stages[0].health |= {"guard_right": float(right), "guard_asked": float(asked)}
    rows = frame([ok(i, sent=0.03 * i, events=[0.2 + 0.01 * k for k in range(5)]) for i in range(300)])
    summary = summarise(info, rows, ["guard_right > 85%"])
    assert {f.code for f in summary.findings} & {"wrong_answers", "guard_unanswered"} == codes
    assert summary.slo[0].outcome == outcome


def test_nothing_is_said_where_nobody_asked() -> None:
    rows = frame([ok(i, sent=0.03 * i, events=[0.2, 0.3]) for i in range(40)])
    summary = summarise(run(stage(requests=40)), rows)
    assert summary.stages[0].get("guard_right", "rate") is None
    assert not {f.code for f in summary.findings} & {"wrong_answers", "guard_unanswered"}
