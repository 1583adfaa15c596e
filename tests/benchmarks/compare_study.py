"""How often `compare` is wrong about two runs of one server, and how often it finds a slower one.

    python -m tests.benchmarks.compare_study [--seeds 100] [--detect 0.05]

The server is the step-level engine of `loadgen.roofline` (Llama-3.1-8B on an H100), run in process: as many requests as
a real server would take hours for. Every run draws its own lengths and arrivals, and its server is a little faster or
slower than the other's (normal on the log, BETWEEN_RUNS for the two together), as two starts of one server are. How
many requests are sent is what `loadgen plan --detect` says after one pilot run of PILOT requests (`--like`).

Three comparisons for each seed: the same server; a server that takes `detect` longer for every step; the same server
with the very same requests. Only the first is held to the family's error of 5 %; "wrong" is any verdict but "no
difference shown" (or "not decidable"). A slowdown is "found" when the mean of the planned metric is worse.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from loadgen.analysis.compare import VERDICTS_PER_CELL, Versus, compare, meant
from loadgen.analysis.compare_power import needed_requests
from loadgen.analysis.compare_sides import Side, side_of_run
from loadgen.analysis.compare_stats import BETWEEN_RUNS, relative_spread
from loadgen.analysis.frame import FrameBuilder
from loadgen.analysis.summary import summarise
from loadgen.model import Exchange, Load, RunInfo, StageInfo
from loadgen.roofline import catalog
from loadgen.roofline.passes import LITERATURE, Deployment, Efficiency, step_law
from loadgen.roofline.precision import Dtypes
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.serving_fast import Served, simulate_closed, simulate_open

PILOT = 300
PLANNED = ("ttft", "tpot", "e2e")
_TOKENS_PER_EVENT = 16  # a server that streams in groups: fewer events to make up
_WHERE = Deployment(catalog.gpu("h100-sxm"), 1, catalog.shape("llama-3.1-8b"), Dtypes())
Simulate = Callable[[EngineConfig, np.random.Generator, int], Served]


@dataclass(frozen=True)
class Scenario:
    """A load, and the lengths that are asked for."""

    name: str
    load: Load
    simulate: Simulate


def _lengths(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompts about 500 tokens, answers about 100, each with a spread of a quarter."""
    return tuple(np.maximum(mean * rng.lognormal(-0.03, 0.25, n), 2).astype(np.int64) for mean in (500, 100))  # type: ignore[return-value]


def _closed(users: int) -> Simulate:
    def simulate(config: EngineConfig, rng: np.random.Generator, n: int) -> Served:
        return simulate_closed(config, users, *_lengths(rng, n), stagger_s=1.0)

    return simulate


def _open(rate: float) -> Simulate:
    def simulate(config: EngineConfig, rng: np.random.Generator, n: int) -> Served:
        return simulate_open(config, np.cumsum(rng.exponential(1.0 / rate, n)), *_lengths(rng, n))

    return simulate


SCENARIOS = (
    Scenario("closed loop, 8 users", Load("concurrency", 8.0), _closed(8)),
    Scenario("open loop, 10 requests/s", Load("rate", 10.0, "poisson"), _open(10.0)),
)


def run(scenario: Scenario, n: int, plan_seed: int, start_seed: int, slower: float = 1.0) -> Side:
    """One run of `n` requests. `plan_seed` draws lengths and arrivals, `start_seed` how fast this start of the server
    is."""
    luck = math.exp(np.random.default_rng([start_seed, 1]).normal(0.0, BETWEEN_RUNS / math.sqrt(2.0)))
    served = scenario.simulate(_engine(slower * luck), np.random.default_rng([plan_seed, 0]), n)
    builder = FrameBuilder()
    for row in _rows(served, scenario.load.kind == "rate"):
        builder.add(row)
    end = round(float(served.last_s.max()) * 1e9)
    stage = StageInfo(0, "it", "it", scenario.load, n, None, 0, 0, end, end, planned=n)
    stage.health = {"wall_s": end / 1e9, "client_cpu_s": 0.0, "kernel_stamps": 1.0}
    info = RunInfo(1, "complete", f"{plan_seed}-{start_seed}", "", seed=plan_seed, stages=[stage])
    return side_of_run(str(plan_seed), summarise(info, builder.build()))


def _engine(slower: float) -> EngineConfig:
    """The engine with every step `slower` times as long."""
    parts: Efficiency = replace(
        LITERATURE, mfu=LITERATURE.mfu / slower, mbu=LITERATURE.mbu / slower, step_s=1e-3 * slower
    )
    return EngineConfig(step_law(_WHERE, parts), kv_tokens=_WHERE.kv_capacity_tokens())


def _rows(served: Served, scheduled: bool) -> list[Exchange]:
    found = []
    for i in range(len(served.sent_s)):
        sent, first, last = (round(float(x[i]) * 1e9) for x in (served.sent_s, served.first_s, served.last_s))
        output = int(served.output_tokens[i])
        later = -(-(output - 1) // _TOKENS_PER_EVENT)
        tokens = [1] + [_TOKENS_PER_EVENT] * later
        tokens[-1] -= sum(tokens) - output
        at = (first, *(first + (last - first) * k // later for k in range(1, later + 1)))
        found.append(
            Exchange(
                i, 0, "it", "ok", int(served.prompt_tokens[i]), output,
                scheduled_ns=sent if scheduled else None, ready_ns=sent, dispatched_ns=sent, sent_ns=sent,
                sent_end_ns=sent, headers_ns=first, end_ns=last, first_answer_ns=first, event_ns=at,
                event_tokens=tuple(tokens), http_status=200, finish_reason="length", end_seen="done",
                prompt_tokens=int(served.prompt_tokens[i]), prompt_tokens_source="usage", output_tokens=output,
                output_tokens_source="usage",
            )
        )  # fmt: skip
    return found


def needs(pilot: Side, detect: float) -> dict[str, int]:
    """What `loadgen plan --detect --like` says: requests for each planned mean."""
    cell = pilot.cells[0]
    assert cell.measured is not None
    assert not cell.invalid, cell.invalid  # else nothing is ever decided, and the table says nothing
    return {
        name: needed_requests(
            relative_spread(cell.measured, meant(name, cell), "mean"), detect, verdicts=VERDICTS_PER_CELL
        )
        for name in PLANNED
    }


def _wrong(found: Versus) -> list[str]:
    return [f"{row.metric} {row.stat}" for row in found.pairs[0].rows if row.verdict in ("better", "worse")]


def study(scenario: Scenario, seeds: int, detect: float) -> None:
    """Print one row of the table."""
    planned = needs(run(scenario, PILOT, 10_000, 10_000), detect)
    n = max(planned.values())
    right, found, twins, worse = 0, 0, 0, dict.fromkeys(PLANNED, 0)
    for seed in range(seeds):
        base = run(scenario, n, seed, seed)
        again, slow = (
            run(scenario, n, 20_000 + seed, 20_000 + seed),
            run(scenario, n, 30_000 + seed, 30_000 + seed, 1.0 + detect),
        )
        same, slower, twin = compare(base, [again, slow, run(scenario, n, seed, 40_000 + seed)])
        right += not _wrong(same)
        twins += not _wrong(twin)
        verdicts = {row.metric: row.verdict for row in slower.pairs[0].rows if row.stat == "mean"}
        shown = {name: verdicts[meant(name, base.cells[0]).name] == "worse" for name in PLANNED}
        found += all(shown.values())
        worse = {name: worse[name] + shown[name] for name in PLANNED}
    asked = ", ".join(f"{name} {count:,}" for name, count in planned.items())
    by = ", ".join(f"{name} {count}" for name, count in worse.items())
    print(f"| {scenario.name} | {asked} | {n:,} | {right} | {twins} | {found} ({by}) |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--detect", type=float, default=0.05)
    arguments = parser.parse_args()
    print(
        f"{arguments.seeds} seeds, {VERDICTS_PER_CELL} figures in each comparison, slower by {arguments.detect:.0%}\n"
    )
    heads = ("load", "needed for each mean", "requests in each run", "same server: no difference", "... same requests")
    print(f"| {' | '.join(heads)} | slower: found in all three means (each) |")
    print("|---|---|---:|---:|---:|---:|")
    for scenario in SCENARIOS:
        study(scenario, arguments.seeds, arguments.detect)


if __name__ == "__main__":
    main()
