"""What other tools would have printed from the same stamps, and why it differs from ours.

Knows: the definitions of five tools, read from their own documents and code. Must not know: how they send load.
Why: two tools that are both right print different numbers for one run; a table that shows whose definition gives what
ends the argument. Nothing of the tools' code or wording is here; the formulas are facts about them.

Sources (name, file, commit or version, licence): see SOURCES.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from loadgen.analysis import formulas as f
from loadgen.analysis import stats
from loadgen.analysis.definitions import METRICS, number
from loadgen.analysis.measured import Columns, Measured
from loadgen.analysis.stats import Floats

SOURCES: dict[str, str] = {
    "vLLM bench serve": "vllm-project/vllm, vllm/benchmarks/serve.py at 009e6d4 and "
    "vllm/benchmarks/lib/endpoint_request_func.py at 02cfb53, Apache-2.0",
    "GuideLLM": "vllm-project/guidellm, src/guidellm/schemas/request_stats.py and "
    "benchmark/schemas/generative/metrics.py at 06cef29, schemas/statistics.py at 03820eb, Apache-2.0",
    "AIPerf": "ai-dynamo/aiperf, docs/metrics-reference.md at 0176f59, Apache-2.0",
    "InferenceMAX": "SemiAnalysisAI/InferenceX, utils/bench_serving/benchmark_serving.py at 086eabb, and "
    "InferenceMAX/InferenceMAX, utils/process_result.py at 19f43e0, Apache-2.0",
    "MLPerf Server": "mlcommons/inference, loadgen/results.cc at 05a9cec, Apache-2.0",
}


@dataclass(frozen=True, slots=True)
class Convention:
    """One number of one tool: `value` by its definition, `ours` by the nearest of ours (SI; None: n/a)."""

    tool: str
    metric: str
    definition: str
    value: float | None
    ours: float | None
    why: str
    stage: str
    our_metric: str
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class _Run:
    """A stage as these tools see one: successful requests only, and a clock from the first send to the last end."""

    m: Measured
    ok: Columns
    seconds: float  # first send to last token of any request: their "benchmark duration"

    @property
    def gaps_after_first(self) -> Floats:
        """(e2e - ttft) / (output tokens - 1) with the tools' N: tokens as counted, streamed or not; n/a for N < 2."""
        n = self.ok.output_tokens - 1.0
        top = (self.ok.last_ns - self.ok.first_ns) / 1e9
        return _over(top, n)


def _run(m: Measured) -> _Run:
    last = np.where(np.isnan(m.columns.last_ns), m.columns.end_ns, m.columns.last_ns)
    begun = m.columns.sent_ns
    both = ~np.isnan(begun) & ~np.isnan(last)
    seconds = (float(last[both].max()) - float(begun[both].min())) / 1e9 if both.any() else math.nan
    return _Run(m, m.columns.where(m.columns.streamed_ok), seconds if seconds > 0.0 else math.nan)


# -- how they summarise ---------------------------------------------------------------------------------------------


def _linear(values: Floats, q: float) -> float:
    return stats.quantile(values[~np.isnan(values)], q)


def _index(values: Floats, q: float) -> float:
    """The element at position n * q of the sorted values (MLPerf): never interpolated, one later than nearest rank."""
    ordered = np.sort(values[~np.isnan(values)])
    return float(ordered[min(int(len(ordered) * q), len(ordered) - 1)]) if len(ordered) else math.nan


def _weighted(values: Floats, weights: Floats, q: float) -> float:
    """The first value at which the weight so far reaches q of the whole (GuideLLM)."""
    kept = ~np.isnan(values) & (weights > 0.0)
    order = np.argsort(values[kept], kind="stable")
    ran = np.cumsum(weights[kept][order])
    return float(values[kept][order][np.searchsorted(ran, q * ran[-1] - 1e-9 * ran[-1])]) if len(ran) else math.nan


def _mean(values: Floats, weights: Floats | None = None) -> float:
    kept = ~np.isnan(values)
    if weights is not None:
        kept &= weights > 0.0
    if not kept.any():
        return math.nan
    return float(np.average(values[kept], weights=None if weights is None else weights[kept]))


def _rate(run: _Run, amount: float) -> float:
    return amount / run.seconds


def _over(top: Floats, bottom: Floats) -> Floats:
    result: Floats = np.divide(top, bottom, out=np.full(len(top), np.nan), where=bottom > 0.0)
    return result


def _latency(c: Columns) -> Floats:
    return (c.last_ns - c.sent_ns) / 1e9


def _per_output_token(run: _Run) -> Floats:
    return _over(_latency(run.ok), run.ok.output_tokens)


def _from_schedule(run: _Run) -> Floats:
    """First token from the scheduled time; without a schedule from the send."""
    due = np.where(np.isnan(run.ok.scheduled_ns), run.ok.sent_ns, run.ok.scheduled_ns)
    return (run.ok.first_ns - due) / 1e9


def _completed_per_s(run: _Run) -> float:
    """(n - 1) / time from the start to the last completion."""
    return _rate(run, len(run.ok) - 1.0) if len(run.ok) > 1 else math.nan


# -- the table --------------------------------------------------------------------------------------------------------

_ROLE = (
    "It starts its clock before the HTTP client connects and stamps when its process reads; a role-only first chunk "
    "ends its TTFT. From the stamps alone the two agree."
)
_ALL_TIME = (
    "It divides by the time from first send to last end, ramp and drain included; ours counts inside the window."
)
_COUNTED = "It divides by all counted tokens less one; ours by the streamed ones, so hidden reasoning does not flatter."
_CHUNKS = "Its ITL list is gaps between chunks: with several tokens to a chunk it is not the time between tokens."

_Row = tuple[str, str, str, Callable[[_Run], float], str, str, str]
# tool, its metric, its definition, the number, our metric, our statistic, why they differ
_TABLE: tuple[_Row, ...] = (
    ("vLLM bench serve", "Median TTFT", "first chunk with a choice - start of the call; numpy median over successes",
     lambda r: _linear(f.ttft(r.ok), 0.5), "ttft", "p50", _ROLE),
    ("vLLM bench serve", "P99 TTFT", "as above; numpy's linear 99th percentile",
     lambda r: _linear(f.ttft(r.ok), 0.99), "ttft", "p99", _ROLE),
    ("vLLM bench serve", "Mean TPOT", "(latency - TTFT) / (output tokens - 1), n/a for one token; mean over requests",
     lambda r: _mean(r.gaps_after_first), "tpot", "mean", _COUNTED),
    ("vLLM bench serve", "Median ITL", "median of all times between chunks", lambda r: r.m.events.gap.quantile(0.5),
     "itl", "p50", _CHUNKS),
    ("vLLM bench serve", "P99 ITL", "99th percentile of all times between chunks",
     lambda r: r.m.events.gap.quantile(0.99), "chunk_gap", "p99",
     "The same number; ours is called chunk_gap, because that is what it is."),
    ("vLLM bench serve", "Output token throughput", "output tokens of successes / benchmark duration",
     lambda r: _rate(r, float(np.nansum(r.ok.output_tokens))), "output_tokens_per_s", "rate", _ALL_TIME),
    ("GuideLLM", "Time to first token, median", "first iteration - request start; the smallest value with half of them "
     "at or below it", lambda r: _weighted(f.ttft(r.ok), np.ones(len(r.ok)), 0.5), "ttft", "p50",
     "No interpolation between order statistics; over few requests that shows."),
    ("GuideLLM", "Time per output token, mean", "latency / output tokens, the first token included, weighted by tokens",
     lambda r: _mean(_per_output_token(r), r.ok.output_tokens), "tpot", "mean",
     "It spreads TTFT over the tokens; ours leaves TTFT out."),
    ("GuideLLM", "Inter token latency, median", "one mean for each request, weighted by its tokens less one",
     lambda r: _weighted(r.gaps_after_first, r.ok.output_tokens - 1.0, 0.5), "itl", "p50",
     "A mean within each request: it cannot show a stall inside one."),
    ("AIPerf", "Time to First Token, p50", "first response with content - request start; over valid requests",
     lambda r: _linear(f.ttft(r.ok), 0.5), "ttft", "p50", "The same definition; it stamps when its process reads."),
    ("AIPerf", "Inter Token Latency, avg", "(latency - TTFT) / (output length - 1), one value for each request",
     lambda r: _mean(r.gaps_after_first), "itl", "mean",
     "Its ITL is what we call tpot: each request weighs the same, however long; ours weighs each token the same."),
    ("AIPerf", "Output Token Throughput Per User, avg", "mean over requests of 1 / its ITL",
     lambda r: _mean(_over(np.ones(len(r.ok)), r.gaps_after_first)),
     "output_tokens_per_s_per_user", "mean",
     "A mean of reciprocals favours the fast requests; ours is the reciprocal of the mean."),
    ("AIPerf", "Output Token Throughput", "output tokens of valid requests / (last response - first request)",
     lambda r: _rate(r, float(np.nansum(r.ok.output_tokens))), "output_tokens_per_s", "rate", _ALL_TIME),
    ("InferenceMAX", "median_ttft", "as vLLM bench serve, its lengths jittered and two rounds of the load warmed up",
     lambda r: _linear(f.ttft(r.ok), 0.5), "ttft", "p50", _ROLE),
    ("InferenceMAX", "median_intvty", "1 / median TPOT: its interactivity, tokens/s/user",
     lambda r: 1.0 / _linear(r.gaps_after_first, 0.5) if _linear(r.gaps_after_first, 0.5) > 0 else math.nan,
     "output_tokens_per_s_per_user", "p50", _COUNTED),
    ("InferenceMAX", "tput_per_gpu x GPUs", "(input + output tokens of successes) / benchmark duration; it prints this "
     "divided by the number of GPUs",
     lambda r: _rate(r, float(np.nansum(r.ok.output_tokens) + np.nansum(r.ok.prompt_tokens))),
     "total_tokens_per_s", "rate", _ALL_TIME),
    ("MLPerf Server", "99.00 percentile first token latency", "first token - scheduled time; element n * 0.99 of the "
     "sorted values", lambda r: _index(_from_schedule(r), 0.99), "ttft", "p99",
     "From the scheduled time, as our ttft_scheduled; in closed loop there is none, and both count from the send."),
    ("MLPerf Server", "99.00 percentile time to output token", "(latency - first token latency) / (tokens - 1); "
     "element n * 0.99 of the sorted values", lambda r: _index(r.gaps_after_first, 0.99), "tpot", "p99",
     "No interpolation: its percentile is an order statistic."),
    ("MLPerf Server", "Completed samples per second", "(samples - 1) / time to the last completion", _completed_per_s,
     "requests_per_s", "rate", _ALL_TIME),
    ("MLPerf Server", "Completed tokens per second", "tokens / time to the last completion",
     lambda r: _rate(r, float(np.nansum(r.ok.output_tokens))), "output_tokens_per_s", "rate", _ALL_TIME),
)  # fmt: skip


def conventions(m: Measured) -> tuple[Convention, ...]:
    """The table for one stage."""
    run = _run(m)
    rows = []
    for tool, name, definition, compute, ours, stat, why in _TABLE:
        our_metric = "ttft_scheduled" if tool == "MLPerf Server" and ours == "ttft" and m.window.open_loop else ours
        rows.append(
            Convention(
                tool,
                name,
                definition,
                _known(compute(run) if len(run.ok) else math.nan),
                _known(number(m, our_metric, stat)),
                why,
                m.info.name,
                f"{stat}({our_metric})",
                METRICS[ours].unit,
                SOURCES[tool],
            )
        )
    return tuple(rows)


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
