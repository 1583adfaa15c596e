"""A fit's JSON, view, charts and page: nothing is lost on the way, and every number can be computed again."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from loadgen.report import figures
from loadgen.report.fitpage import fit_json, fit_markdown, fit_page
from loadgen.report.fitview import fit_view
from loadgen.roofline.causes import find_causes
from loadgen.roofline.fitted import Alternative, Errors, Fit, Parameter
from loadgen.roofline.misfit import find_misfits
from loadgen.roofline.passes import constants_law
from loadgen.roofline.remedies import find_remedies
from loadgen.roofline.serving import EngineConfig
from tests.roofline.fits import BUSY, ENGINE, MBU_OPEN, World, cells, draws, fit_of

MARKUP = "</script><script>alert(1)</script><img src=x onerror=alert(2)>|`{{ 7*7 }}`%{x}"
DESIGN = (*BUSY[:4], *BUSY[8:12], *BUSY[-4:])


def made(**more: object) -> Fit:
    fit = fit_of(cells(World(design=DESIGN)))
    beside = [replace(one, ttft_low_s=0.9 * one.ttft_fit_s, ttft_high_s=1.1 * one.ttft_fit_s,
                      itl_low_s=0.95 * one.itl_fit_s, itl_high_s=1.05 * one.itl_fit_s, held_out=k % 4 == 1)
              for k, one in enumerate(fit.cells)]  # fmt: skip
    mfu = Parameter("mfu", "share of peak FLOP/s", 0.6, 0.57, 0.63, True)
    held = Errors(0.031, 0.016, 0.07, 0.03, 3)
    curve = Errors(0.12, 0.012, 0.3, 0.05, 3)
    other = Alternative("overlap", "overhead that hides behind the GPU", "a model of another size", 1.04)
    fit = replace(fit, cells=tuple(beside), draws={"": draws(ENGINE, 6)}, parameters=(mfu, MBU_OPEN), held_out=held,
                  baselines={"interpolation": curve}, alternatives=(other,))  # fmt: skip
    return replace(fit, **more)  # type: ignore[arg-type]


@cache
def explained() -> tuple[Fit, Any, Any, Any]:
    fit = made()
    causes = find_causes(fit)
    return fit, causes, find_remedies(fit), find_misfits(fit, causes)


@cache
def plain() -> dict[str, Any]:
    return json.loads(json.dumps(fit_json(*explained()), allow_nan=False))  # type: ignore[no-any-return]


def test_the_json_has_the_names_that_users_script_against() -> None:
    found = plain()
    assert {"gpu", "gpus", "shape", "dtype", "parameters", "limits", "findings", "error", "prediction", "alternatives",
            "cells"} <= set(found)  # fmt: skip
    assert (found["gpu"], found["gpus"], found["shape"], found["dtype"]) == ("H100-SXM", 1, "Llama-3.1-8B", "bf16")
    assert {"value", "low", "high", "identified"} <= set(found["parameters"]["mfu"])
    assert {"phase", "bound", "distance_to_roof"} <= set(found["limits"][0])
    assert {"isl", "osl", "load", "ttft_s", "ttft_fit_s", "itl_s", "itl_fit_s", "held_out"} <= set(found["cells"][0])
    assert found["error"]["held_out"]["ttft"] == 0.031
    assert found["error"]["baseline_interpolation"]["itl"] == 0.012
    assert found["parameters"]["mbu"]["value"] is None


def test_a_reader_of_the_json_alone_computes_every_limit_again() -> None:
    found = plain()
    assert found["limits"]
    for of in found["limits"]:
        law = found["engine"][of["label"]]["law"]
        work, cell = of["work"], found["cells"][of["cell"]]
        roof = of["roof_inputs"]
        assert of["roof_s"] == pytest.approx(
            max(roof["flops"] / roof["peak_flop_per_s"], roof["bytes"] / roof["peak_bytes_per_s"])
        )
        assert of["distance_to_roof"] == pytest.approx(of["measured_s"] / of["roof_s"])
        assert of["measured_s"] == cell["ttft_s" if of["phase"] == "prefill" else "itl_s"]
        assert work["bytes"] == pytest.approx(work["passes"] * law["dense_bytes"] + work["kv_bytes"])
        own = sum(part["seconds"] for part in of["parts"] if part["bound"] in ("compute", "memory"))
        assert of["fitted_roof_s"] == pytest.approx(own)
        if of["phase"] == "decode":
            seen = next(part for part in of["parts"] if part["name"] == "KV cache")["inputs"]["context_tokens"]
            kv = law["kv_bytes"] * of["batch"] * seen
            assert work["kv_bytes"] == pytest.approx(kv * law["gpus"])
            flops = (law["flops_per_token"] + law["head_flops"]) * work["tokens"]
            assert work["flops"] == pytest.approx(flops + law["attention_flops_decode"] * of["batch"] * seen)
            decoding = (cell["osl"] - 1) * cell["itl_s"]
            batch = cell["load"] * decoding / (cell["ttft_s"] + decoding)
            assert of["batch"] == pytest.approx(max(1.0, min(batch, cell["load"])), rel=1e-6)


def test_a_gain_follows_from_before_and_after() -> None:
    for of in plain()["remedies"]:
        ratio = of["after"] / of["before"]
        gain = ratio - 1 if of["metric"] == "output_tokens_per_s" else 1 - ratio
        assert of["gain"] == pytest.approx(gain)
        assert of["change"]


def test_the_view_tells_the_held_out_error_and_that_the_model_loses() -> None:
    view = fit_view(plain())
    assert "3 cells that the fit never saw: TTFT 3.1 %, ITL 1.6 %" in view["sure"]
    assert "For ITL the model loses" in view["sure"]
    assert "decode is bound by" in view["headline"].lower()
    (mfu, mbu) = view["parameters"]
    assert (mfu["value"], mfu["interval"], mfu["unit"]) == ("60.00", "57.0 – 63.0", "% of peak FLOP/s")
    assert (mbu["value"], mbu["identified"]) == ("n/a", False)


def test_charts_have_bound_fit_interval_and_held_out_points() -> None:
    charts = figures.fit(fit_view(plain())["series"])
    assert set(charts) == {"fit-roofline", "fit-ttft-prompt", "fit-itl-load", "fit-itl-context"}
    lines = charts["fit-ttft-prompt"].data
    assert {trace.get("fill") for trace in lines} >= {"toself"}
    assert {trace["line"].get("dash") for trace in lines if "line" in trace} >= {"dot"}
    symbols = {trace["marker"]["symbol"] for trace in lines if "marker" in trace}
    assert symbols == {"circle", "diamond-open"}
    roof = charts["fit-roofline"].data
    assert [trace["line"]["dash"] for trace in roof if "line" in trace] == ["solid", "dash"]
    points = [trace for trace in roof if "customdata" in trace]
    assert sum(len(trace["x"]) for trace in points) == len(plain()["limits"])
    for trace in points:
        for x, (_, _, moved, flops, *_rest) in zip(trace["x"], trace["customdata"], strict=True):
            assert x == pytest.approx(flops / moved)
        assert "tokens" in trace["hovertemplate"]
    for chart in charts.values():
        figures.notebook(chart)


def test_page_and_comment_hold_the_same_figures() -> None:
    page, comment = fit_page(*explained()), fit_markdown(*explained())
    for text in ("H100-SXM", "3.1 %", "57.0 – 63.0"):
        assert text in page
        assert text in comment
    assert "What would help" in page
    assert "kv_bytes_per_gpu / kv_bytes_per_s_per_gpu" in page
    assert "open diamonds" in page


def test_a_black_box_has_no_roofline_and_says_why() -> None:
    engine = EngineConfig(constants_law(2e-5, 5e-3, 5e-5))
    measured = [replace(cell, deployment=None) for cell in cells(World(engine, DESIGN))]
    fit = fit_of(measured, engine)
    shown = fit_view(fit_json(fit, find_causes(fit), find_remedies(fit)))
    assert "fit-roofline" not in figures.fit(shown["series"])
    assert shown["title"].startswith("Black-box")
    assert "No cell was held out" in shown["sure"]
    assert {row["bound"] for row in shown["limits"] if row["phase"] == "decode"} >= {"not told"}


def test_a_fit_without_cells_that_have_a_metric_is_still_a_page() -> None:
    fit = made()
    bare = tuple(
        replace(one, cell=replace(one.cell, ttft_s=math.nan), ttft_fit_s=math.nan, ttft_low_s=math.nan,
                ttft_high_s=math.nan)
        for one in fit.cells
    )  # fmt: skip
    fit = replace(fit, cells=bare, held_out=None, baselines={}, draws={})
    page = fit_page(fit, find_causes(fit), find_remedies(fit), ())
    assert "fit-ttft-prompt" not in page
    assert "fit-itl-load" in page


def test_markup_in_labels_is_text() -> None:
    fit = made(refused=MARKUP)
    one = replace(fit.cells[0], cell=replace(fit.cells[0].cell, label=MARKUP))
    fit = replace(fit, cells=(one, *fit.cells[1:]), engine={MARKUP: ENGINE, "": ENGINE})
    page = fit_page(fit, find_causes(fit), (), ())
    assert "<script>alert(1)" not in page
    assert "<img src=x" not in page
