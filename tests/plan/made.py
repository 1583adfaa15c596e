"""Small plans for tests."""

from __future__ import annotations

import itertools
from typing import Any

from loadgen.model import Load, PlannedRequest
from loadgen.plan.lengths import parse_length
from loadgen.plan.schedule import StageSpec, plan_stage
from loadgen.plan.workload import Workload


def workload(kind: str = "story", prompt: str = "60", output: str = "20", **more: Any) -> Workload:
    return Workload(more.pop("name", kind), kind, parse_length(prompt), parse_length(output), **more)


def stage(*mix: Workload, load: Load | None = None, requests: int | None = None, stage: int = 0) -> StageSpec:
    load = load or Load("concurrency", 4)
    return StageSpec(stage, "s", tuple((w, 1.0) for w in mix or (workload(),)), load, requests)


def planned(spec: StageSpec, count: int | None = None, **more: Any) -> list[PlannedRequest]:
    given: dict[str, Any] = {"seed": 1, "nonce": "n", "first_id": 0} | more
    return list(itertools.islice(plan_stage(spec, **given), count))


def prompt(request: PlannedRequest) -> str:
    return request.messages[0].content


def common(texts: list[str]) -> str:
    """What all of them begin with, up to the end of a line."""
    first, last = min(texts), max(texts)
    size = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[: first.rfind("\n", 0, size) + 1]
