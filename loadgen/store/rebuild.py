"""What can be said of a run whose run.json is lost, from its rows alone.

Knows: which facts of a run its requests imply. Must not know: files.
Why: rows are the measurement; losing the page about it must not lose them. What rows do not tell stays unknown.
"""

from __future__ import annotations

import numpy as np

from loadgen.analysis.frame import Requests
from loadgen.model import Finding, Load, RunInfo, StageInfo


def info_from_rows(requests: Requests, schema: int) -> RunInfo:
    """A RunInfo with a stage for each stage number; endpoint, host and window limits are unknown."""
    stages = sorted({int(stage) for stage in np.unique(requests.stage[~requests.has("warmup")])})
    return RunInfo(
        schema=schema,
        status="interrupted",
        run_id="unknown",
        created="unknown",
        stages=[_stage(requests, stage) for stage in stages],
        findings=[
            Finding(
                "questionable",
                "no_run_json",
                "run.json is missing: endpoint and settings are unknown, loads were inferred from the requests",
                advice="put the file back if it is anywhere",
            )
        ],
    )


def _stage(requests: Requests, stage: int) -> StageInfo:
    rows = requests.select((requests.stage == stage) & ~requests.has("warmup"))
    names = [word for code, word in enumerate(rows.words["workload"]) if code in rows.workload]
    workload = "+".join(sorted(names))
    load = _load(rows)
    return StageInfo(
        stage, f"{workload}@{load.value:g}", workload, load, planned=len(rows), stopped="run.json is missing"
    )


def _load(rows: Requests) -> Load:
    """Open loop where requests were scheduled, at their mean rate; else as many users as requests that overlapped."""
    if not np.isnan(rows.scheduled_ns).all():
        first, last = np.nanmin(rows.scheduled_ns), np.nanmax(rows.scheduled_ns)
        # A single arrival has no rate; the time that it took is the next best thing, and a nanosecond never 0.
        span_ns = max(last - first, 1.0) if last > first else max(np.nan_to_num(rows.end_ns).max() - first, 1.0)
        return Load("rate", float(f"{max(len(rows) - 1, 1) / span_ns * 1e9:.3g}"), "unknown")
    known = ~np.isnan(rows.sent_ns) & ~np.isnan(rows.end_ns)
    moments = np.concatenate((rows.end_ns[known], rows.sent_ns[known]))  # ends first: a slot is free at its end
    steps = np.repeat([-1, 1], np.count_nonzero(known))
    level = np.cumsum(steps[np.argsort(moments, kind="stable")])
    return Load("concurrency", float(level.max(initial=1)))
