"""Charts over load: throughput against latency, TTFT and goodput over load, where time goes, the roofline.

Knows: which of a view's series each of them draws. Must not know: how a series is computed, HTML.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from loadgen.report import palette
from loadgen.report.chart import Chart, Trace, axis, decades, errors, layout, line_at, load_axis, log_axis, note, plain

_KINDS = {"concurrency": "users", "rate": "requests/s offered", "trace": "requests/s of the trace"}
_PARTS = (
    ("before it is sent", palette.BEFORE),
    ("TTFT at the lowest load", palette.PREFILL),
    ("waiting that load adds", palette.WAITING),
    ("decode at the lowest load", palette.DECODE),
    ("slowdown that load adds", palette.SLOWED),
)
_SYMBOLS = {"prefill": "diamond", "decode": "circle"}
_OUTCOMES = {"": "circle", "pass": "circle", "undecidable": "circle-open", "fail": "x"}  # marks of loads by their SLO


def _lines(series: dict[str, Any]) -> list[tuple[int, str, str, dict[str, Any]]]:
    """(colour number, name, kind of load, its loads) of each workload and kind of load with points."""
    found = []
    for i, (name, loads) in enumerate(zip(series["workloads"], series["loads"], strict=True)):
        kinds = list(dict.fromkeys(loads["kind"]))
        for kind in kinds:
            mask = [one == kind for one in loads["kind"]]
            title = name if len(kinds) == 1 else f"{name}, {_KINDS[kind]}"
            found.append((i, plain(title), kind, _masked(loads, mask)))
    return found


def _masked(value: Any, mask: list[bool]) -> Any:
    if isinstance(value, dict):
        return {key: _masked(one, mask) for key, one in value.items()}
    return list(itertools.compress(value, mask))


def _stroke(i: int) -> dict[str, Any]:
    color, dash = palette.series(i)
    return {"color": color, "dash": dash, "width": 2}


def throughput(series: dict[str, Any]) -> Chart | None:
    """Whole-server against per-user rate: the Pareto view."""
    data: list[Trace] = []
    xs: list[float | None] = []
    ys: list[float | None] = []
    for i, name, _, loads in _lines(series):
        x, y = loads["user"], loads["server"]
        xs, ys = [*xs, *x["value"], *x["low"], *x["high"]], [*ys, *y["value"], *y["low"], *y["high"]]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers+text",
                "name": name,
                "x": x["value"],
                "y": y["value"],
                "error_x": errors(x) | {"color": palette.series(i)[0]},
                "error_y": errors(y) | {"color": palette.series(i)[0]},
                "text": [
                    f"{load:.3g}{', knee' if bend else ''}"
                    for load, bend in zip(loads["load"], loads["knee"], strict=True)
                ],
                "customdata": loads["labels"],
                "textposition": "top right",
                "textfont": {"size": 11, "color": "@muted"},
                "line": _stroke(i),
                "marker": {"size": 10, "symbol": [_OUTCOMES[one] for one in loads["slo"]], "opacity": 1},
                "hovertemplate": "%{customdata}<br>%{y:,.4~g} tokens/s whole server<br>%{x:,.4~g} tokens/s per user",
            }
        )
    if not any(x is not None and y is not None for x, y in zip(xs, ys, strict=True)):
        return None
    bends = any(any(loads["knee"]) for loads in series["loads"])
    limits = [limit for limit in series["limits"] if limit["axis"] == "user"]
    x_axis = log_axis("output_tokens_per_s_per_user, p50 (tokens/s)", [*xs, *(limit["at"] for limit in limits)], "")
    shapes = [line_at("x", limit["at"]) for limit in limits]
    if limits:
        # Where every limit holds.
        begin = max(limit["at"] for limit in limits)
        end = 10.0 ** x_axis["range"][1]
        shapes.append(
            line_at("x", begin)
            | {"type": "rect", "x1": end, "fillcolor": "@good-wash", "line": {"width": 0}, "layer": "below"}
        )
    notes = [
        note(limit["text"], math.log10(limit["at"]), 0.02, yref="y domain", xanchor="left", yanchor="bottom")
        for limit in limits
    ]
    return Chart(
        "Throughput against what each user gets",
        "Up is more for the operator, right is more for each user. Numbers at the points are the load. "
        + ("Beyond the knee the server's rate grows less than the root of the load. " if bends else "")
        + ("In the shaded region the SLO on a user's rate holds. " if limits else "")
        + _outcomes_told(series),
        data,
        layout(
            x_axis,
            log_axis("output_tokens_per_s, whole server (tokens/s)", ys, ""),
            shapes=shapes,
            annotations=notes,
        ),
        420,
    )


def _outcomes_told(series: dict[str, Any]) -> str:
    seen = {one for loads in series["loads"] for one in loads["slo"]}
    told = {"fail": "At a cross an SLO fails.", "undecidable": "At a ring one cannot be decided."}
    return " ".join(text for outcome, text in told.items() if outcome in seen)


def ttft_over_load(series: dict[str, Any]) -> Chart | None:
    """TTFT p50 and p99 over load."""
    data: list[Trace] = []
    ys: list[float | None] = []
    kinds: dict[str, None] = {}
    for i, name, kind, loads in _lines(series):
        for stat, dash in (("p50", "solid"), ("p99", "dot")):
            line = loads[f"ttft_{stat}"]
            if all(value is None for value in line["value"]):
                continue
            kinds[_KINDS[kind]] = None
            ys += [*line["value"], *line["low"], *line["high"]]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": f"{name} {stat}",
                    "x": loads["load"],
                    "y": line["value"],
                    "error_y": errors(line) | {"color": palette.series(i)[0]},
                    "customdata": loads["labels"],
                    "line": _stroke(i) | {"dash": dash},
                    "marker": {"size": 7, "symbol": "circle" if stat == "p50" else "triangle-up"},
                    "hovertemplate": f"%{{customdata}}<br>{stat} %{{y:.3~s}}s",
                }
            )
    if not data:
        return None
    limits = [limit for limit in series["limits"] if limit["axis"] == "ttft"]
    ys += [limit["at"] for limit in limits]
    every = [load for _, _, _, loads in _lines(series) for load in loads["load"]]
    return Chart(
        "TTFT over load",
        "Bars are 95 % intervals. In open loop TTFT counts from the scheduled time."
        + (" The dashed line is the SLO." if limits else ""),
        data,
        layout(
            load_axis(f"load ({' or '.join(kinds)})", every),
            log_axis("TTFT", ys, "s", room=1.0),
            shapes=[line_at("y", limit["at"]) for limit in limits],
        ),
        420,
    )


def goodput(series: dict[str, Any]) -> Chart | None:
    """Requests per second that met every limit, beside what was offered."""
    data: list[Trace] = []
    ys: list[float | None] = []
    for i, name, _, loads in _lines(series):
        if all(value is None for value in loads["goodput"]["value"]):
            continue
        for key, title, dash in (("goodput", "goodput", "solid"), ("offered", "offered", "dot")):
            line = loads[key]
            ys += line["value"]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": f"{name}, {title}",
                    "x": loads["load"],
                    "y": line["value"],
                    "error_y": errors(line) | {"color": palette.series(i)[0]},
                    "customdata": loads["labels"],
                    "line": _stroke(i) | {"dash": dash},
                    "marker": {"size": 7},
                    "hovertemplate": f"%{{customdata}}<br>%{{y:.4~g}} requests/s {title}",
                }
            )
    if not data:
        return None
    kinds = " or ".join(dict.fromkeys(_KINDS[kind] for _, _, kind, _ in _lines(series)))
    return Chart(
        "Goodput over load",
        "Requests per second that met every request-level limit, beside those offered. Where the two part, the SLO is "
        "lost.",
        data,
        layout(
            load_axis(f"load ({kinds})", [load for _, _, _, loads in _lines(series) for load in loads["load"]]),
            axis("requests/s", rangemode="tozero"),
        ),
    )


def phases(series: dict[str, Any]) -> Chart | None:
    """Shares of a mean request's time, a bar for each stage, the first at the top."""
    rows = [
        (f"{plain(name)}, {bar['load']}", bar)
        for name, bars in zip(series["workloads"], series["phases"], strict=True)
        for bar in bars
    ]
    if not rows:
        return None
    rows.reverse()
    data: list[Trace] = []
    for i, (title, color) in enumerate(_PARTS):
        seconds = [bar["parts"][i] for _, bar in rows]
        if not any(seconds):
            continue
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": title,
                "y": [label for label, _ in rows],
                "x": [bar["parts"][i] / bar["total"] for _, bar in rows],
                "customdata": seconds,
                "marker": {"color": color, "line": {"color": "@panel", "width": 1}},
                "hovertemplate": "%{y}<br>%{x:.1%}, %{customdata:.3~s}s",
            }
        )
    return Chart(
        "Shares of a mean request",
        "A mean request from its schedule (closed loop: its send) to its last token. Blue is the way to the first "
        "token, orange is decode; the pale parts are what load adds, measured against the lowest load.",
        data,
        layout(
            axis("share of the time", tickformat=".0%", range=[0, 1]),
            axis("", type="category"),
            barmode="stack",
            bargap=0.3,
            legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "xanchor": "left", "x": 0,
                    "traceorder": "normal"},
        ),
        max(240, 110 + 26 * len(rows)),
    )  # fmt: skip


def roofline(series: dict[str, Any]) -> Chart | None:
    """Roofs of the named hardware and the two phases of each stage."""
    of = series["roofline"]
    if of is None or not of["points"]:
        return None
    bandwidth, roofs, points = of["bandwidth"], of["roofs"], of["points"]
    ridge = roofs[0]["flop_per_s"] / bandwidth
    ridges = [roof["flop_per_s"] / bandwidth for roof in roofs]
    left, right = decades([*(point["intensity"] for point in points), *ridges], 1.0)
    low, high = 10.0**left, 10.0**right
    data = [_roof(roof, bandwidth, low, high, first=i == 0) for i, roof in enumerate(roofs)]
    colors = {name: palette.series(i)[0] for i, name in enumerate(series["workloads"])}
    for (workload, phase), some in itertools.groupby(
        sorted(points, key=lambda point: (series["workloads"].index(point["workload"]), point["phase"])),
        key=lambda point: (point["workload"], point["phase"]),
    ):
        data.append(_points(workload, phase, list(some), colors[workload]))
    bottom = min(point["achieved"] for point in points)
    ys = [bottom, *(roof["flop_per_s"] for roof in roofs)]
    sides = [
        note("memory-bound", (left + math.log10(ridge)) / 2, 0.01, yref="y domain", yanchor="bottom"),
        note("compute-bound", (right + math.log10(ridge)) / 2, 0.01, yref="y domain", yanchor="bottom"),
    ]
    return Chart(
        f"{of['gpu']}, log-log",
        "The distance of a point to the roof above it is what is left to gain. Left of the ridge the roof is memory "
        "bandwidth, right of it arithmetic. A prefill point includes waiting, so it is a lower bound. Larger marks are "
        "higher loads.",
        data,
        layout(
            log_axis("arithmetic intensity (FLOP/byte)", [low, high], "") | {"range": [left, right]},
            log_axis("achieved", ys, "FLOP/s", room=1.0),
            shapes=[line_at("x", ridge) | {"line": {"color": "@rule", "width": 1, "dash": "dot"}}],
            annotations=sides,
        ),
        480,
    )


def _roof(roof: dict[str, Any], bandwidth: float, low: float, high: float, *, first: bool) -> Trace:
    peak = roof["flop_per_s"]
    ridge = peak / bandwidth
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"roof, {roof['dtype']}" + (" (in use)" if first else ""),
        "x": [low, ridge, high],
        "y": [low * bandwidth, peak, peak],
        "line": {
            "color": "@ink" if first else "@muted",
            "width": 2 if first else 1,
            "dash": "solid" if first else "dot",
        },
        "hovertemplate": f"ridge {ridge:.4g} FLOP/byte, peak %{{y:.3~s}}FLOP/s",
    }


def _points(workload: str, phase: str, some: list[dict[str, Any]], color: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{plain(workload)} {phase}",
        "x": [point["intensity"] for point in some],
        "y": [point["achieved"] for point in some],
        "customdata": [[point["load"], point["share"], point["bound"]] for point in some],
        "marker": {
            "color": color,
            "size": [8 + 6 * k / max(len(some) - 1, 1) for k in range(len(some))],
            "symbol": _SYMBOLS[phase],
            "opacity": 0.9,
            "line": {"color": "@panel", "width": 1},
        },
        "hovertemplate": "%{customdata[0]}<br>%{x:.3~g} FLOP/byte, %{y:.3~s}FLOP/s<br>"
        "%{customdata[1]:.0%} of the roof, %{customdata[2]}-bound",
    }
