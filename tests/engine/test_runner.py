"""The one loop in virtual time: windows, slots, due times, sessions, interruption, coordinated omission."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from loadgen.engine.runner import Runner, Target
from loadgen.engine.stage import Slice
from loadgen.engine.units import units
from loadgen.model import Capture, Exchange, Failure, Load, Message, PlannedRequest, StageInfo
from loadgen.plan.budget import Budget, Purse
from tests.engine.virtual import MS, Endpoint, Rows, S, VirtualClock, requests, virtual


def build(ttft: Callable[[int], int], *, gap_ns: int = 0, tokens: int = 1) -> tuple[Runner, Endpoint, Rows]:
    clock, rows = VirtualClock(), Rows()
    endpoint = Endpoint(clock, ttft, gap_ns, tokens)
    return Runner(clock, endpoint, Target("http://x/v1", "chat", "m"), rows), endpoint, rows


def closed(users: int, **limits: int) -> StageInfo:
    return StageInfo(0, f"chat@{users}", "chat", Load("concurrency", users), **limits)


def open_loop(rate: float, cap: int | None = None, **limits: int) -> StageInfo:
    return StageInfo(0, f"chat@{rate}", "chat", Load("rate", rate, "constant", cap), **limits)


def every(gap_ns: int) -> Iterator[int]:
    return (i * gap_ns for i in count())


@virtual
async def test_closed_loop_by_number_sends_exactly_n_and_keeps_the_slots_full() -> None:
    runner, endpoint, rows = build(lambda now: 100 * MS)
    info = closed(4, requests=40)
    await runner.run(info, requests(40))
    assert len(rows.rows) == 40
    assert endpoint.peak == 4
    assert info.end_ns == 1 * S  # 40 requests of 0.1 s over 4 users
    assert (info.planned, info.unsent, info.stopped) == (40, 0, None)
    assert {row.outcome for row in rows.rows} == {"ok"}


@virtual
async def test_closed_loop_is_staggered_over_one_service_time() -> None:
    runner, _, rows = build(lambda now: 100 * MS)
    await runner.run(closed(4, requests=8), requests(8), stagger_ns=100 * MS)
    sent = sorted(row.sent_ns or 0 for row in rows.rows)
    assert sent == [0, 25 * MS, 50 * MS, 75 * MS, 100 * MS, 125 * MS, 150 * MS, 175 * MS]


class _Two(Endpoint):
    """Keeps which URL each body went to."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock, lambda now: 100 * MS)
        self.urls: list[str] = []

    lead_ns = 0

    async def stream(self, capture: Capture, url: str, body: bytes) -> None:
        self.urls.append(url)
        await super().stream(capture, url, body)


def _sessions(count: int) -> Iterator[PlannedRequest]:
    """Every third unit is a conversation of three turns."""
    number = 0
    for unit in range(count):
        for turn in range(3 if unit % 3 == 0 else 1):
            session = f"s{unit}" if unit % 3 == 0 else None
            yield PlannedRequest(
                number, 0, "chat", (Message("user", "x"),), 7, 1, session_id=session, turn=turn if session else None
            )
            number += 1


@pytest.mark.parametrize("workers", [1, 2, 3])
@virtual
async def test_units_go_to_endpoints_in_turn_and_a_session_stays(workers: int) -> None:
    plan = list(_sessions(12))
    groups = [unit.turns for unit in units(iter(plan))]
    went: dict[int, int] = {}
    for index in range(workers):
        clock, rows = VirtualClock(), Rows()
        endpoint = _Two(clock)
        others = [Target("http://y/v1", "chat", "other")]
        runner = Runner(clock, endpoint, Target("http://x/v1", "chat", "m"), rows, others=others)
        own = [request for group in groups[index::workers] for request in group]
        await runner.run(closed(6, requests=len(plan)), iter(own), part=Slice(index, workers))
        went |= {row.request_id: row.endpoint for row in rows.rows}
        for url, body, _ in zip(endpoint.urls, endpoint.bodies, rows.rows, strict=True):
            assert json.loads(body)["model"] == ("other" if "//y/" in url else "m")
    assert went == {request.request_id: number % 2 for number, group in enumerate(groups) for request in group}


@virtual
async def test_by_duration_load_goes_on_until_the_window_has_finished() -> None:
    runner, _, rows = build(lambda now: 300 * MS)
    info = closed(2, duration_ns=1 * S)
    await runner.run(info, requests(None))
    inside = [row for row in rows.rows if "after_window" not in row.flags]
    after = [row for row in rows.rows if "after_window" in row.flags]
    assert [row.sent_ns for row in inside if row.outcome == "ok"] == [
        x * MS for x in (0, 0, 300, 300, 600, 600, 900, 900)
    ]
    assert info.planned == 8
    assert all((row.sent_ns or 0) >= 1 * S for row in after)
    assert info.end_ns == 1200 * MS


@virtual
async def test_the_opening_of_a_timed_closed_loop_lies_outside_the_window() -> None:
    runner, _, rows = build(lambda now: 100 * MS)
    info = closed(4, duration_ns=1 * S)
    await runner.run(info, requests(None), stagger_ns=100 * MS)
    assert (info.window_start_ns, info.window_end_ns) == (100 * MS, 1100 * MS)
    early = [row for row in rows.rows if (row.sent_ns or 0) < 100 * MS]
    assert len(early) == 4
    assert all("after_window" in row.flags for row in early)


@virtual
async def test_open_loop_follows_the_schedule_whatever_the_server_does() -> None:
    runner, endpoint, rows = build(lambda now: 5 * S)
    info = open_loop(10, requests=100)
    await runner.run(info, requests(100, every(100 * MS)))
    assert sorted(row.sent_ns or 0 for row in rows.rows) == [i * 100 * MS for i in range(100)]
    assert endpoint.peak == 50
    assert all(row.scheduled_ns == row.ready_ns == row.dispatched_ns == row.sent_ns for row in rows.rows)


@virtual
async def test_an_hour_of_open_loop_takes_no_hour() -> None:
    runner, _, rows = build(lambda now: 20 * MS)
    await runner.run(open_loop(1, duration_ns=3600 * S), requests(None, every(1 * S)))
    assert sum("after_window" not in row.flags for row in rows.rows) == 3600


@virtual
async def test_ten_requests_a_second_at_one_slot_of_half_a_second_show_the_omitted_wait() -> None:
    runner, _, rows = build(lambda now: 500 * MS)
    await runner.run(open_loop(10, cap=1, requests=8), requests(8, every(100 * MS)))
    rows.rows.sort(key=lambda row: row.request_id)
    e2e_scheduled = [row.event_ns[-1] - (row.scheduled_ns or 0) for row in rows.rows]
    e2e = [row.event_ns[-1] - (row.sent_ns or 0) for row in rows.rows]
    assert sum(e2e_scheduled) / 8 == pytest.approx(1.90 * S)
    assert sum(e2e) / 8 == pytest.approx(0.50 * S)
    # None of that wait is the client's own fault.
    assert all(row.dispatched_ns == row.ready_ns for row in rows.rows)


@virtual
async def test_a_server_that_freezes_shows_only_against_the_schedule() -> None:
    """Coordinated omission: 1 s of freeze in every 10 s, 50 req/s, four slots."""

    def service(now: int) -> int:
        into = now % (10 * S)
        return (1 * S - into if into < 1 * S else 0) + 10 * MS

    runner, _, rows = build(service)
    await runner.run(open_loop(50, cap=4, duration_ns=100 * S), requests(None, every(20 * MS)))
    rows.rows = [row for row in rows.rows if "after_window" not in row.flags]
    ttft = np.array([row.event_ns[0] - (row.sent_ns or 0) for row in rows.rows]) / S
    scheduled = np.array([row.event_ns[0] - (row.scheduled_ns or 0) for row in rows.rows]) / S
    assert len(rows.rows) == 5000
    assert np.percentile(ttft, 99) < 0.02
    assert np.percentile(scheduled, 99) == pytest.approx(1.0, abs=0.12)


@virtual
async def test_a_capped_open_loop_that_cannot_follow_ends_and_says_what_it_never_sent() -> None:
    runner, _, rows = build(lambda now: 10 * S)
    info = open_loop(10, cap=1, duration_ns=10 * S)
    await runner.run(info, requests(None, every(100 * MS)))
    assert info.planned == 100
    measured = [row for row in rows.rows if "after_window" not in row.flags]
    assert info.unsent == 100 - len(measured) > 0


@virtual
async def test_interruption_keeps_what_was_in_flight_as_cancelled_rows() -> None:
    runner, _, rows = build(lambda now: 400 * MS, gap_ns=100 * MS, tokens=5)
    info = closed(3, requests=100)

    async def interrupt() -> None:
        await asyncio.sleep(1.0)
        runner.stop.set()

    await asyncio.gather(runner.run(info, requests(100)), interrupt())
    outcomes = [row.outcome for row in rows.rows]
    assert outcomes.count("ok") == 3
    assert outcomes.count("cancelled") == 3
    assert [len(row.event_ns) for row in rows.rows if row.outcome == "cancelled"] == [0, 0, 0] or all(
        row.output_tokens is None or row.output_tokens >= 0 for row in rows.rows
    )
    assert (info.stopped, info.unsent) == ("interrupted", 94)


@virtual
async def test_a_session_holds_one_slot_and_its_history_grows_by_the_answers() -> None:
    runner, endpoint, rows = build(lambda now: 100 * MS, tokens=2)
    turns = [
        PlannedRequest(i, 0, "chat", (Message("user", f"turn {i}"),), 7, 2, session_id="a", turn=i, think_ns=1 * S)
        for i in range(3)
    ]
    info = closed(2, requests=3)
    await runner.run(info, iter(turns))
    assert endpoint.peak == 1
    assert [row.sent_ns for row in rows.rows] == [0, 1100 * MS, 2200 * MS]
    assert endpoint.bodies[2].count(b'"xx"') == 2  # two answers in the third body


@virtual
async def test_a_recorded_answer_stands_where_the_servers_would() -> None:
    """And a turn without one still gets the server's."""
    runner, endpoint, _ = build(lambda now: 1, tokens=2)
    recorded = (Message("assistant", "recorded"), Message("user", "u1"))
    texts = [(Message("user", "u0"),), recorded, (Message("user", "u2"),)]
    turns = [PlannedRequest(i, 0, "w", text, 0, 2, session_id="a", turn=i) for i, text in enumerate(texts)]
    await runner.run(closed(1, requests=3), iter(turns))
    said = [[m["content"] for m in json.loads(body)["messages"]] for body in endpoint.bodies]
    assert said == [["u0"], ["u0", "recorded", "u1"], ["u0", "recorded", "u1", "xx", "u2"]]


@virtual
async def test_no_request_at_all_is_a_stage_too() -> None:
    runner, _, rows = build(lambda now: 1)
    info = closed(2, requests=0)
    await runner.run(info, requests(0))
    assert rows.rows == []
    assert info.end_ns == 0


@pytest.mark.parametrize("kind", [closed(2, requests=4), open_loop(10, requests=4)])
@virtual
async def test_a_plan_that_raises_ends_the_stage_with_its_error(kind: StageInfo) -> None:
    runner, _, _ = build(lambda now: 1)

    def broken() -> Iterator[PlannedRequest]:
        yield from requests(1, every(MS) if kind.load.kind == "rate" else None)
        raise RuntimeError("bad plan")

    wait: Awaitable[None] = runner.run(kind, broken())
    with pytest.raises(RuntimeError, match="bad plan"):
        await wait


# -- limits, refusals, an end before the time -----------------------------------------------------------------------


def _with_budget(runner: Runner, tokens: int) -> Purse:
    """Each request of `requests` takes 7 prompt tokens and 1 output token; the purse knows that."""
    purse = runner.purse = Purse(Budget(tokens=10_000))
    held = purse.take(next(requests(1)))
    assert held is not None
    purse.settle(held, Exchange(0, 0, "chat", "ok", 7, 1, sent_ns=1, prompt_tokens=7, output_tokens=1))
    purse.spent = replace(purse.spent, tokens=tokens + 8)
    return purse


@virtual
async def test_a_token_limit_cuts_the_stage_and_counts_what_was_not_sent() -> None:
    runner, _, rows = build(lambda now: 100 * MS)
    purse = _with_budget(runner, 80)
    info = closed(4, requests=40)
    await runner.run(info, requests(40))
    assert len(rows.rows) == 10
    assert (info.planned, info.unsent, info.stopped) == (40, 30, "cut: --max-tokens-total is spent")
    assert purse.spent.spent_tokens == 88
    assert {row.outcome for row in rows.rows} == {"ok"}


@virtual
async def test_a_token_limit_in_open_loop_counts_what_was_due() -> None:
    runner, _, rows = build(lambda now: 100 * MS)
    _with_budget(runner, 80)
    info = open_loop(10, duration_ns=5 * S)
    await runner.run(info, requests(None, every(100 * MS)))
    assert len(rows.rows) == 10
    assert (info.planned, info.unsent) == (50, 40)
    assert info.window_end_ns == 1 * S


@virtual
async def test_the_first_stage_behind_the_limit_sends_nothing() -> None:
    runner, _, rows = build(lambda now: 100 * MS)
    _with_budget(runner, 8)
    await runner.run(closed(1, requests=5), requests(5))
    info = closed(1, requests=5)
    await runner.run(info, requests(5))
    assert len(rows.rows) == 1
    assert (info.planned, info.unsent) == (5, 5)


class Refusing(Endpoint):
    """Takes no connection before `until_ns`; a refusal takes no time."""

    def __init__(self, clock: VirtualClock, until_ns: int) -> None:
        super().__init__(clock, lambda now: 100 * MS)
        self.until_ns, self.refusals = until_ns, 0

    lead_ns = 0

    async def stream(self, capture: Capture, url: str, body: bytes) -> None:
        if self.clock.now_ns() >= self.until_ns:
            await super().stream(capture, url, body)
            return
        self.refusals += 1
        capture.failure, capture.end_ns = Failure("connect", "refused"), self.clock.now_ns()


@virtual
async def test_a_server_that_takes_no_connection_is_not_hammered() -> None:
    clock, rows = VirtualClock(), Rows()
    endpoint = Refusing(clock, 10 * S)
    runner = Runner(clock, endpoint, Target("http://x/v1", "chat", "m"), rows)
    info = closed(4, duration_ns=20 * S)
    await runner.run(info, requests(None))
    assert 4 <= endpoint.refusals <= 4 * 15
    assert sum(row.outcome == "ok" for row in rows.rows) >= 4 * 80  # and is used again as soon as it is back
    assert info.health["paused_s"] == pytest.approx(10, abs=1)


@virtual
async def test_pauses_are_bounded_and_open_loop_has_none() -> None:
    clock, rows = VirtualClock(), Rows()
    runner = Runner(clock, Refusing(clock, 10**18), Target("http://x/v1", "chat", "m"), rows)
    info = closed(1, requests=10_000)
    await runner.run(info, requests(10_000))
    assert len(rows.rows) == 10_000
    assert 59 <= info.health["paused_s"] <= 60
    info = open_loop(10, requests=100)
    before = clock.now_ns()
    await runner.run(info, requests(100, every(100 * MS)))
    assert clock.now_ns() - before < 10 * S
    assert "paused_s" not in info.health


class Early(Endpoint):
    """Is handed requests 2 ms before they are due, and holds them as the transport does."""

    lead_ns = 2 * MS

    async def stream(self, capture: Capture, url: str, body: bytes) -> None:
        try:
            await self.clock.sleep_until(capture.scheduled_ns or 0)
        except asyncio.CancelledError:
            capture.failure = Failure("cancelled", "cancelled by the client")
            return
        await super().stream(capture, url, body)


@virtual
async def test_an_open_loop_hands_over_early_and_sends_on_time() -> None:
    clock, rows = VirtualClock(), Rows()
    runner = Runner(clock, Early(clock, lambda now: 10 * MS), Target("http://x/v1", "chat", "m"), rows)
    info = open_loop(1000, requests=50)
    await runner.run(info, requests(50, every(1 * MS)))
    assert [row.sent_ns for row in rows.rows] == [row.scheduled_ns for row in rows.rows]
    assert [row.dispatched_ns for row in rows.rows] == [row.scheduled_ns for row in rows.rows]
    assert info.planned == len(rows.rows) == 50


@virtual
async def test_what_never_was_due_when_the_stage_ends_is_no_request() -> None:
    """By duration load goes on until the window has finished; what was held at that moment leaves no trace."""
    clock, rows = VirtualClock(), Rows()
    runner = Runner(clock, Early(clock, lambda now: 10 * MS), Target("http://x/v1", "chat", "m"), rows)
    info = open_loop(1000, duration_ns=100 * MS)
    await runner.run(info, requests(None, every(1 * MS)))
    assert info.end_ns is not None
    assert all(row.sent_ns is not None and row.sent_ns <= info.end_ns for row in rows.rows)
    assert sum("after_window" not in row.flags for row in rows.rows) == info.planned == 100


@virtual
async def test_a_budget_gets_back_what_was_held_for_requests_that_never_were_sent() -> None:
    clock, rows = VirtualClock(), Rows()
    runner = Runner(clock, Early(clock, lambda now: 10 * MS), Target("http://x/v1", "chat", "m"), rows)
    _with_budget(runner, 10_000)
    await runner.run(open_loop(1000, duration_ns=100 * MS), requests(None, every(1 * MS)))
    assert runner.purse is not None
    assert runner.purse._held_tokens == 0
