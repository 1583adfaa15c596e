"""Charts over load, of the phases, and the roofline.

Knows: how these are drawn. Must not know: how a number comes about.
"""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go

from loadgen.report import palette as ink
from loadgen.report.figures.style import Chart, Series, blank, error_bars, log_axis, text


def pareto(series: Series) -> Chart | None:
    """Whole-server output rate against a user's: what a user's speed costs the operator."""
    figure = blank("output_tokens_per_s_per_user p50 (tokens/s)", "output_tokens_per_s, whole server", 420)
    for number, (name, line) in enumerate(zip(series["workloads"], series["loads"], strict=True)):
        if not any(None not in pair for pair in zip(line["user"]["value"], line["server"]["value"], strict=True)):
            continue
        color = ink.workload(number)
        figure.add_scatter(
            x=line["user"]["value"],
            y=line["server"]["value"],
            error_x=error_bars(line["user"]) | {"color": color},
            error_y=error_bars(line["server"]) | {"color": color},
            mode="lines+markers+text",
            name=text(name),
            text=[f"{load:g}" for load in line["load"]],
            textposition="top right",
            textfont={"size": 11, "color": ink.MUTED},
            customdata=line["labels"],
            line={"color": color, "width": 2},
            marker={"size": 9, "symbol": ink.symbol(number)},
            hovertemplate="%{customdata}<br>%{y:,.4~g} tokens/s whole server<br>%{x:,.4~g} tokens/s per user",
        )
    if not figure.data:
        return None
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(rangemode="tozero")
    _limit_lines(figure, series, "user", "v")
    alt = "Throughput against latency: whole-server output tokens per second over those per user, a line per workload."
    return Chart(figure, alt)


def _limit_lines(figure: go.Figure, series: Series, axis: str, direction: str) -> None:
    """Limits of the SLO as lines, the side that breaks them shaded where it is plain which one it is."""
    for limit in series["limits"]:
        if limit["axis"] != axis:
            continue
        line = {"color": ink.BAD, "width": 1.5, "dash": "dash"}
        label = {"annotation_text": f"SLO {text(limit['text'])}", "annotation_font": {"size": 11, "color": ink.BAD}}
        if direction == "v":
            figure.add_vline(limit["at"], line=line, annotation_position="bottom right", **label)
            figure.add_vrect(0, limit["at"], fillcolor=ink.BAD, opacity=0.07, line_width=0, layer="below")
        else:
            figure.add_hline(limit["at"], line=line, annotation_position="top left", **label)


_BY_LOAD = {
    "ttft": ((("ttft_p50", "p50", "solid"), ("ttft_p99", "p99", "dot")), "TTFT (s)", "TTFT over load: p50 and p99."),
    "goodput": ((("goodput", "", "solid"),), "goodput (requests/s)", "Goodput over load."),
}


def by_load(series: Series, what: str) -> Chart | None:
    """Lines over load, one colour for each workload. Drawn where at least one workload ran at two loads."""
    lines, title, alt = _BY_LOAD[what]
    kinds = {kind for line in series["loads"] for kind in line["kind"]}
    unit = (
        "users" if kinds == {"concurrency"} else "requests/s" if "concurrency" not in kinds else "users or requests/s"
    )
    figure = blank(f"load ({unit})", title, 420)
    for number, (name, loads) in enumerate(zip(series["workloads"], series["loads"], strict=True)):
        for key, stat, dash in lines:
            if len(loads["load"]) < 2 or all(value is None for value in loads[key]["value"]):
                continue
            color = ink.workload(number)
            figure.add_scatter(
                x=loads["load"],
                y=loads[key]["value"],
                error_y=error_bars(loads[key]) | {"color": color},
                mode="lines+markers",
                name=text(f"{name} {stat}".strip()),
                customdata=loads["labels"],
                line={"color": color, "width": 2, "dash": dash},
                marker={"size": 8, "symbol": ink.symbol(number)},
                hovertemplate="%{customdata}: %{y:.4~s}" + ("s" if what == "ttft" else " requests/s"),
            )
    if not figure.data:
        return None
    figure.update_layout(**log_axis("x"), xaxis_tickvals=_ticks(series))
    if what == "ttft":
        figure.update_layout(**log_axis("y"))
        _limit_lines(figure, series, "ttft", "h")
    return Chart(figure, alt)


def _ticks(series: Series) -> list[float]:
    """The loads themselves as ticks; of many, some."""
    loads = sorted({load for line in series["loads"] for load in line["load"]})
    return loads if len(loads) <= 10 else loads[:: -(-len(loads) // 10)]


def phases(series: Series) -> Chart | None:
    """A bar for each stage: the shares of a mean request's time."""
    rows = [
        (f"{name}, {bar['load']}", bar)
        for name, bars in zip(series["workloads"], series["phases"], strict=True)
        for bar in bars
    ]
    if not rows:
        return None
    figure = blank("share of the time of a mean request (%)", "", 120 + 30 * len(rows), barmode="stack", bargap=0.3)
    labels = [text(label) for label, _ in rows]
    for number, name in enumerate(ink.PHASE_NAMES):
        seconds = [bar["parts"][number] for _, bar in rows]
        if not any(second > 0 for second in seconds):
            continue
        figure.add_bar(
            y=labels,
            x=[100 * second / bar["total"] for second, (_, bar) in zip(seconds, rows, strict=True)],
            customdata=seconds,
            orientation="h",
            name=name,
            marker={
                "color": ink.PHASES[number],
                "pattern": {"shape": ink.PHASE_PATTERNS[number], "fgcolor": ink.PAPER, "size": 7, "solidity": 0.25},
            },
            hovertemplate="%{x:.1f} %, %{customdata:.4~s}s",
        )
    figure.update_xaxes(range=[0, 100])
    figure.update_yaxes(autorange="reversed", tickfont={"size": 12, "color": ink.INK}, showgrid=False)
    return Chart(
        figure, "Shares of a mean request's time by phase, a bar for each stage. The table has the same numbers."
    )


def roofline(series: Series) -> Chart | None:
    """Roofs of the hardware, and each stage's prefill and decode under them."""
    facts = series["roofline"]
    if facts is None or not facts["points"]:
        return None
    figure = blank("intensity (FLOP/byte)", "achieved (FLOP/s, all GPUs)", 480, **log_axis("x"), **log_axis("y"))
    bandwidth, points = facts["bandwidth"], facts["points"]
    ridges = [roof["flop_per_s"] / bandwidth for roof in facts["roofs"]]
    low = min([*(point["intensity"] for point in points), ridges[0]]) / 4
    high = max([*(point["intensity"] for point in points), *ridges]) * 4
    for number, (roof, ridge) in enumerate(zip(facts["roofs"], ridges, strict=True)):
        figure.add_scatter(
            x=[low, ridge, high] if number == 0 else [ridge, high],
            y=[low * bandwidth, roof["flop_per_s"], roof["flop_per_s"]] if number == 0 else [roof["flop_per_s"]] * 2,
            mode="lines",
            name=f"roof of {text(facts['gpu'])}, {roof['dtype']}" + ("" if number == 0 else " (not in use)"),
            line={"color": ink.INK if number == 0 else ink.MUTED, "width": 2.5 if number == 0 else 1.2,
                  "dash": "solid" if number == 0 else "dot"},
            hovertemplate="%{y:.4~s}FLOP/s at %{x:.4~g} FLOP/byte",
        )  # fmt: skip
    figure.add_vline(ridges[0], line={"color": ink.MUTED, "width": 1, "dash": "dot"})
    figure.add_annotation(x=math.log10(ridges[0]), y=0.02, yref="paper", yanchor="bottom", showarrow=False, xanchor="left",
                          text=f" ridge {ridges[0]:.3g} FLOP/byte", font={"size": 11, "color": ink.MUTED})  # fmt: skip
    for number, name in enumerate(series["workloads"]):
        for phase, hollow in (("prefill", False), ("decode", True)):
            mine = [point for point in points if point["workload"] == name and point["phase"] == phase]
            if mine:
                _roofline_points(figure, f"{name} {phase}", mine, number, hollow)
    alt = "Roofline, both axes logarithmic: achieved FLOP/s over intensity, with prefill and decode of each stage."
    return Chart(figure, alt)


def _roofline_points(figure: go.Figure, name: str, points: list[dict[str, Any]], number: int, hollow: bool) -> None:
    """Filled marks are prefill, hollow ones decode."""
    symbol, color = ink.symbol(number), ink.workload(number)
    figure.add_scatter(
        x=[point["intensity"] for point in points],
        y=[point["achieved"] for point in points],
        mode="lines+markers",
        name=text(name),
        customdata=[[point["load"], point["share"], point["bound"]] for point in points],
        line={"color": color, "width": 1, "dash": "dot"},
        marker={"size": 11, "symbol": f"{symbol}-open" if hollow else symbol, "color": color, "line": {"width": 2}},
        hovertemplate="%{customdata[0]}: %{customdata[2]}-bound, %{customdata[1]:.0%} of the roof"
        "<br>%{y:.4~s}FLOP/s at %{x:.4~g} FLOP/byte",
    )
