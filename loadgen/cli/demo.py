"""`loadgen demo`: measure the embedded simulated H100 endpoint over real HTTP, with nothing to set up.

Knows: which workloads and loads make a telling minute. Must not know: how they are run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from loadgen.plan.schedule import StageSpec

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
    "profile": None,
    "budget": None,
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
    "guard": False,
    "tokenizer": None,
    "metrics": ("auto",),
}
# Requests of each stage: enough for a median, few enough for a minute. A full story at one user takes 7 s, so the
# demo's stories are shorter; thirty-two documents at once would queue for a minute.
_REQUESTS = {"chat": {1: 5, 8: 24, 32: 64}, "summarize": {1: 5, 4: 8, 8: 8}, "story": {1: 5, 8: 16, 32: 32}}
_STORY_TOKENS = 300
_SLO = ("ttft < 1s and tpot < 50ms",)  # some stages keep it, some do not


def _stages() -> Iterator[StageSpec]:
    from dataclasses import replace

    from loadgen.cli.stages import stages_from

    for workload, counts in _REQUESTS.items():
        loads = ",".join(str(users) for users in counts)
        output = str(_STORY_TOKENS) if workload == "story" else None
        flags = _FLAGS | {"workload": (workload,), "concurrency": loads, "output_tokens": output}
        for spec in stages_from(flags):
            yield replace(spec, requests=counts[int(spec.load.value)])


@click.command("demo")
@click.option("-o", "--output", type=click.Path(), help="Folder of the run.  [default: runs/demo]")
def command(output: str | None) -> int:
    """Measure an embedded simulated endpoint (Llama-3.1-8B on one H100) and write the report."""
    from dataclasses import replace

    from loadgen.cli.measure import Recipe, measure
    from loadgen.cli.options import settings_from
    from loadgen.cli.run import finish
    from loadgen.engine.course import Listed
    from loadgen.simulator.process import SimulatorProcess

    with SimulatorProcess() as simulator:
        click.echo(f"simulated endpoint (Llama-3.1-8B on one H100, no GPU involved): {simulator.url}")
        stages = [replace(spec, stage=number) for number, spec in enumerate(_stages())]
        path, _, interrupted = measure(
            settings_from(simulator.url, _FLAGS),
            Listed(stages),
            Recipe(
                sys.argv,
                {"endpoint": "embedded simulation: figures say nothing about a real GPU"},
                {"gpu": "h100-sxm", "gpus": 1, "shape": "llama-3.1-8b", "dtype": "bf16"},
                _SLO,
            ),
            output=Path(output) if output else Path("runs") / "demo",
        )
    code = finish(path, _SLO, report=True, interrupted=interrupted)
    return code if code not in (1, 3) else 0  # a demo shows verdicts, and gates nothing
