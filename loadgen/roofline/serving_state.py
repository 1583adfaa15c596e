"""What the compiled engine is handed: its knobs, and flat arrays for every request and every place in the batch.

Knows: the layout of the state. Must not know: the rules by which it changes (`serving_kernel`), or numba.
Why: arrays and plain tuples are what compiled code can hold; both loops over them share this one layout.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Knobs(NamedTuple):
    token_budget: int
    chunked: int
    max_sequences: int
    blocks: int
    block_tokens: int
    draft_tokens: int
    watermark: int  # blocks
    acceptance: float
    draft_token_s: float
    request_s: float
    prompt_token_s: float
    turnaround_s: float
    prompts: int  # that may start in one step
    late: int  # 1: a step's tokens reach the clients at the end of the next one


class State(NamedTuple):
    """Per request, then per place in the batch, then the counters `at`."""

    prompt: Ints
    output: Ints
    prefilled: Ints
    computed: Ints
    generated: Ints
    blocks: Ints
    sent: Floats
    ready: Floats
    first: Floats
    last: Floats
    gap: Floats
    queue: Ints  # requests by the time that the scheduler sees them; live between at[HEAD] and at[TAIL]
    stack: Ints  # preempted ones, the next to resume on top
    running: Ints
    plan: Ints  # tokens for running[i] in this step
    fresh: Ints  # requests with a token that is still to reach its client
    at: Ints


HEAD, TAIL, STACK, RUNNING, FREE, PREEMPTED, FRESH, HIDDEN = range(8)  # HIDDEN: finished, their last token fresh


def new_state(prompts: Ints, outputs: Ints, cached: Ints, places: int) -> State:
    n = prompts.size

    def zeros(size: int) -> Ints:
        return np.zeros(size, np.int64)

    def unknown() -> Floats:
        return np.full(n, np.nan)

    return State(
        prompts,
        outputs,
        cached.astype(np.int64),
        computed=zeros(n),
        generated=zeros(n),
        blocks=zeros(n),
        sent=unknown(),
        ready=unknown(),
        first=unknown(),
        last=unknown(),
        gap=unknown(),
        queue=zeros(n),
        stack=zeros(n),
        running=zeros(places),
        plan=zeros(places),
        fresh=zeros(places),
        at=zeros(8),
    )
