"""Histograms that can be added up: what a run shows of itself while it goes on, however many processes it has.

Knows: fixed buckets, how an exchange falls into them, how two tallies become one. Must not know: processes, pages,
and the figures of the report, which come from the stamps alone.
Why: several workers cannot send every stamp to one place while they measure, but counts in fixed buckets can be summed.
A percentile read from them is off by at most half a bucket: ERROR_SHARE of its value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loadgen.model import Exchange

_PER_DECADE = 20
BOUNDS_S: NDArray[np.float64] = 10.0 ** (
    np.arange(-4 * _PER_DECADE, 3 * _PER_DECADE + 1) / _PER_DECADE
)  # 0.1 ms to 1000 s
ERROR_SHARE = float(10.0 ** (0.5 / _PER_DECADE) - 1.0)
# The boundaries that OpenTelemetry's GenAI conventions recommend for token counts.
BOUNDS_TOKENS: NDArray[np.float64] = np.power(4.0, np.arange(14, dtype=np.float64))


@dataclass(slots=True)
class Histogram:
    """Counts of values up to each bound, one more for what is beyond the last; `total` is the sum of the values."""

    bounds: NDArray[np.float64]
    counts: NDArray[np.int64]
    total: float = 0.0

    @classmethod
    def over(cls, bounds: NDArray[np.float64]) -> Histogram:
        return cls(bounds, np.zeros(len(bounds) + 1, np.int64))

    def add(self, values: NDArray[np.float64]) -> None:
        """Count values; NaN is left out."""
        values = values[~np.isnan(values)]
        if values.size:
            self.counts += np.bincount(np.searchsorted(self.bounds, values), minlength=len(self.counts))
            self.total += float(values.sum())

    def merge(self, other: Histogram) -> None:
        """Add another histogram over the same bounds."""
        self.counts += other.counts
        self.total += other.total

    def quantile(self, q: float) -> float:
        """The q-quantile, at most half a bucket off (in logs); NaN without a value, the last bound beyond it."""
        n = int(self.counts.sum())
        if n == 0:
            return float("nan")
        at = int(np.searchsorted(np.cumsum(self.counts), max(1, np.ceil(q * n))))
        if at == 0 or at == len(self.bounds):
            return float(self.bounds[min(at, len(self.bounds) - 1)])
        return float(np.sqrt(self.bounds[at - 1] * self.bounds[at]))


def _seconds() -> Histogram:
    return Histogram.over(BOUNDS_S)


def _tokens() -> Histogram:
    return Histogram.over(BOUNDS_TOKENS)


@dataclass(slots=True)
class Tally:
    """What has been seen so far, warm-up left out. `duration` holds a histogram for each error kind, "" for success."""

    ttft: Histogram = field(default_factory=_seconds)
    gap: Histogram = field(default_factory=_seconds)
    prompt: Histogram = field(default_factory=_tokens)
    output: Histogram = field(default_factory=_tokens)
    duration: dict[str, Histogram] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, exchange: Exchange) -> None:
        """Count one finished request."""
        if exchange.warmup:
            return
        self.outcomes[exchange.outcome] += 1
        kind = "" if exchange.failure is None else exchange.failure.kind
        ended = exchange.event_ns[-1] if exchange.event_ns else exchange.end_ns
        if exchange.sent_ns is None:
            return
        if ended is not None:
            took = np.array([(ended - exchange.sent_ns) / 1e9])
            self.duration.setdefault(kind, _seconds()).add(took)
        if exchange.outcome != "ok":
            return
        stamps = np.array([exchange.sent_ns, *exchange.event_ns], np.float64)
        gaps = np.diff(stamps) / 1e9
        self.ttft.add(gaps[:1])
        self.gap.add(gaps[1:])
        for histogram, tokens in ((self.prompt, exchange.prompt_tokens), (self.output, exchange.output_tokens)):
            if tokens is not None:
                histogram.add(np.array([tokens], np.float64))


def merged(tallies: Iterable[Tally]) -> Tally:
    """The tally of all; none of the given ones is changed."""
    whole = Tally()
    for one in tallies:
        for mine, other in ((whole.ttft, one.ttft), (whole.gap, one.gap)):
            mine.merge(other)
        for mine, other in ((whole.prompt, one.prompt), (whole.output, one.output)):
            mine.merge(other)
        for kind, histogram in one.duration.items():
            whole.duration.setdefault(kind, _seconds()).merge(histogram)
        whole.outcomes.update(one.outcomes)
    return whole
