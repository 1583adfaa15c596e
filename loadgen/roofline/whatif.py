"""An engine changed: what it would be with other data types, GPUs, knobs, prompts or users.

Knows: how a fitted engine carries over to other facts, and how a cell is run again on it. Must not know: which changes
are worth a try (`remedies`), or how the engine was fitted.
Why: utilisations and overheads are what was learnt, facts are what changes; keeping the two apart is what makes a
prediction of an engine that nobody measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from loadgen.errors import UsageError
from loadgen.roofline.cells import Cell
from loadgen.roofline.fit_trace import load_of, static
from loadgen.roofline.passes import Deployment, StepLaw, step_law
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.serving_fast import Served, simulate_closed, simulate_open

# What a law takes from the deployment's facts. Rates are facts times a utilisation: they scale and keep it.
_SCALED = (
    "flops_per_token",
    "head_flops",
    "dense_bytes",
    "expert_bytes",
    "expert_share",
    "kv_bytes",
    "attention_flops_decode",
    "attention_flops_prefill",
    "compute_rate",
    "weight_rate",
    "kv_rate",
    "attention_rate",
    "allreduce_s",
    "allreduce_token_s",
    "gpus",
    "peak_flop_per_s",
    "peak_bytes_per_s",
)
LEAST_PER_USER = 3  # requests of each user that a cell is run again with, at least
MOST_REQUESTS = 1500


@dataclass(frozen=True, slots=True)
class Situation:
    """A cell, the engine that serves it and on what."""

    cell: Cell
    engine: EngineConfig
    where: Deployment | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What clients would see: means in seconds (nan where there is none), output tokens/s of the whole server."""

    ttft: float
    itl: float
    max_gap: float
    output_tokens_per_s: float


def carried(law: StepLaw, old: Deployment, new: Deployment) -> StepLaw:
    """The law on other facts: every amount and rate is scaled by its fact, overheads stay.

    What the old deployment lacked altogether (all-reduce on one GPU) is taken from the new one's facts.

    Raises:
        UsageError: a GPU has no rate for its compute type.
    """
    before, after = step_law(old), step_law(new)
    values = {}
    for name in _SCALED:
        was, is_now, fitted = getattr(before, name), getattr(after, name), getattr(law, name)
        values[name] = fitted * (is_now / was) if was and math.isfinite(was) else is_now
    windows = {name: getattr(after, name) for name in ("window_share", "window_tokens", "window_chunked")}
    return law._replace(**values, **(windows if old.shape != new.shape else {}))


def moved(situation: Situation, new: Deployment) -> Situation:
    """The same cell on another deployment. A KV capacity changes as the room beside the weights does.

    Raises:
        UsageError: the weights do not fit, the compute type is not there, or the old deployment is not known.
    """
    old = situation.where
    if old is None:
        raise UsageError("GPU and model are not known")
    engine = situation.engine
    capacity = engine.kv_tokens
    room = new.kv_capacity_tokens()
    if capacity is not None:
        capacity = max(engine.block_tokens, int(capacity * room / old.kv_capacity_tokens()))
    return replace(situation, engine=replace(engine, law=carried(engine.law, old, new), kv_tokens=capacity), where=new)


def replay(situation: Situation, seed: int = 0) -> Served:
    """Run a cell again, as it was run, but no longer than it takes to be steady.

    Raises:
        UsageError: a request exceeds the engine's KV cache.
    """
    cell = situation.cell
    load, engine = load_of(cell, seed), static(situation.engine, cell)
    count = min(len(load.prompts), max(MOST_REQUESTS, LEAST_PER_USER * round(cell.load)))
    prompts, outputs, cached = (tokens[:count] for tokens in (load.prompts, load.outputs, load.cached))
    if cell.load_kind == "rate":
        return simulate_open(engine, load.starts_s[:count], prompts, outputs, cached_tokens=cached, seed=seed)
    users, stagger = max(1, round(cell.load)), cell.protocol.stagger_s
    return simulate_closed(engine, users, prompts, outputs, cached_tokens=cached, stagger_s=stagger, seed=seed)


def outcome(situation: Situation, seed: int = 0) -> Outcome:
    """What the clients of a replayed cell would report.

    Raises:
        UsageError: a request exceeds the engine's KV cache.
    """
    served = replay(situation, seed)
    span = float(np.max(served.last_s) - np.min(served.sent_s))
    gaps, tpot = served.max_gap_s, served.tpot_s
    return Outcome(
        float(np.mean(served.ttft_s)),
        float(np.nanmean(tpot)) if np.any(np.isfinite(tpot)) else math.nan,
        float(np.nanmean(gaps)) if np.any(np.isfinite(gaps)) else math.nan,
        float(served.output_tokens.sum() / span),
    )
