"""How the explanations write a number: three digits and a unit.

Knows: seconds, bytes, tokens, ratios. Must not know: what they mean, or tables (`report.numbers` has those).
Why: these sentences are made below the report, and must read alike wherever they are printed.
"""

from __future__ import annotations

import math

_SCALES = {
    "s": ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs")),
    "B": ((1e12, 1e-12, "TB"), (1e9, 1e-9, "GB"), (1e6, 1e-6, "MB"), (0.0, 1e-3, "kB")),
    "FLOP": ((1e15, 1e-15, "PFLOP"), (1e12, 1e-12, "TFLOP"), (0.0, 1e-9, "GFLOP")),
}


def number(value: float, digits: int = 3) -> str:
    """So many significant digits, no exponent: 0.0431, 1,234."""
    if not math.isfinite(value):
        return "n/a"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    places = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{min(max(places, 0), 9)}f}"


def count(value: float) -> str:
    """A number of things, whole where it is: 32, 27.5, 2,000."""
    whole = math.isfinite(value) and abs(value - round(value)) < 0.005 * max(1.0, abs(value) / 10)
    return f"{round(value):,}" if whole else number(value)


def quantity(value: float, unit: str, digits: int = 3) -> str:
    """With its unit: 4.51 ms, 14.9 GB, 8.2 TFLOP."""
    if not math.isfinite(value):
        return "n/a"
    scale = _SCALES.get(unit, ((0.0, 1.0, unit),))
    _, factor, name = next(row for row in scale if abs(value) >= row[0])
    return f"{number(value * factor, digits)} {name}"


def seconds(value: float, digits: int = 3) -> str:
    """4.51 ms, 1.2 s."""
    return quantity(value, "s", digits)


def percent(share: float) -> str:
    """12 %, 0.4 %."""
    return "n/a" if not math.isfinite(share) else f"{number(share * 100, 2)} %"


def signed(share: float) -> str:
    """+12 %, −4 %."""
    return f"{'−' if share < 0 else '+'}{percent(abs(share))}"


def loads(kind: str, value: float) -> str:
    """What a cell's load is called: 32 users, a batch of 8, 4.5 requests/s."""
    text = count(value)
    words = {"concurrency": f"{text} user{'s' if value != 1 else ''}", "batch": f"a batch of {text}"}
    return words.get(kind, f"{text} requests/s")
