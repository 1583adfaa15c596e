"""`loadgen search` and `--resume` as a user sees them: real processes against the simulated endpoint over real HTTP."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from loadgen.cli import cli
from loadgen.errors import UsageError
from loadgen.report.search import answer
from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess
from loadgen.store.runfile import open_run
from tests.busy import until
from tests.cli.test_run import QUICK, rows
from tests.command import LOADGEN, run, run_process

SEARCH = [*QUICK, "--concurrency", "1..32", "--requests", "30", "--precision", "60"]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with SimulatorProcess(simulated(time_scale=2.0, knobs={"max_sequences": 4})) as simulator:
        yield simulator.url


def test_a_search_keeps_every_probe_and_says_what_was_found(endpoint: str, tmp_path: Path) -> None:
    """How much the machine under the test carries is not asked: its answer may be that nothing can be decided."""
    out = tmp_path / "r"
    words = [*SEARCH, "--slo", "p50(ttft) < 100ms"]
    words.remove("--no-report")
    done = run("search", endpoint, *words, "-o", str(out))
    assert "search chat: 6 users; nothing is known yet" in done.stderr
    info, requests = open_run(out)
    (found,) = info.search
    assert done.returncode == {"found": 0, "all": 0, "none": 1, "open": 3}[found["ending"]], done.stderr
    assert f"search chat: {answer(found)}" in done.stdout
    assert len(found["probes"]) == len(info.stages) >= 2
    assert {stage.load.value for stage in info.stages} == {probe["load"] for probe in found["probes"]}
    assert set(requests.stage) == {-1, *(stage.stage for stage in info.stages)}
    for name in ("summary.md", "report.html"):
        assert answer(found).partition(";")[0].partition("(")[0] in (out / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--rate", "1..4"], "needs an objective"),
        (["--rate", "4", "--slo", "p50(ttft) < 1s"], "is not a range of loads"),
        (["--rate", "4..1", "--slo", "p50(ttft) < 1s"], "smaller first"),
        (["--concurrency", "1.5..4", "--slo", "p50(ttft) < 1s"], "fraction"),
        (["--concurrency", "1..4", "--slo", "p50(ttft) < -1s"], "never negative"),
        (["--concurrency", "1..4", "--max-time", "0s", "--slo", "p50(ttft) < 1s"], "longer than 0"),
        (["--trace", "x.csv"], "No such option"),
        (["--max-cost", "1", "--slo", "p50(ttft) < 1s"], "needs both prices"),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(words: list[str], line: str) -> None:
    done = CliRunner().invoke(cli, ["search", "http://127.0.0.1:9/v1", *words])
    assert line in f"{done.exception} {done.output}"
    assert isinstance(done.exception, UsageError | SystemExit)


def test_nothing_keeps_it(endpoint: str, tmp_path: Path) -> None:
    done = run("search", endpoint, *SEARCH, "--slo", "p50(ttft) < 1us", "-o", str(tmp_path / "a"), "--max-probes", "1")
    assert done.returncode == 3
    assert "not decided: the limit of 1 probes is reached" in done.stdout


def _kill_in_the_middle(endpoint: str, out: Path, words: list[str]) -> None:
    """Kill a run in its second stage."""
    child = subprocess.Popen(
        [*LOADGEN, "run", endpoint, *words, "-o", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until(lambda: len({row.get("s", 0) for row in rows(out)}) > 1, "its second stage has begun")
    child.kill()
    child.wait(30)


def test_a_run_that_was_killed_goes_on(endpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    words = [*QUICK, "--concurrency", "1,2,3", "--requests", "30"]
    _kill_in_the_middle(endpoint, out, words)
    before, lines = open_run(out)[0], rows(out)
    assert before.status == "running"
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


# -- limits ---------------------------------------------------------------------------------------------------------


def test_a_run_spends_no_more_than_it_may(endpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    words = [*QUICK, "--concurrency", "2,4", "--requests", "40", "--price-input", "2", "--price-output", "8"]
    done = run_process("run", endpoint, *words, "--max-tokens-total", "6000", "--workers", "2", "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert "2 stages, 80 requests, about 16,000 prompt and 1,600 output tokens, cost about 0.0448" in done.stderr
    assert "at most 6,000 tokens in all" in done.stderr
    info, requests = open_run(out)
    took = int(np.nansum(requests.prompt_tokens) + np.nansum(requests.output_tokens))
    assert 4000 < took <= 6000
    assert info.stages[0].stopped == "cut: --max-tokens-total is spent"
    assert info.stages[0].unsent == 40 - (requests.stage == 0).sum()
    assert info.skipped == ["chat@4: --max-tokens-total is spent"]
    assert "skipped chat@4" in done.stdout
    assert "cost: 0.0" in done.stdout


def test_a_stage_by_time_ends_when_its_goal_is_reached(endpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    words = [*QUICK, "--concurrency", "4", "--duration", "60s", "--until", "p50(ttft) within 50%"]
    done = run_process("run", endpoint, *words, "--workers", "2", "-o", str(out))
    assert done.returncode == 0, done.stderr
    info, _ = open_run(out)
    (stage,) = info.stages
    assert stage.reached is not None
    assert stage.reached.startswith("p50(ttft) within 50%: ")
    assert (stage.end_ns or 0) - (stage.start_ns or 0) < 40e9
    assert stage.stopped is None
