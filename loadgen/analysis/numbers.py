"""How a number is written for people: digits, units, intervals, n/a.

Knows: SI values and their units. Must not know: what a number means, HTML, Markdown.
Why: one home for rounding and units, so that a finding, a table, a sentence and a chart write one value in one way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

NONE = "n/a"

# Unit of the value -> (smallest value for it, factor, unit as written), the largest first.
_SCALES: dict[str, tuple[tuple[float, float, str], ...]] = {
    "s": ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs")),
    "1": ((0.0, 100.0, "%"),),
    "FLOP/s": ((1e15, 1e-15, "PFLOP/s"), (1e12, 1e-12, "TFLOP/s"), (0.0, 1e-9, "GFLOP/s")),
    "B": ((1e9, 1e-9, "GB"), (1e6, 1e-6, "MB"), (0.0, 1e-3, "kB")),
    "FLOP": ((1e15, 1e-15, "PFLOP"), (1e12, 1e-12, "TFLOP"), (0.0, 1e-9, "GFLOP")),
}


def known(value: float | None) -> bool:
    """Whether there is a number at all."""
    return value is not None and math.isfinite(value)


def significant(value: float | None, digits: int = 4) -> str:
    """So many significant digits, never an exponent: 0.04312, 1,234, n/a."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    places = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{min(max(places, 0), 12)}f}"


def whole(value: float | None) -> str:
    """A count: 1,234."""
    return NONE if value is None or not math.isfinite(value) else f"{round(value):,}"


def scale_for(unit: str, values: Iterable[float | None]) -> tuple[float, str]:
    """(factor, unit) in which a column of values reads best: that of its median."""
    present = sorted(abs(value) for value in values if value is not None and math.isfinite(value))
    middle = present[len(present) // 2] if present else 0.0
    if unit not in _SCALES:
        return 1.0, unit
    return next((factor, name) for least, factor, name in _SCALES[unit] if middle >= least)


def quantity(value: float | None, unit: str, digits: int = 3) -> str:
    """A number with its unit, for a sentence: 43.1 ms, 62 %, 4,848 tokens/s."""
    if value is None or not math.isfinite(value):
        return NONE
    factor, name = scale_for(unit, [value if value else 1.0])
    return f"{significant(value * factor, digits)} {name}"


def brief(value: float, unit: str) -> str:
    """Four digits at most, no zeros behind them: a tick of an axis, a limit. 5 ms, 100 TFLOP/s, 2,000."""
    factor, name = scale_for(unit, [value if value else 1.0])
    return f"{float(f'{value * factor:.4g}'):,.10g} {name}".rstrip()


def percent(share: float | None) -> str:
    """A share in whole percent where that says enough: 93 %, 0.4 %."""
    if share is None or not math.isfinite(share):
        return NONE
    return f"{share * 100:.0f} %" if share == 0 or abs(share) >= 0.095 else f"{significant(share * 100, 1)} %"


def times(ratio: float) -> str:
    """A ratio: 3.2 times, 14 times."""
    return f"{significant(ratio, 2)} times"


def interval(low: float | None, high: float | None, factor: float = 1.0, digits: int = 4) -> str:
    """Bounds in a unit: `1.02 – 1.31`, `≥ 1.02` where there is no upper one, "" where they say nothing (nothing that
    is measured here is below 0)."""
    low = low if low or high is not None else None
    ends = [significant(end * factor, digits) if end is not None and math.isfinite(end) else "" for end in (low, high)]
    if all(ends):
        return " – ".join(ends) if ends[0] != ends[1] else ""
    return f"≥ {ends[0]}" if ends[0] else f"≤ {ends[1]}" if ends[1] else ""
