"""What the server said of itself during the run: a row of figures for each stage, and its series over time.

Knows: which of the server's figures are shown, their titles and units. Must not know: how they were read, charts, HTML.
Why: a queue, a full KV cache or a throttled clock explains a latency that the client can only state. They are the
server's own statements: shown beside what was measured here, never mixed into it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loadgen.analysis.numbers import NONE, brief, quantity
from loadgen.analysis.server import ServerLog, server_series
from loadgen.analysis.stats import Floats, Ints
from loadgen.analysis.summary import Summary
from loadgen.report.series import rounded
from loadgen.report.stages import load_label

POINTS = 300  # groups of moments of one series, each drawn by its least and its greatest value

# Figure of `StageSummary.server` -> title, unit of the value.
FIGURES: dict[str, tuple[str, str]] = {
    "running_mean": ("running, mean", "requests"),
    "running_max": ("running, max", "requests"),
    "waiting_mean": ("queued, mean", "requests"),
    "waiting_max": ("queued, max", "requests"),
    "kv_usage_mean": ("KV cache in use, mean", "1"),
    "kv_usage_max": ("KV cache in use, max", "1"),
    "prefix_hit_share": ("prompt tokens from the prefix cache", "1"),
    "preemptions": ("preemptions", "requests"),
    "server_queue_s": ("time in its queue, mean", "s"),
    "server_ttft_s": ("its own TTFT, mean", "s"),
    "server_itl_s": ("its own ITL, mean", "s"),
    "generation_tokens": ("tokens it generated", "tokens"),
    "client_generation_tokens": ("tokens received here meanwhile", "tokens"),
    "spec_acceptance_mean": ("drafted tokens accepted", "1"),
    "gpu_utilization_mean": ("GPU utilisation, mean", "1"),
    "gpu_power_w_mean": ("GPU power, mean", "W"),
    "sm_clock_hz_min": ("SM clock, min", "Hz"),
    "energy_per_output_token_j": ("energy per output token", "J"),
    "energy_per_request_j": ("energy per request", "J"),
}

# Panel of the chart: title with unit, series -> name.
PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("requests", {"running": "running", "waiting": "queued"}),
    (
        "share",
        {
            "kv_usage": "KV cache in use",
            "prefix_hit_share": "prompt tokens from the prefix cache",
            "spec_acceptance": "drafted tokens accepted",
            "gpu_utilization": "GPU utilisation",
        },
    ),
    ("tokens/s", {"generation_tokens_per_s": "tokens generated", "prompt_tokens_per_s": "prompt tokens processed"}),
    ("seconds", {"queue_s": "time in its queue", "ttft_s": "its own TTFT", "itl_s": "its own ITL"}),
    ("GPU power (W)", {"gpu_power_w": "GPU power"}),
    ("SM clock (Hz)", {"sm_clock_hz": "SM clock"}),
)


def table(summary: Summary) -> dict[str, Any]:
    """A row for each stage that the server's metrics cover; a column for each figure that any of them has."""
    stages = [stage for stage in summary.stages if stage.server]
    names = [name for name in FIGURES if any(name in stage.server for stage in stages)]
    rows = [
        {
            "stage": stage.info.name,
            "load": load_label(stage.info.load),
            "cells": [_text(stage.server.get(name), FIGURES[name][1]) for name in names],
        }
        for stage in stages
    ]
    return {"heads": [FIGURES[name][0] for name in names], "rows": rows}


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return NONE
    if unit in ("requests", "tokens"):
        return brief(value if value == round(value) else float(f"{value:.3g}"), "")
    return quantity(value, unit)


def panels(log: ServerLog | None) -> list[dict[str, Any]]:
    """The series that the server told, by panel; times in seconds from the run's start."""
    if log is None:
        return []
    told = server_series(log)
    found = []
    for title, names in PANELS:
        lines = [{"name": text, **_line(*told[name])} for name, text in names.items() if name in told]
        if lines:
            found.append({"title": title, "lines": lines})
    return found


def _line(seconds: Floats, values: Floats) -> dict[str, Any]:
    known = np.flatnonzero(~np.isnan(values))
    keep = known if len(known) <= 2 * POINTS else _extremes(values, known)
    return {"x": rounded(seconds[keep]), "y": rounded(values[keep])}


def _extremes(values: Floats, known: Ints) -> Ints:
    """Of each group of neighbours the least and the greatest."""
    groups = np.array_split(known, POINTS)
    return np.unique([pick for g in groups for pick in (g[np.argmin(values[g])], g[np.argmax(values[g])])])
