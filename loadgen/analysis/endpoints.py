"""One stage by endpoint, where a run shared its requests out among several.

Knows: which figures tell one endpoint from another. Must not know: limits and severities, layout, how requests were
shared out (`engine.stage`: every unit of the plan by its place, so the shares are those of the plan).
Why: the whole is only as good as its slowest part, and a mean over endpoints hides which one that is.

Plain values, SI units; None is n/a. Percentiles are over successes; rates are of the stage's window.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from loadgen.analysis import formulas as f
from loadgen.analysis import stats
from loadgen.analysis.measured import Columns, Measured
from loadgen.analysis.stats import Floats
from loadgen.model import RunInfo

Facts = dict[str, Any]


def urls(info: RunInfo) -> list[str]:
    """The endpoints of a run, in the order in which rows count them."""
    return [str(one.get("url") or "") for one in (info.endpoint, *(info.endpoint.get("others") or ()))]


def by_endpoint(info: RunInfo, m: Measured) -> list[Facts]:
    """Each endpoint's part of the stage; empty where the run had one endpoint."""
    known = urls(info)
    if len(known) < 2:
        return []
    c = m.columns
    number = m.requests.endpoint[c.rows]
    span_s = max(m.window.end_ns - m.window.start_ns, 0.0) / 1e9
    return [{"endpoint": url} | _part(c.where(number == place), span_s) for place, url in enumerate(known)]


def _part(c: Columns, span_s: float) -> Facts:
    good = c.where(c.ok)
    tokens = float(np.nansum(good.output_tokens))
    return {
        "sent": len(c),
        "ok": len(good),
        "ttft_p50": _quantile(f.ttft(good), 0.5),
        "ttft_p99": _quantile(f.ttft(good), 0.99),
        "tpot_p50": _quantile(f.tpot(good), 0.5),
        "e2e_p50": _quantile(f.e2e(good), 0.5),
        "output_tokens_per_s": tokens / span_s if span_s > 0 and len(good) else None,
    }


def _quantile(values: Floats, q: float) -> float | None:
    found = stats.quantile(values[~np.isnan(values)], q)
    return float(found) if math.isfinite(found) else None
