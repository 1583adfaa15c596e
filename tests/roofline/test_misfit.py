"""Each cause outside the model is found by its mark, and nothing is found where nothing was put in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.roofline.causes import find_causes
from loadgen.roofline.cells import Cell
from loadgen.roofline.misfit import RULES, find_misfits
from loadgen.roofline.serving import EngineConfig
from tests.roofline.disturbances import DISTURBANCES, Disturbance
from tests.roofline.fits import BUSY, CALM, ENGINE, World, cells, fit_of


def codes(world: World, engine: EngineConfig = ENGINE, seed: int = 0) -> set[str]:
    fit = fit_of(cells(world, seed), engine)
    return {finding.code for finding in find_misfits(fit, find_causes(fit))}


@pytest.mark.parametrize("seed", range(4))
def test_a_clean_run_has_no_finding(seed: int) -> None:
    assert codes(World(), seed=seed) == set()


@pytest.mark.parametrize("of", DISTURBANCES, ids=lambda of: of.name)
def test_a_disturbance_is_found_under_its_name(of: Disturbance) -> None:
    assert of.code in codes(of.world, of.fitted, seed=1)


def test_every_rule_has_a_disturbance() -> None:
    fired = set()
    for of in DISTURBANCES:
        fit = fit_of(cells(of.world, 1), of.fitted)
        causes = find_causes(fit)
        fired |= {rule for rule in RULES if any(finding.code == of.code for finding in rule(fit, causes))}
    assert fired == set(RULES)


def test_one_length_cannot_tell_a_batch_cap_from_a_kv_cap_and_the_server_can() -> None:
    capped = replace(ENGINE, max_sequences=16)
    one_kind = World(capped, [design for design in CALM if design[1] == 256])
    assert "batch_or_kv_cap" in codes(one_kind, capped)
    assert "batch_cap" in codes(replace(one_kind, evidence={"kv_usage": 0.1}), capped)
    assert "batch_cap" in codes(World(capped, BUSY), capped)


def test_findings_name_the_cell_and_their_evidence() -> None:
    def spoil(cell: Cell, place: float) -> Cell:
        return replace(cell, ttft_s=cell.ttft_s / 13) if cell.load == 64 else cell

    fit = fit_of(cells(World(change=spoil)))
    (finding,) = find_misfits(fit, find_causes(fit))
    assert finding.code == "failed_cells"
    assert "64 users" in finding.message
    assert finding.value == pytest.approx(13, rel=0.2)


def test_few_cells_make_no_trend() -> None:
    def slower(cell: Cell, place: float) -> Cell:
        return replace(cell, itl_s=cell.itl_s * (1 + 0.2 * place))

    assert "drift" not in codes(World(design=CALM[-4:], change=slower))


def test_a_cap_that_the_estimator_missed_is_told_as_that_and_not_as_failed_cells() -> None:
    memory = next(of for of in DISTURBANCES if of.name == "KV cap")
    found = codes(memory.world, ENGINE)
    assert {"kv_cap", "cap_not_fitted"} <= found
    assert "failed_cells" not in found
    assert "cap_not_fitted" not in codes(memory.world, memory.fitted)


def test_the_size_of_a_cap_is_about_right() -> None:
    for title, true in (("KV cap", 60_000), ("batch cap", 16)):
        of = next(of for of in DISTURBANCES if of.name == title)
        fit = fit_of(cells(of.world), of.fitted)
        finding = next(found for found in find_misfits(fit, find_causes(fit)) if found.code == of.code)
        assert finding.value == pytest.approx(true, rel=0.1)
