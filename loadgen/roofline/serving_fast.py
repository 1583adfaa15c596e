"""The serving engine of `serving`, compiled: whole load points in milliseconds, for fits and planning.

Knows: the same scheduling rules over arrays, and closed and open loop. Must not know: prefix hashes (a request's cached
tokens are given instead), HTTP or real clocks.
Why: a fit simulates thousands of load points. The cost of a step is not written again: the functions of `passes` are
compiled as they are, and a test holds that every request of a random load gets the same times from both engines.

numba is imported by this file alone. Compiled code is cached beside the file or in the user's cache where possible; the
cache key includes a digest of the law's functions, because numba does not notice changes in what a function calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from loadgen.errors import UsageError
from loadgen.roofline import loop_kernel, trace_kernel
from loadgen.roofline import serving_kernel as kernel
from loadgen.roofline.passes import StepLaw
from loadgen.roofline.serving import WATERMARK, EngineConfig
from loadgen.roofline.serving_kernel import Floats, Ints
from loadgen.roofline.serving_state import PREEMPTED, new_state


@dataclass(frozen=True, slots=True)
class Served:
    """What the clients of a simulated load saw: one entry per request, seconds from the start, nan if it never ran."""

    prompt_tokens: Ints
    output_tokens: Ints
    sent_s: Floats
    first_s: Floats  # first token
    last_s: Floats  # last token
    max_gap_s: Floats  # longest time between two of its token events; nan with one event
    steps: int
    preemptions: int

    @property
    def ttft_s(self) -> Floats:
        """First token - sent."""
        return self.first_s - self.sent_s

    @property
    def e2e_s(self) -> Floats:
        """Last token - sent."""
        return self.last_s - self.sent_s

    @property
    def tpot_s(self) -> Floats:
        """(last - first token) / (tokens - 1); nan for one token."""
        steps = np.where(self.output_tokens > 1, self.output_tokens - 1.0, np.nan)
        return (self.last_s - self.first_s) / steps


def simulate_closed(
    config: EngineConfig,
    concurrency: int,
    prompt_tokens: npt.ArrayLike,
    output_tokens: npt.ArrayLike,
    *,
    cached_tokens: npt.ArrayLike = 0,
    stagger_s: float = 0.0,
    turnaround_s: float = 0.0,
    seed: int = 0,
) -> Served:
    """A closed loop: `concurrency` users, each sends its next request when its last has ended.

    Args:
        config: the engine.
        concurrency: users.
        prompt_tokens: one per request, in the order of sending.
        output_tokens: one per request.
        cached_tokens: leading prompt tokens of each request that need no prefill; one per request, or one for all.
        stagger_s: the users' first requests are spread evenly over this time; 0 is the opening burst. A user who is
            done before all have started waits until they have.
        turnaround_s: between a user's last token and his next request. Any real client has some: the next step has
            then begun, and the request waits for its end; at 0 it is in that step already.
        seed: for the acceptance of drafted tokens.
    """
    prompts = np.atleast_1d(np.asarray(prompt_tokens, np.int64))
    first = min(max(1, int(concurrency)), prompts.size)
    starts = np.full(prompts.size, np.nan)
    starts[:first] = np.arange(first) * (stagger_s / first)
    return _simulate(config, starts, prompts, output_tokens, cached_tokens, seed, turnaround_s)


def simulate_open(
    config: EngineConfig,
    arrivals_s: npt.ArrayLike,
    prompt_tokens: npt.ArrayLike,
    output_tokens: npt.ArrayLike,
    *,
    cached_tokens: npt.ArrayLike = 0,
    seed: int = 0,
) -> Served:
    """An open loop: requests arrive at given times (ascending) whatever the server does. Arguments as above."""
    starts = np.atleast_1d(np.asarray(arrivals_s, np.float64))
    if starts.size and (np.any(np.diff(starts) < 0) or not np.all(np.isfinite(starts))):
        raise UsageError("arrival times must be finite and ascending")
    prompts = np.broadcast_to(np.asarray(prompt_tokens, np.int64), starts.shape).copy()
    return _simulate(config, starts, prompts, output_tokens, cached_tokens, seed)


def _simulate(
    config: EngineConfig,
    starts: Floats,
    prompts: Ints,
    outputs: npt.ArrayLike,
    cached: npt.ArrayLike,
    seed: int,
    turnaround_s: float = 0.0,
) -> Served:
    knobs, state = prepare(config, prompts, outputs, cached, turnaround_s)
    law = StepLaw(*(float(value) for value in config.law))
    steps = compiled(loop_kernel.main_loop)(law, knobs, state, starts.copy(), seed)
    return Served(
        prompts,
        state.output,
        state.sent,
        state.first,
        state.last,
        state.gap,
        int(steps),
        int(state.at[PREEMPTED]),
    )


def prepare(
    config: EngineConfig, prompts: Ints, outputs: npt.ArrayLike, cached: npt.ArrayLike, turnaround_s: float = 0.0
) -> tuple[kernel.Knobs, kernel.State]:
    """The kernel's view of an engine and of the requests that it will get.

    Raises:
        UsageError: a request without tokens, or one that exceeds the KV cache.
    """
    wanted = np.broadcast_to(np.asarray(outputs, np.int64), prompts.shape).copy()
    blocks = 2**60 if config.blocks is None else config.blocks
    knobs = kernel.Knobs(
        config.token_budget,
        int(config.chunked),
        config.max_sequences,
        blocks,
        config.block_tokens,
        config.draft_tokens,
        0 if config.blocks is None else int(WATERMARK * blocks),
        config.acceptance,
        config.draft_token_s,
        config.request_s,
        config.prompt_token_s,
        turnaround_s,
        config.prompts_per_step or 2**40,
        int(config.late_tokens),
    )
    if prompts.size and min(prompts.min(), wanted.min()) < 1:
        raise UsageError("a request needs at least one prompt token and one output token")
    if np.any(-(-(prompts + wanted - 1) // config.block_tokens) > knobs.blocks):
        raise UsageError("a request exceeds the engine's KV cache")
    state = new_state(prompts, wanted, np.minimum(cached, prompts - 1), min(config.max_sequences, max(1, prompts.size)))
    return knobs, state


@cache
def compiled(factory: Callable[[int], Callable[..., Any]]) -> Callable[..., Any]:
    """The function that `factory` makes from a digest of the kernel, compiled together with all that it calls.

    The first call in a fresh installation takes some seconds. `factory` puts the digest into the closure, and so into
    numba's cache key. Only the made function is cached: a part cached by itself could be out of date.
    """
    run = factory(_prepared())
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(run)  # type: ignore[no-any-return]
    except RuntimeError:  # numba finds no place for a cache: a read-only installation
        return numba.njit(nogil=True, error_model="numpy")(run)  # type: ignore[no-any-return]


@cache
def _prepared() -> int:
    """Compile the kernel's parts in place, so that callers find them under their names; the digest of their code.

    The parts own no memory, so that nothing in them counts references (`_nrt`), they divide as numpy does, without a
    check, and they are put where they are called: a call would hand over some 160 words. Together a factor of three.
    """
    digest = hashlib.sha256(repr((StepLaw._fields, kernel.Knobs._fields, kernel.State._fields)).encode())
    part = numba.njit(_nrt=False, error_model="numpy", forceinline=True)
    for room in (kernel, loop_kernel, trace_kernel):
        for name in room.COMPILED:
            function = getattr(room, name)
            digest.update(
                function.__code__.co_code + repr((function.__code__.co_consts, function.__code__.co_names)).encode()
            )
            setattr(room, name, part(function))
    return int.from_bytes(digest.digest()[:7], "little")
