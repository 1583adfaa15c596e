"""Lengths in tokens as distributions: their spelling, and their values as functions of uniform numbers.

Knows: the laws and how they are typed. Must not know: prompts, files, seeds (uniforms come in as an array).
Why uniforms: a length that is a quantile function can be drawn by anybody from the same numbers (any worker count gives
the same plan), and two lengths are tied together by tying their uniforms (see `tie`).

    2000                        fixed
    uniform:100..500            every whole number from 100 to 500
    normal:2000±200             mean and standard deviation (`+-` works, too)
    lognormal:2000±800          mean and standard deviation of the lengths themselves, not of their logarithms
    zipf:1.2,1..4000            P(n) proportional to n^-1.2 for n in 1..4000
    ...,100..8000               behind normal and lognormal: clipped to that range

Every length is at least 1 (a wait, which is spelled the same, may be 0).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import UsageError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_TOKENS = 100_000_000  # no model has a context like this; above it a typing error is likelier
_NUMBER = r"\d+(?:\.\d+)?"
_RANGE = re.compile(r"(\d+)\s*\.\.\s*(\d+)")
_SPREAD = re.compile(rf"({_NUMBER})\s*(?:±|\+-|\+/-)\s*({_NUMBER})")
_MIDPOINTS = 4096


@dataclass(frozen=True, slots=True)
class Length:
    """A distribution of token counts. `text` is how it is typed; `values` holds the rows of a table, else nothing."""

    text: str
    law: str  # a key of _LAWS
    a: float = 0.0  # the law's first parameter: the value, the lower end, the mean, the exponent
    b: float = 0.0  # the second: the upper end, the standard deviation
    low: int = 1
    high: int = MAX_TOKENS
    values: tuple[int, ...] = ()
    joint: str = ""  # two tables of the same name are columns of one file: their rows are drawn together

    def at(self, u: Floats) -> Ints:
        """The quantiles at `u` (each in [0, 1)), clipped to low..high; int64 of the same shape."""
        drawn = np.rint(_LAWS[self.law](self, np.asarray(u, dtype=np.float64)))
        clipped: Ints = np.clip(drawn, self.low, self.high).astype(np.int64)
        return clipped

    def mean(self) -> float:
        """The expected length in tokens, clipping included (exact for fixed and tables, else over 4,096 quantiles)."""
        if self.values:
            return float(np.clip(self.values, self.low, self.high).mean())
        return float(self.at((np.arange(_MIDPOINTS) + 0.5) / _MIDPOINTS).mean())

    def __str__(self) -> str:
        return self.text


def fixed(tokens: int) -> Length:
    """Always `tokens`."""
    return Length(str(tokens), "fixed", float(tokens), low=min(1, tokens))


def table(text: str, values: tuple[int, ...], joint: str = "") -> Length:
    """The rows of a table, all equally likely; drawn together with another table of the same `joint` name."""
    return Length(text, "table", values=values, joint=joint)


def parse_length(text: str | int, least: int = 1) -> Length:
    """Read a length as typed (the module's docstring lists the forms; `file:` is read by `store.specfile`).

    Raises:
        UsageError: not a length, an empty range, a value below `least`.
    """
    if isinstance(text, int):
        text = str(text)
    plain = text.replace(" ", "").replace("_", "")
    name, colon, rest = plain.partition(":")
    length = None
    if not colon and re.fullmatch(_NUMBER, name) and float(name).is_integer():
        length = fixed(int(float(name)))
    elif name.lower() in _READERS and colon:
        length = _READERS[name.lower()](text, rest)
    if length is None:
        raise UsageError(
            f"{text!r} is not a length",
            do="write 2000, uniform:100..500, normal:2000±200, lognormal:2000±800, zipf:1.2,1..4000 or file:PAIRS.csv",
        )
    top = length.a if length.law == "fixed" else length.high
    if length.low < least:
        raise UsageError(f"length {text!r} goes below {least}", do=f"give {least} or more")
    if length.low > length.high:
        raise UsageError(f"length {text!r} has an empty range", do="give the smaller number first")
    if top > MAX_TOKENS:
        raise UsageError(f"length {text!r} is beyond {MAX_TOKENS:,} tokens", do="give less")
    return length


def tie(first: Floats, second: Floats, correlation: float) -> Floats:
    """Uniforms that follow `second` but are tied to `first` by a Gaussian copula of that correlation (-1..1).

    Source: Nelsen, An Introduction to Copulas (2006), section 2.3: u2' = Phi(r z1 + sqrt(1 - r^2) z2).
    """
    if correlation == 0.0:
        return second
    if correlation == 1.0:
        return first
    from scipy.special import ndtr

    mixed = correlation * _normal(first) + math.sqrt(1.0 - correlation**2) * _normal(second)
    tied: Floats = np.minimum(ndtr(mixed), np.nextafter(1.0, 0.0))
    return tied


# -- laws: quantile functions --------------------------------------------------------------------------------------


def _normal(u: Floats) -> Floats:
    from scipy.special import ndtri  # imported here: a fixed length needs no scipy

    z: Floats = ndtri(np.clip(u, 1e-16, 1.0 - 1e-16))
    return z


def _lognormal(length: Length, u: Floats) -> Floats:
    variance = math.log1p((length.b / length.a) ** 2)  # of the logarithm, from mean a and deviation b
    values: Floats = np.exp(math.log(length.a) - variance / 2 + math.sqrt(variance) * _normal(u))
    return values


@lru_cache(maxsize=16)
def _zipf_cdf(exponent: float, low: int, high: int) -> Floats:
    weights = np.arange(low, high + 1, dtype=np.float64) ** -exponent
    cdf: Floats = np.cumsum(weights) / weights.sum()
    return cdf


def _zipf(length: Length, u: Floats) -> Floats:
    ranks = np.searchsorted(_zipf_cdf(length.a, length.low, length.high), u, "right")
    return ranks.astype(np.float64) + length.low


def _table(length: Length, u: Floats) -> Floats:
    values = np.asarray(length.values, dtype=np.float64)
    rows: Floats = values[(u * len(values)).astype(np.int64)]
    return rows


_LAWS: dict[str, Callable[[Length, Floats], Floats]] = {
    "fixed": lambda length, u: np.full_like(u, length.a),
    "uniform": lambda length, u: np.floor(length.a + u * (length.b - length.a + 1)),
    "normal": lambda length, u: length.a + length.b * _normal(u),
    "lognormal": _lognormal,
    "zipf": _zipf,
    "table": _table,
}


# -- spelling ------------------------------------------------------------------------------------------------------


def _read_uniform(text: str, rest: str) -> Length | None:
    match = _RANGE.fullmatch(rest)
    return Length(text, "uniform", float(match[1]), float(match[2]), int(match[1]), int(match[2])) if match else None


def _read_spread(law: str) -> Callable[[str, str], Length | None]:
    def read(text: str, rest: str) -> Length | None:
        spread, comma, clip = rest.partition(",")
        match, span = _SPREAD.fullmatch(spread), _RANGE.fullmatch(clip)
        if not match or float(match[1]) <= 0 or (comma and not span):
            return None
        low, high = (int(span[1]), int(span[2])) if span else (1, MAX_TOKENS)
        return Length(text, law, float(match[1]), float(match[2]), low, high)

    return read


def _read_zipf(text: str, rest: str) -> Length | None:
    exponent, _, span = rest.partition(",")
    match = _RANGE.fullmatch(span)
    if not match or not re.fullmatch(_NUMBER, exponent):
        return None
    low, high = int(match[1]), int(match[2])
    if high - low > 10_000_000:
        raise UsageError(f"length {text!r} spans more than 10,000,000 values", do="give a shorter range")
    return Length(text, "zipf", float(exponent), 0.0, low, high)


_READERS: dict[str, Callable[[str, str], Length | None]] = {
    "uniform": _read_uniform,
    "normal": _read_spread("normal"),
    "lognormal": _read_spread("lognormal"),
    "zipf": _read_zipf,
}
