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

from loadgen.roofline import loop_kernel as loop
from loadgen.roofline import serving_kernel as kernel
from loadgen.roofline.passes import StepLaw
from loadgen.roofline.serving_kernel import RUNNING, Floats, Ints, Knobs, State

FEATURES = 7  # the arguments of `passes.step_parts` after the law, in its order
TTFT, ITL, STEPS = 0, 1, 2
_EXACT = 8  # token counts up to here have kinds of their own, larger ones share one within 17 %
KINDS = 120
# Of the counters: kinds used; requests before their first token; sequences decoding, each over its answer's length;
# and both for tokens that are still to reach their clients.
ROWS, WAITING, DECODING, FRESH, FRESH_DECODING = range(5)
Work = tuple[float, float, float, float, float, float, float]  # of a step, as `serving_kernel.work` says it
COMPILED = ("slot", "note", "partly", "meet", "hand_out", "count_fresh", "coasted", "answering")


def slot(tokens: float) -> int:
    """The kind of a token count."""
    if tokens <= _EXACT:
        return int(tokens)
    return min(KINDS - 1, _EXACT + int(math.log(tokens / _EXACT) * 6.0))


def note(kinds: Ints, table: Floats, c: Floats, load: Work, steps: float, requests: int, answers: int) -> int:
    """Write down steps of one kind with the weights that they have in a mean request; the kind's row."""
    key_d, key_p = slot(load[1]), slot(load[2])
    if kinds[key_d, key_p] < 0:
        kinds[key_d, key_p] = int(c[ROWS])
        c[ROWS] += 1.0
    row = kinds[key_d, key_p]
    for metric in range(3):
        weight = steps
        if metric == TTFT:
            weight = steps * c[WAITING] / requests
        elif metric == ITL:
            weight = steps * c[DECODING] / answers
        table[metric, row, 0] += weight
        for feature in range(FEATURES):
            table[metric, row, 1 + feature] += weight * load[feature]
    return int(row)


def partly(table: Floats, row: int, part: float) -> None:
    """A request waited for a part of a step of this kind: of what such steps are in the mean."""
    table[TTFT, row, 0] += part
    for feature in range(1, 1 + FEATURES):
        table[TTFT, row, feature] += part / table[STEPS, row, 0] * table[STEPS, row, feature]


def meet(
    k: Knobs,
    s: State,
    starts: Floats,
    sent: int,
    skip: int,
    now: float,
    seconds: float,
    table: Floats,
    row: int,
    c: Floats,
) -> int:
    """Requests that were sent in the step just run: they waited for its rest. How many are sent now."""
    n = starts.size
    while sent < n and starts[sent] <= now:
        kernel.arrive(k, s, sent, starts[sent])
        if sent >= skip:
            if starts[sent] < now and seconds > 0:
                partly(table, row, (now - starts[sent]) / seconds / (n - skip))
            c[WAITING] += 1.0
        sent += 1
    return sent


def hand_out(c: Floats) -> None:
    """Tokens reach their clients: those who had none wait no longer, and decode."""
    c[WAITING] -= c[FRESH]
    c[DECODING] += c[FRESH_DECODING]
    c[FRESH] = c[FRESH_DECODING] = 0.0


def count_fresh(s: State, skip: int, c: Floats) -> None:
    """Whose first and whose last token the planned step makes."""
    for place in range(s.at[kernel.RUNNING]):
        i = s.running[place]
        tokens = s.plan[place]
        if i < skip or tokens == 0 or tokens < s.prompt[i] + s.generated[i] - s.computed[i]:
            continue
        if s.generated[i] == 0:
            c[FRESH] += 1.0
            if s.output[i] > 1:
                c[FRESH_DECODING] += 1.0 / (s.output[i] - 1)
        elif s.generated[i] == s.output[i] - 1:
            c[FRESH_DECODING] -= 1.0 / (s.output[i] - 1)


def coasted(law: StepLaw, s: State, steps: int, chunk: int) -> Work:
    """What each of the steps just coasted through did, in the mean; `chunk`: prompt tokens of the batch's last."""
    decoding = s.at[kernel.RUNNING] - (chunk > 0)
    seen = pairs = 0.0
    for place in range(decoding):
        middle = s.computed[s.running[place]] + 1.0 - (steps + 1) / 2.0
        seen += kernel.context_seen(law, middle)
    if chunk > 0:
        read = float(steps * chunk)
        pairs = kernel.visible_pairs(law, s.computed[s.running[decoding]] - read, read) / steps
    b = float(decoding)
    return b, b, float(chunk), b, seen, seen, pairs


def answering(s: State, skip: int) -> int:
    """Requests with an ITL, at least 1."""
    answers = 0
    for i in range(skip, s.output.size):
        answers += s.output[i] > 1
    return max(1, answers)


def trace_loop(law_digest: int) -> Callable[..., float]:
    """The tracing loop, with the digest of the kernel in its closure and so in numba's cache key."""

    def run(
        law: StepLaw, k: Knobs, s: State, starts: Floats, skip: int, kinds: Ints, table: Floats, totals: Floats
    ) -> float:
        """Fill `table[metric, kind]` with (weight, weight * features); `kinds` finds the row of a kind of step.

        `totals`: rows used, seconds that requests sat in an idle engine (mean per request), steps, sequence-steps.
        """
        n, requests = starts.size, starts.size - skip
        answers = answering(s, skip)
        s.at[kernel.FREE] = k.blocks
        c = np.zeros(5)
        # 0, but not as a literal: that would be a type of its own, and all that it is passed to compiled twice.
        sent = done = row = int(totals[0])
        now = seconds = 0.0
        known, opened = kernel.opening(starts)
        while done < n:
            sent = meet(k, s, starts, sent, skip, now, seconds, table, row, c)
            kernel.plan_step(k, s, now)
            if s.at[RUNNING] == 0:
                later = kernel.idle_until(s, starts, sent)
                totals[1] += c[WAITING] * max(0.0, later - now) / requests
                now = max(now, later)
                seconds = 0.0
                continue
            load = kernel.work(law, s)
            compute, weights, kv, attention, communication, overhead = kernel.step_parts(law, *load)
            seconds = kernel.combine(law, compute, weights, kv, attention, communication, overhead)
            now += seconds
            row = note(kinds, table, c, load, 1.0, requests, answers)
            totals[2] += 1.0
            totals[3] += load[0]
            hand_out(c)
            count_fresh(s, skip, c)
            over = kernel.advance(k, s, now)
            if k.late == 0 or s.at[RUNNING] == 0:
                hand_out(c)
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
            now, more, chunk = loop.coast(law, k, s, now, arrival)
            if more > 0:
                seconds = (now - before) / more
                load = coasted(law, s, more, chunk)
                row = note(kinds, table, c, load, float(more), requests, answers)
                totals[2] += more
                totals[3] += more * load[0]
        totals[0] = c[ROWS]
        return now + 0 * law_digest

    return run


def pricing(law_digest: int) -> Callable[..., None]:
    """The function that adds up the seconds of weighted rows of features, `passes` compiled in."""

    def run(law: StepLaw, rows: Floats, weights: Floats, owner: Ints, out: Floats) -> None:
        """out[owner[row]] += weight * seconds."""
        for row in range(rows.shape[0]):
            f = rows[row]
            parts = kernel.step_parts(law, f[0], f[1], f[2], f[3], f[4], f[5], f[6])
            out[owner[row]] += weights[row] * (kernel.combine(law, *parts) + 0 * law_digest)

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
    """The function that says how weighted sums of `combine` move with its parts: d time / d log part, by MOVERS.

    S = L (1 + u)^(1/p) with L the larger of compute and weights, u = (smaller / L)^p:
    d S / d log L = S / (1 + u), d S / d log smaller = S u / (1 + u),
    d S / d log p = S (u log(smaller / L) / (1 + u) - log(1 + u) / p)
    """

    def run(law: StepLaw, rows: Floats, weights: Floats, owner: Ints, out: Floats) -> None:
        """out[owner[row], mover] += weight * slope."""
        for row in range(rows.shape[0]):
            f, to, weight = rows[row], out[owner[row]], weights[row]
            compute, read, kv, attention, communication, overhead = kernel.step_parts(
                law, f[0], f[1], f[2], f[3], f[4], f[5], f[6]
            )
            larger, smaller = max(compute, read), min(compute, read)
            roof, u = larger, 0.0
            if smaller > 0 and not math.isinf(law.sharpness):
                ratio = smaller / larger
                u = ratio**law.sharpness
                roof = larger * (1.0 + u) ** (1.0 / law.sharpness)
            hidden = law.overlap > 0 and roof + kv + attention + communication <= overhead
            if not hidden:
                if u > 0:
                    to[4] += weight * roof * (u * math.log(ratio) / (1.0 + u) - math.log1p(u) / law.sharpness)
                strong, weak = roof / (1.0 + u), roof * u / (1.0 + u)
                to[0] += weight * (strong if compute >= read else weak)
                to[1] += weight * (weak if compute >= read else strong)
                to[2] += weight * kv
                to[3] += weight * attention
                to[5] += weight * (communication - law.allreduce_s)
            if hidden or law.overlap == 0:
                to[6] += weight * law.step_s
                to[7] += weight * law.sequence_s * f[0]
                if f[1] > 0:
                    to[8] += weight * law.decode_step_s
                to[9] += weight * (law.prefill_token_s * f[2] + 0 * law_digest)

    return run
