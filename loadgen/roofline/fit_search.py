"""Finding the parameters: a robust least squares over the continuous ones, and a search over the scheduler's integers.

Knows: the loss, its priors and its scale, several starts, and in which order the knobs are tried. Must not know: how
certain the answer is (`fit_intervals`) or what it means.
Why: the continuous part is smooth once the steps are traced, so it is left to a standard least squares; the integers
decide which steps there are and are tried one by one.

    loss = sum of rho(log(model / measured) / s) + sum of ((log p - log median) / deviation)^2
    rho(x) = 2 c^2 (sqrt(1 + (x / c)^2) - 1), c = 2: squares near zero, absolute values far away
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadgen.errors import UsageError
from loadgen.roofline.cells import Cell
from loadgen.roofline.fit_model import Model, Problem, World
from loadgen.roofline.fit_parameters import NO_CAP, Knobs, Quantity, bounds, named
from loadgen.roofline.serving_kernel import Floats, Ints

FIRST_SCALE = np.array([0.075, 0.03])  # of log residuals of TTFT and ITL before the data have said theirs
SCALES = (0.003, 0.1)
KNEE = 2.0  # residuals beyond this many scales count linearly
BUDGETS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
PLAIN = Knobs()
NO_PRIOR = 1e3  # a deviation of the logarithm that says nothing
# KV cache as a share of what the weights leave of the memory: as engines use it, and as one that was told to use less.
KV_SHARES = (1.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.4, 2.0)
SCARCE = (0.35, 0.25, 0.18, 0.13, 0.09, 0.065, 0.045, 0.03)
PINNED = 0.95  # a utilisation above this is at its bound
WAITS = math.log(1.4)  # of TTFT above the model's: a wait that the knobs found so far do not explain
QUICK = 8  # evaluations of a candidate setting of the knobs, from where the last one stands
# A knob is moved from where it is only for a gain that a chance improvement would hardly give (in units of the loss).
WORTH = 6.0


@dataclass(frozen=True, slots=True)
class Point:
    """A fitted engine: knobs, logarithms of the parameters, the loss, and the scale of the residuals [TTFT, ITL]."""

    knobs: Knobs
    values: Floats
    loss: float
    scale: Floats
    model: Model


def robust(x: Floats) -> tuple[Floats, Floats]:
    """Residuals whose squares are rho(x), and their derivative by x."""
    q = np.sqrt(1.0 + (x / KNEE) ** 2)
    y = x * np.sqrt(2.0 / (1.0 + q))
    return y, np.sqrt((1.0 + q) / 2.0) / q


class Objective:
    """The vector whose squares add up to the loss, and its derivatives."""

    def __init__(
        self, model: Model, scale: Floats, priors: bool, weights: Floats | None = None, shift: Floats | float = 0.0
    ) -> None:
        """Args:
        model: the cells beside a model.
        scale: of the residuals of TTFT and ITL.
        priors: whether they count.
        weights: of the cells, for a bootstrap.
        shift: of the priors' medians, in logarithms, for a bootstrap.
        """
        table = model.world.table
        self._model, self._scale = model, scale
        self._centre = np.log([one.prior[0] for one in table]) + shift
        self._width = np.array([one.prior[1] for one in table]) if priors else np.full(len(table), NO_PRIOR)
        self.keep = np.isfinite(model.problem.measured[model.index]).ravel()
        root = np.ones(self.keep.size) if weights is None else np.repeat(np.sqrt(weights), 2)
        self._root = root[self.keep]

    def _scaled(self, point: Floats) -> Floats:
        scaled: Floats = (self._model.residuals(point) / self._scale).ravel()[self.keep]
        scaled[~np.isfinite(scaled)] = 1e3
        return scaled

    def vector(self, point: Floats) -> Floats:
        """Robust residuals of the cells, then the priors'."""
        return np.concatenate([robust(self._scaled(point))[0] * self._root, (point - self._centre) / self._width])

    def slopes(self, point: Floats) -> Floats:
        """Derivatives of the vector, one column per parameter."""
        factor = robust(self._scaled(point))[1] * self._root
        moved = (self._model.slopes(point) / self._scale[:, None]).reshape(-1, point.size)[self.keep]
        moved[~np.isfinite(moved)] = 0.0
        return np.vstack([moved * factor[:, None], np.diag(1.0 / self._width)])


def minimise(
    objective: Objective, start: Floats, search: Search, evaluations: int = 40, held: int = -1
) -> tuple[Floats, float]:
    """The point of least squares between bounds, and the sum of squares there; parameter `held` stays where it is."""
    from scipy.optimize import least_squares

    free = np.flatnonzero(np.arange(start.size) != held)
    low, high = search.low[free], search.high[free]

    def whole(part: Floats) -> Floats:
        point = start.copy()
        point[free] = part
        return point

    def vector(part: Floats) -> Floats:
        return objective.vector(whole(part))

    def slopes(part: Floats) -> Floats:
        return objective.slopes(whole(part))[:, free]

    done = least_squares(
        vector,
        np.clip(start[free], low + 1e-6, high - 1e-6),
        jac=slopes,
        bounds=(low, high),
        max_nfev=evaluations,
        xtol=1e-6,
        ftol=1e-7,
    )
    return whole(done.x), float(2.0 * done.cost)


def starts(table: Sequence[Quantity], count: int, rng: np.random.Generator) -> list[Floats]:
    """Where to start: the priors' medians, then points drawn around them."""
    centre = np.log([one.prior[0] for one in table])
    width = np.array([one.prior[1] for one in table])
    low, high = bounds(table)
    drawn = [centre + width * rng.standard_normal(centre.size) for _ in range(count - 1)]
    return [np.clip(one, low, high) for one in (centre, *drawn)]


class Search:
    """Fits of one problem in one world: continuous parameters for given knobs, and the knobs themselves."""

    def __init__(self, problem: Problem, world: World, index: Ints, *, priors: bool, rng: np.random.Generator) -> None:
        self.problem, self.world, self.index, self.priors, self.rng = problem, world, index, priors, rng
        self.low, self.high = bounds(world.table)

    def at(self, knobs: Knobs, start: Floats, scale: Floats, evaluations: int = 40) -> Point | None:
        """The best parameters for these knobs from one start; None where a cell cannot run with them."""
        try:
            model = Model(self.problem, self.world, knobs, start, self.index)
        except UsageError:
            return None
        values, loss = minimise(Objective(model, scale, self.priors), start, self, evaluations)
        return Point(knobs, values, loss, scale, model)

    def best(self, knobs: Knobs = PLAIN, several: int = 4) -> Point:
        """Parameters, knobs and scale. Raises UsageError where no setting of the knobs can run the cells."""
        found = [
            one
            for start in starts(self.world.table, several, self.rng)
            if (one := self.at(knobs, start, FIRST_SCALE)) is not None
        ]
        if not found:
            raise UsageError("these cells cannot run on the deployment they name", do="check GPU, count and lengths")
        here = min(found, key=lambda one: one.loss)
        for _ in range(2):
            here = self._rescaled(self._knobs(here))
        return self.polished(here)

    def polished(self, here: Point) -> Point:
        """Scale and parameters in agreement for the knobs that were found."""
        for _ in range(3):
            moved = self._rescaled(here)
            if np.allclose(moved.scale, here.scale, rtol=0.05):
                return moved
            here = moved
        return here

    def _rescaled(self, here: Point) -> Point:
        scale = scale_of(here.model.residuals(here.values), len(self.world.table))
        return self.at(here.knobs, here.values, scale) or here

    def _knobs(self, here: Point) -> Point:
        """Coordinate by coordinate; a coordinate is moved only for a gain that is worth it."""
        for moves in MOVES:
            if moves is _scarce and not _waits(here):
                continue
            better = self._tried(here, moves(here.knobs, self))
            if better.loss < here.loss - WORTH:
                here = better
        return here

    def rescheduled(self, here: Point) -> Point:
        """The point with the token budget and the way of filling a step that suit it best."""
        found = self._tried(here, _schedules(here.knobs, self))
        return self.at(found.knobs, found.values, found.scale) or found

    def _tried(self, here: Point, candidates: Iterable[Knobs]) -> Point:
        found = here
        for knobs in dict.fromkeys(candidates):
            if knobs == here.knobs:
                continue
            one = self.at(knobs, here.values, here.scale, QUICK)
            if one is not None and one.loss < found.loss - 1e-3:
                found = one
        return found

    @property
    def most_users(self) -> float:
        """The largest load that a scheduler had to deal with."""
        return max((one.load for one in self._scheduled()), default=0.0)

    @property
    def largest_demand(self) -> float:
        """Context tokens of the largest closed loop, all users at once."""
        return max((one.load * (one.prompt_tokens + one.output_tokens) for one in self._scheduled()), default=0.0)

    @property
    def kv_shares(self) -> tuple[float, float]:
        """Shares of the memory for KV caches that the largest request needs, and that the largest load can use."""
        try:
            rooms = {k: one.kv_capacity_tokens() for k, one in self.world.deployments.items() if one is not None}
        except UsageError:  # the weights leave no room, so there is nothing to have a share of
            return math.inf, 0.0
        loads = [(one, rooms[one.label], one.prompt_tokens + one.output_tokens) for one in self._scheduled()]
        least = max((tokens / room for _, room, tokens in loads), default=0.0)
        return least, max((1.05 * one.load * tokens / room for one, room, tokens in loads), default=0.0)

    @property
    def openings_unsaid(self) -> bool:
        """Is there a closed loop that does not say how many requests it sent?"""
        return any(one.protocol.requests is None for one in self._scheduled())

    def _scheduled(self) -> list[Cell]:
        return [self.problem.cells[i] for i in self.index if self.problem.cells[i].load_kind != "batch"]


Moves = Callable[[Knobs, Search], Iterable[Knobs]]


def _caps(knobs: Knobs, search: Search) -> Iterable[Knobs]:
    for opening in (True, False) if search.openings_unsaid else (knobs.opening,):
        yield replace(knobs, opening=opening, max_sequences=NO_CAP)
        size = 4
        while size < search.most_users:
            yield replace(knobs, opening=opening, max_sequences=size)
            if size * 3 // 2 < search.most_users:
                yield replace(knobs, opening=opening, max_sequences=size * 3 // 2)
            size *= 2


def caps_around(knobs: Knobs) -> Iterable[Knobs]:
    """Settings with a cap near the present one; none where there is no cap."""
    if knobs.max_sequences < NO_CAP:
        for factor in (0.75, 0.8, 0.84, 0.88, 0.91, 0.94, 0.97, 0.99, 1.01, 1.03, 1.06, 1.1, 1.15, 1.2, 1.27):
            yield replace(knobs, max_sequences=max(1, round(knobs.max_sequences * factor)))


def _finer_caps(knobs: Knobs, search: Search) -> Iterable[Knobs]:
    return caps_around(knobs)


def _memory(knobs: Knobs, search: Search) -> Iterable[Knobs]:
    yield replace(knobs, kv=None)
    if None in search.world.deployments.values():
        tokens = search.largest_demand
        for halves in range(1, 13):
            yield replace(knobs, kv=tokens * 0.5 ** (halves / 2))
    else:
        least, most = search.kv_shares
        for share in KV_SHARES:
            if least <= share < most:  # else a cell cannot run, or no cell comes near the limit
                yield replace(knobs, kv=share)


def _scarce(knobs: Knobs, search: Search) -> Iterable[Knobs]:
    """Little memory in place of any cap that was found: dear, so only where cells wait and nothing says why."""
    if None in search.world.deployments.values():
        return
    least, most = search.kv_shares
    for share in SCARCE:
        if least <= share < most:
            yield replace(knobs, kv=share, max_sequences=NO_CAP)


def _waits(here: Point) -> bool:
    """Whether some prompt under load waited for something that the engine found so far does not have.

    Where weights or products already go at their peak, times are too short, not too long: no cap explains that.
    """
    values = named(here.model.world.table, here.values)
    if max(values.get("mfu", 0.0), values.get("mbu", 0.0)) > PINNED:
        return False
    cells = [here.model.problem.cells[i] for i in here.model.index]
    loaded = np.array([one.load_kind != "batch" and one.load > 1 for one in cells])
    return bool(np.any(here.model.residuals(here.values)[loaded, 0] < -WAITS))


def _finer_memory(knobs: Knobs, search: Search) -> Iterable[Knobs]:
    if knobs.kv is not None:
        for factor in (0.86, 0.91, 0.95, 0.98, 1.02, 1.05, 1.09, 1.14):
            yield replace(knobs, kv=knobs.kv * factor)


def _schedules(knobs: Knobs, search: Search) -> Iterable[Knobs]:
    for late in (False, True):
        for chunked in (True, False):
            for budget in BUDGETS:
                yield replace(knobs, chunked=chunked, token_budget=budget, late_tokens=late, prompts_per_step=None)
        for prompts in (1, 2, 4):
            yield replace(knobs, chunked=True, token_budget=BUDGETS[-1], late_tokens=late, prompts_per_step=prompts)


def _joins(knobs: Knobs, search: Search) -> Iterable[Knobs]:
    yield replace(knobs, immediate=not knobs.immediate)


def _overlaps(knobs: Knobs, search: Search) -> Iterable[Knobs]:
    yield replace(knobs, overlap=not knobs.overlap)


MOVES: tuple[Moves, ...] = (_caps, _finer_caps, _memory, _scarce, _finer_memory, _schedules, _joins, _overlaps)


def scale_of(residuals: Floats, parameters: int) -> Floats:
    """Robust scale of the residuals of TTFT and ITL, from their median, corrected for the parameters fitted."""
    out = FIRST_SCALE.copy()
    total = int(np.sum(np.isfinite(residuals)))
    room = math.sqrt(total / max(total - parameters, total / 4, 1)) if total else 1.0
    for column in range(2):
        found = residuals[np.isfinite(residuals[:, column]), column]
        if found.size >= 3:
            out[column] = np.clip(1.48 * np.median(np.abs(found)) * room, *SCALES)
    return out
