"""A fit made by hand, with all that a page shows of one; as values and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

from loadgen.report.fitjson import fit_json
from loadgen.roofline.causes import find_causes
from loadgen.roofline.figures import ERROR, Figure
from loadgen.roofline.fitted import Alternative, Errors, Fit, Parameter
from loadgen.roofline.misfit import find_misfits
from loadgen.roofline.remedies import find_remedies
from tests.roofline.fits import BUSY, ENGINE, MBU_OPEN, World, cells, draws, fit_of

DESIGN = (*BUSY[:4], *BUSY[8:12], *BUSY[-4:])


def made(**more: object) -> Fit:
    fit = fit_of(cells(World(design=DESIGN)))
    beside = [replace(one, ttft_low_s=0.9 * one.ttft_fit_s, ttft_high_s=1.1 * one.ttft_fit_s,
                      itl_low_s=0.95 * one.itl_fit_s, itl_high_s=1.05 * one.itl_fit_s, held_out=k % 4 == 1)
              for k, one in enumerate(fit.cells)]  # fmt: skip
    mfu = Parameter("mfu", "share of peak FLOP/s", 0.6, 0.57, 0.63, True)
    held = Errors(0.031, 0.016, 0.07, 0.03, 3)
    curve = Errors(0.12, 0.012, 0.3, 0.05, 3)
    off = {f"{name}_error{of}": Figure(0.02, "share", ERROR) for name in ("ttft", "itl") for of in ("", "_here")}
    other = Alternative("overlap", "overhead that hides behind the GPU", "a model of another size", 1.04, off)
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


def labelled(name: str) -> dict[str, Any]:
    """The JSON of a fit whose label, findings and words from outside are `name`."""
    fit = made(refused=name, alternatives=(Alternative(name, name, name, 1.0),))
    beside = tuple(replace(one, cell=replace(one.cell, label=name, where=name)) for one in fit.cells)
    fit = replace(fit, cells=beside, engine={name: ENGINE, "": ENGINE}, draws={})
    causes = find_causes(fit)
    return fit_json(fit, causes, find_remedies(fit), find_misfits(fit, causes))
