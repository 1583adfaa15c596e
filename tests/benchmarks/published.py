"""The starting error: published measurements against plain literature constants (MFU 0.45, MBU 0.8, nothing fitted).

    python -m tests.benchmarks.published TABLE.csv [TABLE.csv ...]

Reads tidy tables (`source,gpu,n_gpu,model,dtype,engine,isl,osl,concurrency_or_batch,metric,value,unit`), simulates each
cell as its source says that it was measured, and prints for each deployment the median of |simulated / measured - 1|. A
fit has to beat these figures. Nothing is chosen per deployment: the differences between sources are in PROTOCOLS.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.passes import LITERATURE, Deployment, step_law
from loadgen.roofline.precision import dtypes
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.serving_fast import Served, simulate_closed

METRICS = {"ttft_mean": "ttft", "ttft": "ttft", "tpot_mean": "itl", "itl_mean": "itl", "output_throughput": "rate"}
DEPLOYMENT = ["source", "gpu", "n_gpu", "model", "dtype", "engine"]


@dataclass(frozen=True)
class Protocol:
    """How a source measured."""

    static: bool = False  # one batch, all prompts at once, no scheduler
    per_user: int = 10  # requests per unit of concurrency
    shortest: float = 1.0  # real lengths are uniform in [shortest, 1] x nominal
    offline: int = 0  # requests offered at once, for "max-load" rows
    sequences: int = 256


PROTOCOLS = {
    ("aic_silicon", "vllm"): Protocol(shortest=0.8),
    ("aic_silicon", "trtllm"): Protocol(),
    ("splitwise", "vLLM"): Protocol(static=True, per_user=1),
    ("trtllm1.0_perf_overview", "TRTLLM"): Protocol(offline=3000, sequences=1024),
    ("nim_docs", "NIM"): Protocol(),
}


def deployment(gpu: str, gpus: int, model: str, dtype: str, engine: str) -> Deployment:
    """The catalogue's facts for a table's row; TensorRT-LLM's fp8 and fp4 builds keep an fp8 KV cache."""
    card = catalog.gpu(gpu.removesuffix("-powercap"))
    preset = {"nan": "bf16", "fp16": "bf16", "fp4": "mxfp4" if "gpt-oss" in model else "nvfp4"}.get(dtype, dtype)
    narrow = dtype in {"fp8", "fp4"} and not engine.startswith("vllm")
    return Deployment(card, gpus, catalog.shape(model), dtypes(preset, card, kv="fp8" if narrow else ""))


def simulate(where: Deployment, protocol: Protocol, isl: int, osl: int, load: str) -> Served:
    """One cell as it was run."""
    law = step_law(where, LITERATURE)
    users = protocol.offline or int(float(load))
    count = protocol.offline or users * protocol.per_user
    kv = None if protocol.static else where.kv_capacity_tokens()
    config = EngineConfig(law, max_sequences=protocol.sequences, kv_tokens=kv)
    if protocol.static:
        config = EngineConfig(law, token_budget=2**40, chunked=False, max_sequences=users)
    rng = np.random.default_rng(0)
    prompts, outputs = (
        rng.integers(max(1, int(protocol.shortest * nominal)), nominal + 1, count) for nominal in (isl, osl)
    )
    return simulate_closed(config, users, prompts, outputs)


def measures(served: Served) -> dict[str, float]:
    """What a client would have reported: means of TTFT and TPOT in ms, output tokens/s of the whole server."""
    return {
        "ttft": float(np.mean(served.ttft_s)) * 1e3,
        "itl": float(np.nanmean(served.tpot_s)) * 1e3,
        "rate": float(served.output_tokens.sum() / np.max(served.last_s)),
    }


def errors(table: pd.DataFrame) -> Iterable[tuple[tuple[str, ...], int, dict[str, float] | str]]:
    """For each deployment: its key, its cells, and the median error of each metric, or why there is none."""
    for key, rows in table.groupby(DEPLOYMENT, sort=False):
        source, gpu, gpus, model, dtype, engine = (str(part) for part in key)
        cells = list(rows.groupby(["isl", "osl", "concurrency_or_batch"], sort=False))
        protocol = next(p for (s, e), p in PROTOCOLS.items() if s == source and engine.startswith(e))
        found: dict[str, list[float]] = {}
        try:
            where = deployment(gpu, int(gpus), model, dtype, engine)
            for (isl, osl, load), cell in cells:
                simulated = measures(simulate(where, protocol, int(isl), int(osl), str(load)))
                for metric, value in zip(cell["metric"], cell["value"], strict=True):
                    if (name := METRICS.get(str(metric))) is not None:
                        found.setdefault(name, []).append(abs(simulated[name] / float(value) - 1.0))
        except UsageError as bad:
            yield (source, gpu, gpus, model, dtype, engine), len(cells), str(bad)
            continue
        yield (
            (source, gpu, gpus, model, dtype, engine),
            len(cells),
            {name: float(np.median(values)) for name, values in found.items()},
        )


def main(paths: list[str]) -> None:
    """Print the table in Markdown."""
    print("| source | deployment | cells | TTFT | ITL | server output tokens/s |\n|---|---|---|---|---|---|")
    medians: dict[str, list[float]] = {}
    for path in paths:
        for (source, gpu, gpus, model, dtype, engine), cells, got in errors(pd.read_csv(path, keep_default_na=False)):
            head = f"| {source} | {gpus} x {gpu}, {model}, {dtype}, {engine} | {cells} |"
            if isinstance(got, str):
                print(f"{head} {got} | | |")
                continue
            for name, value in got.items():
                medians.setdefault(name, []).append(value)
            print(head, " | ".join(f"{got[name]:.0%}" if name in got else "" for name in ("ttft", "itl", "rate")), "|")
    total = (f"{np.median(medians[name]):.0%}" if name in medians else "" for name in ("ttft", "itl", "rate"))
    print("| all | median over deployments | |", " | ".join(total), "|")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
