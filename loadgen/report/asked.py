"""The tables that show what was asked beside what came: lengths, arrivals, the prefix cache, turns, sizes of prompts.

Knows: which of these figures stand in which column. Must not know: how they are computed (`analysis.asked`), HTML.
Why: as in `tables`, a template does no arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loadgen.analysis.asked import asked, spread
from loadgen.analysis.endpoints import by_endpoint
from loadgen.analysis.numbers import NONE, percent, quantity, significant, whole
from loadgen.analysis.summary import StageSummary, Summary
from loadgen.model import RunInfo
from loadgen.report.stages import load_label
from loadgen.report.tables import cell

Row = dict[str, Any]

_COUNTERS = {
    "tokenizer": "counted by the tokenizer",
    "server": "counted by the server's /tokenize",
    "usage": "calibrated by the server's usage",
    None: "estimated",
}


def tables(summary: Summary) -> dict[str, Any]:
    """All of them, by name; an empty list is a table that does not apply."""
    facts = [(stage, asked(stage.measured)) for stage in summary.stages]
    return {
        "prompts": prompts(summary.info),
        "traces": traces(summary.info),
        "lengths": [
            _length(stage, side, found[f"{side}_tokens"]) for stage, found in facts for side in ("prompt", "output")
        ],
        "arrivals": [_arrival(stage, found["arrivals"]) for stage, found in facts],
        "cached": [_cached(stage, found["cached_tokens"]) for stage, found in facts if found["cached_tokens"]],
        "endpoints": [
            _endpoint(stage, found) for stage in summary.stages for found in by_endpoint(summary.info, stage.measured)
        ],
        "turns": [_turn(stage, turn) for stage, found in facts for turn in found["turns"]],
    }


def prompts(info: RunInfo) -> list[Row]:
    """For each workload how its prompts were sized, and what the template adds to their text."""
    told = info.endpoint.get("prompts")
    rows = []
    for name, found in (told if isinstance(told, dict) else {}).items():
        off = found.get("off_tokens")
        how = _COUNTERS.get(found.get("counted_by"), "estimated")
        how += f", units are off by up to {whole(off)} tokens" if off else ""
        scale = found.get("scale")
        how += f", {significant(scale, 3)} times the estimate" if scale is not None else ""
        rows.append({"workload": name, "how": how, "template": whole(found.get("template_tokens"))})
    return rows


def traces(info: RunInfo) -> list[Row]:
    """For each stage that replayed a trace which part of it, and what was left out."""
    stages = info.spec.get("stages")
    named = [s for s in stages if isinstance(s, dict)] if isinstance(stages, list) else []
    return [_trace(str(s.get("name")), s["trace"]) for s in named if isinstance(s.get("trace"), dict)]


def _trace(stage: str, found: dict[str, Any]) -> Row:
    dropped = found.get("dropped") or {}
    hits = found.get("block_hit_rate")
    end = found.get("to_s")
    return {
        "stage": stage,
        "speed": f"{significant(found.get('speed'))} times",
        "part": f"{quantity(found.get('from_s'), 's')} to {'its end' if end is None else quantity(end, 's')}",
        "rows": whole(found.get("rows")),
        "span": quantity(found.get("span_s"), "s"),
        "moments": whole(found.get("distinct_times")),
        "limit": whole(found.get("context_limit")),
        "dropped": ", ".join(f"{whole(count)} {why}" for why, count in dropped.items()) or "none",
        "hits": percent(hits),
    }


def _length(stage: StageSummary, side: str, found: dict[str, Any]) -> Row:
    wanted, got = found["asked"], found["got"]
    off = got["mean"] / wanted["mean"] - 1.0 if wanted and got else None
    return {
        "stage": stage.info.name,
        "side": side,
        "asked": _mean(wanted),
        "asked_range": _range(wanted),
        "got": _mean(got or _own(stage, side)),
        "off": percent(off),
        "got_range": _range(got or _own(stage, side)),
        "misses": f"{whole(found['misses'])} of {whole(found['compared'])}" if found["compared"] else NONE,
        "worst": whole(found["worst_off"]),
        "source": _sources(stage, f"{side}_tokens_source"),
    }


def _own(stage: StageSummary, side: str) -> dict[str, float] | None:
    """Lengths of texts of one's own, of which none was asked."""
    c = stage.measured.columns
    return spread(getattr(c, f"{side}_tokens")[c.ok])


def _mean(spread: dict[str, float] | None) -> str:
    return NONE if spread is None else significant(spread["mean"])


def _range(spread: dict[str, float] | None) -> str:
    """`p5 – p50 – p95`."""
    return NONE if spread is None else " – ".join(whole(spread[name]) for name in ("p5", "p50", "p95"))


def _arrival(stage: StageSummary, found: dict[str, Any] | None) -> Row:
    of = found or {name: {"rate": None, "cv": None} for name in ("asked", "planned", "sent")}
    row: Row = {"stage": stage.info.name, "load": load_label(stage.info.load)}
    for name in ("asked", "planned", "sent"):
        row[name] = significant(of[name]["rate"], 3)
        row[f"{name}_cv"] = significant(of[name]["cv"], 3)
    if found is None:
        row["sent"] = cell(stage.get("requests_per_s_sent", "rate"), digits=3)["text"]
    row["completed"] = cell(stage.get("requests_per_s", "rate"), digits=3)
    row["delay"] = quantity(_get(stage, "schedule_delay", "p99"), "s")
    row["client"] = quantity(_get(stage, "client_delay", "p99"), "s")
    return row


def _cached(stage: StageSummary, found: dict[str, Any]) -> Row:
    total, reported = found["prompt_tokens"], found["reported"]
    return {
        "stage": stage.info.name,
        "sharing": f"{whole(found['sharing'])} of {whole(found['requests'])}",
        "prompt": whole(total),
        "expected": whole(found["expected"]),
        "expected_share": percent(found["expected"] / total),
        "reported": whole(reported),
        "reported_share": percent(None if reported is None else reported / total),
    }


def _turn(stage: StageSummary, found: dict[str, Any]) -> Row:
    single = found["turn"] == found["last"]
    cached, prompt = found["cached_tokens"], found["prompt_tokens"]
    row: Row = {
        "stage": stage.info.name,
        "turn": str(found["turn"]) if single else f"{found['turn']} – {found['last']}",
        "ok": f"{whole(found['ok'])} of {whole(found['sent'])}",
        "cached_share": percent(cached / prompt if cached is not None and prompt else None),
    }
    row |= {name: quantity(found[name], "s") for name in ("ttft_p50", "ttft_p90", "tpot_p50", "e2e_p50")}
    return row | {name: significant(found[name]) for name in ("prompt_tokens", "output_tokens", "cached_tokens")}


def _endpoint(stage: StageSummary, found: dict[str, Any]) -> Row:
    row: Row = {
        "stage": stage.info.name,
        "endpoint": found["endpoint"],
        "ok": f"{whole(found['ok'])} of {whole(found['sent'])}",
        "rate": significant(found["output_tokens_per_s"]),
    }
    return row | {name: quantity(found[name], "s") for name in ("ttft_p50", "ttft_p99", "tpot_p50", "e2e_p50")}


def _get(stage: StageSummary, metric: str, stat: str) -> float | None:
    found = stage.get(metric, stat)
    return None if found is None else found.value


def _sources(stage: StageSummary, column: str) -> str:
    """Where the counts come from, the most frequent first."""
    m = stage.measured
    codes = getattr(m.requests, column)[m.columns.rows]
    words = m.requests.words[column]
    counts = {words[code]: int((codes == code).sum()) for code in np.unique(codes[codes >= 0])}
    return ", ".join(sorted(counts, key=lambda word: -counts[word])) or NONE
