"""`loadgen search` and `--resume` as a user sees them: real processes against the simulated endpoint over real HTTP."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess
from loadgen.store.runfile import open_run
from tests.cli.test_run import LOADGEN, QUICK, rows, run

SEARCH = [*QUICK, "--concurrency", "1..32", "--requests", "40", "--precision", "40"]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with SimulatorProcess(simulated(time_scale=4.0, knobs={"max_sequences": 4})) as simulator:
        yield simulator.url


def test_a_search_keeps_every_probe_and_says_what_was_found(endpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    words = [*SEARCH, "--slo", "p50(ttft) < 25ms"]
    words.remove("--no-report")
    done = run("search", endpoint, *words, "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert "users keep the SLO; " in done.stdout
    assert "search chat: 6 users; nothing is known yet" in done.stderr
    info, requests = open_run(out)
    (found,) = info.search
    assert found["ending"] == "found"
    assert 3 <= found["kept"] <= 12
    assert len(found["probes"]) == len(info.stages) >= 3
    assert {stage.load.value for stage in info.stages} == {probe["load"] for probe in found["probes"]}
    assert set(requests.stage) == {-1, *(stage.stage for stage in info.stages)}
    assert "keep the SLO" in (out / "summary.md").read_text(encoding="utf-8")
    assert "keep the SLO" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["--rate", "1..4"], 2, "needs an objective"),
        (["--rate", "4", "--slo", "p50(ttft) < 1s"], 2, "is not a range of loads"),
        (["--rate", "4..1", "--slo", "p50(ttft) < 1s"], 2, "smaller first"),
        (["--concurrency", "1.5..4", "--slo", "p50(ttft) < 1s"], 2, "fraction"),
        (["--concurrency", "1..4", "--slo", "p50(ttft) < -1s"], 2, "never negative"),
        (["--concurrency", "1..4", "--max-time", "0s", "--slo", "p50(ttft) < 1s"], 2, "longer than 0"),
        (["--trace", "x.csv"], 2, "no such option"),
    ],
)
def test_mistakes_are_one_line(words: list[str], code: int, line: str, tmp_path: Path) -> None:
    done = run("search", "http://127.0.0.1:9/v1", *words, "-o", str(tmp_path / "r"))
    assert done.returncode == code
    assert line in done.stderr.lower()
    assert len(done.stderr.strip().splitlines()) == 1


def test_nothing_keeps_it_and_a_limit_ends_it(endpoint: str, tmp_path: Path) -> None:
    done = run("search", endpoint, *SEARCH, "--slo", "p50(ttft) < 1us", "-o", str(tmp_path / "a"))
    assert done.returncode == 1
    assert "no load of the range keeps the SLO" in done.stdout
    done = run("search", endpoint, *SEARCH, "--slo", "p50(ttft) < 25ms", "--max-probes", "1", "-o", str(tmp_path / "b"))
    assert done.returncode == 3
    assert "not decided: the limit of 1 probes is reached" in done.stdout


def _stop_in_the_middle(command: str, endpoint: str, out: Path, words: list[str], stages: int, number: int) -> None:
    child = subprocess.Popen(
        [*LOADGEN, command, endpoint, *words, "-o", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline and len({row.get("s", 0) for row in rows(out)}) <= stages:
        time.sleep(0.02)
    child.send_signal(number)
    child.wait(30)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_stopped_goes_on(endpoint: str, tmp_path: Path, number: int) -> None:
    out = tmp_path / "r"
    words = [*QUICK, "--concurrency", "1,2,3", "--requests", "30"]
    _stop_in_the_middle("run", endpoint, out, words, 1, number)
    before, lines = open_run(out)[0], rows(out)
    assert before.status == ("running" if number == signal.SIGKILL else "interrupted")
    assert run("run", endpoint, *QUICK, "--concurrency", "1,2", "--resume", str(out)).returncode == 2
    done = run("run", endpoint, *words, "--resume", str(out))
    assert done.returncode == 0, done.stderr
    info, requests = open_run(out)
    assert info.status == "complete"
    assert not info.findings
    assert rows(out)[: len(lines)] == lines  # nothing was changed
    whole = [stage.name for stage in info.stages if stage.stopped is None]
    assert whole == ["chat@1", "chat@2", "chat@3"]
    assert info.stages[1].stopped == "interrupted"
    starts = [stage.start_ns or 0 for stage in info.stages]
    assert starts == sorted(starts)
    assert len({(int(s), int(r)) for s, r in zip(requests.stage, requests.request_id, strict=True)}) == len(requests)


def test_a_search_that_was_killed_goes_on_with_its_probes(endpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    words = [*SEARCH, "--slo", "p50(ttft) < 25ms"]
    _stop_in_the_middle("search", endpoint, out, words, 1, signal.SIGKILL)
    kept = json.loads((out / "run.json").read_text(encoding="utf-8"))["stages"]
    done = run("search", endpoint, *words, "--resume", str(out))
    assert done.returncode == 0, done.stderr
    info, _ = open_run(out)
    assert info.search[0]["ending"] == "found"
    assert [stage.name for stage in info.stages[: len(kept)]] == [stage["name"] for stage in kept]
    assert info.stages[0].end_ns == kept[0]["end_ns"]
