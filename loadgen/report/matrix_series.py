"""The numbers behind a matrix's charts.

Knows: which points make a line, and which setting has which number (and so colour) in every chart. Must not know:
plotly, colours, HTML, how a figure is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadgen.analysis.matrix import Best, Matrix, point, served_key
from loadgen.analysis.repeats import Over
from loadgen.report.stages import load_label


def series(workloads: Sequence[str], matrix: Matrix) -> dict[str, Any]:
    """Everything that is drawn."""
    best = [one for one in matrix.best if one.is_whole]
    served = [_served(one, matrix) for one in best]
    return {
        "pareto": [_pareto(name, matrix) for name in workloads],
        "served": [one for one in served if any(one["value"])],
    }


def server_label(matrix: Matrix) -> str:
    """What the whole server's rate is called: for each GPU where all say how many they have."""
    return "tokens/s per GPU" if matrix.by_gpu else "tokens/s, whole server"


def _pareto(workload: str, matrix: Matrix) -> dict[str, Any]:
    """The points of each setting over its loads; settings keep their number, and so their colour, in every chart."""
    lines = []
    for number, name in enumerate(matrix.settings):
        mine = [cell for cell in matrix.of_workload(workload) if cell.setting == name]
        mine = sorted((c for c in mine if point(c, matrix.by_gpu)), key=lambda c: (c.load.kind, c.load.value))
        points = [both for cell in mine if (both := point(cell, matrix.by_gpu)) is not None]
        if points:
            lines.append(
                {
                    "name": name,
                    "number": number,
                    "labels": [load_label(cell.load) for cell in mine],
                    "loads": [cell.load.value for cell in mine],
                    "slo": [cell.outcome for cell in mine],
                    "front": [cell.front == "front" for cell in mine],
                    "user": _line([user for user, _ in points]),
                    "server": _line([server for _, server in points]),
                }
            )
    return {"workload": workload, "lines": lines, "server_label": server_label(matrix)}


def _line(values: Sequence[Over]) -> dict[str, list[float | None]]:
    return {
        "value": [one.value for one in values],
        "low": [one.low for one in values],
        "high": [one.high for one in values],
    }


def _served(one: Best, matrix: Matrix) -> dict[str, Any]:
    """What each setting serves while it keeps the SLO; 0 for one that never does."""
    key = served_key(matrix.of_workload(one.workload))
    found = [None if row.cell is None else row.cell.get(key) for row in one.rows]
    return {
        "workload": one.workload,
        "unit": "requests/s" if key[0] != "goodput" else "requests/s that keep the limit",
        "names": [row.setting for row in one.rows],
        "numbers": [matrix.settings.index(row.setting) for row in one.rows],
        "loads": ["" if row.cell is None else load_label(row.cell.load) for row in one.rows],
        "value": [0.0 if of is None or of.value is None else of.value for of in found],
        "low": [None if of is None else of.low for of in found],
        "high": [None if of is None else of.high for of in found],
    }
