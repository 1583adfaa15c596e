"""Which other GPU or model would show the same times at more usual utilisations.

Knows: that what a client sees is amounts over rates, so that another GPU or model is the same law with utilisations
scaled by facts; and what utilisations kernels usually reach. Must not know: how alternatives are reported.
Why: a wrong name is refused where no engine could be like that (`fit_refusal`). A smaller model on a slow engine and a
larger one on a good engine look alike to every client; where the catalogue holds a deployment that needs less strange
utilisations, saying so - with what would decide - is all that can honestly be done.

    strangeness = sum over utilisations of ((log value - log usual) / deviation)^2, the priors' own (`fit_parameters`)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.figures import FITTED, Figure, Figures
from loadgen.roofline.fit_parameters import Quantity, named
from loadgen.roofline.fit_search import WORTH, Point, Search
from loadgen.roofline.passes import Deployment, StepLaw, step_law

# What a client sees of each is an amount over a rate. Weights are left out: what they take less, overhead takes more.
SEEN = {
    "mfu": ("flops_per_token", "compute_rate"),
    "kv_mbu": ("kv_bytes", "kv_rate"),
    "attention_mfu": ("attention_flops_prefill", "attention_rate"),
}
MORE_USUAL = 1.0  # by how much strangeness must fall: a likelihood ratio of e^0.5 and, with trust in the name, a doubt
TRIED = 4  # of a kind, the most usual ones, fitted again
NAMED = 2  # of them


@dataclass(frozen=True, slots=True)
class Other:
    """A deployment that explains the cells from more usual utilisations."""

    name: str  # other_gpu or other_model
    explanation: str  # a template of `figures`
    decide: str
    point: Point  # the best of those named
    figures: Figures


def others(search: Search, best: Point, more_usual: float = MORE_USUAL) -> Iterator[Other]:
    """Other GPUs together, and other models together: the most usual of those that fit, named.

    more_usual: by how much strangeness must fall.
    """
    known = [one for one in search.world.deployments.values() if one is not None]
    if not search.priors or not known:
        return
    rows = (
        ("other_gpu", "what the machine says (nvidia-smi, the server's log), or a matrix product timed on it",
         [replace(known[0], gpu=one) for one in catalog.gpus() if one != known[0].gpu]),
        ("other_model", "the model's config.json on the server, or what it logs of its weights",
         [replace(known[0], shape=one) for one in catalog.shapes() if one != known[0].shape]),
    )  # fmt: skip
    for name, decide, candidates in rows:
        tried = _more_usual(search, best, known[0], candidates, more_usual)[:TRIED]
        fitted = [(point, *row) for row in tried if (point := _refitted(search, best, known[0], row[0])) is not None]
        if not fitted:
            continue
        cards = [there.gpu.name if name == "other_gpu" else there.shape.name for _, there, _ in fitted[:NAMED]]
        usual, mine = (", ".join(f"{word} {{{word}{of}}}" for word in SEEN) for of in ("", "_here"))
        text = f"{' or '.join(cards)} would show these times at more usual utilisations ({usual}) than what was named "
        figures = dict(_figures(known[0], fitted[0][1], named(search.world.table, best.values)))
        yield Other(name, f"{text}({mine})", decide, min((p for p, *_ in fitted), key=lambda p: p.loss), figures)


def _figures(said: Deployment, there: Deployment, values: Mapping[str, float]) -> Iterator[tuple[str, Figure]]:
    """Each utilisation on the other deployment, by the facts of both (laws at a utilisation of one)."""
    laws = {"here": step_law(said), "there": step_law(there)}
    for name, (amount, rate) in SEEN.items():
        yield f"{name}_here", Figure(values[name], "share", FITTED)
        inputs = {f"{one}_{side}": float(getattr(law, one)) for one in (amount, rate) for side, law in laws.items()}
        formula = f"{name}_here * {amount}_there / {amount}_here * {rate}_here / {rate}_there"
        value = values[name] * _ratio(laws["here"], laws["there"], amount, rate)
        yield name, Figure(value, "share", formula, {f"{name}_here": values[name], **inputs})


def _more_usual(
    search: Search, best: Point, said: Deployment, candidates: Iterable[Deployment], more_usual: float
) -> list[tuple[Deployment, dict[str, float]]]:
    """Those at which the utilisations that were fitted would be less strange, the least strange first."""
    values = named(search.world.table, best.values)
    table = {one.name: one for one in search.world.table}
    limit = _strangeness(values, table) - more_usual
    found = []
    for there in candidates:
        try:
            here, law = step_law(said), step_law(there)
            there.kv_capacity_tokens()  # raises where the weights do not fit
        except UsageError:
            continue
        moved = {name: values[name] * _ratio(here, law, *facts) for name, facts in SEEN.items()}
        strange = _strangeness(moved, table)
        if strange < limit and max(moved.values()) < 1.0:
            found.append((strange, there, moved))
    return [(there, moved) for _, there, moved in sorted(found, key=lambda row: row[0])]


def _strangeness(values: Mapping[str, float], table: Mapping[str, Quantity]) -> float:
    return sum(((math.log(values[name]) - math.log(table[name].prior[0])) / table[name].prior[1]) ** 2 for name in SEEN)


def _ratio(here: StepLaw, there: StepLaw, amount: str, rate: str) -> float:
    """How a utilisation changes when the same seconds are those of other facts (both laws at one utilisation)."""
    needs = getattr(there, amount) / max(getattr(here, amount), 1.0)
    return float(needs * getattr(here, rate) / getattr(there, rate)) or math.inf


def _refitted(search: Search, best: Point, said: Deployment, there: Deployment) -> Point | None:
    """The cells fitted on the other deployment (every GPU, or every model); None where it fits worse."""
    moved = {
        label: one and replace(one, gpu=there.gpu if one.gpu == said.gpu else one.gpu,
                               shape=there.shape if one.shape == said.shape else one.shape)
        for label, one in search.world.deployments.items()
    }  # fmt: skip
    again = Search(search.problem, replace(search.world, deployments=moved), search.index, priors=True, rng=search.rng)
    point = again.at(best.knobs, best.values, best.scale)
    return point if point is not None and point.loss < best.loss + WORTH else None
