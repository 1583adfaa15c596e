"""Durations as people type them, in nanoseconds: the one home of time units for flags and spec files.

Knows: the spelling of a duration. Must not know: what it is for.
Why: every timeout, window, think time and arrival shape is typed in the same way and refused in the same words.
"""

from __future__ import annotations

import re
from decimal import Decimal

from loadgen.errors import UsageError

UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_PART = r"(\d+(?:\.\d+)?|\.\d+)\s*(ns|us|µs|ms|min|s|m|h|d)"
_WHOLE = re.compile(rf"\s*(?:{_PART}\s*)+")
_LONGEST_NS = 1 << 62  # int64 with room for sums


def duration_ns(text: str) -> int:
    """`500ms`, `60s`, `1.5m`, `1h30m` in nanoseconds (>= 0). A bare number is refused, `0` excepted.

    Raises:
        UsageError: not a duration, or one beyond 146 years.
    """
    if text.strip() == "0":
        return 0
    if not _WHOLE.fullmatch(text):
        raise UsageError(f"{text!r} is not a duration", do="write it with its unit, like 500ms, 60s or 5m")
    total = sum(int(Decimal(number) * UNITS_NS[unit]) for number, unit in re.findall(_PART, text))
    if total >= _LONGEST_NS:
        raise UsageError(f"{text!r} is too long a duration", do="give less than 146 years")
    return total


def format_duration(ns: int) -> str:
    """The shortest spelling that `duration_ns` reads back to the same value: `90s`, `1500ms`, `2h`."""
    for unit in ("h", "m", "s", "ms", "us"):
        if ns and ns % UNITS_NS[unit] == 0:
            return f"{ns // UNITS_NS[unit]}{unit}"
    return f"{ns}ns" if ns else "0s"
