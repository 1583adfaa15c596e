"""Distributions: of latencies, and of the time between requests.

Knows: how these are drawn. Must not know: how a number comes about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadgen.report import palette as ink
from loadgen.report.figures.style import Chart, Series, blank, in_legend, log_axis, text
from loadgen.report.series import DISTRIBUTIONS


def distribution(workload: str, metric: str, curves: Sequence[dict[str, Any]]) -> Chart | None:
    """Empirical distributions of one metric of one workload, a line for each load."""
    if not curves:
        return None
    figure = blank(f"{DISTRIBUTIONS[metric]} (s)", "share at or below (%)", 340)
    for index, curve in enumerate(curves):
        figure.add_scatter(
            x=curve["x"],
            y=[100 * share for share in curve["share"]],
            mode="lines" if len(curve["x"]) > 1 else "markers",
            name=text(curve["load"]),
            showlegend=in_legend(index, len(curves)),
            line={"color": ink.load(index, len(curves)), "width": 2, "shape": "hv"},
            hovertemplate="%{y:.4~g} % at or below %{x:.4~s}s",
        )
    figure.update_layout(xaxis_type="log", xaxis_tickformat="~s", xaxis_nticks=8, xaxis_ticksuffix="s")
    figure.update_xaxes(minor={"showgrid": False})
    figure.update_yaxes(range=[0, 101], tickvals=[0, 25, 50, 75, 90, 99])
    return Chart(figure, f"Cumulative distribution of {DISTRIBUTIONS[metric]} of {workload}, a line for each load.")


def arrivals(series: Series) -> Chart | None:
    """Times between requests, as the plan had them and as they were sent."""
    if not series["arrivals"]:
        return None
    figure = blank("time between requests (s)", "share at or below (%)", 340, **log_axis("x"))
    count = len(series["arrivals"])
    for index, stage in enumerate(series["arrivals"]):
        for key, dash in (("scheduled", "dot"), ("sent", "solid")):
            x, share = stage[key]
            figure.add_scatter(
                x=x,
                y=[100 * one for one in share],
                mode="lines",
                name=text(f"{stage['name']} {key}"),
                showlegend=in_legend(index, count),
                line={"color": ink.load(index, count), "width": 2, "dash": dash},
                hovertemplate="%{y:.4~g} % at or below %{x:.4~s}s",
            )
    return Chart(figure, "Cumulative distribution of the time between requests, as scheduled and as sent.")
