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
class Reach:
    """The most that a load can ask of an engine at once: users, tokens of its longest request and prompt."""

    users: int
    request: int
    prompt: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Cells to be explained. `measured`: (cell, [TTFT, ITL]) in seconds, nan where not measured."""

    cells: tuple[Cell, ...]
    loads: tuple[Load, ...]
    reaches: tuple[Reach, ...]
    measured: Floats
    traces: dict[tuple[object, ...], Trace] = field(default_factory=dict)
    engines: dict[EngineConfig, int] = field(default_factory=dict)  # a number for each, which traces are kept by


def problem(cells: Sequence[Cell]) -> Problem:
    """Loads drawn, measurements as an array.

    Raises:
        UsageError: no cells, or none with a time.
    """
    measured = np.array([[one.ttft_s, one.itl_s] for one in cells], float).reshape(-1, 2)
    measured[~(measured > 0)] = np.nan
    if not np.any(np.isfinite(measured)):
        raise UsageError("no cell has a TTFT or an ITL", do="give at least a few measured points")
    loads = tuple(load_of(one, seed) for seed, one in enumerate(cells))
    return Problem(tuple(cells), loads, tuple(map(_reach, loads)), measured)


def _reach(load: Load) -> Reach:
    users = load.prompts.size if math.isfinite(load.starts_s[-1]) else int(np.sum(np.isfinite(load.starts_s)))
    return Reach(users, int(np.max(load.prompts + load.outputs)), int(np.max(load.prompts)))


def _limits(config: EngineConfig, reach: Reach) -> tuple[int, int, int | None]:
    """Budget, sequences and KV tokens; a limit that the load cannot reach is one value, so that traces are shared."""
    budget, sequences, kv = config.token_budget, config.max_sequences, config.kv_tokens
    if sequences >= reach.users:
        sequences = 2**20
    if kv is not None and kv >= reach.users * (reach.request + 32) * 1.02:
        kv = None
    if budget >= reach.prompt * reach.users + reach.users:
        budget = 2**40
    return budget, sequences, kv


@dataclass(frozen=True, slots=True)
class _Asked:
    """A trace that is wanted: what it depends on, and what it is made from."""

    key: tuple[object, ...]
    config: EngineConfig
    limits: tuple[int, int, int | None]
    load: Load
    skip: int

    def make(self) -> Trace:
        """Raises UsageError as `trace` does."""
        budget, sequences, kv = self.limits
        config = replace(self.config, token_budget=budget, max_sequences=sequences, kv_tokens=kv)
        return trace(config, self.load, self.skip)

    def way_s(self, found: Trace) -> float:
        """Mean seconds on the way to the server, as traced."""
        return self.config.request_s + self.config.prompt_token_s * found.prompt_tokens


def _make(problem: Problem, asked: Sequence[_Asked]) -> None:
    """Trace what was not traced yet, on several threads: compiled loops hold no lock, and no trace knows another.

    Raises:
        UsageError: a cell that its engine cannot run.
    """
    new = {one.key: one for one in asked if one.key not in problem.traces}
    if new and not problem.traces:  # by itself: the first of all makes the compiled loops
        key, first = next(iter(new.items()))
        problem.traces[key] = first.make()
        del new[key]
    if not new:
        return
    # The longest first, each thread the next one as it is free.
    waiting = iter(sorted(new.values(), key=lambda one: -one.load.prompts.size * one.load.prompts[0]))

    def work(_: int) -> list[tuple[tuple[object, ...], Trace]]:
        return [(one.key, one.make()) for one in waiting]

    count = min(THREADS, len(new))
    with ThreadPoolExecutor(count) as pool:
        for found in pool.map(work, range(count)):
            problem.traces.update(found)


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
        engines: dict[tuple[str, bool, bool], tuple[EngineConfig, int]] = {}
        asked = [self._asked(int(i), values, engines) for i in self.index]
        _make(problem, asked)
        for label in dict.fromkeys(labels):
            where = np.flatnonzero([one == label for one in labels])
            traces = [problem.traces[asked[place].key] for place in where]
            ways = [asked[place].way_s(one) for place, one in zip(where, traces, strict=True)]
            self._groups.append((label, where, stack(traces, ways)))

        self._last: tuple[bytes, Floats] | None = None

    def _asked(
        self, i: int, values: dict[str, float], engines: dict[tuple[str, bool, bool], tuple[EngineConfig, int]]
    ) -> _Asked:
        """The trace of cell i; `engines`: those of cells before, by label, whether times matter, and static batches."""
        cell, load = self.problem.cells[i], self.problem.loads[i]
        timed = cell.load_kind == "rate" or cell.protocol.stagger_s > 0
        kind = cell.label, timed, cell.load_kind == "batch"
        if kind not in engines:
            engines[kind] = self._engine(cell, timed, values)
        config, number = engines[kind]
        config = static(config, cell)
        limits = _limits(config, self.problem.reaches[i])
        skip = 0
        if not self.knobs.opening and cell.load_kind == "concurrency" and cell.protocol.requests is None:
            skip = min(max(1, round(cell.load)), load.prompts.size // 2)
        return _Asked((i, skip, number, limits), config, limits, load, skip)

    def _engine(self, cell: Cell, timed: bool, values: dict[str, float]) -> tuple[EngineConfig, int]:
        """The engine of cells like this one, and the number of all that are alike but for limits.

        Where the steps do not depend on their times, neither law nor way to the server matter, but for windows.
        """
        config = static(engine_of(self.world.deployments[cell.label], values, self.knobs), cell)
        law = config.law
        if not timed:
            config = replace(config, request_s=0.0 if self.knobs.immediate else JOINS_LATE_S, prompt_token_s=0.0)
            law = StepLaw(**{name: getattr(law, name) for name in ("window_share", "window_tokens", "window_chunked")})
        alike = replace(config, law=law, token_budget=1, max_sequences=1, kv_tokens=None)
        return config, self.problem.engines.setdefault(alike, len(self.problem.engines))

    def times(self, point: Floats) -> Floats:
        """(cell, [TTFT, ITL]) in seconds."""
        if self._last is not None and self._last[0] == point.tobytes():  # residuals and slopes ask for the same
            return self._last[1]
        values = named(self.world.table, point)
        out = np.empty((len(self.index), 2))
        request = 0.0 if self.knobs.immediate else values["request_s"]
        token = 0.0 if self.knobs.immediate else values.get("prompt_token_s", 0.0)
        for label, where, one in self._groups:
            law = self.world.law(label, values, self.knobs)
            out[where] = one.times(law, request, token)
        self._last = point.tobytes(), out
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
