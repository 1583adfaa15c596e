"""What would help: changes carried over by facts alone, gains that the engine confirms, silence where none helps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.fitted import Fit
from loadgen.roofline.passes import Deployment, constants_law, step_law
from loadgen.roofline.precision import Dtypes
from loadgen.roofline.remedies import Remedy, find_remedies, operating_points
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.whatif import Situation, carried, moved, outcome
from tests.roofline.fits import BUSY, EFFICIENCY, ENGINE, H100, MBU_OPEN, World, cells, draws, fit_of


@pytest.fixture(scope="module")
def fit() -> Fit:
    world = World(design=[(2048, 256, 16), (128, 256, 64), (8192, 16, 1), (128, 16, 1)])
    return replace(fit_of(cells(world)), draws={"": draws(ENGINE, 12)})


@pytest.fixture(scope="module")
def found(fit: Fit) -> tuple[Remedy, ...]:
    return find_remedies(fit)


def by_name(found: tuple[Remedy, ...], name: str, phase: str, load: float) -> Remedy:
    return next(r for r in found if (r.name, r.phase, r.of.cell.load) == (name, phase, load))


@pytest.mark.parametrize(
    "new",
    [
        replace(H100, dtypes=Dtypes(weights="fp8", compute="fp8")),
        replace(H100, gpus=4, dtypes=Dtypes(kv="fp8")),
        Deployment(catalog.gpu("h200-sxm"), 2, catalog.shape("qwen3-235b-a22b"), Dtypes()),
    ],
    ids=["fp8", "tp4", "other GPU and model"],
)
def test_a_law_carried_over_is_the_law_of_the_new_facts_at_the_old_utilisations(new: Deployment) -> None:
    fitted = carried(step_law(H100, EFFICIENCY), H100, new)
    wanted = step_law(new, EFFICIENCY)
    for name, value in wanted._asdict().items():
        assert getattr(fitted, name) == pytest.approx(value, rel=1e-9), name


def test_a_fitted_all_reduce_is_kept_where_there_was_one() -> None:
    two = replace(H100, gpus=2)
    law = step_law(two, EFFICIENCY)._replace(allreduce_s=1e-3)
    assert carried(law, two, replace(H100, gpus=4)).allreduce_s == pytest.approx(1e-3)


def test_what_does_not_fit_cannot_be_moved_to() -> None:
    big = replace(H100, shape=catalog.shape("llama-3.1-70b"))
    situation = Situation(cells(World(design=BUSY[-2:]))[0], ENGINE, H100)
    with pytest.raises(UsageError, match="leave no room"):
        moved(situation, big)
    with pytest.raises(UsageError):
        moved(replace(situation, where=None), H100)


def test_gains_are_those_of_the_changed_engine(fit: Fit, found: tuple[Remedy, ...]) -> None:
    kv = by_name(found, "fp8_kv", "decode", 16)
    other = replace(H100, dtypes=Dtypes(kv="fp8"))
    after = replace(ENGINE, law=step_law(other, EFFICIENCY), kv_tokens=other.kv_capacity_tokens())
    times = [outcome(Situation(kv.of.cell, engine, H100)).itl for engine in (ENGINE, after)]
    assert kv.gain == pytest.approx(1 - times[1] / times[0], rel=1e-6)
    assert kv.after == pytest.approx(kv.before * times[1] / times[0])
    assert kv.before == kv.of.cell.itl_s
    assert kv.change["law.kv_bytes"] == pytest.approx((131072.0, 65536.0))


def test_only_what_helps_is_told_the_largest_gain_first(found: tuple[Remedy, ...]) -> None:
    assert found
    for remedy in found:
        assert 0 < remedy.low <= remedy.gain <= remedy.high
        assert remedy.gain >= 0.02
    for phase in ("prefill", "decode"):
        gains = [remedy.gain for remedy in found if remedy.phase == phase]
        assert gains == sorted(gains, reverse=True)
    assert [remedy.phase for remedy in found] == sorted((remedy.phase for remedy in found), reverse=True)


def test_an_fp8_cache_does_not_help_a_prompt_alone_and_a_cap_that_is_not_reached_is_not_named(
    found: tuple[Remedy, ...],
) -> None:
    assert not [r for r in found if r.name == "fp8_kv" and r.phase == "prefill" and r.of.cell.load == 1]
    assert not [r for r in found if r.name == "batch_cap"]


def test_a_cap_that_is_reached_is_named_with_its_cost() -> None:
    capped = replace(ENGINE, max_sequences=16)
    found = find_remedies(fit_of(cells(World(capped, [(128, 256, 64), (128, 256, 1)])), capped))
    remedy = by_name(found, "batch_cap", "prefill", 64)
    assert remedy.change["engine.max_sequences"] == (16, 32)
    assert remedy.gain > 0.3


def test_more_users_are_offered_up_to_where_doubling_stops_to_pay() -> None:
    found = find_remedies(fit_of(cells(World(design=[(128, 256, 4), (128, 256, 1)]))))
    remedy = by_name(found, "larger_batch", "decode", 4)
    best = remedy.change["load"][1]
    assert isinstance(best, int | float)
    cell = replace(remedy.of.cell, protocol=replace(remedy.of.cell.protocol, requests=None))
    rate = {load: outcome(Situation(replace(cell, load=load), ENGINE, H100)).output_tokens_per_s
            for load in (4, best / 2, best, 2 * best)}  # fmt: skip
    assert rate[best] > 2**0.5 * rate[best / 2]
    assert rate[2 * best] < 2**0.5 * rate[best] or 2 * best > 1024
    assert remedy.gain == pytest.approx(rate[best] / rate[4] - 1, rel=1e-6)
    assert "ITL" in remedy.costs


def test_bandwidth_that_could_be_overhead_widens_what_fewer_bytes_would_gain(fit: Fit) -> None:
    one = replace(fit, draws={"": ()})
    sure = by_name(find_remedies(one), "int4_weights", "decode", 64)
    unsure = by_name(find_remedies(replace(one, parameters=(MBU_OPEN,))), "int4_weights", "decode", 64)
    assert unsure.high - unsure.low > 1.5 * (sure.high - sure.low)
    assert unsure.low < sure.gain < unsure.high


def test_constants_still_tell_what_needs_no_facts() -> None:
    engine = EngineConfig(constants_law(2e-5, 5e-3, 5e-5), token_budget=2048)
    measured = [replace(c, deployment=None) for c in cells(World(engine, [(2048, 256, 16), (2048, 256, 1)]))]
    names = {remedy.name for remedy in find_remedies(fit_of(measured, engine))}
    assert {"shorter_prompts", "prefix_cache", "replicas"} <= names
    assert not names & {"fp8_weights", "int4_weights", "fp8_kv", "more_tp"}


def test_the_points_that_are_judged_are_the_highest_loads_and_the_longest_prompt_alone() -> None:
    points = {(p.cell.prompt_tokens, p.cell.load) for p in operating_points(fit_of(cells(World(design=BUSY))))}
    assert (16384, 1) in points
    assert (128, 64) in points
    assert len(points) == 3
