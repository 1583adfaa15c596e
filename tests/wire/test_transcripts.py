"""Recorded answers of seven real servers, read by the client and by a naive reader that shares no code with it.

The naive reader takes the `data:` lines one by one with the standard library; it knows nothing of framing, stamps or
cut bytes. What needs judgement (which answers failed and how, events whose text is empty) stands in tables, by hand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from loadgen.model import Capture, Exchange, Message, PlannedRequest, Receives
from loadgen.wire.timeline import answer, decode
from tests.wire.transcripts import FIXTURES, Answer, read

FILES = sorted(FIXTURES.rglob("*.txt"))
RECORDED = {f"{path.parent.name}/{path.stem}": read(path) for path in FILES}
ANSWERS = [(name, way) for name, ways in RECORDED.items() for way in ways]

# Answers that are no success, and the kind of failure. All others must be read as ok.
FAILED = {
    "litellm/malformed_json": "http",
    "litellm/over_context_stream": "http",
    "litellm/stop_seq": "empty",  # one token by its usage, but it was never sent
    "litellm/unknown_model": "http",
    "llama-cpp-python/bad_type": "http",
    "llama-cpp-python/empty_prompt": "empty",
    "llama-cpp-python/malformed_json": "http",
    "llama-cpp-python/over_context_stream": "empty",  # 200 with an empty body
    "llama-cpp-python/prompt_list_stream": "http",
    "llama-cpp-python/stop_seq": "empty",
    "llama.cpp-gemma/over_context_stream": "http",
    "llama.cpp-tiny/bad_type": "http",
    "llama.cpp-tiny/empty_prompt": "empty",
    "llama.cpp-tiny/malformed_json": "http",
    "llama.cpp-tiny/over_context_stream": "http",
    "transformers-serve/bad_type": "http",
    "transformers-serve/empty_prompt": "server_error",  # `{"error": "<string>"}` inside 200
    "transformers-serve/malformed_json": "http",
    "transformers-serve/prompt_list_stream": "http",
    "transformers-serve/return_token_ids": "http",  # 422, unknown field
    "transformers-serve/unknown_model": "http",
    "transformers-serve-cb/over_context_stream": "truncated",  # it hangs after the role chunk; curl gave up
    "vllm/bad_type": "http",
    "vllm/empty_prompt": "http",
    "vllm/malformed_json": "http",
    "vllm/over_context_stream": "http",
    "vllm/unknown_model": "http",
}
# Token events whose text is empty, and which count because the usage of these answers is right only with them.
BLANK = {
    "llama.cpp-gemma/stop_seq": 3,  # "", " 6", ",", "", "" and usage 5: held back while a stop word may begin
    "llama.cpp-tiny/stop_seq": 1,
    "llama.cpp-tiny/completions_ignore_eos": 1,
    "vllm/stop_seq": 1,
    "vllm/completions_stream_usage": 1,  # half a character: "", and the whole one with the next token
}
BLANK_BY_SOCKET = {"vllm/completions_stream_contusage": 1}  # the other recording has the half in a larger event


@dataclass
class Naive:
    """What the naive reader finds in a stream."""

    texts: dict[int, str] = field(default_factory=dict)
    events: int = 0  # with text
    usage: dict[str, Any] = field(default_factory=dict)
    finish: str | None = None
    done: bool = False


def naively(lines: list[str]) -> Naive:
    found = Naive()
    for line in lines:
        if line == "[DONE]":
            found.done = True
            continue
        event = json.loads(line) or {}
        found.usage = event.get("usage") or found.usage
        said = False
        for choice in event.get("choices", []):
            text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            found.texts[choice["index"]] = found.texts.get(choice["index"], "") + text
            said |= bool(text)
            found.finish = choice.get("finish_reason") or found.finish
        found.events += said
    return found


def decoded(name: str, way: str) -> Exchange:
    return decode(RECORDED[name][way].capture(), keep_text=True)


STREAMED = [
    (name, way)
    for name, way in ANSWERS
    if name not in FAILED and not name.endswith("_nonstream") and RECORDED[name][way].complete
]
IN_BOTH_WAYS = [name for name, ways in RECORDED.items() if len(ways) == 2 and all(a.complete for a in ways.values())]


def test_every_kind_of_server_is_there() -> None:
    ways = [way for _, way in ANSWERS]
    assert ways.count("curl") > 80
    assert ways.count("socket") > 50
    assert len(STREAMED) > 80
    assert set(FAILED) | set(BLANK) | set(BLANK_BY_SOCKET) <= set(RECORDED)


@pytest.mark.parametrize(("name", "way"), [a for a in ANSWERS if a != ("vllm/chat_logprobs", "curl")])
def test_an_answer_is_judged_for_what_it_was(name: str, way: str) -> None:
    exchange = decoded(name, way)
    assert (exchange.failure.kind if exchange.failure else None) == FAILED.get(name)
    assert exchange.http_status == RECORDED[name][way].status
    if exchange.failure is not None:
        assert exchange.failure.message.isprintable()
        assert 10 < len(exchange.failure.message) <= 500


def test_an_answer_that_curl_gave_up_on_before_the_first_event() -> None:
    assert decoded("vllm/chat_logprobs", "curl").outcome == "failed"


@pytest.mark.parametrize(("name", "way"), STREAMED)
def test_the_tokens_and_usage_of_a_stream_are_those_of_a_naive_reader(name: str, way: str) -> None:
    exchange, recorded = decoded(name, way), RECORDED[name][way]
    naive = naively(recorded.data_lines() if way == "curl" else dechunked_lines(recorded))
    blank = BLANK.get(name, 0) + (BLANK_BY_SOCKET.get(name, 0) if way == "socket" else 0)
    assert "not_streamed" not in exchange.flags
    assert answer(recorded.capture()) == exchange.text == naive.texts[min(naive.texts)]
    assert len(exchange.event_ns) == len(exchange.event_tokens) == naive.events + blank
    assert sum(exchange.event_tokens) == exchange.output_tokens
    assert exchange.finish_reason == naive.finish
    assert exchange.end_seen == ("done" if naive.done else "finish")
    assert list(exchange.event_ns) == sorted(exchange.event_ns)
    assert exchange.prompt_tokens == (naive.usage.get("prompt_tokens") or None)
    if len(naive.texts) == 1 and any(n for n in naive.usage.values() if isinstance(n, int)):
        assert exchange.output_tokens == naive.usage["completion_tokens"]
        assert exchange.output_tokens_source == "usage"
    else:
        # No usage; or several answers, of which some servers count only one: then every event is a token here.
        assert exchange.output_tokens_source == "events" or len(naive.texts) > 1
        if not name.endswith("chat_logprobs"):
            assert exchange.output_tokens == len(exchange.event_ns)


def dechunked_lines(recorded: Answer) -> list[str]:
    """The `data:` lines of a socket's bytes, chunks taken off by counting."""
    raw, plain = b"".join(data for _, data, _ in recorded.pieces), b""
    while raw and recorded.framing == "chunked":
        size, _, raw = raw.partition(b"\r\n")
        plain += raw[: int(size, 16)]
        raw = raw[int(size, 16) + 2 :]
    lines = (plain or raw).decode().split("\n")
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


@pytest.mark.parametrize("name", IN_BOTH_WAYS)
def test_both_recordings_of_a_request_say_the_same(name: str) -> None:
    one, two = decoded(name, "curl"), decoded(name, "socket")
    assert (one.outcome, one.text, one.output_tokens_source) == (two.outcome, two.text, two.output_tokens_source)
    if one.output_tokens_source == "usage":
        assert one.output_tokens == two.output_tokens


def test_a_document_claims_no_events() -> None:
    documents = [decoded(name, way) for name, way in ANSWERS if name.endswith("_nonstream")]
    assert len(documents) >= 12
    for exchange in documents:
        assert exchange.flags[:1] == ("not_streamed",)
        assert (exchange.event_ns, exchange.first_answer_ns) == ((), None)
        assert exchange.output_tokens_source == "usage"


def test_llama_cpp_tells_its_own_times_and_what_its_cache_held() -> None:
    exchange = decoded("llama.cpp-tiny/stop_seq", "curl")
    assert exchange.server["predicted_n"] == 1
    assert exchange.server["prompt_ms"] == pytest.approx(5.013)
    assert exchange.cached_tokens == 0
    assert decoded("llama.cpp-tiny/chat_stream", "curl").cached_tokens == 3


def test_several_tokens_in_one_event_as_vllm_counts_them() -> None:
    """One busy server, two events: the log-probabilities tell one token in the first and three in the second."""
    exchange = decoded("vllm/chat_logprobs", "socket")
    assert exchange.event_tokens == (1, 3)
    by_usage = decoded("vllm/completions_stream_contusage", "curl")
    assert sum(by_usage.event_tokens) == 12
    assert max(by_usage.event_tokens) > 1


def test_an_overloaded_vllm_answers_200_and_an_error_inside() -> None:
    text = (FIXTURES / "vllm/overload_503.txt").read_text()
    bodies = [part.split("\n\n", 1)[1] for part in text.split("--- shortest response verbatim:\n")[1:]]
    planned = PlannedRequest(0, 0, "chat", (Message("user", "x"),), 1, 16)
    kinds = []
    for body, status in zip(bodies, (200, 200, 503), strict=True):
        raw = body.split("\n#####")[0].replace("\n", "\r\n").encode() if status == 503 else body.encode()
        lines = [line for line in raw.splitlines(keepends=True) if line[:4] == b"data" or line[:1] in (b"\n", b"{")]
        pieces = [(i, line, 0) for i, line in enumerate(lines)]
        exchange = decode(
            Capture(planned, "chat", sent_ns=0, status=status, framing="close", body=Receives(pieces), complete=True)
        )
        assert exchange.failure is not None
        assert "engine is currently busy" in exchange.failure.message
        kinds.append(exchange.failure.kind)
    assert kinds == ["server_error", "server_error", "http"]


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, way in ANSWERS if "stream" in name])
def test_cutting_the_bytes_elsewhere_changes_nothing_but_stamps(name: str, way: str) -> None:
    capture = RECORDED[name][way].capture()
    whole = decode(capture, keep_text=True)
    raw = b"".join(data for _, data, _ in capture.body)
    for size in (1, 7, 1024):
        cuts = range(0, len(raw) + size, size)
        capture.body = Receives((0, raw[a:b], 0) for a, b in pairwise(cuts))
        again = decode(capture, keep_text=True)
        assert (again.text, again.failure, again.output_tokens, again.end_seen) == (
            whole.text,
            whole.failure,
            whole.output_tokens,
            whole.end_seen,
        )
        assert again.event_tokens == whole.event_tokens
