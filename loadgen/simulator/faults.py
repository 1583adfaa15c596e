"""Faults on demand: which request misbehaves, and how.

Knows: the kinds of fault, the language of `--fault`, and a seeded draw. Must not know: sockets or HTTP; `server` and
`stream` act them out.
Why: a client's error handling is tested by a server that fails at a known rate, the same way for the same seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadgen.errors import UsageError
from loadgen.roofline.naming import seconds

# kind -> what the client gets, and the default span where the kind has one (seconds).
KINDS: dict[str, tuple[str, float | None]] = {
    "429": ("status 429 with retry-after", None),
    "500": ("status 500", None),
    "503": ("status 503 with retry-after", None),
    "error200": ("an error object inside a 200 response, after some tokens", None),
    "truncate": ("the connection is closed in the middle of the answer", None),
    "reset": ("the connection is reset in the middle of the answer", None),
    "stall": ("the answer pauses, then its tokens come at once", 0.5),
    "slow_headers": ("the response headers come late", 0.5),
    "malformed": ("one event that is no JSON, in place of a token", None),
    "no_done": ("the stream ends without [DONE]", None),
    "short": ("fewer tokens than asked, finish_reason stop", None),
}
REFUSALS = ("429", "500", "503")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one request. `place` in [0, 1) says how far into the answer it strikes."""

    kind: str
    place: float
    span_s: float = 0.0

    def at(self, tokens: int) -> int:
        """How many tokens out of `tokens` are sent before it strikes: at least one where there are several."""
        return min(1 + int(self.place * (tokens - 1)), tokens - 1)


@dataclass(frozen=True, slots=True)
class FaultRate:
    """One kind with the share of requests that it strikes."""

    kind: str
    rate: float
    span_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of a server; at most one strikes a request, so the rates add up to at most 1."""

    rates: tuple[FaultRate, ...] = ()

    def draw(self, rng: np.random.Generator) -> Fault | None:
        """The fault of the next request, if any."""
        if not self.rates:
            return None
        chance, place = rng.random(2)
        for fault in self.rates:
            if chance < fault.rate:
                return Fault(fault.kind, float(place), fault.span_s)
            chance -= fault.rate
        return None


def parse_faults(text: str) -> Faults:
    """Read `KIND[:SPAN][:RATE]`, comma-separated, e.g. `429:0.01,stall:500ms:0.05,truncate`. RATE defaults to 1.

    Raises:
        UsageError: unknown kind, a span where the kind has none, a bad rate, or rates above 1 in total.
    """
    rates = tuple(_parse_one(part.strip()) for part in text.split(",") if part.strip())
    total = sum(fault.rate for fault in rates)
    if total > 1 + 1e-9:
        raise UsageError(f"the rates add up to {total:g}, more than every request", where="--fault")
    return Faults(rates)


def _parse_one(part: str) -> FaultRate:
    kind, *rest = part.split(":")
    where = f"--fault {part}"
    if kind not in KINDS:
        raise UsageError(f"unknown fault {kind!r}", where="--fault", do=f"one of {', '.join(KINDS)}")
    span_s = KINDS[kind][1]
    if rest and rest[0][:1].isdigit() and rest[0][-1:].isalpha():
        if span_s is None:
            raise UsageError(f"{kind} takes no duration", where=where)
        span_s = seconds(rest.pop(0), where)
    try:
        rate = float(rest.pop(0)) if rest else 1.0
    except ValueError:
        rate = float("nan")
    if rest or not 0 <= rate <= 1:
        raise UsageError("expected KIND[:SPAN][:RATE] with a rate from 0 to 1", where=where)
    return FaultRate(kind, rate, span_s or 0.0)
