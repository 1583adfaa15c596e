"""The charts, as plotly figures that work in a notebook as well as in the report. The only importer of plotly.

Knows: plotly, and which charts there are. Must not know: how a number comes about (`view` and `series` hand plain lists
over), HTML.
Why: charts are functions from plain series to a figure, so that a test can look at what is drawn without a browser.
Every text from outside (names of models, workloads, stages) goes through `style.text`: plotly reads a little markup.
"""

from __future__ import annotations

import plotly.offline

from loadgen.report.figures.load import by_load, pareto, phases, roofline
from loadgen.report.figures.spread import arrivals, distribution
from loadgen.report.figures.style import Chart, Series
from loadgen.report.figures.time import slowest, timeline
from loadgen.report.series import DISTRIBUTIONS


def charts(series: Series) -> dict[str, Chart]:
    """Every chart that the series can fill, by the id that the template places it with."""
    found: dict[str, Chart | None] = {
        "pareto": pareto(series),
        "ttft-by-load": by_load(series, "ttft"),
        "goodput": by_load(series, "goodput"),
        "phases": phases(series),
        "roofline": roofline(series),
        "timeline": timeline(series),
        "arrivals": arrivals(series),
        "slowest": slowest(series),
    }
    for number, curves in enumerate(series["distributions"]):
        for metric in DISTRIBUTIONS:
            found[f"ecdf-{number}-{metric}"] = distribution(series["workloads"][number], metric, curves[metric])
    return {name: chart for name, chart in found.items() if chart is not None}


def plotly_js() -> str:
    """The library itself, to be inlined once."""
    source: str = plotly.offline.get_plotlyjs()
    return source
