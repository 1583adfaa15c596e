"""Causes outside the model, one world each, and the finding that must name it.

Shared by the unit test (with fits made by hand) and by the study with the real estimator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from loadgen.roofline.cells import Cell, Protocol
from loadgen.roofline.serving import EngineConfig
from tests.roofline.fits import BUSY, CALM, ENGINE, World

Change = Callable[[Cell, float], Cell]


@dataclass(frozen=True)
class Disturbance:
    """`fitted` is the engine that an estimator would find where the disturbance is one that it models (a cap)."""

    name: str
    code: str
    world: World
    fitted: EngineConfig = ENGINE


def _says(**evidence: float) -> Change:
    return lambda cell, place: replace(cell, evidence=dict(cell.evidence) | evidence)


def _at(load: float, change: Change) -> Change:
    return lambda cell, place: change(cell, place) if cell.load == load else cell


def _faster(factor: float) -> EngineConfig:
    law = ENGINE.law
    return replace(
        ENGINE, law=law._replace(weight_rate=law.weight_rate * factor, compute_rate=law.compute_rate * factor)
    )


def _mixed(cell: Cell, place: float) -> Cell:
    """Steps that carry prompts cost up to 30 % more."""
    return replace(cell, itl_s=cell.itl_s * (1 + 0.3 * (cell.prompt_tokens > 1000) * cell.load / 48))


def _repeated(cell: Cell, place: float) -> Cell:
    return replace(cell, ttft_s=cell.ttft_s * 0.45) if cell.prompt_tokens == 8192 else cell


def _far_away(cell: Cell, place: float) -> Cell:
    return _says(network_s=0.08)(replace(cell, ttft_s=cell.ttft_s + 0.08), place)


def _hot(cell: Cell, place: float) -> Cell:
    return replace(cell, ttft_s=cell.ttft_s * (1 + 0.1 * place), itl_s=cell.itl_s * (1 + 0.1 * place))


def _hidden(cell: Cell, place: float) -> Cell:
    return replace(cell, protocol=Protocol())


_CAP = replace(ENGINE, max_sequences=16)
_MEMORY = replace(ENGINE, kv_tokens=60_000)
_DRAFTS = replace(ENGINE, draft_tokens=3, acceptance=0.7, draft_token_s=2e-4)

DISTURBANCES: tuple[Disturbance, ...] = (
    Disturbance("other dtype or GPU", "faster_than_physics", World(_faster(2.0))),
    Disturbance("cached prompts, told", "prefix_cache", World(protocol=Protocol(cached_share=0.6))),
    Disturbance("cached prompts, not told", "prefix_cache", World(protocol=Protocol(cached_share=0.6), change=_hidden)),
    Disturbance("some prompts repeated", "prefix_cache", World(change=_repeated)),
    Disturbance("drafting", "speculative_decoding", World(_DRAFTS, evidence={"tokens_per_event": 2.3})),
    Disturbance("drafting, told", "speculative_decoding", World(evidence={"acceptance": 0.6})),
    Disturbance("grouped events", "grouped_tokens", World(evidence={"tokens_per_event": 4.0})),
    Disturbance("long prompts under load", "prefill_interference", World(design=BUSY)),
    Disturbance("costly mixed steps", "prefill_interference", World(design=BUSY, change=_mixed)),
    Disturbance("batch cap", "batch_cap", World(_CAP, BUSY), _CAP),
    Disturbance("batch cap, told", "batch_cap", World(_CAP, CALM, evidence={"kv_usage": 0.1}), _CAP),
    Disturbance("KV cap", "kv_cap", World(_MEMORY, BUSY), _MEMORY),
    Disturbance("a failed cell", "failed_cells",
                World(change=_at(64, lambda cell, place: replace(cell, ttft_s=cell.ttft_s / 13)))),
    Disturbance("errors", "failed_cells", World(change=_at(64, _says(error_share=0.3)))),
    Disturbance("evictions", "evicted", World(change=_at(64, _says(preemptions=12.0)))),
    Disturbance("client", "client_saturated", World(change=_at(64, _says(invalid=1.0)))),
    Disturbance("far away", "network", World(change=_far_away)),
    Disturbance("buffering proxy", "buffered_stream", World(evidence={"shared_receives": 0.8, "itl_p50_s": 2e-5})),
    Disturbance("throttling", "drift", World(change=_hot)),
    Disturbance("noisy neighbour", "drift", World(change=_at(1, _says(itl_p99_s=0.04)))),
    Disturbance("answers cut short", "short_answers", World(change=_at(64, _says(short_share=0.4)))),
)  # fmt: skip
