"""Every TTFT and every gap of a run against the oracle's own log: the distribution of the error.

    python -m tests.benchmarks.oracle_truth --oracle PATH [--streams 256] [--rounds 3] [--tokens 200]

The default is 256 users, 10 ms gaps, 50 ms TTFT, 200 tokens, three rounds, all started at once: 25,600 events/s.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from tests.benchmarks.harness import Oracle, arguments, compare, loadgen_run, machine, quantiles_us, real_time, table


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--ttft-us", type=int, default=50_000)
    parser.add_argument("--gap-us", type=int, default=10_000)
    parser.add_argument("--staggered", action="store_true", help="spread the start instead of a burst")
    parser.add_argument("--report", action="store_true", help="write the HTML report, too")
    given = parser.parse_args()
    flags = ["--model", f"t{given.ttft_us}-i{given.gap_us}", "--concurrency", str(given.streams)]
    flags += ["--requests", str(given.streams * given.rounds), "--output-tokens", str(given.tokens)]
    flags += ["--prompt-tokens", "32", *([] if given.staggered else ["--burst-start"])]
    flags += [] if given.report else ["--no-report"]
    real_time()
    print(machine())
    for _ in range(given.repeats):
        with tempfile.TemporaryDirectory() as folder:
            run_dir = Path(folder) / "run"
            with Oracle(given.oracle, given.server_core) as oracle:
                ran = loadgen_run(oracle.url, run_dir, flags, given.client_core)
            errors = compare(run_dir, oracle.log)
        rows = [
            ("TTFT", len(errors.ttft), *quantiles_us(errors.ttft)),
            ("gap", len(errors.gap), *quantiles_us(errors.gap)),
            ("gap, absolute", len(errors.gap), *quantiles_us(np.abs(errors.gap))),
            ("arrival stamp", len(errors.arrival), *quantiles_us(errors.arrival)),
        ]
        print()
        print(table(("error, µs", "n", "min", "p1", "p50", "p99", "max"), rows))
        print(
            f"\nshared receives {errors.shared:.2%}; client CPU {ran.cpu_s:.2f} s (start-up included), wall "
            f"{ran.wall_s:.1f} s, {ran.rss_mb:.0f} MB; oracle: {oracle.lateness}"
        )


if __name__ == "__main__":
    main()
