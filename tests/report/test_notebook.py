"""A run in a notebook: tables and figures say what the report and the export say, and the example notebook runs."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import loadgen
from loadgen.cli.export import command as export
from loadgen.errors import UsageError
from loadgen.report.notebook import Run
from tests import synthetic
from tests.report.made import hostile

NOTEBOOK = Path(__file__).parents[2] / "examples" / "analysis.ipynb"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    info, rows = synthetic.case("mixed")
    info.spec["slo"] = ["p50(ttft) < 300ms"]
    return synthetic.write_run(tmp_path_factory.mktemp("notebook") / "runs" / "demo", info, rows)


@pytest.fixture(scope="module")
def run(mixed: Path) -> Run:
    return loadgen.open_run(mixed)


def _case(tmp_path: Path, name: str) -> Run:
    return loadgen.open_run(str(synthetic.write_run(tmp_path / name, *synthetic.case(name))))


def test_requests_are_the_exported_ones(run: Run, mixed: Path) -> None:
    rows = [json.loads(line) for line in CliRunner().invoke(export, [str(mixed)]).stdout.splitlines()]
    table = run.requests(events=True)
    assert len(table) == len(rows)
    for i in (0, len(rows) - 1):
        shown = table.iloc[i].to_dict()
        load = {"kind": shown.pop("load_kind"), "value": shown.pop("load")}
        assert load == rows[i].pop("load")
        assert list(shown) == list(rows[i])
        for name, value in rows[i].items():
            assert shown[name] == value or (value is None and (shown[name] is None or math.isnan(shown[name]))), name


def test_requests_without_events_are_numbers_and_words(run: Run) -> None:
    table = run.requests()
    assert "event_times_s" not in table
    assert table["ttft_s"].dtype == table["scheduled_s"].dtype == table["reasoning_tokens"].dtype == np.float64
    assert table["scheduled_s"].isna().all()  # closed loop: not known, and not 0
    assert len(run.requests(warmup=True)) == len(table) + 12


def test_metrics_are_those_of_the_report(run: Run) -> None:
    table = run.metrics()
    assert len(table) == sum(len(stage.values) for stage in run.summary.stages)
    row = table.query("stage == 'chat@8' and metric == 'ttft' and stat == 'p50'").iloc[0]
    value = run.summary.stages[1].get("ttft", "p50")
    assert value is not None
    assert (row["value"], row["ci_low"], row["n"], row["load"]) == (value.value, value.ci_low, 40, 8.0)


def test_a_gate_is_a_table_of_verdicts(run: Run) -> None:
    own = run.check()
    assert dict(zip(own["stage"], own["outcome"], strict=True))["summarize@8"] == "fail"
    other = run.check("p50(ttft) < 100s", "chat: p99(ttft) < 100s")
    assert list(other["outcome"]) == ["pass"] * 6 + ["undecidable"] * 2
    with pytest.raises(UsageError, match="time"):
        run.check("p50(ttft) < 3")


def test_every_figure_of_the_report_is_there(run: Run) -> None:
    import plotly.graph_objects as go

    names = run.figures.names()
    assert {"throughput", "ttft_load", "phases", "roofline", "timeline", "ttft_heat", "gap_heat", "slowest"} <= set(
        names
    )
    assert set(names) <= set(dir(run.figures))
    for name in names:
        assert isinstance(getattr(run.figures, name)(), go.Figure)
    assert "story" in run.figures.distribution("story", "e2e").layout.title.text


def test_what_is_not_there_is_told_with_what_is(run: Run) -> None:
    with pytest.raises(UsageError, match=r"no data for `goodput`.*throughput"):
        run.figures.goodput()
    with pytest.raises(UsageError, match=r"no distribution of ttft of poem.*chat"):
        run.figures.distribution("poem")
    with pytest.raises(UsageError, match="no such folder"):
        loadgen.open_run("no/such/run")
    assert not hasattr(run.figures, "_repr_png_")


def test_in_a_cell_it_says_verdict_diagnosis_and_figures(run: Run) -> None:
    html = run._repr_html_()
    assert f"measurement {run.verdict.upper()}" in html
    assert "The SLO fails on summarize@1, summarize@8." in html
    assert html.count("<tr>") == 1 + 6
    assert repr(run).endswith(f"measurement {run.verdict.upper()}>")


@pytest.mark.parametrize("name", ["none", "one", "all_failed", "interrupted", "open"])
def test_odd_runs_have_tables_too(tmp_path: Path, name: str) -> None:
    import pandas as pd

    odd = _case(tmp_path, name)
    assert odd.verdict.upper() in odd._repr_html_()
    assert odd.requests()["ttft_s"].dtype == np.float64
    for table in (odd.requests(), odd.metrics(), odd.check(), odd.findings()):
        assert isinstance(table, pd.DataFrame)
        assert len(table.columns) > 0
    if name == "open":
        assert "ttft_scheduled, p99" in odd._repr_html_()
        assert odd.requests()["scheduled_s"].notna().all()


def test_markup_in_a_cell_stays_text(tmp_path: Path) -> None:
    html = loadgen.open_run(synthetic.write_run(tmp_path / "run", *hostile()))._repr_html_()
    assert "<script" not in html
    assert "<img" not in html


def test_a_fit_reads_the_run_s_cells_and_what_the_user_knows_better(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimator itself takes half a minute; here it is what it is given."""
    given: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr("loadgen.roofline.fit.fit", lambda cells, **more: given.append((cells, more)))
    run.fit()
    run.fit(gpu="h100", gpus=2, shape="llama-3.1-8b", dtype="fp8", holdout="shape")
    (cells, more), (told, better) = given
    assert [cell.load for cell in cells] == [1, 8] * 3
    assert cells[0].deployment.gpu.name == "H100-SXM"
    assert (cells[0].deployment.gpus, told[0].deployment.gpus) == (1, 2)
    assert told[0].deployment.dtypes.weights == "fp8"
    assert (more["holdout"], better["holdout"]) == ("alternate", "shape")
    with pytest.raises(UsageError, match="h1000"):
        run.fit(gpu="h1000")


def _executed(source: str, names: dict[str, Any]) -> Any:
    """The value of a cell's last expression, as a notebook shows it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None


def test_the_example_notebook_runs_from_its_first_cell_to_its_last(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd
    import plotly.graph_objects as go

    monkeypatch.chdir(mixed.parents[1])
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["metadata"]["language_info"]["name"]) == (4, "python")
    names: dict[str, Any] = {}
    shown = []
    for cell in book["cells"]:
        assert cell["id"]
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # it is stored as it was written
            shown.append(_executed("".join(cell["source"]), names))
    assert all(isinstance(value, Run | pd.DataFrame | go.Figure) for value in shown)
    assert all(len(value) > 0 for value in shown if isinstance(value, pd.DataFrame))
    assert sum(isinstance(value, go.Figure) for value in shown) == 5
    assert set(names["gate"]["outcome"]) == {"pass", "fail", "undecidable"}
