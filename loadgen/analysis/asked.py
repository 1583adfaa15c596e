"""What the plan asked for beside what came: lengths, arrivals, prompts that were to be in the cache, turns of sessions.

Knows: which figures of a stage lie side by side. Must not know: limits and severities (`trust_data`), layout.
Why: a load is what was really sent. A reader who sees both columns needs not believe that the generator did its job.

All results are plain values, SI units; None is n/a.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from loadgen.analysis import formulas as f
from loadgen.analysis import stats
from loadgen.analysis.frame import Codes
from loadgen.analysis.measured import Columns, Measured
from loadgen.analysis.stats import Floats, Ints
from loadgen.errors import UsageError
from loadgen.plan.arrivals import parse_arrivals

MISS_TOKENS = 1  # a prompt that is off by more is a miss
_SHOWN_TURNS = 12  # one by one; the later ones together
_QUANTILES = {"p5": 0.05, "p50": 0.5, "p95": 0.95}

Facts = dict[str, Any]


def asked(m: Measured) -> Facts:
    """Everything below, by name."""
    return {
        "prompt_tokens": lengths(m, "prompt"),
        "output_tokens": lengths(m, "output"),
        "arrivals": arrivals(m),
        "cached_tokens": cached(m),
        "turns": turns(m),
    }


def lengths(m: Measured, side: str) -> Facts:
    """Tokens asked for and got, over the successes of which a length was asked. Later turns of a session are left out
    for prompts: they carry their history on top of what was asked. `misses`: requests off by more than a token."""
    c = m.columns
    wanted, got = getattr(c, f"{side}_requested"), getattr(c, f"{side}_tokens")
    rows = c.ok & (wanted > 0)
    if side == "prompt":
        rows &= ~(m.requests.turn[c.rows] > 0)
    both = rows & ~np.isnan(got)
    off = np.abs(got[both] - wanted[both])
    return {
        "asked": spread(wanted[rows]),
        "got": spread(got[rows]),
        "compared": len(off),
        "misses": int(np.count_nonzero(off > MISS_TOKENS)),
        "worst_off": float(off.max()) if len(off) else None,
    }


def spread(values: Floats) -> dict[str, float] | None:
    """Mean, three quantiles and the extremes; None without a value."""
    known = np.sort(values[~np.isnan(values)])
    if len(known) == 0:
        return None
    found = {"mean": float(known.mean()), "min": float(known[0]), "max": float(known[-1])}
    return found | {name: stats.quantile_sorted(known, q) for name, q in _QUANTILES.items()}


# -- arrivals -------------------------------------------------------------------------------------------------------


def arrivals(m: Measured) -> Facts | None:
    """Rate and variation of the gaps: as asked, as the seed drew them, as they were sent. None in closed loop, where
    arrivals follow from answers. The variation that was asked is only known where the rate does not change."""
    if not m.window.open_loop:
        return None
    c = m.columns.where(~np.isnan(m.columns.scheduled_ns))
    seconds = None if m.info.duration_ns is None else m.window.seconds
    return {
        "asked": {"rate": m.info.load.value or None, "cv": _law_cv(m.info.load.arrivals)},
        "planned": _gaps(c.scheduled_ns, seconds),
        "sent": _gaps(c.sent_ns[~np.isnan(c.sent_ns)], seconds),
    }


def _law_cv(text: str) -> float | None:
    """The coefficient of variation of the gaps of an arrival process; None for a trace, or where the rate changes."""
    try:
        return parse_arrivals(text).gap_cv()
    except UsageError:
        return None


def _gaps(stamps_ns: Floats, seconds: float | None) -> Facts:
    """Rate and variation. By time the rate is the number over the window, as everywhere; else that of the gaps."""
    gaps = np.diff(np.sort(stamps_ns)) / 1e9
    mean = float(gaps.mean()) if len(gaps) else 0.0
    if mean <= 0.0:
        return {"rate": None, "cv": None}
    rate = len(stamps_ns) / seconds if seconds else 1.0 / mean
    return {"rate": rate, "cv": float(gaps.std()) / mean if len(gaps) > 1 else None}


# -- the prefix cache -----------------------------------------------------------------------------------------------


def expected_cached(m: Measured, *, answers: bool = True) -> Floats:
    """For each measured request the prompt tokens that a cache without end would have: what the plan sent before (a
    group's prefix, the blocks of a trace); in a later turn the previous prompt and (`answers`) its answer, which may be
    another than the one in the history, where that is recorded. NaN: not known."""
    c = m.columns
    expected = c.repeated_tokens.copy()
    session, turn = m.requests.session_id, m.requests.turn
    later = turn[c.rows] > 0
    if not later.any():
        return expected
    before = _previous(session[m.window.stage_rows], turn[m.window.stage_rows])
    history = m.requests.prompt_tokens + (m.requests.output_tokens if answers else 0.0)
    place = np.searchsorted(m.window.stage_rows, c.rows)
    found = before[place]
    known = np.where(found >= 0, history[m.window.stage_rows[found]], np.nan)
    expected[later] = known[later]
    return expected


def _previous(session: Codes, turn: Floats) -> Ints:
    """For each request the place of the previous turn of its session; -1 where there is none."""
    order = np.lexsort((turn, session))
    follows = np.zeros(len(order), dtype=np.bool_)
    follows[1:] = (session[order][1:] == session[order][:-1]) & (turn[order][1:] == turn[order][:-1] + 1)
    found = np.full(len(order), -1)
    found[order[1:]] = np.where(follows[1:], order[:-1], -1)
    return found


def cached(m: Measured) -> Facts | None:
    """Prompt tokens that were to be in the server's cache, and that it took from there, over the successes; None where
    nothing was to be and nothing was. `reported` is None where the server does not tell."""
    c = m.columns
    rows = c.ok & (c.prompt_tokens > 0)
    expected = np.nan_to_num(expected_cached(m))[rows]
    told = c.cached_tokens[rows]
    if not rows.any() or (expected.sum() == 0 and np.nan_to_num(told).sum() == 0):
        return None
    reported = None if np.isnan(told).all() else float(np.nansum(told))
    return {
        "prompt_tokens": float(c.prompt_tokens[rows].sum()),
        "expected": float(np.minimum(expected, c.prompt_tokens[rows]).sum()),
        "reported": reported,
        "requests": int(rows.sum()),
        "sharing": int(np.count_nonzero(expected)),
    }


# -- turns ----------------------------------------------------------------------------------------------------------


def turns(m: Measured) -> list[Facts]:
    """Each turn of the stage's sessions, counted from 1: latencies (medians, from `sent`), tokens (means). `last`: up
    to which turn a line goes."""
    c = m.columns
    turn = m.requests.turn[c.rows]
    most = int(np.nanmax(turn, initial=-1.0)) if len(turn) and not np.isnan(turn).all() else -1
    lines = [(k, k) for k in range(min(most + 1, _SHOWN_TURNS))]
    lines += [(_SHOWN_TURNS, most)] if most >= _SHOWN_TURNS else []
    return [_turn(c.where((turn >= low) & (turn <= high)), low + 1, high + 1) for low, high in lines]


def _turn(c: Columns, first: int, last: int) -> Facts:
    good = c.where(c.ok)

    def middle(values: Floats, q: float = 0.5) -> float | None:
        return _finite(stats.quantile(values[~np.isnan(values)], q))

    return {
        "turn": first,
        "last": last,
        "sent": len(c),
        "ok": len(good),
        "ttft_p50": middle(f.ttft(good)),
        "ttft_p90": middle(f.ttft(good), 0.9),
        "tpot_p50": middle(f.tpot(good)),
        "e2e_p50": middle(f.e2e(good)),
        "prompt_tokens": _mean(good.prompt_tokens),
        "output_tokens": _mean(good.output_tokens),
        "cached_tokens": _mean(good.cached_tokens),
    }


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
