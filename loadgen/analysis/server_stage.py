"""One stage as the server saw it, beside what the client saw of the same stretch of time.

Knows: which moments of the server's counters enclose a stage, and which of the client's events lie between the same
moments. Must not know: what is worth a finding, file formats.
Why: a server's counter and a client's count agree only over one and the same stretch, so both are taken here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadgen.analysis.frame import Requests
from loadgen.analysis.measured import Measured, RowFacts
from loadgen.analysis.server import Column, ServerLog, added
from loadgen.analysis.server_names import COUNTS_AT_FINISH
from loadgen.analysis.stats import Floats
from loadgen.analysis.windows import Mask

_STEP_TOKENS = 2.0  # generated, but not yet received, of a stream at any moment


@dataclass(frozen=True, slots=True)
class Grown:
    """What a counter grew by between two of its moments (ns from the run's start)."""

    begin_ns: float
    end_ns: float
    amount: float

    @property
    def seconds(self) -> float:
        """Length of the stretch."""
        return (self.end_ns - self.begin_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Count:
    """The client's count over a stretch, and by how much the server's may differ for what was in flight at its ends."""

    amount: float
    slack: float


@dataclass(frozen=True)
class Client:
    """Every request of a run as moments (ns from the run's start), whichever stage or none it belongs to.

    `last_ns` is the last token event, or the end of a request without one; NaN where it was never sent.
    """

    requests: Requests
    facts: RowFacts

    @cached_property
    def sent_ns(self) -> Floats:
        return np.rint(self.requests.sent_ns / 1e3) * 1e3

    @cached_property
    def first_ns(self) -> Floats:
        return self.sent_ns + self.facts.first_us * 1e3

    @cached_property
    def last_ns(self) -> Floats:
        last = self.sent_ns + self.facts.last_us * 1e3
        return np.where(np.isnan(last), self.requests.end_ns, last)

    @cached_property
    def tokens(self) -> Floats:
        """Output tokens of each request: the server's own count where it gave one."""
        counted = self.requests.output_tokens
        return np.where(np.isnan(counted), self.facts.tokens, counted)

    def crossing(self, moment_ns: float) -> Mask:
        """Requests that were in flight at a moment."""
        return (self.sent_ns <= moment_ns) & (self.last_ns > moment_ns)

    def streamed_until(self, row: int, moment_ns: float) -> float:
        """Tokens of one request that had come by a moment."""
        low, high = self.requests.event_offset[row], self.requests.event_offset[row + 1]
        came_us = np.cumsum(self.requests.gap_us[low:high], dtype=np.int64)
        return float(self.requests.tokens_of(row)[came_us * 1e3 + self.sent_ns[row] <= moment_ns].sum())

    def output(self, over: Grown, at_finish: bool) -> Count:
        """Output tokens that came in a stretch. `at_finish`: the server counts those of a request when it ends."""
        inside = (self.sent_ns > over.begin_ns) & (self.last_ns <= over.end_ns)
        amount, slack = float(self.tokens[inside].sum()), 0.0
        begins, ends = self.crossing(over.begin_ns), self.crossing(over.end_ns)
        for row in np.flatnonzero(begins | ends).tolist():
            before = self.streamed_until(row, over.begin_ns) if begins[row] else 0.0
            until = self.streamed_until(row, over.end_ns) if ends[row] else float(self.tokens[row])
            amount += until - before
            if at_finish:
                slack += before + (until if ends[row] else 0.0)
            else:
                slack += _STEP_TOKENS * (float(begins[row]) + float(ends[row]))
        # A request that was given up may have been generated to its end for nobody.
        touched = (self.last_ns > over.begin_ns) & (self.sent_ns <= over.end_ns) & ~self.requests.is_ok
        lost = self.requests.output_tokens_requested[touched] - self.facts.tokens[touched]
        return Count(amount, slack + float(np.nansum(np.maximum(lost, 0.0))))

    def prompts(self, over: Grown) -> Count:
        """Prompt tokens of the requests whose first token came in a stretch."""
        size = np.fmax(np.nan_to_num(self.requests.prompt_tokens), self.requests.prompt_tokens_requested)
        answered = (self.first_ns > over.begin_ns) & (self.first_ns <= over.end_ns)
        sent = (self.sent_ns <= over.end_ns) & (self.last_ns > over.begin_ns)
        unsure = (
            (sent & np.isnan(self.first_ns)) | self._prefilled_over(over.begin_ns) | self._prefilled_over(over.end_ns)
        )
        return Count(float(np.nansum(size[answered])), float(np.nansum(size[unsure])))

    def _prefilled_over(self, moment_ns: float) -> Mask:
        return (self.sent_ns <= moment_ns) & (self.first_ns > moment_ns)

    def in_flight(self, moments_ns: Floats) -> Floats:
        """Requests in flight at each moment."""
        begun = np.sort(self.sent_ns[~np.isnan(self.sent_ns)])
        ended = np.sort(self.last_ns[~np.isnan(self.sent_ns) & ~np.isnan(self.last_ns)])
        count = np.searchsorted(begun, moments_ns, side="right") - np.searchsorted(ended, moments_ns, side="right")
        return count.astype(np.float64)


@dataclass(frozen=True)
class ServerStage:
    """What the server's series say about one stage."""

    log: ServerLog
    client: Client
    m: Measured

    @cached_property
    def bounds_ns(self) -> tuple[float, float]:
        """From before the first request of the stage to after its last; the window where that is not known."""
        info, window = self.m.info, self.m.window
        begin = window.start_ns if info.start_ns is None else float(info.start_ns)
        return begin, window.end_ns if info.end_ns is None else float(info.end_ns)

    @property
    def at_finish(self) -> bool:
        """Whether this server counts the tokens of a request only when it ends."""
        return bool(self.log.engines & COUNTS_AT_FINISH)

    def column(self, name: str) -> Column | None:
        """A series, if it was read at all."""
        return self.log.columns.get(name)

    def gauge(self, name: str) -> Floats:
        """The values of a gauge inside the window; empty without any."""
        column = self.column(name)
        window = self.m.window
        return np.empty(0) if column is None else column.within(window.start_ns, window.end_ns)

    def grown(self, name: str) -> Grown | None:
        """What a counter grew by over the stage; None where it was not read twice, or the server was started anew."""
        column, (low, high) = self.column(name), self.bounds_ns
        ends = None if column is None or math.isnan(low) or math.isnan(high) else column.around(low, high)
        if column is None or ends is None:
            return None
        first, last = ends
        steps = added(column.values[first : last + 1])
        if np.isnan(steps).any() or column.t_ns[first] > high or column.t_ns[last] < low:
            return None
        return Grown(float(column.t_ns[first]), float(column.t_ns[last]), float(steps.sum()))

    def mean(self, name: str) -> float | None:
        """The mean of the values that a histogram got over the stage, in seconds."""
        total, count = self.grown(f"{name}_sum"), self.grown(f"{name}_count")
        return total.amount / count.amount if total is not None and count is not None and count.amount > 0.0 else None

    def share(self, over: str, under: str) -> float | None:
        """What one counter grew by in relation to another."""
        part, whole = self.grown(over), self.grown(under)
        return part.amount / whole.amount if part is not None and whole is not None and whole.amount > 0.0 else None

    def energy(self) -> Grown | None:
        """Joules of the GPUs over the stage: by their counter, else mean power times length."""
        counted = self.grown("gpu_energy_j")
        power = self.gauge("gpu_power_w")
        if counted is not None or len(power) == 0:
            return counted
        begin, end = self.m.window.start_ns, self.m.window.end_ns
        return Grown(begin, end, float(power.mean()) * (end - begin) / 1e9)


def figures(stage: ServerStage) -> dict[str, float]:
    """The stage in the server's figures, SI units; what was not told is not in it.

    Means and extremes of gauges over the window, counters and means of histograms over the stage.
    """
    found: dict[str, float | None] = {}
    for name in ("running", "waiting", "kv_usage", "gpu_utilization", "gpu_power_w", "spec_acceptance"):
        values = stage.gauge(name)
        if len(values):
            found |= {f"{name}_mean": float(values.mean()), f"{name}_max": float(values.max())}
    clock = stage.gauge("sm_clock_hz")
    found["sm_clock_hz_min"] = float(clock.min()) if len(clock) else None
    for name in ("generation_tokens", "prompt_tokens", "preemptions"):
        grown = stage.grown(name)
        found[name] = None if grown is None else grown.amount
    tokens = stage.grown("generation_tokens")
    found["client_generation_tokens"] = None if tokens is None else stage.client.output(tokens, stage.at_finish).amount
    found |= {f"server_{name}": stage.mean(name) for name in ("ttft_s", "itl_s", "queue_s")}
    found["prefix_hit_share"] = stage.share("prefix_hits", "prefix_queries")
    accepted = stage.share("spec_accepted", "spec_drafted")
    found |= {"spec_acceptance_mean": accepted} if accepted is not None else {}
    energy = stage.energy()
    if energy is not None:
        output = stage.client.output(energy, at_finish=False).amount
        ends = stage.client.last_ns[stage.client.requests.is_ok]
        done = int(np.count_nonzero((ends > energy.begin_ns) & (ends <= energy.end_ns)))
        found["energy_j"] = energy.amount
        found["energy_per_output_token_j"] = energy.amount / output if output else None
        found["energy_per_request_j"] = energy.amount / done if done else None
    return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}
