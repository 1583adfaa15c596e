"""Parts of charts: ticks of log axes, the knee, the server's series, figures that work in a notebook."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.server import Scrape, ServerLog
from loadgen.analysis.summary import summarise
from loadgen.report import figures
from loadgen.report.chart import log_axis, ticks
from loadgen.report.palette import THEMES
from loadgen.report.server import POINTS, panels, table
from loadgen.report.stages import groups, knee
from loadgen.report.view import view
from tests import synthetic
from tests.report.made import summary_of
from tests.synthetic import StageCase


@given(st.floats(-9, 15), st.floats(0.08, 8))
def test_a_log_axis_has_a_few_round_ticks_inside_its_range(low: float, span: float) -> None:
    found = ticks(10.0**low, 10.0 ** (low + span))
    assert 2 <= len(found) <= 12
    assert found == sorted(set(found))
    assert all(10.0**low <= tick * 1.000001 and tick <= 10.0 ** (low + span) * 1.000001 for tick in found)
    texts = log_axis("x", [10.0**low, 10.0 ** (low + span)], "s")["ticktext"]
    assert len(set(texts)) == len(texts)


def test_ticks_by_hand() -> None:
    assert ticks(0.9, 11.0) == [1, 2, 5, 10]
    assert ticks(0.0009, 1.1) == [0.001, 0.01, 0.1, 1.0]
    assert ticks(5.0, 6.1) == pytest.approx([5.0, 5.2, 5.4, 5.6, 5.8, 6.0])


def test_the_knee_is_where_more_load_pays_badly() -> None:
    # The made-up server's step takes 5 ms and 50 us for each user, so four times the users bring 2.3 to 3.3 times the
    # rate: over the root of four. With steps four and eight times as long they bring less than before.
    cases = [StageCase("story", value=users, requests=users * 2) for users in (8, 32, 128)]
    (group,) = groups(summarise(*_run(cases)))
    assert knee(group.stages) is None
    rates = [stage.value("output_tokens_per_s", "rate") or 0.0 for stage in group.stages]
    assert rates == sorted(rates)
    flat = [replace(cases[0]), replace(cases[1], slower=4.0), replace(cases[2], slower=8.0)]
    (group,) = groups(summarise(*_run(flat)))
    found = knee(group.stages)
    assert found is group.stages[0]
    assert knee(group.stages[:2]) is None


def _run(cases: list[StageCase]) -> tuple[synthetic.RunInfo, synthetic.Requests]:
    info, rows = synthetic.build(tuple(cases))
    return info, synthetic.frame(rows)


def test_the_server_is_shown_by_stage_and_over_time() -> None:
    info, requests = synthetic.run("chat")
    start, end = info.stages[0].start_ns or 0, info.stages[-1].end_ns or 0
    moments = np.linspace(start, end, 2000).astype(int).tolist()
    scrapes = [
        Scrape(t, 0, i, 0, ("vllm",), {"running": float(i % 7), "kv_usage": 0.25, "generation_tokens": 10.0 * i})
        for i, t in enumerate(moments)
    ]
    summary = summarise(info, requests, server=ServerLog(tuple(scrapes)))
    shown = table(summary)
    assert [row["stage"] for row in shown["rows"]] == [stage.name for stage in info.stages]
    cells = dict(zip(shown["heads"], shown["rows"][-1]["cells"], strict=True))
    assert cells["running, max"] == "6"
    assert cells["KV cache in use, mean"] == "25.0 %"
    drawn = panels(summary.server)
    assert [panel["title"] for panel in drawn] == ["requests", "share", "tokens/s"]
    line = drawn[0]["lines"][0]
    assert len(line["x"]) <= 2 * POINTS
    assert max(line["y"]) == 6
    assert min(line["y"]) == 0
    assert figures.build(view(summary)["series"])["server"].data


def test_a_run_without_telemetry_has_no_such_part() -> None:
    assert table(summary_of("chat"))["rows"] == []
    assert panels(None) == []


def test_every_chart_is_a_plotly_figure_in_a_notebook() -> None:
    for chart in figures.build(view(summary_of("censored"))["series"]).values():
        figure = figures.notebook(chart)  # plotly refuses what it does not know
        assert figure.layout.title.text == chart.title
        assert '"@' not in figure.to_json()


def test_tokens_are_replaced_at_any_depth_and_other_words_stay() -> None:
    light = THEMES["light"]
    given = {"a": ["@ink", {"b": "@nobody"}], "c": 1}
    assert figures.resolved(given, light) == {"a": [light["ink"], {"b": "@nobody"}], "c": 1}
