"""TABLE.csv: measured points of any origin, one a row, or one number a row, as cells for a fit.

Knows: how columns may be called, the two layouts, what published sources say of their protocols. Must not know: fits,
flags. A deployment that a file names and the flags do not mean is left out, and said.

    isl,osl,concurrency,ttft_ms,itl_ms[,gpu,gpus,shape,dtype,weights,compute,kv,engine,requests,rate,length_range_ratio]
    isl,osl,concurrency_or_batch,metric,value,unit[,source,gpu,n_gpu,model,dtype,engine, ... as above]

`batch` in place of `concurrency` is a static batch; a finite `rate` is open loop. TTFT and ITL are means; TPOT counts
as ITL, and where a row has both, TPOT is it (the mean of the requests' TPOT is what a cell holds). Rows that say
neither (throughput) are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.roofline.cells import Cell, LoadKind, Protocol
from loadgen.roofline.named import NOTHING, Known, Words, chosen, deployment, describe, said
from loadgen.roofline.naming import plain
from loadgen.store.tablecolumns import COLUMNS, LOADS, is_rate, read_header, timing
from loadgen.store.tabletext import SECONDS, Line, Mistakes, TextTable, near, number, read_table_text, read_text

# What sources of published tables say of how they measured; columns of the table win over it.
_SOURCES: tuple[tuple[str, str, Mapping[str, float | str]], ...] = (
    ("aic_silicon", "vllm", {"length_range_ratio": 0.8}),  # InferenceMAX: lengths uniform in [0.8, 1] x nominal
    ("splitwise", "", {"kind": "batch"}),  # one static batch, all prompts at once
)


_RATE = ("rate", "mean")
_AT_ONCE = ("maxload", "max", "offline")  # all requests are there from the start
_MOST = 1e9  # tokens, users, requests, GPUs: more is a mistake of the table
MAX_LOAD = 3000  # requests of such a measurement, where the table does not say


@dataclass(frozen=True, slots=True)
class Table:
    """The cells of a file, and what the reader should know of how it was read."""

    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Point:
    """One cell while its numbers come together."""

    line: int
    key: tuple[object, ...]
    values: dict[tuple[str, str], float] = field(default_factory=dict)


def read_table(path: Path, known: Known = NOTHING, *, rates: bool = False) -> Table:
    """The cells of the file that may be of the deployment that `known` names.

    `rates`: also those that have the whole server's output tokens/s alone (as evidence `output_tokens_per_s`), which a
    fit cannot use but a prediction can be held against.

    Raises:
        UsageError: it cannot be read, or holds no cell; every mistake in it at once, with its line.
    """
    return parse_table(read_text(path), str(path), known, rates=rates)


def parse_table(text: str, name: str, known: Known = NOTHING, *, rates: bool = False) -> Table:
    """As `read_table`, from text; `name` stands in the messages."""
    mistakes = Mistakes(name)
    table = read_table_text(text, name, mistakes)
    reading = _Reading(table, known, mistakes, rates)
    points = reading.points()
    mistakes.tell()
    cells = tuple(cell for point in points if (cell := reading.cell(point)) is not None)
    mistakes.tell()
    if not cells:
        raise UsageError("holds no cell to fit", where=name, do=reading.why_empty())
    return Table(cells, tuple(reading.notes()))


class _Reading:
    """One pass over a table."""

    def __init__(self, table: TextTable, known: Known, mistakes: Mistakes, rates: bool) -> None:
        self.table, self.known, self.mistakes, self.rates = table, known, mistakes, rates
        self.head = read_header(table, mistakes)
        self.columns = self.head.columns
        self.passed_over: dict[str, int] = {}  # metric -> rows
        self.other: dict[str, int] = {}  # label -> rows of deployments that are not meant
        self.medians = 0
        self.protocols: set[str] = set()
        self._chosen: dict[Words, bool] = {}

    # -- rows -------------------------------------------------------------------------------------------------------

    def points(self) -> list[_Point]:
        """Every row, those of one cell in the tidy layout brought together; a repeated number begins a new cell."""
        found: dict[tuple[object, ...], list[_Point]] = {}
        for line in self.table.lines:
            values = self._times(line)
            words = self._words(line)
            if not values or words is None or not self._is_chosen(line, words):
                continue
            key = self._key(line, words)
            if key is None:
                continue
            same = found.setdefault(key, [])
            whole = "metric" not in self.columns
            point = None if whole else next((p for p in same if not p.values.keys() & values.keys()), None)
            if point is None:
                same.append(point := _Point(line.number, key))
            point.values |= values
        return sorted((point for points in found.values() for point in points), key=lambda point: point.line)

    def _times(self, line: Line) -> dict[tuple[str, str], float]:
        """The row's times in seconds by (quantity, statistic)."""
        if "metric" in self.columns:
            return self._tidy_time(line)
        found = {}
        for name, one in self.head.timings.items():
            value = self._number(line, name, least=0.0, seconds=one.unit_s)
            if value is not None and one.unit_s is not None:
                found[one.quantity, one.stat] = value
        for name in self.head.rates if found or self.rates else ():
            if (value := self._number(line, name, least=0.0)) is not None:
                found[_RATE] = value
        if not found:
            self._pass_over("rows without TTFT and ITL")
        return found

    def _tidy_time(self, line: Line) -> dict[tuple[str, str], float]:
        metric = line.fields[self.columns["metric"]]
        if self.rates and is_rate(metric):
            value = self._number(line, self.columns["value"], least=0.0)
            return {} if value is None else {_RATE: value}
        one = timing(metric)
        if one is None:
            guess = None if said(metric) == "" else near(metric, ["ttft", "ttft_mean", "itl_mean", "tpot_mean"], 0.85)
            if guess is not None:
                self.mistakes.add(line.number, f"unknown metric {metric} - did you mean {guess}?")
            self._pass_over(metric or "rows without a metric")
            return {}
        unit = self._text(line, "unit").lower()
        unit_s = SECONDS.get(unit) if unit else one.unit_s
        if unit_s is None:
            what = f"unit {unit!r} is no time" if unit else f"{metric} has no unit"
            self.mistakes.add(line.number, f"{what} - write ms or s")
            return {}
        value = self._number(line, self.columns["value"], least=0.0, seconds=unit_s)
        return {} if value is None else {(one.quantity, one.stat): value}

    def _words(self, line: Line) -> Words | None:
        texts = {name: said(self._text(line, name)) for name in COLUMNS if name in Words.__dataclass_fields__}
        gpus = texts.pop("gpus")
        count = self._count(line, "gpus") if gpus else None
        return None if gpus and count is None else Words(**texts, gpus=None if count is None else int(count))

    def _is_chosen(self, line: Line, words: Words) -> bool:
        if words not in self._chosen:
            try:
                self._chosen[words] = chosen(words, self.known)
                if self._chosen[words]:
                    deployment(words, self.known)
            except UsageError as bad:
                self.mistakes.add(line.number, f"{bad.what} - {bad.do}" if bad.do else bad.what)
                self._chosen[words] = False
        if not self._chosen[words]:
            self.other[words.label] = self.other.get(words.label, 0) + 1
        return self._chosen[words]

    def _key(self, line: Line, words: Words) -> tuple[object, ...] | None:
        """What makes rows one cell: deployment, lengths, load, protocol. None after a mistake."""
        lengths = [self._count(line, name, whole=False) for name in ("isl", "osl")]
        told = self._source(line, words)
        load = self._load(line, str(told.get("kind", "")))
        requests = self._count(line, "requests", optional=True)
        requests = MAX_LOAD if requests is None and load == ("concurrency", MAX_LOAD) else requests
        ratio = self._ratio(line, float(told.get("length_range_ratio", 1.0)))
        if load is None or ratio is None or None in lengths:
            return None
        return (words, *lengths, *load, None if requests is None else int(requests), ratio)

    def _source(self, line: Line, words: Words) -> Mapping[str, float | str]:
        source = self._text(line, "source").lower()
        for name, engine, told in _SOURCES:
            if source.startswith(name) and words.engine.lower().startswith(engine):
                text = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in told.items())
                self.protocols.add(f"{name} {engine}".strip() + f": {text}, as the source measured")
                return told
        return {}

    def _load(self, line: Line, kind: str) -> tuple[LoadKind, float] | None:
        rate = self._number(line, self.columns["rate"], least=0.0) if "rate" in self.columns else None
        if self.rates and any(plain(self._text(line, name)) in _AT_ONCE for name in LOADS):
            return "concurrency", MAX_LOAD
        named: list[tuple[LoadKind, str]] = [("concurrency", "concurrency"), ("batch", "batch")]
        named.append(("batch" if kind == "batch" else "concurrency", "concurrency_or_batch"))
        given = [(what, column) for what, column in named if self._text(line, column)]
        if rate is not None and 0 < rate < math.inf:
            return "rate", rate
        if len(given) > 1:
            self.mistakes.add(line.number, f"says {' and '.join(column for _, column in given)} - give one of them")
            return None
        if not given:
            self.mistakes.add(line.number, "says no load - give concurrency, batch or a finite rate")
            return None
        users = self._count(line, given[0][1])
        return None if users is None else (given[0][0], users)

    def _ratio(self, line: Line, usual: float) -> float | None:
        name = self.columns.get("length_range_ratio")
        value = None if name is None else self._number(line, name, least=0.0)
        if value is not None and value > 1.0:
            self.mistakes.add(line.number, f"{name} {value:g} is above 1 - real lengths are uniform in [ratio, 1]")
            return None
        return usual if value is None else value

    # -- fields -----------------------------------------------------------------------------------------------------

    def _text(self, line: Line, meaning: str) -> str:
        name = self.columns.get(meaning)
        return "" if name is None else said(line.fields.get(name, ""))

    def _number(self, line: Line, name: str, least: float, seconds: float | None = None) -> float | None:
        """A field as a number of at least `least` (times in seconds, above 0); None where it says nothing."""
        try:
            found = number(line.fields.get(name, ""), self.table.decimal_comma)
        except ValueError as bad:
            self.mistakes.add(line.number, f"{name}: {bad}")
            return None
        if found is None:
            return None
        value, unit = found
        if unit and (seconds is None or unit.lower() not in SECONDS):
            self.mistakes.add(line.number, f"{name}: unit {unit!r} was not expected")
            return None
        if seconds is not None:
            value *= SECONDS[unit.lower()] if unit else seconds
        if value < least or (seconds is not None and not 0.0 < value < math.inf):
            self.mistakes.add(line.number, f"{name}: {line.fields[name]!r} must be above 0")
            return None
        return value

    def _count(self, line: Line, meaning: str, *, optional: bool = False, whole: bool = True) -> float | None:
        """A number of at least 1; a mistake where it is needed and not there."""
        name = self.columns.get(meaning)
        before = len(self.mistakes.found)
        value = None if name is None else self._number(line, name, least=0.0)
        if value is None:
            if not optional and len(self.mistakes.found) == before:
                self.mistakes.add(line.number, f"{name or meaning} is empty")
            return None
        if value < 1.0 or not math.isfinite(value) or (whole and value != int(value)):
            kind = "a whole number of 1 or more" if whole else "1 or more"
            self.mistakes.add(line.number, f"{name}: {line.fields[name or '']!r} must be {kind}")
            return None
        if value > _MOST:
            self.mistakes.add(line.number, f"{name}: {line.fields[name or '']!r} is above {_MOST:,.0f}")
            return None
        return value

    def _pass_over(self, what: str) -> None:
        self.passed_over[what] = self.passed_over.get(what, 0) + 1

    # -- cells ------------------------------------------------------------------------------------------------------

    def cell(self, point: _Point) -> Cell | None:
        """The point as a cell; None where it has neither a TTFT nor an ITL to fit."""
        words, prompt, output, kind, load, requests, ratio = point.key
        assert isinstance(words, Words)
        ttft, itl = self._middle(point, ("ttft",)), self._middle(point, ("tpot", "itl"))
        if math.isnan(ttft) and math.isnan(itl) and _RATE not in point.values:
            self._pass_over("cells with percentiles alone")
            return None
        where = deployment(words, self.known)
        evidence = {
            f"{'itl' if quantity != 'ttft' else 'ttft'}_{'p50' if stat == 'median' else stat}_s": value
            for (quantity, stat), value in point.values.items()
            if stat != "mean"
        }
        if _RATE in point.values:
            evidence["output_tokens_per_s"] = point.values[_RATE]
        return Cell(
            prompt_tokens=prompt,  # type: ignore[arg-type]
            output_tokens=output,  # type: ignore[arg-type]
            load_kind=kind,  # type: ignore[arg-type]
            load=load,  # type: ignore[arg-type]
            ttft_s=ttft,
            itl_s=itl,
            deployment=where,
            protocol=Protocol(requests=requests, length_ratio=ratio),  # type: ignore[arg-type]
            label=words.label or describe(where),
            where=f"{self.table.name}:{point.line}",
            evidence=evidence,
        )

    def _middle(self, point: _Point, quantities: Iterable[str]) -> float:
        """The mean of the first quantity that has one, else a median, said; NaN where there is neither."""
        for stat in ("mean", "median"):
            for quantity in quantities:
                if (quantity, stat) in point.values:
                    self.medians += stat == "median"
                    return point.values[quantity, stat]
        return math.nan

    # -- what is said -----------------------------------------------------------------------------------------------

    def notes(self) -> Iterable[str]:
        """One line for each thing that was not as plain as a cell with two means."""
        yield from sorted(self.protocols)
        if self.other:
            yield f"rows of other deployments, left out: {_listed(self.other)}"
        if self.passed_over:
            yield f"rows that a fit does not use: {_listed(self.passed_over)}"
        if self.medians:
            yield f"medians taken where there is no mean: {self.medians}"
        if self.head.unused:
            yield f"columns that a fit does not use: {', '.join(self.head.unused)}"

    def why_empty(self) -> str:
        """What to do about a file without a cell."""
        if self.other:
            return f"it has {_listed(self.other)}; choose by --gpu, --gpus, --shape and --dtype"
        if self.passed_over:
            return f"it has {_listed(self.passed_over)}; a fit needs TTFT or ITL"
        return "write a row for each cell: isl,osl,concurrency,ttft_ms,itl_ms"


def _listed(counts: Mapping[str, int]) -> str:
    shown = [f"{count} x {what or '(unnamed)'}" for what, count in list(counts.items())[:12]]
    return "; ".join(shown) + (" ..." if len(counts) > 12 else "")
