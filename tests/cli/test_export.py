"""`loadgen export`: exactly the documented fields, in three formats, and durations that follow from the stamps."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from click.testing import CliRunner

from loadgen.cli.export import command
from loadgen.errors import LoadgenError, StorageError, UsageError
from loadgen.model import Exchange
from tests import synthetic

_TEXT = """
request_id stage workload load scheduled_s sent_s schedule_delay_s outcome error_kind error http_status finish_reason
end_seen ttft_s ttft_scheduled_s time_to_first_answer_s e2e_s tpot_s tpot_after_first_event_s max_gap_s connect_s
sent_end_s headers_s prompt_tokens prompt_tokens_source prompt_tokens_requested output_tokens output_tokens_source
output_tokens_requested reasoning_tokens cached_tokens event_times_s event_tokens stamp_source flags session_id turn
repeated_tokens endpoint
"""
DOCUMENTED = _TEXT.split()


def export(*argv: object) -> bytes:
    """What the command writes to standard output; its errors come as they are."""
    result = CliRunner().invoke(command, [str(one) for one in argv], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout_bytes


def rows_of(tmp_path: Path, name: str, *argv: object) -> list[dict[str, Any]]:
    folder = synthetic.write_run(tmp_path / name, *synthetic.case(name))
    return [json.loads(line) for line in export(folder, *argv).splitlines()]


@pytest.mark.parametrize("name", synthetic.CASES)
def test_every_row_has_the_documented_fields_and_only_json_values(name: str, tmp_path: Path) -> None:
    rows = rows_of(tmp_path, name)
    measured = [row for row in synthetic.case(name)[1] if not row.warmup]
    assert [row["request_id"] for row in rows] == [row.request_id for row in measured]
    assert all(list(row) == DOCUMENTED for row in rows)


def test_durations_follow_from_the_stamps(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "open")
    for row, made in zip(rows, (row for row in synthetic.case("open")[1] if not row.warmup), strict=True):
        assert made.sent_ns is not None
        assert made.scheduled_ns is not None
        us = pytest.approx
        assert row["sent_s"] == us(made.sent_ns / 1e9, abs=1e-6)
        assert row["scheduled_s"] == us(made.scheduled_ns / 1e9, abs=1e-6)
        assert row["schedule_delay_s"] == us((made.sent_ns - made.scheduled_ns) / 1e9, abs=2e-6)
        assert row["ttft_s"] == us((made.event_ns[0] - made.sent_ns) / 1e9, abs=2e-6)
        assert row["ttft_scheduled_s"] == us((made.event_ns[0] - made.scheduled_ns) / 1e9, abs=2e-6)
        assert row["e2e_s"] == us((made.event_ns[-1] - made.sent_ns) / 1e9, abs=2e-6)
        assert row["e2e_s"] == us(row["ttft_s"] + row["tpot_s"] * (sum(row["event_tokens"]) - 1), abs=1e-9)
        assert row["event_times_s"] == us([(ns - made.sent_ns) / 1e9 for ns in made.event_ns], abs=2e-6)
        gaps = [b - a for a, b in zip(row["event_times_s"], row["event_times_s"][1:], strict=False)]
        assert row["max_gap_s"] == us(max(gaps), abs=1e-9)
        assert row["load"] == {"kind": "rate", "value": float(row["stage"].removeprefix("chat@"))}


def test_what_is_not_applicable_is_null_and_never_zero(tmp_path: Path) -> None:
    for row in rows_of(tmp_path, "censored"):
        if row["outcome"] == "ok":
            assert row["error_kind"] is row["error"] is None
        elif not row["event_times_s"]:
            assert [row[name] for name in DOCUMENTED if name.startswith(("ttft", "e2e", "tpot", "max_gap"))] == [
                None
            ] * 6
            assert row["output_tokens"] is None
    for row in rows_of(tmp_path, "chat"):
        assert row["scheduled_s"] is row["schedule_delay_s"] is row["ttft_scheduled_s"] is row["turn"] is None


def test_a_broken_stream_shows_the_ttft_that_its_user_saw(tmp_path: Path) -> None:
    rows = [row for row in rows_of(tmp_path, "failures") if row["error_kind"] == "truncated"]
    assert rows
    assert all(row["ttft_s"] == row["event_times_s"][0] for row in rows)


def test_an_answer_that_was_not_streamed_claims_no_ttft(tmp_path: Path) -> None:
    info, made = synthetic.case("one")
    whole: Exchange = replace(made[0], event_ns=(), event_tokens=(), first_answer_ns=None, flags=("not_streamed",))
    (line,) = export(synthetic.write_run(tmp_path / "run", info, (whole,))).splitlines()
    row = json.loads(line)
    assert (row["ttft_s"], row["tpot_s"], row["flags"]) == (None, None, ["not_streamed"])
    assert whole.end_ns is not None
    assert row["e2e_s"] == pytest.approx((whole.end_ns - (whole.sent_ns or 0)) / 1e9, abs=2e-6)


def test_warm_up_comes_only_when_asked_for(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "chat", "--warmup")
    assert len(rows) == len(synthetic.case("chat")[1])
    assert [row["stage"] for row in rows if "warmup" in row["flags"]] == [None] * 6


def test_csv_says_what_jsonl_says(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "failures")
    text = export(tmp_path / "failures", "--format", "csv").decode()
    cells = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len(cells) == len(rows)
    for cell, row in zip(cells, rows, strict=True):
        assert list(cell) == DOCUMENTED
        for name, value in row.items():
            if value is None:
                assert cell[name] == ""
            else:
                assert (cell[name] if isinstance(value, str) else json.loads(cell[name])) == value


def test_parquet_says_what_jsonl_says(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "failures")
    export(tmp_path / "failures", "--format", "parquet", "-o", tmp_path / "out.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist() == rows


def test_parquet_of_an_empty_run_has_the_same_columns(tmp_path: Path) -> None:
    schemas = []
    for name in ("none", "grouped"):
        folder = synthetic.write_run(tmp_path / name, *synthetic.case(name))
        export(folder, "--format", "parquet", "-o", tmp_path / f"{name}.parquet")
        schemas.append(pyarrow.parquet.read_schema(tmp_path / f"{name}.parquet"))
    assert schemas[0] == schemas[1]


def test_parquet_without_its_extra_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = synthetic.write_run(tmp_path / "run", *synthetic.case("one"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"--format parquet: needs the extra `parquet` - pip install"):
        export(folder, "--format", "parquet", "-o", tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize(
    ("argv", "error", "message"),
    [
        (["absent"], UsageError, "absent: no such folder"),
        (["run", "-o", "run/run.json"], UsageError, "is the run itself"),
        (["run", "-o", "run/../run/requests.jsonl"], UsageError, "is the run itself"),
        (["run", "-o", "absent/out"], StorageError, "absent/out: no such file or directory"),
        (["run", "-o", "run"], StorageError, "run: is a directory"),
    ],
)
def test_mistakes_are_one_clear_line(
    argv: list[str], error: type[LoadgenError], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic.write_run(tmp_path / "run", *synthetic.case("three"))
    before = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        export(*argv)
    assert {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()} == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_full_disk_is_one_clear_line(form: str, tmp_path: Path) -> None:
    folder = synthetic.write_run(tmp_path / "run", *synthetic.case("three"))
    with pytest.raises(StorageError, match="/dev/full: no space left on device"):
        export(folder, "--format", form, "-o", "/dev/full")
    with open("/dev/full", "wb") as full:
        run = [sys.executable, "-m", "loadgen", "export", str(folder), "--format", form]
        done = subprocess.run(run, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "loadgen: standard output: no space left on device\n")


def test_damage_is_told_beside_the_rows(tmp_path: Path) -> None:
    folder = synthetic.write_run(tmp_path / "run", *synthetic.case("three"))
    with open(folder / "requests.jsonl", "ab") as file:
        file.write(b"rubbish\n")
    run = [sys.executable, "-m", "loadgen", "export", str(folder)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 3
    assert "damaged lines of the run file, left out: 1 (16.67% of all)" in done.stderr
