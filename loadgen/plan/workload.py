"""What users ask for: the noun `Workload`, and what plans take from the outside (traces, texts of one's own).

Knows: the parameters of a kind of request. Must not know: how texts are written, when requests are sent, files: a trace
and a set of texts come in as objects with a method, so that a worker process can open them itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from loadgen.model import Message
from loadgen.plan.lengths import Length


class TraceRow(NamedTuple):
    """One recorded request. `blocks` are prefix-chained ids: an equal id means an equal prompt up to the end of that
    block of `block_tokens` tokens."""

    offset_ns: int  # from the stage's start
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    block_tokens: int = 512


class Trace(Protocol):
    """A recorded load; picklable."""

    def rows(self) -> Iterator[TraceRow]:
        """The rows in order of their offsets; may be long: they are never all held."""
        ...


class Text(NamedTuple):
    """One text of one's own: the messages of each turn. What stands between two turns is the server's answer, unless
    the later one begins with an answer of its own (a recorded one)."""

    turns: tuple[tuple[Message, ...], ...]
    output_tokens: int | None = None  # where the file says it


class Texts(Protocol):
    """Texts of one's own; picklable."""

    def load(self) -> tuple[Text, ...]:
        """All of them; at least one. Cheap from the second call in a process on."""
        ...


@dataclass(frozen=True, slots=True)
class Turns:
    """A conversation: how many turns, how many prompt tokens each turn after the first adds, and the wait before it
    (a person thinking, or an agent's tool at work)."""

    count: Length
    prompt_tokens: Length
    think_ms: Length


@dataclass(frozen=True, slots=True)
class Prefix:
    """What prompts share: the first `tokens` server tokens are the same for all requests of one of `groups` groups."""

    tokens: int
    groups: int = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of request. `kind` names the writer of its prompts (one of `prompts.KINDS`), or is "text" where they
    come from `texts`."""

    name: str
    kind: str
    prompt_tokens: Length
    output_tokens: Length
    correlation: float = 0.0  # of prompt and output lengths (Gaussian copula); two columns of one table are joint
    prefix: Prefix | None = None
    turns: Turns | None = None
    texts: Texts | None = None  # sent as they are, instead of generated ones; prompt_tokens then says nothing
    note: str = ""
