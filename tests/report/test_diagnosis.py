"""Where the time goes, and the sentence that follows from it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from loadgen.analysis import formulas
from loadgen.analysis.summary import Summary, summarise
from loadgen.model import Exchange, Load
from loadgen.report.diagnosis import Diagnosis, diagnose, overall
from loadgen.report.placement import placement
from loadgen.report.stages import groups, load_label
from tests import synthetic
from tests.synthetic import StageCase


def _summary(*stages: StageCase, **roofline: object) -> Summary:
    info, rows = synthetic.build(stages)
    info.spec["roofline"] |= roofline
    return summarise(info, synthetic.frame(rows))


def _diagnoses(summary: Summary) -> list[Diagnosis]:
    workloads = groups(summary)
    placed = placement(summary.info.spec["roofline"], workloads)
    return [diagnose(group, placed) for group in workloads]


def test_stages_stand_by_workload_and_load() -> None:
    shuffled = [StageCase("chat", value=8), StageCase("story", value=1, requests=4), StageCase("chat", value=1)]
    found = groups(_summary(*shuffled))
    assert [(group.name, [stage.label for stage in group.stages]) for group in found] == [
        ("chat", ["1 user", "8 users"]),
        ("story", ["1 user"]),
    ]


@pytest.mark.parametrize(
    ("load", "text"),
    [
        (Load("concurrency", 1.0), "1 user"),
        (Load("concurrency", 32.0), "32 users"),
        (Load("rate", 0.25), "0.25 requests/s"),
        (Load("trace", 3.14159), "trace, 3.14 requests/s"),
    ],
)
def test_load_label(load: Load, text: str) -> None:
    assert load_label(load) == text


def test_phases_add_up_to_the_mean_end_to_end_time() -> None:
    for name in ("chat", "open", "mixed", "censored"):
        for group in groups(summarise(*synthetic.run(name))):
            for stage in group.measured:
                c = stage.summary.measured.columns
                c = c.where(c.streamed_ok)
                whole = formulas.e2e_scheduled(c) if not np.isnan(c.scheduled_ns).any() else formulas.e2e(c)
                assert stage.phases is not None
                assert stage.phases.total == pytest.approx(float(np.mean(whole)), rel=1e-9)
                parts = stage.phases
                assert min(parts.before, parts.ttft, parts.waiting, parts.decode, parts.slowed) >= 0.0


def test_what_load_adds_is_the_difference_to_the_lowest_load() -> None:
    (group,) = groups(summarise(*synthetic.run("chat")))
    low, _, high = group.stages
    assert low.phases is not None
    assert high.phases is not None
    assert low.phases.waiting == low.phases.slowed == 0.0
    added = high.value("ttft", "mean") - low.value("ttft", "mean")  # type: ignore[operator]
    assert high.phases.waiting == pytest.approx(added)
    # The made-up server's step takes 50 us more for each user: 31 users more, 199 steps.
    assert high.phases.slowed == pytest.approx(31 * 50e-6 * 199, rel=0.05)


def test_a_story_is_limited_by_decode_and_a_summary_by_prefill() -> None:
    summarize, story = _diagnoses(_summary(StageCase("summarize", value=8), StageCase("story", value=8, requests=16)))
    assert summarize.limit == "prefill (compute-bound)"
    assert story.limit == "decode (memory-bound)"
    assert "memory-bound" in story.sentence
    assert "ridge of 295 FLOP/byte" in story.sentence
    assert overall([summarize, story]) == (
        "Prefill (compute-bound) limits summarize; decode (memory-bound) limits story."
    )


def test_waiting_is_named_with_its_evidence() -> None:
    # The second load's TTFT is twelve times the first's, so most of its time is waiting.
    info, rows = synthetic.build((StageCase("summarize", value=1), StageCase("summarize", value=8)))
    slow = [
        replace(row, event_ns=tuple(t + 5_000_000_000 for t in row.event_ns), end_ns=(row.end_ns or 0) + 5_000_000_000)
        if row.stage == 1
        else row
        for row in rows
    ]
    (found,) = _diagnoses(summarise(info, synthetic.frame(tuple(slow))))
    assert found.limit.startswith("waiting")
    assert "times that at 1 user" in found.sentence
    assert found.advice


def test_decode_that_prefills_slow_down_is_not_called_overhead() -> None:
    """Long prompts at eight users: every step of an answer waits for somebody's prefill."""
    info, rows = synthetic.build((StageCase("summarize", value=1), StageCase("summarize", value=8, requests=60)))

    def stretched(row: Exchange) -> Exchange:
        first = row.event_ns[0]
        events = tuple(first + (t - first) * 6 for t in row.event_ns)
        return replace(row, event_ns=events, end_ns=events[-1] + 1000)

    slow = tuple(stretched(row) if row.stage == 1 else row for row in rows)
    info.stages[1].window_end_ns = max(row.end_ns or 0 for row in slow)
    (found,) = _diagnoses(summarise(info, synthetic.frame(slow)))
    assert found.limit == "prefill of other requests"
    assert "times that at 1 user" in found.sentence
    assert "prefill" in found.advice
    # The same slowdown of short prompts has another cause, which is not known.
    info, rows = synthetic.build((StageCase("story", value=1, requests=6), StageCase("story", value=8, requests=16)))
    slow = tuple(stretched(row) if row.stage == 1 else row for row in rows)
    (found,) = _diagnoses(summarise(info, synthetic.frame(slow)))
    assert found.limit == "decode (slowed by load)"


def test_hardware_that_is_not_known_gives_no_bound() -> None:
    for named in ({"gpu": None}, {"gpu": "h900"}, {"shape": ""}):
        (found,) = _diagnoses(_summary(StageCase(value=8), **named))
        assert found.limit == "decode"
        assert "bound" not in found.sentence
        assert "--gpu" in found.advice
    workloads = groups(_summary(StageCase(value=8)))
    assert "did you mean" in placement({"gpu": "h100-sx", "shape": "llama-3.1-8b"}, workloads).missing


def test_faster_than_the_roof_blames_the_names() -> None:
    (found,) = _diagnoses(_summary(StageCase(value=1), shape="llama-3.1-70b"))
    assert found.limit == "decode (hardware misnamed)"
    assert "--shape" in found.advice


def test_far_under_the_roof_blames_overheads() -> None:
    (found,) = _diagnoses(_summary(StageCase(value=1, slower=8.0)))
    assert found.limit == "decode (overheads)"


@pytest.mark.parametrize("name", ["empty", "all_failed", "none"])
def test_nothing_measured_is_said(name: str) -> None:
    found = _diagnoses(summarise(*synthetic.run(name)))
    assert all(one.limit == "nothing measured" for one in found)
    assert "othing" in overall(found)


def test_points_are_never_made_of_missing_figures() -> None:
    summary = summarise(*synthetic.run("mixed"))
    workloads = groups(summary)
    placed = placement(summary.info.spec["roofline"], workloads)
    for group in workloads:
        for stage in group.measured:
            for phase in ("prefill", "decode"):
                point = placed.point(stage, phase)
                assert point is not None
                assert math.isfinite(point.share_of_roof)
                assert point.bound == ("compute" if point.intensity > point.ridge else "memory")
