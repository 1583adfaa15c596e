"""The charts, as plotly figures in plain dicts.

Knows: plotly's vocabulary, and which series a chart draws. Must not know: how a series is computed, HTML, files.
Why: a dict of plain values is what the page embeds as JSON, what a test reads and what `notebook` turns into a plotly
object; building plotly objects for a page would cost a second for nothing. The only importer of plotly.

Colours that depend on the theme are written as tokens ("@ink"); the page resolves them when it draws and again when
the reader's theme changes, `notebook` resolves them to the light theme.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loadgen.report import charts_compare, charts_fit, charts_load, charts_matrix, charts_time
from loadgen.report.chart import Chart, plain
from loadgen.report.palette import THEMES

if TYPE_CHECKING:
    import plotly.graph_objects as go


def build(series: dict[str, Any]) -> dict[str, Chart]:
    """Every chart that the series of a view have data for, by name, in the order of the page."""
    found: dict[str, Chart | None] = {
        "throughput": charts_load.throughput(series),
        "ttft-load": charts_load.ttft_over_load(series),
        "goodput": charts_load.goodput(series),
        "phases": charts_load.phases(series),
        "roofline": charts_load.roofline(series),
        **charts_time.distributions(series),
        "timeline": charts_time.timeline(series),
        "ttft-heat": charts_time.ttft_heat(series),
        "gap-heat": charts_time.gap_heat(series),
        "arrivals": charts_time.arrivals(series),
        "server": charts_time.server(series),
        "slowest": charts_time.slowest(series),
    }
    return {name: chart for name, chart in found.items() if chart is not None}


def comparison(series: dict[str, Any]) -> dict[str, Chart]:
    """Every chart of a comparison that its series have data for, by name, in the order of the page."""
    return charts_compare.build(series)


def matrix(series: dict[str, Any]) -> dict[str, Chart]:
    """Every chart of a matrix that its series have data for, by name, in the order of the page."""
    return charts_matrix.build(series)


def fit(series: dict[str, Any]) -> dict[str, Chart]:
    """Every chart that the series of a fit have data for, by name."""
    return {name: chart for name, chart in charts_fit.build(series).items() if chart is not None}


def notebook(chart: Chart) -> go.Figure:
    """The chart as a plotly figure, with its title, in light colours."""
    import plotly.graph_objects as go

    spec = resolved({"data": chart.data, "layout": chart.layout}, THEMES["light"])
    figure = go.Figure(spec)
    figure.update_layout(title=plain(chart.title), height=chart.height, template="plotly_white")
    return figure


def resolved(value: Any, tokens: dict[str, str]) -> Any:
    """The same value with every "@token" replaced by its colour."""
    if isinstance(value, dict):
        return {key: resolved(one, tokens) for key, one in value.items()}
    if isinstance(value, list):
        return [resolved(one, tokens) for one in value]
    return tokens[value[1:]] if isinstance(value, str) and value[:1] == "@" and value[1:] in tokens else value


def plotly_js() -> str:
    """The library that draws the charts in the page (MIT licence, its notice inside)."""
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    return text
