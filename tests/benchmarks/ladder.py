"""Where the client's figures stop being true, and whether its own verdict says so.

    python -m tests.benchmarks.ladder --oracle PATH [--streams 32,256,1024] [--rates 10000,20000,40000,60000]

For each rate of token events: the error against the oracle's log beside the run's own verdict. A rate is *good* when
under 1 % of events share a receive and the p99 of the gaps is within 0.5 ms of that of the oracle's own.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from tests.benchmarks.harness import Oracle, arguments, compare, loadgen_run, machine, real_time, table

HEAD = (
    "streams",
    "events/s",
    "shared",
    "gap error p99, µs",
    "ITL p99 off, µs",
    "TTFT error p99, µs",
    "good",
    "verdict",
    "why",
    "CPU s",
    "oracle",
)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--streams", default="32,256,1024")
    parser.add_argument("--rates", default="5000,10000,20000,30000,40000,50000,60000,80000")
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    real_time()
    print(machine())
    rows: list[tuple[object, ...]] = []
    for streams in map(int, given.streams.split(",")):
        for rate in map(int, given.rates.split(",")):
            rows.extend(measure(given, streams, rate) for _ in range(given.repeats))
            print(" | ".join(map(str, rows[-1])), flush=True)
    print(table(HEAD, rows))


def measure(given: argparse.Namespace, streams: int, rate: int) -> tuple[object, ...]:
    """One rate: answers of 200 tokens (fewer where one would outlast the measurement), users staggered."""
    from loadgen.analysis.summary import summarise
    from loadgen.store.runfile import open_run

    gap_us = round(streams / rate * 1e6)
    tokens = int(max(2, min(200, given.seconds * 1e6 / gap_us)))
    requests = max(streams, round(given.seconds * rate / tokens))
    flags = ["--model", f"t{max(gap_us, 20_000)}-i{gap_us}", "--concurrency", str(streams), "--prompt-tokens", "32"]
    flags += ["--requests", str(requests), "--output-tokens", str(tokens), "--no-report"]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        with Oracle(given.oracle, given.server_core) as oracle:
            ran = loadgen_run(oracle.url, run_dir, flags, given.client_core)
        errors = compare(run_dir, oracle.log)
        summary = summarise(*open_run(run_dir))
    gap_p99 = float(np.quantile(np.abs(errors.gap), 0.99)) / 1000
    seen, true = (float(np.quantile(gaps, 0.99)) / 1000 for gaps in (errors.sent_gap + errors.gap, errors.sent_gap))
    good = errors.shared < 0.01 and abs(seen - true) < 500
    return (
        f"{streams:,}",
        f"{rate:,}",
        f"{errors.shared:.2%}",
        f"{gap_p99:,.0f}",
        f"{seen - true:+,.0f}",
        f"{np.quantile(np.abs(errors.ttft), 0.99) / 1000:,.0f}",
        "yes" if good else "no",
        summary.verdict,
        ", ".join(sorted({found.code for found in summary.findings if found.severity != "info"})) or "-",
        f"{ran.cpu_s:.1f}",
        oracle.lateness.removeprefix("send lateness "),
    )


if __name__ == "__main__":
    main()
