"""`loadgen run --profile roofline` end to end, small: what a budget and a context leave, and what is marked."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from loadgen.cli import cli
from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess
from loadgen.store.inputs import read_cells
from loadgen.store.runfile import open_run


def test_a_small_budget_gives_the_cheap_part_says_what_it_cut_and_marks_what_is_held_out(tmp_path: Path) -> None:
    out = tmp_path / "r"
    flags = ["--profile", "roofline", "--budget", "2s", "--warmup", "0", "--metrics", "off", "--no-report"]
    hardware = ["--gpu", "h100-sxm", "--shape", "llama-3.1-8b", "--kv", "fp8"]
    with SimulatorProcess(simulated(time_scale=40.0, max_model_len=8192)) as simulator:
        done = CliRunner().invoke(cli, ["run", simulator.url, *flags, *hardware, "-o", str(out)])
    assert done.exit_code == 0, done.output
    info, _ = open_run(out)
    cut = {one["stage"]: one["why"] for one in info.spec["cut"]}
    assert "8,192" in cut["p8192-o16@1"]
    assert any("budget" in why for why in cut.values())
    assert "p32-o16@1" not in cut
    assert [stage.held_out for stage in info.stages] == ["held out" in stage.name for stage in info.stages]
    cells = read_cells(out).cells
    assert len(cells) == len(info.stages) >= 3
    assert cells[0].deployment is not None
    assert cells[0].deployment.dtypes.kv == "fp8"
    assert abs(cells[0].output_tokens - 16) < 0.5
