"""How well the time that a gateway adds is told from the server's: a gateway of known delay before the simulator.

    python -m tests.benchmarks.attribution [--delays 0,5,30,100] [--users 4]

The delay is what the gateway itself measured (from a request's last byte to passing it on), the attribution is the
finding's number: client TTFT less the server's own TTFT, both means over the same requests.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from loadgen.analysis.measured import measure, row_facts
from loadgen.analysis.server_stage import Client, ServerStage
from loadgen.analysis.trust_server import outside_engine_s
from loadgen.simulator.process import SimulatorProcess
from loadgen.store.runfile import open_run
from loadgen.store.serverfile import read_server
from tests.benchmarks.harness import loadgen_run, machine, real_time, table
from tests.gateway import gateway


def attributed_s(run_dir: Path) -> float:
    """The time outside the engine that a run attributes; nan where it does not."""
    info, requests = open_run(run_dir)
    facts, log = row_facts(requests), read_server(run_dir)
    assert log is not None
    found = outside_engine_s(ServerStage(log, Client(requests, facts), measure(info.stages[0], requests, facts, 0)))
    return float("nan") if found is None else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delays", default="0,5,30,100")
    parser.add_argument("--users", type=int, default=4)
    given = parser.parse_args()
    real_time()
    rows = []
    count = 20 * given.users
    flags = ["-w", "chat", "--prompt-tokens", "500", "--output-tokens", "30", "--concurrency", str(given.users)]
    flags += ["--requests", str(count), "--no-report"]
    with SimulatorProcess() as simulator:
        for delay in map(float, given.delays.split(",")):
            with gateway(simulator.url, delay_s=delay * 1e-3) as between, tempfile.TemporaryDirectory() as folder:
                loadgen_run(between.url, Path(folder) / "run", flags)
                found = attributed_s(Path(folder) / "run") * 1e3
            waited = float(np.mean(between.waited_s[-count:])) * 1e3
            rows.append((f"{delay:g}", f"{waited:.2f}", f"{found:.2f}", f"{found - waited:+.2f}"))
    print(machine(), "\n")
    print(table(("delay asked, ms", "measured by the gateway, ms", "attributed, ms", "difference, ms"), rows))


if __name__ == "__main__":
    main()
