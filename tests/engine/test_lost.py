"""What a lost worker leaves: nothing of its slice is forgotten, and nothing is counted twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice

import pytest

from loadgen.engine.lost import Lost, book, loss_of
from loadgen.engine.units import Slice
from loadgen.engine.worker import Task
from loadgen.model import Exchange, PlannedRequest, StageInfo
from tests.analysis.made import frame, ok, stage

STEP_NS = 100_000_000


def plan(open_loop: bool, total: int | None, part: Slice) -> Iterator[PlannedRequest]:
    for k in islice(count(part.index, part.count), total and part.share(total)):
        yield PlannedRequest(k, 0, "chat", (), 10, 5, k * STEP_NS if open_loop else None)


def task(open_loop: bool, total: int | None) -> Task:
    kind, duration = ("rate" if open_loop else "concurrency"), None if total else 2.0
    info: StageInfo = stage(kind=kind, value=10.0, start=1.0, end=None, requests=total, duration=duration)
    return Task(info, lambda part: plan(open_loop, total, part), 0)


@pytest.mark.parametrize(
    ("open_loop", "total", "planned", "unsent"),
    [
        (True, 21, 10, 4),  # of 21 requests ten are the second worker's
        (False, 21, 10, 4),
        (True, None, 10, 4),  # in two seconds at ten a second, likewise
        (False, None, 6, 0),  # a closed loop by time owes nothing that was not sent
    ],
)
def test_sent_and_unfinished_are_marked_the_rest_is_unsent(
    open_loop: bool, total: int | None, planned: int, unsent: int
) -> None:
    lost = Lost(1, Slice(1, 2), 6, 5_000_000_000)
    rows = frame([ok(k, worker=1) for k in (1, 3, 7, 9)] + [ok(k) for k in (0, 2, 4)])
    work = task(open_loop, total)
    loss = loss_of(lost, work, rows)
    assert [one.request_id for one in loss.marked] == [5, 11]
    assert (loss.planned, loss.unsent) == (planned, unsent)
    for one in loss.marked:
        assert (one.outcome, one.worker, one.end_ns) == ("cancelled", 1, 5_000_000_000)
        assert one.failure is not None
        assert "worker 1" in one.failure.message
        assert one.scheduled_ns == (work.info.start_ns + one.request_id * STEP_NS if open_loop else None)
    written: list[Exchange] = []

    class Sink:
        def write(self, exchange: Exchange) -> None:
            written.append(exchange)

    before = replace(work.info)
    book(work.info, loss, Sink())
    assert written == list(loss.marked)
    assert work.info.planned - before.planned == planned
    assert work.info.unsent - before.unsent == unsent
    assert work.info.health["requests_lost"] == 2


def test_rows_that_came_after_its_last_count_are_kept_and_not_marked() -> None:
    rows = frame([ok(k, worker=1) for k in (1, 3, 5, 7)])
    loss = loss_of(Lost(1, Slice(1, 2), 2, 0), task(True, 12), rows)
    assert loss.marked == ()
    assert (loss.planned, loss.unsent) == (6, 2)


def test_load_behind_the_window_is_marked_so() -> None:
    loss = loss_of(Lost(0, Slice(), 22, 0), task(True, None), frame([]))
    assert [one.request_id for one in loss.marked if "after_window" in one.flags] == [20, 21]
    assert (len(loss.marked), loss.planned, loss.unsent) == (22, 20, 0)
