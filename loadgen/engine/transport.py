"""The one aiohttp session of a run: connections, TLS, proxies, and the outcome of each exchange.

Knows: aiohttp (with `exchange` and `probe` its only importers). Must not know: plans, load, or what a token is, except
through `last_token_ns`, which is asked only when a time-out seems due.
"""

from __future__ import annotations

import asyncio
import contextvars
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from loadgen.engine.clock import MonotonicClock
from loadgen.engine.exchange import HttpExchange, Unasked
from loadgen.engine.sockets import StampingSelector, open_socket
from loadgen.engine.timeouts import Limits, TimedOut
from loadgen.errors import UsageError
from loadgen.model import Capture, ErrorKind

_LEAD_NS = 2_000_000  # making a request ready takes a fifth of this
_current: contextvars.ContextVar[HttpExchange] = contextvars.ContextVar("loadgen_exchange")


@dataclass(frozen=True, slots=True)
class Security:
    """How the endpoint is reached: TLS verification, an own CA, proxies from the environment."""

    insecure: bool = False
    ca_file: str | None = None
    trust_env: bool = False


class _Connector(aiohttp.TCPConnector):
    """Tells the exchange that is asking which connection it got, whether it is new, and when it stood."""

    clock: MonotonicClock
    open_peak = 0

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:  # noqa: ASYNC109
        exchange = _current.get()
        started = self.clock.now_ns()
        async with asyncio.timeout(exchange.connect_s):
            connection = await super().connect(req, traces, timeout)
        exchange.connected(connection, started)
        try:
            await exchange.hold()
            if not exchange.may_send():
                connection.close()
                return await self.connect(req, traces, timeout)
        except BaseException:  # the run ends before the request is due, or the server speaks first
            connection.close()
            raise
        self.open_peak = max(self.open_peak, len(self._acquired))
        return connection


class Transport:
    """The one aiohttp session of a run. Use as an async context manager inside the run's event loop.

    `stream` never raises for what an endpoint does: every trouble becomes `capture.failure`. A request that is handed
    over before it is due waits on its connection, ready to be sent.
    """

    lead_ns = _LEAD_NS

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
        self._soon: deque[Callable[[], None]] = deque()
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
            ssl=ssl_context(self._security),
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

    def soon(self, call: Callable[[], None]) -> None:
        """Run `call` in a turn of the event loop of its own. Streams that end together would otherwise keep the client
        from looking at the others for as long as all of their ends take."""
        self._soon.append(call)
        if len(self._soon) == 1:
            asyncio.get_running_loop().call_soon(self._one)

    def _one(self) -> None:
        self._soon[0]()
        self._soon.popleft()
        if self._soon:
            asyncio.get_running_loop().call_soon(self._one)

    def kept_alive(self, url: str) -> bool:
        """Whether the server of this URL has left any connection open for the next request."""
        assert self._connector is not None
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        own = [kept for key, kept in self._connector._conns.items() if (key.host, key.port) == (parts.hostname, port)]
        return any(protocol.is_connected() for kept in own for protocol, _ in kept)

    def never_reuse(self) -> None:
        """From now on every request gets a connection of its own. For servers that close after each answer without
        saying so: the next request would race against the close, and fail through no fault of theirs."""
        assert self._connector is not None
        self._connector._force_close = True

    @property
    def peak_connections(self) -> int:
        """The most connections that were in use at one time."""
        return self._connector.open_peak if self._connector is not None else 0

    async def stream(self, capture: Capture, url: str, body: bytes) -> None:
        """POST `body` to `url` and fill `capture` until the response has ended, failed or timed out."""
        assert self._session is not None
        exchange = HttpExchange(capture, self)
        _current.set(exchange)
        try:
            await exchange.run(self._session, url, body)
        except asyncio.CancelledError:
            exchange.fail("cancelled", "cancelled by the client")
        except TimedOut as late:
            exchange.fail("timeout", str(late))
        except Unasked as early:
            exchange.fail("protocol", str(early))
        except Exception as trouble:
            exchange.fail(*_failure(trouble, exchange))
        finally:
            exchange.finish()


def ssl_context(security: Security) -> ssl.SSLContext | bool:
    """What aiohttp takes for TLS. Raises UsageError for an unreadable CA file."""
    if security.insecure:
        return False
    if security.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=security.ca_file)
    except (OSError, ssl.SSLError) as bad:
        raise UsageError(f"cannot load CA file: {bad}", where=f"--ca {security.ca_file}") from bad


def _failure(trouble: Exception, exchange: HttpExchange) -> tuple[ErrorKind, str]:
    """The error kind of an exception that aiohttp or the socket raised."""
    words = " ".join(str(trouble).replace(" ssl:default", "").split())
    reason = f"{type(trouble).__name__}: {words}" if words else type(trouble).__name__
    if isinstance(trouble, aiohttp.ClientConnectorError | aiohttp.ClientProxyConnectionError):
        return "connect", reason
    if isinstance(trouble, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError | ConnectionError):
        reused = exchange.capture.connected_ns is None and exchange.protocol is not None
        if reused and not exchange.log.data:
            return "stale", f"the server had closed the kept-alive connection ({reason})"
        if exchange.protocol is None:
            return "connect", reason
        return "truncated", f"connection closed before the response was complete ({reason})"
    if isinstance(trouble, aiohttp.ClientResponseError | aiohttp.ClientPayloadError):
        return "protocol", reason
    if isinstance(trouble, OSError):
        return "connect", reason
    return "protocol", reason
