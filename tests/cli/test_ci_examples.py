"""The pipelines of examples/ci gate a release: their own steps, run in a shell as a CI service does.

What a service adds is added here: variables, a summary file, `bash -e`, and a step that is left out after a failure
unless it says `always()`. Installing is left out; this environment has it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from ruamel.yaml import YAML

from loadgen.analysis.slo import parse
from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess
from tests.busy import Busy, again

CI = Path(__file__).parents[2] / "examples" / "ci"
LOAD = "--workload chat --concurrency 4 --requests 12 --warmup 1 --prompt-tokens 100 --output-tokens 6"
KEPT, BROKEN = "p50(ttft) < 20s, error_rate < 30%", "p50(ttft) < 20s, p50(e2e) < 1ms, error_rate < 30%"
KEY = "sk-not-to-be-seen"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    # Ten times slower than an H100: no machine is too busy to see its tokens one by one.
    with SimulatorProcess(simulated(time_scale=0.1)) as simulator:
        yield simulator.url


def _read(name: str) -> Any:
    return YAML(typ="safe").load((CI / name).read_text(encoding="utf-8"))


def _shell(script: str, folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def _github(folder: Path, **given: str) -> list[tuple[str, int, str]]:
    """(name, exit code, output) of the workflow's own steps that are commands, but for installing."""
    job = _read("github-release-gate.yml")["jobs"]["gate"]
    variables = {name: str(text) for name, text in job["env"].items()}
    assert set(given) <= set(variables)
    variables |= given | {"GITHUB_STEP_SUMMARY": str(folder / "summary")}
    done: list[tuple[str, int, str]] = []
    for step in job["steps"]:
        if "run" not in step or step["name"] == "Install":
            continue
        if any(code for _, code, _ in done) and step.get("if") != "always()":
            continue
        found = _shell(step["run"], folder, variables)
        done.append((step["name"], found.returncode, found.stdout + found.stderr))
    return done


def test_the_github_workflow_passes_a_release_that_keeps_its_slo_and_stops_one_that_does_not(
    endpoint: str, tmp_path: Path
) -> None:
    def attempt(number: int) -> tuple[Path, list[tuple[str, int, str]]]:
        folder = tmp_path / str(number)
        folder.mkdir()
        steps = _github(folder, ENDPOINT=endpoint, API_KEY=KEY, LOAD=LOAD, SLO=BROKEN)
        if any("title=measurement invalid" in output for _, _, output in steps):
            raise Busy  # what a busy machine measures is invalid, and decides nothing
        return folder, steps

    folder, steps = again(attempt)
    assert [(name, code) for name, code, _ in steps] == [("Measure", 0), ("Gate", 1), ("Summary", 0)]
    gate = [line for line in steps[1][2].splitlines() if "title=SLO" in line]
    assert [line.partition(" ")[0] for line in gate] == ["::notice", "::error", "::notice"]
    assert "chat@4: p50(e2e) < 1ms" in gate[1]
    assert "The SLO fails on chat@4." in (folder / "summary").read_text(encoding="utf-8")
    assert (folder / "run" / "report.html").exists()
    suite = ElementTree.parse(folder / "slo.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "0")
    assert KEY not in "".join(output for _, _, output in steps)
    assert not [file for file in (folder / "run").iterdir() if KEY.encode() in file.read_bytes()]


def test_the_github_workflow_stops_where_there_is_no_endpoint(tmp_path: Path) -> None:
    steps = _github(tmp_path, ENDPOINT="http://127.0.0.1:9", API_KEY=KEY, LOAD=LOAD, SLO=KEPT)
    assert [(name, code > 0) for name, code, _ in steps] == [("Measure", True), ("Summary", False)]
    assert "127.0.0.1:9" in steps[0][2]


def test_the_gitlab_job_passes_a_release_that_keeps_its_slo(endpoint: str, tmp_path: Path) -> None:
    job = _read("gitlab-release-gate.yml")["release-gate"]
    variables = job["variables"] | {"ENDPOINT": endpoint, "API_KEY": KEY, "LOAD": LOAD, "SLO": KEPT}

    def attempt(number: int) -> tuple[Path, subprocess.CompletedProcess[str]]:
        folder = tmp_path / str(number)
        folder.mkdir()
        done = _shell("\n".join(job["script"]), folder, variables)
        if done.returncode == 3 and "measurement: INVALID" in done.stdout:
            raise Busy
        return folder, done

    folder, done = again(attempt)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith(("PASS", "FAIL", "UNDEC"))] == [
        "PASS",
        "PASS",
    ]
    junit = job["artifacts"]["reports"]["junit"]
    assert ElementTree.parse(folder / junit).getroot().get("failures") == "0"
    assert all((folder / path).exists() for path in job["artifacts"]["paths"])


@pytest.mark.parametrize("name", ["github-release-gate.yml", "gitlab-release-gate.yml"])
def test_their_own_objectives_can_be_decided_at_their_own_load(name: str) -> None:
    """p99 needs 299 requests, and an error rate under 1 % as many without an error."""
    job = _read(name)
    values = job["jobs"]["gate"]["env"] if "jobs" in job else job["release-gate"]["variables"]
    assert values["LOAD"].split()[-4:] == ["--rate", "4", "--duration", "5m"]
    assert 4 * 300 >= 299
    assert len(parse([values["SLO"]])) == 3
