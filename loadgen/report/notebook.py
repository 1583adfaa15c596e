"""A run for notebooks and scripts: its requests and metrics as DataFrames, its charts as plotly figures, its gates.

Knows: which value of a run becomes which table or figure. Must not know: how anything is computed, drawn or stored.
Why: whoever asks a question that no report answers should start from the numbers that the report shows, not from a
second reading of the files.

    run = loadgen.open_run("runs/20260101-120000")
    run.metrics().query("metric == 'ttft' and stat == 'p50'")
    run.requests().plot.scatter("sent_s", "ttft_s")
    run.figures.roofline()
    run.check("p99(ttft) < 1s")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.analysis.frame import Requests
from loadgen.analysis.records import FIELDS, records
from loadgen.analysis.summary import Summary, summarise
from loadgen.errors import UsageError
from loadgen.model import RunInfo
from loadgen.report import figures
from loadgen.report.chart import Chart
from loadgen.report.render import environment, metric_rows
from loadgen.report.series import DISTRIBUTIONS
from loadgen.report.view import view
from loadgen.store.inputs import read_run_cells
from loadgen.store.runfile import open_run as read_run
from loadgen.store.serverfile import read_server

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from loadgen.roofline.fit import Holdout
    from loadgen.roofline.fitted import Fit

_EVENTS = ("event_times_s", "event_tokens")


def open_run(path: str | PathLike[str]) -> Run:
    """The run in folder `path`, finished or not. Raises UsageError where there is none."""
    folder = Path(path)
    info, requests = read_run(folder)
    return Run(folder, info, requests)


class Run:
    """One run. Times are in seconds, shares from 0 to 1; what is not known is NaN or None, never 0.

    Attributes:
        path: its folder.
        info: what was run, against what, by whom (`model.RunInfo`).
    """

    def __init__(self, path: Path, info: RunInfo, requests: Requests) -> None:
        self.path = path
        self.info = info
        self._requests = requests

    @cached_property
    def summary(self) -> Summary:
        """Every figure of the report, computed once."""
        return self._summarised(())

    def _summarised(self, slo: tuple[str, ...]) -> Summary:
        return summarise(self.info, self._requests, slo, read_server(self.path))

    @property
    def verdict(self) -> str:
        """Whether the measurement can be trusted: valid, questionable or invalid."""
        return self.summary.verdict

    def findings(self) -> pd.DataFrame:
        """Why: one row for each finding (severity, code, message, value, advice), the worst first."""
        heads = ("severity", "code", "message", "value", "advice")
        return _table([{name: getattr(one, name) for name in heads} for one in self.summary.findings], heads)

    def requests(self, *, events: bool = False, warmup: bool = False) -> pd.DataFrame:
        """One row for each request, with the fields of `loadgen export`, the load as two columns.

        Args:
            events: also `event_times_s` and `event_tokens`, lists with an entry for each token event. Many.
            warmup: also requests of the warm-up; they bear the flag `warmup`.
        """
        fields = tuple(name for name in FIELDS if events or name not in _EVENTS)
        chosen = self._requests if warmup else self._requests.select(~self._requests.has("warmup"))
        rows = [_with_flat_load(row) for row in records(self.info, chosen, fields)]
        table = _table(rows, tuple(_with_flat_load(dict.fromkeys(fields))))
        return table.astype({name: np.float64 for name in table if _is_number(str(name))})

    def metrics(self) -> pd.DataFrame:
        """One row for each statistic of each stage, with its 95 % interval and whether the sample supports it."""
        return _table(metric_rows(self.summary), ("stage", "workload", "load_kind", "load", "metric", "stat", "value"))

    def check(self, *slo: str) -> pd.DataFrame:
        """One row for each objective on each stage: outcome (pass, fail, undecidable), observed, bound, n, why.

        Without an expression the objectives that the run was made with. Raises UsageError for one that cannot be read.
        """
        results = self._summarised(slo).slo if slo else self.summary.slo
        return _table([asdict(result) for result in results], ("expr", "outcome", "observed", "bound", "n"))

    def fit(
        self,
        *,
        gpu: str = "",
        gpus: int | None = None,
        shape: str = "",
        dtype: str = "",
        holdout: Holdout = "alternate",
        seed: int = 0,
    ) -> Fit:
        """The physics of the engine behind this run, as `loadgen fit` estimates it.

        Args:
            gpu, gpus, shape, dtype: all of what served, where the run itself does not say it or says it wrongly.
            holdout: which cells are predicted from the others: alternate, shape or none.
            seed: of starting points and resampling.

        Raises:
            UsageError: no stage can be fitted, or the hardware is unknown.
        """
        from loadgen.roofline import named
        from loadgen.roofline.fit import fit
        from loadgen.store.shapefile import read_shape

        known = named.Known(
            gpu=named.find_gpu(gpu) if gpu else None,
            gpus=gpus,
            shape=read_shape(shape) if shape else None,
            dtype=dtype,
        )
        return fit(read_run_cells(self.path, known).cells, holdout=holdout, rng=np.random.default_rng(seed))

    @cached_property
    def _view(self) -> dict[str, Any]:
        return view(self.summary)

    @cached_property
    def figures(self) -> Figures:
        """The charts of the report as plotly figures: `run.figures.roofline()`."""
        return Figures(self._view["series"])

    def __repr__(self) -> str:
        stages = ", ".join(stage.name for stage in self.info.stages) or "no stage"
        return f"<Run {self.path}: {stages}; {len(self._requests)} requests; measurement {self.verdict.upper()}>"

    def _repr_html_(self) -> str:
        return environment().get_template("notebook.html.j2").render(view=self._view)


class Figures:
    """The charts of one run. Each name of `names()` is a method without arguments that makes a plotly figure."""

    def __init__(self, series: dict[str, Any]) -> None:
        self._workloads: list[str] = series["workloads"]
        self._charts = {name.replace("-", "_"): chart for name, chart in figures.build(series).items()}

    def names(self) -> list[str]:
        """Charts that this run has data for, but for distributions."""
        return [name for name in self._charts if not name.startswith("distribution_")]

    def distribution(self, workload: str, metric: str = "ttft") -> go.Figure:
        """The empirical distribution of a metric (ttft, tpot, chunk_gap, e2e) at each load.

        Raises:
            UsageError: this run has no such workload or metric.
        """
        if workload not in self._workloads or metric not in DISTRIBUTIONS:
            known = f"workloads: {', '.join(self._workloads)}; metrics: {', '.join(DISTRIBUTIONS)}"
            raise UsageError(f"there is no distribution of {metric} of {workload}", do=known)
        return self._drawn(f"distribution_{self._workloads.index(workload)}_{metric}")

    def _drawn(self, name: str) -> go.Figure:
        chart: Chart | None = self._charts.get(name)
        if chart is None:
            raise UsageError(f"this run has no data for `{name}`", do=f"it has: {', '.join(self.names()) or 'nothing'}")
        return figures.notebook(chart)

    def __getattr__(self, name: str) -> Callable[[], go.Figure]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda: self._drawn(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.names()]


def _with_flat_load(row: dict[str, Any]) -> dict[str, Any]:
    """The record with its load as two columns."""
    load = row["load"] or {"kind": None, "value": None}
    flat: dict[str, Any] = {}
    for name, value in row.items():
        flat |= {"load_kind": load["kind"], "load": load["value"]} if name == "load" else {name: value}
    return flat


def _is_number(name: str) -> bool:
    """Columns of numbers, by the fields' own suffixes: without any known they would be columns of None."""
    whole = name in ("load", "http_status", "turn")
    return whole or (name.endswith(("_s", "_tokens", "_requested")) and name not in _EVENTS)


def _table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    """The rows as a table; `columns` are those of an empty one."""
    import pandas as pd

    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(columns))
