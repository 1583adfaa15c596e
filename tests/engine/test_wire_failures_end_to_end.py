"""Everything that is no success, through a real socket, transport and decoder: kind, reason, and what is kept."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from loadgen.engine.timeouts import Limits
from tests.faultserver import (
    CLOSE,
    DONE,
    FINISH,
    GAP_S,
    HOLD,
    RESET,
    ROLE,
    Act,
    Step,
    bill,
    chat,
    data,
    document,
    head,
    measure,
    play,
    refused,
    say,
    stream,
    used,
    write,
)

MS = 1_000_000
PATIENT = Limits(first_ns=1000 * MS)  # what comes before the silence comes in time, although the machine may pause
A, B, C = say("Hel"), say("lo "), say("sea", "length")
ERROR: dict[str, Any] = {"error": {"message": "no memory left", "type": "Service Unavailable", "code": 503}}
PAGE = b"<html><body><h1>Bad Gateway</h1></body></html>"


@dataclass(frozen=True)
class Fails:
    """A script, and how its request must be judged. `events` are the token events that must be kept."""

    script: Sequence[Step]
    kind: str
    words: str
    events: int = 0
    status: int | None = 200
    end: str | None = None
    flags: tuple[str, ...] = ()
    limits: Limits | None = None
    dialect: str = "chat"


STATUS = {
    "401": Fails(refused("401 Unauthorized", "bad key"), "http", "401: bad key", status=401, end="eof"),
    "400": Fails(
        refused("400 Bad Request", "maximum context length is 2048 tokens"), "http", "context", status=400, end="eof"
    ),
    "429": Fails(
        refused("429 Too Many Requests", "slow down", "retry-after: 7"), "http", "retry-after 7", status=429, end="eof"
    ),
    "503": Fails(refused("503 Service Unavailable", "Loading model"), "http", "Loading", status=503, end="eof"),
    "422": Fails(
        document("422 Unprocessable Entity", b'{"detail":[{"msg":"extra field ignore_eos"}]}'),
        "http",
        "ignore_eos",
        status=422,
        end="eof",
    ),
    "500, error as a string": Fails(
        document("500 Internal Server Error", b'{"error":"out of luck"}'), "http", "out of luck", status=500, end="eof"
    ),
    "a proxy's page with 502": Fails(
        document("502 Bad Gateway", PAGE, kind="text/html"), "http", "Bad Gateway", status=502, end="eof"
    ),
    "an error status without a body": Fails(document("404 Not Found", b""), "http", "404", status=404, end="eof"),
    "a redirect": Fails(
        document("307 Temporary Redirect", b"", "location: http://127.0.0.1:1/v2"),
        "http",
        "redirect to http://127.0.0.1:1/v2",
        status=307,
        end="eof",
    ),
    "a proxy's page with 200": Fails(
        document("200 OK", PAGE, kind="text/html"), "protocol", "neither an event stream", end="eof"
    ),
    "an empty 200": Fails(document("200 OK", b""), "empty", "without an output token", end="eof"),
    "an empty stream": Fails(stream(), "empty", "without an output token", end="eof"),
}
INSIDE = {
    "an error object": Fails(stream(data(ERROR), DONE), "server_error", "no memory left", end="done"),
    "an error object without [DONE]": Fails(stream(data(ERROR)), "server_error", "no memory left", end="eof"),
    "an error string": Fails(stream(data({"error": "no luck"})), "server_error", "no luck", end="eof"),
    "an error after tokens": Fails(
        stream(ROLE, A, B, data(ERROR), DONE), "server_error", "no memory left", events=2, end="done"
    ),
    "an error beside choices": Fails(stream(ROLE, say("Hel", **ERROR), DONE), "server_error", "memory", 1, end="done"),
    "an error event": Fails(
        stream(ROLE, A, b"event: error\n" + data({"message": "no memory left"})), "server_error", "memory", 1, end="eof"
    ),
    "an error event in words": Fails(
        stream(ROLE, A, b"event: error\ndata: no memory left\n\n"),
        "server_error",
        "no memory left",
        events=1,
        end="eof",
        flags=("unparsable",),
    ),
    "an error field (llama.cpp)": Fails(
        stream(ROLE, A, b'error: {"code":500,"message":"no memory left"}\n\n'), "server_error", "memory", 1, end="eof"
    ),
    "finish_reason error": Fails(
        stream(ROLE, A, chat({}, "error"), DONE), "server_error", "finish_reason error", events=1, end="done"
    ),
    "an error document with 200": Fails(
        document("200 OK", b'{"error":{"message":"no memory left"}}'), "server_error", "memory", end="eof"
    ),
    "completions": Fails(
        stream(write("Hel"), data(ERROR), DONE), "server_error", "memory", 1, end="done", dialect="completions"
    ),
}
NOTHING = {
    "[DONE] alone": Fails(stream(DONE), "empty", "without an output token", end="done"),
    "role, then [DONE]": Fails(stream(ROLE, DONE), "empty", "without an output token", end="done"),
    "role, finish, usage 0": Fails(
        stream(ROLE, FINISH, bill(used(0)), DONE), "empty", "without an output token", end="done"
    ),
    "only comments": Fails(stream(b": wait\n\n", b": wait\n\n"), "empty", "without an output token", end="eof"),
    "what is no JSON, then [DONE]": Fails(
        stream(b"data: {nope\n\n", DONE), "protocol", "could be parsed: {nope", end="done", flags=("unparsable",)
    ),
    "only what is no JSON": Fails(
        stream(b"data: oops\n\n", b"data: {\n\n"),
        "protocol",
        "none of which could be parsed",
        end="eof",
        flags=("unparsable",),
    ),
}
CUT = {
    "the chunks stop": Fails(stream(ROLE, A, B, end=CLOSE), "truncated", "cut off", events=2, end="cut"),
    "the length is not reached": Fails(
        [(0.0, head("200 OK", "content-length: 9999")), (GAP_S, ROLE + A), (GAP_S, CLOSE)],
        "truncated",
        "cut off",
        events=1,
        end="cut",
    ),
    "an end of file that nothing announced": Fails(
        stream(ROLE, A, B, framing="close"), "truncated", "without [DONE] or finish_reason", events=2, end="eof"
    ),
    "chunks that end well, too early": Fails(
        stream(ROLE, A, B), "truncated", "without [DONE] or finish_reason", events=2, end="eof"
    ),
    "after the role": Fails(stream(ROLE, framing="close"), "truncated", "before the first token", end="eof"),
    "a reset": Fails(stream(ROLE, A, B, end=RESET), "truncated", "", events=2, end="cut"),
    "closed before the head": Fails([(0.0, CLOSE)], "truncated", "", status=None),
    "bad chunks": Fails(
        [(0.0, head("200 OK", "transfer-encoding: chunked")), (GAP_S, b"zz\r\n" + A), (GAP_S, CLOSE)],
        "protocol",
        "",
        end="cut",
    ),
    "not HTTP": Fails([(0.0, b"SSH-2.0-OpenSSH_9.6\r\n\r\n")], "protocol", "", status=None, end="cut"),
}
SILENT = {
    "no answer": Fails(
        [(0.0, HOLD)], "timeout", "first token", status=None, limits=Limits(first_ns=150 * MS), flags=("censored",)
    ),
    "nothing after the head": Fails(
        stream(end=HOLD), "timeout", "first token", limits=PATIENT, end="cut", flags=("censored",)
    ),
    "nothing after the role": Fails(
        stream(ROLE, end=HOLD),
        "timeout",
        "first token",
        limits=PATIENT,
        end="cut",
        flags=("censored",),
    ),
    "comments for ever": Fails(
        stream(*[b": wait\n\n"] * 900),
        "timeout",
        "first token",
        limits=PATIENT,
        end="cut",
        flags=("censored",),
    ),
    "silence in the middle": Fails(
        stream(ROLE, A, B, end=HOLD), "timeout", "token", events=2, limits=Limits(idle_ns=1000 * MS), end="cut"
    ),
    "comments in the middle": Fails(
        stream(ROLE, A, *[b":\n\n"] * 900), "timeout", "token", events=1, limits=Limits(idle_ns=1000 * MS), end="cut"
    ),
    "too long as a whole": Fails(
        stream(ROLE, *[A] * 900), "timeout", "", events=-1, limits=Limits(total_ns=1000 * MS), end="cut"
    ),
}
CASES = STATUS | INSIDE | NOTHING | CUT | SILENT


@pytest.mark.parametrize("name", CASES)
def test_a_failure_is_named_and_keeps_what_came(name: str) -> None:
    case = CASES[name]
    (exchange,), _ = measure(play(case.script), limits=case.limits, dialect=case.dialect)
    assert exchange.failure is not None
    assert (exchange.outcome, exchange.failure.kind) == ("failed", case.kind)
    assert case.words in exchange.failure.message
    assert len(exchange.failure.message) <= 500
    assert "\n" not in exchange.failure.message
    assert exchange.http_status == case.status
    assert exchange.end_seen == case.end
    assert set(exchange.flags) == {"new_connection", *case.flags}
    if case.events < 0:
        assert exchange.event_ns
    else:
        assert len(exchange.event_ns) == len(exchange.event_tokens) == case.events
    assert exchange.end_ns is not None
    assert exchange.sent_ns is not None
    assert exchange.end_ns >= exchange.sent_ns


@pytest.mark.parametrize("last", [CLOSE, RESET])
def test_a_kept_connection_that_the_server_closes_when_asked_again_is_stale(last: Act) -> None:
    exchanges, _ = measure(play(stream(ROLE, A, B, C, DONE), [(0.0, last)]), requests=2)
    assert exchanges[0].outcome == "ok"
    assert exchanges[1].failure is not None
    assert exchanges[1].failure.kind == "stale"
    assert exchanges[1].event_ns == ()


def test_a_kept_connection_that_was_closed_in_time_is_replaced() -> None:
    answer = [*stream(ROLE, A, B, C, DONE), (0.0, CLOSE)]
    exchanges, server = measure(play(answer), requests=2, closing=True)
    assert [exchange.outcome for exchange in exchanges] == ["ok", "ok"]
    assert all("new_connection" in exchange.flags for exchange in exchanges)
    assert len(server.peers) == 2


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: nobody else gets the port, and connecting is refused
        (exchange,) = measure(play(), url=f"http://127.0.0.1:{taken.getsockname()[1]}/v1/chat/completions")[0]
    assert exchange.failure is not None
    assert exchange.failure.kind == "connect"
    assert (exchange.sent_ns, exchange.http_status, exchange.end_seen) == (None, None, None)


def test_one_token_does_not_hide_what_follows() -> None:
    """A failure after tokens keeps their times: they were seen, although the request failed."""
    (exchange,), server = measure(play(stream(ROLE, A, B, data(ERROR))))
    begun = [before for before, _ in server.peers[0].sends]
    assert begun[2] <= exchange.event_ns[0] + MS
    assert exchange.event_ns[0] < exchange.event_ns[1]
