"""Server-sent events: the same whatever ends the lines and wherever the bytes are cut; and never without bound."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import WireError
from loadgen.wire.sse import MAX_LINE, Decoder, Event

ENDS = ("\n", "\r\n", "\r")
# Data of one line: any text (CJK, emoji, tabs, spaces at both ends) without what would end the line.
LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1, max_size=20)
FILLER = st.sampled_from(
    ["", ": keep-alive\n\n", ":\n\n", ": OPENROUTER PROCESSING\n", "id: 7\n", "retry: 10\n", "x: y\n", "\n\n"]
)
CUTS = st.lists(st.integers(0, 10_000), max_size=20)


def feed(raw: bytes, edges: list[int]) -> list[Event]:
    decoder = Decoder()
    found = [event for a, b in pairwise(edges) for event in decoder.feed(raw[a:b])]
    return found + decoder.flush()


def events(raw: bytes, cuts: list[int] | None = None) -> list[Event]:
    return feed(raw, sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts or [])}))


def data(*lines: bytes) -> list[Event]:
    return [Event("", line) for line in lines]


BY_HAND = {
    "one": (b"data: a\n\n", data(b"a")),
    "two in one read": (b"data: a\n\ndata: b\n\n", data(b"a", b"b")),
    "no space": (b"data:a\n\n", data(b"a")),
    "one space is taken, not two": (b"data:  a \n\n", data(b" a ")),
    "CRLF": (b"data: a\r\n\r\ndata: b\r\n\r\n", data(b"a", b"b")),
    "CR": (b"data: a\r\rdata: b\r\r", data(b"a", b"b")),
    "mixed ends": (b"data: a\r\n\ndata: b\r\r\ndata: c\n\r", data(b"a", b"b", b"c")),
    "several data lines": (b"data: a\ndata: b\n\n", data(b"a\nb")),
    "a mark first": (b"\xef\xbb\xbfdata: a\n\n", data(b"a")),
    "a mark later is data": (b"data: \xef\xbb\xbf\n\n", data(b"\xef\xbb\xbf")),
    "comments": (b": x\n\n:\n\ndata: a\n:y\n\n", data(b"a")),
    "named": (b"event: error\ndata: a\n\ndata: b\n\n", [Event("error", b"a"), Event("", b"b")]),
    "an error needs no words": (b"event: error\n\n", [Event("error", b"")]),
    "another name without data is nothing": (b"event: ping\n\ndata: a\n\n", data(b"a")),
    "an error field": (b'error: {"code":500}\n\n', [Event("error", b'{"code":500}')]),
    "bare JSON": (b': x\n\n{"error":\n1}\n\n', data(b'{"error":')),
    "id and retry": (b"id: 1\nretry: 5\ndata: a\n\n", data(b"a")),
    "unknown fields": (b"foo: bar\nfoo\ndata: a\n\n", data(b"a")),
    "empty data": (b"data:\n\ndata: \n\ndata: a\n\n", data(b"a")),
    "no blank line at the end": (b"data: a\n\ndata: [DONE]", data(b"a", b"[DONE]")),
    "no line end at the end, named": (b"event: error\ndata: x", [Event("error", b"x")]),
    "half a mark": (b"\xef\xbb", []),
    "nothing": (b"", []),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_events_by_hand_cut_at_every_byte(name: str) -> None:
    raw, expected = BY_HAND[name]
    assert events(raw) == expected
    assert feed(raw, list(range(len(raw) + 1))) == expected
    for cut in range(len(raw) + 1):
        assert events(raw, [cut]) == expected


@given(st.lists(st.tuples(LINE, FILLER), max_size=8), st.sampled_from(ENDS), st.booleans(), CUTS)
def test_any_legal_stream_is_read_however_it_is_cut(
    content: list[tuple[str, str]], end: str, mark: bool, cuts: list[int]
) -> None:
    text = "".join(f"{filler}data: {line}\n\n" for line, filler in content).replace("\n", end)
    raw = (b"\xef\xbb\xbf" if mark else b"") + text.encode()
    assert events(raw, cuts) == data(*(line.encode() for line, _ in content))


@given(st.binary(max_size=300) | st.text("data: \n\r:x\ufeff漢", max_size=80).map(str.encode), CUTS)
def test_any_bytes_are_read_the_same_however_they_are_cut(raw: bytes, cuts: list[int]) -> None:
    assert events(raw, cuts) == events(raw) == feed(raw, list(range(len(raw) + 1)))


def test_plain_text_has_no_field() -> None:
    decoder = Decoder()
    decoder.feed(b"Internal Server Error\n\n")
    assert not decoder.saw_field


def test_long_lines_are_events() -> None:
    raw = b"data: " + b"x" * (700 << 10) + b"\n\n"
    assert events(raw, list(range(0, len(raw), 1400))) == data(b"x" * (700 << 10))


def endless(decoder: Decoder, first: bytes, block: bytes, found: list[Event]) -> None:
    """Feed `first` and then `block` again and again, up to three times the cap."""
    found += decoder.feed(first)
    for _ in range(3 * MAX_LINE // len(block)):
        found += decoder.feed(block)


@pytest.mark.parametrize("size", [1 << 14, 1 << 20, MAX_LINE * 2])
def test_a_line_without_end_is_an_error_and_what_came_before_is_kept(size: int) -> None:
    decoder, found = Decoder(), list[Event]()
    with pytest.raises(WireError, match="16 MiB"):
        endless(decoder, b"data: a\n\ndata: ", b"x" * min(size, MAX_LINE), found)
    assert found == data(b"a")
    with pytest.raises(WireError):
        decoder.flush()


def test_a_line_that_is_too_long_in_one_piece() -> None:
    decoder = Decoder()
    assert decoder.feed(b"data: a\n\ndata: " + b"x" * MAX_LINE + b"\n\ndata: b\n\n") == data(b"a")
    with pytest.raises(WireError):
        decoder.feed(b"data: c\n\n")


def test_an_event_of_endless_lines_is_an_error_too() -> None:
    with pytest.raises(WireError, match="event of over"):
        endless(Decoder(), b"", b"data:" + b" " * 4000 + b"\n", [])
