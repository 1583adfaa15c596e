"""Recorded loads: reads traces of others row by row, whatever their columns and clocks are called.

Knows: the formats below and their traps. Must not know: prompts, stages, how anything is sent.

    CSV, by its header     Azure LLM 2023/2024 (TIMESTAMP with 7 fractional digits, CRLF, perhaps a zone),
                           BurstGPT (seconds; 6 or 8 columns), or `time,prompt_tokens,output_tokens`; with a
                           `Session ID` prompts of one session begin alike, as far as the shorter one goes
    JSONL                  Mooncake: `timestamp` in ms, `input_length`, `output_length`, `hash_ids` of 512-token blocks

Files may end in .gz. Everything is a generator: a trace of five million rows is never held in memory. Rows must be in
order of time; offsets count from the first row, or from the start of the slice. A row without an output is a request
that failed where it was recorded: left out and counted, unless `keep_failures`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from loadgen.errors import UsageError
from loadgen.plan.workload import TraceRow

_SECOND_NS = 1_000_000_000
_LARGEST = 10**12  # seconds, tokens: no clock and no prompt reaches it
# How a column may be called (lower case, letters only) -> what it is. `Total tokens`, `Model` etc. are not needed.
_COLUMNS = {
    "time": "time",
    "timestamp": "time",
    "times": "time",
    "arrivaltime": "time",
    "prompttokens": "prompt",
    "contexttokens": "prompt",
    "requesttokens": "prompt",
    "inputtokens": "prompt",
    "inputlength": "prompt",
    "outputtokens": "output",
    "generatedtokens": "output",
    "responsetokens": "output",
    "outputlength": "output",
    "sessionid": "session",
}
_NEEDED = ("time", "prompt", "output")
_SESSION_BLOCK = 64  # tokens by which prompts of one session share their beginning
_NO_SESSION = ("", "-1", "nan", "none", "null")


class _Recorded(NamedTuple):
    """A row as the file has it."""

    line: int
    time_ns: int
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    session: str = ""


@dataclass(slots=True)
class Survey:
    """What a trace holds once sliced and limited. Tokens are sums; `dropped` counts rows by reason."""

    rows: int = 0
    span_ns: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    distinct_times: int = 0
    blocks: int = 0
    blocks_seen_before: int = 0  # what a prefix cache without end would hit
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float | None:
        """Mean requests per second over the span; None for a single moment."""
        return (self.rows - 1) / self.span_ns * _SECOND_NS if self.span_ns > 0 else None


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace and which part of it is replayed how; picklable, opened anew by every reader (a `plan.workload.Trace`).

    `speed` 2 replays in half the time (burstiness scales with it). `start_ns` and `end_ns` bound the recorded time,
    counted from the first row. `context_limit` leaves out requests with more prompt plus output tokens. `spread`
    spaces rows of one moment evenly up to the next moment, at most a second (traces with clocks that tick in seconds).
    """

    path: str
    speed: float = 1.0
    start_ns: int = 0
    end_ns: int | None = None
    limit: int | None = None  # rows
    context_limit: int | None = None  # tokens
    block_tokens: int = 512
    spread: bool = False
    keep_failures: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.speed < float("inf"):
            raise UsageError("the speed must be above 0", where=self.path)
        if self.end_ns is not None and self.end_ns <= self.start_ns:
            raise UsageError("the slice ends before it starts", where=self.path)

    def rows(self) -> Iterator[TraceRow]:
        """The requests to replay. Raises UsageError with file:line for a row that cannot be."""
        return self._kept({})

    def survey(self) -> Survey:
        """One pass over the file: what is replayed, what is left out. Raises UsageError for a trace without a row."""
        return _surveyed(self, Path(self.path).stat().st_mtime_ns if Path(self.path).exists() else 0)

    def _survey(self) -> Survey:
        found = Survey()
        seen: set[int] = set()
        first = last = None
        for row in self._kept(found.dropped):
            found.rows += 1
            found.prompt_tokens += row.prompt_tokens
            found.output_tokens += row.output_tokens
            found.blocks += len(row.blocks)
            found.blocks_seen_before += sum(block in seen for block in row.blocks)
            seen.update(row.blocks)
            found.distinct_times += row.offset_ns != last
            first, last = row.offset_ns if first is None else first, row.offset_ns
        if first is None or last is None:
            gone = ", ".join(f"{count} {why}" for why, count in found.dropped.items())
            raise UsageError(f"no request is left to replay{f' ({gone})' if gone else ''}", where=self.path)
        found.span_ns = last - first
        return found

    def _kept(self, dropped: dict[str, int]) -> Iterator[TraceRow]:
        def drop(why: str) -> None:
            dropped[why] = dropped.get(why, 0) + 1

        kept = 0
        moments = _spread(self._recorded()) if self.spread else self._recorded()
        for row, time_ns in moments:
            if self.end_ns is not None and time_ns >= self.end_ns:
                return
            if time_ns < self.start_ns:
                continue
            if row.prompt_tokens < 1:
                drop("without a prompt")
            elif row.output_tokens < 1 and not self.keep_failures:
                drop("failed when recorded")
            elif self.context_limit is not None and row.prompt_tokens + row.output_tokens > self.context_limit:
                drop("beyond the context limit")
            else:
                offset = round((time_ns - self.start_ns) / self.speed)
                blocks = (row.blocks, self.block_tokens) if not row.session else _of_session(row)
                yield TraceRow(offset, row.prompt_tokens, max(row.output_tokens, 1), *blocks)
                kept += 1
                if kept == self.limit:
                    return

    def _recorded(self) -> Iterator[tuple[_Recorded, int]]:
        """Every row with its time from the first row; refuses a time that runs backwards."""
        first = last = None
        for row in _read(self.path, self.block_tokens):
            first = row.time_ns if first is None else first
            if last is not None and row.time_ns < last:
                raise UsageError("goes back in time", where=f"{self.path}:{row.line}", do="sort the rows by time")
            last = row.time_ns
            yield row, row.time_ns - first


@lru_cache(maxsize=16)
def _surveyed(trace: TraceFile, changed: int) -> Survey:
    """The plan, its printer and the run's record ask for it: the file is read once, as long as it stays."""
    return trace._survey()


def _of_session(row: _Recorded) -> tuple[tuple[int, ...], int]:
    """Blocks of a session's own: the first ones of any two of its prompts are the same."""
    first = zlib.crc32(row.session.encode()) << 24
    return tuple(range(first, first + -(-row.prompt_tokens // _SESSION_BLOCK))), _SESSION_BLOCK


def _spread(rows: Iterator[tuple[_Recorded, int]]) -> Iterator[tuple[_Recorded, int]]:
    """Rows of one moment spaced evenly up to the next moment, at most a second on."""
    group: list[_Recorded] = []
    moment = 0
    for row, time_ns in chain(rows, [(None, None)]):
        if group and (time_ns is None or time_ns != moment):
            room = _SECOND_NS if time_ns is None else min(time_ns - moment, _SECOND_NS)
            for index, member in enumerate(group):
                yield member, moment + index * room // len(group)
            group = []
        if row is not None and time_ns is not None:
            group.append(row)
            moment = time_ns


# -- formats -------------------------------------------------------------------------------------------------------


def _read(path: str, block_tokens: int) -> Iterator[_Recorded]:
    try:
        with _open(path) as file:
            head = file.readline()
            lines = chain([head], file)
            if head.lstrip().startswith("{"):
                yield from _jsonl(lines, path, block_tokens)
            else:
                yield from _csv(lines, path)
    except (OSError, UnicodeDecodeError, EOFError) as bad:
        raise UsageError(f"cannot be read: {bad}", where=path) from bad


def _open(path: str) -> TextIO:
    if Path(path).suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8-sig", newline="")
    return Path(path).open(encoding="utf-8-sig", newline="")


def _csv(lines: Iterator[str], path: str) -> Iterator[_Recorded]:
    reader = csv.reader(lines)
    try:
        names = next(reader)
        where = _columns(names, path)
        read_time = None
        for row in reader:
            if not any(row):
                continue
            place = f"{path}:{reader.line_num}"
            if len(row) != len(names):
                raise UsageError(f"has {len(row)} fields, the header {len(names)}", where=place)
            stamp = row[where["time"]].strip()
            read_time = read_time or (_date_ns if "-" in stamp[1:] and "e" not in stamp else _seconds_ns)
            try:
                counts = _count(row[where["prompt"]]), _count(row[where["output"]])
                session = row[where["session"]].strip() if "session" in where else ""
                yield _Recorded(
                    reader.line_num,
                    read_time(stamp),
                    *counts,
                    session="" if session.lower() in _NO_SESSION else session,
                )
            except ValueError as bad:
                raise UsageError(f"cannot be read: {bad}", where=place) from bad
    except csv.Error as bad:
        raise UsageError(f"no CSV: {bad}", where=f"{path}:{reader.line_num}") from bad


def _columns(names: list[str], path: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for index, name in enumerate(names):
        meaning = _COLUMNS.get("".join(c for c in name.lower() if c.isalpha()))
        if meaning is not None:
            if meaning in found:
                raise UsageError(f"two columns for {meaning}: {names[found[meaning]]}, {name}", where=f"{path}:1")
            found[meaning] = index
    missing = [need for need in _NEEDED if need not in found]
    if missing:
        raise UsageError(
            f"no column for {', '.join(missing)} in the header {','.join(names)[:200]!r}",
            where=f"{path}:1",
            do="name them time,prompt_tokens,output_tokens",
        )
    return found


def _date_ns(text: str) -> int:
    """`2023-11-16 18:17:03.9799600` (any number of digits, an optional zone) in ns; without a zone it counts as UTC."""
    stamp, digits, zone = text, "", ""
    if (dot := text.find(".")) >= 0:
        end = dot + 1
        while end < len(text) and text[end].isdigit():
            end += 1
        stamp, digits, zone = text[:dot], text[dot + 1 : end], text[end:]
    return _second(stamp + zone) * _SECOND_NS + int(digits[:9].ljust(9, "0"))


@lru_cache(maxsize=64)
def _second(text: str) -> int:
    """Seconds since 1970 of a date and time without a fraction; rows of one second ask again."""
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400 + since.seconds


def _seconds_ns(text: str) -> int:
    return int(_bounded(text, "time") * _SECOND_NS)


def _count(text: str) -> int:
    if text.isdecimal() and len(text) <= 12:
        return int(text)
    value = _bounded(text.strip() or "0", "token count")
    if value != int(value) or value < 0:
        raise ValueError(f"{text!r} is no token count")
    return int(value)


def _bounded(text: str, what: str) -> Decimal:
    """A number within `_LARGEST`: beyond it an exponent would make integers that fill the memory."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("nan")
    if not value.is_finite() or not -_LARGEST < value < _LARGEST:
        raise ValueError(f"{text[:40]!r} is no {what}")
    return value


def _jsonl(lines: Iterator[str], path: str, block_tokens: int) -> Iterator[_Recorded]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            row = json.loads(line)
            time_ms, prompt, output = (_field(row, key) for key in ("timestamp", "input_length", "output_length"))
            if prompt != int(prompt) or output != int(output):
                raise ValueError("a length is a whole number of tokens")
            blocks = row.get("hash_ids") or ()
            if not all(isinstance(block, int) and block >= 0 for block in blocks):
                raise ValueError("hash_ids must be whole numbers of 0 or more")
        except (ValueError, TypeError, RecursionError) as bad:
            raise UsageError(f"cannot be read: {bad}", where=place) from bad
        if blocks and len(blocks) != -(-int(prompt) // block_tokens):
            raise UsageError(
                f"{int(prompt)} prompt tokens cannot be {len(blocks)} blocks of {block_tokens}",
                where=place,
                do="give the trace's block size",
            )
        yield _Recorded(number, round(time_ms * 1_000_000), int(prompt), int(output), tuple(blocks))


def _field(row: Any, key: str) -> float:
    value = row.get(key) if isinstance(row, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise ValueError(f"no number of 0 or more for {key}")
    return value
