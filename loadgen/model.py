"""The core nouns, frozen: what was planned, what was received, what happened.

Knows: the fields and their units. Must not know: how anything is sent, parsed, stored, counted or drawn.
Why: these are the values that flow from room to room; a room that needs another fact adds a field here, with its unit.

Times are `int` nanoseconds on one monotonic clock, counted from the run's start, suffix `_ns`. Durations are derived,
never stored. `None` is "not known" or "did not happen", never 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, overload

LoadKind = Literal["concurrency", "rate", "trace"]
Outcome = Literal["ok", "failed", "cancelled"]
ErrorKind = Literal[
    "connect", "stale", "timeout", "http", "protocol", "server_error", "truncated", "empty", "cancelled"
]
EndSeen = Literal["done", "finish", "eof", "cut"]
CountSource = Literal["usage", "tokenizer", "events"]
StampSource = Literal["kernel", "process"]
Framing = Literal["chunked", "length", "close"]
Severity = Literal["info", "questionable", "invalid"]

# One receive: (arrival stamp in ns from the run's start, raw bytes, ns since the client last looked at its sockets).
# The third number bounds how far apart two events inside these bytes can have arrived without the client noticing.
Piece = tuple[int, bytes, int]
_MARK = struct.Struct("@qqq")


class Receives(Sequence[Piece]):
    """The receives of one response in order: `data` holds their bytes side by side, `marks` the packed numbers of each.

    Why no list of pieces: hundreds of streams take turns, and a stream whose receives lie scattered between those of
    the others is joined, decoded and freed more slowly than one that lies in one place.
    """

    __slots__ = ("data", "last_ns", "marks")

    def __init__(self, pieces: Iterable[Piece] = ()) -> None:
        self.data, self.marks = bytearray(), bytearray()
        self.last_ns = 0  # stamp of the latest receive; 0 before the first
        for piece in pieces:
            self.add(*piece)

    def add(self, stamp: int, data: bytes, blind: int) -> None:
        """One more receive; one without bytes is the end of the connection."""
        self.last_ns = stamp
        self.data += data
        self.marks += _MARK.pack(stamp, len(data), blind)

    def numbers(self) -> Iterator[tuple[int, int, int]]:
        """(stamp, bytes, blind) of each receive; times in ns."""
        return _MARK.iter_unpack(self.marks)

    def after(self, offset: int) -> Receives:
        """What came behind the first `offset` bytes, without the receives of which nothing is left."""
        rest = Receives()
        rest.data, rest.last_ns = self.data[offset:], self.last_ns
        before = 0
        for index, (stamp, size, blind) in enumerate(self.numbers(), 1):
            before += size
            if before > offset:
                rest.marks += _MARK.pack(stamp, before - offset, blind) + self.marks[index * _MARK.size :]
                break
        if rest.marks and not _MARK.unpack_from(rest.marks, len(rest.marks) - _MARK.size)[1]:
            del rest.marks[-_MARK.size :]  # the end of the connection
        return rest

    def __len__(self) -> int:
        return len(self.marks) // _MARK.size

    def __iter__(self) -> Iterator[Piece]:
        at = 0
        for stamp, size, blind in self.numbers():
            yield stamp, bytes(self.data[at : at + size]), blind
            at += size

    @overload
    def __getitem__(self, index: int) -> Piece: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Piece]: ...

    def __getitem__(self, index: int | slice) -> Piece | Sequence[Piece]:
        return list(self)[index]


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of the plan: what to send, and when. Made before the run; the engine adds nothing to it."""

    request_id: int  # unique in the run, dense from 0 within a stage's range
    stage: int
    workload: str
    messages: tuple[Message, ...]
    prompt_tokens: int  # asked for, as the server counts them; 0: nothing was (a text of one's own)
    output_tokens: int  # asked for
    offset_ns: int | None = None  # due time from the stage's start; None in closed loop
    session_id: str | None = None
    turn: int | None = None
    think_ns: int = 0  # wait before this turn, after the session's previous answer ended
    warmup: bool = False  # sent before the window; kept in the run file, in no metric
    repeated_tokens: int | None = 0  # at its start, that the stage sent before; None: not known, or a later turn


@dataclass(frozen=True, slots=True)
class Features:
    """What the endpoint accepts, learned by the probe (or set by flags). Only what is True here is ever sent."""

    max_tokens_field: str = "max_tokens"  # or "max_completion_tokens"
    include_usage: bool = True  # stream_options.include_usage
    continuous_usage: bool = False  # stream_options.continuous_usage_stats
    ignore_eos: bool = False
    min_tokens: bool = False
    temperature: float | None = None
    extra_body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request failed. `message` is one line, at most 500 characters, with no key in it."""

    kind: ErrorKind
    message: str


@dataclass(slots=True)
class Capture:
    """One request as the socket saw it: stamps and raw bytes. The hot path fills it; nothing in it is decoded.

    `body` holds the bytes after the HTTP header block, still framed as `framing` says and still compressed as the
    `content-encoding` header says. `failure` is a transport-level failure (connect, stale, timeout, cut, cancelled).
    """

    planned: PlannedRequest
    dialect: str  # "chat", "completions", "responses" or "embeddings"
    stamp_source: StampSource = "kernel"
    endpoint: int = 0  # which of a run's endpoints it went to
    ready_ns: int | None = None  # the later of `scheduled` and the moment that a slot was free
    scheduled_ns: int | None = None  # from the run's start
    dispatched_ns: int | None = None
    connect_start_ns: int | None = None  # both None where a kept-alive connection was used
    connected_ns: int | None = None
    sent_ns: int | None = None  # first byte handed to the socket
    sent_end_ns: int | None = None  # last byte
    headers_ns: int | None = None
    end_ns: int | None = None  # response complete, connection lost, or given up
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()  # names in lower case
    framing: Framing = "chunked"
    body: Receives = field(default_factory=Receives)
    complete: bool = False  # the HTTP body ended as its framing promised
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request as it happened, decoded. This, rounded to microseconds, is a line of `requests.jsonl`.

    `event_ns[i]` is the arrival of token event i and `event_tokens[i]` its tokens (>= 0); the two have one length and
    sum(event_tokens) is the number of *streamed* output tokens (reasoning counted but never sent is not in it).
    """

    request_id: int
    stage: int
    workload: str
    outcome: Outcome
    prompt_tokens_requested: int
    output_tokens_requested: int
    warmup: bool = False
    repeated_tokens: int | None = 0  # as planned
    worker: int = 0
    endpoint: int = 0  # which of the run's endpoints answered
    session_id: str | None = None
    turn: int | None = None
    scheduled_ns: int | None = None
    ready_ns: int | None = None
    dispatched_ns: int | None = None
    connect_start_ns: int | None = None
    connected_ns: int | None = None
    sent_ns: int | None = None
    sent_end_ns: int | None = None
    headers_ns: int | None = None
    end_ns: int | None = None
    first_answer_ns: int | None = None  # first event with visible content (not reasoning)
    event_ns: tuple[int, ...] = ()
    event_tokens: tuple[int, ...] = ()
    shared_events: int = 0  # token events that shared a receive with an earlier one
    shared_wait_ns: int = 0  # the longest time that the client had not looked, over those receives
    failure: Failure | None = None
    http_status: int | None = None
    finish_reason: str | None = None
    end_seen: EndSeen | None = None
    prompt_tokens: int | None = None
    prompt_tokens_source: CountSource | None = None
    output_tokens: int | None = None  # the authoritative count (reasoning that was not streamed included)
    output_tokens_source: CountSource | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    prompt_chars: int | None = None  # characters of all messages sent
    stamp_source: StampSource = "kernel"
    flags: tuple[str, ...] = ()  # the words of FLAGS
    server: dict[str, float] = field(default_factory=dict)  # the server's own timings where it sent them
    text: str | None = None  # only with --keep-text


# Every flag that may stand on a request, and what it says to a user.
FLAGS: dict[str, str] = {
    "new_connection": "a new connection was opened for this request",
    "no_finish": "the stream ended with [DONE] but named no finish_reason",
    "no_done": "the stream ended without [DONE]",
    "not_closed": "the server kept the response open after [DONE]",
    "unparsable": "at least one event could not be parsed",
    "not_streamed": "a stream was asked for, one JSON document came: no TTFT is claimed",
    "coalesced": "several token events arrived in one receive",
    "grouped": "at least one event held several tokens",
    "counts_disagree": "the server's token count differs from what its events carried",
    "shorter": "fewer output tokens than asked",
    "longer": "more output tokens than asked",
    "no_usage": "the server sent no usage; tokens were counted otherwise",
    "reasoning": "the stream carried reasoning tokens",
    "tools": "the stream carried tool calls",
    "compressed": "the body was compressed",
    "censored": "no first token (or no end) within the time allowed",
    "after_window": "load that went on after the window, unmeasured",
}


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one stage: `concurrency` users in closed loop, or `rate` requests per second in open loop."""

    kind: LoadKind
    value: float  # users, or requests per second; for a trace its mean requests per second
    arrivals: str = "closed"  # closed | poisson | constant | ... as the user wrote it
    cap: int | None = None  # concurrency cap on top of a rate


def stage_name(workload: str, load: Load) -> str:
    """`chat@32`, `chat@4/s`."""
    return f"{workload}@{load.value:g}" + ("/s" if load.kind == "rate" else "")


@dataclass(frozen=True, slots=True)
class Ended:
    """Why a stage ends before its time. `reached`: it has done what it was for; else it is cut short."""

    why: str
    reached: bool


@dataclass(slots=True)
class StageInfo:
    """One stage as it was run. `window` is what is measured; warm-up and the continuation lie outside it."""

    stage: int
    name: str  # "chat@32"
    workload: str
    load: Load
    requests: int | None = None  # asked for, by number
    duration_ns: int | None = None  # asked for, by time
    start_ns: int | None = None
    window_start_ns: int | None = None
    window_end_ns: int | None = None
    end_ns: int | None = None
    planned: int = 0  # requests that the plan held for the window
    unsent: int = 0  # of those, never sent
    stopped: str | None = None  # why the stage was cut short
    reached: str | None = None  # what it was for and had reached before its longest time (--until)
    health: dict[str, float] = field(default_factory=dict)  # see engine.runner: the client's own truth
    held_out: bool = False  # measured to test a fit, which must not see it


@dataclass(slots=True)
class RunInfo:
    """`run.json`: everything about a run but its requests. Plain JSON values only; keys and tokens never enter."""

    schema: int
    status: Literal["running", "complete", "interrupted", "failed"]
    run_id: str
    created: str  # ISO 8601, UTC
    # url, model, dialect, features, provenance; `others`: the same of each further endpoint
    endpoint: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)  # the resolved spec, enough to run it again
    command: list[str] = field(default_factory=list)  # key removed
    host: dict[str, Any] = field(default_factory=dict)
    clock: dict[str, Any] = field(default_factory=dict)  # stamp_source, error_ns, resyncs
    versions: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    nonce: str = ""
    stages: list[StageInfo] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    limit: str | None = None  # the limit of the whole run that ended it
    skipped: list[str] = field(default_factory=list)  # stages that were never begun, each with the reason
    search: list[dict[str, Any]] = field(default_factory=list)  # what a search found, for each workload
    findings: list[Finding] = field(default_factory=list)  # what the reader of the folder noticed; never written


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the reader must know before believing the figures."""

    severity: Severity
    code: str  # stable word, e.g. "client_delay"
    message: str  # one sentence with the number in it
    value: float | None = None
    advice: str = ""
    stage: int | None = None  # None: about the whole run


class Clock(Protocol):
    """Time as the engine sees it: real in production, virtual in tests."""

    def now_ns(self) -> int:
        """Nanoseconds from the run's start."""
        ...

    async def sleep_until(self, when_ns: int) -> None:
        """Return at `when_ns` or, if it has passed, at once."""
        ...


class Sink(Protocol):
    """Where finished requests go."""

    def write(self, exchange: Exchange) -> None: ...
