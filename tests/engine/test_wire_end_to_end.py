"""Answers of every kind that servers give, through a real socket, the transport and the decoder, judged as a whole.

For each: outcome, the segment in which every token event arrived (by the server's own send stamps), tokens per event,
counts with their source, how the stream ended, and exactly the flags that it must raise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest

from loadgen.engine.sockets import HAS_KERNEL_STAMPS
from loadgen.model import Exchange
from tests.engine.scripted import Scripted
from tests.faultserver import (
    DONE,
    FINISH,
    GAP_S,
    HOLD,
    ROLE,
    ROLE_NULL,
    bill,
    chat,
    completed_in,
    data,
    document,
    gzipped,
    measure,
    play,
    say,
    shred,
    stream,
    tool,
    used,
    write,
)

A, B, C = say("Hel"), say("lo "), say("sea", "length")
U = bill(used(3))
TAIL = U + DONE
SLACK_NS = 1_000_000  # clock error of a kernel stamp, with room: segments lie 20 times as far apart


@dataclass(frozen=True)
class Case:
    """What is sent after the head, and what must be read from it. Defaults: three tokens, all in order."""

    segments: tuple[bytes, ...]
    at: tuple[int, ...] = (1, 2, 3)  # the segment that completes each token event
    tokens: tuple[int, ...] = (1, 1, 1)
    answer_at: int | None = 1  # the segment of the first visible content
    output: int | None = 3
    source: str | None = "usage"
    prompt: int | None = 7
    reasoning: int | None = None
    cached: int | None = None
    end: str = "done"
    finish: str | None = "length"
    flags: tuple[str, ...] = ()
    text: str = "Hello sea"
    dialect: str = "chat"
    framing: str = "chunked"
    headers: tuple[str, ...] = ()


PLAIN = Case((ROLE, A, B, C, TAIL))
NO_USAGE = replace(PLAIN, source="events", prompt=None, flags=("no_usage",))
ITS_USE: dict[str, Any] = {"usage": used(3)}


def with_usage(*uses: object) -> tuple[bytes, ...]:
    """The plain stream with a usage field on each of its five chunks (... leaves it out)."""
    texts: tuple[dict[str, str], ...] = (
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo "},
        {"content": "sea"},
        {},
    )
    finish = (None, None, None, None, "length")
    more = [{} if use is ... else {"usage": use} for use in uses]
    return tuple(chat(text, why, **extra) for text, why, extra in zip(texts, finish, more, strict=True))


def eol(line_end: bytes) -> tuple[bytes, ...]:
    return tuple(segment.replace(b"\n", line_end) for segment in PLAIN.segments)


LINES = {
    "as vLLM sends it": PLAIN,
    "CRLF": replace(PLAIN, segments=eol(b"\r\n")),
    "CR": replace(PLAIN, segments=eol(b"\r")),
    "a byte-order mark": replace(PLAIN, segments=(b"\xef\xbb\xbf" + ROLE, *PLAIN.segments[1:])),
    "no space after the colon": replace(
        PLAIN, segments=tuple(segment.replace(b"data: ", b"data:") for segment in PLAIN.segments)
    ),
    "one event over several data lines": replace(
        PLAIN, segments=(ROLE, A.replace(b'"choices":', b'\ndata: "choices":\ndata: '), B, C, TAIL)
    ),
    "event, id and retry fields": replace(
        PLAIN, segments=(ROLE, b"event: message\nid: 7\nretry: 100\n" + A, B, C, TAIL)
    ),
    "comments": replace(
        PLAIN,
        segments=(
            b": OPENROUTER PROCESSING\n\n" + ROLE,
            b":\n\n" + A,
            b": ping - 2026-01-01\n\n" + B,
            C,
            b":\n\n" + TAIL,
        ),
    ),
    "a comment inside data": replace(PLAIN, segments=(b"data: : OPENROUTER PROCESSING\n\n", *PLAIN.segments[1:])),
    "data: null first": replace(PLAIN, segments=(b"data: null\n\n", *PLAIN.segments[1:])),
    "a blank line too many": replace(PLAIN, segments=(ROLE, b"\n\n" + A, B + b"\n", C, TAIL)),
    "UTF-8 cut inside a character": Case(
        (ROLE, say("漢")[:-30], say("漢")[-30:] + say("é")[:-31], say("é")[-31:], say("字", "length"), TAIL),
        at=(2, 3, 4),
        answer_at=2,
        text="漢é字",
    ),
    "a line of 600 KB": replace(PLAIN, segments=(ROLE, say("y" * 600_000), B, C, TAIL), text="y" * 600_000 + "lo sea"),
    "spaces are tokens": replace(
        PLAIN, segments=(ROLE, say(" the"), say(" "), say("\n", "length"), TAIL), text=" the \n"
    ),
    "an event that is no JSON": replace(
        PLAIN, segments=(ROLE, A, b"data: {oops\n\n" + B, C, TAIL), flags=("unparsable",)
    ),
    "[DONE] without a blank line": replace(PLAIN, segments=(ROLE, A, B, C, U + b"data: [DONE]")),
}
HTTP = {
    "until the connection closes": replace(PLAIN, framing="close"),
    "with a content-length": replace(PLAIN, framing="length"),
    "gzip": replace(
        PLAIN, segments=tuple(gzipped(*PLAIN.segments)), headers=("content-encoding: gzip",), flags=("compressed",)
    ),
    "no [DONE]": replace(PLAIN, segments=(ROLE, A, B, C, U), end="finish", flags=("no_done",)),
    "no [DONE], closed": replace(PLAIN, segments=(ROLE, A, B, C, U), framing="close", end="finish", flags=("no_done",)),
    "[DONE] without finish_reason": replace(
        PLAIN, segments=(ROLE, A, B, say("sea"), TAIL), finish=None, flags=("no_finish",)
    ),
}
CHUNKS = {
    "role in the same segment as the first token": replace(
        PLAIN, segments=(ROLE_NULL + A, B, C, TAIL), at=(0, 1, 2), answer_at=0
    ),
    "role with null content": replace(PLAIN, segments=(ROLE_NULL, A, B, C, TAIL)),
    "role only, no content": replace(PLAIN, segments=(chat({"role": "assistant"}), A, B, C, TAIL)),
    "role beside the first text": replace(
        PLAIN, segments=(b": x\n\n", chat({"role": "assistant", "content": "Hel"}), B, C, TAIL)
    ),
    "Azure: no choices first, a choice without delta": replace(
        PLAIN, segments=(data({"choices": [], "prompt_filter_results": []}), A, chat(None) + B, C, TAIL)
    ),
    "finish in a chunk of its own": replace(PLAIN, segments=(ROLE, A, B, say("sea"), FINISH + TAIL)),
    "stop on every chunk": replace(
        PLAIN, segments=(ROLE, say("Hel", "stop"), say("lo ", "stop"), say("sea", "stop"), TAIL), finish="stop"
    ),
    "error: null on good chunks": replace(
        PLAIN, segments=(ROLE, say("Hel", error=None), say("lo ", error=None), C, TAIL)
    ),
    "completions": replace(
        PLAIN,
        segments=(b": x\n\n", write("Hel"), write("lo "), write("sea", "length"), TAIL),
        dialect="completions",
    ),
    "llama.cpp completions": replace(
        PLAIN,
        segments=(b"data: null\n\n", write("Hel"), write("lo "), write("sea"), write("", "length", **ITS_USE) + DONE),
        dialect="completions",
    ),
    "refusal": replace(PLAIN, segments=(ROLE, chat({"refusal": "Hel"}), B, C, TAIL)),
    "content as a list of parts": replace(
        PLAIN, segments=(ROLE, chat({"content": [{"type": "text", "text": "Hel"}]}), B, C, TAIL)
    ),
    "reasoning_content": replace(
        PLAIN,
        segments=(ROLE, chat({"reasoning_content": "hm"}), chat({"reasoning_content": "m"}), C, TAIL),
        answer_at=3,
        text="sea",
        flags=("reasoning",),
    ),
    "reasoning": replace(
        PLAIN, segments=(ROLE, chat({"reasoning": "hm"}), B, C, TAIL), answer_at=2, text="lo sea", flags=("reasoning",)
    ),
    "reasoning that is counted, not streamed": replace(
        PLAIN,
        segments=(ROLE, A, B, C, bill(used(13, completion_tokens_details={"reasoning_tokens": 10})) + DONE),
        output=13,
        reasoning=10,
        flags=("longer", "reasoning"),
    ),
    "a tool call": replace(
        PLAIN,
        segments=(
            ROLE,
            tool(name="find"),
            tool(arguments='{"q":'),
            tool(arguments='"sea"}'),
            chat({}, "tool_calls") + TAIL,
        ),
        answer_at=None,
        text="",
        finish="tool_calls",
        flags=("tools",),
    ),
    "a tool call in one burst": replace(
        PLAIN,
        segments=(ROLE, tool(name="find") + tool(arguments='{"q":') + tool(arguments='"sea"}'), FINISH + TAIL),
        at=(1, 1, 1),
        answer_at=None,
        text="",
        flags=("tools", "coalesced"),
    ),
    "cached tokens": replace(
        PLAIN, segments=(ROLE, A, B, C, bill(used(3, prompt_tokens_details={"cached_tokens": 5})) + DONE), cached=5
    ),
}
COUNTS = {
    "usage on the finish chunk": replace(
        PLAIN, segments=(ROLE, A, B, say("sea"), chat({}, "length", **ITS_USE) + DONE)
    ),
    "usage on an empty text": replace(PLAIN, segments=(ROLE, A, B, C, say("", **ITS_USE) + DONE)),
    "usage with one choice (LiteLLM)": replace(PLAIN, segments=(ROLE, A, B, C, chat({}, **ITS_USE) + DONE)),
    "usage that counts up": replace(PLAIN, segments=(*with_usage(*(used(n) for n in (0, 1, 2, 3, 3))), DONE)),
    "usage that counts up by several": Case(
        (*with_usage(*(used(n) for n in (0, 2, 3, 7, 7))), DONE),
        tokens=(2, 1, 4),
        output=7,
        flags=("grouped", "longer"),
    ),
    "total_tokens 0 on every chunk": replace(NO_USAGE, segments=(*with_usage(*[{"total_tokens": 0}] * 5), DONE)),
    "zero usage on every chunk": replace(NO_USAGE, segments=(*with_usage(*[used(0, 0)] * 5), DONE)),
    "null usage, then one": replace(PLAIN, segments=(*with_usage(*[None] * 4, used(3)), DONE)),
    "usage without completion_tokens": replace(
        NO_USAGE, segments=(*PLAIN.segments[:4], bill({"prompt_tokens": 7}) + DONE), prompt=7
    ),
    "every field null": replace(
        NO_USAGE, segments=(*PLAIN.segments[:4], bill({"prompt_tokens": None, "completion_tokens": None}) + DONE)
    ),
    "x_groq": replace(
        PLAIN, segments=(ROLE, A, B, say("sea"), chat({}, "length", x_groq={"id": "r", "usage": used(3)}) + DONE)
    ),
    "usage long after finish_reason": replace(PLAIN, segments=(ROLE, A, B, C, b": wait\n\n", U, DONE)),
    "usage next to last": replace(PLAIN, segments=(ROLE, A, B, U + C, DONE)),
    "no usage": replace(NO_USAGE, segments=(ROLE, A, B, C, DONE)),
    "several tokens per event": Case(
        (ROLE, A, B, C, bill(used(9)) + DONE), tokens=(3, 3, 3), output=9, flags=("grouped", "longer")
    ),
    "token ids": Case(
        (
            ROLE,
            say("Hel", token_ids=[1, 2]),
            say("lo ", token_ids=[3]),
            say("sea", "length", token_ids=[4, 5, 6, 7]),
            TAIL,
        ),
        tokens=(1, 1, 1),
        flags=("counts_disagree",),
    ),
    "token ids that agree": Case(
        (
            ROLE,
            say("Hel", token_ids=[1, 2]),
            say("lo ", token_ids=[3]),
            say("sea", "length", token_ids=[4]),
            bill(used(4)) + DONE,
        ),
        tokens=(2, 1, 1),
        output=4,
        flags=("grouped", "longer"),
    ),
    "an empty text that is a token, by its id": replace(
        PLAIN,
        segments=(ROLE, say("Hel", token_ids=[1]), say("", token_ids=[2]), say("sea", "length", token_ids=[3]), TAIL),
        text="Helsea",
    ),
    "an empty text that is a token, by continuous usage": Case(
        (say("Hel", usage=used(1)), say("", usage=used(2)), say("sea", "length", usage=used(3)), DONE),
        at=(0, 1, 2),
        answer_at=0,
        text="Helsea",
    ),
    "an empty text that is none": Case(
        (ROLE, A, say(""), C, bill(used(2)) + DONE),
        at=(1, 3),
        tokens=(1, 1),
        output=2,
        text="Helsea",
        flags=("shorter",),
    ),
    "fewer than asked": Case(
        (ROLE, A, say("lo", "stop"), bill(used(2)) + DONE),
        at=(1, 2),
        tokens=(1, 1),
        output=2,
        finish="stop",
        text="Hello",
        flags=("shorter",),
    ),
    "several events in one receive": replace(
        PLAIN, segments=(ROLE, A + B, C, TAIL), at=(1, 1, 2), flags=("coalesced",)
    ),
}
CASES = LINES | HTTP | CHUNKS | COUNTS


def arrived(exchange: Exchange, server: Scripted) -> list[int]:
    """The segment after whose sending each token event arrived, and before the next one was sent."""
    begun = [before for before, _ in server.peers[-1].sends]
    return [sum(before <= at + SLACK_NS for before in begun) - 2 for at in exchange.event_ns]


def check_times(exchange: Exchange, server: Scripted, at: tuple[int, ...]) -> None:
    """Every event lies between the beginning of its segment's send and the next send: TTFT and gaps follow from it."""
    if not HAS_KERNEL_STAMPS:
        pytest.skip("process stamps may be late by as much as this machine is busy")
    assert exchange.stamp_source == "kernel"
    assert tuple(arrived(exchange, server)) == at
    assert list(exchange.event_ns) == sorted(exchange.event_ns)


@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_read_for_what_it_is(name: str) -> None:
    case = CASES[name]
    script = play(stream(*case.segments, framing=case.framing, headers=case.headers))
    (exchange,), server = measure(script, dialect=case.dialect)
    assert exchange.failure is None
    assert exchange.outcome == "ok"
    check_times(exchange, server, case.at)
    assert exchange.event_tokens == case.tokens
    assert (exchange.output_tokens, exchange.output_tokens_source) == (case.output, case.source)
    assert (exchange.prompt_tokens, exchange.reasoning_tokens, exchange.cached_tokens) == (
        case.prompt,
        case.reasoning,
        case.cached,
    )
    assert (exchange.end_seen, exchange.finish_reason, exchange.http_status) == (case.end, case.finish, 200)
    assert set(exchange.flags) == {"new_connection", *case.flags}
    assert exchange.text == case.text
    first = None if case.answer_at is None else exchange.event_ns[case.at.index(case.answer_at)]
    assert exchange.first_answer_ns == first


@pytest.mark.parametrize("seed", range(6))
def test_bytes_may_be_cut_anywhere(seed: int) -> None:
    events = (ROLE, say("漢"), say("é "), say("字", "length"))
    segments = shred(b"".join(events) + TAIL, 12, seed)
    at = completed_in(segments, events[1:])
    (exchange,), server = measure(play(stream(*segments)))
    assert exchange.failure is None
    check_times(exchange, server, tuple(at))
    assert (exchange.text, exchange.event_tokens) == ("漢é 字", (1, 1, 1))


def test_one_byte_at_a_time() -> None:
    whole = ROLE + A + C + bill(used(2)) + DONE
    steps = stream(*(whole[i : i + 1] for i in range(len(whole))), gap_s=0.0)
    (exchange,), _ = measure(play(steps), asked=2)
    assert (exchange.outcome, exchange.text, exchange.event_tokens) == ("ok", "Helsea", (1, 1))
    assert set(exchange.flags) <= {"new_connection", "coalesced"}


def test_a_tokenizer_counts_where_the_server_does_not() -> None:
    (exchange,), _ = measure(play(stream(ROLE, A, B, C, DONE)), tokenizer=len)
    assert (exchange.output_tokens, exchange.output_tokens_source) == (9, "tokenizer")
    assert exchange.event_tokens == (3, 3, 3)
    assert "grouped" in exchange.flags


@pytest.mark.parametrize("dialect", ["chat", "completions"])
def test_a_document_in_place_of_a_stream_claims_no_ttft(dialect: str) -> None:
    said = {"message": {"role": "assistant", "content": "Hello sea"}} if dialect == "chat" else {"text": "Hello sea"}
    answer = {"choices": [{"index": 0, "finish_reason": "length", **said}], "usage": used(3)}
    (exchange,), _ = measure(play(document("200 OK", json.dumps(answer).encode())), dialect=dialect)
    assert (exchange.outcome, exchange.output_tokens, exchange.output_tokens_source) == ("ok", 3, "usage")
    assert (exchange.event_ns, exchange.first_answer_ns) == ((), None)
    assert "not_streamed" in exchange.flags
    assert exchange.text == "Hello sea"


def test_a_stream_that_is_kept_open_after_done_is_told() -> None:
    (exchange,), _ = measure(play(stream(*PLAIN.segments, end=HOLD)))
    assert (exchange.outcome, exchange.end_seen) == ("ok", "done")
    assert "not_closed" in exchange.flags


def test_a_kept_connection_is_no_new_one() -> None:
    answer = stream(*PLAIN.segments, gap_s=GAP_S)
    exchanges, server = measure(play(answer, answer), requests=2)
    assert [("new_connection" in exchange.flags) for exchange in exchanges] == [True, False]
    assert [exchange.outcome for exchange in exchanges] == ["ok", "ok"]
    assert len(server.peers) == 1
