"""Names and quantities as people type them: spelling-insensitive keys, "did you mean", SI numbers.

Knows: how a typed name becomes a key and a typed quantity a number. Must not know: which names exist.
Why: case, punctuation and an organisation's prefix must not matter in any table of this room, in one way.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from loadgen.errors import UsageError

SMALLEST, LARGEST = 1e-15, 1e24  # of any quantity that is typed: products of a few of them stay finite
_PREFIX = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "B": 1e9}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def plain(name: str) -> str:
    """Lower case, letters and digits only."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def words_without(name: str, dropped: frozenset[str]) -> str:
    """`plain` of a name after its last "/", without the words in `dropped` (separators are anything else)."""
    words = re.split(r"[^a-z0-9]+", name.lower().rsplit("/", 1)[-1])
    return "".join(word for word in words if word not in dropped)


def closest(key: str, names: Iterable[str], count: int = 3) -> str:
    """The names most like `key`, best first, joined by " or "; some names at any rate."""
    by_key = {plain(name): name for name in names}
    found = difflib.get_close_matches(plain(key), by_key, n=count, cutoff=0.4)
    return " or ".join(by_key[near] for near in found or list(by_key)[:count])


def quantity(text: str, what: str) -> float:
    """A positive number with an optional SI prefix and unit: "989e12", "989TFLOPS", "3.35 TB/s", "8B" (billions).

    Raises:
        UsageError: not such a number, or one that nothing has and no arithmetic survives.
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?\d+)?)\s*([kMGTPB]?)([A-Za-z/]*)\s*", text)
    try:
        value = float(match[1]) * _PREFIX[match[2]] if match else 0.0
    except ValueError:
        value = 0.0
    if value <= 0:
        raise UsageError(f"{what}: {text!r} is not a positive quantity", do="write it like 989e12, 989T or 3.35TB/s")
    if not SMALLEST <= value <= LARGEST:
        raise UsageError(f"{what}: {text!r} is beyond all measure", do="write it like 989e12, 989T or 3.35TB/s")
    return value


def seconds(text: str, what: str) -> float:
    """A duration with its unit, in seconds: "0.02ms", "500ms", "5us", "1m". A bare number is refused, "0" excepted.

    Raises:
        UsageError: not a duration.
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?\d+)?)\s*([a-zµ]*)\s*", text)
    try:
        value = float(match[1]) if match else -1.0
    except ValueError:
        value = -1.0
    unit = match[2] if match else ""
    span = value * _SECONDS.get(unit, 1.0)
    if value < 0 or (unit not in _SECONDS and value != 0):
        raise UsageError(f"{what}: {text!r} is not a duration", do="write it with its unit, like 500ms, 5us or 1.5s")
    if span and not SMALLEST <= span <= LARGEST:
        raise UsageError(f"{what}: {text!r} is beyond all measure", do="write it like 500ms, 5us or 1.5s")
    return span
