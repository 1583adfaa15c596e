"""A fit as the pages show it: every text ready to print, every series ready to draw, from the fit's JSON alone.

Knows: which figure of a fit stands in which table, and how it is written. Must not know: HTML, plotly, how to fit.
Why: the page of a table and the section in a run's report are one view, and neither can show what the JSON lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from loadgen.analysis.numbers import NONE, interval, percent, quantity, scale_for, significant, times, whole
from loadgen.report.fitprediction import predictions
from loadgen.report.fitprediction import series as predicted
from loadgen.report.fitseries import series

Json = Mapping[str, Any]

_LOADS = {"concurrency": "users", "batch": "in a batch", "rate": "requests/s"}
_BOUNDS = {"queue": "waiting", "": "not told"}
_METRICS = {"ttft": "TTFT", "itl": "ITL", "max_gap": "longest stall", "output_tokens_per_s": "output_tokens_per_s"}
_SOURCES = (
    ("held_out", "this model, cells that it never saw"),
    ("baseline_engine_alone", "the engine without what its neighbours had over, the same cells"),
    ("baseline_interpolation", "log-log interpolation, the same cells"),
    ("baseline_regression", "plain regression, the same cells"),
    ("in_sample", "this model, cells that it was fitted to"),
)
TRACED = 6  # phases whose parts are shown at once; the others are behind a click


def fit_view(fit: Json, at: str = "") -> dict[str, Any]:
    """Everything that a page shows of a fit. `at`: what tells it apart on a page that shows several."""
    several = len(fit["engine"]) > 1
    return {
        "at": at,
        "title": _title(fit),
        "headline": _headline(fit),
        "refused": fit["refused"],
        "findings": fit["findings"],
        "traced": list(_traced(fit)),
        "sure": _sure(fit["error"]),
        "errors": _errors(fit["error"]),
        "parameters": [_parameter(name, of) for name, of in fit["parameters"].items()],
        "limits": [_limit(of, several) for of in fit["limits"]],
        "remedies": _remedies(fit["remedies"], several),
        "alternatives": [_alternative(of) for of in fit["alternatives"]],
        "cells": [_cell(of, several) for of in fit["cells"]],
        "engines": [_engine(label, of) for label, of in fit["engine"].items()],
        "formulas": fit["limits"][0]["formulas"] if fit["limits"] else {},
        "several": several,
        "source": fit.get("source") or "",
        "predictions": predictions(fit["prediction"]),
        "series": series(fit) | {"predicted": predicted(fit["prediction"])},
    }


def overview(fits: Sequence[Json], shown: Sequence[Json]) -> dict[str, Any]:
    """A line for each fit of a page: its error on cells held out, interpolation's, and what bounds it."""
    rows = []
    for fit, view in zip(fits, shown, strict=True):
        both = [fit["error"].get(key) for key in ("held_out", "baseline_interpolation")]
        errors = [_error(None if of is None else of[metric]) for metric in ("ttft", "itl") for of in both]
        cells = [fit.get("label") or view["title"], *errors, whole(len(fit["cells"])), view["headline"]]
        rows.append({"at": view["at"], "cells": cells})
    head = ["Fit", "TTFT, held out", "interpolation", "ITL, held out", "interpolation", "cells", "what bounds it"]
    return {"head": head, "rows": rows}


# --- the head ---------------------------------------------------------------------------------------------------------


def _title(fit: Json) -> str:
    if fit["gpu"] is None:
        return "Black-box constants: GPU or model not known"
    named = f"{fit['gpus']} × {fit['gpu']}, {fit['shape']}, {fit['dtype']}"
    more = len(fit["engine"]) - 1
    return f"{named} and {more} more" if more else named


def _headline(fit: Json) -> str:
    """For each phase what most often bounds it, and how far it is from the roof."""
    told = []
    for phase in ("decode", "prefill"):
        limits = [of for of in fit["limits"] if of["phase"] == phase]
        named = Counter(of["bound"] for of in limits if of["bound"])
        if not named:
            continue
        bound, n = named.most_common(1)[0]
        text = f"{phase} is bound by {_bound(bound)} in {n} of {len(limits)} cells"
        far = [of["distance_to_roof"] for of in limits if of["bound"] == bound and of["distance_to_roof"] is not None]
        told.append(f"{text} (median: {times(median(far))} the roof's time)" if far else text)
    text = "; ".join(told)
    return f"{text[:1].upper()}{text[1:]}." if text else "Nothing was fitted."


def _sure(errors: Json) -> str:
    """How far off the fit is on cells that it never saw, and whether a plain curve does better."""
    held = errors.get("held_out")
    if held is None or not held["n"]:
        return "No cell was held out, so nothing says how well this fit predicts."
    text = f"Median error on {whole(held['n'])} cells that the fit never saw: TTFT {_error(held['ttft'])}, ITL "
    text += f"{_error(held['itl'])}."
    plain = errors.get("baseline_interpolation")
    if plain is None:
        return text
    lost = [_METRICS[m] for m in ("ttft", "itl") if None not in (held[m], plain[m]) and plain[m] < held[m]]
    beside = f" Interpolation between the other cells: TTFT {_error(plain['ttft'])}, ITL {_error(plain['itl'])}."
    if not lost:
        return text + beside
    return f"{text}{beside} For {' and '.join(lost)} the model loses to it: between measured cells believe the curve."


def _errors(errors: Json) -> list[dict[str, Any]]:
    rows = []
    for key, title in _SOURCES:
        of = errors.get(key)
        if of is not None:
            cells = [_error(of[name]) for name in ("ttft", "ttft_p90", "itl", "itl_p90")]
            rows.append({"title": title, "cells": cells, "n": whole(of["n"])})
    return rows


def _error(share: float | None) -> str:
    """An error in percent, two digits: 1.6 %."""
    return NONE if share is None else f"{significant(share * 100, 2)} %"


# --- the sentences ----------------------------------------------------------------------------------------------------


def _alternative(of: Json) -> dict[str, Any]:
    """With the mean errors of the other explanation, and of this fit beside it."""
    figures = of["figures"]
    both = {
        title: " / ".join(
            _error(figures[name]["value"]) if (name := f"{metric}_error{whose}") in figures else NONE
            for metric in ("ttft", "itl")
        )
        for title, whose in (("off", ""), ("off_here", "_here"))
    }
    return dict(of) | both


def _traced(fit: Json) -> Iterator[tuple[str, str]]:
    """(the sentence's word, its number with formula and inputs) of all findings and alternatives."""
    for of in (*fit["findings"], *fit["alternatives"]):
        for name, figure in of.get("figures", {}).items():
            known = {} if figure["formula"] in figure["inputs"] else figure["inputs"]  # told as it was measured
            inputs = ", ".join(f"{key} = {_input(value)}" for key, value in known.items())
            text = f"{_input(figure['value'])} = {figure['formula']}" + (f"; {inputs}" if inputs else "")
            yield f"{of.get('code') or of['name']}: {name}", text


# --- the tables -------------------------------------------------------------------------------------------------------


def _parameter(name: str, of: Json) -> dict[str, Any]:
    factor, unit = _scale(of["unit"], [of["value"], of["low"], of["high"]])
    value = of["value"] if of["identified"] else None
    return {
        "name": name,
        "value": NONE if value is None else significant(value * factor),
        "interval": interval(of["low"], of["high"], factor, 3),
        "unit": unit,
        "identified": of["identified"],
        "settle": of["settle"],
    }


def _scale(unit: str, values: Sequence[float | None]) -> tuple[float, str]:
    """(factor, unit as written): shares as percent, seconds in what suits them, whatever they are of."""
    if unit == "1" or unit.startswith("share"):
        return 100.0, f"% {unit.removeprefix('share').strip()}".rstrip(" 1")
    if unit == "s" or unit.startswith("s "):
        factor, name = scale_for("s", values)
        return factor, f"{name} {unit[1:].strip()}".strip()
    if unit == "bytes/s":
        return 1e-9, "GB/s"
    return 1.0, unit


def load_text(of: Json) -> str:
    """`32 users`, `4.5 requests/s`."""
    return f"{significant(of['load'], 4).rstrip('0').rstrip('.') if of['load'] % 1 else whole(of['load'])} " + (
        _LOADS[of["load_kind"]] if of["load"] != 1 or of["load_kind"] != "concurrency" else "user"
    )


def cell_text(of: Json, several: bool) -> str:
    """`2,000 → 200 at 32 users`, with its deployment where there are several."""
    text = f"{whole(of['isl'])} → {whole(of['osl'])} at {load_text(of)}"
    return f"{text}, {of['label']}" if several and of["label"] else text


def _limit(of: Json, several: bool) -> dict[str, Any]:
    bounds = [_bound(name) for name in (of["bound"], *of["rivals"])]
    total = sum(part["seconds"] for part in of["parts"]) or 1.0
    return {
        "cell": cell_text(of, several),
        "phase": of["phase"],
        "bound": " or ".join(bounds),
        "unsure": bool(of["rivals"]),
        "measured": quantity(of["measured_s"], "s"),
        "fit": quantity(of["fit_s"], "s"),
        "roof": quantity(of["roof_s"], "s"),
        "fitted_roof": quantity(of["fitted_roof_s"], "s"),
        "distance": _distance(of["distance_to_roof"]),
        "fitted_distance": _distance(of["distance_to_fitted_roof"]),
        "beats": of["distance_to_roof"] is not None and of["distance_to_roof"] < 0.95,
        "batch": significant(of["batch"], 3),
        "tokens": significant(of["work"]["tokens"], 4),
        "flops": quantity(of["work"]["flops"], "FLOP"),
        "bytes": quantity(of["work"]["bytes"], "B"),
        "sentence": of["sentence"],
        "parts": [
            {
                "name": part["name"],
                "bound": _bound(part["bound"]),
                "time": quantity(part["seconds"], "s", 4),
                "share": percent(part["seconds"] / total),
                "formula": part["formula"],
                "inputs": [(name, _input(value)) for name, value in part["inputs"].items()],
            }
            for part in of["parts"]
        ],
        "roof_inputs": [(name, _input(value)) for name, value in of["roof_inputs"].items()],
    }


def _bound(name: str | None) -> str:
    return _BOUNDS.get(name or "", name or "")


def _distance(value: float | None) -> str:
    return NONE if value is None else f"{significant(value, 3)} ×"


def _input(value: float | None) -> str:
    """A number as it went into a formula: five digits are enough to compute it again, an exponent keeps it short."""
    if value is None:
        return "null"
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e7 else f"{value:.5g}"


def _remedies(remedies: Sequence[Json], several: bool) -> list[dict[str, Any]]:
    """For each phase and cell what helps, the largest gain first."""
    blocks: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for of in remedies:
        rows = blocks.setdefault((of["phase"], cell_text(of, several)), [])
        rate = of["metric"] == "output_tokens_per_s"
        unit = "tokens/s" if rate else "s"
        rows.append(
            {
                "text": of["text"],
                "metric": _METRICS[of["metric"]],
                "before": quantity(of["before"], unit),
                "after": quantity(of["after"], unit),
                "gain": f"{'+' if rate else '−'}{percent(of['gain'])}",
                "interval": " – ".join(percent(of[end]) for end in ("low", "high")),
                "costs": of["costs"],
                "change": "; ".join(_change(name, step) for name, step in of["change"].items()),
            }
        )
    return [
        {"phase": phase, "cell": cell, "rows": rows, "changes": [(row["text"], row["change"]) for row in rows]}
        for (phase, cell), rows in blocks.items()
    ]


def _change(name: str, step: Json) -> str:
    ends = (f"{x}" if isinstance(x, str) else _input(x) for x in (step["from"], step["to"]))
    return f"{name} {' → '.join(ends)}"


def _cell(of: Json, several: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"cell": cell_text(of, several), "held_out": of["held_out"], "outlier": of["outlier"]}
    for name in ("ttft", "itl"):
        measured, fitted = of[f"{name}_s"], of[f"{name}_fit_s"]
        factor, unit = scale_for("s", [measured, fitted])
        bounds = interval(of[f"{name}_low_s"], of[f"{name}_high_s"], factor, 3)
        off = None if not measured or fitted is None else fitted / measured - 1.0
        row[name] = {
            "measured": quantity(measured, "s", 4),
            "fit": quantity(fitted, "s", 4),
            "interval": f"{bounds} {unit}" if bounds else "",
            "off": NONE if off is None else f"{'−' if off < 0 else '+'}{_error(abs(off))}",
        }
    return row


def _engine(label: str, of: Json) -> dict[str, Any]:
    knobs = [(name, str(value) if isinstance(value, bool) else _input(value)) for name, value in of.items()
             if name != "law"]  # fmt: skip
    return {"label": label, "knobs": knobs, "law": [(name, _input(value)) for name, value in of["law"].items()]}
