"""Speed of the compiled serving simulator: a sweep of closed-loop load points, and an hour of open loop.

    python -m tests.benchmarks.serving

Targets, on one core after warm-up: 60 closed-loop points (up to 256 users, 10 requests each) under 0.5 s; an hour of
50 requests/s under 2 s.
"""

from __future__ import annotations

import time

import numpy as np

from loadgen.roofline import catalog
from loadgen.roofline.passes import LITERATURE, Deployment, step_law
from loadgen.roofline.precision import Dtypes
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.serving_fast import simulate_closed, simulate_open

USERS = (1, 2, 3, 4, 8, 12, 16, 33, 64, 96, 128, 256)
LENGTHS = ((128, 128), (1000, 1000), (2000, 200), (8000, 1000), (200, 1000))


def sweep(config: EngineConfig, rng: np.random.Generator) -> int:
    """60 load points with lengths uniform in [0.8, 1] x nominal; the steps simulated."""
    steps = 0
    for users in USERS:
        for nominal in LENGTHS:
            prompts, outputs = (rng.integers(int(0.8 * length), length + 1, 10 * users) for length in nominal)
            steps += simulate_closed(config, users, prompts, outputs).steps
    return steps


def hour(config: EngineConfig, rng: np.random.Generator) -> int:
    """An hour of Poisson arrivals at 50 requests/s, 1,000 -> 200 tokens, on 4 GPUs' worth of replica."""
    arrivals = np.cumsum(rng.exponential(1 / 50, 180_000))
    return simulate_open(config, arrivals, 1000, 200).steps


def main() -> None:
    """Print CPU seconds, best and median of five."""
    where = Deployment(catalog.gpu("h100"), 1, catalog.shape("llama-3.1-8b"), Dtypes())
    config = EngineConfig(step_law(where, LITERATURE), kv_tokens=where.kv_capacity_tokens())
    fourfold = EngineConfig(
        step_law(Deployment(where.gpu, 4, where.shape, where.dtypes), LITERATURE), max_sequences=512
    )
    began = time.process_time()
    simulate_closed(config, 1, [10], [10])
    print(f"warm-up (compiling, or loading what was compiled): {time.process_time() - began:.2f} s of CPU")
    for name, work, engine in (("60 closed-loop points", sweep, config), ("an hour at 50 req/s", hour, fourfold)):
        spent = []
        for seed in range(5):
            began = time.process_time()
            steps = work(engine, np.random.default_rng(seed))
            spent.append(time.process_time() - began)
        print(f"{name}: best {min(spent):.3f} s, median {np.median(spent):.3f} s of CPU, {steps:,} steps")


if __name__ == "__main__":
    main()
