"""What five mechanisms of a serving engine look like when measured: runs, figures and charts of docs/signatures.md.

    python -m tests.benchmarks.signatures [NAME ...] [--charts docs/signatures]

Each mechanism is measured twice with the real client against `loadgen simulate`, without it and with it, all else
alike. Prints a table for each, and writes both measurements of the telling chart into one picture (needs playwright's
chromium). The same signatures are asserted in virtual time by `tests/roofline/test_serving.py`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import loadgen
from tests.benchmarks.harness import machine, real_time, table

if TYPE_CHECKING:
    import plotly.graph_objects as go

_WIDTH, _HEIGHT = 760, 330


@dataclass(frozen=True, slots=True)
class Signature:
    """One mechanism: names and flags of `loadgen simulate` without and with it, flags of `loadgen run`, the chart (a
    metric whose distribution is drawn; "" for curves over the load)."""

    name: str
    sides: tuple[tuple[str, str], tuple[str, str]]
    run: str
    metric: str


_PREFIX = "{name: shared, kind: chat, prompt_tokens: 3500, output_tokens: 50, shared_prefix_tokens: 3000}"
SIGNATURES = (
    Signature(
        "prefill",
        (("chunks of 512 tokens", "--token-budget 512"), ("whole prompts", "--whole-prompts")),
        "--concurrency 8 --prompt-tokens uniform:200..8000 --output-tokens 100 --requests 64",
        "chunk_gap",
    ),
    Signature(
        "batch-cap",
        (("at most 256 sequences", ""), ("at most 8 sequences", "--max-sequences 8")),
        "--concurrency 1,2,4,8,16,32 --prompt-tokens 500 --output-tokens 100 --duration 5s",
        "",
    ),
    Signature(
        "kv-cache",
        (("KV cache of the GPU's memory", ""), ("KV cache of 12,000 tokens", "--kv-tokens 12000")),
        "--concurrency 16 --prompt-tokens 500 --output-tokens 600 --requests 48",
        "chunk_gap",
    ),
    Signature(
        "prefix-cache",
        (("no prefix cache", ""), ("prefix cache", "--prefix-cache")),
        "-w WORKLOAD --concurrency 4 --requests 64",
        "ttft",
    ),
    Signature(
        "speculation",
        (("one token a step", ""), ("4 drafted tokens", "--draft-tokens 4 --acceptance 0.7")),
        "--concurrency 4 --prompt-tokens 500 --output-tokens 200 --requests 48",
        "tpot",
    ),
)


@contextmanager
def simulator(flags: str) -> Iterator[str]:
    """`loadgen simulate` as a user starts it; its URL."""
    command = [sys.executable, "-m", "loadgen", "simulate", *flags.split()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def measure(signature: Signature, folder: Path) -> list[loadgen.Run]:
    """Both runs of a mechanism."""
    (folder / "w.yaml").write_text(_PREFIX)
    runs = []
    for number, (_, flags) in enumerate(signature.sides):
        path = folder / f"{signature.name}-{number}"
        given = signature.run.replace("WORKLOAD", str(folder / "w.yaml")).split()
        with simulator(flags) as url:
            command = [sys.executable, "-m", "loadgen", "run", url, *given, "--no-report", "-o", str(path)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        runs.append(loadgen.open_run(path))
    return runs


def rows(signature: Signature, runs: Sequence[loadgen.Run]) -> list[tuple[str, ...]]:
    """A line for each stage of both runs."""
    found = []
    for (name, _), run in zip(signature.sides, runs, strict=True):
        for stage in run.summary.stages:

            def ms(metric: str, stat: str, stage: Any = stage) -> str:
                value = stage.get(metric, stat)
                return "n/a" if value is None or value.value is None else f"{value.value * 1e3:,.1f}"

            rate = stage.get("output_tokens_per_s", "rate")
            latencies = [ms(*one) for one in _SHOWN]
            told = [f"{stage.server.get(key, 0.0):,.0f}" for key in ("preemptions",)]
            cached = stage.measured.columns.cached_tokens
            share = np.nansum(cached) / stage.measured.columns.prompt_tokens.sum()
            found.append((name, stage.info.name, *latencies, f"{rate.value:,.0f}", *told, f"{share:.0%}", run.verdict))
    return found


_SHOWN = (
    ("ttft", "p50"),
    ("ttft", "p99"),
    ("tpot", "p50"),
    ("chunk_gap", "p50"),
    ("chunk_gap", "p99"),
    ("chunk_gap", "max"),
)
_HEAD = (
    "engine",
    "stage",
    *(f"{metric} {stat}, ms" for metric, stat in _SHOWN),
    "tokens/s",
    "preempted",
    "cached",
    "verdict",
)


def figure(signature: Signature, runs: Sequence[loadgen.Run]) -> go.Figure:
    """The report's chart of both runs over each other; curves over the load where there is no metric."""
    import plotly.graph_objects as go

    colours = ("#0072b2", "#d55e00")
    if not signature.metric:
        return _over_load(signature, runs)
    drawn = go.Figure()
    for (name, _), run, colour in zip(signature.sides, runs, colours, strict=True):
        chart = run.figures.distribution(run.summary.stages[0].info.workload, signature.metric)
        for trace in chart.data:
            drawn.add_trace(trace.update(name=name, line={"color": colour}, showlegend=True))
        drawn.update_layout(chart.layout)
    return drawn


def _over_load(signature: Signature, runs: Sequence[loadgen.Run]) -> go.Figure:
    from plotly.subplots import make_subplots

    drawn = make_subplots(rows=1, cols=2, subplot_titles=("TTFT p50, ms", "TPOT p50, ms"))
    for (name, _), run, colour in zip(signature.sides, runs, ("#0072b2", "#d55e00"), strict=True):
        users = [stage.info.load.value for stage in run.summary.stages]
        for column, metric in enumerate(("ttft", "tpot"), 1):
            values = [stage.get(metric, "p50") for stage in run.summary.stages]
            y = [None if v is None or v.value is None else v.value * 1e3 for v in values]
            line = {"color": colour}
            drawn.add_scatter(x=users, y=y, name=name, line=line, row=1, col=column, showlegend=column == 1)
    drawn.update_xaxes(title="users")
    return drawn


def write_picture(drawn: go.Figure, path: Path) -> None:
    """The figure as a PNG of some ten kilobytes."""
    from playwright.sync_api import sync_playwright

    layout = {"orientation": "h", "y": -0.32}
    drawn.update_layout(
        width=_WIDTH,
        height=_HEIGHT,
        template="plotly_white",
        title=None,
        legend=layout,
        margin={"t": 30, "b": 100, "r": 20},
    )
    with sync_playwright() as browsers, tempfile.TemporaryDirectory() as folder:
        page_file = Path(folder) / "page.html"
        drawn.write_html(page_file, include_plotlyjs=True, config={"staticPlot": True})
        browser = browsers.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": _WIDTH + 16, "height": _HEIGHT + 16})
        page.goto(page_file.as_uri())
        page.wait_for_selector(".main-svg")
        page.locator(".js-plotly-plot").screenshot(path=path)
        browser.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[one.name for one in SIGNATURES])
    parser.add_argument("--charts", type=Path, help="folder for the pictures")
    parser.add_argument("--runs", type=Path, help="keep the runs there")
    given = parser.parse_args(argv)
    real_time()
    print(machine())
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.runs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for signature in (one for one in SIGNATURES if one.name in given.names):
            runs = measure(signature, folder)
            print(f"\n{signature.name}: loadgen run URL {signature.run}\n")
            print(table(_HEAD, rows(signature, runs)), flush=True)
            if given.charts is not None:
                given.charts.mkdir(parents=True, exist_ok=True)
                write_picture(figure(signature, runs), given.charts / f"{signature.name}.png")


if __name__ == "__main__":
    main()
