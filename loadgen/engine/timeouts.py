"""The limits of a request, and the watchdog that holds them without touching the hot path.

Knows: which limit runs from where. Must not know: sockets, HTTP, or what a token is (it asks `last_token_ns`).
Why: a limit on *tokens* cannot be reset by comments or role chunks, yet parsing as bytes arrive would cost precision.
So the watchdog is lazy: only when a limit seems due are the bytes so far asked for their last token event.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.engine.exchange import HttpExchange


@dataclass(frozen=True, slots=True)
class Limits:
    """Time-outs in ns; None is off. `first` runs from `sent` to the first token event, `idle` between token events."""

    connect_ns: int | None = 10_000_000_000
    first_ns: int | None = 300_000_000_000
    idle_ns: int | None = 60_000_000_000
    total_ns: int | None = None


class TimedOut(Exception):
    """A limit was exceeded; the message names it."""


def earlier(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


class Watchdog:
    """The limits after the response head. Lazy: only when a limit seems due are the bytes asked for token events."""

    def __init__(self, exchange: HttpExchange, begun_ns: int, total_due: int | None) -> None:
        self._exchange, self._begun, self._total_due = exchange, begun_ns, total_due
        self._handle: asyncio.TimerHandle | None = None

    def _due(self) -> tuple[int | None, str]:
        exchange, limits = self._exchange, self._exchange.limits
        latest = exchange.last_token_ns()
        if latest is None:
            sent = exchange.stamps.sent_ns - exchange.clock.origin_ns if exchange.stamps else self._begun
            due = None if limits.first_ns is None else sent + limits.first_ns
            what = "no first token within the time-out of "
        else:
            due = None if limits.idle_ns is None else latest + limits.idle_ns
            what = "no further token within the time-out of "
        if self._total_due is not None and (due is None or self._total_due < due):
            return self._total_due, f"not complete within the time-out of {(limits.total_ns or 0) * 1e-9:g} s"
        return due, what + f"{((limits.first_ns if latest is None else limits.idle_ns) or 0) * 1e-9:g} s"

    def arm(self) -> None:
        """Set the timer to the earliest moment at which some limit can be due."""
        limits = self._exchange.limits
        spans = [s for s in (limits.first_ns, limits.idle_ns) if s is not None]
        due = earlier(None if not spans else self._exchange.clock.now_ns() + min(spans), self._total_due)
        if due is not None:
            self._handle = self._exchange.loop.call_at(self._exchange.loop_s(due), self._check)

    def _check(self) -> None:
        due, what = self._due()
        if due is None:
            return
        if due <= self._exchange.clock.now_ns():
            self._exchange.fail("timeout", what)
            self._exchange.wake()
            return
        self._handle = self._exchange.loop.call_at(self._exchange.loop_s(due), self._check)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
