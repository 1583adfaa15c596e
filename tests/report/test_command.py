"""`loadgen report`: files, standard output, and mistakes in one line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from pyarrow import parquet

from loadgen.cli import main
from tests import synthetic
from tests.store.test_wholefile import a_disk_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return synthetic.write_run(tmp_path / "run", *synthetic.case("chat"))


def _run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["report", *words])
    code = end.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-o", "{run}/run.json"], "is the run itself"),
        (["-o", "{run}/requests.jsonl"], "is the run itself"),
        (["--format", "csv", "-o", "{run}/no/such/out.csv"], "out.csv"),
        (["--format", "csv", "--open"], "--open"),
        (["--format", "pdf"], "pdf"),
        (["-o", "{run}/x.pdf"], ".pdf is no format that is written here"),
    ],
)
def test_mistakes_are_one_line_and_touch_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert _run(str(folder), *(word.format(run=folder) for word in words)) in (2, 4)
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_the_suffix_of_the_output_is_its_format(folder: Path) -> None:
    assert _run(str(folder), "-o", str(folder / "x.json")) == 0
    assert json.loads((folder / "x.json").read_text())["stages"]
    assert _run(str(folder), "--format", "json", "-o", str(folder / "x.pdf")) == 0  # what was asked for is written


def test_a_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(str(tmp_path)) == 2
    assert "holds no run" in capsys.readouterr().err


def test_a_run_that_was_killed_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What kill -9 leaves: run.json still says running, the last line is torn."""
    info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    info["status"] = "running"
    info["stages"][-1].pop("window_end_ns", None)
    (folder / "run.json").write_text(json.dumps(info), encoding="utf-8")
    rows = (folder / "requests.jsonl").read_bytes()
    (folder / "requests.jsonl").write_bytes(rows[:-100])
    assert _run(str(folder), "--format", "json") == 0
    done = sum(stage["requests"]["ok"] for stage in json.loads(capsys.readouterr().out)["stages"])
    assert done == 20 + 80 + 320 - 1


def test_a_full_disk_leaves_the_old_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "report.html").write_text("old", encoding="utf-8")
    with a_disk_of(1_000_000):
        assert _run(str(folder)) == 2
    assert "report.html: file too large" in capsys.readouterr().err
    assert (folder / "report.html").read_text(encoding="utf-8") == "old"
    assert {file.name for file in folder.iterdir()} == {"run.json", "requests.jsonl", "report.html"}


def test_parquet_holds_the_rows_of_the_csv(folder: Path, tmp_path: Path) -> None:
    for form in ("csv", "parquet"):
        assert _run(str(folder), "--format", form, "-o", str(tmp_path / f"out.{form}")) == 0
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in table] == rows
    assert {row["supported"] for row in table} == {True, False}
