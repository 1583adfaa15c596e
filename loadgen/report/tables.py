"""The tables of the report, each a plain dict of headings and cells that are already text.

Knows: which figures stand in which table, in which unit and order. Must not know: HTML, Markdown, how a figure is
computed.
Why: a template does no arithmetic; every cell is decided here, once for all formats.

A cell is {"text", "note", "weak"}: the number, its 95 % interval, and whether the sample cannot support it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadgen.analysis.conventions import Convention
from loadgen.analysis.cost import outcomes
from loadgen.analysis.definitions import METRICS, Metric
from loadgen.analysis.numbers import NONE, interval, percent, quantity, scale_for, significant, times, whole
from loadgen.analysis.summary import StageSummary, Summary, Value
from loadgen.model import FLAGS, Finding
from loadgen.report.placement import Placement
from loadgen.report.stages import Placed, WorkloadGroup

Cell = dict[str, Any]

STATS = ("mean", "p50", "p90", "p95", "p99")
# metric -> heading; those that a workload has no value of are left out.
LATENCIES: dict[str, str] = {
    "ttft": "TTFT",
    "ttft_scheduled": "TTFT from schedule",
    "tpot": "TPOT",
    "itl": "ITL",
    "chunk_gap": "Chunk gap",
    "e2e": "End to end",
    "e2e_scheduled": "End to end from schedule",
}
RATES: tuple[tuple[str, str], ...] = (
    ("output_tokens_per_s", "rate"),
    ("output_tokens_per_s_per_user", "p50"),
    ("total_tokens_per_s", "rate"),
    ("requests_per_s", "rate"),
    ("goodput", "rate"),
    ("slo_attainment", "rate"),
    ("in_flight", "mean"),
    ("error_rate", "rate"),
)
BRIEF: tuple[tuple[str, str], ...] = (
    ("ttft", "p50"),
    ("ttft", "p99"),
    ("ttft_scheduled", "p99"),
    ("tpot", "p50"),
    ("e2e", "p50"),
    ("output_tokens_per_s", "rate"),
    ("output_tokens_per_s_per_user", "p50"),
)
COUNTS = ("sent", "ok", "failed", "cancelled", "unsent")  # the last three only where there are any
MAX_SAMPLES = 24  # messages of failures
MAX_NAMES = 8  # of stages in one cell
VERDICTS = {
    "valid": "Nothing was found that would falsify the figures.",
    "questionable": "Read the findings before the figures.",
    "invalid": "Do not use the figures: the findings say why.",
}


def cell(value: Value | None, factor: float = 1.0, digits: int = 4, bounds: int | None = None) -> Cell:
    """One figure with its interval, of `bounds` digits (those of the figure); n/a where there is none."""
    if value is None or value.value is None:
        return {"text": NONE, "note": "", "weak": False}
    return {
        "text": significant(value.value * factor, digits),
        "note": interval(value.ci_low, value.ci_high, factor, bounds or digits),
        "weak": not value.supported,
    }


def findings(of: tuple[Finding, ...]) -> list[dict[str, str]]:
    """The findings as they are told."""
    return [{"severity": f.severity, "code": f.code, "message": f.message, "advice": f.advice} for f in of]


def objectives(summary: Summary) -> list[dict[str, str]]:
    """One row for each objective: the stages on which it fails, cannot be decided, passes."""
    rows: dict[str, dict[str, list[str]]] = {}
    for result in summary.slo:
        rows.setdefault(result.expr, {}).setdefault(result.outcome, []).append(result.stage)
    return [
        {"expr": expr} | {outcome: named(stages.get(outcome, ())) for outcome in ("fail", "undecidable", "pass")}
        for expr, stages in rows.items()
    ]


def named(stages: Sequence[str], most: int = MAX_NAMES) -> str:
    more = f" and {len(stages) - most} more" if len(stages) > most else ""
    return ", ".join(stages[:most]) + more


def slo_sentence(summary: Summary) -> str:
    """Whether the objectives hold, in one sentence; empty where none of them met a stage."""
    if not summary.objectives:
        return "No SLO was set."
    by_stage = outcomes(summary)
    if not by_stage:
        return ""
    told = []
    for outcome, words in (("fail", "fails"), ("undecidable", "cannot be decided")):
        if stages := [name for name, one in by_stage.items() if one == outcome]:
            told.append(f"{words} on {named(stages, 4)}")
    return f"The SLO {'; it '.join(told)}." if told else "The SLO holds on every stage that it speaks of."


def slo(summary: Summary) -> list[dict[str, Any]]:
    """One row for each objective on each stage."""
    rows = []
    for result in summary.slo:
        factor, unit = scale_for(result.unit, [result.observed, result.bound])
        rows.append(
            {
                "outcome": result.outcome,
                "expr": result.expr,
                "stage": result.stage,
                "observed": quantity(result.observed, result.unit),
                "bounds": f"{text} {unit}" if (text := interval(result.low, result.high, factor, 3)) else "",
                "limit": quantity(result.bound, result.unit),
                "n": whole(result.n),
                "why": result.why,
            }
        )
    return rows


def latency(group: WorkloadGroup) -> list[dict[str, Any]]:
    """For each metric a block of rows, one for each load."""
    blocks = []
    for name, heading in LATENCIES.items():
        values = [stage.summary.get(name, "p50") for stage in group.stages]
        if all(value is None or value.value is None for value in values) or (
            name == "chunk_gap" and not _grouped(group)
        ):
            continue
        factor, unit = scale_for("s", [value.value for value in values if value is not None])
        rows = [
            {"load": stage.label, "cells": [cell(stage.summary.get(name, stat), factor) for stat in STATS]}
            for stage in group.stages
        ]
        formula = METRICS[name].formula
        blocks.append({"metric": name, "heading": heading, "unit": unit, "formula": formula, "rows": rows})
    return blocks


def _grouped(group: WorkloadGroup) -> bool:
    """Whether a chunk gap is anything but an ITL: it is where events hold several tokens."""
    return any(stage.summary.measured.events.several > 0 for stage in group.measured)


def rates(group: WorkloadGroup) -> dict[str, Any]:
    """Requests and rates, a row for each load."""
    shown = [(name, stat) for name, stat in RATES if any(_has(stage, name, stat) for stage in group.stages)]
    present = [name for name in COUNTS if name in COUNTS[:2] or any(_count(stage, name) for stage in group.stages)]
    heads = [{"label": _rate_label(name, stat), "unit": _unit(METRICS[name])} for name, stat in shown]
    factors = [100.0 if METRICS[name].unit == "1" else 1.0 for name, _ in shown]
    rows = []
    for stage in group.stages:
        cells = [cell(stage.summary.get(*key), factor, bounds=3) for key, factor in zip(shown, factors, strict=True)]
        rows.append({"load": stage.label, "counts": [whole(_count(stage, name)) for name in present], "cells": cells})
    return {"counts": present, "heads": heads, "rows": rows}


def _count(stage: Placed, name: str) -> int:
    number: int = getattr(stage.summary.counts, name)
    return number


def _rate_label(name: str, stat: str) -> str:
    words = {"output_tokens_per_s": f"{name}, whole server", "in_flight": f"{name}, {stat}"}
    return words.get(name, name if stat == "rate" else f"{name}, {stat}")


def _has(stage: Placed, name: str, stat: str) -> bool:
    return stage.summary.get(name, stat) is not None


def _unit(metric: Metric) -> str:
    return "%" if metric.unit == "1" else metric.unit


def brief(workloads: tuple[WorkloadGroup, ...]) -> dict[str, Any]:
    """One line for each stage, every figure with its unit; a column for each figure that any stage has."""
    stages = [(group.name, stage) for group in workloads for stage in group.stages]
    shown = [key for key in BRIEF if any(_has(stage, *key) for _, stage in stages)]
    rows = [
        {
            "workload": name,
            "load": stage.label,
            "ok": f"{stage.summary.counts.ok:,} of {stage.summary.counts.sent:,}",
            "figures": [_short(stage.summary.get(*key)) for key in shown],
        }
        for name, stage in stages
    ]
    return {"heads": [_rate_label(*key) for key in shown], "rows": rows}


def _short(value: Value | None) -> str:
    if value is None:
        return NONE
    return quantity(value.value, value.unit) + ("" if value.supported or value.value is None else " †")


def phases(workloads: tuple[WorkloadGroup, ...]) -> list[dict[str, Any]]:
    """Where a mean request's time goes; a row for each stage that was measured."""
    rows = []
    for group in workloads:
        for stage in group.measured:
            if stage.phases is None:
                continue
            p, total = stage.phases, stage.phases.total or 1.0
            parts = (p.before, p.ttft, p.waiting, p.decode, p.slowed)
            rows.append(
                {
                    "workload": group.name,
                    "load": stage.label,
                    "total": quantity(p.total, "s"),
                    "parts": [{"text": quantity(x, "s"), "share": percent(x / total)} for x in parts],
                    "prefill": percent((p.ttft + p.waiting) / total),
                    "decode": percent((p.decode + p.slowed) / total),
                    "connect": quantity(stage.value("connect", "mean"), "s"),
                }
            )
    return rows


def errors(workloads: tuple[WorkloadGroup, ...]) -> dict[str, Any]:
    """Failures by kind and stage, and what the server said, the most frequent first."""
    stages = [stage.summary for group in workloads for stage in group.stages if stage.summary.errors]
    kinds = list(dict.fromkeys(kind for stage in stages for kind in stage.errors))
    rows = [
        {
            "stage": stage.info.name,
            "sent": whole(stage.counts.sent),
            "cells": [whole(stage.errors.get(kind, 0)) for kind in kinds],
            "rate": cell(stage.get("error_rate", "rate"), 100.0),
        }
        for stage in stages
    ]
    samples = sorted((row for stage in stages for row in _samples(stage)), key=lambda row: -int(row["count"]))
    return {"kinds": kinds, "rows": rows, "samples": samples[:MAX_SAMPLES], "more": max(len(samples) - MAX_SAMPLES, 0)}


def _samples(stage: StageSummary) -> list[dict[str, Any]]:
    """Each different (kind, HTTP status, message) of a stage, with the first request that had it."""
    m = stage.measured
    rows, requests = m.columns.rows[m.columns.missed], m.requests
    status = np.nan_to_num(requests.http_status[rows], nan=-1.0).astype(np.int64)
    keys = np.stack((requests.error_kind[rows], status, requests.error[rows]), axis=1)
    distinct, first, counts = np.unique(keys, axis=0, return_index=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MAX_SAMPLES]
    return [
        {
            "stage": stage.info.name,
            "kind": requests.word("error_kind", int(rows[first[i]])) or "unknown",
            "status": str(int(distinct[i][1])) if distinct[i][1] >= 0 else NONE,
            "message": requests.word("error", int(rows[first[i]])) or "",
            "count": int(counts[i]),
            "request": int(requests.request_id[rows[first[i]]]),
        }
        for i in order
    ]


def flags(summary: Summary) -> list[dict[str, str]]:
    """How often each flag stands on a measured request."""
    if not summary.stages:
        return []
    bits = [stage.measured for stage in summary.stages]
    rows = [(word, sum(int(m.requests.has(word)[m.columns.rows].sum()) for m in bits)) for word in FLAGS]
    return [{"flag": word, "count": whole(n), "meaning": FLAGS[word]} for word, n in rows if n]


def roofline(workloads: tuple[WorkloadGroup, ...], placed: Placement) -> list[dict[str, str]]:
    """The points of the roofline chart as rows."""
    return [
        {
            "workload": group.name,
            "load": stage.label,
            "phase": point.phase,
            "tokens": significant(point.tokens_per_pass, 3),
            "flops": quantity(point.flops, "FLOP"),
            "bytes": quantity(point.bytes, "B"),
            "intensity": significant(point.intensity, 3),
            "ridge": significant(point.ridge, 3),
            "bound": point.bound,
            "achieved": quantity(point.achieved_flop_per_s, "FLOP/s"),
            "roof": quantity(point.roof_flop_per_s, "FLOP/s"),
            "share": percent(point.share_of_roof),
        }
        for group in workloads
        for stage in group.measured
        for point in placed.points.get(stage.summary.info.stage, ())
    ]


def conventions(summary: Summary) -> list[dict[str, Any]]:
    """What other tools would have printed, a table for each stage."""
    by_stage: dict[str, list[Convention]] = {}
    for row in summary.conventions:
        by_stage.setdefault(row.stage, []).append(row)
    return [{"stage": stage, "rows": [_convention(row) for row in rows]} for stage, rows in by_stage.items()]


def _convention(row: Convention) -> dict[str, str]:
    factor, unit = scale_for(row.unit, [row.value, row.ours])
    ratio = row.value / row.ours if row.value is not None and row.ours else None
    return {
        "tool": row.tool,
        "metric": row.metric,
        "definition": row.definition,
        "theirs": NONE if row.value is None else f"{significant(row.value * factor)} {unit}",
        "ours": NONE if row.ours is None else f"{significant(row.ours * factor)} {unit}",
        "our_metric": row.our_metric,
        "ratio": NONE if ratio is None else "same" if abs(ratio - 1.0) < 5e-5 else times_of(ratio),
        "why": row.why,
        "source": row.source,
    }


def times_of(ratio: float) -> str:
    """Theirs over ours: `+3.1 %`, and from twice on `2.4 times`."""
    if not 0.5 < ratio < 2.0:
        return times(ratio)
    return f"{'+' if ratio > 1.0 else '−'}{significant(abs(ratio - 1.0) * 100, 2)} %"


def definitions() -> list[dict[str, str]]:
    """The metric table, as `loadgen explain` prints it."""
    return [
        {"name": m.name, "unit": _unit(m), "formula": m.formula, "caveat": m.caveat, "better": m.better, "of": m.of}
        for m in METRICS.values()
    ]
