"""Data types: three separate choices - how weights are stored, how products are computed, how the KV cache is stored.

Knows: bits per element with their scales, and which preset names stand for which three choices. Must not know: GPUs'
rates (`catalog`) or models' sizes (`shapes`).
Why: "fp8" alone says too little. Four-bit weights are read as four bits yet multiplied in 16 on most GPUs, and an fp8
KV cache goes with any weights; folding the three into one word puts a factor of two in the wrong place.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadgen.errors import UsageError
from loadgen.roofline.naming import closest, plain

if TYPE_CHECKING:
    from loadgen.roofline.catalog import Gpu
    from loadgen.roofline.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Bits per stored weight, block scales included; `experts_only`: attention and dense layers stay in 16 bits."""

    bits: float
    experts_only: bool = False


# Block formats carry their scales: OCP MX has 8 bits per 32 weights, NVFP4 8 bits per 16, and group-128 integer
# formats (GPTQ, AWQ) a 16-bit scale and a 4-bit zero per 128. MXFP4 checkpoints (gpt-oss) quantise the experts only.
WEIGHTS: dict[str, WeightFormat] = {
    "bf16": WeightFormat(16),
    "fp8": WeightFormat(8),
    "int8": WeightFormat(8),
    "int4": WeightFormat(4 + 20 / 128),
    "mxfp4": WeightFormat(4 + 8 / 32, experts_only=True),
    "nvfp4": WeightFormat(4 + 8 / 16),
}
COMPUTE = ("bf16", "fp8", "int8", "fp4")
KV_BITS: dict[str, float] = {"bf16": 16, "fp8": 8, "int8": 8}
# preset -> (weights, compute, kv). The KV cache keeps 16 bits unless asked otherwise: the engines' default.
PRESETS: dict[str, tuple[str, str, str]] = {
    "bf16": ("bf16", "bf16", "bf16"),
    "fp8": ("fp8", "fp8", "bf16"),
    "w8a8": ("int8", "int8", "bf16"),
    "w8a16": ("int8", "bf16", "bf16"),
    "w4a16": ("int4", "bf16", "bf16"),
    "w4a8": ("int4", "fp8", "bf16"),
    "mxfp4": ("mxfp4", "bf16", "bf16"),
    "nvfp4": ("nvfp4", "fp4", "bf16"),
}
# Other spellings of the same things. fp16 has the rates and the size of bf16.
SPELLINGS: dict[str, str] = {
    "fp16": "bf16",
    "float16": "bf16",
    "half": "bf16",
    "bfloat16": "bf16",
    "16bit": "bf16",
    "float8": "fp8",
    "fp8e4m3": "fp8",
    "e4m3": "fp8",
    "fp8e5m2": "fp8",
    "8bit": "int8",
    "awq": "w4a16",
    "gptq": "w4a16",
    "int4": "w4a16",
    "w4": "w4a16",
    "4bit": "w4a16",
    "int8": "w8a8",
    "fp4": "nvfp4",
}


@dataclass(frozen=True, slots=True)
class Dtypes:
    """The three choices, as names of the tables above."""

    weights: str = "bf16"
    compute: str = "bf16"
    kv: str = "bf16"

    def weight_bytes(self, shape: ModelShape) -> tuple[float, float]:
        """Bytes that a step reads of (dense layers and head, all routed experts).

        The head stays in 16 bits under every format, as the usual quantised checkpoints have it.
        """
        form = WEIGHTS[self.weights]
        dense = 2.0 if form.experts_only and shape.moe_layers else form.bits / 8
        return dense * shape.dense_params + 2.0 * shape.head_params, form.bits / 8 * shape.routed_params

    def stored_bytes(self, shape: ModelShape) -> float:
        """Bytes of all weights in GPU memory: what a step can read, and the embedding where it is not the head."""
        embedding = 0.0 if shape.tied_embeddings else 2.0 * shape.head_params
        return sum(self.weight_bytes(shape)) + embedding

    @property
    def kv_bytes(self) -> float:
        """Bytes of one element of the KV cache."""
        return KV_BITS[self.kv] / 8


BF16 = Dtypes()


def dtypes(
    preset: str = "bf16", gpu: Gpu | None = None, *, weights: str = "", compute: str = "", kv: str = ""
) -> Dtypes:
    """The three choices from a preset name and overrides ("" keeps the preset's).

    A preset whose compute type `gpu` has no rate for is computed in bf16, as engines do (weights are expanded on the
    way in); an explicit `compute` without a rate is an error.

    Raises:
        UsageError: an unknown name, or a compute type that the GPU does not have.
    """
    stored, rate, cache = PRESETS[_known(preset, PRESETS, "dtype")]
    if gpu is not None and gpu.rate(rate) is None:
        rate = "bf16"
    if compute:
        rate = _known(compute, COMPUTE, "compute type")
        if gpu is not None and gpu.rate(rate) is None:
            raise UsageError(f"{gpu.name} has no {rate} rate", do="leave --compute out, or use bf16")
    if weights:
        stored = _known(weights, WEIGHTS, "weight type")
    return Dtypes(stored, rate, _known(kv, KV_BITS, "KV type") if kv else cache)


def _known(name: str, names: Collection[str], kind: str) -> str:
    """The table's spelling of `name`: as it stands, or through SPELLINGS."""
    key = plain(name)
    for candidate in (key, SPELLINGS.get(key, ""), *_via_preset(key, kind)):
        if candidate in names:
            return candidate
    raise UsageError(f"unknown {kind} {name!r}", do=f"did you mean {closest(key, names)}?")


def _via_preset(key: str, kind: str) -> tuple[str, ...]:
    """A preset's name used for one of the three: `--weights w4a16` stores int4, `--compute fp4` is fp4."""
    column = {"weight type": 0, "compute type": 1, "KV type": 2}.get(kind)
    preset = PRESETS.get(SPELLINGS.get(key, key))
    return () if column is None or preset is None else (preset[column],)
