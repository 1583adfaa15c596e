"""From the bytes of a connection to the bytes of a body: chunked framing and compression taken off, stamps kept.

Knows: HTTP/1.1 chunks (extensions, trailers, cut anywhere), gzip and deflate. Must not know: SSE, JSON, sockets.
Why: bytes are stamped as they arrive on the wire, so the framing is taken off afterwards, piece by piece; what a piece
completes has that piece's stamp. The transport leaves both framing and compression to this file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from loadgen.errors import WireError
from loadgen.model import Framing, Piece

_MAX_SIZE_LINE = 8192  # bytes of a chunk-size or trailer line
_MAX_BODY = 1 << 30  # bytes after decompression: beyond this it is an attack or a fault, not an answer
_INFLATED = 1 << 20  # bytes that one step of decompression may produce: a small piece can hold a bomb
IDENTITY = ("", "identity")
_HEX = b"0123456789abcdefABCDEF"
_SIZES = {b"%x" % size: size for size in range(1, 4096)}  # the size lines of nearly all chunks that carry an event


def payload(
    pieces: Iterable[Piece], framing: Framing, encoding: str = "", chunks: Dechunker | None = None
) -> Iterator[Piece]:
    """The body's own bytes with the stamps of the pieces that carried them; empty pieces are left out.

    `encoding` is the `content-encoding` header; `chunks` takes off the chunked framing (a caller that leaves out pieces
    must know that none is unfinished). Raises WireError where the bytes break their framing, after all that
    came before has been yielded.
    """
    plain = _unchunked(pieces, chunks or Dechunker()) if framing == "chunked" else iter(pieces)
    for name in reversed([part.strip().lower() for part in encoding.split(",")]):
        if name not in IDENTITY:
            plain = _inflated(plain, name)
    total = 0
    for stamp, data, blind in plain:
        total += len(data)
        if total > _MAX_BODY:
            raise WireError(f"the body exceeds {_MAX_BODY >> 20} MiB")
        if data:
            yield stamp, data, blind


class Dechunker:
    """Incremental decoder of chunked framing.

    `ended` is true after the last chunk and its trailers; `broken` says what stands where a chunk should. After either
    nothing more is returned: what follows belongs to nobody.
    """

    def __init__(self) -> None:
        self._line = b""  # a size or trailer line that is not complete yet
        self._left = 0  # bytes of the current chunk that are still to come
        self._state = "size"  # size, data, data-end, trailer
        self.ended = False
        self.broken: str | None = None

    @property
    def idle(self) -> bool:
        """No chunk is unfinished: what comes next begins one."""
        return self._state == "size" and not self._line and self.broken is None

    def feed(self, data: bytes) -> bytes:
        """The payload in `data`, up to where the framing breaks."""
        if self.idle:  # the usual case: one whole chunk
            start = data.find(b"\r\n", 0, 8)
            left = _SIZES.get(data[:start], 0)
            if left and len(data) == start + left + 4 and data.endswith(b"\r\n"):
                return data[start + 2 : -2]
        out: list[bytes] = []
        at, size = 0, len(data)
        while at < size and not self.ended and self.broken is None:
            if self._state == "data":
                take = min(self._left, size - at)
                out.append(data[at : at + take])
                at += take
                self._left -= take
                if not self._left:
                    self._state = "data-end"
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at : at + _MAX_SIZE_LINE + 1]
                if len(self._line) > _MAX_SIZE_LINE:
                    self.broken = "a chunk-size line without an end"
                break
            line, self._line = self._line + data[at:end], b""
            at = end + 1
            self._next(line.rstrip(b"\r"))
        return out[0] if len(out) == 1 else b"".join(out)

    def _next(self, line: bytes) -> None:
        if self._state == "data-end":
            if line:
                self.broken = f"bytes after a chunk's end: {line[:20]!r}"
            self._state = "size"
        elif self._state == "trailer":
            self.ended = not line
        else:
            digits = line.partition(b";")[0].strip()
            if not digits or digits.strip(_HEX) or len(digits) > 16:
                self.broken = f"not a chunk size: {line[:20]!r}"
                return
            self._left = int(digits, 16)
            self._state = "data" if self._left else "trailer"


def _unchunked(pieces: Iterable[Piece], decoder: Dechunker) -> Iterator[Piece]:
    for stamp, data, blind in pieces:
        yield stamp, decoder.feed(data), blind
        if decoder.broken is not None:
            raise WireError(decoder.broken)


def _inflated(pieces: Iterable[Piece], name: str) -> Iterator[Piece]:
    """Decompressed pieces; a gzip body may have several members (a server that compresses each event by itself)."""
    if name not in ("gzip", "x-gzip", "deflate"):
        raise WireError(f"content-encoding {name[:40]!r} is not supported")
    inflater = None
    padding = b""  # what may stand between and after members
    for stamp, data, blind in pieces:
        left = data.lstrip(padding) if inflater is None else data
        while left:
            if inflater is None:
                # "deflate" means zlib, but some servers send it raw: the first byte tells (RFC 1950: low nibble 8).
                raw = name == "deflate" and left[0] & 0x0F != 8
                inflater = zlib.decompressobj(-zlib.MAX_WBITS if raw else zlib.MAX_WBITS | 32)
            try:
                out = inflater.decompress(left, _INFLATED)
                while len(out) == _INFLATED:  # more may wait inside, even when all input is used up
                    yield stamp, out, blind
                    out = inflater.decompress(inflater.unconsumed_tail, _INFLATED)
            except zlib.error as bad:
                raise WireError(f"the compressed body is damaged: {bad}") from None
            yield stamp, out, blind
            if not inflater.eof:
                break
            padding = b"\0"
            left, inflater = inflater.unused_data.lstrip(padding), None
