"""The fit on published measurements: held-out error of each deployment, beside interpolation and regression.

    python -m tests.benchmarks.fit_published [--holdout alternate] [--only H100-SXM,] TABLE.csv [TABLE.csv ...]

Tables are in the tidy form of `tests.benchmarks.published`; its PROTOCOLS say how each source measured. Deployments
with fewer than eight cells are left out. Integer knobs are chosen inside each fold. Nothing is chosen per source.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from loadgen.errors import UsageError
from loadgen.roofline.cells import Cell, Protocol
from loadgen.roofline.fit import by_constants, errors, hold_out, split, strays, world_of
from loadgen.roofline.fit_model import problem
from loadgen.roofline.fit_refusal import refusal
from loadgen.roofline.fit_search import Search
from tests.benchmarks.harness import machine, table
from tests.benchmarks.published import DEPLOYMENT, METRICS, PROTOCOLS, deployment

LEAST = 8
# How many requests a source sent is known of these engines alone; the others leave the opening burst open.
TOLD = ("vllm-", "trtllm")
GUESSES = ("engine_alone", "interpolation", "regression")


def read(path: str) -> Iterator[tuple[str, list[Cell]]]:
    """Each deployment of a table: its name, its cells with times."""
    rows = pd.read_csv(path, keep_default_na=False)
    for key, part in rows.groupby(DEPLOYMENT, sort=False):
        source, gpu, gpus, model, dtype, engine = (str(one) for one in key)
        told = next((p for (s, e), p in PROTOCOLS.items() if s == source and engine.startswith(e)), None)
        if told is None or told.offline:
            continue
        label = f"{gpus} x {gpu}, {model}, {dtype}, {engine}"
        where = deployment(gpu, int(gpus), model, dtype, engine)
        cells = []
        for (isl, osl, load), cell in part.groupby(["isl", "osl", "concurrency_or_batch"], sort=False):
            seen = dict(zip(cell["metric"], cell["value"], strict=True))
            times = {METRICS[m]: float(v) / 1e3 for m, v in seen.items() if m in METRICS}
            ttft, itl = times.get("ttft", math.nan), times.get("itl", math.nan)
            count = int(float(load)) * told.per_user if engine.startswith(TOLD) else None
            protocol = Protocol(requests=None if told.static else count, length_ratio=told.shortest)
            kind = "batch" if told.static else "concurrency"
            name = f"{isl}/{osl} at {load}"
            cells.append(Cell(float(isl), float(osl), kind, float(load), ttft, itl, where, protocol, label, name))
        yield label, cells


def row(label: str, cells: Sequence[Cell], holdout: str) -> tuple[str, ...]:
    """One deployment's line: what `fit` says of held-out cells, without its intervals and explanations."""
    rng = np.random.default_rng(0)
    try:
        whole = problem(cells)
        physics = Search(whole, world_of(whole.cells), np.arange(len(cells)), priors=True, rng=rng)
        best = physics.best()
        refused = refusal(physics, best)
        folds = split(whole.cells, holdout)  # type: ignore[arg-type]
        predicted, guesses = hold_out([physics] if refused is None else list(by_constants(physics)), folds)
    except UsageError as bad:
        return (label, str(len(cells)), str(bad), "", "", "", "", "", "")
    if not folds:
        return (label, str(len(cells)), "nothing to hold out", "", "", "", "", "", "")
    outliers = strays(best.model.residuals(best.values), best.scale)
    use = np.isin(np.arange(len(cells)), np.concatenate(folds)) & ~outliers
    off = [errors(times, whole.measured, use) for times in (predicted, *(guesses[name] for name in GUESSES))]
    both = [f"{one.ttft:.1%} / {one.itl:.1%}" for one in off]
    p90 = f"{off[0].ttft_p90:.0%} / {off[0].itl_p90:.0%}"
    failed = ", ".join(one.where for one, far in zip(whole.cells, outliers, strict=True) if far)
    return (label, str(len(cells)), both[0], p90, *both[1:], failed or "-", "refused" if refused else "-")


def medians(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """The median over deployments of each pair of errors."""
    for name, k in zip(("held out", *GUESSES), (2, 4, 5, 6), strict=True):
        pairs = [[float(x.rstrip("%")) for x in one[k].split(" / ")] for one in rows if "%" in one[k]]
        if pairs:
            ttft, itl = np.nanmedian(np.array(pairs), axis=0)
            yield f"median over {len(pairs)} deployments, {name}: TTFT {ttft:.1f} %, ITL {itl:.1f} %"


def main() -> None:
    """Print the table in Markdown, and the medians of its columns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--holdout", default="alternate", choices=["alternate", "shape"])
    parser.add_argument("--only", default="", help="in the deployment's name")
    given = parser.parse_args()
    rows = []
    for path in given.tables:
        for label, cells in read(path):
            if len(cells) >= LEAST and given.only in label:
                rows.append(row(label, cells, given.holdout))
                print(*rows[-1], sep=" | ", flush=True)
    print("\n" + machine(), "\n")
    head = ("deployment", "cells", "held out: TTFT / ITL", "p90", *GUESSES, "cells named", "physics")
    print(table(head, rows))
    print("\n".join(medians(rows)))


if __name__ == "__main__":
    main()
