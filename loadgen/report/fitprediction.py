"""What a fit says of another GPU, as text, table and points to draw, from its JSON alone.

Knows: how a prediction is told beside what was measured there and beside the two guesses. Must not know: how it was
made (`roofline.overlay`), HTML, plotly.
Why: terminal, comment and page show one view, the places where it fails included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.analysis.numbers import NONE, interval, quantity, scale_for, significant, whole

Json = Mapping[str, Any]

METRICS = {"ttft": "TTFT", "itl": "ITL", "output_tokens_per_s": "Whole server, output tokens/s"}
GUESSES = {"model": "this fit", "no_change": "nothing changes", "bandwidth": "it scales with the bandwidth"}
FAR = 0.25  # of the measured value: a cell that is further off is named
_LOADS = {"concurrency": "users", "batch": "in a batch", "rate": "requests/s"}


def predictions(several: Sequence[Json]) -> list[dict[str, Any]]:
    """Each prediction with its title, sentences, table and points; charts are told apart by `chart`."""
    return [_view(one, number) for number, one in enumerate(several)]


def _view(one: Json, number: int) -> dict[str, Any]:
    where = deployment(one)
    title = f"Predicted on {where}"
    if one["refused"]:
        return {
            "title": title,
            "lines": [f"Nothing can be predicted: {one['refused']}"],
            "head": [],
            "rows": [],
            "charts": [],
        }
    measured = [metric for metric in METRICS if one["n"].get(metric)]
    shown = measured or ["ttft", "itl"]
    lines = [f"Utilisations and overheads of {_short(one['from'])}, the facts of {one['gpu']}."]
    lines += [f"{one['gpu']}: {one['note']}."] if one.get("note") else []
    lines += [_error(one, metric) for metric in measured]
    lines += [text for metric in measured if (text := _failures(one, metric))]
    head = ["tokens, load"]
    for metric in shown:
        head += [METRICS[metric], "90 %", *(["measured", "off by"] if metric in measured else [])]
    return {
        "title": title,
        "lines": lines,
        "head": head,
        "rows": [[_name(cell), *(t for m in shown for t in _texts(cell, m, m in measured))] for cell in one["cells"]],
        "charts": [f"fit-predicted-{number}-{metric}" for metric in measured],
    }


def series(several: Sequence[Json]) -> dict[str, dict[str, Any]]:
    """What the charts are drawn from, by their names: predicted against measured, and what the guesses say."""
    return {
        f"fit-predicted-{number}-{metric}": _points(one, metric)
        for number, one in enumerate(several)
        for metric in METRICS
        if one["n"].get(metric)
    }


def deployment(one: Json) -> str:
    """Where a prediction is for: `2 × H200-SXM, Llama-3.1-70B, fp8`."""
    types = one["dtypes"]
    kinds = types["weights"] if types["weights"] == types["compute"] else f"{types['weights']}/{types['compute']}"
    kv = "" if types["kv"] == "bf16" else f", KV {types['kv']}"
    return f"{_short(one)}, {kinds}{kv}"


def _short(of: Json) -> str:
    return f"{of['gpus']} × {of['gpu']}, {of['shape']}"


def _name(cell: Json) -> str:
    load = significant(cell["load"], 4).rstrip("0").rstrip(".") if cell["load"] % 1 else whole(cell["load"])
    words = "user" if (cell["load"], cell["load_kind"]) == (1, "concurrency") else _LOADS[cell["load_kind"]]
    return f"{whole(cell['isl'])} → {whole(cell['osl'])} at {load} {words}"


def _field(metric: str, what: str = "") -> str:
    unit = "" if metric == "output_tokens_per_s" else "_s"
    return f"{metric}{f'_{what}' if what else ''}{unit}"


def _unit(metric: str) -> str:
    return "tokens/s" if metric == "output_tokens_per_s" else "s"


def _texts(cell: Json, metric: str, with_measured: bool) -> list[str]:
    value, low, high, measured = (cell[_field(metric, what)] for what in ("", "low", "high", "measured"))
    factor, unit = scale_for(_unit(metric), [value])
    bounds = interval(low, high, factor, 3)
    texts = [quantity(value, _unit(metric)), f"{bounds} {unit}" if bounds else NONE]
    return [*texts, quantity(measured, _unit(metric)), _off(cell, metric)] if with_measured else texts


def _off(cell: Json, metric: str) -> str:
    off = _share(cell, metric)
    return NONE if off is None else f"{'−' if off < 0 else '+'}{_percent(abs(off))}"


def _share(cell: Json, metric: str) -> float | None:
    value, measured = cell[_field(metric)], cell[_field(metric, "measured")]
    return None if not measured or value is None else float(value / measured - 1.0)


def _percent(share: float) -> str:
    return f"{significant(share * 100, 2)} %"


def _error(one: Json, metric: str) -> str:
    """The median error, and where the same was measured on the fitted GPU the ratio's beside the two guesses."""
    text = f"{METRICS[metric]}: median error {_percent(one['error']['absolute'][metric])} over {one['n'][metric]} cells"
    told = {guess: one["error"][guess].get(metric) for guess in GUESSES}
    if any(value is None for value in told.values()):
        return f"{text}."
    words = ", ".join(f"{GUESSES[guess]} {_percent(value)}" for guess, value in told.items())
    return f"{text}; of the ratio to {one['from']['gpu']}: {words}."


def _failures(one: Json, metric: str) -> str:
    """The cells that are far off, the worst first."""
    far = [(abs(off), cell) for cell in one["cells"] if (off := _share(cell, metric)) is not None and abs(off) > FAR]
    far.sort(key=lambda pair: -pair[0])
    named = ", ".join(f"{_name(cell)} ({_off(cell, metric)})" for _, cell in far[:4])
    more = f" and {len(far) - 4} more" if len(far) > 4 else ""
    return f"It fails here, {METRICS[metric]}: {named}{more}." if far else ""


def _points(one: Json, metric: str) -> dict[str, Any]:
    known = [cell for cell in one["cells"] if cell[_field(metric, "measured")] and cell[_field(metric)]]
    return {
        "metric": METRICS[metric],
        "unit": _unit(metric),
        "where": deployment(one),
        "from": one["from"]["gpu"],
        "points": [
            {
                "text": _name(cell),
                "measured": cell[_field(metric, "measured")],
                "predicted": cell[_field(metric)],
                "low": cell[_field(metric, "low")],
                "high": cell[_field(metric, "high")],
                "here": cell[_field(metric, "here_measured")],
                "off": _off(cell, metric),
            }
            for cell in known
        ],
    }
