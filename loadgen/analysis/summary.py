"""A run in figures: every stage's values with bounds, the verdict on the measurement, gates, other tools' numbers.

Knows: which parts make a summary, and its JSON form. Must not know: how a figure is computed, files, layout.
Why: report, gate, export and comparison read this one value, so they cannot show different numbers for one run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from loadgen.analysis import gate, trust
from loadgen.analysis.asked import asked
from loadgen.analysis.conventions import Convention, conventions
from loadgen.analysis.cost import at_slo, costs
from loadgen.analysis.definitions import METRICS, estimate
from loadgen.analysis.endpoints import by_endpoint
from loadgen.analysis.frame import Requests
from loadgen.analysis.gate import SloResult
from loadgen.analysis.measured import Measured, measure, row_facts
from loadgen.analysis.server import ServerLog
from loadgen.analysis.server_stage import Client, ServerStage, figures
from loadgen.analysis.slo import Slo, parse
from loadgen.analysis.trust import Verdict
from loadgen.analysis.trust_data import error_kinds
from loadgen.model import Finding, RunInfo, StageInfo


@dataclass(frozen=True, slots=True)
class Value:
    """One statistic of one metric, SI units. None is n/a (or "no bound"); `supported`: n suffices for it."""

    metric: str
    stat: str
    value: float | None
    unit: str
    n: int
    ci_low: float | None
    ci_high: float | None
    supported: bool


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests of a stage's window. `sent` = ok + failed + cancelled; `censored` are among the latter two."""

    sent: int
    ok: int
    failed: int
    cancelled: int
    unsent: int
    censored: int


@dataclass(frozen=True, slots=True)
class StageSummary:
    """One stage. `errors` counts failures by kind; `measured` holds the columns behind the values, for drawing."""

    info: StageInfo
    counts: Counts
    errors: dict[str, int]
    measured: Measured = field(repr=False, compare=False)
    server: dict[str, float] = field(default_factory=dict)  # see `server_stage.figures`; empty without telemetry

    @property
    def values(self) -> tuple[Value, ...]:
        """Every statistic with its bounds; made when asked for, since bounds take longer than the rest of a summary."""
        every = (self.get(metric.name, stat) for metric in METRICS.values() for stat in metric.stats)
        return tuple(value for value in every if value is not None)

    def get(self, metric: str, stat: str) -> Value | None:
        """The value, or None where the stage has no such line."""
        of = METRICS[metric]
        if stat not in of.stats:
            return None
        found = estimate(self.measured, of, stat)
        if of.optional and math.isnan(found.value):
            return None
        low, high = _finite(found.low), _finite(found.high)
        return Value(metric, stat, _finite(found.value), of.unit, found.n, low, high, found.supported)


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole run. `verdict` is about the measurement, not the server; `slo` holds the verdicts on `objectives`."""

    info: RunInfo
    verdict: Verdict
    findings: tuple[Finding, ...]
    stages: tuple[StageSummary, ...]
    conventions: tuple[Convention, ...]
    slo: tuple[SloResult, ...]
    objectives: tuple[Slo, ...]
    server: ServerLog | None = field(default=None, repr=False, compare=False)  # its own metrics over time, for drawing
    invalid: dict[int, tuple[str, ...]] = field(default_factory=dict)  # stage number -> findings that make it invalid
    fit: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)  # as `loadgen fit` left it, JSON


def summarise(info: RunInfo, requests: Requests, slo: Sequence[str] = (), server: ServerLog | None = None) -> Summary:
    """Compute everything. Without `slo` the objectives that the run was made with apply. `server`: its own metrics.

    Raises:
        UsageError: an objective that cannot be read, or that names no stage of this run.
    """
    facts = row_facts(requests)
    stages = [measure(stage, requests, facts, info.seed) for stage in info.stages]
    objectives = parse(slo or info.spec.get("slo") or ())
    gate.apply_limits(objectives, stages)
    client = Client(requests, facts)
    seen = {m.info.stage: ServerStage(server, client, m) for m in stages} if server is not None else {}
    findings = trust.judge(info, stages, list(seen.values()))
    invalid = trust.invalid_codes(findings, stages)
    return Summary(
        info,
        trust.verdict(findings),
        trust.merged(findings),
        tuple(_stage(m, seen.get(m.info.stage)) for m in stages),
        tuple(row for m in stages for row in conventions(m)),
        gate.evaluate(objectives, stages, invalid),
        objectives,
        server,
        invalid,
    )


def _stage(m: Measured, server: ServerStage | None) -> StageSummary:
    told = {} if server is None else figures(server)
    return StageSummary(m.info, _counts(m), error_kinds(m), m, told)


def _counts(m: Measured) -> Counts:
    requests, rows = m.requests, m.columns.rows
    of = {word: int(np.count_nonzero(requests.holds("outcome", word)[rows])) for word in ("ok", "failed", "cancelled")}
    censored = int(np.count_nonzero(requests.has("censored")[rows]))
    return Counts(len(rows), of["ok"], of["failed"], of["cancelled"], m.info.unsent, censored)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def to_json(summary: Summary) -> dict[str, Any]:
    """`report --format json`: plain values, null for n/a."""
    at = at_slo(summary)
    return {
        "trust": {"verdict": summary.verdict, "findings": [_fields(finding) for finding in summary.findings]},
        "stages": [
            {
                "stage": stage.info.name,
                "workload": stage.info.workload,
                "load": {"kind": stage.info.load.kind, "value": stage.info.load.value},
                "requests": _fields(stage.counts),
                "metrics": [_fields(value) for value in stage.values],
                "errors": stage.errors,
                "server": stage.server,
                "asked": asked(stage.measured),
                "endpoints": by_endpoint(summary.info, stage.measured),
                "cost": asdict(costs(stage, summary.info.spec)),
                "at_slo": stage in at.values(),
            }
            for stage in summary.stages
        ],
        "conventions": [_fields(row) for row in summary.conventions],
        "slo": [_fields(result) for result in summary.slo],
        "search": summary.info.search,
        "skipped": summary.info.skipped,
        "fit": summary.fit,
    }


def _fields(of: Any) -> dict[str, Any]:
    """A dataclass of plain values as a dict; numbers that JSON has no word for become null."""
    found = {name: getattr(of, name) for name in of.__dataclass_fields__}
    return {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in found.items()}
