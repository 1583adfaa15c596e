"""Which cap holds requests back: on sequences, or on KV memory.

Knows: that requests wait behind a cap where they wait and the server is not busy with prompts, and what tells the two
caps apart. Must not know: what the estimator took for a cap.
Why: both leave the same mark - ITL flat, TTFT linear in the load - and call for different changes. Lengths tell them
apart: K tokens of KV memory hold K / (prompt + output / 2) sequences, a cap on sequences holds as many whatever their
length. So does the server, where it tells how full its KV cache was. Where neither does, both are named.

    rate = load / (TTFT + (osl - 1) * ITL);  waiting = rate * (TTFT - prefill);  busy = rate * prefill
    running = rate * ((osl - 1) * ITL + prefill)                                             (Little's law, thrice)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.model import Finding
from loadgen.roofline.causes import Cause, mean_length
from loadgen.roofline.figures import Figure, ratio, read
from loadgen.roofline.fitted import Fit, FitCell
from loadgen.roofline.marks import evidence, first, misfit, residual

WAITING = 0.25  # of the users, that must wait
IDLE = 0.7  # of the time in prefill, over which prompts are what others wait for
APART = 1.5  # between the sizes of two kinds of request, so that they tell memory from a count
CLEAR = 2.0  # by which one cap explains the numbers of running sequences better (ratio of their spreads)
NOT_FITTED = 0.4  # of |log(measured / fit)| of TTFT
RUNNING = "median over the cells of load / (TTFT + (osl - 1) * ITL) * ((osl - 1) * ITL + prefill)"
FULL, ROOM = 0.95, 0.8  # of the KV cache, as the server says


@dataclass(frozen=True, slots=True)
class Held:
    """A cell behind a cap. `size`: KV tokens of a sequence half way through its answer."""

    of: FitCell
    running: float
    size: float


def caps(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """One finding for each deployment whose requests wait behind a cap at some load."""
    held: dict[str, list[Held]] = {}
    for cause in causes:
        if cause.phase == "prefill" and (found := behind(cause)) is not None:
            held.setdefault(cause.of.cell.label, []).append(found)
    for some in held.values():
        yield _finding(some)
        far = [residual(one.of, "ttft") for one in some]
        if max(map(abs, far)) > NOT_FITTED:
            worst = max((one.of for one in some), key=lambda one: abs(residual(one, "ttft")))
            most = ratio(("ttft_s", worst.cell.ttft_s), ("ttft_fit_s", worst.ttft_fit_s), "number")
            yield misfit(
                "questionable",
                "cap_not_fitted",
                "the fit does not reproduce that cap: TTFT is up to {most} times its value ({cell})",
                most.value,
                "believe the measured TTFT beyond the cap; measure more loads around it",
                first(worst, [one.of for one in some]),
                most=most,
            )


def behind(cause: Cause) -> Held | None:
    """What a cell says of the cap that it waits behind; None where it waits for nothing but prompts. For prefill."""
    cell = cause.of.cell
    if cell.load_kind != "concurrency" or not (cell.ttft_s > 0 and cell.itl_s > 0):
        return None
    output = mean_length(cell, cell.output_tokens)
    decoding = (output - 1.0) * cell.itl_s
    prefill = cause.passes_s
    rate = cell.load / (cell.ttft_s + decoding)
    if rate * (cell.ttft_s - prefill) < WAITING * cell.load or rate * prefill > IDLE:
        return None
    size = mean_length(cell, cell.prompt_tokens) + output / 2.0
    return Held(cause.of, rate * (decoding + prefill), size)


def _finding(held: Sequence[Held]) -> Finding:
    """One cap where lengths or the server tell it, else both."""
    cap, memory = (_middle(values) for values in ([one.running for one in held], [_tokens(one) for one in held]))
    least = min(held, key=lambda one: one.of.cell.load)
    mark = "requests wait while the server is not busy with prompts, in {cells} from {cell} on: a cap"
    kept, full = "of about {cap} sequences", "of about {memory} tokens of KV memory"
    usage = _usage(held)
    verdict, why = _which(held, usage)
    text, value, advice = {
        "batch_cap": (
            f"{kept} ({why})",
            cap,
            "raise the cap on sequences (max_num_seqs), or send less to each replica",
        ),
        "kv_cap": (f"{full} ({why})", memory, "an fp8 KV cache, more memory for it, more GPUs, or shorter contexts"),
        "batch_or_kv_cap": (
            f"{kept}, or {full}: {why}",
            cap,
            "measure prompts of another length at these loads: memory holds fewer long ones, a batch cap as many",
        ),
    }[verdict]
    return misfit(
        "info",
        verdict,
        f"{mark} {text}",
        value,
        advice,
        first(least.of, [one.of for one in held]),
        cap=Figure(cap, "about", RUNNING),
        memory=Figure(memory, "about", f"{RUNNING} * (isl + osl / 2)"),
        usage=read(usage, "share", "kv_usage"),
    )


def _usage(held: Sequence[Held]) -> float:
    """Of the KV cache, the most that the server said; nan where it said nothing."""
    return max((one for h in held if math.isfinite(one := evidence(h.of.cell, "kv_usage"))), default=math.nan)


def _which(held: Sequence[Held], usage: float) -> tuple[str, str]:
    """(code, why); the latter a template."""
    if usage > FULL:
        return "kv_cap", "the server says that its KV cache was {usage} full"
    if usage < ROOM:
        return "batch_cap", "the server says that its KV cache was at most {usage} full"
    sizes = [one.size for one in held]
    if max(sizes) < APART * min(sizes):
        return "batch_or_kv_cap", "requests of one length cannot tell"
    by_count, by_memory = (_spread(values) for values in ([h.running for h in held], [_tokens(h) for h in held]))
    if by_memory > CLEAR * by_count:
        return "batch_cap", "as many, whatever the length"
    if by_count > CLEAR * by_memory:
        return "kv_cap", "fewer long requests than short ones"
    return "batch_or_kv_cap", "the lengths that were measured do not tell them apart"


def _tokens(one: Held) -> float:
    return one.running * one.size


def _middle(values: Sequence[float]) -> float:
    return math.exp(float(np.median(np.log(values))))


def _spread(values: Sequence[float]) -> float:
    """Standard deviation of the logarithms; never 0."""
    return float(np.std(np.log(values))) + 0.01
