"""One stage, ready for arithmetic: the stamps of its measured requests as columns, its events and flights, once.

Knows: how durations follow from stored stamps and gaps. Must not know: the names and formulas of metrics, limits.
Why: every metric, gate, finding and convention of a stage reads the same columns, so they cannot disagree.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis import gaps, windows
from loadgen.analysis.frame import Requests
from loadgen.analysis.gaps import Events
from loadgen.analysis.stats import MAX_BLOCKS, Estimate, Floats, Ints, Resampler
from loadgen.analysis.windows import Flight, Mask, Window
from loadgen.model import StageInfo


@dataclass(frozen=True, slots=True)
class Columns:
    """Requests as arrays of one length: stamps in ns from the run's start, counts in tokens, NaN where there is none.

    `first_ns`/`last_ns` are the first and last token events, `streamed` the output tokens that events carried.
    """

    rows: Ints
    ok: Mask
    streamed_ok: Mask  # ok, and the answer came as a stream
    missed: Mask  # failed, cancelled: ranks behind every success
    scheduled_ns: Floats
    ready_ns: Floats
    dispatched_ns: Floats
    connect_start_ns: Floats
    connected_ns: Floats
    sent_ns: Floats
    end_ns: Floats
    answer_ns: Floats
    first_ns: Floats
    last_ns: Floats
    max_gap_s: Floats
    events: Ints
    streamed: Floats
    first_tokens: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    reasoning_tokens: Floats
    cached_tokens: Floats
    repeated_tokens: Floats  # planned; NaN: not known
    prompt_requested: Floats
    output_requested: Floats
    shared_events: Floats
    shared_wait_ns: Floats

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, mask: Mask) -> Columns:
        """The requests where `mask` is true."""
        return Columns(*(getattr(self, name)[mask] for name in self.__dataclass_fields__))


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What the events of each row of the frame add up to. One vectorised pass, made once for all stages."""

    events: Ints
    first_us: Floats  # first event from `sent`; NaN without events
    last_us: Floats  # last event from `sent`; NaN without events
    max_gap_s: Floats  # NaN with fewer than two events
    tokens: Floats  # streamed output tokens
    first_tokens: Floats  # tokens of the first event; NaN without events


def row_facts(requests: Requests) -> RowFacts:
    """Fold the events of each row."""
    offset, gap_us = requests.event_offset, requests.gap_us
    events = np.diff(offset)
    has, several = events > 0, events > 1
    first, last, worst, first_tokens = (np.full(len(events), np.nan) for _ in range(4))
    begins = offset[:-1][has]
    tokens = events.astype(np.float64)
    if len(begins):
        first[has] = gap_us[begins]
        last[has] = _sums(gap_us, begins)
        first_tokens[has] = 1.0
        if requests.event_tokens is not None:
            tokens[has] = _sums(requests.event_tokens, begins)
            first_tokens[has] = requests.event_tokens[begins]
    if several.any():
        # Pairs of bounds: every second segment is a row without its first event; a last bound at the end is cut off.
        bounds = np.stack((offset[:-1][several] + 1, offset[1:][several]), axis=1).ravel()
        bounds = bounds[:-1] if bounds[-1] == len(gap_us) else bounds
        worst[several] = np.maximum.reduceat(gap_us, bounds)[::2] / 1e6
    return RowFacts(events, first, last, worst, tokens, first_tokens)


def _sums(values: npt.NDArray[np.integer[Any]], begins: Ints) -> Ints:
    """Sum of each segment; the next one begins where a segment ends. Some rows at a time: a wider type copies."""
    found = np.empty(len(begins), dtype=np.int64)
    cuts = np.searchsorted(begins, np.arange(0, len(values), gaps.CHUNK_EVENTS)).tolist()
    for low, high in itertools.pairwise(sorted({*cuts, len(begins)})):
        end = begins[high] if high < len(begins) else len(values)
        found[low:high] = np.add.reduceat(values[begins[low] : end], begins[low:high] - begins[low], dtype=np.int64)
    return found


def columns(requests: Requests, facts: RowFacts, rows: Ints) -> Columns:
    """Take some rows of the frame."""
    ok = requests.is_ok[rows]
    events = facts.events[rows]
    sent_us = np.rint(requests.sent_ns[rows] / 1e3)
    return Columns(
        rows=rows,
        ok=ok,
        streamed_ok=ok & (events > 0) & ~requests.has("not_streamed")[rows] & ~np.isnan(sent_us),
        missed=~ok,
        scheduled_ns=requests.scheduled_ns[rows],
        ready_ns=requests.ready_ns[rows],
        dispatched_ns=requests.dispatched_ns[rows],
        connect_start_ns=requests.connect_start_ns[rows],
        connected_ns=requests.connected_ns[rows],
        sent_ns=sent_us * 1e3,
        end_ns=requests.end_ns[rows],
        answer_ns=requests.first_answer_ns[rows],
        first_ns=(sent_us + facts.first_us[rows]) * 1e3,
        last_ns=(sent_us + facts.last_us[rows]) * 1e3,
        max_gap_s=facts.max_gap_s[rows],
        events=events,
        streamed=facts.tokens[rows],
        first_tokens=facts.first_tokens[rows],
        prompt_tokens=requests.prompt_tokens[rows],
        output_tokens=requests.output_tokens[rows],
        reasoning_tokens=requests.reasoning_tokens[rows],
        cached_tokens=requests.cached_tokens[rows],
        repeated_tokens=requests.repeated_tokens[rows],
        prompt_requested=requests.prompt_tokens_requested[rows],
        output_requested=requests.output_tokens_requested[rows],
        shared_events=requests.shared_events[rows].astype(np.float64),
        shared_wait_ns=requests.shared_wait_ns[rows],
    )


@dataclass
class Measured:
    """A stage's window with everything computed from it, each thing once and only when asked for.

    `meets` says for each measured request whether it met every request-level limit (None: there is no such limit).
    """

    requests: Requests
    facts: RowFacts
    window: Window
    seed: int
    meets: Mask | None = None
    cache: dict[str, Floats] = field(default_factory=dict)  # sorted values of request metrics, by name
    estimates: dict[tuple[str, str, float], Estimate] = field(default_factory=dict)  # see definitions.estimate

    @property
    def info(self) -> StageInfo:
        return self.window.info

    @cached_property
    def all(self) -> Columns:
        """Every request of the stage, warm-up and continuation included."""
        return columns(self.requests, self.facts, self.window.stage_rows)

    @cached_property
    def columns(self) -> Columns:
        """The measured requests."""
        return self.all.where(np.isin(self.all.rows, self.window.rows, assume_unique=True))

    @cached_property
    def events(self) -> Events:
        """The one pass over the stage's events."""
        good = np.zeros(len(self.requests), dtype=np.bool_)
        mine = self.columns.where(self.columns.streamed_ok)
        good[mine.rows] = True
        span = (float(mine.sent_ns.min()), float(mine.last_ns.max())) if len(mine) else (0.0, 0.0)
        return gaps.scan(self.requests, self.window, good, span)

    @cached_property
    def flight(self) -> Flight | None:
        """Requests in flight: from `sent` to the last token event, or to the end of a request that failed."""
        sent = self.all.where(~np.isnan(self.all.sent_ns))
        last = np.where(sent.streamed_ok | np.isnan(sent.end_ns), sent.last_ns, sent.end_ns)
        return windows.flight(self.window, sent.sent_ns, sent.first_ns, np.where(np.isnan(last), sent.sent_ns, last))

    def block_counts(self, stamps_ns: Floats, weights: Floats | None = None) -> Floats:
        """How many of the stamps (or how much weight) fall into each time block of the window."""
        window = self.window
        place = (stamps_ns - window.start_ns) / (window.end_ns - window.start_ns)
        inside = (place >= 0.0) & (place <= 1.0)
        index = np.minimum((place[inside] * MAX_BLOCKS).astype(np.int64), MAX_BLOCKS - 1)
        chosen = None if weights is None else weights[inside]
        return np.bincount(index, weights=chosen, minlength=MAX_BLOCKS).astype(np.float64)

    @cached_property
    def resampler(self) -> Resampler:
        """The stage's bootstrap resamples: the same figures whatever is computed before them."""
        return Resampler((self.seed & 0xFFFFFFFF, self.info.stage))


def measure(info: StageInfo, requests: Requests, facts: RowFacts, seed: int) -> Measured:
    """Open one stage of a run."""
    return Measured(requests, facts, windows.window_of(info, requests), seed)
