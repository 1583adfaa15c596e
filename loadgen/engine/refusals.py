"""How long a user of a closed loop waits after a request that reached no server.

Knows: how many in a row were refused. Must not know: clocks, sockets.
Why: a closed loop sends when a user is free, so against a server that is gone it would send as fast as that refuses:
thousands of requests a second that tell nothing, and a server that cannot come back.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.model import Capture

_FIRST_NS, _LONGEST_NS, _MOST_NS = 100_000_000, 1_000_000_000, 60_000_000_000


@dataclass(slots=True)
class Refusals:
    """Of one stage: 0.1 s, then longer while nobody gets through, up to 1 s; at most a minute for each user."""

    users: int
    in_a_row: int = 0
    paused_ns: int = 0  # by all users together

    def pause_ns(self, capture: Capture) -> int:
        """How long the user of this request waits now."""
        if capture.failure is None or capture.failure.kind != "connect":
            self.in_a_row = 0
            return 0
        rounds = self.in_a_row // max(self.users, 1)
        self.in_a_row += 1
        pause = min(_FIRST_NS << min(rounds, 8), _LONGEST_NS)
        if self.paused_ns + pause > _MOST_NS * self.users:
            return 0
        self.paused_ns += pause
        return pause

    @property
    def seconds(self) -> float:
        """Paused so far, of a user in the mean."""
        return self.paused_ns / 1e9 / max(self.users, 1)
