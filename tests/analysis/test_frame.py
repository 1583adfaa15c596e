"""The columns of a run: rows go in and come out as they were, to the microsecond, and missing stays missing."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.frame import FLAG_BITS, FrameBuilder
from loadgen.analysis.row import STAMPS, Row, exchange_of, row_of
from loadgen.model import FLAGS, CountSource, EndSeen, ErrorKind, Exchange, Failure, Outcome, StampSource
from tests import synthetic

_COUNT = st.none() | st.integers(0, 10**6)
_WHEN = st.none() | st.integers(0, 10**16)
_SOURCE = st.none() | st.sampled_from(get_args(CountSource))
_WORD = st.none() | st.text(min_size=1, max_size=5)


@st.composite
def exchanges(draw: st.DrawFn) -> Exchange:
    """Any request that the model allows."""
    events = sorted(draw(st.lists(st.integers(0, 10**16), max_size=5)))
    sizes = st.lists(st.integers(0, 10**5), min_size=len(events), max_size=len(events))
    stamps: dict[str, Any] = {f"{name}_ns": draw(_WHEN) for name in STAMPS}
    return Exchange(
        draw(st.integers(-(1 << 50), 1 << 50)),
        draw(st.integers(-1, 1000)),
        draw(st.sampled_from(["chat", "story", "mine"])),
        draw(st.sampled_from(get_args(Outcome))),
        draw(st.integers(0, 10**6)),
        draw(st.integers(0, 10**6)),
        warmup=draw(st.booleans()),
        worker=draw(st.integers(0, 50)),
        session_id=draw(_WORD),
        turn=draw(_COUNT),
        **stamps,
        event_ns=tuple(events),
        event_tokens=tuple(draw(st.just([1] * len(events)) | sizes)),
        shared_events=draw(st.integers(0, 9)),
        shared_wait_ns=draw(st.integers(0, 10**9)),
        failure=draw(st.none() | st.builds(Failure, st.sampled_from(get_args(ErrorKind)), st.text(max_size=9))),
        http_status=draw(st.none() | st.integers(100, 599)),
        finish_reason=draw(_WORD),
        end_seen=draw(st.none() | st.sampled_from(get_args(EndSeen))),
        prompt_tokens=draw(_COUNT),
        prompt_tokens_source=draw(_SOURCE),
        output_tokens=draw(_COUNT),
        output_tokens_source=draw(_SOURCE),
        reasoning_tokens=draw(_COUNT),
        cached_tokens=draw(_COUNT),
        prompt_chars=draw(_COUNT),
        stamp_source=draw(st.sampled_from(get_args(StampSource))),
        flags=tuple(sorted(draw(st.sets(st.sampled_from(list(FLAGS)))), key=list(FLAGS).index)),
        server=draw(st.dictionaries(st.sampled_from(["a", "b"]), st.floats(0, 1e9))),
        text=draw(st.none() | st.text(max_size=9)),
    )


@given(st.lists(exchanges(), max_size=6), st.data())
def test_every_request_comes_out_as_it_went_in(rows: list[Exchange], data: st.DataObject) -> None:
    requests = synthetic.frame(tuple(rows))
    assert [requests.exchange(i) for i in range(len(rows))] == [exchange_of(row_of(row)) for row in rows]
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), dtype=bool)
    kept = requests.select(mask)
    chosen = [row for row, keep in zip(rows, mask, strict=True) if keep]
    assert [kept.exchange(i) for i in range(len(kept))] == [exchange_of(row_of(row)) for row in chosen]
    assert len(kept.gap_us) == sum(len(row.event_ns) for row in chosen)


@given(exchanges())
def test_rounding_is_half_a_microsecond_at_most_and_never_adds_up(row: Exchange) -> None:
    again = exchange_of(row_of(row))
    pairs = list(zip(row.event_ns, again.event_ns, strict=True))
    stamps = [(getattr(row, f"{name}_ns"), getattr(again, f"{name}_ns")) for name in STAMPS]
    assert all((a is None) == (b is None) for a, b in stamps)
    assert all(abs(a - b) <= 500 for a, b in pairs + [(a, b) for a, b in stamps if a is not None])
    assert exchange_of(row_of(again)) == again


def test_missing_is_nan_or_minus_one_and_never_zero() -> None:
    requests = synthetic.frame((Exchange(0, 0, "chat", "failed", 10, 20),))
    for name in (*(f"{name}_ns" for name in STAMPS), "output_tokens", "prompt_tokens", "http_status", "turn"):
        assert np.isnan(getattr(requests, name)).all(), name
    for name in ("error_kind", "error", "end_seen", "finish_reason", "session_id", "output_tokens_source"):
        assert getattr(requests, name).tolist() == [-1], name
        assert requests.word(name, 0) is None


def test_masks_say_what_the_requests_say() -> None:
    _, rows = synthetic.case("censored")
    requests = synthetic.frame(rows)
    assert requests.is_ok.tolist() == [row.outcome == "ok" for row in rows]
    assert requests.has("warmup").tolist() == [row.warmup for row in rows]
    assert requests.has("censored").tolist() == ["censored" in row.flags for row in rows]
    kinds = [row.failure and row.failure.kind for row in rows]
    assert requests.holds("error_kind", "timeout").tolist() == [kind == "timeout" for kind in kinds]
    assert not requests.holds("workload", "no such word").any()
    assert requests.flags_of(0) == list(rows[0].flags) + ["warmup"] * rows[0].warmup
    with pytest.raises(KeyError):
        requests.has("no such flag")


def test_every_flag_has_a_bit_of_its_own_in_four_bytes() -> None:
    assert len(set(FLAG_BITS.values())) == len(FLAG_BITS) == len(FLAGS) + 1
    assert max(FLAG_BITS.values()) < 1 << 31


def test_events_take_four_bytes_and_one_token_each_takes_none() -> None:
    _, requests = synthetic.run("chat")
    assert requests.gap_us.dtype == np.int32
    assert requests.event_tokens is None
    assert requests.tokens_of(3).tolist() == [1] * 200
    _, grouped = synthetic.run("grouped")
    assert grouped.event_tokens is not None
    assert grouped.event_tokens.dtype == np.uint16
    assert grouped.tokens_of(3).sum() == 200


def test_a_first_group_counts_those_before_it_as_single() -> None:
    rows = synthetic.case("three")[1][:2] + synthetic.case("grouped")[1][:1] + synthetic.case("three")[1][2:3]
    requests = synthetic.frame(rows)
    assert [requests.exchange(i).event_tokens for i in range(4)] == [row.event_tokens for row in rows]


def test_an_empty_frame_has_all_columns() -> None:
    requests = FrameBuilder().build()
    assert len(requests) == len(requests.gap_us) == 0
    assert requests.event_offset.tolist() == [0]
    assert len(requests.select(np.zeros(0, dtype=bool))) == 0
    assert requests.sent_ns.dtype == np.float64


@pytest.mark.parametrize(
    "change",
    [
        {"event_tokens": [1]},
        {"event_tokens": [1, 1 << 40]},
        {"gap_us": [1, 1 << 70]},
        {"stage": -2},
        {"worker": 1 << 40},
    ],
)
def test_a_row_that_contradicts_itself_leaves_nothing_behind(change: dict[str, Any]) -> None:
    good = Row(0, 0, "chat", 10, 20, gap_us=[5, 6], event_tokens=[2, 3])
    fields: dict[str, Any] = {"gap_us": [7, 8], "event_tokens": [4, 4], "stage": 0} | change
    bad = Row(request_id=1, workload="new", prompt_tokens_requested=1, output_tokens_requested=1, **fields)
    builder = FrameBuilder()
    builder.add_row(good)
    with pytest.raises(ValueError):
        builder.add_row(bad)
    builder.add_row(good)
    requests = builder.build()
    assert [requests.row(i) for i in range(len(requests))] == [good, good]
