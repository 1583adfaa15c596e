"""A report to share: no address, name or note in any format, and the same figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.analysis.frame import Requests
from loadgen.model import Failure, RunInfo
from loadgen.report.redact import redacted
from loadgen.report.render import load, render
from tests import synthetic

PRIVATE = (
    "gpu7.secret.example",
    "10.11.12.13",
    "hidden-model",
    "flags of the house",
    "alice@secret.example",
    "/home/alice/runs",
    "[fd00::7]",
)


def _private() -> tuple[RunInfo, tuple[synthetic.Exchange, ...]]:
    info, rows = synthetic.build((synthetic.StageCase(requests=40, failed=0.3),))
    info.endpoint |= {
        "url": "http://gpu7.secret.example:8000/v1",
        "model": "hidden-model",
        "trials": ["POST http://gpu7.secret.example:8000/v1/chat/completions: ok"],
        "provenance": {"root": "/home/alice/runs/hidden-model", "served": ["hidden-model"]},
    }
    info.notes = {"engine_flags": "flags of the house"}
    info.command = [
        "loadgen",
        "run",
        "gpu7.secret.example:8000",
        "--note",
        "x=flags of the house",
        "--model=hidden-model",
    ]
    info.host["mail"] = "alice@secret.example"
    info.spec["url"] = "http://[fd00::7]:8000"
    info.error = "cannot connect to 10.11.12.13:8000"
    bad = Failure("connect", "gpu7.secret.example (10.11.12.13, [fd00::7]:80) refused hidden-model")
    return info, tuple(row if row.failure is None else replace(row, failure=bad) for row in rows)


@pytest.mark.parametrize("fmt", ["html", "md", "json", "csv"])
def test_no_format_holds_a_private_word(tmp_path: Path, fmt: str) -> None:
    run = synthetic.write_run(tmp_path / "run", *_private())
    open_text, text = render(load(run), fmt), render(load(run, redact=True), fmt)
    assert [word for word in PRIVATE if word in text] == []
    if fmt == "html":
        assert [word for word in PRIVATE if word not in open_text] == []
        assert "refused [model]" in text


def test_figures_stay(tmp_path: Path) -> None:
    run = synthetic.write_run(tmp_path / "run", *_private())
    clear, hidden = (json.loads(render(load(run, redact=redact), "json")) for redact in (False, True))
    assert clear["stages"] == hidden["stages"]
    assert clear["trust"]["verdict"] == hidden["trust"]["verdict"]


def _redacted(info: RunInfo) -> RunInfo:
    empty: Requests = synthetic.frame(())
    return redacted(info, empty)[0]


def test_a_short_name_takes_nothing_out_of_other_words() -> None:
    info, _ = synthetic.run("chat")
    info.endpoint["model"] = "o"
    info.endpoint["engine"] = "vLLM on o"
    assert _redacted(info).endpoint["engine"] == "vLLM on [model]"


def test_ordinary_words_are_no_addresses() -> None:
    info, _ = synthetic.run("chat")
    kept = [
        "p99(ttft) < 1s",
        "chat@32",
        "1.5.0",
        "12:00",
        "tokens/s",
        "Linux 6.18.44-fc",
        "and/or",
        "uniform:100..500",
        "normal:2000±200",
        "2025-01-02T03:04:05",
    ]
    info.host = {"kept": kept}
    assert _redacted(info).host["kept"] == kept


def test_a_run_without_anything_private_stays() -> None:
    info, _ = synthetic.run("none")
    info.endpoint, info.command = {}, ["loadgen"]
    assert _redacted(info) == info
