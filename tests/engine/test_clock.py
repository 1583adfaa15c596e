"""The clock of a run: one axis, timers that are neither early nor rounded to milliseconds."""

from __future__ import annotations

import asyncio
import os
import select
import time

import pytest

from loadgen.engine.clock import MonotonicClock, TimerFd
from loadgen.engine.sockets import StampingSelector
from tests.busy import DEADLINE_S

MS = 1_000_000


def test_now_counts_from_the_origin() -> None:
    origin = time.monotonic_ns()
    clock = MonotonicClock(origin)
    before, now, after = time.monotonic_ns(), clock.now_ns(), time.monotonic_ns()
    assert before - origin <= now <= after - origin


@pytest.mark.parametrize("stamping", [True, False])
def test_sleeps_are_never_early_and_keep_their_order(stamping: bool) -> None:
    woken: list[tuple[int, int]] = []
    clock = MonotonicClock(time.monotonic_ns())

    async def sleeper(due: int) -> None:
        await clock.sleep_until(due)
        woken.append((due, clock.now_ns()))

    async def use() -> None:
        dues = [300 * MS + k * 700_000 for k in range(40)]  # later than a busy machine needs to begin them
        await asyncio.gather(*(sleeper(due) for due in reversed(dues)), sleeper(-5), sleeper(0))

    selector = StampingSelector(0) if stamping else None
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(use())
    assert len(woken) == 42
    # asyncio counts a timer as due up to its clock's resolution early, and seconds as floats round by under 1 µs.
    assert all(now >= due - 2_000 for due, now in woken)
    assert [due for due, _ in woken] == sorted(due for due, _ in woken)


def test_a_cancelled_sleep_leaves_nothing_behind() -> None:
    async def use() -> None:
        clock = MonotonicClock(time.monotonic_ns())
        task = asyncio.ensure_future(clock.sleep_until(10**12))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(StampingSelector(0))) as runner:
        runner.run(use())


def test_timers_are_due_to_the_microsecond_not_the_millisecond() -> None:
    """epoll rounds up to whole milliseconds, so without the timerfd each of these would be 0.7 ms late."""
    late: list[int] = []

    async def use() -> None:
        clock = MonotonicClock(time.monotonic_ns())
        while clock.now_ns() < DEADLINE_S * 1e9 and (len(late) < 60 or min(late) >= 500_000):
            due = clock.now_ns() + 300_000
            await clock.sleep_until(due)
            late.append(clock.now_ns() - due)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(StampingSelector(0))) as runner:
        runner.run(use())
    assert min(late) < 500_000  # the best of many: what the timer can do, not what a busy machine does


@pytest.mark.skipif(TimerFd().fileno < 0, reason="the system has no timerfd")
def test_the_timer_wakes_an_epoll_once_and_can_be_moved() -> None:
    timer = TimerFd()
    with select.epoll() as epoll:
        epoll.register(timer.fileno, select.EPOLLIN)
        begun = time.monotonic_ns()
        timer.arm(begun + 10_000 * MS)
        timer.arm(begun + 3 * MS)
        assert epoll.poll(5)
        assert time.monotonic_ns() >= begun + 3 * MS
        timer.clear()
        assert not epoll.poll(0)
        timer.arm(time.monotonic_ns() - 1)  # in the past: at once
        assert epoll.poll(5)
        timer.arm(0)
        assert not epoll.poll(0.02)
    fd = timer.fileno
    timer.close()
    assert timer.fileno == -1
    with pytest.raises(OSError):
        os.fstat(fd)
