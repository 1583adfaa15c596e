"""Bytes that a server sent, made into values and words that can be kept: tolerant JSON, clean text, one-line reasons.

Knows: how JSON of real servers is broken (half an emoji as a lone surrogate, NaN, bytes that are no UTF-8), and what
may stand in a message. Must not know: which fields mean what, SSE, HTTP.
Why: a token that arrived is a token although its text is damaged, but damaged text must not reach a file or a terminal.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

MAX_REASON = 500  # characters of a failure's message

_BOM = b"\xef\xbb\xbf"
_decode = msgspec.json.Decoder().decode
_TAGS = re.compile(r"<(script|style)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>", re.DOTALL | re.IGNORECASE)
_KEYS = re.compile(
    r"\b(?:sk|pk|gsk|key|hf|xai|nvapi|AIza)[-_][\w.*-]{6,}|(?<=Bearer )\S+|(?<=Basic )\S+", re.IGNORECASE
)


def parse(data: bytes) -> Any:
    """The JSON value in `data`, read by the strict and fast parser or, failing that, by a tolerant one.

    Raises ValueError for what is no JSON at all, or is nested too deeply.
    """
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError:
        raise ValueError("nested too deeply") from None
    try:
        return json.loads(data.removeprefix(_BOM).decode("utf-8", "replace"), strict=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def mended(text: str) -> str:
    """`text` with surrogate pairs that came in two halves joined, and with lone halves replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def one_line(text: str, limit: int = MAX_REASON) -> str:
    """`text` as one printable line of at most `limit` characters, with anything that looks like an API key masked."""
    words = "".join(c if c.isprintable() else " " for c in text[: 8 * limit]).split()
    return _KEYS.sub("***", " ".join(words))[:limit]


def readable(body: bytes, limit: int = 200) -> str:
    """What a reader would see of a document that is no JSON: the tags of HTML are taken out."""
    text = body[: 16 * limit].decode("utf-8", "replace")
    if text.lstrip()[:1] == "<":
        text = _TAGS.sub(" ", text)
    return one_line(text, limit)
