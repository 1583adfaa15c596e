"""The run under its roofline: the named hardware, its roofs, and where each stage's two phases lie.

Knows: what a run says about its hardware, and which of a stage's figures make a point. Must not know: any formula of
the roofline (`roofline.explain` has them), charts, sentences.
Why: a point may only be shown where GPU and model are known; where they are not, the reader is told what to give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.errors import LoadgenError
from loadgen.report.stages import Placed, WorkloadGroup
from loadgen.roofline.catalog import Gpu, gpu, shape
from loadgen.roofline.explain import PhasePoint, place
from loadgen.roofline.precision import COMPUTE, Dtypes, dtypes
from loadgen.roofline.shapes import ModelShape

PASS = "name the hardware when you run: --gpu h100-sxm --gpus 1 --shape llama-3.1-8b --dtype bf16"


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the endpoint is said to run on."""

    gpu: Gpu
    gpus: int
    shape: ModelShape
    dtypes: Dtypes

    @property
    def label(self) -> str:
        """`1 × h100-sxm, llama-3.1-8b, weights bf16, compute bf16, KV bf16`."""
        types = f"weights {self.dtypes.weights}, compute {self.dtypes.compute}, KV {self.dtypes.kv}"
        return f"{self.gpus} × {self.gpu.name}, {self.shape.name}, {types}"

    @property
    def bandwidth(self) -> float:
        """Bytes per second of all GPUs."""
        return self.gpus * self.gpu.bandwidth_bytes_per_s

    def roofs(self) -> list[tuple[str, float]]:
        """(compute types, FLOP/s of all GPUs): the type in use first, then the others of this GPU by their rate."""
        names: dict[float, list[str]] = {}
        for name in dict.fromkeys((self.dtypes.compute, *COMPUTE)):
            rate = self.gpu.rate(name)
            if rate is not None:
                names.setdefault(self.gpus * rate, []).append(name)
        return [(", ".join(some), rate) for rate, some in names.items()]


@dataclass(frozen=True, slots=True)
class Placement:
    """Hardware and the points on it, by stage number; or why there are none."""

    hardware: Hardware | None
    points: dict[int, tuple[PhasePoint, ...]]
    missing: str = ""

    def point(self, stage: Placed, phase: str) -> PhasePoint | None:
        """One phase of one stage."""
        found = self.points.get(stage.summary.info.stage, ())
        return next((point for point in found if point.phase == phase), None)


def placement(named: dict[str, Any], workloads: Sequence[WorkloadGroup]) -> Placement:
    """Place every stage; `named` is what the run's spec says under `roofline`."""
    lacking = [key for key in ("gpu", "shape") if not named.get(key)]
    if lacking:
        return Placement(None, {}, f"The run does not say which {' and '.join(lacking)} it measured: {PASS}.")
    try:
        chosen = gpu(str(named["gpu"]))
        words = {key: str(named[key]) for key in ("weights", "compute", "kv") if named.get(key)}
        hardware = Hardware(
            chosen,
            int(named.get("gpus") or 1),
            shape(str(named["shape"])),
            dtypes(str(named.get("dtype") or "bf16"), chosen, **words),
        )
        points = {stage.summary.info.stage: _points(hardware, stage) for group in workloads for stage in group.measured}
    except LoadgenError as unknown:
        return Placement(None, {}, f"The named hardware is not in the catalogue: {unknown}.")
    return Placement(hardware, points)


def _points(hardware: Hardware, stage: Placed) -> tuple[PhasePoint, ...]:
    prompt, output = stage.value("prompt_tokens", "p50"), stage.value("output_tokens", "p50")
    if prompt is None or output is None:
        return ()
    return place(
        hardware.gpu,
        hardware.gpus,
        hardware.shape,
        hardware.dtypes,
        prompt_tokens=prompt,
        output_tokens=output,
        batch=stage.value("streaming", "mean") or 1.0,
        ttft_s=stage.value("ttft", "p50"),
        tpot_s=stage.value("tpot", "p50"),
    )
