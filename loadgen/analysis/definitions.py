"""The one table of metrics: name, unit, which way is better, formula, caveat, and the code that computes it.

Knows: every formula. Must not know: limits, severities, layout, other tools' formulas.
Why: the table is the executable form of the method. `loadgen explain`, the tooltips of the report, the README and every
figure come from it, so a text cannot promise what the code does not do.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from loadgen.analysis import formulas as f
from loadgen.analysis.measured import Measured
from loadgen.analysis.stats import NO_BOUNDS, TABLE_TAIL, Estimate
from loadgen.errors import UsageError

Of = Literal["request", "gap", "stage"]
Better = Literal["lower", "higher", "neither"]

LATENCY = ("mean", "p50", "p90", "p95", "p99", "min", "max")
AMOUNT = (*LATENCY, "total")


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
    per_request: f.PerRequest | None = None
    per_stage: f.PerStage | None = None
    optional: bool = False


def estimate(m: Measured, metric: Metric, stat: str, tail: float = TABLE_TAIL) -> Estimate:
    """One statistic of one metric over a stage's measured window; bounds that each miss with probability `tail`."""
    key = (metric.name, stat, tail)
    if key not in m.estimates:
        if metric.per_stage is not None:
            m.estimates[key] = metric.per_stage(m, stat, tail)
        else:
            assert metric.per_request is not None
            m.estimates[key] = f.of_sorted(f.values_of(m, metric.name, metric.per_request), stat, tail)
    return m.estimates[key]


def number(m: Measured, metric: str, stat: str) -> float:
    """The value of `estimate` alone, without the work that bounds are; NaN is n/a."""
    return estimate(m, METRICS[metric], stat, NO_BOUNDS).value


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
        per_request=f.ttft,
    ),
    Metric(
        "ttft_scheduled", "s", "lower", "request", "first token event - scheduled",
        "What a user who arrived on time waited: free of coordinated omission. Open loop only.",
        per_request=f.ttft_scheduled, optional=True,
    ),
    Metric(
        "time_to_first_answer", "s", "lower", "request", "first event with visible content - sent",
        "Later than ttft when a model reasons first; n/a when nothing visible came.",
        per_request=f.time_to_first_answer,
    ),
    Metric(
        "e2e", "s", "lower", "request", "last token event - sent",
        "The close of the stream is kept apart. An answer that was not streamed ends with its response.",
        per_request=f.e2e,
    ),
    Metric(
        "e2e_scheduled", "s", "lower", "request", "last token event - scheduled", "Open loop only.",
        per_request=f.e2e_scheduled, optional=True,
    ),
    Metric(
        "tpot", "s", "lower", "request", "(last token event - first token event) / (N - 1), N = streamed output tokens",
        "n/a for N < 2. So e2e = ttft + tpot * (N - 1) exactly. Reasoning tokens that were counted but never streamed "
        "are not in N.",
        per_request=f.tpot,
    ),
    Metric(
        "tpot_after_first_event", "s", "lower", "request",
        "(last token event - first token event) / (N - tokens in the first event)",
        "Differs from tpot when the first event holds several tokens.",
        per_request=f.tpot_after_first_event, optional=True,
    ),
    Metric(
        "max_gap", "s", "lower", "request", "longest time between two consecutive token events of the request",
        "The worst stall that a reader saw; n/a with fewer than two events.",
        per_request=f.max_gap,
    ),
    Metric(
        "chunk_gap", "s", "lower", "gap", "time between consecutive token events of a request", _BURST_CAVEAT,
        per_stage=f.chunk_gap,
    ),
    Metric(
        "itl", "s", "lower", "gap", "chunk_gap / tokens of the later event, weighted by them",
        "Equals chunk_gap when events hold one token. When more than 5 % hold several, only its mean and median are "
        "shown: percentiles would invent gaps that nobody saw.",
        per_stage=f.itl,
    ),
    Metric(
        "output_tokens_per_s_per_user", "tokens/s", "higher", "request", "1 / the same statistic of tpot",
        "Never a mean of reciprocals; p99 is the rate of the slow one in a hundred. Not the rate of the whole server.",
        stats=("mean", "p50", "p90", "p95", "p99"), per_stage=f.per_user,
    ),
    Metric(
        "schedule_delay", "s", "lower", "request", "sent - scheduled",
        "All of the waiting before the wire: slot, connection, client. Open loop only.",
        per_request=f.schedule_delay, optional=True,
    ),
    Metric(
        "client_delay", "s", "lower", "request",
        "dispatched - the later of scheduled and the moment that a slot was free",
        "The client's own fault alone; the trust verdict judges it.",
        per_request=f.client_delay, optional=True,
    ),
    Metric(
        "connect", "s", "lower", "request", "connected - start of connecting (DNS, TCP, TLS)",
        "Only requests that opened a connection; not part of ttft.",
        per_request=f.connect, optional=True,
    ),
    Metric(
        "share_prefill", "1", "neither", "request", "ttft / e2e",
        "Queueing and network included: where the time goes as a user sees it.",
        stats=("mean", "p50", "p90", "min", "max"), per_request=f.share_prefill,
    ),
    Metric(
        "share_decode", "1", "neither", "request", "1 - ttft / e2e", "",
        stats=("mean", "p50", "p90", "min", "max"), per_request=f.share_decode,
    ),
    Metric(
        "prompt_tokens", "tokens", "neither", "request", "prompt tokens of the request", _TOKENS_CAVEAT,
        stats=AMOUNT, per_request=f.column("prompt_tokens"),
    ),
    Metric(
        "output_tokens", "tokens", "neither", "request", "output tokens of the request", _TOKENS_CAVEAT,
        stats=AMOUNT, per_request=f.column("output_tokens"),
    ),
    Metric(
        "reasoning_tokens", "tokens", "neither", "request", "output tokens spent on reasoning", _TOKENS_CAVEAT,
        stats=AMOUNT, per_request=f.column("reasoning_tokens"), optional=True,
    ),
    Metric(
        "cached_tokens", "tokens", "neither", "request", "prompt tokens that the server took from its prefix cache",
        "Only where the server reports them.",
        stats=AMOUNT, per_request=f.column("cached_tokens"), optional=True,
    ),
    Metric(
        "output_tokens_per_s", "tokens/s", "higher", "stage",
        "output tokens of all requests, each event by its own stamp, in the window / length of the window",
        "The whole server, not a user. `max` is the busiest of equal slices of at least a second.",
        stats=("rate", "max"), per_stage=f.output_rate,
    ),
    Metric(
        "total_tokens_per_s", "tokens/s", "higher", "stage",
        "output tokens, and prompt tokens at the first token of their request, in the window / its length",
        "Adds cheap prompt tokens to dear output tokens; n/a when prompt tokens are unknown.",
        stats=("rate",), per_stage=f.total_rate,
    ),
    Metric(
        "requests_per_s_offered", "requests/s", "neither", "stage",
        "requests that the load plan put into the window / its length", "", stats=("rate",), per_stage=f.offered_rate,
    ),
    Metric(
        "requests_per_s_sent", "requests/s", "neither", "stage", "requests sent in the window / its length", "",
        stats=("rate",), per_stage=f.sent_rate,
    ),
    Metric(
        "requests_per_s", "requests/s", "higher", "stage", "requests that succeeded in the window / its length",
        "Failures are not completed requests.", stats=("rate",), per_stage=f.completed_rate,
    ),
    Metric(
        "in_flight", "requests", "neither", "stage", "time-weighted mean of requests between sent and their last token",
        "= waiting_first_token + streaming. A failed request is in flight until it failed.",
        stats=("mean", "max"), per_stage=f.requests_in("in_flight"),
    ),
    Metric(
        "waiting_first_token", "requests", "lower", "stage", "time-weighted mean of requests without a token yet", "",
        stats=("mean",), per_stage=f.requests_in("waiting"),
    ),
    Metric(
        "streaming", "requests", "neither", "stage", "time-weighted mean of requests between first and last token", "",
        stats=("mean",), per_stage=f.requests_in("streaming"),
    ),
    Metric(
        "error_rate", "1", "lower", "stage", "(failed + cancelled requests) / requests sent in the window",
        "Interval by Clopper and Pearson.", stats=("rate",), per_stage=f.error_rate,
    ),
    Metric(
        "guard_right", "1", "higher", "stage", "checkable questions answered right / answered, asked beside the load",
        "Needs `--guard`. Interval by Clopper and Pearson. Small models miss some: compare with an earlier run.",
        stats=("rate",), per_stage=f.guard_right, optional=True,
    ),
    Metric(
        "slo_attainment", "1", "higher", "stage", "requests that met every request-level limit / requests offered",
        "Failed, cancelled and never-sent requests are misses. Needs a request-level SLO: `ttft < 1s and tpot < 50ms`.",
        stats=("rate",), per_stage=f.attainment, optional=True,
    ),
    Metric(
        "goodput", "requests/s", "higher", "stage",
        "requests of the window that met every request-level limit / its length",
        "Needs a request-level SLO: `ttft < 1s and tpot < 50ms`.",
        stats=("rate",), per_stage=f.goodput, optional=True,
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
