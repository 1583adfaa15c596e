"""One HTTP exchange: body bytes out, stamped bytes in.

Knows: an aiohttp response and its connection, where the body ends, what broke. Must not know: plans, load, tokens.

Theory of operation. aiohttp connects, sends, and parses the response head. A plain connection is then handed to the
selector's fast lane (`engine.sockets`): its transport is paused, and the raw bytes go to a log. When the last bytes
look like the end of the body, all of them are fed to aiohttp's protocol at once, which decides whether it really was
the end and returns the connection to the pool. Under TLS, or where the system has no kernel stamps, a `Tap` stands in
front of aiohttp's protocol instead: it stamps in the process and passes the bytes on.
Nothing is decoded here: `Capture.body` holds what came, still framed and compressed.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from loadgen.engine.clock import MonotonicClock
from loadgen.engine.sockets import StampedSocket, Watch, WireLog
from loadgen.engine.timeouts import TimedOut, Watchdog, earlier
from loadgen.model import Capture, ErrorKind, Failure, Framing, Receives

if TYPE_CHECKING:
    from loadgen.engine.transport import Transport

_DONE_GRACE_NS = 1_000_000_000  # after `[DONE]`: how long an unfinished body may keep the slot
_UNSEEN_NS = 500_000
_EVENT_END = b"\n\n\r\n"  # an event of LF lines at the end of a chunk: neither ragged nor the end of the body
_BODY_END = b"\r\n\r\n"  # a chunked body ends so; an event of CRLF lines may
_LARGE_BODY_BYTES = 1 << 20  # above this aiohttp wants a file, which it sends piece by piece


class Tap(asyncio.Protocol):
    """Stamps in the process what a transport delivers, then passes it to aiohttp's protocol behind it."""

    def __init__(self, inner: ResponseHandler, clock: MonotonicClock) -> None:
        self.inner, self._clock = inner, clock
        self.log = Receives()
        self.notify: Callable[[bytes], None] | None = None
        self.lost: Exception | None = None  # why the connection broke

    def data_received(self, data: bytes) -> None:
        self.log.add(self._clock.now_ns(), data, 0)
        self.inner.data_received(data)
        if self.notify is not None:
            self.notify(data)

    def eof_received(self) -> None:
        self.inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc
        self.inner.connection_lost(exc)
        if self.notify is not None:
            self.notify(b"")

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()


class Unasked(Exception):
    """The server spoke before it was asked."""


class HttpExchange:
    """The state of one `stream` call."""

    def __init__(self, capture: Capture, transport: Transport) -> None:
        self.capture, self.owner = capture, transport
        self.clock, self.limits = transport.clock, transport.limits
        self.connect_s = None if self.limits.connect_ns is None else self.limits.connect_ns * 1e-9
        self.loop = asyncio.get_running_loop()
        self.sock: StampedSocket | None = None
        self.tap: Tap | None = None
        self.log = Receives()
        self.stamps: WireLog | None = None
        self.watch: Watch | None = None  # not None: the socket is in the fast lane
        self.protocol: ResponseHandler | None = None
        self.response: aiohttp.ClientResponse | None = None
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.fed = 0  # bytes of the log that aiohttp has parsed
        self.to_feed = False  # waits for its turn to be fed
        self.closed = False  # the peer has closed
        self.begun = False  # the connection has been given to aiohttp, which sends at once
        self.grace: asyncio.TimerHandle | None = None  # runs since `[DONE]` was seen
        self.tail = b""  # the end of a receive that ended inside an event
        self.framing: Framing = "chunked"

    # -- connecting ---------------------------------------------------------------------------------------------

    def connected(self, connection: Any, started_ns: int) -> None:
        """Called by the connector inside `session.post`, before a byte of this request is sent."""
        transport = connection.transport
        self.protocol = connection.protocol
        wrapped = transport.get_extra_info("socket")
        raw = getattr(wrapped, "_sock", wrapped)
        stamped = raw if isinstance(raw, StampedSocket) else None
        new = stamped.requests == 0 if stamped is not None else transport.get_protocol() is self.protocol
        self.sock = stamped
        secured = transport.get_extra_info("sslcontext") is not None
        if stamped is not None:
            self.stamps = stamped.begin()
            self.log = self.stamps.pieces
        if stamped is None or secured:
            self.capture.stamp_source = "process"
            tap = transport.get_protocol()
            if not isinstance(tap, Tap):
                tap = Tap(connection.protocol, self.clock)
                transport.set_protocol(tap)
            tap.log = self.log = Receives()
            tap.notify = None
            self.tap = tap
        elif self.owner.selector is not None:
            self.owner.selector.read_ahead(stamped)
        if new:
            self.capture.connect_start_ns, self.capture.connected_ns = started_ns, self.clock.now_ns()

    async def hold(self) -> None:
        """Wait on the connection until the request is due."""
        due = self.capture.scheduled_ns
        if due is not None and due > self.clock.now_ns():
            await self.clock.sleep_until(due)
            if self.owner.selector is not None:
                self.owner.selector.drain(_UNSEEN_NS)  # many may be due at once, each a send that takes its time
            self.capture.dispatched_ns = self.clock.now_ns()

    def may_send(self) -> bool:
        """Whether the connection is as it should be before a request: open, with nothing on it.

        A kept one may have been closed meanwhile, or got a last word (408) that would pass for this request's answer:
        nothing of the request has been sent, so another connection does as well. Raises Unasked where a new connection
        has bytes on it.
        """
        protocol = self.protocol
        assert protocol is not None
        came = self.sock.came() if self.sock is not None and self.tap is None else None
        spoke = bool(came) or protocol.should_close
        new = self.capture.connected_ns is not None
        if new and spoke:
            raise Unasked("the server answered before it was asked")
        self.begun = new or (
            came is None and not spoke and protocol.is_connected()
        )  # of a new one aiohttp tells the end
        return self.begun

    # -- the exchange -------------------------------------------------------------------------------------------

    async def run(self, session: aiohttp.ClientSession, url: str, body: bytes) -> None:
        limits, capture = self.limits, self.capture
        begun = max(self.clock.now_ns(), capture.scheduled_ns or 0)
        total_due = None if limits.total_ns is None else begun + limits.total_ns
        head_due = earlier(None if limits.first_ns is None else begun + limits.first_ns, total_due)
        try:
            async with asyncio.timeout_at(None if head_due is None else self.loop_s(head_due)) as patience:
                data = body if len(body) < _LARGE_BODY_BYTES else io.BytesIO(body)
                self.response = await session.post(url, data=data, allow_redirects=False)
        except TimeoutError:
            if patience.expired():
                what = "whole request" if head_due == total_due else "first token"
                raise TimedOut(
                    f"no response within the {what} time-out of {((head_due or 0) - begun) * 1e-9:g} s"
                ) from None
            raise TimedOut(f"no connection within {self.connect_s:g} s") from None
        response = self.response
        capture.status = response.status
        capture.headers = tuple((k.lower(), v) for k, v in response.headers.items())
        self.framing = capture.framing = _framing(response)
        if self._ended():
            return
        timer = Watchdog(self, begun, total_due)
        try:
            self._follow()
            timer.arm()
            await self.done
        finally:
            timer.cancel()

    def _follow(self) -> None:
        """From here on the bytes of the body come to `_on_data`, without asyncio's read path where that is possible."""
        assert self.protocol is not None
        if self.tap is not None:
            self.tap.notify = self._on_tapped
            self._drop()
            self._look_for_done(bytes(split_head(self.log)[1].data))
            return
        assert self.sock is not None
        assert self.owner.selector is not None
        held, lost = self.owner.selector.take_held(self.sock)
        self.fed = len(self.log.data) - held
        begun = split_head(self.log)[1].data
        self._look_for_done(bytes(begun[: len(begun) - held]))
        if lost is not None:
            self._on_error(lost)
            return
        self._watch()
        if held and self.watch is not None:
            self.to_feed = True
            self.owner.soon(self._feed)

    def _watch(self) -> None:
        """Put the socket into the fast lane."""
        assert self.protocol is not None
        assert self.sock is not None
        assert self.owner.selector is not None
        transport = self.protocol.transport
        if transport is None or transport.is_closing():
            return
        transport.pause_reading()
        self.watch = Watch(self.sock, self._on_data, self._on_error)
        self.owner.selector.watch(self.watch)
        # Many heads may have come in one turn of the loop, each a fraction of a millisecond of aiohttp's work; what
        # arrives on the other streams meanwhile does not wait for the last of them.
        self.owner.selector.drain()

    def _on_data(self, data: bytes) -> bool:
        """Fast lane. True wakes asyncio: only when the end may have come, so that aiohttp looks at it."""
        framing = self.framing
        if framing == "chunked" and not self.tail and data.endswith(_EVENT_END) and b"[DONE]" not in data:
            return False  # nearly every receive: whole events
        if data and (framing == "close" or (framing == "chunked" and len(data) > 4 and not data.endswith(_BODY_END))):
            return self._look_for_done(data)
        self.closed |= not data
        if not self.to_feed:
            self.to_feed = True
            self.owner.soon(self._feed)
        return True

    def _look_for_done(self, data: bytes) -> bool:
        """Whether `[DONE]` came, also when a receive ended inside it. The body then has a limited time to end."""
        seen = self.tail + data if self.tail else data
        self.tail = b"" if data.endswith(b"\n\r\n") else seen[-5:]
        if b"[DONE]" not in seen or self.grace is not None:
            return False
        self.grace = self.loop.call_later(_DONE_GRACE_NS * 1e-9, self.wake)
        return True

    def _feed(self) -> None:
        """Let aiohttp parse what it has not seen; finish when it says that the body is complete (or broken).

        The socket leaves the fast lane meanwhile: aiohttp makes its transport read again when it sees the end.
        """
        self.to_feed = False
        if self.protocol is None or self.watch is None:
            return  # given up meanwhile
        self._unwatch()
        pending = bytes(self.log.data[self.fed :])
        self.fed = len(self.log.data)
        transport = self.protocol.transport
        self.protocol.data_received(pending)
        if self._ended() or self._broken():
            if transport is not None:
                transport.resume_reading()
            self.wake()
        elif not self.closed:
            self._look_for_done(pending)
            self._watch()
        elif transport is not None:
            # The peer closed. aiohttp's parser learns it from `connection_lost`, which comes in the next turn, and
            # then knows whether this was the end of the body or a cut.
            transport.abort()
            self.loop.call_soon(self.wake)

    def _on_tapped(self, data: bytes) -> None:
        if self._ended() or not data:
            if not data and self.tap is not None and self.tap.lost is not None:
                self._cut(self.tap.lost)
            self.wake()
        elif self._broken():
            self.wake()
        else:
            self._drop()
            self._look_for_done(data)

    def _on_error(self, lost: OSError) -> None:
        self._cut(lost)
        self._release()
        self.wake()

    def _cut(self, lost: Exception) -> None:
        """The connection broke. After `[DONE]` nothing was missing any more."""
        if self.grace is None:
            self.fail("truncated", f"connection lost: {getattr(lost, 'strerror', None) or lost}")

    # -- small facts --------------------------------------------------------------------------------------------

    def _ended(self) -> bool:
        return self.response is not None and self.response.content.is_eof()

    def _broken(self) -> bool:
        """Whether the body breaks HTTP's framing; noted as the failure. (Asked only while the connection stands.)"""
        assert self.protocol is not None
        trouble = self.protocol.exception()
        if trouble is None and self.response is not None:
            trouble = self.response.content.exception()
        if trouble is None:
            return False
        cause = trouble.__cause__ or trouble
        self.fail("protocol", f"the response body breaks HTTP: {' '.join(str(cause).split()) or type(cause).__name__}")
        return True

    def _drop(self) -> None:
        """aiohttp's copy of the payload is not needed: the log has it. (Reading it makes aiohttp resume the transport,
        so the fast lane leaves the copy alone; it dies with the response.)"""
        if self.response is not None:
            self.response.content.read_nowait()

    def _unwatch(self) -> None:
        """Take the socket out of the fast lane."""
        if self.watch is None:
            return
        self.watch = None
        assert self.sock is not None
        assert self.owner.selector is not None
        if self.sock.fileno() >= 0:
            self.owner.selector.unwatch(self.sock)

    def _release(self) -> None:
        """Take the socket out of the fast lane and let asyncio read it again."""
        if self.watch is None:
            return
        self._unwatch()
        transport = self.protocol.transport if self.protocol is not None else None
        if transport is not None and not transport.is_closing():
            transport.resume_reading()

    def last_token_ns(self) -> int | None:
        """Arrival of the latest token event so far."""
        _, self.capture.body = split_head(self.log)
        return self.owner.last_token_ns(self.capture)

    def wake(self) -> None:
        """End the wait for the body."""
        if not self.done.done():
            self.done.set_result(None)

    def loop_s(self, when_ns: int) -> float:
        """A stamp of the run on the event loop's own clock."""
        return (self.clock.origin_ns + when_ns) * 1e-9

    def fail(self, kind: ErrorKind, message: str) -> None:
        """Note the first failure; later ones are its consequences."""
        if self.capture.failure is None:
            self.capture.failure = Failure(kind, message[:500])

    def finish(self) -> None:
        """Fill in what is known at the end, and leave the connection to the pool or close it."""
        capture, origin = self.capture, self.clock.origin_ns
        self._release()
        if self.sock is not None and self.owner.selector is not None:
            self.owner.selector.take_held(self.sock)
        if self.grace is not None:
            self.grace.cancel()
        if self.stamps is not None and self.stamps.sent_ns:
            capture.sent_ns = self.stamps.sent_ns - origin
            capture.sent_end_ns = self.stamps.sent_end_ns - origin
        if self.tap is not None:
            self.tap.notify = None
            if capture.sent_ns is None and self.stamps is None and self.begun:
                capture.sent_ns = max(capture.connected_ns or 0, capture.dispatched_ns or 0)
        capture.headers_ns, capture.body = split_head(self.log)
        if (
            self.stamps is not None
            and capture.headers_ns is not None
            and capture.headers_ns < (capture.sent_ns or 1 << 62)
        ):
            self.fail("protocol", str(Unasked("the server answered before it was asked")))
        capture.complete = self._ended()
        capture.end_ns = self.log.last_ns if self._ended() and self.log else self.clock.now_ns()
        if self.response is not None:
            if capture.complete:
                self.response.release()
            else:
                self.response.close()


def split_head(log: Receives) -> tuple[int | None, Receives]:
    """Divide a response at the end of its final header block (1xx blocks are skipped).

    Returns the stamp of the receive that completed the head (None if it never did), and the receives of the body.
    """
    begin = 0
    while (end := log.data.find(b"\r\n\r\n", begin)) >= 0:
        status, begin = log.data[begin + 9 : begin + 10], end + 4
        if status != b"1":
            came = 0
            for stamp, size, _ in log.numbers():
                came += size
                if came >= begin:
                    return stamp, log.after(begin)
    return None, Receives()


def _framing(response: aiohttp.ClientResponse) -> Framing:
    if "chunked" in response.headers.get("Transfer-Encoding", "").lower():
        return "chunked"
    return "length" if "Content-Length" in response.headers else "close"
