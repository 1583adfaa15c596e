"""Kernel stamps, the clock offset, and the selector's fast lane, on real sockets."""

from __future__ import annotations

import asyncio
import select
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from loadgen.engine import clock as clock_file
from loadgen.engine import sockets
from loadgen.engine.clock import WallOffset
from loadgen.engine.health import wake_quantile_ns
from loadgen.engine.sockets import HAS_KERNEL_STAMPS, StampedSocket, StampingSelector, Watch, open_socket

MS = 1_000_000
S = 1_000_000_000
kernel = pytest.mark.skipif(not HAS_KERNEL_STAMPS, reason="the system has no SO_TIMESTAMPNS")


@pytest.fixture
def selector() -> Iterator[StampingSelector]:
    made = StampingSelector(0)
    yield made
    made.close()


@pytest.fixture
def pair(selector: StampingSelector) -> Iterator[tuple[StampedSocket, socket.socket]]:
    """A stamped socket, connected, and its peer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock = open_socket(socket.AF_INET, socket.SOCK_STREAM, 0, selector)
        sock.setblocking(True)
        sock.connect(listener.getsockname())
        sock.setblocking(False)
        peer, _ = listener.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.begin()
    yield sock, peer
    sock.close()
    peer.close()


def turn_until(selector: StampingSelector, done: Callable[[], object]) -> None:
    """Let the selector work as an event loop would, bounded."""
    limit = time.monotonic() + 10
    while not done():
        selector.select(0.02)
        assert time.monotonic() < limit


def stamped_receive(selector: StampingSelector, sock: StampedSocket, peer: socket.socket) -> None:
    """Receive until one carries a kernel stamp: the kernel begins to stamp a moment after it was asked to."""
    limit = time.monotonic() + 10
    while True:
        missing = selector.missing_stamps
        peer.sendall(b"x")
        time.sleep(0.01)
        selector.receive(sock)
        if not HAS_KERNEL_STAMPS or selector.missing_stamps == missing:
            return
        assert time.monotonic() < limit


def keep(into: list[bytes], *, wake: bool) -> Callable[[bytes], bool]:
    """A watcher that keeps what it gets and always, or never, wakes asyncio."""

    def on_data(data: bytes) -> bool:
        into.append(data)
        return wake

    return on_data


# -- stamps -------------------------------------------------------------------------------------------------------


@kernel
def test_the_stamp_is_of_the_arrival_not_of_the_reading(
    selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]
) -> None:
    """The reader looks 80 ms late; the stamp is near the send all the same."""
    sock, peer = pair
    errors = []
    stamped_receive(selector, sock, peer)
    selector.reset_counters()
    for _ in range(10):
        before = time.monotonic_ns()
        peer.sendall(b"x" * 100)
        after = time.monotonic_ns()
        time.sleep(0.08)
        selector.receive(sock)
        stamp, data, _ = sock.log.pieces[-1]
        assert data == b"x" * 100
        assert before - 200_000 <= stamp
        errors.append(stamp - after)
    assert min(errors) < 5 * MS
    assert selector.receives == 10
    assert selector.missing_stamps == 0


def test_without_a_kernel_stamp_the_time_of_reading_counts_and_is_counted(
    selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]
) -> None:
    sock, peer = pair
    if HAS_KERNEL_STAMPS:
        sock.setsockopt(socket.SOL_SOCKET, 35, 0)
    peer.sendall(b"x")
    time.sleep(0.03)
    read = time.monotonic_ns()
    selector.receive(sock)
    assert sock.log.pieces[-1][0] >= read
    assert selector.missing_stamps == 1


def test_a_stamp_is_never_later_than_its_reading(
    selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]
) -> None:
    """With an offset that is wrong by 30 s the stamp falls back to now, and the offset is measured again."""
    sock, peer = pair
    selector.wall.offset_ns -= 30 * S
    stamped_receive(selector, sock, peer)
    assert sock.log.pieces[-1][0] <= time.monotonic_ns()
    if HAS_KERNEL_STAMPS:
        assert abs(time.time_ns() - time.monotonic_ns() - selector.wall.offset_ns) < 50 * MS


def test_sends_are_stamped_first_and_last(
    selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]
) -> None:
    sock, _ = pair
    before = time.monotonic_ns()
    sock.send(b"one")
    middle = time.monotonic_ns()
    time.sleep(0.005)
    sock.sendmsg([b"two", b"three"])
    after = time.monotonic_ns()
    assert before <= sock.log.sent_ns <= middle
    assert middle + 5 * MS <= sock.log.sent_end_ns <= after


def test_each_request_has_its_own_log(selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]) -> None:
    sock, peer = pair
    first = sock.log
    sock.send(b"1")
    second = sock.begin()
    peer.sendall(b"answer")
    time.sleep(0.01)
    selector.receive(sock)
    assert first.sent_ns
    assert not second.sent_ns
    assert (list(first.pieces), [data for _, data, _ in second.pieces]) == ([], [b"answer"])


def test_one_receive_is_capped(selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]) -> None:
    sock, peer = pair
    payload = bytes(range(256)) * 2048
    sender = threading.Thread(target=peer.sendall, args=(payload,))
    sender.start()
    got: list[bytes] = []
    selector.watch(Watch(sock, keep(got, wake=False), lambda lost: None))
    turn_until(selector, lambda: sum(map(len, got)) == len(payload))
    sender.join(5)
    assert b"".join(got) == payload
    assert max(map(len, got)) <= sockets.READ_CAP
    assert [data for _, data, _ in sock.log.pieces] == got


# -- the offset between the clocks ----------------------------------------------------------------------------------


class Clocks:
    """Two clocks that a test sets: reading either takes `cost_ns`."""

    def __init__(self, cost_ns: int = 100) -> None:
        self.mono, self.offset, self.cost_ns = 1_000 * S, 1_700_000_000 * S, cost_ns

    def monotonic_ns(self) -> int:
        self.mono += self.cost_ns
        return self.mono

    def time_ns(self) -> int:
        self.mono += self.cost_ns
        return self.mono + self.offset


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(clock_file, "time", made)
    return made


def test_the_offset_is_exact_within_its_error(clocks: Clocks) -> None:
    wall = WallOffset()
    assert abs(wall.offset_ns - clocks.offset) <= wall.error_ns
    assert wall.error_ns == 100  # half of the two readings' cost
    assert (wall.resyncs, wall.steps) == (1, 0)


@pytest.mark.parametrize("step", [3600 * S, -3600 * S, 5 * MS])
def test_a_set_wall_clock_is_noticed_and_followed(clocks: Clocks, step: int) -> None:
    wall = WallOffset()
    clocks.offset += step
    wall.measure()
    assert abs(wall.offset_ns - clocks.offset) <= wall.error_ns
    assert (wall.resyncs, wall.steps) == (2, 1)


def test_slow_drift_is_followed_and_is_no_step(clocks: Clocks) -> None:
    wall = WallOffset()
    for _ in range(50):
        clocks.offset += 10_000  # 50 ppm at five measurements a second
        wall.measure()
    assert abs(wall.offset_ns - clocks.offset) <= wall.error_ns
    assert (wall.resyncs, wall.steps) == (51, 0)


def test_an_interrupted_reading_is_not_the_one_that_counts(clocks: Clocks) -> None:
    """One of the five readings is torn by 10 ms; the narrowest decides."""
    torn = [False]
    fast = clocks.time_ns

    def slow_once() -> int:
        if not torn[0]:
            torn[0] = True
            clocks.mono += 10 * MS
        return fast()

    clocks.time_ns = slow_once  # type: ignore[method-assign]
    wall = WallOffset()
    assert wall.error_ns == 100
    assert abs(wall.offset_ns - clocks.offset) <= 100


def test_the_error_bound_is_the_worst_of_the_run(clocks: Clocks) -> None:
    wall = WallOffset()
    clocks.cost_ns = 2_000
    wall.measure()
    clocks.cost_ns = 100
    wall.measure()
    assert wall.error_ns == 2_000


@kernel
def test_stamps_stay_on_the_monotonic_axis_when_the_wall_clock_is_set(
    selector: StampingSelector, pair: tuple[StampedSocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's clock cannot be set here, so the process's view of it is: an hour ahead, then noticed.

    After the resynchronisation an offset that is an hour too large would put stamps an hour early; what is checked is
    that the offset follows the clock and that the next measurement with the true clock repairs it within one resync.
    """
    sock, peer = pair

    class Ahead:
        monotonic_ns = staticmethod(time.monotonic_ns)

        @staticmethod
        def time_ns() -> int:
            return time.time_ns() + 3600 * S

    with monkeypatch.context() as patch:
        patch.setattr(clock_file, "time", Ahead)
        selector.wall.measure()
    assert selector.wall.steps == 1
    selector.wall.due_ns = 0
    selector.select(0)
    assert selector.wall.steps == 2
    before = time.monotonic_ns()
    peer.sendall(b"x")
    time.sleep(0.01)
    selector.receive(sock)
    assert before - MS <= sock.log.pieces[-1][0] <= time.monotonic_ns()


# -- reading before asyncio asks ----------------------------------------------------------------------------------


def test_what_asyncio_has_not_asked_for_is_read_apart_and_handed_over_in_order(
    selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]
) -> None:
    """Three events come one by one while asyncio is busy: each has a receive and a stamp of its own."""
    sock, peer = pair
    key = selector.register(sock.fileno(), selectors.EVENT_READ)
    selector.read_ahead(sock)
    for k in range(3):
        peer.sendall(b"event %d" % k)
        time.sleep(0.002)
        selector.drain()
    assert [data for _, data, _ in sock.log.pieces] == [b"event 0", b"event 1", b"event 2"]
    assert len({stamp for stamp, _, _ in sock.log.pieces}) == 3
    for k in range(3):
        assert selector.select(None) == [(key, selectors.EVENT_READ)]  # although the kernel has nothing more
        assert sock.recv(65_536) == b"event %d" % k
    assert selector.select(0) == []
    assert len(sock.log.pieces) == 3  # logged when read, not again when handed over


def test_the_end_is_read_once_and_handed_over_once(
    selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]
) -> None:
    sock, peer = pair
    selector.register(sock.fileno(), selectors.EVENT_READ)
    selector.read_ahead(sock)
    peer.sendall(b"last")
    peer.shutdown(socket.SHUT_WR)
    time.sleep(0.005)
    for _ in range(5):
        selector.drain()
    assert [data for _, data, _ in sock.log.pieces] in ([b"last", b""], [b"last"])
    assert sock.recv(65_536) == b"last"
    selector.drain()
    assert sock.recv(65_536) == b""


def test_a_broken_connection_is_told_when_asyncio_asks(
    selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]
) -> None:
    sock, peer = pair
    selector.register(sock.fileno(), selectors.EVENT_READ)
    selector.read_ahead(sock)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    time.sleep(0.005)
    assert selector.select(None)
    with pytest.raises(ConnectionResetError):
        sock.recv(65_536)


def test_few_connections_are_handed_over_in_a_turn(selector: StampingSelector) -> None:
    """A hundred heads at once do not keep the sends of the next turn waiting; none is forgotten."""
    pairs = [socket.socketpair() for _ in range(20)]
    socks = []
    for near, far in pairs:
        sock = StampedSocket(near.family, near.type, near.proto, fileno=near.detach())
        sock.setblocking(False)
        sock.selector, sock.requests = selector, 0
        sock.begin()
        selector.register(sock.fileno(), selectors.EVENT_READ)
        selector.read_ahead(sock)
        far.sendall(b"head")
        socks.append(sock)
    selector.drain()
    turns: list[int] = []
    while sum(turns) < len(socks):
        ready = selector.select(0)
        turns.append(len(ready))
        for key, _ in ready:
            assert next(sock for sock in socks if sock.fileno() == key.fd).recv(65_536) == b"head"
        assert ready
    assert max(turns) < len(socks) / 2
    for sock, (_, far) in zip(socks, pairs, strict=True):
        sock.close()
        far.close()


def test_a_connection_that_asyncio_has_given_up_is_not_waited_for(
    selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]
) -> None:
    sock, peer = pair
    selector.register(sock.fileno(), selectors.EVENT_READ)
    selector.read_ahead(sock)
    peer.sendall(b"late")
    time.sleep(0.002)
    selector.drain()
    selector.unregister(sock.fileno())
    assert selector.select(None) == []  # nobody is there to take it
    begun = time.monotonic()
    selector.select(0.05)
    assert time.monotonic() - begun >= 0.04  # and from then on a wait is a wait
    assert selector.take_held(sock) == (0, None)


def test_what_is_held_when_the_fast_lane_takes_over_is_counted(
    selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]
) -> None:
    sock, peer = pair
    selector.register(sock.fileno(), selectors.EVENT_READ)
    selector.read_ahead(sock)
    for part in (b"head", b"first", b"second"):
        peer.sendall(part)
        time.sleep(0.002)
        selector.drain()
    assert sock.recv(65_536) == b"head"
    assert selector.take_held(sock) == (len(b"firstsecond"), None)
    assert selector.take_held(sock) == (0, None)
    selector.unregister(sock.fileno())


# -- the fast lane ------------------------------------------------------------------------------------------------


def test_a_watched_socket_gets_every_byte_and_wakes_asyncio_only_when_asked(
    selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]
) -> None:
    sock, peer = pair
    selector.watch(Watch(sock, lambda data: data.endswith(b"end"), lambda lost: None))

    def send() -> None:
        for k in range(50):
            peer.sendall(b"%d," % k)
            time.sleep(0.001)
        peer.sendall(b"end")

    sender = threading.Thread(target=send)
    begun = time.monotonic()
    sender.start()
    selector.select(None)  # returns for nothing but the end
    sender.join(5)
    assert time.monotonic() - begun >= 0.05
    assert b"".join(data for _, data, _ in sock.log.pieces) == b",".join(b"%d" % k for k in range(50)) + b",end"
    stamps = [stamp for stamp, _, _ in sock.log.pieces]
    assert stamps == sorted(stamps)


def test_drain_reads_between_sends(selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]) -> None:
    sock, peer = pair
    got: list[bytes] = []
    selector.watch(Watch(sock, keep(got, wake=False), lambda lost: None))
    for k in range(5):
        peer.sendall(b"%d" % k)
        limit = time.monotonic() + 5
        while len(got) == k and time.monotonic() < limit:
            selector.drain()
    assert got == [b"0", b"1", b"2", b"3", b"4"]


def test_a_wake_that_drain_sees_is_not_lost(
    selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]
) -> None:
    """asyncio's own sockets stay ready for the next turn: epoll reports them again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ)
        with socket.create_connection(listener.getsockname()):
            time.sleep(0.01)
            selector.drain()
            ready = selector.select(5)
        assert [key.fileobj for key, _ in ready] == [listener]
        selector.unregister(listener)


def test_blind_time_bounds_what_the_client_did_not_see(
    selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]
) -> None:
    sock, peer = pair
    selector.watch(Watch(sock, lambda data: True, lambda lost: None))
    peer.sendall(b"a")
    turn_until(selector, lambda: len(sock.log.pieces) == 1)
    peer.sendall(b"b")
    time.sleep(0.06)  # the client does something else
    peer.sendall(b"c")
    time.sleep(0.01)
    turn_until(selector, lambda: len(sock.log.pieces) == 2)
    _, data, blind = sock.log.pieces[-1]
    assert data == b"bc"
    assert blind >= 60 * MS
    assert selector.lag_max_ns >= 60 * MS
    for k in range(3, 13):  # a busy machine may keep even a client that looks from looking: then again
        timer = threading.Timer(0.05, peer.sendall, args=(b"d",))
        timer.start()
        turn_until(selector, lambda k=k: len(sock.log.pieces) == k)
        timer.join()
        if sock.log.pieces[-1][2] < 60 * MS:
            break
    assert sock.log.pieces[-1][2] < 60 * MS  # it was looking all that time: only the last poll's own turn counts


class _StandingStill:
    """An epoll of a machine that stands still for 60 ms when a wait of the client's ends."""

    def __init__(self, real: select.epoll) -> None:
        self.poll_now, self.close = real.poll, real.close
        self.register, self.unregister = real.register, real.unregister

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        events = self.poll_now(timeout, most)
        time.sleep(0.06 if timeout else 0.0)
        return events


@kernel
def test_a_machine_that_stands_still_is_told_from_a_client_that_is_busy(
    selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]
) -> None:
    sock, peer = pair
    stamped_receive(selector, sock, peer)
    selector._epoll = _StandingStill(selector._epoll)  # type: ignore[assignment]
    selector.watch(Watch(sock, lambda data: True, lambda lost: None))
    selector.reset_counters()
    timer = threading.Timer(0.5, peer.sendall, args=(b"b",))  # by then it has looked, seen nothing, and waits
    timer.start()
    selector.select(None)
    timer.join()
    assert sock.log.pieces[-1][1] == b"b"
    assert sock.log.pieces[-1][2] > 30 * MS
    late = wake_quantile_ns(selector.wake_histogram, 0.99)
    assert late is not None
    assert late > 30 * MS


def test_the_end_of_file_and_a_reset_reach_the_watch(selector: StampingSelector) -> None:
    for how in ("close", "reset"):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sock = open_socket(socket.AF_INET, socket.SOCK_STREAM, 0, selector)
            sock.setblocking(True)
            sock.connect(listener.getsockname())
            sock.setblocking(False)
            peer, _ = listener.accept()
        data: list[bytes] = []
        lost: list[OSError] = []
        selector.watch(Watch(sock, keep(data, wake=True), lost.append))
        if how == "reset":
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        turn_until(selector, lambda data=data, lost=lost: data or lost)
        assert (data == [b""], len(lost)) == ((True, 0) if how == "close" else (False, 1))
        selector.unwatch(sock)  # harmless where the reset has done it
        sock.close()


# -- what asyncio needs of a selector -------------------------------------------------------------------------------


def test_asyncio_runs_on_it() -> None:
    """An echo over asyncio's own streams."""

    async def use() -> bytes:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.read(1 << 16))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(b"y" * 50_000)
        writer.write_eof()
        await asyncio.sleep(0.01)
        back = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        return back

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(StampingSelector(0))) as runner:
        back = runner.run(use())
    assert back
    assert set(back) == {ord("y")}


def test_registering(selector: StampingSelector, pair: tuple[StampedSocket, socket.socket]) -> None:
    sock, peer = pair
    key = selector.register(sock, selectors.EVENT_READ, "data")
    assert selector.get_key(sock) is key
    with pytest.raises(KeyError):
        selector.register(sock, selectors.EVENT_READ)
    assert selector.select(0) == []
    peer.sendall(b"x")
    ready = selector.select(5)
    assert [(k.data, events) for k, events in ready] == [("data", selectors.EVENT_READ)]
    selector.modify(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, "both")
    ((changed, events),) = selector.select(5)
    assert (changed.data, events) == ("both", selectors.EVENT_READ | selectors.EVENT_WRITE)
    selector.unregister(sock)
    assert selector.select(0) == []
    assert sock.fileno() not in selector.get_map()


def test_a_wait_ends_when_it_should(selector: StampingSelector) -> None:
    begun = time.monotonic()
    assert selector.select(0.03) == []
    assert time.monotonic() - begun >= 0.029
    assert selector.select(0) == []
    assert selector.select(-1) == []
