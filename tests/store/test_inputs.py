"""A run as cells for a fit: what the run notes of its deployment, and what the user says over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.named import Known
from loadgen.store import imports
from loadgen.store.inputs import read_cells
from tests.synthetic import run, write_run

FACTS = {"gpu": "h100-sxm", "gpus": 2, "shape": "llama-3.1-70b", "dtype": "fp8", "kv": "fp8"}


def folder(tmp_path: Path, facts: dict[str, object]) -> Path:
    info, requests = run("chat")
    exchanges = [requests.exchange(i) for i in range(len(requests))]
    info = replace(info, spec=info.spec | {"roofline": facts})
    return write_run(tmp_path / "r", info, exchanges)


def test_a_runs_stages_are_cells_of_the_deployment_that_it_notes(tmp_path: Path) -> None:
    found = read_cells(folder(tmp_path, FACTS)).cells
    assert len(found) >= 1
    where = found[0].deployment
    assert where is not None
    assert (where.gpu.name, where.gpus, where.shape.name, where.dtypes.kv) == ("H100-SXM", 2, "Llama-3.1-70B", "fp8")
    assert found[0].label == "2 x H100-SXM, Llama-3.1-70B, fp8, KV fp8"
    assert "r chat" in found[0].where


def test_a_run_without_notes_is_a_black_box_until_the_user_says_what_it_was(tmp_path: Path) -> None:
    path = folder(tmp_path, {"gpu": None, "gpus": 1, "shape": None, "dtype": "bf16"})
    assert read_cells(path).cells[0].deployment is None
    known = Known(catalog.gpu("b200"), 1, catalog.shape("qwen3-8b"))
    where = read_cells(path, known).cells[0].deployment
    assert where is not None
    assert where.gpu.name == "B200"


def test_what_the_user_says_wins_over_the_runs_notes(tmp_path: Path) -> None:
    where = read_cells(folder(tmp_path, FACTS), Known(gpu=catalog.gpu("h200"), shape=catalog.shape("qwen3-8b")))
    named = where.cells[0].deployment
    assert named is not None
    assert (named.gpu.name, named.shape.name, named.gpus) == ("H200-SXM", "Qwen3-8B", 1)


def test_a_folder_that_is_no_run_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no run\.json and no result file"):
        read_cells(tmp_path)


def test_of_a_folder_that_cannot_be_looked_through_the_entry_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone.csv").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"holds no run\.json and no result file"):  # no word of what is not there
        read_cells(tmp_path)
    monkeypatch.setattr(imports, "_MAX_SEEN", 1)
    with pytest.raises(UsageError, match="too many files"):
        read_cells(tmp_path)

    def closed(path: Path, onerror: Callable[[OSError], None]) -> Iterator[tuple[str, list[str], list[str]]]:
        onerror(PermissionError(13, "Permission denied", f"{path}/secret"))
        yield str(path), ["secret"], []

    monkeypatch.setattr(imports.os, "walk", closed)
    with pytest.raises(UsageError, match=r"/secret: cannot be read: permission denied - .* holds no run.json"):
        read_cells(tmp_path)
