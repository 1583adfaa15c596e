"""The whole report as one plain dict: every text ready to print, every series ready to draw.

Knows: which part stands in which place. Must not know: HTML, plotly, files.
Why: one value behind all formats. The template prints it, the figures draw it, a test can read it.
"""

from __future__ import annotations

from typing import Any

from loadgen.analysis.cost import outcomes
from loadgen.analysis.numbers import brief, scale_for, whole
from loadgen.analysis.slo import FLIPPED, Limit
from loadgen.analysis.summary import Summary, Value
from loadgen.report import asked, costs, provenance, series, server, tables
from loadgen.report.diagnosis import Diagnosis, diagnose, overall
from loadgen.report.fitview import fit_view
from loadgen.report.placement import Placement, placement
from loadgen.report.search import searches
from loadgen.report.slowest import slowest
from loadgen.report.stages import Placed, WorkloadGroup, groups, knee

# Rows of a workload's card: metric, statistic, what it is called.
_CARD: tuple[tuple[str, str, str], ...] = (
    ("ttft", "p50", "TTFT p50"),
    ("ttft", "p99", "TTFT p99"),
    ("ttft_scheduled", "p99", "TTFT from schedule p99"),
    ("tpot", "p50", "TPOT p50"),
    ("e2e", "p50", "End to end p50"),
    ("output_tokens_per_s", "rate", "output_tokens_per_s (whole server)"),
    ("output_tokens_per_s_per_user", "p50", "output_tokens_per_s_per_user p50"),
    ("goodput", "rate", "Goodput"),
)
# How a run ended that is not complete.
_ENDED = {
    "interrupted": "The run was interrupted.",
    "failed": "The run failed.",
    "running": "The run has not ended, or was killed.",
}


def view(summary: Summary) -> dict[str, Any]:
    """Everything that the report shows."""
    info = summary.info
    workloads = groups(summary)
    placed = placement(info.spec.get("roofline") or {}, workloads)
    diagnoses = [diagnose(group, placed) for group in workloads]
    hardware = placed.hardware.label if placed.hardware else ""
    slow = slowest(summary)
    return {
        "title": provenance.title(info),
        "status": info.status,
        "trust": {
            "verdict": summary.verdict,
            "sentence": tables.VERDICTS[summary.verdict],
            "findings": tables.findings(summary.findings),
        },
        "searches": searches(info),
        "skipped": list(info.skipped),
        "objectives": tables.objectives(summary),
        "slo": tables.slo(summary),
        "headline": provenance.headline(info, hardware),
        "tagline": " ".join(filter(None, (_ENDED.get(info.status), overall(diagnoses), tables.slo_sentence(summary)))),
        "workloads": [_workload(group, one) for group, one in zip(workloads, diagnoses, strict=True)],
        "brief": tables.brief(workloads),
        "costs": costs.table(summary),
        "errors": tables.errors(workloads),
        "phases": tables.phases(workloads),
        "roofline": {
            "hardware": hardware,
            "source": placed.hardware.gpu.source if placed.hardware else "",
            "missing": placed.missing,
            "rows": tables.roofline(workloads, placed),
        },
        "fit": None if summary.fit is None else fit_view(summary.fit),
        "asked": asked.tables(summary),
        "flags": tables.flags(summary),
        "server": server.table(summary),
        "slowest": slow,
        "thinned": _thinned(workloads),
        "conventions": tables.conventions(summary),
        "definitions": tables.definitions(),
        "endpoint": provenance.endpoint(info),
        "host": provenance.host(info),
        "identity": provenance.identity(info),
        "trials": [str(trial) for trial in info.endpoint.get("trials") or ()],
        "spec": provenance.spec(info),
        "command": provenance.command(info),
        "series": _series(summary, workloads, placed) | {"slowest": slow},
    }


def _thinned(workloads: tuple[WorkloadGroup, ...]) -> str:
    """What a chart of distributions leaves out."""
    most = max((len(group.measured) for group in workloads), default=0)
    return f"Of {most} loads {series.LOADS} are drawn." if most > series.LOADS else ""


def _workload(group: WorkloadGroup, diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "name": group.name,
        "limit": diagnosis.limit,
        "sentence": diagnosis.sentence,
        "advice": diagnosis.advice,
        "card": _card(group),
        "latency": tables.latency(group),
        "rates": tables.rates(group),
    }


def _card(group: WorkloadGroup) -> dict[str, Any]:
    """Key figures of the lowest and the highest load that were measured, with their intervals."""
    ends = list({stage.summary.info.stage: stage for stage in (*group.measured[:1], *group.measured[-1:])}.values())
    rows = []
    for metric, stat, label in _CARD:
        values = [stage.summary.get(metric, stat) for stage in ends]
        shown = [value.value for value in values if value is not None and value.value is not None]
        if not shown:
            continue
        factor, unit = scale_for(values[0].unit if values[0] else "", shown)
        cells = [tables.cell(value, factor, 3) for value in values]
        rows.append({"label": label, "unit": unit, "cells": cells})
    return {"loads": [stage.label for stage in ends], "n": [whole(s.summary.counts.ok) for s in ends], "rows": rows}


def _series(summary: Summary, workloads: tuple[WorkloadGroup, ...], placed: Placement) -> dict[str, Any]:
    return {
        "workloads": [group.name for group in workloads],
        "loads": [loads(group, outcomes(summary)) for group in workloads],
        "limits": _limits(summary),
        "distributions": [series.distributions(group) for group in workloads],
        "timeline": series.timeline(workloads),
        "arrivals": series.arrivals(workloads),
        "server": server.panels(summary.server),
        "phases": [_phase_bars(group) for group in workloads],
        "roofline": _roofline(workloads, placed),
    }


def loads(group: WorkloadGroup, outcomes: dict[str, str]) -> dict[str, Any]:
    """What the curves over load are drawn from; points of stages without a value are None."""
    stages = group.measured
    bend = knee(stages)

    def line(metric: str, stat: str) -> dict[str, Any]:
        values = [stage.summary.get(metric, stat) for stage in stages]
        return {
            "value": [_of(value, "value") for value in values],
            "low": [_of(value, "ci_low") for value in values],
            "high": [_of(value, "ci_high") for value in values],
        }

    return {
        "labels": [stage.label for stage in stages],
        "knee": [stage is bend for stage in stages],
        "slo": [outcomes.get(stage.summary.info.name, "") for stage in stages],
        "load": [stage.summary.info.load.value for stage in stages],
        "kind": [stage.summary.info.load.kind for stage in stages],
        "server": line("output_tokens_per_s", "rate"),
        "user": line("output_tokens_per_s_per_user", "p50"),
        "ttft_p50": line(_ttft(stages), "p50"),
        "ttft_p99": line(_ttft(stages), "p99"),
        "goodput": line("goodput", "rate"),
        "offered": line("requests_per_s_offered", "rate"),
    }


def _ttft(stages: tuple[Placed, ...]) -> str:
    """In open loop the TTFT that gates judge."""
    return "ttft_scheduled" if any(stage.value("ttft_scheduled", "p50") is not None for stage in stages) else "ttft"


def _of(value: Value | None, name: str) -> float | None:
    return None if value is None or value.value is None else getattr(value, name)


def _limits(summary: Summary) -> list[dict[str, Any]]:
    """Limits that can be drawn as a line: on a user's rate, on TPOT (its reciprocal) and on TTFT."""
    found: dict[tuple[str, float], dict[str, Any]] = {}
    for slo in summary.objectives:
        for limit in slo.limits:
            name, text = limit.metric.name, _limit_text(slo.scope, limit)
            if name == "tpot" and limit.upper and limit.value > 0:
                found["user", 1.0 / limit.value] = {"axis": "user", "at": 1.0 / limit.value, "text": text}
            elif name in ("ttft", "ttft_scheduled") and limit.upper:
                found["ttft", limit.value] = {"axis": "ttft", "at": limit.value, "text": text}
    return list(found.values())


def _limit_text(scope: str, limit: Limit) -> str:
    """One limit of an objective in a few words: `chat: p99(tpot) < 50 ms`."""
    name, op, value, unit = limit.metric.name, limit.op, limit.value, limit.metric.unit
    if limit.inverse:
        name, op, value, unit = "output_tokens_per_s_per_user", FLIPPED[op], 1.0 / value, "tokens/s"
    what = f"{limit.stat}({name})" if limit.stat else name
    return f"{scope}: {what} {op} {brief(value, unit)}" if scope else f"{what} {op} {brief(value, unit)}"


def _phase_bars(group: WorkloadGroup) -> list[dict[str, Any]]:
    return [
        {
            "load": stage.label,
            "parts": [p.before, p.ttft, p.waiting, p.decode, p.slowed],
            "total": p.total,
        }
        for stage in group.measured
        if (p := stage.phases) is not None and p.total > 0
    ]


def _roofline(workloads: tuple[WorkloadGroup, ...], placed: Placement) -> dict[str, Any] | None:
    """The roofs and points; None where the hardware is not known."""
    if placed.hardware is None:
        return None
    return {
        "gpu": f"{placed.hardware.gpus} × {placed.hardware.gpu.name}",
        "bandwidth": placed.hardware.bandwidth,
        "roofs": [{"dtype": name, "flop_per_s": rate} for name, rate in placed.hardware.roofs()],
        "points": [
            {
                "workload": group.name,
                "load": stage.label,
                "phase": point.phase,
                "intensity": point.intensity,
                "achieved": point.achieved_flop_per_s,
                "roof": point.roof_flop_per_s,
                "share": point.share_of_roof,
                "bound": point.bound,
            }
            for group in workloads
            for stage in group.measured
            for point in placed.points.get(stage.summary.info.stage, ())
        ],
    }
