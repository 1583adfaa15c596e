"""A fit in a terminal, and what it says of another GPU wherever it is shown."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest

from loadgen.report import figures
from loadgen.report.fitjson import fit_json
from loadgen.report.fitpage import render_fits
from loadgen.report.fittext import overview, to_text
from loadgen.report.fitview import fit_view
from loadgen.roofline import catalog
from loadgen.roofline.account import Account, account
from loadgen.roofline.cells import Cell
from loadgen.roofline.figures import ERROR, Figure
from loadgen.roofline.fitted import Alternative, Errors, Fit, Parameter
from loadgen.roofline.overlay import predict_on, prediction_json
from loadgen.roofline.passes import constants_law
from loadgen.roofline.serving import EngineConfig
from tests.roofline.fits import ENGINE, MBU_OPEN, World, cells, draws, fit_of

DESIGN = ((128, 16, 1), (2048, 16, 1), (128, 256, 1), (128, 256, 8), (128, 256, 32), (2048, 256, 16))
H200 = catalog.gpu("h200-sxm")


@cache
def measured() -> list[Cell]:
    """Made when a test asks: collecting tests must not run an engine."""
    return cells(World(design=DESIGN))


def made(**more: object) -> Fit:
    fit = fit_of(measured(), draws={"": draws(ENGINE, 12)})
    mfu = Parameter("mfu", "share of peak FLOP/s", 0.6, 0.57, 0.63, True)
    step = Parameter("step_s", "s per step", 1.5e-3, 1.4e-3, 1.7e-3, True)
    better = {"interpolation": Errors(0.02, 0.03, 0.1, 0.1, 3), "regression": Errors(0.5, 0.4, 0.9, 0.9, 3)}
    other = Alternative("window", "half of the layers have a window", "contexts of 64k", 1.02)
    fields = {"parameters": (mfu, step, MBU_OPEN), "held_out": Errors(0.04, 0.01, 0.2, 0.1, 3), "baselines": better}
    return replace(fit, **fields, alternatives=(other,), **more)  # type: ignore[arg-type]


def predicted() -> Account:
    fit = made()
    assert fit.deployment is not None
    where = replace(fit.deployment, gpu=H200)
    there = [replace(c, deployment=where, ttft_s=c.ttft_s * 0.9, itl_s=c.itl_s * (0.3 if i == 3 else 0.75))
             for i, c in enumerate(measured())]  # fmt: skip
    return account(fit, [predict_on(fit, where, there)], ["t.csv: a note"])


def test_the_text_says_first_how_far_off_and_where_the_model_loses() -> None:
    text = to_text([account(made(), notes=["t.csv: a note"])])
    assert text.index("How far off") < text.index("Parameters") < text.index("What limits it") < text.index("Cells")
    assert "loses to plain interpolation on TTFT: 4.0 % against 2.0 %" in text
    assert "on ITL" not in text.partition("Parameters")[0]
    assert "57.0 % to 63.0 %" in text
    assert "1.50 ms" in text
    assert "per step" in text
    assert " s per step" not in text
    assert "a second tensor-parallel degree" in text
    assert "To decide: contexts of 64k" in text
    assert "t.csv: a note" in text
    assert len({line for line in text.splitlines() if "128 → 256" in line and "user" in line}) >= 3


def test_a_value_has_its_unit_once_and_an_open_interval_says_so() -> None:
    rate = Parameter("kv_bandwidth", "bytes/s", 2.2e12, 2.1e12, 2.3e12, True)
    step = Parameter("step_s", "s per step", 2e-3, 1e-6, 4e-3, False, "another TP")
    cap = Parameter("batch_cap", "sequences", math.nan, 64.0, math.inf, False, "more users")
    text = to_text([account(replace(made(), parameters=(rate, step, cap)))])
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert "2.20 TB/s  2.10 TB/s to 2.30 TB/s" in lines["kv_bandwidth"]
    assert "bytes/s" not in lines["kv_bandwidth"]
    assert "at most 4.00 ms" in lines["overhead_s"]
    assert "64 or more" in lines["batch_cap"]
    assert "n/a" not in lines["batch_cap"]


def test_an_alternative_stands_beside_the_fit_by_its_error() -> None:
    figures = {f"{metric}_error{of}": Figure(value, "share", ERROR) for metric in ("ttft", "itl")
               for of, value in (("", 0.031), ("_here", 0.028))}  # fmt: skip
    other = Alternative("window", "half of the layers have a window", "contexts of 64k", 1.02, figures)
    text = to_text([account(replace(made(), alternatives=(other,)))])
    assert "this fit: 2.8 % / 2.8 %" in text
    assert "half of the layers have a window (3.1 % / 3.1 %). To decide: contexts of 64k" in text


def test_without_cells_held_out_nothing_is_claimed() -> None:
    text = to_text([account(replace(made(), held_out=None, baselines={}))])
    assert "No cell was held out" in text


def test_black_box_constants_are_given_as_predict_takes_them() -> None:
    engine = EngineConfig(constants_law(2e-5, 5e-3, 5e-5))
    unknown = [replace(cell, deployment=None) for cell in measured()]
    fit = replace(fit_of(unknown, engine), deployment=None)
    text = to_text([account(fit)])
    assert "loadgen predict --constants prefill=0.02ms,step=5ms,user=0.05ms" in text
    assert "not named" in text


def test_several_fits_end_in_a_line_for_each() -> None:
    both = [account(made()), account(replace(made(), held_out=None))]
    text = to_text(both)
    assert text.rindex("Overview") > text.rindex("Cells")
    assert [row[1] for row in overview(both).rows] == ["4.0 %", "n/a"]


@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_a_prediction_is_told_beside_the_guesses_and_where_it_fails(form: str) -> None:
    one = predicted()
    plain = fit_json(one.fit, one.causes, one.remedies, one.findings, [prediction_json(p) for p in one.predictions])
    shown = to_text([one]) if form == "text" else render_fits([plain], form)
    for part in ("Predicted on 1 × H200-SXM", "nothing changes", "it scales with the bandwidth", "It fails here, ITL"):
        assert part in shown


def test_the_points_that_the_fit_never_saw_are_drawn() -> None:
    one = predicted()
    plain = fit_json(one.fit, one.causes, one.remedies, one.findings, [prediction_json(p) for p in one.predictions])
    view = fit_view(plain)
    charts = figures.fit(view["series"])
    assert view["predictions"][0]["charts"] == ["fit-predicted-0-ttft", "fit-predicted-0-itl"]
    chart = charts["fit-predicted-0-itl"]
    assert len(chart.data[1]["x"]) == len(measured())
    assert chart.data[2]["name"] == "guess: as on H100-SXM"


def test_a_prediction_that_cannot_be_says_why() -> None:
    fit = made()
    assert fit.deployment is not None
    small = predict_on(fit, replace(fit.deployment, gpu=catalog.gpu("t4")))
    assert "Nothing can be predicted" in to_text([account(fit, [small])])


def test_a_phase_that_gains_less_is_not_left_out_of_what_would_help() -> None:
    """Many large gains of one metric: the other's best stand beside them, and how many more there are is said."""
    one = account(made())
    some = one.remedies[0]
    many = [replace(some, metric="ttft", gain=0.9 - n / 100) for n in range(20)]
    few = [replace(some, metric="itl", gain=0.1 - n / 100) for n in range(3)]
    told = to_text([replace(one, remedies=(*many, *few))])
    part = told.partition("What would help")[2].partition("\n\n")[0]
    assert part.count("TTFT") == 9
    assert part.count("ITL") == 3
    assert "11 more" in part
