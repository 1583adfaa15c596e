"""How many tokens a request really brought, and how they are shared out to its events.

Knows: usage, per-event counts, reasoning that was counted but never streamed. Must not know: bytes, outcomes, metrics.
Why: events are not tokens. The authoritative count is the server's usage, then a tokenizer over the whole text, then
the number of events; the tokens of the events always sum up to the streamed part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from loadgen.model import CountSource

if TYPE_CHECKING:
    from loadgen.wire.timeline import Stream, TokenEvent


@dataclass(frozen=True, slots=True)
class Counts:
    """`output` is the authoritative count with all reasoning; `streamed` the part that came in `events`."""

    events: list[TokenEvent]
    output: int | None
    streamed: int
    source: CountSource | None
    disagree: bool  # the server's total differs from what its own events say
    text: bool  # there is any generated text

    @staticmethod
    def of(stream: Stream, text: str, count_tokens: Callable[[str], int] | None) -> Counts:
        """Settle the counts of one stream; `text` is everything that it generated."""
        output, streamed = _from_usage(stream)
        source: CountSource | None = "usage"
        events = _token_events(stream, streamed)
        stated = _stated(events)
        disagree = streamed is not None and stated is not None and stated != streamed
        if output is None or streamed is None:
            if stated is not None:
                output, source = stated, "events"
            elif count_tokens is not None and text:
                output, source = count_tokens(text), "tokenizer"
            elif events:
                output, source = len(events), "events"
            else:
                output, source = None, None
            streamed = output or 0
        elif events and (streamed <= 0 or (stream.answers > 1 and streamed < len(events))):
            # Text came although the count leaves none for it, or usage counts only one of several answers.
            output = streamed = len(events)
            source, disagree = "events", True
        elif not events:
            streamed = 0
        return Counts(events, output, streamed, source, disagree, bool(text))


def _from_usage(stream: Stream) -> tuple[int | None, int | None]:
    """(authoritative count, streamed part) as usage states them, or (None, None).

    Most servers count hidden reasoning inside `completion_tokens`; where the total shows that they stand beside each
    other, they are added.
    """
    usage = stream.usage
    output = usage.get("output")
    if output is None or (output == 0 and not usage.get("reasoning")):
        return None, None
    reasoning = usage.get("reasoning", 0)
    beside = (
        reasoning > 0
        and "total" in usage
        and "prompt" in usage
        and usage["total"] == usage["prompt"] + output + reasoning
    )
    if beside:
        output += reasoning
    return output, output if stream.reasoning else output - reasoning


def _token_events(stream: Stream, streamed: int | None) -> list[TokenEvent]:
    """The events that carry tokens. One with empty text does only where a count says so: its own, the growth of a
    cumulative usage, or a total that exceeds the other events by just the number of such events."""
    events = stream.events
    if not any(event.candidate for event in events):
        return list(events)
    full = sum(not event.candidate for event in events)
    empty = len(events) - full
    all_count = streamed is not None and streamed >= full + empty
    chosen: list[TokenEvent] = []
    before = 0
    cumulative = sum(event.total is not None for event in events) > 1
    for event in events:
        grew = cumulative and event.total is not None and event.total > before
        if event.candidate:
            told = event.count is not None or cumulative
            is_token = bool(event.count) or grew or (not told and all_count)
        else:
            is_token = True
        if is_token:
            chosen.append(event)
        before = max(before, event.total or 0)
    return chosen


def _stated(events: Sequence[TokenEvent]) -> int | None:
    """The sum of what the events themselves say; None where not all of them say it."""
    per_event = _per_event(events)
    return None if per_event is None else sum(per_event)


def _per_event(events: Sequence[TokenEvent]) -> list[int] | None:
    if not events:
        return None
    totals = [event.total for event in events]
    if len(events) > 1 and all(total is not None for total in totals):
        known = [total or 0 for total in totals]
        steps = [b - a for a, b in pairwise([0, *known])]
        # A usage that repeats the final total on every event, or falls, is no running count.
        if min(steps) >= 0 and known[0] < known[-1]:
            return steps
    counts = [event.count for event in events]
    if all(count is not None for count in counts):
        return [count or 0 for count in counts]
    return None


def share(events: Sequence[TokenEvent], streamed: int) -> tuple[int, ...]:
    """Tokens of each event; they sum up to `streamed`.

    What the events state is taken where it sums up to that; else every event gets an even share, the first never less
    than one (it is the first token), a remainder spread over the stream.
    """
    n = len(events)
    if not n:
        return ()
    if streamed == n:
        stated = _per_event(events)
        return tuple(stated) if stated is not None and sum(stated) == n else (1,) * n
    stated = _per_event(events)
    if stated is not None and sum(stated) == streamed:
        return tuple(stated)
    if streamed > n:  # rounded, so that the odd token falls into the middle of the stream
        edges = [(2 * i * streamed + n) // (2 * n) for i in range(n + 1)]
    else:
        edges = [-(-i * streamed // n) for i in range(n + 1)]
    return tuple(b - a for a, b in pairwise(edges))
