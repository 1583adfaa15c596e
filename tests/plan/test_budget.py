"""Limits on tokens and cost: what is held, what is booked, that no limit is ever passed; what a plan will take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadgen.model import Exchange, Failure, Load, Message, PlannedRequest
from loadgen.plan.budget import Budget, Prices, Purse, taken, volume
from loadgen.plan.lengths import fixed
from loadgen.plan.schedule import StageSpec
from loadgen.plan.workload import Workload


def request(prompt: int = 1000, output: int = 50, text: str = "x") -> PlannedRequest:
    return PlannedRequest(0, 0, "chat", (Message("user", text),), prompt, output)


DONE = Exchange(0, 0, "chat", "ok", 1000, 50, sent_ns=1, prompt_tokens=1000, output_tokens=50)


def warm(purse: Purse) -> Purse:
    """A purse that knows what a prompt takes."""
    held = purse.take(request())
    assert held
    purse.settle(held, DONE)
    return purse


def test_requests_in_flight_count_with_the_most_that_they_can_take() -> None:
    purse = warm(Purse(Budget(tokens=1050 * 4 - 1)))
    assert purse.take(request())
    assert purse.take(request())
    assert not purse.empty
    assert purse.take(request()) is None
    assert purse.empty == "--max-tokens-total"
    assert purse.take(request(1, 1)) is None  # what is spent stays spent


def test_what_a_request_really_took_is_booked_and_sets_the_rest_free() -> None:
    purse = warm(Purse(Budget(tokens=1050 * 3)))
    for _ in range(2):
        held = purse.take(request())
        assert held
        purse.settle(held, replace(DONE, output_tokens=1))
    assert purse.spent.spent_tokens == 1050 + 2 * 1001


def test_before_anything_is_known_there_is_room_for_a_template() -> None:
    held = Purse(Budget(tokens=10_000)).take(request())
    assert held is not None
    assert held.prompt > 1000


def test_prompts_that_are_longer_than_planned_are_held_as_such() -> None:
    purse = Purse(Budget(tokens=100_000))
    held = purse.take(request())
    assert held
    purse.settle(held, replace(DONE, prompt_tokens=1200))
    longer = purse.take(request())
    assert longer is not None
    assert longer.prompt == 1200
    small = purse.take(request(10))
    assert small is not None
    assert small.prompt == 12  # by ratio, not by 200 more


def test_a_text_of_ones_own_and_the_history_are_held_by_their_bytes() -> None:
    purse = warm(Purse(Budget(tokens=100_000)))
    held = purse.take(request(0, 5, "a" * 3000), (Message("assistant", "b" * 600),))
    assert held is not None
    assert held.prompt == 1200


@pytest.mark.parametrize(
    ("exchange", "prompt", "found"),
    [
        (DONE, 1000, (1000, 50, 0)),
        (replace(DONE, cached_tokens=900), 1000, (1000, 50, 900)),
        (replace(DONE, prompt_tokens=None, output_tokens=None, event_tokens=(1, 2)), 990, (990, 3, 0)),
        (replace(DONE, sent_ns=None), 1000, (0, 0, 0)),
        (replace(DONE, failure=Failure("connect", "refused"), prompt_tokens=None), 1000, (0, 0, 0)),
        (replace(DONE, http_status=429, prompt_tokens=None, output_tokens=None), 1000, (0, 0, 0)),
        (replace(DONE, failure=Failure("timeout", "x"), prompt_tokens=None, output_tokens=None), 1000, (1000, 0, 0)),
    ],
)
def test_what_a_request_took(exchange: Exchange, prompt: int, found: tuple[int, int, int]) -> None:
    assert taken(exchange, prompt) == found


def test_prices_are_per_million_and_cached_tokens_cost_their_own() -> None:
    assert Prices(2.0, 8.0).of(1_000_000, 500_000, 400_000) == pytest.approx(6.0)
    assert Prices(2.0, 8.0, 0.5).of(1_000_000, 500_000, 400_000) == pytest.approx(1.2 + 0.2 + 4.0)


def test_a_cost_is_a_limit_like_any_other() -> None:
    purse = warm(Purse(Budget(cost=3.5 * (1000 + 50 * 4) * 1e-6, prices=Prices(1.0, 4.0))))
    assert purse.take(request())
    assert purse.take(request())
    assert purse.take(request()) is None
    assert purse.empty == "--max-cost"


def test_no_limit_is_ever_passed() -> None:
    """Random requests in flight that take up to what they ask for, ending in any order."""
    rng = np.random.default_rng(5)
    purse, flying = Purse(Budget(tokens=200_000)), []
    while not purse.empty:
        if flying and rng.random() < 0.5:
            held, planned = flying.pop(int(rng.integers(len(flying))))
            took = replace(DONE, prompt_tokens=planned.prompt_tokens, output_tokens=int(rng.integers(1, 400)))
            purse.settle(held, replace(took, output_tokens=min(took.output_tokens or 0, planned.output_tokens)))
        planned = request(int(rng.integers(1, 3000)), int(rng.integers(1, 400)))
        if (held := purse.take(planned)) is not None:
            flying.append((held, planned))
    for held, planned in flying:
        purse.settle(held, replace(DONE, prompt_tokens=planned.prompt_tokens, output_tokens=planned.output_tokens))
    assert 150_000 < purse.spent.spent_tokens <= 200_000


@pytest.mark.parametrize("count", [1, 2, 7])
def test_shares_of_workers_add_up_to_what_is_left(count: int) -> None:
    budget = Budget(tokens=10_000, cost=1.0, prices=Prices(1, 1), spent_tokens=8050, spent_cost=0.25 - 1.05e-3)
    whole = warm(Purse(budget))
    shares = [whole.share(index, count).spent for index in range(count)]
    held = whole.share(0, 1).take(request(10, 1))
    assert held is not None
    assert held.prompt == 10
    assert sum(share.tokens or 0 for share in shares) == 900
    assert sum(share.cost or 0.0 for share in shares) == pytest.approx(0.75)


def test_the_volume_of_a_plan() -> None:
    chat = Workload("chat", "chat", fixed(200), fixed(10))
    by_number = StageSpec(0, "a", ((chat, 1.0),), Load("concurrency", 4), requests=50)
    by_rate = StageSpec(1, "b", ((chat, 1.0),), Load("rate", 10, "constant"), duration_ns=2 * 10**9)
    by_time = StageSpec(2, "c", ((chat, 1.0),), Load("concurrency", 4), duration_ns=10**9)
    found = volume([by_number, by_rate], 0)
    assert (found.requests, found.prompt_tokens, found.output_tokens, found.whole) == (70, 14_000, 700, True)
    assert not volume([by_number, by_time], 0).whole
    many = volume([replace(by_number, requests=10**9)], 0)
    assert (many.requests, many.prompt_tokens) == (10**9, 200 * 10**9)
