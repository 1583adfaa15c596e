"""Charts of a matrix: the Pareto view of each workload, and what each setting serves while it keeps the SLO.

Knows: which series each of them draws. Must not know: how a series is computed, HTML.
"""

from __future__ import annotations

import itertools
from typing import Any

from loadgen.report import palette
from loadgen.report.chart import Chart, Trace, axis, errors, layout, log_axis, plain

_OUTCOMES = {"": "circle", "pass": "circle", "undecidable": "circle-open", "fail": "x"}


def build(series: dict[str, Any]) -> dict[str, Chart]:
    """Every chart that there is data for, by name, in the order of the page."""
    found: dict[str, Chart | None] = {f"pareto-{i}": pareto(one) for i, one in enumerate(series["pareto"])}
    found |= {f"served-{i}": served(one) for i, one in enumerate(series["served"])}
    return {name: chart for name, chart in found.items() if chart is not None}


def pareto(of: dict[str, Any]) -> Chart | None:
    """Whole server against each user, a line for each setting over its loads, and the front of them all."""
    lines = of["lines"]
    if not lines:
        return None
    spans = {side: [x for one in lines for end in one[side].values() for x in end] for side in ("user", "server")}
    data: list[Trace] = [_front(lines)] if len(lines) > 1 else []
    data += [_setting(one) for one in lines]
    judged = any(outcome for one in lines for outcome in one["slo"])
    marks = " A ring: the SLO cannot be decided; a cross: it fails." if judged else ""
    return Chart(
        f"{of['workload']}: whole server against each user",
        "Up and to the right is better. A line is a setting, its numbers are loads, the grey band joins the points "
        f"that no other beats in both. Bars: 95 % intervals over the rounds.{marks}",
        data,
        layout(
            log_axis("output tokens/s per user, p50", spans["user"], ""),
            log_axis(f"output {of['server_label']}", spans["server"], ""),
        ),
        460,
    )


def _front(lines: list[dict[str, Any]]) -> Trace:
    """The points of the front as a staircase, from the slowest user to the fastest."""
    points = sorted(
        (x, y)
        for one in lines
        for x, y, on in zip(one["user"]["value"], one["server"]["value"], one["front"], strict=True)
        if on
    )
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "Pareto front",
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": {"color": "@rule", "width": 12, "shape": "vh"},
        "hoverinfo": "skip",
    }


def _setting(one: dict[str, Any]) -> Trace:
    color, dash = palette.series(one["number"])
    return {
        "type": "scatter",
        "mode": "lines+markers+text",
        "name": plain(one["name"]),
        "x": one["user"]["value"],
        "y": one["server"]["value"],
        "error_x": errors(one["user"]) | {"color": color},
        "error_y": errors(one["server"]) | {"color": color},
        "text": [f"{load:.3g}" for load in one["loads"]],
        "textposition": "top right",
        "textfont": {"size": 11, "color": "@muted"},
        "customdata": [plain(text) for text in one["labels"]],
        "line": {"color": color, "dash": dash, "width": 2},
        "marker": {"size": 10, "symbol": [_OUTCOMES[outcome] for outcome in one["slo"]]},
        "hovertemplate": "%{customdata}<br>%{y:,.4~g} tokens/s<br>%{x:,.4~g} tokens/s per user",
    }


def served(of: dict[str, Any]) -> Chart | None:
    """What each setting serves where it serves most and keeps the SLO; nothing where it never keeps it."""
    order = list(range(len(of["names"])))[::-1]
    pick = {key: [of[key][i] for i in order] for key in ("names", "value", "low", "high", "loads", "numbers")}
    bars = errors({"value": pick["value"], "low": pick["low"], "high": pick["high"]}) | {"color": "@ink"}
    top = max(itertools.chain(pick["value"], (x for x in pick["high"] if x is not None)))
    return Chart(
        f"{of['workload']}: what each setting serves while it keeps the SLO",
        "At the load at which it serves most. No bar: it keeps the SLO at no load tried. Lines: 95 % intervals.",
        [
            {
                "type": "bar",
                "orientation": "h",
                "x": pick["value"],
                "y": [plain(name) for name in pick["names"]],
                "error_x": bars,
                "marker": {"color": [palette.series(number)[0] for number in pick["numbers"]]},
                "text": [plain(text) for text in pick["loads"]],
                "textposition": "inside",
                "insidetextanchor": "start",
                "hovertemplate": "%{y}, %{text}<br>%{x:.4~g} " + of["unit"] + "<extra></extra>",
                "showlegend": False,
            }
        ],
        layout(
            axis(of["unit"], range=[0, top * 1.05 or 1.0]),
            axis("", type="category", categoryorder="array", categoryarray=[plain(name) for name in pick["names"]]),
        ),
        max(160, 90 + 42 * len(order)),
    )
