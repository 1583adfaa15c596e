"""A trace's weighted step times are the means that the compiled engine gives, and stay true when the law moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.roofline import catalog
from loadgen.roofline.cells import Cell, Protocol
from loadgen.roofline.fit_model import Model, World, problem
from loadgen.roofline.fit_parameters import Knobs, quantities
from loadgen.roofline.fit_trace import Load, cell_times, load_of, stack, trace
from loadgen.roofline.passes import Deployment
from loadgen.roofline.precision import Dtypes
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.serving_fast import simulate_closed, simulate_open
from tests.roofline.test_serving_fast import LAWS, configs, loads

PLAIN = {"draft_tokens": 0, "acceptance": 0.0, "draft_token_s": 0.0}


@given(config=configs, load=loads, users=st.integers(1, 15), rate=st.sampled_from([None, 3.0, 50.0]))
def test_means_are_the_engines(
    config: EngineConfig, load: list[tuple[int, int, int]], users: int, rate: float | None
) -> None:
    config = replace(config, **PLAIN)  # type: ignore[arg-type]
    prompts, outputs, cached = (np.array(column) for column in zip(*load, strict=True))
    starts = np.full(len(load), np.nan)
    starts[:users] = 0.0
    if rate is None:
        served = simulate_closed(config, users, prompts, outputs, cached_tokens=cached)
    else:
        starts = np.cumsum(np.random.default_rng(1).exponential(1 / rate, len(load)))
        served = simulate_open(config, starts, prompts, outputs, cached_tokens=cached)
    cached = np.minimum(cached, prompts - 1)
    found = trace(config, Load(prompts, outputs, cached, starts))
    way = config.request_s + config.prompt_token_s * found.prompt_tokens
    ttft, itl = stack([found], [way]).times(config.law, config.request_s, config.prompt_token_s)[0]
    # Steps of one kind are priced at their mean; an arrival in the middle of repeated steps waits for a mean one.
    tolerance = 2e-3 if rate is None else 0.02
    assert ttft == pytest.approx(np.mean(served.ttft_s), rel=tolerance)
    if np.any(outputs > 1):
        assert itl == pytest.approx(np.nanmean(served.tpot_s), rel=tolerance)


def test_a_closed_loops_trace_holds_for_another_law() -> None:
    config = EngineConfig(LAWS[0], token_budget=2048, request_s=1e-6)
    cell = Cell(700, 60, "concurrency", 12, 1.0, 1.0, protocol=Protocol(requests=120, length_ratio=0.5))
    other = replace(config, request_s=0.0, law=LAWS[0]._replace(compute_rate=LAWS[0].compute_rate / 3, step_s=9e-3))
    load = load_of(cell)
    moved = stack([trace(config, load)], [1e-6]).times(other.law, 1e-6)[0]
    served = simulate_closed(other, 12, load.prompts, load.outputs)
    late = simulate_closed(other, 12, load.prompts, load.outputs, turnaround_s=1e-6)
    assert moved == pytest.approx([late.ttft_s.mean(), late.tpot_s.mean()], rel=1e-4)
    assert moved[0] != pytest.approx(served.ttft_s.mean(), rel=0.02)


def test_a_static_batch_prefills_together_and_never_queues() -> None:
    config = EngineConfig(LAWS[0], token_budget=256, max_sequences=2, kv_tokens=600)
    one, eight = (cell_times(config, Cell(100, 20, "batch", n, 1.0, 1.0)) for n in (1, 8))
    assert one[0] < eight[0] < 8 * one[0]
    assert one[1] < eight[1]


def test_slopes_are_derivatives() -> None:
    deployment = Deployment(catalog.gpu("h100"), 2, catalog.shape("gpt-oss-20b"), Dtypes())
    cells = [Cell(900, 40, "concurrency", 6, 1.0, 1.0, deployment), Cell(50, 40, "batch", 4, 1.0, 1.0, deployment)]
    for where, knobs in ((deployment, Knobs(max_sequences=4)), (deployment, Knobs(overlap=True)), (None, Knobs())):
        world = World({"": where}, quantities([where]))
        point = np.log([one.prior[0] for one in world.table]) + np.linspace(-0.3, 0.3, len(world.table))
        model = Model(problem(cells), world, knobs, point)
        exact = model.slopes(point)
        for k in range(point.size):
            step = 1e-5 * np.eye(point.size)[k]
            moved = (model.residuals(point + step) - model.residuals(point - step)) / 2e-5
            assert exact[:, :, k] == pytest.approx(moved, abs=1e-7)
