"""What the same tokens cost: rates for each GPU and for each dollar, of runs on different hardware.

Knows: a whole server's rate, its GPUs and their price. Must not know: where prices come from, layout.
Why: two GPUs that are twice as fast as one are no gain; the figures that decide a purchase divide by what was used.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.analysis.compare import Pair
from loadgen.analysis.compare_sides import Cell, Side

RATE = ("output_tokens_per_s", "rate")


@dataclass(frozen=True, slots=True)
class Cost:
    """One cell of one run; None is not known. `tokens_per_s` is of the whole server."""

    tokens_per_s: float | None
    per_gpu: float | None  # tokens per second and GPU
    per_dollar: float | None  # tokens per dollar
    per_million: float | None  # dollars for a million output tokens


def gpus_of(side: Side) -> int | None:
    """GPUs that a run says its endpoint has; None where it named none."""
    if side.summary is None:
        return None
    named = side.summary.info.spec.get("roofline")
    if not isinstance(named, dict) or not (named.get("gpu") or (named.get("gpus") or 1) != 1):
        return None  # one is the default of whoever said nothing
    return int(named.get("gpus") or 1)


def cost(cell: Cell, gpus: int | None, price: float | None) -> Cost:
    """`price` is in dollars per GPU and hour."""
    rate = cell.value(*RATE)
    if rate is None or not rate > 0.0 or gpus is None:
        return Cost(rate, None, None, None)
    if price is None:
        return Cost(rate, rate / gpus, None, None)
    dollars_per_s = gpus * price / 3600.0
    return Cost(rate, rate / gpus, rate / dollars_per_s, dollars_per_s / rate * 1e6)


def scaled_change(pair: Pair, factor: float | None) -> tuple[float | None, float | None, float | None]:
    """Change of the rate with its bounds when both sides are divided by what they used: `factor` is what the baseline
    used over what the other did. The bounds are those of the rate, since what was used is no measurement."""
    row = next((row for row in pair.rows if (row.metric, row.stat) == RATE), None)
    if row is None or factor is None or row.change is None:
        return None, None, None
    return (
        row.change * factor,
        None if row.low is None else row.low * factor,
        None if row.high is None else row.high * factor,
    )
