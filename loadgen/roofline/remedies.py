"""What would move it: changes to the deployment, the engine or the load, each with the gain that the fit predicts.

Knows: which changes there are, how each is put into a situation, and how sure its gain is. Must not know: how an engine
is simulated (`whatif`), or why it is slow (`causes`).
Why: an explanation is worth what can be done with it. Every change is simulated with the fitted engine under the cell's
own protocol; only what helps is told, the largest gain first.

    x = before / after for times, after / before for the whole server's rate;  gain = 1 - 1 / x, or x - 1
    interval of log x: 5 % to 95 % over the plausible engines, both ends of what one endpoint cannot tell apart,
    1.645 standard errors of the fit for a change by a factor of two, less for a smaller one, and 5 % of log x for what
    no model of an engine has right (chosen on `tests/benchmarks/fit_interventions.py`, an engine with other effects)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from loadgen.errors import UsageError
from loadgen.roofline.causes import PHASES, Phase, ends
from loadgen.roofline.figures import Figure
from loadgen.roofline.fitted import Fit, FitCell
from loadgen.roofline.passes import Deployment
from loadgen.roofline.whatif import Outcome, Situation, moved, outcome
from loadgen.roofline.words import count, percent, signed

Floats = npt.NDArray[np.float64]
Metric = Literal["ttft", "itl", "max_gap", "output_tokens_per_s"]
Change = Callable[[Situation], Situation]

DRAWS = 16  # plausible engines that a gain's interval is computed from
WORTH = 0.02  # gain below which a change is not told
KNEE = math.sqrt(2.0)  # what a doubled load must add to the server's rate: the report's own rule for a knee
MOST_USERS = 1024
MOST_GPUS = 8
CACHED = 0.5  # of each prompt, in the change that lets prompts share a prefix
SHORTER = 0.5
SIGMA = 1.4826  # a standard deviation in medians of absolute errors
Z = 1.645
STRUCTURE, RESOLUTION = 0.05, 0.002  # of log x, and in log x
SCHEDULED = 0.25  # of log x, where who is served when is changed: schedulers differ in more than their budget
NAMES: dict[Metric, str] = {
    "ttft": "TTFT",
    "itl": "ITL",
    "max_gap": "longest stall",
    "output_tokens_per_s": "output_tokens_per_s, whole server",
}
_METRICS: dict[Phase, tuple[Metric, ...]] = {"prefill": ("ttft",), "decode": ("itl", "max_gap")}


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change at one cell. Times in seconds; `after` is `before`, as measured, times the predicted ratio."""

    name: str  # a stable word: "fp8_weights", "more_tp" ...
    text: str  # what to do
    phase: Phase
    of: FitCell
    metric: Metric
    before: float
    after: float
    gain: float  # share of the time saved, or of the rate won
    low: float
    high: float
    change: Mapping[str, tuple[float | str | None, float | str | None]]  # what was changed: from, to
    costs: str = ""  # what gets worse, where something does
    figures: Mapping[str, Figure] = field(default_factory=dict)  # the numbers of `costs`


@dataclass(frozen=True, slots=True)
class Option:
    """A change that could be made. `metrics`: what it is judged by, if not by each phase's own."""

    name: str
    text: str
    apply: Change
    metrics: Mapping[Phase, tuple[Metric, ...]] | None = None
    structure: float = STRUCTURE  # of log x, by which a gain may be off whatever the parameters


def find_remedies(fit: Fit) -> tuple[Remedy, ...]:
    """For the cells of `operating_points`: what helps prefill, then what helps decode, the largest gain first."""
    found: list[Remedy] = []
    for one in operating_points(fit):
        engine = fit.engine[one.cell.label]
        draws = fit.draws.get(one.cell.label, ())
        some = draws[:: max(1, math.ceil(len(draws) / DRAWS))]
        extremes = tuple(ends(fit, engine))
        now = [Situation(one.cell, each, one.cell.deployment) for each in (engine, *extremes, *some)]
        best: dict[tuple[str, str], Remedy] = {}
        for remedy in _at(fit, one, now, 1 + len(extremes)):
            key = (remedy.name, remedy.phase)
            if key not in best or remedy.gain > best[key].gain:
                best[key] = remedy
        found += best.values()
    return tuple(sorted(found, key=lambda remedy: (PHASES.index(remedy.phase), -remedy.gain)))


def operating_points(fit: Fit) -> tuple[FitCell, ...]:
    """Of each deployment the highest loads of two kinds of request, and the longest prompt at the lowest load."""
    chosen: list[FitCell] = []
    for label in fit.engine:
        cells = [one for one in fit.cells if one.cell.label == label and not one.outlier]
        kinds: dict[tuple[float, float], FitCell] = {}
        for one in sorted(cells, key=lambda one: -one.cell.load):
            kinds.setdefault((one.cell.prompt_tokens, one.cell.output_tokens), one)
        least = min((one.cell.load for one in cells), default=0.0)
        alone = [one for one in cells if one.cell.load == least]
        chosen += [*list(kinds.values())[:2], *sorted(alone, key=lambda one: -one.cell.prompt_tokens)[:1]]
    return tuple({id(one): one for one in chosen}.values())


# --- the changes ------------------------------------------------------------------------------------------------------


def options(now: Situation) -> Iterator[Option]:
    """The changes that can be made to a situation."""
    if now.where is not None:
        yield from _deployments(now.where)
    cell, engine = now.cell, now.engine
    if cell.prompt_tokens >= 32:
        half = count(SHORTER * cell.prompt_tokens)
        yield Option("shorter_prompts", f"prompts of {half} tokens, half as long", _shorter)
        if not cell.protocol.cached_share > 0:
            share = percent(CACHED)
            yield Option("prefix_cache", f"a prefix cache that holds {share} of each prompt", _cached)
    if cell.load_kind == "batch":
        return
    if cell.load_kind == "rate" or cell.load >= 2:
        yield Option("replicas", "a second replica, each with half of the load", _halved)
    if engine.max_sequences < cell.load:
        twice = 2 * engine.max_sequences
        yield Option("batch_cap", f"a batch cap of {twice} in place of {engine.max_sequences}", _capped)
    for factor in (0.25, 0.5, 2, 4) if engine.chunked else ():
        budget = int(engine.token_budget * factor)
        if budget >= 256:
            text = f"a token budget of {budget:,} per step in place of {engine.token_budget:,}"
            yield Option("chunk_size", text, _chunks(budget), structure=SCHEDULED)


def _deployments(where: Deployment) -> Iterator[Option]:
    types, gpus = where.dtypes, where.gpus
    if types.weights == "bf16":
        eight = "fp8" if where.gpu.rate("fp8") else types.compute
        text = "weights in fp8, computed in fp8" if eight == "fp8" else "weights in fp8, still computed in bf16"
        yield Option("fp8_weights", text, _on(replace(where, dtypes=replace(types, weights="fp8", compute=eight))))
    if types.weights in ("bf16", "fp8", "int8"):
        narrow = replace(types, weights="int4", compute="bf16")
        yield Option("int4_weights", "weights in int4, computed in bf16", _on(replace(where, dtypes=narrow)))
    if types.kv == "bf16":
        yield Option("fp8_kv", "an fp8 KV cache", _on(replace(where, dtypes=replace(types, kv="fp8"))))
    if 2 * gpus <= MOST_GPUS and where.shape.heads % (2 * gpus) == 0:
        text = f"tensor parallelism over {2 * gpus} GPUs in place of {gpus}"
        yield Option("more_tp", text, _on(replace(where, gpus=2 * gpus)))


def _on(where: Deployment) -> Change:
    return lambda now: moved(now, where)


def _capped(now: Situation) -> Situation:
    return replace(now, engine=replace(now.engine, max_sequences=2 * now.engine.max_sequences))


def _chunks(budget: int) -> Change:
    return lambda now: replace(now, engine=replace(now.engine, token_budget=budget))


def _shorter(now: Situation) -> Situation:
    return replace(now, cell=replace(now.cell, prompt_tokens=SHORTER * now.cell.prompt_tokens))


def _cached(now: Situation) -> Situation:
    return replace(now, cell=replace(now.cell, protocol=replace(now.cell.protocol, cached_share=CACHED)))


def _halved(now: Situation) -> Situation:
    return _loaded(now, now.cell.load / 2)


def _loaded(now: Situation, load: float) -> Situation:
    """Another load. The requests per user stay, so that start and end weigh the same."""
    requests = now.cell.protocol.requests
    if requests is not None:
        requests = max(1, round(requests * load / now.cell.load))
    protocol = replace(now.cell.protocol, requests=requests)
    return replace(now, cell=replace(now.cell, load=load, protocol=protocol))


def _more_users(now: Situation, before: Outcome) -> Iterator[Option]:
    """The load up to which doubling it still pays: each doubling adds at least KNEE to the whole server's rate."""
    if now.cell.load_kind != "concurrency":
        return
    best, rate = now.cell.load, before.output_tokens_per_s
    while 2 * best <= MOST_USERS:
        try:
            more = outcome(_loaded(now, 2 * best)).output_tokens_per_s
        except UsageError:
            break
        if more < KNEE * rate:
            break
        best, rate = 2 * best, more
    if best > now.cell.load:
        text = f"more users at once, up to {count(best)} in place of {count(now.cell.load)}"
        yield Option("larger_batch", text, lambda s: _loaded(s, best), {"decode": ("output_tokens_per_s",)})


# --- what they gain ---------------------------------------------------------------------------------------------------


def _at(fit: Fit, one: FitCell, now: Sequence[Situation], first: int) -> Iterator[Remedy]:
    """What helps a cell. Of the situations the best fit is the first, ends the next up to `first`, then draws."""
    try:
        before = [outcome(each) for each in now]
    except UsageError:  # a plausible engine that could not even hold the cell says nothing
        now = now[:1]
        before = [outcome(each) for each in now]
    for option in (*options(now[0]), *_more_users(now[0], before[0])):
        try:
            changed = [option.apply(each) for each in now]
            after = [outcome(each) for each in changed]
        except UsageError:  # it does not fit, or the GPU has no such rate
            continue
        for phase, metrics in (option.metrics or _METRICS).items():
            made = (_remedy(fit, one, option, phase, m, changed[0], before, after, first) for m in metrics)
            # Of a phase's metrics the first that is helped: a shorter stall matters where ITL stays.
            if (best := next((remedy for remedy in made if remedy is not None), None)) is not None:
                yield best


def _remedy(
    fit: Fit,
    one: FitCell,
    option: Option,
    phase: Phase,
    metric: Metric,
    changed: Situation,
    before: Sequence[Outcome],
    after: Sequence[Outcome],
    first: int,
) -> Remedy | None:
    """The option by one metric; None where it does not help, or not surely."""
    factors = np.array([_factor(metric, a, b) for a, b in zip(before, after, strict=True)])
    x = float(factors[0])
    if not math.isfinite(x):
        return None
    error = fit.in_sample.ttft if metric == "ttft" else fit.in_sample.itl
    low, high = _interval(factors[:first], factors[first:], error, option.structure)
    gain = _gain(metric, x)
    if gain < WORTH or low <= 1.0:
        return None
    was = _measured(one, metric, before[0])
    worse = _worse(metric, before[0], after[0])
    return Remedy(
        name=option.name,
        text=option.text,
        phase=phase,
        of=one,
        metric=metric,
        before=was,
        after=was * x if metric == "output_tokens_per_s" else was / x,
        gain=gain,
        low=_gain(metric, low),
        high=_gain(metric, high),
        change=_differences(Situation(one.cell, fit.engine[one.cell.label], one.cell.deployment), changed),
        costs=", ".join(f"{name.upper()} {signed(of.value)}" for name, of in worse.items()),
        figures=worse,
    )


def _factor(metric: Metric, before: Outcome, after: Outcome) -> float:
    a, b = getattr(before, metric), getattr(after, metric)
    better = (b, a) if metric == "output_tokens_per_s" else (a, b)
    return float(better[0] / better[1]) if better[1] > 0 else math.nan


def _gain(metric: Metric, x: float) -> float:
    return x - 1.0 if metric == "output_tokens_per_s" else 1.0 - 1.0 / x


def _interval(sure: Floats, draws: Floats, error: float, structure: float) -> tuple[float, float]:
    """5 % to 95 % of the factor. `sure`: the best fit's factor and those of what cannot be told apart, all kept."""
    best = math.log(sure[0])
    logs = [best, *np.log(sure[np.isfinite(sure) & (sure > 0)])]
    drawn = np.log(draws[np.isfinite(draws) & (draws > 0)])
    if drawn.size:
        logs += [float(np.quantile(drawn, q)) for q in (0.05, 0.95)]
    wide = Z * SIGMA * (error if math.isfinite(error) else 0.0) * min(1.0, abs(best) / math.log(2.0))
    wide += structure * abs(best) + RESOLUTION
    return math.exp(min(logs) - wide), math.exp(max(logs) + wide)


def _measured(one: FitCell, metric: Metric, predicted: Outcome) -> float:
    """What was measured before the change, else what the fit says."""
    cell = one.cell
    told = {"ttft": cell.ttft_s, "itl": cell.itl_s, "max_gap": cell.evidence.get("max_gap_s", math.nan)}
    value = told.get(metric, math.nan)
    return value if math.isfinite(value) else float(getattr(predicted, metric))


def _worse(metric: Metric, before: Outcome, after: Outcome) -> dict[str, Figure]:
    """Times that the change makes longer by over 5 %."""
    worse = {}
    for name in ("ttft", "itl"):
        inputs = {"before_s": getattr(before, name), "after_s": getattr(after, name)}
        if name != metric and inputs["after_s"] > 1.05 * inputs["before_s"]:
            worse[name] = Figure(
                inputs["after_s"] / inputs["before_s"] - 1.0, "share", "after_s / before_s - 1", inputs
            )
    return worse


def _differences(now: Situation, changed: Situation) -> dict[str, tuple[float | str | None, float | str | None]]:
    """Every number of load, engine and cost law that the change has touched, as (from, to)."""
    a, b = _flat(now), _flat(changed)
    return {name: (a[name], b[name]) for name in b if a[name] != b[name]}


def _flat(of: Situation) -> dict[str, float | str | None]:
    cell = of.cell
    found: dict[str, float | str | None] = {
        "load": cell.load,
        "prompt_tokens": cell.prompt_tokens,
        "cached_share": cell.protocol.cached_share if cell.protocol.cached_share > 0 else 0.0,
    }
    found |= {f"engine.{name}": value for name, value in asdict(of.engine).items() if name != "law"}
    law = {name: float(value) for name, value in of.engine.law._asdict().items()}
    found |= {f"law.{name}": None if math.isnan(value) else value for name, value in law.items()}
    return found
