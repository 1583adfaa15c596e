"""One step of `serving_fast`: the scheduler of `serving.Engine` over flat arrays.

Knows: the scheduling rules, request by request. Must not know: the loops over steps (`loop_kernel`), numba - these are
plain functions, which `serving_fast` compiles together with the functions of `passes` that they call - nor where the
load came from.
Why: kept apart so that the rules can be read beside `serving.Engine`, whose mirror they are: running sequences first,
then the queue, preemption from the end of the batch. They run uncompiled too, only slower.
"""

from __future__ import annotations

import math

import numpy as np

# Under these names for the loops, too: `serving_fast` compiles them in place.
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
