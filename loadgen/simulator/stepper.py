"""The one step loop: the serving engine of `roofline` in real time.

Knows: when each step is due, and who gets tokens at its end. Must not know: HTTP, or what a token looks like.

Theory of operation. The engine lives in virtual seconds; virtual time is (real time - origin) * time_scale. A step is
computed when it starts and its events are encoded at once; an alarm on an absolute time then rings at its end, all
writes are done, and the next step starts at the time that was *due*, not when the alarm was heard: lateness does not
add up. If the host falls behind by more than `_GIVE_UP_S`, the origin is moved (and counted), since a schedule that
cannot be kept would end in one burst. What lateness there was is recorded per step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from loadgen.engine.clock import TimerFd
from loadgen.roofline.serving import Engine, ServingRequest, Step
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
    """Runs the engine's steps while it has work. All methods are called from the event loop's thread."""

    def __init__(self, engine: Engine, counters: Counters, time_scale: float) -> None:
        self.engine, self.counters, self._scale = engine, counters, time_scale
        self.streams: dict[int, Stream] = {}
        self.left_waiting = 0  # requests that the latest step found waiting and could not admit
        self._origin_s = time.monotonic()  # the real time of virtual 0
        self._step: Step | None = None  # under way
        self._due_v = 0.0  # its end, in virtual seconds
        self._alarm = Alarm(self._ring)

    def submit(self, stream: Stream, arrival_s: float) -> None:
        """Hand a request to the engine; `arrival_s` on `time.monotonic` is when it had come in completely.

        Raises:
            UsageError: the engine cannot serve it.
        """
        stream.arrival_s = arrival_s
        arrival_v = max((arrival_s - self._origin_s) * self._scale, 0.0)
        ask, answer = stream.ask, stream.answer
        request = ServingRequest(stream.number, ask.prompt_tokens, answer.tokens, tuple(stream.block_hashes))
        self.engine.submit(request, arrival_v)
        self.streams[stream.number] = stream
        if self._step is None or self._step.idle:
            self._begin(arrival_v)

    def cancel(self, stream: Stream) -> None:
        """Forget a request whose client has gone; one that has ended already is left alone."""
        if stream.number in self.streams:
            self._end(stream, "abort")

    def _end(self, stream: Stream, reason: str) -> None:
        del self.streams[stream.number]
        self.engine.cancel(stream.number)
        self.counters.succeeded[reason] += 1

    def close(self) -> None:
        """Stop; requests in flight get nothing more."""
        self._alarm.close()

    def _begin(self, start_v: float) -> None:
        step = self._step = self.engine.step(start_v)
        self._due_v = start_v + step.duration_s
        self.left_waiting = 0 if step.idle else self.engine.waiting
        streams = self.streams
        for number, cached in step.admitted:
            stream = streams.get(number)
            if stream is not None and stream.cached_tokens is None and self.engine.config.prefix_cache:
                stream.cached_tokens = cached
        for number, tokens in step.tokens:
            if number in streams:
                streams[number].encode(tokens)
        self._alarm.set(self._origin_s + self._due_v / self._scale)

    def _ring(self) -> None:
        """The step under way is over: write its tokens and start the next one."""
        step, due_s = self._step, self._origin_s + self._due_v / self._scale
        if step is None:
            return
        if step.tokens:
            begun_s = time.monotonic()
            self._write(step, due_s)
            ended_s = time.monotonic()
            late = self.counters.lateness
            late.start.observe(max(begun_s - due_s, 0.0))
            late.end.observe(max(ended_s - due_s, 0.0))
            if begun_s - due_s > _GIVE_UP_S:
                late.resets += 1
                self._origin_s += begun_s - due_s
        self._step = None
        if self.engine.has_work:
            self._begin(self._due_v)

    def _write(self, step: Step, due_s: float) -> None:
        counters = self.counters
        since: dict[float, int] = {}  # previous due time -> streams; most share one
        for number, tokens in step.tokens:
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
