"""Are the gains of "what would help" true? Each is made real in an engine that the model does not know.

    python -m tests.benchmarks.fit_interventions [--worlds 20] [--first 0] [--keep FILE]

For each world (`other_engine`, parameters drawn at random) the roofline profile's kinds of cells are measured and
fitted, and every remedy is then applied to the world itself. Printed for each kind of remedy: how far the predicted
time (or rate) after the change is from the true one, and how often the gain's 90 % interval holds the true gain. FILE
keeps the trials of every world that is done, and a study that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from loadgen.roofline import catalog
from loadgen.roofline.cells import Cell
from loadgen.roofline.fit import fit
from loadgen.roofline.passes import Deployment
from loadgen.roofline.precision import Dtypes
from loadgen.roofline.remedies import Remedy, find_remedies
from tests.benchmarks.harness import machine, table
from tests.benchmarks.other_engine import World, serve

WHERE = Deployment(catalog.gpu("h100-sxm"), 1, catalog.shape("llama-3.1-8b"), Dtypes())
DESIGN = (
    *((s, 16, 1) for s in (128, 512, 2048, 8192)),
    *((s, 128, 1) for s in (128, 8192)),
    *((128, 128, c) for c in (2, 4, 12, 32, 64)),
    *((s, 128, c) for s in (2048, 8192) for c in (4, 16, 32)),
)
REPEATS = 3  # of a true value, with other noise


@dataclass(frozen=True)
class Trial:
    """One remedy made real. `after` is the true value / the predicted one."""

    name: str
    metric: str
    predicted: float  # gain
    low: float
    high: float
    true: float

    @property
    def error(self) -> float:
        """|predicted value after the change / true - 1|: times are (1 - gain), rates (1 + gain) of what was before."""
        sign = 1.0 if self.metric == "output_tokens_per_s" else -1.0
        return abs((1 + sign * self.predicted) / (1 + sign * self.true) - 1)

    @property
    def covered(self) -> bool:
        """Whether the interval holds the true gain."""
        return self.low <= self.true <= self.high


def worlds(count: int, seed: int = 0) -> Iterator[World]:
    """Engines that differ in everything that a fit has to find."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield World(
            mfu=rng.uniform(0.45, 0.72),
            mbu=rng.uniform(0.6, 0.85),
            kv_mbu=rng.uniform(0.5, 0.8),
            host_s=rng.uniform(0.8e-3, 3e-3),
            host_sequence_s=rng.uniform(0, 3e-5),
            request_s=rng.uniform(1e-3, 6e-3),
            budget=int(rng.choice([2048, 8192])),
            sequences=int(rng.choice([24, 256])),
        )


def measure(world: World, seed: int) -> list[Cell]:
    """The world's cells as a client would have measured them."""
    found = []
    for i, (prompt, output, users) in enumerate(DESIGN):
        seen = serve(world, prompt, output, users, seed=seed + i)
        found.append(Cell(prompt, output, "concurrency", users, seen.ttft, seen.itl, WHERE, where=f"#{i}"))
    return found


def made_real(world: World, remedy: Remedy) -> tuple[World, dict[str, float]]:
    """The world, and what is sent to it, after the change."""
    cell = remedy.of.cell
    load = {"prompt": cell.prompt_tokens, "output": cell.output_tokens, "users": cell.load}
    changes: dict[str, dict[str, float]] = {
        "fp8_weights": {"weight_bytes": 1.0, "speedup": 2.0},
        "int4_weights": {"weight_bytes": (4 + 20 / 128) / 8},
        "fp8_kv": {"kv_bytes": world.kv_bytes / 2},
        "more_tp": {"gpus": 2 * world.gpus},
        "batch_cap": {"sequences": 2 * world.sequences},
        "chunk_size": {"budget": float(remedy.change.get("engine.token_budget", (0, 0))[1] or 0)},
    }
    if remedy.name in changes:
        values = {name: type(getattr(world, name))(value) for name, value in changes[remedy.name].items()}
        return replace(world, **values), load
    to = {name: float(remedy.change[name][1] or 0) for name in ("prompt_tokens", "cached_share", "load")
          if name in remedy.change}  # fmt: skip
    load |= {"prompt": to.get("prompt_tokens", load["prompt"]), "users": to.get("load", load["users"])}
    return world, load | {"cached": to.get("cached_share", 0.0)}


def true_gain(world: World, remedy: Remedy, seed: int) -> float:
    """What the change really brings, mean of REPEATS."""
    cell = remedy.of.cell
    before = {"prompt": cell.prompt_tokens, "output": cell.output_tokens, "users": cell.load}
    values = []
    for of, load in ((world, before), made_real(world, remedy)):
        lengths = (int(load["prompt"]), int(load["output"]), max(1, int(load["users"])))
        cached = load.get("cached", 0.0)
        seen = [serve(of, *lengths, cached=cached, seed=seed + 100 * k) for k in range(REPEATS)]
        values.append(float(np.mean([getattr(one, remedy.metric) for one in seen])))
    ratio = values[1] / values[0]
    return ratio - 1 if remedy.metric == "output_tokens_per_s" else 1 - ratio


def trials(world: World, seed: int) -> Iterator[Trial]:
    """Every remedy of one world."""
    found = fit(measure(world, seed), holdout="none", rng=np.random.default_rng(seed))
    for remedy in find_remedies(found):
        if remedy.metric != "max_gap":
            gain = true_gain(world, remedy, seed)
            yield Trial(remedy.name, remedy.metric, remedy.gain, remedy.low, remedy.high, gain)


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument(
        "--first", type=int, default=0, help="seed of the worlds: another one is worlds nobody looked at"
    )
    parser.add_argument("--keep", type=Path, default=None, metavar="FILE")
    given = parser.parse_args()
    every: list[Trial] = []
    done = given.keep.read_text().splitlines() if given.keep and given.keep.exists() else []
    for k, world in enumerate(worlds(given.worlds, given.first)):
        if k < len(done):
            every += [Trial(**one) for one in json.loads(done[k])]
            continue
        found = list(trials(world, 1000 * (given.first + k)))
        every += found
        if given.keep:
            with given.keep.open("a") as file:
                file.write(json.dumps([asdict(one) for one in found]) + "\n")
    print(machine(), "\n")
    print(
        table(
            ("change", "metric", "n", "error, median", "p90", "gain predicted", "true", "covered"), list(_rows(every))
        )
    )


def _rows(every: list[Trial]) -> Iterator[tuple[str, ...]]:
    groups: dict[tuple[str, str], list[Trial]] = {}
    for one in every:
        groups.setdefault((one.name, one.metric), []).append(one)
    for (name, metric), some in [*sorted(groups.items()), (("all", ""), every)]:
        off = [one.error for one in some]
        yield (
            name,
            metric,
            str(len(some)),
            f"{np.median(off):.1%}",
            f"{np.quantile(off, 0.9):.1%}",
            f"{np.median([one.predicted for one in some]):.0%}",
            f"{np.median([one.true for one in some]):.0%}",
            f"{np.mean([one.covered for one in some]):.0%}",
        )


if __name__ == "__main__":
    main()
