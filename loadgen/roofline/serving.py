"""A continuous-batching serving engine, one step at a time, in virtual time.

Knows: how a scheduler fills a step (token budget, chunked or whole prompts, sequence cap, KV blocks, prefix cache,
preemption by recomputation, speculative decoding) and asks `passes` what the step costs. Must not know: HTTP, clocks,
text or tokens' values; time is an argument.
Why: the simulated endpoint, the planner and the fit must believe in one engine. The scheduling rules are those that the
common open engines document: running sequences first in order of admission, then the queue in order of arrival; the
last admitted is preempted first.

Every sequence has one number to work off: tokens known (prompt + generated) minus tokens in the KV cache. One left to
go and something generated is a decode; anything else is prefill. A sequence that catches up samples its next token.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np

from loadgen.errors import UsageError
from loadgen.roofline.kvpool import KvPool
from loadgen.roofline.passes import (
    LITERATURE,
    Deployment,
    Efficiency,
    StepLaw,
    combine,
    context_seen,
    step_law,
    step_parts,
    visible_pairs,
)

# Share of the KV blocks that admission leaves free while others run: else an admitted prompt is preempted at once.
WATERMARK = 0.01


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """A serving engine: what a step costs, and the scheduler's knobs."""

    law: StepLaw
    token_budget: int = 8192  # tokens per step, prompts and decodes together
    chunked: bool = True  # False: whole prompts, in steps of their own
    prompts_per_step: int | None = None  # how many may start in one step; None: as the budget allows
    late_tokens: bool = False  # a step's tokens reach the clients at the end of the next one (asynchronous scheduling)
    max_sequences: int = 256  # sequences running at once
    kv_tokens: int | None = None  # KV capacity; None: no limit
    block_tokens: int = 16
    prefix_cache: bool = False
    draft_tokens: int = 0  # speculative decoding: tokens drafted per step and sequence
    acceptance: float = 0.0  # probability that a drafted token is accepted, given that those before it were
    draft_token_s: float = 0.0  # time to draft one token for the batch
    request_s: float = 0.0  # before a request reaches the scheduler: parsing, tokenising ...
    prompt_token_s: float = 0.0  # ... and its part that grows with the prompt

    def __post_init__(self) -> None:
        knobs = (self.token_budget, self.max_sequences, self.block_tokens)
        if min(*knobs, self.prompts_per_step or 1) < 1 or self.draft_tokens < 0 or not 0 <= self.acceptance <= 1:
            raise UsageError("an engine needs a token budget, a sequence cap and a block size of at least 1")

    @property
    def blocks(self) -> int | None:
        """KV capacity in whole blocks."""
        return None if self.kv_tokens is None else self.kv_tokens // self.block_tokens


def engine_config(where: Deployment, efficiency: Efficiency = LITERATURE, **knobs: object) -> EngineConfig:
    """The engine of a deployment: its cost law, and its KV capacity from GPU memory unless `kv_tokens` is given."""
    knobs.setdefault("kv_tokens", where.kv_capacity_tokens())
    return EngineConfig(law=step_law(where, efficiency), **knobs)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class ServingRequest:
    """One request. `block_hashes[i]` names the prompt up to the end of its i-th KV block of `block_tokens`."""

    request_id: int
    prompt_tokens: int
    output_tokens: int
    block_hashes: tuple[Hashable, ...] = ()
    prefilled_tokens: int = 0  # leading prompt tokens whose KV comes with the request (another pool's work)


@dataclass(slots=True)
class Step:
    """What one step did. All of it becomes visible at the step's start + `duration_s`."""

    duration_s: float = 0.0
    tokens: list[tuple[int, int]] = field(default_factory=list)  # (request, tokens that it got)
    finished: list[int] = field(default_factory=list)
    admitted: list[tuple[int, int]] = field(default_factory=list)  # (request, prompt tokens found in the cache)
    preempted: list[int] = field(default_factory=list)
    decodes: int = 0  # sequences that decoded
    prefill_tokens: int = 0
    idle: bool = False  # nothing was ready; `duration_s` runs to the next request that will be


@dataclass(slots=True, eq=False)
class _Sequence:
    request: ServingRequest
    prefilled: int
    generated: int = 0
    computed: int = 0  # tokens in the KV cache
    private: int = 0  # blocks
    shared: list[Hashable] = field(default_factory=list)
    published: int = 0  # full prompt blocks that were offered to the prefix cache
    gone: bool = False

    @property
    def known(self) -> int:
        return self.request.prompt_tokens + self.generated

    @property
    def decoding(self) -> bool:
        return self.generated > 0 and self.known - self.computed == 1


class Engine:
    """One engine replica. `submit` and `cancel` between steps; `step` runs the next one."""

    def __init__(self, config: EngineConfig, rng: np.random.Generator | None = None) -> None:
        """`rng` draws the acceptance of drafted tokens; without speculation it is not used."""
        self.config = config
        self.pool = KvPool(config.blocks)
        self.preemptions = 0
        self.prefix_queries = 0  # prompt tokens that were looked up, and found
        self.prefix_hits = 0
        self._rng = rng if rng is not None else np.random.default_rng(0)
        self._live: dict[int, _Sequence] = {}
        self._arriving: list[tuple[float, int, _Sequence]] = []  # heap by the time that the scheduler sees them
        self._order = 0
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._held: tuple[list[tuple[int, int]], list[int]] = ([], [])  # late tokens, and requests that they finish

    @property
    def has_work(self) -> bool:
        """Is any request unfinished?"""
        return bool(self._live)

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests not in the batch: queued, preempted or still being tokenised."""
        return len(self._live) - len(self._running)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks that sequences hold, 0 to 1."""
        return self.pool.used / self.pool.blocks

    def fits(self, request: ServingRequest) -> bool:
        """Could the request run alone on an empty engine?"""
        tokens = request.prompt_tokens + request.output_tokens - 1
        return -(-tokens // self.config.block_tokens) <= self.pool.blocks

    def submit(self, request: ServingRequest, now_s: float) -> None:
        """Queue a request that arrives at `now_s`.

        Raises:
            UsageError: no prompt or output token, an id that is in use, or more KV than the engine has.
        """
        if min(request.prompt_tokens, request.output_tokens) < 1:
            raise UsageError("a request needs at least one prompt token and one output token")
        if request.request_id in self._live:
            raise UsageError(f"request {request.request_id} is being served already")
        if not self.fits(request):
            raise UsageError(f"{request.prompt_tokens} + {request.output_tokens} tokens exceed the engine's KV cache")
        sequence = _Sequence(request, prefilled=min(request.prefilled_tokens, request.prompt_tokens - 1))
        self._live[request.request_id] = sequence
        ready = now_s + self.config.request_s + self.config.prompt_token_s * request.prompt_tokens
        heapq.heappush(self._arriving, (ready, self._order, sequence))
        self._order += 1

    def cancel(self, request_id: int) -> None:
        """Forget a request and free what it holds; unknown or finished ids are ignored."""
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return
        sequence.gone = True
        if sequence in self._running:
            self._running.remove(sequence)
        self._free(sequence)
        self._held = ([one for one in self._held[0] if one[0] != request_id], self._held[1])

    def step(self, now_s: float) -> Step:
        """Run the step that begins at `now_s`. With nothing ready it is idle and lasts until something will be."""
        while self._arriving and self._arriving[0][0] <= now_s:
            self._waiting.append(heapq.heappop(self._arriving)[2])
        done = Step()
        plan = self._plan_chunked(done) if self.config.chunked else self._plan_whole(done)
        if not plan:
            done.idle = True
            done.duration_s = self._arriving[0][0] - now_s if self._arriving else 0.0
            return done
        done.duration_s = self._duration(plan, done)
        self._advance(plan, done)
        if self.config.late_tokens:
            self._hold(done)
        return done

    def _hold(self, done: Step) -> None:
        """Give out the last step's tokens in place of this one's; with nobody left running, this one's too."""
        (tokens, finished), self._held = self._held, (done.tokens, done.finished)
        if not self._running:
            tokens, finished, self._held = tokens + done.tokens, finished + done.finished, ([], [])
        done.tokens, done.finished = tokens, finished

    # --- scheduling: which sequence gets how many tokens -----------------------------------------------------------

    def _plan_chunked(self, done: Step) -> list[tuple[_Sequence, int]]:
        """Running sequences in order, then the queue, until the token budget is spent."""
        plan, budget = self._plan_running(done, self.config.token_budget)
        while budget > 0 and not done.preempted and (sequence := self._next_waiting(done)) is not None:
            tokens = self._admit(sequence, budget, done)
            if tokens == 0:
                break
            plan.append((sequence, tokens))
            budget -= tokens
        return plan

    def _plan_whole(self, done: Step) -> list[tuple[_Sequence, int]]:
        """Whole prompts in a step of their own while any can be admitted, else one decode of all that run."""
        plan: list[tuple[_Sequence, int]] = []
        budget = self.config.token_budget
        while (sequence := self._next_waiting(done)) is not None:
            if plan and sequence.known > budget:
                break
            tokens = self._admit(sequence, sequence.known, done)
            if tokens == 0:
                break
            plan.append((sequence, tokens))
            budget -= tokens
        return plan or self._plan_running(done, self.config.max_sequences * (1 + self.config.draft_tokens))[0]

    def _plan_running(self, done: Step, budget: int) -> tuple[list[tuple[_Sequence, int]], int]:
        plan: list[tuple[_Sequence, int]] = []
        while budget > 0 and len(plan) < len(self._running):  # preemption shortens the list from its end
            sequence = self._running[len(plan)]
            tokens = min(self._wanted(sequence), budget)
            while not self._extend(sequence, tokens):
                victim = self._running[-1]
                self._preempt(victim, done)
                if victim is sequence:
                    return plan, 0
            plan.append((sequence, tokens))
            budget -= tokens
        return plan, budget

    def _wanted(self, sequence: _Sequence) -> int:
        """Tokens that a sequence would put into the step: what it is behind, or one and its drafts."""
        if not sequence.decoding:
            return sequence.known - sequence.computed
        return 1 + min(self.config.draft_tokens, sequence.request.output_tokens - sequence.generated - 1)

    def _next_waiting(self, done: Step) -> _Sequence | None:
        if len(done.admitted) == self.config.prompts_per_step:
            return None
        while self._waiting and self._waiting[0].gone:
            self._waiting.popleft()
        return self._waiting[0] if self._waiting and len(self._running) < self.config.max_sequences else None

    def _admit(self, sequence: _Sequence, budget: int, done: Step) -> int:
        """Move the head of the queue into the batch; the tokens that it gets, 0 if memory does not allow it."""
        block = self.config.block_tokens
        hashes = sequence.request.block_hashes if self.config.prefix_cache else ()
        hits = self.pool.hits(hashes, (sequence.known - 1) // block)
        sequence.shared = list(hashes[:hits])
        self.pool.acquire(sequence.shared)
        sequence.computed = max(hits * block, sequence.prefilled)
        sequence.published = hits
        tokens = min(sequence.known - sequence.computed, budget)
        keep = int(WATERMARK * self.pool.blocks) if self._running and self.config.kv_tokens is not None else 0
        if not self._extend(sequence, tokens, keep):
            self._free(sequence)
            return 0
        if hashes and sequence.generated == 0:
            self.prefix_queries += sequence.request.prompt_tokens
            self.prefix_hits += hits * block
        done.admitted.append((sequence.request.request_id, sequence.computed))
        self._waiting.popleft()
        self._running.append(sequence)
        return tokens

    # --- memory ----------------------------------------------------------------------------------------------------

    def _extend(self, sequence: _Sequence, tokens: int, keep: int = 0) -> bool:
        """Hold blocks for `tokens` more, leaving `keep` blocks available; False and no change if short."""
        blocks = -(-(sequence.computed + tokens) // self.config.block_tokens)
        missing = blocks - sequence.private - len(sequence.shared)
        if missing <= 0:
            return True
        if missing + keep > self.pool.available or not self.pool.reserve(missing):
            return False
        sequence.private += missing
        return True

    def _free(self, sequence: _Sequence) -> None:
        self.pool.release(sequence.private)
        self.pool.drop(sequence.shared)
        sequence.private, sequence.shared, sequence.computed, sequence.published = 0, [], 0, 0

    def _preempt(self, sequence: _Sequence, done: Step) -> None:
        """Take a sequence out of the batch; its KV is lost and will be recomputed, its tokens are not."""
        self._running.remove(sequence)
        self._free(sequence)
        sequence.prefilled = 0
        self._waiting.appendleft(sequence)
        self.preemptions += 1
        done.preempted.append(sequence.request.request_id)

    def _publish(self, sequence: _Sequence) -> None:
        """Offer the prompt blocks that are full now to the prefix cache."""
        hashes = sequence.request.block_hashes
        full = min(sequence.computed, sequence.request.prompt_tokens) // self.config.block_tokens
        for name in hashes[sequence.published : full]:
            if self.pool.publish(name):
                sequence.private -= 1
                sequence.shared.append(name)
        sequence.published = max(sequence.published, min(full, len(hashes)))

    # --- the step itself -------------------------------------------------------------------------------------------

    def _duration(self, plan: Iterable[tuple[_Sequence, int]], done: Step) -> float:
        law = self.config.law
        decode_tokens = finishing = 0
        kv_read = decode_pairs = prefill_pairs = 0.0
        for sequence, tokens in plan:
            if sequence.decoding:
                seen = context_seen(law, sequence.computed + 1.0)
                done.decodes += 1
                decode_tokens += tokens
                kv_read += seen
                decode_pairs += tokens * seen
            else:
                done.prefill_tokens += tokens
                finishing += sequence.computed + tokens == sequence.known
                prefill_pairs += visible_pairs(law, float(sequence.computed), float(tokens))
        sampled = decode_tokens + finishing
        parts = step_parts(
            law, done.decodes, decode_tokens, done.prefill_tokens, sampled, kv_read, decode_pairs, prefill_pairs
        )
        drafting = self.config.draft_tokens * self.config.draft_token_s if done.decodes else 0.0
        return combine(law, *parts) + drafting

    def _advance(self, plan: Iterable[tuple[_Sequence, int]], done: Step) -> None:
        for sequence, tokens in plan:
            got = 0
            if sequence.decoding:
                got = 1 + self._accepted(tokens - 1)
                sequence.computed += got
            else:
                sequence.computed += tokens
                got = int(sequence.computed == sequence.known)
            if self.config.prefix_cache:
                self._publish(sequence)
            if not got:
                continue
            sequence.generated += got
            done.tokens.append((sequence.request.request_id, got))
            if sequence.generated == sequence.request.output_tokens:
                done.finished.append(sequence.request.request_id)
                del self._live[sequence.request.request_id]
                self._running.remove(sequence)
                self._free(sequence)

    def _accepted(self, drafted: int) -> int:
        """How many drafted tokens survive: the run of successes before the first failure."""
        if drafted == 0:
            return 0
        failures = np.flatnonzero(self._rng.random(drafted) >= self.config.acceptance)
        return int(failures[0]) if failures.size else drafted
