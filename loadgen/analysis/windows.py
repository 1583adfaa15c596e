"""Which requests and which moments a stage measures, and how many requests were in flight during them.

Knows: the stage's window, the rule of membership, overlaps with the window. Must not know: metrics, statistics, limits.
Why: every figure of a stage must be about the same requests and the same stretch of time, decided in one place.

Rules. A request belongs to the window in which it was scheduled (open loop) or sent (closed loop); warm-up and load
that the engine kept up outside the window do not. Rates and the number in flight are about the window's *time*: they
count whatever the stage's requests did inside it, whichever request did it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadgen.analysis.frame import Requests
from loadgen.analysis.stats import MAX_BLOCKS, Floats, Ints
from loadgen.model import StageInfo

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Window:
    """The measured part of one stage. `start_ns`/`end_ns` are NaN when nothing was ever sent."""

    info: StageInfo
    start_ns: float
    end_ns: float
    open_loop: bool
    rows: Ints  # requests that are measured, in the order of the frame
    stage_rows: Ints  # all requests of the stage: their events count for rates by their own stamps
    interrupted: bool

    @property
    def seconds(self) -> float:
        """Length; NaN when there is none."""
        length = (self.end_ns - self.start_ns) / 1e9
        return length if length > 0.0 else math.nan

    @property
    def unsent(self) -> int:
        """Requests that the server was owed and never got. What an interruption left unsent, it was not owed."""
        return 0 if self.interrupted else self.info.unsent

    @property
    def offered(self) -> int:
        """Requests that the load plan put into the window: those sent, and those that never were."""
        return len(self.rows) + self.unsent


def window_of(info: StageInfo, requests: Requests) -> Window:
    """Apply the rules of membership to one stage."""
    of_stage = requests.stage == info.stage
    open_loop = info.load.kind != "concurrency"
    stage_rows = np.flatnonzero(of_stage)
    member = of_stage & ~requests.has("warmup") & ~requests.has("after_window")
    start, end = _limits(info, requests, np.flatnonzero(member), stage_rows)
    if info.duration_ns is not None and not math.isnan(start):
        key = requests.scheduled_ns if open_loop else _begun(requests)
        # A later turn of a session has no schedule of its own: it stays in the window of its first turn.
        member &= np.isnan(key) | ((key >= start) & (key < start + info.duration_ns))
    return Window(info, start, end, open_loop, np.flatnonzero(member), stage_rows, info.stopped is not None)


def _begun(requests: Requests) -> Floats:
    return np.where(np.isnan(requests.sent_ns), requests.dispatched_ns, requests.sent_ns)


def _limits(info: StageInfo, requests: Requests, members: Ints, stage_rows: Ints) -> tuple[float, float]:
    """The window as the engine stored it; where a killed run left it open, as far as the stored requests reach."""
    begun = _begun(requests)[members]
    start = float(info.window_start_ns) if info.window_start_ns is not None else _extreme(np.min, begun)
    if info.window_end_ns is not None:
        return start, float(info.window_end_ns)
    end = _extreme(np.max, requests.end_ns[stage_rows])
    return start, min(end, start + info.duration_ns) if info.duration_ns is not None else end


def _extreme(function: Callable[[Floats], np.float64], values: Floats) -> float:
    kept = values[~np.isnan(values)]
    return float(function(kept)) if len(kept) else math.nan


# -- requests in flight ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Flight:
    """Requests in flight over the window. `in_flight` = `waiting` + `streaming` in every block, exactly.

    Each array holds request-seconds for each of the equal time blocks of the window; `seconds` is a block's length.
    """

    waiting: Floats
    streaming: Floats
    seconds: float
    peak: int
    full_s: float  # how long `peak` was held

    @property
    def in_flight(self) -> Floats:
        """Request-seconds for each block."""
        return self.waiting + self.streaming


def flight(window: Window, sent_ns: Floats, first_ns: Floats, last_ns: Floats) -> Flight | None:
    """Overlap of each request's flight with the window. Arrays over the stage's requests that were sent.

    `first_ns` is the first token (NaN: never), `last_ns` the end of the flight.
    """
    if math.isnan(window.seconds):
        return None
    edges = np.linspace(window.start_ns, window.end_ns, MAX_BLOCKS + 1)
    turn = np.where(np.isnan(first_ns), last_ns, np.minimum(first_ns, last_ns))
    waiting = _overlap(sent_ns, turn, edges)
    streaming = _overlap(turn, last_ns, edges)
    peak, full_s = _peak(sent_ns, last_ns, window.start_ns, window.end_ns)
    return Flight(waiting, streaming, window.seconds / MAX_BLOCKS, peak, full_s)


def _overlap(begin: Floats, end: Floats, edges: Floats) -> Floats:
    """Total seconds of the intervals [begin, end) that fall into each [edges[i], edges[i + 1])."""
    # The total length of all intervals to the left of x is sum(max(x - begin, 0)) - sum(max(x - end, 0)).
    left = _ramp(begin, edges) - _ramp(end, edges)
    return np.maximum(np.diff(left), 0.0) / 1e9


def _ramp(starts: Floats, at: Floats) -> Floats:
    ordered = np.sort(starts)
    sums = np.concatenate(([0.0], np.cumsum(ordered - at[0])))
    count = np.searchsorted(ordered, at, side="right")
    result: Floats = count * (at - at[0]) - sums[count]
    return result


def _peak(begin: Floats, end: Floats, low: float, high: float) -> tuple[int, float]:
    """Most intervals [begin, end) that overlap at one moment of [low, high), and for how many seconds they did."""
    inside = (end > low) & (begin < high) & (end > begin)
    begin, end = np.clip(begin[inside], low, high), np.clip(end[inside], low, high)
    if len(begin) == 0:
        return 0, 0.0
    moments = np.concatenate((end, begin))  # a stable sort puts ends before begins of the same moment
    steps = np.concatenate((np.full(len(end), -1), np.ones(len(begin), dtype=np.int64)))
    order = np.argsort(moments, kind="stable")
    level, moments = np.cumsum(steps[order]), moments[order]
    peak = int(level.max())
    held = np.diff(np.append(moments, high))[level == peak]
    return peak, float(held.sum()) / 1e9
