"""Several endpoints: a plan shared out among them, or sent whole to each; figures, records and telemetry of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.cli import cli
from loadgen.errors import UsageError
from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess
from loadgen.store.inputs import read_run_cells
from loadgen.store.runfile import open_run

_SHORT = ["--prompt-tokens", "50", "--output-tokens", "8", "--concurrency", "4", "--requests", "24", "--warmup", "1"]


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[str, str]]:
    with SimulatorProcess(simulated(model="fast")) as one, SimulatorProcess(simulated(model="slow")) as other:
        yield f"{one.url}/v1", f"{other.url}/v1"


def test_a_plan_is_shared_out_and_every_figure_stands_for_each(two: tuple[str, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = CliRunner().invoke(cli, ["run", two[0], "--endpoint", two[1], *_SHORT, "-o", str(run)])
    assert done.exit_code == 0, done.output
    info, requests = open_run(run)
    measured = requests.stage == 0
    assert [int((requests.endpoint[measured] == place).sum()) for place in (0, 1)] == [12, 12]
    (other,) = info.endpoint["others"]
    assert other["url"].startswith(two[1])
    assert other["engine"] == info.endpoint["engine"]
    assert len(info.endpoint["telemetry"]["pages"]) == 2
    told = json.loads(CliRunner().invoke(cli, ["report", str(run), "--format", "json"]).output)
    parts = told["stages"][0]["endpoints"]
    assert [part["endpoint"] for part in parts] == [info.endpoint["url"], other["url"]]
    assert [part["ok"] for part in parts] == [12, 12]
    assert all(part["endpoint"] in done.output and part["tpot_p50"] > 0 for part in parts)
    assert "Each endpoint" in (run / "report.html").read_text(encoding="utf-8")
    rows = CliRunner().invoke(cli, ["export", str(run), "--format", "jsonl"]).output.splitlines()
    assert {json.loads(row)["endpoint"] for row in rows} == {info.endpoint["url"], other["url"]}
    assert two[1] not in CliRunner().invoke(cli, ["report", str(run), "--format", "json", "--redact"]).output
    with pytest.raises(UsageError, match="several endpoints"):
        read_run_cells(run)


def test_the_same_plan_goes_to_each_and_they_are_compared(two: tuple[str, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = ["--endpoint", two[1], "--spread", "each", *_SHORT, "--no-report", "-o", str(run)]
    done = CliRunner().invoke(cli, ["run", two[0], *flags])
    assert done.exit_code == 0, done.output
    (first, rows), (second, others) = open_run(tmp_path / "run-1"), open_run(tmp_path / "run-2")
    assert [one.endpoint["url"].rpartition("/chat")[0] for one in (first, second)] == list(two)
    asked = [dict(zip(r.request_id.tolist(), r.output_tokens_requested.tolist(), strict=True)) for r in (rows, others)]
    assert asked[0] == asked[1]
    assert "baseline: run-1" in done.output
    assert (tmp_path / "run-2" / "compare.html").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--spread", "each"], "--spread needs --endpoint"),
        (["run", "--endpoint", "http://me:secret@127.0.0.1:9"], "carries credentials"),
        (["run", "--endpoint", "127.0.0.1:9", "--spread", "each", "--resume", "x"], "goes on with one run"),
        (["search", "--endpoint", "127.0.0.1:9", "--spread", "each", "--slo", "ttft < 1s"], "a search has one answer"),
    ],
)
def test_what_several_endpoints_cannot(words: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, [words[0], "http://127.0.0.1:9/v1", *words[1:]])
    assert isinstance(done.exception, UsageError)
    assert said in str(done.exception)
    assert "secret" not in str(done.exception)
