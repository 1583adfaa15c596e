"""Other explanations of the same cells: each is another world, refitted, and listed where it does as well.

Knows: which worlds a client cannot tell apart from the one that was fitted, and what experiment would tell. Must not
know: how a fit is reported.
Why: a confident wrong cause is worse than an honest pair. What is seen of the KV cache is bytes per token over
bandwidth, what is seen of the prompt is FLOPs over a rate: half of the bytes, or a third of the tokens, fit as well.

An alternative is listed when it is as good in practice: its mean error of TTFT and of ITL at most NEARLY above the best
one's - about what any law of this kind is wrong by anyway, so that little noise does not make it sure of what it is not
- and its utilisations as plausible as WORTH allows. `loss_ratio` says how much worse it is by the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from loadgen.roofline.figures import ASSUMED, ERROR, FITTED, Figure, named_in, read, told
from loadgen.roofline.fit_model import Problem, World, problem
from loadgen.roofline.fit_others import others
from loadgen.roofline.fit_parameters import BLACK_BOX, NO_CAP, TOP_MBU, UTILISATIONS, Knobs, kv_tokens, named
from loadgen.roofline.fit_search import WORTH, Objective, Point, Search, minimise
from loadgen.roofline.fitted import Alternative
from loadgen.roofline.passes import Deployment

NEARLY = 0.03  # of the mean |log(model / measured)|
WINDOW = 128  # tokens: the window of the "window" hypothesis, small against any prompt
CACHED = 0.3  # share of the prompt in the prefix cache in the "prefix_cache" hypothesis


@dataclass(frozen=True, slots=True)
class Idea:
    """Another world: what to call it, what it says, what would decide, and how it is made (None: not possible here).

    explanation: a template of its numbers; `{mfu}` is what was fitted to it, `{mfu_here}` what the best fit says.
    """

    name: str
    explanation: str
    decide: str
    make: Callable[[Search, Point], Search | None]
    assumed: Mapping[str, Figure] = field(default_factory=dict)


def _on(search: Search, world: World, whole: Problem | None = None) -> Search:
    return Search(whole or search.problem, world, search.index, priors=search.priors, rng=search.rng)


def _window(search: Search, best: Point) -> Search | None:
    deployments: dict[str, Deployment | None] = {}
    for label, one in search.world.deployments.items():
        if one is None or one.shape.window_layers:
            return None
        shape = replace(one.shape, window=WINDOW, window_layers=one.shape.layers // 2)
        deployments[label] = replace(one, shape=shape)
    return _on(search, replace(search.world, deployments=deployments))


def _full(search: Search, best: Point) -> Search | None:
    deployments: dict[str, Deployment | None] = {}
    for label, one in search.world.deployments.items():
        if one is None or not one.shape.window_layers:
            return None
        deployments[label] = replace(one, shape=replace(one.shape, window=0, window_layers=0, window_chunked=False))
    return _on(search, replace(search.world, deployments=deployments))


def _kv(factor: float, kind: str) -> Callable[[Search, Point], Search | None]:
    def make(search: Search, best: Point) -> Search | None:
        known = list(search.world.deployments.values())
        if any(one is None or one.dtypes.kv != kind for one in known):
            return None
        return _on(search, replace(search.world, kv_factor=factor))

    return make


def _replicated(search: Search, best: Point) -> Search | None:
    """Every GPU reads the KV of all heads, or - where heads are fewer than GPUs - none is read twice."""
    found = [one for one in search.world.deployments.values() if one is not None and not one.shape.mla]
    if len(found) != len(search.world.deployments) or len({one.gpus for one in found}) > 1 or found[0].gpus == 1:
        return None
    one = found[0]
    split = one.shape.kv_elements / one.gpus
    actual = one.shape.kv_elements_per_gpu(one.gpus)
    factor = split / actual if actual > split * 1.01 else one.shape.kv_elements / actual
    return _on(search, replace(search.world, kv_factor=factor))


def with_cache(search: Search, share: float) -> Search | None:
    """The same cells with a share of their prompts in the cache; None where the server said what was in it."""
    cells = search.problem.cells
    if any(not math.isnan(one.protocol.cached_share) for one in cells):
        return None
    hit = [replace(one, protocol=replace(one.protocol, cached_share=share)) for one in cells]
    return _on(search, search.world, problem(hit))


def _cached(search: Search, best: Point) -> Search | None:
    return with_cache(search, CACHED)


_KV_READS = "KV reads reach {kv_mbu} of the bandwidth (this fit: {kv_mbu_here})"
_CONFIG = "the model's config.json; ITL against context at a batch of 8 from 64 tokens on: a window bends it"
_CAPACITY = "the server's KV capacity in its metrics or log: half the bytes are twice the tokens"
IDEAS: tuple[Idea, ...] = (
    Idea(
        "window",
        f"half of the layers look back {{window_tokens}} tokens only, and {_KV_READS}",
        _CONFIG,
        _window,
        {"window_tokens": Figure(WINDOW, "count", ASSUMED)},
    ),
    Idea("full_attention", f"no layer has a window, and {_KV_READS}", _CONFIG, _full),
    Idea("fp8_kv", f"the KV cache is fp8, not bf16, and {_KV_READS}", _CAPACITY, _kv(0.5, "bf16")),
    Idea("bf16_kv", f"the KV cache is bf16, not fp8, and {_KV_READS}", _CAPACITY, _kv(2.0, "fp8")),
    Idea(
        "kv_replication",
        f"a GPU reads {{kv_factor}} times the KV bytes that heads over GPUs say, and {_KV_READS}",
        "the same cells on one GPU more or less: copies do not shrink",
        _replicated,
    ),
    Idea(
        "prefix_cache",
        "{cached_share} of the prompt tokens come from the prefix cache, and prefill reaches {mfu} of the peak "
        "(this fit: {mfu_here})",
        "the same cells with prompts that never repeat, or the server's cached_tokens",
        _cached,
        {"cached_share": Figure(CACHED, "share", ASSUMED)},
    ),
)


def alternatives(search: Search, best: Point) -> tuple[Alternative, ...]:
    """Everything that explains the cells about as well, best first."""
    if search.world.table == BLACK_BOX:
        return ()
    found = [*_ideas(search, best), *_switches(search, best), *_ends(search, best), *_others(search, best)]
    return tuple(sorted(found, key=lambda one: one.loss_ratio))


def _as_good(search: Search, best: Point, other: Point) -> bool:
    """Whether the other point explains the cells about as well, from utilisations about as plausible."""
    pairs = zip(_off(other), _off(best), strict=True)
    table = search.world.table

    def strange(point: Point) -> float:
        rows = zip(point.values, table, strict=True)
        return float(sum(((v - math.log(q.prior[0])) / q.prior[1]) ** 2 for v, q in rows if q.name in UTILISATIONS))

    plausible = not search.priors or strange(other) <= strange(best) + WORTH
    return plausible and all(not theirs > own + NEARLY for theirs, own in pairs)


def _off(point: Point) -> tuple[float, float]:
    residuals = np.abs(point.model.residuals(point.values))
    known = [residuals[np.isfinite(residuals[:, k]), k] for k in range(2)]
    return float(np.mean(known[0])) if known[0].size else 0.0, float(np.mean(known[1])) if known[1].size else 0.0


def _ideas(search: Search, best: Point) -> Iterable[Alternative]:
    for idea in IDEAS:
        other = idea.make(search, best)
        if other is None:
            continue
        one = other.at(best.knobs, best.values, best.scale)
        if one is not None and not _as_good(search, best, one):
            one = other.rescheduled(one)  # the best one's token budget may have made up for what this idea explains
        if one is not None and _as_good(search, best, one):
            assumed = {"kv_factor": Figure(other.world.kv_factor, "number", ASSUMED), **idea.assumed}
            yield _listed(idea.name, idea.explanation, idea.decide, one, best, assumed)


def _listed(
    name: str, explanation: str, decide: str, one: Point, best: Point, known: Mapping[str, Figure]
) -> Alternative:
    """The alternative with the numbers that its sentence needs: those that are known, the others as fitted."""
    values = {f"{key}_here": value for key, value in named(best.model.world.table, best.values).items()}
    values |= (own := named(one.model.world.table, one.values))
    figures = {
        key: known.get(key) or Figure(values[key], "s" if key.removesuffix("_here").endswith("_s") else "share", FITTED)
        for key in named_in(explanation)
    }
    for whose, point in (("", one), ("_here", best)):
        errors = zip(("ttft", "itl"), _off(point), strict=True)
        figures |= {f"{metric}_error{whose}": Figure(error, "share", ERROR) for metric, error in errors}
    ratio = one.loss / max(best.loss, 1e-9)
    return Alternative(name, told(explanation, figures), decide, ratio, figures, own)


def _switches(search: Search, best: Point) -> Iterable[Alternative]:
    """The other setting of a switch that the search chose."""
    knobs = best.knobs
    word = "added to" if knobs.overlap else "hidden behind"
    tries: list[tuple[str, str, str, Iterable[Knobs]]] = [
        (
            "overlap",
            f"CPU work is {word} GPU work in every step",
            "the server's asynchronous scheduling on and off; a larger model on it: overlap hides overhead",
            [replace(knobs, overlap=not knobs.overlap)],
        )
    ]
    if knobs.max_sequences < NO_CAP:
        shares = (0.1, 0.15, 0.22, 0.33, 0.5, 0.7, 1.0)
        tries.append(
            (
                "kv_cap",
                "a KV cache of {kv_tokens} tokens limits the batch, not a cap of {max_sequences} sequences",
                "more users at another prompt length: memory's limit moves with it, a cap does not",
                [replace(knobs, max_sequences=NO_CAP, kv=one) for one in shares],
            )
        )
    for name, explanation, decide, candidates in tries:
        found = [one for k in candidates if (one := search.at(k, best.values, best.scale)) is not None]
        if found and _as_good(search, best, other := min(found, key=lambda one: one.loss)):
            yield _listed(name, explanation, decide, other, best, _limits(search, best, other))


def _limits(search: Search, best: Point, other: Point) -> dict[str, Figure]:
    """What limits the batch, of the first deployment."""
    tokens = kv_tokens(next(iter(search.world.deployments.values())), other.knobs.kv)
    cap = read(best.knobs.max_sequences, "count", "max_sequences")
    return {"max_sequences": cap} | ({} if tokens is None else {"kv_tokens": Figure(tokens, "count", FITTED)})


def _others(search: Search, best: Point) -> Iterable[Alternative]:
    for one in others(search, best):
        yield _listed(one.name, one.explanation, one.decide, one.point, best, one.figures)


def _ends(search: Search, best: Point) -> Iterable[Alternative]:
    """The two ends of what the floor of a decode step may be made of."""
    names = [one.name for one in search.world.table]
    explanation = "weights are read at {mbu} of the bandwidth, and every step has {step_s} of overhead"
    decide = "a second GPU count, quantisation or model size on the same engine: weight reads change, overhead does not"
    objective = Objective(best.model, best.scale, search.priors)
    least = Figure(0.2 * (now := named(search.world.table, best.values)["step_s"]), "s",
                   "0.2 * step_s_here", {"step_s_here": now})  # fmt: skip
    for name, which, end in (
        ("overhead", "mbu", Figure(TOP_MBU, "share", ASSUMED)),
        ("bandwidth", "step_s", least),
    ):
        point = best.values.copy()
        point[names.index(which)] = math.log(end.value)
        there, loss = minimise(objective, point, search, held=names.index(which))
        if _as_good(search, best, other := replace(best, values=there, loss=loss)):
            yield _listed(name, explanation, decide, other, best, {which: end})
