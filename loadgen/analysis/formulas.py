"""The formulas behind the metrics table, each a vectorised expression over a stage's columns, events or flights.

Knows: how each metric follows from stamps and counts. Must not know: names for display, limits, severities.
Why: `definitions` says in words what this file does in numpy; one line there, one function here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from loadgen.analysis import stats
from loadgen.analysis.gaps import Blocks, Tally
from loadgen.analysis.measured import Columns, Measured
from loadgen.analysis.stats import MAX_BLOCKS, NOTHING, Estimate, Floats, Resampler

PerRequest = Callable[[Columns], Floats]
PerStage = Callable[[Measured, str, float], Estimate]  # (stage, statistic, probability beyond each bound)

MANY_SHARE = 0.05  # of events with several tokens; beyond it, percentiles of `itl` would invent gaps that nobody saw


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
    result: Floats = np.divide(top, bottom, out=np.full(len(top), np.nan), where=bottom > 0.0)
    return result


# -- per stage --------------------------------------------------------------------------------------------------------


def values_of(m: Measured, name: str, formula: PerRequest) -> Floats:
    """A request metric of the successful measured requests, ascending, n/a left out."""
    if name not in m.cache:
        found = formula(m.columns)[m.columns.ok]
        m.cache[name] = np.sort(found[~np.isnan(found)])
    return m.cache[name]


def of_sorted(ordered: Floats, stat: str, tail: float) -> Estimate:
    """A statistic of independent values in ascending order."""
    if len(ordered) == 0:
        return NOTHING
    if (q := quantile_of(stat)) is not None:
        return stats.percentile_sorted(ordered, q, tail)
    if stat == "mean":
        return stats.mean(ordered, tail)
    value = {"min": ordered[0], "max": ordered[-1], "total": ordered.sum()}[stat]
    return Estimate(float(value), float(value), float(value), len(ordered))


def of_tally(tally: Tally, blocks: Blocks, stat: str, tail: float, resampler: Resampler, worst: int = 0) -> Estimate:
    """A statistic of values in time; `worst` more values of +infinity are ranked behind them."""
    n = tally.n + worst
    if n == 0:
        return NOTHING
    if (q := quantile_of(stat)) is not None:
        value = tally.quantile(q, worst)
        if math.isnan(tail):
            return Estimate(value, math.nan, math.nan, n, n >= stats.needed(q))
        inner = q * n / tally.n if worst and tally.n else q  # the same rank among the finite values
        low, high = blocks.bounds(min(inner, 1.0), resampler, tail) if inner < 1.0 else (math.inf, math.inf)
        return Estimate(value, min(low, value), max(high, value), n, n >= stats.needed(q) and math.isfinite(low))
    if stat == "mean":
        return blocks.mean(resampler, tail)
    value = {"min": tally.values[0], "max": tally.values[-1]}[stat] if tally.n else math.inf
    return Estimate(float(value), float(value), float(value), n)


def chunk_gap(m: Measured, stat: str, tail: float) -> Estimate:
    return of_tally(m.events.gap, m.events.gap_blocks, stat, tail, m.resampler)


def itl(m: Measured, stat: str, tail: float) -> Estimate:
    if stat not in ("mean", "p50") and not m.events.several <= MANY_SHARE:
        return NOTHING
    return of_tally(m.events.itl, m.events.itl_blocks, stat, tail, m.resampler)


def per_user(m: Measured, stat: str, tail: float) -> Estimate:
    """Tokens that all came at once have a tpot of 0: a rate that nobody measured, so none."""
    found = stats.reciprocal(of_sorted(values_of(m, "tpot", tpot), stat, tail))
    return found if math.isfinite(found.value) else NOTHING


def _no_time(m: Measured) -> bool:
    """Whether there is no window to have a rate in, or never was a request."""
    return math.isnan(m.window.seconds) or len(m.all) == 0


def _too_short(m: Measured, took_s: Floats) -> bool:
    """Whether the window was over before anything could be seen: shorter than the shortest of what is counted in it."""
    known = took_s[~np.isnan(took_s)]
    return len(known) > 0 and bool(known.min() > m.window.seconds)


def _without_tokens(m: Measured) -> bool:
    """Whether there were answers, none of which has tokens at all (embeddings): a rate of them is n/a, not 0."""
    return bool(m.all.ok.any()) and bool(np.isnan(m.all.output_tokens[m.all.ok]).all())


def _block_seconds(m: Measured) -> Floats:
    return np.full(MAX_BLOCKS, m.window.seconds / MAX_BLOCKS)


def _rate(m: Measured, amounts: Floats, n: int, tail: float) -> Estimate:
    return stats.ratio_of_sums(amounts, _block_seconds(m), m.resampler, n=n, tail=tail)


def output_rate(m: Measured, stat: str, tail: float) -> Estimate:
    n = 0 if _no_time(m) else m.events.events_in_window
    if _no_time(m) or (n == 0 and (_too_short(m, ttft(m.all)) or _without_tokens(m))):
        return NOTHING
    if stat == "max":
        peak = m.events.peak_tokens_per_s
        return Estimate(peak, peak, peak, n)
    return _rate(m, m.events.tokens, n, tail)


def total_rate(m: Measured, stat: str, tail: float) -> Estimate:
    """Prompt tokens count at the request's first token, when their prefill was done (not streamed: at its end)."""
    known_at = np.where(np.isnan(m.all.first_ns) & m.all.ok, m.all.end_ns, m.all.first_ns)
    if _no_time(m) or np.isnan(m.all.prompt_tokens[m.all.ok]).any():
        return NOTHING
    if m.events.events_in_window == 0 and _too_short(m, ttft(m.all)):
        return NOTHING
    seen = ~np.isnan(known_at)
    prompt = m.block_counts(known_at[seen], np.nan_to_num(m.all.prompt_tokens[seen]))
    return _rate(m, m.events.tokens + prompt, m.events.events_in_window, tail)


def _stamped(m: Measured, stamps_ns: Floats, tail: float) -> Estimate:
    if _no_time(m):
        return NOTHING
    counts = m.block_counts(stamps_ns)
    return _rate(m, counts, int(counts.sum()), tail)


def completed_rate(m: Measured, stat: str, tail: float) -> Estimate:
    found = _stamped(m, _end_ns(m.all)[m.all.ok], tail)
    return NOTHING if found.value == 0.0 and _too_short(m, e2e(m.all)) else found


def sent_rate(m: Measured, stat: str, tail: float) -> Estimate:
    return _stamped(m, m.all.sent_ns[~np.isnan(m.all.sent_ns)], tail)


def offered_rate(m: Measured, stat: str, tail: float) -> Estimate:
    """What the load plan asked for: a fact of the plan, with nothing to estimate about it."""
    if _no_time(m):
        return NOTHING
    rate = m.window.offered / m.window.seconds
    return Estimate(rate, rate, rate, m.window.offered)


def requests_in(part: str) -> PerStage:
    """Time-weighted number of requests in one part of their flight."""

    def compute(m: Measured, stat: str, tail: float) -> Estimate:
        flight = m.flight
        if flight is None or len(m.all) == 0:
            return NOTHING
        if stat == "max":
            return Estimate(flight.peak, flight.peak, flight.peak, len(m.all))
        return _rate(m, getattr(flight, part), len(m.all), tail)

    return compute


def error_rate(m: Measured, stat: str, tail: float) -> Estimate:
    return stats.proportion(int(m.columns.missed.sum()), len(m.columns), tail)


def guard_right(m: Measured, stat: str, tail: float) -> Estimate:
    return stats.proportion(int(m.info.health.get("guard_right", 0)), int(m.info.health.get("guard_asked", 0)), tail)


def attainment(m: Measured, stat: str, tail: float) -> Estimate:
    if m.meets is None:
        return NOTHING
    return stats.proportion(int(m.meets.sum()), m.window.offered, tail)


def goodput(m: Measured, stat: str, tail: float) -> Estimate:
    if m.meets is None or _no_time(m):
        return NOTHING
    begun = m.columns.scheduled_ns if m.window.open_loop else m.columns.sent_ns
    begun = np.where(np.isnan(begun), m.columns.sent_ns, begun)
    return _rate(m, m.block_counts(begun[m.meets]), int(m.meets.sum()), tail)


def column(name: str) -> PerRequest:
    """A column of the frame that is a metric as it stands."""

    def compute(c: Columns) -> Floats:
        values: Floats = getattr(c, name)
        return values

    return compute
