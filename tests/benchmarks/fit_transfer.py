"""A fit carried to another GPU, on measurements: the predicted ratio beside "no change" and "bandwidth ratio".

    python -m tests.benchmarks.fit_transfer FROM TO TABLE.csv [TABLE.csv ...]
    python -m tests.benchmarks.fit_transfer A100-SXM-80 H100-SXM splitwise.csv

Every deployment of FROM whose model was measured on TO with as many GPUs is fitted, utilisations and overheads are
frozen, TO's facts put in. Printed: the median error of the ratio TO / FROM for the model and for both guesses, and in
how many cells the 90 % interval holds what was measured. TO may name watts ("H100-SXM 490W") where a table only says
that the GPU was capped. Tables are read as `loadgen fit` reads them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from loadgen.roofline.cells import Cell
from loadgen.roofline.fit import fit
from loadgen.roofline.named import find_gpu, is_untold
from loadgen.roofline.overlay import GUESSES, Prediction, predict_on
from loadgen.store.inputs import read_cells
from tests.benchmarks.harness import machine, table

TITLES = {"ttft": "TTFT", "itl": "ITL", "output_tokens_per_s": "output tokens/s"}


def pairs(cells: Sequence[Cell], start: str, to: str) -> Iterator[tuple[list[Cell], list[Cell]]]:
    """The cells of each deployment on `start` that was measured on `to` as well, and those there."""
    here, there = find_gpu(start), find_gpu(to)
    groups: dict[str, list[Cell]] = {}
    for one in cells:
        where = one.deployment
        if where is not None and is_untold(where.gpu, there):
            one = replace(one, deployment=replace(where, gpu=there))
        groups.setdefault(one.label, []).append(one)
    for group in groups.values():
        where = group[0].deployment
        if where is None or where.gpu != here:
            continue
        other = replace(where, gpu=there)
        found = [one for some in groups.values() for one in some if one.deployment == other]
        if found:
            yield group, found


def row(found: Prediction, metric: str) -> tuple[str, ...]:
    """One deployment's line for one metric."""
    errors = [found.errors[guess].get(metric) for guess in GUESSES]
    values = [one.values[metric] for one in found.cells if one.values[metric].measured > 0]
    held = sum(one.low <= one.measured <= one.high for one in values)
    label = f"{found.of.gpus} x {found.of.shape.name}, {found.of.gpu.name} to {found.where.gpu.name}"
    return (label, TITLES[metric], *("n/a" if x is None else f"{x:.1%}" for x in errors), f"{held} of {len(values)}")


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("start")
    parser.add_argument("to")
    parser.add_argument("tables", nargs="+", type=Path)
    given = parser.parse_args()
    rows = []
    cells = [one for path in given.tables for one in read_cells(path).cells]
    for group, there in pairs(cells, given.start, given.to):
        made = fit(group, holdout="alternate", rng=np.random.default_rng(0))
        if made.refused:
            rows.append((group[0].label, made.refused, *[""] * 4))
            continue
        where = there[0].deployment
        assert where is not None
        found = predict_on(made, where, [*group, *there])
        rows += [row(found, metric) for metric in TITLES if found.n.get(metric)]
    print(machine(), "\n")
    head = ("deployment", "ratio of", "this fit", "no change", "bandwidth ratio", "90 % interval holds it")
    print(table(head, rows))
    for metric in TITLES.values():
        known = [[float(x.rstrip("%")) for x in one[2:5]] for one in rows if one[1] == metric and "%" in one[2]]
        if known:
            told = ", ".join(f"{x:.1f} %" for x in np.median(np.array(known), axis=0))
            print(f"* median over {len(known)} deployments, {metric}: {told}")


if __name__ == "__main__":
    main()
