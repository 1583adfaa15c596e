"""`loadgen plan --detect 5%`: how many requests two runs need so that `loadgen compare` shows such a change.

Knows: where a spread comes from, and how the answer is printed. Must not know: the formula (`analysis.compare_power`).
Why: "no difference shown" from two runs that are too short is no news; the number belongs before the runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.values import read_share
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.analysis.compare_sides import Cell, Side
    from loadgen.plan.schedule import StageSpec

METRICS = ("ttft", "tpot", "e2e")  # whose means are planned for
# Standard deviation over mean of single requests where no run says it: a prefill that waits for others, a batch that
# changes. Spread of the lengths comes on top.
ASSUMED = {"ttft": 0.3, "tpot": 0.1}


def show(
    specs: Sequence[StageSpec], facts: Sequence[dict[str, Any]], detect: str | None, like: str | None, form: str
) -> None:
    """Print the answer for every stage. Raises UsageError."""
    if detect is None:
        raise UsageError("needs --detect", where=f"--like {like}", do="give --detect 5%")
    share = read_share("--detect", detect)
    run = None if like is None else _open(Path(like))
    found = [stage_needs(spec, fact, share, run, len(specs)) for spec, fact in zip(specs, facts, strict=True)]
    if form == "json":
        click.echo(json.dumps({"detect": share, "like": like, "stages": found}, indent=2, ensure_ascii=False))
        return
    if run is not None and run.summary is not None:
        for doubt in (f for f in run.summary.findings if f.severity != "info"):
            click.echo(f"{run.name} is {run.summary.verdict.upper()}, and so is its spread: {doubt.message}")
    for one in found:
        for line in _lines(one, share):
            click.echo(line)
    click.echo(
        "So many in each of two runs of these stages: 9 times in 10 `loadgen compare` then shows it. Runs with one "
        "--seed send the same requests and need fewer where lengths or arrivals vary."
    )


def stage_needs(spec: StageSpec, facts: dict[str, Any], share: float, run: Side | None, stages: int) -> dict[str, Any]:
    """What one stage needs, in plain values: for each metric its spread, whose it is, and the requests."""
    from loadgen.analysis.compare import VERDICTS_PER_CELL
    from loadgen.analysis.compare_power import needed_requests

    cell = None if run is None else _like(spec, run)
    needs: dict[str, dict[str, Any]] = {}
    for metric in METRICS:
        seen = _measured(cell, metric)
        spread = _assumed(metric, facts) if math.isnan(seen) else seen
        requests = needed_requests(spread, share, verdicts=stages * VERDICTS_PER_CELL)
        source = "assumed" if math.isnan(seen) else "measured"
        needs[metric] = {"spread": round(spread, 4), "source": source, "requests": requests}
    return {
        "stage": spec.name,
        "planned": spec.requests,
        "mean": needs,
        "requests": max(one["requests"] for one in needs.values()),
    }


def _open(path: Path) -> Side:
    from loadgen.analysis.compare_sides import side_of_run
    from loadgen.report.render import load

    return side_of_run(path.name, load(path))


def _like(spec: StageSpec, run: Side) -> Cell | None:
    """The stage of the run with this workload and load; failing that, with this workload."""
    name = "+".join(workload.name for workload, _ in spec.mix)
    same = [cell for cell in run.cells if cell.workload == name and cell.load.kind == spec.load.kind]
    return min(same, key=lambda cell: abs(math.log(cell.load.value / spec.load.value)), default=None)


def _measured(cell: Cell | None, metric: str) -> float:
    """The spread that a run had; NaN where it has none."""
    from loadgen.analysis.compare import meant
    from loadgen.analysis.compare_stats import relative_spread

    if cell is None or cell.measured is None:
        return math.nan
    return relative_spread(cell.measured, meant(metric, cell), "mean")


def _assumed(metric: str, facts: dict[str, Any]) -> float:
    """The assumed spread, with that of the lengths that the plan draws: prompts make TTFT, answers the rest of e2e."""
    if metric == "e2e":
        return math.hypot(ASSUMED["tpot"], _of_lengths(facts["output_tokens"]))
    lengths = _of_lengths(facts["prompt_tokens"]) if metric == "ttft" else 0.0
    return math.hypot(ASSUMED[metric], lengths)


def _of_lengths(spread: dict[str, float] | None) -> float:
    return 0.0 if spread is None or not spread["mean"] > 0.0 else spread["sd"] / spread["mean"]


def _lines(one: dict[str, Any], share: float) -> list[str]:
    planned = "as many as its time allows" if one["planned"] is None else f"{one['planned']:,} requests"
    enough = one["planned"] is not None and one["planned"] >= one["requests"]
    verdict = "enough" if enough else f"give --requests {one['requests']}"
    head = f"{one['stage']}: {planned} planned; to show a change of {share * 100:.3g} % in every mean: {verdict}"
    return [head] + [
        f"  {metric:<5} {need['requests']:>9,} requests, at a spread of {need['spread']:.3g} ({need['source']})"
        for metric, need in one["mean"].items()
    ]
