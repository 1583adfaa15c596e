"""`loadgen fit` as a user sees it: files in, an account out, in four forms; mistakes are one line and exit code 2."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loadgen.cli import cli, main
from loadgen.cli import fit as command
from loadgen.errors import UsageError
from loadgen.report.fitjson import plain as json_plain
from loadgen.roofline.cells import Cell
from loadgen.roofline.passes import constants_law, step_law
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.whatif import Situation, outcome
from loadgen.store.fitfile import read_fit
from tests.roofline.fits import EFFICIENCY, ENGINE, H100, cells
from tests.roofline.fits import World as MadeWorld
from tests.synthetic import case, write_run

EXAMPLES = Path(__file__).parents[2] / "examples"
DESIGN = (
    *((s, 16, 1) for s in (128, 512, 2048, 8192)),
    *((s, 256, 1) for s in (128, 8192)),
    *((128, 256, c) for c in (4, 16, 64)),
    *((2048, 256, c) for c in (4, 16)),
)
KEYS = (
    *("gpu", "gpus", "shape", "dtype", "parameters", "limits", "findings", "error", "prediction"),
    *("alternatives", "cells"),
)


@pytest.fixture(autouse=True, scope="module")
def _each_fit_once() -> Iterator[None]:
    """A fit of the same cells under the same flags is made once: the forms and predictions are tested on it."""
    made: dict[str, Any] = {}
    real = command._fit

    def fit(group: tuple[Cell, ...], flags: dict[str, Any], tell: Callable[[str], None]) -> Any:
        key = repr(([(replace(cell, where="")) for cell in group], flags["holdout"], flags["no_priors"], flags["seed"]))
        if key not in made:
            made[key] = real(group, flags, tell)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "_fit", fit)
        yield


def table(path: Path, rows: list[Cell], extra: str = "", values: str = "") -> Path:
    lines = [f"isl,osl,concurrency,ttft_ms,itl_ms{extra}"]
    for cell in rows:
        times = f"{cell.ttft_s * 1e3},{cell.itl_s * 1e3}".replace("nan", "")
        lines.append(f"{cell.prompt_tokens:g},{cell.output_tokens:g},{cell.load:g},{times}{values}")
    path.write_text("\n".join(lines) + "\n")
    return path


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["fit", *map(str, words)])


def plain(*words: str | Path) -> dict[str, Any]:
    result = invoke(*words, "--format", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refused(*words: str | Path) -> str:
    result = invoke(*words)
    assert isinstance(result.exception, UsageError), result.output
    return str(result.exception)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return table(tmp_path_factory.mktemp("t") / "t.csv", cells(MadeWorld(design=DESIGN), noise=0.005))


@pytest.fixture(scope="module")
def fitted(measured: Path) -> dict[str, Any]:
    return plain(measured, "--gpu", "h100-sxm", "--gpus", "1", "--shape", "llama-3.1-8b", "--dtype", "bf16")


def test_a_plan_from_a_fit_is_that_of_the_engine_which_was_measured(fitted: dict[str, Any], tmp_path: Path) -> None:
    truth = fitted | {"engine": {"true": json_plain(asdict(ENGINE) | {"law": ENGINE.law._asdict()})}}
    rates = []
    for name, found in (("fit", fitted), ("truth", truth)):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(found))
        flags = ["--rate", "40", "--slo", "p95(ttft) < 1s, p95(tpot) < 40ms", "--gpus", "1", "--format", "json"]
        done = CliRunner().invoke(cli, ["plan-capacity", "--fit", str(file), *flags])
        assert done.exit_code == 0, done.output
        (plan,) = json.loads(done.stdout)["plans"]
        assert (plan["gpu"], plan["unvalidated"]) == ("H100-SXM", [])
        rates.append(plan["replica_rate_per_s"])
    assert rates[0] == pytest.approx(rates[1], rel=0.1)


def test_what_a_fit_cannot_use_or_write_is_told_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    table.write_text("isl,osl,concurrency,ttft_ms,itl_ms\n" + "".join(f"500,100,{n},{n},9\n" for n in (1, 2, 4)))
    for words, told in (
        (["-o", str(tmp_path / "x.pdf")], ".pdf is no format that is written here"),
        (["--gpu", "h100-sxm"], "--gpu: says nothing where the model is not known - give --shape, too"),
        (["--shape", "llama-3.1-8b"], "--shape: says nothing where the GPU is not known - give --gpu, too"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["fit", str(table), *words])
        assert stop.value.code == 2
        assert told in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_a_plan_that_nothing_keeps_is_a_sentence_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["plan-capacity", "--rate", "5", "--slo", "p99(ttft)<1us", "--gpus", "1,7"])
    told = capsys.readouterr().out
    assert stop.value.code == 1
    assert told.startswith("No plan: nothing that was asked for keeps p99(ttft) < 1.00 µs.")
    assert "7 x H100-SXM: 32 attention heads cannot be divided" in told


def test_the_json_has_the_keys_that_users_script_against(fitted: dict[str, Any]) -> None:
    assert set(KEYS) <= set(fitted)
    assert (fitted["gpu"], fitted["gpus"], fitted["shape"], fitted["dtype"]) == ("H100-SXM", 1, "Llama-3.1-8B", "bf16")
    for name in ("mfu", "mbu", "overhead_s", "overhead_per_request_s", "kv_bandwidth"):
        assert {"value", "low", "high", "identified"} <= set(fitted["parameters"][name])
    error = fitted["error"]
    assert {"ttft", "itl"} <= set(error["in_sample"])
    assert {"ttft", "itl", "ttft_p90", "itl_p90", "n"} <= set(error["held_out"])
    assert {"ttft", "itl"} <= set(error["baseline_interpolation"])
    (first, *_) = fitted["cells"]
    assert {"isl", "osl", "load", "ttft_s", "ttft_fit_s", "itl_s", "itl_fit_s", "held_out"} <= set(first)
    assert len(fitted["cells"]) == len(DESIGN)
    assert {"phase", "bound", "distance_to_roof"} <= set(fitted["limits"][0])


def test_the_fit_finds_the_engine_and_says_how_far_off_it_is(fitted: dict[str, Any]) -> None:
    mfu = fitted["parameters"]["mfu"]
    assert mfu["value"] == pytest.approx(EFFICIENCY.mfu, rel=0.15)
    assert fitted["error"]["held_out"]["itl"] < 0.05
    assert fitted["error"]["held_out"]["n"] == sum(cell["held_out"] for cell in fitted["cells"]) > 0


def test_every_part_of_a_limit_can_be_added_up(fitted: dict[str, Any]) -> None:
    for limit in fitted["limits"]:
        assert sum(part["seconds"] for part in limit["parts"]) == pytest.approx(limit["fit_s"], rel=0.02, abs=1e-4)


def test_text_markdown_and_page_from_the_same_files(measured: Path, tmp_path: Path) -> None:
    flags = ("--gpu", "h100", "--shape", "llama-3.1-8b", "--holdout", "none")
    text = invoke(measured, *flags)
    assert "How far off" in text.stdout
    assert "mfu" in text.stdout
    page = tmp_path / "fit.html"
    assert str(page) in invoke(measured, *flags, "--format", "html", "-o", page).stdout
    assert "What bounds each phase" in page.read_text()
    assert "| parameter |" in invoke(measured, *flags, "--format", "md").stdout


def test_without_gpu_and_model_black_box_constants_are_fitted(tmp_path: Path) -> None:
    engine = EngineConfig(constants_law(2e-5, 5e-3, 5e-5))
    rows = []
    for prompt, output, users in DESIGN:
        cell = Cell(prompt, output, "concurrency", users, math.nan, math.nan)
        seen = outcome(Situation(cell, engine, None))
        rows.append(replace(cell, ttft_s=seen.ttft, itl_s=seen.itl))
    path = table(tmp_path / "vendor.csv", rows)
    found = plain(path, "--holdout", "none")
    assert found["gpu"] is None
    law = next(iter(found["engine"].values()))["law"]
    assert law["decode_step_s"] == pytest.approx(5e-3, rel=0.1)
    assert law["prefill_token_s"] == pytest.approx(2e-5, rel=0.1)
    assert "predict --constants prefill=" in invoke(path, "--holdout", "none").stdout
    assert "known GPU and model" in refused(path, "--holdout", "none", "--predict-on", "h200")


def test_another_gpu_is_predicted_and_held_against_what_was_measured_there(measured: Path, tmp_path: Path) -> None:
    from loadgen.roofline import catalog

    where = replace(H100, gpu=catalog.gpu("h200-sxm"))
    engine = replace(ENGINE, law=step_law(where, EFFICIENCY), kv_tokens=where.kv_capacity_tokens())
    there = []
    for cell in cells(MadeWorld(design=DESIGN), noise=0.0):
        seen = outcome(Situation(cell, engine, where))
        there.append(replace(cell, ttft_s=seen.ttft, itl_s=seen.itl))
    overlay = table(tmp_path / "h200.csv", there, ",gpu,gpus,shape,dtype", ",H200-SXM,1,llama-3.1-8b,bf16")
    flags = ("--gpu", "h100", "--shape", "llama-3.1-8b", "--holdout", "none")
    (found,) = plain(measured, *flags, "--predict-on", "h200-sxm", "--overlay", overlay)["prediction"]
    assert (found["gpu"], found["gpus"]) == ("H200-SXM", 1)
    assert len(found["cells"]) == len(DESIGN)
    assert found["error"]["model"]["itl"] < 0.05 < found["error"]["no_change"]["itl"]
    assert found["error"]["model"]["ttft"] < found["error"]["bandwidth"]["ttft"]
    alone = plain(measured, *flags, "--predict-on", "h200-sxm,2")["prediction"][0]
    assert (alone["gpus"], alone["error"]["model"]) == (2, {})


def test_a_table_of_several_deployments_is_a_fit_for_each_and_a_line_for_each(tmp_path: Path) -> None:
    rows = cells(MadeWorld(design=DESIGN[:7]), noise=0.0)
    first = table(tmp_path / "a.csv", rows, ",gpu,gpus,shape,dtype,engine", ",H100,1,llama-3.1-8b,bf16,one")
    text = first.read_text()
    first.write_text(text + "\n".join(line.replace(",one", ",two") for line in text.splitlines()[1:]) + "\n"
                     + "128,256,1,9,9,H100,1,llama-3.1-8b,bf16,three\n")  # fmt: skip
    result = invoke(first, "--holdout", "none")
    assert "Overview" in result.stdout
    assert "three: 1 cells are too few" in result.stderr
    assert result.stderr.count("loadgen: fitting 14 cells ...") == 1  # and no more than that: it is no terminal
    assert "searching" not in result.stderr
    found = plain(first, "--holdout", "none")
    assert len(found["fits"]) == 2
    assert set(KEYS) <= set(found)
    assert len(found["cells"]) == 14
    assert found["error"]["in_sample"]["n"] == sum(one["error"]["in_sample"]["n"] for one in found["fits"])
    assert len(plain(first, "--holdout", "none", "--joint")["engine"]) == 3
    page = invoke(first, "--holdout", "none", "--format", "html").stdout
    assert 'id="overview"' in page
    assert page.count('data-chart="fit-roofline-') == 2
    assert 'href="#fit-2"' in page


def test_a_run_is_fitted_and_keeps_its_fit(tmp_path: Path) -> None:
    info, rows = case("mixed")
    run = write_run(tmp_path / "r", info, rows)
    result = invoke(run, "--holdout", "none")
    assert result.exit_code == 0, result.output
    assert "kept as" in result.stderr
    kept = read_fit(run)
    assert kept is not None
    assert kept["cells"]
    # The made-up rows decode in 5 ms a step, which would take more than an H100's measured bandwidth: said, and kept.
    # Five noisy cells do not rule out a bandwidth that engines reach, so the physics is doubted, not refused.
    assert kept["gpu"] == "H100-SXM"
    assert "faster_than_physics" in {finding["code"] for finding in kept["findings"]}


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--gpu", "h1000"), "unknown GPU"),
        (("--shape", "lama"), "unknown shape"),
        (("--dtype", "fp9"), "unknown dtype"),
        (("--gpu", "h100", "--shape", "llama-3.1-8b", "--predict-on", "h200,x"), "--predict-on h200,x"),
        (("--gpu", "h100", "--shape", "llama-3.1-8b", "--predict-on", "h2000"), "unknown GPU"),
        (("--overlay", "nowhere.csv"), "nowhere.csv"),
    ],
)
def test_mistakes_in_flags_are_told_before_anything_is_fitted(
    words: tuple[str, ...], part: str, measured: Path
) -> None:
    assert part in refused(measured, *words)


def test_mistakes_in_files_are_told_with_their_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("isl,osl,concurrency,ttft_ms\n1,2,x,4\n")
    assert "bad.csv:2" in refused(bad)
    assert "cannot be read" in refused(tmp_path / "none.csv")


def test_the_examples_of_the_readme_are_tables_that_read() -> None:
    from loadgen.store.inputs import read_cells

    assert len(read_cells(EXAMPLES / "h100-qwen3-32b.csv").cells) == 42
    assert len(read_cells(EXAMPLES / "h200-throughput.csv", rates=True).cells) == 40
