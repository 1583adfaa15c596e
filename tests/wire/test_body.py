"""Chunked framing and compression: taken off wherever the bytes are cut; each byte keeps the stamp of its piece."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import WireError
from loadgen.model import Framing, Piece
from loadgen.wire.body import Dechunker, payload

CUTS = st.lists(st.integers(0, 5000), max_size=12)


def pieces(raw: bytes, cuts: list[int]) -> list[Piece]:
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    return [(n, raw[a:b], 0) for n, (a, b) in enumerate(pairwise(edges))]


def read(body: list[Piece], framing: Framing = "chunked", encoding: str = "") -> bytes:
    return b"".join(data for _, data, _ in payload(body, framing, encoding))


def framed(parts: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    chunks = b"".join(b"%X%b\r\n%b\r\n" % (len(part), extension, part) for part in parts if part)
    return chunks + b"0" + extension + b"\r\n" + trailer + b"\r\n"


def test_chunks_by_hand() -> None:
    body = [
        (1, b"5;name=value\r\nhel", 0),
        (2, b"lo\r", 0),
        (3, b"\n3\r\nsea\r\n", 0),
        (4, b"0\r\nX: y\r\n\r\nrest", 0),
    ]
    assert list(payload(body, "chunked")) == [(1, b"hel", 0), (2, b"lo", 0), (3, b"sea", 0)]


@given(st.lists(st.binary(max_size=300), max_size=6), CUTS, st.sampled_from([b"", b" ", b";a=b", b';q="\xff"']), CUTS)
def test_chunks_may_be_cut_anywhere(parts: list[bytes], cuts: list[int], extension: bytes, more: list[int]) -> None:
    raw = framed(parts, extension, b"Trailer: 1\r\n" if more else b"")
    assert read(pieces(raw, cuts)) == b"".join(parts)


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=5), CUTS)
def test_a_byte_has_the_stamp_of_the_piece_that_brought_it(parts: list[bytes], cuts: list[int]) -> None:
    raw = framed(parts)
    body = pieces(raw, cuts)
    came: list[int] = []
    for stamp, data, _ in payload(body, "chunked"):
        came += [stamp] * len(data)
    place, at = [], 0
    for part in parts:
        at += len(b"%X\r\n" % len(part))
        place += range(at, at + len(part))
        at += len(part) + 2
    ends = [sum(len(data) for _, data, _ in body[: n + 1]) for n in range(len(body))]
    assert came == [next(n for n, end in enumerate(ends) if where < end) for where in place]


@given(st.binary(max_size=400), CUTS)
def test_any_bytes_are_read_the_same_however_they_are_cut(raw: bytes, cuts: list[int]) -> None:
    def outcome(body: list[Piece]) -> tuple[bytes, bool]:
        got: list[bytes] = []
        try:
            got += [data for _, data, _ in payload(body, "chunked")]
        except WireError:
            return b"", True
        return b"".join(got), False

    assert outcome(pieces(raw, cuts)) == outcome([(0, raw, 0)])


@pytest.mark.parametrize(
    "junk", [b"xyz\r\n", b"0x10\r\n", b"-1\r\n", b"\r\n", b"1_0\r\n", b"5\r\nhello!!", b"F" * 9000]
)
def test_what_came_before_a_broken_chunk_is_kept(junk: bytes) -> None:
    got: list[bytes] = []
    with pytest.raises(WireError):
        got.extend(data for _, data, _ in payload([(0, b"2\r\nok\r\n" + junk, 0), (1, b"2\r\nno\r\n", 0)], "chunked"))
    assert b"".join(got).startswith(b"ok")
    assert b"no" not in b"".join(got)


def test_the_end_is_known() -> None:
    decoder = Dechunker()
    assert decoder.feed(b"1\r\na\r\n0\r\n") == b"a"
    assert not decoder.ended
    assert decoder.feed(b"\r\n") == b""
    assert decoder.ended


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate", "GZIP", "identity, gzip", "", "identity"])
@given(text=st.binary(min_size=1, max_size=3000), cuts=CUTS)
def test_compression_is_taken_off(encoding: str, text: bytes, cuts: list[int]) -> None:
    packers = {"gzip": gzip.compress, "flate": zlib.compress}
    pack = next((pack for name, pack in packers.items() if name in encoding.lower()), bytes)
    assert read(pieces(pack(text), cuts), "close", encoding) == text


def test_raw_deflate_and_members_of_gzip() -> None:
    packer = zlib.compressobj(wbits=-15)
    raw = packer.compress(b"hello") + packer.flush()
    assert read([(0, raw, 0)], "length", "deflate") == b"hello"
    members = gzip.compress(b"data: 1\n\n") + gzip.compress(b"data: 2\n\n") + b"\0\0"
    for size in (1, 5, 1000):
        cuts = list(range(0, len(members), size))
        assert read(pieces(members, cuts), "close", "gzip") == b"data: 1\n\ndata: 2\n\n"


def test_a_flushed_event_arrives_with_its_piece() -> None:
    packer = zlib.compressobj(wbits=31)
    body = [(n, packer.compress(text) + packer.flush(zlib.Z_SYNC_FLUSH), 0) for n, text in enumerate([b"one", b"two"])]
    assert list(payload(body, "close", "gzip")) == [(0, b"one", 0), (1, b"two", 0)]


@pytest.mark.parametrize("encoding", ["br", "zstd", "nonsense"])
def test_what_cannot_be_unpacked_is_told(encoding: str) -> None:
    with pytest.raises(WireError, match=encoding):
        read([(0, b"abc", 0)], "close", encoding)


def test_damaged_compression_is_told() -> None:
    with pytest.raises(WireError, match="damaged"):
        read([(0, b"data: this is not gzip", 0)], "close", "gzip")


def test_a_bomb_is_read_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.wire.body._MAX_BODY", 24 << 20)
    bomb = gzip.compress(bytes(64 << 20))
    body = payload([(0, bomb, 0)], "close", "gzip")
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="24 MiB"):
            deque(body, maxlen=0)
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()
