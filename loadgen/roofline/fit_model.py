"""Cells beside a model of the engine: the residuals that a fit makes small.

Knows: how measured and modelled TTFT and ITL become residuals, and that traces are kept per cell and setting of the
knobs. Must not know: how the residuals are made small (`fit_search`).
Why: search, intervals, alternatives and folds all ask the same question - how far is this engine from these cells - and
must get the same answer, from traces that are made once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from loadgen.errors import UsageError
from loadgen.roofline.cells import Cell
from loadgen.roofline.fit_parameters import Knobs, Quantity, engine_of, law_of, named
from loadgen.roofline.fit_trace import Load, Stack, Trace, load_of, stack, static, trace
from loadgen.roofline.passes import Deployment, StepLaw
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.serving_kernel import Floats, Ints
from loadgen.roofline.trace_kernel import MOVERS

_NO_LAW = StepLaw()
THREADS = 4
JOINS_LATE_S = 1e-6  # a way to the server this short makes a request miss the step that starts as it is sent


@dataclass(frozen=True, slots=True)
class World:
    """One hypothesis about the server: what each label's cells ran on, and which parameters are open.

    kv_factor: context bytes that a step reads, as a multiple of what shape, data type and GPU count say.
    """

    deployments: dict[str, Deployment | None]
    table: tuple[Quantity, ...]
    kv_factor: float = 1.0

    def law(self, label: str, values: Mapping[str, float], knobs: Knobs) -> StepLaw:
        """The step law of a label's deployment."""
        law = law_of(self.deployments[label], values, knobs.overlap)
        return law if self.kv_factor == 1.0 else law._replace(kv_bytes=law.kv_bytes * self.kv_factor)


@dataclass(frozen=True, slots=True)
class Problem:
    """Cells to be explained. `measured`: (cell, [TTFT, ITL]) in seconds, nan where not measured."""

    cells: tuple[Cell, ...]
    loads: tuple[Load, ...]
    measured: Floats
    traces: dict[tuple[object, ...], Trace] = field(default_factory=dict)


def problem(cells: Sequence[Cell]) -> Problem:
    """Loads drawn, measurements as an array.

    Raises:
        UsageError: no cells, or none with a time.
    """
    measured = np.array([[one.ttft_s, one.itl_s] for one in cells], float).reshape(-1, 2)
    measured[~(measured > 0)] = np.nan
    if not np.any(np.isfinite(measured)):
        raise UsageError("no cell has a TTFT or an ITL", do="give at least a few measured points")
    return Problem(tuple(cells), tuple(load_of(one, seed) for seed, one in enumerate(cells)), measured)


def _effective(config: EngineConfig, load: Load) -> EngineConfig:
    """The same engine with every limit that this load cannot reach at one value, so that traces are shared."""
    users = load.prompts.size if math.isfinite(load.starts_s[-1]) else int(np.sum(np.isfinite(load.starts_s)))
    longest = int(np.max(load.prompts + load.outputs))
    budget, sequences, kv = config.token_budget, config.max_sequences, config.kv_tokens
    if sequences >= users:
        sequences = 2**20
    if kv is not None and kv >= users * (longest + 32) * 1.02:
        kv = None
    if budget >= int(np.max(load.prompts)) * users + users:
        budget = 2**40
    return replace(config, token_budget=budget, max_sequences=sequences, kv_tokens=kv)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A trace that is wanted: what it depends on, and what it is made from."""

    key: tuple[object, ...]
    config: EngineConfig
    load: Load
    skip: int

    def way_s(self, found: Trace) -> float:
        """Mean seconds on the way to the server, as traced."""
        return self.config.request_s + self.config.prompt_token_s * found.prompt_tokens


def _make(problem: Problem, asked: Sequence[_Asked]) -> None:
    """Trace what was not traced yet, on several threads: compiled loops hold no lock, and no trace knows another.

    Raises:
        UsageError: a cell that its engine cannot run.
    """
    new = {one.key: one for one in asked if one.key not in problem.traces}
    for key, one in list(new.items())[:1]:  # by itself: the first of all makes the compiled loops
        problem.traces[key] = trace(one.config, one.load, one.skip)
        del new[key]
    if new:
        with ThreadPoolExecutor(min(THREADS, len(new))) as pool:
            found = pool.map(lambda one: trace(one.config, one.load, one.skip), new.values())
            problem.traces.update(zip(new, found, strict=True))


class Model:
    """A world with given knobs over some cells of a problem: parameters in, TTFT and ITL out."""

    def __init__(self, problem: Problem, world: World, knobs: Knobs, point: Floats, cells: Ints | None = None) -> None:
        """`point`: the parameters to trace at. In a closed loop they matter little.

        Raises:
            UsageError: a cell that the knobs make impossible.
        """
        self.problem, self.world, self.knobs = problem, world, knobs
        self.index = np.arange(len(problem.cells)) if cells is None else np.asarray(cells, np.int64)
        labels = [problem.cells[i].label for i in self.index]
        self._groups: list[tuple[str, npt.NDArray[np.int64], Stack]] = []
        values = named(world.table, point)
        asked = [self._asked(int(i), label, values) for i, label in zip(self.index, labels, strict=True)]
        _make(problem, asked)
        for label in dict.fromkeys(labels):
            where = np.flatnonzero([one == label for one in labels])
            traces = [problem.traces[asked[place].key] for place in where]
            ways = [asked[place].way_s(one) for place, one in zip(where, traces, strict=True)]
            self._groups.append((label, where, stack(traces, ways)))

    def _asked(self, i: int, label: str, values: dict[str, float]) -> _Asked:
        cell, load = self.problem.cells[i], self.problem.loads[i]
        deployment = self.world.deployments[label]
        config = _effective(static(engine_of(deployment, values, self.knobs), cell), load)
        timed = cell.load_kind == "rate" or cell.protocol.stagger_s > 0
        if not timed:  # the steps do not depend on their times
            config = replace(config, request_s=0.0 if self.knobs.immediate else JOINS_LATE_S, prompt_token_s=0.0)
        skip = 0
        if not self.knobs.opening and cell.load_kind == "concurrency" and cell.protocol.requests is None:
            skip = min(max(1, round(cell.load)), load.prompts.size // 2)
        law = config.law
        costs = law if timed else (law.window_share, law.window_tokens, law.window_chunked)
        return _Asked((i, skip, costs, replace(config, law=_NO_LAW)), config, load, skip)

    def times(self, point: Floats) -> Floats:
        """(cell, [TTFT, ITL]) in seconds."""
        values = named(self.world.table, point)
        out = np.empty((len(self.index), 2))
        request = 0.0 if self.knobs.immediate else values["request_s"]
        token = 0.0 if self.knobs.immediate else values.get("prompt_token_s", 0.0)
        for label, where, one in self._groups:
            law = self.world.law(label, values, self.knobs)
            out[where] = one.times(law, request, token)
        return out

    def slopes(self, point: Floats) -> Floats:
        """d log time / d log parameter, as (cell, [TTFT, ITL], parameter); nan where there is no time."""
        values = named(self.world.table, point)
        out = np.zeros((len(self.index), 2, point.size))
        columns = [MOVERS.index(one.moves) if one.moves in MOVERS else -1 for one in self.world.table]
        signs = np.array([one.sign for one in self.world.table])
        for label, where, one in self._groups:
            law = self.world.law(label, values, self.knobs)
            moved = one.slopes(law)
            moved = np.concatenate([moved, np.zeros((*moved.shape[:2], 1))], axis=2)
            out[where] = moved[:, :, columns] * signs
            if not self.knobs.immediate:
                for k, quantity in enumerate(self.world.table):
                    if quantity.moves == "request":
                        out[where, 0, k] = one.idle_s * values["request_s"]
                    elif quantity.moves == "prompt":
                        out[where, 0, k] = one.idle_s * one.prompt_tokens * values["prompt_token_s"]
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes: Floats = out / self.times(point)[:, :, None]
        return slopes

    def residuals(self, point: Floats) -> Floats:
        """log(model / measured) as (cell, [TTFT, ITL]); nan where not measured."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(self.times(point) / self.problem.measured[self.index])
        ratio[~np.isfinite(ratio)] = np.nan
        return ratio
