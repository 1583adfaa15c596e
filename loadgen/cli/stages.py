"""From load flags to stages: every workload at every load, one mix at every load, or a trace.

Knows: which flags go together and what they default to. Must not know: how a run is made, how flags are spelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.cli.values import read_max_time, read_range, read_slice, read_weights, read_window
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.analysis.search import Search
    from loadgen.model import Load
    from loadgen.plan.profile import Cost, Part
    from loadgen.plan.protocols import Protocol
    from loadgen.plan.schedule import StageSpec
    from loadgen.plan.workload import Workload
    from loadgen.store.tracefile import TraceFile

_PROBE_S = 10.0  # a first probe at a rate is no shorter, unless a number of requests is given
_LOADS = ("concurrency", "rate", "trace")
# flag -> the flag without which it means nothing
_NEEDS = {
    "arrivals": "rate",
    "trace_speed": "trace",
    "trace_slice": "trace",
    "trace_context": "trace",
    "trace_block": "trace",
    "trace_spread": "trace",
    "budget": "profile",
    "spread": "endpoint",
}
# What an experiment brings itself.
_OF_PROFILE = (
    *("workload", "mix", "concurrency", "rate", "trace", "arrivals", "max_concurrency", "requests", "duration"),
    *("prompt_tokens", "output_tokens", "protocol"),
)


def stages_from(given: dict[str, Any]) -> list[StageSpec]:
    """The stages that the load flags describe, in the order in which they run. Raises UsageError.

    A member of `given["workload"]` is a name, a file, or the keys of a workload that a spec describes in place.
    """
    from loadgen.model import stage_name
    from loadgen.plan.schedule import StageSpec

    _consistent(given)
    if given.get("profile") is not None:
        return [part.spec for part in experiment(given["seed"])]
    protocol = protocol_of(given)
    span = None if given["duration"] is None else read_window(given["duration"])
    mixes = _mixes(given, _workloads(given))
    specs: list[StageSpec] = []
    if given["trace"] is not None:
        return _trace_stages(given, mixes, span)
    for mix in mixes:
        for load in _loads(given):
            count = given["requests"]
            window = span
            if count is None and span is None:
                count, window = protocol.requests(load), protocol.duration_ns
            spec = StageSpec(len(specs), "", mix, load, count, window)
            specs.append(replace(spec, name=stage_name(spec.workload, load)))
    return specs


def protocol_of(given: dict[str, Any]) -> Protocol:
    """By which tool's habits the load is sent. Raises UsageError where the load is none of that tool's."""
    from loadgen.plan.protocols import checked

    return checked(given.get("protocol") or "native", given["rate"] is None and given["trace"] is None)


def warmup_of(given: dict[str, Any]) -> int:
    """Unmeasured requests before each workload, by the flag or the protocol."""
    from loadgen.plan.schedule import parse_sweep

    if given["warmup"] is not None:
        return int(given["warmup"])
    closed = given["rate"] is None and given["trace"] is None
    users = max(parse_sweep(given["concurrency"] or "1,8,32", integers=True)) if closed else 0.0
    return protocol_of(given).warmups(users)


def experiment(seed: int, cost: Cost | None = None) -> Sequence[Part]:
    """The stages of `--profile roofline`, each with its part in the experiment."""
    import numpy as np

    from loadgen.plan.profile import GUESS, design

    return design(np.random.default_rng(seed), cost or GUESS)


def search_from(given: dict[str, Any]) -> tuple[list[StageSpec], Search]:
    """What a search of these flags tries: for each workload a stage like its probes; the range. Raises UsageError."""
    from loadgen.analysis.probes import needed_requests
    from loadgen.analysis.search import Search
    from loadgen.analysis.slo import parse

    if not given["slo"]:
        raise UsageError("a search needs an objective", do="give one: --slo 'p99(ttft) < 1s'")
    if given["trace"] is not None:
        raise UsageError("a search tries loads, a trace has its own", do="give --rate 1..64 or --concurrency 1..256")
    closed = given["concurrency"] is not None
    text = given["concurrency"] if closed else given["rate"]
    low, high = (None, None) if text is None else read_range(text)
    if closed and low is not None and high is not None and (low != int(low) or high != int(high)):
        raise UsageError(f"{text!r} holds a fraction", where="--concurrency", do="give whole numbers")
    likes = stages_from(given | {"concurrency" if closed else "rate": f"{low or 1:g}"})
    search = Search(
        closed,
        low,
        high,
        given["precision"] / 100.0,
        None if given["duration"] is not None else given["requests"] or needed_requests(parse(given["slo"])),
        None if given["duration"] is None else read_window(given["duration"]) / 1e9,
        _PROBE_S if given["requests"] is None else 0.0,
        given["max_probes"],
        given["max_requests"],
        None if given["max_time"] is None else read_max_time(given["max_time"]),
    )
    return likes, search


def _consistent(given: dict[str, Any]) -> None:
    if given.get("profile") is not None and (own := [name for name in _OF_PROFILE if given[name] not in (None, ())]):
        raise UsageError(
            f"--profile {given['profile']} brings its own stages", do=f"leave out --{own[0].replace('_', '-')}"
        )
    chosen = [name for name in _LOADS if given[name] is not None]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(f'--{name}' for name in chosen)} contradict each other", do="give one of them")
    if given["requests"] is not None and given["duration"] is not None:
        raise UsageError("--requests and --duration contradict each other", do="give one of them")
    for flag, needed in _NEEDS.items():
        if given.get(flag) not in (None, False) and given[needed] in (None, ()):
            raise UsageError(f"--{flag.replace('_', '-')} needs --{needed}")
    if given["max_concurrency"] is not None and given["rate"] is None and given["trace"] is None:
        raise UsageError("--max-concurrency needs --rate or --trace", do="in closed loop --concurrency is the limit")
    if given["trace"] is not None and (given["prompt_tokens"] is not None or given["output_tokens"] is not None):
        raise UsageError("a trace brings its own lengths", do="leave out --prompt-tokens and --output-tokens")


def _workloads(given: dict[str, Any]) -> list[Workload]:
    """The workloads by their flags, with lengths that flags override; no two of one name."""
    from loadgen.store.specfile import build_workload, load_workload, read_length

    items: list[str | dict[str, Any]] = []
    for item in given["workload"] or ("chat",):
        items += [name.strip() for name in item.split(",")] if isinstance(item, str) else [item]
    if "" in items:
        raise UsageError("names no workload between its commas", where="--workload", do="write for example chat,story")
    workloads = [load_workload(item) if isinstance(item, str) else build_workload(item) for item in items]
    names = [workload.name for workload in workloads]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"workload {twice[0]} is given twice", do="give each of them a name of its own")
    if given["prompt_tokens"] is not None:
        own = next((w.name for w in workloads if w.texts is not None), None)
        if own is not None:
            raise UsageError(f"workload {own} sends its own texts as they are", do="leave out --prompt-tokens")
        workloads = [replace(w, prompt_tokens=read_length(given["prompt_tokens"], 0)) for w in workloads]
    if given["output_tokens"] is not None:
        workloads = [replace(w, output_tokens=read_length(given["output_tokens"], 1)) for w in workloads]
    length = protocol_of(given).length
    return [replace(w, prompt_tokens=length(w.prompt_tokens), output_tokens=length(w.output_tokens)) for w in workloads]


def _mixes(given: dict[str, Any], workloads: Sequence[Workload]) -> list[tuple[tuple[Workload, float], ...]]:
    """One mix of all workloads by --mix, or each on its own."""
    if given["mix"] is None:
        return [((workload, 1.0),) for workload in workloads]
    weights = read_weights(given["mix"])
    if len(weights) != len(workloads):
        raise UsageError(
            f"{len(weights)} weights for {len(workloads)} workloads",
            where=f"--mix {given['mix']}",
            do="give one for each",
        )
    return [tuple(zip(workloads, weights, strict=True))]


def mix_from(given: dict[str, Any]) -> tuple[tuple[Workload, float], ...]:
    """All workloads as one mix, equally often where --mix does not say. Raises UsageError."""
    workloads = _workloads(given)
    if given["mix"] is None:
        return tuple((workload, 1.0) for workload in workloads)
    return _mixes(given, workloads)[0]


def _loads(given: dict[str, Any]) -> list[Load]:
    from loadgen.model import Load
    from loadgen.plan.arrivals import parse_arrivals
    from loadgen.plan.schedule import parse_sweep

    if given["rate"] is None:
        return [Load("concurrency", value) for value in parse_sweep(given["concurrency"] or "1,8,32", integers=True)]
    arrivals = given["arrivals"] or "poisson"
    parse_arrivals(arrivals)  # a mistake is told before the first request
    return [
        Load("rate", value, arrivals, given["max_concurrency"]) for value in parse_sweep(given["rate"], integers=False)
    ]


# -- traces --------------------------------------------------------------------------------------------------------


def _trace_stages(
    given: dict[str, Any], mixes: Sequence[tuple[tuple[Workload, float], ...]], span: int | None
) -> list[StageSpec]:
    """The trace at each speed. The workload gives the kind of text; lengths and times come from the trace."""
    from loadgen.model import Load
    from loadgen.plan.lengths import fixed
    from loadgen.plan.schedule import StageSpec, parse_sweep

    if len(mixes) != 1 or len(mixes[0]) != 1 or mixes[0][0][0].texts is not None or mixes[0][0][0].turns is not None:
        raise UsageError("a trace needs one workload of generated texts", do="give one such as -w chat")
    workload = mixes[0][0][0]
    specs: list[StageSpec] = []
    for speed in parse_sweep(given["trace_speed"] or "1", integers=False):
        trace = trace_from(given, speed)
        found = trace.survey()
        mean = replace(
            workload,
            prompt_tokens=fixed(max(1, found.prompt_tokens // found.rows)),
            output_tokens=fixed(max(1, found.output_tokens // found.rows)),
        )
        load = Load("trace", found.rate or 0.0, "trace", given["max_concurrency"])
        count = found.rows if given["requests"] is None else min(given["requests"], found.rows)
        stem = Path(trace.path).name.partition(".")[0]
        name = f"{stem}@x{speed:g}"
        specs.append(
            StageSpec(len(specs), name, ((mean, 1.0),), load, None if span is not None else count, span, trace)
        )
    return specs


def trace_from(given: dict[str, Any], speed: float) -> TraceFile:
    """The part of the trace that the flags choose, at one speed. Raises UsageError."""
    from loadgen.store.tracefile import TraceFile

    start_ns, end_ns = (0, None) if given["trace_slice"] is None else read_slice(given["trace_slice"])
    return TraceFile(
        given["trace"],
        speed=speed,
        start_ns=start_ns,
        end_ns=end_ns,
        context_limit=given["trace_context"],
        block_tokens=given["trace_block"] or 512,
        spread=bool(given["trace_spread"]),
    )
