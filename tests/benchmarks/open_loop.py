"""How punctual sends are: a Poisson open loop of 1-token answers.

python -m tests.benchmarks.open_loop --oracle PATH [--rate 1000] [--seconds 20]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from scipy import stats

from tests.benchmarks.harness import Oracle, arguments, compare, loadgen_run, machine, quantiles_us, real_time, table


def main() -> None:
    from loadgen.store.runfile import open_run

    parser = arguments(__doc__ or "")
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    flags = ["--model", "t5000-i1000", "--rate", str(given.rate), "--duration", f"{given.seconds}s"]
    flags += ["--output-tokens", "1", "--prompt-tokens", "32", "--no-report"]
    real_time()
    print(machine())
    rows = []
    for _ in range(given.repeats):
        with tempfile.TemporaryDirectory() as folder:
            run_dir = Path(folder) / "run"
            with Oracle(given.oracle, given.server_core) as oracle:
                ran = loadgen_run(oracle.url, run_dir, flags, given.client_core)
            errors = compare(run_dir, oracle.log)
            _, requests = open_run(run_dir)
        due = np.sort(requests.scheduled_ns[~np.isnan(requests.scheduled_ns)])
        gaps = np.diff(due) * 1e-9
        fit = stats.kstest(gaps, "expon", args=(0, 1 / given.rate))
        late = quantiles_us(errors.send_late, (0.5, 0.99, 1))
        rows.append((f"{given.rate:,.0f}", len(errors.send_late), *late, f"{fit.pvalue:.2f}", f"{ran.cpu_s:.1f}"))
    head = ("requests/s", "sent", "late p50, µs", "p99", "max", "KS p of the schedule", "CPU s")
    print(table(head, rows))


if __name__ == "__main__":
    main()
