"""One request in whole microseconds: what a frame takes in and, as JSON, one line of `requests.jsonl`.

Knows: the fields, their short keys, how an `Exchange` becomes a row and a row an `Exchange`. Must not know: files,
columns, metrics.
Why: stamps are rounded once, as absolute times, and events are kept as differences of rounded stamps; so no rounding
adds up, a gap of a stream fits four bytes, and a row read back equals the row written.

Keys of a line (a field at its default is left out, so null and "missing" are one thing):

    id  request_id                          s   stage               w   workload            k   worker
    ep  which of several endpoints, 0 when absent
    o   outcome, "ok" when absent           wu  warm-up             sid session             tn  turn
    pr  prompt tokens asked for             or  output tokens asked for
    rp  tokens at its start that the stage sent before: 0 when absent, null where that is not known
    ts  scheduled  tr ready  td dispatched  tc connect start  tk connected  t0 sent  t1 sent_end  th headers
    ta  first visible answer  te end        all in microseconds from the run's start
    g   microseconds between token events; the first from `t0` (from the run's start where there is no `t0`)
    n   tokens of each event; absent when every event holds one
    se  events that shared a receive        sw  the longest unwatched time over those, microseconds
    ek  error kind      em  error message   hs  HTTP status         fr  finish reason       es  end seen
    p   prompt tokens   ps  their source    q   output tokens       qs  their source
    rt  reasoning tokens  ct cached tokens  pc  prompt characters   ss  stamp source, "kernel" when absent
    f   flags           sv  server timings  tx  text, only with --keep-text
"""

from __future__ import annotations

import math
from itertools import accumulate
from operator import sub
from typing import Annotated, Any

import msgspec

from loadgen.model import CountSource, EndSeen, ErrorKind, Exchange, Failure, Outcome, StampSource

# Far beyond any real stamp or count, and safe in eight bytes: a larger number in a file is damage.
_Int = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]

_KEYS = {
    "request_id": "id",
    "stage": "s",
    "workload": "w",
    "worker": "k",
    "endpoint": "ep",
    "outcome": "o",
    "warmup": "wu",
    "repeated_tokens": "rp",
    "session_id": "sid",
    "turn": "tn",
    "prompt_tokens_requested": "pr",
    "output_tokens_requested": "or",
    "scheduled_us": "ts",
    "ready_us": "tr",
    "dispatched_us": "td",
    "connect_start_us": "tc",
    "connected_us": "tk",
    "sent_us": "t0",
    "sent_end_us": "t1",
    "headers_us": "th",
    "first_answer_us": "ta",
    "end_us": "te",
    "gap_us": "g",
    "event_tokens": "n",
    "shared_events": "se",
    "shared_wait_us": "sw",
    "error_kind": "ek",
    "error": "em",
    "http_status": "hs",
    "finish_reason": "fr",
    "end_seen": "es",
    "prompt_tokens": "p",
    "prompt_tokens_source": "ps",
    "output_tokens": "q",
    "output_tokens_source": "qs",
    "reasoning_tokens": "rt",
    "cached_tokens": "ct",
    "prompt_chars": "pc",
    "stamp_source": "ss",
    "flags": "f",
    "server": "sv",
    "text": "tx",
}

# The stamps of a request, without their unit: `sent` is `sent_ns` in an Exchange, `sent_us` in a row.
STAMPS = (
    "scheduled",
    "ready",
    "dispatched",
    "connect_start",
    "connected",
    "sent",
    "sent_end",
    "headers",
    "first_answer",
    "end",
)

# Fields that mean the same in a row and in an Exchange.
_SAME = (
    "request_id",
    "stage",
    "workload",
    "outcome",
    "prompt_tokens_requested",
    "output_tokens_requested",
    "warmup",
    "repeated_tokens",
    "worker",
    "endpoint",
    "session_id",
    "turn",
    "shared_events",
    "http_status",
    "finish_reason",
    "end_seen",
    "prompt_tokens",
    "prompt_tokens_source",
    "output_tokens",
    "output_tokens_source",
    "reasoning_tokens",
    "cached_tokens",
    "prompt_chars",
    "stamp_source",
    "text",
)


class Row(msgspec.Struct, rename=_KEYS, omit_defaults=True, gc=False):
    """One request; see the table above. `len(gap_us) == len(event_tokens)` unless the latter is None."""

    request_id: _Int
    stage: _Int
    workload: str
    prompt_tokens_requested: _Int
    output_tokens_requested: _Int
    outcome: Outcome = "ok"
    warmup: bool = False
    repeated_tokens: _Int | None = 0
    worker: _Int = 0
    endpoint: _Int = 0
    session_id: str | None = None
    turn: _Int | None = None
    scheduled_us: _Int | None = None
    ready_us: _Int | None = None
    dispatched_us: _Int | None = None
    connect_start_us: _Int | None = None
    connected_us: _Int | None = None
    sent_us: _Int | None = None
    sent_end_us: _Int | None = None
    headers_us: _Int | None = None
    first_answer_us: _Int | None = None
    end_us: _Int | None = None
    gap_us: list[int] = []
    event_tokens: list[int] | None = None
    shared_events: _Int = 0
    shared_wait_us: _Int = 0
    error_kind: ErrorKind | None = None
    error: str = ""
    http_status: _Int | None = None
    finish_reason: str | None = None
    end_seen: EndSeen | None = None
    prompt_tokens: _Int | None = None
    prompt_tokens_source: CountSource | None = None
    output_tokens: _Int | None = None
    output_tokens_source: CountSource | None = None
    reasoning_tokens: _Int | None = None
    cached_tokens: _Int | None = None
    prompt_chars: _Int | None = None
    stamp_source: StampSource = "kernel"
    flags: list[str] = []
    server: dict[str, float] = {}
    text: str | None = None


def _ns(us: int | None) -> Any:  # Any: mypy cannot match a mapping to fields
    return None if us is None else us * 1000


def _us(ns: int | None) -> Any:
    return None if ns is None else (ns + 500) // 1000


def row_of(exchange: Exchange) -> Row:
    """The request, rounded to microseconds."""
    row = Row(
        **{name: getattr(exchange, name) for name in _SAME},
        **{f"{name}_us": _us(getattr(exchange, f"{name}_ns")) for name in STAMPS},
        shared_wait_us=(exchange.shared_wait_ns + 500) // 1000,
        flags=list(exchange.flags),
        # JSON has no NaN; a timing that is not a number is not known.
        server={name: value for name, value in exchange.server.items() if math.isfinite(value)},
    )
    if exchange.failure is not None:
        row.error_kind, row.error = exchange.failure.kind, exchange.failure.message
    if exchange.event_ns:
        at = [(ns + 500) // 1000 for ns in exchange.event_ns]
        row.gap_us = [at[0] - (row.sent_us or 0), *map(sub, at[1:], at)]
        if exchange.event_tokens.count(1) != len(at):
            row.event_tokens = list(exchange.event_tokens)
    return row


def exchange_of(row: Row) -> Exchange:
    """The request as the rest of the program knows it; the inverse of `row_of` up to its rounding."""
    at = accumulate(row.gap_us, initial=row.sent_us or 0)
    next(at)
    return Exchange(
        **{name: getattr(row, name) for name in _SAME},
        **{f"{name}_ns": _ns(getattr(row, f"{name}_us")) for name in STAMPS},
        event_ns=tuple(us * 1000 for us in at),
        event_tokens=tuple(row.event_tokens) if row.event_tokens is not None else (1,) * len(row.gap_us),
        shared_wait_ns=row.shared_wait_us * 1000,
        failure=None if row.error_kind is None else Failure(row.error_kind, row.error),
        flags=tuple(row.flags),
        server=dict(row.server),
    )


def moved_lines(lines: bytes, by_ns: int) -> bytes:
    """Lines of rows with every stamp moved by `by_ns`, rounded to microseconds; durations stay as they are. A line that
    is no row stays as it is."""
    by_us = round(by_ns / 1000)
    if not by_us:
        return lines
    decoder, encoder = msgspec.json.Decoder(Row), msgspec.json.Encoder()
    found = []
    for line in lines.splitlines(keepends=True):
        try:
            found.append(encoder.encode(_moved(decoder.decode(line), by_us)) + b"\n")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            found.append(line)
    return b"".join(found)


def _moved(row: Row, by_us: int) -> Row:
    for name in STAMPS:
        at = getattr(row, f"{name}_us")
        if at is not None:
            setattr(row, f"{name}_us", at + by_us)
    if row.gap_us and row.sent_us is None:  # the first event stands on the run's axis itself
        row.gap_us = [row.gap_us[0] + by_us, *row.gap_us[1:]]
    return row
