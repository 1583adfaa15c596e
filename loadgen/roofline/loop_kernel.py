"""The main loop of `serving_fast`, and how it gets through many steps that are alike at the cost of one.

Knows: when users send, and which steps are sure to be like those after them. Must not know: numba (`serving_fast`
compiles these plain functions together with the kernel's), or what a step's time is made of.
Why: most steps of a load point are alike - the same sequences decode, nobody comes and none ends - and all that such a
step costs is its price. What changes meanwhile, and when that ends, stands here; the rules are the kernel's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from loadgen.roofline import serving_kernel as kernel
from loadgen.roofline.passes import StepLaw
from loadgen.roofline.serving_kernel import FREE, HEAD, RUNNING, TAIL, Floats, Knobs, State
from loadgen.roofline.serving_state import FRESH, HIDDEN, PREEMPTED, STACK

COMPILED = ("barred", "next_change", "coasting_chunk", "more_blocks", "coasting_steps", "coast")


def barred(k: Knobs, s: State, i: int) -> bool:
    """Whether request i, the first in line, has no room beside the batch: as long as nobody there ends, it has none."""
    tokens = s.prompt[i] + s.generated[i] - s.prefilled[i]
    if k.chunked == 1:
        tokens = min(tokens, k.token_budget - s.at[RUNNING])
    missing = kernel.lacking(k, s, i, s.prefilled[i] + tokens)
    return bool(missing > 0 and missing + k.watermark > s.at[FREE])


def next_change(k: Knobs, s: State, now: float, arrival: float, chunk: int) -> float:
    """Until when nobody can be admitted while no sequence ends: now, if someone can be in the very next step."""
    if s.at[RUNNING] == s.running.size:
        return math.inf
    if chunk > 0:  # the budget is used up
        return arrival
    if s.at[STACK] > 0:
        return arrival if barred(k, s, s.stack[s.at[STACK] - 1]) else now
    if s.at[HEAD] < s.at[TAIL]:
        i = s.queue[s.at[HEAD]]
        if s.ready[i] <= now:
            return arrival if barred(k, s, i) else now
        arrival = min(arrival, s.ready[i])
    return arrival


def coasting_chunk(k: Knobs, s: State) -> int:
    """Prompt tokens that the last of the batch reads in every step to come, the others decoding; 0 if it decodes too.

    -1 where the next step is not like those after it.
    """
    batch = s.at[RUNNING]
    if batch == 0 or k.draft_tokens > 0:
        return -1
    i = s.running[batch - 1]
    behind = s.prompt[i] + s.generated[i] - s.computed[i]
    if behind == 1 and s.generated[i] > 0:
        return 0 if batch < k.token_budget else -1
    chunk = k.token_budget - batch + 1
    return int(chunk) if k.chunked == 1 and 0 < chunk < behind else -1


def coasting_steps(law: StepLaw, k: Knobs, s: State, chunk: int) -> tuple[int, float, float]:
    """Steps that are sure to be alike; context that the decoding sequences read in the first, and how it grows."""
    decoding = s.at[RUNNING] - (chunk > 0)
    spare = 2**40
    context = growth = 0.0
    if k.late > 0 and (s.at[HIDDEN] > 0 or s.at[FRESH] < decoding):
        return 0, 0.0, 0.0
    if chunk > 0:
        i = s.running[decoding]
        spare = (s.prompt[i] + s.generated[i] - s.computed[i] - 1) // chunk
    for place in range(decoding):
        i = s.running[place]
        if math.isnan(s.first[i]) or s.prompt[i] + s.generated[i] - s.computed[i] != 1:
            return 0, 0.0, 0.0
        spare = min(spare, s.output[i] - s.generated[i] - 1)
        reads = s.computed[i] + 1
        context += kernel.context_seen(law, float(reads))
        # With windows what is read grows in straight pieces: it bends where a window is full, or begins anew.
        if law.window_share > 0.0 and law.window_chunked > 0.0:
            spare = min(spare, int(law.window_tokens) - (reads - 1) % int(law.window_tokens))
        elif law.window_share > 0.0 and reads <= law.window_tokens:
            spare = min(spare, int(law.window_tokens) - reads + 1)
        bent = law.window_share > 0.0 and law.window_chunked == 0.0 and reads > law.window_tokens
        growth += 1.0 - law.window_share * bent
    while spare > 0 and more_blocks(k, s, spare, chunk) > s.at[FREE]:
        spare //= 2
    return int(spare), context, growth


def more_blocks(k: Knobs, s: State, steps: int, chunk: int) -> int:
    """Blocks that the batch needs beyond those it has to coast through so many steps."""
    missing = 0
    decoding = s.at[RUNNING] - (chunk > 0)
    for place in range(s.at[RUNNING]):
        i = s.running[place]
        missing += kernel.lacking(k, s, i, s.computed[i] + (steps if place < decoding else steps * chunk))
    return missing


def coast(law: StepLaw, k: Knobs, s: State, now: float, arrival: float) -> tuple[float, int, int]:
    """Repeat a step while nothing can change, at a cost that does not grow with the batch.

    Runs only where every step is sure to be alike: all sequences decode and none ends - but for the last, which may
    read its prompt in chunks that fill the budget -, memory suffices, and nobody can be admitted (none waits, or has no
    place or no memory) before `arrival`, the next request's. Returns (time, steps run, the last one's tokens in each).
    """
    chunk = coasting_chunk(k, s)
    if chunk < 0:
        return now, 0, 0
    until = next_change(k, s, now, arrival, chunk)
    if until <= now:
        return now, 0, 0
    spare, context, growth = coasting_steps(law, k, s, chunk)
    decoding = s.at[RUNNING] - (chunk > 0)
    reader = s.running[s.at[RUNNING] - 1]
    read = float(s.computed[reader])
    b, p = float(decoding), float(chunk)
    steps = 0
    first_end = longest = pairs = 0.0
    while steps < spare and now < until:
        if chunk > 0:
            pairs = kernel.visible_pairs(law, read + steps * p, p)
        compute, weights, kv, attention, communication, overhead = kernel.step_parts(
            law, b, b, p, b, context, context, pairs
        )
        seconds = kernel.combine(law, compute, weights, kv, attention, communication, overhead)
        now += seconds
        if steps == 0:
            first_end = now
        else:
            longest = max(longest, seconds)
        context += growth
        steps += 1
    if steps == 0:
        return now, 0, 0
    s.at[FREE] -= more_blocks(k, s, steps, chunk)
    for place in range(s.at[RUNNING]):
        i = s.running[place]
        s.computed[i] += steps if place < decoding else steps * chunk
        s.blocks[i] += kernel.lacking(k, s, i, s.computed[i])
        if place < decoding:
            s.generated[i] += steps
            gap = max(first_end - s.last[i], longest)
            if not s.gap[i] >= gap:
                s.gap[i] = gap
            s.last[i] = now
    return now, steps, chunk


def main_loop(law_digest: int) -> Callable[..., int]:
    """The main loop, with the digest of the law in its closure and so in numba's cache key.

    `starts`: when each request is sent, nan for those that wait for a user to be free; the loop fills these in.
    """

    def run(law: StepLaw, k: Knobs, s: State, starts: Floats, seed: int) -> int:
        np.random.seed(seed + 0 * law_digest)
        n = starts.size
        s.at[FREE] = k.blocks
        sent = steps = done = int(s.at[PREEMPTED])  # 0, but not as a literal, which would be a type of its own
        now = 0.0
        known, opened = kernel.opening(starts)
        while done < n:
            while sent < n and starts[sent] <= now:
                kernel.arrive(k, s, sent, starts[sent])
                sent += 1
            kernel.plan_step(k, s, now)
            if s.at[RUNNING] == 0:
                now = max(now, kernel.idle_until(s, starts, sent))
                continue
            now += kernel.price(law, k, s)
            steps += 1
            finished = kernel.advance(k, s, now)
            done += finished
            for user in range(min(finished, n - known)):  # closed loop: each of them sends the next one
                starts[known + user] = max(now + k.turnaround_s, opened)
            known += min(finished, n - known)
            while sent < n and starts[sent] <= now:
                kernel.arrive(k, s, sent, starts[sent])
                sent += 1
            arrival = math.inf
            if sent < n and starts[sent] >= 0.0:
                arrival = starts[sent]
            now, more, _ = coast(law, k, s, now, arrival)
            steps += more
        return steps

    return run
