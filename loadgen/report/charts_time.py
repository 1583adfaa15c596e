"""Charts of spread and of time: distributions, timeline, gaps over time, arrivals, slow requests.

Knows: which of a view's series each of them draws. Must not know: how a series is computed, HTML.
"""

from __future__ import annotations

from typing import Any

from loadgen.report import palette
from loadgen.report.chart import SHARES, Chart, Trace, axis, layout, log_axis, note, plain
from loadgen.report.series import DISTRIBUTIONS, HEAT_REQUESTS

_ROOM = 0.09  # of the width of the timeline, for the name of a stage


def distributions(series: dict[str, Any]) -> dict[str, Chart]:
    """One chart for each workload and metric."""
    found = {}
    for number, (workload, metrics) in enumerate(zip(series["workloads"], series["distributions"], strict=True)):
        for metric, curves in metrics.items():
            if curves:
                found[f"distribution-{number}-{metric}"] = _distribution(workload, metric, curves)
    return found


def _distribution(workload: str, metric: str, curves: list[dict[str, Any]]) -> Chart:
    data: list[Trace] = []
    for i, curve in enumerate(curves):
        color, dash = palette.series(i)
        data.append(
            {
                "type": "scatter",
                "mode": "lines" if len(curve["x"]) > 1 else "markers",
                "name": curve["load"],
                "x": curve["x"],
                "y": curve["share"],
                "line": {"shape": "hv", "color": color, "dash": dash, "width": 2},
                "marker": {"color": color},
                "hovertemplate": f"{curve['load']}<br>%{{y:.2%}} at most %{{x:.4~s}}s",
            }
        )
    return Chart(
        f"{workload}: {DISTRIBUTIONS[metric]}",
        "",
        data,
        layout(
            log_axis(DISTRIBUTIONS[metric], [x for curve in curves for x in curve["x"]], "s", room=0.1),
            axis("share at or below", **SHARES),
        ),
        320,
    )


def timeline(series: dict[str, Any]) -> Chart | None:
    """In flight, output rate, TTFT and, where there are any, failures, above each other on one time axis."""
    stages = series["timeline"]
    if not stages:
        return None
    failed = any(any(stage["failed"]) for stage in stages)
    data: list[Trace] = []
    for i, stage in enumerate(stages):
        data += _flight(stage, first=i == 0)
        data.append(_step(stage, stage["tokens_per_s"], "y2", "output tokens/s", palette.SERIES[2], first=i == 0))
        if failed:
            data.append(_step(stage, stage["failed"], "y4", "failed or cancelled", palette.BAD, first=i == 0))
    answered = any(stage["ttft"] for stage in stages)
    if answered:
        data.append(_dots(stages))
    panels = {
        "y": axis("requests in flight", rangemode="tozero"),
        "y2": axis("output tokens/s", rangemode="tozero", tickformat=","),
        "y3": log_axis("TTFT", [x for stage in stages for x in stage["ttft"]], "s", room=0.3) if answered else None,
        "y4": axis("requests failed", rangemode="tozero") if failed else None,
    }
    shown = {name: one for name, one in panels.items() if one is not None}
    lines = [
        {"type": "line", "x0": stage["start"], "x1": stage["start"], "y0": 0, "y1": 1, "yref": "paper",
         "line": {"color": "@rule", "width": 1, "dash": "dot"}}
        for stage in stages
    ]  # fmt: skip
    base = layout(
        _time(stages, anchor=list(shown)[-1]),
        {},
        annotations=_names(stages),
        shapes=lines,
        margin={"l": 12, "r": 16, "t": 40, "b": 12},
        legend={"orientation": "h", "yanchor": "top", "y": -0.12, "xanchor": "left", "x": 0},
    )
    return Chart(
        "Timeline",
        "Requests in flight are those waiting for their first token and, under them, those streaming. A dot is one "
        "request, at the moment of its send; where there are too many, the slowest of its neighbours.",
        data,
        base | _stacked(shown),
        200 + 150 * len(shown),
    )


def _stacked(panels: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Axes one below the other, the first at the top."""
    each, last = 1.0 / len(panels), len(panels) - 1
    return {
        f"yaxis{name[1:]}": one | {"domain": [1.0 - (i + 1) * each + (0.04 if i < last else 0.0), 1.0 - i * each]}
        for i, (name, one) in enumerate(panels.items())
    }


def _time(stages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The time axis: the same stretch of the run in every chart that has one."""
    ends = {"range": [stages[0]["start"], max(stage["end"] for stage in stages)]} if stages else {}
    return axis("time from the start of the run (s)", **ends, **more)


def _names(stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Names of the stages above their beginnings, as far as there is room."""
    span = (stages[-1]["end"] - stages[0]["start"]) or 1.0
    found: list[dict[str, Any]] = []
    last = -1.0
    for stage in stages:
        place = (stage["start"] - stages[0]["start"]) / span
        if place - last < _ROOM:
            continue
        last = place
        font = {"color": "@muted", "size": 11}
        found.append(
            note(stage["name"], stage["start"], 1.0, yref="paper", xanchor="left", yanchor="bottom", font=font)
        )
    return found


def _step(stage: dict[str, Any], values: list[float], axis_name: str, name: str, color: str, *, first: bool) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "legendgroup": name,
        "showlegend": first,
        "x": stage["edges"],
        "y": [*values, values[-1]],
        "yaxis": axis_name,
        "line": {"shape": "hv", "color": color, "width": 1.5},
        "hovertemplate": f"{plain(stage['name'])}, %{{x:.4~g}} s<br>%{{y:,.4~g}} {name}",
    }


def _flight(stage: dict[str, Any], *, first: bool) -> list[Trace]:
    """Streaming from zero, waiting on top of it."""
    total = [a + b for a, b in zip(stage["waiting"], stage["streaming"], strict=True)]
    return [
        _step(stage, stage["streaming"], "y", "streaming", palette.DECODE, first=first) | {"fill": "tozeroy"},
        _step(stage, total, "y", "waiting for the first token, on top", palette.PREFILL, first=first)
        | {"fill": "tonexty"},
    ]


def _dots(stages: list[dict[str, Any]]) -> Trace:
    ttft = [value for stage in stages for value in stage["ttft"]]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "TTFT of a request",
        "x": [value for stage in stages for value in stage["sent"]],
        "y": ttft,
        "text": [plain(stage["name"]) for stage in stages for _ in stage["sent"]],
        "yaxis": "y3",
        "marker": {"size": 5, "color": palette.PREFILL, "opacity": 0.7},
        "hovertemplate": "%{text}, %{x:.4~g} s<br>TTFT %{y:.3~s}s",
    }


def server(series: dict[str, Any]) -> Chart | None:
    """What the server said of itself, panels of one unit each above each other."""
    panels = series["server"]
    if not panels:
        return None
    data: list[Trace] = []
    for i, panel in enumerate(panels):
        for line in panel["lines"]:
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": line["name"],
                    "x": line["x"],
                    "y": line["y"],
                    "yaxis": f"y{i + 1}" if i else "y",
                    "line": {"width": 1.5, "color": palette.series(len(data))[0]},
                    "hovertemplate": f"%{{y:.4~g}} {line['name']}<br>at %{{x:.4~g}} s",
                }
            )
    shown = {
        f"y{i + 1}" if i else "y": axis(
            p["title"], rangemode="tozero", tickformat=".3~%" if p["title"] == "share" else ","
        )
        for i, p in enumerate(panels)
    }
    base = layout(
        _time(series["timeline"], anchor=list(shown)[-1]),
        {},
        annotations=_names(series["timeline"]) if series["timeline"] else [],
        margin={"l": 12, "r": 16, "t": 40, "b": 12},
        legend={"orientation": "h", "yanchor": "top", "y": -0.12, "xanchor": "left", "x": 0},
    )
    return Chart(
        "The server's own metrics",
        "As the server states them, read during the run. A queue that grows is load that it cannot keep up with.",
        data,
        base | _stacked(shown),
        200 + 130 * len(shown),
    )


def ttft_heat(series: dict[str, Any]) -> Chart | None:
    """TTFT over time."""
    return _heat(
        series["timeline"],
        ("ttft_heat", "TTFT", "requests"),
        "TTFT over time",
        "Each column is the requests sent at one moment of a stage. A climb is a queue that grows, a sawtooth requests "
        f"that start together. Stages of fewer than {HEAT_REQUESTS} answers are left out: their dots above say more.",
    )


def gap_heat(series: dict[str, Any]) -> Chart | None:
    """Gaps between token events over time."""
    return _heat(
        series["timeline"],
        ("gap_heat", "gap", "gaps"),
        "Gaps between token events over time",
        "Each column is one moment of a stage; its lowest row holds all shorter gaps, too. A second band above the "
        "first is steps that prefill lengthens; a drift upwards is a server that fills up.",
    )


def _heat(timeline: list[dict[str, Any]], of: tuple[str, str, str], title: str, caption: str) -> Chart | None:
    """One map over the whole run, a piece for each stage; `of` is its key, what it shows, and of what it is a share."""
    key, size, things = of
    stages = [(stage["name"], stage[key]) for stage in timeline if stage[key] is not None]
    if not stages:
        return None
    top = max(x for _, heat in stages for row in heat["share"] for x in row if x is not None)
    data = [
        {
            "type": "heatmap",
            "x": heat["times"],
            "y": heat["sizes"],
            "z": heat["share"],
            "zmin": 0,
            "zmax": top,
            "colorscale": [[0, "@heat-0"], [0.35, "@heat-1"], [1, "@heat-2"]],
            "showscale": i == 0,
            "colorbar": {"title": {"text": f"share of the {things} of that moment", "side": "top"},
                         "tickformat": ".0%", "orientation": "h", "thickness": 10, "len": 0.6, "x": 0.5, "y": 1.02,
                         "yanchor": "bottom"},
            "hovertemplate": f"{plain(name)}, %{{x:.4~g}} s<br>%{{z:.1%}} of the {things} near %{{y:.3~s}}s"
            "<extra></extra>",
        }
        for i, (name, heat) in enumerate(stages)
    ]  # fmt: skip
    return Chart(
        title,
        caption,
        data,
        layout(
            _time(timeline, showgrid=False),
            log_axis(size, [x for _, heat in stages for x in heat["sizes"]], "s", room=0.1, showgrid=False),
        ),
    )


def arrivals(series: dict[str, Any]) -> Chart | None:
    """Times between requests, as scheduled and as sent."""
    data: list[Trace] = []
    for i, stage in enumerate(series["arrivals"]):
        for key, dash in (("scheduled", "dot"), ("sent", "solid")):
            x, share = stage[key]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": f"{plain(stage['name'])} {key}",
                    "x": x,
                    "y": share,
                    "line": {"shape": "hv", "dash": dash, "width": 2, "color": palette.series(i)[0]},
                    "hovertemplate": f"{key}<br>%{{y:.1%}} at most %{{x:.3~s}}s",
                }
            )
    if not data:
        return None
    # A log axis down to the shortest of thousands of gaps would show little else.
    gaps = [x for stage in series["arrivals"] for key in ("scheduled", "sent")
            for x, share in zip(*stage[key], strict=True) if share > 0.005]  # fmt: skip
    return Chart(
        "Arrivals: scheduled and sent",
        "The two curves of a stage lie on each other when the client kept the schedule.",
        data,
        layout(
            log_axis("time between requests", gaps, "s"),
            axis("share at or below", **SHARES),
        ),
    )


def slowest(series: dict[str, Any]) -> Chart | None:
    """A line for each of the slowest requests: a tick for each token event, its longest gap as a bar."""
    rows = [(rank, row) for rank, row in enumerate(series["slowest"], 1) if row["events"]]
    if not rows:
        return None
    stalls: list[float | None] = []
    at: list[int | None] = []
    for rank, row in rows:
        if row["stall"]:
            stalls += [*row["stall"], None]
            at += [rank, rank, None]
    data: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "waiting for the first token",
            "x": [x for _, row in rows for x in (0.0, row["events"][0], None)],
            "y": [y for rank, _ in rows for y in (rank, rank, None)],
            "line": {"color": palette.WAITING, "width": 6},
            "hovertemplate": "waiting for the first token until %{x:.3~s}s",
        },
        {
            "type": "scatter",
            "mode": "lines",
            "name": "longest gap",
            "x": stalls,
            "y": at,
            "line": {"color": palette.BAD, "width": 6},
            "hovertemplate": "longest gap, %{x:.3~s}s",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "token event",
            "x": [x for _, row in rows for x in row["events"]],
            "y": [rank for rank, row in rows for _ in row["events"]],
            "text": [f"{plain(row['stage'])}, request {row['request']}" for _, row in rows for _ in row["events"]],
            "marker": {"symbol": "line-ns", "size": 12, "line": {"color": palette.DECODE, "width": 1}},
            "hovertemplate": "%{text}<br>%{x:.4~s}s from its send",
        },
    ]
    return Chart(
        "Token timelines of the slowest requests",
        "One line for each request of the table. A long first bar is a wait for prefill, a red bar in the middle a "
        "stall, an even spread a slow decode.",
        data,
        layout(
            axis("time from the send (s)", rangemode="tozero"),
            axis("rank", autorange="reversed", dtick=1, showgrid=False),
        ),
        130 + 26 * len(rows),
    )
