"""The comparison with an oracle's log, on made-up stamps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.harness import LOG, RECEIVED, match, read_log, table

MS = 1_000_000


def entry(first: int, events: int = 5, gap: int = 10 * MS) -> tuple[int, np.ndarray]:
    return first - 50 * MS, first + gap * np.arange(events, dtype=np.int64)


def test_each_request_finds_its_own_sends_whatever_its_place() -> None:
    log = [entry(100 * MS + 6_000 * k) for k in range(20)]
    order = np.random.default_rng(1).permutation(20)
    arrivals = [log[k][1] + 1_800 for k in order]
    arrivals[3] = arrivals[3].copy()
    arrivals[3][0] += 9 * MS  # the first one came late, so first arrivals are no longer in the order of sends
    assert [found[0] for found in match(arrivals, log)] == [log[k][0] for k in order]


def test_what_cannot_be_matched_is_an_error() -> None:
    with pytest.raises(ValueError, match="1 requests are not"):
        match([entry(5000 * MS)[1]], [entry(100 * MS)])
    with pytest.raises(ValueError, match="1 requests are not"):
        match([entry(100 * MS)[1]] * 2, [entry(100 * MS)])


def test_two_that_are_close_each_get_one() -> None:
    log = [entry(100 * MS), entry(100 * MS + 3_000)]
    arrivals = [log[0][1] + 2_500, log[1][1] + 2_500]  # the first is nearer to the second's sends than to its own
    assert {found[0] for found in match(arrivals, log)} == {log[0][0], log[1][0]}


def test_the_log_is_read_by_request(tmp_path: Path) -> None:
    records = [(7, RECEIVED, 10), (8, RECEIVED, 11), (7, 0, 20), (8, 0, 21), (7, 1, 30), (9, RECEIVED, 40)]
    np.array(records, dtype=LOG).tofile(tmp_path / "log")
    log = read_log(tmp_path / "log")
    assert {number: (received, sends.tolist()) for number, (received, sends) in log.items()} == {
        7: (10, [20, 30]),
        8: (11, [21]),
    }


def test_a_table_is_markdown() -> None:
    assert table(("a", "b"), [("x", 1)]) == "| a | b |\n|---|---:|\n| x | 1 |"
