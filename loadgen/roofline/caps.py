"""Which cap holds requests back: on sequences, or on KV memory.

Knows: that a cap is in force where the fit without it is worse, and what tells the two caps apart. Must not know: how
the caps were estimated.
Why: both leave the same mark - ITL flat, TTFT linear in the load - and call for different changes. Lengths tell them
apart: K tokens of KV memory hold K / (prompt + output / 2) sequences, a cap on sequences holds as many whatever their
length. So does the server, where it tells how full its KV cache was. Where neither does, both are named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from loadgen.errors import UsageError
from loadgen.model import Finding
from loadgen.roofline.causes import Cause, mean_length
from loadgen.roofline.fitted import Fit, FitCell
from loadgen.roofline.marks import name, several, told
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.whatif import Situation, outcome
from loadgen.roofline.words import count

WORSE = 0.15  # by which |log(measured / fit)| of TTFT grows without the cap
AS_GOOD = 0.08  # within which two caps explain TTFT alike
FULL, ROOM = 0.95, 0.8  # of the KV cache, as the server says
UNCAPPED = 2**20


def caps(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """One finding for each deployment whose cap is in force at some load."""
    for label, engine in fit.engine.items():
        cells = [one for one in fit.cells if one.cell.label == label and _can_queue(one)]
        by_sequences = replace(engine, kv_tokens=None)
        by_memory = replace(engine, max_sequences=UNCAPPED)
        held = [one for one in cells if one.cell.load > engine.max_sequences and _worse(one, by_memory)]
        if held:
            yield _told_by(held, engine, engine.max_sequences, _as_memory(held[0], engine), sequences=True)
            continue
        held = [one for one in cells if _needs(one) > (engine.kv_tokens or math.inf) and _worse(one, by_sequences)]
        if held:
            rival = replace(by_sequences, max_sequences=max(1, round(_per_memory(held[0], engine))))
            yield _told_by(held, engine, rival.max_sequences, rival, sequences=False)


def _can_queue(one: FitCell) -> bool:
    return one.cell.load_kind == "concurrency" and one.cell.ttft_s > 0 and one.ttft_fit_s > 0 and not one.outlier


def _size(one: FitCell) -> float:
    """KV tokens of a sequence half way through its answer."""
    return mean_length(one.cell, one.cell.prompt_tokens) + mean_length(one.cell, one.cell.output_tokens) / 2


def _needs(one: FitCell) -> float:
    return one.cell.load * _size(one)


def _per_memory(one: FitCell, engine: EngineConfig) -> float:
    return (engine.kv_tokens or math.inf) / _size(one)


def _as_memory(one: FitCell, engine: EngineConfig) -> EngineConfig:
    """The engine with a KV capacity that holds as many sequences of this cell's kind as its cap does."""
    return replace(engine, max_sequences=UNCAPPED, kv_tokens=int(engine.max_sequences * _size(one)))


def _error(one: FitCell, engine: EngineConfig) -> float:
    """|log(measured / predicted)| of TTFT; inf where the engine cannot hold the cell."""
    try:
        return abs(math.log(one.cell.ttft_s / outcome(Situation(one.cell, engine, one.cell.deployment)).ttft))
    except UsageError:
        return math.inf


def _worse(one: FitCell, without: EngineConfig) -> bool:
    return _error(one, without) > abs(math.log(one.cell.ttft_s / one.ttft_fit_s)) + WORSE


def _told_by(
    held: Sequence[FitCell], engine: EngineConfig, cap: int, rival: EngineConfig, *, sequences: bool
) -> Finding:
    """The finding: one cap where lengths or the server tell it, else both."""
    usage = max((told(one.cell, "kv_usage", -1.0) for one in held), default=-1.0)
    kinds = {(one.cell.prompt_tokens, one.cell.output_tokens) for one in held}
    as_good = len(kinds) == 1 or all(_error(one, rival) < _error(one, engine) + AS_GOOD for one in held)
    by_memory = usage > FULL if usage >= 0 else None
    least = min(held, key=lambda one: one.cell.load)
    mark = f"TTFT grows with the load in {several(held)}, from {name(least.cell)}, as it does behind a cap"
    advice = "raise the cap or send less to each replica; latency alone grows beyond it"
    kv = engine.kv_tokens if not sequences else rival.kv_tokens
    memory = f"{count(kv or math.nan)} tokens of KV memory"
    if by_memory is None and as_good:
        text = f"{mark}: of {cap} sequences, or of {memory}"
        text += "" if len(kinds) > 1 else ": requests of one length cannot tell"
        more = "measure prompts of another length at these loads: memory holds fewer long ones, a batch cap as many"
        return Finding("info", "batch_or_kv_cap", text, float(cap), more)
    if sequences if by_memory is None else not by_memory:
        proof = f"its KV cache was at most {usage:.0%} full" if by_memory is not None else "whatever the length"
        return Finding("info", "batch_cap", f"{mark} of {cap} sequences ({proof})", float(cap), advice)
    proof = f"the server says {usage:.0%} full" if by_memory is not None else "long requests fewer than short ones"
    text = f"{mark} of {memory} ({proof})"
    return Finding("info", "kv_cap", text, kv, "an fp8 KV cache, more memory or GPUs, shorter contexts")
