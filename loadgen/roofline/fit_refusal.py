"""Is it this deployment at all?

Knows: what misfit of the physics, and which utilisations, no real deployment shows. Must not know: how alternatives are
told, or what replaces a refused fit.
Why: a wrong shape or GPU must not be absorbed into a utilisation. Either the cells are faster than the facts allow -
then even the best physics fits far worse than constants without any physics - or they are slower, and what is left is
that utilisations would lie where no kernel does: several at once, or the products alone where another deployment of the
catalogue shows the same times at usual ones. An engine can be that slow, so its user may say so (no priors).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from loadgen.roofline.figures import ASSUMED, FITTED, Figure, Figures
from loadgen.roofline.fit_alternatives import with_cache
from loadgen.roofline.fit_model import World
from loadgen.roofline.fit_others import others
from loadgen.roofline.fit_parameters import BLACK_BOX, TOP_MBU, UTILISATIONS, named
from loadgen.roofline.fit_search import WORTH, Objective, Point, Search, minimise
from loadgen.roofline.fitted import Misfit
from loadgen.roofline.marks import misfit
from loadgen.roofline.serving_kernel import Floats

STRANGE = 6.0  # sum of squared deviations of the utilisations from what kernels reach
# The priors' deviations, but for weights: engines of 2023 read them at .4-.5 of the bandwidth, overhead in between.
DEVIATIONS = {"mbu": 0.35}
WORSE = 1.0  # per residual: how much more loss than the constants' is a misfit of the physics
CACHED = (0.3, 0.6, 0.9)  # shares of cached prompt tokens that may explain why prompts are too fast
GROUPED = 1.2  # tokens per event: from here on, drafts or grouped tokens may explain why steps are too fast
# Matrix products that were measured reach .80 of an H100's bf16 peak, copies .92 of its bandwidth. One above may be a
# data type or a cache that was not told; both are another GPU or model.
CEILINGS = {"mfu": 0.85, "mbu": TOP_MBU}
AT_BOUND = 0.95
# Of the prior's median. Engines that were measured and published reach .42 of the peak and more (with experts .28), so
# half of the usual .6 (.4) is below them all. A card whose best products reach less of its peak is allowed less.
SLOW, BEST_PRODUCTS = 0.5, 0.8
USUAL = 2.0  # by how much strangeness (`fit_others`) must fall for another deployment to be the better explanation
CHECK = "check GPU, GPU count, model and data types"


def refusal(search: Search, best: Point) -> Misfit | None:
    """Why these cells cannot come from these deployments; None where they can."""
    if search.world.table == BLACK_BOX or any(
        one.evidence.get("tokens_per_event", 1.0) > GROUPED for one in search.problem.cells
    ):
        return None
    values = named(search.world.table, best.values)
    names = " and ".join(
        f"{one.gpus} x {one.gpu.name} with {one.shape.name}" for one in search.world.deployments.values() if one
    )
    allowed = _allowed(search, best)
    # Times that no law of this form explains are a misfit; they refute the facts where these cap a rate from above.
    if max(values["mfu"], values["mbu"]) > AT_BOUND and _data_loss(best) > allowed:
        if _rescued(search, best, allowed):
            return None
        fast = ", ".join(name for name in UTILISATIONS if values[name] > AT_BOUND)
        text = f"{names} cannot have shown these times: they need {fast} above {{most}}"
        return _refused(text, {"most": Figure(1.0, "share", ASSUMED)}, fast=True)
    over = [name for name, most in CEILINGS.items() if values[name] > most and _needed(search, best, name, most)]
    if len(over) == len(CEILINGS) and not _rescued(search, best, max(allowed, _data_loss(best))):
        need = " and ".join(f"{name} {{{name}}}" for name in over)
        text = f"{names} would need {need} to show these times: no engine comes near both at once"
        return _refused(text, _fitted(values, over), fast=True)
    if not search.priors:
        return None
    slow = _too_slow(search, best, values["mfu"], names)
    if slow is None and sum(z * z for z in _deviations(search, best.values)) > STRANGE:
        need = ", ".join(f"{name} {{{name}}}" for name in UTILISATIONS)
        text = f"{names} would show these times only at utilisations that kernels do not have ({need})"
        return _refused(text, _fitted(values, UTILISATIONS))
    return slow


def _too_slow(search: Search, best: Point, mfu: float, names: str) -> Misfit | None:
    """Products slower than any known engine's, where the catalogue holds what shows these times at usual rates."""
    usual = next(one.prior[0] for one in search.world.table if one.name == "mfu")
    reach = [
        (one.gpu.measured_bf16_flop_per_s or BEST_PRODUCTS * one.gpu.bf16_flop_per_s) / one.gpu.bf16_flop_per_s
        for one in search.world.deployments.values()
        if one
    ]
    inputs = {"usual": usual, "share": SLOW, "best_products": min(reach), "best_products_usually": BEST_PRODUCTS}
    least = SLOW * usual * min(1.0, min(reach) / BEST_PRODUCTS)
    if mfu >= least:
        return None
    other = min(others(search, best, USUAL), key=lambda one: one.point.loss, default=None)
    if other is None:
        return None
    text = f"{names} would show these times only at an mfu below {{least}}, slower than any engine known: "
    formula = "share * usual * min(1, best_products / best_products_usually)"
    figures = {**other.figures, "least": Figure(least, "share", formula, inputs)}
    return _refused(text + other.explanation, figures)


def _needed(search: Search, best: Point, name: str, most: float) -> bool:
    """Whether the cells cannot be shown nearly as well at a utilisation of `most`, overheads making up for it."""
    at = [one.name for one in search.world.table].index(name)
    held = best.values.copy()
    held[at] = math.log(most)
    _, loss = minimise(Objective(best.model, best.scale, search.priors), held, search, held=at)
    return loss > best.loss + WORTH


def _fitted(values: Mapping[str, float], names: Iterable[str]) -> dict[str, Figure]:
    return {name: Figure(values[name], "share", FITTED) for name in names}


def _rescued(search: Search, best: Point, allowed: float) -> bool:
    """Would cached prompts explain it, with decode - which they do not touch - at rates that exist?"""
    for share in CACHED:
        hit = with_cache(search, share)
        again = hit.at(best.knobs, best.values, best.scale) if hit is not None else None
        if again is not None and _data_loss(again) <= allowed:
            values = named(search.world.table, again.values)
            if values["mbu"] <= CEILINGS["mbu"] and values["kv_mbu"] < AT_BOUND:
                return True
    return False


def _refused(text: str, figures: Figures, *, fast: bool = False) -> Misfit:
    if fast:
        return misfit("invalid", "faster_than_physics", text, None, CHECK, (), **figures)
    advice = f"{CHECK}; if they are right and the engine is this slow, fit with --no-priors"
    return misfit("invalid", "refused_deployment", text, None, advice, (), **figures)


def _deviations(search: Search, point: Floats) -> list[float]:
    table = zip(search.world.table, point, strict=True)
    return [
        (value - math.log(one.prior[0])) / DEVIATIONS.get(one.name, one.prior[1])
        for one, value in table
        if one.name in UTILISATIONS
    ]


def _data_loss(point: Point) -> float:
    return float(np.sum(Objective(point.model, point.scale, priors=False).vector(point.values) ** 2))


def _allowed(search: Search, best: Point) -> float:
    """The loss that the data may have: constants' under the same knobs and scale (each label has its own), and more."""
    total = 0.0
    for label in search.world.deployments:
        index = np.array([i for i in search.index if search.problem.cells[i].label == label])
        box = Search(search.problem, World({label: None}, BLACK_BOX), index, priors=False, rng=search.rng)
        found = box.at(replace(best.knobs, kv=None), np.log([one.prior[0] for one in BLACK_BOX]), best.scale)
        total += found.loss if found is not None else 0.0
    residuals = int(np.sum(np.isfinite(search.problem.measured[search.index])))
    return max(1.5 * total, total + WORSE * residuals)
