"""Runs of receives that are each one known event: read at once, with the same result as one after the other."""

from __future__ import annotations

import json
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.model import Capture, Message, Piece, PlannedRequest, Receives
from loadgen.wire.stream import Stream, read_stream

PLANNED = PlannedRequest(0, 0, "chat", (Message("user", "x"),), 8, 8)


def _event(delta: dict[str, object], finish: str | None = None, escaped: bool = False) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    value = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(value, ensure_ascii=escaped).encode() + b"\n\n"


def _chunk(data: bytes, size_line: str = "%x") -> bytes:
    return (size_line % len(data)).encode() + b"\r\n" + data + b"\r\n"


def _capture(chunks: list[bytes]) -> Capture:
    body: list[Piece] = [(1000 * n, chunk, n) for n, chunk in enumerate(chunks)]
    return Capture(PLANNED, "chat", status=200, body=Receives(body), complete=True)


def _one_by_one(capture: Capture) -> Stream:
    with patch("loadgen.wire.stream.shape", lambda *_: None):  # no shape is ever known: each event is parsed
        return read_stream(capture)


def _end() -> list[bytes]:
    return [_chunk(_event({}, "stop")), _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"]


ODD = ["", '"', "\\", "\n", "\x7f", "é", "汉字", "a" * 4000, " word"]
TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(ODD))


@given(
    texts=st.lists(TEXTS, min_size=1, max_size=40),
    odd=st.lists(st.sampled_from(["%x", "%X", "%04x", "%x;ext=1"]), min_size=1, max_size=5),
    reasoning=st.booleans(),
    joined=st.sets(st.integers(0, 39)),
    escaped=st.booleans(),
)
def test_at_once_is_one_after_the_other(
    texts: list[str], odd: list[str], reasoning: bool, joined: set[int], escaped: bool
) -> None:
    """Escapes, odd size lines, empty texts, events that came with the next: every stream reads the same both ways."""
    field = "reasoning_content" if reasoning else "content"
    chunks = [_chunk(_event({"role": "assistant", "content": ""}))]
    for n, text in enumerate(texts):
        chunk = _chunk(_event({field: text}, escaped=escaped), odd[n % len(odd)])
        if n in joined:
            chunks[-1] += chunk
        else:
            chunks.append(chunk)
    capture = _capture(chunks + _end())
    assert read_stream(capture) == _one_by_one(capture)


@pytest.mark.parametrize("tail", [[], [b"5\r\nhel"], [b"zz\r\n"], [b"0\r\n\r\n", _chunk(_event({"content": "late"}))]])
def test_where_the_body_ends_or_breaks_in_the_middle(tail: list[bytes]) -> None:
    chunks = [_chunk(_event({"content": f"w{n}"})) for n in range(70)]
    capture = replace(_capture(chunks + tail), complete=False)
    stream = read_stream(capture)
    assert stream == _one_by_one(capture)
    assert [event.at_ns for event in stream.events] == [1000 * n for n in range(70)]
    assert "".join(stream.visible[0]) == "".join(f"w{n}" for n in range(70))


def test_nearly_all_of_a_plain_stream_is_read_at_once() -> None:
    chunks = [_chunk(_event({"content": f" word{n % 7}"})) for n in range(200)]
    with patch("loadgen.wire.stream._take_plain") as slow:
        read_stream(_capture(chunks + _end()))
    assert slow.call_count <= 2
