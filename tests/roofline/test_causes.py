"""What limits a cell: parts that sum to the time, the bound that was built in, and honesty where fits disagree."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from loadgen.roofline.causes import Cause, ends, find_causes
from loadgen.roofline.cells import Protocol
from loadgen.roofline.fitted import Fit
from loadgen.roofline.parts import Part
from loadgen.roofline.passes import constants_law, step_law
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.tell import sentence
from tests.roofline.fits import BUSY, EFFICIENCY, ENGINE, H100, MBU_OPEN, World, cells, draws, fit_of


def one_cell(prompt: int, output: int, users: int, engine: EngineConfig = ENGINE, **more: object) -> Fit:
    return fit_of(cells(World(engine, [(prompt, output, users), (128, 16, 1)], **more), noise=0.0)[:1], engine)  # type: ignore[arg-type]


def cause(fit: Fit, phase: str) -> Cause:
    return next(found for found in find_causes(fit) if found.phase == phase)


def by_hand(part: Part) -> float:
    """The part's seconds from its inputs, by its formula, as a reader would compute it."""
    i = part.inputs
    if part.name in ("matrix products", "weights"):
        a, b, p = i["flops"] / i["flop_per_s"], i["bytes"] / i["bytes_per_s"], i["p"]
        mine = a if part.name == "matrix products" else b
        return (a**p + b**p) ** (1 / p) * mine**p / (a**p + b**p)
    if part.name == "KV cache":
        return i["kv_bytes_per_gpu"] / i["kv_bytes_per_s_per_gpu"]
    if part.name == "attention":
        return i["attention_flops"] / i["attention_flop_per_s"]
    if part.name == "overhead":
        return i["passes"] * (i["step_s"] + i["sequence_s"] * i["batch"]) + i["eager_s"]
    if part.name == "all-reduce":
        return i["passes"] * i["allreduce_s"] + i["allreduce_token_s"] * i["tokens"]
    if part.name == "request":
        return i["request_s"] + i["prompt_token_s"] * i["prompt_tokens"]
    whole = i["ttft_fit_s"] if "ttft_fit_s" in i else i["itl_fit_s"]
    return max(0.0, whole - i["passes_s"])


@pytest.mark.parametrize("of", [(1500, 200, 1), (128, 256, 32), (1000, 256, 16)])
def test_parts_sum_to_the_time_and_follow_from_their_inputs(of: tuple[int, int, int]) -> None:
    two = replace(H100, gpus=2)
    law = step_law(two, EFFICIENCY)._replace(padding=1.0)
    for found in (*find_causes(one_cell(*of)), *find_causes(one_cell(*of, replace(ENGINE, law=law), where=two))):
        assert sum(part.seconds for part in found.parts) == pytest.approx(found.fit_s, rel=0.02)
        for part in found.parts:
            assert by_hand(part) == pytest.approx(part.seconds, rel=1e-9), part.name


def test_parts_of_a_prompt_in_several_passes_sum_to_ttft() -> None:
    found = cause(one_cell(9000, 16, 1), "prefill")
    assert found.work.passes == 5
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.fit_s, rel=1e-3)
    assert found.bound == "compute"
    for part in found.parts:
        assert by_hand(part) == pytest.approx(part.seconds, rel=1e-3), part.name


@pytest.mark.parametrize(
    ("of", "phase", "bound"),
    [
        ((8000, 16, 1), "prefill", "compute"),
        ((16, 16, 1), "prefill", "memory"),
        ((128, 256, 1), "decode", "memory"),
        ((2000, 256, 48), "prefill", "queue"),
        ((8000, 64, 32), "decode", "queue"),
    ],
)
def test_the_bound_is_what_takes_most(of: tuple[int, int, int], phase: str, bound: str) -> None:
    assert cause(one_cell(*of), phase).bound == bound


def test_a_cpu_bound_engine_is_told_as_overhead_and_a_large_batch_as_compute() -> None:
    slow = replace(ENGINE, law=ENGINE.law._replace(step_s=12e-3))
    assert cause(one_cell(128, 256, 1, slow), "decode").bound == "overhead"
    wide = replace(ENGINE, max_sequences=1024, law=ENGINE.law._replace(sequence_s=0.0))
    assert cause(one_cell(16, 64, 900, wide), "decode").bound == "compute"


def test_communication_is_told_where_all_reduce_is_slow() -> None:
    where = replace(H100, gpus=4)
    engine = EngineConfig(step_law(where)._replace(allreduce_s=8e-3))
    assert cause(one_cell(128, 64, 1, engine, where=where), "decode").bound == "communication"


def test_distance_is_measured_time_over_the_hardwares() -> None:
    found = cause(one_cell(128, 256, 1), "decode")
    weights = H100.dtypes.weight_bytes(H100.shape)[0]
    context = 128 + 0.5 + 255 / 2
    roof = (weights + context * H100.kv_bytes_per_gpu()) / H100.gpu.bandwidth_bytes_per_s
    assert found.roof_s == pytest.approx(roof, rel=1e-9)
    assert found.distance == pytest.approx(found.measured_s / roof)
    assert 1.0 < found.fitted_distance < found.distance


def test_a_static_batch_is_one_pass_of_all_prompts() -> None:
    cell = replace(cells(World(design=[(512, 64, 1), (128, 16, 1)]), noise=0.0)[0], load_kind="batch", load=8.0)
    found = cause(fit_of([cell]), "prefill")
    assert found.work.tokens == 8 * 512
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.fit_s, rel=1e-6)


def test_the_servers_own_batch_is_believed_and_the_cap_is_kept() -> None:
    measured = cells(World(design=[(128, 256, 64), (128, 16, 1)]), noise=0.0)[0]
    told = replace(measured, evidence=dict(measured.evidence) | {"batch": 40.0})
    assert cause(fit_of([told]), "decode").batch == 40.0
    capped = replace(ENGINE, max_sequences=16)
    assert cause(one_cell(128, 256, 64, capped), "decode").batch == 16.0


def test_a_client_that_was_the_bottleneck_is_named_before_the_server() -> None:
    found = cause(one_cell(128, 256, 32, evidence={"invalid": 1.0}), "decode")
    assert found.bound == "client"
    assert "client was the bottleneck" in sentence(found)


def test_bounds_that_plausible_fits_disagree_on_are_all_named() -> None:
    heavy = replace(ENGINE, law=ENGINE.law._replace(step_s=5.5e-3, weight_rate=ENGINE.law.peak_bytes_per_s * 0.92))
    fit = one_cell(128, 256, 1, heavy)
    assert cause(fit, "decode").rivals == ()
    open_fit = replace(fit, parameters=(replace(MBU_OPEN, low=0.45, high=0.92),))
    found = cause(open_fit, "decode")
    assert {found.bound, *found.rivals} == {"overhead", "memory"}
    assert "as plausible name" in sentence(found)


def test_the_ends_keep_the_floor_that_was_seen() -> None:
    low, high = ends(replace(one_cell(128, 16, 1), parameters=(MBU_OPEN,)), ENGINE)
    for engine in (low, high):
        floor = engine.law.step_s + engine.law.dense_bytes / engine.law.weight_rate
        wanted = ENGINE.law.step_s + ENGINE.law.dense_bytes / ENGINE.law.weight_rate
        assert floor == pytest.approx(wanted, rel=0.1)
    assert low.law.weight_rate < high.law.weight_rate


def test_draws_that_agree_name_no_rival() -> None:
    fit = replace(one_cell(8000, 16, 1), draws={"": draws(ENGINE, 20)})
    assert cause(fit, "prefill").rivals == ()


def test_constants_tell_no_bound_but_still_tell_waiting() -> None:
    engine = EngineConfig(constants_law(2e-5, 5e-3, 5e-5))
    measured = [replace(cell, deployment=None) for cell in cells(World(engine, [(2000, 200, 32), (2000, 200, 1)]))]
    found = {(c.of.cell.load, c.phase): c for c in find_causes(fit_of(measured, engine))}
    assert found[1, "decode"].bound is None
    assert found[32, "prefill"].bound == "queue"
    assert math.isnan(found[1, "decode"].distance)
    assert "name GPU and model" in sentence(found[1, "decode"])


def test_cached_prompt_tokens_are_not_counted_as_work() -> None:
    cached = cause(one_cell(4000, 16, 1, protocol=Protocol(cached_share=0.5)), "prefill")
    assert cached.work.tokens == 2000
    assert sum(part.seconds for part in cached.parts) == pytest.approx(cached.fit_s, rel=0.01)


def test_a_sentence_tells_bytes_and_times_of_the_parts() -> None:
    text = sentence(cause(one_cell(128, 256, 32), "decode"))
    assert text.startswith("Decode, 128 → 256 tokens at 32 users")
    assert "to read 15.0 GB of weights at 2.41 TB/s" in text
    assert "The hardware's roof is" in text


def computed(part: Part) -> float:
    """A part's seconds again, from its formula and its inputs alone."""
    formula, _, rest = part.formula.replace("^", "**").partition(";")
    names = dict(part.inputs)
    for text in rest.partition(";")[0].split(","):
        name, _, value = text.partition("=")
        if value:
            names[name.strip()] = eval(value, {"__builtins__": {}}, names)
    found: float = eval(formula.partition(", at least")[0], {"__builtins__": {}}, names)
    return found


def test_every_part_can_be_computed_again_from_its_formula_and_its_inputs() -> None:
    parts = [part for cause in find_causes(fit_of(cells(World(design=BUSY)))) for part in cause.parts]
    assert {"matrix products", "weights", "KV cache", "attention", "overhead", "request"} <= {one.name for one in parts}
    for one in parts:
        assert computed(one) == pytest.approx(one.seconds, rel=1e-6)
