"""The one clock of a run, and an event loop whose timers are due to the microsecond.

Knows: CLOCK_MONOTONIC, how to sleep until a point on it, where CLOCK_REALTIME lies against it. Must not know: what is
being waited for.
Why: every stamp of a run lies on one axis, "nanoseconds from the run's start"; tests put a virtual clock in this place.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
import time
from dataclasses import dataclass

_RESYNC_NS = 200_000_000
_timespec = struct.Struct("@ll").unpack


@dataclass(frozen=True, slots=True)
class MonotonicClock:
    """Real time. `origin_ns` is the run's start on `time.monotonic_ns` (CLOCK_MONOTONIC on Linux)."""

    origin_ns: int

    def now_ns(self) -> int:
        """Nanoseconds from the run's start."""
        return time.monotonic_ns() - self.origin_ns

    async def sleep_until(self, when_ns: int) -> None:
        """Return at `when_ns` from the run's start, or at once if it has passed."""
        loop = asyncio.get_running_loop()
        when_s = (self.origin_ns + when_ns) * 1e-9
        if when_s <= loop.time():
            return
        woken: asyncio.Future[None] = loop.create_future()
        timer = loop.call_at(when_s, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class WallOffset:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC, in ns, re-measured during the run.

    `error_ns` is the half-width of the best reading so far: the bound of the clock error of a kernel stamp.
    """

    def __init__(self) -> None:
        self.offset_ns = 0
        self.error_ns = 1 << 62
        self.resyncs = 0
        self.steps = 0  # how often the wall clock was set while the run went on
        self.due_ns = 0
        self.measure()

    def measure(self) -> None:
        """Take five readings and keep the one with the narrowest window.

        A reading that agrees with the offset in use within its own window changes nothing: on a busy machine windows
        are wide, and an offset that followed them would put later bytes before earlier ones.
        """
        best_width, best = 1 << 62, 0
        for _ in range(5):
            before = time.monotonic_ns()
            wall = time.time_ns()
            after = time.monotonic_ns()
            if after - before < best_width:
                best_width, best = after - before, wall - (before + after) // 2
        moved = abs(best - self.offset_ns)
        if self.resyncs and moved > 1_000_000:
            self.steps += 1
        if not self.resyncs or moved > best_width:
            self.offset_ns = best
        self.error_ns = best_width // 2 if not self.resyncs else max(self.error_ns, best_width // 2)
        self.resyncs += 1
        self.due_ns = time.monotonic_ns() + _RESYNC_NS

    def stamp_ns(self, ancillary: list[tuple[int, int, bytes]], now_ns: int) -> int:
        """The kernel's stamp in a receive's control messages, on CLOCK_MONOTONIC; it is never after `now_ns`."""
        seconds, nanoseconds = _timespec(ancillary[0][2])
        stamp: int = seconds * 1_000_000_000 + nanoseconds - self.offset_ns
        if stamp > now_ns:  # the wall clock was set since the last measurement, or the offset's own error
            if stamp - now_ns > 1_000_000:
                self.measure()
            stamp = now_ns
        return stamp


class TimerFd:
    """A Linux timerfd on CLOCK_MONOTONIC: wakes an epoll without its rounding to whole milliseconds.

    `os.timerfd_create` exists from Python 3.13 on; before that the C library is called. `fileno` is -1 where the system
    has none (macOS), and the selector then sleeps with the resolution that it has.
    """

    def __init__(self) -> None:
        self.fileno = -1
        self.due_ns = 0  # 0: not armed
        if not sys.platform.startswith("linux"):
            return
        libc = ctypes.CDLL(None, use_errno=True)
        if hasattr(libc, "timerfd_create"):
            self.fileno = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
            self._settime = libc.timerfd_settime
            self._spec = (ctypes.c_long * 4)()  # interval s, ns; value s, ns
            self._ref = ctypes.byref(self._spec)

    def arm(self, due_ns: int) -> None:
        """Become readable at `due_ns` on CLOCK_MONOTONIC (0 disarms)."""
        if due_ns == self.due_ns:
            return
        self.due_ns = due_ns
        self._spec[2], self._spec[3] = divmod(due_ns, 1_000_000_000)
        self._settime(self.fileno, 1, self._ref, None)  # 1 = TFD_TIMER_ABSTIME

    def clear(self) -> None:
        """Forget an expiry, so that the epoll does not report it again."""
        self.arm(0)

    def close(self) -> None:
        if self.fileno >= 0:
            os.close(self.fileno)
            self.fileno = -1
