"""What a cell's requests went through: kinds of step with weights, found once for an engine and a protocol.

Knows: how a cell was run (users, arrivals, lengths, cached prompts) and that mean TTFT and TPOT are weighted sums of
step times. Must not know: which parameters are fitted, or how.
Why: simulating the protocol as it was run is most of a fit's accuracy, and doing it for every trial of the parameters
would be most of its time. The weights are exact for the engine that they were traced with; in a closed loop requests
come at the ends of steps, so the steps - not their times - stay what they are while the parameters move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadgen.errors import UsageError
from loadgen.roofline import trace_kernel
from loadgen.roofline.cells import Cell
from loadgen.roofline.passes import StepLaw
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.serving_fast import compiled, prepare
from loadgen.roofline.serving_kernel import Floats, Ints

PER_USER = 10  # requests per user where a cell does not say
OPEN_LOOP = 300  # requests of an open-loop cell that does not say
MOST = 6000  # requests that are simulated; a longer run is steady long before


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of a cell: nominal or drawn lengths, and when they are sent (nan: when a user is free)."""

    prompts: Ints
    outputs: Ints
    cached: Ints
    starts_s: Floats


def load_of(cell: Cell, seed: int = 0) -> Load:
    """The cell's protocol as arrays. Lengths and Poisson arrivals are drawn from `seed`, whatever the engine is.

    Raises:
        UsageError: a load or a length below 1.
    """
    if not (cell.prompt_tokens >= 1 and cell.output_tokens >= 1 and cell.load > 0 and math.isfinite(cell.load)):
        raise UsageError("a cell needs prompt and output tokens of at least 1 and a load above 0", where=cell.where)
    rng = np.random.default_rng(seed)
    users = max(1, round(cell.load))
    if cell.load_kind == "batch":
        count = users
    elif cell.load_kind == "rate":
        count = cell.protocol.requests or OPEN_LOOP
    else:
        count = cell.protocol.requests or users * PER_USER
    count = min(count, max(MOST, users))
    ratio = min(1.0, max(0.0, cell.protocol.length_ratio))
    prompts, outputs = (
        rng.integers(max(1, int(ratio * nominal)), max(1, round(nominal)) + 1, count)
        if ratio < 1
        else np.full(count, max(1, round(nominal)))
        for nominal in (cell.prompt_tokens, cell.output_tokens)
    )
    starts = np.full(count, np.nan)
    if cell.load_kind == "rate":
        starts = np.cumsum(rng.exponential(1.0 / cell.load, count))
    else:
        first = min(users, count)
        starts[:first] = np.arange(first) * (cell.protocol.stagger_s / first)
    cached = 0.0 if math.isnan(cell.protocol.cached_share) else cell.protocol.cached_share
    return Load(prompts, outputs, (cached * prompts).astype(np.int64), starts)


def static(config: EngineConfig, cell: Cell) -> EngineConfig:
    """The engine for a cell: a static batch has no scheduler, all prompts go in one step and nobody queues."""
    if cell.load_kind != "batch":
        return config
    return replace(
        config,
        token_budget=2**40,
        chunked=False,
        max_sequences=max(1, round(cell.load)),
        kv_tokens=None,
        prompts_per_step=None,
    )


@dataclass(frozen=True, slots=True)
class Trace:
    """Kinds of step of one cell. `rows`: (kind, feature) means; `weights`: how often a mean request meets each.

    ttft, itl: (weights, rows). idle_s: mean seconds that a request sat in front of an idle engine (its own way there).
    way_s: mean of `request_s + prompt_token_s * prompt` of the engine traced. batch: mean decoding sequences.
    """

    ttft: tuple[Floats, Floats]
    itl: tuple[Floats, Floats]
    idle_s: float
    prompt_tokens: float
    batch: float


def trace(config: EngineConfig, load: Load, skip: int = 0) -> Trace:
    """Run the load once and keep what its steps did.

    Raises:
        UsageError: a request that exceeds the engine's KV cache.
    """
    knobs, state = prepare(config, load.prompts, load.outputs, load.cached)
    kinds = np.full((trace_kernel.KINDS, trace_kernel.KINDS), -1, np.int64)
    table = np.zeros((3, 2048, 1 + trace_kernel.FEATURES))
    totals = np.zeros(4)
    compiled(trace_kernel.trace_loop)(
        _plain(config.law), knobs, state, load.starts_s.copy(), skip, kinds, table, totals
    )
    ttft, itl = (_condensed(table[metric, : int(totals[0])]) for metric in (trace_kernel.TTFT, trace_kernel.ITL))
    return Trace(ttft, itl, float(totals[1]), float(np.mean(load.prompts)), float(totals[3] / max(1.0, totals[2])))


def _condensed(table: Floats) -> tuple[Floats, Floats]:
    used = table[table[:, 0] > 1e-12]
    return used[:, 0].copy(), used[:, 1:] / used[:, :1]


@dataclass(frozen=True, slots=True)
class Stack:
    """Traces of many cells of one deployment as one table, so that one call prices them all."""

    rows: Floats
    weights: Floats
    owner: Ints  # 2 * cell for its TTFT, 2 * cell + 1 for its ITL
    idle_s: Floats
    prompt_tokens: Floats
    size: int

    def times(self, law: StepLaw, request_s: float = 0.0, prompt_token_s: float = 0.0) -> Floats:
        """(cell, [TTFT, ITL]) in seconds; an ITL without steps is 0."""
        sums = np.zeros(2 * self.size)
        compiled(trace_kernel.pricing)(_plain(law), self.rows, self.weights, self.owner, sums)
        times = sums.reshape(self.size, 2)
        times[:, 0] += self.idle_s * (request_s + prompt_token_s * self.prompt_tokens)
        return times

    def slopes(self, law: StepLaw) -> Floats:
        """(cell, [TTFT, ITL], mover): seconds by the logarithm of each of `trace_kernel.MOVERS`."""
        sums = np.zeros((2 * self.size, len(trace_kernel.MOVERS)))
        compiled(trace_kernel.slopes)(_plain(law), self.rows, self.weights, self.owner, sums)
        return sums.reshape(self.size, 2, -1)


def _plain(law: StepLaw) -> StepLaw:
    """The law in floats alone: compiled code is made for types."""
    return StepLaw(*map(float, law))


def stack(traces: Sequence[Trace], way_s: Sequence[float]) -> Stack:
    """Put traces together. `way_s`: request_s + prompt_token_s * prompt of the engine that each was traced with."""
    parts = [part for one in traces for part in (one.ttft, one.itl)]
    return Stack(
        np.concatenate([rows for _, rows in parts]),
        np.concatenate([weights for weights, _ in parts]),
        np.repeat(np.arange(len(parts)), [len(weights) for weights, _ in parts]),
        np.array([one.idle_s / way if way > 0 else 0.0 for one, way in zip(traces, way_s, strict=True)]),
        np.array([one.prompt_tokens for one in traces]),
        len(traces),
    )


def cell_times(config: EngineConfig, cell: Cell, seed: int = 0) -> tuple[float, float]:
    """Mean TTFT and ITL (seconds) that an engine would have shown for a cell; nan for an ITL without tokens.

    Raises:
        UsageError: the engine cannot run the cell.
    """
    engine = static(config, cell)
    load = load_of(cell, seed)
    found = trace(engine, load)
    way = engine.request_s + engine.prompt_token_s * found.prompt_tokens
    ttft, itl = stack([found], [way]).times(engine.law, engine.request_s, engine.prompt_token_s)[0]
    return float(ttft), float(itl) if itl > 0 else math.nan
