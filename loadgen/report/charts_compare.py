"""Charts of a comparison: changes with their intervals, curves over load, and roofs, one colour for each run.

Knows: which series each of them draws. Must not know: how a series is computed, HTML.
Why: wherever a run and a workload play the same part in a chart, the report's chart is used as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from loadgen.report import charts_load, charts_time, palette
from loadgen.report.chart import Chart, Trace, axis, decades, layout, line_at, log_axis, plain

_TONE = {"worse": "@bad", "better": "@good", "no difference shown": "@muted", "not decidable": "@rule"}
_SYMBOLS = {"prefill": "diamond", "decode": "circle"}
_OVER_LOAD: tuple[tuple[str, str, Callable[[dict[str, Any]], Chart | None]], ...] = (
    ("throughput", "throughput against what each user gets", charts_load.throughput),
    ("ttft-load", "TTFT over load", charts_load.ttft_over_load),
    ("goodput", "goodput over load", charts_load.goodput),
)


def build(series: dict[str, Any]) -> dict[str, Chart]:
    """Every chart that there is data for, by name, in the order of the page."""
    found: dict[str, Chart | None] = {f"ratios-{i}": ratios(one) for i, one in enumerate(series["ratios"])}
    for i, curves in enumerate(series["curves"]):
        for name, title, draw in _OVER_LOAD:
            found[f"{name}-{i}"] = _retitled(draw(curves), f"{curves['workload']}: {title}")
    found |= charts_time.distributions(series["distributions"])
    found["rooflines"] = rooflines(series["rooflines"])
    return {name: chart for name, chart in found.items() if chart is not None}


def _retitled(chart: Chart | None, title: str) -> Chart | None:
    return None if chart is None else Chart(title, chart.caption, chart.data, chart.layout, chart.height)


def ratios(of: dict[str, Any]) -> Chart | None:
    """Each change as a point with its interval, beside the line of no change; the first cell at the top."""
    rows = of["rows"][::-1]
    if not rows:
        return None
    data: list[Trace] = []
    for verdict, color in _TONE.items():
        mine = [row for row in rows if row["verdict"] == verdict]
        if mine:
            data.append(_changes(verdict, color, mine))
    ends = [x for row in rows for x in (row["low"], row["high"], row["change"]) if x is not None and math.isfinite(x)]
    left, right = decades([*ends, 1.0], 0.1)
    left, right = max(left, math.log10(0.1)), min(right, math.log10(10.0))
    more = f" {of['left_out']} more changes stand in the table." if of["left_out"] else ""
    return Chart(
        f"{of['name']} against {of['base']}",
        "Left of the line less, right of it more than the baseline. Of times less is better, of rates more. All "
        f"intervals hold together with 95 %: what crosses the line is no difference shown.{more}",
        data,
        layout(
            log_axis("this run / baseline", [10.0**left, 10.0**right], "", room=0.05) | {"range": [left, right]},
            axis("", type="category", categoryorder="array", categoryarray=[plain(row["label"]) for row in rows]),
            shapes=[line_at("x", 1.0) | {"line": {"color": "@ink", "width": 1}}],
        ),
        max(220, 120 + 24 * len(rows)),
    )


def _changes(verdict: str, color: str, rows: list[dict[str, Any]]) -> Trace:
    sides = [(row["low"] or row["change"], row["high"] or row["change"]) for row in rows]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": verdict,
        "x": [row["change"] for row in rows],
        "y": [plain(row["label"]) for row in rows],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [min(high, 1e3) - row["change"] for row, (_, high) in zip(rows, sides, strict=True)],
            "arrayminus": [row["change"] - low for row, (low, _) in zip(rows, sides, strict=True)],
            "color": color,
            "thickness": 1.5,
            "width": 4,
        },
        "customdata": [[low, high] for low, high in sides],
        "marker": {"color": color, "size": 9},
        "hovertemplate": "%{y}<br>%{x:.3f} (%{customdata[0]:.3f} to %{customdata[1]:.3f})<br>" + verdict,
    }


def rooflines(runs: list[dict[str, Any]]) -> Chart | None:
    """The roof of each run and its points under it; runs on the same hardware share a roof."""
    points = [point for run in runs for point in run["points"]]
    if not points:
        return None
    ridges = [run["peak"] / run["bandwidth"] for run in runs]
    left, right = decades([*(point["intensity"] for point in points), *ridges], 1.0)
    low, high = 10.0**left, 10.0**right
    data: list[Trace] = []
    for gpu, some in itertools.groupby(sorted(runs, key=lambda run: run["gpu"]), key=lambda run: run["gpu"]):
        users = list(some)
        data.append(_roof(gpu, users, low, high))
    for run in runs:
        for phase in _SYMBOLS:
            mine = [point for point in run["points"] if point["phase"] == phase]
            if mine:
                data.append(_points(run, phase, mine))
    ys = [min(point["achieved"] for point in points), *(run["peak"] for run in runs)]
    return Chart(
        "Every run under its own roof, log-log",
        "The distance of a point to the roof of its colour is what is left to gain there. Rates are of all GPUs of a "
        "run. A prefill point includes waiting, so it is a lower bound.",
        data,
        layout(
            log_axis("arithmetic intensity (FLOP/byte)", [low, high], "") | {"range": [left, right]},
            log_axis("achieved", ys, "FLOP/s", room=1.0),
        ),
        480,
    )


def _roof(gpu: str, users: list[dict[str, Any]], low: float, high: float) -> Trace:
    peak, bandwidth = users[0]["peak"], users[0]["bandwidth"]
    color = palette.series(users[0]["number"])[0] if len(users) == 1 else "@ink"
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(f"roof of {gpu}"),
        "x": [low, peak / bandwidth, high],
        "y": [low * bandwidth, peak, peak],
        "line": {"color": color, "width": 2},
        "hovertemplate": f"ridge {peak / bandwidth:.4g} FLOP/byte, peak %{{y:.3~s}}FLOP/s",
    }


def _points(run: dict[str, Any], phase: str, some: list[dict[str, Any]]) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{plain(run['name'])} {phase}",
        "x": [point["intensity"] for point in some],
        "y": [point["achieved"] for point in some],
        "customdata": [[plain(point["label"]), point["share"], point["bound"]] for point in some],
        "marker": {
            "color": palette.series(run["number"])[0],
            "size": 10,
            "symbol": _SYMBOLS[phase],
            "opacity": 0.9,
            "line": {"color": "@panel", "width": 1},
        },
        "hovertemplate": "%{customdata[0]}<br>%{x:.3~g} FLOP/byte, %{y:.3~s}FLOP/s<br>"
        "%{customdata[1]:.0%} of the roof, %{customdata[2]}-bound",
    }
