"""One pass over the token events of a stage: exact tallies of gaps, token counts by time, block histograms.

Knows: the compressed event columns of the frame. Must not know: which metric needs what, limits, units of display.
Why: a run may hold tens of millions of events. They are read once, a part at a time, as the 4-byte gaps that they
are stored in; what remains is small (counts by value, sums by block), and every statistic comes from that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis import stats
from loadgen.analysis.frame import Requests
from loadgen.analysis.stats import MAX_BLOCKS, Estimate, Floats, Ints, Resampler
from loadgen.analysis.windows import Mask, Window

Numbers = npt.NDArray[np.integer[Any]] | Floats

CHUNK_EVENTS = 1 << 16  # what a core's cache and the allocator hold: four times as many take twice as long
_EXACT_US = 1 << 21  # gaps below this are counted one by one in an array, the few longer ones in a list
_FINE_BITS = 9  # 512 histogram bins for each factor of two; only bounds come from them, points are exact
_BIN_OF_ONE = 1023 << _FINE_BITS
_TOKEN_BITS = 20
_USUAL = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Tally:
    """A multiset of numbers: distinct `values` in ascending order, and how often each occurs."""

    values: Floats
    counts: Ints

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    def quantile(self, q: float, worst: int = 0) -> float:
        """Exact quantile by numpy's linear rule, as if `worst` more values of +infinity stood at the end."""
        n = self.n + worst
        if n == 0:
            return math.nan
        position = q * (n - 1)
        rank = min(int(position), n - 1)
        cumulative = np.cumsum(self.counts)
        pair = np.searchsorted(cumulative, [rank, min(rank + 1, n - 1)], side="right")
        here, after = (float(self.values[i]) if i < len(self.values) else math.inf for i in pair)
        return stats.quantile_sorted(np.array([here, after]), position - rank)

    def mean(self) -> float:
        """Arithmetic mean; NaN of nothing."""
        return float(self.values @ self.counts) / self.n if self.n else math.nan


def tally(values: Numbers, counts: Numbers) -> Tally:
    """Sort and merge values that occur more than once."""
    distinct, where = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True)
    return Tally(distinct, np.bincount(where, weights=counts, minlength=len(distinct)).astype(np.int64))


@dataclass(slots=True)
class Blocks:
    """Values over time: for each time block (row) the count in each fine bin that holds any, and what is behind the
    mean."""

    bins: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # ascending
    histogram: Floats = field(default_factory=lambda: np.zeros((MAX_BLOCKS, 0)))  # a column for each of them
    counts: Floats = field(default_factory=lambda: np.zeros(MAX_BLOCKS))  # values in each block
    sums: Floats = field(default_factory=lambda: np.zeros(MAX_BLOCKS))
    draws: dict[float, Floats] = field(default_factory=dict)  # of each quantile that was asked for

    def add(self, block: Ints, micros: Numbers, weights: Floats | None) -> None:
        """Count values (microseconds) of these blocks, each `weights` times."""
        if len(micros) == 0:
            return
        bins = _bin(micros)
        lowest = int(bins.min())
        wide = int(bins.max()) - lowest + 1
        flat = np.bincount(block * wide + (bins - lowest), weights=weights, minlength=MAX_BLOCKS * wide)
        counted = flat.reshape(MAX_BLOCKS, wide)
        used = np.flatnonzero(counted.any(axis=0))
        self._merge(used + lowest, counted[:, used])
        weighted = micros if weights is None else micros * weights
        self.sums += np.bincount(block, weights=weighted, minlength=MAX_BLOCKS) / 1e6

    def _merge(self, bins: Ints, counted: npt.NDArray[Any]) -> None:
        both = np.union1d(self.bins, bins)
        if len(both) > len(self.bins):
            wider = np.zeros((MAX_BLOCKS, len(both)))
            wider[:, np.searchsorted(both, self.bins)] = self.histogram
            self.bins, self.histogram = both, wider
        self.histogram[:, np.searchsorted(both, bins)] += counted
        self.counts += counted.sum(axis=1)

    def coarse(self, per_octave: int) -> tuple[Floats, Floats]:
        """For drawing: counts [time blocks, bins] in `per_octave` (a power of two) bins for each factor of two, and the
        lower edge of each bin in seconds, one more than there are bins."""
        width = (1 << _FINE_BITS) // per_octave
        lowest, place = (int(self.bins[0]) // width, self.bins // width) if len(self.bins) else (0, self.bins)
        wide = int(place[-1]) - lowest + 1 if len(place) else 0
        found = np.zeros((MAX_BLOCKS, wide))
        if wide:
            starts = np.flatnonzero(np.diff(place, prepend=-1))
            found[:, place[starts] - lowest] = np.add.reduceat(self.histogram, starts, axis=1)
        return found, _edge((lowest + np.arange(wide + 1)) * width) / 1e6

    def mean(self, resampler: Resampler, tail: float) -> Estimate:
        """Mean in seconds, with block-bootstrap bounds."""
        return stats.ratio_of_sums(self.sums, self.counts, resampler, n=round(float(self.counts.sum())), tail=tail)

    def bounds(self, q: float, resampler: Resampler, tail: float) -> tuple[float, float]:
        """Block-bootstrap bounds of quantile `q`, in seconds; infinite where there are too few blocks."""
        size = stats.block_size(self.sums, self.counts)
        if q not in self.draws:
            self.draws |= self.drawn({q, *_USUAL} - self.draws.keys(), resampler, size)
        draws = self.draws[q]
        if len(draws) == 0:
            return -math.inf, math.inf
        wider = stats.widening(stats.join(self.sums, size), stats.join(self.counts, size), tail)
        middle, low, high = (stats.quantile(draws, at) for at in (0.5, tail, 1.0 - tail))
        return max(middle - (middle - low) * wider, 0.0), middle + (high - middle) * wider

    def drawn(self, qs: Collection[float], resampler: Resampler, size: int) -> dict[float, Floats]:
        """Quantiles (seconds) of each resample of the blocks, joined by `size`; empty where there are too few blocks.
        Several at once: the resampled histograms are the costly part."""
        joined = stats.join(self.histogram, size)
        if np.count_nonzero(joined.any(axis=1)) < stats.MIN_BLOCKS:
            return {q: np.zeros(0) for q in qs}
        cumulative = np.cumsum(resampler.weights(len(joined)) @ joined, axis=1)
        low, high = _edge(self.bins), _edge(self.bins + 1)
        return {q: stats.bin_quantiles(cumulative, low, high, q) / 1e6 for q in qs}


@dataclass(slots=True)
class Events:
    """What the pass leaves. Times in seconds."""

    tokens: Floats  # output tokens for each time block of the window, by their own stamps, of every request
    events_in_window: int
    peak_tokens_per_s: float  # over equal slices of the window, each at least a second long
    gap: Tally  # chunk gaps of the successful measured requests
    gap_blocks: Blocks
    itl: Tally  # gap / tokens of the later event, each as often as it has tokens
    itl_blocks: Blocks
    several: float  # share of later events that hold several tokens; NaN without any


class _Counter:
    """Counts whole microseconds exactly: short ones in an array, the few long ones in a list."""

    def __init__(self) -> None:
        self.short = np.zeros(1024, dtype=np.int64)
        self.long: list[Numbers] = []

    def add(self, micros: npt.NDArray[np.integer[Any]]) -> None:
        short = micros < _EXACT_US
        if not short.all():
            self.long.append(micros[~short].copy())
            micros = micros[short]
        counts = np.bincount(micros)
        if len(counts) > len(self.short):
            self.short = np.pad(self.short, (0, len(counts) - len(self.short)))
        self.short[: len(counts)] += counts

    def tally(self) -> Tally:
        """In seconds."""
        used = np.flatnonzero(self.short)
        late = np.concatenate(self.long) if self.long else np.zeros(0)
        values, counts = np.unique(late, return_counts=True)
        return Tally(np.concatenate((used, values)) / 1e6, np.concatenate((self.short[used], counts)))


class _Scan:
    """The sums while the pass runs."""

    def __init__(self, window: Window, span_us: tuple[float, float]) -> None:
        self.window_us = (window.start_ns / 1e3, (window.end_ns - window.start_ns) / 1e3)
        self.span_us = (span_us[0], max(span_us[1] - span_us[0], 1.0))
        self.tokens = np.zeros(MAX_BLOCKS)
        self.by_slice = np.zeros(1 if math.isnan(window.seconds) else max(int(window.seconds), 1))
        self.events_in_window = 0
        self.single, self.whole = _Counter(), _Counter()
        self.gap_blocks, self.itl_blocks = Blocks(), Blocks()
        self.shared: list[Tally] = []
        self.later = self.later_several = 0

    def rates(self, stamps_us: Floats, tokens: Floats | None) -> None:
        """Tokens by time, for the rates."""
        place = (stamps_us - self.window_us[0]) / self.window_us[1]
        inside = (place >= 0.0) & (place <= 1.0)
        if not inside.all():
            place, tokens = place[inside], None if tokens is None else tokens[inside]
        self.events_in_window += len(place)
        for sums in (self.tokens, self.by_slice):
            index = np.minimum((place * len(sums)).astype(np.int64), len(sums) - 1)
            sums += np.bincount(index, weights=tokens, minlength=len(sums))

    def gaps(self, part: _Part) -> None:
        """Gaps between consecutive events, with the stamp of the later one."""
        self.later += len(part.gaps_us)
        self.whole.add(part.gaps_us)
        self.gap_blocks.add(self._block(part.stamps_us), part.gaps_us, None)

    def itls(self, part: _Part, tokens: Floats) -> None:
        """The same gaps shared out over the tokens of the later event."""
        alone = tokens == 1
        self.single.add(part.gaps_us[alone])
        some, shares = part.gaps_us[~alone].astype(np.int64), tokens[~alone].astype(np.int64)
        keys, times = np.unique((some << _TOKEN_BITS) | shares, return_counts=True)
        each = keys & ((1 << _TOKEN_BITS) - 1)
        self.shared.append(Tally((keys >> _TOKEN_BITS) / each / 1e6, times * each))
        self.itl_blocks.add(self._block(part.stamps_us), part.gaps_us / tokens, tokens)

    def _block(self, stamps_us: Floats) -> Ints:
        place = (stamps_us - self.span_us[0]) * (MAX_BLOCKS / self.span_us[1])
        return np.clip(place.astype(np.int64), 0, MAX_BLOCKS - 1)

    def result(self, window: Window, has_tokens: bool) -> Events:
        gap = itl = self.whole.tally()
        if has_tokens:
            parts = [self.single.tally(), *self.shared]
            itl = tally(np.concatenate([t.values for t in parts]), np.concatenate([t.counts for t in parts]))
        return Events(
            self.tokens,
            self.events_in_window,
            float(self.by_slice.max()) * len(self.by_slice) / window.seconds,
            gap,
            self.gap_blocks,
            itl,
            self.itl_blocks if has_tokens else self.gap_blocks,
            self.later_several / self.later if self.later else math.nan,
        )


def scan(
    requests: Requests, window: Window, good: Mask, span_ns: tuple[float, float], *, chunk_events: int = CHUNK_EVENTS
) -> Events:
    """Read every event of the stage once.

    `good` marks, over all rows of the frame, the requests whose gaps are measured (in the window, successful,
    streamed), `span_ns` the time from their first send to their last event; the events of all rows of the stage count
    for rates. An answer without events (not streamed) counts for rates with its tokens at its end.
    """
    in_stage = np.zeros(len(requests), dtype=np.bool_)
    in_stage[window.stage_rows] = True
    state = _Scan(window, (span_ns[0] / 1e3, span_ns[1] / 1e3))
    whole = in_stage & requests.is_ok & (np.diff(requests.event_offset) == 0) & (requests.output_tokens > 0)
    if not math.isnan(window.seconds):
        state.rates(requests.end_ns[whole] / 1e3, requests.output_tokens[whole])
    for part in _chunks(requests, in_stage, chunk_events):
        if not math.isnan(window.seconds):
            state.rates(part.stamps_us, part.tokens)
        part.keep(good[part.owner] & ~part.first)
        part.gaps_us = np.maximum(part.gaps_us, 0)  # kernel stamps of two cores may cross by a microsecond
        state.gaps(part)
        if part.tokens is not None:
            state.later_several += int(np.count_nonzero(part.tokens > 1))
            part.fold_empty()
            state.itls(part, part.tokens)
    return state.result(window, requests.event_tokens is not None)


@dataclass(slots=True)
class _Part:
    """Some consecutive events: which row owns each, whether it is the row's first, its stamp, gap and tokens."""

    owner: Ints
    first: Mask
    stamps_us: Floats
    gaps_us: npt.NDArray[np.integer[Any]]
    tokens: Floats | None

    def keep(self, mask: Mask) -> None:
        if mask.all():
            return
        self.owner, self.first, self.stamps_us = self.owner[mask], self.first[mask], self.stamps_us[mask]
        self.gaps_us = self.gaps_us[mask]
        self.tokens = None if self.tokens is None else self.tokens[mask]

    def fold_empty(self) -> None:
        """An event without a whole token (a part of a character) has no token to share its gap with: the time belongs
        to the next event of the request that completes one. What follows the last token belongs to none."""
        if self.tokens is None or self.tokens.all():
            return
        full: Mask = self.tokens > 0
        group: Ints = np.cumsum(full) - full  # events up to and including a full one share a number
        # ... but not across requests: an owner change starts a new group.
        changed = np.concatenate(([False], self.owner[1:] != self.owner[:-1]))
        number = np.cumsum(np.concatenate(([False], np.diff(group) > 0)) | changed)
        sums = np.bincount(number, weights=self.gaps_us)
        self.gaps_us = sums[number].astype(np.int64)
        self.keep(full)


def _chunks(requests: Requests, in_stage: Mask, chunk_events: int) -> Iterator[_Part]:
    """Events of the stage's rows, whole rows at a time, about `chunk_events` of them."""
    offset = requests.event_offset
    rows = np.flatnonzero(in_stage & (np.diff(offset) > 0))
    if len(rows) == 0:
        return
    ends = np.cumsum(np.diff(offset)[rows])
    cuts = np.searchsorted(ends, np.arange(chunk_events, ends[-1] + chunk_events, chunk_events), side="left") + 1
    for some in np.split(rows, np.unique(np.minimum(cuts, len(rows)))[:-1]):
        low, high = int(some[0]), int(some[-1]) + 1
        lengths = np.diff(offset[low : high + 1])
        gaps = requests.gap_us[offset[low] : offset[high]]
        ran = np.cumsum(gaps, dtype=np.float64)
        before = np.concatenate(([0.0], ran))[offset[low:high] - offset[low]]
        sent = np.rint(requests.sent_ns[low:high] / 1e3)
        part = _Part(
            np.repeat(np.arange(low, high), lengths),
            np.zeros(len(gaps), dtype=np.bool_),
            ran + np.repeat(sent - before, lengths),
            gaps,
            _tokens(requests, int(offset[low]), int(offset[high])),
        )
        part.first[offset[low:high][lengths > 0] - offset[low]] = True
        if high - low != len(some):
            part.keep(in_stage[part.owner])
        yield part


def _tokens(requests: Requests, low: int, high: int) -> Floats | None:
    return None if requests.event_tokens is None else requests.event_tokens[low:high].astype(np.float64)


def _bin(micros: Numbers) -> Ints:
    """Fine bin of each value >= 0 in microseconds: the leading bits of value + 1 as a binary float, 0.2 % wide."""
    bits = (np.asarray(micros, dtype=np.float64) + 1.0).view(np.int64)
    bins: Ints = np.maximum((bits >> (52 - _FINE_BITS)) - _BIN_OF_ONE, 0)
    return bins


def _edge(bins: Ints) -> Floats:
    """Lower edge of a fine bin, in microseconds."""
    result: Floats = ((bins + _BIN_OF_ONE) << (52 - _FINE_BITS)).view(np.float64) - 1.0
    return result
