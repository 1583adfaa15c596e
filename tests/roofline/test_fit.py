"""The fit on engines with known parameters: what is recovered, what is held out, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.cells import Cell, Protocol
from loadgen.roofline.fit import fit, predict_cells, split
from loadgen.roofline.fit_trace import cell_times
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


def test_an_engine_is_found_again() -> None:
    cells = measured()
    found = fit(cells, holdout="none", rng=np.random.default_rng(0))
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
    assert found.baselines.keys() == {"interpolation", "regression"}
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
    with pytest.raises(UsageError, match="no cell"):
        fit([], rng=np.random.default_rng(0))
    other = [replace(cells[0], deployment=None), cells[1]]
    with pytest.raises(UsageError, match="two deployments"):
        fit(other, rng=np.random.default_rng(0))
