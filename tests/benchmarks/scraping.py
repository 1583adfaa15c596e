"""The error of TTFT and gaps with the server's metrics read once a second, and without.

    python -m tests.benchmarks.scraping --oracle PATH [--repeats 3] [--streams 256] [--page FILE]

The page is a recorded one of vLLM (33 kB; --page takes another), served beside the oracle on its core. Runs with and
without it take turns, so that whatever else the machine does meets both.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.benchmarks.harness import (
    Errors,
    Oracle,
    arguments,
    compare,
    loadgen_run,
    machine,
    pinned,
    quantiles_us,
    real_time,
    table,
)

PAGE = Path(__file__).parents[1] / "engine" / "fixtures" / "vllm.metrics.txt"
_PATIENCE_S = 10.0


@contextmanager
def page_at(file: Path, core: int) -> Iterator[str]:
    """The URL of a server of that one page."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "metrics").write_bytes(file.read_bytes())
        command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "-d", folder]
        with subprocess.Popen(
            pinned(command, core), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as child:
            assert child.stdout is not None
            port = child.stdout.readline().split(" port ")[1].split()[0]
            url = f"http://127.0.0.1:{port}/metrics"
            limit = time.monotonic() + _PATIENCE_S
            while True:
                try:
                    urllib.request.urlopen(url, timeout=1).close()
                    break
                except OSError:
                    if time.monotonic() > limit:
                        raise
                    time.sleep(0.05)
            try:
                yield url
            finally:
                child.terminate()


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    real_time()
    found: dict[str, list[Errors]] = {"off": [], "on": []}
    readings = 0
    with page_at(given.page, given.server_core) as url:
        for _ in range(given.repeats):
            for name, metrics in (("off", "off"), ("on", url)):
                flags = ["--model", "t50000-i10000", "--concurrency", str(given.streams), "--metrics", metrics]
                flags += ["--requests", str(given.streams * given.rounds), "--output-tokens", "200"]
                flags += ["--prompt-tokens", "32", "--burst-start", "--no-report"]
                with tempfile.TemporaryDirectory() as folder:
                    run_dir = Path(folder) / "run"
                    with Oracle(given.oracle, given.server_core) as oracle:
                        loadgen_run(oracle.url, run_dir, flags, given.client_core)
                    found[name].append(compare(run_dir, oracle.log))
                    log = run_dir / "server.jsonl"
                    readings += len(log.read_bytes().splitlines()) if log.exists() else 0
    rows = []
    for name, errors in found.items():
        ttft, gap = (np.concatenate([getattr(one, kind) for one in errors]) for kind in ("ttft", "gap"))
        shared = float(np.mean([one.shared for one in errors]))
        rows.append((name, *quantiles_us(ttft, (0.5, 0.99)), *quantiles_us(np.abs(gap), (0.5, 0.99, 0.999)), shared))
    print(machine(), f"; {readings} readings of a page of {given.page.stat().st_size / 1e3:.0f} kB\n")
    head = ("scraping", "TTFT error p50, µs", "p99, µs", "gap error p50, µs", "p99, µs", "p99.9, µs", "shared receives")
    print(table(head, [(*row[:-1], f"{row[-1]:.2%}") for row in rows]))


if __name__ == "__main__":
    main()
