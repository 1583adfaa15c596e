"""Which stage comes next: a list with stop rules, or a search.

Knows: the stages that ran, by their records and rows, and what is still to be done. Must not know: how a stage is sent,
where rows are kept (a function comes in that reads those of one stage), how a rule decides (`analysis`).
Why stateless between calls: everything follows from the run itself, so a run that was killed goes on where it was, and
`--resume` is the same code as going on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

from loadgen.analysis import ending as rules
from loadgen.analysis import slo
from loadgen.analysis.ending import Ending
from loadgen.analysis.frame import Requests
from loadgen.analysis.measured import Measured, measure, row_facts
from loadgen.analysis.probes import probe_of
from loadgen.analysis.search import Found, NextProbe, Probe, Search, decide, given_up
from loadgen.model import RunInfo, StageInfo, stage_name
from loadgen.plan.schedule import StageSpec

Rows = Callable[[int], Requests]  # the rows of a stage, by its number


class Course(Protocol):
    """What a run does, stage by stage."""

    def next(self, info: RunInfo, rows: Rows) -> StageSpec | None:
        """The stage to run after those of `info.stages`; None: the run is over. It may write to `info` what it decided
        (`skipped`, `search`). Nothing is in flight; it may take a moment."""
        ...

    @property
    def ending(self) -> Ending:
        """What may end a running stage."""
        ...

    @property
    def foreseen(self) -> Sequence[StageSpec]:
        """Stages that are sure to come, or one like those that will."""
        ...


def is_done(stage: StageInfo) -> bool:
    """Whether the stage ran to its end, or to an end that a rule gave it: it needs no second run."""
    return stage.end_ns is not None and stage.stopped not in ("interrupted", "run.json is missing")


def free_number(wanted: int, stages: Sequence[StageInfo], planned: int = 0) -> int:
    """A stage number that the run has not used: `wanted`, or one behind all others."""
    used = [stage.stage for stage in stages]
    return wanted if wanted not in used else max(*used, planned - 1) + 1


@dataclass(slots=True)
class Listed:
    """The stages of a list in their order; after one at which a stop rule held, no higher load of its workload."""

    stages: Sequence[StageSpec]
    stop_on: tuple[str, ...] = ()
    until: str | None = None
    _reasons: dict[int, str] = field(default_factory=dict)  # by number of the stages that were judged

    @property
    def ending(self) -> Ending:
        return Ending(stop_on=self.stop_on, until=self.until)

    @property
    def foreseen(self) -> Sequence[StageSpec]:
        return self.stages

    def next(self, info: RunInfo, rows: Rows) -> StageSpec | None:
        done = [stage for stage in info.stages if is_done(stage)]
        names = {stage.name for stage in done}
        told = {line.partition(": ")[0] for line in info.skipped}
        for spec in self.stages:
            if spec.name in names or spec.name in told:
                continue
            why = info.limit or (self._skipped(spec, done, info, rows) if self.stop_on else "")
            if not why:
                return replace(spec, stage=free_number(spec.stage, info.stages, len(self.stages)))
            info.skipped.append(f"{spec.name}: {why}")
        return None

    def _skipped(self, spec: StageSpec, done: Sequence[StageInfo], info: RunInfo, rows: Rows) -> str:
        """Why this stage is not begun: what was seen on one of its workload at a load that is no higher."""
        like = [s for s in done if s.workload == spec.workload and s.load.kind == spec.load.kind]
        for stage in like:
            below = [s for s in like if s.load.value < stage.load.value and s.stage < stage.stage]
            if stage.load.value <= spec.load.value and (why := self._reason(stage, below, info, rows)):
                return f"{why} at {stage.name}"
        return ""

    def _reason(self, stage: StageInfo, below: Sequence[StageInfo], info: RunInfo, rows: Rows) -> str:
        if stage.stopped is not None:
            return stage.stopped.removeprefix("stopped: ")
        if stage.stage not in self._reasons:
            conditions, saturation = rules.parse_stop_on(self.stop_on)
            m = _measured(stage, info, rows)
            why = rules.stop_reason(conditions, m)
            if not why and saturation and below:
                lower = max(below, key=lambda one: one.load.value)
                if rules.saturated(_measured(lower, info, rows), m):
                    why = f"saturation: no more output tokens per second than {lower.name}"
            self._reasons[stage.stage] = why
        return self._reasons[stage.stage]


def _measured(stage: StageInfo, info: RunInfo, rows: Rows) -> Measured:
    requests = rows(stage.stage)
    return measure(stage, requests, row_facts(requests), info.seed)


@dataclass(slots=True)
class Searching:
    """For each of `likes` (a stage of its workload, at any load) the search for the highest load that keeps `slos`."""

    likes: Sequence[StageSpec]
    search: Search
    slos: tuple[str, ...]
    say: Callable[[str], None] = lambda line: None
    _probes: dict[int, Probe] = field(default_factory=dict)  # by stage number

    @property
    def ending(self) -> Ending:
        return Ending(keep=self.slos)

    @property
    def foreseen(self) -> Sequence[StageSpec]:
        return self.likes

    def next(self, info: RunInfo, rows: Rows) -> StageSpec | None:
        found: list[tuple[StageSpec, Found]] = []
        for like in self.likes:
            probes = self._probes_of(like, info, rows)
            wanted = decide(probes, self.search)
            if isinstance(wanted, NextProbe) and info.limit is not None:
                wanted = given_up(probes, info.limit)
            if isinstance(wanted, NextProbe):
                self.say(f"search {like.workload}: {load_words(like, wanted.load)}; {wanted.why}")
                return self._stage(like, wanted, info)
            found.append((like, wanted))
        info.search = [_result(like, one, self._probes_of(like, info, rows)) for like, one in found]
        return None

    def _probes_of(self, like: StageSpec, info: RunInfo, rows: Rows) -> list[Probe]:
        mine = [stage for stage in info.stages if stage.workload == like.workload and is_done(stage)]
        slos = slo.parse(self.slos)
        for stage in mine:
            if stage.stage not in self._probes:
                self._probes[stage.stage] = probe_of(info, stage, rows(stage.stage), slos, self.search)
                probe = self._probes[stage.stage]
                self.say(f"search {like.workload}: {load_words(like, probe.load)}: {probe.verdict} ({probe.why})")
        return [self._probes[stage.stage] for stage in mine]

    def _stage(self, like: StageSpec, wanted: NextProbe, info: RunInfo) -> StageSpec:
        load = replace(like.load, value=wanted.load)
        base = stage_name(like.workload, load)
        tries = sum(stage.load.value == wanted.load and stage.workload == like.workload for stage in info.stages)
        asked = self.search.first(wanted.load) * wanted.length
        by_number = self.search.requests is not None
        return replace(
            like,
            stage=free_number(len(info.stages), info.stages),
            name=base if not tries else f"{base} #{tries + 1}",
            load=load,
            requests=math.ceil(asked) if by_number else None,
            duration_ns=None if by_number else round(asked * 1e9),
        )


def load_words(like: StageSpec, load: float) -> str:
    """`8 users`, `4 requests/s`."""
    return f"{load:g} requests/s" if like.load.kind == "rate" else f"{load:g} user{'' if load == 1 else 's'}"


def _result(like: StageSpec, found: Found, probes: Sequence[Probe]) -> dict[str, object]:
    """A search's end in plain values, for run.json."""
    return {
        "workload": like.workload,
        "kind": like.load.kind,
        **asdict(found),
        "probes": [asdict(probe) for probe in probes],
    }
