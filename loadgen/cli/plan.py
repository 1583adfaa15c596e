"""`loadgen plan`: what `run` would send and when, in figures; nothing is sent.

Knows: how a plan is summed up and printed. Must not know: how it is made (`plan.schedule`), endpoints.
Why: a schedule that exists before the run can be read before it: whether it asks what was meant, and what it costs.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.plan_search import first_probes, search_lines
from loadgen.cli.run import command as run_command
from loadgen.cli.search import SEARCH_OPTIONS
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.model import PlannedRequest
    from loadgen.plan.lengths import Length
    from loadgen.plan.profile import Cost
    from loadgen.plan.schedule import StageSpec
    from loadgen.plan.workload import Workload

_MOST = 200_000  # units that figures are taken over
_SHOWN_CHARS = 60


# Whoever writes `plan` for `run` or `search --` in a command line sees its plan: every flag of both is taken.
@click.command(
    "plan",
    params=[*(p for p in run_command.params if p.name not in ("url", "dump_spec", "resume")), *SEARCH_OPTIONS],
)
@click.argument("url", required=False)
@click.option("--search", is_flag=True, help="The plan of `loadgen search` with these flags.")
@click.option(
    "--show", type=click.IntRange(0), default=3, show_default=True, help="Requests of each stage to print, with text."
)
@click.option("--detect", metavar="SHARE", help="Say how many requests show such a change between two runs, e.g. 5%.")
@click.option("--like", metavar="RUN", help="... at the spread that this run had, instead of an assumed one.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    url: str | None,
    search: bool,
    show: int,
    detect: str | None,
    like: str | None,
    form: str,
    **given: Any,
) -> None:
    """Print the schedule that `run` (or `search`) would follow with these flags (or SPEC.yaml); send nothing.

    Prompts are sized by estimate here: a run corrects them by the server's own counts.
    """
    from loadgen.cli import spec, values
    from loadgen.cli.stages import stages_from

    if url is not None and not spec.is_spec(url) and "://" not in url:
        raise UsageError(f"{url!r} is neither a URL nor a SPEC.yaml")
    _, given = spec.with_spec(ctx, url or "", given)
    values.check(given)
    told: dict[str, Any] = {}
    if search or (url is not None and spec.is_spec(url) and spec.is_search(url)):
        specs, told = first_probes(given)
    else:
        specs = stages_from(given)
    if given["profile"] is not None:
        _experiment(given, form)
        return
    stages = [stage_facts(one, given["seed"], show) for one in specs]
    if detect is not None or like is not None:
        from loadgen.cli import plan_detect

        plan_detect.show(specs, stages, detect, like, form)
        return
    if form == "json":
        facts = {"seed": given["seed"], "stages": stages} | ({"search": told} if told else {})
        click.echo(json.dumps(facts, ensure_ascii=False, indent=2))
        return
    for line in search_lines(told) if told else ():
        click.echo(line)
    for stage in stages:
        for line in _lines(stage):
            click.echo(line)
    if given["endpoint"]:
        count = 1 + len(given["endpoint"])
        whole = given["spread"] == "each"
        how = "the whole plan goes to each of" if whole else "requests (whole sessions) go in turn to"
        click.echo(f"{how} {count} endpoints")
    click.echo("Nothing was sent. The texts' tags differ in every run; the rest is fixed by --seed.")


def _experiment(given: dict[str, Any], form: str) -> None:
    """The stages of `--profile` in the order in which they run, what each is for, and what they take by estimate."""
    from loadgen.cli.stages import experiment
    from loadgen.plan.profile import GUESS, seconds

    cost, basis = cost_of(given)
    parts = experiment(given["seed"])  # the order of a run: it does not know more
    took = [seconds(part.spec, cost or GUESS) for part in parts]
    if form == "json":
        stages = [
            stage_facts(part.spec, given["seed"], 0)
            | {"purpose": part.purpose, "held_out": part.spec.held_out, "estimate_s": round(s, 3)}
            for part, s in zip(parts, took, strict=True)
        ]
        click.echo(json.dumps({"seed": given["seed"], "stages": stages}, ensure_ascii=False, indent=2))
        return
    click.echo(f"{len(parts)} stages, about {sum(took) / 60:.0f} min {basis}; --budget {given['budget'] or '30m'}")
    click.echo(
        f"{'stage':<24}{'for':<16}{'users':>6}{'prompt':>9}{'output':>8}{'requests':>10}{'about':>9}{'in all':>9}"
    )
    total = 0.0
    for part, s in zip(parts, took, strict=True):
        spec, workload = part.spec, part.spec.mix[0][0]
        total += s
        click.echo(
            f"{spec.name:<24}{part.purpose:<16}{spec.load.value:>6g}{workload.prompt_tokens.mean():>9g}"
            f"{workload.output_tokens.mean():>8g}{spec.requests or 0:>10}{s:>7.1f} s{total:>7.0f} s"
        )
    click.echo("Nothing was sent. A run learns the real times from its first stages and leaves out what its budget or")
    click.echo("the server's context does not hold; what it left out it says. No fit sees the cells that are held out.")


def cost_of(given: dict[str, Any]) -> tuple[Cost | None, str]:
    """What a stage costs on the GPU and model that the flags name; None where they name none."""
    if not (given["gpu"] and given["shape"]):
        return None, "for an 8B model on one H100 (name yours: --gpu, --shape)"
    from loadgen.plan.profile import Cost
    from loadgen.roofline.named import Known, Words, deployment
    from loadgen.roofline.passes import LITERATURE, decode_pass, prefill_pass, step_law
    from loadgen.store.shapefile import read_shape

    kinds = {name: given[name] or "" for name in ("weights", "compute", "kv")}
    words = Words(given["gpu"], given["gpus"], dtype=given["dtype"], **kinds)
    where = deployment(words, Known(shape=read_shape(given["shape"])))
    assert where is not None
    law = step_law(where, LITERATURE)
    alone, many = (decode_pass(law, batch, 1024.0).time_s for batch in (1, 65))
    cost = Cost(prefill_pass(law, 4096).time_s / 4096, alone, (many - alone) / 64)
    return cost, f"for {where.shape.name} on {where.gpus} x {where.gpu.name} at plain literature utilisations"


def stage_facts(spec: StageSpec, seed: int, show: int) -> dict[str, Any]:
    """A stage in plain values: what is asked, what the seed made of it, the first requests. Times in seconds."""
    from loadgen.cli.record import part_record, trace_record
    from loadgen.plan.schedule import plan_stage
    from loadgen.store.tracefile import TraceFile

    facts: dict[str, Any] = {
        "stage": spec.name,
        "load": {
            "kind": spec.load.kind,
            "value": spec.load.value,
            "arrivals": spec.load.arrivals,
            "cap": spec.load.cap,
        },
        "requests": spec.requests,
        "duration_s": None if spec.duration_ns is None else spec.duration_ns / 1e9,
        "mix": [
            part_record(w, weight)
            | {
                "prompt_tokens": _length_words(spec, w, w.prompt_tokens),
                "output_tokens": _length_words(spec, None, w.output_tokens),
            }
            for w, weight in spec.mix
        ],
    }
    if isinstance(spec.trace, TraceFile):
        facts["trace"] = trace_record(spec.trace)
    facts |= _drawn_facts(spec, seed)
    first_id = spec.stage << 32  # as in a run, where no two stages share a tag
    plan = plan_stage(spec, seed=seed, nonce="plan", first_id=first_id)
    if (end := spec.duration_ns) is not None:
        plan = itertools.takewhile(lambda request: request.offset_ns is None or request.offset_ns < end, plan)
    return facts | {"first": [_request_facts(request) for request in itertools.islice(plan, show)]}


def _length_words(spec: StageSpec, prompts_of: Workload | None, length: Length) -> str:
    if spec.trace is not None:
        return "of the trace"
    return "own texts" if prompts_of is not None and prompts_of.texts is not None else str(length)


def _drawn_facts(spec: StageSpec, seed: int) -> dict[str, Any]:
    """What the seed drew: counts, lengths, the rate and variation of the arrivals. None where nothing can be told."""
    import numpy as np

    prompts, outputs, turns, dues = [], [], [], []
    total = 0
    for drawn, due in itertools.islice(_in_window(spec, seed), _MOST):
        prompts.append(drawn.prompt_tokens if spec.mix[drawn.workload][0].texts is None else np.nan)
        outputs.append(drawn.output_tokens)
        turns.append(drawn.turns)
        dues.append(np.nan if due is None else due / 1e9)
        total += drawn.turns
        if spec.requests is not None and total >= spec.requests:
            break
    endless = spec.duration_ns is not None and spec.load.kind == "concurrency"
    gaps = np.diff(np.asarray(dues, dtype=np.float64))
    timed = len(gaps) > 1 and not np.isnan(gaps).any()
    return {
        "units": None if endless else len(outputs),
        "units_capped": len(outputs) == _MOST and not endless,
        "turns_mean": float(np.mean(turns)) if turns else None,
        "prompt_tokens": _spread(prompts),
        "output_tokens": _spread(outputs),
        "rate": float(1 / gaps.mean()) if timed and gaps.mean() > 0 else None,
        "gap_cv": float(gaps.std() / gaps.mean()) if timed and gaps.mean() > 0 else None,
        "last_due_s": dues[-1] if timed else None,
    }


def _in_window(spec: StageSpec, seed: int) -> Iterator[tuple[Any, int | None]]:
    """The units of the stage's window; of an endless closed loop a thousand, for the lengths."""
    from loadgen.plan.schedule import outline

    units = outline(spec, seed)
    if spec.requests == 0:
        return iter(())
    if spec.duration_ns is None:
        return units
    if spec.load.kind == "concurrency":
        return itertools.islice(units, 1_000)
    end = spec.duration_ns
    return itertools.takewhile(lambda unit: unit[1] is not None and unit[1] < end, units)


def _spread(values: list[Any]) -> dict[str, float] | None:
    import numpy as np

    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    if len(known) == 0:
        return None
    low, middle, high = np.quantile(known, (0.05, 0.5, 0.95))
    return {
        "mean": float(known.mean()),
        "sd": float(known.std()),
        "p5": float(low),
        "p50": float(middle),
        "p95": float(high),
        "sum": float(known.sum()),
    }


def _request_facts(request: PlannedRequest) -> dict[str, Any]:
    text = request.messages[-1].content
    return {
        "request_id": request.request_id % (1 << 32),
        "due_s": None if request.offset_ns is None else request.offset_ns / 1e9,
        "workload": request.workload,
        "session_id": request.session_id,
        "turn": request.turn,
        "prompt_tokens": request.prompt_tokens or None,
        "output_tokens": request.output_tokens,
        "chars": sum(len(message.content) for message in request.messages),
        "text": text[:_SHOWN_CHARS],
    }


# -- text ----------------------------------------------------------------------------------------------------------


def _lines(stage: dict[str, Any]) -> Iterator[str]:
    yield f"{stage['stage']}: {_load_words(stage)}"
    weights = sum(part["weight"] for part in stage["mix"])
    for part in stage["mix"]:
        share = f"{part['weight'] / weights:.0%} " if len(stage["mix"]) > 1 else ""
        lengths = f"prompt tokens {part['prompt_tokens']}, output tokens {part['output_tokens']}"
        yield f"  {share}{part['workload']}: {lengths}{_part_words(part)}"
    if "trace" in stage:
        yield f"  {_trace_words(stage['trace'])}"
    for side in ("prompt_tokens", "output_tokens"):
        if (spread := stage[side]) is not None:
            total = f", {spread['sum']:,.0f} in all" if stage["units"] and stage["turns_mean"] == 1 else ""
            words = ", ".join(f"{name} {spread[name]:,.0f}" for name in ("mean", "p5", "p50", "p95"))
            yield f"  {side.replace('_', ' ')} drawn: {words}{total}"
    if stage["turns_mean"] is not None and stage["turns_mean"] > 1:
        words = "(tokens above: of one turn, prompts without history)"
        yield f"  conversations: {stage['turns_mean']:.2f} turns in the mean {words}"
    if stage["rate"] is not None:
        yield (
            f"  arrivals drawn: {stage['rate']:.4g} requests/s, variation of the gaps {stage['gap_cv']:.3g}, "
            f"the last due after {stage['last_due_s']:.1f} s"
        )
    if stage["units"] == 0:
        yield "  no request is due within this time"
    if stage["units_capped"]:
        yield f"  figures are those of the first {_MOST:,} requests"
    for one in stage["first"]:
        due = "when a user is free" if one["due_s"] is None else f"at {one['due_s']:.3f} s"
        turn = f" turn {one['turn']}" if one["turn"] is not None else ""
        sizes = f"{one['prompt_tokens'] or '?'} → {one['output_tokens']} tokens, {one['chars']:,} characters"
        yield f"  #{one['request_id']} {due}: {one['workload']}{turn}, {sizes}: {one['text']!r}..."


def _part_words(part: dict[str, Any]) -> str:
    """What prompts of a workload have in common, and its conversations."""
    words = ""
    if "shared_prefix_tokens" in part:
        groups = part["prefix_groups"]
        words += f"; the first {part['shared_prefix_tokens']:,} tokens are those of its group"
        words += f", one of {groups:,}" if groups > 1 else ": all share them"
    if (turns := part.get("turns")) is not None:
        words += f"; {turns['count']} turns, each after the first {turns['prompt_tokens']} more tokens "
        words += f"and {turns['think_ms']} ms later"
    if (data := part.get("data")) is not None:
        words += f"; texts of {data['file']}" + (", recorded answers" if data["history"] == "recorded" else "")
    return words


def _load_words(stage: dict[str, Any]) -> str:
    load = stage["load"]
    much = f"{stage['requests']:,} requests" if stage["requests"] is not None else f"for {stage['duration_s']:g} s"
    if load["kind"] == "concurrency":
        users = "user" if load["value"] == 1 else "users"
        return f"closed loop, {load['value']:g} {users}, {much}: the next request of a user follows its last answer"
    cap = "" if load["cap"] is None else f", at most {load['cap']} in flight"
    what = "a trace" if load["kind"] == "trace" else f"{load['value']:g} requests/s, {load['arrivals']}"
    return f"open loop, {what}{cap}, {much}: due times do not depend on answers"


def _trace_words(trace: dict[str, Any]) -> str:
    dropped = ", ".join(f"{count:,} {why}" for why, count in trace["dropped"].items())
    end = "its end" if trace["to_s"] is None else f"{trace['to_s']:g} s"
    part = f", from {trace['from_s']:g} s to {end}" if trace["from_s"] or trace["to_s"] is not None else ""
    limit = "" if trace["context_limit"] is None else f", up to {trace['context_limit']:,} tokens"
    words = [
        f"{trace['file']} at {trace['speed']:g} times its speed{part}{limit}",
        f"{trace['rows']:,} requests over {trace['span_s']:,.1f} s at {trace['distinct_times']:,} moments",
        f"left out: {dropped or 'none'}",
    ]
    if trace["block_hit_rate"] is not None:
        words.append(f"a cache without end would hit {trace['block_hit_rate']:.1%} of the prefix blocks")
    return "; ".join(words)
