"""Capacity: how many replicas of which deployment keep the limits at a given rate.

Knows: how to find the highest rate of one replica by simulation, how that becomes a number of GPUs and a cost, and how
a day of varying load is checked on a sample of replicas. Must not know: where limits or efficiencies come from.
Why: percentiles come from queueing, so they are simulated, never computed from means. Replicas are independent once
the arrivals are split among them at random, so a fleet of thousands is simulated by a few of its replicas; the spread
over those is the error that is stated. A router that looks at load does better than the random split, so the plan errs
on the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadgen.errors import UsageError
from loadgen.plan.schedule import draw_units
from loadgen.plan.workload import Workload
from loadgen.roofline.passes import Deployment
from loadgen.roofline.serving import EngineConfig
from loadgen.roofline.serving_fast import Served, simulate_closed, simulate_open

REQUEST_METRICS = ("ttft", "tpot", "e2e", "max_gap")
PRECISION = 0.02  # of the highest rate: where bisection stops
DAY_S = 86_400.0
MOST_OF_A_DAY = 500_000  # requests of one replica; of a faster one a shorter day is simulated


class Lengths(NamedTuple):
    """Tokens of each request; `cached` of its prompt tokens need no prefill."""

    prompts: npt.NDArray[np.int64]
    outputs: npt.NDArray[np.int64]
    cached: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Mix:
    """What is asked of the server: workloads with their weights. `prefix_cache`: what a workload's prompts share is
    there already."""

    parts: tuple[tuple[Workload, float], ...]
    prefix_cache: bool = False

    def __post_init__(self) -> None:
        if not self.parts or min(weight for _, weight in self.parts) < 0 or self._weight <= 0:
            raise UsageError("a mix needs a workload with a weight above 0")
        for workload, _ in self.parts:
            if workload.turns is not None or workload.texts is not None:
                what = "is a conversation" if workload.turns is not None else "sends texts of its own"
                raise UsageError(
                    f"workload {workload.name} {what}: its prompts' lengths are not known beforehand",
                    do="describe them by the lengths of a workload without turns and data",
                )

    @property
    def _weight(self) -> float:
        return sum(weight for _, weight in self.parts)

    @property
    def output_tokens(self) -> float:
        """Mean output tokens of a request."""
        return sum(weight * workload.output_tokens.mean() for workload, weight in self.parts) / self._weight

    def draw(self, count: int, rng: np.random.Generator) -> Lengths:
        """Lengths of `count` requests."""
        which, prompts, outputs, _ = draw_units(self.parts, rng.random((4, count)))
        shared = [w.prefix.tokens if w.prefix is not None and self.prefix_cache else 0 for w, _ in self.parts]
        return Lengths(prompts, outputs, np.minimum(np.array(shared, np.int64)[which], prompts - 1))


def _served(config: EngineConfig, arrivals: npt.NDArray[np.float64], lengths: Lengths) -> Served:
    return simulate_open(config, arrivals, lengths.prompts, lengths.outputs, cached_tokens=lengths.cached)


@dataclass(frozen=True, slots=True)
class Target:
    """A limit: the quantile (None: the mean) of a request metric must not exceed `limit_s`."""

    metric: str
    quantile: float | None
    limit_s: float

    def __post_init__(self) -> None:
        if self.metric not in REQUEST_METRICS:
            raise UsageError(f"capacity is planned for {', '.join(REQUEST_METRICS)}, not {self.metric}")

    def value(self, served: Served, measured: npt.NDArray[np.bool_]) -> float:
        """The statistic over the measured requests, seconds; -inf where no request has the metric."""
        values = getattr(served, f"{self.metric}_s")[measured]
        values = values[np.isfinite(values)]
        if not values.size:
            return -math.inf
        return float(np.mean(values) if self.quantile is None else np.quantile(values, self.quantile))


@dataclass(frozen=True, slots=True)
class Operating:
    """One replica at one rate."""

    rate: float  # requests/s offered
    values: tuple[float, ...]  # of the targets, in their order
    attainment: float  # share of requests within every limit
    stable: bool  # the queue does not grow through the run

    def keeps(self, targets: Sequence[Target]) -> bool:
        """Are all limits kept, by a server that keeps pace?"""
        return self.stable and all(v <= t.limit_s for v, t in zip(self.values, targets, strict=True))


@dataclass(frozen=True, slots=True)
class Capacity:
    """The plan for one deployment. `replicas` x `where.gpus` GPUs serve the peak; costs are None without a price."""

    where: Deployment
    config: EngineConfig
    at: Operating  # one replica at its highest rate that keeps the limits
    replicas: int
    goodput: float  # requests/s within every limit, all replicas at the planned peak
    utilisation: float  # share of the highest rate that the peak uses
    cost_per_hour: float | None
    cost_per_million_output_tokens: float | None  # at the peak

    @property
    def gpus(self) -> int:
        """GPUs in total."""
        return self.replicas * self.where.gpus


def operate(config: EngineConfig, mix: Mix, targets: Sequence[Target], rate: float, seed: int = 0) -> Operating:
    """Simulate one replica under Poisson arrivals at `rate` requests/s; the first fifth is warm-up."""
    rng = np.random.default_rng(seed)
    count = 2000 + 20 * config.max_sequences
    arrivals = np.cumsum(rng.exponential(1.0 / rate, count))
    served = _served(config, arrivals, mix.draw(count, rng))
    measured = np.arange(count) >= count // 5
    early, late = (float(np.mean(served.ttft_s[part])) for part in np.array_split(np.arange(count // 5, count), 2))
    alone = float(np.min(served.e2e_s))
    return Operating(
        rate=rate,
        values=tuple(target.value(served, measured) for target in targets),
        attainment=float(np.mean(_within(served, targets)[measured])),
        stable=late <= 2 * early + alone,
    )


def replica_rate(config: EngineConfig, mix: Mix, targets: Sequence[Target], seed: int = 0) -> Operating | None:
    """The highest rate at which one replica keeps the limits, within PRECISION; None if it cannot even when idle."""
    rng = np.random.default_rng(seed)
    some = mix.draw(32, rng)
    single = simulate_closed(config, 1, some.prompts, some.outputs, cached_tokens=some.cached)
    low = 0.02 / float(np.mean(single.e2e_s))
    best = operate(config, mix, targets, low, seed)
    if not best.keeps(targets):
        return None
    high = 2 * low
    while (tried := operate(config, mix, targets, high, seed)).keeps(targets):
        best, low, high = tried, high, 2 * high
    while high > low * (1 + PRECISION):
        middle = math.sqrt(low * high)
        tried = operate(config, mix, targets, middle, seed)
        if tried.keeps(targets):
            best, low = tried, middle
        else:
            high = middle
    return best


def plan_capacity(
    where: Deployment,
    config: EngineConfig,
    mix: Mix,
    targets: Sequence[Target],
    *,
    peak_rate: float,
    price_per_gpu_hour: float | None = None,
    seed: int = 0,
) -> Capacity | None:
    """How many replicas serve `peak_rate` requests/s; None where the deployment cannot keep the limits at all."""
    at = replica_rate(config, mix, targets, seed)
    if at is None:
        return None
    replicas = math.ceil(peak_rate / at.rate)
    share = peak_rate / replicas
    planned = operate(config, mix, targets, share, seed + 1)  # other arrivals than those that chose the rate
    hourly = None if price_per_gpu_hour is None else replicas * where.gpus * price_per_gpu_hour
    tokens_per_hour = peak_rate * mix.output_tokens * 3600
    return Capacity(
        where=where,
        config=config,
        at=at,
        replicas=replicas,
        goodput=peak_rate * planned.attainment,
        utilisation=share / at.rate,
        cost_per_hour=hourly,
        cost_per_million_output_tokens=None if hourly is None else hourly / tokens_per_hour * 1e6,
    )


@dataclass(frozen=True, slots=True)
class Day:
    """A day on a sample of the replicas. `error` is the standard error of `attainment` over them; nan with one.

    `share`: how much of each hour was simulated; below 1 the rate rises and falls so much faster, which changes nothing
    as long as a minute's queue is gone after minutes.
    """

    replicas: int
    sampled: int
    requests: int  # simulated
    attainment: float
    error: float
    worst_hour: float  # the lowest attainment of an hour, all sampled replicas together
    share: float


def simulate_day(
    config: EngineConfig,
    mix: Mix,
    targets: Sequence[Target],
    *,
    mean_rate: float,
    swing: float,
    replicas: int,
    sample: int = 4,
    seed: int = 0,
) -> Day:
    """A day whose rate is `mean_rate` * (1 + swing * sin), split at random over `replicas`, on `sample` of them.

    Arrivals are a Poisson process of varying rate, by thinning one of the peak rate (Lewis and Shedler, 1979).
    """
    sampled = min(sample, replicas)
    peak = mean_rate * (1 + swing) / replicas
    share = min(1.0, MOST_OF_A_DAY / (peak * DAY_S))
    length_s = share * DAY_S
    hits, totals = np.zeros((sampled, 24)), np.zeros((sampled, 24))
    for k, stream in enumerate(np.random.SeedSequence(seed).spawn(sampled)):
        rng = np.random.default_rng(stream)
        times = np.sort(rng.uniform(0.0, length_s, rng.poisson(peak * length_s)))
        keep = rng.uniform(0.0, 1 + swing, times.size) < 1 + swing * np.sin(2 * np.pi * times / length_s)
        arrivals = times[keep]
        if not arrivals.size:
            continue
        good = _within(_served(config, arrivals, mix.draw(arrivals.size, rng)), targets)
        hour = np.minimum(arrivals // (length_s / 24), 23).astype(np.int64)
        totals[k] = np.bincount(hour, minlength=24)
        hits[k] = np.bincount(hour, weights=good, minlength=24)
    if not totals.sum():
        raise UsageError("no request in the day at that rate")
    each = hits.sum(axis=1) / np.maximum(totals.sum(axis=1), 1)
    spread = float(np.std(each, ddof=1) / math.sqrt(sampled)) if sampled > 1 else math.nan
    seen = totals.sum(axis=0) > 0
    by_hour = hits.sum(axis=0)[seen] / totals.sum(axis=0)[seen]
    overall = float(hits.sum() / totals.sum())
    return Day(replicas, sampled, int(totals.sum()), overall, spread, float(by_hour.min()), share)


def _within(served: Served, targets: Sequence[Target]) -> npt.NDArray[np.bool_]:
    """Which requests are within every limit; a request without the metric (one token has no TPOT) does not break it."""
    good = np.ones(served.sent_s.size, dtype=np.bool_)
    for target in targets:
        values = getattr(served, f"{target.metric}_s")
        good &= ~(values > target.limit_s)
    return good
