"""What a run may spend: tokens, and money at a vendor's prices; and what it will, by its plan.

Knows: prices, limits, what is spent and what is held for requests in flight. Must not know: when requests are sent.
Why: at a vendor every token costs. A limit is held before a request is sent, with the most that it can take (what it
asks for), and with the same for every request in flight; when it has ended, what it really took is booked instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadgen.model import Exchange, Message, PlannedRequest
from loadgen.plan.schedule import StageSpec, outline

_PER_MILLION = 1e-6
_BYTES_PER_TOKEN = 3.0  # of a text of which nothing is known: English has four, so this is on the safe side
_TEMPLATE = 256.0  # tokens
_MOST_UNITS = 100_000  # that a forecast draws; the rest is taken to be like them


@dataclass(frozen=True, slots=True)
class Prices:
    """Per million tokens, in whatever currency. `cached`: prompt tokens that the server had in its cache."""

    input: float
    output: float
    cached: float | None = None

    def of(self, prompt: float, output: float, cached: float = 0.0) -> float:
        """What so many tokens cost; `cached` are among those of the prompt."""
        cached = min(cached, prompt) if self.cached is not None else 0.0
        paid = (prompt - cached) * self.input + cached * (self.cached or 0.0) + output * self.output
        return paid * _PER_MILLION


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a run, None for none. What is spent before it begins (a run that is resumed) counts."""

    tokens: int | None = None
    cost: float | None = None
    prices: Prices | None = None
    spent_tokens: int = 0
    spent_cost: float = 0.0

    def __bool__(self) -> bool:
        return self.tokens is not None or self.cost is not None


@dataclass(frozen=True, slots=True)
class Held:
    """What is held for one request in flight; `told`: the prompt's tokens as far as the plan knows them."""

    prompt: int
    output: int
    told: float


class Purse:
    """A budget while it is spent. `spent` is what was booked; `empty` says which limit held a request back."""

    def __init__(self, budget: Budget) -> None:
        self.spent = budget
        self.empty = ""
        self._held_tokens, self._held_cost = 0, 0.0
        # The most that a prompt took, of and beyond what the plan had told; until one is known, room for a template.
        self._ratio, self._more = math.inf, _TEMPLATE

    def take(self, request: PlannedRequest, history: Sequence[Message] = ()) -> Held | None:
        """Hold what the request can take; None where a limit does not allow it, and never again then."""
        held = self._most(request, history)
        tokens, cost = held.prompt + held.output, self._cost(held.prompt, held.output)
        spent = self.spent
        if spent.tokens is not None and spent.spent_tokens + self._held_tokens + tokens > spent.tokens:
            self.empty = self.empty or "--max-tokens-total"
        if spent.cost is not None and spent.spent_cost + self._held_cost + cost > spent.cost:
            self.empty = self.empty or "--max-cost"
        if self.empty:
            return None
        self._held_tokens += tokens
        self._held_cost += cost
        return held

    def release(self, held: Held) -> None:
        """Hold no more for a request: it was never sent, or what it took is known."""
        self._held_tokens -= held.prompt + held.output
        self._held_cost -= self._cost(held.prompt, held.output)

    def settle(self, held: Held, exchange: Exchange) -> None:
        """Book what the request took instead of what was held for it."""
        self.release(held)
        prompt, output, cached = taken(exchange, held.prompt)
        if exchange.prompt_tokens is not None and held.told > 0:
            known = self._ratio < math.inf
            self._ratio = max(self._ratio if known else 1.0, exchange.prompt_tokens / held.told)
            self._more = max(self._more if known else 0.0, exchange.prompt_tokens - held.told)
        self.book(prompt + output, self._cost(prompt, output, cached))

    def share(self, index: int, count: int) -> Purse:
        """What is left for one of `count` workers, each of which holds its own limit and knows what this one does."""
        spent = self.spent
        tokens = None if spent.tokens is None else len(range(index, max(spent.tokens - spent.spent_tokens, 0), count))
        cost = None if spent.cost is None else max(spent.cost - spent.spent_cost, 0.0) / count
        purse = Purse(Budget(tokens, cost, spent.prices))
        purse._ratio, purse._more = self._ratio, self._more
        return purse

    def pay(self, exchange: Exchange) -> None:
        """Book a request that nothing was held for (a trial of a few tokens)."""
        prompt, output, cached = taken(exchange, 0)
        self.book(prompt + output, self._cost(prompt, output, cached))

    def book(self, tokens: int, cost: float) -> None:
        """Add what others spent."""
        spent = self.spent
        self.spent = replace(spent, spent_tokens=spent.spent_tokens + tokens, spent_cost=spent.spent_cost + cost)

    def _most(self, request: PlannedRequest, history: Sequence[Message]) -> Held:
        told = sum(len(message.content.encode()) for message in history)
        own = sum(len(message.content.encode()) for message in request.messages)
        prompt = (request.prompt_tokens or own / _BYTES_PER_TOKEN) + told / _BYTES_PER_TOKEN
        most = min(prompt * self._ratio, prompt + self._more) if prompt else self._more
        return Held(math.ceil(most), request.output_tokens, prompt)

    def _cost(self, prompt: float, output: float, cached: float = 0.0) -> float:
        return 0.0 if self.spent.prices is None else self.spent.prices.of(prompt, output, cached)


def taken(exchange: Exchange, prompt: int) -> tuple[int, int, int]:
    """(prompt, output, cached) tokens of a request; `prompt`: what it had, where the server does not say. One that did
    not reach the server took none."""
    if exchange.sent_ns is None or (exchange.failure is not None and exchange.failure.kind in ("connect", "stale")):
        return 0, 0, 0
    refused = exchange.http_status is not None and exchange.http_status >= 400
    counted = exchange.prompt_tokens if exchange.prompt_tokens is not None else 0 if refused else prompt
    output = exchange.output_tokens if exchange.output_tokens is not None else sum(exchange.event_tokens)
    return counted, output, exchange.cached_tokens or 0


# -- what a plan will take -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Volume:
    """Requests and tokens of a plan. `whole`: that is all; in a closed loop by time users take what they get. `told`:
    the tokens are known; the texts of a user's own are counted by the server alone."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    whole: bool = True
    told: bool = True


def volume(specs: Sequence[StageSpec], seed: int) -> Volume:
    """What these stages will send, warm-up apart. Prompts of later turns are counted without their history."""
    total = Volume()
    for spec in specs:
        one = _stage_volume(spec, seed)
        total = Volume(
            total.requests + one.requests,
            total.prompt_tokens + one.prompt_tokens,
            total.output_tokens + one.output_tokens,
            total.whole and one.whole,
            total.told and one.told,
        )
    return total


def _stage_volume(spec: StageSpec, seed: int) -> Volume:
    if spec.duration_ns is not None and spec.load.kind == "concurrency":
        return Volume(whole=False)
    requests = prompts = outputs = units = 0
    last = 0
    for drawn, due in itertools.islice(outline(spec, seed), _MOST_UNITS):
        turns = drawn.turns if spec.requests is None else min(drawn.turns, spec.requests - requests)
        if turns <= 0 or (spec.duration_ns is not None and due is not None and due >= spec.duration_ns):
            break
        requests, units, last = requests + turns, units + 1, due or 0
        prompts, outputs = prompts + turns * drawn.prompt_tokens, outputs + turns * drawn.output_tokens
    wanted = requests
    if units == _MOST_UNITS:
        wanted = spec.requests or round(requests * (spec.duration_ns or last) / max(last, 1))
    share = wanted / requests if requests else 0.0
    told = all(workload.texts is None for workload, _ in spec.mix)
    return Volume(wanted, round(prompts * share), round(outputs * share), told=told)
