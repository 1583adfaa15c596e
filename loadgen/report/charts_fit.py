"""Charts of a fit: the two roofs with the measured points, TTFT against prompts, ITL against load and context.

Knows: plotly's words for a fit's series. Must not know: how cells are grouped (`fitseries`), HTML.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from loadgen.report import palette
from loadgen.report.chart import Chart, Trace, decades, errors, layout, line_at, load_axis, log_axis, note, plain

# How a measured point is drawn: seen by the fit, held out of it, named as an outlier.
_SYMBOLS = {"seen": "circle", "held_out": "diamond-open", "outlier": "x-thin-open"}
_KINDS = {"seen": "measured", "held_out": "held out", "outlier": "outlier"}
_PHASES = {"prefill": palette.PREFILL, "decode": palette.DECODE}


def build(series: dict[str, Any]) -> dict[str, Chart | None]:
    """All of a fit's charts by name."""
    return {
        "fit-roofline": _roofline(series["roofline"]),
        "fit-ttft-prompt": _lines(
            series["ttft_prompt"],
            "TTFT against the length of the prompt",
            "prompt tokens",
            "TTFT",
        ),
        "fit-itl-load": _lines(
            series["itl_concurrency"],
            "ITL against load",
            "load (users, batch or requests/s)",
            "ITL",
            at_points=True,
        ),
        "fit-itl-context": _lines(
            series["itl_context"], "ITL against context", "context tokens, half way through the answer", "ITL"
        ),
        **{name: _predicted(of) for name, of in series["predicted"].items()},
    }


def _predicted(of: dict[str, Any]) -> Chart | None:
    """Predicted against measured, on log axes; where the same was measured on the fitted GPU, that beside it."""
    points = of["points"]
    if not points:
        return None
    measured = [point["measured"] for point in points]
    both = [*measured, *(point["predicted"] for point in points), *(p["here"] for p in points if p["here"])]
    ends = [10.0**end for end in decades(both, 0.7)]
    hover = "%{customdata[0]}<br>measured %{x:.4~s}, predicted %{y:.4~s} (%{customdata[1]})"
    data: list[Trace] = [
        {"type": "scatter", "mode": "lines", "x": ends, "y": ends, "name": "as measured", "hoverinfo": "skip",
         "line": {"color": "@muted", "width": 1, "dash": "dash"}},
        {"type": "scatter", "mode": "markers", "x": measured, "y": [point["predicted"] for point in points],
         "name": "predicted", "customdata": [[point["text"], point["off"]] for point in points],
         "error_y": errors({"value": [p["predicted"] for p in points], "low": [p["low"] for p in points],
                            "high": [p["high"] for p in points]}),
         "marker": {"color": palette.series(0)[0], "size": 9}, "hovertemplate": hover},
    ]  # fmt: skip
    before = [point for point in points if point["here"]]
    if before:
        data.append(
            {"type": "scatter", "mode": "markers", "x": [point["measured"] for point in before],
             "y": [point["here"] for point in before], "name": plain(f"guess: as on {of['from']}"),
             "customdata": [[point["text"]] for point in before],
             "marker": {"color": palette.series(1)[0], "size": 8, "symbol": "circle-open", "line": {"width": 2}},
             "hovertemplate": "%{customdata[0]}<br>measured %{x:.4~s}, before %{y:.4~s}"}
        )  # fmt: skip
    return Chart(
        f"{of['metric']}: predicted against measured on {of['where']}",
        "On the dashed line the prediction is what was measured. The fit saw none of these points.",
        data,
        layout(log_axis("measured", ends, of["unit"], room=0.0), log_axis("predicted", ends, of["unit"], room=0.0)),
        420,
    )


_CAPTION = (
    "Lines are the fit, shaded its 90 % interval, dotted lines what the hardware would allow. Filled points were "
    "fitted, open diamonds held out: the fit never saw them."
)


def _lines(
    lines: Sequence[dict[str, Any]], title: str, x_title: str, y_title: str, *, at_points: bool = False
) -> Chart | None:
    """Lines with their intervals, roofs and points. `at_points`: the x axis is labelled at the points' own values."""
    if not lines:
        return None
    data: list[Trace] = []
    ys: list[float | None] = []
    for i, line in enumerate(lines):
        color, _ = palette.series(i)
        group = {"legendgroup": str(i), "name": plain(line["name"])}
        data += [*_band(line, color, group), _fit(line, color, group), _roof_line(line, color, group)]
        data += _measured(line["points"], color, group)
        ys += [*line["fit"], *line["low"], *line["high"], *line["roof"], *(point["y"] for point in line["points"])]
    xs = sorted({x for line in lines for x in line["x"]})
    return Chart(
        title,
        _CAPTION,
        [trace for trace in data if trace],
        layout(
            load_axis(x_title, xs) if at_points else log_axis(x_title, xs, ""), log_axis(y_title, ys, "s", room=0.7)
        ),
        440,
    )


def _band(line: dict[str, Any], color: str, group: Trace) -> list[Trace]:
    """The interval as an area: out along its upper edge, back along the lower one."""
    known = [k for k, (low, high) in enumerate(zip(line["low"], line["high"], strict=True)) if None not in (low, high)]
    if len(known) < 2:
        return []
    x = [line["x"][k] for k in known]
    y = [line["high"][k] for k in known] + [line["low"][k] for k in reversed(known)]
    edge = {"width": 0, "color": color}
    return [group | {"type": "scatter", "mode": "lines", "x": x + x[::-1], "y": y, "fill": "toself",
                     "fillcolor": _faint(color), "line": edge, "hoverinfo": "skip", "showlegend": False}]  # fmt: skip


def _faint(color: str) -> str:
    red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def _fit(line: dict[str, Any], color: str, group: Trace) -> Trace:
    return group | {
        "type": "scatter",
        "mode": "lines",
        "x": line["x"],
        "y": line["fit"],
        "line": {"color": color, "width": 2},
        "hovertemplate": "fit %{y:.3~s}s",
    }


def _roof_line(line: dict[str, Any], color: str, group: Trace) -> Trace:
    if all(value is None for value in line["roof"]):
        return {}
    return group | {
        "type": "scatter",
        "mode": "lines",
        "x": line["x"],
        "y": line["roof"],
        "line": {"color": color, "width": 1.2, "dash": "dot"},
        "showlegend": False,
        "hovertemplate": "hardware's roof %{y:.3~s}s",
    }


def _measured(points: Iterable[dict[str, Any]], color: str, group: Trace) -> list[Trace]:
    data: list[Trace] = []
    for kind, some in _by_kind(points).items():
        data.append(
            group
            | {
                "type": "scatter",
                "mode": "markers",
                "x": [point["x"] for point in some],
                "y": [point["y"] for point in some],
                "customdata": [[point["text"], _off(point), _KINDS[kind]] for point in some],
                "marker": _marker(kind, color, 8),
                "showlegend": False,
                "hovertemplate": "%{customdata[0]}<br>%{customdata[2]} %{y:.4~s}s, fit %{customdata[1]}",
            }
        )
    return data


def _off(point: dict[str, Any]) -> str:
    fit = point["fit"]
    return "n/a" if fit is None else f"{(fit / point['y'] - 1.0) * 100:+.1f} %"


def _by_kind(points: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        kind = "outlier" if point["outlier"] else "held_out" if point["held_out"] else "seen"
        kinds.setdefault(kind, []).append(point)
    return kinds


def _marker(kind: str, color: str, size: float) -> dict[str, Any]:
    wide = 0 if kind == "seen" else 2
    return {"color": color, "size": size + wide, "symbol": _SYMBOLS[kind], "line": {"width": wide, "color": color}}


def _roofline(of: dict[str, Any] | None) -> Chart | None:
    if of is None:
        return None
    points, roofs = of["points"], of["roofs"]
    ridges = [roof["peak"] / roof["bandwidth"] for roof in roofs]
    left, right = decades([*(point["intensity"] for point in points), *ridges], 1.0)
    data: list[Trace] = []
    for i, roof in enumerate(roofs):
        ink = "@ink" if len(roofs) == 1 else palette.series(i)[0]
        name = plain(roof["name"])
        ends = (10.0**left, 10.0**right)
        data.append(_roof(f"hardware, {name}", roof["peak"], roof["bandwidth"], ends, ink, "solid"))
        data.append(_roof(f"fitted, {name}", roof["fitted_peak"], roof["fitted_bandwidth"], ends, ink, "dash"))
    groups: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        groups.setdefault(point["group"], []).append(point)
    for i, (name, some) in enumerate(groups.items()):
        color = _PHASES[some[0]["phase"]] if len(groups) <= 2 else palette.series(i)[0]
        data += _points(name, some, color)
    ys = [*(point["achieved"] for point in points), *(roof["peak"] for roof in roofs)]
    middle = math.log10(ridges[0])
    return Chart(
        "Roofline",
        "Solid is what the hardware allows, dashed what the fit says that this engine reaches of it. A point below the "
        "dashed line pays for overheads, communication or waiting. TTFT holds waiting, so prefill under load lies low. "
        "Open diamonds were held out.",
        data,
        layout(
            log_axis("arithmetic intensity (FLOP/byte)", [10.0**left, 10.0**right], "") | {"range": [left, right]},
            log_axis("achieved", ys, "FLOP/s", room=1.0),
            shapes=[line_at("x", ridges[0]) | {"line": {"color": "@rule", "width": 1, "dash": "dot"}}],
            annotations=[
                note("memory-bound", (left + middle) / 2, 0.01, yref="y domain", yanchor="bottom"),
                note("compute-bound", (right + middle) / 2, 0.01, yref="y domain", yanchor="bottom"),
            ],
        ),
        500,
    )


def _roof(name: str, peak: float, bandwidth: float, ends: tuple[float, float], color: str, dash: str) -> Trace:
    ridge = peak / bandwidth
    facts = f"ridge {ridge:.4g} FLOP/byte, peak {peak:.4g} FLOP/s, {bandwidth:.4g} B/s"
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [ends[0], ridge, ends[1]],
        "y": [ends[0] * bandwidth, peak, peak],
        "line": {"color": color, "width": 2 if dash == "solid" else 1.5, "dash": dash},
        "hovertemplate": f"{name}<br>{facts}<extra></extra>",
    }


def _points(name: str, points: Iterable[dict[str, Any]], color: str) -> list[Trace]:
    data: list[Trace] = []
    for kind, some in _by_kind(points).items():
        title = plain(name) if kind == "seen" else f"{plain(name)}, {_KINDS[kind]}"
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": title,
                "x": [point["intensity"] for point in some],
                "y": [point["achieved"] for point in some],
                "customdata": [[p["text"], p["tokens"], p["bytes"], p["flops"], p["share"], p["bound"]] for p in some],
                "marker": _marker(kind, color, 8),
                "hovertemplate": "%{customdata[0]}<br>%{customdata[1]:,.4~g} tokens, %{customdata[2]:.4~s}B, "
                "%{customdata[3]:.4~s}FLOP<br>%{x:.3~g} FLOP/byte, %{y:.3~s}FLOP/s<br>%{customdata[4]:.0%} of the "
                "hardware's roof, bound by %{customdata[5]}",
            }
        )
    return data
