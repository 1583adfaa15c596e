"""Charts over time: the run's windows, and the token events of single requests.

Knows: how these are drawn. Must not know: how a number comes about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from loadgen.report import palette as ink
from loadgen.report.figures.style import Chart, Series, blank, style, text

_PANELS = ("in_flight", "rate", "ttft", "heat", "failed")


def timeline(series: Series) -> Chart | None:
    """The measured windows side by side: in flight, output rate, TTFT, gaps, failures."""
    stages = series["timeline"]
    if not stages:
        return None
    failed = any(any(stage["failed"]) for stage in stages)
    panels = _PANELS if failed else _PANELS[:-1]
    figure = make_subplots(len(panels), 1, shared_xaxes=True, vertical_spacing=0.035)
    style(figure, 190 * len(panels), hovermode="closest")
    row = {panel: number for number, panel in enumerate(panels, 1)}
    _areas(figure, stages, row["in_flight"])
    _steps(figure, stages, "tokens_per_s", "output rate", ink.WORKLOADS[0], row["rate"], "%{y:,.4~g} tokens/s")
    _ttft_dots(figure, series, row["ttft"])
    for stage in stages:
        if stage["heat"] is not None:
            _heat(figure, stage, row["heat"])
    if failed:
        _steps(figure, stages, "failed", "failed", ink.BAD, row["failed"], "%{y:.0f} failed")
    titles = ("in flight<br>(requests)", "output rate<br>(tokens/s)", "TTFT (s)", "gap between<br>token events (s)",
              "failed or<br>cancelled")  # fmt: skip
    for number, title in enumerate(titles[: len(panels)], 1):
        figure.update_yaxes(title_text=title, title_font_size=12, row=number, col=1)
    for panel in ("ttft", "heat"):
        figure.update_yaxes(type="log", tickformat="~s", nticks=5, row=row[panel], col=1)
    figure.update_xaxes(title_text="time from the start of the run (s)", row=len(panels), col=1)
    _stage_bands(figure, stages)
    alt = "Over the time of the run: requests in flight, output rate, TTFT of requests, gaps between token events."
    return Chart(figure, alt)


def _gapped(stages: Sequence[dict[str, Any]], *keys: str) -> tuple[list[Any], list[Any]]:
    """Edges and the sum of block values of all stages in one line, with a gap after each stage."""
    x: list[Any] = []
    y: list[Any] = []
    for stage in stages:
        values = [sum(parts) for parts in zip(*(stage[key] for key in keys), strict=True)]
        x += [*stage["edges"], None]
        y += [*values, values[-1], None]
    return x, y


def _areas(figure: go.Figure, stages: Sequence[dict[str, Any]], row: int) -> None:
    for keys, name, color in (
        (("waiting", "streaming"), "waiting for the first token", ink.PHASES[1]),
        (("streaming",), "streaming", ink.PHASES[3]),
    ):
        x, y = _gapped(stages, *keys)
        figure.add_scatter(x=x, y=y, mode="lines", name=name, fill="tozeroy", fillcolor=color, row=row, col=1,
                           line={"color": color, "width": 1, "shape": "hv"},
                           hovertemplate="%{y:.3~g} in flight at %{x:.4~g} s")  # fmt: skip


def _steps(
    figure: go.Figure, stages: Sequence[dict[str, Any]], key: str, name: str, color: str, row: int, hover: str
) -> None:
    x, y = _gapped(stages, key)
    figure.add_scatter(x=x, y=y, mode="lines", name=name, showlegend=False, row=row, col=1, fill="tozeroy",
                       line={"color": color, "width": 1.5, "shape": "hv"},
                       hovertemplate=hover + " at %{x:.4~g} s")  # fmt: skip
    figure.update_yaxes(rangemode="tozero", row=row, col=1)


def _ttft_dots(figure: go.Figure, series: Series, row: int) -> None:
    for number, name in enumerate(series["workloads"]):
        mine = [stage for stage in series["timeline"] if stage["workload"] == name]
        figure.add_scatter(
            x=[x for stage in mine for x in stage["sent"]],
            y=[y for stage in mine for y in stage["ttft"]],
            mode="markers",
            name=text(f"TTFT of {name}"),
            marker={"size": 5, "color": ink.workload(number), "symbol": ink.symbol(number), "opacity": 0.8},
            hovertemplate="TTFT %{y:.4~s}s, sent at %{x:.4~g} s",
            row=row,
            col=1,
        )


def _heat(figure: go.Figure, stage: dict[str, Any], row: int) -> None:
    heat = stage["heat"]
    figure.add_heatmap(
        x=heat["times"],
        y=heat["gaps"],
        z=heat["share"],
        zmin=0,
        zmax=0.5,
        showscale=False,
        colorscale=[[0, ink.HEAT_LOW], [1, ink.HEAT_HIGH]],
        name=text(stage["name"]),
        hovertemplate="%{z:.1%} of the gaps are about %{y:.3~s}s<br>at %{x:.4~g} s",
        row=row,
        col=1,
    )


def _stage_bands(figure: go.Figure, stages: Sequence[dict[str, Any]]) -> None:
    """Names of the stages above their windows, as far as there is room; lines between them."""
    span = (stages[-1]["end"] - stages[0]["start"]) or 1.0
    last = -1.0
    for stage in stages:
        figure.add_vline(stage["start"], line={"color": ink.MUTED, "width": 0.7, "dash": "dot"})
        place = (stage["start"] - stages[0]["start"]) / span
        if place - last < 0.09:
            continue
        last = place
        figure.add_annotation(x=stage["start"], y=1, yref="paper", xanchor="left", yanchor="bottom", showarrow=False,
                              text=text(stage["name"]), font={"size": 11, "color": ink.MUTED})  # fmt: skip
    figure.update_layout(legend_y=1.06, margin_t=40)


def slowest(series: Series) -> Chart | None:
    """A line of token events for each of the slowest requests."""
    rows = [row for row in series["slowest"] if row["events"]]
    if not rows:
        return None
    figure = blank("time from sent (s)", "", 110 + 34 * len(rows))
    lines: dict[str, tuple[list[Any], list[Any]]] = {"wait": ([], []), "stall": ([], []), "event": ([], [])}
    for number, row in enumerate(rows):
        for key, x in (("wait", [0, row["events"][0]]), ("stall", row["stall"]), ("event", row["events"])):
            lines[key][0].extend([*x, None])
            lines[key][1].extend([*[number] * len(x), None])
    style = {
        "wait": ("to first token", "lines", {"line": {"color": ink.PHASES[1], "width": 8}}),
        "stall": ("longest gap", "lines", {"line": {"color": ink.BAD, "width": 8}}),
        "event": (
            "token events",
            "markers",
            {"marker": {"symbol": "line-ns-open", "size": 12, "color": ink.PHASES[3]}},
        ),
    }
    for key, (name, mode, look) in style.items():
        x, y = lines[key]
        figure.add_scatter(x=x, y=y, mode=mode, name=name, hovertemplate="%{x:.4~g} s", connectgaps=False, **look)
    labels = [text(f"{row['stage']}, {row['ratio']} the median") for row in rows]
    figure.update_yaxes(tickvals=list(range(len(rows))), ticktext=labels, autorange="reversed", showgrid=False)
    figure.update_xaxes(rangemode="tozero")
    return Chart(figure, "Token events of the slowest requests over the time since each was sent.")
