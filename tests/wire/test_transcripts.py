"""Recorded answers of seven real servers, read by the client and by a naive reader that shares no code with it.

The naive reader takes the `data:` lines one by one with the standard library; it knows nothing of framing, stamps or
cut bytes. What needs judgement (which answers failed and how, events whose text is empty) stands in tables, by hand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from loadgen.model import Capture, Exchange, Message, PlannedRequest
from loadgen.wire.timeline import answer, decode
from tests.wire.transcripts import FIXTURES, Answer, read

FILES = sorted(FIXTURES.rglob("*.txt"))
NAMES = [f"{path.parent.name}/{path.stem}" for path in FILES]

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


def decoded(path: Path, way: str) -> tuple[Exchange, Capture, Answer]:
    recorded = read(path)
    if way not in recorded:
        pytest.skip("not recorded this way")
    capture = recorded[way].capture()
    return decode(capture, keep_text=True), capture, recorded[way]


def test_every_kind_of_server_is_there() -> None:
    ways = [way for path in FILES for way in read(path)]
    assert ways.count("curl") > 80
    assert ways.count("socket") > 50
    assert set(FAILED) | set(BLANK) <= set(NAMES)


@pytest.mark.parametrize("way", ["curl", "socket"])
@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_an_answer_is_judged_for_what_it_was(path: Path, way: str) -> None:
    exchange, _, recorded = decoded(path, way)
    name = f"{path.parent.name}/{path.stem}"
    if name == "vllm/chat_logprobs" and way == "curl":
        assert not recorded.complete  # the machine stalled, and curl gave up before the first event
        assert exchange.failure is not None
        return
    assert (exchange.failure.kind if exchange.failure else None) == FAILED.get(name)
    assert exchange.http_status == recorded.status
    if exchange.failure is not None:
        assert exchange.failure.message.isprintable()
        assert 10 < len(exchange.failure.message) <= 500


@pytest.mark.parametrize("way", ["curl", "socket"])
@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_the_tokens_and_usage_of_a_stream_are_those_of_a_naive_reader(path: Path, way: str) -> None:
    exchange, capture, recorded = decoded(path, way)
    if exchange.outcome != "ok" or "not_streamed" in exchange.flags:
        pytest.skip("no stream")
    body = recorded.data_lines() if way == "curl" else dechunked_lines(recorded)
    naive = naively(body)
    name = f"{path.parent.name}/{path.stem}"
    blank = BLANK.get(name, 0) + (BLANK_BY_SOCKET.get(name, 0) if way == "socket" else 0)
    assert answer(capture) == exchange.text == naive.texts[min(naive.texts)]
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
        if path.stem != "chat_logprobs":
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


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_both_recordings_of_a_request_say_the_same(path: Path) -> None:
    recorded = read(path)
    if len(recorded) < 2 or not all(r.complete for r in recorded.values()):
        pytest.skip("not recorded in both ways")
    one, two = (decode(recorded[way].capture(), keep_text=True) for way in ("curl", "socket"))
    assert (one.outcome, one.text, one.output_tokens_source) == (two.outcome, two.text, two.output_tokens_source)
    if one.output_tokens_source == "usage":
        assert one.output_tokens == two.output_tokens


def test_a_document_claims_no_events() -> None:
    seen = 0
    for path in FILES:
        if path.stem.endswith("_nonstream"):
            for recorded in read(path).values():
                exchange = decode(recorded.capture())
                assert exchange.flags[:1] == ("not_streamed",)
                assert (exchange.event_ns, exchange.first_answer_ns) == ((), None)
                assert exchange.output_tokens_source == "usage"
                seen += 1
    assert seen >= 12


def test_llama_cpp_tells_its_own_times_and_what_its_cache_held() -> None:
    exchange = decode(read(FIXTURES / "llama.cpp-tiny/stop_seq.txt")["curl"].capture())
    assert exchange.server["predicted_n"] == 1
    assert exchange.server["prompt_ms"] == pytest.approx(5.013)
    assert exchange.cached_tokens == 0
    assert decode(read(FIXTURES / "llama.cpp-tiny/chat_stream.txt")["curl"].capture()).cached_tokens == 3


def test_several_tokens_in_one_event_as_vllm_counts_them() -> None:
    """One busy server, two events: the log-probabilities tell one token in the first and three in the second."""
    exchange = decode(read(FIXTURES / "vllm/chat_logprobs.txt")["socket"].capture())
    assert exchange.event_tokens == (1, 3)
    by_usage = decode(read(FIXTURES / "vllm/completions_stream_contusage.txt")["curl"].capture())
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
            Capture(planned, "chat", sent_ns=0, status=status, framing="close", body=pieces, complete=True)
        )
        assert exchange.failure is not None
        assert "engine is currently busy" in exchange.failure.message
        kinds.append(exchange.failure.kind)
    assert kinds == ["server_error", "server_error", "http"]


@pytest.mark.parametrize("path", [p for p in FILES if "stream" in p.stem], ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_cutting_the_bytes_elsewhere_changes_nothing_but_stamps(path: Path) -> None:
    for recorded in read(path).values():
        capture = recorded.capture()
        whole = decode(capture, keep_text=True)
        raw = b"".join(data for _, data, _ in capture.body)
        for size in (1, 7, 1024):
            cuts = range(0, len(raw) + size, size)
            capture.body = [(0, raw[a:b], 0) for a, b in pairwise(cuts)]
            again = decode(capture, keep_text=True)
            assert (again.text, again.failure, again.output_tokens, again.end_seen) == (
                whole.text,
                whole.failure,
                whole.output_tokens,
                whole.end_seen,
            )
            assert again.event_tokens == whole.event_tokens
