"""A comparison as one plain dict: every text ready to print, every series ready to draw.

Knows: which part of a comparison stands where, and how a change is written. Must not know: HTML, plotly, files, how a
change or a verdict is found.
Why: as for a report: one value behind the page, the comment and the terminal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadgen.analysis.compare import Compared, Pair, Verdict, Versus
from loadgen.analysis.compare_conditions import Condition
from loadgen.analysis.compare_cost import Cost, cost, gpus_of, scaled_change
from loadgen.analysis.compare_gate import Decision
from loadgen.analysis.compare_sides import Cell, Side
from loadgen.analysis.definitions import METRICS
from loadgen.analysis.numbers import NONE, quantity, significant
from loadgen.report import comparison_series, provenance, tables
from loadgen.report.placement import Placement, placement
from loadgen.report.stages import WorkloadGroup, groups, load_label

VERDICTS: tuple[Verdict, ...] = ("worse", "better", "no difference shown", "not decidable")
TONE: dict[str, str] = {"worse": "bad", "better": "good", "not decidable": "fair", "no difference shown": ""}
LIKENESS = {
    "alike": "Measured alike in everything that was recorded.",
    "unlike": "Not measured alike: read what differs before the figures.",
    "unknown": "Whether both were measured alike cannot be known: read what nobody told.",
}
_MOST_CHANGED = 24  # figures listed in a comment
KINDS = {
    "refused": "not compared",
    "unlike": "measured differently",
    "both": "on both sides",
    "unknown": "not known",
    "subject": "what is compared",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that a page about several runs shows; the baseline is the first of `sides`, as are its prices (dollars
    per GPU and hour; None: not given). `between`: see `compare_stats.contrast`."""

    versus: tuple[Versus, ...]
    decisions: tuple[Decision, ...]
    prices: tuple[float | None, ...]
    between: float

    @property
    def sides(self) -> tuple[Side, ...]:
        """All runs, the baseline first."""
        return (self.versus[0].base, *(one.other for one in self.versus))


def view(of: Comparison) -> dict[str, Any]:
    """Everything that the page shows."""
    workloads = [() if side.summary is None else groups(side.summary) for side in of.sides]
    placed = [_placement(side, some) for side, some in zip(of.sides, workloads, strict=True)]
    names = [side.name for side in of.sides]
    return {
        "title": f"{', '.join(names[1:])} against {names[0]}",
        "tagline": " ".join(sentence(one) for one in of.versus),
        "names": names,
        "runs": _runs(of, placed),
        "decisions": [_decision(one) for one in of.decisions],
        "versus": [_versus(one) for one in of.versus],
        "cells": _cells(of),
        "costs": _costs(of),
        "roofs": _roofs(of.sides, workloads, placed),
        "unmatched": _unmatched(of),
        "between": f"{of.between * 100:.3g} %",
        "definitions": [row for row in tables.definitions() if row["name"] in _shown(of)],
        "commands": [
            {"name": side.name, "text": provenance.command(side.summary.info)} for side in of.sides if side.summary
        ],
        "series": comparison_series.series(of.versus, of.sides, workloads, placed),
    }


def sentence(one: Versus) -> str:
    """The result in one sentence: how many figures changed, and the largest change to the worse."""
    rows = [(pair, row) for pair in one.pairs for row in pair.rows]
    if not rows:
        return f"{one.other.name} has no workload and load in common with {one.base.name}."
    count = Counter(row.verdict for _, row in rows)
    told = [f"{count[verdict]} {verdict}" for verdict in VERDICTS if count[verdict]]
    text = f"{one.other.name}: of {len(rows)} figures {', '.join(told)}."
    for verdict in ("worse", "better"):
        changed = [(pair, row) for pair, row in rows if row.verdict == verdict]
        if changed:
            pair, row = max(changed, key=lambda both: _size(both[1]))
            figure = f"{label(row.metric, row.stat)} of {pair.name}, {change(row.change, row.is_share)}"
            text += f" Most {_FOR[verdict]}: {figure}."
    wrong = next((row for _, row in rows if (row.metric, row.verdict) == ("guard_right", "worse")), None)
    if wrong is not None and wrong.base is not None and wrong.other is not None:
        text += f" Fewer answers are right: {wrong.other:.0%} of the checkable questions against {wrong.base:.0%}."
    return text


def advice(one: Versus) -> str:
    """What to do about figures without a verdict; "" where each has one."""
    why = [row.why for pair in one.pairs for row in pair.rows if row.verdict == "not decidable"]
    if not why:
        return ""
    if blind := next((reason for reason in why if "INVALID" in reason), None):
        return f"measure again what could not be seen ({blind}): its report says what to change"
    unlike = dict.fromkeys(
        c.what for c in one.all_conditions if c.kind == "refused" or (c.kind == "unlike" and c.withholds)
    )
    if unlike:
        return f"measure both alike in {', '.join(unlike)}"
    return "more requests in both runs: loadgen plan --detect 5% --like RUN says how many a change of 5 % needs"


_FOR = {"worse": "for the worse", "better": "for the better"}


def _size(row: Compared) -> float:
    if row.change is None:
        return 0.0
    return abs(row.change) if row.is_share else abs(math.log(max(row.change, 1e-9)))


# -- how a change is written ----------------------------------------------------------------------------------------


def change(value: float | None, is_share: bool) -> str:
    """`+5.1 %`, `−12 %`, from twice on `2.41 times`; of shares in points: `+0.5 points`."""
    if value is None:
        return NONE
    if is_share:
        return f"{_signed(value * 100)} points"
    if not math.isfinite(value):
        return "∞"
    return f"{significant(value, 3)} times" if not 0.5 < value < 2.0 else f"{_signed((value - 1.0) * 100)} %"


def _signed(x: float) -> str:
    text = f"{abs(x):.2f}" if abs(x) < 9.995 else f"{abs(x):.1f}"
    return (
        "0" if float(text) == 0.0 else f"{'+' if x > 0 else '−'}{text.rstrip('0').rstrip('.') if '.' in text else text}"
    )


def bounds(low: float | None, high: float | None, is_share: bool) -> str:
    """`+3.5 % to +6.6 %`; "" where there are none."""
    if low is None and high is None:
        return ""
    ends = tuple("" if end is None else _end(end, is_share) for end in (low, high))
    unit = next((unit for unit in (" %", " points", " times") if all(end.endswith(unit) for end in ends)), "")
    return f"{ends[0].removesuffix(unit)} to {ends[1]}"


def _end(value: float, is_share: bool) -> str:
    """A bound; beyond ten times it only says that nothing is known."""
    if is_share or 0.1 <= value <= 10.0:
        return change(value, is_share)
    return "< 0.1 times" if value < 0.1 else "> 10 times"


def label(metric: str, stat: str) -> str:
    """`ttft mean`; the statistic of a rate goes without saying."""
    return metric if stat == "rate" else f"{metric} {stat}"


# -- parts ----------------------------------------------------------------------------------------------------------


def _runs(of: Comparison, placed: Sequence[Placement]) -> list[dict[str, Any]]:
    """Facts of each run, a row for each fact."""
    columns: list[dict[str, str]] = []
    for side, where, price in zip(of.sides, placed, of.prices, strict=True):
        if side.summary is None:
            columns.append({"Measurement": "another tool's results"})
            continue
        info = side.summary.info
        facts = dict(provenance.headline(info, where.hardware.label if where.hardware else ""))
        unknown = info.endpoint.get("unknown")
        facts |= {
            "Measurement": side.summary.verdict.upper(),
            "Seed": str(info.seed),
            "Client": info.versions.get("loadgen") or NONE,
            "Stamps": str(info.clock.get("stamp_source") or NONE),
            "Not known": ", ".join(map(str, unknown)) or "nothing" if isinstance(unknown, list) else "nothing recorded",
        }
        columns.append(facts | ({} if price is None else {"Price": f"$ {price:g} per GPU and hour"}))
    order = dict.fromkeys(("Measurement", *(key for column in columns for key in column)))
    return [{"name": key, "values": [column.get(key, NONE) for column in columns]} for key in order]


def _decision(one: Decision) -> dict[str, str]:
    return {
        "outcome": one.outcome,
        "expr": one.expr,
        "run": one.run,
        "cell": one.cell,
        "metric": label(one.metric, one.stat),
        "change": change(one.change, one.is_share),
        "bounds": bounds(one.low, one.high, one.is_share),
        "limit": change(one.bound, one.is_share),
        "why": one.why,
    }


def _versus(one: Versus) -> dict[str, Any]:
    count = Counter(row.verdict for pair in one.pairs for row in pair.rows)
    changed = [(pair, row) for pair in one.pairs for row in pair.rows if row.verdict in ("worse", "better")]
    conditions = _grouped(one.all_conditions)
    return {
        "name": one.other.name,
        "likeness": one.likeness,
        "likeness_sentence": LIKENESS[one.likeness],
        "sentence": sentence(one),
        "advice": advice(one),
        "counts": [{"verdict": verdict, "count": count[verdict]} for verdict in VERDICTS],
        "verdicts": one.verdicts,
        "conditions": [_condition(condition) for condition in conditions if condition.kind != "subject"],
        "subject": [_condition(condition) for condition in conditions if condition.kind == "subject"],
        "paired": bool(one.pairs) and all(pair.paired for pair in one.pairs),
        "changed": [_changed(pair, row) for pair, row in changed[:_MOST_CHANGED]],
        "more_changed": max(len(changed) - _MOST_CHANGED, 0),
    }


def _grouped(conditions: Sequence[Condition]) -> list[Condition]:
    """The same condition of several cells told once, the gravest kind first."""
    groups: dict[Condition, list[str]] = {}
    for condition in conditions:
        groups.setdefault(replace(condition, cell=""), []).append(condition.cell)
    order = list(KINDS)
    found = [replace(one, cell=tables.named([cell for cell in cells if cell])) for one, cells in groups.items()]
    return sorted(found, key=lambda condition: order.index(condition.kind))


def _condition(one: Condition) -> dict[str, str]:
    withheld = "all" if one.withholds == ("*",) else ", ".join(one.withholds)
    return {
        "kind": one.kind,
        "kind_words": KINDS[one.kind],
        "words": one.words,
        "what": one.what,
        "cell": one.cell,
        "base": one.base,
        "other": one.other,
        "withholds": withheld,
    }


def _changed(pair: Pair, row: Compared) -> dict[str, str]:
    return {"cell": pair.name, "label": label(row.metric, row.stat), **_figures(row), "base": _value(row.base, row)}


def _figures(row: Compared) -> dict[str, str]:
    return {
        "value": _value(row.other, row),
        "change": change(row.change, row.is_share),
        "bounds": bounds(row.low, row.high, row.is_share),
        "verdict": row.verdict,
        "tone": TONE[row.verdict],
        "why": row.why,
    }


def _value(value: float | None, row: Compared) -> str:
    return quantity(value, row.unit, 4)


def _cells(of: Comparison) -> list[dict[str, Any]]:
    """For each workload its loads, for each load its figures: the baseline's, and of every run that measured it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for number, cell in enumerate(of.versus[0].base.cells):
        pairs = [_pair_of(one, number) for one in of.versus]
        if not any(pairs):
            continue
        keys = dict.fromkeys((row.metric, row.stat) for pair in pairs if pair for row in pair.rows)
        first = next(pair for pair in pairs if pair)
        workload = cell.workload or first.other.workload
        found.setdefault(workload, []).append(
            {
                "name": first.name,
                "load": load_label(cell.load),
                "rows": [_metric_row(key, pairs) for key in keys],
            }
        )
    return [{"workload": name, "cells": cells} for name, cells in found.items()]


def _pair_of(one: Versus, number: int) -> Pair | None:
    cell = one.base.cells[number]
    return next((pair for pair in one.pairs if pair.base is cell), None)


def _metric_row(key: tuple[str, str], pairs: Sequence[Pair | None]) -> dict[str, Any]:
    rows = [None if pair is None else next((r for r in pair.rows if (r.metric, r.stat) == key), None) for pair in pairs]
    known = next(row for row in rows if row is not None)
    return {
        "label": label(*key),
        "formula": METRICS[key[0]].formula,
        "base": _value(known.base, known),
        "others": [_figures(row) if row is not None else None for row in rows],
    }


def _costs(of: Comparison) -> dict[str, Any]:
    """Per GPU, per dollar and at a vendor's prices: a row for each cell of the baseline, a column group for each run;
    columns that are known of no run are left out."""
    gpus = [gpus_of(side) for side in of.sides]
    rows: list[dict[str, Any]] = []
    for number, cell in enumerate(of.versus[0].base.cells):
        pairs = [_pair_of(one, number) for one in of.versus]
        if any(pairs):
            rows.append({"cell": cell.name, "runs": _cost_cells(of, gpus, cell, pairs)})
    shown = [row for row in rows if any(one["known"] for one in row["runs"] if one)]
    runs = [one for row in shown for one in row["runs"] if one]
    heads = [(name, head) for name, head in _COST_HEADS if any(one[name] != NONE for one in runs)]
    return {"rows": shown, "heads": heads, "gpus": [NONE if count is None else _gpus(count) for count in gpus]}


# Of a run's cost: its name, its heading.
_COST_HEADS = (
    ("tokens_per_s", "tokens/s, whole server"),
    ("per_gpu", "tokens/s per GPU"),
    ("per_dollar", "tokens per dollar"),
    ("per_million", "$ per million tokens"),
    ("per_thousand", "$ per 1,000 requests"),
    ("vendor_per_million", "vendor's price of a million tokens"),
    ("vendor_per_thousand", "vendor's price of 1,000 requests"),
    ("energy_per_token_j", "joules per token"),
)


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _cost_cells(
    of: Comparison, gpus: Sequence[int | None], cell: Cell, pairs: Sequence[Pair | None]
) -> list[dict[str, Any] | None]:
    found: list[dict[str, Any] | None] = [_cost(cost(of.sides[0], cell, of.prices[0])) | _NO_CHANGE]
    for pair, side, count, price in zip(pairs, of.sides[1:], gpus[1:], of.prices[1:], strict=True):
        if pair is None:
            found.append(None)
            continue
        per_gpu = None if gpus[0] is None or count is None else gpus[0] / count
        money = None if per_gpu is None or of.prices[0] is None or price is None else per_gpu * of.prices[0] / price
        shown = _cost(cost(side, pair.other, price)) | _NO_CHANGE
        for name, factor in (("per_gpu", per_gpu), ("per_dollar", money)):
            middle, low, high = scaled_change(pair, factor)
            shown |= {f"{name}_change": change(middle, False), f"{name}_bounds": bounds(low, high, False)}
        found.append(shown)
    return found


_NO_CHANGE = {f"{name}_{part}": "" for name, _ in _COST_HEADS for part in ("change", "bounds")}


def _cost(of: Cost) -> dict[str, Any]:
    digits = {"tokens_per_s": 4, "per_gpu": 4, "per_dollar": 4}
    shown: dict[str, Any] = {name: significant(getattr(of, name), digits.get(name, 3)) for name, _ in _COST_HEADS}
    known = any(shown[name] != NONE for name, _ in _COST_HEADS[1:])
    return shown | {"known": known, "at_slo": "at the SLO" if of.at_slo else ""}


def _placement(side: Side, workloads: Sequence[WorkloadGroup]) -> Placement:
    named = {} if side.summary is None else side.summary.info.spec.get("roofline")
    return placement(named if isinstance(named, dict) else {}, workloads)


def _roofs(
    sides: Sequence[Side], workloads: Sequence[Sequence[WorkloadGroup]], placed: Sequence[Placement]
) -> dict[str, Any]:
    """How far each run is from its own roof, phase by phase."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for i, (some, where) in enumerate(zip(workloads, placed, strict=True)):
        for group in some:
            for stage in group.measured:
                for point in where.points.get(stage.summary.info.stage, ()):
                    key = (group.name, stage.label, point.phase)
                    cells = rows.setdefault(key, [NONE] * len(sides))
                    cells[i] = f"{significant(point.share_of_roof * 100, 2)} %, {point.bound}-bound"
    missing = [
        f"{side.name}: {where.missing}" for side, where in zip(sides, placed, strict=True) if where.hardware is None
    ]
    found = [{"workload": w, "load": load, "phase": phase, "cells": cells} for (w, load, phase), cells in rows.items()]
    return {"rows": found, "missing": missing}


def _unmatched(of: Comparison) -> list[dict[str, str]]:
    """Cells that only one of two runs measured."""
    found = []
    for one in of.versus:
        for side, cells in ((one.base, one.only_base), (one.other, one.only_other)):
            twin = one.other if side is one.base else one.base
            found += [{"cell": cell.name, "only": side.name, "missing": twin.name} for cell in cells]
    return found


def _shown(of: Comparison) -> set[str]:
    return {row.metric for one in of.versus for pair in one.pairs for row in pair.rows}
