"""What users ask for: the noun `Workload`.

Knows: the parameters of a kind of request. Must not know: how texts are written, when requests are sent, files.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.model import Message
from loadgen.plan.lengths import Length


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
    """A kind of request. `kind` names the writer of its prompts (`prompts.KINDS`, or "text" for texts of one's own)."""

    name: str
    kind: str
    prompt_tokens: Length
    output_tokens: Length
    correlation: float = 0.0  # of prompt and output lengths (Gaussian copula); two columns of one table are joint
    prefix: Prefix | None = None
    turns: Turns | None = None
    own: tuple[tuple[Message, ...], ...] = ()  # with kind "text": messages to draw from, sent as they are
    own_output: tuple[int | None, ...] = ()  # the output tokens that each of them asks for, where the file says
    note: str = ""
