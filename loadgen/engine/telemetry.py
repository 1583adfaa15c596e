"""Reads the server's metrics once a second while a run goes on, without the run noticing.

Knows: HTTP GETs of Prometheus text, their time-outs, bounds and oddities. Must not know: the event loop, files, what
the series are for.
Why: a thread of its own, which waits in system calls nearly all of its time and lets go of the interpreter between
lines, so that the loop that stamps tokens is never held up. Whatever goes wrong with a page is a note, never a failure.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from loadgen.analysis.server import Reading, Sample, Scrape, normalise
from loadgen.analysis.server_names import wanted_names
from loadgen.engine.host import public_url
from loadgen.engine.transport import Security, ssl_context
from loadgen.errors import LoadgenError, UsageError

AUTO, OFF = "auto", "off"
INTERVAL_S = 1.0
_PATHS = ("/metrics", "/prometheus/metrics")  # the second is TensorRT-LLM's, whose first is JSON
_TIMEOUT_S = 5.0  # for a page, in the thread
PATIENCE_S = 2.0  # that the run itself waits for pages, all of them together
_REST_S = 30.0  # that a page is left alone after it has timed out: it would hold up the others
_MAX_BYTES = 8 << 20
_ACCEPT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"
_WANTED = re.compile(
    rb"^(?:" + b"|".join(sorted(re.escape(name).encode() for name in wanted_names())) + rb")[{ \t].*$", re.MULTILINE
)
_REDIRECTS = (301, 302, 307, 308)


@dataclass(frozen=True, slots=True)
class Page:
    """Where one page of metrics is. `headers` may hold a key: never store them."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    security: Security = field(default_factory=Security)


def pages(
    wanted: Sequence[str], bases: Sequence[str], headers: dict[str, str], security: Security
) -> tuple[list[Page], bool]:
    """The pages that `--metrics` names, and whether the endpoints' own are to be looked for, too (auto).

    The endpoints' headers go to pages of the same origins only: a key is nobody else's. Raises UsageError.
    """
    origins = [_origin(base) for base in bases]
    named = [word for text in wanted for word in text.split(",") if word]
    if OFF in named:
        return [], False
    found = []
    for url in named:
        if url == AUTO:
            continue
        whole = url if "://" in url else f"http://{url}"
        try:
            parts = urlsplit(whole)
            odd = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
        except ValueError:
            odd = True
        if odd:
            raise UsageError("not an http(s) URL", where=f"--metrics {url}", do="give a URL, auto or off")
        path = whole if parts.path.strip("/") else whole.rstrip("/") + "/metrics"
        found.append(Page(path, headers if _origin(whole) in origins else {}, security))
    return found, AUTO in named


def own_pages(base: str, headers: dict[str, str], security: Security) -> list[Page]:
    """Where an endpoint with base URL `base` may have its metrics."""
    root = base.removesuffix("/v1")
    return [Page(root + path, headers, security) for path in _PATHS]


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def parse(body: bytes) -> Iterator[Sample]:
    """The samples of a page that some alias knows. A line that cannot be read is left out.

    Line by line, and only the wanted ones: comments, other series and exemplars of other lines do no harm.
    """
    from prometheus_client.parser import text_string_to_metric_families  # here: most endpoints have no such page

    for match in _WANTED.finditer(body):
        try:
            families = list(text_string_to_metric_families(match[0].decode("utf-8", "replace") + "\n"))
        except (ValueError, IndexError, KeyError):
            continue
        for family in families:
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value
        time.sleep(0)  # lets the event loop's thread go on


def gpus(samples: Iterable[Sample]) -> dict[str, Any]:
    """GPU model, number and driver, from the labels that the DCGM exporter puts on every sample; {} without them."""
    found = [labels for _, labels, _ in samples if "modelName" in labels]
    if not found:
        return {}
    models = sorted({labels["modelName"] for labels in found})
    drivers = sorted({labels["DCGM_FI_DRIVER_VERSION"] for labels in found if "DCGM_FI_DRIVER_VERSION" in labels})
    cards = {(labels.get("Hostname"), labels.get("UUID") or labels.get("gpu")) for labels in found}
    told: dict[str, Any] = {"gpu": ", ".join(models), "gpus": len(cards)}
    return told | ({"driver": ", ".join(drivers)} if drivers else {})


class Reader:
    """One page, over a connection that is kept."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.hung = False  # its latest read took too long, or takes too long now
        self.rests_until = 0.0  # on time.monotonic
        self._connection: http.client.HTTPConnection | None = None
        parts = urlsplit(page.url)
        self._headers = {"Accept": _ACCEPT, "Accept-Encoding": "identity", **page.headers}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + b64encode(pair.encode()).decode()

    def read(self) -> bytes:
        """The page. Raises OSError or HTTPException, ValueError for an answer that is no page."""
        try:
            status, location, body = self._get()
            if status in _REDIRECTS and location:
                target = urljoin(self.page.url, location)
                if _origin(target) != _origin(self.page.url):
                    raise ValueError(f"HTTP {status} to another host")
                self.page = replace(self.page, url=target)
                status, _, body = self._get()
        except BaseException:
            self.close()
            raise
        if status != 200:
            raise ValueError(f"HTTP {status}")
        return body

    def _get(self) -> tuple[int, str | None, bytes]:
        parts = urlsplit(self.page.url)
        if self._connection is None:
            self._connection = _connect(parts.scheme, parts.hostname or "", parts.port, self.page.security)
        self._connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else ""), headers=self._headers)
        response = self._connection.getresponse()
        deadline, body = time.monotonic() + _TIMEOUT_S, b""
        while chunk := response.read1(1 << 16):
            body += chunk
            if len(body) > _MAX_BYTES:
                raise ValueError(f"is larger than {_MAX_BYTES >> 20} MiB")
            if time.monotonic() > deadline:
                raise TimeoutError(f"was not complete after {_TIMEOUT_S:.0f} s")
        response.close()  # `read1` has read it to its end, but leaves the connection thinking otherwise
        if response.will_close:
            self.close()
        return response.status, response.getheader("Location"), body

    def abort(self) -> None:
        """From another thread: end a read that hangs."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next reading opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _connect(scheme: str, host: str, port: int | None, security: Security) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    context = ssl_context(security)
    if not isinstance(context, ssl.SSLContext):
        context = ssl.create_default_context() if context else ssl._create_unverified_context()
    return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)


class Telemetry:
    """The thread that reads the pages. `open` once, `mark` at moments that matter, `close` at the end.

    `open`, `mark` and `close` block for PATIENCE_S at most, and not again for a page that hangs (which is tried again
    now and then); call them off the event loop.
    """

    def __init__(
        self, now_ns: Callable[[], int], write: Callable[[Scrape], None], interval_s: float = INTERVAL_S
    ) -> None:
        self._now_ns, self._write, self._interval_s = now_ns, write, interval_s
        self._readers: list[Reader] = []
        self._thread: threading.Thread | None = None
        self._wake, self._stop, self._searched = threading.Event(), threading.Event(), threading.Event()
        self._round = threading.Condition()
        self._rounds = 0
        self._reading: Reader | None = None
        self._failures: dict[tuple[int, str], int] = {}
        self._engines: set[str] = set()
        self._gpus: dict[str, Any] = {}
        self.notes: list[str] = []

    def open(self, given: Sequence[Page], own: Sequence[Sequence[Page]]) -> None:
        """Begin. Of each endpoint's `own` candidates the first with a known series is read; `given` ones always are."""
        self._readers = [Reader(page) for page in given]
        self._thread = threading.Thread(target=self._run, args=(own,), name="telemetry", daemon=True)
        self._thread.start()
        if not self._searched.wait(PATIENCE_S):
            with self._round:
                slow = self._reading
            if slow is not None:
                slow.hung = True
                self.notes.append(silent(slow.page.url))

    def mark(self) -> None:
        """Read all pages now, and return when that is done (or when it takes too long)."""
        if self._thread is None or not self._thread.is_alive() or not self._searched.is_set():
            return
        with self._round:
            if self._reading is not None and self._reading.hung:
                return
            # A round that is under way began before this moment: the one after it counts.
            wanted = self._rounds + (2 if self._reading is not None else 1)
            self._wake.set()
            if self._round.wait_for(lambda: self._rounds >= wanted or self._stop.is_set(), timeout=PATIENCE_S):
                return
            if self._reading is not None:
                self._reading.hung = True
                note = silent(self._reading.page.url)
                self.notes += [note] if note not in self.notes else []

    def close(self) -> None:
        """End. A page that still hangs is let go."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            if (reading := self._reading) is not None and reading.hung:
                reading.abort()
            self._thread.join(PATIENCE_S)

    def record(self) -> dict[str, Any]:
        """What was read until now, as plain values for the run's record."""
        notes = [
            f"{public_url(self._readers[source].page.url)}: {reason} ({times} of {self._rounds} readings)"
            for (source, reason), times in list(self._failures.items())
        ]
        return {
            "pages": [public_url(reader.page.url) for reader in self._readers],
            "engines": sorted(self._engines),
            "interval_s": self._interval_s,
            "readings": self._rounds,
            "notes": self.notes + notes,
            **self._gpus,
        }

    # -- in the thread ------------------------------------------------------------------------------------------

    def _run(self, own: Sequence[Sequence[Page]]) -> None:
        for candidates in reversed(own):  # each goes in front of those before it
            self._search(candidates)
        self._searched.set()
        due = time.monotonic()
        while self._readers and not self._stop.is_set():
            self._wake.clear()
            for source, reader in enumerate(self._readers):
                if not self._stop.is_set() and reader.rests_until <= time.monotonic():
                    self._read(source, reader)
            with self._round:
                self._rounds += 1
                self._reading = None
                self._round.notify_all()
            due = max(due + self._interval_s, time.monotonic())
            if self._wake.wait(max(due - time.monotonic(), 0.0)):
                due = time.monotonic()
        for reader in self._readers:
            reader.close()

    def _search(self, own: Sequence[Page]) -> None:
        """Take the first page with a series that is known; else note why the first one is not it."""
        reasons = []
        for page in own:
            reader = Reader(page)
            with self._round:
                self._reading = reader
            try:
                if normalise(parse(reader.read())).engines:
                    self._readers.insert(0, reader)
                    break
                reasons.append("no series that is known")
            except (OSError, http.client.HTTPException, ValueError) as bad:
                reasons.append(_reason(bad))
            reader.close()
        else:
            if own and not self.notes:  # else it has been told that they hang
                self.notes.append(
                    f"the endpoint has no metrics that could be read: {public_url(own[0].url)}: {reasons[0]}"
                )
        self._reading = None

    def _read(self, source: int, reader: Reader) -> None:
        with self._round:
            self._reading = reader
        before = self._now_ns()
        hung = False
        try:
            body = reader.read()
            after = self._now_ns()
            samples = list(parse(body))
            reading = normalise(samples)
            if not reading.engines:
                raise ValueError("has no series that is known")
            self._engines |= set(reading.engines)
            self._gpus |= gpus(samples)
            self._write(_scrape(before, after, self._rounds, source, reading))
        except LoadgenError as bad:  # the disk is full: the run will say so, too
            self._failed(source, str(bad))
        except TimeoutError as bad:
            hung, reader.rests_until = True, time.monotonic() + _REST_S
            self._failed(source, _reason(bad))
        except (OSError, http.client.HTTPException, ValueError) as bad:
            self._failed(source, _reason(bad))
        finally:
            reader.hung = hung

    def _failed(self, source: int, reason: str) -> None:
        self._failures[source, reason] = self._failures.get((source, reason), 0) + 1


def _scrape(before_ns: int, after_ns: int, tick: int, source: int, got: Reading) -> Scrape:
    middle, took = (before_ns + after_ns) // 2, after_ns - before_ns
    return Scrape(middle, took, tick, source, got.engines, got.values, got.histograms)


def silent(url: str) -> str:
    """The note on a page that hangs."""
    return f"{public_url(url)} has not answered within {PATIENCE_S:g} s: the run goes on without these metrics"


def _reason(bad: Exception) -> str:
    return (str(bad) or type(bad).__name__)[:200]
