"""A matrix as one plain dict: every text ready to print, every series ready to draw.

Knows: which part of a matrix stands where. Must not know: HTML, plotly, files, how a figure or a verdict is found.
Why: as for a report: one value behind the page, the comment and the terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadgen.analysis.matrix import FIGURES, SERVER, USER, Best, BestRow, CellOver, Matrix, point, served_key
from loadgen.analysis.numbers import NONE, interval, percent, quantity, scale_for, significant
from loadgen.analysis.repeats import Over
from loadgen.model import Finding
from loadgen.report import costs, tables
from loadgen.report.comparison import TONE, bounds, change, label, sentence
from loadgen.report.matrix_series import series, server_label
from loadgen.report.placement import placement
from loadgen.report.stages import groups, load_label
from loadgen.store.matrixfile import MatrixRecord

Cell = dict[str, Any]

STATES = {
    "waiting": "not made yet",
    "running": "cut short",
    "interrupted": "interrupted",
    "done": "measured",
    "failed": "not measured",
    "died": "its server ended",
}
_HEADS = {"output_tokens_per_s": "tokens/s, whole server", "output_tokens_per_s_per_user": "tokens/s per user, p50"}
_FRONT = {"front": "front", "within the error": "within the error", "behind": "", None: ""}
_COMPARED = (("ttft", "mean"), ("ttft_scheduled", "mean"), ("tpot", "mean"), SERVER, ("error_rate", "rate"))


def view(record: MatrixRecord, matrix: Matrix, findings: Sequence[Finding]) -> dict[str, Any]:
    """Everything that the page shows."""
    workloads = list(dict.fromkeys(cell.workload for cell in matrix.cells))
    return {
        "title": record.title,
        "tagline": tagline(matrix),
        "status": record.status,
        "findings": tables.findings(tuple(findings)),
        "settings": _settings(record, matrix),
        "best": [_best(one, matrix) for one in matrix.best],
        "each": [_best(one, matrix) for one in matrix.best if not one.is_whole],
        "slo": list(record.slo),
        "server_label": server_label(matrix),
        "front": [_front(name, matrix) for name in workloads],
        "cells": [_cells(name, matrix) for name in workloads],
        "costs": _costs(matrix),
        "roofs": _roofs(matrix),
        "versus": [_versus(one) for one in matrix.versus],
        "visits": _visits(record, matrix),
        "facts": _facts(record, matrix),
        "definitions": [row for row in tables.definitions() if row["name"] in {name for name, _ in FIGURES}],
        "command": " ".join(record.command),
        "series": series(workloads, matrix),
    }


def tagline(matrix: Matrix) -> str:
    """The result in a few sentences."""
    told = [best_sentence(one) for one in matrix.best if one.is_whole]
    if told:
        return " ".join(told)
    if not matrix.measured:
        return "No setting could be measured."
    fronts = []
    for name in dict.fromkeys(cell.workload for cell in matrix.cells):
        on = dict.fromkeys(cell.setting for cell in matrix.of_workload(name) if cell.front == "front")
        if on:
            fronts.append(f"On the Pareto front of {name}: {', '.join(on)}.")
    return " ".join(fronts)


def best_sentence(one: Best) -> str:
    """`chat: slots-8 serves most while it keeps the SLO, at 16 users; slots-4 shows no difference.`"""
    subject = f"{one.workload}: "
    top = one.rows[0] if one.rows else None
    if one.outcome == "fail":
        return f"{subject}no setting keeps the SLO at any load."
    if top is None or top.cell is None:
        return f"{subject}whether any setting keeps the SLO cannot be decided."
    text = f"{subject}{top.setting} serves most while it keeps the SLO, at {load_label(top.cell.load)}"
    for verdict, words in (("no difference shown", "shows no difference"), ("not decidable", "cannot be told apart")):
        names = [row.setting for row in one.rows if row.verdict == verdict]
        if names:
            text += f"; {', '.join(names)} {words}"
    return f"{text}."


# -- settings and visits -------------------------------------------------------------------------------------------


def _settings(record: MatrixRecord, matrix: Matrix) -> list[dict[str, Any]]:
    found = []
    for told in record.settings:
        name = str(told["name"])
        mine = [visit for visit in matrix.visits if visit.setting == name]
        done = [visit for visit in mine if visit.side is not None]
        ready = [visit.ready_s for visit in mine if visit.ready_s is not None]
        count = matrix.gpus.get(name)
        summary = done[0].side.summary if done and done[0].side is not None else None
        endpoint = {} if summary is None else summary.info.endpoint
        found.append(
            {
                "name": name,
                "server": str(told.get("command") or told.get("url") or NONE),
                "engine": f"{endpoint.get('engine') or NONE} {endpoint.get('version') or ''}".strip(),
                "gpus": NONE if count is None else str(count),
                "ready": quantity(max(ready), "s") if ready else NONE,
                "rounds": f"{len(done)} of {len(mine)}",
                "tone": "" if len(done) == len(mine) else "fair" if done else "bad",
            }
        )
    return found


def _visits(record: MatrixRecord, matrix: Matrix) -> list[dict[str, Any]]:
    """In the order in which they were made, or will be."""
    found = []
    for visit, told in zip(matrix.visits, record.visits, strict=True):
        summary = None if visit.side is None else visit.side.summary
        found.append(
            {
                "round": str(visit.round),
                "setting": visit.setting,
                "state": STATES[visit.state],
                "started": (told.started or NONE).removesuffix("+00:00").replace("T", " "),
                "took": quantity(told.seconds, "s"),
                "measurement": NONE if summary is None else summary.verdict.upper(),
                "link": f"{told.run}/report.html" if summary is not None and told.run else "",
                "run": visit.run,
                "error": visit.error,
            }
        )
    return found


def _facts(record: MatrixRecord, matrix: Matrix) -> list[tuple[str, str]]:
    done = sum(visit.state == "done" for visit in matrix.visits)
    rounds = f"{record.repeats}" + (", every second one backwards" if record.repeats > 1 else "")
    return [
        ("Measured", f"{record.created}, {record.status}"),
        ("Rounds", rounds),
        ("Visits", f"{done} of {len(matrix.visits)} measured"),
        ("Cells", ", ".join(str(stage.get("name")) for stage in record.stages)),
        ("SLO", ", ".join(record.slo) or "none given"),
        ("Seed", str(record.seed)),
    ]


# -- the best, the front -------------------------------------------------------------------------------------------


def _best(one: Best, matrix: Matrix) -> dict[str, Any]:
    key = served_key(matrix.of_workload(one.workload))
    return {
        "workload": one.workload,
        "expr": one.expr or "all of the SLO",
        "is_whole": one.is_whole,
        "outcome": one.outcome,
        "sentence": best_sentence(one),
        "served": "goodput" if key[0] == "goodput" else "requests/s",
        "rows": [_best_row(row, key) for row in one.rows],
    }


def _best_row(row: BestRow, key: tuple[str, str]) -> dict[str, Any]:
    kept = {"pass": "keeps it", "undecidable": "cannot be decided", "fail": "fails at every load"}
    of = None if row.cell is None else row.cell.costs
    money = None if of is None else of.per_million or of.vendor_per_million
    requests = None if of is None else of.per_thousand or of.vendor_per_thousand
    return {
        "setting": row.setting,
        "kept": kept.get(row.outcome, NONE),
        "outcome": row.outcome,
        "load": NONE if row.cell is None else load_label(row.cell.load),
        "served": _figure(None if row.cell is None else row.cell.get(key)),
        "user": _figure(None if row.cell is None else row.cell.get(USER)),
        "verdict": row.verdict,
        "tone": "good" if row.verdict == "best" else TONE.get(row.verdict, ""),
        "change": change(row.change, False) if row.change is not None else "",
        "bounds": bounds(row.low, row.high, False),
        "why": row.why,
        "per_million": costs.cell(money),
        "per_thousand": costs.cell(requests),
    }


def _front(workload: str, matrix: Matrix) -> dict[str, Any]:
    """Cells on the front or within its error, the fastest for a user first."""
    mine = [cell for cell in matrix.of_workload(workload) if cell.front in ("front", "within the error")]
    mine.sort(key=lambda cell: -(point(cell, matrix.by_gpu) or _NO_POINT)[0].value)  # type: ignore[operator]
    return {
        "workload": workload,
        "rows": [
            {
                "setting": cell.setting,
                "load": load_label(cell.load),
                "user": _figure(cell.get(USER)),
                "server": _figure(cell.per_gpu if matrix.by_gpu else cell.get(SERVER)),
                "place": _FRONT[cell.front],
                "slo": cell.outcome or NONE,
            }
            for cell in mine
        ],
    }


_NO_POINT = (Over(0.0, None, None, 0, ""), Over(0.0, None, None, 0, ""))


# -- tables --------------------------------------------------------------------------------------------------------


def _cells(workload: str, matrix: Matrix) -> dict[str, Any]:
    """A row for each load and setting: those of one load stand together, to be compared."""
    mine = matrix.of_workload(workload)
    keys = [key for key in FIGURES if any(cell.get(key) for cell in mine)]
    units = {key: scale_for(_unit(mine, key), [of.value for cell in mine if (of := cell.get(key))]) for key in keys}
    loads: dict[str, list[CellOver]] = {}
    for cell in mine:
        loads.setdefault(cell.name, []).append(cell)
    return {
        "workload": workload,
        "heads": [{"label": _HEADS.get(key[0], label(*key)), "unit": units[key][1]} for key in keys],
        "slo": any(cell.outcomes for cell in mine),
        "loads": [
            {
                "load": load_label(some[0].load),
                "rows": [
                    {
                        "setting": cell.setting,
                        "repeats": str(len(cell.cells)),
                        "ok": f"{sum(c.stage.counts.ok for c in cell.cells if c.stage):,}",
                        "cells": [_figure(cell.get(key), units[key][0]) for key in keys],
                        "outcome": cell.outcome,
                    }
                    for cell in some
                ],
            }
            for some in loads.values()
        ],
    }


def _unit(cells: Sequence[CellOver], key: tuple[str, str]) -> str:
    return next((of.unit for cell in cells if (of := cell.get(key)) is not None), "")


def _figure(of: Over | None, factor: float = 1.0) -> Cell:
    if of is None or of.value is None:
        return {"text": NONE, "note": "", "weak": False}
    return {
        "text": significant(of.value * factor, 4),
        "note": interval(of.low, of.high, factor, 3),
        "weak": False,
    }


def _costs(matrix: Matrix) -> dict[str, Any]:
    """What is known of the cost of each cell; columns that nobody knows are left out."""
    shown = costs.shown(cell.costs for cell in matrix.cells)
    at = {(row.setting, row.cell.name) for one in matrix.best if one.is_whole for row in one.rows if row.cell}
    rows = [
        {
            "setting": cell.setting,
            "workload": cell.workload,
            "load": load_label(cell.load),
            "at_slo": (cell.setting, cell.name) in at,
            "cells": [costs.cell(getattr(cell.costs, name)) for name in shown],
        }
        for cell in matrix.cells
    ]
    return {"heads": [costs.HEADS[name] for name in shown], "rows": rows if shown else []}


# -- roofs ---------------------------------------------------------------------------------------------------------


def roof_shares(matrix: Matrix) -> dict[tuple[str, str], dict[str, tuple[float, str]]]:
    """For each setting and cell, by phase: the mean share of its roof that its repeats reached, and what bounds it."""
    found: dict[tuple[str, str], dict[str, list[tuple[float, str]]]] = {}
    for visit in matrix.visits:
        if visit.side is None or visit.side.summary is None:
            continue
        summary = visit.side.summary
        placed = placement(summary.info.spec.get("roofline") or {}, groups(summary))
        for cell in visit.side.cells:
            number = -1 if cell.stage is None else cell.stage.info.stage
            for one in placed.points.get(number, ()):
                phases = found.setdefault((visit.setting, cell.name), {})
                phases.setdefault(one.phase, []).append((one.share_of_roof, one.bound))
    return {
        key: {phase: (sum(share for share, _ in some) / len(some), some[-1][1]) for phase, some in phases.items()}
        for key, phases in found.items()
    }


def _roofs(matrix: Matrix) -> dict[str, Any]:
    shares = roof_shares(matrix)
    rows = []
    for name in dict.fromkeys(cell.name for cell in matrix.cells):
        for phase in ("prefill", "decode"):
            of = {setting: shares.get((setting, name), {}).get(phase) for setting in matrix.measured}
            if any(of.values()):
                texts = [NONE if one is None else f"{percent(one[0])}, {one[1]}-bound" for one in of.values()]
                rows.append({"cell": name, "phase": phase, "cells": texts})
    known = {setting for setting, _ in shares}
    missing = [name for name in matrix.measured if name not in known]
    return {"settings": list(matrix.measured), "rows": rows, "missing": missing}


# -- changes -------------------------------------------------------------------------------------------------------


def _versus(one: Any) -> dict[str, Any]:
    rows = [
        {
            "cell": pair.name,
            "cells": [
                {
                    "change": change(row.change, row.is_share),
                    "bounds": bounds(row.low, row.high, row.is_share),
                    "verdict": row.verdict,
                    "tone": TONE[row.verdict],
                    "why": row.why,
                }
                if (row := next((r for r in pair.rows if (r.metric, r.stat) == key), None)) is not None
                else None
                for key in _COMPARED
                if _is_shown(one, key)
            ],
        }
        for pair in one.pairs
    ]
    heads = [label(*key) for key in _COMPARED if _is_shown(one, key)]
    return {
        "name": one.other.name,
        "base": one.base.name,
        "sentence": sentence(one),
        "heads": heads,
        "rows": rows,
        "verdicts": one.verdicts,
        "subject": [
            {"what": c.what, "base": c.base, "other": c.other}
            for c in one.all_conditions
            if c.kind == "subject" and c.what not in ("endpoint", "note: matrix_setting")
        ],
    }


def _is_shown(one: Any, key: tuple[str, str]) -> bool:
    return any((row.metric, row.stat) == key for pair in one.pairs for row in pair.rows)
