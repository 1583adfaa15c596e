"""One HTTP exchange: body bytes out, stamped bytes in.

Knows: aiohttp (its only importer beside `probe`), connections, time-outs, TLS, proxies. Must not know: plans, load, or
what a token is, except through `last_token_ns`, which is asked only when a time-out seems due.

Theory of operation. aiohttp connects, sends, and parses the response head. A plain connection is then handed to the
selector's fast lane (`engine.sockets`): its transport is paused, and the raw bytes go to a log. When the last bytes
look like the end of the body, all of them are fed to aiohttp's protocol at once, which decides whether it really was
the end and returns the connection to the pool. Under TLS, or where the system has no kernel stamps, a `Tap` stands in
front of aiohttp's protocol instead: it stamps in the process and passes the bytes on.
Nothing is decoded here: `Capture.body` holds what came, still framed and compressed.
"""

from __future__ import annotations

import asyncio
import contextvars
import io
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from loadgen.engine.clock import MonotonicClock
from loadgen.engine.sockets import StampedSocket, StampingSelector, Watch, WireLog, open_socket
from loadgen.errors import EndpointError, UsageError
from loadgen.model import Capture, ErrorKind, Failure, Framing, Piece

_DONE_GRACE_NS = 1_000_000_000  # after `[DONE]`: how long an unfinished body may keep the slot
_BODY_END = b"\r\n\r\n"  # a chunked body ends so; an event of CRLF lines may
_LARGE_BODY_BYTES = 1 << 20  # above this aiohttp wants a file, which it sends piece by piece
_current: contextvars.ContextVar[_Exchange] = contextvars.ContextVar("loadgen_exchange")


@dataclass(frozen=True, slots=True)
class Limits:
    """Time-outs in ns; None is off. `first` runs from `sent` to the first token event, `idle` between token events."""

    connect_ns: int | None = 10_000_000_000
    first_ns: int | None = 300_000_000_000
    idle_ns: int | None = 60_000_000_000
    total_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Security:
    """How the endpoint is reached: TLS verification, an own CA, proxies from the environment."""

    insecure: bool = False
    ca_file: str | None = None
    trust_env: bool = False


class _TimedOut(Exception):
    """A limit was exceeded; the message names it."""


class Tap(asyncio.Protocol):
    """Stamps in the process what a transport delivers, then passes it to aiohttp's protocol behind it."""

    def __init__(self, inner: ResponseHandler, clock: MonotonicClock) -> None:
        self.inner, self._clock = inner, clock
        self.log: list[Piece] = []
        self.notify: Callable[[bytes], None] | None = None
        self.lost: Exception | None = None  # why the connection broke

    def data_received(self, data: bytes) -> None:
        self.log.append((self._clock.now_ns(), bytes(data), 0))
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


class _Connector(aiohttp.TCPConnector):
    """Tells the exchange that is asking which connection it got, whether it is new, and when it stood."""

    clock: MonotonicClock
    seen: set[int]
    open_now = 0
    open_peak = 0

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:  # noqa: ASYNC109
        exchange = _current.get()
        started = self.clock.now_ns()
        async with asyncio.timeout(exchange.connect_s):
            connection = await super().connect(req, traces, timeout)
        exchange.connected(connection, started)
        acquired = len(self._acquired)
        self.open_peak = max(self.open_peak, acquired)
        return connection


class Transport:
    """The one aiohttp session of a run. Use as an async context manager inside the run's event loop.

    `stream` never raises for what an endpoint does: every trouble becomes `capture.failure`.
    """

    def __init__(
        self,
        clock: MonotonicClock,
        *,
        selector: StampingSelector | None,
        headers: dict[str, str],
        limits: Limits,
        security: Security,
        last_token_ns: Callable[[Capture], int | None],
    ) -> None:
        self.clock, self.selector, self.limits = clock, selector, limits
        self._headers = {"Accept-Encoding": "identity", "Content-Type": "application/json", **headers}
        self._security = security
        self.last_token_ns = last_token_ns
        self._session: aiohttp.ClientSession | None = None
        self._connector: _Connector | None = None

    async def __aenter__(self) -> Transport:
        factory = None
        if self.selector is not None:
            selector = self.selector
            factory = lambda info: open_socket(info[0], info[1], info[2], selector)  # noqa: E731
        self._connector = _Connector(
            limit=0,
            ttl_dns_cache=None,
            keepalive_timeout=3600,
            ssl=_ssl_context(self._security),
            socket_factory=factory,
        )
        self._connector.clock = self.clock
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None, sock_read=None, connect=None),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=self._security.trust_env,
            auto_decompress=False,
            read_bufsize=1 << 30,  # nothing is ever held back in aiohttp: this client reads, logs and drops
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def peak_connections(self) -> int:
        """The most connections that were in use at one time."""
        return self._connector.open_peak if self._connector is not None else 0

    async def stream(self, capture: Capture, url: str, body: bytes) -> None:
        """POST `body` to `url` and fill `capture` until the response has ended, failed or timed out."""
        assert self._session is not None
        exchange = _Exchange(capture, self)
        _current.set(exchange)
        try:
            await exchange.run(self._session, url, body)
        except asyncio.CancelledError:
            exchange.fail("cancelled", "cancelled by the client")
        except _TimedOut as late:
            exchange.fail("timeout", str(late))
        except Exception as trouble:
            exchange.fail(*_failure(trouble, exchange))
        finally:
            exchange.finish()


class _Exchange:
    """The state of one `stream` call."""

    def __init__(self, capture: Capture, transport: Transport) -> None:
        self.capture, self.owner = capture, transport
        self.clock, self.limits = transport.clock, transport.limits
        self.connect_s = None if self.limits.connect_ns is None else self.limits.connect_ns * 1e-9
        self.loop = asyncio.get_running_loop()
        self.sock: StampedSocket | None = None
        self.tap: Tap | None = None
        self.log: list[Piece] = []
        self.stamps: WireLog | None = None
        self.watch: Watch | None = None  # not None: the socket is in the fast lane
        self.protocol: ResponseHandler | None = None
        self.response: aiohttp.ClientResponse | None = None
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.fed = 0  # pieces of the log that aiohttp has parsed
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
            tap.log = self.log = []
            tap.notify = None
            self.tap = tap
        if new:
            self.capture.connect_start_ns, self.capture.connected_ns = started_ns, self.clock.now_ns()

    # -- the exchange -------------------------------------------------------------------------------------------

    async def run(self, session: aiohttp.ClientSession, url: str, body: bytes) -> None:
        limits, capture = self.limits, self.capture
        begun = self.clock.now_ns()
        total_due = None if limits.total_ns is None else begun + limits.total_ns
        head_due = _earlier(None if limits.first_ns is None else begun + limits.first_ns, total_due)
        try:
            async with asyncio.timeout_at(None if head_due is None else self._loop_s(head_due)) as patience:
                data = body if len(body) < _LARGE_BODY_BYTES else io.BytesIO(body)
                self.response = await session.post(url, data=data, allow_redirects=False)
        except TimeoutError:
            if patience.expired():
                what = "whole request" if head_due == total_due else "first token"
                raise _TimedOut(f"no response within the {what} time-out of {(head_due or 0) - begun:,} ns") from None
            raise _TimedOut(f"no connection within {self.connect_s:g} s") from None
        response = self.response
        capture.status = response.status
        capture.headers = tuple((k.lower(), v) for k, v in response.headers.items())
        self.framing = capture.framing = _framing(response)
        if self._ended():
            return
        timer = _Watchdog(self, begun, total_due)
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
            return
        self.fed = len(self.log)
        self._watch()

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

    def _on_data(self, data: bytes) -> bool:
        """Fast lane. True wakes asyncio: only when the end may have come, so that aiohttp looks at it."""
        framing = self.framing
        if data and (framing == "close" or (framing == "chunked" and len(data) > 4 and not data.endswith(_BODY_END))):
            return self._look_for_done(data)
        self._feed(data)
        return True

    def _look_for_done(self, data: bytes) -> bool:
        """Whether `[DONE]` came, also when a receive ended inside it. The body then has a limited time to end."""
        seen = self.tail + data if self.tail else data
        self.tail = b"" if data.endswith(b"\n\r\n") else data[-5:]
        if b"[DONE]" not in seen or self.grace is not None:
            return False
        self.grace = self.loop.call_later(_DONE_GRACE_NS * 1e-9, self._wake)
        return True

    def _feed(self, latest: bytes) -> None:
        """Let aiohttp parse what it has not seen; finish when it says that the body is complete (or broken).

        The socket leaves the fast lane meanwhile: aiohttp makes its transport read again when it sees the end.
        """
        assert self.protocol is not None
        self._unwatch()
        pending = self.log[self.fed :]
        self.fed = len(self.log)
        transport = self.protocol.transport
        self.protocol.data_received(b"".join([data for _, data, _ in pending]))
        if self._ended() or self._broken():
            if transport is not None:
                transport.resume_reading()
            self._wake()
        elif latest:
            self._look_for_done(latest)
            self._watch()
        elif transport is not None:
            # The peer closed. aiohttp's parser learns it from `connection_lost`, which comes in the next turn, and
            # then knows whether this was the end of the body or a cut.
            transport.abort()
            self.loop.call_soon(self._wake)

    def _on_tapped(self, data: bytes) -> None:
        if self._ended() or not data:
            if not data and self.tap is not None and self.tap.lost is not None:
                self._cut(self.tap.lost)
            self._wake()
        elif self._broken():
            self._wake()
        else:
            self._drop()
            self._look_for_done(data)

    def _on_error(self, lost: OSError) -> None:
        self._cut(lost)
        self._release()
        self._wake()

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

    def _wake(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _loop_s(self, when_ns: int) -> float:
        return (self.clock.origin_ns + when_ns) * 1e-9

    def fail(self, kind: ErrorKind, message: str) -> None:
        """Note the first failure; later ones are its consequences."""
        if self.capture.failure is None:
            self.capture.failure = Failure(kind, message[:500])

    def finish(self) -> None:
        """Fill in what is known at the end, and leave the connection to the pool or close it."""
        capture, origin = self.capture, self.clock.origin_ns
        self._release()
        if self.grace is not None:
            self.grace.cancel()
        if self.stamps is not None and self.stamps.sent_ns:
            capture.sent_ns = self.stamps.sent_ns - origin
            capture.sent_end_ns = self.stamps.sent_end_ns - origin
        if self.tap is not None:
            self.tap.notify = None
            if capture.sent_ns is None and self.response is not None:
                capture.sent_ns = capture.connected_ns or capture.dispatched_ns
        capture.headers_ns, capture.body = split_head(self.log)
        capture.complete = self._ended()
        capture.end_ns = self.log[-1][0] if self._ended() and self.log else self.clock.now_ns()
        if self.response is not None:
            if capture.complete:
                self.response.release()
            else:
                self.response.close()


class _Watchdog:
    """The limits after the response head. Lazy: only when a limit seems due are the bytes asked for token events."""

    def __init__(self, exchange: _Exchange, begun_ns: int, total_due: int | None) -> None:
        self._exchange, self._begun, self._total_due = exchange, begun_ns, total_due
        self._handle: asyncio.TimerHandle | None = None

    def _due(self) -> tuple[int | None, str]:
        exchange, limits = self._exchange, self._exchange.limits
        _, exchange.capture.body = split_head(exchange.log)
        latest = exchange.owner.last_token_ns(exchange.capture)
        if latest is None:
            sent = exchange.stamps.sent_ns - exchange.clock.origin_ns if exchange.stamps else self._begun
            due = None if limits.first_ns is None else sent + limits.first_ns
            what = "no first token within the time-out of "
        else:
            due = None if limits.idle_ns is None else latest + limits.idle_ns
            what = "no further token within the time-out of "
        if self._total_due is not None and (due is None or self._total_due < due):
            return self._total_due, f"not complete within the time-out of {(limits.total_ns or 0) * 1e-9:g} s"
        return due, what + f"{((limits.first_ns if latest is None else limits.idle_ns) or 0) * 1e-9:g} s"

    def arm(self) -> None:
        """Set the timer to the earliest moment at which some limit can be due."""
        limits = self._exchange.limits
        spans = [s for s in (limits.first_ns, limits.idle_ns) if s is not None]
        due = _earlier(None if not spans else self._exchange.clock.now_ns() + min(spans), self._total_due)
        if due is not None:
            self._handle = self._exchange.loop.call_at(self._exchange._loop_s(due), self._check)

    def _check(self) -> None:
        due, what = self._due()
        if due is None:
            return
        if due <= self._exchange.clock.now_ns():
            self._exchange.fail("timeout", what)
            self._exchange._wake()
            return
        self._handle = self._exchange.loop.call_at(self._exchange._loop_s(due), self._check)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


def split_head(log: list[Piece]) -> tuple[int | None, list[Piece]]:
    """Divide received pieces at the end of the final header block (1xx blocks are skipped).

    Returns the stamp of the piece that completed the head (None if it never did), and the pieces of the body.
    """
    head = b""
    for index, (stamp, data, blind) in enumerate(log):
        head += data
        while (end := head.find(b"\r\n\r\n")) >= 0:
            status = head[9:10]
            head = head[end + 4 :]
            if status != b"1":
                rest: list[Piece] = [(stamp, head, blind)] if head else []
                return stamp, rest + [piece for piece in log[index + 1 :] if piece[1]]
    return None, []


def _framing(response: aiohttp.ClientResponse) -> Framing:
    if "chunked" in response.headers.get("Transfer-Encoding", "").lower():
        return "chunked"
    return "length" if "Content-Length" in response.headers else "close"


def _earlier(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _ssl_context(security: Security) -> ssl.SSLContext | bool:
    if security.insecure:
        return False
    if security.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=security.ca_file)
    except (OSError, ssl.SSLError) as bad:
        raise UsageError(f"cannot load CA file: {bad}", where=f"--ca {security.ca_file}") from bad


def _failure(trouble: Exception, exchange: _Exchange) -> tuple[ErrorKind, str]:
    """The error kind of an exception that aiohttp or the socket raised."""
    reason = f"{type(trouble).__name__}: {trouble}" if str(trouble) else type(trouble).__name__
    if isinstance(trouble, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
        raise EndpointError(f"not a usable URL: {trouble}")
    if isinstance(trouble, aiohttp.ClientConnectorError | aiohttp.ClientProxyConnectionError):
        return "connect", reason
    if isinstance(trouble, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError | ConnectionError):
        reused = exchange.capture.connected_ns is None and exchange.protocol is not None
        if reused and not any(data for _, data, _ in exchange.log):
            return "stale", f"the server had closed the kept-alive connection ({reason})"
        if exchange.protocol is None:
            return "connect", reason
        return "truncated", f"connection closed before the response was complete ({reason})"
    if isinstance(trouble, aiohttp.ClientResponseError | aiohttp.ClientPayloadError):
        return "protocol", reason
    if isinstance(trouble, OSError):
        return "connect", reason
    return "protocol", reason
