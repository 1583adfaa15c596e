"""What a run's tokens, requests and joules cost, as a table and in a sentence.

Knows: headings, and which columns anybody knows. Must not know: how a cost is computed (`analysis.cost`), HTML.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from loadgen.analysis.cost import Amount, Costs, at_slo, costs
from loadgen.analysis.numbers import NONE, interval, significant
from loadgen.analysis.summary import Summary
from loadgen.report.stages import load_label

HEADS = {
    "per_million": "a million output tokens, by hours",
    "per_thousand": "1,000 requests, by hours",
    "vendor_per_million": "a million output tokens, by the vendor's prices",
    "vendor_per_thousand": "1,000 requests, by the vendor's prices",
    "energy_per_token_j": "joules for an output token",
    "energy_per_request_j": "joules for a request",
}
Cell = dict[str, Any]


def shown(of: Iterable[Costs]) -> list[str]:
    """The names of HEADS that are known of anything."""
    every = list(of)
    return [name for name in HEADS if any(getattr(one, name) is not None for one in every)]


def cell(value: Amount | float | None) -> Cell:
    """One cost with its interval."""
    if value is None:
        return {"text": NONE, "note": "", "weak": False}
    of = Amount(value) if isinstance(value, float) else value
    return {"text": significant(of.value, 3), "note": interval(of.low, of.high, digits=3), "weak": False}


def table(summary: Summary) -> dict[str, Any]:
    """A row for each stage; no rows where nothing is known. `sentences`: the cost at the SLO, workload by workload."""
    found = [(stage, costs(stage, summary.info.spec)) for stage in summary.stages]
    names = shown(of for _, of in found)
    at = at_slo(summary)
    rows = [
        {
            "workload": stage.info.workload,
            "load": load_label(stage.info.load),
            "at_slo": stage in at.values(),
            "cells": [cell(getattr(of, name)) for name in names],
        }
        for stage, of in found
    ]
    told = [
        _sentence(stage.info.workload, load_label(stage.info.load), of) for stage, of in found if stage in at.values()
    ]
    return {
        "heads": [HEADS[name] for name in names],
        "rows": rows if names else [],
        "sentences": [text for text in told if text],
    }


def _sentence(workload: str, load: str, of: Costs) -> str:
    """`chat keeps the SLO up to 32 users: 0.21 for a million output tokens, 0.043 for 1,000 requests.`"""
    pairs = (
        (of.per_million, of.per_thousand, ""),
        (of.vendor_per_million, of.vendor_per_thousand, " at the vendor's prices"),
    )
    parts = [
        f"{significant(a.value, 3)} for a million output tokens and {significant(b.value, 3)} for 1,000 requests{words}"
        for a, b, words in pairs
        if a is not None and b is not None
    ]
    if of.energy_per_token_j is not None:
        parts.append(f"{significant(of.energy_per_token_j, 3)} joules for an output token")
    return f"{workload} keeps the SLO up to {load}: {'; '.join(parts)}." if parts else ""
