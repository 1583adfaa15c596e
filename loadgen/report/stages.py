"""The stages of a run as a reader wants them: by workload, by load, and where each one's time goes.

Knows: the order of workloads and loads, how a mean request's time splits up. Must not know: sentences, tables, charts.
Why: tables, sentences and charts all compare a workload at its lowest load with itself at higher ones; they must agree
on which stage that is and on how much of the time load has added.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.analysis import formulas
from loadgen.analysis.summary import StageSummary, Summary
from loadgen.model import Load


@dataclass(frozen=True, slots=True)
class Phases:
    """A mean request of a stage, in seconds. The parts add up to its end-to-end time (from `scheduled` in open loop).

    `ttft` and `decode` are those of the workload's lowest load (or of this one, where it is the only or a faster one);
    `waiting` and `slowed` are what this load adds to them. Measured differences, not the server's own account.
    """

    before: float  # between scheduled and sent; 0 in closed loop
    ttft: float
    waiting: float
    decode: float
    slowed: float

    @property
    def total(self) -> float:
        """End to end."""
        return self.before + self.ttft + self.waiting + self.decode + self.slowed


@dataclass(frozen=True, slots=True)
class Placed:
    """One stage with its phases; None where no answer was streamed."""

    summary: StageSummary
    phases: Phases | None

    @property
    def label(self) -> str:
        """Its load in words."""
        return load_label(self.summary.info.load)

    def value(self, metric: str, stat: str) -> float | None:
        """A figure of the stage; None is n/a."""
        found = self.summary.get(metric, stat)
        return None if found is None else found.value


@dataclass(frozen=True, slots=True)
class WorkloadGroup:
    """A workload's stages, the lowest load first."""

    name: str
    stages: tuple[Placed, ...]

    @property
    def measured(self) -> tuple[Placed, ...]:
        """Those with at least one success."""
        return tuple(stage for stage in self.stages if stage.summary.counts.ok)


def knee(stages: Sequence[Placed]) -> Placed | None:
    """The load from which on more load pays badly: up to it the whole server's rate grew at least with the square root
    of the load, beyond it less. None where that is not seen, or with fewer than three loads of one kind."""
    points = [(stage.summary.info.load, stage.value("output_tokens_per_s", "rate"), stage) for stage in stages]
    points = [point for point in points if point[1]]
    if len(points) < 3 or len({load.kind for load, _, _ in points}) > 1:
        return None
    for (load, rate, stage), (more, higher, _) in itertools.pairwise(points):
        assert rate is not None
        assert higher is not None
        if more.value > load.value and higher / rate < math.sqrt(more.value / load.value):
            return stage
    return None


def load_label(load: Load) -> str:
    """`1 user`, `32 users`, `4 requests/s`."""
    if load.kind == "concurrency":
        return f"{load.value:g} user{'' if load.value == 1 else 's'}"
    pace = f"{load.value:.3g} requests/s"
    return f"trace, {pace}" if load.kind == "trace" else pace


def groups(summary: Summary) -> tuple[WorkloadGroup, ...]:
    """Workloads in the order in which they first ran; their stages by kind of load and load."""
    names = dict.fromkeys(stage.info.workload for stage in summary.stages)
    found = []
    for name in names:
        mine = [stage for stage in summary.stages if stage.info.workload == name]
        mine.sort(key=lambda stage: (stage.info.load.kind, stage.info.load.value))
        found.append(WorkloadGroup(name, _with_phases(mine)))
    return tuple(found)


def _with_phases(stages: Sequence[StageSummary]) -> tuple[Placed, ...]:
    """Compare each stage with the lowest load of its kind that was measured."""
    base: dict[str, tuple[float, float]] = {}
    placed = []
    for stage in stages:
        before, ttft, decode = _mean_parts(stage)
        if math.isnan(ttft):
            placed.append(Placed(stage, None))
            continue
        alone = base.setdefault(stage.info.load.kind, (ttft, decode))
        waiting, slowed = max(ttft - alone[0], 0.0), max(decode - alone[1], 0.0)
        placed.append(Placed(stage, Phases(before, ttft - waiting, waiting, decode - slowed, slowed)))
    return tuple(placed)


def _mean_parts(stage: StageSummary) -> tuple[float, float, float]:
    """Mean seconds before the send, to the first token, and from there to the last."""
    c = stage.measured.columns
    c = c.where(c.streamed_ok)
    if len(c) == 0:
        return math.nan, math.nan, math.nan
    ttft, e2e = float(np.mean(formulas.ttft(c))), float(np.mean(formulas.e2e(c)))
    delays = formulas.schedule_delay(c)
    delays = delays[~np.isnan(delays)]
    return (float(np.mean(np.maximum(delays, 0.0))) if len(delays) else 0.0), ttft, max(e2e - ttft, 0.0)
