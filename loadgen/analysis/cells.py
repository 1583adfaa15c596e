"""A measured run as cells for a fit: each stage one point, with the protocol as it was run.

Knows: which metrics of a stage a cell holds, and what else of a run bears on them. Must not know: files, estimation.
Why: the fit simulates what was really sent - how many requests, how long, how the users began - so all of it is taken
from what happened, not from what was asked for.

The protocol. `length_ratio` and the nominal lengths are those of the uniform law with the mean and the deviation of the
real lengths (`roofline.cells.uniform_law`). `stagger_s` is the time over which the users' first requests went out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from loadgen.analysis.endpoints import urls
from loadgen.analysis.measured import Columns
from loadgen.analysis.stats import Floats
from loadgen.analysis.summary import StageSummary, Summary
from loadgen.analysis.windows import Mask
from loadgen.model import Finding
from loadgen.roofline.cells import Cell, LoadKind, Protocol, uniform_law
from loadgen.roofline.passes import Deployment

SHORT = 0.9  # of the output tokens asked for: an answer under it is a short one
# Findings that make the client, not the server, the bottleneck.
_CLIENT = frozenset(["client_delay", "loop_lag", "client_cpu", "clock_error", "workers_lost", "unsent"])
_BURST_S = 0.001  # per user: an opening that takes less is a burst
# The server's own figures of a stage (see `server_stage.figures`) -> their names as evidence.
_SERVER = {
    "running_mean": "batch",
    "waiting_mean": "waiting",
    "kv_usage_max": "kv_usage",
    "preemptions": "preemptions",
    "spec_acceptance_mean": "acceptance",
}


def cells(
    summary: Summary, where: Deployment | None, label: str = "", run: str = ""
) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """The run's stages as cells, and for each stage that cannot be one a line that says why.

    `where` is what served; `label` keeps it apart from others; `run` names the run in messages.
    """
    found, left_out = [], []
    shared = "its requests went to several endpoints" if len(urls(summary.info)) > 1 else ""
    for stage in summary.stages:
        why = shared or _why_not(stage)
        if why:
            left_out.append(f"{stage.info.name}: {why}")
        else:
            found.append(_cell(stage, summary, where, label, f"{run} {stage.info.name}".strip()))
    return tuple(found), tuple(left_out)


def _why_not(stage: StageSummary) -> str:
    """Why a stage is no point of a fit; empty where it is one."""
    columns = stage.measured.columns
    if stage.info.load.kind == "trace":
        return "a trace has no one length and no one load"
    if np.any(stage.measured.requests.turn[columns.rows] > 0):
        return "conversations wait between their turns"
    if _value(stage, "ttft", "mean") is None and _value(stage, "tpot", "mean") is None:
        return "no answer came as a stream" if columns.ok.any() else "no request succeeded"
    if _means(columns, "prompt")[0] is None:
        return "the server did not count the prompts' tokens"
    return ""


def _cell(stage: StageSummary, summary: Summary, where: Deployment | None, label: str, place: str) -> Cell:
    columns, load = stage.measured.columns, stage.info.load
    prompt, prompt_spread = _means(columns, "prompt")
    output, output_spread = _means(columns, "output")
    assert prompt is not None
    spread = math.sqrt((prompt_spread**2 + output_spread**2) / 2)
    scale, ratio = uniform_law(spread)
    kind: LoadKind = "concurrency" if load.kind == "concurrency" else "rate"
    return Cell(
        prompt_tokens=prompt * scale,
        output_tokens=(output or 1.0) * scale,
        load_kind=kind,
        load=load.value,
        ttft_s=_known(_value(stage, "ttft", "mean")),
        itl_s=_known(_value(stage, "tpot", "mean")),
        deployment=where,
        protocol=Protocol(
            requests=int(np.count_nonzero(~np.isnan(stage.measured.all.sent_ns))),
            length_ratio=ratio,
            stagger_s=_stagger_s(stage) if kind == "concurrency" else 0.0,
            cached_share=_cached_share(stage),
        ),
        label=label,
        where=place,
        evidence=dict(_evidence(stage, summary)),
        held_out=stage.info.held_out,
    )


def _means(columns: Columns, side: str) -> tuple[float | None, float]:
    """Mean tokens of the answered requests, and their deviation relative to it; (None, 0) where nobody counted."""
    tokens: Floats = getattr(columns, f"{side}_tokens")[columns.ok]
    tokens = tokens[~np.isnan(tokens)]
    mean = float(tokens.mean()) if len(tokens) else 0.0
    return (None, 0.0) if mean <= 0 else (mean, float(tokens.std()) / mean)


def _stagger_s(stage: StageSummary) -> float:
    """The time over which the users' first requests were sent; 0 for a burst."""
    users = int(stage.info.load.value)
    sent = np.sort(stage.measured.all.sent_ns)[:users]
    sent = sent[~np.isnan(sent)]
    if len(sent) < 2:
        return 0.0
    per_user = float(sent[-1] - sent[0]) / 1e9 / (len(sent) - 1)
    return 0.0 if per_user < _BURST_S else per_user * len(sent)


def _cached_share(stage: StageSummary) -> float:
    """Prompt tokens that came from the server's cache: by its answers, else by its own metrics; nan: it never said."""
    columns = stage.measured.columns
    cached, prompt = columns.cached_tokens[columns.ok], columns.prompt_tokens[columns.ok]
    both = ~np.isnan(cached) & ~np.isnan(prompt)
    if both.any() and prompt[both].sum() > 0:
        return float(cached[both].sum() / prompt[both].sum())
    return stage.server.get("prefix_hit_share", math.nan)


def _evidence(stage: StageSummary, summary: Summary) -> Iterable[tuple[str, float]]:
    """What `Cell.evidence` lists, as far as this run has it; SI units."""
    columns, info = stage.measured.columns, stage.info
    told = {
        "itl_p50_s": _value(stage, "itl", "p50"),
        "itl_p99_s": _value(stage, "itl", "p99"),
        "max_gap_s": _value(stage, "max_gap", "p50"),  # of the middle request: a single stall is none of the engine's
        "error_share": _value(stage, "error_rate", "rate"),
        "short_share": _share(columns, columns.output_tokens < SHORT * columns.output_requested),
        "tokens_per_event": _ratio(columns.streamed, columns.events.astype(np.float64), columns.streamed_ok),
        "shared_receives": _ratio(columns.shared_events, columns.events.astype(np.float64), columns.streamed_ok),
        "invalid": float(any(_by_client(f, info.stage) for f in summary.findings)),
        "start_s": None if info.start_ns is None else info.start_ns / 1e9,
    }
    if isinstance(rtt := summary.info.endpoint.get("rtt_ns"), int | float):
        told["network_s"] = rtt / 1e9
    told |= {name: stage.server.get(figure) for figure, name in _SERVER.items()}
    for name, value in told.items():
        if value is not None and math.isfinite(value):
            yield name, float(value)


def _by_client(finding: Finding, stage: int) -> bool:
    return finding.severity == "invalid" and finding.code in _CLIENT and finding.stage in (None, stage)


def _share(columns: Columns, mask: Mask) -> float | None:
    """The part of the answered requests, of those whose counts are known, where `mask` holds."""
    known = columns.ok & ~np.isnan(columns.output_tokens) & (columns.output_requested > 0)
    return float(np.count_nonzero(mask & known)) / int(known.sum()) if known.any() else None


def _ratio(over: Floats, under: Floats, rows: Mask) -> float | None:
    total = float(under[rows].sum())
    return float(over[rows].sum()) / total if total > 0 else None


def _value(stage: StageSummary, metric: str, stat: str) -> float | None:
    found = stage.get(metric, stat)
    return None if found is None else found.value


def _known(value: float | None) -> float:
    return math.nan if value is None else value
