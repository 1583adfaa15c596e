"""How many tokens a request really brought, and how they are shared out to its events.

Knows: usage, per-event counts, reasoning that was counted but never streamed. Must not know: bytes, outcomes, metrics.
Why: events are not tokens. The authoritative count is the server's usage, then what its events state (token ids), then
a tokenizer over the whole text, then the number of events; the tokens of the events always sum up to the streamed part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadgen.model import CountSource
from loadgen.wire.stream import Stream, TokenEvent

_THINK = "<think"  # reasoning that a server without a parser for it leaves in the visible text


@dataclass(frozen=True, slots=True)
class Counts:
    """`output` is the authoritative count with all reasoning; sum(tokens) the part that came in `events`."""

    events: tuple[TokenEvent, ...]
    tokens: tuple[int, ...]  # of each event
    output: int | None
    source: CountSource | None
    disagree: bool  # the server's total differs from what its own events say


def count(stream: Stream, count_tokens: Callable[[str], int] | None) -> Counts:
    """Settle the counts of one stream. `count_tokens` gives the tokens of a whole text (never of one event)."""
    output, hidden = _from_usage(stream)
    source: CountSource | None = "usage"
    events = _token_events(stream, None if output is None else output - hidden)
    ends = max(1, len(stream.seen))  # end tokens may be counted and never sent, one to an answer
    stated = _stated(events, hidden, ends)
    if output is None:
        texts = stream.texts()
        if stated is not None:
            output, source = sum(stated), "events"
        elif count_tokens is not None and texts:
            output, source = sum(count_tokens(text) for text in texts), "tokenizer"
        elif events:
            output, source = len(events), "events"
        else:
            source = None
        streamed, disagree = output or 0, False
    else:
        streamed = output - hidden
        disagree = stated is not None and not 0 <= streamed - sum(stated) <= ends
        if events and (streamed <= 0 or (len(stream.seen) > 1 and streamed < len(events))):
            # Text came although the count leaves none for it, or usage counts only one of several answers.
            streamed, disagree = sum(stated or ()) or len(events), True
            if output < streamed:
                output, source = streamed, "events"
    return Counts(tuple(events), _share(len(events), streamed, stated, ends), output, source, disagree)


def _from_usage(stream: Stream) -> tuple[int | None, int]:
    """(authoritative count, the part of it that is reasoning and was not streamed); None where usage states none.

    Most servers count hidden reasoning inside `completion_tokens`; where the total shows that they stand beside each
    other (xAI), they are added.
    """
    usage = stream.usage
    output = usage.get("output")
    reasoning = usage.get("reasoning", 0)
    if output is None or (output == 0 and not reasoning):
        return None, 0
    if reasoning and usage.get("total") == usage.get("prompt", 0) + output + reasoning:
        output += reasoning
    streamed = stream.reasoning or any("".join(t[:8]).lstrip().startswith(_THINK) for t in stream.visible.values())
    return output, 0 if streamed else min(reasoning, output)


def _token_events(stream: Stream, streamed: int | None) -> list[TokenEvent]:
    """The events that carry tokens.

    A blank one does only where the server says so: by a count of its own, by a running usage that grows with it, or by
    a total that is just what the others and it add up to. One that brings the final usage is book-keeping and holds
    none (llama.cpp, transformers).
    """
    events = stream.events
    if not any(event.blank for event in events):
        return events
    running = len(stream.seen) < 2 and sum(event.total is not None for event in events) > 1
    untold = {"middle": 0, "final": 0}
    sure = 0  # tokens of the events that need no total
    for event in events:
        if not event.blank or event.tokens:
            sure += 1 if event.tokens is None else event.tokens
        elif event.tokens is event.total is None and event.blank in untold:
            untold[event.blank] += 1
    accepted = set() if running or streamed is None else _fitting(untold, streamed - sure, stream)
    chosen: list[TokenEvent] = []
    before = 0 if streamed is None else max(0, stream.usage.get("output", 0) - streamed)  # hidden reasoning comes first
    for event in events:
        grew = running and event.total is not None and event.total > before and event.blank != "role"
        told = bool(event.tokens) or grew or (event.tokens is event.total is None and event.blank in accepted)
        if not event.blank or told:
            chosen.append(event)
        before = max(before, event.total or 0)
    return chosen


def _fitting(untold: dict[str, int], extra: int, stream: Stream) -> set[str]:
    """Which kinds of blank events hold the `extra` tokens that the total has beyond the events with text.

    More than fit means that events held several tokens, and says nothing about blank ones. An answer that ended by
    itself may have one token more, the end, for which there was no event.
    """
    middle, final = untold["middle"], untold["final"]
    if extra == middle + final:
        return {"middle", "final"}
    if middle and (extra == middle or (extra == middle + 1 and stream.finish == "stop")):
        return {"middle"}
    return set()


def _stated(events: Sequence[TokenEvent], hidden: int, answers: int) -> list[int] | None:
    """The tokens of each event as the events themselves say; None where not all of them do.

    A running usage is read only where there is one answer: with several, each has its own.
    """
    if not events:
        return None
    totals = [event.total for event in events if event.total is not None]
    if answers == 1 and len(events) > 1 and len(totals) == len(events):
        steps = [b - a for a, b in pairwise([hidden, *totals])]
        # A usage that repeats the final total on every event, or falls, is no running count.
        if min(steps) >= 0 and totals[0] < totals[-1]:
            return steps
    counts = [event.tokens for event in events if event.tokens is not None]
    return counts if len(counts) == len(events) else None


def _share(events: int, streamed: int, stated: list[int] | None, ends: int) -> tuple[int, ...]:
    """Tokens of each of `events` events; they sum up to `streamed`.

    What the events state is taken where it adds up, the end tokens that it lacks being given to the last event. Else
    every event gets an even share, and the first, which is the first token, never less than one of them.
    """
    if not events:
        return ()
    rest = None if stated is None else streamed - sum(stated)
    if stated is not None and rest == 0:
        return tuple(stated)
    if streamed == events:
        return (1,) * events
    if stated is not None and rest is not None and 0 < rest <= ends:
        return (*stated[:-1], stated[-1] + rest)
    if streamed > events:  # rounded, so that the odd token falls into the middle of the stream
        edges = [(2 * i * streamed + events) // (2 * events) for i in range(events + 1)]
    else:
        edges = [-(-i * streamed // events) for i in range(events + 1)]
    return tuple(b - a for a, b in pairwise(edges))
