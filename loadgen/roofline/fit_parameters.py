"""What a fit may move: the continuous parameters with bounds and priors, the integer knobs, and the law they make.

Knows: which numbers of `passes.Efficiency` and `serving.EngineConfig` the hardware's facts leave open, in which range
they can lie, and what kernel measurements say about them. Must not know: cells, losses or searches.
Why: two models of an engine - physics where GPU and shape are known, black-box constants anywhere - are fitted by the
same machinery, so what differs between them stands here as two tables.

All parameters are positive and are moved as logarithms. A prior is (median, standard deviation of the logarithm).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadgen.roofline.passes import Deployment, Efficiency, StepLaw, step_law
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.serving_kernel import Floats

NO_CAP = 4096  # sequences at once that no table comes near
TOP_MBU = 0.92  # of peak bandwidth: about what the best copy kernels reach


@dataclass(frozen=True, slots=True)
class Quantity:
    """A continuous parameter.

    moves: the mover of `trace_kernel.MOVERS` that it acts on; a rate (`sign` -1) divides it, a cost (1) multiplies it.
        "request" and "prompt": the way to the server, which no step has.
    settle: the experiment that would pin it down.
    """

    name: str
    unit: str
    low: float
    high: float
    prior: tuple[float, float]
    settle: str
    moves: str
    sign: float = 1.0


# Priors of the utilisations: GEMM and attention kernels on H100 (bf16 GEMM .78 of peak FLOP/s and .64-.85 of bandwidth,
# sharpness 1-6; ai-dynamo/aiconfigurator kernel tables, Apache-2.0), widened to hold other kernels and other GPUs. The
# overheads' medians are those of open engines; with a deviation of a factor of three to five they hardly bind.
PHYSICS: tuple[Quantity, ...] = (
    Quantity(
        "mfu",
        "share of peak FLOP/s",
        0.01,
        1.0,
        (0.6, 0.5),
        "TTFT at one user, prompts from 128 to 8k tokens",
        "compute",
        -1.0,
    ),
    Quantity(
        "mbu",
        "share of peak bandwidth",
        0.02,
        1.0,
        (0.75, 0.2),
        "a second GPU count, quantisation or model size",
        "weights",
        -1.0,
    ),
    Quantity(
        "kv_mbu",
        "share of peak bandwidth",
        0.02,
        1.0,
        (0.6, 0.5),
        "ITL against context at batches of 8 and 32",
        "kv",
        -1.0,
    ),
    Quantity(
        "attention_mfu",
        "share of peak FLOP/s",
        0.01,
        1.0,
        (0.4, 0.6),
        "TTFT at one user with prompts of 8k-128k",
        "attention",
        -1.0,
    ),
    Quantity(
        "sharpness",
        "p of the roofline's knee",
        1.0,
        8.0,
        (2.5, 0.5),
        "ITL at users from 1 to 512, short prompts",
        "sharpness",
    ),
    Quantity("step_s", "s per step", 1e-6, 0.2, (2e-3, 1.2), "a second GPU count, quantisation or model size", "step"),
    Quantity(
        "sequence_s",
        "s per sequence and step",
        1e-8,
        5e-3,
        (1e-5, 1.5),
        "ITL at users from 1 to 512, short prompts",
        "sequence",
    ),
    Quantity(
        "request_s", "s per request", 1e-5, 5.0, (5e-3, 1.5), "TTFT at one user with a prompt of 16 tokens", "request"
    ),
    Quantity(
        "prompt_token_s",
        "s per prompt token",
        1e-9,
        1e-3,
        (5e-7, 1.2),
        "prompts sent as token ids, and as text",
        "prompt",
    ),
)
UTILISATIONS = ("mfu", "mbu", "kv_mbu", "attention_mfu")
# A measured all-reduce moves 60-100 GB/s of an H100's link (vLLM, 0.5-4 MB); as a share of the link it carries over.
ALLREDUCE = Quantity(
    "allreduce_share",
    "share of the link",
    0.02,
    1.0,
    (80 / 450, 0.6),
    "the same model on another number of GPUs",
    "allreduce_token",
    -1.0,
)
# Experts' matrix products are smaller and unevenly filled: a lower and wider prior.
EXPERTS_MFU = (0.4, 0.6)
BLACK_BOX: tuple[Quantity, ...] = (
    Quantity(
        "prefill_token_s",
        "s per prompt token",
        1e-8,
        0.05,
        (5e-5, 2.0),
        "TTFT at one user, prompts of several lengths",
        "prefill",
    ),
    Quantity("decode_step_s", "s per step", 1e-5, 1.0, (1e-2, 1.5), "ITL at one user", "decode"),
    Quantity(
        "sequence_s", "s per sequence and step", 1e-8, 0.05, (1e-4, 2.0), "ITL at users from 1 to 512", "sequence"
    ),
    Quantity(
        "context_token_s",
        "s per context token and step",
        1e-12,
        1e-5,
        (2e-8, 2.0),
        "ITL against context at a fixed batch",
        "kv",
    ),
    Quantity(
        "pair_s",
        "s per pair of prompt tokens",
        1e-15,
        1e-7,
        (1e-10, 2.0),
        "TTFT at one user with prompts of 8k-128k",
        "attention",
    ),
    Quantity(
        "request_s", "s per request", 1e-5, 5.0, (2e-2, 2.0), "TTFT at one user with a prompt of 16 tokens", "request"
    ),
)


@dataclass(frozen=True, slots=True)
class Knobs:
    """What a scheduler does, by integers and switches, and how the cells were begun.

    kv: KV capacity, as a share of what GPU memory leaves where that is known, else in tokens; None: no limit.
    immediate: a user's next request joins the very next step (no way to the server).
    overlap: a step takes the longer of GPU work and overhead, not their sum (asynchronous scheduling).
    opening: a cell's figures include the users' first requests; asked only of cells that do not say how many they sent.
    """

    token_budget: int = 8192
    chunked: bool = True
    prompts_per_step: int | None = None
    late_tokens: bool = False
    max_sequences: int = NO_CAP
    kv: float | None = None
    immediate: bool = False
    overlap: bool = False
    opening: bool = True


def quantities(deployments: Sequence[Deployment | None]) -> tuple[Quantity, ...]:
    """The parameters of a fit of these deployments; one that is not known makes it a black box."""
    known = [one for one in deployments if one is not None]
    if len(known) < len(deployments):
        return BLACK_BOX
    experts = any(one.shape.moe_layers for one in known)
    linked = any(one.gpus > 1 and one.gpu.link_bytes_per_s for one in known)
    table = tuple(replace(one, prior=EXPERTS_MFU) if one.name == "mfu" and experts else one for one in PHYSICS)
    return (*table, ALLREDUCE) if linked else table


def law_of(deployment: Deployment | None, values: Mapping[str, float], overlap: bool = False) -> StepLaw:
    """The step law of a deployment at given parameters, or the black-box law where there is no deployment."""
    if deployment is None or "prefill_token_s" in values:
        return StepLaw(
            prefill_token_s=values["prefill_token_s"],
            decode_step_s=values["decode_step_s"],
            sequence_s=values["sequence_s"],
            kv_bytes=1.0,
            kv_rate=1.0 / values["context_token_s"],
            attention_flops_prefill=1.0,
            attention_rate=1.0 / values["pair_s"],
            overlap=float(overlap),
        )
    link = deployment.gpu.link_bytes_per_s
    return step_law(
        deployment,
        Efficiency(
            mfu=values["mfu"],
            mbu=values["mbu"],
            kv_mbu=values["kv_mbu"],
            attention_mfu=values["attention_mfu"],
            sharpness=values["sharpness"],
            step_s=values["step_s"],
            sequence_s=values["sequence_s"],
            allreduce_bytes_per_s=link * values["allreduce_share"] if link and "allreduce_share" in values else None,
            overlap=overlap,
        ),
    )


def kv_tokens(deployment: Deployment | None, kv: float | None) -> int | None:
    """KV capacity in tokens that `Knobs.kv` means; None without a limit.

    Raises:
        UsageError: a share is asked for and the weights do not fit.
    """
    if kv is None:
        return None
    return int(kv) if deployment is None else max(1, int(kv * deployment.kv_capacity_tokens()))


def engine_of(deployment: Deployment | None, values: Mapping[str, float], knobs: Knobs) -> EngineConfig:
    """The whole engine. Raises UsageError as `kv_tokens` does."""
    return EngineConfig(
        law_of(deployment, values, knobs.overlap),
        token_budget=knobs.token_budget,
        chunked=knobs.chunked,
        prompts_per_step=knobs.prompts_per_step,
        late_tokens=knobs.late_tokens,
        max_sequences=knobs.max_sequences,
        kv_tokens=kv_tokens(deployment, knobs.kv),
        request_s=0.0 if knobs.immediate else values["request_s"],
        prompt_token_s=0.0 if knobs.immediate else values.get("prompt_token_s", 0.0),
    )


def named(table: Sequence[Quantity], point: Floats) -> dict[str, float]:
    """Values by name from a point of logarithms."""
    return {one.name: math.exp(value) for one, value in zip(table, point, strict=True)}


def bounds(table: Sequence[Quantity]) -> tuple[Floats, Floats]:
    """Logarithms of the bounds."""
    return np.log([one.low for one in table]), np.log([one.high for one in table])
