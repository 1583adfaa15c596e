"""Runs on disk: what goes in comes out, whatever happens to the process, the disk or the folder in between."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.errors import StorageError, UsageError
from loadgen.model import Exchange, Failure, Sink
from loadgen.store.runfile import SCHEMA, RunWriter, is_part_of_run, open_part, open_run, unique_run_path
from tests import synthetic

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run of 122 requests, some failed."""
    return synthetic.write_run(tmp_path / "run", *synthetic.case("failures"))


def lines(folder: Path) -> list[bytes]:
    return (folder / "requests.jsonl").read_bytes().splitlines(keepends=True)


# -- there and back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", synthetic.CASES)
def test_a_run_read_back_is_the_run_that_was_written(name: str, tmp_path: Path) -> None:
    info, rows = synthetic.case(name)
    again, requests = open_run(synthetic.write_run(tmp_path / "run", info, rows))
    assert again == info
    assert [requests.exchange(i) for i in range(len(requests))] == [rounded(row) for row in rows]


def rounded(row: Exchange) -> Exchange:
    """The request with every stamp rounded to the microsecond by itself."""
    stamps: dict[str, Any] = {name: getattr(row, name) for name in row.__dataclass_fields__ if name.endswith("_ns")}
    return replace(row, **{name: round_ns(value) for name, value in stamps.items()})


def round_ns(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple((ns + 500) // 1000 * 1000 for ns in value)
    return None if value is None else (value + 500) // 1000 * 1000


def test_strings_that_no_utf8_can_hold_do_not_lose_the_row(tmp_path: Path) -> None:
    info, rows = synthetic.case("one")
    info.command = ["loadgen", "run", "\udcff"]
    odd = replace(rows[0], outcome="failed", failure=Failure("server_error", "half a \ud83d pair"), text="\udc00")
    again, requests = open_run(synthetic.write_run(tmp_path / "run", info, (odd,)))
    assert requests.exchange(0).failure == Failure("server_error", "half a ? pair")
    assert again.command[-1] == "?"


def test_numbers_that_json_lacks_are_not_known(tmp_path: Path) -> None:
    info, rows = synthetic.case("one")
    info.stages[0].health = {"wall_s": math.nan, "client_cpu_s": math.inf, "receives": 3.0}
    row = replace(rows[0], server={"prompt_ms": math.nan, "predicted_ms": 5.5})
    again, requests = open_run(synthetic.write_run(tmp_path / "run", info, (row,)))
    assert again.stages[0].health == {"receives": 3.0}
    assert requests.exchange(0).server == {"predicted_ms": 5.5}


def test_gaps_longer_than_four_bytes_hold(tmp_path: Path) -> None:
    _, rows = synthetic.case("one")
    long = replace(
        rows[0], request_id=8, event_ns=(5 * 10**9, 3 * 3600 * 10**9), event_tokens=(1, 70_000), end_ns=10**15
    )
    last = replace(rows[0], request_id=9)
    _, requests = open_run(synthetic.write_run(tmp_path / "run", synthetic.case("one")[0], (*rows, long, last)))
    assert requests.exchange(1).event_ns == long.event_ns
    assert requests.exchange(1).event_tokens == long.event_tokens
    assert replace(requests.exchange(2), request_id=rows[0].request_id) == requests.exchange(0) == rounded(rows[0])


def test_a_request_that_stands_twice_counts_once(tmp_path: Path) -> None:
    info, rows = synthetic.case("chat")
    run = synthetic.write_run(tmp_path / "run", info, rows)
    lines = run / "requests.jsonl"
    lines.write_bytes(lines.read_bytes() * 2)
    again, requests = open_run(run)
    assert len(requests) == len(rows)
    assert [finding.code for finding in again.findings] == ["rows_twice"]


def test_workers_parts_are_read_together(tmp_path: Path) -> None:
    info, rows = synthetic.case("chat")
    run = tmp_path / "run"
    writer = RunWriter.create(run, info)
    parts = [open_part(run, worker) for worker in range(1, 12)]
    sinks: list[Sink] = [writer, *parts]
    for i, row in enumerate(rows):
        sinks[i % len(sinks)].write(replace(row, worker=i % len(sinks)))
    writer.close("complete")
    for part in parts:
        part.close()
    _, requests = open_run(run)
    assert sorted(requests.request_id) == sorted(row.request_id for row in rows)
    assert requests.worker.tolist() == sorted(requests.worker.tolist())  # w2 before w10


# -- a run is never overwritten --------------------------------------------------------------------------------------


def test_a_run_ends_in_order_when_no_descriptor_is_left(tmp_path: Path) -> None:
    info = synthetic.case("chat")[0]
    writer = RunWriter.create(tmp_path / "run", info)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        taken.append(os.open(os.devnull, os.O_RDONLY))
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 40, hard))
        with contextlib.suppress(OSError):
            while len(taken) < 100:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        assert len(taken) < 100  # none is left
        writer.update(info)
        writer.close("complete")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in taken:
            os.close(one)
    assert open_run(tmp_path / "run")[0].status == "complete"


def test_a_new_name_is_taken_where_something_stands(tmp_path: Path) -> None:
    wanted = tmp_path / "run.a"
    assert unique_run_path(wanted) == wanted
    wanted.mkdir()
    assert unique_run_path(wanted) == wanted, "an empty folder is free"
    (wanted / "notes.txt").write_text("mine")
    (tmp_path / "run.a-2").write_text("a file")
    assert unique_run_path(wanted) == tmp_path / "run.a-3"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert unique_run_path(tmp_path / "link") == tmp_path / "link-2"


def test_create_leaves_another_run_alone(folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(StorageError, match="never overwritten"):
        RunWriter.create(folder, synthetic.case("chat")[0])
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/run: not a directory"):
        RunWriter.create(tmp_path / "file" / "run", synthetic.case("chat")[0])


def test_the_files_of_a_run_are_known(folder: Path) -> None:
    assert is_part_of_run(folder / "run.json", folder)
    assert is_part_of_run(folder / ".." / folder.name / "requests.w3.jsonl", folder)
    assert not is_part_of_run(folder / "report.html", folder)
    assert not is_part_of_run(folder.parent / "run.json", folder)


# -- killed, full, damaged -------------------------------------------------------------------------------------------

_ENDLESS = """
import sys
from pathlib import Path
from tests import synthetic
from loadgen.store.runfile import RunWriter
info, rows = synthetic.case("chat")
info.status = "running"
writer = RunWriter.create(Path(sys.argv[1]), info)
while True:
    for row in rows:
        writer.write(row)
        sys.stdout.write(".")
        sys.stdout.flush()
"""


def test_kill_9_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", _ENDLESS, run], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        finished = len(process.stdout.read(200))
        process.send_signal(signal.SIGKILL)
        finished += len(process.stdout.read())
    info, requests = open_run(run)
    assert len(requests) >= finished
    assert info.status == "running"
    assert {finding.code for finding in info.findings} <= {"torn_line"}


def test_a_last_line_cut_anywhere_costs_that_line_alone(folder: Path) -> None:
    file = folder / "requests.jsonl"
    *whole, last = lines(folder)
    for cut in range(1, len(last) - 1, 7):
        file.write_bytes(b"".join(whole) + last[:cut])
        info, requests = open_run(folder)
        assert len(requests) == len(whole)
        assert [(f.severity, f.code) for f in info.findings] == [("info", "torn_line")]
    file.write_bytes(b"".join(whole) + last[:-1])  # only the newline is missing: nothing is lost
    info, requests = open_run(folder)
    assert (len(requests), info.findings) == (len(whole) + 1, [])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.binary(min_size=1, max_size=200).filter(lambda b: b"\n" not in b and not b.isspace()), st.integers(0, 120))
def test_a_damaged_line_in_the_middle_is_counted(folder: Path, rubbish: bytes, at: int) -> None:
    original = lines(folder)
    damaged = folder.parent / "damaged"
    shutil.rmtree(damaged, ignore_errors=True)
    shutil.copytree(folder, damaged)
    (damaged / "requests.jsonl").write_bytes(b"".join([*original[:at], rubbish + b"\n", *original[at + 1 :]]))
    info, requests = open_run(damaged)
    assert len(requests) == len(original) - 1
    assert [(f.severity, f.code, f.value) for f in info.findings] == [("questionable", "damaged_lines", 1.0)]


@pytest.mark.parametrize(
    "change",
    [
        {"n": [1, 1]},  # not as many counts as events
        {"n": None, "g": [10**30]},
        {"g": "a string"},
        {"id": 2**80},
        {"s": -7},
        {"k": 2**40},
        {"o": "fine"},
        {"t0": 0.5},
        {"w": None},
    ],
)
def test_a_line_that_contradicts_the_format_is_damage(folder: Path, change: dict[str, object]) -> None:
    first, *rest = lines(folder)
    broken = json.dumps(json.loads(first) | change).encode()
    (folder / "requests.jsonl").write_bytes(b"".join([broken + b"\n", *rest]))
    info, requests = open_run(folder)
    assert len(requests) == len(rest)
    assert [f.code for f in info.findings] == ["damaged_lines"]
    assert requests.exchange(0).event_ns == json_events(rest[0])


def json_events(line: bytes) -> tuple[int, ...]:
    row = json.loads(line)
    at, times = row.get("t0", 0), []
    for gap in row.get("g", []):
        at += gap
        times.append(at * 1000)
    return tuple(times)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_storage_error_and_keeps_what_was_written(tmp_path: Path) -> None:
    info, rows = synthetic.case("chat")
    run = tmp_path / "run"
    writer = RunWriter.create(run, info)
    for row in rows[:50]:
        writer.write(row)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer._rows._file)
    os.close(full)
    with pytest.raises(StorageError, match=r"requests\.jsonl: no space left on device - free some space"):
        writer.write(rows[50])
    assert len(open_run(run)[1]) == 50


_LIMITED = """
import resource, sys
from pathlib import Path
from tests import synthetic
from loadgen.errors import StorageError, UsageError
from loadgen.store.runfile import RunWriter
info, rows = synthetic.case("chat")
writer = RunWriter.create(Path(sys.argv[1]), info)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
for written, row in enumerate(rows):
    try:
        writer.write(row)
    except StorageError as bad:
        print(written)
        break
writer.close("failed")
"""


def test_a_write_that_stops_half_way_is_cut_back_to_whole_lines(tmp_path: Path) -> None:
    run = tmp_path / "run"
    written = subprocess.run([sys.executable, "-c", _LIMITED, run], cwd=ROOT, capture_output=True, check=True).stdout
    info, requests = open_run(run)
    assert int(written) == len(requests) > 0
    assert (info.status, info.findings) == ("failed", [])
    assert (run / "requests.jsonl").read_bytes().endswith(b"}\n")


def test_run_json_is_old_or_new_but_never_half(folder: Path) -> None:
    before = (folder / "run.json").read_bytes()
    (folder / "run.json.new").mkdir()  # the new one cannot be written
    info, _ = open_run(folder)
    with pytest.raises(StorageError, match=r"run\.json"):
        RunWriter(folder, open_part(folder, 1), info).update(replace(info, status="failed"))
    assert (folder / "run.json").read_bytes() == before


# -- folders that are not as they should be --------------------------------------------------------------------------


def test_what_is_no_run_says_so(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for path, message in (
        (tmp_path / "absent", r"absent: no such folder"),
        (tmp_path / "file", r"file: is not a folder"),
        (tmp_path / "empty", r"empty: holds no run - give a folder"),
        (tmp_path, rf"holds no run - did you mean {folder}\?"),
    ):
        with pytest.raises(UsageError, match=message):
            open_run(path)


def test_a_file_that_cannot_be_read_says_which(folder: Path) -> None:
    (folder / "requests.w1.jsonl").mkdir()
    with pytest.raises(StorageError, match=r"requests\.w1\.jsonl: is a directory"):
        open_run(folder)


def test_without_run_json_the_requests_are_still_there(folder: Path) -> None:
    whole, requests = open_run(folder)
    (folder / "run.json").unlink()
    info, again = open_run(folder)
    assert len(again) == len(requests)
    assert [f.code for f in info.findings] == ["no_run_json"]
    assert (info.status, len(info.stages)) == ("interrupted", 1)
    assert info.stages[0].load.value == whole.stages[0].load.value, "as many users as requests that overlapped"
    assert info.stages[0].workload == "chat"


def test_without_run_json_an_open_loop_has_its_mean_rate(tmp_path: Path) -> None:
    run = synthetic.write_run(tmp_path / "run", *synthetic.case("open"))
    (run / "run.json").unlink()
    loads = [stage.load for stage in open_run(run)[0].stages]
    assert [load.kind for load in loads] == ["rate", "rate"]
    assert [load.value for load in loads] == pytest.approx([2, 8], rel=0.3)


@pytest.mark.parametrize("name", ["one", "all_failed", "fifty", "interrupted", "trace"])
def test_every_kind_of_run_survives_without_run_json(name: str, tmp_path: Path) -> None:
    run = synthetic.write_run(tmp_path / "run", *synthetic.case(name))
    (run / "run.json").unlink()
    info, requests = open_run(run)
    assert {stage.stage for stage in info.stages} == set(requests.stage[~requests.has("warmup")].tolist())
    assert all(math.isfinite(stage.load.value) for stage in info.stages)


def test_without_rows_a_run_is_empty(tmp_path: Path) -> None:
    run = synthetic.write_run(tmp_path / "run", *synthetic.case("none"))
    (run / "requests.jsonl").unlink()
    info, requests = open_run(run)
    assert (len(requests), info.findings) == (0, [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"run\.json: is damaged"),
        (b"{", r"run\.json: is damaged"),
        (b"[1]", r"is not the run\.json of a run"),
        (b'{"name": "x"}', r"is not the run\.json of a run"),
        (b'{"schema": "1"}', r"is not the run\.json of a run"),
        (b'{"schema": 1, "status": "running"}', r"run\.json: is damaged \(.*run_id"),
        (b'{"schema": 1, "\xff": 1}', r"run\.json: is damaged"),
        (json.dumps({"schema": SCHEMA + 1}).encode(), rf"newer loadgen \(schema {SCHEMA + 1}\) - .* up to {SCHEMA}"),
    ],
)
def test_a_run_json_that_is_none_is_one_clear_line(folder: Path, content: bytes, message: str) -> None:
    (folder / "run.json").write_bytes(content)
    with pytest.raises(StorageError, match=message):
        open_run(folder)


def test_fields_that_another_version_lacks_or_adds_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(
        '{"schema": 1, "status": "complete", "run_id": "a", "created": "b", "later_field": {"x": 1}}'
    )
    (tmp_path / "requests.jsonl").write_text('{"id":7,"s":0,"w":"chat","pr":5,"or":6,"later":[1]}\n')
    info, requests = open_run(tmp_path)
    assert (info.run_id, info.stages) == ("a", [])
    assert requests.exchange(0) == Exchange(7, 0, "chat", "ok", 5, 6)


# -- large -----------------------------------------------------------------------------------------------------------

# VmHWM and not ru_maxrss: the latter counts the process that this one was forked from.
_READ = """
import re, sys
from pathlib import Path
from loadgen.store.runfile import open_run
info, requests = open_run(Path(sys.argv[1]))
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024
print(len(requests), len(requests.gap_us), requests.gap_us.itemsize, peak)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_hundred_thousand_long_requests_fit_in_memory(tmp_path: Path) -> None:
    run = synthetic.write_huge(tmp_path / "huge", 100_000, 300)
    try:
        done = subprocess.run([sys.executable, "-c", _READ, run], cwd=ROOT, capture_output=True, check=True)
    finally:
        shutil.rmtree(run)
    requests, events, width, peak_mib = map(int, done.stdout.split())
    assert (requests, events, width) == (100_000, 30_000_000, 4)
    assert peak_mib < 300  # the whole tool may take 400
