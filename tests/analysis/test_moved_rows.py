"""Rows whose clock was off: every stamp moves by the same, no duration changes, nothing is lost."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.row import STAMPS, Row, moved_lines, row_of
from tests.analysis.made import failed, ok

ROWS = [ok(1, sent=2.0, scheduled=1.5, text="ä\n"), ok(2, sent=None, events=(3.0, 3.5)), failed(3, sent=0.25)]


def lines_of(rows: list[Row]) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


@given(st.integers(-(10**16), 10**16))
def test_every_stamp_moves_and_no_duration_does(by_ns: int) -> None:
    rows = [row_of(exchange) for exchange in ROWS]
    moved = [msgspec.json.decode(line, type=Row) for line in moved_lines(lines_of(rows), by_ns).splitlines()]
    by_us = round(by_ns / 1000)
    for before, after in zip(rows, moved, strict=True):
        for name in STAMPS:
            at = getattr(before, f"{name}_us")
            assert getattr(after, f"{name}_us") == (None if at is None else at + by_us)
        first = by_us if before.sent_us is None and before.gap_us else 0
        assert after.gap_us == [gap + first * (k == 0) for k, gap in enumerate(before.gap_us)]
        assert (after.request_id, after.outcome, after.text) == (before.request_id, before.outcome, before.text)


@pytest.mark.parametrize("by_ns", [0, 400, 5_000_000])
def test_what_is_no_row_stays_as_it_is(by_ns: int) -> None:
    lines = b'not json\n{"id": "x"}\n\xff\n'
    assert moved_lines(lines, by_ns) == lines


def test_less_than_half_a_microsecond_moves_nothing() -> None:
    lines = lines_of([row_of(ROWS[0])])
    assert moved_lines(lines, 499) is lines
