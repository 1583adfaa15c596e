"""The one home of quantiles and intervals: points, order-statistic bounds, block bootstrap, proportions, means.

Knows: arrays of numbers. Must not know: requests, stages, metrics, limits.
Why: two quantile rules in one tool give two answers to one question. Everything here is a pure function; a bootstrap
takes its resamples, which follow from a seed, as an argument.

Sources: quantiles: Hyndman and Fan (1996), type 7 (numpy's "linear"). Order-statistic bounds: David and Nagaraja, Order
Statistics, 3rd ed., section 7.1. Proportions: Clopper and Pearson (1934). Blocks: Carlstein (1986), with the block
length doubled until neighbouring blocks no longer correlate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CONFIDENCE = 0.95  # of a two-sided interval in a table, and of the one-sided bound that a gate decides on
TABLE_TAIL = (1.0 - CONFIDENCE) / 2  # probability beyond each end of an interval in a table
GATE_TAIL = 1.0 - CONFIDENCE  # probability beyond the one bound of a gate
NO_BOUNDS = math.nan  # as a tail: only the value is wanted, and bounds, which take longer, are n/a
RESAMPLES = 500
MIN_BLOCKS = 16
MAX_BLOCKS = 64
_MAX_NEIGHBOUR_CORRELATION = 0.1


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with the bounds that the sample supports. NaN is n/a; an infinite bound is "no bound".

    `n` is the sample size; `supported` says whether n can support this statistic at all (see `needed`).
    """

    value: float
    low: float
    high: float
    n: int
    supported: bool = True


NOTHING = Estimate(math.nan, math.nan, math.nan, 0, False)


def needed(q: float) -> int:
    """Smallest n with which a one-sided 95 % bound on quantile `q` exists: the largest value bounds it when
    q**n <= 0.05 (299 for the 99th percentile, 29 for the 90th, 5 for the median)."""
    tail = max(q, 1.0 - q)
    return 1 if tail >= 1.0 else math.ceil(math.log(GATE_TAIL) / math.log(tail))


def quantile_sorted(ordered: npt.NDArray[np.generic], q: float) -> float:
    """Quantile `q` of values in ascending order by numpy's linear rule; infinities are allowed; NaN if empty."""
    n = len(ordered)
    if n == 0:
        return math.nan
    position = q * (n - 1)
    index = min(int(position), n - 1)
    share = position - index
    here = float(ordered[index])
    if share == 0.0 or index + 1 >= n:
        return here
    after = float(ordered[index + 1])
    return here if after == here else here + share * (after - here) if math.isfinite(here) else after


def quantile(values: npt.ArrayLike, q: float) -> float:
    """Quantile `q` of `values` in any order (numpy's linear rule); NaN when there are none."""
    return quantile_sorted(np.sort(np.asarray(values, dtype=np.float64)), q)


def order_ranks(n: int, q: float, tail: float) -> tuple[int, int]:
    """Ranks (from 1) of the order statistics that bound quantile `q`, each missing it with probability <= `tail`.

    With B ~ Binomial(n, q) the number of values below the quantile: lower rank l is the largest with P(B < l) <= tail,
    upper rank u the smallest with P(B >= u) <= tail. 0 and n + 1 mean that no value of the sample is such a bound.
    """
    from scipy import special  # imported here: a run without bounds does not wait for it

    low = _first(n, lambda k: bool(special.bdtr(k, n, q) > tail))
    high = _first(n, lambda k: bool(special.bdtr(k, n, q) >= 1.0 - tail)) + 1
    return low, min(high, n + 1)


def _first(n: int, true_from: Callable[[int], bool]) -> int:
    """Smallest k in 0..n from which on a monotone condition holds (it holds at n), by bisection."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if true_from(middle):
            high = middle
        else:
            low = middle + 1
    return low


def percentile_sorted(ordered: Floats, q: float, tail: float = TABLE_TAIL) -> Estimate:
    """Percentile of independent values in ascending order, with its order-statistic bounds."""
    n = len(ordered)
    if n == 0:
        return NOTHING
    value = quantile_sorted(ordered, q)
    if math.isnan(tail):
        return Estimate(value, math.nan, math.nan, n, n >= needed(q))
    low, high = order_ranks(n, q, tail)
    return Estimate(
        value,
        min(float(ordered[low - 1]), value) if low >= 1 else -math.inf,
        max(float(ordered[high - 1]), value) if high <= n else math.inf,
        n,
        n >= needed(q),
    )


def mean(values: Floats, tail: float = TABLE_TAIL) -> Estimate:
    """Mean with Student's t bounds; one value has no bounds."""
    n = len(values)
    if n == 0:
        return NOTHING
    middle = float(np.mean(values))
    if n == 1 or not math.isfinite(middle):
        return Estimate(middle, -math.inf, math.inf, n, False)
    if math.isnan(tail):
        return Estimate(middle, math.nan, math.nan, n)
    from scipy import special  # imported here: a run without bounds does not wait for it

    half = float(special.stdtrit(n - 1, 1.0 - tail)) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Estimate(middle, middle - half, middle + half, n)


def proportion(hits: int, n: int, tail: float = TABLE_TAIL) -> Estimate:
    """Share `hits / n` with exact (Clopper-Pearson) bounds: never below the confidence that they claim."""
    if n == 0:
        return NOTHING
    if math.isnan(tail):
        return Estimate(hits / n, math.nan, math.nan, n)
    from scipy import special  # imported here: a run without bounds does not wait for it

    low = 0.0 if hits == 0 else float(special.betaincinv(hits, n - hits + 1, tail))
    high = 1.0 if hits == n else float(special.betaincinv(hits + 1, n - hits, 1.0 - tail))
    return Estimate(hits / n, low, high, n)


def reciprocal(of: Estimate) -> Estimate:
    """1 / estimate: the bounds change places; 1/0 and a lower bound of no meaning are infinite."""

    def invert(x: float) -> float:
        return math.nan if math.isnan(x) else math.inf if x <= 0.0 else 1.0 / x

    return Estimate(invert(of.value), invert(of.high), invert(of.low), of.n, of.supported)


# -- series in time -------------------------------------------------------------------------------------------------


def merge_blocks(sums: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Join neighbouring blocks (rows) pairwise; a last odd one joins its neighbour."""
    pairs = len(sums) // 2
    starts = np.arange(pairs) * 2
    joined: npt.NDArray[np.generic] = np.add.reduceat(sums, starts, axis=0)
    return joined


def neighbour_correlation(numerator: Floats, denominator: Floats) -> float:
    """Lag-1 correlation of the block means; 0 when there are too few, or when they are all alike."""
    filled = denominator > 0.0
    means = numerator[filled] / denominator[filled]
    centred = means - means.mean() if len(means) else means
    power = float(centred @ centred)
    if len(means) < 4 or power <= (1e-12 * float(np.abs(means).max())) ** 2 * len(means):
        return 0.0
    return float(centred[1:] @ centred[:-1]) / power


def widening(numerator: Floats, denominator: Floats, tail: float) -> float:
    """Factor by which bootstrap draws over these blocks vary too little.

    A resample of k blocks varies less than k independent ones, by (k - 1) / k; k blocks know their own spread only as
    Student's t does; and what correlation is left between neighbours adds 2 r to the variance of their mean.
    Measured on autoregressive series of 64 blocks: 95 % bounds cover 96, 94, 90 and 84 % at lag-1 correlations of 0,
    0.3, 0.6 and 0.8, where plain draws cover 94, 89, 85 and 71 %.
    """
    from scipy import special  # imported here: a run without bounds does not wait for it

    k = len(numerator)
    student = float(special.stdtrit(k - 1, 1.0 - tail) / special.ndtri(1.0 - tail))
    left = max(neighbour_correlation(numerator, denominator), 0.0)
    return student * math.sqrt(k / (k - 1) * (1.0 + 2.0 * left))


def block_size(numerator: Floats, denominator: Floats) -> int:
    """How many of the equal time blocks must be joined (a power of two) so that the joined ones are about independent.

    `numerator` and `denominator` are sums for each block (value sum and count, or tokens and seconds).
    """
    size = 1
    while len(numerator) >= 2 * MIN_BLOCKS:
        if neighbour_correlation(numerator, denominator) <= _MAX_NEIGHBOUR_CORRELATION:
            break
        numerator, denominator = join(numerator, 2), join(denominator, 2)
        size *= 2
    return size


class Resampler:
    """The block resamples of one stage, made once for each number of blocks and shared by all of its series."""

    def __init__(self, seed: Sequence[int]) -> None:
        self._seed = list(seed)
        self._weights: dict[int, Floats] = {}

    def weights(self, blocks: int) -> Floats:
        """How often each block is drawn in each resample, shape [RESAMPLES, blocks]; the same whenever it is asked."""
        if blocks not in self._weights:
            rng = np.random.default_rng([*self._seed, blocks])
            drawn = rng.multinomial(blocks, np.full(blocks, 1.0 / blocks), size=RESAMPLES)
            self._weights[blocks] = drawn.astype(np.float64)
        return self._weights[blocks]


def join(sums: npt.NDArray[np.generic], size: int) -> Floats:
    """Join blocks (rows) until each is made of `size` (a power of two)."""
    while size > 1 and len(sums) > 1:
        sums, size = merge_blocks(sums), size // 2
    return np.asarray(sums, dtype=np.float64)


def ratio_of_sums(
    numerator: Floats, denominator: Floats, resampler: Resampler, *, n: int, tail: float = TABLE_TAIL
) -> Estimate:
    """sum(numerator) / sum(denominator) over equal time blocks, with block-bootstrap bounds.

    Serves rates (tokens, seconds) and means of autocorrelated values (value sums, counts). `n` is what was counted.
    """
    bottom = float(denominator.sum())
    if bottom <= 0.0:
        return NOTHING
    value = float(numerator.sum()) / bottom
    size = block_size(numerator, denominator)
    top, base = join(numerator, size), join(denominator, size)
    filled = int(np.count_nonzero(base > 0))
    if filled < MIN_BLOCKS:
        return Estimate(value, -math.inf, math.inf, n, False)
    if math.isnan(tail):
        return Estimate(value, math.nan, math.nan, n)
    weights = resampler.weights(len(top))
    draws = weights @ top / np.maximum(weights @ base, np.finfo(np.float64).tiny)
    draws = value + (draws - value) * widening(top, base, tail)
    floor = 0.0 if numerator.min() >= 0.0 else -math.inf  # a rate is never negative
    return Estimate(value, max(quantile(draws, tail), floor), quantile(draws, 1.0 - tail), n, n >= MIN_BLOCKS)


def bin_quantiles(cumulative: Floats, low: Floats, high: Floats, q: float) -> Floats:
    """Quantile `q` of each histogram (row): `cumulative` counts [rows, bins], bins from `low` to `high` [bins]; linear
    within a bin."""
    target = q * cumulative[:, -1]
    index = np.minimum((cumulative < target[:, None]).sum(axis=1), cumulative.shape[1] - 1)
    rows = np.arange(len(cumulative))
    below = np.where(index > 0, cumulative[rows, index - 1], 0.0)
    inside = np.maximum(cumulative[rows, index] - below, np.finfo(np.float64).tiny)
    share = np.clip((target - below) / inside, 0.0, 1.0)
    result: Floats = low[index] + share * (high[index] - low[index])
    return result
