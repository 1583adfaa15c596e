"""`loadgen predict`: price a request from hardware facts, or from constants that were measured.

Knows: its flags and how a prediction is printed. Must not know: any formula (`roofline.predict` and `roofline.passes`).
Why: the first question about an endpoint - what should this take? - is answered without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.hardware import NAMES, hardware_options, read_deployment, read_dtypes, read_gpu
from loadgen.cli.values import Number
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.roofline.passes import Deployment, StepLaw
    from loadgen.roofline.predict import Phase, Prediction

MOST, LEAST = 10**12, 1e-6  # counts and shares beyond which no figure means anything
CONSTANTS = ("prefill", "step", "user")


@click.command(name="predict")
@hardware_options
@click.option("--params", default="", help="Model size alone, e.g. 8e9 or 8B: textbook mode, no KV cache.")
@click.option("--constants", default="", help="prefill=0.02ms,step=5ms,user=0.05ms in place of hardware facts.")
@click.option("--prompt-tokens", default=2000, show_default=True, type=click.IntRange(1, MOST))
@click.option("--output-tokens", default=200, show_default=True, type=click.IntRange(1, MOST))
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1, MOST), help="Users decoding together.")
@click.option("--queue", default="0", help="Wait before the prefill, e.g. 500ms.")
@click.option("--mfu", default=1.0, show_default=True, type=Number(LEAST, 1), help="Of peak FLOP/s.")
@click.option("--mbu", default=1.0, show_default=True, type=Number(LEAST, 1), help="Of bandwidth.")
@click.option("--overhead", default="0", help="Fixed time per step, e.g. 2ms.")
@click.option("--format", "form", default="text", type=click.Choice(["text", "json"]), show_default=True)
@click.pass_context
def command(context: click.Context, /, form: str, **flags: Any) -> None:
    """Predict TTFT, TPOT and rates from GPU and model facts.

    Without --mfu and --mbu the figures are the bare roof: nothing can be faster, real engines are slower.
    """
    from loadgen.roofline.naming import seconds
    from loadgen.roofline.predict import predict

    given = {name for name in flags if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE}
    law, basis = _law(flags, given)
    result = predict(
        law,
        prompt_tokens=flags["prompt_tokens"],
        output_tokens=flags["output_tokens"],
        batch=flags["batch"],
        queue_s=seconds(flags["queue"], "--queue"),
    )
    if form == "json":
        import json

        click.echo(json.dumps({"basis": basis, **to_json(result)}, indent=2, ensure_ascii=False))
    else:
        click.echo(to_text(result, basis))


def _law(flags: dict[str, Any], given: set[str]) -> tuple[StepLaw, str]:
    """The cost law that the flags ask for, and one line that says what it rests on."""
    from loadgen.roofline.naming import quantity, seconds
    from loadgen.roofline.passes import Efficiency, constants_law, step_law, textbook_law

    if flags["constants"]:
        if clash := given & {*NAMES, "params", "mfu", "mbu", "overhead"}:
            raise UsageError(
                f"--{min(clash)} says nothing beside --constants", where="--constants", do="give one or the other"
            )
        constants = parse_constants(flags["constants"])
        return constants_law(*constants), "constants " + flags["constants"]
    efficiency = Efficiency(mfu=flags["mfu"], mbu=flags["mbu"], step_s=seconds(flags["overhead"], "--overhead"))
    used = f"MFU {efficiency.mfu:g}, MBU {efficiency.mbu:g}, overhead {efficiency.step_s * 1e3:g} ms per step"
    if not flags["params"]:
        where = read_deployment(flags)
        _check_memory(where, flags)
        types = f"weights {where.dtypes.weights}, compute {where.dtypes.compute}, KV {where.dtypes.kv}"
        return step_law(where, efficiency), f"{where.gpus} x {where.gpu.name}, {where.shape.name}, {types}, {used}"
    if "shape" in given or "kv" in given:
        raise UsageError("--shape and --kv say nothing beside --params", where="--params", do="give one or the other")
    gpu = read_gpu(flags["gpu"], flags["peak"], flags["bandwidth"], flags["memory"])
    choice = read_dtypes(gpu, flags["dtype"], flags["weights"], flags["compute"])
    params = quantity(flags["params"], "--params")
    law = textbook_law(gpu, params, gpus=flags["gpus"], choice=choice, efficiency=efficiency)
    head = f"{flags['gpus']} x {gpu.name}, {params:.4g} parameters, weights {choice.weights}, compute {choice.compute}"
    return law, f"{head}, no KV cache, {used}"


def _check_memory(where: Deployment, flags: dict[str, Any]) -> None:
    """Say so when the batch does not fit: the figures would be those of a server that cannot be."""
    try:
        room = where.kv_capacity_tokens()
    except UsageError as short:
        click.echo(f"note: {short.what}", err=True)
        return
    need = flags["batch"] * (flags["prompt_tokens"] + flags["output_tokens"])
    if need > room:
        click.echo(f"note: the batch needs {need:,} tokens of KV cache, about {room:,} fit", err=True)


def parse_constants(text: str) -> tuple[float, float, float]:
    """Seconds (per prompt token, per decode step, per user) from `prefill=0.02ms,step=5ms,user=0.05ms`.

    Raises:
        UsageError: a name twice, unknown or missing (`user` may be: 0), or a bad duration.
    """
    from loadgen.roofline.naming import closest, seconds

    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in CONSTANTS:
            raise UsageError(
                f"unknown constant {name!r}", where="--constants", do=f"did you mean {closest(name, CONSTANTS, 1)}?"
            )
        if name in found:
            raise UsageError(f"{name} is given twice", where="--constants")
        found[name] = seconds(value, f"--constants {name}")
    if missing := [name for name in CONSTANTS[:2] if not found.get(name)]:
        raise UsageError(f"{missing[0]} must be given and above 0", where="--constants")
    return found["prefill"], found["step"], found.get("user", 0.0)


def to_json(result: Prediction) -> dict[str, Any]:
    """A prediction as plain values, SI units; null where something is not known or does not exist."""
    return {
        "prompt_tokens": result.prompt_tokens,
        "output_tokens": result.output_tokens,
        "batch": result.batch,
        "queue_s": result.queue_s,
        "ttft_s": result.ttft_s,
        "tpot_s": result.tpot_s,
        "e2e_s": result.e2e_s,
        "decode_share": result.decode_share,
        "output_tokens_per_s_in_decode": result.decode_output_tokens_per_s,
        "output_tokens_per_s_whole_request": result.request_output_tokens_per_s,
        "output_tokens_per_s_per_user": result.output_tokens_per_s_per_user,
        "phases": [
            {
                "phase": phase.name,
                "passes": phase.passes,
                "tokens_per_pass": phase.one.tokens,
                "flops_per_pass": phase.one.flops,
                "bytes_per_pass": phase.one.bytes,
                "flop_per_byte": phase.one.intensity,
                "ridge_flop_per_byte": phase.one.ridge,
                "bound": phase.one.bound,
                "time_per_pass_s": phase.one.time_s,
                "time_per_token_s": phase.one.time_s / phase.one.tokens,
                "time_s": phase.time_s,
            }
            for phase in _phases(result)
        ],
    }


def _phases(result: Prediction) -> list[Phase]:
    return [phase for phase in (result.prefill, result.decode) if phase is not None]


def to_text(result: Prediction, basis: str) -> str:
    """A prediction as a page of text; `n/a` where something is not known or does not exist."""
    header = ("phase", "passes", "tokens", "FLOP", "bytes", "FLOP/byte", "ridge", "bound", "ms/pass", "ms/token", "ms")
    rows: list[tuple[str, ...]] = [header]
    for phase in _phases(result):
        one = phase.one
        numbers = (_si(one.flops), _si(one.bytes), _number(one.intensity, ".1f"), _number(one.ridge, ".0f"))
        times = ((one.time_s, ".2f"), (one.time_s / one.tokens, ".3f"), (phase.time_s, ",.1f"))
        in_ms = (_number(time, form, 1e3) for time, form in times)
        rows.append((phase.name, f"{phase.passes:,}", f"{one.tokens:,}", *numbers, one.bound or "n/a", *in_ms))
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    asked = f"prompt {result.prompt_tokens:,} -> output {result.output_tokens:,} tokens, batch {result.batch}"
    per_user = _number(result.output_tokens_per_s_per_user, ",.1f")
    return "\n".join(
        [
            basis,
            f"{asked}, queue {result.queue_s * 1e3:g} ms",
            "",
            *table,
            "(tokens, FLOP, bytes and ms/token are of one pass; ms is the whole phase)",
            "",
            f"TTFT                                  {result.ttft_s * 1e3:,.2f} ms",
            f"TPOT                                  {_number(result.tpot_s, ',.3f', 1e3)} ms",
            f"end to end                            {result.e2e_s * 1e3:,.1f} ms",
            f"decode's share of the wait            {result.decode_share:.0%}",
            "output tokens/s",
            f"  whole server, in decode (batch/TPOT)  {_number(result.decode_output_tokens_per_s, ',.0f')}",
            f"  whole server, over the whole request  {result.request_output_tokens_per_s:,.0f}",
            f"  per user (1/TPOT)                     {per_user}",
        ]
    )


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "n/a" if value is None else format(value * scale, form)


def _si(value: float | None) -> str:
    if value is None:
        return "n/a"
    for limit, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.2f}{prefix}"
    return f"{value:.0f}"
