"""A captured body read as a stream of events: which of them carry tokens, and everything else that they say.

Knows: framing, SSE, dialects, put together in the order of the wire. Must not know: counts, outcomes, metrics.
Why: what was said is one thing and how it is judged another. This file reads; `counts` and `timeline` judge.

A token event carries generated text, reasoning, a refusal or a tool call. Role chunks, usage chunks, `[DONE]` and
comments are none. An event whose text is empty is kept as *blank*: only a count of the server can make it one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from loadgen.errors import WireError
from loadgen.model import Capture, Piece, Receives
from loadgen.wire.body import IDENTITY, Dechunker, payload
from loadgen.wire.dialects import Choice, read
from loadgen.wire.plain import PLAIN, Plain, Shape, shape
from loadgen.wire.reasons import error_of
from loadgen.wire.sse import MAX_LINE, Decoder, Event
from loadgen.wire.text import mended, one_line, parse

# Why an event's text is empty: "" it is not; the chunk that names the speaker; one in the middle; one that finishes.
Blank = Literal["", "role", "middle", "final"]

_DONE = b"[DONE]"
_BREATH = 64  # pieces; reading these takes some 0.2 ms
_BEFORE = b"\xef\xbb\xbf \t\r\n"  # what may stand before a document
_DOCUMENT = (b"<", b"{", b"[")  # how HTML and JSON begin, and no event stream does


class TokenEvent(msgspec.Struct, frozen=True, gc=False):
    """One event that carries text, or may carry tokens without any."""

    at_ns: int
    blind_ns: int
    piece: int  # which receive completed it
    visible: bool
    blank: Blank = ""
    tokens: int | None = None  # of this event, where the event itself tells
    total: int | None = None  # output tokens so far, where the event itself tells


@dataclass(slots=True)
class Stream:
    """Everything that was read from a body, before any judgement."""

    events: list[TokenEvent] = field(default_factory=list)
    visible: dict[int, list[str]] = field(default_factory=lambda: {0: []})  # by answer, for n > 1
    hidden: list[str] = field(default_factory=list)  # reasoning and tool calls
    usage: dict[str, int] = field(default_factory=dict)
    server: dict[str, float] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)  # indices of the answers side by side
    finished: dict[int, str] = field(default_factory=dict)  # finish_reason of each answer that has one
    resumed: bool = False  # text came after a finish_reason of the same answer: it announces no end
    done: bool = False
    error: str | None = None
    unparsable: int = 0
    unparsed: bytes = b""  # the first event of those
    reasoning: bool = False
    tools: bool = False
    is_sse: bool = False  # False: one document, or no body at all
    raw: bytes = b""  # the body as far as it is no event stream
    broken: str | None = None  # why framing or lines could not be read on

    @property
    def finish(self) -> str | None:
        """The finish_reason of the first answer that has one."""
        return self.finished[min(self.finished)] if self.finished else None

    @property
    def finished_all(self) -> bool:
        """Every answer has ended by a finish_reason."""
        return bool(self.seen) and self.finished.keys() >= self.seen

    def answer(self) -> str:
        """The visible text of the first answer."""
        return mended("".join(self.visible[min(self.visible)]))

    def texts(self) -> list[str]:
        """All that was generated: the visible text of each answer, then reasoning and tool calls."""
        answers = [mended("".join(texts)) for _, texts in sorted(self.visible.items())]
        return [text for text in (*answers, mended("".join(self.hidden))) if text]


def read_stream(capture: Capture, breathe: Callable[[], object] | None = None) -> Stream:
    """Read as much of a capture's body as there is, an unfinished one too. Never raises.

    `breathe` is called every few dozen pieces.
    """
    stream = Stream()
    try:
        _read_body(capture, stream, breathe)
    except WireError as bad:
        stream.broken = bad.what
    if not stream.is_sse and stream.raw:
        _read_document(stream)
    return stream


def _read_body(capture: Capture, stream: Stream, breathe: Callable[[], object] | None) -> None:
    """Every event with the stamp, the blind time and the number of the receive that completed it.

    A body that begins as HTML or JSON does is no stream: its bytes are gathered in `stream.raw`.
    """
    encoding = next((value for name, value in capture.headers if name == "content-encoding"), "")
    decoder = Decoder()
    read_plain = PLAIN.get(capture.dialect)
    known: Shape | None = None
    kept: list[bytes] = []
    size = 0
    begun = document = False
    stamp, blind, piece = 0, 0, 0
    source, chunks = _Source(capture.body), Dechunker()
    runs = capture.framing == "chunked" and encoding in IDENTITY
    try:
        for stamp, data, blind in payload(source, capture.framing, encoding, chunks):
            piece += 1
            if breathe is not None and piece % _BREATH == 0:
                breathe()
            # Nearly every piece of nearly every stream is one event that differs from the last by its text alone.
            if known is not None and decoder.idle and (text := known.text(data)) is not None:
                _take_plain(stream, (known.visible, text, None), stamp, blind, piece)
                if runs and chunks.idle and not stream.finished:
                    piece = _take_runs(stream, known, source, piece, breathe)
                continue
            if not begun:
                start = data.lstrip(_BEFORE)
                begun, document = bool(start), start.startswith(_DOCUMENT)
            if not decoder.saw_field and size < MAX_LINE:
                kept.append(data)
                size += len(data)
            if document:
                continue
            for event in decoder.feed(data):
                plain = None if event.name or read_plain is None else read_plain(event.data)
                if plain is None:
                    _take(stream, event, stamp, blind, piece)
                else:
                    _take_plain(stream, plain, stamp, blind, piece)
                    known = shape(data, plain)
        for event in [] if document else decoder.flush():
            # A body that was cut off may end inside an event; that is no event of the server that cannot be parsed.
            if capture.complete or event.data.endswith((b"}", b"]")):
                _take(stream, event, stamp, blind, piece)
    finally:
        stream.is_sse = decoder.saw_field
        stream.raw = b"" if stream.is_sse else b"".join(kept)


class _Source:
    """The receives of a body, one after another; those that come next can be taken without looking at each."""

    def __init__(self, body: Receives) -> None:
        self.data, self._numbers = bytes(body.data), list(body.numbers())
        self.at = 0  # bytes before the next receive
        self._next = 0

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        if self._next >= len(self._numbers):
            raise StopIteration
        stamp, size, blind = self._numbers[self._next]
        begin, self.at = self.at, self.at + size
        self._next += 1
        return stamp, self.data[begin : self.at], blind

    def ahead(self) -> list[tuple[int, int, int]]:
        """(stamp, bytes, blind) of the receives that come next."""
        return self._numbers[self._next : self._next + _BREATH]

    def skip(self, receives: int, size: int) -> None:
        """Leave out the next `receives`, which are `size` bytes."""
        self._next += receives
        self.at += size


def _take_runs(stream: Stream, known: Shape, source: _Source, piece: int, breathe: Callable[[], object] | None) -> int:
    """Take all events of the known shape that follow, each a receive and a chunk of its own; returns the last piece."""
    said, visible = stream.visible[0] if known.visible else stream.hidden, known.visible
    while texts := known.run(source.data, source.at, ahead := source.ahead()):
        said += texts
        taken = ahead[: len(texts)]
        stream.events += [
            TokenEvent(stamp, blind, number, visible) for number, (stamp, _, blind) in enumerate(taken, piece + 1)
        ]
        source.skip(len(texts), sum(size for _, size, _ in taken))
        piece += len(texts)
        if len(texts) < _BREATH:
            break
        if breathe is not None:
            breathe()
    return piece


def _take_plain(stream: Stream, plain: Plain, stamp: int, blind: int, piece: int) -> None:
    visible, text, usage = plain
    if visible:
        stream.visible[0].append(text)
    else:
        stream.hidden.append(text)
        stream.reasoning = True
    stream.seen.add(0)
    if stream.finished:
        stream.resumed |= 0 in stream.finished
    total = None
    if usage is not None:
        total = usage.completion_tokens
        stream.usage.update(usage.stated())
    stream.events.append(TokenEvent(stamp, blind, piece, visible, "", None, total))


def _take(stream: Stream, event: Event, stamp: int, blind: int, piece: int) -> None:
    data = event.data
    if data.strip() == _DONE:
        stream.done = True
        return
    failed = event.name == "error"
    if not data or data[:1] == b":":  # a comment inside `data:`
        if failed and stream.error is None:
            stream.error = "the server sent an error event without a reason"
        return
    values = _values(stream, data)
    if not values:
        stream.unparsable += 1
        stream.unparsed = stream.unparsed or data
        if failed and stream.error is None:
            stream.error = one_line(data.decode("utf-8", "replace"), 400)
    for value in values:
        if failed and stream.error is None:
            words = error_of(value) if isinstance(value, dict) else None
            stream.error = words or error_of({"error": value}) or "the server sent an error event without a reason"
        _take_value(stream, value, stamp, blind, piece)


def _values(stream: Stream, data: bytes) -> list[Any]:
    """The JSON values of an event, none where it is no JSON. Usually one; but a server that leaves out the empty lines
    between events makes one event of all, whose lines are values of their own."""
    try:
        return [parse(data)]
    except ValueError:
        lines = data.split(b"\n")
    try:
        values = [parse(line) for line in lines if line.strip() != _DONE]
    except ValueError:
        return []
    stream.done |= len(values) < len(lines)
    return values


def _take_value(stream: Stream, value: Any, stamp: int, blind: int, piece: int) -> None:
    reading = read(value)
    stream.error = stream.error or reading.error
    for name, stated in reading.usage.items():
        if stated or name not in stream.usage:  # a zero that comes late takes nothing back
            stream.usage[name] = stated
    stream.server.update(reading.server)
    blank: Blank = ""
    visible = text = False
    counts: list[int | None] = []
    for choice in reading.choices:
        first = choice.index not in stream.seen
        has_text, is_visible = _take_choice(stream, choice)
        if has_text or choice.blank:
            visible |= is_visible
            text |= has_text
            counts.append(choice.count)
        if choice.blank and not has_text and blank != "middle":
            blank = "final" if choice.finish else "role" if choice.role and first else "middle"
    if text or blank:
        known = [n for n in counts if n is not None]
        count = sum(known) if len(known) == len(counts) else None
        total = reading.usage.get("output")
        stream.events.append(TokenEvent(stamp, blind, piece, visible, "" if text else blank, count, total))


def _take_choice(stream: Stream, choice: Choice) -> tuple[bool, bool]:
    """Keep what one choice says; tells whether it has any text, and any that is visible."""
    stream.seen.add(choice.index)
    visible = False
    for part, text in choice.texts:
        if part == "visible":
            visible = True
            stream.visible.setdefault(choice.index, []).append(text)
        else:
            stream.hidden.append(text)
            stream.reasoning |= part == "reasoning"
            stream.tools |= part == "tools"
    if choice.texts:
        stream.resumed |= choice.index in stream.finished
    if choice.finish is not None:
        stream.finished[choice.index] = choice.finish
    return bool(choice.texts), visible


def _read_document(stream: Stream) -> None:
    """A body that is no event stream: perhaps one JSON answer. Its text came at once, so there are no events."""
    try:
        value = parse(stream.raw)
    except ValueError:
        return
    _take_value(stream, value, 0, 0, 0)
    stream.events.clear()
