"""The one table of metrics: name, unit, which way is better, formula, caveat, and the code that computes it.

Knows: every formula. Must not know: limits, severities, layout, other tools' formulas.
Why: the table is the executable form of the method. `loadgen explain`, the tooltips of the report, the README and every
figure come from it, so a text cannot promise what the code does not do.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadgen.analysis import stats
from loadgen.analysis.gaps import Blocks, Tally
from loadgen.analysis.measured import Columns, Measured
from loadgen.analysis.stats import MAX_BLOCKS, NOTHING, TABLE_TAIL, Estimate, Floats
from loadgen.errors import UsageError

Of = Literal["request", "gap", "stage"]
Better = Literal["lower", "higher", "neither"]

LATENCY = ("mean", "p50", "p90", "p95", "p99", "min", "max")
AMOUNT = (*LATENCY, "total")
MANY_SHARE = 0.05  # of events with several tokens; beyond it, percentiles of `itl` would invent gaps that nobody saw


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the table.

    `per_request` gives one SI value for each request (NaN: n/a); `per_stage` gives one statistic of a whole stage,
    with bounds that each miss with the given probability. Exactly one of them is set. An `optional` metric is left out
    of the tables of stages where it does not apply.
    """

    name: str
    unit: str
    better: Better
    of: Of
    formula: str
    caveat: str = ""
    stats: tuple[str, ...] = LATENCY
    per_request: Callable[[Columns], Floats] | None = None
    per_stage: Callable[[Measured, str, float], Estimate] | None = None
    optional: bool = False


def quantile_of(stat: str) -> float | None:
    """ "p99.9" -> 0.999; None for a statistic that is no percentile."""
    digits = stat[1:]
    if not stat.startswith("p") or not digits.replace(".", "", 1).isdigit():
        return None
    q = float(digits) / 100.0
    return q if 0.0 < q < 1.0 else None


# -- per request ------------------------------------------------------------------------------------------------------


def _seconds(later_ns: Floats, earlier_ns: Floats) -> Floats:
    return (later_ns - earlier_ns) / 1e9


def _streamed(c: Columns, values: Floats) -> Floats:
    """Only answers that came as a stream have moments inside them."""
    return np.where(c.streamed_ok, values, np.nan)


def _end_ns(c: Columns) -> Floats:
    """The last token event; for an answer that was not streamed, the end of the response."""
    return np.where(c.streamed_ok, c.last_ns, np.where(c.ok, np.fmax(c.end_ns, c.last_ns), np.nan))


def ttft(c: Columns) -> Floats:
    return _streamed(c, _seconds(c.first_ns, c.sent_ns))


def ttft_scheduled(c: Columns) -> Floats:
    return _streamed(c, _seconds(c.first_ns, c.scheduled_ns))


def time_to_first_answer(c: Columns) -> Floats:
    return _streamed(c, _seconds(c.answer_ns, c.sent_ns))


def e2e(c: Columns) -> Floats:
    return _seconds(_end_ns(c), c.sent_ns)


def e2e_scheduled(c: Columns) -> Floats:
    return _seconds(_end_ns(c), c.scheduled_ns)


def tpot(c: Columns) -> Floats:
    return _streamed(c, _over(_seconds(c.last_ns, c.first_ns), c.streamed - 1.0))


def tpot_after_first_event(c: Columns) -> Floats:
    return _streamed(c, _over(_seconds(c.last_ns, c.first_ns), c.streamed - c.first_tokens))


def max_gap(c: Columns) -> Floats:
    return _streamed(c, c.max_gap_s)


def schedule_delay(c: Columns) -> Floats:
    return _seconds(c.sent_ns, c.scheduled_ns)


def client_delay(c: Columns) -> Floats:
    return _seconds(c.dispatched_ns, np.fmax(c.scheduled_ns, c.ready_ns))


def connect(c: Columns) -> Floats:
    return _seconds(c.connected_ns, c.connect_start_ns)


def share_prefill(c: Columns) -> Floats:
    return _over(ttft(c), e2e(c))


def share_decode(c: Columns) -> Floats:
    return 1.0 - share_prefill(c)


def _over(top: Floats, bottom: Floats) -> Floats:
    """top / bottom; n/a where the bottom is not positive."""
    return np.divide(top, bottom, out=np.full(len(top), np.nan), where=bottom > 0.0)


# -- per stage --------------------------------------------------------------------------------------------------------


def values_of(m: Measured, metric: Metric) -> Floats:
    """A request metric of the successful measured requests, ascending, n/a left out."""
    if metric.name not in m.cache:
        assert metric.per_request is not None
        found = metric.per_request(m.columns)[m.columns.ok]
        m.cache[metric.name] = np.sort(found[~np.isnan(found)])
    return m.cache[metric.name]


def _of_sorted(ordered: Floats, stat: str, tail: float) -> Estimate:
    if len(ordered) == 0:
        return NOTHING
    if (q := quantile_of(stat)) is not None:
        return stats.percentile_sorted(ordered, q, tail)
    if stat == "mean":
        return stats.mean(ordered, tail)
    value = {"min": ordered[0], "max": ordered[-1], "total": ordered.sum()}[stat]
    return Estimate(float(value), float(value), float(value), len(ordered))


def of_tally(
    tally: Tally, blocks: Blocks, stat: str, tail: float, rng: np.random.Generator, worst: int = 0
) -> Estimate:
    """A statistic of values in time; `worst` more values of +infinity are ranked behind them."""
    n = tally.n + worst
    if n == 0:
        return NOTHING
    if (q := quantile_of(stat)) is not None:
        value = tally.quantile(q, worst)
        inner = q * n / max(tally.n, 1)  # the same rank among the finite values
        low, high = blocks.bounds(min(inner, 1.0), rng, tail) if inner < 1.0 else (math.inf, math.inf)
        return Estimate(value, min(low, value), max(high, value), n, n >= stats.needed(q) and math.isfinite(low))
    if stat == "mean":
        return blocks.mean(rng, tail)
    value = {"min": tally.values[0], "max": tally.values[-1]}[stat] if tally.n else math.inf
    return Estimate(float(value), float(value), float(value), n)


def _chunk_gap(m: Measured, stat: str, tail: float) -> Estimate:
    return of_tally(m.events.gap, m.events.gap_blocks, stat, tail, m.rng("chunk_gap"))


def _itl(m: Measured, stat: str, tail: float) -> Estimate:
    if stat not in ("mean", "p50") and not m.events.several <= MANY_SHARE:
        return NOTHING
    return of_tally(m.events.itl, m.events.itl_blocks, stat, tail, m.rng("itl"))


def _per_user(m: Measured, stat: str, tail: float) -> Estimate:
    return stats.reciprocal(estimate(m, METRICS["tpot"], stat, tail))


def _block_seconds(m: Measured) -> Floats:
    return np.full(MAX_BLOCKS, m.window.seconds / MAX_BLOCKS)


def _rate(m: Measured, amounts: Floats, n: int, name: str, tail: float) -> Estimate:
    return stats.ratio_of_sums(amounts, _block_seconds(m), m.rng(name), n=n, tail=tail)


def _output_rate(m: Measured, stat: str, tail: float) -> Estimate:
    if math.isnan(m.window.seconds):
        return NOTHING
    n = m.events.events_in_window
    if stat == "max":
        peak = m.events.peak_tokens_per_s
        return Estimate(peak, peak, peak, n)
    return _rate(m, m.events.tokens, n, "output_tokens_per_s", tail)


def _total_rate(m: Measured, stat: str, tail: float) -> Estimate:
    """Prompt tokens count at the request's first token, when their prefill was done."""
    started = m.all.where(~np.isnan(m.all.first_ns))
    if math.isnan(m.window.seconds) or np.isnan(started.prompt_tokens[started.ok]).any():
        return NOTHING
    prompt = m.block_counts(started.first_ns, np.nan_to_num(started.prompt_tokens))
    return _rate(m, m.events.tokens + prompt, m.events.events_in_window, "total_tokens_per_s", tail)


def _stamped(m: Measured, stamps_ns: Floats, name: str, tail: float) -> Estimate:
    if math.isnan(m.window.seconds):
        return NOTHING
    counts = m.block_counts(stamps_ns)
    return _rate(m, counts, int(counts.sum()), name, tail)


def _completed_rate(m: Measured, stat: str, tail: float) -> Estimate:
    return _stamped(m, _end_ns(m.all)[m.all.ok], "requests_per_s", tail)


def _sent_rate(m: Measured, stat: str, tail: float) -> Estimate:
    return _stamped(m, m.all.sent_ns[~np.isnan(m.all.sent_ns)], "requests_per_s_sent", tail)


def _offered_rate(m: Measured, stat: str, tail: float) -> Estimate:
    """What the load plan asked for: a fact of the plan, with nothing to estimate about it."""
    if math.isnan(m.window.seconds):
        return NOTHING
    rate = m.window.offered / m.window.seconds
    return Estimate(rate, rate, rate, m.window.offered)


def _flight(part: str) -> Callable[[Measured, str, float], Estimate]:
    def compute(m: Measured, stat: str, tail: float) -> Estimate:
        flight = m.flight
        if flight is None:
            return NOTHING
        if stat == "max":
            return Estimate(flight.peak, flight.peak, flight.peak, len(m.all))
        return _rate(m, getattr(flight, part), len(m.all), part, tail)

    return compute


def _error_rate(m: Measured, stat: str, tail: float) -> Estimate:
    return stats.proportion(int(m.columns.missed.sum()), len(m.columns), tail)


def _attainment(m: Measured, stat: str, tail: float) -> Estimate:
    if m.meets is None:
        return NOTHING
    return stats.proportion(int(m.meets.sum()), m.window.offered, tail)


def _goodput(m: Measured, stat: str, tail: float) -> Estimate:
    if m.meets is None or math.isnan(m.window.seconds):
        return NOTHING
    begun = m.columns.scheduled_ns if m.window.open_loop else m.columns.sent_ns
    begun = np.where(np.isnan(begun), m.columns.sent_ns, begun)
    return _rate(m, m.block_counts(begun[m.meets]), int(m.meets.sum()), "goodput", tail)


def estimate(m: Measured, metric: Metric, stat: str, tail: float = TABLE_TAIL) -> Estimate:
    """One statistic of one metric over a stage's measured window; bounds that each miss with probability `tail`."""
    if metric.per_stage is not None:
        return metric.per_stage(m, stat, tail)
    return _of_sorted(values_of(m, metric), stat, tail)


def _lookup(name: str) -> Callable[[Columns], Floats]:
    """A column of the frame that is a metric as it stands."""

    def compute(c: Columns) -> Floats:
        values: Floats = getattr(c, name)
        return values

    return compute


_TOKENS_CAVEAT = (
    "The server's own usage first, else a tokenizer over the whole text, else the number of token events; "
    "the source is stored with each request."
)
_BURST_CAVEAT = "Percentiles describe what a reader saw; tokens that arrive together in one event make one gap."

_TABLE = (
    Metric(
        "ttft", "s", "lower", "request", "first token event - sent",
        "Upload included, connecting not (see connect). In open loop a slow client or a full cap hides in it: "
        "gates use ttft_scheduled there.",
        per_request=ttft,
    ),
    Metric(
        "ttft_scheduled", "s", "lower", "request", "first token event - scheduled",
        "What a user who arrived on time waited: free of coordinated omission. Open loop only.",
        per_request=ttft_scheduled, optional=True,
    ),
    Metric(
        "time_to_first_answer", "s", "lower", "request", "first event with visible content - sent",
        "Later than ttft when a model reasons first; n/a when nothing visible came.",
        per_request=time_to_first_answer,
    ),
    Metric(
        "e2e", "s", "lower", "request", "last token event - sent",
        "The close of the stream is kept apart. An answer that was not streamed ends with its response.",
        per_request=e2e,
    ),
    Metric(
        "e2e_scheduled", "s", "lower", "request", "last token event - scheduled", "Open loop only.",
        per_request=e2e_scheduled, optional=True,
    ),
    Metric(
        "tpot", "s", "lower", "request", "(last token event - first token event) / (N - 1), N = streamed output tokens",
        "n/a for N < 2. So e2e = ttft + tpot * (N - 1) exactly. Reasoning tokens that were counted but never streamed "
        "are not in N.",
        per_request=tpot,
    ),
    Metric(
        "tpot_after_first_event", "s", "lower", "request",
        "(last token event - first token event) / (N - tokens in the first event)",
        "Differs from tpot when the first event holds several tokens.",
        per_request=tpot_after_first_event, optional=True,
    ),
    Metric(
        "max_gap", "s", "lower", "request", "longest time between two consecutive token events of the request",
        "The worst stall that a reader saw; n/a with fewer than two events.",
        per_request=max_gap,
    ),
    Metric(
        "chunk_gap", "s", "lower", "gap", "time between consecutive token events of a request", _BURST_CAVEAT,
        per_stage=_chunk_gap,
    ),
    Metric(
        "itl", "s", "lower", "gap", "chunk_gap / tokens of the later event, weighted by them",
        "Equals chunk_gap when events hold one token. When more than 5 % hold several, only its mean and median are "
        "shown: percentiles would invent gaps that nobody saw.",
        per_stage=_itl,
    ),
    Metric(
        "output_tokens_per_s_per_user", "tokens/s", "higher", "request", "1 / the same statistic of tpot",
        "Never a mean of reciprocals; p99 is the rate of the slow one in a hundred. Not the rate of the whole server.",
        stats=("mean", "p50", "p90", "p95", "p99"), per_stage=_per_user,
    ),
    Metric(
        "schedule_delay", "s", "lower", "request", "sent - scheduled",
        "All of the waiting before the wire: slot, connection, client. Open loop only.",
        per_request=schedule_delay, optional=True,
    ),
    Metric(
        "client_delay", "s", "lower", "request",
        "dispatched - the later of scheduled and the moment that a slot was free",
        "The client's own fault alone; the trust verdict judges it.",
        per_request=client_delay, optional=True,
    ),
    Metric(
        "connect", "s", "lower", "request", "connected - start of connecting (DNS, TCP, TLS)",
        "Only requests that opened a connection; not part of ttft.",
        per_request=connect, optional=True,
    ),
    Metric(
        "share_prefill", "1", "neither", "request", "ttft / e2e",
        "Queueing and network included: where the time goes as a user sees it.",
        stats=("mean", "p50", "p90", "min", "max"), per_request=share_prefill,
    ),
    Metric(
        "share_decode", "1", "neither", "request", "1 - ttft / e2e", "",
        stats=("mean", "p50", "p90", "min", "max"), per_request=share_decode,
    ),
    Metric(
        "prompt_tokens", "tokens", "neither", "request", "prompt tokens of the request", _TOKENS_CAVEAT,
        stats=AMOUNT, per_request=_lookup("prompt_tokens"),
    ),
    Metric(
        "output_tokens", "tokens", "neither", "request", "output tokens of the request", _TOKENS_CAVEAT,
        stats=AMOUNT, per_request=_lookup("output_tokens"),
    ),
    Metric(
        "reasoning_tokens", "tokens", "neither", "request", "output tokens spent on reasoning", _TOKENS_CAVEAT,
        stats=AMOUNT, per_request=_lookup("reasoning_tokens"), optional=True,
    ),
    Metric(
        "cached_tokens", "tokens", "neither", "request", "prompt tokens that the server took from its prefix cache",
        "Only where the server reports them.",
        stats=AMOUNT, per_request=_lookup("cached_tokens"), optional=True,
    ),
    Metric(
        "output_tokens_per_s", "tokens/s", "higher", "stage",
        "output tokens of all requests, each event by its own stamp, in the window / length of the window",
        "The whole server, not a user. `max` is the busiest of equal slices of at least a second.",
        stats=("rate", "max"), per_stage=_output_rate,
    ),
    Metric(
        "total_tokens_per_s", "tokens/s", "higher", "stage",
        "output tokens, and prompt tokens at the first token of their request, in the window / its length",
        "Adds cheap prompt tokens to dear output tokens; n/a when prompt tokens are unknown.",
        stats=("rate",), per_stage=_total_rate,
    ),
    Metric(
        "requests_per_s_offered", "requests/s", "neither", "stage",
        "requests that the load plan put into the window / its length", "", stats=("rate",), per_stage=_offered_rate,
    ),
    Metric(
        "requests_per_s_sent", "requests/s", "neither", "stage", "requests sent in the window / its length", "",
        stats=("rate",), per_stage=_sent_rate,
    ),
    Metric(
        "requests_per_s", "requests/s", "higher", "stage", "requests completed without error in the window / its length",
        "Failures are not completed requests.", stats=("rate",), per_stage=_completed_rate,
    ),
    Metric(
        "in_flight", "requests", "neither", "stage", "time-weighted mean of requests between sent and their last token",
        "= waiting_first_token + streaming. A failed request is in flight until it failed.",
        stats=("mean", "max"), per_stage=_flight("in_flight"),
    ),
    Metric(
        "waiting_first_token", "requests", "lower", "stage", "time-weighted mean of requests without a token yet", "",
        stats=("mean",), per_stage=_flight("waiting"),
    ),
    Metric(
        "streaming", "requests", "neither", "stage", "time-weighted mean of requests between first and last token", "",
        stats=("mean",), per_stage=_flight("streaming"),
    ),
    Metric(
        "error_rate", "1", "lower", "stage", "(failed + cancelled requests) / requests sent in the window",
        "Interval by Clopper and Pearson.", stats=("rate",), per_stage=_error_rate,
    ),
    Metric(
        "slo_attainment", "1", "higher", "stage", "requests that met every request-level limit / requests offered",
        "Failed, cancelled and never-sent requests are misses. Needs a request-level SLO: `ttft < 1s and tpot < 50ms`.",
        stats=("rate",), per_stage=_attainment, optional=True,
    ),
    Metric(
        "goodput", "requests/s", "higher", "stage",
        "requests of the window that met every request-level limit / its length",
        "Needs a request-level SLO: `ttft < 1s and tpot < 50ms`.",
        stats=("rate",), per_stage=_goodput, optional=True,
    ),
)  # fmt: skip

METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}


def metric(name: str) -> Metric:
    """Look a metric up by name. Raises UsageError with the nearest names."""
    if name in METRICS:
        return METRICS[name]
    near = difflib.get_close_matches(name.lower(), METRICS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(METRICS)}"
    raise UsageError(f"no metric is called {name!r}", do=hint)
