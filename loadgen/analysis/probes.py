"""From a measured stage to a probe of a search: its verdict, and the interval behind it.

Knows: how gates and trust judge one stage, how many requests a verdict takes. Must not know: which load comes next
(`search`), files.
Why: a search believes a stage by the same rules as a release gate does, and one more: a load at which the latency still
rises at the end of the window is not sustained, whatever its percentiles say so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from loadgen.analysis import gate, stats, steady, trust
from loadgen.analysis.formulas import quantile_of
from loadgen.analysis.frame import Requests
from loadgen.analysis.gate import SloOutcome, SloResult
from loadgen.analysis.measured import Measured, measure, row_facts
from loadgen.analysis.search import Probe, Search
from loadgen.analysis.slo import Slo
from loadgen.model import RunInfo, StageInfo

_SPARE = 1.35  # times the fewest requests with which a pass is possible: some may miss
_FEWEST = 100
_MOST = 20_000
_CURABLE = {"too_few_samples", "concurrency_not_reached"}  # findings that more requests take away
# Findings that say that the client, not the server, was the limit: nothing is decided then, and longer does not help.
_CLIENT = {
    "client_delay", "send_delay", "loop_lag", "client_cpu", "clock_error", "shared_receives", "workers_lost",
    "rate_not_reached",
}  # fmt: skip
_ORDER: tuple[SloOutcome, ...] = ("fail", "undecidable", "pass")


def needed_requests(slos: Sequence[Slo]) -> int:
    """How many requests a first probe takes, so that it can pass every objective: a percentile has to have a bound, an
    error rate of so little has to be shown."""
    counts = [_FEWEST]
    for slo in slos:
        for limit in slo.limits:
            if (q := quantile_of(limit.stat or "")) is not None and limit.metric.of == "request":
                counts.append(stats.needed(q))
            if limit.metric.name in ("error_rate", "slo_attainment"):
                share = limit.value if limit.upper else 1.0 - limit.value
                if 0.0 < share < 1.0:
                    counts.append(math.ceil(math.log(stats.GATE_TAIL) / math.log1p(-share)))
    return min(math.ceil(max(counts) * _SPARE), _MOST)


def judge(
    info: RunInfo, stage: StageInfo, requests: Requests, slos: Sequence[Slo]
) -> tuple[Measured, list[SloResult], set[str]]:
    """One stage, every objective that speaks of it, and the codes of what makes it INVALID. `requests` are those of the
    run, or of the stage alone."""
    m = measure(stage, requests, row_facts(requests), info.seed)
    mine = [slo for slo in slos if gate.speaks_of(slo, m)]
    gate.apply_limits(mine, [m])
    invalid = trust.invalid_codes(trust.judge(replace(info, stages=[stage], findings=[]), [m]), [m])
    return m, list(gate.evaluate(mine, [m], invalid)), set(invalid[stage.stage])


def probe_of(info: RunInfo, stage: StageInfo, requests: Requests, slos: Sequence[Slo], search: Search) -> Probe:
    """The stage as a probe of `search`."""
    m, results, invalid = judge(info, stage, requests, slos)
    worst = min(results, key=lambda result: _ORDER.index(result.outcome), default=None)
    verdict: SloOutcome = worst.outcome if worst is not None else "undecidable"
    why = f"{worst.expr}: {worst.why}" if worst is not None else "no objective speaks of it"
    rising = [one.name for one in steady.series(m) if steady.trend(one.values) == "rises"] if verdict == "pass" else []
    behind = steady.falls_behind(m) if rising else 0.0
    if behind > search.precision:
        verdict, why, worst = "fail", f"not sustained: the wait grows by {behind:.2g} s in a second", None
    elif rising:
        verdict, why, worst = "undecidable", f"{' and '.join(rising)} still rose at the end", None
    if at_fault := sorted(invalid & _CLIENT):
        verdict, why, worst = "undecidable", f"the client was the limit, not the server: {', '.join(at_fault)}", None
    asked = stage.requests if stage.requests is not None else (stage.duration_ns or 0) / 1e9
    took = (stage.end_ns - stage.start_ns) / 1e9 if stage.end_ns is not None and stage.start_ns is not None else 0.0
    return Probe(
        load=stage.load.value,
        verdict=verdict,
        length=asked / search.first(stage.load.value),
        requests=len(m.columns),
        seconds=took,
        observed=None if worst is None else worst.observed,
        bound=None if worst is None else worst.bound,
        low=None if worst is None else worst.low,
        high=None if worst is None else worst.high,
        final=bool(invalid - _CURABLE),
        rising=bool(rising),
        why=why,
    )
