"""What is compared: runs and other tools' results as cells of one kind, and which cell belongs to which.

Knows: a cell's workload, load, lengths and where its figures are. Must not know: statistics, conditions, files, layout.
Why: a run has every request, another tool's file has means; a comparison asks both for the same things and says "not
decidable" where one has no answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loadgen.analysis.measured import Measured
from loadgen.analysis.summary import StageSummary, Summary
from loadgen.model import Load, LoadKind
from loadgen.roofline.cells import Cell as Foreign

SAME_LENGTH = 0.05  # by how much the lengths of two cells may differ and still be the same workload
_METRICS = {"ttft": "ttft_s", "tpot": "itl_s"}  # what a foreign cell has means of


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload at one load. `workload` is "" where the source names none; lengths are mean tokens, NaN if unknown.

    `stage` holds a run's figures; without it there are `means` alone, by metric, SI units. `invalid` names the findings
    that make the measurement invalid.
    """

    name: str
    workload: str
    load: Load
    prompt_tokens: float
    output_tokens: float
    stage: StageSummary | None = None
    means: Mapping[str, float] = field(default_factory=dict)
    invalid: tuple[str, ...] = ()

    @property
    def measured(self) -> Measured | None:
        """The stage's requests; None for another tool's cell."""
        return None if self.stage is None else self.stage.measured

    @property
    def lost(self) -> float:
        """Share of the offered requests that failed, were cancelled or never sent."""
        if self.stage is None:
            return 0.0
        window = self.stage.measured.window
        return (window.offered - self.stage.counts.ok) / window.offered if window.offered else 1.0

    def value(self, metric: str, stat: str) -> float | None:
        """A figure; None is n/a."""
        if self.stage is None:
            return self.means.get(metric) if stat == "mean" else None
        found = self.stage.get(metric, stat)
        return None if found is None else found.value


@dataclass(frozen=True, slots=True)
class Side:
    """One of the things compared. `summary` is None for another tool's file."""

    name: str
    cells: tuple[Cell, ...]
    summary: Summary | None = None


def side_of_run(name: str, summary: Summary) -> Side:
    """A run, its stages in their order."""
    cells = [
        Cell(
            stage.info.name,
            stage.info.workload,
            stage.info.load,
            _mean(stage, "prompt_tokens"),
            _mean(stage, "output_tokens"),
            stage,
            invalid=tuple(dict.fromkeys(summary.invalid.get(stage.info.stage, ()))),
        )
        for stage in summary.stages
    ]
    return Side(name, tuple(cells), summary)


def _mean(stage: StageSummary, metric: str) -> float:
    found = stage.get(metric, "mean")
    return math.nan if found is None or found.value is None else found.value


def side_of_cells(name: str, cells: Sequence[Foreign]) -> Side:
    """Another tool's results: those of its cells that were measured under a load that a run can have."""
    kinds: dict[str, LoadKind] = {"concurrency": "concurrency", "rate": "rate"}
    found = [
        Cell(
            f"{cell.prompt_tokens:g} → {cell.output_tokens:g} @ {cell.load:g}",
            "",
            Load(kinds[cell.load_kind], cell.load, "closed" if cell.load_kind == "concurrency" else ""),
            cell.prompt_tokens,
            cell.output_tokens,
            means={
                metric: value for metric, attribute in _METRICS.items() if (value := getattr(cell, attribute)) > 0.0
            },
        )
        for cell in cells
        if cell.load_kind in kinds
    ]
    return Side(name, tuple(found))


def matched(base: Side, other: Side) -> tuple[list[tuple[Cell, Cell]], list[Cell], list[Cell]]:
    """Pairs of cells of one workload and load in the baseline's order; then the cells of each side without a twin."""
    left = list(other.cells)
    pairs, alone = [], []
    for cell in base.cells:
        twin = next((one for one in left if _same(cell, one)), None)
        if twin is None:
            alone.append(cell)
        else:
            left.remove(twin)
            pairs.append((cell, twin))
    return pairs, alone, left


def _same(a: Cell, b: Cell) -> bool:
    if a.load.kind != b.load.kind or not math.isclose(a.load.value, b.load.value, rel_tol=1e-6):
        return False
    if a.workload and b.workload:
        return a.workload.lower() == b.workload.lower()
    return all(
        math.isclose(x, y, rel_tol=SAME_LENGTH)
        for x, y in ((a.prompt_tokens, b.prompt_tokens), (a.output_tokens, b.output_tokens))
    )
