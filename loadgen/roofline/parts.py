"""One step's time in parts, each with the formula and the inputs that it can be computed again from.

Knows: how the law of `passes` divides into what the reader knows by name. Must not know: cells, phases, words.
Why: "bound by memory" is a claim about parts. They must sum to the time, and a reader must be able to check each.

S_p(a, b) of compute and weights is divided as a^p : b^p, which sums to it exactly (Euler's theorem for a function of
degree 1). Several passes of one prompt are summed: amounts add up, rates stay.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from loadgen.roofline.passes import StepLaw, combine

COMPUTE, MEMORY, COMMUNICATION = "compute", "memory", "communication"
OVERHEAD, QUEUE, CLIENT = "overhead", "queue", "client"

_JOINT = (
    "(a ^ p + b ^ p) ^ (1 / p) * {} ^ p / (a ^ p + b ^ p); a = flops / flop_per_s, b = bytes / bytes_per_s; "
    "p null: the larger"
)
_SPENT = "passes * (step_s + sequence_s * batch) + decode_step_s + prefill_token_s * prefill_tokens + eager_s"
# part -> (the group that it counts for, its formula)
_PARTS: dict[str, tuple[str, str]] = {
    "matrix products": (COMPUTE, _JOINT.format("a")),
    "weights": (MEMORY, _JOINT.format("b")),
    "KV cache": (MEMORY, "kv_bytes_per_gpu / kv_bytes_per_s_per_gpu"),
    "attention": (COMPUTE, "attention_flops / attention_flop_per_s"),
    "all-reduce": (COMMUNICATION, "passes * allreduce_s + allreduce_token_s * tokens"),
    "overhead": (OVERHEAD, _SPENT),
}
_AMOUNTS = ("passes", "flops", "bytes", "kv_bytes_per_gpu", "attention_flops", "tokens", "prefill_tokens", "eager_s")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a phase's time. `formula` is in the names of `inputs` (SI units)."""

    name: str
    bound: str  # the group that it counts for; "" where black-box constants do not tell
    seconds: float
    formula: str
    inputs: Mapping[str, float]


def bound_of(parts: Iterable[Part]) -> str | None:
    """The group with the largest part of the time; None where it has no name, or nothing takes time."""
    totals: Counter[str] = Counter()
    for part in parts:
        totals[part.bound] += part.seconds  # type: ignore[assignment]  # Counter adds floats as well
    return max(totals, key=totals.__getitem__) or None if totals else None


def step(
    law: StepLaw,
    seconds: tuple[float, float, float, float, float, float],
    *,
    batch: float = 0.0,
    prefill_tokens: float = 0.0,
    context_tokens: float = 0.0,
    decodes: bool = False,
) -> dict[str, Part]:
    """The parts of one step by name; they sum to what `passes.combine` says.

    Args:
        law: the cost law.
        seconds: what `passes.step_parts` says of the step.
        batch: sequences that decode.
        prefill_tokens: prompt tokens in it.
        context_tokens: that each sequence reads.
        decodes: whether the step pays for decoding.
    """
    compute, weights, kv, attention, communication, overhead = seconds
    joint = combine(law._replace(overlap=0.0), compute, weights, 0.0, 0.0, 0.0, 0.0)
    share = _share(compute, weights, law.sharpness)
    rates = {
        "flops": _amount(compute, law.compute_rate),
        "flop_per_s": law.compute_rate,
        "bytes": _amount(weights, law.weight_rate),
        "bytes_per_s": law.weight_rate,
        "p": law.sharpness,
    }
    cache = {"kv_bytes_per_gpu": _amount(kv, law.kv_rate), "kv_bytes_per_s_per_gpu": law.kv_rate,
             "batch": batch, "context_tokens": context_tokens}  # fmt: skip
    per_token_rate = 1.0 / (law.allreduce_token_s or math.inf)
    reduce = {"passes": 1.0, "allreduce_s": law.allreduce_s, "allreduce_token_s": law.allreduce_token_s,
              "tokens": _amount(communication - law.allreduce_s, per_token_rate)}  # fmt: skip
    spent = {"passes": 1.0, "step_s": law.step_s, "sequence_s": law.sequence_s, "batch": batch,
             "decode_step_s": law.decode_step_s if decodes else 0.0, "prefill_token_s": law.prefill_token_s,
             "prefill_tokens": prefill_tokens}  # fmt: skip
    own = law.step_s + law.sequence_s * batch + spent["decode_step_s"] + law.prefill_token_s * prefill_tokens
    of: dict[str, tuple[float, dict[str, float]]] = {
        "matrix products": (joint * share, rates),
        "weights": (joint * (1.0 - share), rates),
        "KV cache": (kv, cache),
        "attention": (attention, {"attention_flops": _amount(attention, law.attention_rate),
                                  "attention_flop_per_s": law.attention_rate}),
        "all-reduce": (communication, reduce),
        "overhead": (overhead, spent | {"eager_s": max(0.0, overhead - own)}),
    }  # fmt: skip
    # Constants without facts are costs whose cause nobody named, whatever term of the law holds them.
    unnamed = math.isnan(law.peak_flop_per_s)
    parts = {
        name: Part(name, "" if unnamed else _PARTS[name][0], time, _PARTS[name][1], inputs)
        for name, (time, inputs) in of.items()
    }
    return parts if law.overlap == 0 else _overlapped(parts)


def _overlapped(parts: dict[str, Part]) -> dict[str, Part]:
    """Behind a GPU that is busy for longer the host's work costs nothing, and the other way round."""
    host = parts["overhead"]
    device = {name: part for name, part in parts.items() if name != "overhead"}
    return device if sum(part.seconds for part in device.values()) >= host.seconds else {"overhead": host}


def added(sums: Mapping[str, Part], more: Mapping[str, Part]) -> dict[str, Part]:
    """Two steps' parts together."""
    out = dict(sums)
    for name, part in more.items():
        before = out.get(name)
        if before is None:
            out[name] = part
            continue
        inputs = {key: x + before.inputs[key] if key in _AMOUNTS else x for key, x in part.inputs.items()}
        out[name] = replace(part, seconds=part.seconds + before.seconds, inputs=inputs)
    return out


def per_token(part: Part, tokens: float) -> Part:
    """A step's part shared over the `tokens` that each of its sequences gets."""
    inputs = dict(part.inputs) | {"tokens_per_step": tokens}
    return replace(part, seconds=part.seconds / tokens, formula=f"({part.formula}) / tokens_per_step", inputs=inputs)


def _share(compute: float, weights: float, p: float) -> float:
    """a^p / (a^p + b^p); with p = inf all of it is the larger's."""
    if compute == weights:
        return 0.5
    if math.isinf(p):
        return 1.0 if compute > weights else 0.0
    larger = max(compute, weights)
    a: float = (compute / larger) ** p
    b: float = (weights / larger) ** p
    return a / (a + b)


def _amount(seconds: float, rate: float) -> float:
    """What is done in that time; 0 at a rate that makes it free."""
    return seconds * rate if math.isfinite(rate) else 0.0
