"""How far another machine's clock is from this one's, and how well that is known.

Knows: readings of a remote clock, each with its round trip. Must not know: how a reading is taken.
Why: the workers of several machines stamp with clocks of their own; their rows lie on one axis only as well as the
offsets are known, so each offset comes with its bound and both are kept with the run.

Cristian's algorithm: a clock that is read between `sent` and `back` showed what it showed somewhere in between, so the
middle is wrong by at most half the round trip, whatever the two ways took. The reading with the shortest round trip is
the best; a reading grows old by `DRIFT` of its age, which no two quartz clocks exceed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

DRIFT = 1e-4  # 100 ppm: each crystal within 50 ppm, or slewed by its time service
_KEPT = 64  # readings


@dataclass(frozen=True, slots=True)
class Reading:
    """A remote clock was read once: it is `offset_ns` ahead of ours at our time `at_ns`, give or take `error_ns`."""

    at_ns: int
    offset_ns: int
    error_ns: int

    @classmethod
    def of(cls, sent_ns: int, remote_ns: int, back_ns: int) -> Reading:
        """From our time before asking, what the other clock showed, and our time when the answer was there."""
        return cls(back_ns, remote_ns - (sent_ns + back_ns) // 2, (back_ns - sent_ns + 1) // 2)

    def bound_ns(self, now_ns: int) -> int:
        """The error at a later moment, with what the clocks may have drifted apart since."""
        return self.error_ns + round(DRIFT * max(now_ns - self.at_ns, 0))


def shortest(readings: Sequence[Reading]) -> Reading:
    """The reading of a burst with the shortest round trip."""
    return min(readings, key=lambda reading: reading.error_ns)


@dataclass(slots=True)
class RemoteClock:
    """The offset of one remote clock through a run. `base` is what its stamps are made with from the start.

    The offset in use is changed only where a reading contradicts it, so that readings' noise moves no stamp.
    """

    base: Reading
    used_ns: int = field(init=False)  # the offset in use
    error_ns: int = field(init=False)  # the largest bound of its error so far
    round_trip_ns: int = field(init=False)  # the shortest
    count: int = 1
    _recent: deque[Reading] = field(init=False)

    def __post_init__(self) -> None:
        self.used_ns, self.error_ns = self.base.offset_ns, self.base.error_ns
        self.round_trip_ns = 2 * self.base.error_ns
        self._recent = deque([self.base], maxlen=_KEPT)

    def take(self, reading: Reading) -> None:
        """Learn from one more reading, later than those before."""
        self.count += 1
        self.round_trip_ns = min(self.round_trip_ns, 2 * reading.error_ns)
        self._recent.append(reading)
        best = min(self._recent, key=lambda one: one.bound_ns(reading.at_ns))
        if abs(best.offset_ns - self.used_ns) > best.bound_ns(reading.at_ns):
            self.used_ns = best.offset_ns
        self.error_ns = max(self.error_ns, self.bound_ns(reading.at_ns))

    def bound_ns(self, now_ns: int) -> int:
        """How far the offset in use can be from the truth now."""
        return min(abs(one.offset_ns - self.used_ns) + one.bound_ns(now_ns) for one in self._recent)

    @property
    def shift_ns(self) -> int:
        """What the remote clock has gained since `base`: to be taken off its stamps."""
        return self.used_ns - self.base.offset_ns
