"""The release gate as a pipeline sees it: exit codes, one line for each objective, annotations, JUnit."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from loadgen.cli import main
from loadgen.model import Exchange
from loadgen.store.runfile import RunWriter
from tests.analysis.made import failed, ok, run, stage


def written(path: Path, exchanges: Iterable[Exchange], **spec: object) -> str:
    info = run(stage(requests=300), run_id="r1", spec=spec)
    writer = RunWriter.create(path / "run", info)
    for exchange in exchanges:
        writer.write(exchange)
    writer.close("complete")
    return str(path / "run")


def many(n: int = 300) -> list[Exchange]:
    return [ok(i, sent=0.03 * i, events=[0.2 + 0.01 * k for k in range(5)]) for i in range(n)]


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["check", *arguments])
    out, err = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, out, err


PASS, FAIL, OPEN = "p99(ttft) < 1s", "p99(ttft) < 100ms", "error_rate < 0.1%"


@pytest.mark.parametrize(
    ("slos", "code"),
    [([PASS], 0), ([FAIL], 1), ([OPEN], 3), ([PASS, OPEN], 3), ([OPEN, FAIL], 1), ([f"{PASS}, {OPEN}, {FAIL}"], 1)],
)
def test_a_failure_outranks_an_undecidable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], slos: list[str], code: int
) -> None:
    found, out, _ = check(capsys, written(tmp_path, many()), *(part for slo in slos for part in ("--slo", slo)))
    assert found == code
    assert out.splitlines()[0] == "measurement: VALID"
    assert sum(line.startswith(("PASS", "FAIL", "UNDECIDABLE")) for line in out.splitlines()) == len(
        ", ".join(slos).split(",")
    )


def test_a_line_says_what_decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = check(capsys, written(tmp_path, many()), "--slo", PASS)
    assert out.splitlines()[-1].startswith("PASS        chat@1: p99(ttft) < 1s: 200 ms [200 ms, 200 ms], n = 300; ")


def test_the_objectives_of_the_run_are_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, many(), slo=[FAIL])
    assert check(capsys, path)[0] == 1
    assert check(capsys, path, "--slo", PASS)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "there is no objective"),
        (["--slo", "p99(ttft) < 1"], "is a time"),
        (["--slo", "story: p99(ttft) < 1s"], "chat@1"),
    ],
)
def test_mistakes_are_one_line_and_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    code, _, err = check(capsys, written(tmp_path, many(3)), *arguments)
    assert code == 2
    assert told in err
    assert len(err.splitlines()) == 1


def test_a_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(capsys, str(tmp_path), "--slo", PASS)[0] == 2


def test_github_annotations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, many())
    _, out, _ = check(capsys, path, "--slo", f"{PASS}, {FAIL}, {OPEN}", "--format", "github")
    first, second, third = out.splitlines()
    assert first.startswith("::notice title=SLO pass::chat@1: p99(ttft) < 1s: ")
    assert second.startswith("::error title=SLO fail::")
    assert third.startswith("::warning title=SLO undecidable::")
    assert "0.1%25" in third
    assert "%" not in third.replace("%25", "")


def test_what_makes_a_measurement_doubtful_is_annotated_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, [*many(), *(failed(900 + i) for i in range(400))])
    _, out, _ = check(capsys, path, "--slo", PASS, "--format", "github")
    first, last = out.splitlines()[0], out.splitlines()[-1]
    assert first.startswith("::error title=measurement invalid::chat@1: 400 of 700 requests failed")
    assert last.startswith("::error title=SLO fail::")


def test_markdown_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = check(capsys, written(tmp_path, many()), "--slo", FAIL, "--format", "md")
    lines = out.splitlines()
    assert lines[0] == "Measurement: **VALID**"
    assert lines[-1].startswith("| fail | chat@1: p99(ttft) &lt; 100ms | 200 ms |")
    assert {line.count("|") for line in lines[2:]} == {7}


def test_junit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "junit.xml"
    path = written(tmp_path, [*many(), *(failed(900 + i) for i in range(30))])
    check(capsys, path, "--slo", f"{PASS}, {OPEN}, mean(ttft) < 1s, p50(ttft) < 1s", "--junit", str(file))
    suite = ElementTree.parse(file).getroot()
    assert {key: suite.get(key) for key in ("tests", "failures", "errors")} == {
        "tests": "4",
        "failures": "2",
        "errors": "0",
    }
    assert [case.get("name") for case in suite] == [PASS, OPEN, "mean(ttft) < 1s", "p50(ttft) < 1s"]
    assert suite[0].find("failure") is not None
    assert suite[3].find("failure") is None
    code, _, err = check(capsys, path, "--slo", PASS, "--junit", str(tmp_path / "no" / "such.xml"))
    assert code == 2
    assert "such.xml: no such file or directory" in err


def test_undecidable_is_an_error_in_junit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "junit.xml"
    check(capsys, written(tmp_path, many(3)), "--slo", PASS, "--junit", str(file))
    suite = ElementTree.parse(file).getroot()
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")


def test_explain_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, told in ((["explain", "tpot"], "(N - 1)"), (["explain"], "chunk_gap")):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 0
        assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("slo", "outcomes"),
    [
        ("p99(ttft) < 1s", "PASS"),
        ("p95(tpot) <= 50ms", "PASS"),
        ("mean(e2e) < 10s", "PASS"),
        ("error_rate < 0.1%", "UNDECIDABLE"),  # needs 2,995 requests without a failure
        ("output_tokens_per_s > 4000", "FAIL"),
        ("p99(ttft) < 1s, p95(tpot) <= 50ms, output_tokens_per_s > 4000", "PASS PASS FAIL"),
        ("ttft < 1s and tpot < 50ms", "PASS"),
        ("ttft < 1s and tpot < 50ms, slo_attainment > 99.9%", "UNDECIDABLE"),
        ("chat:p99(ttft) < 1s", "PASS"),
        ("chat@1:p99(ttft) < 10ms", "FAIL"),
    ],
)
def test_every_kind_of_expression(tmp_path: Path, capsys: pytest.CaptureFixture[str], slo: str, outcomes: str) -> None:
    code, out, _ = check(capsys, written(tmp_path, many()), "--slo", slo)
    told = [line.split()[0] for line in out.splitlines() if line.startswith(("PASS", "FAIL", "UNDECIDABLE"))]
    assert told == outcomes.split()
    assert code == (1 if "FAIL" in told else 3 if "UNDECIDABLE" in told else 0)
