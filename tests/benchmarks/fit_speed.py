"""How long does a fit of 60 cells take, everything included that `loadgen fit` does with them?

    python -m tests.benchmarks.fit_speed [--ratio 0.8] [--untold] [--profile]

The cells: prompts of 128 to 8,192 tokens, 1 to 128 users, ten requests a user, answers of 128 tokens, measured with 2 %
noise on an engine of the tool's own that has a batch cap and one H100's memory. With `--ratio` requests differ in
length, with `--untold` the fit has to find out whether the opening burst counts: both take longer. Intervals, every
second cell held out, alternatives, causes and remedies are in the time; the table itself, imports and - where nothing
was compiled yet - the compiling are told apart. The digest of all estimates says whether a change of the code has moved
a figure.
"""

from __future__ import annotations

import argparse
import cProfile
import hashlib
import itertools
import math
import pstats
import time
from dataclasses import replace

import numpy as np

from loadgen.roofline.account import Account, account
from loadgen.roofline.cells import Cell, Protocol
from loadgen.roofline.fit import fit
from loadgen.roofline.fit_trace import cell_times
from loadgen.roofline.passes import Efficiency, step_law
from loadgen.roofline.serving import EngineConfig
from tests.benchmarks.fit_recovery import H100
from tests.benchmarks.harness import machine

PROMPTS = (128, 512, 1024, 2048, 4096, 8192)
USERS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 128)
PER_USER = 10
ENGINE = EngineConfig(
    step_law(H100, Efficiency(0.55, 0.75, 0.65, 0.4, sharpness=2.5, step_s=2e-3, sequence_s=1e-5)),
    token_budget=4096,
    max_sequences=96,
    kv_tokens=H100.kv_capacity_tokens(),
    request_s=4e-3,
)


def cells(ratio: float = 1.0, told: bool = True) -> list[Cell]:
    """The 60 cells. `ratio`: of the shortest to the longest prompt and answer; `told`: how many requests were sent."""
    rng = np.random.default_rng(60)
    found = []
    for prompt in PROMPTS:
        for users in USERS:
            protocol = Protocol(PER_USER * users if told else None, ratio)
            cell = Cell(prompt, 128, "concurrency", users, math.nan, math.nan, H100, protocol)
            ttft, itl = np.array(cell_times(ENGINE, cell)) * np.exp(0.02 * rng.standard_normal(2))
            found.append(replace(cell, ttft_s=float(ttft), itl_s=float(itl)))
    return found


def digest(found: Account) -> str:
    """A short word for all estimates: the same where every figure agrees to four digits."""
    told = [f"{one.name} {one.value:.3e} {one.low:.3e} {one.high:.3e}" for one in found.fit.parameters]
    told += [f"{one.name} {one.gain:.3e} {one.low:.3e}" for one in found.remedies]
    told += [f"{one.name} {one.loss_ratio:.3e}" for one in found.fit.alternatives]
    if (held := found.fit.held_out) is not None:
        told.append(f"{held.ttft:.3e} {held.itl:.3e} {held.ttft_p90:.3e} {held.itl_p90:.3e}")
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]


def main() -> None:
    """Print wall and CPU seconds of each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="where the time goes, too")
    parser.add_argument("--ratio", type=float, default=1.0, help="shortest prompt and answer / longest")
    parser.add_argument("--untold", action="store_true", help="the table does not say how many requests were sent")
    given = parser.parse_args()
    print(machine(), "\n")
    clocks = [("", time.perf_counter(), time.process_time())]

    def note(name: str) -> None:
        clocks.append((name, time.perf_counter(), time.process_time()))

    measured = cells(given.ratio, not given.untold)
    note("the table")
    profile = cProfile.Profile()
    if given.profile:
        profile.enable()
    made = fit(measured, rng=np.random.default_rng(0))
    note("fit")
    found = account(made)
    note("causes, findings, remedies")
    profile.disable()
    for (_, wall, cpu), (name, later, more) in itertools.pairwise(clocks):
        print(f"{name}: {later - wall:.1f} s, {more - cpu:.1f} s of CPU")
    (_, wall, cpu), (_, later, more) = clocks[1], clocks[-1]
    print(f"{len(measured)} cells in all: {later - wall:.1f} s, {more - cpu:.1f} s of CPU; estimates {digest(found)}")
    if given.profile:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
