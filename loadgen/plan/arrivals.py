"""When requests are due: arrival processes as endless streams of int64 nanoseconds from a stage's start.

Knows: the processes and how they are typed. Must not know: what is sent, windows, workers, clocks.
Why a time change: a process of unit rate (constant, Poisson, gamma, jittered) gives operational times s_1 <= s_2 ...; a
shape (ramp, steps, spike, sine) gives the rate r(t) as a multiple of the asked one. A request is due at the t where
the integral of rate * r up to t reaches s. For Poisson this is the exact inhomogeneous Poisson process (Cinlar,
Introduction to Stochastic Processes, 1975, section 4.7); for the others the order and the local spacing are kept.

    constant | poisson | gamma:CV | uniform:J      CV: of the gaps; J in 0..1: part of a gap within which each is moved
    ramp:0.1..1/60s     the rate grows from 0.1 to 1 times the asked one in 60 s, and stays there
    steps:0.5,1,2/30s   so many times the asked rate, 30 s each; the last stays
    spike:5@30s..40s    five times the asked rate between these times, once otherwise
    sine:0.5/60s        1 + 0.5 sin(2 pi t / 60 s)
    sine:0.5/60s+gamma:2   a shape over another process than Poisson
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import UsageError
from loadgen.plan.units import duration_ns

Floats = NDArray[np.float64]
_CHUNK = 1024
_NUMBER = r"\d+(?:\.\d+)?"
_SINE_POINTS = 512  # straight pieces in a period: the rate is off by less than 2e-5


@dataclass(frozen=True, slots=True)
class Shape:
    """The rate over time, in multiples of the asked one: linear between knots. After the last knot the last value
    stays, or (`repeats`) the shape begins again."""

    times_s: tuple[float, ...]
    factors: tuple[float, ...]
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A process: `text` is how it is typed, `law` and `parameter` give the gaps, `shape` the rate over time."""

    text: str
    law: str  # a key of _UNIT_RATE
    parameter: float = 0.0
    shape: Shape | None = None

    def gap_cv(self) -> float | None:
        """The coefficient of variation of the gaps between requests; None where the rate changes with time."""
        if self.shape is not None:
            return None
        return _GAP_CV[self.law](self.parameter)

    def offsets(self, rate: float, rng: np.random.Generator) -> Iterator[int]:
        """Due times in ns from the stage's start at a mean of `rate` requests per second; ascending, endless.

        The numbers depend only on the rng's state, never on how many are taken.
        """
        warp = None if self.shape is None else _Warp(self.shape, rate)
        for chunk in _UNIT_RATE[self.law](self.parameter, rng):
            seconds = chunk / rate if warp is None else warp.times(chunk)
            yield from np.rint(seconds * 1e9).astype(np.int64).tolist()


def parse_arrivals(text: str) -> Arrivals:
    """Read a process as typed (the module's docstring lists the forms).

    Raises:
        UsageError: not a process, or a parameter out of range.
    """
    plain = text.replace(" ", "").lower()
    parts = plain.split("+")
    law, parameter, shape = "poisson", 0.0, None
    for part in parts:
        name, _, rest = part.partition(":")
        if name in _SHAPES and shape is None and len(parts) <= 2:
            shape = _SHAPES[name](rest)
            bad = shape is None
        elif name in _PARAMETERS and part is parts[-1]:
            low, high = _PARAMETERS[name]
            bad = bool(rest) != (high > 0) or (bool(rest) and not re.fullmatch(_NUMBER, rest))
            law, parameter = name, float(rest) if rest and not bad else 0.0
            bad = bad or not low <= parameter <= high
        else:
            bad = True
        if bad:
            raise UsageError(
                f"{text!r} is not an arrival process",
                do="write poisson, constant, gamma:CV, uniform:0.5, ramp:0.1..1/60s, steps:1,2,4/30s, "
                "spike:5@30s..40s or sine:0.5/60s",
            )
    return Arrivals(text, law, parameter, shape)


# -- processes of unit rate ----------------------------------------------------------------------------------------


def _constant(parameter: float, rng: np.random.Generator) -> Iterator[Floats]:
    start = 0
    while True:
        yield np.arange(start, start + _CHUNK, dtype=np.float64)
        start += _CHUNK


def _jittered(parameter: float, rng: np.random.Generator) -> Iterator[Floats]:
    for slots in _constant(parameter, rng):
        yield slots + parameter * rng.random(_CHUNK)


def _summed(gaps: Callable[[], Floats]) -> Iterator[Floats]:
    total = 0.0
    while True:
        times = total + np.cumsum(gaps())
        total = float(times[-1])
        yield times


def _poisson(parameter: float, rng: np.random.Generator) -> Iterator[Floats]:
    return _summed(lambda: rng.exponential(1.0, _CHUNK))


def _gamma(cv: float, rng: np.random.Generator) -> Iterator[Floats]:
    return _summed(lambda: rng.gamma(1.0 / cv**2, cv**2, _CHUNK))


_UNIT_RATE: dict[str, Callable[[float, np.random.Generator], Iterator[Floats]]] = {
    "constant": _constant,
    "poisson": _poisson,
    "gamma": _gamma,
    "uniform": _jittered,
}
# The slots of a jittered process each lie U(0, J) late: a gap varies by the difference of two of these.
_GAP_CV: dict[str, Callable[[float], float]] = {
    "constant": lambda parameter: 0.0,
    "poisson": lambda parameter: 1.0,
    "gamma": lambda cv: cv,
    "uniform": lambda jitter: jitter / math.sqrt(6),
}
# name -> the range of its parameter; (0, 0): it has none
_PARAMETERS = {"constant": (0.0, 0.0), "poisson": (0.0, 0.0), "gamma": (0.01, 100.0), "uniform": (0.0, 1.0)}


# -- shapes --------------------------------------------------------------------------------------------------------


class _Warp:
    """Turns operational times into seconds: the inverse of the integral of rate * r(t)."""

    def __init__(self, shape: Shape, rate: float) -> None:
        self._t = np.asarray(shape.times_s)
        self._r = np.asarray(shape.factors) * rate
        area = np.diff(self._t) * (self._r[1:] + self._r[:-1]) / 2
        self._area = np.concatenate([[0.0], np.cumsum(area)])
        self._repeats = shape.repeats

    def times(self, s: Floats) -> Floats:
        """Seconds at which the integral reaches each of `s`."""
        whole = float(self._area[-1])
        rounds = np.floor(s / whole) if self._repeats else np.zeros_like(s)
        inside = s - rounds * whole
        piece = np.clip(np.searchsorted(self._area, inside, "right") - 1, 0, len(self._t) - 2)
        left, width = self._r[piece], self._t[piece + 1] - self._t[piece]
        slope = np.divide(self._r[piece + 1] - left, width, out=np.zeros_like(left), where=width > 0)
        rest = inside - self._area[piece]
        # left * x + slope * x^2 / 2 = rest, in the form that holds for slope 0, too
        root = np.sqrt(np.maximum(left**2 + 2 * slope * rest, 0.0))
        x = np.divide(2 * rest, left + root, out=np.zeros_like(rest), where=left + root > 0)
        beyond = inside - whole
        last = float(self._r[-1])
        after = self._t[-1] + beyond / last if last > 0 else np.full_like(s, np.inf)
        times: Floats = np.where(
            (beyond >= 0) & (not self._repeats), after, rounds * self._t[-1] + self._t[piece] + np.minimum(x, width)
        )
        return times


def _ramp(rest: str) -> Shape | None:
    match = re.fullmatch(rf"({_NUMBER})\.\.({_NUMBER})/(.+)", rest)
    if not match or float(match[2]) <= 0:
        return None
    return _knots((0.0, _seconds(match[3])), (float(match[1]), float(match[2])))


def _steps(rest: str) -> Shape | None:
    match = re.fullmatch(rf"({_NUMBER}(?:,{_NUMBER})*)/(.+)", rest)
    if not match:
        return None
    factors = [float(x) for x in match[1].split(",")]
    span = _seconds(match[2])
    times = [t for i in range(len(factors)) for t in (i * span, (i + 1) * span)]
    return _knots(times, [f for f in factors for _ in (0, 1)]) if factors[-1] > 0 else None


def _spike(rest: str) -> Shape | None:
    match = re.fullmatch(rf"({_NUMBER})@(.+)\.\.(.+)", rest)
    if not match:
        return None
    start, end = _seconds(match[2]), _seconds(match[3])
    return _knots((0.0, start, start, end, end, end + 1.0), (1.0, 1.0, float(match[1]), float(match[1]), 1.0, 1.0))


def _sine(rest: str) -> Shape | None:
    match = re.fullmatch(rf"({_NUMBER})/(.+)", rest)
    if not match or float(match[1]) > 1:
        return None
    x = np.arange(_SINE_POINTS + 1) / _SINE_POINTS
    factors = np.maximum(1 + float(match[1]) * np.sin(2 * np.pi * x), 0.0)
    return _knots((x * _seconds(match[2])).tolist(), factors.tolist(), repeats=True)


def _knots(
    times: list[float] | tuple[float, ...], factors: list[float] | tuple[float, ...], repeats: bool = False
) -> Shape | None:
    if any(b < a for a, b in itertools.pairwise(times)) or times[-1] <= 0:
        return None
    return Shape(tuple(times), tuple(factors), repeats)


def _seconds(text: str) -> float:
    return duration_ns(text) / 1e9


_SHAPES: dict[str, Callable[[str], Shape | None]] = {"ramp": _ramp, "steps": _steps, "spike": _spike, "sine": _sine}
