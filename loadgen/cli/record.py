"""Stages in plain values: what `run.json` keeps of them, and of the trace that one replays.

Knows: which facts of a stage say what was asked. Must not know: what came of it, how it is printed.
Why one place: `plan` prints before the run what the run's record and its report say afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadgen.plan.schedule import StageSpec
    from loadgen.plan.workload import Workload
    from loadgen.store.tracefile import TraceFile


def stage_records(stages: Sequence[StageSpec]) -> list[dict[str, Any]]:
    """Every stage as it was asked for. What does not apply to it is left out."""
    return [_stage(spec) for spec in stages]


def _stage(spec: StageSpec) -> dict[str, Any]:
    from loadgen.store.tracefile import TraceFile

    load = {"kind": spec.load.kind, "value": spec.load.value, "arrivals": spec.load.arrivals}
    found: dict[str, Any] = {
        "name": spec.name,
        "load": load,
        "requests": spec.requests,
        "duration_ns": spec.duration_ns,
        "mix": [part_record(workload, weight) for workload, weight in spec.mix],
    }
    return found | ({"trace": trace_record(spec.trace)} if isinstance(spec.trace, TraceFile) else {})


def part_record(workload: Workload, weight: float) -> dict[str, Any]:
    """One workload of a mix."""
    from loadgen.store.dataset import TextFile

    found: dict[str, Any] = {
        "workload": workload.name,
        "weight": weight,
        "prompt_tokens": str(workload.prompt_tokens),
        "output_tokens": str(workload.output_tokens),
    }
    if workload.correlation:
        found["correlation"] = workload.correlation
    if workload.prefix is not None:
        found |= {"shared_prefix_tokens": workload.prefix.tokens, "prefix_groups": workload.prefix.groups}
    if (turns := workload.turns) is not None:
        found["turns"] = {name: str(getattr(turns, name)) for name in ("count", "prompt_tokens", "think_ms")}
    if isinstance(workload.texts, TextFile):
        found["data"] = {"file": workload.texts.path, "history": workload.texts.history}
    return found


def trace_record(trace: TraceFile) -> dict[str, Any]:
    """What is replayed of a trace, how, and what is left out. Raises UsageError for a trace without a request."""
    found = trace.survey()
    return {
        "file": trace.path,
        "speed": trace.speed,
        "from_s": trace.start_ns / 1e9,
        "to_s": None if trace.end_ns is None else trace.end_ns / 1e9,
        "context_limit": trace.context_limit,
        "spread": trace.spread,
        "rows": found.rows,
        "span_s": found.span_ns / 1e9,
        "distinct_times": found.distinct_times,
        "dropped": found.dropped,
        "block_hit_rate": found.blocks_seen_before / found.blocks if found.blocks else None,
    }
