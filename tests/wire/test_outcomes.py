"""What makes a request failed, ok or cancelled, how its stream ended, and what is kept of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from loadgen.model import FLAGS, Capture, Failure
from loadgen.wire.timeline import decode
from tests.wire.made import DONE, bill, capture, chat, event, say, stream

ROLE = chat({"role": "assistant", "content": ""})
A, B = say("a"), say("b")
LAST = say("c", "stop")
BOOM: dict[str, Any] = {"error": {"message": "boom"}}
ERROR = event({"error": {"message": "no memory", "code": 503}})
CUT = Failure("truncated", "connection lost")
IDLE = Failure("timeout", "no token for 60 s")
STOP = Failure("cancelled", "the run was interrupted")
PAGE = b"<!DOCTYPE html><html><head><style>\n:root{color:red}\n</style></head><body><h1>Bad Gateway</h1></body></html>"


@dataclass(frozen=True)
class Is:
    """A capture, and the judgement on it: the kind of failure (None: ok), words of it, tokens kept, end, flags."""

    capture: Capture
    kind: str | None
    words: str = ""
    tokens: int = 0
    end: str | None = "eof"
    flags: frozenset[str] = frozenset()


def judged(segments: tuple[bytes, ...], kind: str | None, words: str = "", tokens: int = 0, **more: Any) -> Is:
    end, flags = more.pop("end", "eof"), more.pop("flags", "no_usage" if kind is None else "")
    return Is(stream(*segments, **more), kind, words, tokens, end, frozenset(flags.split()))


def cut(*segments: bytes, **more: Any) -> Is:
    """A connection that broke after these segments."""
    return judged(segments, more.pop("kind", "truncated"), complete=False, failure=more.pop("failure", CUT), **more)


def document(body: bytes, status: int = 200, **more: Any) -> Is:
    return judged((body,), more.pop("kind"), more.pop("words", ""), status=status, **more)


CASES: dict[str, Is] = {
    "a good one": judged((ROLE, A, LAST, DONE), None, tokens=2, end="done"),
    "no [DONE]": judged((ROLE, A, LAST), None, tokens=2, end="finish", flags="no_usage no_done"),
    "[DONE] alone ends it": judged((A, B, DONE), None, tokens=2, end="done", flags="no_usage no_finish"),
    "neither": judged((A, B), "truncated", "without [DONE] or finish_reason", 2),
    "usage after finish, no [DONE]": judged((A, LAST, bill(2)), None, tokens=2, end="finish", flags="no_done shorter"),
    "cut before the end": cut(A, B, words="connection lost", tokens=2, end="cut"),
    "cut inside an event": cut(A, B[:20], words="connection lost", tokens=1, end="cut"),
    "cut after finish_reason": cut(A, LAST, kind=None, tokens=2, end="finish", flags="no_usage no_done not_closed"),
    "cut after [DONE]": cut(A, LAST, DONE, kind=None, tokens=2, end="done", flags="no_usage not_closed"),
    "cut, stop on every chunk": cut(say("a", "stop"), say("b", "stop"), words="lost", tokens=2, end="cut"),
    "cut, unnoticed by the transport": judged((A, B), "truncated", "cut off", 2, complete=False, end="cut"),
    "cut before anything": cut(words="connection lost", end="cut"),
    "stop on every chunk, ended": judged(
        (say("a", "stop"), say("b", "stop")), None, tokens=2, end="finish", flags="no_usage no_done"
    ),
    "idle": cut(A, B, failure=IDLE, kind="timeout", words="60 s", tokens=2, end="cut"),
    "idle after [DONE]": cut(A, LAST, DONE, failure=IDLE, kind=None, tokens=2, end="done", flags="no_usage not_closed"),
    "no first token": cut(ROLE, failure=IDLE, kind="timeout", words="60 s", end="cut", flags="censored"),
    "cancelled": cut(A, failure=STOP, kind="cancelled", words="interrupted", tokens=1, end="cut"),
    "cancelled before a token": cut(failure=STOP, kind="cancelled", end="cut", flags="censored"),
    "never connected": judged(
        (), "connect", "refused", complete=False, failure=Failure("connect", "refused"), status=None, end=None
    ),
    "stale": judged((), "stale", "", complete=False, failure=Failure("stale", "closed"), status=None, end=None),
    "an error": judged((ERROR, DONE), "server_error", "no memory (503)", end="done"),
    "an error after tokens": judged((ROLE, A, B, ERROR, DONE), "server_error", "no memory", 2, end="done"),
    "an error, then cut": cut(A, ERROR, kind="server_error", words="no memory", tokens=1, end="cut"),
    "an error string": judged((A, event({"error": "boom"})), "server_error", "boom", 1),
    "an error beside choices": judged((A, say("b", **BOOM), DONE), "server_error", "boom", 2, end="done"),
    "an error in the choice": judged(
        (event({"choices": [{"index": 0, "delta": {}, **BOOM}]}), DONE), "server_error", "boom", end="done"
    ),
    "an error event": judged((A, event({"message": "boom"}, "error"), DONE), "server_error", "boom", 1, end="done"),
    "an error event with a bare code": judged((A, event(500, "error")), "server_error", "500", 1),
    "an error event without words": judged((A, b"event: error\n\n"), "server_error", "without a reason", 1),
    "an error event in words": judged(
        (A, b"event: error\ndata: out of\ndata: luck\n\n"), "server_error", "out of luck", 1, flags="unparsable"
    ),
    "an error field": judged((A, b'error: {"code":500,"message":"boom"}\n\n'), "server_error", "boom (500)", 1),
    "an error without a field": judged((b": wait\n\n", b'{"error":{"message":"boom"}}'), "server_error", "boom"),
    "finish_reason error": judged((A, chat({}, "error"), DONE), "server_error", "finish_reason error", 1, end="done"),
    "error: null is none": judged((say("a", error=None), say("b", "stop", error=None) + DONE), None, "", 2, end="done"),
    "400": document(b'{"error":{"message":"too long"}}', 400, kind="http", words="HTTP 400: too long"),
    "422": document(b'{"detail":[{"loc":["body","x"],"msg":"extra"}]}', 422, kind="http", words="body.x: extra"),
    "502 with a page": document(PAGE, 502, kind="http", words="HTTP 502: Bad Gateway"),
    "503 in words": document(b"Loading model", 503, kind="http", words="HTTP 503: Loading model"),
    "500 as a stream": document(ERROR, 500, kind="http", words="HTTP 500"),
    "404 without a word": judged((), "http", "HTTP 404: no reason given", status=404),
    "200 with a page": document(PAGE, kind="protocol", words="neither an event stream nor a JSON answer: Bad Gateway"),
    "200 with other JSON": document(b'{"status":"ok"}', kind="protocol", words="neither"),
    "200 with words": document(b"hello", kind="protocol", words="hello"),
    "200 with an error document": document(b'{"error":{"message":"boom"}}', kind="server_error", words="boom"),
    "200 with half a document": document(b'{"choices":[{"mess', kind="protocol", words="neither"),
    "200 with nothing": judged((), "empty", "without an output token"),
    "200 with blank lines": judged((b"\n\n", b"\r\n"), "empty", "without an output token"),
    "only comments": judged((b": a\n\n", b":\n\n"), "empty", "without an output token"),
    "role and [DONE]": judged((ROLE, DONE), "empty", "without an output token", end="done"),
    "role and finish": judged((ROLE, chat({}, "stop")), "empty", "without an output token", end="finish"),
    "role and the end": judged((ROLE,), "truncated", "before the first token"),
    "all reasoning hidden": judged(
        (ROLE, chat({}, "length"), bill(9, completion_tokens_details={"reasoning_tokens": 9}) + DONE),
        "empty",
        end="done",
        flags="reasoning",
    ),
    "nothing but broken JSON": judged((b"data: {oops\n\n", b"data: }\n\n"), "protocol", "2 events", flags="unparsable"),
    "one broken event": judged(
        (A, b"data: {oops\n\n", LAST, DONE), None, tokens=2, end="done", flags="no_usage unparsable"
    ),
    "an empty answer": document(b'{"choices":[{"message":{"content":""}}]}', kind="empty", flags="not_streamed"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_request_is_judged(name: str) -> None:
    case = CASES[name]
    exchange = decode(case.capture)
    assert (exchange.failure.kind if exchange.failure else None) == case.kind
    assert exchange.outcome == ("ok" if case.kind is None else "cancelled" if case.kind == "cancelled" else "failed")
    assert case.words in (exchange.failure.message if exchange.failure else "")
    assert len(exchange.event_ns) == sum(exchange.event_tokens) == case.tokens
    assert exchange.end_seen == case.end
    assert set(exchange.flags) == case.flags
    assert set(exchange.flags) <= FLAGS.keys()


def test_partial_tokens_of_a_failure_are_counted_by_what_came() -> None:
    exchange = decode(stream(ROLE, A, B, failure=CUT, complete=False))
    assert (exchange.output_tokens, exchange.output_tokens_source) == (2, "events")
    counted = [
        say(t, usage={"prompt_tokens": 7, "completion_tokens": 3 * n, "total_tokens": 7 + 3 * n})
        for n, t in ((1, "a"), (2, "b"))
    ]
    exchange = decode(stream(*counted, failure=IDLE, complete=False))
    assert (exchange.output_tokens, exchange.output_tokens_source, exchange.event_tokens) == (6, "usage", (3, 3))


def test_a_document_counts_but_claims_no_time() -> None:
    answer = (
        b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}}'
    )
    for body in (answer, b"\n  " + answer, b"\xef\xbb\xbf" + answer):
        exchange = decode(capture([(0.1, body[:9]), (0.2, body[9:])], asked=5), keep_text=True)
        assert (exchange.outcome, exchange.flags, exchange.text) == ("ok", ("not_streamed",), "hi")
        assert (exchange.prompt_tokens, exchange.output_tokens, exchange.cached_tokens) == (7, 5, 4)
        assert (exchange.event_ns, exchange.event_tokens, exchange.first_answer_ns) == ((), (), None)
    by_tokenizer = decode(
        capture([(0.1, b'{"choices":[{"text":"hi you"}]}')]), count_tokens=lambda text: len(text.split())
    )
    assert (by_tokenizer.output_tokens, by_tokenizer.output_tokens_source) == (2, "tokenizer")


def test_what_an_http_error_says_beside_its_body() -> None:
    def message(status: int, *headers: tuple[str, str]) -> str:
        failure = decode(capture([(0.1, b'{"error":"no"}')], status=status, headers=headers)).failure
        assert failure is not None
        assert failure.kind == "http"
        return failure.message

    assert message(429, ("retry-after", "7")) == "HTTP 429: no (retry-after 7)"
    assert message(307, ("location", "http://127.0.0.1/v2")) == "HTTP 307: no (redirect to http://127.0.0.1/v2)"
    assert message(304) == "HTTP 304: no"


def test_broken_framing_is_a_failure_only_before_the_end() -> None:
    def chunked(*parts: bytes) -> Capture:
        made = capture([(0.1, b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"oops\r\n")])
        made.framing = "chunked"
        made.complete = False
        return made

    broken = decode(chunked(A, B))
    assert broken.failure == Failure("protocol", "not a chunk size: b'oops'")
    assert broken.event_tokens == (1, 1)
    late = decode(chunked(A, LAST, DONE))
    assert (late.outcome, {"unparsable", "not_closed"} <= set(late.flags)) == ("ok", True)


def test_a_line_over_the_cap_is_a_failure_that_keeps_what_came() -> None:
    exchange = decode(capture([(0.1, A + b"data: "), *[(0.2, b"x" * (1 << 20))] * 18, (0.3, B + DONE)]))
    assert exchange.failure == Failure("protocol", "a line of over 16 MiB")
    assert exchange.event_tokens == (1,)


def test_flags_of_length_connection_and_compression() -> None:
    made = stream(A, LAST, bill(2), DONE, asked=2, headers=(("content-encoding", "identity"),))
    assert decode(made).flags == ()
    made.connect_start_ns, made.connected_ns = -2, -1
    assert decode(made).flags == ("new_connection",)
    assert decode(stream(A, LAST, bill(2), DONE, asked=3)).flags == ("shorter",)
    assert decode(stream(A, LAST, bill(2), DONE, asked=1)).flags == ("longer",)
    # Without the server's count nobody knows that an answer is shorter: events are not tokens.
    assert decode(stream(A, LAST, DONE, asked=3)).flags == ("no_usage",)
