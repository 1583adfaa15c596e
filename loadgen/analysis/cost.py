"""What tokens and requests cost: by the hours of the GPUs, by a vendor's prices, and in energy.

Knows: a stage's rates and counts, prices, and which load is the highest that keeps the SLO. Must not know: where
prices come from, currencies, layout.
Why at a load: a server that is paid for by the hour is cheap only when it is full, and it may only be as full as the
SLO allows. So the figure that decides is the cost at the highest load that keeps the SLO.

    hours:  price per GPU and hour x GPUs / 3600 / rate of the whole server
    vendor: (prompt - cached) x price + cached x price + output x price, of the window's requests that succeeded
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.plan.budget import Prices

if TYPE_CHECKING:
    from loadgen.analysis.summary import StageSummary, Summary

MILLION, THOUSAND = 1e6, 1e3


@dataclass(frozen=True, slots=True)
class Amount:
    """A cost with its 95 % interval; None for no bound. In the currency of the price; energy in joules."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """One stage. None is not known. `per_million`: a million output tokens; `per_thousand`: 1,000 requests."""

    per_million: Amount | None = None
    per_thousand: Amount | None = None
    vendor_per_million: Amount | None = None
    vendor_per_thousand: Amount | None = None
    energy_per_token_j: float | None = None
    energy_per_request_j: float | None = None

    @property
    def known(self) -> bool:
        """Whether there is anything to show."""
        return any(getattr(self, name) is not None for name in self.__dataclass_fields__)


NOTHING = Costs()


def gpus_told(named: Any) -> int | None:
    """GPUs that a run's `roofline` says its endpoint has; None where it says nothing (one is only the default)."""
    if not isinstance(named, Mapping):
        return None
    said = named.get("gpu") or named.get("price_per_gpu_hour") is not None or (named.get("gpus") or 1) != 1
    return int(named.get("gpus") or 1) if said else None


def price_told(named: Any) -> float | None:
    """Price of one of its GPUs for an hour, where the run says it."""
    price = named.get("price_per_gpu_hour") if isinstance(named, Mapping) else None
    return float(price) if isinstance(price, int | float) else None


def costs(stage: StageSummary, spec: Mapping[str, Any]) -> Costs:
    """What a stage cost. `spec`: that of its run, with `roofline` (GPUs and their price) and `prices` (a vendor's)."""
    per_s, prices = per_second(spec.get("roofline")), spec.get("prices")
    tokens = requests = None
    if per_s is not None:  # else nobody asks for the rates, whose bounds take a while
        tokens, requests = _rate(stage, "output_tokens_per_s"), _rate(stage, "requests_per_s")
    vendor = None if not isinstance(prices, Mapping) else _vendor(stage, Prices(**prices))
    return Costs(
        by_hours(per_s, tokens, MILLION),
        by_hours(per_s, requests, THOUSAND),
        None if vendor is None else vendor[0],
        None if vendor is None else vendor[1],
        stage.server.get("energy_per_output_token_j"),
        stage.server.get("energy_per_request_j"),
    )


def per_second(named: Any) -> float | None:
    """What the GPUs that a run's `roofline` names cost in a second."""
    gpus, price = gpus_told(named), price_told(named)
    return None if gpus is None or price is None else gpus * price / 3600.0


def by_hours(per_s: float | None, rate: Amount | None, of: float) -> Amount | None:
    """So much per second over a rate, for `of` of what it counts; the rate's bounds, the other way round."""
    if per_s is None or rate is None or not rate.value > 0.0:
        return None
    low, high = (per_s * of / end if end is not None and end > 0.0 else None for end in (rate.high, rate.low))
    return Amount(per_s * of / rate.value, low, high)


def _rate(stage: StageSummary, metric: str) -> Amount | None:
    found = stage.get(metric, "rate")
    return None if found is None or found.value is None else Amount(found.value, found.ci_low, found.ci_high)


def _vendor(stage: StageSummary, prices: Prices) -> tuple[Amount | None, Amount | None]:
    """What the window's successes cost, for a million of their output tokens and for 1,000 of them: they are counted,
    not estimated, so there is no interval."""
    columns, requests = stage.measured.columns, stage.measured.requests
    ok = columns.ok & ~np.isnan(columns.prompt_tokens) & ~np.isnan(columns.output_tokens)
    if not ok.any():
        return None, None
    prompt, output = float(columns.prompt_tokens[ok].sum()), float(columns.output_tokens[ok].sum())
    cached = float(np.nansum(requests.cached_tokens[columns.rows[ok]]))
    paid = prices.of(prompt, output, cached)
    per_token = Amount(paid / output * MILLION) if output > 0.0 else None
    return per_token, Amount(paid / int(ok.sum()) * THOUSAND)


# -- at the SLO ----------------------------------------------------------------------------------------------------


def outcomes(summary: Summary) -> dict[str, str]:
    """The worst outcome of any objective on each stage that one speaks of, by the stage's name."""
    order = ("pass", "undecidable", "fail")
    found: dict[str, str] = {}
    for result in summary.slo:
        found[result.stage] = max(found.get(result.stage, "pass"), result.outcome, key=order.index)
    return found


def at_slo(summary: Summary) -> dict[str, StageSummary]:
    """For each workload the stage of the highest load that keeps every objective on it; none where none is kept."""
    held = outcomes(summary)
    found: dict[str, StageSummary] = {}
    for stage in summary.stages:
        before = found.get(stage.info.workload)
        if held.get(stage.info.name) == "pass" and (before is None or _higher(stage, before)):
            found[stage.info.workload] = stage
    return found


def _higher(a: StageSummary, b: StageSummary) -> bool:
    """Loads of one kind by their value; of two kinds by what the server answered."""
    if a.info.load.kind == b.info.load.kind:
        return a.info.load.value > b.info.load.value
    rates = [stage.get("requests_per_s", "rate") for stage in (a, b)]
    values = [0.0 if rate is None or rate.value is None else rate.value for rate in rates]
    return values[0] > values[1]
