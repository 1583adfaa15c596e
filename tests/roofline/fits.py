"""Fits made by hand: an engine, cells measured on it (or on a disturbed one) with noise, and the model beside them.

The fit is the undisturbed engine: an estimator that was not misled. `tests/benchmarks/fit_detectors.py` runs the same
disturbances through the real one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from loadgen.roofline import catalog
from loadgen.roofline.cells import Cell, Protocol
from loadgen.roofline.fitted import Errors, Fit, FitCell, Parameter
from loadgen.roofline.passes import Deployment, Efficiency, decode_pass, step_law
from loadgen.roofline.precision import Dtypes
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.whatif import Situation, outcome

H100 = Deployment(catalog.gpu("h100-sxm"), 1, catalog.shape("llama-3.1-8b"), Dtypes())
EFFICIENCY = Efficiency(mfu=0.6, mbu=0.72, kv_mbu=0.7, sharpness=3.0, step_s=1.5e-3, sequence_s=1e-5)
ENGINE = EngineConfig(
    step_law(H100, EFFICIENCY), token_budget=2048, kv_tokens=H100.kv_capacity_tokens(), request_s=2e-3
)

# prompt tokens, output tokens, users: prompts alone; answers alone; short prompts under load.
CALM: tuple[tuple[int, int, int], ...] = (
    *((s, 16, 1) for s in (128, 512, 2048, 8192, 16384)),
    *((s, 256, 1) for s in (128, 4096, 16384)),
    *((128, 256, c) for c in (2, 4, 8, 12, 16, 24, 32, 48, 64)),
)
# Long prompts under load: decode steps carry prompts.
BUSY: tuple[tuple[int, int, int], ...] = (*CALM, *((s, 256, c) for s in (2048, 8192) for c in (4, 16, 48)))


@dataclass(frozen=True)
class World:
    """What the cells are measured on. `evidence` and `change` see each cell as it was measured, and its place."""

    engine: EngineConfig = ENGINE
    design: Sequence[tuple[int, int, int]] = CALM
    protocol: Protocol = field(default_factory=Protocol)
    evidence: Mapping[str, float] = field(default_factory=dict)
    change: Callable[[Cell, float], Cell] = lambda cell, place: cell  # place: 0 first cell, 1 last
    where: Deployment = H100


def cells(world: World, seed: int = 0, noise: float = 0.02) -> list[Cell]:
    """Cells measured in `world`, in random order, as a run's stages would be."""
    rng = np.random.default_rng(seed)
    found = []
    order = rng.permutation(len(world.design))
    for place, k in enumerate(order):
        prompt, output, users = world.design[k]
        cell = Cell(
            prompt, output, "concurrency", users, math.nan, math.nan, world.where, world.protocol, where=f"#{k}"
        )
        seen = outcome(Situation(replace(cell, protocol=world.protocol), world.engine, world.where), seed)
        ttft, itl = (
            seen.ttft * math.exp(noise * rng.standard_normal()),
            seen.itl * math.exp(noise * rng.standard_normal()),
        )
        p50 = itl * (0.98 if users == 1 else decode_pass(world.engine.law, users, prompt).time_s / seen.itl)
        p99 = itl * 1.2 if users < 4 else max(seen.max_gap, itl)
        told = {"itl_p50_s": p50, "itl_p99_s": p99, "max_gap_s": seen.max_gap, "start_s": 60.0 * place,
                "error_share": 0.0, "short_share": 0.0, "tokens_per_event": 1.0, "shared_receives": 0.002,
                "invalid": 0.0, "network_s": 2e-4}  # fmt: skip
        cell = replace(cell, ttft_s=ttft, itl_s=itl, evidence=told | dict(world.evidence))
        found.append(world.change(cell, place / (len(order) - 1)))
    return sorted(found, key=lambda cell: int(cell.where[1:]))


def fit_of(measured: Sequence[Cell], engine: EngineConfig = ENGINE, **more: object) -> Fit:
    """The fit whose best engine is `engine`."""
    beside = []
    for cell in measured:
        seen = outcome(Situation(cell, engine, cell.deployment))
        beside.append(FitCell(cell, seen.ttft, seen.itl))
    error = Errors(0.02, 0.015, 0.05, 0.03, len(beside))
    where = measured[0].deployment
    return replace(Fit(where, (), {"": engine}, {"": ()}, tuple(beside), error, None), **more)  # type: ignore[arg-type]


def draws(engine: EngineConfig, count: int, seed: int = 0, spread: float = 0.04) -> tuple[EngineConfig, ...]:
    """Engines around `engine`, rates off by `spread`."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        law = engine.law
        factors = np.exp(spread * rng.standard_normal(4))
        names = ("compute_rate", "weight_rate", "kv_rate", "attention_rate")
        law = law._replace(**{n: getattr(law, n) * f for n, f in zip(names, factors, strict=True)})
        found.append(replace(engine, law=law))
    return tuple(found)


MBU_OPEN = Parameter("mbu", "1", math.nan, 0.58, 0.92, False, "a second tensor-parallel degree")
