"""`run --guard` over real HTTP: right answers pass, garbage at the same speed is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.cli import cli
from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess

LOAD = ["--guard", "--no-report", "--metrics", "off", "--warmup", "1", "--concurrency", "2", "--requests", "6"]
LENGTHS = ["--prompt-tokens", "40", "--output-tokens", "4"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[Path, str]]:
    """The folder of a run, and what the terminal said: against right answers, and against wrong ones (True)."""
    made = {}
    for wrong in (False, True):
        folder = tmp_path_factory.mktemp("guard") / f"wrong-{wrong}"
        with SimulatorProcess(simulated(wrong_answers=wrong, time_scale=20.0)) as server:
            done = CliRunner().invoke(cli, ["run", server.url, "-w", "chat", *LOAD, *LENGTHS, "-o", str(folder)])
        assert done.exit_code == 0, done.output
        made[wrong] = (folder, done.output)
    return made


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "garbage"])
def test_garbage_is_caught_and_right_answers_are_not_accused(wrong: bool, runs: dict[bool, tuple[Path, str]]) -> None:
    folder, told = runs[wrong]
    assert ("checkable questions were answered right" in told) is wrong
    kept = json.loads((folder / "run.json").read_bytes())["endpoint"]["guard"]
    assert kept["asked"] == len(kept["fingerprint"]) == 32
    assert kept["right"] == (0 if wrong else 32)
    assert bool(kept["wrong"]) is wrong
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert sum(row["w"] == "guard" for row in rows) >= 32
    assert all(row["wu"] for row in rows if row["w"] == "guard")  # kept, and in no figure


def test_a_drop_between_runs_is_told_and_gated_however_the_times_were_measured(
    runs: dict[bool, tuple[Path, str]],
) -> None:
    """Six requests decide nothing about times; 32 questions do about answers."""
    for first, second, code, verdict in ((False, True, 1, "worse"), (True, False, 0, "better")):
        words = ["compare", str(runs[first][0]), str(runs[second][0]), "--fail-on", "guard_right worse by 30%"]
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == code, done.output
        (line,) = [line for line in done.output.splitlines() if line.strip().startswith("guard_right")]
        assert verdict in line
        assert ("Fewer answers are right: 0% " in done.output) is (verdict == "worse")
