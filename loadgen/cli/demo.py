"""`loadgen demo`: measure the embedded simulated H100 endpoint over real HTTP, with nothing to set up.

Knows: which workloads and loads make a telling minute. Must not know: how they are run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

# What keeps the demo to about a minute: shorter stages than `run`, loads that show batching.
_FLAGS: dict[str, Any] = {
    "workload": ("chat,summarize,story",),
    "concurrency": "1,8,32",
    "rate": None,
    "mix": None,
    "trace": None,
    "arrivals": None,
    "max_concurrency": None,
    "requests": None,
    "duration": None,
    "prompt_tokens": None,
    "output_tokens": None,
    "warmup": 4,
    "burst_start": False,
    "workers": "1",
    "seed": 0,
    "model": None,
    "dialect": None,
    "api_key_env": None,
    "header": (),
    "temperature": None,
    "extra_body": None,
    "timeout_connect": "10s",
    "timeout_first": "60s",
    "timeout_idle": "60s",
    "timeout_total": "off",
    "trust_env": False,
    "insecure": False,
    "ca": None,
    "keep_text": False,
    "metrics": ("auto",),
}
_REQUESTS = {"chat": {1: 6, 8: 32, 32: 96}, "summarize": {1: 6, 8: 24, 32: 64}, "story": {1: 1, 8: 8, 32: 32}}


@click.command("demo")
@click.option("-o", "--output", type=click.Path(), help="Folder of the run.  [default: runs/demo]")
def command(output: str | None) -> int:
    """Measure an embedded simulated endpoint (Llama-3.1-8B on one H100) and write the report."""
    from dataclasses import replace

    from loadgen.cli.measure import measure
    from loadgen.cli.options import settings_from
    from loadgen.cli.run import finish
    from loadgen.cli.stages import stages_from
    from loadgen.simulator.process import SimulatorProcess

    with SimulatorProcess() as simulator:
        click.echo(f"simulated endpoint (Llama-3.1-8B on one H100, no GPU involved): {simulator.url}")
        stages = [
            replace(spec, requests=_REQUESTS[spec.mix[0][0].name][int(spec.load.value)]) for spec in stages_from(_FLAGS)
        ]
        path, _, interrupted = measure(
            settings_from(simulator.url, _FLAGS),
            stages,
            output=Path(output) if output else Path("runs") / "demo",
            command=sys.argv,
            notes={"endpoint": "embedded simulation: figures say nothing about a real GPU"},
            roofline={"gpu": "h100-sxm", "gpus": 1, "shape": "llama-3.1-8b", "dtype": "bf16"},
        )
    return finish(path, (), report=True, interrupted=interrupted)
