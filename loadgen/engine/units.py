"""What holds one slot of a stage: a request, or the turns of a session; and which part of a stage one worker runs.

Knows: how consecutive turns of a plan belong together, and how a plan is shared out. Must not know: slots, clocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loadgen.model import PlannedRequest
from loadgen.plan.budget import Held


@dataclass(frozen=True, slots=True)
class Slice:
    """Which part of a stage one of `count` workers runs: the requests `index`, `index + count`, ... of the plan, with
    its share of the users. A single process runs slice 0 of 1."""

    index: int = 0
    count: int = 1

    def share(self, total: int) -> int:
        """How many of `total` requests or users fall to this worker."""
        return len(range(self.index, total, self.count))


@dataclass(slots=True)
class Unit:
    """A request, or the turns of a session. The first body may have been built ahead."""

    turns: list[PlannedRequest]
    body: bytes | None = None
    held: Held | None = None  # of a budget, for the next turn
    endpoint: int = 0  # to which all of it goes


def units(plan: Iterator[PlannedRequest]) -> Iterator[Unit]:
    """Group consecutive turns of one session; every other request is a unit of its own."""
    pending: list[PlannedRequest] = []
    for planned in plan:
        if pending and (planned.session_id is None or planned.session_id != pending[0].session_id):
            yield Unit(pending)
            pending = []
        pending.append(planned)
        if planned.session_id is None:
            yield Unit(pending)
            pending = []
    if pending:
        yield Unit(pending)
