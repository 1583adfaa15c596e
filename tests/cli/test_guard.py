"""`run --guard` over real HTTP: right answers pass, garbage at the same speed is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadgen.cli import main
from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess

LOAD = ["--guard", "--no-report", "--metrics", "off", "--warmup", "1", "--concurrency", "2", "--requests", "6"]
LENGTHS = ["--prompt-tokens", "40", "--output-tokens", "4"]


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "garbage"])
def test_garbage_is_caught_and_right_answers_are_not_accused(
    wrong: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SimulatorProcess(simulated(wrong_answers=wrong, time_scale=20.0)) as server:
        flags = [*LOAD, *LENGTHS, "-o", str(tmp_path / "run")]
        with pytest.raises(SystemExit) as left:
            main(["run", server.url, "-w", "chat", *flags])
    told = capsys.readouterr()
    assert left.value.code == 0, told
    assert ("checkable questions were answered right" in told.out + told.err) is wrong
    kept = json.loads((tmp_path / "run" / "run.json").read_bytes())["endpoint"]["guard"]
    assert kept["asked"] == len(kept["fingerprint"]) == 32
    assert kept["right"] == (0 if wrong else 32)
    assert bool(kept["wrong"]) is wrong
    rows = [json.loads(line) for line in (tmp_path / "run" / "requests.jsonl").read_text().splitlines()]
    assert sum(row["w"] == "guard" for row in rows) >= 32
    assert all(row["wu"] for row in rows if row["w"] == "guard")  # kept, and in no figure
