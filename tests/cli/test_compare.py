"""`loadgen compare`: what is printed and written, and the exit code that a pipeline acts on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from loadgen.cli import main
from loadgen.errors import UsageError
from loadgen.report.compare import compare_runs, render
from tests import synthetic
from tests.synthetic import StageCase

CASE = StageCase("brief", requests=320)
PRIVATE = "secret-host.example"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders base, same and slow."""
    root = tmp_path_factory.mktemp("runs")
    for name, case, seed in (("base", CASE, 1), ("same", CASE, 2), ("slow", replace(CASE, slower=1.3), 3)):
        info, rows = synthetic.build((case,), seed)
        info.endpoint["url"] = f"http://{PRIVATE}:8000/v1"
        synthetic.write_run(root / name, info, rows)
    return root


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["compare", *words])
    out, err = capsys.readouterr()
    assert isinstance(end.value.code, int)
    assert "Traceback" not in err
    return end.value.code, out, err


def test_the_prices_that_a_run_was_told_count_where_no_other_is_given(tmp_path: Path) -> None:
    roofline = {
        "roofline": {"gpus": 2, "price_per_gpu_hour": 1.5},
        "prices": {"input": 1.0, "output": 2.0, "cached": None},
    }
    for name, seed in (("a", 1), ("b", 2)):
        info, rows = synthetic.build((replace(CASE, requests=40),), seed)
        info.spec |= roofline
        synthetic.write_run(tmp_path / name, info, rows)
    paths = [tmp_path / "a", tmp_path / "b"]
    assert compare_runs(paths).prices == (1.5, 1.5)
    assert compare_runs(paths, prices=(9.0, 9.0)).prices == (9.0, 9.0)
    cell = json.loads(render(compare_runs(paths), "json"))["comparisons"][0]["cells"][0]["cost"]["run"]
    assert cell["per_thousand"] > 0
    assert cell["vendor_per_million"] > 2.0  # the output alone, and the prompts on top
    shown = render(compare_runs(paths), "text")
    assert "$ per 1,000 requests" in shown
    assert "vendor's price of a million tokens" in shown


def test_the_text_is_printed_and_the_page_written(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(runs / "base"), str(runs / "slow"))
    assert code == 0
    assert "tpot mean" in out
    assert "worse" in out
    assert "measured differently: seed of lengths, arrivals and texts: 1 against 3" in out
    assert out.splitlines()[-1] == f"page: {runs / 'slow' / 'compare.html'}"
    assert "slow against base" in (runs / "slow" / "compare.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("other", "expression", "code"),
    [
        ("same", "mean(tpot) worse by 5%", 0),
        ("slow", "mean(tpot) worse by 5%", 1),
        ("same", "p99.9(tpot) worse by 5%", 3),
        ("slow", "p99.9(tpot) worse by 5%, mean(tpot) worse by 5%", 1),
    ],
)
def test_the_exit_code_is_the_gates(
    runs: Path, capsys: pytest.CaptureFixture[str], other: str, expression: str, code: int
) -> None:
    found = run(capsys, str(runs / "base"), str(runs / other), "--fail-on", expression, "--format", "md")
    assert found[0] == code
    assert "| gate |" in found[1]


def test_junit_says_what_the_gate_says(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gate.xml"
    words = [str(runs / name) for name in ("base", "same", "slow")]
    code, _, _ = run(
        capsys, *words, "--fail-on", "mean(tpot) worse by 5%", "--junit", str(file), "--format", "text"
    )  # fmt: skip
    suite = ElementTree.parse(file).getroot()
    assert code == 1
    assert [suite.get(key) for key in ("tests", "failures", "errors")] == ["2", "1", "0"]
    assert suite[1].get("classname") == "slow against base"


def test_json_holds_every_figure(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    words = [str(runs / name) for name in ("base", "slow")]
    assert run(capsys, *words, "--price-per-gpu-hour", "2,4", "-o", str(file))[0] == 0
    found = json.loads(file.read_text(encoding="utf-8"))
    assert [one["price_per_gpu_hour"] for one in found["runs"]] == [2.0, 4.0]
    (one,) = found["comparisons"]
    assert one["likeness"] == "unlike"
    (cell,) = one["cells"]
    row = next(row for row in cell["metrics"] if (row["metric"], row["stat"]) == ("tpot", "mean"))
    assert row["low"] < row["change"] < row["high"]
    assert row["verdict"] == "worse"
    cost = cell["cost"]["run"]
    assert cost["per_million"] == pytest.approx(4.0 / 3600 / cost["tokens_per_s"] * 1e6)
    assert cost["per_dollar"] * cost["per_million"] == pytest.approx(1e6)


def test_a_redacted_comparison_names_nobody(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(runs / name) for name in ("base", "slow")]
    for form in ("html", "md", "json", "text"):
        assert PRIVATE in run(capsys, *words, "--format", form)[1] or form in ("json", "md", "text")
        code, out, _ = run(capsys, *words, "--format", form, "--redact")
        assert code == 0
        assert PRIVATE not in out
        assert "slow" not in out.replace("slower", "").replace("slowdown", "").replace("slow one", "") or form == "html"
        assert "run 2" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["{runs}/base"], "needs two runs"),
        (["{runs}/base", "{runs}/nowhere"], "no such folder"),
        (["{runs}/base", "{runs}/base", "--fail-on", "p99(ttft) worse by 5%"], "base: is given twice"),
        (["{runs}/base", "{runs}/same", "{runs}/../{runs.name}/same"], "is the same run as"),
        (["{runs}/base", "{runs}/same", "--price-per-gpu-hour", "1,2,3"], "3 prices for 2 runs"),
        (["{runs}/base", "{runs}/same", "--price-per-gpu-hour", "-1"], "above 0"),
        (["{runs}/base", "{runs}/same", "--price-per-gpu-hour", "cheap"], "is no price"),
        (["{runs}/base", "{runs}/same", "--between-runs", "much"], "is no share"),
        (["{runs}/base", "{runs}/same", "--fail-on", "ttft worse"], "write it as"),
        (["{runs}/base", "{runs}/same", "--junit", "x.xml"], "give --fail-on"),
        (["{runs}/base", "{runs}/same", "-o", "{runs}/same/run.json"], "is what is compared"),
    ],
)
def test_mistakes_are_one_line(runs: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    code, _, err = run(capsys, *(word.format(runs=runs) for word in words))
    assert code == 2
    assert told in err
    assert len(err.splitlines()) == 1


def test_names_are_as_long_as_they_have_to_be(runs: Path, tmp_path: Path) -> None:
    twin = synthetic.write_run(tmp_path / "other" / "base", *synthetic.build((CASE,), 2))
    assert [side.name for side in compare_runs([runs / "base", runs / "same"]).sides] == ["base", "same"]
    assert [side.name for side in compare_runs([runs / "base", twin]).sides] == [f"{runs.name}/base", "other/base"]
    with pytest.raises(UsageError):
        compare_runs([twin])


def test_a_folder_that_cannot_be_written_does_not_hide_the_verdict(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = synthetic.write_run(tmp_path / "run", *synthetic.build((replace(CASE, slower=1.3),), 2))
    (other / "compare.html").mkdir()
    code, out, err = run(capsys, str(runs / "base"), str(other), "--fail-on", "mean(tpot) worse by 5%")
    assert code == 1
    assert "FAIL" in out
    assert "no page" in err


def test_another_tools_file_is_read(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "theirs.csv"
    table.write_text("isl,osl,concurrency,ttft_ms,itl_ms\n500,20,8,20,7\n", encoding="utf-8")
    code, out, _ = run(capsys, str(runs / "base"), str(table), "--fail-on", "mean(tpot) worse by 5%")
    assert code == 3
    assert "means alone" in out
    assert "not decidable: another tool's file holds no requests" in out
    assert (tmp_path / "compare.html").exists()


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["plan", "-w", "chat", "--concurrency", "8", *words])
    out, err = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, out, err


def test_a_plan_says_how_many_requests_show_a_change(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(capsys, "--detect", "5%", "--format", "json")
    (stage,) = json.loads(out)["stages"]
    assert code == 0
    assert stage["mean"]["ttft"]["source"] == "assumed"
    assert stage["requests"] == max(need["requests"] for need in stage["mean"].values())
    smaller = json.loads(plan(capsys, "--detect", "3%", "--format", "json")[1])["stages"][0]["requests"]
    assert smaller > 2.5 * stage["requests"]
    wider = plan(capsys, "--detect", "5%", "--prompt-tokens", "uniform:100..4000", "--format", "json")[1]
    assert json.loads(wider)["stages"][0]["requests"] > 2 * stage["requests"]
    assert "give --requests" in plan(capsys, "--detect", "5%")[1]
    assert ": enough" in plan(capsys, "--detect", "20%", "--requests", "500")[1]


def test_a_plan_takes_the_spread_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = synthetic.write_run(tmp_path / "run", *synthetic.build((StageCase(requests=100),), 1))
    (stage,) = json.loads(plan(capsys, "--detect", "5%", "--like", str(path), "--format", "json")[1])["stages"]
    assert {need["source"] for need in stage["mean"].values()} == {"measured"}
    assert 0.2 < stage["mean"]["ttft"]["spread"] < 0.6
    assert stage["mean"]["tpot"]["spread"] < 0.03


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--like", "x"], "needs --detect"),
        (["--detect", "much"], "is no share"),
        (["--detect", "1%"], "plan for more than"),
        (["--detect", "0%"], "can be planned for"),
        (["--detect", "5%", "--like", "/nowhere"], "no such folder"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    code, _, err = plan(capsys, *words)
    assert code == 2
    assert told in err
    assert len(err.splitlines()) == 1
