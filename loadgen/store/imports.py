"""Result files of other tools as cells, each recognised by its content, whatever it is called.

Knows: how a file becomes documents (JSON, JSON Lines, GenAI-Perf's CSV) and a point a cell. Must not know: formats
(`importformats`), fits. A file of which nothing is recognised is refused with the list of what is.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.cells import Cell, Protocol, uniform_law
from loadgen.roofline.named import NOTHING, Known, Words, chosen, deployment, describe, find_gpu, said
from loadgen.roofline.precision import dtypes
from loadgen.store.importformats import TOOLS, Document, Point, Tool
from loadgen.store.tables import Table
from loadgen.store.tabletext import SECONDS, read_text

_MAX_FILES = 500  # of a folder
_MAX_SEEN = 50_000  # entries of a folder and those below it
_MIN_TOKENS = 1.0


def read_results(path: Path) -> tuple[Cell, ...]:
    """The cells of another tool's result file, or of every such file in a folder.

    Raises:
        UsageError: nothing there that is known, or a file that does not say lengths or load.
    """
    return read_result_table(path).cells


def read_result_table(path: Path, known: Known = NOTHING) -> Table:
    """As `read_results`, for the deployment that `known` names, with notes on what the tool means by its figures."""
    files = _files(path)
    cells: list[Cell] = []
    notes: dict[str, None] = {}
    other: dict[str, None] = {}
    found = False
    for file in files:
        documents = _documents(file, quiet=len(files) > 1)
        for place, document in documents:
            tool = next((tool for tool in TOOLS if tool.recognises(document)), None)
            if tool is None:
                continue
            found = True
            notes[f"{tool.name}: {tool.meaning}"] = None
            for point in tool.points(document, str(file.resolve())):
                words = _words(point, notes)
                if not chosen(words, known):
                    other[words.label] = None
                elif (cell := _cell(point, words, known, tool, place, notes)) is not None:
                    cells.append(cell)
    if not found:
        names = ", ".join(tool.name for tool in TOOLS)
        what = "holds no run.json and no result file" if path.is_dir() else "is no table of cells and no result file"
        raise UsageError(f"{what} that is known", where=str(path), do=f"known: {names}, and isl,osl,concurrency,...")
    if not cells:
        left = f"it has {'; '.join(other)}" if other else "it has neither TTFT nor ITL: was it measured streaming?"
        raise UsageError("holds no cell to fit", where=str(path), do=left)
    if other:
        notes[f"results of other deployments, left out: {'; '.join(other)}"] = None
    return Table(tuple(cells), tuple(notes))


def _cell(point: Point, words: Words, known: Known, tool: Tool, place: str, notes: dict[str, None]) -> Cell | None:
    """The point as a cell; None, said, where it has no time.

    Raises:
        UsageError: lengths or load are not in the file.
    """
    if not (point.ttft_s > 0 or point.itl_s > 0):
        notes[f"{place}: neither TTFT nor ITL, left out"] = None
        return None
    for name, value in (("prompt tokens", point.prompt_tokens), ("output tokens", point.output_tokens)):
        if not _MIN_TOKENS <= value < math.inf:
            raise UsageError(f"{tool.name} says no {name} here", where=place)
    if not 0 < point.load < math.inf:
        raise UsageError(
            f"{tool.name} does not say the load here", where=place, do="put it into a TABLE.csv, or give a stage's file"
        )
    where = deployment(words, known)
    scale, ratio = (1.0, point.ratio) if point.ratio is not None else uniform_law(point.spread)
    requests = int(point.requests) if point.requests >= 1 and math.isfinite(point.requests) else None
    return Cell(
        prompt_tokens=point.prompt_tokens * scale,
        output_tokens=point.output_tokens * scale,
        load_kind=point.load_kind,
        load=point.load,
        ttft_s=point.ttft_s if point.ttft_s > 0 else math.nan,
        itl_s=point.itl_s if point.itl_s > 0 else math.nan,
        deployment=where,
        protocol=Protocol(requests=requests, length_ratio=ratio),
        label=words.label or describe(where),
        where=place,
        evidence={name: value for name, value in point.evidence.items() if math.isfinite(value)},
    )


def _words(point: Point, notes: dict[str, None]) -> Words:
    """What the file says of the deployment; a served name that no catalogue knows says nothing."""
    names = {"gpu": said(point.gpu), "shape": said(point.model), "dtype": said(point.dtype)}
    for name, find in (("gpu", find_gpu), ("shape", catalog.shape), ("dtype", dtypes)):
        try:
            if names[name]:
                find(names[name])
        except UsageError:
            notes[f"{name} {names[name]!r} is not in the catalogue: give --{name}"] = None
            names[name] = ""
    gpus = int(point.gpus) if point.gpus >= 1 and math.isfinite(point.gpus) else None
    return Words(**names, gpus=gpus, engine=said(point.engine))


# -- files -----------------------------------------------------------------------------------------------------------


def _files(path: Path) -> list[Path]:
    """The file, or those of a folder that may be results; a JSON export stands for the CSV beside it."""
    if not path.is_dir():
        return [path]
    found: list[Path] = []
    seen = 0
    closed: list[OSError] = []
    for folder, _, names in os.walk(path, onerror=closed.append):
        seen += 1 + len(names)
        found += [Path(folder, name) for name in names if Path(name).suffix in (".json", ".jsonl", ".csv")]
        if len(found) > _MAX_FILES or seen > _MAX_SEEN:
            do = f"give the folder of a run, or one with at most {_MAX_FILES} result files"
            raise UsageError("holds no run.json, and too many files to look through", where=str(path), do=do)
    found = sorted(file for file in found if file.is_file())
    if closed and not found:
        reason = (closed[0].strerror or str(closed[0])).lower()
        where = str(closed[0].filename or path)
        raise UsageError(f"cannot be read: {reason}", where=where, do=f"{path} holds no run.json and no result file")
    stems = {file.with_suffix("") for file in found if file.suffix == ".json"}
    return [file for file in found if file.suffix != ".csv" or file.with_suffix("") not in stems]


def _documents(file: Path, *, quiet: bool) -> Iterator[tuple[str, Document]]:
    """(place, object) of everything in a file that could be a result; an unreadable file has none if `quiet`."""
    try:
        content = read_text(file)
    except UsageError:
        if quiet:
            return
        raise
    stripped = content.lstrip()
    if stripped.startswith(("{", "[")):
        yield from _json(content, str(file), quiet)
    elif (document := _genai_csv(content)) is not None:
        yield str(file), document


def _json(content: str, name: str, quiet: bool) -> Iterator[tuple[str, Document]]:
    try:
        whole = json.loads(content)
        listed = whole if isinstance(whole, list) else [whole]
        for index, one in enumerate(listed):
            if isinstance(one, dict):
                yield (f"{name}[{index}]" if len(listed) > 1 else name), one
        return
    except (ValueError, RecursionError) as bad:
        lines = content.splitlines()
        first: Any = bad
    for index, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = json.loads(line)
        except (ValueError, RecursionError):
            if quiet:
                return
            raise UsageError(f"is no JSON: {first}", where=f"{name}:{index}") from None
        if isinstance(one, dict):
            yield f"{name}:{index}", one


def _genai_csv(content: str) -> Document | None:
    """AIPerf's and GenAI-Perf's CSV (`Metric,avg,min,...` then `Metric,Value`) in the form of their JSON."""
    document: Document = {}
    head: list[str] = []
    for row in csv.reader(io.StringIO(content, newline="")):
        fields = [part.strip() for part in row]
        if not fields or not fields[0]:
            continue
        if fields[0].lower() == "metric":
            head = [part.lower() for part in fields]
        elif head and len(fields) <= len(head):
            name, _, unit = fields[0].removesuffix(")").partition(" (")
            values = {key: part.replace(",", "") for key, part in zip(head[1:], fields[1:], strict=False)}
            document[name.strip().lower().replace(" ", "_")] = {"unit": unit if unit in SECONDS else "", **values}
    return document or None
