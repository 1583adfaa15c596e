"""`loadgen plan-capacity`: how many GPUs of which kind, at which cost, for a mix of requests, limits and a rate.

Knows: its flags, which combinations are tried, how plans are printed. Must not know: how a plan is found
(`roofline.capacity`).
Why: planning goes beyond what can be measured, so the output says what it rests on and what was never validated.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.values import SEEDS, Number
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loadgen.roofline.capacity import Capacity, Mix, Target
    from loadgen.roofline.passes import Deployment, Efficiency

BASIS = (
    "Simulated from GPU and model facts at assumed efficiencies, Poisson arrivals split at random over the replicas. "
    "Not validated: mixtures of experts, and any deployment whose efficiencies were not measured."
)


@click.command(name="plan-capacity")
@click.option("--rate", required=True, type=Number(0, min_open=True), help="Requests/s, mean of the day.")
@click.option("--mix", "mix_text", default="2000/200", show_default=True, help="PROMPT/OUTPUT[:WEIGHT], comma-joined.")
@click.option("--slo", multiple=True, required=True, help="Limits, e.g. 'p99(ttft) < 1s, p95(tpot) <= 50ms'.")
@click.option("--gpu", default="h100-sxm", show_default=True, help="One or several, comma-joined.")
@click.option("--gpus", default="1,2,4,8", show_default=True, help="Tensor-parallel degrees to try.")
@click.option("--batch-cap", default="64,256", show_default=True, help="Sequences at once to try.")
@click.option("--shape", default="llama-3.1-8b", show_default=True, help="Model of the catalogue, or a config.json.")
@click.option("--dtype", default="bf16", show_default=True)
@click.option("--weights", default="")
@click.option("--compute", default="")
@click.option("--kv", default="")
@click.option("--mfu", default=0.45, show_default=True, type=Number(0, 1, min_open=True))
@click.option("--mbu", default=0.8, show_default=True, type=Number(0, 1, min_open=True))
@click.option("--overhead", default="1ms", show_default=True, help="Fixed time per step.")
@click.option("--price", default="", help="Per GPU and hour: 2.5, or h100-sxm=2.5,h200-sxm=3.5.")
@click.option("--swing", default=0.0, show_default=True, type=Number(0, 1), help="Day: rate x (1 ± swing).")
@click.option("--seed", default=0, show_default=True, type=SEEDS)
@click.option("--format", "form", default="text", type=click.Choice(["text", "json"]), show_default=True)
def command(form: str, **flags: Any) -> None:
    """Plan how many GPUs keep the limits at a rate, and what that costs."""
    from loadgen.roofline.capacity import simulate_day
    from loadgen.roofline.naming import seconds
    from loadgen.roofline.passes import Efficiency

    mix, targets = parse_mix(flags["mix_text"]), read_targets(flags["slo"])
    efficiency = Efficiency(mfu=flags["mfu"], mbu=flags["mbu"], step_s=seconds(flags["overhead"], "--overhead"))
    plans, left_out = _plans(flags, efficiency, mix, targets)
    rows = [to_json(plan, targets) for plan in plans]
    if flags["swing"] and plans:
        best = plans[0]
        day = simulate_day(
            best.config,
            mix,
            targets,
            mean_rate=flags["rate"],
            swing=flags["swing"],
            replicas=best.replicas,
            seed=flags["seed"],
        )
        rows[0]["day"] = {name: _finite(getattr(day, name)) for name in day.__dataclass_fields__}
    if form == "json":
        click.echo(json.dumps({"basis": BASIS, "plans": rows, "left_out": left_out}, indent=2))
    else:
        click.echo("\n".join(_text(rows, left_out, targets)))


def _plans(
    flags: dict[str, Any], efficiency: Efficiency, mix: Mix, targets: Sequence[Target]
) -> tuple[list[Capacity], list[str]]:
    """The best plan of every GPU and degree, cheapest first (fewest GPUs without prices), and what was left out."""
    from loadgen.roofline.capacity import plan_capacity
    from loadgen.roofline.serving import engine_config

    prices = _prices(flags["price"], flags["gpu"])
    caps = _integers(flags["batch_cap"], "--batch-cap")
    plans: list[Capacity] = []
    left_out: list[str] = []
    for where in _deployments(flags):
        name = f"{where.gpus} x {where.gpu.name}"
        found: list[Capacity] = []
        try:
            for cap in caps:
                plan = plan_capacity(
                    where,
                    engine_config(where, efficiency, max_sequences=cap),
                    mix,
                    targets,
                    peak_rate=flags["rate"] * (1 + flags["swing"]),
                    price_per_gpu_hour=prices.get(where.gpu.name),
                    seed=flags["seed"],
                )
                found += [plan] if plan is not None else []
        except UsageError as bad:
            left_out.append(f"{name}: {bad.what}")
            continue
        if found:
            plans.append(min(found, key=lambda plan: (plan.gpus, -plan.at.rate)))
        else:
            left_out.append(f"{name}: misses the limits even when nearly idle")
    plans.sort(key=lambda plan: (plan.cost_per_hour is None, plan.cost_per_hour or 0.0, plan.gpus))
    return plans, left_out


def _deployments(flags: dict[str, Any]) -> Iterator[Deployment]:
    from loadgen.cli.hardware import read_dtypes, read_gpu, read_shape
    from loadgen.roofline.passes import Deployment

    shape = read_shape(flags["shape"])
    for name in flags["gpu"].split(","):
        gpu = read_gpu(name)
        choice = read_dtypes(gpu, flags["dtype"], flags["weights"], flags["compute"], flags["kv"])
        for gpus in _integers(flags["gpus"], "--gpus"):
            if shape.heads % gpus == 0:
                yield Deployment(gpu, gpus, shape, choice)


def parse_mix(text: str) -> Mix:
    """`2000/200:70,20000/100:20` as a mix; weights default to 1.

    Raises:
        UsageError: not of that form.
    """
    from loadgen.roofline.capacity import Kind, Mix

    kinds = []
    for part in text.split(","):
        lengths, _, weight = part.partition(":")
        prompt, _, output = lengths.partition("/")
        try:
            kinds.append(Kind(int(prompt), int(output), float(weight or 1)))
        except ValueError:
            raise UsageError(
                f"cannot read {part!r}", where="--mix", do="write PROMPT/OUTPUT:WEIGHT, e.g. 2000/200:70"
            ) from None
    return Mix(tuple(kinds))


def read_targets(expressions: Sequence[str]) -> tuple[Target, ...]:
    """The SLO language's upper limits on request metrics; a limit on each request counts as its p99.

    Raises:
        UsageError: a limit that a simulation of one replica cannot decide.
    """
    from loadgen.analysis.formulas import quantile_of
    from loadgen.analysis.slo import parse
    from loadgen.roofline.capacity import Target

    targets = []
    for slo in parse(expressions):
        if slo.scope:
            raise UsageError("limits of one workload are not planned for", where=slo.text)
        for limit in slo.limits:
            stat = limit.stat or "p99"
            quantile = None if stat == "mean" else quantile_of(stat)
            if not limit.upper or (quantile is None and stat != "mean"):
                raise UsageError("capacity is planned for upper limits on means and percentiles", where=slo.text)
            targets.append(Target(limit.metric.name.removesuffix("_scheduled"), quantile, limit.value))
    if not targets:
        raise UsageError("no limit to plan for", where="--slo", do="write e.g. 'p99(ttft) < 1s'")
    return tuple(targets)


def _integers(text: str, flag: str) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = [0]
    if min(values) < 1:
        raise UsageError(f"{text!r} is not a list of counts", where=flag)
    return values


def _prices(text: str, gpus: str) -> dict[str, float]:
    """Catalogue name -> price per GPU and hour. A bare number is for every GPU asked for."""
    from loadgen.roofline.catalog import gpu
    from loadgen.roofline.naming import quantity

    if not text:
        return {}
    if "=" not in text:
        return dict.fromkeys((gpu(name).name for name in gpus.split(",")), quantity(text, "--price"))
    pairs = (part.partition("=") for part in text.split(","))
    return {gpu(name).name: quantity(value, f"--price {name}") for name, _, value in pairs}


def to_json(plan: Capacity, targets: Sequence[Target]) -> dict[str, Any]:
    """One plan as plain values, SI units."""
    return {
        "gpu": plan.where.gpu.name,
        "gpus_per_replica": plan.where.gpus,
        "replicas": plan.replicas,
        "gpus": plan.gpus,
        "max_sequences": plan.config.max_sequences,
        "kv_tokens": plan.config.kv_tokens,
        "replica_rate_per_s": plan.at.rate,
        "at_replica_rate": {_name(t): _finite(v) for t, v in zip(targets, plan.at.values, strict=True)},
        "utilisation": plan.utilisation,
        "goodput_per_s": plan.goodput,
        "cost_per_hour": plan.cost_per_hour,
        "cost_per_million_output_tokens": plan.cost_per_million_output_tokens,
    }


def _finite(value: float) -> float | None:
    """JSON has no NaN: what does not exist is null."""
    return value if math.isfinite(value) else None


def _name(target: Target) -> str:
    stat = "mean" if target.quantile is None else f"p{target.quantile * 100:g}"
    return f"{stat}({target.metric})"


def _text(rows: list[dict[str, Any]], left_out: list[str], targets: Sequence[Target]) -> list[str]:
    header = ["GPU", "per replica", "replicas", "GPUs", "batch cap", "req/s/replica", *map(_name, targets)]
    header += ["goodput/s", "$/hour", "$/M output tokens"]
    table = [header]
    for row in rows:
        times = ["n/a" if value is None else f"{value * 1e3:,.1f} ms" for value in row["at_replica_rate"].values()]
        money = [row["cost_per_hour"], row["cost_per_million_output_tokens"]]
        table.append(
            [row["gpu"], *(str(row[name]) for name in ("gpus_per_replica", "replicas", "gpus", "max_sequences"))]
            + [f"{row['replica_rate_per_s']:.2f}", *times, f"{row['goodput_per_s']:.2f}"]
            + ["n/a" if value is None else f"{value:,.2f}" for value in money]
        )
    widths = [max(len(line[column]) for line in table) for column in range(len(header))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in table]
    if rows and (day := rows[0].get("day")):
        error = "n/a" if day["error"] is None else f"{day['error']:.2%}"
        lines.append(
            f"day, first plan: {day['attainment']:.2%} of requests within the limits, "
            f"worst hour {day['worst_hour']:.2%} ({day['requests']:,} requests on {day['sampled']} of "
            f"{day['replicas']} replicas, standard error {error})"
        )
    return [*lines, *(f"left out: {reason}" for reason in left_out), BASIS]
