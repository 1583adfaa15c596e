"""`loadgen run` as a user sees it: a real process against the simulated endpoint over real HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess
from loadgen.store.runfile import open_run
from tests.busy import DEADLINE_S, Busy, again, until
from tests.command import LOADGEN, run, run_process

QUICK = ["-w", "chat", "--prompt-tokens", "200", "--output-tokens", "20", "--warmup", "2", "--no-report"]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with SimulatorProcess(simulated(time_scale=4.0)) as simulator:
        yield simulator.url


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rows(path: Path) -> list[dict[str, Any]]:
    found = []
    for part in sorted(path.glob("requests*.jsonl")):
        found += [json.loads(line) for line in part.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return [row for row in found if not row.get("wu")]


def test_a_run_writes_its_folder_and_says_in_short_what_came_of_it(endpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    done = run_process("run", endpoint, *QUICK, "--concurrency", "1,4", "--requests", "12", "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("measurement: ")
    assert "chat@4: 12 ok" in done.stdout
    info, requests = open_run(out)
    assert info.status == "complete"
    assert [stage.name for stage in info.stages] == ["chat@1", "chat@4"]
    assert len(rows(out)) == 24
    assert not requests.has("censored").any()


def test_an_existing_run_is_never_overwritten(endpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    for _ in range(2):
        assert run("run", endpoint, *QUICK, "--concurrency", "1", "--requests", "2", "-o", str(out)).returncode == 0
    assert len(rows(out)) == 2
    assert len(rows(tmp_path / "r-2")) == 2


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["--concurrency", "0"], 2, "load of 0"),
        (["--rate", "1", "--concurrency", "1"], 2, "contradict"),
        (["--prompt-tokens", "many"], 2, "is not a length"),
        (["--timeout-idle", "5q"], 2, "--timeout-idle"),
        (["--extra-body", "[1]"], 2, "--extra-body"),
        (["--header", "novalue"], 2, "--header"),
        (["--api-key-env", "LOADGEN_NO_SUCH"], 2, "LOADGEN_NO_SUCH"),
        (["--slo", "p99(tft) < 1s"], 2, "did you mean"),
        (["--dialect", "soap"], 2, "--help"),
        (["--slo", ""], 2, "empty"),
        (["--slo", "error_rate < 1%, ,"], 2, "empty"),
        (["-w", "chat,"], 2, "workload"),
        (["--header", "Content-Length: 5"], 2, "Content-Length"),
        (["--extra-body", '{"a": NaN}'], 2, "--extra-body"),
        (["--temperature", "nan"], 2, "finite"),
        (["--seed", "-1"], 2, "--seed"),
        (["-w", "nope"], 2, "known: chat"),
        (["--model", "no-such-model"], 4, "no-such-model"),
    ],
)
def test_a_mistake_gets_one_line_and_its_exit_code(
    endpoint: str, tmp_path: Path, words: list[str], code: int, line: str
) -> None:
    done = run("run", endpoint, *words, "--requests", "1", "-o", str(tmp_path / "r"))
    assert done.returncode == code
    assert line in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r").exists()


def test_an_endpoint_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    done = run("run", f"127.0.0.1:{free_port()}", "-o", str(tmp_path / "r"))
    assert done.returncode == 4
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "r").exists()


def test_a_key_is_sent_and_never_stored(endpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    done = run_process(
        *["run", endpoint, *QUICK, "--concurrency", "1", "--requests", "1", "-o", str(out)],
        *["--api-key-env", "LOADGEN_TEST_KEY", "--header", "X-Team: secret-team-name"],
        env={"LOADGEN_TEST_KEY": "sk-very-secret-key"},
    )
    assert done.returncode == 0, done.stderr
    stored = "".join(path.read_text(encoding="utf-8") for path in out.iterdir())
    for secret in ("sk-very-secret-key", "secret-team-name"):
        assert secret not in stored + done.stdout + done.stderr


def test_gates_decide_the_exit_code(tmp_path: Path) -> None:
    words = [*QUICK, "--output-tokens", "2", "--concurrency", "4", "--requests", "40", "-o", str(tmp_path / "r")]
    # Ten times slower than an H100: hardly a machine is too busy to see its tokens one by one.
    with SimulatorProcess(simulated(time_scale=0.1)) as slow:
        _gates_decide(["run", slow.url, *words])


def _gates_decide(base: list[str]) -> None:
    def keeps(number: int) -> int:
        done = run(*base, "--slo", "error_rate < 50%")
        if done.returncode == 3 and "measurement: INVALID" in done.stdout:
            raise Busy  # what a busy machine measures is invalid, and never passes
        return done.returncode

    assert again(keeps) == 0
    assert run_process(*base, "--slo", "p50(ttft) < 1us").returncode == 1
    assert run(*base, "--slo", "p99(ttft) < 100s").returncode == 3  # 40 requests cannot show a p99


def _start(endpoint: str, out: Path, *words: str) -> subprocess.Popen[str]:
    words = ("run", endpoint, *QUICK, "--concurrency", "4", "--requests", "100000", "-o", str(out), *words)
    child = subprocess.Popen([*LOADGEN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    written(child, out, 20)
    return child


def written(child: subprocess.Popen[str], out: Path, number: int) -> None:
    """Wait until it has written so many rows. A child that does not is ended: it would go on for ever."""
    try:
        until(lambda: len(rows(out)) >= number, "rows are written")
    except AssertionError:
        child.kill()
        child.communicate()
        raise


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_kept_and_reported(endpoint: str, tmp_path: Path, number: signal.Signals) -> None:
    child = _start(endpoint, tmp_path / "r")
    child.send_signal(number)
    out, err = child.communicate(timeout=DEADLINE_S)
    assert child.returncode == 130, err
    assert "chat@4: " in out
    info, requests = open_run(tmp_path / "r")
    assert info.status == "interrupted"
    assert info.stages[0].stopped == "interrupted"
    assert len(requests) >= 20


def test_kill_9_loses_only_what_was_in_flight(endpoint: str, tmp_path: Path) -> None:
    child = _start(endpoint, tmp_path / "r")
    child.kill()
    child.communicate(timeout=DEADLINE_S)
    written = len(rows(tmp_path / "r"))
    _, requests = open_run(tmp_path / "r")
    done = run("report", str(tmp_path / "r"), "--format", "json")
    assert done.returncode == 0, done.stderr
    stages = json.loads(done.stdout)["stages"]
    assert stages[0]["requests"]["ok"] == written
    assert len(requests) >= written >= 20


def test_several_workers_follow_the_schedule_of_one(endpoint: str, tmp_path: Path) -> None:
    def scheduled(name: str, workers: str) -> list[tuple[int, int, int, int]]:
        words = ["--rate", "200", "--requests", "60", "--seed", "7", "--workers", workers, "-o", str(tmp_path / name)]
        done = (run if workers == "1" else run_process)("run", endpoint, *QUICK, *words)
        assert done.returncode == 0, done.stderr
        info, _ = open_run(tmp_path / name)
        start = info.stages[0].start_ns or 0
        found = rows(tmp_path / name)
        # Stamps are rounded to whole microseconds, and so is the difference of start and due time.
        return sorted((row["id"], round(row["ts"] - start / 1000), row["pr"], row["or"]) for row in found)

    one, three = scheduled("one", "1"), scheduled("three", "3")
    assert [row[0] for row in one] == [row[0] for row in three] == list(range(60))
    assert [row[2:] for row in one] == [row[2:] for row in three]
    assert all(abs(a[1] - b[1]) <= 1 for a, b in zip(one, three, strict=True))


def _children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split()]


def test_a_worker_that_dies_is_a_finding_and_its_rows_are_kept(endpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    words = ["--concurrency", "4", "--duration", "5s", "--workers", "2", "-o", str(out)]
    child = subprocess.Popen([*LOADGEN, "run", endpoint, *QUICK, *words], stdout=subprocess.PIPE, text=True)
    parts = [out / f"requests.w{k}.jsonl" for k in (0, 1)]
    until(lambda: all(part.exists() and part.stat().st_size for part in parts), "both workers write rows")
    workers = [pid for pid in _children(child.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    text, _ = child.communicate(timeout=DEADLINE_S)
    assert child.returncode == 0
    assert "worker" in text
    info, requests = open_run(out)
    assert info.stages[0].health["workers_lost"] == 1
    assert len(requests) > 0
