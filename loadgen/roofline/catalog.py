"""The catalogue: GPUs and model shapes with their sources, found by any reasonable spelling.

Knows: the two tables in `data/` (facts only, each row with its source) and how a name finds its row. Must not know:
what the figures are used for.
Why: `--gpu "NVIDIA H100 80GB HBM3"` and `--shape meta-llama/Llama-3.1-8B-Instruct` are what people paste; a name that
is not there must say what is near instead of guessing.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import NoReturn

from loadgen.errors import UsageError
from loadgen.roofline.naming import closest, plain, quantity, words_without
from loadgen.roofline.ownshape import OWN, parse_shape, write_shape
from loadgen.roofline.shapes import ModelShape

# Words in a Hugging Face or nvidia-smi name that say nothing about size: tuning, packaging, vendor.
_MODEL_NOISE = frozenset(
    [
        "instruct",
        "it",
        "chat",
        "hf",
        "base",
        "pt",
        "meta",
        "preview",
        "thinking",
        "fp8",
        "bf16",
        "fp16",
        "awq",
        "gptq",
        "int4",
        "int8",
        "gguf",
        "mxfp4",
        "nvfp4",
        "w4a16",
        "w8a8",
        "dynamic",
        "quantized",
        "fp4",
        "bnb",
        "4bit",
        "8bit",
        "2407",
        "2501",
        "2507",
        "0528",
    ]
)
_GPU_NOISE = frozenset(["nvidia", "amd", "geforce", "tesla", "instinct", "google", "intel", "tensor", "core", "gpu"])


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator. Rates are dense (no sparsity) FLOP/s, None where the vendor gives none or it does not exist."""

    name: str
    bf16_flop_per_s: float
    memory_bytes: float
    bandwidth_bytes_per_s: float
    fp8_flop_per_s: float | None = None
    fp4_flop_per_s: float | None = None
    int8_flop_per_s: float | None = None
    link_bytes_per_s: float | None = None  # to its peers, one direction
    tdp_w: float | None = None
    measured_bf16_flop_per_s: float | None = None  # best matrix product that was measured, by the source named
    measured_fp8_flop_per_s: float | None = None
    source: str = ""
    checked: str = ""
    note: str = ""

    def rate(self, compute: str) -> float | None:
        """Peak FLOP/s for a compute type of `precision.COMPUTE`, None where there is none."""
        rates: dict[str, float | None] = {
            "bf16": self.bf16_flop_per_s,
            "fp8": self.fp8_flop_per_s,
            "fp4": self.fp4_flop_per_s,
            "int8": self.int8_flop_per_s,
        }
        return rates[compute]

    def ridge(self, compute: str = "bf16") -> float:
        """FLOP per byte above which a pass is bound by compute."""
        return (self.rate(compute) or self.bf16_flop_per_s) / self.bandwidth_bytes_per_s


def gpus() -> tuple[Gpu, ...]:
    """All GPUs of the catalogue, in its order."""
    return tuple(_gpu_table()[0])


def shapes() -> tuple[ModelShape, ...]:
    """All model shapes of the catalogue, in its order."""
    return tuple(_shape_table()[0])


def gpu(name: str) -> Gpu:
    """The GPU of that name: catalogue name, alias, or what nvidia-smi prints; case and punctuation do not matter.

    One that is not in the catalogue is written as its facts, `custom:989T:3.35TB/s[:80GB]`, which is then its name.

    Raises:
        UsageError: no such GPU; says which names are near.
    """
    if name.strip().lower().startswith("custom"):
        return _written_out(name.strip())
    rows, keys = _gpu_table()
    found = keys.get(words_without(name, _GPU_NOISE))
    return (
        rows[found]
        if found is not None
        else _unknown("GPU", name, [row.name for row in rows], "its facts: custom:PEAK:BANDWIDTH")
    )


def shape(name: str) -> ModelShape:
    """The model shape of that name: catalogue name, alias or a Hugging Face name of the same model.

    One that is not in the catalogue is written out (`spelled`).

    Raises:
        UsageError: no such shape; says which names are near.
    """
    if name.startswith(OWN):
        return parse_shape(name)
    rows, keys = _shape_table()
    found = keys.get(words_without(name, _MODEL_NOISE))
    if found is None:
        _unknown("shape", name.rsplit("/", 1)[-1], [row.name for row in rows], "the path of a config.json")
    return rows[found]


def spelled(one: ModelShape) -> str:
    """What `shape` reads as this shape again: its name in the catalogue, or its dimensions written out."""
    return one.name if one in shapes() else write_shape(one)


def custom_gpu(
    peak_flop_per_s: float, bandwidth_bytes_per_s: float, memory_bytes: float, link_bytes_per_s: float | None = None
) -> Gpu:
    """A GPU that is not in the catalogue: one rate, which every compute type is given."""
    return Gpu(
        name="custom",
        bf16_flop_per_s=peak_flop_per_s,
        fp8_flop_per_s=peak_flop_per_s,
        fp4_flop_per_s=peak_flop_per_s,
        int8_flop_per_s=peak_flop_per_s,
        memory_bytes=memory_bytes,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        link_bytes_per_s=link_bytes_per_s,
        source="given by the user",
    )


def _written_out(name: str) -> Gpu:
    facts = name.split(":")[1:]
    if not 2 <= len(facts) <= 3:
        raise UsageError(
            "a custom GPU needs its peak FLOP/s and its bandwidth, and may have its memory",
            where=name,
            do="write custom:989T:3.35TB/s:80GB",
        )
    peak, bandwidth = quantity(facts[0], f"peak of {name}"), quantity(facts[1], f"bandwidth of {name}")
    memory = quantity(facts[2], f"memory of {name}") if len(facts) == 3 else float("inf")
    return replace(custom_gpu(peak, bandwidth, memory), name=name)


def _unknown(kind: str, name: str, names: list[str], other: str) -> NoReturn:
    raise UsageError(f"unknown {kind} {name!r}", do=f"did you mean {closest(name, names)}? (or give {other})")


def _rows(filename: str) -> list[dict[str, str]]:
    text = resources.files("loadgen.roofline").joinpath("data", filename).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _keys(rows: list[dict[str, str]], noise: frozenset[str]) -> dict[str, int]:
    """Every accepted key of every row. Two rows that share one would make a lookup a guess: refused."""
    keys: dict[str, int] = {}
    for number, row in enumerate(rows):
        for name in (row["name"], *filter(None, row["aliases"].split("|"))):
            for key in (words_without(name, noise), plain(name)):
                if keys.setdefault(key, number) != number:
                    raise ValueError(f"the catalogue has two rows for {name!r}")
    return keys


@cache
def _gpu_table() -> tuple[list[Gpu], dict[str, int]]:
    rows = _rows("gpus.csv")
    return [_gpu_row(row) for row in rows], _keys(rows, _GPU_NOISE)


@cache
def _shape_table() -> tuple[list[ModelShape], dict[str, int]]:
    rows = _rows("models.csv")
    return [_shape_row(row) for row in rows], _keys(rows, _MODEL_NOISE)


def _gpu_row(row: dict[str, str]) -> Gpu:
    def known(column: str, unit: float) -> float | None:
        return float(row[column]) * unit if row[column] else None

    return Gpu(
        name=row["name"],
        bf16_flop_per_s=float(row["bf16_tflops"]) * 1e12,
        fp8_flop_per_s=known("fp8_tflops", 1e12),
        fp4_flop_per_s=known("fp4_tflops", 1e12),
        int8_flop_per_s=known("int8_tops", 1e12),
        memory_bytes=float(row["memory_gb"]) * 1e9,
        bandwidth_bytes_per_s=float(row["bandwidth_tb_per_s"]) * 1e12,
        link_bytes_per_s=known("link_gb_per_s", 1e9),
        tdp_w=known("tdp_w", 1.0),
        measured_bf16_flop_per_s=known("measured_bf16_tflops", 1e12),
        measured_fp8_flop_per_s=known("measured_fp8_tflops", 1e12),
        source=row["source"],
        checked=row["checked"],
        note=row["note"],
    )


_COUNTS = (
    "layers",
    "hidden",
    "ffn",
    "ffn_matrices",
    "heads",
    "kv_heads",
    "head_dim",
    "vocab",
    "experts",
    "experts_per_token",
    "expert_ffn",
    "shared_experts",
    "moe_layers",
    "q_lora",
    "kv_lora",
    "rope_dim",
    "nope_dim",
    "v_dim",
    "window",
    "window_layers",
)


def _shape_row(row: dict[str, str]) -> ModelShape:
    return ModelShape(
        name=row["name"],
        **{column: int(row[column] or 0) for column in _COUNTS},
        tied_embeddings=row["tied_embeddings"] == "1",
        window_chunked=row["window_chunked"] == "1",
        vendor_total=float(row["vendor_total_b"]) * 1e9 if row["vendor_total_b"] else None,
        source=row["source"],
        note=row["note"],
    )
