"""The whole route against a real server: llama.cpp with a tiny random model, over real HTTP."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.analysis.summary import summarise
from loadgen.store.runfile import open_run
from tests import llama
from tests.cli.test_run import free_port
from tests.command import run

_MISSING = [name for name in ("xllamacpp", "gguf", "tokenizers") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(
        bool(_MISSING) and not os.environ.get("LOADGEN_NO_SKIP"), reason=f"not installed: {', '.join(_MISSING)}"
    ),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama") / "micro.gguf"
    llama.make_model(path)
    return path


@pytest.fixture(scope="module")
def endpoint(model: Path) -> Iterator[str]:
    with llama.server(model, free_port()) as url:
        yield url


@pytest.mark.parametrize("dialect", ["chat", "completions"])
def test_all_workloads_run_against_it(endpoint: str, tmp_path: Path, dialect: str) -> None:
    words = ["-w", "chat,summarize,story", "--prompt-tokens", "300", "--output-tokens", "30", "--requests", "8"]
    done = run("run", endpoint, *words, "--concurrency", "1,4", "--dialect", dialect, "-o", str(tmp_path / "r"))
    assert done.returncode == 0, done.stderr
    info, requests = open_run(tmp_path / "r")
    assert info.endpoint["engine"] == "llama.cpp"
    assert info.endpoint["context_limit"] == llama.CONTEXT
    assert info.endpoint["ignore_eos"] is True
    summary = summarise(info, requests)
    assert [stage.counts.ok for stage in summary.stages] == [8] * 6
    for stage in summary.stages:
        output = stage.get("output_tokens", "mean")
        prompt = stage.get("prompt_tokens", "mean")
        assert output is not None
        assert output.value == 30
        assert prompt is not None
        assert prompt.value == pytest.approx(300, rel=0.25)
    assert (tmp_path / "r" / "report.html").stat().st_size > 10_000
    assert (tmp_path / "r" / "summary.md").exists()


def test_a_prompt_beyond_its_context_is_a_failed_row_with_the_servers_reason(endpoint: str, tmp_path: Path) -> None:
    words = ["--prompt-tokens", "4000", "--warmup", "0", "--requests", "2", "--concurrency", "1", "--no-report"]
    done = run("run", endpoint, *words, "-o", str(tmp_path / "r"))
    assert done.returncode == 4
    _, requests = open_run(tmp_path / "r")
    assert requests.word("error_kind", 0) == "http"
    assert "context" in (requests.word("error", 0) or "")


def test_a_key_that_it_refuses_is_one_line(model: Path, tmp_path: Path) -> None:
    with llama.server(model, free_port(), api_key="right-key-123") as url:
        out = [
            "--requests",
            "1",
            "--concurrency",
            "1",
            "--prompt-tokens",
            "50",
            "--no-report",
            "-o",
            str(tmp_path / "r"),
        ]
        wrong = run("run", url, *out, "--api-key-env", "LG_KEY", env={"LG_KEY": "wrong-key-123"})
        assert wrong.returncode == 4
        assert "key" in wrong.stderr
        assert "wrong-key-123" not in wrong.stderr
        assert len(wrong.stderr.strip().splitlines()) == 1
        right = run("run", url, *out, "--api-key-env", "LG_KEY", env={"LG_KEY": "right-key-123"})
        assert right.returncode == 0, right.stderr
