"""Are known parameters found again, and do 90 % intervals hold them? An engine of another make, many seeds.

    python -m tests.benchmarks.fit_recovery [--seeds 100]

The cells are those of the `roofline` experiment in small, on `tests.roofline.independent`: an 8B-shaped model on one
H100 at parameters drawn anew for each seed. Printed for MFU, the floor of a decode step, the cost of a context token
and the batch cap: the median and the 90th percentile of the error, how many of the intervals hold the truth, their
median width (high / low - 1).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

import numpy as np

from loadgen.roofline import catalog
from loadgen.roofline.cells import Cell, Protocol
from loadgen.roofline.fit import fit
from loadgen.roofline.passes import Deployment
from loadgen.roofline.precision import Dtypes
from tests.benchmarks.harness import machine, table
from tests.roofline.independent import Truth, measure

H100 = Deployment(catalog.gpu("h100-sxm"), 1, catalog.shape("llama-3.1-8b"), Dtypes())
CAPPED = 24
DESIGN = (
    *((s, 16, 1) for s in (128, 512, 2048, 8192, 16384)),
    *((s, 128, 1) for s in (128, 8192)),
    *((128, 128, c) for c in (2, 4, 12, 33, 64)),
    *((2048, 128, c) for c in (4, 16, 48)),
    *((8192, 64, c) for c in (4, 16)),
)


def truth(rng: np.random.Generator) -> Truth:
    """An engine drawn for one seed."""
    shape, gpu = H100.shape, H100.gpu
    return Truth(
        flops_per_token=2.0 * shape.active_params,
        flops_per_pair=float(shape.attention_flops_prefill),
        weight_bytes=2.0 * (shape.active_params + shape.head_params),
        kv_bytes_per_token=2.0 * shape.kv_elements,
        flop_per_s=rng.uniform(0.4, 0.7) * gpu.bf16_flop_per_s,
        bytes_per_s=rng.uniform(0.6, 0.85) * gpu.bandwidth_bytes_per_s,
        kv_bytes_per_s=rng.uniform(0.4, 0.8) * gpu.bandwidth_bytes_per_s,
        launch_s=rng.uniform(0.5e-3, 2.5e-3),
        cap=CAPPED,
    )


def one(seed: int) -> Iterator[tuple[str, float, float, float, float]]:
    """(name, truth, value, low, high) of one seed's fit; the value is the middle of the range where there is none."""
    real = truth(np.random.default_rng(seed))
    cells = []
    for k, (prompt, output, users) in enumerate(DESIGN):
        count = max(8, 5 * users)
        ttft, itl = measure(real, prompt, output, users, count, 1000 * seed + k)
        cells.append(Cell(prompt, output, "concurrency", users, ttft, itl, H100, Protocol(requests=count)))
    found = {p.name: p for p in fit(cells, holdout="none", rng=np.random.default_rng(seed)).parameters}
    wanted = {
        "mfu": real.flop_per_s / H100.gpu.bf16_flop_per_s,
        "floor_s": real.step([0], []),
        "kv_token_s": real.kv_bytes_per_token / real.kv_bytes_per_s,
        "batch_cap": float(CAPPED),
    }
    for name, value in wanted.items():
        got = found.get(name)
        if got is None:
            yield name, value, math.nan, math.nan, math.nan
            continue
        middle = got.value if got.identified else math.sqrt(got.low * got.high)
        yield name, value, middle, got.low, got.high


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    given = parser.parse_args()
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for seed in range(given.seeds):
        for name, *numbers in one(seed):
            found.setdefault(name, []).append(tuple(numbers))  # type: ignore[arg-type]
    rows = []
    for name, numbers in found.items():
        real, value, low, high = np.array(numbers).T
        off = np.abs(value / real - 1)
        held = int(np.sum((low <= real) & (real <= high)))
        width = float(np.median(high / low - 1))
        rows.append(
            (name, f"{np.median(off):.1%}", f"{np.quantile(off, 0.9):.1%}", f"{held} of {len(off)}", f"{width:.0%}")
        )
    print(machine(), "\n")
    print(table(("parameter", "median error", "p90", "90 % interval holds it", "median width"), rows))


if __name__ == "__main__":
    main()
