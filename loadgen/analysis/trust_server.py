"""Checks against the server's own view: who else loads it, what lies between it and the client, what held it back.

Knows: a stage in the server's figures. Must not know: engines' names for them, HTTP.
Why: a second user, a gateway or a throttled clock change every figure of a run, and no client can see them alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadgen.analysis import formulas as f
from loadgen.analysis import severity as rule
from loadgen.analysis import stats
from loadgen.analysis.asked import expected_cached
from loadgen.analysis.numbers import quantity, significant
from loadgen.analysis.server_names import THROTTLED
from loadgen.analysis.server_stage import Grown, ServerStage
from loadgen.analysis.trust_client import late_wake_s
from loadgen.model import Finding, RunInfo, Severity

_MOMENTS = 3  # readings of a gauge that a statement about it needs
_PAUSES = 3.0  # times the longest that this client itself did not look at a request's stream
_HELD_STEPS = 3.0  # time between tokens; shorter than that many, held back cannot be told from noise
_LOWERED = 0.95  # of the highest clock of the run
_BUSY = 0.5  # utilisation from which a GPU's clock should be up
_SAME_REQUESTS = 0.02  # two counts of requests that differ by no more are of the same ones


def another_tenant(info: RunInfo, s: ServerStage) -> Iterator[Finding]:
    """The server did more than this client asked of it: tokens, prompts, or requests in flight."""
    found = [x for x in (_more_tokens(s), _more_prompts(s), _more_requests(s)) if x is not None]
    if not found:
        return
    share = max(share for share, _ in found)
    severity = rule.at_most("questionable", rule.of_share(share))
    if severity != "info":
        text = f"somebody else loads this server: {'; '.join(text for _, text in found)}"
        yield Finding(severity, "another_tenant", text, share, "measure when the server is yours alone")


def _more_tokens(s: ServerStage) -> tuple[float, str] | None:
    grown = s.grown("generation_tokens")
    if grown is None or grown.amount <= 0.0:
        return None
    ours = s.client.output(grown, s.at_finish)
    more = grown.amount - ours.amount - ours.slack
    text = f"it generated {grown.amount:,.0f} tokens, {ours.amount:,.0f} of them for this client"
    return (more / grown.amount, text) if more > 0.0 else None


def _more_prompts(s: ServerStage) -> tuple[float, str] | None:
    grown = s.grown("prompt_tokens")
    if grown is None or grown.amount <= 0.0:
        return None
    ours = s.client.prompts(grown)
    more = grown.amount - ours.amount - ours.slack
    text = f"it processed {grown.amount:,.0f} prompt tokens, {ours.amount:,.0f} of them for this client"
    return (more / grown.amount, text) if more > 0.0 else None


def _more_requests(s: ServerStage) -> tuple[float, str] | None:
    running = s.column("running")
    window = s.m.window
    if running is None:
        return None
    inside = (running.t_ns >= window.start_ns) & (running.t_ns <= window.end_ns)
    theirs, waiting = running.values[inside], s.gauge("waiting")
    theirs = theirs + waiting if len(waiting) == len(theirs) else theirs
    if len(theirs) < _MOMENTS or not theirs.mean() > 0.0:
        return None
    more = theirs - s.client.in_flight(running.t_ns[inside])
    if not np.median(more) >= 1.0:
        return None
    text = f"it holds {significant(theirs.mean(), 3)} requests on average, "
    text += f"{significant(more.mean(), 3)} more than this client has in flight"
    return float(more.mean() / theirs.mean()), text


def counts_fewer(info: RunInfo, s: ServerStage) -> Iterator[Finding]:
    """The server's counter shows less than the client got: these are not the metrics of the whole endpoint."""
    if _covers(s):
        return
    grown = s.grown("generation_tokens")
    assert grown is not None
    ours = s.client.output(grown, s.at_finish).amount
    text = f"the server's counter shows {grown.amount:,.0f} generated tokens, the client got {ours:,.0f}"
    advice = "the page is that of a part of the endpoint, or of another server: name every page with --metrics"
    yield Finding("info", "metrics_of_a_part", text, grown.amount / ours, advice)


def _covers(s: ServerStage) -> bool:
    """Whether the server's counter shows all that the client got, as far as it can be told."""
    grown = s.grown("generation_tokens")
    if grown is None:
        return True
    ours = s.client.output(grown, s.at_finish)
    return ours.amount - grown.amount - ours.slack <= rule.QUESTIONABLE_SHARE * ours.amount


def outside_engine_s(s: ServerStage) -> float | None:
    """Mean TTFT of the client less that of the server over the same requests, in seconds; None where they are not."""
    count, server = s.grown("ttft_s_count"), s.mean("ttft_s")
    if count is None or server is None:
        return None
    came = (s.client.first_ns > count.begin_ns) & (s.client.first_ns <= count.end_ns)
    n = int(np.count_nonzero(came))
    if n == 0 or abs(count.amount - n) > max(_SAME_REQUESTS * n, _edges(s, count)):
        return None
    return float((s.client.first_ns - s.client.sent_ns)[came].mean()) / 1e9 - server


def _edges(s: ServerStage, over: Grown) -> float:
    """Requests that waited for their first token at the ends of a stretch: either side may count them."""
    waiting = [(s.client.sent_ns <= moment) & (s.client.first_ns > moment) for moment in (over.begin_ns, over.end_ns)]
    return float(sum(np.count_nonzero(mask) for mask in waiting))


def outside_engine(info: RunInfo, s: ServerStage) -> Iterator[Finding]:
    """Time of TTFT that passes outside the engine."""
    extra, ttft = outside_engine_s(s), _ttft(s)
    rtt_ns = info.endpoint.get("rtt_ns")
    if extra is None or rule.of_error(extra, ttft) == "info":
        return
    if isinstance(rtt_ns, int | float) and extra < rtt_ns / 1e9:
        return  # less than a mere round trip took: nothing is known of where it was spent
    text = (
        f"{quantity(extra, 's', 4)} of the mean TTFT pass outside the engine: network, gateway, the server's front end"
    )
    if isinstance(rtt_ns, int | float):
        text += f" (one round trip takes {quantity(rtt_ns / 1e9, 's')})"
    yield Finding("info", "outside_engine", text, extra, "measure at the engine itself to leave them out")


def _ttft(s: ServerStage) -> float:
    return stats.quantile(f.ttft(s.m.columns), 0.5)


def held_back(info: RunInfo, s: ServerStage) -> Iterator[Finding]:
    """Tokens that arrive in less time than the engine takes to make them, and late by as much: something buffers."""
    extra, itl, span, count = outside_engine_s(s), s.mean("itl_s"), s.grown("itl_s_sum"), s.grown("ttft_s_count")
    if extra is None or itl is None or span is None or count is None:
        return
    whole = (s.client.sent_ns >= span.begin_ns) & (s.client.last_ns <= span.end_ns) & ~np.isnan(s.client.first_ns)
    n = int(np.count_nonzero(whole))
    if n == 0 or abs(count.amount - n) > _SAME_REQUESTS * n:
        return  # decoding that the stretch cuts off would look like time that is missing
    made, seen = span.amount / n, float((s.client.last_ns - s.client.first_ns)[whole].mean()) / 1e9
    held = min(extra, made - seen)
    if held <= _PAUSES * max(float(s.m.columns.shared_wait_ns.mean()) / 1e9, late_wake_s(s.m)):
        return  # a machine that stops this client for as long stops whatever runs beside it, too
    severity = rule.at_most("questionable", rule.of_error(held, _ttft(s)))
    if severity != "info" and held > _HELD_STEPS * itl:
        text = f"something between the engine and the client holds tokens back for about {quantity(held, 's')}"
        text += f": the engine takes {quantity(made, 's')} from first to last token, "
        text += f"the client sees it in {quantity(seen, 's')}"
        advice = "look for a proxy that buffers (nginx: proxy_buffering off)"
        yield Finding(severity, "gateway_buffers", text, held, advice)


def preemptions(info: RunInfo, s: ServerStage) -> Iterator[Finding]:
    """Requests that lost their place for want of KV cache, and were computed again."""
    grown = s.grown("preemptions")
    if grown is not None and grown.amount > 0.0:
        usage = s.gauge("kv_usage")
        full = f", its KV cache was up to {usage.max() * 100:.0f} % full" if len(usage) else ""
        text = f"the server preempted {grown.amount:.0f} requests{full}: they wait and are computed twice"
        yield Finding("info", "preemptions", text, grown.amount, "lower the load, or give the server more KV cache")


def cache_hits(info: RunInfo, s: ServerStage) -> Iterator[Finding]:
    """Prompt tokens from the prefix cache where every prompt was to be new, for servers that tell it only here."""
    share, columns = s.share("prefix_hits", "prefix_queries"), s.m.columns
    if share is None or not np.isnan(columns.cached_tokens).all():
        return  # `trust_data.cache_hits` judges what the answers themselves told
    if (np.nan_to_num(expected_cached(s.m)) > 0).any():
        return  # some were to be there
    ttft = _ttft(s)
    severity = rule.of_error(share * ttft, ttft)
    if severity != "info":
        text = f"{quantity(share, '1')} of the prompt tokens came from the server's cache: TTFT is that much too short"
        advice = "vary the prompts from their first token, or empty the cache"
        yield Finding(severity, "cache_hits", text, share, advice)


def throttled(info: RunInfo, s: ServerStage) -> Iterator[Finding]:
    """Clocks that were lowered while the GPU had work: its roof is lower then."""
    bits = s.gauge("throttle_reasons").astype(np.int64)
    words = [word for bit, word in THROTTLED.items() if np.any(bits & bit)]
    for name, word in (("throttle_power", "power cap"), ("throttle_thermal", "thermal limit")):
        grown = s.grown(name)
        if grown is not None and grown.amount > 0.0 and word not in words:
            words.append(word)
    lowest, highest = _clocks(s)
    lowered = 1.0 - lowest / highest if highest > 0.0 else 0.0
    if not words and lowered < 1.0 - _LOWERED:
        return
    severity: Severity = rule.at_most("questionable", rule.of_share(lowered))
    text = f"the GPU's clocks were held down ({', '.join(words) or 'no reason told'})"
    if highest > 0.0:
        text += f": {lowest / 1e6:.0f} MHz under load, {highest / 1e6:.0f} MHz at best in this run"
    yield Finding(
        severity, "throttled_clocks", text, lowered, "see power limit and cooling: the roof is lower by as much"
    )


def _clocks(s: ServerStage) -> tuple[float, float]:
    """Median SM clock of the window while the GPU had work, and the highest of the run, in Hz; zeros if not told."""
    clock, busy, window = s.column("sm_clock_hz"), s.column("gpu_utilization"), s.m.window
    if clock is None:
        return 0.0, 0.0
    inside = (clock.t_ns >= window.start_ns) & (clock.t_ns <= window.end_ns)
    if busy is not None and np.array_equal(busy.t_ns, clock.t_ns):
        inside &= busy.values >= _BUSY
    if not inside.any():
        return 0.0, 0.0
    return float(np.median(clock.values[inside])), float(clock.values.max())


def restarted(info: RunInfo, s: ServerStage) -> Iterator[Finding]:
    """A counter that fell: the server was started anew, or another one answers now."""
    (low, high), column = s.bounds_ns, s.column("generation_tokens")
    if column is None:
        return
    fell = (np.diff(column.values) < 0.0) & (column.t_ns[1:] >= low) & (column.t_ns[:-1] <= high)
    if fell.any():
        text = f"the server's counters fell {int(fell.sum())} times: it was started anew, or several take turns"
        yield Finding("questionable", "server_restarted", text, float(fell.sum()), "see the server's own log")


CHECKS = (
    another_tenant,
    counts_fewer,
    outside_engine,
    held_back,
    preemptions,
    cache_hits,
    throttled,
    restarted,
)
