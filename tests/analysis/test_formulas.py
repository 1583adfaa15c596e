"""Every metric against hand-worked examples and, for any run, against a plain Python reading of its definition."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis import formulas, gaps
from loadgen.analysis.definitions import METRICS, estimate, metric
from loadgen.analysis.measured import Measured, measure, row_facts
from loadgen.errors import UsageError
from loadgen.model import Exchange, StageInfo
from tests.analysis.made import failed, frame, ok, stage


def measured(exchanges: list[Exchange], info: StageInfo | None = None) -> Measured:
    requests = frame(exchanges)
    return measure(info or stage(), requests, row_facts(requests), 1)


def value(m: Measured, name: str, stat: str) -> float:
    return estimate(m, METRICS[name], stat).value


def test_role_chunk_first_then_ten_tokens() -> None:
    """Role at 0.01 s (no event), ten tokens from 0.50 each 0.05 s, finish 0.96, usage 0.97."""
    m = measured([ok(events=[0.5 + 0.05 * i for i in range(10)], end=0.97)], stage(end=1.0))
    assert value(m, "ttft", "p50") == pytest.approx(0.50)
    assert value(m, "e2e", "p50") == pytest.approx(0.95)
    assert value(m, "tpot", "p50") == pytest.approx(0.05)
    assert m.events.gap.n == 9
    assert list(m.events.gap.values) == [0.05]
    assert value(m, "output_tokens_per_s_per_user", "p50") == pytest.approx(20.0)
    assert value(m, "output_tokens_per_s", "rate") == pytest.approx(10.0)


def test_five_chunks_of_four_tokens() -> None:
    m = measured([ok(events=[0.1, 0.2, 0.3, 0.4, 0.5], tokens=[4] * 5)])
    assert value(m, "chunk_gap", "p50") == pytest.approx(0.1)
    assert value(m, "tpot", "mean") == pytest.approx(0.4 / 19)
    assert value(m, "tpot_after_first_event", "mean") == pytest.approx(0.025)
    assert value(m, "itl", "mean") == pytest.approx(0.025)
    assert value(m, "itl", "p50") == pytest.approx(0.025)
    for stat in ("p90", "p95", "p99", "min", "max"):
        assert math.isnan(value(m, "itl", stat))
    assert value(m, "chunk_gap", "p99") == pytest.approx(0.1)


def test_a_stall_that_ends_in_a_large_event() -> None:
    events = [0.1 + 0.01 * i for i in range(50)]
    events.append(events[-1] + 0.5)
    m = measured([ok(events=events, tokens=[1] * 50 + [8])])
    assert value(m, "max_gap", "max") == pytest.approx(0.5)
    assert value(m, "chunk_gap", "max") == pytest.approx(0.5)
    assert value(m, "itl", "p99") == pytest.approx(0.5 / 8)  # 1 event of 50 holds several: percentiles still shown


def test_one_slot_cannot_follow_ten_requests_a_second() -> None:
    """10 req/s at one slot of 0.5 s: e2e stays 0.50 s, from the schedule the mean of 8 requests is 1.90 s."""
    exchanges = [ok(i, scheduled=0.1 * i, sent=0.5 * i, events=(0.2, 0.5)) for i in range(8)]
    m = measured(exchanges, stage(kind="rate", value=10.0, requests=8))
    assert value(m, "e2e", "mean") == pytest.approx(0.5)
    assert value(m, "e2e_scheduled", "mean") == pytest.approx(1.90)
    assert value(m, "ttft", "max") == pytest.approx(0.2)
    assert value(m, "ttft_scheduled", "min") == pytest.approx(0.2)
    assert value(m, "ttft_scheduled", "max") == pytest.approx(3.0)
    assert value(m, "schedule_delay", "max") == pytest.approx(2.8)


def test_hidden_reasoning_is_not_in_tpot() -> None:
    m = measured([ok(events=[1.0, 1.1, 1.2], output_tokens=503, reasoning_tokens=500)])
    assert value(m, "tpot", "p50") == pytest.approx(0.1)
    assert value(m, "output_tokens", "total") == 503
    assert value(m, "output_tokens_per_s", "rate") == pytest.approx(0.3)


def test_one_token_has_no_tpot_and_no_gap() -> None:
    m = measured([ok(i, sent=float(i), events=(0.3,)) for i in range(3)])
    for name in ("tpot", "tpot_after_first_event", "max_gap", "chunk_gap", "itl", "output_tokens_per_s_per_user"):
        assert math.isnan(value(m, name, "mean")), name
    assert value(m, "ttft", "mean") == pytest.approx(0.3)
    assert value(m, "share_prefill", "mean") == 1.0


def test_not_streamed_claims_no_moment_inside_the_answer() -> None:
    m = measured([ok(events=(0.8,), tokens=[7], end=0.9, flags=("not_streamed",))])
    for name in ("ttft", "time_to_first_answer", "tpot", "chunk_gap", "share_prefill"):
        assert math.isnan(value(m, name, "mean")), name
    assert value(m, "e2e", "mean") == pytest.approx(0.9)
    assert value(m, "output_tokens", "mean") == 7


def test_connecting_is_apart_and_client_delay_is_only_the_clients() -> None:
    exchange = ok(
        sent=1.0, scheduled=0.2, ready=0.7, dispatched=0.72, connect_start_ns=730_000_000, connected_ns=990_000_000
    )
    m = measured([exchange], stage(kind="rate"))
    assert value(m, "connect", "max") == pytest.approx(0.26)
    assert value(m, "client_delay", "max") == pytest.approx(0.02)
    assert value(m, "schedule_delay", "max") == pytest.approx(0.8)
    assert value(m, "ttft", "max") == pytest.approx(0.5)


def test_failures_have_no_latency_but_their_tokens_count_for_the_server() -> None:
    m = measured([ok(0, events=(0.5, 0.6)), failed(1, events=(0.1, 0.2, 0.3), end=0.4, output_tokens=3)])
    assert estimate(m, METRICS["ttft"], "p50").n == 1
    assert m.events.gap.n == 1
    assert value(m, "output_tokens_per_s", "rate") == pytest.approx(0.5)
    assert value(m, "error_rate", "rate") == 0.5
    assert value(m, "requests_per_s", "rate") == pytest.approx(0.1)


def test_equal_values_have_bounds_of_no_width() -> None:
    m = measured([ok(i, sent=0.1 * i) for i in range(400)], stage(end=50.0))
    found = estimate(m, METRICS["ttft"], "p99")
    assert (found.low, found.high, found.supported) == (0.5, 0.5, True)


def test_an_empty_token_event_lends_its_time_to_the_next() -> None:
    """Two events for one token (a character in two parts): the token's gap is the sum."""
    m = measured([ok(events=(0.1, 0.2, 0.25, 0.4), tokens=(1, 0, 1, 1))])
    assert m.events.gap.n == 3
    assert (m.events.itl.values.tolist(), m.events.itl.counts.tolist()) == ([0.15], [2])
    assert value(m, "itl", "mean") == pytest.approx(0.15)


def test_long_gaps_are_as_exact_as_short_ones() -> None:
    m = measured([ok(events=(0.1, 5.1, 5.2, 15.2), sent=0.0)], stage(end=20.0))
    assert value(m, "chunk_gap", "max") == pytest.approx(10.0)
    assert value(m, "chunk_gap", "p50") == pytest.approx(5.0)
    assert value(m, "chunk_gap", "mean") == pytest.approx(15.1 / 3)


def _wandering(seed: int, n: int) -> np.ndarray[Any, Any]:
    """Gaps whose level wanders in time: 20 of them share a level, as in a busy moment of the server."""
    rng = np.random.default_rng(seed)
    level = np.repeat(rng.normal(0.0, 0.2, size=n // 20), 20)
    return 0.01 * np.exp(level + rng.normal(0.0, 0.1, size=n))


@cache
def _hundred_runs() -> list[Measured]:
    return [measured([ok(events=list(np.cumsum(_wandering(s, 8_000))))], stage(end=100.0)) for s in range(100)]


@pytest.mark.parametrize("q", ["p50", "p99"])
def test_bounds_of_gaps_cover(q: str) -> None:
    """Of 100 runs at least 88 % hold the truth of a very long one."""
    truth = float(np.quantile(_wandering(999, 400_000), float(q[1:]) / 100))
    hits = 0
    for m in _hundred_runs():
        found = estimate(m, METRICS["chunk_gap"], q)
        hits += found.low <= truth <= found.high
    assert hits >= 88


# -- any run, read twice ---------------------------------------------------------------------

steps = st.lists(st.integers(0, 3_000_000), min_size=0, max_size=8)


@st.composite
def runs(draw: st.DrawFn) -> list[Exchange]:
    exchanges = []
    for i in range(draw(st.integers(0, 7))):
        gaps_us = draw(steps)
        events = np.cumsum(gaps_us) / 1e6
        tokens = draw(st.lists(st.sampled_from([1, 1, 1, 2, 5]), min_size=len(events), max_size=len(events)))
        sent = draw(st.integers(0, 9_000_000)) / 1e6
        make: Any = ok if len(events) and draw(st.booleans()) else failed
        late = float(events[-1]) if len(events) else 0.5
        exchanges.append(make(i, sent=sent, events=list(events), tokens=tokens, end=sent + late))
    return exchanges


def read(exchange: Exchange, name: str) -> float | None:
    """The definitions, one request at a time, in nanoseconds."""
    if exchange.outcome != "ok":
        return None
    first, last, n = exchange.event_ns[0], exchange.event_ns[-1], sum(exchange.event_tokens)
    sent = exchange.sent_ns or 0
    match name:
        case "ttft":
            return (first - sent) / 1e9
        case "e2e":
            return (last - sent) / 1e9
        case "tpot":
            return (last - first) / 1e9 / (n - 1) if n >= 2 else None
        case "tpot_after_first_event":
            left = n - exchange.event_tokens[0]
            return (last - first) / 1e9 / left if left > 0 else None
        case _:
            found = [b - a for a, b in zip(exchange.event_ns, exchange.event_ns[1:], strict=False)]
            return max(found) / 1e9 if found else None


@given(runs())
def test_request_metrics_follow_their_definitions(exchanges: list[Exchange]) -> None:
    m = measured(exchanges, stage(end=60.0))
    for name in ("ttft", "e2e", "tpot", "tpot_after_first_event", "max_gap"):
        wanted = [x for x in (read(exchange, name) for exchange in exchanges) if x is not None]
        for stat, reduce in (("mean", np.mean), ("min", np.min), ("p90", lambda v: np.quantile(v, 0.9))):
            found = value(m, name, stat)
            assert math.isnan(found) if not wanted else found == pytest.approx(float(reduce(wanted)), abs=1e-9)


@given(runs())
def test_gaps_rates_and_flights_follow_their_definitions(exchanges: list[Exchange]) -> None:
    m = measured(exchanges, stage(start=2.0, end=12.0))
    wanted, shares = [], []
    for e in exchanges:
        if e.outcome == "ok":
            for a, b, k in zip(e.event_ns, e.event_ns[1:], e.event_tokens[1:], strict=False):
                wanted.append((b - a) / 1e9)
                shares += [(b - a) / 1e9 / k] * k
    for name, values in (("gap", wanted), ("itl", shares)):
        tally = getattr(m.events, name)
        assert tally.n == len(values)
        for q in (0.0, 0.5, 0.99, 1.0):
            if values:
                assert tally.quantile(q) == pytest.approx(float(np.quantile(values, q)), abs=1e-9)
    inside = sum(k for e in exchanges for at, k in zip(e.event_ns, e.event_tokens, strict=True) if 2e9 <= at <= 12e9)
    assert m.events.tokens.sum() == inside
    if not exchanges:
        assert math.isnan(value(m, "in_flight", "mean"))
        return
    assert value(m, "output_tokens_per_s", "max") >= value(m, "output_tokens_per_s", "rate") - 1e-12
    flown = sum(max(min(_landed(e), 12e9) - max(e.sent_ns or 0, 2e9), 0) for e in exchanges) / 1e10
    assert value(m, "in_flight", "mean") == pytest.approx(flown, abs=1e-6)
    parts = value(m, "waiting_first_token", "mean") + value(m, "streaming", "mean")
    assert parts == pytest.approx(value(m, "in_flight", "mean"), abs=1e-9)


def _landed(e: Exchange) -> int:
    return e.event_ns[-1] if e.outcome == "ok" else e.end_ns or 0


@given(runs(), st.integers(1, 9))
def test_the_size_of_a_chunk_does_not_matter(exchanges: list[Exchange], chunk: int) -> None:
    requests = frame(exchanges)
    m = measure(stage(end=60.0), requests, row_facts(requests), 1)
    good = np.zeros(len(requests), dtype=np.bool_)
    good[m.columns.rows[m.columns.streamed_ok]] = True
    one, other = (gaps.scan(requests, m.window, good, (0.0, 6e10), chunk_events=size) for size in (chunk, 1 << 20))
    np.testing.assert_array_equal(one.gap.counts, other.gap.counts)
    np.testing.assert_array_equal(one.itl.values, other.itl.values)
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_allclose(one.gap_blocks.sums, other.gap_blocks.sums)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=50))
def test_a_fine_bin_holds_its_value(micros: list[int]) -> None:
    bins = gaps._bin(np.array(micros))
    assert (gaps._edge(bins) <= np.array(micros) + 1e-6).all()
    assert (gaps._edge(bins + 1) > np.array(micros)).all()
    wide = gaps._edge(bins + 1) - gaps._edge(bins)
    assert (wide <= (np.array(micros) + 1) / 512 + 1e-9).all()


# -- the table ---------------------------------------------------------------------


def test_the_table_has_every_metric_of_the_method() -> None:
    named = (
        "ttft ttft_scheduled time_to_first_answer e2e e2e_scheduled tpot tpot_after_first_event chunk_gap max_gap itl "
        "output_tokens_per_s_per_user schedule_delay client_delay prompt_tokens output_tokens reasoning_tokens "
        "cached_tokens connect output_tokens_per_s total_tokens_per_s requests_per_s in_flight waiting_first_token "
        "streaming slo_attainment goodput error_rate share_prefill share_decode"
    )
    assert set(named.split()) <= set(METRICS)
    for line in METRICS.values():
        assert (line.per_request is None) != (line.per_stage is None)
        assert line.formula
        assert not re.search(r"\bthroughput\b", line.formula + line.caveat)


def test_an_unknown_metric_names_its_neighbours() -> None:
    with pytest.raises(UsageError, match="did you mean tpot"):
        metric("tptot")


@pytest.mark.parametrize(("stat", "q"), [("p99", 0.99), ("p99.9", 0.999), ("p50", 0.5), ("mean", None), ("p100", None)])
def test_names_of_percentiles(stat: str, q: float | None) -> None:
    assert formulas.quantile_of(stat) == (None if q is None else pytest.approx(q))


def test_a_window_that_is_over_before_anything_can_be_seen_has_no_rate() -> None:
    """1 ms of closed loop: a request is sent in it, and answered long after it."""
    m = measured([ok(0, sent=0.0, events=(0.2, 0.3))], stage(end=0.001, duration=0.001))
    for name in ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s"):
        assert math.isnan(value(m, name, "rate")), name
    # A server that gives nothing for a minute has a rate of 0, which is no gap in what was seen.
    hung = measured([ok(0, sent=0.0, events=(0.2, 0.3)), failed(1, sent=0.1, end=60.0)], stage(start=1.0, end=60.0))
    assert value(hung, "output_tokens_per_s", "rate") == 0.0
