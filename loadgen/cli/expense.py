"""What a run will send and cost, told before its first request; and what it took, told at its end.

Knows: how volumes and prices are put into words. Must not know: how they are counted (`plan.budget`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadgen.analysis.frame import Requests
    from loadgen.engine.settings import Settings
    from loadgen.plan.budget import Budget, Prices
    from loadgen.plan.schedule import StageSpec

_SAMPLE = 1000  # requests of a search's workload that its mean request is taken from


def ahead(settings: Settings, stages: Sequence[StageSpec], search: dict[str, Any] | None) -> str:
    """One line: stages, requests, tokens, with prices the cost, and the limits. `search`: the question of a search."""
    words = _search_words(settings, stages, search) if search is not None else _plan_words(settings, stages)
    limits = _limits(settings.budget)
    return words + (f"; at most {' and '.join(limits)} in all" if limits else "")


def _plan_words(settings: Settings, stages: Sequence[StageSpec]) -> str:
    from loadgen.plan.budget import volume

    found = volume(stages, settings.seed)
    words = f"{len(stages)} stage{'' if len(stages) == 1 else 's'}"
    if found.requests:
        words += f", {found.requests:,} requests, {_tokens(found.prompt_tokens, found.output_tokens, told=found.told)}"
        if found.told:
            words += _cost(settings.budget.prices, found.prompt_tokens, found.output_tokens)
        if any(workload.turns is not None for stage in stages for workload, _ in stage.mix):
            words += ", the history of later turns apart"
    if not found.whole:
        words += ", and what users take in closed loop by time" if found.requests else ", what users take in that time"
    return f"{words}, warm-up apart"


def _search_words(settings: Settings, stages: Sequence[StageSpec], asked: dict[str, Any]) -> str:
    from loadgen.analysis.search import Search, forecast
    from loadgen.plan.budget import volume

    told = forecast(Search(**asked))
    probes = f"search: {told.probes[0]} to {told.probes[1]} probes"
    if told.requests is None:
        return f"{probes} of {asked['seconds']:g} s for each workload, or more where a verdict takes longer"
    mean = volume([replace(one, requests=_SAMPLE, duration_ns=None) for one in stages], settings.seed)
    sides = [[part * n / _SAMPLE for part in (mean.prompt_tokens, mean.output_tokens)] for n in told.requests]
    words = f"{probes}, {told.requests[0]:,} to {told.requests[1]:,} requests for each workload, together "
    words += f"{_tokens(*sides[0])}{_cost(settings.budget.prices, *sides[0])} to "
    words += f"{_tokens(*sides[1])}{_cost(settings.budget.prices, *sides[1])}"
    return f"{words}, or more where a verdict takes longer"


def _tokens(prompt: float, output: float, *, told: bool = True) -> str:
    if not told:
        return "prompts as long as your own texts are"
    return f"about {prompt:,.0f} prompt and {output:,.0f} output tokens"


def _cost(prices: Prices | None, prompt: float, output: float) -> str:
    return "" if prices is None else f", cost about {prices.of(prompt, output):,.4g}"


def _limits(budget: Budget) -> list[str]:
    found = [f"{budget.tokens:,} tokens"] if budget.tokens is not None else []
    return found + ([f"a cost of {budget.cost:,.4g}"] if budget.cost is not None else [])


def spent(requests: Requests, prices: dict[str, Any]) -> str:
    """One line: what the run's requests cost, warm-up included, trials apart. `prices`: as they stand in run.json."""
    import numpy as np

    from loadgen.plan.budget import Prices

    prompt, output, cached = (
        float(np.nansum(column)) for column in (requests.prompt_tokens, requests.output_tokens, requests.cached_tokens)
    )
    cost = Prices(**prices).of(prompt, output, cached)
    known = f" ({cached:,.0f} cached)" if cached else ""
    return f"cost: {cost:,.4g} for {prompt:,.0f} prompt{known} and {output:,.0f} output tokens, warm-up included"
