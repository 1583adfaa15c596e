"""The client against the null endpoint: `python -m tests.benchmarks [--repeats 5] [--seconds 2]` (`make bench`).

Each cell is the median over the repeats. Nothing outside this project is needed; the comparison with an independent
server is in `oracle_truth` and its siblings.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Sequence

from loadgen.simulator.null import NullEndpoint
from loadgen.simulator.selfcheck import OpenLoop, Trial, on_core, run_open_loop, run_trial
from tests.benchmarks.harness import machine, table

# Streams and token events per second.
GRID = ((1, 1_000), (32, 5_000), (32, 20_000), (256, 25_600), (256, 40_000), (1024, 20_000), (1024, 40_000))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("one core only: client and server disturb each other, and what follows is a lower bound")
    print(machine(), "\n")
    with on_core(cores[0]), NullEndpoint(cores[-1] if len(cores) > 1 else None) as null:
        rows = []
        for streams, rate in GRID:
            trials = [run_trial(null, streams, rate, given.seconds) for _ in range(given.repeats)]
            rows.append(_row(streams, rate, trials))
        loops = [run_open_loop(null, given.seconds)[0] for _ in range(given.repeats)]
    head = ("streams", "events/s asked", "sent", "shared", "ITL error p99, µs", "stamp error p50, µs", "p99, µs", "CPU")
    print(table((*head, "CPU per event, µs"), rows), "\n")
    print(table(("open loop, requests/s", "late p50, µs", "p99, µs", "max, µs", "failed"), [_loop(loops)]))


def _row(streams: int, rate: int, trials: Sequence[Trial]) -> tuple[str, ...]:
    def median(value: Callable[[Trial], float | None], digits: int = 0, unit: float = 1.0) -> str:
        known = [found for found in map(value, trials) if found is not None]
        return f"{statistics.median(known) * unit:,.{digits}f}" if known else "n/a"

    return (
        f"{streams:,}",
        f"{rate:,}",
        median(lambda t: t.rate_per_s),
        median(lambda t: t.shared, 2, 100.0) + " %",
        median(lambda t: t.gap_error_p99_ns, 1, 1e-3),
        median(lambda t: t.stamp_error_p50_ns, 1, 1e-3),
        median(lambda t: t.stamp_error_p99_ns, 1, 1e-3),
        median(lambda t: t.client_cpu, 0, 100.0) + " %",
        median(lambda t: t.client_cpu / t.rate_per_s if t.rate_per_s else None, 1, 1e6),
    )


def _loop(loops: Sequence[OpenLoop]) -> tuple[str, ...]:
    late = (
        statistics.median(values) / 1000
        for values in zip(*((x.late_p50_ns, x.late_p99_ns, x.late_max_ns) for x in loops), strict=True)
    )
    failed = sum(x.failed for x in loops)
    return f"{loops[0].rate_per_s:,.0f}", *(f"{value:,.0f}" for value in late), str(failed)


if __name__ == "__main__":
    main()
