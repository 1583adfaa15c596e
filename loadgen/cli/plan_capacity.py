"""`loadgen plan-capacity`: how many GPUs of which kind, at which cost, for a mix of requests, limits and a rate.

Knows: its flags, which combinations are tried, how plans are printed. Must not know: how a plan is found
(`roofline.capacity`).
Why: planning goes beyond what can be measured, so the output says what it rests on and what was never validated.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.predict import LEAST
from loadgen.cli.values import SEEDS, Number
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loadgen.roofline.capacity import Capacity, Mix, Target
    from loadgen.roofline.fitread import Measured
    from loadgen.roofline.passes import Deployment, Efficiency
    from loadgen.roofline.serving import EngineConfig

BASIS = (
    "Simulated: Poisson arrivals split at random over the replicas, percentiles from queueing. Costs are those of GPUs "
    "that run all the time."
)
# What a plan may rest on and nobody compared with measurements.
ASSUMED = "the efficiencies are assumed (MFU, MBU and overhead as given): fit a run and give --fit"
MOE = "mixtures of experts were never compared with measurements"
CARRIED = "the fit was made elsewhere ({where}); its efficiencies are carried over"


@click.command(name="plan-capacity")
@click.option("--rate", required=True, type=Number(0, 10**9, min_open=True), help="Requests/s, mean of the day.")
@click.option("-w", "--workload", multiple=True, help="As in run: names or FILE.yaml, comma-joined.  [default: chat]")
@click.option("--mix", metavar="W,W", help="Weights of the workloads, such as 70,20,10.  [default: equal]")
@click.option("--prompt-tokens", help="Prompt length of all of them: 2000, normal:2000±200, ...")
@click.option("--output-tokens", help="Output length, likewise.")
@click.option("--slo", multiple=True, required=True, help="Limits, e.g. 'p99(ttft) < 1s, p95(tpot) <= 50ms'.")
@click.option(
    "--fit", "fit_path", metavar="RUN|FILE", help="Measured efficiencies: a fitted run, or fit --format json."
)
@click.option("--gpu", help="One or several, comma-joined.  [default: the fit's, or h100-sxm]")
@click.option("--gpus", default="1,2,4,8", show_default=True, help="Tensor-parallel degrees to try.")
@click.option("--batch-cap", default="64,256", show_default=True, help="Sequences at once to try.")
@click.option("--shape", help="Model of the catalogue, or a config.json.  [default: the fit's, or llama-3.1-8b]")
@click.option("--dtype", help="[default: the fit's, or bf16]")
@click.option("--weights", default="")
@click.option("--compute", default="")
@click.option("--kv", default="")
@click.option("--mfu", type=Number(LEAST, 1), help="Share of peak FLOP/s, without --fit.  [default: 0.45]")
@click.option("--mbu", type=Number(LEAST, 1), help="Share of bandwidth, without --fit.  [default: 0.8]")
@click.option("--overhead", help="Fixed time per step, without --fit.  [default: 1ms]")
@click.option("--prefix-cache", is_flag=True, help="What a workload's prompts share is in the server's cache.")
@click.option("--price", default="", help="Per GPU and hour: 2.5, or h100-sxm=2.5,h200-sxm=3.5.")
@click.option("--swing", default=0.0, show_default=True, type=Number(0, 1), help="Day: rate x (1 ± swing).")
@click.option("--seed", default=0, show_default=True, type=SEEDS)
@click.option("--format", "form", default="text", type=click.Choice(["text", "json"]), show_default=True)
def command(form: str, **flags: Any) -> int:
    """Plan how many GPUs keep the limits at a rate, and what that costs.

    Exit code 1: none of the GPUs keeps them.
    """
    from loadgen.cli.stages import mix_from
    from loadgen.roofline.capacity import Mix, simulate_day

    targets = read_targets(flags["slo"])
    mix = Mix(mix_from(flags), flags["prefix_cache"])
    basis = _basis(flags)
    plans, left_out = _plans(flags, basis, mix, targets)
    rows = [to_json(plan, targets) | {"unvalidated": basis.doubts(plan.where)} for plan in plans]
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
        told = {"basis": BASIS, "efficiencies": basis.text, "plans": rows, "left_out": left_out}
        click.echo(json.dumps(told, indent=2, allow_nan=False, ensure_ascii=False))
    else:
        click.echo("\n".join([*_text(rows, left_out, targets), basis.text, BASIS]))
    return 0 if plans else 1


@dataclass(frozen=True, slots=True)
class _Basis:
    """Where the efficiencies come from: assumed, or those of a fit."""

    assumed: Efficiency | None
    measured: Measured | None
    text: str

    def engine(self, where: Deployment, cap: int) -> EngineConfig:
        """The engine of a deployment with a batch of at most `cap`. Raises UsageError: the model does not fit."""
        from loadgen.roofline.serving import engine_config
        from loadgen.roofline.whatif import carried

        if self.measured is None:
            assert self.assumed is not None
            return engine_config(where, self.assumed, max_sequences=cap)
        old = self.measured
        law = old.engine.law if where == old.where else carried(old.engine.law, old.where, where)
        room, before = where.kv_capacity_tokens(), old.where.kv_capacity_tokens()
        known = old.engine.kv_tokens
        kv = room if known is None else max(1, int(known * (room / before)))
        return replace(old.engine, law=law, kv_tokens=kv, max_sequences=cap)

    def doubts(self, where: Deployment) -> list[str]:
        """What of a plan for this deployment was never compared with measurements."""
        found = [MOE] if where.shape.moe_layers else []
        if self.measured is None:
            return [ASSUMED, *found]
        if where != self.measured.where:
            from loadgen.roofline.named import describe

            found.append(CARRIED.format(where=describe(self.measured.where)))
        return found


def _basis(flags: dict[str, Any]) -> _Basis:
    from loadgen.cli.hardware import read_shape
    from loadgen.roofline.naming import seconds
    from loadgen.roofline.passes import Efficiency

    given = [name for name in ("mfu", "mbu", "overhead") if flags[name] is not None]
    if flags["fit_path"] is None:
        step_s = seconds(flags["overhead"] or "1ms", "--overhead")
        assumed = Efficiency(mfu=flags["mfu"] or 0.45, mbu=flags["mbu"] or 0.8, step_s=step_s)
        text = (
            f"Efficiencies: assumed, MFU {assumed.mfu:g}, MBU {assumed.mbu:g}, overhead {step_s * 1e3:g} ms per step."
        )
        return _Basis(assumed, None, text)
    if given:
        raise UsageError(f"--{given[0]} says nothing beside --fit", where="--fit", do="give one or the other")
    from loadgen.roofline.fitread import fitted_engine
    from loadgen.roofline.named import Known, describe
    from loadgen.store.fitfile import load_fit

    own = read_shape(flags["shape"]) if (flags["shape"] or "").endswith(".json") else None
    measured = fitted_engine(load_fit(Path(flags["fit_path"])), flags["fit_path"], Known(shape=own))
    errors = [f"{name} {error:.1%}" for name, error in (("TTFT", measured.ttft_error), ("ITL", measured.itl_error))]
    held_out = "not held against cells that it had not seen" if math.isnan(measured.ttft_error) else ", ".join(errors)
    return _Basis(
        None, measured, f"Efficiencies: the fit of {describe(measured.where)}, median held-out error {held_out}."
    )


def _plans(
    flags: dict[str, Any], basis: _Basis, mix: Mix, targets: Sequence[Target]
) -> tuple[list[Capacity], list[str]]:
    """The best plan of every GPU and degree, cheapest first (fewest GPUs without prices), and what was left out."""
    from loadgen.roofline.capacity import plan_capacity

    deployments = list(_deployments(flags, basis.measured))
    prices = _prices(flags["price"], deployments)
    caps = _integers(flags["batch_cap"], "--batch-cap")
    plans: list[Capacity] = []
    left_out: list[str] = []
    for where in deployments:
        name = f"{where.gpus} x {where.gpu.name}"
        if where.shape.heads % where.gpus:
            left_out.append(f"{name}: {where.shape.heads} attention heads cannot be divided among {where.gpus} GPUs")
            continue
        found: list[Capacity] = []
        try:
            for cap in caps:
                plan = plan_capacity(
                    where,
                    basis.engine(where, cap),
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


def _deployments(flags: dict[str, Any], measured: Measured | None) -> Iterator[Deployment]:
    """Every GPU at every degree; what no flag says is the fit's."""
    from loadgen.cli.hardware import read_dtypes, read_gpu, read_shape
    from loadgen.roofline.passes import Deployment

    fitted = None if measured is None else measured.where
    if flags["shape"] is not None or fitted is None:
        shape = read_shape(flags["shape"] or "llama-3.1-8b")
    else:
        shape = fitted.shape
    typed = flags["dtype"] or flags["weights"] or flags["compute"] or flags["kv"]
    gpus = [read_gpu(name) for name in (flags["gpu"] or ("h100-sxm" if fitted is None else fitted.gpu.name)).split(",")]
    for gpu in gpus:
        if typed or fitted is None:
            choice = read_dtypes(gpu, flags["dtype"] or "bf16", flags["weights"], flags["compute"], flags["kv"])
        else:
            choice = fitted.dtypes
        for count in _integers(flags["gpus"], "--gpus"):
            yield Deployment(gpu, count, shape, choice)


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


def _prices(text: str, deployments: Sequence[Deployment]) -> dict[str, float]:
    """GPU's name -> price per GPU and hour. A bare number is for every GPU asked for."""
    from loadgen.roofline.catalog import gpu
    from loadgen.roofline.naming import quantity

    if not text:
        return {}
    if "=" not in text:
        return dict.fromkeys((where.gpu.name for where in deployments), quantity(text, "--price"))
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
    if not rows:
        from loadgen.analysis.numbers import quantity

        limits = ", ".join(f"{_name(target)} < {quantity(target.limit_s, 's')}" for target in targets)
        return [f"No plan: nothing that was asked for keeps {limits}.", *(f"left out: {reason}" for reason in left_out)]
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
        part = "" if day["share"] == 1 else f", {day['share']:.0%} of each hour"
        lines.append(
            f"day, first plan: {day['attainment']:.2%} of requests within the limits, "
            f"worst hour {day['worst_hour']:.2%} ({day['requests']:,} requests on {day['sampled']} of "
            f"{day['replicas']} replicas{part}, standard error {error})"
        )
    doubts: dict[str, list[str]] = {}
    for row in rows:
        for doubt in row["unvalidated"]:
            doubts.setdefault(doubt, []).append(f"{row['gpus_per_replica']} x {row['gpu']}")
    for doubt, names in doubts.items():
        lines.append(f"unvalidated, {'all plans' if len(names) == len(rows) else ', '.join(names)}: {doubt}")
    return [*lines, *(f"left out: {reason}" for reason in left_out)]
