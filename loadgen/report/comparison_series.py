"""The numbers behind a comparison's charts: the same curves as in a report, one for each run instead of each workload.

Knows: which curves are laid over each other. Must not know: plotly, colours, HTML, how a curve is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadgen.analysis.compare import Versus
from loadgen.analysis.compare_sides import Side
from loadgen.report.chart import plain
from loadgen.report.placement import Placement
from loadgen.report.series import curve
from loadgen.report.stages import WorkloadGroup, load_label
from loadgen.report.view import loads

# Of the ratios' chart: the means and rates that sum a cell up.
_RATIOS = (
    ("ttft", "mean"),
    ("ttft_scheduled", "mean"),
    ("tpot", "mean"),
    ("e2e", "mean"),
    ("e2e_scheduled", "mean"),
    ("output_tokens_per_s", "rate"),
)
_MOST_RATIOS = 48  # rows of one chart
_DISTRIBUTIONS = ("ttft", "tpot")
_MOST_CELLS = 6  # with distributions


def series(
    versus: Sequence[Versus],
    sides: Sequence[Side],
    workloads: Sequence[Sequence[WorkloadGroup]],
    placed: Sequence[Placement],
) -> dict[str, Any]:
    """Everything that is drawn; runs keep their number, and so their colour, in every chart."""
    names = dict.fromkeys(group.name for some in workloads for group in some)
    return {
        "curves": [_curves(name, sides, workloads) for name in names],
        "ratios": [_ratios(one) for one in versus],
        "distributions": _distributions(versus),
        "rooflines": [
            {"name": side.name, "number": number, **_roofline(some, where)}
            for number, (side, some, where) in enumerate(zip(sides, workloads, placed, strict=True))
            if where.hardware is not None
        ],
    }


def _curves(name: str, sides: Sequence[Side], workloads: Sequence[Sequence[WorkloadGroup]]) -> dict[str, Any]:
    """A workload's curves over load, as a report's charts take them, a run in the place of each workload."""
    mine = [next((group for group in some if group.name == name), WorkloadGroup(name, ())) for some in workloads]
    return {
        "workload": name,
        "workloads": [side.name for side in sides],
        "loads": [loads(group, {}) for group in mine],
        "limits": [],
    }


def _ratios(one: Versus) -> dict[str, Any]:
    rows = [
        {
            "label": f"{pair.name}, {row.metric}{'' if row.stat == 'rate' else ' ' + row.stat}",
            "change": row.change,
            "low": row.low,
            "high": row.high,
            "verdict": row.verdict,
        }
        for pair in one.pairs
        for row in pair.rows
        if (row.metric, row.stat) in _RATIOS and row.change is not None and row.change > 0.0
    ]
    return {
        "name": one.other.name,
        "base": one.base.name,
        "rows": rows[:_MOST_RATIOS],
        "left_out": max(len(rows) - _MOST_RATIOS, 0),
    }


def _distributions(versus: Sequence[Versus]) -> dict[str, Any]:
    """Of the first cells that every run measured, the runs' distributions over each other."""
    cells: list[str] = []
    curves: list[dict[str, Any]] = []
    for cell in versus[0].base.cells:
        pairs = [next((pair for pair in one.pairs if pair.base is cell), None) for one in versus]
        found = [(versus[0].base.name, cell)]
        found += [(one.other.name, pair.other) for one, pair in zip(versus, pairs, strict=True) if pair is not None]
        if len(found) < 2 or len(cells) == _MOST_CELLS:
            continue
        cells.append(f"{cell.workload}, {load_label(cell.load)}" if cell.workload else cell.name)
        curves.append({metric: _drawn(found, metric) for metric in _DISTRIBUTIONS})
    return {"workloads": [plain(cell) for cell in cells], "distributions": curves}


def _drawn(found: Sequence[tuple[str, Any]], metric: str) -> list[dict[str, Any]]:
    drawn = [(name, curve(cell.measured, metric)) for name, cell in found if cell.measured is not None]
    return [{"load": plain(name), "x": x, "share": y} for name, (x, y) in drawn if len(x)]


def _roofline(workloads: Sequence[WorkloadGroup], placed: Placement) -> dict[str, Any]:
    """One run's roof in the type that it computes in, and its points."""
    assert placed.hardware is not None
    dtype, rate = placed.hardware.roofs()[0]
    return {
        "gpu": f"{placed.hardware.gpus} × {placed.hardware.gpu.name}, {dtype}",
        "bandwidth": placed.hardware.bandwidth,
        "peak": rate,
        "points": [
            {
                "label": f"{group.name}, {stage.label}",
                "phase": point.phase,
                "intensity": point.intensity,
                "achieved": point.achieved_flop_per_s,
                "share": point.share_of_roof,
                "bound": point.bound,
            }
            for group in workloads
            for stage in group.measured
            for point in placed.points.get(stage.summary.info.stage, ())
        ],
    }
