"""What a user gives to a fit, whatever it is: a run, a table of cells, another tool's result file.

Knows: which reader a path needs, by what it is, and what a run notes of its deployment. Must not know: fits, flags.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from loadgen.analysis.cells import cells
from loadgen.analysis.summary import summarise
from loadgen.errors import UsageError
from loadgen.model import RunInfo
from loadgen.roofline.named import NOTHING, Known, Words, chosen, deployment, describe
from loadgen.store.imports import read_result_table
from loadgen.store.runfile import is_run, open_run
from loadgen.store.serverfile import read_server
from loadgen.store.tablecolumns import is_table
from loadgen.store.tables import Table, parse_table
from loadgen.store.tabletext import read_text


def read_cells(path: Path, known: Known = NOTHING, *, rates: bool = False) -> Table:
    """The cells of a run's folder, of a TABLE.csv (`rates` as in `read_table`), or of another tool's result file.

    Raises:
        UsageError: nothing that can be read, or no cell of the deployment that `known` names.
    """
    if path.is_dir():
        return read_run_cells(path, known) if is_run(path) else read_result_table(path, known)
    text = read_text(path)
    if not text.lstrip().startswith(("{", "[")) and is_table(text):
        return parse_table(text, str(path), known, rates=rates)
    return read_result_table(path, known)


def read_run_cells(path: Path, known: Known = NOTHING) -> Table:
    """A run's stages as cells. What the user says of the deployment wins over what the run notes of it.

    Raises:
        UsageError: no run there, or no stage of it can be a cell.
    """
    info, requests = open_run(path)
    words = run_words(info)
    where = deployment(words if chosen(words, known) else Words(), known)
    found, left_out = cells(summarise(info, requests, (), read_server(path)), where, describe(where), str(path))
    if not found:
        raise UsageError("holds no stage to fit", where=str(path), do="; ".join(left_out) or "measure one")
    notes = [f"{path}: {line}" for line in left_out]
    if any(math.isnan(cell.ttft_s) for cell in found):
        notes.append(f"{path}: stages without a TTFT are fitted by their ITL alone")
    return Table(found, tuple(notes))


def run_words(info: RunInfo) -> Words:
    """What a run notes of the GPU and the model behind it (`run --gpu ... --shape ...`)."""
    facts: dict[str, Any] = info.spec.get("roofline") or {}
    text = {name: str(facts.get(name) or "") for name in ("gpu", "shape", "dtype", "weights", "compute", "kv")}
    gpus = facts.get("gpus")
    return Words(**text, gpus=gpus if isinstance(gpus, int) and text["gpu"] else None)
