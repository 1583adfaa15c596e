"""One answer on its way: what each engine step puts on the wire for one request.

Knows: the book's text, event bytes, grouping, and the faults that strike inside an answer. Must not know: when a step
is due (`stepper`), or how a request came in (`server`).
Why: everything is encoded while the step still "runs", so that at its due time only the writes are left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from loadgen.simulator.faults import Fault
from loadgen.simulator.protocol import DONE, Ask, Events, Refused, error_event, frame, usage
from loadgen.simulator.tokens import Book

# All said; an error in place of the rest; the connection is closed, or reset, in the middle.
Ending = Literal["finished", "failed", "truncate", "reset"]
_KEEP_ALIVE = frame(b": keep-alive\n\n")
BROKEN = Refused(500, "The engine failed while it generated this answer.", "InternalServerError")


@dataclass(frozen=True, slots=True)
class EscapedBook:
    """A book with its pieces as they stand inside a JSON string."""

    book: Book
    pieces: tuple[bytes, ...]

    @classmethod
    def of(cls, book: Book) -> EscapedBook:
        return cls(book, tuple(msgspec.json.encode(piece)[1:-1] for piece in book.pieces))

    def escaped(self, start: int, tokens: int) -> bytes:
        """The `tokens` pieces from piece `start` on, JSON-escaped."""
        size = len(self.pieces)
        if tokens == 1:
            return self.pieces[start % size]
        return b"".join([self.pieces[(start + i) % size] for i in range(tokens)])


@dataclass(frozen=True, slots=True)
class Answer:
    """What will be said to a request: `tokens` pieces of the book from piece `start`; why it ends; what goes wrong.

    `own`: a text made for this request, in place of the server's book.
    """

    tokens: int
    start: int
    finish_reason: bytes
    fault: Fault | None
    own: EscapedBook | None = None


class Stream:
    """The state of one answer. `send` writes to the client; without `events` nothing is streamed, only counted."""

    def __init__(
        self,
        number: int,
        ask: Ask,
        answer: Answer,
        text: EscapedBook,
        *,
        events: Events | None = None,
        interval: int = 1,
        send: Callable[[bytes], None] = lambda data: None,
    ) -> None:
        self.number, self.ask, self.answer = number, ask, answer
        self.block_hashes: Sequence[int] = ()
        self.cached_tokens: int | None = None
        self.arrival_s = 0.0
        self.last_due_s: float | None = None  # when the latest token was due; None before the first
        self.generated = 0
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Ending] = self.loop.create_future()
        self.ending: Ending | None = None
        self._text, self._events, self._interval, self._send = text, events, interval, send
        self._unsent = 0  # tokens generated and not yet in an event
        self._ready = b""
        self._stalled: list[bytes] | None = None
        self._quiet = False
        fault = answer.fault
        strikes = fault is not None and fault.kind in _STRIKES and events is not None
        self._strike_after = fault.at(answer.tokens) if fault is not None and strikes else answer.tokens

    def encode(self, tokens: int) -> None:
        """Prepare what the step under way will put on the wire: `tokens` more tokens."""
        first = self.generated == 0
        self.generated += tokens
        self._unsent += tokens
        last = self.generated >= self.answer.tokens
        self.ending = "finished" if last else None
        if self._events is None or not (first or last or self._unsent >= self._interval):
            self._ready = b""
            return
        if self.generated > self._strike_after and self.answer.fault is not None:
            self._strike_after = self.answer.tokens  # once
            self._ready = _STRIKES[self.answer.fault.kind](self, self._events)
        else:
            self._ready = self._token_event(self._events)
        if first and self._ready:
            self._ready = self._events.role(self._usage_so_far(0)) + self._ready

    def flush(self) -> None:
        """The step is due: write."""
        self._quiet = False
        if self._stalled is not None:
            self._stalled.append(self._ready)
            return
        if self._ready:
            self._send(self._ready)
        self._close()

    def keep_alive(self) -> None:
        """Write a comment if nothing was written since the last call."""
        if self._quiet and self._events is not None and self._stalled is None and not self.done.done():
            self._send(_KEEP_ALIVE)
        self._quiet = True

    def _close(self) -> None:
        if self.ending is not None and not self.done.done():
            self.done.set_result(self.ending)

    # -- events -------------------------------------------------------------------------------------------------

    def _take_text(self) -> bytes:
        text = self._text.escaped(self.answer.start + self.generated - self._unsent, self._unsent)
        self._unsent = 0
        return text

    def _token_event(self, events: Events) -> bytes:
        use = self._usage_so_far(self.generated)
        text = self._take_text()
        if self.ending is None:
            return events.token(text, use)
        return events.last_token(text, self.answer.finish_reason, use) + self._tail(events)

    def _usage_so_far(self, tokens: int) -> bytes | None:
        return self.usage(tokens) if self.ask.continuous_usage else None

    def usage(self, tokens: int) -> bytes:
        """The usage object after `tokens` output tokens."""
        return usage(self.ask.prompt_tokens, tokens, self.cached_tokens)

    def _tail(self, events: Events) -> bytes:
        """What follows the last token."""
        tail = events.usage(self.usage(self.generated)) if self.ask.include_usage else b""
        no_done = self.answer.fault is not None and self.answer.fault.kind == "no_done"
        return tail if no_done else tail + frame(DONE)

    # -- faults -------------------------------------------------------------------------------------------------

    def _strike_error(self, events: Events) -> bytes:
        self.ending = "failed"
        return error_event(BROKEN) + frame(DONE)

    def _strike_cut(self, events: Events) -> bytes:
        kind = self.answer.fault.kind if self.answer.fault is not None else ""
        self.ending = "reset" if kind == "reset" else "truncate"
        return b""

    def _strike_malformed(self, events: Events) -> bytes:
        return events.malformed(self._take_text()) + (b"" if self.ending is None else self._tail(events))

    def _strike_stall(self, events: Events) -> bytes:
        span_s = self.answer.fault.span_s if self.answer.fault is not None else 0.0
        self._stalled = []
        self.loop.call_later(span_s, self._resume)
        return self._token_event(events)

    def _resume(self) -> None:
        data, self._stalled = b"".join(self._stalled or ()), None
        if not self.done.done():
            self._send(data)
            self._close()


_STRIKES: dict[str, Callable[[Stream, Events], bytes]] = {
    "error200": Stream._strike_error,
    "truncate": Stream._strike_cut,
    "reset": Stream._strike_cut,
    "malformed": Stream._strike_malformed,
    "stall": Stream._strike_stall,
}
