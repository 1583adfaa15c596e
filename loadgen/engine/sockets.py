"""Sockets that stamp, and the selector that reads them before anything else runs.

Knows: SO_TIMESTAMPNS, epoll, and when bytes of one connection came or went. Must not know: HTTP, SSE, tokens, plans.

Theory of operation. asyncio reads a socket through a handle, a context, a transport and a protocol: about ten Python
calls for each event. Here the event loop's selector owns the epoll. A connection whose response headers have been read
by aiohttp is handed to `StampingSelector.watch`; from then on its bytes are received inside `select()` itself, added to
the request's log with stamp and blind time, and asyncio hears nothing of them until the stream looks finished. So reads
always come before the callbacks (sends, decoding) of the same turn, and a long burst of sends calls `drain()` in
between.
Response heads are read there as well, where `read_ahead` asks for it: when many answers begin at once, asyncio needs a
fraction of a millisecond for each head, and events would meanwhile pile up behind the heads that wait. What was read
is handed over when asyncio asks for it, a few connections to a turn, so that sends are not kept waiting either.

The stamp is the kernel's (SO_TIMESTAMPNS, CLOCK_REALTIME), put on the monotonic axis by an offset that is measured
again several times a second; a stepped wall clock therefore moves nothing. `blind` is how long the client had not
looked when it received: two events inside one receive lie at most that far apart without the client's knowing.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from loadgen.engine.clock import MonotonicClock, TimerFd, WallOffset
from loadgen.model import Receives

READ_CAP = 65_536  # bytes of one receive
SO_TIMESTAMPNS = 35  # Linux: the option, and the type of the control message
ANCILLARY_BYTES = 64
_REST_NS, _BUSY_NS = 800_000, 2_000_000  # the first: between two polls, while events come closer than the second
_SHORT_REST_NS = 100_000  # where streams are so fast that two events of one would come during the other
_QUICK_NS = 2_400_000  # a receive so soon after the one before on its connection is of a fast stream; one in 16 may be
_HELD_IN_A_TURN = 1
HAS_KERNEL_STAMPS = sys.platform.startswith("linux") and struct.calcsize("@ll") == 16


class WireLog:
    """What one request saw of its connection. `sent_ns` and `sent_end_ns` are CLOCK_MONOTONIC stamps of the first and
    the last hand-over to the kernel (0: nothing was sent yet); `pieces` are the receives, in order."""

    __slots__ = ("pieces", "sent_end_ns", "sent_ns")

    def __init__(self) -> None:
        self.pieces = Receives()
        self.sent_ns = self.sent_end_ns = 0


class StampedSocket(socket.socket):
    """A TCP socket that stamps what it sends and receives into `log`, one `WireLog` per request."""

    selector: StampingSelector
    log: WireLog
    requests: int

    def begin(self) -> WireLog:
        """Start a new request on this connection; returns its log (the previous request keeps its own)."""
        self.requests += 1
        self.log = WireLog()
        return self.log

    def send(self, data: Any, flags: int = 0) -> int:
        log = self.log
        if not log.sent_ns:
            log.sent_ns = time.monotonic_ns()
        sent = super().send(data, flags)
        log.sent_end_ns = time.monotonic_ns()
        return sent

    def sendmsg(self, buffers: Any, *rest: Any) -> int:
        log = self.log
        if not log.sent_ns:
            log.sent_ns = time.monotonic_ns()
        sent = super().sendmsg(buffers, *rest)
        log.sent_end_ns = time.monotonic_ns()
        return sent

    def came(self) -> bytes | None:
        """The first byte of what has come since the request began, or waits to be read; b"" where that is the end or an
        error; None where nothing has."""
        if self.log.pieces:
            return bytes(self.log.pieces.data[:1])
        try:
            return self.recvmsg(1, 0, socket.MSG_PEEK)[0]
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return b""

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """What asyncio calls until the response headers are there: what has been read for it, or what is there now."""
        return self.selector.hand_over(self)


def open_socket(family: int, kind: int, proto: int, selector: StampingSelector) -> StampedSocket:
    """A non-blocking stamped socket without Nagle's delay."""
    sock = StampedSocket(family=family, type=kind, proto=proto)
    sock.setblocking(False)
    sock.selector, sock.log, sock.requests = selector, WireLog(), 0
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if HAS_KERNEL_STAMPS:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return sock


class Watch:
    """One response body on the selector's list. `on_data(data)` says whether asyncio must be woken."""

    __slots__ = ("on_data", "on_error", "sock")

    def __init__(
        self, sock: StampedSocket, on_data: Callable[[bytes], bool], on_error: Callable[[OSError], None]
    ) -> None:
        self.sock, self.on_data, self.on_error = sock, on_data, on_error


class StampingSelector(selectors.BaseSelector):
    """asyncio's selector on an epoll of its own, with the fast lane for watched sockets described above.

    Counters, reset by `reset_counters`: `receives`; `missing_stamps` (receives without a kernel stamp); the lag, which
    is the time that a turn of the event loop kept the client from looking: `lag_max_ns`, and a histogram in which
    `lag_histogram[i]` counts turns of up to 2**i microseconds. `wake_histogram` counts likewise how long after the
    kernel's stamp the machine let the client run that was waiting for those very bytes: nothing of that is its own.
    """

    def __init__(self, origin_ns: int) -> None:
        self.origin_ns = origin_ns
        self.wall = WallOffset()
        self._epoll = select.epoll()
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._watches: dict[int, Watch] = {}
        self._eager: dict[int, StampedSocket] = {}  # read although asyncio has not asked yet
        self._held: dict[int, deque[bytes | OSError]] = {}  # what was read so, by socket; none of them is empty
        self._timer = TimerFd()
        if self._timer.fileno >= 0:
            self._epoll.register(self._timer.fileno, select.EPOLLIN)
        # The kernel begins to stamp packets a moment after the first socket asks for it, so one asks right away.
        self._asks = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if HAS_KERNEL_STAMPS:
            self._asks.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._waited = False
        self.reset_counters()

    def reset_counters(self) -> None:
        # What has delayed the loop until now is not part of what is counted.
        self._woke_ns = self._looked_ns = self._unseen_ns = time.monotonic_ns()
        self.receives = self._paced = self._quick = 0
        self._rest_ns = _SHORT_REST_NS
        self.missing_stamps = 0
        self.lag_max_ns = 0
        self.lag_histogram = [0] * 40
        self.wake_histogram = [0] * 40

    # -- the fast lane ------------------------------------------------------------------------------------------

    def watch(self, watch: Watch) -> None:
        """Take over the reading of a socket that asyncio no longer reads (its transport is paused)."""
        fd = watch.sock.fileno()
        self._watches[fd] = watch
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP)

    def unwatch(self, sock: StampedSocket) -> None:
        """Give the socket back; harmless when it is not watched."""
        fd = sock.fileno()
        if self._watches.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def read_ahead(self, sock: StampedSocket) -> None:
        """Until `take_held`, read what comes on a socket that asyncio reads before asyncio asks for it."""
        fd = sock.fileno()
        self._eager[fd] = sock
        self._held.pop(fd, None)  # of a connection that had this number before

    def take_held(self, sock: StampedSocket) -> tuple[int, OSError | None]:
        """Read ahead no more. Returns how many bytes asyncio has not asked for (the log has them), and the error that
        ended the connection behind them, which can be read only once."""
        fd = sock.fileno()
        if self._eager.get(fd) is not sock:
            return 0, None
        del self._eager[fd]
        held = self._held.pop(fd, ())
        lost = next((found for found in held if isinstance(found, OSError)), None)
        return sum(len(found) for found in held if isinstance(found, bytes)), lost

    def hand_over(self, sock: StampedSocket) -> bytes:
        """The oldest receive that was read ahead, else a new one. Raises as recv."""
        fd = sock.fileno()
        held = self._held.get(fd) if self._eager.get(fd) is sock else None
        if held is None:
            return self.receive(sock)
        found = held.popleft()
        if not held:
            del self._held[fd]
        if isinstance(found, OSError):
            raise found
        return found

    def _hold(self, fd: int, sock: StampedSocket) -> None:
        held = self._held.get(fd)
        if held and not isinstance(held[-1], OSError) and not held[-1]:
            return  # the end was read: it can be read for ever
        found: bytes | OSError
        try:
            found = self.receive(sock)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as lost:
            found = lost
        self._held.setdefault(fd, deque()).append(found)

    def receive(self, sock: StampedSocket) -> bytes:
        """One receive of at most READ_CAP bytes, logged with its stamp. Raises BlockingIOError and OSError as recv."""
        data, ancillary, _, _ = sock.recvmsg(READ_CAP, ANCILLARY_BYTES)
        now = time.monotonic_ns()
        self.receives += 1
        if ancillary:
            stamp = self.wall.stamp_ns(ancillary, now)
            if self._waited:  # these bytes ended a wait: whatever else came since then has not been seen either
                self._waited = False
                self._unseen_ns = min(stamp, self._woke_ns)
                self.wake_histogram[((self._woke_ns - self._unseen_ns) // 1000).bit_length()] += 1
        else:
            self.missing_stamps += bool(data)  # the end of a stream carries no bytes, and so no stamp
            stamp = now
        stamp -= self.origin_ns
        pieces = sock.log.pieces
        if stamp - pieces.last_ns < _QUICK_NS:
            self._quick += 1
        pieces.add(stamp, data, now - self._unseen_ns)
        return data

    def _read(self, watch: Watch) -> bool:
        try:
            data = self.receive(watch.sock)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as lost:
            self.unwatch(watch.sock)
            watch.on_error(lost)
            return True
        return watch.on_data(data)

    def drain(self, unseen_ns: int = 0) -> None:
        """Read what is there now if the last look was `unseen_ns` ago or more. Called between the sends of a burst."""
        if not unseen_ns or time.monotonic_ns() - self._woke_ns >= unseen_ns:
            self._look(0.0, [])

    def _look(self, timeout: float, ready: list[tuple[selectors.SelectorKey, int]]) -> bool:
        """One poll: read watched sockets, put the others on `ready`. Returns whether asyncio must run."""
        entered = time.monotonic_ns()
        lag = entered - self._woke_ns
        events = self._epoll.poll(0.0, 1024)
        # Only a poll that found nothing pending proves that what comes during the next one was not there before. How
        # long a poll took would prove nothing: the machine may stand still in the middle of it.
        self._unseen_ns, self._looked_ns = self._looked_ns, entered
        self._waited = not events and timeout != 0.0
        if self._waited:
            events = self._epoll.poll(timeout, 1024)
        self._woke_ns = self._rested_ns = time.monotonic_ns()
        if self._waited:
            self._unseen_ns = self._looked_ns = self._woke_ns
        if lag > self.lag_max_ns:
            self.lag_max_ns = lag
        self.lag_histogram[(lag // 1000).bit_length()] += 1
        if self._woke_ns > self.wall.due_ns:
            self.wall.measure()
            self._pace()
        wake = False
        watches, keys, timer = self._watches, self._keys, self._timer.fileno
        for fd, mask in events:
            watch = watches.get(fd)
            if watch is not None:
                wake |= self._read(watch)
            elif fd == timer:
                self._timer.clear()
                wake = True
            elif (key := keys.get(fd)) is not None:
                sock = self._eager.get(fd)
                if sock is not None and sock.fileno() == fd and key.events == selectors.EVENT_READ:
                    self._hold(fd, sock)
                    continue
                found = (selectors.EVENT_WRITE if mask & ~select.EPOLLIN else 0) | (
                    selectors.EVENT_READ if mask & ~select.EPOLLOUT else 0
                )
                ready.append((key, found & key.events))
                wake = True
        return wake or bool(self._held)

    # -- what asyncio calls -------------------------------------------------------------------------------------

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = []
        if self._held or (timeout is not None and timeout <= 0):
            self._look(0.0, ready)
            return self._with_held(ready) if self._held else ready
        wait = -1.0
        if timeout is not None:
            if self._timer.fileno >= 0:
                self._timer.arm(time.monotonic_ns() + int(timeout * 1e9))
            else:
                wait = timeout
        while not self._look(wait, ready):
            if wait >= 0:
                break
            self._rest()
        return self._with_held(ready) if self._held else ready

    def _with_held(self, ready: list[tuple[selectors.SelectorKey, int]]) -> list[tuple[selectors.SelectorKey, int]]:
        for fd in list(islice(self._held, _HELD_IN_A_TURN)):
            if (key := self._keys.get(fd)) is not None:
                ready.append((key, selectors.EVENT_READ))
            else:
                del self._held[fd]  # asyncio has closed the connection
        return ready

    def _rest(self) -> None:
        """Let events gather for a moment when they come thick and fast: a kernel stamp does not age, while a poll for
        each event costs as much as reading it. Nothing waits for it: asyncio had nothing to run, and a timer that is
        due soon prevents the rest."""
        now = time.monotonic_ns()
        until = self._woke_ns + self._rest_ns
        busy = self._woke_ns - self._rested_ns < _BUSY_NS
        self._rested_ns = self._woke_ns
        if busy and HAS_KERNEL_STAMPS and now < until and not 0 < self._timer.due_ns < until + self._rest_ns:
            time.sleep((until - now) * 1e-9)

    def _pace(self) -> None:
        """How long a rest may be, by what came since the last time."""
        slow = self._quick * 16 <= self.receives - self._paced
        self._rest_ns = _REST_NS if slow and self.receives > self._paced else _SHORT_REST_NS
        self._quick, self._paced = 0, self.receives

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = _fileno(fileobj)
        if fd in self._keys:
            raise KeyError(f"{fileobj!r} (FD {fd}) is already registered")
        key = selectors.SelectorKey(fileobj, fd, events, data)
        self._epoll.register(fd, _mask(events))
        self._keys[fd] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = self._keys.pop(_fileno(fileobj))
        with contextlib.suppress(OSError):  # closed already: the kernel forgot it first
            self._epoll.unregister(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = _fileno(fileobj)
        key = selectors.SelectorKey(fileobj, fd, events, data)
        if events != self._keys[fd].events:
            self._epoll.modify(fd, _mask(events))
        self._keys[fd] = key
        return key

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[_fileno(fileobj)]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._asks.close()
        self._epoll.close()
        self._timer.close()
        self._keys.clear()


def _mask(events: int) -> int:
    return (select.EPOLLIN if events & selectors.EVENT_READ else 0) | (
        select.EPOLLOUT if events & selectors.EVENT_WRITE else 0
    )


def _fileno(fileobj: Any) -> int:
    fd = fileobj if isinstance(fileobj, int) else int(fileobj.fileno())
    if fd < 0:
        raise ValueError(f"invalid file descriptor {fd}")
    return fd


def clock_facts(clock: MonotonicClock, selector: StampingSelector | None) -> dict[str, object]:
    """Where stamps come from, and how wrong they can be."""
    if selector is None or not HAS_KERNEL_STAMPS:
        return {"stamp_source": "process", "clock": "CLOCK_MONOTONIC", "origin_ns": clock.origin_ns}
    return {
        "stamp_source": "kernel",
        "clock": "CLOCK_MONOTONIC",
        "origin_ns": clock.origin_ns,  # the run's start, so that another log on the same clock can be compared
        "error_ns": selector.wall.error_ns,
        "resyncs": selector.wall.resyncs,
        "steps": selector.wall.steps,
    }
