"""JSON, CSV and Markdown, and the command that writes them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.analysis.summary import summarise, to_json
from loadgen.cli.report import command
from loadgen.errors import StorageError, UsageError
from loadgen.report.render import render
from tests import synthetic


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.write_run(tmp_path_factory.mktemp("runs") / "run", *synthetic.case("failures"))


def test_json_is_the_summary() -> None:
    summary = summarise(*synthetic.run("open"))
    assert json.loads(render(summary, "json")) == json.loads(json.dumps(to_json(summary)))


def test_csv_has_a_row_for_each_statistic_and_empty_for_missing() -> None:
    summary = summarise(*synthetic.run("all_failed"))
    rows = list(csv.DictReader(io.StringIO(render(summary, "csv"))))
    values = summary.stages[0].values
    assert len(rows) == len(values)
    for row, value in zip(rows, values, strict=True):
        assert (row["metric"], row["stat"], row["unit"]) == (value.metric, value.stat, value.unit)
        assert row["value"] == ("" if value.value is None else str(value.value))
    assert any(row["value"] == "" for row in rows)


def test_the_command_writes_the_page_and_prints_its_path(run: Path) -> None:
    result = CliRunner().invoke(command, [str(run)], standalone_mode=False)
    assert result.exception is None
    assert result.output.strip() == str(run / "report.html")
    assert (run / "report.html").stat().st_size > 1_000_000


@pytest.mark.parametrize(("form", "begin"), [("md", "### "), ("json", "{"), ("csv", "stage,workload")])
def test_other_formats_are_printed(run: Path, form: str, begin: str) -> None:
    result = CliRunner().invoke(command, [str(run), "--format", form], standalone_mode=False)
    assert result.exception is None
    assert result.output.startswith(begin)


def test_a_file_can_be_chosen(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = CliRunner().invoke(command, [str(run), "--format", "json", "-o", str(path)], standalone_mode=False)
    assert result.output.strip() == str(path)
    assert json.loads(path.read_text())["trust"]["verdict"]


def test_mistakes_are_named(run: Path, tmp_path: Path) -> None:
    for arguments, error in (
        ([str(tmp_path / "none")], UsageError),
        ([str(run), "--format", "csv", "--open"], UsageError),
        ([str(run), "-o", str(tmp_path / "no" / "file.html")], StorageError),
    ):
        result = CliRunner().invoke(command, arguments, standalone_mode=False)
        assert isinstance(result.exception, error), arguments
