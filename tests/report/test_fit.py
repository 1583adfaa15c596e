"""A fit's JSON, view, charts and page: nothing is lost on the way, and every number can be computed again."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.report import figures
from loadgen.report.fitpage import fit_json, fit_markdown, fit_page, render_fits
from loadgen.report.fitview import fit_view
from loadgen.report.render import load, render
from loadgen.roofline.causes import find_causes
from loadgen.roofline.passes import constants_law
from loadgen.roofline.remedies import find_remedies
from loadgen.roofline.serving import EngineConfig
from loadgen.store.fitfile import FIT_FILE, write_fit
from tests import synthetic
from tests.report.fitted import DESIGN, explained, labelled, made, plain
from tests.report.made import MARKUP
from tests.roofline.fits import World, cells, fit_of


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
    page = render_fits([labelled(MARKUP)], "html")
    assert "<script>alert(1)" not in page
    assert "<img src=x" not in page


@pytest.fixture
def fitted_run(tmp_path: Path) -> Path:
    run = synthetic.write_run(tmp_path / "run", *synthetic.case("mixed"))
    write_fit(run, plain())
    return run


def test_the_report_of_a_run_that_was_fitted_shows_the_fit_in_every_format(fitted_run: Path) -> None:
    summary = load(fitted_run)
    assert json.loads(render(summary, "json"))["fit"]["limits"] == plain()["limits"]
    page = render(summary, "html")
    for text in ('id="fit-limits"', 'data-chart="fit-roofline"', 'href="#fit"', "57.0 – 63.0"):
        assert text in page
    assert "TTFT 3.1 %" in render(summary, "md")


def test_a_run_without_a_fit_or_with_a_broken_one_has_its_report(fitted_run: Path) -> None:
    for content in ("", "{", "[]", '{"version": 99}'):
        (fitted_run / FIT_FILE).write_text(content)
        summary = load(fitted_run)
        assert json.loads(render(summary, "json"))["fit"] is None
    (fitted_run / FIT_FILE).unlink()
    assert 'id="fit' not in render(load(fitted_run), "html")


def test_a_report_to_be_shared_does_not_say_where_the_cells_lie(fitted_run: Path) -> None:
    found = plain() | {"cells": [cell | {"where": "/home/me/secret stage 1"} for cell in plain()["cells"]]}
    write_fit(fitted_run, found)
    text = render(load(fitted_run, redact=True), "json")
    assert "secret" not in text
    assert json.loads(text)["fit"]["limits"] == plain()["limits"]
    assert "secret" in render(load(fitted_run), "json")
