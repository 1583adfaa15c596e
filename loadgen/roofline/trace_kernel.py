"""The loops of `fit_trace`: the compiled engine's main loop again, writing down what its steps did.

Knows: which steps a request waited or decoded through, and what those steps worked on. Must not know: parameters,
cells or numba (`serving_fast` compiles these plain functions together with the kernel's).
Why: a mean TTFT or TPOT is a weighted sum of step times. In a closed loop the steps hardly depend on what they cost, so
the weights are found once and a fit then prices a few dozen kinds of step instead of simulating thousands of requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from loadgen.roofline import serving_kernel as kernel
from loadgen.roofline.passes import StepLaw
from loadgen.roofline.serving_kernel import HEAD, RUNNING, TAIL, Floats, Ints, Knobs, State

FEATURES = 7  # the arguments of `passes.step_parts` after the law, in its order
TTFT, ITL = 0, 1
_EXACT = 8  # token counts up to here have kinds of their own, larger ones share one within 17 %
KINDS = 120


def trace_loop(law_digest: int) -> Callable[..., float]:
    """The tracing loop, with the digest of the kernel in its closure and so in numba's cache key."""

    def run(
        law: StepLaw, k: Knobs, s: State, starts: Floats, skip: int, kinds: Ints, table: Floats, totals: Floats
    ) -> float:
        """Fill `table[metric, kind]` with (weight, weight * features); `kinds` finds the row of a kind of step.

        `totals`: rows used, seconds that requests sat in an idle engine (mean per request), steps, sequence-steps.
        """

        def slot(tokens: float) -> int:  # the kind of a token count
            if tokens <= _EXACT:
                return int(tokens)
            return min(KINDS - 1, _EXACT + int(math.log(tokens / _EXACT) * 6.0))

        n = starts.size
        s.at[kernel.FREE] = k.blocks
        sent = done = rows = waiting = last = 0
        now = before = decoding = seconds = 0.0
        known = fresh = 0
        fresh_decoding = opened = 0.0
        while known < n and starts[known] >= 0.0:
            known += 1
        if known > 0:
            opened = starts[known - 1]
        several = max(1, int(np.sum(s.output[skip:] > 1)))
        n_counted = n - skip
        while done < n:
            while sent < n and starts[sent] <= now:
                kernel.arrive(k, s, sent, starts[sent])
                if (
                    sent >= skip and starts[sent] < now and seconds > 0
                ):  # in the middle of steps: their rest was waited for
                    part = (now - starts[sent]) / seconds / n_counted
                    weight = table[2, last, 0]
                    table[TTFT, last, 0] += part
                    table[TTFT, last, 1:] += part / weight * table[2, last, 1:]
                if sent >= skip:
                    waiting += 1
                sent += 1
            kernel.plan_step(k, s, now)
            if s.at[RUNNING] == 0:
                later = math.inf
                if s.at[HEAD] < s.at[TAIL]:
                    later = s.ready[s.queue[s.at[HEAD]]]
                if sent < n and starts[sent] < later:
                    later = starts[sent]
                totals[1] += waiting * max(0.0, later - now) / n_counted
                now = max(now, later)
                seconds = 0.0
                continue
            load = kernel.work(law, s)
            parts = kernel.step_parts(law, *load)
            seconds = kernel.combine(law, *parts)
            now += seconds
            key_d, key_p = slot(load[1]), slot(load[2])
            if kinds[key_d, key_p] < 0:
                kinds[key_d, key_p] = rows
                rows += 1
            last = kinds[key_d, key_p]
            for metric in range(3):
                weight = 1.0
                if metric == TTFT:
                    weight = waiting / n_counted
                elif metric == ITL:
                    weight = decoding / several
                table[metric, last, 0] += weight
                for feature in range(FEATURES):
                    table[metric, last, 1 + feature] += weight * load[feature]
            totals[2] += 1.0
            totals[3] += load[0]
            waiting -= fresh
            decoding += fresh_decoding
            fresh = 0
            fresh_decoding = 0.0
            for place in range(s.at[RUNNING]):
                i = s.running[place]
                if i < skip:
                    continue
                tokens = s.plan[place]
                if tokens == 0 or tokens < s.prompt[i] + s.generated[i] - s.computed[i]:
                    continue
                if s.generated[i] == 0:
                    fresh += 1
                    if s.output[i] > 1:
                        fresh_decoding += 1.0 / (s.output[i] - 1)
                elif s.generated[i] == s.output[i] - 1:
                    fresh_decoding -= 1.0 / (s.output[i] - 1)
            over = kernel.advance(k, s, now)
            if k.late == 0 or s.at[RUNNING] == 0:
                waiting -= fresh
                decoding += fresh_decoding
                fresh = 0
                fresh_decoding = 0.0
            done += over
            for user in range(min(over, n - known)):
                starts[known + user] = max(now + k.turnaround_s, opened)
            known += min(over, n - known)
            if sent < n and starts[sent] <= now:
                continue
            arrival = math.inf
            if sent < n and starts[sent] >= 0.0:
                arrival = starts[sent]
            before = now
            now, more = kernel.coast(law, k, s, now, arrival)
            if more == 0:
                continue
            seconds = (now - before) / more
            batch = s.at[RUNNING]
            seen = 0.0
            for place in range(batch):
                middle = s.computed[s.running[place]] + 1.0 - (more + 1) / 2.0  # mean context of the steps just run
                seen += kernel.context_seen(law, middle)
            key_d = slot(float(batch))
            if kinds[key_d, 0] < 0:
                kinds[key_d, 0] = rows
                rows += 1
            last = kinds[key_d, 0]
            for metric in range(3):
                weight = 1.0 * more
                if metric == TTFT:
                    weight = more * waiting / n_counted
                elif metric == ITL:
                    weight = more * decoding / several
                row = table[metric, last]
                row[0] += weight
                row[1] += weight * batch
                row[2] += weight * batch
                row[4] += weight * batch
                row[5] += weight * seen
                row[6] += weight * seen
            totals[2] += more
            totals[3] += more * batch
        totals[0] = rows
        return now + 0 * law_digest

    return run


def pricing(law_digest: int) -> Callable[..., None]:
    """The function that prices rows of features, `passes` compiled in."""

    def run(law: StepLaw, features: Floats, out: Floats) -> None:
        for row in range(features.shape[0]):
            f = features[row]
            parts = kernel.step_parts(law, f[0], f[1], f[2], f[3], f[4], f[5], f[6])
            out[row] = kernel.combine(law, *parts) + 0 * law_digest

    return run


# What a step's time can be moved by: its derivative by the logarithm of each of these stands in the same column.
MOVERS = (
    "compute",
    "weights",
    "kv",
    "attention",
    "sharpness",
    "allreduce_token",
    "step",
    "sequence",
    "decode",
    "prefill",
)


def slopes(law_digest: int) -> Callable[..., None]:
    """The function that says how `combine` moves with its parts: d time / d log part, one column of MOVERS each.

    S = L (1 + u)^(1/p) with L the larger of compute and weights, u = (smaller / L)^p:
    d S / d log L = S / (1 + u), d S / d log smaller = S u / (1 + u),
    d S / d log p = S (u log(smaller / L) / (1 + u) - log(1 + u) / p)
    """

    def run(law: StepLaw, features: Floats, out: Floats) -> None:
        for row in range(features.shape[0]):
            f = features[row]
            compute, weights, kv, attention, communication, overhead = kernel.step_parts(
                law, f[0], f[1], f[2], f[3], f[4], f[5], f[6]
            )
            total = kernel.combine(law, compute, weights, kv, attention, communication, overhead)
            hidden = law.overlap > 0 and total <= overhead
            if not hidden:
                roof = kernel.combine(law, compute, weights, 0.0, 0.0, 0.0, 0.0)
                larger, smaller = max(compute, weights), min(compute, weights)
                u = 0.0
                if smaller > 0 and not math.isinf(law.sharpness):
                    ratio = smaller / larger
                    u = ratio**law.sharpness
                    out[row, 4] = roof * (u * math.log(ratio) / (1.0 + u) - math.log1p(u) / law.sharpness)
                strong, weak = roof / (1.0 + u), roof * u / (1.0 + u)
                out[row, 0] = strong if compute >= weights else weak
                out[row, 1] = weak if compute >= weights else strong
                out[row, 2], out[row, 3] = kv, attention
                out[row, 5] = communication - law.allreduce_s
            if hidden or law.overlap == 0:
                out[row, 6] = law.step_s
                out[row, 7] = law.sequence_s * f[0]
                if f[1] > 0:
                    out[row, 8] = law.decode_step_s
                out[row, 9] = law.prefill_token_s * f[2] + 0 * law_digest

    return run
