"""The slowest requests with their token timelines.

Knows: which requests are slow for their stage, and their events. Must not know: charts, HTML.
Why: a p99 is somebody's request; seeing where it stalled - before the first token, once in the middle, or all along -
says more than the number. Slow is relative to the stage: a story is not slow for being longer than a chat.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loadgen.analysis import formulas, stats
from loadgen.analysis.measured import Measured
from loadgen.analysis.numbers import NONE, quantity, significant, times, whole
from loadgen.analysis.summary import Summary
from loadgen.report.series import rounded

REQUESTS = 10
_EVENTS = 250  # drawn of one request


def slowest(summary: Summary) -> list[dict[str, Any]]:
    """The requests with the largest ratio of e2e to their stage's median, the slowest first."""
    ranked: list[tuple[float, Measured, int]] = []
    for stage in summary.stages:
        m = stage.measured
        e2e = formulas.e2e(m.columns)
        middle = stats.quantile(e2e[~np.isnan(e2e)], 0.5)
        if not middle > 0.0:
            continue
        ratio = np.nan_to_num(e2e / middle, nan=-1.0)
        worst = np.argsort(-ratio, kind="stable")[:REQUESTS]
        ranked += [(float(ratio[i]), m, int(i)) for i in worst if ratio[i] > 0.0]
    ranked.sort(key=lambda entry: -entry[0])
    return [_row(*entry) for entry in ranked[:REQUESTS]]


def _row(ratio: float, m: Measured, i: int) -> dict[str, Any]:
    c = m.columns
    one = c.where(np.arange(len(c)) == i)
    row = int(c.rows[i])
    events = _events(m, row)
    ttft, tpot, e2e = (float(formula(one)[0]) for formula in (formulas.ttft, formulas.tpot, formulas.e2e))
    return {
        "stage": m.info.name,
        "request": str(m.requests.request_id[row]),
        "ratio": times(ratio),
        "ttft": quantity(ttft, "s"),
        "tpot": quantity(tpot, "s"),
        "max_gap": quantity(float(one.max_gap_s[0]), "s"),
        "e2e": quantity(e2e, "s"),
        "prompt": whole(float(one.prompt_tokens[0])),
        "output": whole(float(one.output_tokens[0])),
        "sent": f"{significant(float(one.sent_ns[0]) / 1e9)} s" if not np.isnan(one.sent_ns[0]) else NONE,
        "flags": ", ".join(m.requests.flags_of(row)) or "none",
        "end": rounded([e2e])[0],
        **events,
    }


def _events(m: Measured, row: int) -> dict[str, Any]:
    """Token events in seconds from `sent`, thinned evenly; the longest gap is kept whole."""
    low, high = m.requests.event_offset[row], m.requests.event_offset[row + 1]
    at = np.cumsum(m.requests.gap_us[low:high], dtype=np.int64) / 1e6
    if len(at) == 0:
        return {"events": [], "stall": []}
    stall = int(np.argmax(np.diff(at))) if len(at) > 1 else 0
    keep = np.unique(np.concatenate((np.linspace(0, len(at) - 1, min(len(at), _EVENTS)).astype(np.int64), [stall])))
    return {"events": rounded(at[keep]), "stall": rounded(at[stall : stall + 2]) if len(at) > 1 else []}
