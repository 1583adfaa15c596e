"""Runs made by hand for the tests of this room: what happened is written down, so every figure can be worked out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from loadgen.analysis.frame import FrameBuilder, Requests
from loadgen.model import Exchange, Failure, Load, RunInfo, StageInfo


def ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


def ok(
    request_id: int = 0,
    *,
    sent: float | None = 0.0,
    events: Sequence[float] = (0.5, 0.6),
    tokens: Sequence[int] | None = None,
    scheduled: float | None = None,
    dispatched: float | None = None,
    ready: float | None = None,
    end: float | None = None,
    **more: Any,
) -> Exchange:
    """A request that succeeded. `events` are seconds from `sent`; every other time is from the run's start."""
    tokens = tuple(tokens) if tokens is not None else (1,) * len(events)
    start = sent or 0.0
    last = start + events[-1] if events else start
    fields: dict[str, Any] = {
        "stage": 0,
        "workload": "chat",
        "outcome": "ok",
        "prompt_tokens_requested": 100,
        "output_tokens_requested": sum(tokens),
        "prompt_tokens": 100,
        "output_tokens": sum(tokens),
        "finish_reason": "length",
        "end_seen": "done",
    }
    fields |= more
    return Exchange(
        request_id=request_id,
        scheduled_ns=ns(scheduled),
        ready_ns=ns(ready if ready is not None else scheduled if scheduled is not None else sent),
        dispatched_ns=ns(dispatched if dispatched is not None else sent),
        sent_ns=ns(sent),
        end_ns=ns(end if end is not None else last),
        event_ns=tuple(round((start + at) * 1e9) for at in events),
        event_tokens=tokens,
        first_answer_ns=ns(start + events[0]) if events else None,
        **fields,
    )


def failed(request_id: int = 0, *, kind: Any = "http", **more: Any) -> Exchange:
    """A request that failed; 0.1 s after it was sent unless `end` says otherwise."""
    more.setdefault("events", ())
    more.setdefault("end", (more.get("sent") or 0.0) + 0.1)
    more = {"outcome": "failed", "output_tokens": None, "finish_reason": None, "output_tokens_requested": 10} | more
    return ok(request_id, failure=Failure(kind, "503 busy"), **more)


def frame(exchanges: Iterable[Exchange]) -> Requests:
    builder = FrameBuilder()
    for exchange in exchanges:
        builder.add(exchange)
    return builder.build()


def stage(
    *,
    kind: Any = "concurrency",
    value: float = 1.0,
    number: int = 0,
    start: float = 0.0,
    end: float | None = 10.0,
    requests: int | None = None,
    duration: float | None = None,
    unsent: int = 0,
    planned: int = 0,
    **more: Any,
) -> StageInfo:
    """A stage whose window is [start, end)."""
    return StageInfo(
        stage=number,
        name=f"chat@{value:g}",
        workload="chat",
        load=Load(kind, value, "closed" if kind == "concurrency" else "poisson"),
        requests=requests,
        duration_ns=ns(duration),
        start_ns=ns(start),
        window_start_ns=ns(start),
        window_end_ns=ns(end),
        end_ns=ns(end),
        planned=planned,
        unsent=unsent,
        **more,
    )


def run(*stages: StageInfo, **more: Any) -> RunInfo:
    fields: dict[str, Any] = {"schema": 1, "status": "complete", "run_id": "x", "created": "2026-01-01T00:00:00Z"}
    return RunInfo(stages=list(stages), **(fields | more))
