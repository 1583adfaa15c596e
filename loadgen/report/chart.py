"""What a chart is made of, and the parts that every chart shares: axes, lines, limits.

Knows: plotly's words for an axis, a line, a note. Must not know: any series, colours by theme.
Why: the same look and the same honest axes (title and unit on each) everywhere, written once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.analysis.numbers import brief

Trace = dict[str, Any]
Numbers = Sequence[float | None]

SHARES: dict[str, Any] = {"tickformat": ".0%", "range": [0, 1.02], "tickvals": [0, 0.25, 0.5, 0.75, 0.9, 0.99]}


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. `caption` says how to read it, `height` is in CSS pixels."""

    title: str
    caption: str
    data: list[Trace]
    layout: dict[str, Any]
    height: int = 380


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title and unit."""
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False} | more


def log_axis(
    title: str, values: Iterable[float | None], unit: str, *, room: float = 0.5, **more: Any
) -> dict[str, Any]:
    """A log axis over the values, at least `room` decades wide, with ticks at round numbers in their unit.

    Plotly's own ticks write units on some of them only, and none at all where an axis is short.
    """
    low, high = decades(values, room)
    at = ticks(10.0**low, 10.0**high)
    text = [brief(tick, unit) for tick in at]
    return axis(title, type="log", range=[low, high], tickvals=at, ticktext=text, **more)


def load_axis(title: str, loads: Iterable[float]) -> dict[str, Any]:
    """A log axis of loads, with ticks at the loads themselves; of many, at some."""
    every = sorted(set(loads))
    at = every[:: -(-len(every) // 8)]
    text = [brief(load, "") for load in at]
    return axis(title, type="log", range=list(decades(every, 0.5)), tickvals=at, ticktext=text)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high` for a log axis: powers of ten over many decades, 1-2-5 over
    one or two, more digits over less than one, equal steps where that is still too few."""
    span = math.log10(high / low)
    if span < 0.35:
        step = _round_step((high - low) / 4)
        return [round(k * step, 15) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    digits = (1, 2, 3, 4, 5, 6, 8) if span < 0.9 else (1, 2, 5) if span < 2.4 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [float(f"{digit}e{power}") for power in powers for digit in digits]
    return [tick for tick in found if low <= tick <= high]


def _round_step(about: float) -> float:
    """The 1, 2 or 5 with a power of ten next below."""
    power = 10.0 ** math.floor(math.log10(about))
    return next(digit for digit in (5.0, 2.0, 1.0) if digit * power <= about * 1.0001) * power


def layout(x: dict[str, Any], y: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The frame around the data; the page adds colours and fonts of its theme."""
    return {
        "xaxis": x,
        "yaxis": y,
        "margin": {"l": 12, "r": 24, "t": 12, "b": 12},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "xanchor": "left", "x": 0},
        "hovermode": "closest",
    } | more


def decades(values: Iterable[float | None], least: float) -> tuple[float, float]:
    """Range of a log axis (powers of ten) with room around the values, `least` decades wide at least."""
    logs = [math.log10(value) for value in values if value is not None and value > 0.0]
    if not logs:
        return 0.0, 1.0
    low, high = min(logs), max(logs)
    room = max(0.08 * (high - low), (least - (high - low)) / 2, 0.06)
    return low - room, high + room


def errors(line: dict[str, Numbers]) -> dict[str, Any]:
    """Intervals of a line as error bars; a side that is open, or reaches what a log axis cannot show, has none."""
    values = line["value"]
    up = [_distance(high, value) for high, value in zip(line["high"], values, strict=True)]
    down = [_distance(value, low) for low, value in zip(line["low"], values, strict=True)]
    return {
        "type": "data",
        "symmetric": False,
        "array": up,
        "arrayminus": down,
        "thickness": 1.2,
        "width": 3,
    }


def _distance(high: float | None, low: float | None) -> float:
    return max(high - low, 0.0) if high is not None and low is not None and low > 0.0 else 0.0


def line_at(direction: str, at: float) -> dict[str, Any]:
    """A limit as a dashed line across the chart; `direction` is the axis that it is a value of."""
    other = "y" if direction == "x" else "x"
    return {
        "type": "line",
        f"{direction}0": at,
        f"{direction}1": at,
        f"{other}0": 0,
        f"{other}1": 1,
        f"{other}ref": f"{other} domain",
        "line": {"color": "@bad", "width": 1.5, "dash": "dash"},
    }


def note(text: str, x: float, y: float, **more: Any) -> dict[str, Any]:
    """A text in the chart, without an arrow."""
    return {"text": plain(text), "x": x, "y": y, "showarrow": False, "font": {"color": "@muted", "size": 12}} | more


def plain(text: str) -> str:
    """Plotly reads a little HTML and `%{field}` in its texts; a name that holds some is text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "%&#123;")
