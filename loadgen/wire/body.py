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
_IDENTITY = ("", "identity")


def payload(pieces: Iterable[Piece], framing: Framing, encoding: str = "") -> Iterator[Piece]:
    """The body's own bytes with the stamps of the pieces that carried them; empty pieces are left out.

    `encoding` is the `content-encoding` header. Raises WireError where the bytes break their framing, after all that
    came before has been yielded.
    """
    plain = _unchunked(pieces) if framing == "chunked" else iter(pieces)
    for name in reversed([part.strip().lower() for part in encoding.split(",")]):
        if name not in _IDENTITY:
            plain = _inflated(plain, name)
    total = 0
    for stamp, data, blind in plain:
        total += len(data)
        if total > _MAX_BODY:
            raise WireError(f"the body exceeds {_MAX_BODY >> 20} MiB")
        if data:
            yield stamp, data, blind


class Dechunker:
    """Incremental decoder of chunked framing. `ended` is true after the last chunk and its trailers."""

    def __init__(self) -> None:
        self._line = b""  # a size or trailer line that is not complete yet
        self._left = 0  # bytes of the current chunk that are still to come
        self._state = "size"  # size, data, data-end, trailer
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """The payload in `data`. Raises WireError for a bad chunk size."""
        if self._state == "size" and not self._line:  # the usual case: one whole chunk to a receive
            start = data.find(b"\r\n") + 2
            if 2 < start < 10 and data[: start - 2].isalnum() and data.endswith(b"\r\n"):
                try:
                    whole = len(data) == start + int(data[: start - 2], 16) + 2 > start + 2
                except ValueError:
                    whole = False
                if whole:
                    return data[start:-2]
        out: list[bytes] = []
        at, size = 0, len(data)
        while at < size and not self.ended:
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
                self._line += data[at:]
                if len(self._line) > _MAX_SIZE_LINE:
                    raise WireError("a chunk-size line without an end")
                break
            line = (self._line + data[at:end]).rstrip(b"\r") if self._line else data[at:end].rstrip(b"\r")
            self._line = b""
            at = end + 1
            self._next(line)
        return out[0] if len(out) == 1 else b"".join(out)

    def _next(self, line: bytes) -> None:
        if self._state == "data-end":
            if line:
                raise WireError(f"bytes after a chunk's end: {line[:20]!r}")
            self._state = "size"
        elif self._state == "trailer":
            self.ended = not line
        else:
            digits = line.partition(b";")[0].strip()
            try:
                if not digits or digits.strip(b"0123456789abcdefABCDEF"):
                    raise ValueError
                self._left = int(digits, 16)
            except ValueError:
                raise WireError(f"not a chunk size: {line[:20]!r}") from None
            self._state = "data" if self._left else "trailer"


def _unchunked(pieces: Iterable[Piece]) -> Iterator[Piece]:
    decoder = Dechunker()
    for stamp, data, blind in pieces:
        yield stamp, decoder.feed(data), blind


def _inflated(pieces: Iterable[Piece], name: str) -> Iterator[Piece]:
    if name not in ("gzip", "x-gzip", "deflate"):
        raise WireError(f"content-encoding {name!r} is not supported")
    inflater = None
    for stamp, data, blind in pieces:
        if not data:
            continue
        if inflater is None:
            # "deflate" means zlib, but some servers send it raw: the first byte tells (RFC 1950: low nibble 8).
            raw = name == "deflate" and data[0] & 0x0F != 8
            inflater = zlib.decompressobj(-zlib.MAX_WBITS if raw else zlib.MAX_WBITS | 32)
        try:
            yield stamp, inflater.decompress(data, _MAX_BODY), blind
        except zlib.error as bad:
            raise WireError(f"the compressed body is damaged: {bad}") from None
