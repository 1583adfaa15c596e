"""One stage: takes requests off a plan, sends each when it is due and a slot is free, and hands on what came back.

Knows: due times, slots, the window, what to do between sends. Must not know: sockets, HTTP, metrics, plan making.

Theory of operation. There is one loop for every load shape. `_feed` walks the plan in order: it waits until a request
is due (open loop; or the staggered start of a closed one), then for a slot (closed loop; or the cap of an open one),
and starts it. An open loop starts it a moment early, and the transport holds it, ready, until it is due. Closed loop is
simply "no due time, a limited number of slots". Everything that costs time and is not a send (building bodies, decoding
finished streams, writing rows) is done by `_housekeep`, one piece per turn of the event loop and never when a send is
about to be due, so that reads and sends come first.
Sessions: consecutive requests of one `session_id` are one unit that holds one slot, its turns one after the other; the
history grows by the server's answers, or by the recorded ones that a later turn brings along.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from loadgen.engine.refusals import Refusals
from loadgen.engine.units import Slice, Unit, units
from loadgen.model import Capture, Ended, Message, PlannedRequest, StageInfo
from loadgen.plan.budget import Held
from loadgen.wire.timeline import answer, decode

if TYPE_CHECKING:
    from loadgen.engine.runner import Runner

_AHEAD_BYTES = 64 << 20
_AHEAD_S = 2.0  # of an open loop: what its bursts may use up before there is time to build the next
_QUIET_NS = 600_000  # no housekeeping when a send is due within this time ...
_BACKLOG = 65_536  # ... unless what waits to be decoded holds this many receives (some 25 MB)
_BACKLOG_REQUESTS = 2048  # ... or is this many requests: they are not on disk yet
_HOT_TURNS = 6  # turns of the loop from a slot to the socket; nothing else is done in them, unless there is a lead
_MIN_DRAIN_NS = 60_000_000_000
_CUT, _SPENT = "cut: ", " is spent"


def _ahead(rate: float) -> int:
    """How many bodies are built ahead for an open loop at `rate` requests/s. No more: they delay the stage's start."""
    return min(max(int(_AHEAD_S * rate), 64), 2048)


def spent_limit(info: StageInfo) -> str:
    """Which limit of the budget has cut this stage; "" for none."""
    why = info.stopped or ""
    return why.removeprefix(_CUT).removesuffix(_SPENT) if why.startswith(_CUT) else ""


class Stage:
    """The state of one stage while it runs."""

    def __init__(
        self,
        runner: Runner,
        info: StageInfo,
        plan: Iterator[PlannedRequest],
        stagger_ns: int,
        part: Slice,
        give_back: Callable[[int], None] | None,
    ) -> None:
        self.runner, self.info, self.clock = runner, info, runner.clock
        self.units = units(plan)
        self.exhausted = False
        self.ahead: deque[Unit] = deque()
        self.ahead_bytes = 0
        closed = info.load.kind == "concurrency"
        self.closed = closed
        limit = int(info.load.value) if closed else info.load.cap
        self.part, self.give_back = part, give_back
        self.all_users = limit or 0
        limit = None if limit is None else part.share(limit)
        self.users = limit or 0
        self.slots = None if limit is None else deque([0] * limit)  # when each free slot became free
        self.waiter: asyncio.Future[None] | None = None
        self.depth = min(max(2 * limit, 32), 512) if limit is not None else _ahead(info.load.value)
        self.stagger_ns = stagger_ns if closed else 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.finished: deque[tuple[Capture, bool, Held | None]] = deque()
        self.backlog = 0  # receives in `finished`
        self.work = asyncio.Event()
        self.lead_ns = 0 if closed else runner.streamer.lead_ns
        self.due: deque[int] = deque()  # what has been taken off the plan and is not due yet, in order
        self.hot_turns = 0
        self.start_ns = 0
        self.taken = 0  # units off the plan
        self.started = 0  # units
        self.sent = 0  # requests
        self.window_open = 0  # requests of the window that have not finished
        self.window_fed = False  # the plan has passed the end of the window
        self.fed = False  # the plan has ended
        self.ended = asyncio.Event()
        self.keeping = True
        self.feeder: asyncio.Task[None] | None = None
        self.refusals = Refusals(self.users)

    def begin(self, start_ns: int) -> None:
        """Fix the window. By number of requests all of them are measured; by time, what begins inside the window."""
        info = self.info
        self.start_ns = info.start_ns = start_ns
        lead = self.stagger_ns if info.requests is None else 0
        info.window_start_ns = start_ns + lead
        if info.duration_ns is not None:
            info.window_end_ns = info.window_start_ns + info.duration_ns

    # -- the loop -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        keeper = asyncio.create_task(self._housekeep())
        feeder = self.feeder = asyncio.create_task(self._feed())
        waits = {asyncio.create_task(self.ended.wait()), asyncio.create_task(self.runner.stop.wait()), feeder, keeper}
        try:
            while not (self.ended.is_set() or self.runner.stop.is_set()):
                done, waits = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for task in done & {feeder, keeper}:
                    if not task.cancelled():
                        task.result()  # a plan that cannot be made, a row that cannot be written: the stage is over
        finally:
            for task in waits - {keeper}:
                task.cancel()
            for task in list(self.tasks):
                task.cancel()
            await asyncio.gather(*(waits - {keeper}), *self.tasks, return_exceptions=True)
            self.keeping = False
            self.work.set()
            await asyncio.wait({keeper})
            self._close()
        keeper.result()

    def end(self, ended: Ended) -> None:
        """End before the stage's time: what was begun is finished and measured, nothing that comes later is.

        A stage by time that has reached what it was for keeps its load up, unmeasured, until then; else no more is
        sent.
        """
        info = self.info
        if self.feeder is None or self.window_fed or self.runner.stop.is_set():
            return
        now = self.clock.now_ns()
        info.window_end_ns = now if info.duration_ns is not None else None
        if ended.reached:
            info.reached = ended.why
            if info.duration_ns is not None:
                return
        else:
            info.stopped = ended.why
        self.feeder.cancel()
        self.fed = self.window_fed = True
        self._check_end()

    def _close(self) -> None:
        info, now = self.info, self.clock.now_ns()
        info.end_ns = now
        if self.refusals.paused_ns:
            info.health["paused_s"] = self.refusals.seconds
        if self.runner.stop.is_set():
            info.stopped = "interrupted"
        if info.window_end_ns is None or self.runner.stop.is_set():
            info.window_end_ns = min(now, info.window_end_ns or now)
        if info.requests is not None and info.reached is None:
            info.planned = self.part.share(info.requests)
            info.unsent = max(info.planned - self.sent, 0)

    def _check_end(self) -> None:
        """The stage has ended when its window has (nothing of it is open, nothing more of it will start), or when
        the plan has and nothing is in flight."""
        if (self.window_fed and self.window_open == 0) or (self.fed and not self.tasks):
            self.ended.set()

    async def _feed(self) -> None:
        """Start requests in the order of the plan until it ends or the window is over and done."""
        while (unit := self._next_unit()) is not None:
            due = self._due(unit.turns[0])
            if due is not None:
                self._mark_window(due)
                self.due.append(due)
                await self.clock.sleep_until(due - self.lead_ns)
            freed = await self._slot()
            now = self.clock.now_ns()
            if due is None:
                self._mark_window(now)
            in_window = self._in_window(now if self.closed else due)
            if self._hopeless(now, in_window):
                break
            if not self._afford(unit, unit.turns[0], ()):
                if in_window and self.info.duration_ns is not None:
                    self._leave_out(0 if self.closed else len(unit.turns))
                    self.info.window_end_ns = now
                self.window_fed = True
                break
            if in_window:
                self.window_open += len(unit.turns)
                self.info.planned += len(unit.turns)
            self._start(unit, due, max(x for x in (self.start_ns, due, freed) if x is not None), in_window)
            await asyncio.sleep(0)  # one send for each turn of the loop ...
            if not self.lead_ns:
                self.runner.look()  # ... and what has arrived meanwhile is read before the next
        self.fed = True
        if self.give_back is not None and self.slots:
            self.give_back(len(self.slots))
            self.slots.clear()
        self._check_end()

    def add_slots(self, count: int) -> None:
        """Slots that became free: handed on at once when this worker's plan has ended."""
        if self.slots is None:
            return
        if self.fed and self.give_back is not None:
            self.give_back(count)
            return
        self.slots.extend([self.clock.now_ns()] * count)
        self.hot_turns = _HOT_TURNS if self.waiter is not None else 0
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def _slot(self) -> int | None:
        """Wait for a free slot; returns when it became free (None without a limit)."""
        if self.slots is None:
            return None
        while not self.slots:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        return self.slots.popleft()

    def _mark_window(self, when: int) -> None:
        if self.info.window_end_ns is not None and when >= self.info.window_end_ns:
            self.window_fed = True
            self._check_end()

    def _start(self, unit: Unit, due: int | None, ready: int, in_window: bool) -> None:
        self.started += 1
        self.hot_turns = 0 if self.lead_ns else _HOT_TURNS
        task = asyncio.create_task(self._unit(unit, None if self.closed else due, ready, in_window))
        self.tasks.add(task)
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self._check_end()

    async def _unit(self, unit: Unit, due: int | None, ready_ns: int, in_window: bool) -> None:
        """One slot's work: a request, or a session's turns with their think times and growing history."""
        history: tuple[Message, ...] = ()
        runner = self.runner
        target = runner.targets[unit.endpoint]
        left = len(unit.turns)
        try:
            for index, planned in enumerate(unit.turns):
                if index:
                    ready_ns = self.clock.now_ns() + planned.think_ns
                    await self.clock.sleep_until(ready_ns)
                    if not self._afford(unit, planned, history):
                        break
                body = unit.body if index == 0 and unit.body is not None else target.body(planned, history)
                capture = Capture(planned, target.dialect, ready_ns=ready_ns, endpoint=unit.endpoint)
                capture.scheduled_ns = due if index == 0 else None
                capture.dispatched_ns = max(self.clock.now_ns(), capture.scheduled_ns or 0)
                self.sent += 1
                runner.live.sent += 1
                runner.live.in_flight += 1
                try:
                    await runner.streamer.stream(capture, target.url, body)
                finally:
                    runner.live.in_flight -= 1
                if capture.sent_ns is None and capture.failure is not None and capture.failure.kind == "cancelled":
                    self.sent -= 1  # the stage was over before it was on its way
                    runner.live.sent -= 1
                    if runner.purse is not None and unit.held is not None:
                        runner.purse.release(unit.held)
                    break
                left -= 1
                self._done(capture, in_window, unit.held)
                if capture.failure is not None or (runner.stop.is_set() and index + 1 < len(unit.turns)):
                    break
                if index + 1 < len(unit.turns):
                    history = (*history, *planned.messages)
                    if unit.turns[index + 1].messages[0].role != "assistant":  # no recorded answer follows
                        history = (*history, Message("assistant", answer(capture)))
            if self.closed and (pause := self.refusals.pause_ns(capture)):
                await self.clock.sleep_until(self.clock.now_ns() + pause)
        finally:
            if in_window:
                self.window_open -= left  # turns that a failure left unsent
                self.info.unsent += left
            self.add_slots(1)

    def _done(self, capture: Capture, in_window: bool, held: Held | None) -> None:
        if in_window:
            self.window_open -= 1
        self.finished.append((capture, in_window, held))
        self.backlog += len(capture.body)
        self.work.set()

    # -- what is due --------------------------------------------------------------------------------------------

    def _offset(self, index: int) -> int:
        return self.stagger_ns * (index * self.part.count + self.part.index) // self.all_users

    def _due(self, planned: PlannedRequest) -> int | None:
        if planned.offset_ns is not None:
            return self.start_ns + planned.offset_ns
        if self.stagger_ns and self.started < self.users:
            return self.start_ns + self._offset(self.started)
        return None

    def _in_window(self, when: int | None) -> bool:
        if self.info.duration_ns is None:
            return True
        if when is None:
            return False
        start, end = self.info.window_start_ns, self.info.window_end_ns
        return start is not None and end is not None and start <= when < end

    def _hopeless(self, now: int, in_window: bool) -> bool:
        """A capped open loop that the server cannot follow: sending what was due would take for ever. The rest of the
        window is counted as unsent."""
        end, duration = self.info.window_end_ns, self.info.duration_ns
        if duration is None or end is None or not in_window or now < end + max(2 * duration, _MIN_DRAIN_NS):
            return False
        self._leave_out(1)
        return True

    def _leave_out(self, left: int) -> None:
        """Count `left` requests, and in open loop all that are still due in the window, as unsent."""
        for unit in () if self.closed else chain(self.ahead, self.units):
            if not self._in_window(self._due(unit.turns[0])):
                break
            left += len(unit.turns)
        self.info.planned += left
        self.info.unsent += left

    def _afford(self, unit: Unit, planned: PlannedRequest, history: tuple[Message, ...]) -> bool:
        """Hold what the request can take. Where the budget does not allow it the stage is cut: what is in flight ends
        and is measured, the rest of the window is unsent."""
        purse = self.runner.purse
        if purse is None or (held := purse.take(planned, history)) is not None:
            unit.held = held if purse is not None else None
            return True
        if not self.window_fed:  # else only load behind the window was cut
            self.info.stopped = f"{_CUT}{purse.empty}{_SPENT}"
        return False

    # -- everything that is not a send ----------------------------------------------------------------------------

    def _next_unit(self) -> Unit | None:
        if not self.ahead:
            self.build_ahead(1)
        if not self.ahead:
            return None
        unit = self.ahead.popleft()
        self.ahead_bytes -= len(unit.body or b"")
        self.work.set()
        return unit

    def build_ahead(self, count: int) -> bool:
        """Build up to `count` bodies ahead of their time; False when there is nothing (more) to build."""
        for _ in range(count):
            if self.exhausted or len(self.ahead) >= self.depth or self.ahead_bytes > _AHEAD_BYTES:
                return False
            unit = next(self.units, None)
            if unit is None:
                self.exhausted = True
                return False
            targets = self.runner.targets
            unit.endpoint = (self.part.index + self.taken * self.part.count) % len(targets)  # by its place in the plan
            self.taken += 1
            unit.body = targets[unit.endpoint].body(unit.turns[0])
            self.ahead_bytes += len(unit.body)
            self.ahead.append(unit)
        return True

    async def _housekeep(self) -> None:
        while self.keeping or self.finished:
            calm = self.backlog < _BACKLOG and len(self.finished) < _BACKLOG_REQUESTS
            if self.hot_turns > 0 and calm:
                self.hot_turns -= 1
                await asyncio.sleep(0)
                continue
            while self.due and self.due[0] <= self.clock.now_ns():
                self.due.popleft()
            if self.due and calm and self.due[0] - self.clock.now_ns() < _QUIET_NS:
                await self.clock.sleep_until(self.due[0])
                await asyncio.sleep(0)
                continue
            if self.finished:
                self._record(*self.finished.popleft())
            elif not self.keeping or not self.build_ahead(1):
                self.work.clear()
                if self.keeping:
                    await self.work.wait()
                continue
            await asyncio.sleep(0)

    def _record(self, capture: Capture, in_window: bool, held: Held | None) -> None:
        runner = self.runner
        self.backlog -= len(capture.body)
        exchange = decode(capture, keep_text=runner.keep_text, count_tokens=runner.count_tokens, breathe=runner.look)
        if not in_window and not exchange.warmup:
            exchange = replace(exchange, flags=(*exchange.flags, "after_window"))
        if runner.worker:
            exchange = replace(exchange, worker=runner.worker)
        runner.live.finished += 1
        runner.live.failed += exchange.outcome == "failed"
        if runner.live.tally is not None:
            runner.live.tally.add(exchange)
        if runner.purse is not None and held is not None:
            runner.purse.settle(held, exchange)
        runner.sink.write(exchange)
        runner.on_exchange(exchange)
