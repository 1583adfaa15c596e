"""Asked and got: lengths, arrivals, the prefix cache, turns; and the findings where they do not agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadgen.analysis import trust
from loadgen.analysis.asked import arrivals, asked, cached, expected_cached, lengths, turns
from loadgen.analysis.measured import Measured, measure, row_facts
from loadgen.model import Exchange, Finding, Load, StageInfo
from tests.analysis.made import failed, frame, ok, run, stage

_OPEN = stage(kind="rate", value=4.0, requests=100, end=100.0)


def _measured(exchanges: list[Exchange], info: StageInfo | None = None) -> Measured:
    requests = frame(exchanges)
    return measure(info or stage(requests=len(exchanges)), requests, row_facts(requests), 1)


def _found(exchanges: list[Exchange]) -> dict[str, Finding]:
    return {one.code: one for one in trust.judge(run(stage(requests=len(exchanges))), [_measured(exchanges)])}


def test_lengths_are_compared_where_one_was_asked_and_the_request_succeeded() -> None:
    rows = [ok(i, prompt_tokens=100 + i) for i in range(4)]
    rows += [failed(4, prompt_tokens=900), ok(5, prompt_tokens_requested=0, prompt_tokens=77)]
    rows += [ok(6, session_id="0-1", turn=1, prompt_tokens=500), ok(7, prompt_tokens=None)]
    found = lengths(_measured(rows), "prompt")
    assert (found["compared"], found["misses"], found["worst_off"]) == (4, 2, 3.0)
    assert found["asked"]["mean"] == 100
    assert (found["got"]["min"], found["got"]["mean"], found["got"]["max"]) == (100, 101.5, 103)
    nothing = lengths(_measured([failed()]), "output")
    assert (nothing["asked"], nothing["worst_off"], nothing["compared"]) == (None, None, 0)


def test_arrivals_as_asked_planned_and_sent() -> None:
    rows = [ok(i, scheduled=0.25 * i, sent=0.25 * i + 0.1 * (i % 2)) for i in range(41)]
    found = arrivals(_measured(rows, _OPEN))
    assert found is not None
    assert found["asked"] == {"rate": 4.0, "cv": 1.0}  # the stage says poisson
    assert found["planned"]["rate"] == pytest.approx(4)
    assert found["planned"]["cv"] == pytest.approx(0, abs=1e-9)
    assert found["sent"]["rate"] == pytest.approx(4)
    assert found["sent"]["cv"] == pytest.approx(0.1 / 0.25)
    assert arrivals(_measured(rows)) is None  # closed loop: they follow from answers
    one = arrivals(_measured(rows[:1], _OPEN))
    assert one is not None
    assert one["planned"] == {"rate": None, "cv": None}
    shaped = replace(_OPEN, load=Load("rate", 4.0, "sine:0.5/60s"))
    for info in (shaped, replace(_OPEN, load=Load("trace", 4.0, "trace"))):
        told = arrivals(_measured(rows, info))
        assert told is not None
        assert told["asked"]["cv"] is None


def _talk() -> list[Exchange]:
    """Two sessions of three turns, one of which fails in its last; in the order in which they ended."""

    def turn(number: int, session: str, k: int, prompt: int, **more: Any) -> Exchange:
        repeated = {"repeated_tokens": 0 if k == 0 else None}
        given: dict[str, Any] = {"session_id": session, "turn": k, "prompt_tokens": prompt, "sent": 1.0 * number}
        return ok(number, **given, events=(0.1 * (k + 1), 0.2 * (k + 1)), **repeated, **more)

    last = failed(5, session_id="0-1", turn=2, prompt_tokens=300, repeated_tokens=None, sent=5.0)
    return [
        turn(0, "0-0", 0, 100),
        turn(3, "0-1", 0, 100),
        turn(1, "0-0", 1, 180),
        turn(4, "0-1", 1, 190),
        turn(2, "0-0", 2, 260, cached_tokens=182),
        last,
    ]


def test_what_a_later_turn_finds_is_the_prompt_and_the_answer_before_it() -> None:
    m = _measured(_talk())
    assert expected_cached(m).tolist() == [0, 0, 102, 102, 182, 192]
    assert expected_cached(m, answers=False).tolist() == [0, 0, 100, 100, 180, 190]
    alone = _measured([row for row in _talk() if row.turn])  # the first turns were not measured
    assert np.isnan(expected_cached(alone)[:2]).all()


def test_turns_have_their_own_figures() -> None:
    first, second, third = turns(_measured(_talk()))
    assert [(one["turn"], one["ok"], one["sent"]) for one in turns(_measured(_talk()))] == [
        (1, 2, 2),
        (2, 2, 2),
        (3, 1, 2),
    ]
    assert (first["ttft_p50"], second["ttft_p50"]) == pytest.approx((0.1, 0.2))
    assert (second["prompt_tokens"], third["cached_tokens"], first["cached_tokens"]) == (185, 182, None)
    assert turns(_measured([ok()])) == []


def test_many_turns_share_a_line() -> None:
    rows = [ok(k, session_id="0-0", turn=k, sent=float(k)) for k in range(40)]
    lines = turns(_measured(rows))
    assert [(one["turn"], one["last"]) for one in lines] == [*((k, k) for k in range(1, 13)), (13, 40)]
    assert lines[-1]["ok"] == 28


def test_cached_tokens_expected_and_reported() -> None:
    rows = [ok(i, repeated_tokens=60 if i else 0, cached_tokens=48 if i else 0) for i in range(5)]
    found = cached(_measured(rows))
    assert found == {"prompt_tokens": 500, "expected": 240, "reported": 192, "requests": 5, "sharing": 4}
    untold = cached(_measured([replace(row, cached_tokens=None) for row in rows]))
    assert untold is not None
    assert untold["reported"] is None
    assert cached(_measured([ok(cached_tokens=0)])) is None
    assert cached(_measured([ok(repeated_tokens=900)])) == {
        "prompt_tokens": 100, "expected": 100, "reported": None, "requests": 1, "sharing": 1}  # fmt: skip


def test_hits_beyond_the_plan_and_hits_that_were_missed_are_findings() -> None:
    def some(**more: Any) -> list[Exchange]:
        return [ok(i, sent=0.5 * i, **({"prompt_tokens": 2_000, "prompt_tokens_requested": 2_000} | more))
                for i in range(60)]  # fmt: skip

    assert {"cache_hits", "cache_misses"}.isdisjoint(_found(some(repeated_tokens=1_500, cached_tokens=1_490)))
    assert _found(some(repeated_tokens=500, cached_tokens=1_490))["cache_hits"].severity == "invalid"
    missed = _found(some(repeated_tokens=1_500, cached_tokens=0))["cache_misses"]
    assert missed.severity == "questionable"
    assert "repeats 75.0 %" in missed.message
    assert "cache_misses" not in _found(some(repeated_tokens=1_500))  # the server does not tell
    assert "cache_hits" not in _found(some(cached_tokens=11))  # the head of a template
    own = _found(some(repeated_tokens=None, cached_tokens=1_500, prompt_tokens_requested=0))["cache_hits"]
    assert "texts of your own" in own.advice


def test_everything_is_in_the_json_of_a_stage() -> None:
    assert set(asked(_measured([ok()]))) == {"prompt_tokens", "output_tokens", "arrivals", "cached_tokens", "turns"}
