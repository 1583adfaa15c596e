"""What a fit's charts are drawn from: points and lines by kind of request and load.

Knows: which cells of a fit make a line. Must not know: plotly, colours, texts of tables.
Why: a chart with a line for each of sixty cells says nothing; cells are grouped here, and where there are too many
groups, those with the most points are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

Json = Mapping[str, Any]
LINES = 6  # of one chart


def series(fit: Json) -> dict[str, Any]:
    """All of it; charts without data are empty lists."""
    cells, roofs = fit["cells"], _roofs(fit["limits"])
    many = len(fit["engine"]) > 1

    def name(of: Json, text: str) -> str:
        return f"{of['label']}, {text}" if many and of["label"] else text

    return {
        "ttft_prompt": _lines(
            cells, roofs, "ttft", lambda of: of["isl"], lambda of: (of["label"], of["load_kind"], of["load"]),
            lambda of: name(of, _load(of)),
        ),
        "itl_concurrency": _lines(
            cells, roofs, "itl", lambda of: of["load"], lambda of: (of["label"], of["load_kind"], of["isl"], of["osl"]),
            lambda of: name(of, f"{of['isl']:,.0f} → {of['osl']:,.0f}"),
        ),
        "itl_context": _lines(
            cells, roofs, "itl", lambda of: of["isl"] + of["osl"] / 2,
            lambda of: (of["label"], of["load_kind"], of["load"]), lambda of: name(of, _load(of)),
        ),
        "roofline": _roofline(fit, name),
    }  # fmt: skip


def _load(of: Json) -> str:
    word = {"concurrency": "user" if of["load"] == 1 else "users", "batch": "in a batch", "rate": "requests/s"}
    return f"{of['load']:,.4g} {word[of['load_kind']]}"


def _roofs(limits: Iterable[Json]) -> dict[tuple[int, str], float | None]:
    """(cell, metric) -> what the hardware would allow."""
    metric = {"prefill": "ttft", "decode": "itl"}
    return {(of["cell"], metric[of["phase"]]): of["roof_s"] for of in limits}


def _lines(
    cells: Sequence[Json],
    roofs: Mapping[tuple[int, str], float | None],
    metric: str,
    x: Callable[[Json], float],
    key: Callable[[Json], object],
    name: Callable[[Json], str],
) -> list[dict[str, Any]]:
    """Lines of at least two places on the x axis, the fullest of them, in the order of the cells."""
    groups: dict[object, list[tuple[int, Json]]] = {}
    for i, of in enumerate(cells):
        if of[f"{metric}_s"] is not None or of[f"{metric}_fit_s"] is not None:
            groups.setdefault(key(of), []).append((i, of))
    wide = [group for group in groups.values() if len({x(of) for _, of in group}) > 1]
    kept = sorted(wide, key=lambda group: -len({x(of) for _, of in group}))[:LINES]
    order = [group for group in groups.values() if group in kept]
    return [_line(sorted(group, key=lambda one: x(one[1])), roofs, metric, x, name) for group in order]


def _line(
    group: Sequence[tuple[int, Json]],
    roofs: Mapping[tuple[int, str], float | None],
    metric: str,
    x: Callable[[Json], float],
    name: Callable[[Json], str],
) -> dict[str, Any]:
    at: dict[float, list[tuple[int, Json]]] = {}
    for i, of in group:
        at.setdefault(x(of), []).append((i, of))

    def mean(field: str) -> list[float | None]:
        return [_mean([of[field] for _, of in some]) for some in at.values()]

    return {
        "name": name(group[0][1]),
        "x": list(at),
        "fit": mean(f"{metric}_fit_s"),
        "low": mean(f"{metric}_low_s"),
        "high": mean(f"{metric}_high_s"),
        "roof": [_mean([roofs.get((i, metric)) for i, _ in some]) for some in at.values()],
        "points": [
            {
                "x": x(of),
                "y": of[f"{metric}_s"],
                "fit": of[f"{metric}_fit_s"],
                "held_out": of["held_out"],
                "outlier": of["outlier"],
                "text": f"{of['isl']:,.0f} → {of['osl']:,.0f} tokens, {_load(of)}",
            }
            for _, of in group
            if of[f"{metric}_s"] is not None
        ],
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Of cells at one place; None where any is missing."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _roofline(fit: Json, name: Callable[[Json, str], str]) -> dict[str, Any] | None:
    """Roofs of each deployment and every phase's point; None where GPU or model are not known."""
    roofs = []
    for where in fit["deployments"]:
        law = fit["engine"][where["label"]]["law"]
        if None in (where["gpu"], where["peak_flop_per_s"], law["compute_rate"], law["weight_rate"]):
            continue
        text = f"{where['gpus']} × {where['gpu']}, {where['dtypes']['compute']}"
        roofs.append(
            {
                "name": name(where, text) if not where["label"] else where["label"],
                "peak": where["peak_flop_per_s"],
                "bandwidth": where["peak_bytes_per_s"],
                "fitted_peak": law["compute_rate"],
                "fitted_bandwidth": law["weight_rate"],
            }
        )
    points = [_point(of, fit["cells"][of["cell"]], name) for of in fit["limits"] if _placed(of)]
    return {"roofs": roofs[:LINES], "points": points} if roofs and points else None


def _placed(of: Json) -> bool:
    return bool(of["roof_s"] and of["measured_s"] and of["work"]["bytes"] and of["work"]["flops"])


def _point(of: Json, cell: Json, name: Callable[[Json, str], str]) -> dict[str, Any]:
    work = of["work"]
    return {
        "group": name(of, of["phase"]),
        "phase": of["phase"],
        "intensity": work["flops"] / work["bytes"],
        "achieved": work["flops"] / of["measured_s"],
        "tokens": work["tokens"],
        "bytes": work["bytes"],
        "flops": work["flops"],
        "share": of["roof_s"] / of["measured_s"],
        "bound": of["bound"] or "not told",
        "held_out": cell["held_out"],
        "outlier": cell["outlier"],
        "text": f"{of['isl']:,.0f} → {of['osl']:,.0f} tokens, {_load(of)}",
    }
