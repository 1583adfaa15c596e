"""Laws of what a plan draws: every length and arrival, seeded: mean, dispersion, autocorrelation, and the same whoever
draws it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from loadgen.model import Load
from loadgen.plan.arrivals import parse_arrivals
from loadgen.plan.lengths import Length, parse_length, table
from loadgen.plan.schedule import outline
from loadgen.plan.workload import Turns
from tests.plan.made import planned, stage, workload

_N = 20_000
_RATE = 20.0
_RANKS = np.arange(1, 401)
_ZIPF = _RANKS**-1.2 / (_RANKS**-1.2).sum()
_ZIPF_MEAN = float((_RANKS * _ZIPF).sum())
# law -> mean and standard deviation
_LENGTHS: dict[str, tuple[float, float]] = {
    "900": (900, 0),
    "uniform:100..500": (300, float(np.sqrt((401**2 - 1) / 12))),
    "normal:2000±200": (2000, 200),
    "lognormal:2000±800": (2000, 800),
    "zipf:1.2,1..400": (_ZIPF_MEAN, float(np.sqrt((_RANKS**2 * _ZIPF).sum() - _ZIPF_MEAN**2))),
    "file": (20, float(np.sqrt(200 / 3))),  # of the rows 10, 20, 30
}
_ARRIVALS = ["constant", "poisson", "gamma:0.3", "gamma:3", "uniform:0.5", "ramp:0.5..2/100s", "steps:1,3/50s",
             "spike:4@20s..30s", "sine:0.5/60s", "sine:0.5/60s+gamma:2"]  # fmt: skip


def _law(text: str) -> Length:
    return table("file", (10, 20, 30)) if text == "file" else parse_length(text)


def _lag(values: np.ndarray) -> float:
    """Autocorrelation of neighbours."""
    return float(np.corrcoef(values[1:], values[:-1])[0, 1])


@pytest.mark.parametrize("text", _LENGTHS)
def test_lengths_of_a_plan_have_their_law_and_no_memory(text: str) -> None:
    law = _law(text)
    spec = stage(replace(workload(), prompt_tokens=law, output_tokens=law))
    drawn = list(itertools.islice(outline(spec, seed=5), _N))
    for values in (np.array([d.prompt_tokens for d, _ in drawn]), np.array([d.output_tokens for d, _ in drawn])):
        mean, deviation = _LENGTHS[text]
        assert values.mean() == pytest.approx(mean, abs=4 * deviation / np.sqrt(_N) + 0.5)
        assert values.std() == pytest.approx(deviation, rel=0.04)
        if deviation:
            assert abs(_lag(values)) < 4 / np.sqrt(_N)
    sides = np.array([(d.prompt_tokens, d.output_tokens) for d, _ in drawn])
    if _LENGTHS[text][1]:
        assert abs(np.corrcoef(sides.T)[0, 1]) < 4 / np.sqrt(_N)  # nothing ties them, unless it was asked


@pytest.mark.parametrize("text", [text for text in _ARRIVALS if parse_arrivals(text).gap_cv() is not None])
def test_arrivals_of_a_plan_have_their_rate_their_dispersion_and_no_memory(text: str) -> None:
    spec = stage(load=Load("rate", _RATE, text))
    dues = np.array([due for _, due in itertools.islice(outline(spec, seed=5), _N)]) / 1e9
    gaps, cv = np.diff(dues), parse_arrivals(text).gap_cv()
    assert cv is not None
    assert gaps.mean() * _RATE == pytest.approx(1, abs=4 * cv / np.sqrt(_N) + 1e-4)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-6)
    if text.startswith(("poisson", "gamma")):
        assert abs(_lag(gaps)) < 4 / np.sqrt(_N)
        counts = np.bincount((dues // 5).astype(np.int64))[:-1]  # of 100 arrivals: renewal theory's limit is cv^2
        assert counts.var() / counts.mean() == pytest.approx(cv**2, rel=0.45)
    elif cv:
        assert _lag(gaps) == pytest.approx(-0.5, abs=0.03)


@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("text", _ARRIVALS)
def test_arrivals_are_the_same_for_any_number_of_workers(text: str, workers: int) -> None:
    spec = stage(load=Load("rate", _RATE, text), requests=70)
    expected = [due for _, due in itertools.islice(outline(spec, seed=5), 70)]
    parts = [planned(spec, part=(index, workers), seed=5) for index in range(workers)]
    together = sorted(itertools.chain(*parts), key=lambda request: request.request_id)
    assert [request.offset_ns for request in together] == expected


@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("text", _LENGTHS)
def test_lengths_are_the_same_for_any_number_of_workers(text: str, workers: int) -> None:
    law = replace(_law(text), high=400)  # texts are written: short ones will do
    talk = Turns(parse_length("uniform:1..3"), law, parse_length("uniform:0..500", 0))
    spec = stage(replace(workload(turns=talk), prompt_tokens=law, output_tokens=law), requests=60)
    alone = planned(spec)
    parts = [planned(spec, part=(index, workers)) for index in range(workers)]
    assert sorted(itertools.chain(*parts), key=lambda request: request.request_id) == alone


def test_variation_is_not_known_where_the_rate_changes() -> None:
    assert [parse_arrivals(text).gap_cv() for text in ("constant", "poisson", "gamma:3")] == [0, 1, 3]
    assert all(parse_arrivals(text).gap_cv() is None for text in _ARRIVALS[5:])
