"""The time of one step: what a batch of tokens costs on given GPUs.

Knows: the roofline of a step - matrix products, weight traffic, KV traffic, attention, all-reduce, overheads - as one
law of some thirty numbers. Must not know: which requests make up the batch (`serving`) or how a phase is told
(`predict`).
Why: the prediction, the simulated engine and the fit must share one formula. The functions at the top use nothing but
arithmetic on a flat tuple of floats, so that `serving_fast` compiles these very functions and cannot drift from them.

Units: seconds, bytes, FLOP, tokens. A law for `gpus` GPUs holds whole-deployment rates; KV traffic alone is per GPU.

    time = overhead + S_p(compute, weights) + kv + attention + all-reduce
    S_p(a, b) = (a^p + b^p)^(1/p): p = 1 adds, p = inf is the hard roofline max(a, b)
    weights read by T tokens = dense + experts * (1 - (1 - k/E)^T)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from loadgen.errors import UsageError
from loadgen.roofline.catalog import Gpu
from loadgen.roofline.precision import BF16, WEIGHTS, Dtypes
from loadgen.roofline.shapes import ModelShape

_INF = math.inf
# A measured all-reduce moves about 80 of NVLink4's 450 GB/s per direction (vLLM on H100, 0.5-4 MB): that share of the
# link is assumed elsewhere; its fixed cost is about 5 us a call.
ALLREDUCE_S = 5e-6
ALLREDUCE_SHARE = 80 / 450


class StepLaw(NamedTuple):
    """One step's cost as plain floats. Zeros switch a term off; a rate of inf makes its work free.

    Black-box constants (`decode_step_s`, `prefill_token_s`, `sequence_s`) and physics are terms of the same law.
    """

    flops_per_token: float = 0.0  # matrix products of one token, head apart
    head_flops: float = 0.0  # output head, per sampled token
    dense_bytes: float = 0.0  # weights that every step reads
    expert_bytes: float = 0.0  # all routed experts
    expert_share: float = 0.0  # k / E, the part of the experts that one token touches
    kv_bytes: float = 0.0  # per context token, on the fullest GPU
    attention_flops_decode: float = 0.0  # per query and context token
    attention_flops_prefill: float = 0.0  # per pair of query and visible key
    compute_rate: float = _INF  # FLOP/s, all GPUs, at the assumed utilisation
    weight_rate: float = _INF  # bytes/s, all GPUs
    kv_rate: float = _INF  # bytes/s, one GPU
    attention_rate: float = _INF  # FLOP/s, all GPUs
    sharpness: float = _INF  # p of S_p
    allreduce_s: float = 0.0  # per step
    allreduce_token_s: float = 0.0  # per token of the step
    step_s: float = 0.0  # launch, scheduler, sampler: every step
    sequence_s: float = 0.0  # per decoding sequence
    decode_step_s: float = 0.0  # per step that decodes
    prefill_token_s: float = 0.0  # per prompt token
    overlap: float = 0.0  # 1: overhead hides behind the GPU, max() in place of a sum
    padding: float = 0.0  # 1: decode batches are padded to captured graph sizes
    eager_s: float = 0.0  # with padding: extra time of a decode batch beyond the largest graph
    window_share: float = 0.0  # share of the layers that have a window
    window_tokens: float = 0.0
    window_chunked: float = 0.0
    gpus: float = 1.0
    peak_flop_per_s: float = math.nan  # all GPUs, the vendor's peak; nan where unknown
    peak_bytes_per_s: float = math.nan


LARGEST_GRAPH = 512  # tokens; vLLM captures 1, 2, 4, 8, 16 ... 256, 272 ... 512


def step_parts(
    law: StepLaw,
    sequences: float,
    decode_tokens: float,
    prefill_tokens: float,
    sampled: float,
    kv_read: float,
    decode_pairs: float,
    prefill_pairs: float,
) -> tuple[float, float, float, float, float, float]:
    """Seconds of (compute, weights, kv, attention, communication, overhead) of one step.

    Args:
        law: the cost law.
        sequences: decoding sequences; `decode_tokens` is as many, or more with speculative decoding.
        decode_tokens: tokens that the decoding sequences put through the model.
        prefill_tokens: prompt tokens in the step.
        sampled: tokens for which the output head runs.
        kv_read: context tokens read by the decoding sequences (windows already applied).
        decode_pairs: query-context pairs of decoding; `prefill_pairs`: of prompts.
    """
    padded = decode_tokens
    eager = 0.0
    if law.padding > 0 and decode_tokens > 0 and prefill_tokens == 0:
        if decode_tokens > LARGEST_GRAPH:
            eager = law.eager_s
        elif decode_tokens > 256:
            padded = 16.0 * math.ceil(decode_tokens / 16.0)
        elif decode_tokens > 4:
            padded = 8.0 * math.ceil(decode_tokens / 8.0)
        elif decode_tokens > 2:
            padded = 4.0
    tokens = padded + prefill_tokens
    compute = (law.flops_per_token * tokens + law.head_flops * (sampled + padded - decode_tokens)) / law.compute_rate
    touched = 1.0 - (1.0 - law.expert_share) ** tokens
    weights = (law.dense_bytes + law.expert_bytes * touched) / law.weight_rate
    kv = law.kv_bytes * kv_read / law.kv_rate
    attention = (
        law.attention_flops_decode * decode_pairs + law.attention_flops_prefill * prefill_pairs
    ) / law.attention_rate
    communication = law.allreduce_s + law.allreduce_token_s * tokens
    overhead = law.step_s + law.sequence_s * sequences + law.prefill_token_s * prefill_tokens + eager
    if decode_tokens > 0:
        overhead += law.decode_step_s
    return compute, weights, kv, attention, communication, overhead


def combine(
    law: StepLaw,
    compute: float,
    weights: float,
    kv: float,
    attention: float,
    communication: float,
    overhead: float,
) -> float:
    """Seconds of the step from its parts: S_p of compute and weights, the rest added, or overhead overlapped."""
    larger = max(compute, weights)
    if larger > 0 and not math.isinf(law.sharpness):
        smaller = min(compute, weights) / larger
        larger *= (1.0 + smaller**law.sharpness) ** (1.0 / law.sharpness)
    device = larger + kv + attention + communication
    return max(device, overhead) if law.overlap > 0 else device + overhead


def visible_pairs(law: StepLaw, start: float, count: float) -> float:
    """Query-key pairs of `count` queries after `start` earlier tokens, averaged over layers with their windows.

    The sum over positions is taken as an integral: start * count + count^2 / 2 without windows.
    """
    end = start + count
    full = (end * end - start * start) / 2.0
    if law.window_share == 0.0:
        return full
    window = law.window_tokens
    inside = 0.0
    for edge, sign in ((end, 1.0), (start, -1.0)):
        if law.window_chunked > 0:
            whole = math.floor(edge / window)
            rest = edge - whole * window
            inside += sign * (whole * window * window + rest * rest) / 2.0
        else:
            near = min(edge, window)
            inside += sign * (near * near / 2.0 + window * (edge - near))
    return (1.0 - law.window_share) * full + law.window_share * inside


def context_seen(law: StepLaw, context: float) -> float:
    """Context tokens that one decoding query reads, averaged over layers: `context` cut by the windows."""
    if law.window_share == 0.0 or context <= law.window_tokens:
        return context
    inside = law.window_tokens
    if law.window_chunked > 0:
        inside = context - law.window_tokens * math.floor((context - 1.0) / law.window_tokens)
    return context + law.window_share * (inside - context)


@dataclass(frozen=True, slots=True)
class Deployment:
    """What serves: `gpus` GPUs of one kind as one tensor-parallel group, a model, and its data types."""

    gpu: Gpu
    gpus: int
    shape: ModelShape
    dtypes: Dtypes

    def kv_bytes_per_gpu(self) -> float:
        """Bytes that one context token takes on the fullest GPU."""
        return self.shape.kv_elements_per_gpu(self.gpus) * self.dtypes.kv_bytes

    def kv_capacity_tokens(self, memory_fraction: float = 0.9, reserve_bytes: float = 2e9) -> int:
        """Context tokens that fit beside the weights: a fraction of the memory, less activations (`reserve_bytes`).

        Every layer is counted in full: windows save traffic, memory only in engines that free what left the window.

        Raises:
            UsageError: the weights do not fit.
        """
        free = self.gpu.memory_bytes * memory_fraction - reserve_bytes
        free -= self.dtypes.stored_bytes(self.shape) / self.gpus
        if free <= 0:
            need = self.dtypes.stored_bytes(self.shape) / 1e9
            raise UsageError(
                f"{self.shape.name} needs {need:.0f} GB for its weights, {self.gpus} x {self.gpu.name} leave no room",
                do="use more GPUs or smaller weights",
            )
        return int(min(free / self.kv_bytes_per_gpu(), 2**53))  # a GPU without a stated memory has no limit


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What the facts do not say: which part of each peak is reached, and overheads. The defaults are the bare roof."""

    mfu: float = 1.0  # of peak FLOP/s, matrix products
    mbu: float = 1.0  # of peak bandwidth, weights
    kv_mbu: float | None = None  # of peak bandwidth, KV reads; None: as mbu
    attention_mfu: float | None = None  # of peak FLOP/s, attention; None: as mfu
    sharpness: float = _INF
    step_s: float = 0.0
    sequence_s: float = 0.0
    allreduce_s: float = ALLREDUCE_S
    allreduce_bytes_per_s: float | None = None  # None: ALLREDUCE_SHARE of the link
    overlap: bool = False
    padding: bool = False
    eager_s: float = 0.0


ROOF = Efficiency()
# Plain literature constants: the starting point that a fit must beat, and what the simulated endpoint runs at.
LITERATURE = Efficiency(mfu=0.45, mbu=0.8)


def step_law(where: Deployment, efficiency: Efficiency = ROOF) -> StepLaw:
    """The cost law of a deployment at given efficiencies.

    Raises:
        UsageError: the GPU has no rate for the compute type.
    """
    gpu, shape, n = where.gpu, where.shape, where.gpus
    peak = gpu.rate(where.dtypes.compute)
    if peak is None:
        raise UsageError(f"{gpu.name} has no {where.dtypes.compute} rate", do="choose another compute type")
    dense, experts = where.dtypes.weight_bytes(shape)
    attention_mfu = efficiency.mfu if efficiency.attention_mfu is None else efficiency.attention_mfu
    kv_mbu = efficiency.mbu if efficiency.kv_mbu is None else efficiency.kv_mbu
    link = efficiency.allreduce_bytes_per_s or (gpu.link_bytes_per_s or _INF) * ALLREDUCE_SHARE
    reductions = 2 * shape.layers if n > 1 else 0
    return StepLaw(
        flops_per_token=2.0 * shape.active_params,
        head_flops=2.0 * shape.head_params,
        dense_bytes=dense,
        expert_bytes=experts,
        expert_share=shape.experts_per_token / shape.experts if shape.moe_layers else 0.0,
        kv_bytes=where.kv_bytes_per_gpu(),
        attention_flops_decode=float(shape.attention_flops_decode),
        attention_flops_prefill=float(shape.attention_flops_prefill),
        compute_rate=n * peak * efficiency.mfu,
        weight_rate=n * gpu.bandwidth_bytes_per_s * efficiency.mbu,
        kv_rate=gpu.bandwidth_bytes_per_s * kv_mbu,
        attention_rate=n * peak * attention_mfu,
        sharpness=efficiency.sharpness,
        allreduce_s=reductions * efficiency.allreduce_s,
        allreduce_token_s=reductions * shape.hidden * 2 / link,  # activations travel in 16 bits
        step_s=efficiency.step_s,
        sequence_s=efficiency.sequence_s,
        overlap=float(efficiency.overlap),
        padding=float(efficiency.padding),
        eager_s=efficiency.eager_s,
        window_share=shape.window_layers / shape.layers,
        window_tokens=float(shape.window),
        window_chunked=float(shape.window_chunked),
        gpus=float(n),
        peak_flop_per_s=n * peak,
        peak_bytes_per_s=n * gpu.bandwidth_bytes_per_s,
    )


def textbook_law(
    gpu: Gpu,
    params: float,
    *,
    gpus: int = 1,
    choice: Dtypes = BF16,
    efficiency: Efficiency = ROOF,
) -> StepLaw:
    """The law of a model of which only the size is known: 2 FLOP and one weight read per parameter, no KV cache.

    step time = max(2 * params * tokens / peak, params * bytes / bandwidth)
    """
    peak = (gpu.rate(choice.compute) or gpu.bf16_flop_per_s) * gpus
    return StepLaw(
        flops_per_token=2.0 * params,
        dense_bytes=params * WEIGHTS[choice.weights].bits / 8,
        compute_rate=peak * efficiency.mfu,
        weight_rate=gpu.bandwidth_bytes_per_s * gpus * efficiency.mbu,
        sharpness=efficiency.sharpness,
        step_s=efficiency.step_s,
        gpus=float(gpus),
        peak_flop_per_s=peak,
        peak_bytes_per_s=gpu.bandwidth_bytes_per_s * gpus,
    )


def constants_law(prefill_s: float, step_s: float, user_s: float) -> StepLaw:
    """The black-box law: seconds per prompt token, per decode step, and per user in the decode batch."""
    return StepLaw(prefill_token_s=prefill_s, decode_step_s=step_s, sequence_s=user_s)


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass through the model costs. FLOPs and bytes are None where only black-box constants are known."""

    tokens: int
    time_s: float
    flops: float | None = None
    bytes: float | None = None
    intensity: float | None = None  # FLOP per byte
    ridge: float | None = None  # FLOP per byte at which compute and memory take equally long
    bound: str | None = None  # compute | memory | communication | overhead: what takes the largest part


def prefill_pass(law: StepLaw, tokens: int, start: int = 0) -> Pass:
    """One prompt of `tokens` after `start` tokens that are in the cache, in one pass that samples its first token."""
    pairs = visible_pairs(law, float(start), float(tokens))
    flops = law.flops_per_token * tokens + law.head_flops + law.attention_flops_prefill * pairs
    return _pass(law, tokens, flops, 0.0, step_parts(law, 0, 0, tokens, 1, 0.0, 0.0, pairs))


def decode_pass(law: StepLaw, batch: int, context_seen_tokens: float) -> Pass:
    """One decode step of `batch` sequences that each read `context_seen_tokens` (windows applied)."""
    pairs = batch * context_seen_tokens
    flops = (law.flops_per_token + law.head_flops) * batch + law.attention_flops_decode * pairs
    return _pass(law, batch, flops, pairs, step_parts(law, batch, batch, 0, batch, pairs, pairs, 0.0))


def _pass(
    law: StepLaw, tokens: int, flops: float, kv_read: float, parts: tuple[float, float, float, float, float, float]
) -> Pass:
    time_s = combine(law, *parts)
    if math.isnan(law.peak_flop_per_s):
        return Pass(tokens, time_s)
    compute, weights, kv, attention, communication, overhead = parts
    touched = 1.0 - (1.0 - law.expert_share) ** tokens
    moved = law.dense_bytes + law.expert_bytes * touched + law.gpus * law.kv_bytes * kv_read
    shares = {
        "compute": compute + attention,
        "memory": weights + kv,
        "communication": communication,
        "overhead": overhead,
    }
    return Pass(
        tokens=tokens,
        time_s=time_s,
        flops=flops,
        bytes=moved,
        intensity=flops / moved,
        ridge=law.peak_flop_per_s / law.peak_bytes_per_s,
        bound=max(shares, key=shares.__getitem__),
    )
