"""The loops of `serving_fast`: the scheduler of `serving.Engine` over flat arrays.

Knows: the scheduling rules, request by request. Must not know: numba - these are plain functions, which `serving_fast`
compiles together with the functions of `passes` that they call - nor where the load came from.
Why: kept apart so that the rules can be read beside `serving.Engine`, whose mirror they are: running sequences first,
then the queue, preemption from the end of the batch. They run uncompiled too, only slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

# Under these names for `trace_kernel`, too: `serving_fast` compiles them in place.
from loadgen.roofline.passes import StepLaw
from loadgen.roofline.passes import combine as combine
from loadgen.roofline.passes import context_seen as context_seen
from loadgen.roofline.passes import step_parts as step_parts
from loadgen.roofline.passes import visible_pairs as visible_pairs
from loadgen.roofline.serving_state import FREE as FREE
from loadgen.roofline.serving_state import FRESH, HIDDEN, PREEMPTED, STACK
from loadgen.roofline.serving_state import HEAD as HEAD
from loadgen.roofline.serving_state import RUNNING as RUNNING
from loadgen.roofline.serving_state import TAIL as TAIL
from loadgen.roofline.serving_state import Floats as Floats
from loadgen.roofline.serving_state import Ints as Ints
from loadgen.roofline.serving_state import Knobs as Knobs
from loadgen.roofline.serving_state import State as State

# In the order of calls, lowest first: what has to be compiled, and in which order.
COMPILED = (
    "step_parts",
    "combine",
    "visible_pairs",
    "context_seen",
    "lacking",
    "extend",
    "plan_running",
    "plan_waiting",
    "plan_step",
    "work",
    "price",
    "stamp",
    "stamp_fresh",
    "advance",
    "barred",
    "next_change",
    "coasting_chunk",
    "more_blocks",
    "coasting_steps",
    "coast",
    "arrive",
    "opening",
    "idle_until",
)


def lacking(k: Knobs, s: State, i: int, tokens: int) -> int:
    """Blocks that request i needs to hold so many tokens in all, beyond those that it has."""
    if tokens <= s.blocks[i] * k.block_tokens:
        return 0
    return int(-(-tokens // k.block_tokens) - s.blocks[i])


def extend(k: Knobs, s: State, i: int, tokens: int) -> bool:
    """Hold blocks for `tokens` more of request i, if there are any."""
    missing = lacking(k, s, i, s.computed[i] + tokens)
    if missing > s.at[FREE]:
        return False
    s.at[FREE] -= missing
    s.blocks[i] += missing
    return True


def plan_running(k: Knobs, s: State, budget: int) -> int:
    """Give running sequences their tokens, preempting from the end; the budget left, -1 after a preemption."""
    place = 0
    preempted = False
    while budget > 0 and place < s.at[RUNNING]:
        i = s.running[place]
        behind = s.prompt[i] + s.generated[i] - s.computed[i]
        tokens = behind
        if s.generated[i] > 0 and behind == 1:
            tokens = 1 + min(k.draft_tokens, s.output[i] - s.generated[i] - 1)
        tokens = min(tokens, budget)
        while not extend(k, s, i, tokens):
            preempted = True
            s.at[RUNNING] -= 1
            victim = s.running[s.at[RUNNING]]
            s.at[FREE] += s.blocks[victim]
            s.blocks[victim] = s.computed[victim] = s.prefilled[victim] = 0
            s.stack[s.at[STACK]] = victim
            s.at[STACK] += 1
            s.at[PREEMPTED] += 1
            if victim == i:
                return -1
        s.plan[place] = tokens
        budget -= tokens
        place += 1
    for rest in range(place, s.at[RUNNING]):
        s.plan[rest] = 0
    return -1 if preempted else budget


def plan_waiting(k: Knobs, s: State, now: float, budget: int) -> None:
    """Admit from the queue while the budget, the places and the memory last."""
    admitted = 0
    while s.at[RUNNING] < s.running.size and admitted < k.prompts and (k.chunked == 0 or budget > 0):
        if s.at[STACK] > 0:
            i = s.stack[s.at[STACK] - 1]
        elif s.at[HEAD] < s.at[TAIL] and s.ready[s.queue[s.at[HEAD]]] <= now:
            i = s.queue[s.at[HEAD]]
        else:
            return
        known = s.prompt[i] + s.generated[i]
        if k.chunked == 0 and admitted > 0 and known > budget:
            return
        s.computed[i] = s.prefilled[i]
        tokens = known - s.computed[i]
        if k.chunked == 1:
            tokens = min(tokens, budget)
        missing = lacking(k, s, i, s.computed[i] + tokens)
        keep = k.watermark if s.at[RUNNING] > 0 else 0
        if missing > 0 and missing + keep > s.at[FREE]:
            s.computed[i] = 0
            return
        s.at[FREE] -= missing
        s.blocks[i] += missing
        if s.at[STACK] > 0:
            s.at[STACK] -= 1
        else:
            s.at[HEAD] += 1
        s.running[s.at[RUNNING]] = i
        s.plan[s.at[RUNNING]] = tokens
        s.at[RUNNING] += 1
        admitted += 1
        budget -= tokens


def plan_step(k: Knobs, s: State, now: float) -> None:
    """Fill `plan` for the next step: running sequences first, then the queue (unchunked: new prompts alone)."""
    if k.chunked == 1:
        budget = plan_running(k, s, k.token_budget)
        if budget > 0:
            plan_waiting(k, s, now, budget)
        return
    before = s.at[RUNNING]
    plan_waiting(k, s, now, k.token_budget)
    if s.at[RUNNING] > before:
        for place in range(before):
            s.plan[place] = 0
    else:
        plan_running(k, s, k.max_sequences * (1 + k.draft_tokens))


def work(law: StepLaw, s: State) -> tuple[float, float, float, float, float, float, float]:
    """What the planned step does: the arguments of `passes.step_parts`, in its order."""
    decodes = decode_tokens = prefill_tokens = finishing = 0
    kv_read = decode_pairs = prefill_pairs = 0.0
    for place in range(s.at[RUNNING]):
        tokens = s.plan[place]
        if tokens == 0:
            continue
        i = s.running[place]
        behind = s.prompt[i] + s.generated[i] - s.computed[i]
        if s.generated[i] > 0 and behind == 1:
            seen = context_seen(law, s.computed[i] + 1.0)
            decodes += 1
            decode_tokens += tokens
            kv_read += seen
            decode_pairs += tokens * seen
        else:
            prefill_tokens += tokens
            finishing += int(tokens == behind)
            prefill_pairs += visible_pairs(law, float(s.computed[i]), float(tokens))
    sampled = float(decode_tokens + finishing)
    return float(decodes), float(decode_tokens), float(prefill_tokens), sampled, kv_read, decode_pairs, prefill_pairs


def price(law: StepLaw, k: Knobs, s: State) -> float:
    """Seconds of the planned step."""
    load = work(law, s)
    compute, weights, kv, attention, communication, overhead = step_parts(law, *load)
    seconds = combine(law, compute, weights, kv, attention, communication, overhead)
    return float(seconds + k.draft_tokens * k.draft_token_s * (load[0] > 0))


def stamp(s: State, i: int, end: float) -> None:
    """A token of request i reaches its client."""
    if math.isnan(s.first[i]):
        s.first[i] = end
    elif not s.gap[i] >= end - s.last[i]:
        s.gap[i] = end - s.last[i]
    s.last[i] = end


def stamp_fresh(s: State, end: float) -> int:
    """What is fresh reaches the clients; how many requests that finishes."""
    for place in range(s.at[FRESH]):
        stamp(s, s.fresh[place], end)
    finished = s.at[HIDDEN]
    s.at[FRESH] = s.at[HIDDEN] = 0
    return int(finished)


def advance(k: Knobs, s: State, end: float) -> int:
    """Hand out the step's tokens at `end`, drop what is finished from the batch; how many clients have it all."""
    over = stamp_fresh(s, end)
    kept = 0
    for place in range(s.at[RUNNING]):
        i = s.running[place]
        tokens = s.plan[place]
        behind = s.prompt[i] + s.generated[i] - s.computed[i]
        got = 0
        if tokens > 0 and s.generated[i] > 0 and behind == 1:
            got = 1
            while got < tokens and np.random.random() < k.acceptance:
                got += 1
            s.computed[i] += got
        elif tokens > 0:
            s.computed[i] += tokens
            got = int(tokens == behind)
        if got > 0:
            s.generated[i] += got
            s.fresh[s.at[FRESH]] = i
            s.at[FRESH] += 1
        if s.generated[i] == s.output[i]:
            s.at[FREE] += s.blocks[i]
            s.at[HIDDEN] += 1
        else:
            s.running[kept] = i
            kept += 1
    s.at[RUNNING] = kept
    if k.late == 0 or kept == 0:
        over += stamp_fresh(s, end)
    return int(over)


def barred(k: Knobs, s: State, i: int) -> bool:
    """Whether request i, the first in line, has no room beside the batch: as long as nobody there ends, it has none."""
    tokens = s.prompt[i] + s.generated[i] - s.prefilled[i]
    if k.chunked == 1:
        tokens = min(tokens, k.token_budget - s.at[RUNNING])
    missing = lacking(k, s, i, s.prefilled[i] + tokens)
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
        context += context_seen(law, float(reads))
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
        missing += lacking(k, s, i, s.computed[i] + (steps if place < decoding else steps * chunk))
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
            pairs = visible_pairs(law, read + steps * p, p)
        compute, weights, kv, attention, communication, overhead = step_parts(law, b, b, p, b, context, context, pairs)
        seconds = combine(law, compute, weights, kv, attention, communication, overhead)
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
        s.blocks[i] += lacking(k, s, i, s.computed[i])
        if place < decoding:
            s.generated[i] += steps
            gap = max(first_end - s.last[i], longest)
            if not s.gap[i] >= gap:
                s.gap[i] = gap
            s.last[i] = now
    return now, steps, chunk


def arrive(k: Knobs, s: State, i: int, sent: float) -> None:
    """Request i is sent: put it into the queue by the time that the scheduler will see it."""
    s.sent[i] = sent
    s.ready[i] = sent + k.request_s + k.prompt_token_s * s.prompt[i]
    slot = s.at[TAIL]
    while slot > s.at[HEAD] and s.ready[s.queue[slot - 1]] > s.ready[i]:
        s.queue[slot] = s.queue[slot - 1]
        slot -= 1
    s.queue[slot] = i
    s.at[TAIL] += 1


def opening(starts: Floats) -> tuple[int, float]:
    """How many requests have a time to be sent at, and the last of these times."""
    known = 0
    while known < starts.size and starts[known] >= 0.0:
        known += 1
    if known > 0:
        return known, starts[known - 1]
    return known, 0.0


def idle_until(s: State, starts: Floats, sent: int) -> float:
    """When an idle engine has something to do again: a request is ready, or the next one is sent."""
    later = math.inf
    if s.at[HEAD] < s.at[TAIL]:
        later = s.ready[s.queue[s.at[HEAD]]]
    if sent < starts.size and starts[sent] < later:
        later = starts[sent]
    return later


def main_loop(law_digest: int) -> Callable[..., int]:
    """The main loop, with the digest of the law in its closure and so in numba's cache key.

    `starts`: when each request is sent, nan for those that wait for a user to be free; the loop fills these in.
    """

    def run(law: StepLaw, k: Knobs, s: State, starts: Floats, seed: int) -> int:
        np.random.seed(seed + 0 * law_digest)
        n = starts.size
        s.at[FREE] = k.blocks
        sent = steps = done = int(s.at[PREEMPTED])  # 0, but not as a literal, as in `trace_kernel`
        now = 0.0
        known, opened = opening(starts)
        while done < n:
            while sent < n and starts[sent] <= now:
                arrive(k, s, sent, starts[sent])
                sent += 1
            plan_step(k, s, now)
            if s.at[RUNNING] == 0:
                now = max(now, idle_until(s, starts, sent))
                continue
            now += price(law, k, s)
            steps += 1
            finished = advance(k, s, now)
            done += finished
            for user in range(min(finished, n - known)):  # closed loop: each of them sends the next one
                starts[known + user] = max(now + k.turnaround_s, opened)
            known += min(finished, n - known)
            while sent < n and starts[sent] <= now:
                arrive(k, s, sent, starts[sent])
                sent += 1
            arrival = math.inf
            if sent < n and starts[sent] >= 0.0:
                arrival = starts[sent]
            now, more, _ = coast(law, k, s, now, arrival)
            steps += more
        return steps

    return run
