"""The one step loop: the serving engines of `roofline` in real time.

Knows: when each step is due, and who gets tokens at its end. Must not know: HTTP, or what a token looks like; how
requests get to a replica (`roofline.fleet`).

Theory of operation. The engines live in virtual seconds; virtual time is (real time - origin) * time_scale. A step is
computed when it starts and its events are encoded at once; an alarm on an absolute time then rings at the end of the
step that ends first, all its writes are done, and that replica's next step starts at the time that was *due*, not when
the alarm was heard: lateness does not add up. If the host falls behind by more than `_GIVE_UP_S`, the origin is moved
(and counted), since a schedule that cannot be kept would end in one burst. What lateness there was is kept per step.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from loadgen.engine.clock import TimerFd
from loadgen.errors import UsageError
from loadgen.roofline.fleet import Fleet
from loadgen.roofline.serving import ServingRequest, Step
from loadgen.simulator.metrics import Counters
from loadgen.simulator.stream import Stream

_GIVE_UP_S = 0.05
_SPIN_S = 60e-6  # the alarm rings this much early, and the rest is waited out: waking up takes about as long
_ROUSE_S = 1e-3  # a processor that has slept long wakes late (virtual ones by up to 1 ms): it is woken once before


class Alarm:
    """Calls back at an absolute time of `time.monotonic`, to some microseconds where the system has a timerfd."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._due_s = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._timer = TimerFd()
        if self._timer.fileno >= 0:
            self._loop.add_reader(self._timer.fileno, self._fire)

    def set(self, due_s: float) -> None:
        """Ring at `due_s`, once; replaces an earlier setting."""
        self._due_s = due_s
        if self._timer.fileno >= 0:
            early_s = _ROUSE_S if due_s - time.monotonic() > 2 * _ROUSE_S else _SPIN_S
            self._timer.arm(max(1, int((due_s - early_s) * 1e9)))
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(due_s, self._fire)

    def _fire(self) -> None:
        if self._timer.fileno >= 0:
            self._timer.clear()
        if self._due_s - time.monotonic() > 2 * _SPIN_S:  # roused only, or set again while an old time expired
            self.set(self._due_s)
            return
        while time.monotonic() < self._due_s:
            pass
        self._ring()

    def close(self) -> None:
        """Never ring again."""
        if self._timer.fileno >= 0:
            self._loop.remove_reader(self._timer.fileno)
            self._timer.close()
        if self._handle is not None:
            self._handle.cancel()


class Stepper:
    """Runs the replicas' steps while they have work. All methods are called from the event loop's thread."""

    def __init__(self, make: Callable[[Callable[[Step], None]], Fleet], counters: Counters, time_scale: float) -> None:
        """`make` builds the fleet, given whom to tell of steps that begin."""
        self.fleet, self.counters, self._scale = make(self._begun), counters, time_scale
        self.streams: dict[int, Stream] = {}
        self._tells_cached = self.fleet.engines[0].config.prefix_cache
        self._origin_s = time.monotonic()  # the real time of virtual 0
        self._alarm = Alarm(self._ring)

    def submit(self, stream: Stream, arrival_s: float) -> None:
        """Hand a request to the engines; `arrival_s` on `time.monotonic` is when it had come in completely.

        Raises:
            UsageError: no engine can serve it.
        """
        stream.arrival_s = arrival_s
        arrival_v = max((arrival_s - self._origin_s) * self._scale, 0.0)
        ask, answer = stream.ask, stream.answer
        request = ServingRequest(stream.number, ask.prompt_tokens, answer.tokens, tuple(stream.block_hashes))
        self.streams[stream.number] = stream
        try:
            self.fleet.submit(request, arrival_v)
        except UsageError:
            del self.streams[stream.number]
            raise
        self._set_alarm()

    def cancel(self, stream: Stream) -> None:
        """Forget a request whose client has gone; one that has ended already is left alone."""
        if stream.number in self.streams:
            self._end(stream, "abort")

    def _end(self, stream: Stream, reason: str) -> None:
        del self.streams[stream.number]
        self.fleet.cancel(stream.number)
        self.counters.succeeded[reason] += 1

    def close(self) -> None:
        """Stop; requests in flight get nothing more."""
        self._alarm.close()

    def _set_alarm(self) -> None:
        due_v = self.fleet.due_s
        if due_v < math.inf:
            self._alarm.set(self._origin_s + due_v / self._scale)

    def _begun(self, step: Step) -> None:
        """A step begins: prepare what it will put on the wire."""
        streams = self.streams
        for number, cached in step.admitted:
            stream = streams.get(number)
            if stream is not None and stream.cached_tokens is None and self._tells_cached:
                stream.cached_tokens = cached
        for number, tokens in step.tokens:
            if number in streams:
                streams[number].encode(tokens)

    def _ring(self) -> None:
        """A step is over: write its tokens and let the next one start. Others that are due have their own turn."""
        for due_v, step in self.fleet.advance(self.fleet.due_s):
            if not step.tokens:
                continue
            due_s = self._origin_s + due_v / self._scale
            begun_s = time.monotonic()
            self._write(step, due_s)
            ended_s = time.monotonic()
            late = self.counters.lateness
            late.start.observe(max(begun_s - due_s, 0.0))
            late.end.observe(max(ended_s - due_s, 0.0))
            if begun_s - due_s > _GIVE_UP_S:
                late.resets += 1
                self._origin_s += begun_s - due_s
        self._set_alarm()

    def _has_begun(self, of: tuple[int, int]) -> bool:
        stream = self.streams.get(of[0])
        return stream is not None and stream.last_due_s is not None

    def _write(self, step: Step, due_s: float) -> None:
        counters = self.counters
        since: dict[float, int] = {}  # previous due time -> streams; most share one
        # A write takes this host some microseconds: first tokens go first, else a TTFT beside many users would hold the
        # writes of all of them; a gap between later tokens does not, since both of its ends are as late.
        for number, tokens in sorted(step.tokens, key=self._has_begun):
            stream = self.streams.get(number)
            if stream is None:
                continue
            stream.flush()
            counters.generation_tokens += tokens
            if stream.last_due_s is None:
                counters.ttft.observe(due_s - stream.arrival_s)
                counters.prompt_tokens += stream.ask.prompt_tokens
            else:
                since[stream.last_due_s] = since.get(stream.last_due_s, 0) + 1
            stream.last_due_s = due_s
            if stream.ending is not None:
                self._end(stream, stream.answer.finish_reason.decode() if stream.ending == "finished" else "abort")
        for previous_s, times in since.items():
            counters.itl.observe(due_s - previous_s, times)
