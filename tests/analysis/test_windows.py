"""Who belongs to a window, and what was in flight during it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.windows import Window, _overlap, _peak, window_of
from loadgen.model import Exchange
from tests.analysis.made import failed, frame, ok, stage


def rows(exchanges: list[Exchange], **of_stage: Any) -> list[int]:
    return frame(exchanges).request_id[window_of(stage(**of_stage), frame(exchanges)).rows].tolist()


def test_closed_loop_goes_by_the_send() -> None:
    exchanges = [ok(i, sent=at) for i, at in enumerate((1.9, 2.0, 5.0, 11.99, 12.0))]
    assert rows(exchanges, start=2.0, end=12.0, duration=10.0) == [1, 2, 3]


def test_open_loop_goes_by_the_schedule() -> None:
    """Due in the window and sent long after it: measured. Due after it: not."""
    exchanges = [ok(0, scheduled=1.0, sent=30.0), ok(1, scheduled=10.0, sent=10.0), ok(2, scheduled=9.9, sent=10.1)]
    assert rows(exchanges, kind="rate", duration=10.0) == [0, 2]


def test_warm_up_and_continuation_are_measured_nowhere() -> None:
    exchanges = [ok(0, warmup=True), ok(1, flags=("after_window",)), ok(2), ok(3, stage=1)]
    assert rows(exchanges, requests=1) == [2]


def test_by_number_all_are_measured_whenever_they_went() -> None:
    assert rows([ok(i, sent=float(i)) for i in range(40)], requests=40, end=10.0) == list(range(40))


def test_a_request_that_never_connected_is_measured_where_it_was_taken_up() -> None:
    exchanges = [failed(0, sent=None, dispatched=3.0, ready=3.0, end=4.0, kind="connect")]
    assert rows(exchanges, duration=10.0) == [0]
    assert rows(exchanges, duration=10.0, start=4.0, end=14.0) == []


def test_a_later_turn_stays_with_its_session() -> None:
    exchanges = [
        ok(0, scheduled=9.0, sent=9.0, session_id="a", turn=0),
        ok(1, sent=15.0, session_id="a", turn=1),
        ok(2, sent=16.0, session_id="b", turn=1, flags=("after_window",)),
    ]
    assert rows(exchanges, kind="rate", duration=10.0) == [0, 1]


def opened(exchanges: list[Exchange], **of_stage: Any) -> Window:
    return window_of(stage(**of_stage), frame(exchanges))


def test_a_killed_run_has_the_window_that_its_rows_reach() -> None:
    window = opened([ok(0, sent=1.0, events=(0.5, 2.0)), ok(1, sent=2.0, events=(0.5, 3.0))], end=None, start=1.0)
    assert (window.start_ns, window.end_ns) == (1e9, 5e9)


def test_an_empty_stage_has_no_window() -> None:
    info = stage(end=None)
    info.window_start_ns = None
    assert math.isnan(window_of(info, frame([])).seconds)


def test_what_an_interruption_left_unsent_was_not_owed() -> None:
    assert opened([ok(0)], unsent=4).offered == 5
    assert opened([ok(0)], unsent=4, stopped="interrupted").offered == 1


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=12)


@given(spans)
def test_overlap_and_peak_by_counting(some: list[tuple[int, int]]) -> None:
    import numpy as np

    begin = np.array([a for a, _ in some], dtype=np.float64) * 1e9
    end = np.array([a + b for a, b in some], dtype=np.float64) * 1e9
    edges = np.array([5.0, 10.0, 20.0, 30.0]) * 1e9
    active = [sum(a <= t < a + b for a, b in some) for t in range(60)]
    blocks = _overlap(begin, end, edges)
    assert blocks.tolist() == pytest.approx([sum(active[5:10]), sum(active[10:20]), sum(active[20:30])], abs=1e-6)
    peak, held = _peak(begin, end, 5e9, 30e9)
    assert peak == max(active[5:30])
    if peak:
        assert held == pytest.approx(sum(level == peak for level in active[5:30]))
