"""Several engines as one endpoint: data-parallel replicas behind a router, and prefill and decode as separate pools.

Knows: which replica gets a request, when each replica's running step ends, and how a prefilled prompt moves to the
decode pool. Must not know: how an engine schedules (`serving`) or real clocks; time is an argument.
Why: replicas step independently of each other, so an endpoint of many is a queue of step ends, not one big batch. Never
compared with measurements of a real disaggregated server: treat those figures as unvalidated.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadgen.errors import UsageError
from loadgen.roofline.serving import Engine, EngineConfig, ServingRequest, Step


@dataclass(slots=True)
class _Replica:
    engine: Engine
    step: Step | None = None  # the step that is running
    end_s: float = math.inf
    free_s: float = -math.inf  # when the last step that did something ended
    left_waiting: int = 0  # requests that the running step found waiting and could not admit

    @property
    def load(self) -> int:
        return self.engine.running + self.engine.waiting


def _round_robin(pool: Sequence[_Replica], turn: int) -> _Replica:
    return pool[turn % len(pool)]


def _least_loaded(pool: Sequence[_Replica], turn: int) -> _Replica:
    """The replica with the fewest unfinished requests; among equals the one whose turn it is."""
    return min((pool[(turn + k) % len(pool)] for k in range(len(pool))), key=lambda one: one.load)


ROUTERS: dict[str, Callable[[Sequence[_Replica], int], _Replica]] = {
    "round_robin": _round_robin,
    "least_loaded": _least_loaded,
}


class Fleet:
    """Replicas of one engine. `submit` and `cancel` at any time; `advance` delivers what has become visible.

    `started` is told of every step when it begins: what it will do is fixed then, though nobody may see it yet.
    """

    def __init__(
        self,
        config: EngineConfig,
        replicas: int = 1,
        *,
        router: str = "least_loaded",
        prefill: EngineConfig | None = None,
        prefill_replicas: int = 1,
        transfer_token_s: float = 0.0,
        seed: int = 0,
        started: Callable[[Step], None] = lambda step: None,
    ) -> None:
        """Build the pools.

        Args:
            config: an engine that serves whole requests, or decodes where there is a prefill pool.
            replicas: how many of them.
            router: a name in ROUTERS.
            prefill: an engine of the prefill pool; None: no such pool.
            prefill_replicas: how many of those.
            transfer_token_s: time to move one token's KV from pool to pool.
            seed: for speculative acceptance, one stream per replica.
            started: see above.

        Raises:
            UsageError: no replica, or an unknown router.
        """
        if router not in ROUTERS or min(replicas, prefill_replicas) < 1:
            raise UsageError(f"a fleet needs replicas and a router of {', '.join(ROUTERS)}")
        self._route, self._started = ROUTERS[router], started
        self._transfer_token_s = transfer_token_s
        if prefill is not None:  # the request was taken in by the prefill pool
            config = replace(config, request_s=0.0, prompt_token_s=0.0)
        seeds = np.random.SeedSequence(seed).spawn(replicas + prefill_replicas)
        engines = [np.random.default_rng(one) for one in seeds]
        self._decode = [_Replica(Engine(config, rng)) for rng in engines[:replicas]]
        self._prefill = [_Replica(Engine(prefill, rng)) for rng in engines[replicas:]] if prefill is not None else []
        self._turn = {id(self._decode): 0, id(self._prefill): 0}
        self._origin: dict[int, ServingRequest] = {}  # in the prefill pool or on the way
        self._moving: list[tuple[float, int]] = []  # heap of (arrival at the decode pool, request)

    @property
    def _entry(self) -> list[_Replica]:
        """The pool that requests come to."""
        return self._prefill or self._decode

    @property
    def places_free(self) -> int:
        """Places in the batches of the pool that requests come to."""
        return sum(one.engine.config.max_sequences - one.engine.running for one in self._entry)

    @property
    def waiting(self) -> int:
        """Requests that wait for a place in that pool."""
        return sum(one.engine.waiting for one in self._entry)

    @property
    def left_waiting(self) -> int:
        """Of those, the ones that the running steps could not admit, though a place may have been free."""
        return sum(one.left_waiting for one in self._entry)

    def fits(self, request: ServingRequest) -> bool:
        """Could the request ever be served?"""
        return all(pool[0].engine.fits(request) for pool in (self._entry, self._decode))

    @property
    def engines(self) -> tuple[Engine, ...]:
        """All engines, the prefill pool first: for counters."""
        return tuple(one.engine for one in (*self._prefill, *self._decode))

    @property
    def has_work(self) -> bool:
        """Is anything still to be delivered?"""
        return bool(self._moving) or any(one.step is not None for one in (*self._prefill, *self._decode))

    @property
    def due_s(self) -> float:
        """When the next thing happens; inf with nothing to do."""
        ends = min(one.end_s for one in (*self._prefill, *self._decode))
        return min(ends, self._moving[0][0]) if self._moving else ends

    def submit(self, request: ServingRequest, now_s: float) -> None:
        """Route a request that arrives at `now_s`. Told late, it waits for the step that has begun meanwhile.

        Raises:
            UsageError: as `Engine.submit`, or it would not fit the decode pool.
        """
        if not self._prefill:
            self._place(self._decode, request, now_s)
            return
        if not self._decode[0].engine.fits(request):
            raise UsageError(
                f"{request.prompt_tokens} + {request.output_tokens} tokens exceed the decode pool's KV cache"
            )
        self._place(self._prefill, replace(request, output_tokens=1), now_s)
        self._origin[request.request_id] = request

    def cancel(self, request_id: int) -> None:
        """Forget a request wherever it is; what a running step has for it is not delivered."""
        self._origin.pop(request_id, None)
        self._moving = [entry for entry in self._moving if entry[1] != request_id]
        heapq.heapify(self._moving)
        for one in (*self._prefill, *self._decode):
            one.engine.cancel(request_id)
            if one.step is not None:
                one.step.tokens = [entry for entry in one.step.tokens if entry[0] != request_id]
                one.step.finished = [other for other in one.step.finished if other != request_id]

    def advance(self, now_s: float) -> Iterator[tuple[float, Step]]:
        """Everything that becomes visible up to `now_s`, in order: (when, what the step did).

        A replica's next step begins when the loop over this asks for more. In a prefill pool `finished` names only the
        requests that were to have one token.
        """
        while (when := self.due_s) <= now_s:
            if self._moving and self._moving[0][0] <= when:
                self._land(*heapq.heappop(self._moving))
                continue
            one = min((*self._prefill, *self._decode), key=lambda replica: replica.end_s)
            step = one.step
            if step is not None and not step.idle:
                if one in self._prefill:
                    self._hand_over(step, when)
                one.free_s = when
                yield when, step
            self._start(one, when)

    def _place(self, pool: list[_Replica], request: ServingRequest, now_s: float) -> None:
        one = self._route(pool, self._turn[id(pool)])
        self._turn[id(pool)] += 1
        one.engine.submit(request, now_s)
        if one.step is None or one.step.idle:
            self._start(one, now_s)

    def _start(self, one: _Replica, now_s: float) -> None:
        one.step, one.end_s, one.left_waiting = None, math.inf, 0
        if one.engine.has_work:
            begin_s = max(now_s, one.free_s)
            one.step = one.engine.step(begin_s)
            one.end_s = begin_s + one.step.duration_s
            one.left_waiting = 0 if one.step.idle else one.engine.waiting
            self._started(one.step)

    def _hand_over(self, step: Step, when: float) -> None:
        """Prompts that are done set out for the decode pool, unless one token was all."""
        for request_id in list(step.finished):
            request = self._origin.get(request_id)
            if request is not None and request.output_tokens > 1:
                step.finished.remove(request_id)
                heapq.heappush(self._moving, (when + self._transfer_token_s * request.prompt_tokens, request_id))
            else:
                self._origin.pop(request_id, None)

    def _land(self, when: float, request_id: int) -> None:
        """A prompt arrives with its KV and first token; one token is left to compute before the second comes out."""
        request = self._origin.pop(request_id)
        arrived = ServingRequest(
            request_id,
            prompt_tokens=request.prompt_tokens + 1,
            output_tokens=request.output_tokens - 1,
            prefilled_tokens=request.prompt_tokens,
        )
        self._place(self._decode, arrived, when)
