"""Tallies: percentiles within the stated error, and sums that do not depend on who counted what."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.tally import BOUNDS_S, ERROR_SHARE, Histogram, Tally, merged
from loadgen.model import Exchange
from tests.analysis.made import failed, ok


def some(n: int) -> list[Exchange]:
    made = [ok(i, sent=0.1 * i, events=[0.05 + 0.001 * i, 0.2, 0.3 + 0.01 * i]) for i in range(n)]
    return [*made, failed(n), replace(made[0], request_id=n + 1, warmup=True)]


@given(st.lists(st.floats(1e-4, 999.0), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_percentile_is_within_the_stated_error(values: list[float], q: float) -> None:
    histogram = Histogram.over(BOUNDS_S)
    histogram.add(np.array(values))
    exact = sorted(values)[max(1, math.ceil(q * len(values))) - 1]
    assert histogram.quantile(q) == pytest.approx(exact, rel=ERROR_SHARE * 1.0001)
    assert histogram.total == pytest.approx(sum(values))


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_several_workers_add_up_to_one(workers: int) -> None:
    exchanges = some(20)
    alone = Tally()
    parts = [Tally() for _ in range(workers)]
    for i, exchange in enumerate(exchanges):
        alone.add(exchange)
        parts[i % workers].add(exchange)
    together = merged(parts)
    assert together.outcomes == alone.outcomes == {"ok": 20, "failed": 1}
    assert together.gap.counts.sum() == alone.gap.counts.sum() == 40
    for mine, other in ((together.ttft, alone.ttft), (together.output, alone.output)):
        assert mine.counts.tolist() == other.counts.tolist()
        assert mine.total == pytest.approx(other.total)
    assert together.duration.keys() == alone.duration.keys()


def test_without_a_value_there_is_no_percentile() -> None:
    assert math.isnan(Tally().ttft.quantile(0.5))
    beyond = Histogram.over(BOUNDS_S)
    beyond.add(np.array([1e-9, 1e9, math.nan]))
    assert (beyond.quantile(0.1), beyond.quantile(0.9)) == (BOUNDS_S[0], BOUNDS_S[-1])
