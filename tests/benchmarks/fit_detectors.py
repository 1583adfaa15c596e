"""Does each misfit detector fire on its own cause, and on no clean run?

    python -m tests.benchmarks.fit_detectors [--seeds 20] [--only WORD,WORD]

For each disturbance of `tests.roofline.disturbances` cells are measured in its world with 2 % noise, fitted by the real
estimator, and judged. Printed: in how many of the seeds the finding that must name it is there, and which other
findings are. The first row is the undisturbed world: any finding there is a false alarm.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from loadgen.roofline.causes import find_causes
from loadgen.roofline.cells import Cell
from loadgen.roofline.fit import fit
from loadgen.roofline.fitted import Fit
from loadgen.roofline.misfit import find_misfits
from tests.benchmarks.harness import machine, table
from tests.roofline.disturbances import DISTURBANCES
from tests.roofline.fits import World, cells

Key = tuple[object, ...]
_fits: dict[Key, Fit] = {}


def fit_of(measured: Sequence[Cell], seed: int) -> Fit:
    """The fit of these cells. Evidence does not enter it, so worlds that differ in evidence alone share one."""
    key = tuple((one.where, one.ttft_s, one.itl_s, one.protocol.cached_share, one.load) for one in measured)
    if key not in _fits:
        _fits[key] = fit(measured, holdout="none", rng=np.random.default_rng(seed))
    found = _fits[key]
    beside = tuple(replace(one, cell=cell) for one, cell in zip(found.cells, measured, strict=True))
    return replace(found, cells=beside)


def codes(world: World, seed: int) -> Counter[str]:
    """The findings of one fit; the estimator's own are among them."""
    found = fit_of(cells(world, seed), seed)
    return Counter({finding.code: 1 for finding in find_misfits(found, find_causes(found))})


def rows(seeds: int, only: str) -> Iterator[tuple[str, ...]]:
    """A row for the clean world, and one for each disturbance whose name holds a word of `only`."""
    every = [("none", "", World()), *((of.name, of.code, of.world) for of in DISTURBANCES)]
    for name, code, world in every:
        if not any(word in name for word in only.split(",")):
            continue
        seen: Counter[str] = Counter()
        for seed in range(seeds):
            seen += codes(world, seed)
        others = ", ".join(f"{other} {times}" for other, times in seen.most_common() if other != code)
        yield name, code or "-", f"{seen[code]} of {seeds}" if code else "-", others or "none"


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    print(machine(), "\n")
    found = []
    for row in rows(given.seeds, given.only):
        found.append(row)
        print(*row, sep=" | ", flush=True)  # a study that is stopped has said what it knew
    print(table(("put in", "finding", "found", "other findings"), found))


if __name__ == "__main__":
    main()
