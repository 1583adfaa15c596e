"""Clock offsets: whatever the two ways of a message take, the truth is within the stated bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.clocks import DRIFT, Reading, RemoteClock, shortest

WAY = st.integers(1, 50_000_000)  # ns, one way; nothing says that both are alike
OFFSET = st.integers(-(10**15), 10**15)


@pytest.mark.parametrize(
    ("sent", "remote", "back", "offset", "error"),
    [(0, 50, 100, 0, 50), (1000, 9000, 1400, 7800, 200), (10, 5, 10, -5, 0), (0, 100, 101, 50, 51)],
)
def test_a_reading_is_the_middle_give_or_take_half_the_round_trip(
    sent: int, remote: int, back: int, offset: int, error: int
) -> None:
    reading = Reading.of(sent, remote, back)
    assert (reading.at_ns, reading.offset_ns, reading.error_ns) == (back, offset, error)


@given(OFFSET, st.lists(st.tuples(WAY, WAY), min_size=1, max_size=20))
def test_the_shortest_of_a_burst_bounds_the_truth(offset: int, ways: list[tuple[int, int]]) -> None:
    at, burst = 0, []
    for there, back in ways:
        burst.append(Reading.of(at, at + there + offset, at + there + back))
        at += there + back
    best = shortest(burst)
    assert abs(best.offset_ns - offset) <= best.error_ns
    assert 2 * best.error_ns <= min(there + back for there, back in ways) + 1


@given(
    OFFSET,
    st.floats(-0.99 * DRIFT, 0.99 * DRIFT),
    st.lists(st.tuples(WAY, WAY, st.integers(0, 10**10)), min_size=1, max_size=150),
)
def test_a_drifting_clock_stays_within_its_bound_between_readings_too(
    offset: int, rate: float, steps: list[tuple[int, int, int]]
) -> None:
    def truth(at: int) -> int:
        return offset + round(rate * at)

    def read(at: int, there: int, back: int) -> Reading:
        return Reading.of(at, at + there + truth(at + there), at + there + back)

    now = 0
    clock = RemoteClock(read(now, 1_000_000, 1_000_000))
    for there, back, pause in steps:
        now += pause
        assert abs(clock.used_ns - truth(now)) <= clock.bound_ns(now) + 1000
        clock.take(read(now, there, back))
        now += there + back
        assert abs(clock.used_ns - truth(now)) <= clock.bound_ns(now) + 1000
        assert clock.bound_ns(now) <= clock.error_ns
    assert clock.shift_ns == clock.used_ns - clock.base.offset_ns
    assert clock.count == len(steps) + 1


def test_noise_moves_no_stamp_and_a_contradiction_does() -> None:
    clock = RemoteClock(Reading(0, 1_000, 100))
    for at, offset, error in ((1, 1_090, 100), (2, 950, 90), (3, 5_000, 4_500)):
        clock.take(Reading(at, offset, error))
        assert clock.shift_ns == 0
    clock.take(Reading(4, 9_000, 50))
    assert (clock.shift_ns, clock.used_ns) == (8_000, 9_000)
