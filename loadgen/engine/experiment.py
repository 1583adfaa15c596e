"""The course of an experiment (`plan.profile`): what the budget or the server's context forbids is cut.

Knows: what stages took so far, and the budget. Must not know: which stages an experiment has, or why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loadgen.analysis.ending import Ending
from loadgen.engine.course import Rows, free_number, is_done
from loadgen.model import RunInfo
from loadgen.plan import profile
from loadgen.plan.schedule import StageSpec


@dataclass(slots=True)
class Experiment:
    """The stages in their order, within `budget_ns` in all; `warmup`: requests before each workload's first stage."""

    stages: Sequence[StageSpec]
    budget_ns: int
    warmup: int
    say: Callable[[str], None] = lambda line: None

    @property
    def ending(self) -> Ending:
        return Ending()

    @property
    def foreseen(self) -> Sequence[StageSpec]:
        return self.stages

    def next(self, info: RunInfo, rows: Rows) -> StageSpec | None:
        done = {stage.name for stage in info.stages if is_done(stage)}
        done |= {cut["stage"] for cut in info.spec.get("cut", ())}
        for spec in self.stages:
            if spec.name in done:
                continue
            if not (why := self._cut(spec, info)):
                return replace(spec, stage=free_number(spec.stage, info.stages, len(self.stages)))
            self.say(f"{spec.name} is cut: it {why}")
            info.spec.setdefault("cut", []).append({"stage": spec.name, "why": why})
        return None

    def _cut(self, spec: StageSpec, info: RunInfo) -> str:
        """Why the stage is left out; "" where it is not."""
        if info.limit is not None:
            return f"is not begun: {info.limit}"
        limit = info.endpoint.get("context_limit")
        if limit is not None and profile.tokens(spec) > limit:
            return f"needs {profile.tokens(spec):,.0f} tokens of context, the server has {limit:,}"
        whole = replace(spec, requests=(spec.requests or 0) + self.warmup)
        by_name = {one.name: one for one in self.stages}
        spans = [(one.name, one.start_ns, one.end_ns) for one in info.stages]
        took = [
            (by_name[name], (end - start) / 1e9)
            for name, start, end in spans
            if start is not None and end is not None and name in by_name
        ]
        needed = profile.learned(took, whole) or 0.0
        begun = min((start for _, start, _ in spans if start is not None), default=0)
        left = (self.budget_ns - max((end - begun for _, _, end in spans if end is not None), default=0)) / 1e9
        return "" if needed <= left else f"needs about {needed:.0f} s, {max(left, 0.0):.0f} s of the budget are left"
