"""A matrix as JSON, for scripts.

Knows: the names that scripts read. Must not know: how anything is found, written for people or drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from loadgen.analysis.matrix import BestRow, CellOver, Matrix
from loadgen.model import Finding
from loadgen.report.matrix_view import roof_shares
from loadgen.store.matrixfile import MatrixRecord


def to_json(record: MatrixRecord, matrix: Matrix, findings: Sequence[Finding]) -> dict[str, Any]:
    """`matrix --format json`: plain values, SI units, null for n/a."""
    roofs = roof_shares(matrix)
    return {
        "title": record.title,
        "status": record.status,
        "settings": record.settings,
        "repeats": record.repeats,
        "visits": msgspec.to_builtins(record.visits),
        "findings": [_plain(asdict(one)) for one in findings],
        "cells": [_cell(cell, roofs.get((cell.setting, cell.name), {})) for cell in matrix.cells],
        "best": [
            {"workload": one.workload, "expr": one.expr or None, "outcome": one.outcome, "settings": _best(one.rows)}
            for one in matrix.best
        ],
        "comparisons": [
            {
                "baseline": one.base.name,
                "setting": one.other.name,
                "verdicts": one.verdicts,
                "cells": [
                    {"cell": pair.name, "metrics": [_plain(asdict(row)) for row in pair.rows]} for pair in one.pairs
                ],
            }
            for one in matrix.versus
        ],
    }


def _cell(cell: CellOver, roofs: dict[str, tuple[float, str]]) -> dict[str, Any]:
    return {
        "setting": cell.setting,
        "cell": cell.name,
        "workload": cell.workload,
        "load": {"kind": cell.load.kind, "value": cell.load.value},
        "repeats": len(cell.cells),
        "metrics": [
            {"metric": metric, "stat": stat, **_plain(asdict(of))}
            for (metric, stat), of in cell.figures.items()
            if of.value is not None
        ],
        "per_gpu": None if cell.per_gpu is None else _plain(asdict(cell.per_gpu)),
        "front": cell.front,
        "slo": cell.outcomes,
        "cost": _plain(asdict(cell.costs)),
        "roof": {phase: {"share": share, "bound": bound} for phase, (share, bound) in roofs.items()},
    }


def _best(rows: Sequence[BestRow]) -> list[dict[str, Any]]:
    return [
        {
            "setting": row.setting,
            "cell": None if row.cell is None else row.cell.name,
            "outcome": row.outcome,
            "verdict": row.verdict or None,
            "change": _known(row.change),
            "low": _known(row.low),
            "high": _known(row.high),
            "why": row.why,
        }
        for row in rows
    ]


def _known(x: float | None) -> float | None:
    return x if x is not None and math.isfinite(x) else None


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(x, float) and not math.isfinite(x) else x for key, x in fields.items()}
