"""The client's truth about itself during one stage: CPU, lag, shared receives, clock error.

Knows: process times and the selector's counters. Must not know: requests or metrics (`analysis.trust` judges).
Why: a load generator that was itself the bottleneck must be able to say so, with the number.
"""

from __future__ import annotations

import gc
import resource
import time

from loadgen.engine.sockets import StampingSelector


class HealthMeter:
    """Use `quiet()`, then `start()` before a stage and `stop()` after it. No garbage is collected in between: a
    collection would stop the client for milliseconds at a random moment, and the hot path makes no cycles."""

    def __init__(self, selector: StampingSelector | None) -> None:
        self._selector = selector
        self._cpu_s = self._wall_s = 0.0

    def quiet(self) -> None:
        """From now on nothing is collected until the end, and what is there already is not looked through after it: it
        is the program itself."""
        gc.freeze()
        gc.disable()

    def start(self) -> None:
        """From now on the numbers count."""
        if self._selector is not None:
            self._selector.reset_counters()
            self._selector.wall.measure()
        self._cpu_s, self._wall_s = _cpu_s(), time.monotonic()

    def stop(self) -> dict[str, float]:
        """The numbers of the stage, SI units unless the name says ns."""
        health = {"client_cpu_s": _cpu_s() - self._cpu_s, "wall_s": time.monotonic() - self._wall_s}
        gc.enable()
        gc.unfreeze()
        selector = self._selector
        if selector is not None and selector.receives:
            health["receives"] = float(selector.receives)
            health["kernel_stamps"] = 1.0 - selector.missing_stamps / selector.receives
            health["clock_error_ns"] = float(selector.wall.error_ns)
            health["clock_steps"] = float(selector.wall.steps)
            health["loop_lag_max_ns"] = float(selector.lag_max_ns)
            health["loop_lag_p99_ns"] = lag_quantile_ns(selector.lag_histogram, health["wall_s"], 0.99)
            if (late := wake_quantile_ns(selector.wake_histogram, 0.99)) is not None:
                health["wake_late_p99_ns"] = late
        return health


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def lag_quantile_ns(counts: list[int], wall_s: float, q: float) -> float:
    """How long, at the quantile `q`, a byte that arrives at a random moment waits until the client looks; an upper
    bound in ns. `counts[i]` turns kept the client from looking for up to 2**i microseconds; the rest of `wall_s` it
    was waiting for bytes.
    """
    allowed_us = (1 - q) * wall_s * 1e6
    longer_us = 0.0
    for i in reversed(range(len(counts))):
        longer_us += counts[i] * 0.75 * 2**i  # a turn in a bucket lasts 3/4 of its upper edge on average
        if longer_us > allowed_us:
            return float(2**i * 1000)
    return 0.0


def wake_quantile_ns(counts: list[int], q: float) -> float | None:
    """How late the machine let a waiting client run, at the quantile `q` over its wakes; an upper bound in ns.

    `counts[i]` wakes came up to 2**i microseconds after the bytes. None when the client never waited for bytes.
    """
    beyond = (1 - q) * sum(counts)
    longer = 0
    for i in reversed(range(len(counts))):
        longer += counts[i]
        if longer > beyond:
            return float(2**i * 1000)
    return None
