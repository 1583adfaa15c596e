"""What a search found, in words and rows.

Knows: the plain values that a search left in the run. Must not know: how a load is chosen or judged.
"""

from __future__ import annotations

from typing import Any

from loadgen.analysis.numbers import quantity
from loadgen.model import RunInfo

_UNIT = {"rate": "requests/s", "concurrency": "users"}


def answer(result: dict[str, Any]) -> str:
    """What was found for one workload, in a sentence."""
    why = result["why"]
    if result["ending"] == "none":
        return f"no load of the range keeps the SLO: {why}"
    if result["ending"] == "open":
        return f"not decided: {why}"
    at_least = "at least " if result["ending"] == "all" else ""
    return f"{at_least}{result['kept']:g} {_UNIT[result['kind']]} keep the SLO; {why}"


def searches(info: RunInfo) -> list[dict[str, Any]]:
    """For each workload the answer, and a row for each probe, the lowest load first."""
    return [
        {
            "workload": result["workload"],
            "answer": answer(result),
            "unit": _UNIT[result["kind"]],
            "rows": [_row(probe) for probe in sorted(result["probes"], key=lambda probe: probe["load"])],
        }
        for result in info.search
    ]


def _row(probe: dict[str, Any]) -> dict[str, str]:
    return {
        "load": f"{probe['load']:g}",
        "verdict": probe["verdict"],
        "requests": f"{probe['requests']:,}",
        "took": quantity(probe["seconds"], "s"),
        "why": probe["why"],
    }
