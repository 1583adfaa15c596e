"""The Responses API: typed events in, the same exchange out as from a chat."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from loadgen.model import Features, Message, PlannedRequest
from loadgen.wire.dialects import DIALECTS
from loadgen.wire.timeline import answer, decode
from tests.wire.made import capture, event

USAGE = {
    "input_tokens": 11,
    "output_tokens": 3,
    "total_tokens": 14,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens_details": {"reasoning_tokens": 0},
}


def typed(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, "sequence_number": 1, **fields}, kind)


def delta(text: str, kind: str = "output_text") -> bytes:
    return typed(f"response.{kind}.delta", item_id="msg_1", output_index=0, content_index=0, delta=text)


def ended(status: str = "completed", **more: Any) -> bytes:
    content = [{"type": "output_text", "text": "one two three"}]
    output = [{"type": "message", "role": "assistant", "content": content}]
    response = {"object": "response", "status": status, "error": None, "output": output, "usage": USAGE}
    return typed(f"response.{status}", response=response | more)


BEGUN = [
    (0.01, typed("response.created", response={"object": "response", "status": "in_progress", "usage": None})),
    (0.01, typed("response.in_progress", response={"object": "response", "status": "in_progress", "usage": None})),
    (0.02, typed("response.output_item.added", output_index=0, item={"type": "message", "content": []})),
    (0.02, typed("response.content_part.added", part={"type": "output_text", "text": ""})),
]


def test_only_deltas_are_tokens_however_often_the_text_is_repeated() -> None:
    repeats = [
        (0.31, typed("response.output_text.done", text="one two three")),
        (0.31, typed("response.content_part.done", part={"type": "output_text", "text": "one two three"})),
        (0.31, typed("response.output_item.done", item={"type": "message", "content": [{"text": "one two three"}]})),
    ]
    words = [(0.1, delta("one")), (0.2, delta(" two")), (0.3, delta(" three"))]
    seen = capture([*BEGUN, *words, *repeats, (0.32, ended())], dialect="responses")
    exchange = decode(seen)
    assert exchange.outcome == "ok"
    assert exchange.event_ns == (100_000_000, 200_000_000, 300_000_000)
    assert exchange.event_tokens == (1, 1, 1)
    assert (exchange.prompt_tokens, exchange.output_tokens, exchange.cached_tokens) == (11, 3, 4)
    assert (exchange.output_tokens_source, exchange.finish_reason, exchange.end_seen) == ("usage", "stop", "finish")
    assert "no_done" not in exchange.flags
    assert answer(seen) == "one two three"


@pytest.mark.parametrize(
    ("last", "kind", "says", "finish"),
    [
        (ended("incomplete", incomplete_details={"reason": "max_output_tokens"}), None, "", "length"),
        (ended("incomplete", incomplete_details={"reason": "content_filter"}), None, "", "content_filter"),
        (ended("incomplete"), None, "", "length"),
        (ended("failed", error={"code": "server_error", "message": "it broke"}), "server_error", "it broke", None),
        (ended("failed"), "server_error", "failed", None),
        (ended("cancelled"), "server_error", "cancelled", None),
        (typed("error", code="rate_limit", message="slow down"), "server_error", "slow down", None),
        (typed("response.output_text.done", text="one"), "truncated", "", None),
        (b"", "truncated", "", None),
    ],
)
def test_every_end(last: bytes, kind: str | None, says: str, finish: str | None) -> None:
    exchange = decode(capture([*BEGUN, (0.1, delta("one")), (0.2, last)], dialect="responses"))
    assert (exchange.failure.kind if exchange.failure else None) == kind
    assert says in (exchange.failure.message if exchange.failure else "")
    assert exchange.finish_reason == finish
    assert exchange.event_ns == (100_000_000,)  # what came before a failure was seen


def test_reasoning_and_tools_come_before_the_answer() -> None:
    pieces = [
        (0.1, delta("hm", "reasoning_text")),
        (0.2, delta("short", "reasoning_summary_text")),
        (0.3, delta('{"a":', "function_call_arguments")),
        (0.4, delta("yes")),
        (0.5, delta("more", "audio_transcript_of_tomorrow")),
        (0.6, ended()),
    ]
    exchange = decode(capture(pieces, dialect="responses"))
    assert exchange.event_ns == (100_000_000, 200_000_000, 300_000_000, 400_000_000)
    assert exchange.first_answer_ns == 400_000_000
    assert {"reasoning", "tools"} <= set(exchange.flags)


def test_an_answer_that_was_not_streamed() -> None:
    content = [{"type": "output_text", "text": "hello"}, {"type": "refusal", "refusal": " no"}]
    whole = {"object": "response", "status": "completed", "usage": USAGE}
    whole["output"] = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "content": content},
    ]
    seen = capture([(0.5, msgspec.json.encode(whole))], dialect="responses")
    exchange = decode(seen)
    assert exchange.outcome == "ok"
    assert "not_streamed" in exchange.flags
    assert (exchange.output_tokens, exchange.event_ns) == (3, ())
    assert answer(seen) == "hello no"


@pytest.mark.parametrize("odd", [None, 7, [], "x", {"type": 1}, {"response": []}, {"output": [7, {"type": "message"}]}])
def test_odd_shapes_are_never_fatal(odd: Any) -> None:
    for kind in ("response.completed", "response.output_text.delta", "response.", "response.failed"):
        value = {"type": kind, "delta": odd, "response": odd, "logprobs": odd, "output": odd, "error": None}
        decode(capture([(0.1, delta("one")), (0.2, event(value, kind)), (0.3, ended())], dialect="responses"))
    decode(capture([(0.1, msgspec.json.encode({"object": "response", "output": odd}))], dialect="responses"))


def test_the_body() -> None:
    planned = PlannedRequest(0, 0, "chat", (Message("user", "hi"),), 1, 9)
    features = Features(include_usage=True, continuous_usage=True, ignore_eos=True)
    body = DIALECTS["responses"].body(planned, "m", features, (Message("assistant", "before"),))
    assert body == {
        "model": "m",
        "input": [{"role": "assistant", "content": "before"}, {"role": "user", "content": "hi"}],
        "stream": True,
        "max_output_tokens": 9,
        "ignore_eos": True,
    }
