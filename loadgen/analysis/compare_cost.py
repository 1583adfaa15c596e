"""What the same tokens cost: rates for each GPU and for each dollar, of runs on different hardware.

Knows: a whole server's rate, its GPUs and their price. Must not know: where prices come from, layout.
Why: two GPUs that are twice as fast as one are no gain; the figures that decide a purchase divide by what was used.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.analysis.compare import Pair
from loadgen.analysis.compare_sides import Cell, Side
from loadgen.analysis.cost import (
    MILLION,
    NOTHING,
    THOUSAND,
    Amount,
    at_slo,
    by_hours,
    costs,
    gpus_told,
    price_told,
)

RATE = ("output_tokens_per_s", "rate")


@dataclass(frozen=True, slots=True)
class Cost:
    """One cell of one run; None is not known. `tokens_per_s` is of the whole server."""

    tokens_per_s: float | None
    per_gpu: float | None  # tokens per second and GPU
    per_dollar: float | None  # tokens per dollar
    per_million: float | None  # dollars for a million output tokens
    per_thousand: float | None = None  # dollars for 1,000 requests
    vendor_per_million: float | None = None  # the same two at the vendor's prices that the run was told
    vendor_per_thousand: float | None = None
    energy_per_token_j: float | None = None
    at_slo: bool = False  # the highest load of its workload that keeps the run's own SLO


def gpus_of(side: Side) -> int | None:
    """GPUs that a run says its endpoint has; None where it named none."""
    return None if side.summary is None else gpus_told(side.summary.info.spec.get("roofline"))


def price_of(side: Side) -> float | None:
    """Price of one of its GPUs for an hour that the run itself was told."""
    return None if side.summary is None else price_told(side.summary.info.spec.get("roofline"))


def cost(side: Side, cell: Cell, price: float | None) -> Cost:
    """`price` is in dollars per GPU and hour."""
    rate, gpus = cell.value(*RATE), gpus_of(side)
    known = rate is not None and rate > 0.0
    per_s = None if price is None or gpus is None else gpus * price / 3600.0
    told = NOTHING
    if cell.stage is not None and side.summary is not None:
        told = costs(cell.stage, side.summary.info.spec)
    return Cost(
        rate,
        rate / gpus if rate is not None and known and gpus is not None else None,
        rate / per_s if rate is not None and known and per_s else None,
        _value(by_hours(per_s, _amount(rate), MILLION)),
        _value(by_hours(per_s, _amount(cell.value("requests_per_s", "rate")), THOUSAND)),
        _value(told.vendor_per_million),
        _value(told.vendor_per_thousand),
        told.energy_per_token_j,
        side.summary is not None and cell.stage is not None and cell.stage in at_slo(side.summary).values(),
    )


def _amount(value: float | None) -> Amount | None:
    return None if value is None else Amount(value)


def _value(of: Amount | None) -> float | None:
    return None if of is None else of.value


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
