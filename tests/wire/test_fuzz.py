"""Anything at all on the wire: decoding never raises, never loses its invariants, and reads cut bytes as whole ones."""

from __future__ import annotations

import contextlib
import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.model import FLAGS, Capture, Exchange, Failure, Framing, Message, PlannedRequest, Receives
from loadgen.wire.dialects import read
from loadgen.wire.plain import PLAIN
from loadgen.wire.reasons import error_of
from loadgen.wire.text import mended, one_line, parse
from loadgen.wire.timeline import answer, decode, last_token_ns
from tests.wire.made import DONE, bill, chat, say

# JSON whose keys are those that matter, with values of every type in the wrong place.
KEYS = st.sampled_from(
    [
        *("choices", "delta", "message", "content", "text", "reasoning", "reasoning_content", "refusal"),
        *("tool_calls", "function", "function_call", "name", "arguments", "custom", "input", "role", "index"),
        *("finish_reason", "logprobs", "tokens", "token_ids", "usage", "x_groq", "prompt_tokens"),
        *("completion_tokens", "total_tokens", "completion_tokens_details", "reasoning_tokens"),
        *("cached_tokens", "timings", "cache_n", "prompt_ms", "error", "detail", "errors", "base_resp"),
        *("status_code", "type", "code", "object", "id"),
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["error", "stop", "chat.completion.chunk", "text_completion", "", "\ud83d"])
)
JSON: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12
)
CHOICE = st.fixed_dictionaries(
    {"index": st.integers(-1, 2) | JSON},
    optional={"delta": JSON | st.dictionaries(KEYS, LEAVES, max_size=4), "text": JSON, "finish_reason": LEAVES},
)
CHUNK = st.fixed_dictionaries({"choices": st.lists(CHOICE, max_size=2)}, optional={"usage": JSON, "error": JSON})
LINES = st.sampled_from(
    [
        *(
            b"data: ",
            b"data:",
            b"event: error\n",
            b"error: ",
            b": x\n",
            b"\n",
            b"\n\n",
            b"\r\n",
            b"\r",
            b"data: [DONE]\n\n",
        ),
        *(b"\xef\xbb\xbf", b"{", b"<html>", b"[", b'"', b"5\r\n", b"0\r\n\r\n", b"\xf0\x9f", b"null", b'{"error":1}'),
    ]
)
GOOD = st.sampled_from([say("a"), say(""), say("b", "stop"), bill(2), chat({"role": "assistant", "content": ""}), DONE])
SOUP = st.lists(
    GOOD
    | LINES
    | st.binary(max_size=20)
    | (CHUNK | JSON).map(lambda value: b"data: " + json.dumps(value).encode() + b"\n\n"),
    max_size=12,
).map(b"".join)
CUTS = st.lists(st.integers(0, 4000), max_size=8)


def made(raw: bytes, cuts: list[int], dialect: str, framing: Framing, status: int | None, coding: str) -> Capture:
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    body = [(1000 * n, raw[a:b], n) for n, (a, b) in enumerate(pairwise(edges))]
    planned = PlannedRequest(0, 0, "fuzz", (Message("user", "x"),), 1, 4)
    headers = (("content-encoding", coding),) if coding else ()
    return Capture(planned, dialect, sent_ns=0, status=status, headers=headers, framing=framing, body=Receives(body))


def check(exchange: Exchange) -> None:
    assert len(exchange.event_ns) == len(exchange.event_tokens)
    assert list(exchange.event_ns) == sorted(exchange.event_ns)
    assert all(isinstance(n, int) and n >= 0 for n in exchange.event_tokens)
    assert set(exchange.flags) <= FLAGS.keys()
    assert (exchange.outcome == "ok") == (exchange.failure is None)
    if exchange.outcome == "ok" and "not_streamed" not in exchange.flags:
        assert exchange.event_ns
    if exchange.failure is not None:
        assert exchange.failure.message.isprintable()
        assert len(exchange.failure.message) <= 500
    for count in (exchange.output_tokens, exchange.prompt_tokens, exchange.reasoning_tokens, exchange.cached_tokens):
        assert count is None or 0 <= count < 1 << 60
    (exchange.text or "").encode()  # no half characters
    json.dumps(exchange.server, allow_nan=False)


@settings(max_examples=300)
@given(
    SOUP,
    CUTS,
    st.sampled_from(["chat", "completions"]),
    st.sampled_from(["close", "chunked", "length"]),
    st.sampled_from([None, 200, 404]),
    st.sampled_from(["", "gzip", "br"]),
    st.booleans(),
)
def test_no_bytes_can_make_decoding_raise(
    raw: bytes, cuts: list[int], dialect: str, framing: Framing, status: int | None, coding: str, complete: bool
) -> None:
    capture = made(raw, cuts, dialect, framing, status, coding)
    capture.complete = complete
    check(decode(capture, keep_text=True, count_tokens=len))
    answer(capture)
    last_token_ns(capture)
    capture.failure = Failure("timeout", "no token for 60 s")
    check(decode(capture, keep_text=True))


@settings(max_examples=200)
@given(SOUP, CUTS, st.sampled_from(["chat", "completions"]))
def test_a_body_cut_elsewhere_says_the_same(raw: bytes, cuts: list[int], dialect: str) -> None:
    whole, pieces = (decode(made(raw, where, dialect, "close", 200, ""), keep_text=True) for where in ([], cuts))
    assert (
        whole.text,
        whole.failure,
        whole.output_tokens,
        whole.event_tokens,
        whole.finish_reason,
        whole.end_seen,
    ) == (
        pieces.text,
        pieces.failure,
        pieces.output_tokens,
        pieces.event_tokens,
        pieces.finish_reason,
        pieces.end_seen,
    )


DELTA = st.dictionaries(
    st.sampled_from(["content", "role", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call"]),
    st.sampled_from(["a", "漢", " ", "", None, []]),
    max_size=4,
)
USE = st.fixed_dictionaries(
    {name: st.sampled_from([0, 1, 7, None]) for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
    optional={"completion_tokens_details": st.sampled_from([None, {"reasoning_tokens": 2}])},
)
NEARLY_PLAIN = st.fixed_dictionaries(
    {
        "object": st.sampled_from(["chat.completion.chunk", "text_completion"]),
        "choices": st.lists(
            st.fixed_dictionaries(
                {"index": st.sampled_from([0, 0, None, 1])},
                optional={
                    "delta": DELTA,
                    "text": st.sampled_from(["a", "", " "]),
                    "finish_reason": st.sampled_from([None, None, "stop"]),
                    "logprobs": st.sampled_from([None, {"content": [{}]}]),
                    "token_ids": st.sampled_from([None, [1, 2]]),
                },
            ),
            min_size=1,
            max_size=2,
        ),
    },
    optional={"usage": st.none() | USE, "error": st.sampled_from([None, "boom"]), "model": st.just("m")},
)


@settings(max_examples=400)
@given(NEARLY_PLAIN, st.sampled_from(["chat", "completions"]))
def test_the_fast_reader_says_what_the_general_one_says_or_nothing(value: dict[str, Any], dialect: str) -> None:
    plain = PLAIN[dialect](json.dumps(value).encode())
    if plain is None:
        return
    visible, text, running = plain
    reading = read(value)
    (choice,) = reading.choices
    assert [(part == "visible", words) for part, words in choice.texts] == [(visible, text)]
    assert (choice.index, choice.count, choice.finish, reading.error) == (0, None, None, None)
    assert reading.usage == ({} if running is None else running.stated())


def test_the_fast_reader_takes_what_servers_send_most() -> None:
    for name, extra in {"content": {}, "reasoning_content": {"content": None}}.items():
        choice = {"index": 0, "delta": {name: " a", **extra}, "logprobs": None, "finish_reason": None}
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        assert PLAIN["chat"](json.dumps(chunk).encode()) == (name == "content", " a", None)
    text = {
        "object": "text_completion",
        "choices": [{"index": 0, "text": " a", "logprobs": None, "finish_reason": None}],
    }
    assert PLAIN["completions"](json.dumps(text).encode()) == (True, " a", None)


@given(JSON)
def test_any_json_can_be_read(value: Any) -> None:
    read(value)
    read({"choices": [value]})
    read({"choices": [{"delta": value, "message": value, "text": value, "logprobs": value}], "usage": value})
    for event in ({"error": value}, {"detail": value}, {"errors": [value]}, {"base_resp": value}):
        reason = error_of(event)
        assert reason is None or (reason.isprintable() and len(reason) < 2000)


def test_deep_nesting_is_no_way_in() -> None:
    for deep in (
        b'{"error":' * 900 + b"1" + b"}" * 900,
        b"[" * 50_000,
        b'{"choices":[{"delta":{"content":' + b"[" * 900,
    ):
        for tail in (b"", b"]" * 900 + b"}}]}"):
            exchange = decode(made(b"data: " + deep + tail + b"\n\n", [], "chat", "close", 200, ""))
            assert exchange.failure is not None
            decode(made(deep + tail, [], "chat", "close", 500, ""))


@given(st.text(st.characters(), max_size=60))
def test_text_can_always_be_kept(text: str) -> None:
    assert mended(text).encode("utf-8").decode() == mended(text)
    assert mended(text) == text or any("\ud800" <= c <= "\udfff" for c in text)
    assert one_line(text).isprintable()


@given(st.binary(max_size=60))
def test_parsing_raises_one_kind_of_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse(data)
