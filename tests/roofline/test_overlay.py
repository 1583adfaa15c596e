"""A fit carried to another GPU: what it predicts there, and how it compares with the guesses that anybody can make."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.cells import Cell
from loadgen.roofline.named import find_gpu, is_untold
from loadgen.roofline.overlay import predict_on
from loadgen.roofline.passes import Deployment, step_law
from loadgen.roofline.whatif import Situation, outcome
from tests.roofline.fits import EFFICIENCY, ENGINE, H100, World, cells, draws, fit_of

H200 = replace(H100, gpu=catalog.gpu("h200-sxm"))


@cache
def here() -> list[Cell]:
    """Made when a test asks: collecting tests must not run an engine."""
    return cells(World(), noise=0.0)


def measured_on(where: Deployment, factor: float = 1.0) -> list[Cell]:
    """The same cells on an engine of the same efficiencies there, every time off by `factor`."""
    engine = replace(ENGINE, law=step_law(where, EFFICIENCY), kv_tokens=where.kv_capacity_tokens())
    found = []
    for cell in here():
        seen = outcome(Situation(cell, engine, where))
        told = {"output_tokens_per_s": seen.output_tokens_per_s}
        found.append(replace(cell, deployment=where, ttft_s=seen.ttft * factor, itl_s=seen.itl * factor, evidence=told))
    return found


def test_the_same_engine_on_another_gpu_is_predicted_and_the_guesses_are_not_as_good() -> None:
    fit = fit_of(here(), draws={"": draws(ENGINE, 40)})
    found = predict_on(fit, H200, measured_on(H200))
    assert found.n == {"ttft": len(here()), "itl": len(here()), "output_tokens_per_s": len(here())}
    assert found.errors["model"]["itl"] < 0.01
    assert found.errors["model"]["ttft"] < 0.01
    assert found.errors["no_change"]["itl"] > 0.1
    assert found.errors["bandwidth"]["ttft"] > 0.1
    for cell in found.cells:
        itl = cell.values["itl"]
        assert itl.low <= itl.value <= itl.high
        assert itl.here_measured > itl.measured


def test_without_a_measurement_the_fits_own_cells_are_predicted() -> None:
    fit = fit_of([replace(cell, evidence={}) for cell in here()])
    found = predict_on(fit, H200)
    assert len(found.cells) == len(here())
    assert found.errors["model"] == {}
    assert all(math.isnan(cell.values["ttft"].measured) for cell in found.cells)
    assert all(cell.cell.deployment == H200 for cell in found.cells)


def test_an_engine_that_is_off_there_shows_as_error() -> None:
    found = predict_on(fit_of(here()), H200, measured_on(H200, factor=1.5))
    assert found.errors["model"]["itl"] == pytest.approx(1 / 3, abs=0.03)
    assert found.errors["absolute"]["itl"] == pytest.approx(1 / 3, abs=0.03)


def test_the_same_cells_measured_here_take_the_fits_own_error_out_of_the_ratio() -> None:
    off = fit_of([replace(cell, itl_s=cell.itl_s * 1.2) for cell in here()])
    there = measured_on(H200, factor=1.2)
    assert predict_on(off, H200, there).errors["model"]["itl"] < 0.01
    assert predict_on(off, H200, there).errors["absolute"]["itl"] > 0.1


def test_rates_of_another_model_and_number_of_gpus_are_predicted_too() -> None:
    where = replace(H200, shape=catalog.shape("qwen3-32b"), gpus=2)
    offline = Cell(1000, 100, "concurrency", 400, math.nan, math.nan, where, evidence={"output_tokens_per_s": 900.0})
    found = predict_on(fit_of(here()), where, [offline])
    (one,) = found.cells
    rate = one.values["output_tokens_per_s"]
    assert 100 < rate.here < rate.value < 10_000
    assert found.n == {"output_tokens_per_s": 1}


def test_what_does_not_fit_there_is_said() -> None:
    small = replace(H100, gpu=catalog.gpu("t4"))
    assert "no room" in predict_on(fit_of(here()), small).refused


def test_constants_of_a_black_box_carry_nowhere() -> None:
    unknown = [replace(cell, deployment=None) for cell in here()]
    fit = replace(
        fit_of(here()),
        cells=tuple(replace(one, cell=cell) for one, cell in zip(fit_of(here()).cells, unknown, strict=True)),
    )
    with pytest.raises(UsageError, match="black-box"):
        predict_on(fit, H200)


def test_intervals_are_of_the_plausible_engines() -> None:
    narrow, wide = (
        predict_on(fit_of(here(), draws={"": draws(ENGINE, 60, spread=spread)}), H200) for spread in (0.01, 0.1)
    )
    width = [np.median([v.high / v.low for c in one.cells if (v := c.values["itl"])]) for one in (narrow, wide)]
    assert 1.0 < width[0] < width[1]


def test_a_power_cap_slows_computing_and_not_memory_and_is_another_gpu() -> None:
    card = catalog.gpu("h100-sxm")
    told, untold = find_gpu("H100-SXM 350W"), find_gpu("h100-sxm-powercap")
    assert (told.name, untold.name) == ("H100-SXM 350W", "H100-SXM powercap")
    assert find_gpu(untold.name) == untold
    assert told.bandwidth_bytes_per_s == card.bandwidth_bytes_per_s
    assert 0.5 < told.bf16_flop_per_s / card.bf16_flop_per_s < 0.5 ** (1 / 3)
    assert "the cap is not told" in untold.note
    assert find_gpu("H100-SXM 700W") == card
    assert is_untold(untold, told)
    assert not is_untold(card, told)


def test_what_was_measured_on_the_card_is_not_held_against_the_same_card_under_a_cap() -> None:
    capped = replace(H100, gpu=find_gpu("h100-sxm 350W"))
    fit = fit_of(here(), draws={"": draws(ENGINE, 20)})
    found = predict_on(fit, capped, [*measured_on(capped), *measured_on(H100, 3.0)])
    assert found.n["ttft"] == len(here())
    assert found.errors["absolute"]["ttft"] < 0.01
    long = max(found.cells, key=lambda one: one.cell.prompt_tokens)
    ttft = long.values["ttft"]
    assert 1.3 * ttft.here < ttft.value < 2 * ttft.here
    assert ttft.low < 0.9 * ttft.value  # how far clocks fall is known to a range
    assert ttft.high > 1.1 * ttft.value
    assert long.values["itl"].value == pytest.approx(long.values["itl"].here, rel=0.02)
