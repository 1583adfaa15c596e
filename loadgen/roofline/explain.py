"""Where measured phases lie under the roof.

Knows: how a measured TTFT or TPOT becomes achieved FLOP/s at an intensity, and what the roof allows there. Must not
know: how it was measured or how it is drawn.
Why: the roofline chart has two points for each stage - one prefill, one decode - and both must come from the same
counts of FLOPs and bytes as the predictions.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.roofline.catalog import Gpu
from loadgen.roofline.passes import Deployment, Pass, StepLaw, decode_pass, prefill_pass, step_law, visible_pairs
from loadgen.roofline.precision import Dtypes
from loadgen.roofline.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class PhasePoint:
    """One phase on the roofline chart; rates are of all GPUs together."""

    phase: str  # prefill | decode
    tokens_per_pass: float
    flops: float  # per pass
    bytes: float  # per pass
    intensity: float  # FLOP per byte
    ridge: float
    achieved_flop_per_s: float
    roof_flop_per_s: float  # at this intensity: min(peak, intensity * bandwidth)
    share_of_roof: float  # over 1: faster than the facts allow, so a fact is wrong
    bound: str  # compute | memory: the side of the ridge


def place(
    gpu: Gpu,
    gpus: int,
    shape: ModelShape,
    dtypes: Dtypes,
    *,
    prompt_tokens: float,
    output_tokens: float,
    batch: float,
    ttft_s: float | None,
    tpot_s: float | None,
) -> tuple[PhasePoint, ...]:
    """The points of a stage's phases; a phase without a measured time is left out.

    Args:
        gpu: what the endpoint runs on.
        gpus: how many of them serve one model copy.
        shape: the model.
        dtypes: weight, compute and KV types.
        prompt_tokens: typical prompt, as the server counts it.
        output_tokens: typical answer.
        batch: sequences that decoded together, on average.
        ttft_s: typical time to first token. It includes waiting and overheads, so the point is a lower bound.
        tpot_s: typical time per output token.
    """
    law = step_law(Deployment(gpu, gpus, shape, dtypes))
    points = []
    if ttft_s is not None and ttft_s > 0 and prompt_tokens >= 1:
        points.append(_point("prefill", prefill_pass(law, round(prompt_tokens)), ttft_s, law))
    if tpot_s is not None and tpot_s > 0 and output_tokens >= 2:
        steps = output_tokens - 1
        seen = visible_pairs(law, prompt_tokens + 0.5, steps) / steps
        points.append(_point("decode", decode_pass(law, max(1, round(batch)), seen), tpot_s, law))
    return tuple(points)


def _point(phase: str, one: Pass, measured_s: float, law: StepLaw) -> PhasePoint:
    flops, moved = one.flops or 0.0, one.bytes or 0.0
    intensity = flops / moved
    allowed = min(law.peak_flop_per_s, intensity * law.peak_bytes_per_s)
    ridge = law.peak_flop_per_s / law.peak_bytes_per_s
    return PhasePoint(
        phase=phase,
        tokens_per_pass=one.tokens,
        flops=flops,
        bytes=moved,
        intensity=intensity,
        ridge=ridge,
        achieved_flop_per_s=flops / measured_s,
        roof_flop_per_s=allowed,
        share_of_roof=flops / measured_s / allowed,
        bound="compute" if intensity > ridge else "memory",
    )
