"""A comparison as JSON, for scripts.

Knows: the names that scripts read. Must not know: how anything is found, written for people or drawn.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from loadgen.analysis.compare import Versus
from loadgen.analysis.compare_cost import cost, gpus_of
from loadgen.analysis.compare_sides import Side
from loadgen.report.comparison import Comparison


def to_json(of: Comparison) -> dict[str, Any]:
    """`compare --format json`: plain values, null for n/a."""
    return {
        "baseline": of.sides[0].name,
        "runs": [_json_run(side, price) for side, price in zip(of.sides, of.prices, strict=True)],
        "between_runs": of.between,
        "comparisons": [_json_versus(of, i, one) for i, one in enumerate(of.versus)],
        "fail_on": [_plain(asdict(one)) for one in of.decisions],
    }


def _json_run(side: Side, price: float | None) -> dict[str, Any]:
    info = None if side.summary is None else side.summary.info
    return {
        "name": side.name,
        "run_id": None if info is None else info.run_id,
        "model": None if info is None else info.endpoint.get("model"),
        "engine": None if info is None else info.endpoint.get("engine"),
        "status": None if info is None else info.status,
        "trust": None if side.summary is None else side.summary.verdict,
        "gpus": gpus_of(side),
        "price_per_gpu_hour": price,
    }


def _json_versus(of: Comparison, i: int, one: Versus) -> dict[str, Any]:
    return {
        "run": one.other.name,
        "likeness": one.likeness,
        "verdicts": one.verdicts,
        "conditions": [asdict(condition) for condition in one.all_conditions],
        "cells": [
            {
                "cell": pair.name,
                "workload": pair.base.workload or pair.other.workload,
                "load": {"kind": pair.base.load.kind, "value": pair.base.load.value},
                "same_requests": pair.paired,
                "metrics": [_plain(asdict(row)) for row in pair.rows],
                "cost": {
                    "baseline": asdict(cost(one.base, pair.base, of.prices[0])),
                    "run": asdict(cost(one.other, pair.other, of.prices[i + 1])),
                },
            }
            for pair in one.pairs
        ],
        "only_baseline": [cell.name for cell in one.only_base],
        "only_run": [cell.name for cell in one.only_other],
    }


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(x, float) and not math.isfinite(x) else x for key, x in fields.items()}
