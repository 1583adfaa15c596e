"""The fit on engines with known parameters: what is recovered, what is held out, what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.cells import Cell, Protocol
from loadgen.roofline.fit import fit, predict_cells, split, transfer
from loadgen.roofline.fit_trace import cell_times
from loadgen.roofline.fitted import Fit
from loadgen.roofline.passes import Deployment, Efficiency, step_law
from loadgen.roofline.precision import Dtypes
from loadgen.roofline.serving import EngineConfig

H100 = Deployment(catalog.gpu("h100-sxm"), 1, catalog.shape("llama-3.1-8b"), Dtypes())
TRUE = Efficiency(mfu=0.55, mbu=0.75, kv_mbu=0.65, attention_mfu=0.4, sharpness=2.5, step_s=2e-3, sequence_s=1e-5)
ENGINE = EngineConfig(step_law(H100, TRUE), token_budget=4096, max_sequences=24, request_s=4e-3)
DESIGN = [
    *((s, 16, 1) for s in (128, 1024, 4096, 16384)),
    *((s, 128, 1) for s in (128, 8192)),
    *((128, 128, c) for c in (4, 16, 48)),
    *((4096, 128, c) for c in (4, 16, 48)),
]


def measured(engine: EngineConfig = ENGINE, where: Deployment | None = H100, noise: float = 0.01) -> list[Cell]:
    rng = np.random.default_rng(5)
    found = []
    for i, (prompt, output, users) in enumerate(DESIGN):
        cell = Cell(
            prompt, output, "concurrency", users, 1.0, 1.0, where, Protocol(requests=5 * users), "engine", f"#{i}"
        )
        ttft, itl = cell_times(engine, cell) * np.exp(noise * rng.standard_normal(2))
        found.append(replace(cell, ttft_s=float(ttft), itl_s=float(itl)))
    return found


@cache
def plain_fit() -> Fit:
    """The fit of the engine's cells under their right name, none held out: made once, several tests look at it."""
    return fit(measured(), holdout="none", rng=np.random.default_rng(0))


def test_an_engine_is_found_again() -> None:
    cells = measured()
    found = plain_fit()
    value = {one.name: one.value for one in found.parameters}
    assert found.in_sample.ttft < 0.015
    assert found.in_sample.itl < 0.015
    assert found.held_out is None
    assert value["mfu"] == pytest.approx(TRUE.mfu, rel=0.05)
    assert found.engine["engine"].max_sequences == 24
    ttft, itl = predict_cells(found, "engine", cells)
    assert ttft == pytest.approx([one.ttft_fit_s for one in found.cells], rel=0.02)
    assert itl == pytest.approx([one.itl_fit_s for one in found.cells], rel=0.02)


def test_cells_held_out_are_predicted_from_the_others_alone() -> None:
    cells = measured()
    found = fit(cells, holdout="alternate", rng=np.random.default_rng(0))
    held = [i for i, one in enumerate(found.cells) if one.held_out]
    assert len(held) == len(cells) // 2
    assert found.held_out is not None
    assert found.held_out.itl < 0.05
    assert found.baselines.keys() == {"engine_alone", "interpolation", "regression"}
    spoilt = [replace(one, ttft_s=9 * one.ttft_s) if i == held[0] else one for i, one in enumerate(cells)]
    again = fit(spoilt, holdout="alternate", rng=np.random.default_rng(0))
    assert again.cells[held[0]].ttft_fit_s == pytest.approx(found.cells[held[0]].ttft_fit_s)


def test_an_unknown_deployment_gets_constants() -> None:
    cells = [one for one in measured(where=None) if one.prompt_tokens < 8000]
    found = fit(cells, holdout="none", rng=np.random.default_rng(0))
    assert found.deployment is None
    assert {"prefill_token_s", "decode_step_s", "sequence_s"} <= {one.name for one in found.parameters}
    assert found.in_sample.itl < 0.1


def test_folds() -> None:
    cells = measured()
    assert sum(len(one) for one in split(cells, "shape")) == len(cells)
    assert split(cells[:4], "alternate") == []
    assert split(cells[:4] * 5, "alternate") == []
    twice = [*cells, *cells]
    for kind in ("alternate", "shape"):
        for fold in split(twice, kind):
            assert {i % len(cells) for i in fold if i < len(cells)} == {i % len(cells) for i in fold if i >= len(cells)}
    with pytest.raises(UsageError, match="no cell"):
        fit([], rng=np.random.default_rng(0))
    other = [replace(cells[0], deployment=None), cells[1]]
    with pytest.raises(UsageError, match="two deployments"):
        fit(other, rng=np.random.default_rng(0))


def placed(where: Deployment) -> list[Cell]:
    """The same measurements, said to be of another deployment."""
    return [replace(one, deployment=where) for one in measured()]


@pytest.mark.parametrize(
    ("gpu", "shape", "code"),
    [
        ("a100-sxm-80", "llama-3.1-8b", "faster_than_physics"),
        ("h100-sxm", "llama-3.1-70b", "faster_than_physics"),
        ("h100-sxm", "llama-3.2-1b", "refused_deployment"),
        ("h100-sxm", "llama-3.2-3b", "refused_deployment"),
        ("b200", "llama-3.1-8b", "refused_deployment"),
    ],
)
def test_a_wrong_deployment_is_refused_and_gets_constants(gpu: str, shape: str, code: str) -> None:
    where = replace(H100, gpu=catalog.gpu(gpu), shape=catalog.shape(shape))
    found = fit(placed(where), holdout="none", rng=np.random.default_rng(0))
    assert where.gpu.name in found.refused
    assert [one.code for one in found.findings] == [code]
    assert found.deployment is None
    assert found.in_sample.itl < 0.02
    with pytest.raises(UsageError, match="constants"):
        transfer(found, H100)


def test_an_engine_that_is_slow_is_not_refused_and_its_user_may_say_that_it_is_slower_still() -> None:
    slow = replace(ENGINE, law=step_law(H100, replace(TRUE, mfu=0.33, attention_mfu=0.24)))
    assert not fit(measured(slow), holdout="none", rng=np.random.default_rng(0)).refused
    small = placed(replace(H100, shape=catalog.shape("llama-3.2-3b")))
    refused = fit(small, holdout="none", rng=np.random.default_rng(0))
    assert "Llama-3.1-8B" in refused.refused
    assert "--no-priors" in refused.findings[0].advice
    assert not fit(small, holdout="none", priors=False, rng=np.random.default_rng(0)).refused


def test_explanations_that_fit_as_well_are_listed_with_what_decides() -> None:
    found = {one.name: one for one in plain_fit().alternatives}
    assert {"fp8_kv", "window"} <= found.keys()
    assert all(one.decide and one.explanation and one.loss_ratio > 0 for one in found.values())


def test_on_another_gpu_the_facts_change_and_nothing_else() -> None:
    found = plain_fit()
    h200 = replace(H100, gpu=catalog.gpu("h200-sxm"))
    engine, drawn = transfer(found, h200)
    here = found.engine["engine"]
    assert engine.law.weight_rate / here.law.weight_rate == pytest.approx(4.8 / 3.35)
    assert engine.law.compute_rate == pytest.approx(here.law.compute_rate)
    assert engine.law.step_s == here.law.step_s
    assert len(drawn) == len(found.draws["engine"]) >= 20
    long = Cell(8192, 128, "concurrency", 8, 1.0, 1.0, h200)
    truth = cell_times(replace(ENGINE, law=step_law(h200, TRUE)), long)
    assert [float(one[0]) for one in predict_cells(found, engine, [long])] == pytest.approx(truth, rel=0.05)


def test_intervals_hold_the_truth_and_say_what_is_open() -> None:
    known = {one.name: one for one in plain_fit().parameters}
    for name in ("mfu", "kv_mbu", "attention_mfu"):
        assert known[name].low < getattr(TRUE, name) < known[name].high
        assert known[name].identified
    assert not known["mbu"].identified  # one deployment: read slowly, or read fast with more overhead
    assert known["mbu"].low < TRUE.mbu < known["mbu"].high
    assert known["mbu"].high >= 0.92
    assert "GPU count" in known["mbu"].settle
    assert not known["step_s"].identified
    assert np.isnan(known["step_s"].value)
    assert known["step_s"].low < TRUE.step_s < known["step_s"].high
    assert known["step_s"].settle
    floor = known["floor_s"]
    assert floor.identified
    assert floor.high / floor.low < 1.2
    assert known["batch_cap"].low <= 24 <= known["batch_cap"].high


def test_two_gpu_counts_settle_overhead_against_bandwidth() -> None:
    cells = []
    for count in (1, 4):
        where = replace(H100, gpus=count)
        engine = replace(ENGINE, law=step_law(where, TRUE))
        cells += [replace(one, label=f"tp{count}") for one in measured(engine, where) if one.load <= 16]
    known = {one.name: one for one in fit(cells, holdout="none", rng=np.random.default_rng(0)).parameters}
    assert known["mbu"].identified
    assert known["mbu"].value == pytest.approx(TRUE.mbu, rel=0.06)
    assert known["step_s"].value == pytest.approx(TRUE.step_s, rel=0.2)
    assert {"floor_s of tp1", "floor_s of tp4"} <= known.keys()


def test_deployments_that_cannot_be_one_engine_get_constants_each() -> None:
    right = [replace(one, label="right") for one in measured() if one.load <= 16]
    wrong = replace(H100, shape=catalog.shape("llama-3.1-70b"), gpus=2)
    cells = [*right, *(replace(one, label="wrong", deployment=wrong) for one in right)]
    found = fit(cells, holdout="alternate", rng=np.random.default_rng(0))
    assert found.refused
    assert found.findings[0].severity == "invalid"
    assert "one at a time" in found.findings[0].advice
    assert found.deployment is None
    assert found.engine.keys() == found.draws.keys() == {"right", "wrong"}
    assert [one.cell for one in found.cells] == cells
    assert found.in_sample.n == len(cells)
    assert found.held_out is not None
    assert {"decode_step_s of right", "decode_step_s of wrong"} <= {one.name for one in found.parameters}


def test_memory_far_below_the_cards_is_found() -> None:
    little = replace(ENGINE, max_sequences=256, kv_tokens=40_000)
    found = fit(measured(little), holdout="none", rng=np.random.default_rng(0)).engine["engine"]
    assert found.kv_tokens == pytest.approx(40_000, rel=0.15)


def test_a_more_usual_model_or_gpu_is_listed() -> None:
    true = {one.name for one in plain_fit().alternatives}
    assert not true & {"other_gpu", "other_model"}
    small = fit(
        placed(replace(H100, gpu=catalog.gpu("mi300x"))), holdout="none", rng=np.random.default_rng(0)
    ).alternatives
    (told,) = [one for one in small if one.name == "other_gpu"]
    assert "H100" in told.explanation
    assert "nvidia-smi" in told.decide
