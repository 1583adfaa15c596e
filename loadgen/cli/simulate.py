"""`loadgen simulate`: a simulated serving engine as an OpenAI-compatible endpoint, until it is stopped.

Knows: flag names and how they become a `SimulatorConfig`. Must not know: HTTP, or how an engine works.
"""

from __future__ import annotations

from typing import Any

import click

from loadgen.cli.hardware import NAMES, hardware_options
from loadgen.cli.values import SEEDS, Number

# Flags that are fields of EngineConfig, and of SimulatorConfig, under the same names.
_KNOBS = ("token_budget", "max_sequences", "kv_tokens", "prefix_cache", "draft_tokens", "acceptance")
_BEHAVIOUR = (
    "max_model_len",
    "seed",
    "time_scale",
    "stream_interval",
    "max_queue",
    "overload",
    "eos_rate",
    "wrong_answers",
)


@click.command("simulate")
@hardware_options
@click.option("--port", default=0, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 takes a free one.")
@click.option("--model", default=None, help="Name that it serves under.  [default: the shape's name]")
@click.option("--mfu", default=None, type=Number(0, 1, min_open=True), help="Share of peak FLOP/s.  [0.45]")
@click.option("--mbu", default=None, type=Number(0, 1, min_open=True), help="Share of bandwidth.  [0.8]")
@click.option("--overhead", default="1ms", show_default=True, help="Fixed time of every step.")
@click.option("--token-budget", default=8192, show_default=True, type=click.IntRange(1), help="Tokens per step.")
@click.option("--whole-prompts", is_flag=True, help="Prefill whole prompts in steps of their own, not in chunks.")
@click.option("--max-sequences", default=256, show_default=True, type=click.IntRange(1), help="Batch cap.")
@click.option("--kv-tokens", default=None, type=click.IntRange(1), help="KV cache in tokens.  [what the memory holds]")
@click.option("--prefix-cache", is_flag=True, help="Reuse the KV cache of prompts that begin alike.")
@click.option("--draft-tokens", default=0, type=click.IntRange(0), help="Speculative decoding: tokens drafted.")
@click.option("--acceptance", default=0.7, type=Number(0, 1), help="... and how likely one is accepted.")
@click.option("--replicas", default=1, show_default=True, type=click.IntRange(1, 1024), help="Engines behind a router.")
@click.option("--router", default="least-loaded", show_default=True, type=click.Choice(["least-loaded", "round-robin"]))
@click.option(
    "--prefill-replicas",
    default=0,
    show_default=True,
    type=click.IntRange(0, 1024),
    help="A pool that prefills; the replicas then only decode (never compared with a real server).",
)
@click.option("--transfer", default="50GB/s", show_default=True, help="... rate at which KV moves from pool to pool.")
@click.option("--max-model-len", default=131_072, show_default=True, type=click.IntRange(2), help="Context in tokens.")
@click.option("--stream-interval", default=1, show_default=True, type=click.IntRange(1), help="Tokens per event.")
@click.option("--keep-alive", default=None, help="A comment after so much silence, such as 15s.")
@click.option("--time-scale", default=1.0, show_default=True, help="Run so many times as fast as the hardware.")
@click.option("--fault", default="", help="KIND[:SPAN][:RATE],... such as 429:0.01,stall:500ms:0.05 (see --faults).")
@click.option("--faults", "list_faults", is_flag=True, help="List the kinds of fault and exit.")
@click.option("--max-queue", default=None, type=click.IntRange(0), help="Refuse when so many wait for the batch.")
@click.option("--overload", default="503", show_default=True, type=click.Choice(["429", "503", "200"]), help="... how.")
@click.option(
    "--eos-rate",
    default=0.0,
    type=Number(0, 1, max_open=True),
    help="Chance per token to end early where ignore_eos is not set.",
)
@click.option("--wrong-answers", is_flag=True, help="Answer the questions of `run --guard` wrongly.")
@click.option("--seed", default=0, show_default=True, type=SEEDS, help="Fixes texts, faults and early ends.")
def command(port: int, list_faults: bool, **flags: Any) -> int:
    """Serve a simulated engine on 127.0.0.1; its URL is the first line of the output. Stop it with Ctrl-C or SIGTERM.

    It answers /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /health, /version and /metrics (vLLM's
    names). Step times come from the roofline of the GPU; no GPU is used. On exit it says how late its own host made it.
    """
    import asyncio

    if list_faults:
        from loadgen.simulator.faults import KINDS

        for kind, (what, span_s) in KINDS.items():
            click.echo(f"{kind:14}{what}" + ("" if span_s is None else f" (for {span_s:g} s, or SPAN)"))
        return 0
    from loadgen.simulator.process import serve

    click.echo(asyncio.run(serve(_config(flags), port, lambda url: click.echo(url))), err=True)
    return 0


def _config(flags: dict[str, Any]) -> Any:
    """The simulator that the flags describe. Raises UsageError."""
    from dataclasses import replace

    from loadgen.cli.hardware import read_deployment
    from loadgen.roofline.naming import quantity, seconds
    from loadgen.simulator.config import TYPICAL, simulated
    from loadgen.simulator.faults import parse_faults

    efficiency = replace(TYPICAL, step_s=seconds(flags["overhead"], "--overhead"))
    efficiency = replace(efficiency, **{name: flags[name] for name in ("mfu", "mbu") if flags[name] is not None})
    knobs = {name: flags[name] for name in _KNOBS if flags[name] is not None}
    keep_alive = flags["keep_alive"]
    where = read_deployment({name: flags[name] for name in NAMES})
    kv_bytes = where.kv_bytes_per_gpu() * where.gpus
    return simulated(
        where,
        efficiency=efficiency,
        model=flags["model"],
        knobs={**knobs, "chunked": not flags["whole_prompts"]},
        faults=parse_faults(flags["fault"]),
        router=flags["router"].replace("-", "_"),
        transfer_token_s=kv_bytes / quantity(flags["transfer"], "--transfer"),
        keep_alive_s=None if keep_alive is None else seconds(keep_alive, "--keep-alive"),
        **{name: flags[name] for name in _BEHAVIOUR},
    )
