"""How tests stand on a machine that is slow, or that stops for a while at any moment: by facts, never by times.

Knows: waiting for a fact, and doing again what the machine, not the code, has spoilt. Must not know: what is tested.
Why: a test that sleeps and then looks, or that bounds what took place, fails where the machine pauses. A wait here
ends as soon as its fact holds; its deadline is for what is broken, and far beyond any pause.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

DEADLINE_S = 120.0
_POLL_S = 0.01
T = TypeVar("T")


class Busy(Exception):
    """What was measured shows that the machine stood still where the test needs it to go on: not the code's fault."""


def _polls(what: str) -> Iterator[None]:
    """As many as DEADLINE_S holds: by number, so that a process that is stopped for long does not run out of them."""
    for _ in range(round(DEADLINE_S / _POLL_S)):
        yield
    raise AssertionError(f"not so after {DEADLINE_S:.0f} s: {what}")


def until(fact: Callable[[], bool], what: str = "the fact") -> None:
    """Wait until `fact()` holds. Raises AssertionError after DEADLINE_S."""
    for _ in _polls(what):
        if fact():
            return
        time.sleep(_POLL_S)


async def until_so(fact: Callable[[], bool], what: str = "the fact") -> None:
    """`until`, with the event loop going on meanwhile, and for two turns more: it has then seen what has come."""
    for _ in _polls(what):
        if fact():
            break
        await asyncio.sleep(_POLL_S)
    for _ in range(2):
        await asyncio.sleep(_POLL_S)


def again(attempt: Callable[[int], T], times: int = 6) -> T:
    """The result of `attempt(0)`; of `attempt(1)` and so on where it raises Busy. An assertion is never repeated."""
    for number in range(times - 1):
        try:
            return attempt(number)
        except Busy:
            continue
    return attempt(times - 1)
