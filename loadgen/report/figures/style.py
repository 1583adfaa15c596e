"""What all charts have in common: look, axes, legends, text from outside as text.

Knows: plotly's layout. Must not know: what any chart shows.
Why: one look, one place; the page swaps its colours by `palette.PAIRS`.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from loadgen.report import palette as ink

Series = dict[str, Any]
LEGEND_ENTRIES = 9
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure, and what it shows in words for those who do not see it."""

    figure: go.Figure
    alt: str


def text(words: str) -> str:
    """Words from outside as words: plotly would read `<b>` and entities."""
    return html.escape(words, quote=False)


def blank(x: str, y: str, height: int = 380, **layout: Any) -> go.Figure:
    figure = go.Figure()
    style(figure, height, **layout)
    figure.update_xaxes(title_text=x)
    figure.update_yaxes(title_text=y)
    return figure


def style(figure: go.Figure, height: int, **layout: Any) -> None:
    """One look for all charts; the page swaps its colours by `palette.PAIRS`."""
    figure.update_layout(
        template="none",
        height=height,
        font={"family": _FONT, "size": 13, "color": ink.INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 64, "r": 20, "t": 16, "b": 56},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
        hoverlabel={"bgcolor": ink.PAPER, "bordercolor": ink.MUTED, "font": {"color": ink.INK, "family": _FONT}},
        **layout,
    )
    axis = {
        "gridcolor": ink.GRID,
        "linecolor": ink.MUTED,
        "tickcolor": ink.MUTED,
        "zeroline": False,
        "automargin": True,
        "tickfont": {"size": 12, "color": ink.MUTED},
        "title": {"font": {"size": 13, "color": ink.INK}, "standoff": 8},
    }
    figure.update_xaxes(**axis, showline=True, ticks="outside")
    figure.update_yaxes(**axis)


def log_axis(axis: str = "x") -> dict[str, Any]:
    """A log axis whose ticks read 10 ms, 1 s, not powers: `s` is the SI prefix format."""
    return {f"{axis}axis_type": "log", f"{axis}axis_dtick": 1, f"{axis}axis_tickformat": "~s"}


def error_bars(line: dict[str, Any]) -> dict[str, Any]:
    """Error bars of a line with its bounds; a bound that is missing is not drawn."""
    pairs = list(zip(line["value"], line["low"], line["high"], strict=True))
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - value if None not in (value, high) else 0 for value, _, high in pairs],
        "arrayminus": [value - low if None not in (value, low) else 0 for value, low, _ in pairs],
        "thickness": 1.2,
        "width": 3,
    }


def in_legend(index: int, count: int) -> bool:
    """At most LEGEND_ENTRIES, spread evenly, the first and the last among them."""
    if count <= LEGEND_ENTRIES:
        return True
    chosen = {round(k * (count - 1) / (LEGEND_ENTRIES - 1)) for k in range(LEGEND_ENTRIES)}
    return index in chosen
