"""Checks on what came back: streams, token counts, errors, samples, physics, and the tool's own arithmetic.

Knows: the decoded answers and, where GPU and model were named, the least time that a pass can take. Must not know: the
wire format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from loadgen.analysis import formulas as f
from loadgen.analysis import severity as rule
from loadgen.analysis import stats
from loadgen.analysis.asked import expected_cached
from loadgen.analysis.definitions import number
from loadgen.analysis.measured import Columns, Measured
from loadgen.analysis.numbers import quantity, significant
from loadgen.analysis.trust_client import advised
from loadgen.errors import LoadgenError
from loadgen.model import Finding, RunInfo, Severity

_BURST_GAP = 0.1  # of the mean gap: closer together than this is one burst
_BURST_SHARE = 0.3
_ONE_BURST_S = 50e-6  # mean gap within an answer that came in one piece
_PROMPT_SHARE, _PROMPT_TOKENS = 0.05, 50.0
_TEMPLATE_TOKENS = 16.0  # the head of a template is in every prompt
_BLOCK_TOKENS = 64.0  # caches hold whole blocks


def bursts(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Tokens that something held back and let go together: the first of them came later than it was made."""
    c = m.columns.where(m.columns.streamed_ok & (m.columns.events >= 4))
    if len(c) == 0 or m.events.gap.n == 0:
        return
    span = (c.last_ns - c.first_ns) / 1e9
    whole = (span / (c.events - 1) < _ONE_BURST_S) & ((c.first_ns - c.sent_ns) / 1e9 > 20 * span)
    ttft = stats.quantile((c.first_ns - c.sent_ns) / 1e9, 0.5)
    advice = "look for a proxy that buffers (nginx: proxy_buffering off), or the server's stream interval"
    if whole.mean() > 0.5:
        error = float(np.median(((c.last_ns - c.sent_ns) / 1e9 * (1.0 - 1.0 / c.events))[whole]))
        share = float(whole.mean())
        text = (
            f"{share * 100:.0f} % of the answers came in one piece: TTFT may be up to {quantity(error, 's')} too long"
        )
        yield Finding(rule.of_error(error, ttft), "bursts", text, share, advised(m, advice))
        return
    mean_gap = m.events.gap.mean()
    close = m.events.gap.values < _BURST_GAP * mean_gap
    share = float(m.events.gap.counts[close].sum()) / m.events.gap.n
    looked = c.shared_wait_ns[c.shared_events > 0] / 1e9
    if (
        share <= _BURST_SHARE or stats.quantile(looked, 0.5) > mean_gap
    ):  # the latter: the client was slow, not the server
        return
    size = 1.0 / (1.0 - share) if share < 1.0 else math.inf
    error = (size - 1.0) * mean_gap
    text = f"token events come in bursts of about {size:.1f}: TTFT may be up to {quantity(error, 's')} too long"
    yield Finding(rule.of_error(error, ttft), "bursts", text, share, advised(m, advice))


def output_shorter(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Answers that ended before the length that was asked for."""
    c = m.columns.where(m.columns.ok & ~np.isnan(m.columns.output_tokens) & (m.columns.output_requested > 0))
    if len(c) == 0:
        return
    short = float(np.maximum(1.0 - c.output_tokens / c.output_requested, 0.0).mean())
    severity = rule.at_most("questionable", rule.of_share(short))
    if severity != "info":
        text = f"answers were {quantity(short, '1')} shorter than asked: e2e and rates are those of a shorter workload"
        yield Finding(
            severity, "output_shorter", text, short, "force the length (ignore_eos, min_tokens) where the server can"
        )


def output_longer(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Answers beyond the length that was asked for: the limit was not kept, or the count is no count of tokens."""
    c = m.columns.where(m.columns.ok & ~np.isnan(m.columns.output_tokens) & (m.columns.output_requested > 0))
    if len(c) == 0:
        return
    times = float((c.output_tokens / c.output_requested).mean())
    severity = rule.of_share(max(times - 1.0, 0.0))
    if severity != "info":
        text = f"answers hold {significant(times, 3)} times the tokens asked for: "
        text += "either the limit was not kept or the count is wrong"
        yield Finding(severity, "output_longer", text, times, "compare the server's usage with its text (--keep-text)")


def prompt_tokens(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Prompts that the server counts differently from what was asked."""
    c = m.columns.where(m.columns.ok & ~np.isnan(m.columns.prompt_tokens) & (m.columns.prompt_requested > 0))
    c = c.where(~(m.requests.turn[c.rows] > 0))  # later turns carry the history on top of what was asked
    if len(c) == 0:
        return
    off = np.abs(c.prompt_tokens - c.prompt_requested)
    share, tokens = float(np.median(off / c.prompt_requested)), float(np.median(off))
    if share > _PROMPT_SHARE or tokens > _PROMPT_TOKENS:
        text = f"prompts are {tokens:.0f} tokens ({quantity(share, '1')}) off what was asked, as the server counts them"
        yield Finding("questionable", "prompt_tokens", text, share, "calibrate: more warm-up, or a tokenizer")


def counts_disagree(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """The server's usage against what its own events carried."""
    if len(m.columns) == 0:
        return
    share = float(m.requests.has("counts_disagree")[m.columns.rows].mean())
    if share > 0.0:
        text = (
            f"in {quantity(share, '1')} of the requests the server's token count differs from what its events carried"
        )
        severity = rule.at_most("questionable", rule.of_share(share))
        yield Finding(severity, "counts_disagree", text, share, "per-token figures rest on the server's count")


def cache_hits(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Prompt tokens from the server's cache that the plan did not repeat: every prompt was to be new but for those."""
    c = m.columns
    rows = c.ok & (c.cached_tokens >= 0) & (c.prompt_tokens > 0)
    if not rows.any():
        return
    beyond = c.cached_tokens - np.nan_to_num(expected_cached(m)) - _TEMPLATE_TOKENS
    share = float(np.maximum(beyond[rows], 0.0).sum() / c.prompt_tokens[rows].sum())
    ttft = stats.quantile_sorted(f.values_of(m, "ttft", f.ttft), 0.5)
    severity = rule.of_error(share * ttft, ttft)
    if severity != "info":
        text = f"{quantity(share, '1')} of the prompt tokens came from the server's cache though they were to be new: "
        text += "TTFT is that much too short"
        advice = "give more texts of your own than requests" if np.isnan(c.repeated_tokens).any() else "empty the cache"
        yield Finding(severity, "cache_hits", text, share, advice)


def cache_misses(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Prompt tokens that the plan repeated and the server did not take from its cache."""
    c = m.columns
    expected = np.nan_to_num(expected_cached(m, answers=False))
    rows = c.ok & (c.cached_tokens >= 0) & (expected > 0)
    if not rows.any():
        return
    wanted = np.minimum(expected, c.prompt_tokens)[rows]
    missed = float(np.maximum(wanted - c.cached_tokens[rows] - _BLOCK_TOKENS, 0.0).sum())
    total = float(c.prompt_tokens[c.ok & (c.prompt_tokens > 0)].sum())
    share = missed / total
    if rule.of_share(share) == "invalid":
        took = float(c.cached_tokens[rows].sum())
        text = f"the plan repeats {quantity(wanted.sum() / total, '1')} of the prompt tokens, the server took "
        text += f"{quantity(took / total, '1')} from its cache: prefill works more than was meant"
        advice = "is its prefix cache on and large enough? do replicas share it? at the start nothing is cached yet"
        yield Finding("questionable", "cache_misses", text, share, advice)


def errors(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Failures leave the tables to the survivors; gates count them."""
    n, bad = len(m.columns), int(m.columns.missed.sum())
    if not bad:
        return
    kinds = error_kinds(m)
    text = f"{bad} of {n} requests failed ({', '.join(f'{kind} {count}' for kind, count in kinds.items())})"
    if bad == n:
        yield Finding("invalid", "all_failed", text, 1.0, "see the errors: no latency was measured")
        return
    most: Severity = "questionable" if bad <= n / 2 else "invalid"  # the few that survive a collapse tell nothing of it
    severity = rule.at_most(most, rule.of_share(bad / n))
    yield Finding(severity, "errors", text, bad / n, "latencies are those of the requests that survived")


def error_kinds(m: Measured) -> dict[str, int]:
    """Failed and cancelled requests of the window by kind of error, the most frequent first."""
    codes = m.requests.error_kind[m.columns.rows[m.columns.missed]]
    words = m.requests.words["error_kind"]
    counts = {"unknown" if code < 0 else words[code]: int((codes == code).sum()) for code in np.unique(codes)}
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def too_few_samples(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Percentiles that the number of requests cannot support."""
    n = int(m.columns.ok.sum())
    if n == 0:
        return
    lacking = [p for p in ("p50", "p90", "p95", "p99") if n < stats.needed(f.quantile_of(p) or 0.0)]
    if lacking:
        need = stats.needed(f.quantile_of(lacking[0]) or 0.0)
        text = (
            f"{n} request{'' if n == 1 else 's'} cannot support {', '.join(lacking)} (at least {need} for {lacking[0]})"
        )
        severity: Severity = "questionable" if "p50" in lacking else "info"
        yield Finding(severity, "too_few_samples", text, float(n), "ask for more requests or a longer run")


def faster_than_hardware(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Results that beat the roof of the named GPU and model: then one of the named facts is wrong."""
    c = m.columns.where(m.columns.streamed_ok & (m.columns.prompt_tokens > 0) & (m.columns.events > 1))
    floors = _floors(info.spec.get("roofline") or {}, c)
    if floors is None:
        return
    decode = stats.quantile((c.last_ns - c.first_ns) / 1e9 / (c.events - 1), 0.5)
    prefill = stats.quantile((c.first_ns - c.sent_ns) / 1e9, 0.5)
    for name, measured, floor in (("TTFT", prefill, floors[0]), ("time between events", decode, floors[1])):
        severity = rule.of_error(floor - measured, measured)
        if severity != "info":
            text = (
                f"median {name} is {quantity(measured, 's')}; the named hardware needs at least {quantity(floor, 's')}"
            )
            advice = "check --gpu, --gpus, --shape and --dtype; look for cached prompts or grouped tokens"
            yield Finding(rule.at_most("questionable", severity), "faster_than_hardware", text, measured, advice)
            return


def _floors(named: dict[str, Any], c: Columns) -> tuple[float, float] | None:
    """Least seconds of a prefill and of a decode step on the named hardware at full efficiency; None when unnamed."""
    from loadgen.roofline import catalog, passes, precision
    from loadgen.roofline import named as names

    if len(c) == 0 or not named.get("gpu") or not named.get("shape"):
        return None
    try:
        gpu, shape = names.find_gpu(named["gpu"]), catalog.shape(named["shape"])
        kinds = {kind: str(named.get(kind) or "") for kind in ("weights", "compute", "kv")}
        chosen = precision.dtypes(named.get("dtype") or "bf16", gpu, **kinds)
        where = passes.Deployment(gpu, int(named.get("gpus") or 1), shape, chosen)
        law = passes.step_law(where, passes.Efficiency(allreduce_s=0.0))
    except LoadgenError:
        return None  # hardware that this catalogue does not know has no floor
    fresh = max(round(float(np.median(c.prompt_tokens - np.nan_to_num(c.cached_tokens)))), 1)
    seen = passes.context_seen(law, float(np.median(c.prompt_tokens)))
    return passes.prefill_pass(law, fresh).time_s, passes.decode_pass(law, 1, seen).time_s


def invariants(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Identities that hold for every run; one that does not is a fault of the tool, and no figure can be believed."""
    c = m.columns.where(m.columns.streamed_ok)
    gap = f.ttft(c) + np.nan_to_num(f.tpot(c)) * np.maximum(c.streamed - 1.0, 0.0) - f.e2e(c)
    split = float(np.abs(gap[c.streamed >= 2]).max(initial=0.0))
    if split > 1e-6:
        yield _broken("invariant_e2e", f"e2e differs from ttft + tpot * (N - 1) by {quantity(split, 's')}", split)
    mean, peak = (number(m, "output_tokens_per_s", stat) for stat in ("rate", "max"))
    if peak < mean * (1.0 - 1e-9):
        yield _broken(
            "invariant_rate",
            f"the peak rate {significant(peak)} is below the mean {significant(mean)} tokens/s",
            peak / mean,
        )
    counted = c.where(~np.isnan(c.output_tokens))
    hidden = np.nan_to_num(counted.reasoning_tokens)
    off = np.maximum(counted.streamed - counted.output_tokens, counted.output_tokens - hidden - counted.streamed)
    off = np.maximum(off, 0.0)
    if off.any():
        share = float(off.sum() / max(counted.output_tokens.sum(), 1.0))
        text = f"events carry {quantity(share, '1')} other tokens than the requests count"
        yield Finding(
            rule.of_share(share), "tokens_not_conserved", text, share, "per-token figures are off by that much"
        )


def _broken(code: str, text: str, value: float) -> Finding:
    return Finding("invalid", code, text, value, "this is a bug in loadgen: please report it with the run")


CHECKS = (
    invariants,
    errors,
    bursts,
    output_shorter,
    output_longer,
    prompt_tokens,
    counts_disagree,
    cache_hits,
    cache_misses,
    faster_than_hardware,
    too_few_samples,
)
