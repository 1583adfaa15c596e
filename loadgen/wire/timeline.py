"""Stamped bytes to one request as it happened: token events with counts, first answer, usage, end, outcome.

Knows: which events are tokens, how counts are shared out, what makes a request failed. Must not know: sockets, metrics.

The rules (README of every number: `loadgen explain`): a token event carries generated text, reasoning, a refusal or a
tool call. Role chunks, usage chunks, `[DONE]`, comments are none. An event whose text is empty is one only if the
server's own count says so. The tokens of an event come from the server (continuous usage, token ids, logprobs); without
those they are an even share of the total, so that they always sum up to the number of streamed tokens.
HTTP 200 is not success: an error inside the stream, a stream that just stops, or an answer without a token has failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from loadgen.errors import WireError
from loadgen.model import Capture, EndSeen, Exchange, Failure
from loadgen.wire.body import payload
from loadgen.wire.counts import Counts, share
from loadgen.wire.dialects import DIALECTS, Reading, error_of
from loadgen.wire.plain import plain_reader
from loadgen.wire.sse import Decoder, Event

_decode = msgspec.json.Decoder().decode
_DONE = b"[DONE]"
_BREATH = 64  # pieces; reading these takes some 0.2 ms
_PREVIEW = 200  # characters of an unexpected body that an error message quotes
# Transport failures that nothing was lost by, when the stream had already said that it was complete.
_HARMLESS_AFTER_END = ("truncated", "timeout", "cancelled", "protocol")


@dataclass(slots=True)
class TokenEvent:
    """One event that may carry tokens. `candidate`: its text is empty, so that only a count can make it one."""

    at_ns: int
    blind_ns: int
    piece: int  # which receive completed it
    visible: bool
    candidate: bool
    count: int | None  # tokens, where the event itself tells
    total: int | None  # cumulative completion tokens, where the event itself tells


@dataclass(slots=True)
class Stream:
    """Everything that was read from a body, before any judgement."""

    events: list[TokenEvent] = field(default_factory=list)
    visible: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)  # reasoning and tool calls
    usage: dict[str, int] = field(default_factory=dict)
    server: dict[str, float] = field(default_factory=dict)
    finish: str | None = None
    done: bool = False
    error: str | None = None
    unparsable: int = 0
    reasoning: bool = False
    tools: bool = False
    choices: int = 0  # events that had choices
    answers: int = 1  # how many answers side by side (n > 1)
    raw: bytes = b""  # the body's beginning, for documents that are no stream
    is_sse: bool = False
    broken: str | None = None  # why framing or lines could not be read on


def read_stream(capture: Capture, breathe: Callable[[], object] | None = None) -> Stream:
    """Read as much of a capture's body as there is. Never raises. `breathe` is called every few dozen pieces."""
    stream = Stream()
    decoder = Decoder()
    read, plain = DIALECTS[capture.dialect].read, plain_reader(capture.dialect)
    encoding = next((value for name, value in capture.headers if name == "content-encoding"), "")
    kept: list[bytes] = []
    kept_size = 0
    index, stamp, blind = 0, 0, 0
    events, visible = stream.events, stream.visible
    try:
        for index, (stamp, data, blind) in enumerate(payload(capture.body, capture.framing, encoding)):
            if breathe is not None and index % _BREATH == _BREATH - 1:
                breathe()
            for event in decoder.feed(data):
                text = plain(event.data)
                if text is None or event.name:
                    _take(stream, event, read, stamp, blind, index)
                else:  # nearly every event of nearly every stream
                    stream.choices += 1
                    visible.append(text)
                    events.append(TokenEvent(stamp, blind, index, True, False, None, None))
            if not decoder.saw_field and kept_size < 4 << 20:
                kept.append(data)
                kept_size += len(data)
        for event in decoder.flush():
            _take(stream, event, read, stamp, blind, index)
    except WireError as bad:
        stream.broken = bad.what
    stream.is_sse = decoder.saw_field
    stream.raw = b"".join(kept)
    return stream


def _take(stream: Stream, event: Event, read: Callable[[Any], Reading], stamp: int, blind: int, piece: int) -> None:
    data = event.data
    if data.strip() == _DONE:
        stream.done = True
        return
    if not data or data[:1] == b":":  # a comment inside `data:`
        if event.name == "error" and stream.error is None:
            stream.error = "the server sent an error event without a reason"
        return
    try:
        value = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        stream.unparsable += 1
        if event.name == "error" and stream.error is None:
            stream.error = " ".join(data.decode("utf-8", "replace").split())[:400]
        return
    if value is None:
        return
    reading = read(value)
    if event.name == "error" and reading.error is None:
        reading.error = error_of({"error": value})
    if reading.error is not None and stream.error is None:
        stream.error = reading.error
    if reading.usage:
        stream.usage.update(reading.usage)
    if reading.server:
        stream.server.update(reading.server)
    if reading.choices:
        stream.choices += 1
        stream.answers = max(stream.answers, reading.index + 1)
        stream.finish = reading.finish or stream.finish
    visible = False
    for part, text in reading.texts:
        if part == "visible":
            visible = True
            stream.visible.append(text)
        else:
            stream.hidden.append(text)
            stream.reasoning |= part == "reasoning"
            stream.tools |= part == "tools"
    if reading.texts or reading.empty:
        total = reading.usage.get("output")
        stream.events.append(TokenEvent(stamp, blind, piece, visible, not reading.texts, reading.count, total))


# -- what the engine asks while a stream is open ------------------------------------------------------------------


def last_token_ns(capture: Capture) -> int | None:
    """Arrival of the latest token event in what has come so far; None before the first."""
    events = [event for event in read_stream(capture).events if not event.candidate or event.count]
    return events[-1].at_ns if events else None


def answer(capture: Capture) -> str:
    """The visible text of a finished exchange, for the history of a conversation."""
    return "".join(read_stream(capture).visible)


# -- the judgement ------------------------------------------------------------------------------------------------


def decode(
    capture: Capture,
    *,
    keep_text: bool = False,
    count_tokens: Callable[[str], int] | None = None,
    breathe: Callable[[], object] | None = None,
) -> Exchange:
    """One request as it happened, from what the socket saw. Never raises: bytes that cannot be read are a failure.

    `count_tokens` counts the tokens of a whole text; it is used where the server states no usage.
    `breathe` is called again and again meanwhile: a client that decodes while other streams run reads them there.
    """
    stream = read_stream(capture, breathe)
    streamed = stream.is_sse or not stream.raw.strip()
    text = "".join(stream.visible)
    if not streamed:
        text = _read_document(capture, stream)
    whole = text + "".join(stream.hidden)
    counts = Counts.of(stream, whole, count_tokens)
    events = counts.events
    failure = _failure(capture, stream, counts, streamed)
    shared = [b for a, b in pairwise(events) if a.piece == b.piece]
    planned = capture.planned
    tokens = share(events, counts.streamed)
    flags = _flags(capture, stream, counts, tokens, streamed, bool(shared), failure)
    return Exchange(
        request_id=planned.request_id,
        stage=planned.stage,
        workload=planned.workload,
        outcome="ok" if failure is None else "cancelled" if failure.kind == "cancelled" else "failed",
        prompt_tokens_requested=planned.prompt_tokens,
        output_tokens_requested=planned.output_tokens,
        warmup=planned.warmup,
        session_id=planned.session_id,
        turn=planned.turn,
        scheduled_ns=capture.scheduled_ns,
        ready_ns=capture.ready_ns,
        dispatched_ns=capture.dispatched_ns,
        connect_start_ns=capture.connect_start_ns,
        connected_ns=capture.connected_ns,
        sent_ns=capture.sent_ns,
        sent_end_ns=capture.sent_end_ns,
        headers_ns=capture.headers_ns,
        end_ns=capture.end_ns,
        first_answer_ns=next((e.at_ns for e in events if e.visible), None),
        event_ns=tuple(e.at_ns for e in events),
        event_tokens=tokens,
        shared_events=len(shared),
        shared_wait_ns=max((e.blind_ns for e in shared), default=0),
        failure=failure,
        http_status=capture.status,
        finish_reason=stream.finish,
        end_seen=_end_seen(capture, stream),
        prompt_tokens=stream.usage.get("prompt"),
        prompt_tokens_source="usage" if "prompt" in stream.usage else None,
        output_tokens=counts.output,
        output_tokens_source=counts.source,
        reasoning_tokens=stream.usage.get("reasoning"),
        cached_tokens=_cached(stream),
        prompt_chars=sum(len(message.content) for message in planned.messages),
        stamp_source=capture.stamp_source,
        flags=flags,
        server=stream.server,
        text=text if keep_text else None,
    )


def _cached(stream: Stream) -> int | None:
    if "cached" in stream.usage:
        return stream.usage["cached"]
    return int(stream.server["cache_n"]) if "cache_n" in stream.server else None


def _read_document(capture: Capture, stream: Stream) -> str:
    """A body that is no event stream: perhaps one JSON answer, which is read for its text, usage and error."""
    try:
        value = _decode(stream.raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    reading = DIALECTS[capture.dialect].read(value)
    stream.error = stream.error or reading.error
    stream.usage.update(reading.usage)
    stream.server.update(reading.server)
    stream.finish = reading.finish
    stream.choices += reading.choices
    stream.hidden += [text for part, text in reading.texts if part != "visible"]
    return "".join(text for part, text in reading.texts if part == "visible")


def _failure(capture: Capture, stream: Stream, counts: Counts, streamed: bool) -> Failure | None:
    """Why the request failed, or None. The order is the order of causes: what came first explains what followed."""
    said_end = stream.done or (stream.finish is not None and bool(counts.events))
    status = capture.status
    if status is not None and not 200 <= status < 300:
        return Failure("http", _http_message(capture, stream))
    if stream.error is not None:
        return Failure("server_error", stream.error or "the server reported an error without a reason")
    if capture.failure is not None and not (said_end and capture.failure.kind in _HARMLESS_AFTER_END):
        return capture.failure
    if stream.broken is not None and not said_end:
        return Failure("protocol", stream.broken)
    if not streamed:
        if not stream.choices:
            return Failure("protocol", f"neither an event stream nor a JSON answer: {_preview(stream.raw)}")
        return None if counts.output or counts.text else Failure("empty", "the answer holds no output token")
    if not counts.events:
        if stream.unparsable and not said_end:
            return Failure("protocol", f"{stream.unparsable} events, none of which could be parsed")
        if stream.choices and not said_end:
            return Failure("truncated", "the stream ended before the first token")
        return Failure("empty", "the stream ended without an output token")
    if not said_end:
        how = "ended" if capture.complete else "was cut off"
        return Failure("truncated", f"the stream {how} without [DONE] or finish_reason")
    return None


def _http_message(capture: Capture, stream: Stream) -> str:
    headers = dict(capture.headers)
    reason = stream.error
    raw = stream.raw
    if reason is None and raw:
        try:
            value = _decode(raw)
            reason = error_of(value) if isinstance(value, dict) else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            reason = None
    text = f"HTTP {capture.status}: {reason or _preview(raw) or 'no reason given'}"
    if "retry-after" in headers:
        text += f" (retry-after {headers['retry-after'][:40]})"
    if "location" in headers and capture.status is not None and 300 <= capture.status < 400:
        text += f" (redirect to {headers['location'][:100]})"
    return text[:500]


def _preview(raw: bytes) -> str:
    return " ".join(raw[: 4 * _PREVIEW].decode("utf-8", "replace").split())[:_PREVIEW]


def _end_seen(capture: Capture, stream: Stream) -> EndSeen | None:
    if stream.done:
        return "done"
    if stream.finish is not None:
        return "finish"
    if capture.headers_ns is None and not capture.body:
        return None
    return "eof" if capture.complete else "cut"


def _flags(
    capture: Capture,
    stream: Stream,
    counts: Counts,
    tokens: tuple[int, ...],
    streamed: bool,
    shared: bool,
    failure: Failure | None,
) -> tuple[str, ...]:
    ok = failure is None
    asked = capture.planned.output_tokens
    encoding = dict(capture.headers).get("content-encoding", "identity").strip().lower()
    raised = {
        "new_connection": capture.connected_ns is not None,
        "no_finish": ok and streamed and stream.finish is None,
        "no_done": ok and streamed and not stream.done,
        "not_closed": ok and streamed and not capture.complete,
        "unparsable": bool(stream.unparsable) or (stream.broken is not None and ok),
        "not_streamed": not streamed and bool(stream.choices),
        "coalesced": shared,
        "grouped": any(n > 1 for n in tokens),
        "counts_disagree": counts.disagree,
        "shorter": ok and counts.source != "events" and counts.output is not None and counts.output < asked,
        "longer": ok and counts.output is not None and counts.output > asked * stream.answers,
        "no_usage": ok and "output" not in stream.usage,
        "reasoning": stream.reasoning or bool(stream.usage.get("reasoning")),
        "tools": stream.tools,
        "compressed": encoding not in ("", "identity"),
        "censored": failure is not None and failure.kind in ("timeout", "cancelled") and not counts.events,
    }
    return tuple(name for name, is_raised in raised.items() if is_raised)
