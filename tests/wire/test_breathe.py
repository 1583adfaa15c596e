"""Decoding a long answer gives the client a chance to read other streams in between."""

from __future__ import annotations

from loadgen.model import Capture, Message, PlannedRequest, Receives
from loadgen.wire.timeline import decode


def long_answer(events: int) -> Capture:
    planned = PlannedRequest(0, 0, "chat", (Message("user", "hi"),), 1, events)
    event = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
    body = [(stamp, event, 0) for stamp in range(events)]
    body.append((events, b"data: [DONE]\n\n", 0))
    headers = (("content-type", "text/event-stream"),)
    return Capture(
        planned, "chat", sent_ns=0, status=200, headers=headers, framing="close", body=Receives(body), complete=True
    )


def test_a_long_answer_is_decoded_with_breaks_and_reads_the_same() -> None:
    breaks: list[int] = []
    exchange = decode(long_answer(1000), breathe=lambda: breaks.append(1))
    assert 10 <= len(breaks) <= 100
    assert exchange == decode(long_answer(1000))
    assert len(exchange.event_ns) == 1000


def test_a_short_answer_needs_no_break() -> None:
    breaks: list[int] = []
    assert decode(long_answer(5), breathe=lambda: breaks.append(1)).outcome == "ok"
    assert breaks == []
