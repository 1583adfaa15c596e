"""A run's stages as cells: real lengths, how it was begun, and everything else that bears on a fit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadgen.analysis.cells import cells
from loadgen.analysis.summary import StageSummary, Summary, summarise
from loadgen.model import Exchange, Finding
from loadgen.roofline.cells import Cell
from tests.analysis.made import failed, frame, ok, run, stage

EVENTS = tuple(0.5 + 0.1 * i for i in range(11))


def summary(exchanges: list[Exchange], endpoint: dict[str, Any] | None = None, **of_stage: Any) -> Summary:
    info = run(stage(requests=len(exchanges), **of_stage), endpoint=endpoint or {})
    return summarise(info, frame(exchanges))


def one(found: Summary) -> Cell:
    made, left_out = cells(found, None, "here", "runs/x")
    assert left_out == ()
    return made[0]


def closed(users: int, rounds: int, gap: float = 0.0, **more: Any) -> list[Exchange]:
    return [
        ok(r * users + u, sent=r * 2.0 + u * gap, events=EVENTS, prompt_tokens=1000, **more)
        for r in range(rounds)
        for u in range(users)
    ]


def test_means_and_protocol_are_what_happened() -> None:
    cell = one(summary(closed(4, 3), {"rtt_ns": 2_000_000}, value=4.0, start=0.0))
    assert (cell.prompt_tokens, cell.output_tokens, cell.load_kind, cell.load) == (1000, 11, "concurrency", 4)
    assert (cell.ttft_s, cell.itl_s) == (pytest.approx(0.5), pytest.approx(0.1))
    assert (cell.protocol.requests, cell.protocol.length_ratio, cell.protocol.stagger_s) == (12, 1.0, 0.0)
    assert math.isnan(cell.protocol.cached_share)
    assert (cell.label, cell.where, cell.held_out) == ("here", "runs/x chat@4", False)
    assert cell.evidence["network_s"] == 0.002
    assert cell.evidence["max_gap_s"] == pytest.approx(0.1)
    assert cell.evidence["tokens_per_event"] == 1.0
    assert cell.evidence["error_share"] == cell.evidence["short_share"] == cell.evidence["invalid"] == 0.0


def test_users_that_began_one_after_the_other_are_a_stagger() -> None:
    cell = one(summary(closed(4, 3, gap=0.25), value=4.0))
    assert cell.protocol.stagger_s == pytest.approx(1.0)


def test_lengths_that_vary_become_the_uniform_law_of_the_same_mean_and_spread() -> None:
    lengths = np.random.default_rng(3).integers(800, 1001, 400)
    made = [
        ok(
            i,
            sent=float(i),
            events=(0.5, 0.6),
            prompt_tokens=int(n),
            output_tokens=int(n),
            output_tokens_requested=1000,
        )
        for i, n in enumerate(lengths)
    ]
    cell = one(summary(made, end=500.0))
    assert cell.prompt_tokens == pytest.approx(1000, rel=0.01)
    assert cell.protocol.length_ratio == pytest.approx(0.8, abs=0.02)


def test_what_speaks_against_a_cell_is_evidence() -> None:
    made = closed(1, 6)
    made[0] = replace(made[0], output_tokens=5, output_tokens_requested=100)
    made[1] = failed(1, sent=2.0)
    grouped = ok(6, sent=20.0, events=(0.5, 0.6), tokens=(1, 10), prompt_tokens=1000, shared_events=1)
    cell = one(summary([*made, grouped], end=30.0))
    assert cell.evidence["short_share"] == pytest.approx(1 / 6)
    assert cell.evidence["error_share"] == pytest.approx(1 / 7)
    assert cell.evidence["tokens_per_event"] == pytest.approx((5 * 11 + 11) / (5 * 11 + 2))
    assert cell.evidence["shared_receives"] == pytest.approx(1 / 57)


def test_cached_prompts_are_the_servers_word() -> None:
    assert one(summary(closed(1, 3, cached_tokens=250))).protocol.cached_share == 0.25


def test_the_servers_own_figures_come_along() -> None:
    found = summary(closed(1, 3))
    told = {"running_mean": 3.5, "waiting_mean": 1.0, "kv_usage_max": 0.9, "prefix_hit_share": 0.5}
    staged: StageSummary = replace(found.stages[0], server=told)
    cell = one(replace(found, stages=(staged,)))
    assert (cell.evidence["batch"], cell.evidence["waiting"], cell.evidence["kv_usage"]) == (3.5, 1.0, 0.9)
    assert cell.protocol.cached_share == 0.5


def test_open_loop_is_a_rate_and_held_out_stays_so() -> None:
    made = [ok(i, scheduled=float(i), sent=float(i), events=EVENTS, prompt_tokens=1000) for i in range(5)]
    cell = one(summary(made, kind="rate", value=1.0, held_out=True))
    assert (cell.load_kind, cell.load, cell.protocol.stagger_s, cell.held_out) == ("rate", 1.0, 0.0, True)


@pytest.mark.parametrize(
    ("made", "of_stage", "why"),
    [
        ([failed(0)], {}, "no request succeeded"),
        ([ok(0, events=(), tokens=(), end=1.0, flags=("not_streamed",))], {}, "no answer came as a stream"),
        ([ok(0, prompt_tokens=None)], {}, "did not count"),
        ([ok(0, turn=1, session_id="a")], {}, "turns"),
        ([ok(0, scheduled=0.0)], {"kind": "trace"}, "trace"),
    ],
)
def test_a_stage_that_is_no_point_says_why(made: list[Exchange], of_stage: dict[str, Any], why: str) -> None:
    found, (line,) = cells(summary(made, **of_stage), None)
    assert found == ()
    assert why in line


@pytest.mark.parametrize(
    ("code", "severity", "stage", "by_client"),
    [
        ("client_delay", "invalid", None, 1.0),
        ("loop_lag", "invalid", 0, 1.0),
        ("loop_lag", "invalid", 7, 0.0),
        ("loop_lag", "questionable", 0, 0.0),
        ("drift", "invalid", 0, 0.0),
        ("faster_than_hardware", "invalid", None, 0.0),
    ],
)
def test_only_the_clients_own_faults_make_it_the_bottleneck(
    code: str, severity: str, stage: int | None, by_client: float
) -> None:
    found = summary(closed(4, 3), {}, value=4.0, start=0.0)
    finding = Finding(severity, code, "", stage=stage)  # type: ignore[arg-type]
    assert one(replace(found, findings=(finding,))).evidence["invalid"] == by_client
