"""Drives an `Engine` in virtual time, the slow and obvious way: the truth that the compiled simulator is held to."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from loadgen.roofline.serving import Engine, EngineConfig, ServingRequest, Step


@dataclass
class Seen:
    """What the clients saw, and every step."""

    sent: dict[int, float] = field(default_factory=dict)
    events: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    steps: list[tuple[float, Step]] = field(default_factory=list)
    running_seconds: float = 0.0  # integral of unfinished requests over time
    end: float = 0.0

    def first(self, i: int) -> float:
        return self.events[i][0][0]

    def last(self, i: int) -> float:
        return self.events[i][-1][0]

    def max_gap(self, i: int) -> float:
        times = [when for when, _ in self.events[i]]
        return max(np.diff(times)) if len(times) > 1 else float("nan")


def drive(
    config: EngineConfig,
    requests: Sequence[ServingRequest],
    *,
    arrivals: Sequence[float] | None = None,
    concurrency: int = 0,
    stagger: float = 0.0,
    turnaround: float | Sequence[float] = 0.0,
    seed: int = 0,
    engine: Engine | None = None,
) -> Seen:
    """Open loop with `arrivals`, else closed loop with `concurrency` users who start spread over `stagger` seconds.

    `turnaround`: seconds from a user's last token to his next request, or those of each request to finish, in order.
    """
    engine = engine or Engine(config, np.random.default_rng(seed))
    seen, todo, now = Seen(), list(requests), 0.0
    first = min(concurrency, len(todo))
    due = list(arrivals) if arrivals is not None else [user * (stagger / first) for user in range(first)]
    opened = due[-1] if due else 0.0
    turns = iter(()) if isinstance(turnaround, float) else iter(turnaround)

    def submit(when: float) -> None:
        request = todo.pop(0)
        engine.submit(request, when)
        seen.sent[request.request_id] = when

    while todo or engine.has_work:
        while due and due[0] <= now:
            submit(due.pop(0))
        if not engine.has_work:
            now = due[0]
            continue
        step = engine.step(now)
        if step.idle:
            later = now + step.duration_s
            if due and due[0] < later:
                later = due[0]
            assert later > now, "an idle engine with work must know when it will be ready"
            now = later
            continue
        seen.steps.append((now, step))
        now += step.duration_s
        for i, tokens in step.tokens:
            seen.events.setdefault(i, []).append((now, tokens))
        if arrivals is None:
            for _ in step.finished:
                if len(todo) > len(due):
                    insort(due, max(now + (turnaround if isinstance(turnaround, float) else next(turns)), opened))
    seen.end = now
    return seen
