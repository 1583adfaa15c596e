"""The requests of a run as columns.

Knows: how rows become numpy columns and events one flat array, and how a row comes back out. Must not know: files,
stages' windows, metrics.
Why: a run of 100,000 requests with 300 tokens each has 30 million gaps; as four-byte integers in one array they take
120 MB and every statistic is a numpy expression, as Python objects they would take gigabytes.

Missing is NaN in a float column and -1 in a column of codes, never 0. A column of codes is an index into its words:
`requests.words["outcome"][requests.outcome[i]]`. Stamps are whole microseconds, given in ns as float64 (exact for
104 days). Events stand in CSR form: those of request i are `gap_us[event_offset[i]:event_offset[i + 1]]`.
"""

from __future__ import annotations

import itertools
import math
from array import array
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from loadgen.analysis.row import STAMPS, Row, exchange_of, row_of
from loadgen.model import FLAGS, CountSource, EndSeen, ErrorKind, Exchange, Outcome, StampSource

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

FLAG_BITS: dict[str, int] = {word: 1 << bit for bit, word in enumerate((*FLAGS, "warmup"))}

# Columns of codes with a fixed vocabulary; every other one collects its words as they come.
_FIXED: dict[str, tuple[str, ...]] = {
    "outcome": get_args(Outcome),
    "error_kind": get_args(ErrorKind),
    "end_seen": get_args(EndSeen),
    "prompt_tokens_source": get_args(CountSource),
    "output_tokens_source": get_args(CountSource),
    "stamp_source": get_args(StampSource),
}
_OPEN = ("workload", "session_id", "finish_reason", "error")
_COUNTS = (
    "turn",
    "http_status",
    "prompt_tokens_requested",
    "output_tokens_requested",
    "prompt_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cached_tokens",
    "repeated_tokens",
    "prompt_chars",
)
# Name -> array code and numpy type of the columns that are always there.
_WHOLE: dict[str, tuple[str, Any]] = {
    "request_id": ("q", np.int64),
    "stage": ("i", np.int32),
    "worker": ("i", np.int32),
    "endpoint": ("i", np.int32),
    "shared_events": ("i", np.int32),
}
# What a builder takes of a row, in the order of its columns.
_FIELDS = attrgetter(
    *_WHOLE, *_COUNTS, *(f"{name}_us" for name in (*STAMPS, "shared_wait")), *_FIXED, *_OPEN
)  # fmt: skip
_NO_WORD = {None: -1, "": -1}  # an empty message is no message
_BATCH = 1024
_NUMPY = {"H": np.uint16, "i": np.int32, "q": np.int64, "d": np.float64}


@dataclass(frozen=True, eq=False)
class Requests:
    """All requests of a run (or a selection), in the order of the file. Every array but the events' has length n."""

    request_id: Ints
    stage: Codes
    worker: Codes
    endpoint: Codes
    shared_events: Codes
    workload: Codes
    outcome: Codes
    error_kind: Codes
    error: Codes
    end_seen: Codes
    finish_reason: Codes
    session_id: Codes
    prompt_tokens_source: Codes
    output_tokens_source: Codes
    stamp_source: Codes
    flags: Codes  # a sum of FLAG_BITS
    turn: Floats
    http_status: Floats
    prompt_tokens_requested: Floats
    output_tokens_requested: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    reasoning_tokens: Floats
    cached_tokens: Floats
    repeated_tokens: Floats
    prompt_chars: Floats
    scheduled_ns: Floats
    ready_ns: Floats
    dispatched_ns: Floats
    connect_start_ns: Floats
    connected_ns: Floats
    sent_ns: Floats
    sent_end_ns: Floats
    headers_ns: Floats
    first_answer_ns: Floats
    end_ns: Floats
    shared_wait_ns: Floats
    event_offset: Ints  # length n + 1, from 0
    gap_us: npt.NDArray[np.signedinteger[Any]]  # int32 (int64 where a gap is over 35 minutes); see row.py
    event_tokens: npt.NDArray[np.integer[Any]] | None  # None: every event holds one token
    words: dict[str, tuple[str, ...]]  # of each column of codes
    server: dict[str, Floats]  # the server's own timings, by the names it gave them
    text: tuple[str | None, ...] | None  # None: no text was kept

    def __len__(self) -> int:
        return len(self.request_id)

    @property
    def is_ok(self) -> Mask:
        """Requests that succeeded."""
        return self.holds("outcome", "ok")

    def holds(self, column: str, word: str) -> Mask:
        """Requests whose column of codes says `word`. A word that no request ever had is in none."""
        words = self.words[column]
        code = words.index(word) if word in words else len(words)
        mask: Mask = getattr(self, column) == code
        return mask

    def has(self, flag: str) -> Mask:
        """Requests that bear one of the words of `model.FLAGS`, or "warmup"."""
        mask: Mask = (self.flags & FLAG_BITS[flag]) != 0
        return mask

    def word(self, column: str, i: int) -> str | None:
        """What a column of codes says of request i."""
        code = int(getattr(self, column)[i])
        return self.words[column][code] if code >= 0 else None

    def select(self, mask: Mask) -> Requests:
        """The requests where `mask` (length n) is true, with their events, in the same order."""
        if mask.all():
            return self
        length = np.diff(self.event_offset)
        events = np.repeat(mask, length)  # a byte for an event: an index would take eight
        return Requests(
            **{name: getattr(self, name)[mask] for name in _PLAIN},
            event_offset=np.concatenate(([0], np.cumsum(length[mask], dtype=np.int64))),
            gap_us=self.gap_us[events],
            event_tokens=None if self.event_tokens is None else self.event_tokens[events],
            words=self.words,
            server={name: values[mask] for name, values in self.server.items()},
            text=None if self.text is None else tuple(itertools.compress(self.text, mask)),
        )

    def flags_of(self, i: int) -> list[str]:
        """The words of request i, "warmup" among them."""
        bits = int(self.flags[i])
        return [word for word, bit in FLAG_BITS.items() if bits & bit] if bits else []

    def tokens_of(self, i: int) -> npt.NDArray[np.integer[Any]]:
        """Tokens of each event of request i."""
        low, high = self.event_offset[i], self.event_offset[i + 1]
        return np.ones(high - low, np.uint16) if self.event_tokens is None else self.event_tokens[low:high]

    def exchange(self, i: int) -> Exchange:
        """Request i as one value, its stamps in whole microseconds."""
        return exchange_of(self.row(i))

    def row(self, i: int) -> Row:
        """Request i as a line of the run file says it."""
        low, high = self.event_offset[i], self.event_offset[i + 1]
        flags = self.flags_of(i)
        fields: dict[str, Any] = {name: int(getattr(self, name)[i]) for name in _WHOLE}
        fields |= {name: self.word(name, i) for name in self.words}
        fields |= {name: _whole(getattr(self, name)[i]) for name in _COUNTS}
        fields |= {f"{name}_us": _whole(getattr(self, f"{name}_ns")[i] / 1e3) for name in STAMPS}
        fields["error"] = fields["error"] or ""
        return Row(
            **fields,
            shared_wait_us=round(self.shared_wait_ns[i] / 1e3),
            warmup="warmup" in flags,
            flags=[word for word in flags if word != "warmup"],
            gap_us=self.gap_us[low:high].tolist(),
            event_tokens=None if self.event_tokens is None else self.event_tokens[low:high].tolist(),
            server={name: float(values[i]) for name, values in self.server.items() if not math.isnan(values[i])},
            text=None if self.text is None else self.text[i],
        )


# Columns of length n that are nothing but an array.
_PLAIN = tuple(Requests.__dataclass_fields__)[: list(Requests.__dataclass_fields__).index("event_offset")]


def _whole(value: float) -> int | None:
    return None if math.isnan(value) else round(value)


class FrameBuilder:
    """Collects requests one by one; holds four bytes for an event and some 350 for a request."""

    def __init__(self) -> None:
        self._whole = {name: array(code) for name, (code, _) in _WHOLE.items()}
        self._floats = {name: array("d") for name in (*_COUNTS, *STAMPS, "shared_wait")}
        self._codes = {name: array("i") for name in (*_FIXED, *_OPEN)}
        self._words: dict[str, dict[Any, int]] = {name: dict(_NO_WORD) for name in self._codes}
        for name, words in _FIXED.items():
            self._words[name] |= {word: code for code, word in enumerate(words)}
        self._waiting: list[tuple[Any, ...]] = []  # fields of requests that are in no column yet
        self._flags = array("i")
        self._ends = array("q", [0])
        self._gaps = array("i")
        self._tokens: array[int] | None = None
        self._server: dict[str, array[float]] = {}  # each may be shorter than the rest
        self._text: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._flags)

    def add(self, exchange: Exchange) -> None:
        """Append one request, its stamps rounded to microseconds."""
        self.add_row(row_of(exchange))

    def add_row(self, row: Row) -> None:
        """Append one request. Raises ValueError, with nothing appended, where the row contradicts itself."""
        self._add_events(row)
        self._waiting.append(_FIELDS(row))
        if len(self._waiting) == _BATCH:
            self._spread()
        for name, number in row.server.items():
            column = self._server.setdefault(name, array("d"))
            column.extend([math.nan] * (len(self) - len(column)))
            column.append(number)
        if row.text is not None:
            self._text[len(self)] = row.text
        bits = FLAG_BITS["warmup"] if row.warmup else 0
        self._flags.append(bits | sum(FLAG_BITS.get(word, 0) for word in set(row.flags)))

    def _spread(self) -> None:
        """What waits goes into the columns, a column at a time: many times faster than a request at a time."""
        columns = zip(*self._waiting, strict=True) if self._waiting else iter(())
        for whole, values in zip(self._whole.values(), columns, strict=False):
            whole.extend(values)
        for (name, numbers), values in zip(self._floats.items(), columns, strict=False):
            unit = 1.0 if name in _COUNTS else 1000.0
            numbers.extend([math.nan if value is None else value * unit for value in values])
        for name, values in zip(self._words, columns, strict=False):
            words = self._words[name]
            for word in dict.fromkeys(values):
                words.setdefault(word, len(words) - len(_NO_WORD))
            self._codes[name].extend([words[word] for word in values])
        self._waiting.clear()

    def _add_events(self, row: Row) -> None:
        if row.event_tokens is not None and len(row.event_tokens) != len(row.gap_us):
            raise ValueError("there are not as many token counts as events")
        if max(row.stage, row.worker, row.endpoint, row.shared_events) > 0x7FFFFFFF:
            raise ValueError("a number is out of range")
        if row.stage < -1 or row.worker < 0 or row.endpoint < 0:
            raise ValueError("a number is out of range")
        before = len(self._gaps)
        self._gaps = _extended(self._gaps, row.gap_us, "q")
        if row.event_tokens is not None:
            if self._tokens is None:
                self._tokens = array("H", [1]) * before
            try:
                self._tokens = _extended(self._tokens, row.event_tokens, "i")
            except ValueError:
                del self._gaps[before:]
                raise
        elif self._tokens is not None:
            self._tokens.extend(array(self._tokens.typecode, [1]) * len(row.gap_us))
        self._ends.append(len(self._gaps))

    def build(self) -> Requests:
        """The columns. They share the builder's memory: add nothing afterwards."""
        self._spread()
        n = len(self)
        text = tuple(self._text.get(i) for i in range(n)) if self._text else None
        floats = {name: _array(self._floats[name]) for name in _COUNTS}
        floats |= {f"{name}_ns": _array(self._floats[name]) for name in (*STAMPS, "shared_wait")}
        return Requests(
            **{name: _array(column) for name, column in (self._whole | self._codes).items()},
            **floats,
            flags=_array(self._flags),
            event_offset=_array(self._ends),
            gap_us=_array(self._gaps),
            event_tokens=None if self._tokens is None else _array(self._tokens),
            words={name: tuple(words)[len(_NO_WORD) :] for name, words in self._words.items()},
            server={name: _padded(values, n) for name, values in self._server.items()},
            text=text,
        )


def _extended(numbers: array[int], more: list[int], wider: str) -> array[int]:
    """`numbers` with `more` behind them, in a wider type where one does not fit. ValueError where none does."""
    try:
        numbers.fromlist(more)  # all or nothing
    except OverflowError:
        if numbers.typecode == wider:
            raise ValueError("a number is out of range") from None
        return _extended(array(wider, numbers), more, wider)
    return numbers


def _array(column: array[Any]) -> npt.NDArray[Any]:
    return np.frombuffer(column, dtype=_NUMPY[column.typecode]) if column else np.empty(0, _NUMPY[column.typecode])


def _padded(column: array[float], n: int) -> Floats:
    return np.concatenate((_array(column), np.full(n - len(column), math.nan)))
