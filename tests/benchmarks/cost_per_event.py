"""What one token event costs the client, from one stream to two thousand.

    python -m tests.benchmarks.cost_per_event --oracle PATH [--rate 10000] [--tokens 100]

The rate of events, the number of requests and the length of the answers are the same for every number of streams, so
only that changes. CPU is that of the stage (start-up and report are not in it), and holds the sends, the opening of the
connections and the decoding of the answers, too.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import numpy as np

from tests.benchmarks.harness import Oracle, arguments, loadgen_run, machine, real_time, table


def main() -> None:
    from loadgen.analysis.frame import FLAG_BITS
    from loadgen.store.runfile import open_run

    parser = arguments(__doc__ or "")
    parser.add_argument("--rate", type=float, default=10_000.0)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--streams", default="1,10,100,500,1000,2000")
    given = parser.parse_args()
    real_time()
    print(machine())
    rows = []
    for streams in map(int, given.streams.split(",")):
        gap_us = round(streams / given.rate * 1e6)
        flags = ["--model", f"t{gap_us}-i{gap_us}", "--concurrency", str(streams), "--requests", str(given.requests)]
        flags += ["--prompt-tokens", "32", "--output-tokens", str(given.tokens), "--no-report"]
        costs, events = [], 0
        for _ in range(given.repeats):
            with tempfile.TemporaryDirectory() as folder, Oracle(given.oracle, given.server_core, log=False) as oracle:
                run_dir = Path(folder) / "run"
                loadgen_run(oracle.url, run_dir, flags, given.client_core)
                info, found = open_run(run_dir)
            measured = found.flags & FLAG_BITS["warmup"] == 0
            events = int(np.diff(found.event_offset)[measured].sum())
            costs.append(info.stages[0].health["client_cpu_s"] / events * 1e6)
        rows.append((f"{streams:,}", f"{events:,}", f"{statistics.median(costs):.1f}"))
        print(rows[-1], flush=True)
    print(table(("streams", "events", "CPU per event, µs"), rows))


if __name__ == "__main__":
    main()
