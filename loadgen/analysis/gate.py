"""The verdict on service-level objectives, stage by stage.

Knows: how failures rank in a statistic, which one-sided bound decides, what an invalid measurement means for a gate.
Must not know: the grammar of expressions (`slo`), exit codes, layout.
Why: see `slo`. A pass needs a bound that the sample supports; a failure needs one, too; between them a gate says that
it cannot decide.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from loadgen.analysis import formulas, stats
from loadgen.analysis.definitions import METRICS, Metric, estimate
from loadgen.analysis.formulas import quantile_of
from loadgen.analysis.measured import Measured
from loadgen.analysis.slo import OF_LIMITS, SCHEDULED, Limit, Slo
from loadgen.analysis.stats import GATE_TAIL, NOTHING, Estimate, Floats
from loadgen.analysis.windows import Mask
from loadgen.errors import UsageError

SloOutcome = Literal["pass", "fail", "undecidable"]
# Metrics that every successful request has; without a value there it cannot be said to have met a limit on them.
_OWED = ("ttft", "ttft_scheduled", "time_to_first_answer", "e2e", "e2e_scheduled")


@dataclass(frozen=True, slots=True)
class SloResult:
    """One objective on one stage. `bound` is the limit, `low`/`high` the one-sided 95 % bounds of `observed`, all SI;
    None is n/a or no bound. `why` says in words what decided."""

    expr: str
    outcome: SloOutcome
    observed: float | None
    bound: float
    low: float | None
    high: float | None
    n: int
    stage: str
    metric: str
    stat: str
    unit: str
    why: str


def stages_of(slo: Slo, stages: Sequence[Measured]) -> list[Measured]:
    """The stages that an objective speaks of. Raises UsageError when it names none."""
    if not slo.scope:
        return list(stages)
    found = [m for m in stages if speaks_of(slo, m)]
    if not found:
        known = ", ".join(dict.fromkeys(m.info.name for m in stages)) or "none"
        raise UsageError(
            f"no workload or stage is called {slo.scope!r}", where=f"SLO `{slo.text}`", do=f"stages: {known}"
        )
    return found


def speaks_of(slo: Slo, m: Measured) -> bool:
    """Whether the objective is about this stage."""
    return not slo.scope or slo.scope.lower() in _names(m)


def _names(m: Measured) -> tuple[str, ...]:
    info = m.info
    return info.name.lower(), info.workload.lower(), f"{info.workload}@{info.load.value:g}".lower()


def apply_limits(slos: Sequence[Slo], stages: Sequence[Measured]) -> None:
    """Mark on each stage which measured requests met every request-level limit that speaks of it."""
    for slo in slos:
        if slo.per_request:
            for m in stages_of(slo, stages):
                met = _met(slo, m)
                m.meets = met if m.meets is None else m.meets & met


def _met(slo: Slo, m: Measured) -> Mask:
    met = m.columns.ok.copy()
    for limit in slo.limits:
        what, values = _meant(limit.metric, m), _values(limit.metric, m)
        compare = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}[limit.op]
        met &= compare(values, limit.value) | (np.isnan(values) & (what.name not in _OWED))
    return met


def _meant(what: Metric, m: Measured) -> Metric:
    """In open loop a bare ttft or e2e means the one from the scheduled time."""
    return METRICS[SCHEDULED.get(what.name, what.name)] if m.window.open_loop else what


def _values(what: Metric, m: Measured) -> Floats:
    """The metric that is meant, of every measured request. In open loop a later turn of a session, which has no
    scheduled time of its own, is judged from its send."""
    meant = _meant(what, m)
    assert what.per_request is not None
    assert meant.per_request is not None
    if meant is what:
        return what.per_request(m.columns)
    return np.where(np.isnan(m.columns.scheduled_ns), what.per_request(m.columns), meant.per_request(m.columns))


def evaluate(
    slos: Sequence[Slo], stages: Sequence[Measured], invalid: Mapping[int, Collection[str]]
) -> tuple[SloResult, ...]:
    """Decide every objective on every stage that it speaks of.

    `invalid` names for each stage number the findings that make its measurement invalid: such a stage passes nothing.
    """
    results: list[SloResult] = []
    for slo in slos:
        for m in stages_of(slo, stages):
            others = [other for other in slos if m in stages_of(other, stages)]
            limited = {limit.metric.name for other in others for limit in other.limits if limit.upper}
            gated = {limit.metric.name for other in others for limit in other.limits if limit.metric.name in OF_LIMITS}
            if slo.per_request and gated:
                continue  # it defines what slo_attainment or goodput gates
            result = _census(slo, m) if slo.per_request else _decide(slo, m, "error_rate" in limited)
            results.append(_distrust(result, invalid.get(m.info.stage, ())))
    return tuple(results)


def _distrust(result: SloResult, codes: Collection[str]) -> SloResult:
    if not codes or result.outcome != "pass":
        return result
    return replace(result, outcome="undecidable", why=f"the measurement is INVALID ({', '.join(codes)})")


def _census(slo: Slo, m: Measured) -> SloResult:
    """A limit on each request, by itself: a statement about this run's requests, so nothing has to be estimated."""
    share = estimate(m, METRICS["slo_attainment"], "rate", GATE_TAIL)
    met = int(_met(slo, m).sum())
    missed = m.window.offered - met
    outcome: SloOutcome = "undecidable" if m.window.offered == 0 else "fail" if missed else "pass"
    why = "nothing was offered" if outcome == "undecidable" else f"{met} of {m.window.offered} offered requests met it"
    renamed = [limit for limit in slo.limits if _meant(limit.metric, m) is not limit.metric]
    return SloResult(
        slo.text,
        outcome,
        met / m.window.offered if m.window.offered else None,
        1.0,
        _finite(share.low),
        _finite(share.high),
        m.window.offered,
        m.info.name,
        "slo_attainment",
        "rate",
        "1",
        why + (_scheduled_note(renamed[0].metric) if renamed else ""),
    )


def _scheduled_note(what: Metric) -> str:
    return f"; in open loop {what.name} means {SCHEDULED[what.name]}"


def _decide(slo: Slo, m: Measured, errors_limited: bool) -> SloResult:
    limit = slo.limits[0]
    assert limit.stat is not None
    what = _meant(limit.metric, m)
    found, doubt = _gate_estimate(limit, what, m, errors_limited)
    outcome, why = _verdict(limit, found) if not doubt else ("undecidable", doubt)
    if what is not limit.metric:
        why += _scheduled_note(limit.metric)
    name, bound = what.name, limit.value
    if limit.inverse:
        name, found, bound = "output_tokens_per_s_per_user", stats.reciprocal(found), 1.0 / bound
    return SloResult(
        slo.text,
        outcome,
        _finite(found.value),
        bound,
        _finite(found.low),
        _finite(found.high),
        found.n,
        m.info.name,
        name,
        limit.stat,
        METRICS[name].unit,
        why,
    )


def _verdict(limit: Limit, found: Estimate) -> tuple[SloOutcome, str]:
    """Pass or fail by the bound that speaks against it."""
    if math.isnan(found.value):
        return "undecidable", "there is nothing to decide on"
    worse, better = (found.high, found.low) if limit.upper else (found.low, found.high)
    if not limit.holds(better):
        lost = ": requests that failed rank as +infinity" if math.isinf(found.value) else ""
        return "fail", f"even the favourable 95 % bound breaks the limit{lost}"
    if limit.holds(worse) and found.supported:
        return "pass", "the unfavourable 95 % bound keeps the limit"
    q = quantile_of(limit.stat or "")
    if q is not None and limit.metric.of == "request" and found.n < stats.needed(q):
        return "undecidable", f"{limit.stat} needs at least {stats.needed(q)} requests, there are {found.n}"
    return "undecidable", "the limit lies inside the 95 % interval: run longer"


def _gate_estimate(limit: Limit, what: Metric, m: Measured, errors_limited: bool) -> tuple[Estimate, str]:
    """The statistic with failures ranked last, its one-sided bounds, and why it must not be decided ("" = it may)."""
    stat = limit.stat or ""
    if what.of == "stage":
        return estimate(m, what, stat, GATE_TAIL), ""
    lost = int(m.columns.missed.sum()) + m.window.unsent
    ranks = quantile_of(stat) is not None or stat in ("min", "max")
    if lost and not errors_limited and (not ranks or (what.of == "gap" and not limit.upper)):
        found = estimate(m, what, stat, GATE_TAIL)
        return found, f"{lost} requests gave no value: limit error_rate too, or a percentile, which counts them"
    if what.of == "gap":
        return _gap_estimate(limit, what, m)
    values = _values(limit.metric, m)[m.columns.ok]
    values = np.sort(values[~np.isnan(values)])
    if ranks:
        worst = np.full(lost, math.inf if limit.upper else -math.inf)
        values = np.concatenate((values, worst) if limit.upper else (worst, values))
    return formulas.of_sorted(values, stat, GATE_TAIL), ""


def _gap_estimate(limit: Limit, what: Metric, m: Measured) -> tuple[Estimate, str]:
    """Gaps that were owed and never came (the tokens asked for, one gap each) rank as +infinity."""
    found = estimate(m, what, limit.stat or "", GATE_TAIL)
    if math.isnan(found.value) and m.events.gap.n:
        return NOTHING, "itl percentiles are not defined when events hold several tokens: limit chunk_gap"
    missed = m.columns.where(m.columns.missed)
    owed = int(np.nansum(np.maximum(missed.output_requested - 1.0, 1.0)))
    if m.window.unsent and len(m.columns):
        owed += int(m.window.unsent * max(float(np.nanmean(m.columns.output_requested)) - 1.0, 1.0))
    if not owed or limit.stat == "mean" or not limit.upper:
        return found, ""
    tally, blocks = (
        (m.events.gap, m.events.gap_blocks) if what.name == "chunk_gap" else (m.events.itl, m.events.itl_blocks)
    )
    return formulas.of_tally(tally, blocks, limit.stat or "", GATE_TAIL, m.resampler, owed), ""


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
