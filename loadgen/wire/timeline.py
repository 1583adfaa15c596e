"""Stamped bytes to one request as it happened: token events with counts, first answer, usage, end, outcome.

Knows: what makes a request failed, what is odd about it. Must not know: sockets, metrics, how bytes are read.
Why: HTTP 200 is not success. An error inside the stream, a stream that just stops, or an answer without a token has
failed; and what came before the failure is kept, because it was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from loadgen.model import Capture, EndSeen, Exchange, Failure
from loadgen.wire.counts import Counts, count
from loadgen.wire.reasons import http_reason
from loadgen.wire.stream import Stream, read_stream
from loadgen.wire.text import MAX_REASON, one_line, readable

# Transport failures that nothing was lost by, when the stream had already said that it was complete.
_HARMLESS_AFTER_END = ("truncated", "timeout", "cancelled", "protocol")


def last_token_ns(capture: Capture) -> int | None:
    """Arrival (ns from the run's start) of the latest token event in what has come so far; None before the first."""
    events = [event for event in read_stream(capture).events if not event.blank or event.tokens]
    return events[-1].at_ns if events else None


def answer(capture: Capture) -> str:
    """The visible text of a finished exchange (of its first answer), for the history of a conversation."""
    return read_stream(capture).answer()


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
    counts = count(stream, count_tokens)
    events = counts.events
    failure = _failure(capture, stream, counts)
    shared = [later.blind_ns for earlier, later in pairwise(events) if earlier.piece == later.piece]
    planned = capture.planned
    usage = stream.usage
    return Exchange(
        request_id=planned.request_id,
        stage=planned.stage,
        workload=planned.workload,
        outcome="ok" if failure is None else "cancelled" if failure.kind == "cancelled" else "failed",
        prompt_tokens_requested=planned.prompt_tokens,
        output_tokens_requested=planned.output_tokens,
        warmup=planned.warmup,
        repeated_tokens=planned.repeated_tokens,
        endpoint=capture.endpoint,
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
        first_answer_ns=next((event.at_ns for event in events if event.visible), None),
        event_ns=tuple([event.at_ns for event in events]),
        event_tokens=counts.tokens,
        shared_events=len(shared),
        shared_wait_ns=max(shared, default=0),
        failure=failure,
        http_status=capture.status,
        finish_reason=stream.finish,
        end_seen=_end_seen(capture, stream),
        prompt_tokens=usage.get("prompt"),
        prompt_tokens_source="usage" if "prompt" in usage else None,
        output_tokens=counts.output,
        output_tokens_source=counts.source,
        reasoning_tokens=usage.get("reasoning"),
        cached_tokens=_cached(stream),
        prompt_chars=sum(len(message.content) for message in planned.messages),
        stamp_source=capture.stamp_source,
        flags=_flags(capture, stream, counts, bool(shared), failure),
        server=stream.server,
        text=stream.answer() if keep_text else None,
    )


def _cached(stream: Stream) -> int | None:
    """Prompt tokens that came from a cache: usage first, then what llama.cpp says in `timings`."""
    cached = stream.usage.get("cached")
    if cached is None and "cache_n" in stream.server:
        cached = int(stream.server["cache_n"])
    prompt = stream.usage.get("prompt")
    # More than the prompt holds cannot have come from a cache: whatever was counted, it was not that.
    return None if cached is not None and prompt is not None and cached > prompt else cached


def _said_end(stream: Stream, counts: Counts) -> bool:
    """The stream itself said that it is complete, after at least one token where a finish_reason says it."""
    return stream.done or (stream.finished_all and bool(counts.events))


def _failure(capture: Capture, stream: Stream, counts: Counts) -> Failure | None:
    """Why the request failed, or None. The order is the order of causes: what came first explains what followed."""
    said_end = _said_end(stream, counts)
    if capture.status is not None and not 200 <= capture.status < 300:
        return Failure("http", http_reason(capture.status, dict(capture.headers), stream.raw))
    if stream.error is not None:
        return Failure("server_error", one_line(stream.error) or "an error without a reason")
    # A finish_reason that stands on every chunk announces no end: then a cut is a cut.
    ended_well = stream.done or (said_end and not stream.resumed)
    if capture.failure is not None and not (ended_well and capture.failure.kind in _HARMLESS_AFTER_END):
        return capture.failure
    if stream.broken is not None and not ended_well:
        return Failure("protocol", one_line(stream.broken))
    if _is_document(stream):
        return None if capture.dialect == "embeddings" and stream.seen else _document_failure(stream, counts)
    if not counts.events:
        if stream.unparsable and not stream.seen:
            reason = f"{stream.unparsable} events, none of which could be parsed: {readable(stream.unparsed)}"
            return Failure("protocol", reason[:MAX_REASON])
        if (stream.seen or not capture.complete) and not (said_end or stream.finished):
            return Failure("truncated", "the stream ended before the first token")
        return Failure("empty", "the stream ended without an output token")
    if not (ended_well if not capture.complete else said_end):
        how = "ended" if capture.complete else "was cut off"
        return Failure("truncated", f"the stream {how} without [DONE] or finish_reason"[:MAX_REASON])
    return None


def _is_document(stream: Stream) -> bool:
    return not stream.is_sse and bool(stream.raw.strip())


def _document_failure(stream: Stream, counts: Counts) -> Failure | None:
    if not stream.seen:
        return Failure("protocol", f"neither an event stream nor a JSON answer: {readable(stream.raw)}")
    if counts.output or stream.texts():
        return None
    return Failure("empty", "the answer holds no output token")


def _end_seen(capture: Capture, stream: Stream) -> EndSeen | None:
    if stream.done:
        return "done"
    if stream.finished_all and (capture.complete or not stream.resumed):
        return "finish"
    if capture.headers_ns is None and not capture.body:
        return None
    return "eof" if capture.complete else "cut"


def _flags(capture: Capture, stream: Stream, counts: Counts, shared: bool, failure: Failure | None) -> tuple[str, ...]:
    """The words of `model.FLAGS` that hold, in their order there."""
    ok = failure is None
    document = _is_document(stream)
    streamed = ok and not document
    asked = capture.planned.output_tokens
    output = counts.output
    encoding = dict(capture.headers).get("content-encoding", "").strip().lower()
    raised = {
        "new_connection": capture.connected_ns is not None,
        "no_finish": streamed and not stream.finished,
        "no_done": streamed and not stream.done and capture.dialect != "responses",  # which has none
        "not_closed": streamed and not capture.complete,
        "unparsable": bool(stream.unparsable) or (stream.broken is not None and ok),
        "not_streamed": document and bool(stream.seen) and capture.dialect != "embeddings",
        "coalesced": shared,
        "grouped": any(tokens > 1 for tokens in counts.tokens),
        "counts_disagree": counts.disagree,
        "shorter": ok and counts.source != "events" and output is not None and output < asked,
        "longer": ok and output is not None and output > asked * max(1, len(stream.seen)),
        "no_usage": ok and ("prompt" if capture.dialect == "embeddings" else "output") not in stream.usage,
        "reasoning": stream.reasoning or bool(stream.usage.get("reasoning")),
        "tools": stream.tools,
        "compressed": encoding not in ("", "identity"),
        "censored": failure is not None and failure.kind in ("timeout", "cancelled") and not counts.events,
    }
    return tuple(name for name, holds in raised.items() if holds)
