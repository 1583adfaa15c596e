"""The flags that say what serves: GPU, how many, model shape, data types. One set for every command that needs them.

Knows: flag names and how they become a `Deployment`. Must not know: what the command does with it.
Why: `predict`, `simulate` and `run` must read `--gpu custom` or `--shape config.json` alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.roofline.catalog import Gpu
    from loadgen.roofline.passes import Deployment
    from loadgen.roofline.precision import Dtypes
    from loadgen.roofline.shapes import ModelShape

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--gpu", default="h100-sxm", show_default=True, help="Name in the catalogue, or custom:PEAK:BANDWIDTH."
    ),
    click.option("--gpus", default=1, show_default=True, type=click.IntRange(1, 10**6), help="GPUs, tensor-parallel."),
    click.option(
        "--shape", default="llama-3.1-8b", show_default=True, help="Model of the catalogue, or a config.json."
    ),
    click.option("--dtype", default="bf16", show_default=True, help="Preset: bf16, fp8, w8a8, w4a16, mxfp4, nvfp4 ..."),
    click.option("--weights", default="", help="Type of the weights, in place of the preset's."),
    click.option("--compute", default="", help="Type of the matrix products, in place of the preset's."),
    click.option("--kv", default="", help="Type of the KV cache, in place of the preset's."),
    click.option("--peak", default="", help="With --gpu custom: FLOP/s, e.g. 989T."),
    click.option("--bandwidth", default="", help="With --gpu custom: memory bytes/s, e.g. 3.35TB/s."),
    click.option("--memory", default="", help="With --gpu custom: memory bytes, e.g. 80GB."),
)
NAMES = ("gpu", "gpus", "shape", "dtype", "weights", "compute", "kv", "peak", "bandwidth", "memory")


def hardware_options(command: F) -> F:
    """Add the flags; the command's function gets them under NAMES."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_gpu(name: str, peak: str = "", bandwidth: str = "", memory: str = "") -> Gpu:
    """The GPU that the flags name.

    Raises:
        UsageError: unknown, or facts given for a GPU that has its own.
    """
    from loadgen.roofline.catalog import custom_gpu, gpu
    from loadgen.roofline.naming import quantity

    if name.lower() != "custom" or not (peak or bandwidth or memory):
        if peak or bandwidth or memory:
            raise UsageError("--peak, --bandwidth and --memory go with --gpu custom only", where=f"--gpu {name}")
        return gpu(name)
    if not (peak and bandwidth):
        raise UsageError("a custom GPU needs --peak and --bandwidth", where="--gpu custom")
    room = quantity(memory, "--memory") if memory else float("inf")
    return custom_gpu(quantity(peak, "--peak"), quantity(bandwidth, "--bandwidth"), room)


def read_shape(name: str) -> ModelShape:
    """The model shape that `--shape` names: a catalogue name, or the path of a Hugging Face config.json.

    Raises:
        UsageError: unknown name, unreadable file, or a file without the dimensions.
    """
    from loadgen.store.shapefile import read_shape as read

    return read(name)


def read_dtypes(gpu: Gpu, dtype: str = "bf16", weights: str = "", compute: str = "", kv: str = "") -> Dtypes:
    """The data types that the flags name, checked against the GPU."""
    from loadgen.roofline.precision import dtypes

    return dtypes(dtype, gpu, weights=weights, compute=compute, kv=kv)


def read_deployment(flags: dict[str, Any]) -> Deployment:
    """The deployment that the flags (a mapping with NAMES) describe."""
    from loadgen.roofline.passes import Deployment

    gpu = read_gpu(flags["gpu"], flags["peak"], flags["bandwidth"], flags["memory"])
    choice = read_dtypes(gpu, flags["dtype"], flags["weights"], flags["compute"], flags["kv"])
    return Deployment(gpu, flags["gpus"], read_shape(flags["shape"]), choice)
