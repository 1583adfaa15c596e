"""Is a wrong deployment refused, and are both of two worlds listed that a client cannot tell apart?

    python -m tests.benchmarks.fit_explanations [--seeds 10] [--only TEXT]

Placebo: cells of `tests.roofline.independent` (an 8B-shaped model on one H100), said to be of another GPU or model; the
first rows say the truth, of engines as they usually are and of slow ones, and must not be refused; one that is slower
than any engine known will be, which is the price of refusing the others. Doubted: refused, or another GPU or model is
listed as more usual.
Twins: cells of the tool's own engine in one of two worlds with 2 % noise, fitted without being told which; both words
must be among the alternatives, or be what the best fit says.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from loadgen.roofline import catalog
from loadgen.roofline.cells import Cell, Protocol
from loadgen.roofline.fit import fit
from loadgen.roofline.fit_trace import cell_times
from loadgen.roofline.fitted import Fit
from loadgen.roofline.passes import Deployment, Efficiency, step_law
from loadgen.roofline.serving import EngineConfig
from tests.benchmarks.fit_recovery import DESIGN, H100, truth
from tests.benchmarks.harness import machine, table
from tests.roofline.independent import Truth, measure

TRUTH = ("h100-sxm", "llama-3.1-8b")
PLACEBOS = (
    *(("h100-sxm", shape) for shape in ("llama-3.1-70b", "qwen3-32b", "llama-2-13b", "llama-3.2-3b", "llama-3.2-1b")),
    *((gpu, "llama-3.1-8b") for gpu in ("a100-sxm-80", "l40s", "l4", "b200", "mi300x")),
)
HALF = replace(H100.shape, window=128, window_layers=H100.shape.layers // 2)
PLAIN = Efficiency(mfu=0.55, mbu=0.75, kv_mbu=0.6, attention_mfu=0.4, sharpness=2.5, step_s=2e-3, sequence_s=1e-5)


@dataclass(frozen=True)
class Twin:
    """A world and the two words that must both be told."""

    name: str
    words: tuple[str, str]
    where: Deployment = H100
    efficiency: Efficiency = PLAIN
    cached: float = 0.0


TWINS = (
    Twin("much overhead", ("overhead", "bandwidth"), efficiency=replace(PLAIN, mbu=0.9, step_s=3.2e-3)),
    Twin("slow weight reads", ("overhead", "bandwidth"), efficiency=replace(PLAIN, mbu=0.62, step_s=2e-4)),
    Twin("half of the layers with a window", ("window", "fp8_kv"), where=replace(H100, shape=HALF)),
    Twin("an fp8 KV cache", ("window", "fp8_kv"), where=replace(H100, dtypes=replace(H100.dtypes, kv="fp8"))),
    Twin("30 % of the prompts cached", ("prefix_cache", "mfu"), cached=0.3),
    Twin("MFU higher by 1 / 0.7", ("prefix_cache", "mfu"), efficiency=replace(PLAIN, mfu=0.55 / 0.7)),
    Twin("CPU-bound, overlapped", ("overlap", "added"), efficiency=replace(PLAIN, mbu=0.8, step_s=9e-3, overlap=True)),
    Twin("memory-bound", ("overlap", "added"), efficiency=replace(PLAIN, mbu=0.6, step_s=3e-4)),
)


def slow(rng: np.random.Generator) -> Truth:
    """An engine whose matrix products reach .3 to .4 of the peak."""
    return replace(truth(rng), flop_per_s=rng.uniform(0.3, 0.4) * H100.gpu.bf16_flop_per_s)


def slow_in_all(rng: np.random.Generator) -> Truth:
    """An engine that is slow in everything: weights, KV cache and launches, too."""
    bandwidth = H100.gpu.bandwidth_bytes_per_s
    rates = {"bytes_per_s": rng.uniform(0.4, 0.6) * bandwidth, "kv_bytes_per_s": rng.uniform(0.3, 0.5) * bandwidth}
    return replace(slow(rng), launch_s=rng.uniform(1e-3, 4e-3), **rates)


def slower(rng: np.random.Generator) -> Truth:
    """An engine whose matrix products reach .2 to .28 of the peak: none such has been published."""
    return replace(truth(rng), flop_per_s=rng.uniform(0.2, 0.28) * H100.gpu.bf16_flop_per_s)


TRUTHS = (
    ("as usual", truth, "not refused"),
    ("slow products", slow, "not refused"),
    ("slow in everything", slow_in_all, "not refused"),
    ("slower than any known", slower, "(the price)"),
)


def placebo(gpu: str, shape: str, real: Truth, seed: int) -> tuple[bool, bool]:
    """Whether the fit refuses; whether it refuses, or names another GPU or model as more usual for these times."""
    said = replace(H100, gpu=catalog.gpu(gpu), shape=catalog.shape(shape))
    cells = []
    for k, (prompt, output, users) in enumerate(DESIGN):
        count = max(8, 5 * users)
        ttft, itl = measure(real, prompt, output, users, count, 1000 * seed + k)
        cells.append(Cell(prompt, output, "concurrency", users, ttft, itl, said, Protocol(requests=count)))
    found = fit(cells, holdout="none", rng=np.random.default_rng(seed))
    doubted = {"other_gpu", "other_model"} & {one.name for one in found.alternatives}
    return bool(found.refused), bool(found.refused or doubted)


def told(found: Fit) -> set[str]:
    """What the fit says and what it lists beside it."""
    engine = next(iter(found.engine.values()))
    words = {one.name for one in found.alternatives}
    if "overlap" in words:
        words.add("added")
    return words | {"mfu", "overlap" if engine.law.overlap else "added"}


def twin(one: Twin, seed: int) -> set[str]:
    """The words told of one noisy set of cells from the world."""
    rng = np.random.default_rng(seed)
    engine = EngineConfig(step_law(one.where, one.efficiency), token_budget=4096, request_s=3e-3)
    cells = []
    for prompt, output, users in DESIGN:
        silent = Protocol(requests=max(8, 5 * users))
        cell = Cell(prompt, output, "concurrency", users, math.nan, math.nan, H100, silent)
        seen = replace(cell, protocol=replace(silent, cached_share=one.cached))
        ttft, itl = (value * math.exp(0.02 * rng.standard_normal()) for value in cell_times(engine, seen))
        cells.append(replace(cell, ttft_s=ttft, itl_s=itl))
    return told(fit(cells, holdout="none", rng=rng))


def rows(seeds: int, only: str) -> Iterator[tuple[str, ...]]:
    """A row for each truth, then for each placebo, then for each twin."""
    worlds = [("truth", f"{TRUTH[1]} on one {TRUTH[0]}, {name}", *TRUTH, draw, must) for name, draw, must in TRUTHS]
    worlds += [("placebo", f"{shape} on one {gpu}", gpu, shape, truth, "refused") for gpu, shape in PLACEBOS]
    for kind, name, gpu, shape, draw, must in worlds:
        if only in name:
            found = [placebo(gpu, shape, draw(np.random.default_rng(seed)), seed) for seed in range(seeds)]
            refused, doubted = (sum(column) for column in zip(*found, strict=True))
            yield kind, name, must, f"refused {refused} of {seeds}", f"{doubted} of {seeds}"
    for one in (one for one in TWINS if only in one.name):
        both = sum(set(one.words) <= twin(one, seed) for seed in range(seeds))
        yield "twin", one.name, " and ".join(one.words), f"both {both} of {seeds}", "-"


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="", help="in the row's name")
    given = parser.parse_args()
    print(machine(), "\n")
    found = []
    for row in rows(given.seeds, given.only):
        found.append(row)
        print(*row, sep=" | ", flush=True)  # a study that is stopped has said what it knew
    print(table(("kind", "world", "must be told", "told", "refused or doubted"), found))


if __name__ == "__main__":
    main()
