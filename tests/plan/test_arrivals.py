"""Arrivals: seeded laws of every process, shapes over time, spelling."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.plan.arrivals import parse_arrivals

_RATE = 50.0


def _offsets(text: str, count: int = 40_000, rate: float = _RATE, seed: int = 3) -> np.ndarray:
    stream = parse_arrivals(text).offsets(rate, np.random.default_rng(seed))
    return np.array(list(itertools.islice(stream, count)), dtype=np.int64)


@pytest.mark.parametrize(
    ("text", "cv"), [("constant", 0.0), ("poisson", 1.0), ("gamma:0.25", 0.25), ("gamma:2", 2.0), ("gamma:1", 1.0)]
)
def test_rate_and_variation_of_the_gaps(text: str, cv: float) -> None:
    gaps = np.diff(_offsets(text))
    assert gaps.mean() * _RATE / 1e9 == pytest.approx(1, abs=0.04)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.04)
    if cv:
        lagged = np.corrcoef(gaps[1:], gaps[:-1])[0, 1]
        assert lagged == pytest.approx(0, abs=0.02)  # independent gaps


def test_constant_is_exact_and_does_not_drift() -> None:
    offsets = _offsets("constant", 30_001, rate=3.0)
    assert offsets[0] == 0
    assert offsets[30_000] == 10_000 * 10**9
    assert offsets[1] == 333_333_333


def test_poisson_counts_have_the_variance_of_their_mean() -> None:
    counts = np.bincount(_offsets("poisson") // 10**9)[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.15)


def test_jitter_moves_each_within_its_part_of_the_gap() -> None:
    slots = _offsets("uniform:0.5") * _RATE / 1e9 - np.arange(40_000)
    assert slots.min() >= -1e-6
    assert slots.max() < 0.5 + 1e-6
    assert slots.mean() == pytest.approx(0.25, abs=0.005)
    gaps = np.diff(_offsets("uniform:1"))
    assert np.corrcoef(gaps[1:], gaps[:-1])[0, 1] == pytest.approx(-0.5, abs=0.02)  # of differences of independents


@pytest.mark.parametrize("text", ["poisson", "gamma:3", "uniform:1", "ramp:0..1/20s", "sine:1/10s", "steps:0,1/5s"])
def test_times_never_run_backwards_and_never_begin_before_the_start(text: str) -> None:
    offsets = _offsets(text, 20_000)
    assert offsets[0] >= 0
    assert (np.diff(offsets) >= 0).all()


def _rate_between(offsets: np.ndarray, start_s: float, end_s: float) -> float:
    inside = ((offsets >= start_s * 1e9) & (offsets < end_s * 1e9)).sum()
    return float(inside) / (end_s - start_s) / _RATE


def test_a_ramp_grows_linearly_and_stays() -> None:
    offsets = _offsets("ramp:0.2..2/100s+constant", 60_000)
    for start in (0, 40, 80):
        middle = 0.2 + 1.8 * (start + 10) / 100
        assert _rate_between(offsets, start, start + 20) == pytest.approx(middle, rel=0.02)
    assert _rate_between(offsets, 100, 300) == pytest.approx(2, rel=0.01)


def test_a_ramp_may_fall() -> None:
    offsets = _offsets("ramp:2..0.5/100s+constant", 20_000)
    assert _rate_between(offsets, 0, 100) == pytest.approx(1.25, rel=0.01)
    assert _rate_between(offsets, 100, 150) == pytest.approx(0.5, rel=0.05)


def test_steps_hold_each_level_and_the_last_stays() -> None:
    offsets = _offsets("steps:1,0,3/30s+constant", 30_000)
    assert [_rate_between(offsets, start, start + 30) for start in (0, 30, 60, 150)] == pytest.approx(
        [1, 0, 3, 3], abs=0.01
    )


def test_a_spike_stands_where_it_was_put() -> None:
    offsets = _offsets("spike:5@30s..40s+constant", 30_000)
    assert [_rate_between(offsets, *span) for span in ((0, 30), (30, 40), (40, 100))] == pytest.approx(
        [1, 5, 1], abs=0.02
    )


def test_a_sine_swings_around_the_asked_rate() -> None:
    offsets = _offsets("sine:0.8/40s+constant", 60_000)
    assert _rate_between(offsets, 0, 400) == pytest.approx(1, abs=0.01)
    assert _rate_between(offsets, 5, 15) == pytest.approx(1 + 0.8 * 2 * np.sqrt(2) / np.pi, rel=0.01)
    assert _rate_between(offsets, 405, 415) == pytest.approx(_rate_between(offsets, 5, 15), rel=0.01)


def test_a_shaped_poisson_process_is_poisson_in_every_piece() -> None:
    offsets = np.concatenate([_offsets("steps:1,4/10s", 2_000, seed=s) for s in range(40)])
    later = [((o >= 12e9) & (o < 13e9)).sum() for o in np.split(offsets, 40)]
    assert np.mean(later) == pytest.approx(4 * _RATE, rel=0.05)
    assert np.var(later) / np.mean(later) == pytest.approx(1, abs=0.6)


@pytest.mark.parametrize(
    "text",
    ["", "pois", "gamma", "gamma:", "gamma:0", "gamma:-1", "poisson:3", "constant:1", "uniform", "uniform:2",
     "ramp:1..2", "ramp:1..0/10s", "ramp:1..2/0s", "steps:/10s", "steps:1,0/10s", "spike:5@40s..30s", "spike:5@30s",
     "sine:2/60s", "sine:0.5/0s", "sine:0.5/60s+ramp:0..1/5s", "poisson+gamma:2", "gamma:2+sine:0.5/60s", "closed+"],
)  # fmt: skip
def test_what_is_no_process_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_arrivals(text)


def test_a_seed_gives_the_same_times_however_many_are_taken() -> None:
    assert _offsets("sine:0.5/60s+gamma:2", 5_000)[:100].tolist() == _offsets("sine:0.5/60s+gamma:2", 100).tolist()
    assert _offsets("poisson", 10, seed=3).tolist() != _offsets("poisson", 10, seed=4).tolist()
