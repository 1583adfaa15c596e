"""Tables of text as people keep them: delimiters, byte order marks, blank and comment lines, numbers, column names.

Knows: how a line becomes fields, a field a number with its unit, a header the columns that are meant. Must not know:
what a cell of a measurement is (`tables` does).
Why: a table comes from a spreadsheet, a script or a paper; none of that may decide whether it can be read, and every
mistake in it is told at once, with its line.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.roofline.named import said

MAX_TOLD = 20  # mistakes of one file
_DELIMITERS = ",;\t|"
_NUMBER = re.compile(r"([+-]?(?:\d[\d_ ]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-zµ]*)", re.IGNORECASE)
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:\.\d{3})+")
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "milliseconds": 1e-3}


@dataclass(slots=True)
class Mistakes:
    """What is wrong in a file, collected so that all of it is told at once."""

    name: str
    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, what: str) -> None:
        if (line, what) not in self.found:
            self.found.append((line, what))

    def tell(self) -> None:
        """Raises UsageError with every mistake, if there is one."""
        if not self.found:
            return
        if len(self.found) == 1:
            line, what = self.found[0]
            raise UsageError(what, where=f"{self.name}:{line}")
        shown = sorted(self.found)[:MAX_TOLD]
        lines = "".join(f"\n  {self.name}:{line}: {what}" for line, what in shown)
        more = f"\n  and {len(self.found) - MAX_TOLD} more" if len(self.found) > MAX_TOLD else ""
        raise UsageError(f"{len(self.found)} mistakes{lines}{more}", where=self.name)


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table: its line in the file and its fields by the header's names, stripped."""

    number: int
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TextTable:
    """A header with its line, the rows, and whether the decimal point is a comma (as spreadsheets of many countries
    write it, with ";" between the fields)."""

    name: str
    header_line: int
    header: tuple[str, ...]
    lines: tuple[Line, ...]
    decimal_comma: bool


def read_text(path: Path) -> str:
    """The file as text; UTF-8 with or without a mark, or what spreadsheets call Unicode (UTF-16). Raises UsageError."""
    try:
        raw = path.read_bytes()
    except OSError as bad:
        raise UsageError(f"cannot be read: {(bad.strerror or str(bad)).lower()}", where=str(path)) from bad
    try:
        return raw.decode("utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as bad:
        line = raw.count(b"\n", 0, bad.start) + 1
        raise UsageError("is no UTF-8 text", where=f"{path}:{line}", do="save it as UTF-8") from bad


def read_table_text(text: str, name: str, mistakes: Mistakes) -> TextTable:
    """The rows of a table; lines that begin with # and empty ones are passed over.

    Raises:
        UsageError: no header, a name twice, text that is no CSV at all.
    """
    delimiter = _delimiter(text)
    rows = _rows(text, delimiter, name)
    try:
        header_line, names = next(rows)
    except StopIteration:
        raise UsageError("is empty", where=name, do="the first line names columns: isl,osl,concurrency,...") from None
    header = tuple(part.strip() for part in names)
    if twice := {part for part in header if part and header.count(part) > 1}:
        raise UsageError(f"two columns are called {min(twice)}", where=f"{name}:{header_line}")
    lines = []
    for number, row in rows:
        if len(row) > len(header) and any(part.strip() for part in row[len(header) :]):
            mistakes.add(number, f"has {len(row)} fields, the header {len(header)}")
            continue
        padded = [*row, *[""] * (len(header) - len(row))]
        lines.append(Line(number, {key: part.strip() for key, part in zip(header, padded, strict=False) if key}))
    fields = (text for line in lines for text in line.fields.values())
    comma = delimiter == ";" and any(re.fullmatch(r"[+-]?[\d.]*\d,\d+\s*[a-zµ]*", text) for text in fields)
    return TextTable(name, header_line, header, tuple(lines), comma)


def _rows(text: str, delimiter: str, name: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        for row in reader:
            blank = not any(part.strip() for part in row)
            if not blank and not row[0].lstrip().startswith("#") and not row[0].lower().startswith("sep="):
                yield reader.line_num, row
    except csv.Error as bad:
        raise UsageError(f"no CSV: {bad}", where=f"{name}:{reader.line_num}") from bad


def _delimiter(text: str) -> str:
    """What divides the header's names: the commonest of the usual ones."""
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", "sep=")))
    head = re.sub(r'"[^"]*"', "", next(lines, ""))
    return max(_DELIMITERS, key=head.count)


def number(text: str, decimal_comma: bool = False) -> tuple[float, str] | None:
    """(value, unit behind it or ""); None where the field says nothing.

    `decimal_comma` reads 1.234,5 as 1234.5; else 1,234.5 is that.

    Raises:
        ValueError: no number.
    """
    plain = said(text)
    if not plain:
        return None
    if plain.lower() in ("inf", "+inf", "infinity"):
        return math.inf, ""
    if decimal_comma:
        plain = (plain.replace(".", "") if "," in plain or _GROUPED.fullmatch(plain) else plain).replace(",", ".")
    elif "," in plain and re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?\D*", plain):
        plain = plain.replace(",", "")
    match = _NUMBER.fullmatch(plain)
    if match is None:
        raise ValueError(f"{text[:40]!r} is no number")
    return float(match[1].replace("_", "").replace(" ", "")), match[2]


def near(name: str, known: Iterator[str] | list[str], cutoff: float = 0.8) -> str | None:
    """The known name that was probably meant."""
    found = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=cutoff)
    return found[0] if found else None
