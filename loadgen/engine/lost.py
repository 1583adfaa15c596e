"""What becomes of the requests of a worker that was lost.

Knows: the plan of its slice, which of its rows are kept, how many it is known to have sent. Must not know: how a
worker is lost, where rows lie.
Why: its requests were offered to the server, or owed to it. Without a mark they would be neither failed nor missing,
and the load of the stage would look as if it had been asked for so.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.analysis.frame import Requests
from loadgen.engine.units import Slice
from loadgen.engine.worker import Task
from loadgen.model import Exchange, Failure, PlannedRequest, Sink, StageInfo


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker that was lost during a stage: its slice, what it is known to have sent of it, and when it was missed."""

    number: int
    part: Slice
    sent: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Loss:
    """`marked`: requests that were in flight, as rows; `planned` of the window in all; `unsent`: those never sent."""

    marked: tuple[Exchange, ...]
    planned: int
    unsent: int


def loss_of(lost: Lost, task: Task, rows: Requests) -> Loss:
    """What a worker leaves behind of its slice of a stage, whose `rows` are what the run holds.

    Of the slice, those among the first `lost.sent` that have no row were in flight (turns of a session stand in the
    order of the plan here, so which of them is marked may differ; how many does not). A closed loop by time owes
    nothing that was not sent: its plan has no end.
    """
    info = task.info
    kept = set(rows.request_id[rows.worker == lost.number].astype(int).tolist())
    marked: list[Exchange] = []
    planned = whole = 0
    endless = info.duration_ns is not None and info.load.kind == "concurrency"
    due: int | None = None
    for index, request in enumerate(task.plan(lost.part)):
        due = due if request.offset_ns is None else request.offset_ns  # a later turn belongs to its first
        beyond = info.duration_ns is not None and due is not None and due >= info.duration_ns
        is_kept, was_sent = request.request_id in kept, index < lost.sent
        if not (is_kept or was_sent) and (beyond or endless):
            break
        if was_sent and not is_kept:
            marked.append(_mark(info, request, beyond, lost))
        planned += not beyond
        whole += not beyond and (is_kept or was_sent)
    return Loss(tuple(marked), planned, planned - whole)


def _mark(info: StageInfo, request: PlannedRequest, beyond: bool, lost: Lost) -> Exchange:
    scheduled = None if request.offset_ns is None else (info.start_ns or 0) + request.offset_ns
    return Exchange(
        request.request_id,
        request.stage,
        request.workload,
        "cancelled",
        request.prompt_tokens,
        request.output_tokens,
        worker=lost.number,
        session_id=request.session_id,
        turn=request.turn,
        repeated_tokens=request.repeated_tokens,
        scheduled_ns=scheduled,
        end_ns=lost.at_ns,
        failure=Failure("cancelled", f"worker {lost.number}, which had sent it, was lost"),
        flags=("after_window",) if beyond else (),
    )


def book(info: StageInfo, loss: Loss, sink: Sink) -> None:
    """Write the marks, and count what was owed and never sent."""
    for exchange in loss.marked:
        sink.write(exchange)
    info.planned += loss.planned
    info.unsent += loss.unsent
    info.health["requests_lost"] = info.health.get("requests_lost", 0.0) + len(loss.marked)
