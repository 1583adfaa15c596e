"""`loadgen plan --search`: what a search would try, and what it may cost; nothing is sent.

Knows: how a search's forecast is put into lines. Must not know: how one is made (`analysis.search`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from loadgen.model import stage_name

if TYPE_CHECKING:
    from loadgen.analysis.search import Search
    from loadgen.plan.schedule import StageSpec


def first_probes(given: dict[str, Any]) -> tuple[list[StageSpec], dict[str, Any]]:
    """The stage that each workload's search would begin with, and the forecast in plain values. Raises UsageError."""
    from loadgen.analysis.search import forecast
    from loadgen.cli.stages import search_from

    likes, search = search_from(given)
    told = forecast(search)
    stages = [_probe(like, search, told.first) for like in likes]
    return stages, {"slo": list(given["slo"]), **asdict(search), "forecast": asdict(told)}


def _probe(like: StageSpec, search: Search, value: float) -> StageSpec:
    load, length = replace(like.load, value=value), search.first(value)
    by_number = search.requests is not None
    return replace(
        like,
        name=stage_name(like.workload, load),
        load=load,
        requests=round(length) if by_number else None,
        duration_ns=None if by_number else round(length * 1e9),
    )


def search_lines(told: dict[str, Any]) -> Iterator[str]:
    """The search in words."""
    unit = "users" if told["whole"] else "requests/s"
    low, high = told["low"], told["high"]
    span = "without limits" if low is None else f"from {low:g} to {high:g}"
    near = f"to within {told['precision'] * 100:.3g} %"
    yield f"search for the most {unit}, {span}, that keep {', '.join(told['slo'])}, {near}"
    ahead = told["forecast"]
    counted = "" if ahead["requests"] is None else f", {_span(ahead['requests'])} requests"
    yield f"  {_span(ahead['probes'])} probes{counted}, if every verdict comes at once; one that does not takes up to"
    yield "  8 times as long, one that surely fails ends early. Below: the first probe of each workload; the next load"
    yield "  follows from its verdict."
    limits = [f"{told['max_probes']} probes"]
    limits += [f"{told['max_requests']:,} requests"] if told["max_requests"] is not None else []
    limits += [f"{told['max_seconds']:g} s"] if told["max_seconds"] is not None else []
    yield f"  It ends in any case before more than {', '.join(limits)}, for each workload."


def _span(ends: tuple[int, int]) -> str:
    return f"{ends[0]:,}" if ends[0] == ends[1] else f"{ends[0]:,} to {ends[1]:,}"
