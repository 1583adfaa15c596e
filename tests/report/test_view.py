"""The view: every kind of run builds, figures are the summary's, series stay small, texts stay texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from loadgen.analysis.definitions import METRICS
from loadgen.analysis.numbers import significant
from loadgen.analysis.summary import Summary, summarise
from loadgen.report import figures, series
from loadgen.report.palette import THEMES
from loadgen.report.view import view
from tests import synthetic
from tests.report.made import summary_of, view_of
from tests.synthetic import StageCase


def _summary(name: str, slo: tuple[str, ...] = ()) -> Summary:
    return summarise(*synthetic.run(name), slo) if slo else summary_of(name)


@pytest.mark.parametrize("name", synthetic.CASES)
def test_every_kind_of_run_has_a_view_and_charts_of_plain_values(name: str) -> None:
    shown = view_of(name)
    json.dumps(shown, allow_nan=False)
    for chart in figures.build(shown["series"]).values():
        json.dumps({"data": chart.data, "layout": chart.layout}, allow_nan=False)
        assert chart.data
        for key, axis in chart.layout.items():
            if key.startswith(("xaxis", "yaxis")):
                assert axis["title"]["text"] or axis.get("type") == "category", f"{chart.title}: {key} has no title"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for one in value.values() for text in _texts(one))
    elif isinstance(value, list | tuple):
        yield from (text for one in value for text in _texts(one))


@pytest.mark.parametrize("name", synthetic.CASES)
def test_no_text_shows_a_value_that_is_not_there(name: str) -> None:
    shown = view_of(name)
    for text in _texts({key: value for key, value in shown.items() if key != "definitions"}):
        words = text.replace("(", " ").replace(")", " ").split()
        assert not {"nan", "inf", "None", "-inf"} & set(words), text


def test_cells_are_the_summary_s_values() -> None:
    summary = _summary("chat")
    shown = view(summary)
    (workload,) = shown["workloads"]
    blocks = {block["metric"]: block for block in workload["latency"]}
    assert {"ttft", "tpot", "itl", "e2e"} <= set(blocks)
    for metric, block in blocks.items():
        factor = {"s": 1.0, "ms": 1e3, "µs": 1e6}[block["unit"]]
        for stage, row in zip(summary.stages, block["rows"], strict=True):
            for stat, cell in zip(("mean", "p50", "p90", "p95", "p99"), row["cells"], strict=True):
                value = stage.get(metric, stat)
                assert value is not None
                assert value.value is not None
                assert cell["text"] == significant(value.value * factor)
                assert cell["weak"] == (not value.supported)


def test_percentiles_that_few_samples_cannot_support_are_marked() -> None:
    (workload,) = view_of("three")["workloads"]
    ttft = workload["latency"][0]["rows"][0]["cells"]
    assert [cell["weak"] for cell in ttft] == [False, True, True, True, True]


def test_open_loop_shows_what_a_user_on_schedule_waits() -> None:
    shown = view_of("open")
    assert [block["metric"] for block in shown["workloads"][0]["latency"]].count("ttft_scheduled") == 1
    assert shown["series"]["arrivals"]
    assert view_of("chat")["series"]["arrivals"] == []


def test_itl_percentiles_give_way_to_gaps_when_events_hold_several_tokens() -> None:
    (workload,) = view_of("grouped")["workloads"]
    blocks = {block["metric"]: block["rows"][0]["cells"] for block in workload["latency"]}
    assert [cell["text"] != "n/a" for cell in blocks["itl"]] == [True, True, False, False, False]
    assert all(cell["text"] != "n/a" for cell in blocks["chunk_gap"])


def test_errors_are_told_by_kind_with_what_was_said() -> None:
    summary = _summary("failures")
    errors = view(summary)["errors"]
    (stage,) = summary.stages
    assert sum(row["count"] for row in errors["samples"]) == stage.counts.failed > 0
    assert set(errors["kinds"]) == set(stage.errors)
    assert any("<script>" in row["message"] for row in errors["samples"])
    assert view_of("chat")["errors"]["rows"] == []


def test_an_slo_is_shown_with_its_verdict_and_drawn_as_a_limit() -> None:
    slo = ("p99(ttft) < 1ms", "ttft < 10s and tpot < 50ms, goodput > 0.1", "p50(output_tokens_per_s_per_user) > 20")
    shown = view(_summary("chat", slo))
    assert {row["outcome"] for row in shown["slo"] if row["expr"] == "p99(ttft) < 1ms"} == {"fail"}
    assert {(limit["axis"], limit["at"]) for limit in shown["series"]["limits"]} == {
        ("ttft", 1e-3),
        ("ttft", 10.0),
        ("user", 20.0),
    }
    assert "goodput" in figures.build(shown["series"])
    assert "goodput" not in figures.build(view_of("chat")["series"])


def test_the_method_is_the_metric_table() -> None:
    shown = view_of("none")
    assert {row["name"]: row["formula"] for row in shown["definitions"]} == {
        name: metric.formula for name, metric in METRICS.items()
    }


def test_a_distribution_keeps_true_points_and_both_ends() -> None:
    rng = np.random.default_rng(3)
    values = np.sort(rng.lognormal(0.0, 1.0, 50_000))
    x, share = series._curve(values, np.ones(len(values)))
    assert len(x) <= series.CURVE_POINTS
    assert x[0] == pytest.approx(values[0], rel=1e-4)
    assert x[-1] == pytest.approx(values[-1], rel=1e-4)
    for one, part in zip(x, share, strict=True):
        assert part == pytest.approx(np.searchsorted(values, one * 1.00001) / len(values), abs=2e-3)


def test_thinned_dots_keep_the_slowest() -> None:
    info, rows = synthetic.build((StageCase(requests=400, value=4.0),))
    summary = summarise(info, synthetic.frame(rows))
    m = summary.stages[0].measured
    sent, ttft = series._dots(m, 50)
    assert len(sent) == len(ttft) == 50
    ttft_p100 = summary.stages[0].get("ttft", "max")
    assert ttft_p100 is not None
    assert max(value for value in ttft if value is not None) == pytest.approx(ttft_p100.value, rel=1e-4)


def test_timeline_blocks_hold_every_token_and_every_failure() -> None:
    summary = _summary("failures")
    (stage,) = view(summary)["series"]["timeline"]
    seconds = (stage["end"] - stage["start"]) / len(stage["tokens_per_s"])
    rate = summary.stages[0].get("output_tokens_per_s", "rate")
    assert rate is not None
    assert rate.value is not None
    window = stage["end"] - stage["start"]
    assert sum(stage["tokens_per_s"]) * seconds == pytest.approx(rate.value * window, rel=1e-3)
    assert sum(stage["failed"]) == summary.stages[0].counts.failed


def test_the_heat_map_of_ttft_holds_every_answer_at_its_time_and_size() -> None:
    summary = _summary("chat")
    stages = view(summary)["series"]["timeline"]
    for stage, of in zip(stages, summary.stages, strict=True):
        heat, ttft = stage["ttft_heat"], np.array(stage["ttft"])
        share = np.array([[np.nan if x is None else x for x in row] for row in heat["share"]])
        assert share.shape == (len(heat["sizes"]) - 1, len(heat["times"]) - 1)
        assert np.nansum(share, axis=0) == pytest.approx(np.ones(share.shape[1]), abs=2e-3)
        assert share.shape[1] <= of.counts.ok // 4
        assert heat["sizes"][-1] >= max(ttft) >= heat["sizes"][-2] * 0.999
        assert heat["times"][0] == pytest.approx(min(stage["sent"]), rel=1e-4)
        # The slowest answer stands in the top row, in the column of its send.
        column = np.searchsorted(heat["times"], stage["sent"][int(np.argmax(ttft))], side="right") - 1
        assert share[-1, min(column, share.shape[1] - 1)] > 0
    few = view_of("three")["series"]
    assert few["timeline"][0]["ttft_heat"] is None
    assert "ttft-heat" not in figures.build(few)


def test_loads_are_marked_by_the_worst_outcome_of_their_slos() -> None:
    slo = ("chat@1: p50(ttft) < 1ms", "chat@1: p50(ttft) < 10s", "chat@8: p99(ttft) < 10s, chat@32: p50(ttft) < 10s")
    series_of = view(_summary("chat", slo))["series"]
    assert series_of["loads"][0]["slo"] == ["fail", "undecidable", "pass"]
    chart = figures.build(series_of)["throughput"]
    assert chart.data[0]["marker"]["symbol"] == ["x", "circle-open", "circle"]
    assert "At a cross an SLO fails." in chart.caption
    assert "At a ring" not in figures.build(view_of("chat")["series"])["throughput"].caption


@pytest.mark.parametrize(
    ("slo", "told"),
    [
        ((), "No SLO was set."),
        (("p50(ttft) < 10s",), "The SLO holds on every stage that it speaks of."),
        (("p50(ttft) < 1ms", "p50(e2e) < 1ms"), "The SLO fails on chat@1, chat@8, chat@32."),
        (
            ("chat@32: p50(ttft) < 1ms", "p99(ttft) < 1s"),
            "The SLO fails on chat@32; it cannot be decided on chat@1, chat@8.",
        ),
    ],
)
def test_the_header_says_whether_the_slo_holds(slo: tuple[str, ...], told: str) -> None:
    assert view(_summary("chat", slo))["tagline"].endswith(f". {told}")


@pytest.mark.parametrize(("name", "told"), [("chat", "Decode"), ("interrupted", "The run was interrupted. Decode")])
def test_the_header_says_that_a_run_was_cut_short(name: str, told: str) -> None:
    assert view(_summary(name))["tagline"].startswith(told)


def test_a_limit_is_named_by_itself_in_a_chart() -> None:
    slo = ("chat: ttft < 1s and tpot < 50ms", "p50(output_tokens_per_s_per_user) > 20.5")
    texts = {limit["text"] for limit in view(_summary("chat", slo))["series"]["limits"]}
    assert texts == {"chat: ttft < 1 s", "chat: tpot < 50 ms", "p50(output_tokens_per_s_per_user) > 20.5 tokens/s"}


def test_the_slowest_request_is_the_slowest() -> None:
    summary = _summary("mixed")
    rows = view(summary)["slowest"]
    assert len(rows) == 10
    assert all(row["events"] == sorted(row["events"]) for row in rows)
    # 250 drawn at most, the two ends of the longest gap kept.
    assert all(len(row["events"]) <= 252 and len(row["stall"]) == 2 for row in rows)


def _sizes(requests: int) -> int:
    info, rows = synthetic.build((StageCase(requests=requests, value=16.0, warmup=0),))
    return len(json.dumps(view(summarise(info, synthetic.frame(rows)))))


def test_the_view_does_not_grow_with_the_run() -> None:
    assert _sizes(4000) < 1.25 * _sizes(2000)


def _tokens(value: Any) -> Iterator[str]:
    return (text[1:] for text in _texts(value) if text.startswith("@"))


def test_every_colour_token_of_a_chart_is_known_in_both_themes() -> None:
    charts = figures.build(view(_summary("mixed", ("p99(ttft) < 1s", "p50(tpot) < 10ms")))["series"])
    used = {token for chart in charts.values() for token in _tokens([chart.data, chart.layout])}
    assert used
    assert used <= set(THEMES["light"])
    assert set(THEMES["light"]) == set(THEMES["dark"])


def _luminance(color: str) -> float:
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    """WCAG 2.1 contrast ratio."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_lines_have_contrast(theme: str) -> None:
    from loadgen.report import palette

    tokens = THEMES[theme]
    for name in ("ink", "muted", "link", "good", "fair", "bad"):
        for ground in ("page", "panel"):
            assert _contrast(tokens[name], tokens[ground]) >= 4.5, (name, ground)
    for wash in ("good", "fair", "bad"):
        assert _contrast(tokens[wash], tokens[f"{wash}-wash"]) >= 4.5, wash
    for color in (*palette.SERIES, palette.PREFILL, palette.DECODE, palette.BAD):
        assert _contrast(color, tokens["panel"]) >= 3.0, color


@pytest.mark.parametrize("name", ["mixed", "open"])
def test_a_chart_is_a_plotly_figure_too(name: str) -> None:
    for chart in figures.build(view_of(name)["series"]).values():
        figure = figures.notebook(chart)  # plotly checks every property
        assert len(figure.data) == len(chart.data)
