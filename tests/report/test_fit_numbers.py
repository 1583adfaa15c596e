"""No number stands in a sentence of a fit that is not a value of its JSON, and every formula gives its value.

Read are the sentences that claim something of the measured endpoint: limits, findings, remedies, alternatives, why a
fit was refused, how far off it is. What proposes an experiment or a flag (`decide`, `advice`, `settle`) claims nothing.
Each number is looked up beside its own sentence, never in the whole document, where some value would always match.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from loadgen.report.fitjson import fit_json
from loadgen.roofline import catalog
from loadgen.roofline.account import account
from loadgen.roofline.caps import RUNNING
from loadgen.roofline.cells import Cell
from loadgen.roofline.figures import ASSUMED, ERROR, FITTED
from loadgen.roofline.fit import fit
from loadgen.roofline.fitted import Fit
from tests.roofline.disturbances import DISTURBANCES
from tests.roofline.fits import H100, World, cells, draws, fit_of

Json = dict[str, Any]
# A number by itself: `fp8`, `H100-SXM`, `p99`, `Llama-3.1-8B` are names.
NUMBER = re.compile(r"(?<![\w.\-−+])[−+]?(\d[\d,]*(?:\.\d+)?)(?: (%|[PTGMk]?(?:FLOP|B)|ms|µs|s)(?![\w]))?(?![\w\-])")
PREFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
SCALE = {"%": 0.01, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "": 1.0}
SCALE |= {f"{prefix}{unit}": factor for unit in ("FLOP", "B") for prefix, factor in PREFIXES.items()}
MATHS = {name: getattr(math, name) for name in ("exp", "log")} | {"min": min, "max": max, "abs": abs}
SMALL = ((128, 16, 1), (1024, 16, 1), (8192, 16, 1), (128, 128, 1), (8192, 128, 1), (128, 128, 16), (2048, 128, 16))


def numbers(text: str, names: Iterable[str]) -> Iterator[tuple[float, float]]:
    """(value in SI, half of its last digit) of each number in a sentence."""
    for name in sorted(filter(None, names), key=len, reverse=True):
        text = text.replace(name, "NAME")
    for digits, unit in NUMBER.findall(text):
        plain = digits.replace(",", "")
        places = len(plain.partition(".")[2])
        shown = len(plain.replace(".", "").lstrip("0").rstrip("0")) if not places else 0
        step = 10.0**-places if places else 10.0 ** (len(plain) - max(shown, 1))
        yield float(plain) * SCALE[unit], 0.51 * step * SCALE[unit]


def values(of: Any) -> Iterator[float]:
    """Every number in a part of the document, and its distance from nothing: what is signed is told without a sign."""
    if isinstance(of, Mapping):
        for one in of.values():
            yield from values(one)
    elif isinstance(of, list):
        for one in of:
            yield from values(one)
    elif isinstance(of, int | float) and not isinstance(of, bool):
        yield abs(float(of))


def sentences(found: Json) -> Iterator[tuple[str, list[Any]]]:
    """(sentence, where its numbers must be)."""

    def named(places: Iterable[int]) -> list[Json]:
        return [{key: found["cells"][k][key] for key in ("isl", "osl", "load")} for k in places]

    for of in found["limits"]:
        yield of["sentence"], [{key: value for key, value in of.items() if key not in ("cell", "sentence")}]
    for of in found["findings"]:
        yield of["message"], [of["figures"], named(of["cells"])]
    for of in found["remedies"]:
        yield of["text"], [of["change"]]
        yield of["costs"], [of["figures"]]
    for of in found["alternatives"]:
        yield of["explanation"], [of["figures"]]
    yield found["refused"], [of["figures"] for of in found["findings"]]


def untraced(found: Json) -> list[str]:
    """The numbers that cannot be found beside their sentence."""
    known = [f"{of['gpus']} x {of['gpu']}" for of in found["deployments"]] + [of["label"] for of in found["cells"]]
    known += [one.name for one in (*catalog.gpus(), *catalog.shapes())]
    lost = []
    for text, where in sentences(found):
        there = [one for part in where for one in values(part)]
        for value, half in numbers(text, known):
            if not any(abs(one - value) <= half + 1e-9 * value for one in there):
                lost.append(f"{value:g} of {text!r}")
    return lost


def told(one: Fit) -> Json:
    of = account(one)
    return fit_json(of.fit, of.causes, of.remedies, of.findings)


@cache
def disturbed(name: str) -> Json:
    of = next(of for of in DISTURBANCES if of.name == name)
    return told(fit_of(cells(of.world, 1), of.fitted, draws={"": draws(of.fitted, 2)}))


@cache
def really_fitted(gpu: str, shape: str) -> Json:
    """By the estimator, for what only it can say: alternatives, refusals, where it loses to a plain curve."""
    where = replace(H100, gpu=catalog.gpu(gpu), shape=catalog.shape(shape))
    measured: list[Cell] = [replace(one, deployment=where) for one in cells(World(design=SMALL), noise=0.005)]
    return told(fit(measured, rng=np.random.default_rng(0)))


@pytest.mark.parametrize("name", [of.name for of in DISTURBANCES])
def test_every_number_of_limits_remedies_and_findings_is_a_value_beside_it(name: str) -> None:
    found = disturbed(name)
    assert found["findings"]
    assert untraced(found) == []


SAID = (("h100-sxm", "llama-3.2-3b"), ("a100-sxm-80", "llama-3.1-8b"))  # of cells of Llama-3.1-8B on an H100


@pytest.mark.parametrize(("gpu", "shape"), SAID)
def test_every_number_of_alternatives_and_refusals_is_a_value_beside_it(gpu: str, shape: str) -> None:
    found = really_fitted(gpu, shape)
    assert found["alternatives"] or found["refused"]
    assert untraced(found) == []
    for of in found["alternatives"]:
        for name, figure in of["figures"].items():
            if figure["formula"] == FITTED and not name.endswith("_here") and name in of["parameters"]:
                assert figure["value"] == of["parameters"][name]


def figures(found: Json) -> Iterator[Json]:
    for of in (*found["findings"], *found["alternatives"], *found["remedies"]):
        yield from of["figures"].values()


def test_every_formula_gives_its_value_from_its_inputs() -> None:
    computed = 0
    for one in (*(disturbed(of.name) for of in DISTURBANCES), *(really_fitted(*one) for one in SAID)):
        for figure in figures(one):
            if figure["formula"] in (ASSUMED, FITTED, ERROR) or figure["formula"].startswith(RUNNING):
                continue
            value = eval(figure["formula"], {"__builtins__": {}}, MATHS | figure["inputs"])
            assert value == pytest.approx(figure["value"], rel=1e-9), figure
            computed += 1
    assert computed > 50


def test_a_number_that_is_typed_into_a_sentence_is_found_out() -> None:
    found = deepcopy(disturbed("errors"))
    found["findings"][0]["message"] += " at 7 ms"
    found["limits"][0]["sentence"] += " That is 123 MB."
    assert [one.partition(" ")[0] for one in untraced(found)] == ["1.23e+08", "0.007"]
