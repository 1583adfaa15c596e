"""The null endpoint: what it sends is what was asked for, and its log is what it sent."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest

from loadgen.simulator.null import NullEndpoint, behaviour

US = 1_000


@pytest.fixture(scope="module")
def null() -> Iterator[NullEndpoint]:
    with NullEndpoint() as endpoint:
        yield endpoint


@pytest.fixture
def line(null: NullEndpoint) -> Iterator[socket.socket]:
    host, _, port = null.url.removeprefix("http://").removesuffix("/v1").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        yield sock
    null.log()


def post(model: str, tokens: int, number: int | None = None, usage: bool = True, field: str = "max_tokens") -> bytes:
    content = "hello there" if number is None else f"request #{number}"
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": content}],
            field: tokens,
            "stream": True,
            "stream_options": {"include_usage": usage},
        }
    ).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def answer(sock: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\r\n0\r\n\r\n"):
        more = sock.recv(1 << 16)
        assert more
        data += more
    return data


def documents(data: bytes) -> list[dict[str, object]]:
    """The events of one chunked answer, each in a chunk of its declared size."""
    body = data.partition(b"\r\n\r\n")[2]
    found: list[dict[str, object]] = []
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return found
        payload = body[:length].removeprefix(b"data: ").removesuffix(b"\n\n")
        found.append({} if payload == b"[DONE]" else msgspec.json.decode(payload))
        body = body[length + 2 :]


def texts(events: list[dict[str, object]]) -> list[str]:
    choices = [event["choices"][0] for event in events if event.get("choices")]  # type: ignore[index]
    return [choice["delta"]["content"] for choice in choices if choice["delta"].get("content")]


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("t50000-i10000", (50_000 * US, 10_000 * US, 1)),
        ("t1-i2-k3", (1 * US, 2 * US, 3)),
        ("t7", (7 * US, 10_000 * US, 1)),
        ("t0-i0-k0", (0, 0, 1)),
        ("gpt-4", (50_000 * US, 10_000 * US, 1)),
        ("", (50_000 * US, 10_000 * US, 1)),
    ],
)
def test_the_model_name_says_what_is_sent(model: str, meant: tuple[int, int, int]) -> None:
    assert behaviour(model) == meant


@pytest.mark.parametrize(("per_event", "tokens", "sizes"), [(1, 3, [1, 1, 1]), (4, 10, [4, 4, 2]), (8, 3, [3])])
def test_the_answer_holds_the_tokens_asked_for(
    line: socket.socket, per_event: int, tokens: int, sizes: list[int]
) -> None:
    line.sendall(post(f"t100-i100-k{per_event}", tokens))
    events = documents(answer(line))
    assert [len(text.split()) for text in texts(events)] == sizes
    assert events[-1] == {}
    assert events[-2]["usage"] == {"prompt_tokens": 2, "completion_tokens": tokens, "total_tokens": 2 + tokens}
    assert events[-3]["choices"][0]["finish_reason"] == "length"  # type: ignore[index]


def test_usage_comes_only_where_asked_for(line: socket.socket) -> None:
    line.sendall(post("t100-i100", 2, usage=False, field="max_completion_tokens"))
    data = answer(line)
    assert b"usage" not in data
    assert len(texts(documents(data))) == 2


def test_the_log_says_when_each_event_left(null: NullEndpoint, line: socket.socket) -> None:
    null.log()
    before = time.monotonic_ns()
    line.sendall(post("t30000-i2000", 20, number=41))
    answer(line)
    after = time.monotonic_ns()
    (sent,) = null.log()
    assert sent.number == 41
    assert before <= sent.received_ns <= sent.first_due_ns - 30_000 * US
    assert sent.gap_ns == 2_000 * US
    assert len(sent.sends_ns) == 20
    for k, stamp in enumerate(sent.sends_ns):
        assert sent.first_due_ns + k * sent.gap_ns <= stamp <= after  # late perhaps, early never
    assert all(a <= b for a, b in pairwise(sent.sends_ns))
    assert null.log() == []


def test_requests_follow_on_one_connection_and_may_be_cut_anywhere(null: NullEndpoint, line: socket.socket) -> None:
    null.log()
    for number in range(3):
        request = post("t100-i100", 2, number)
        for cut in (request[:9], request[9:60], request[60:]):
            line.sendall(cut)
            time.sleep(0.002)
        answer(line)
    line.sendall(post("t100-i100", 2, 3) + post("t100-i100", 2, 4))
    both = b""
    while both.count(b"\r\n0\r\n\r\n") < 2:
        both += line.recv(1 << 16)
    assert both.count(b"HTTP/1.1 200") == 2
    assert [sent.number for sent in null.log()] == [0, 1, 2, 3, 4]


def test_models_and_nonsense(line: socket.socket) -> None:
    line.sendall(b"GET /v1/models HTTP/1.1\r\n\r\n")
    head, _, body = line.recv(1 << 16).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert msgspec.json.decode(body)["data"]
    for nonsense in (b"{", b"[]", b'{"max_tokens":"many"}'):
        line.sendall(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(nonsense), nonsense))
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 400")


def test_a_client_that_leaves_does_not_disturb_others(null: NullEndpoint, line: socket.socket) -> None:
    address = line.getpeername()
    with socket.create_connection(address) as leaver:
        leaver.sendall(post("t1000-i1000", 5000, 1))
        leaver.recv(100)
    line.sendall(post("t1000-i1000", 30, 2))
    assert len(texts(documents(answer(line)))) == 30
    assert {sent.number for sent in null.log()} >= {2}
