"""A server that is started for a measurement: its command, its health, its end.

Knows: how a server is started, when it may be measured, how it is stopped, what is told when it does not come up. Must
not know: workloads, runs, what its flags mean.
Why: a server that has died must be known at once, with its own last words; one that loads weights for ten minutes is
healthy all the same; and however loadgen ends, no server may be left behind that holds a GPU (`keeper` sees to that).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from urllib.parse import urljoin, urlsplit

from loadgen.engine import keeper
from loadgen.errors import EndpointError

HEALTH = ("/health", "/v1/models")  # where health is asked for, unless a server says otherwise
_POLL_S = 0.1
_ANSWER_S = 5.0  # for one answer of the health page
_KILL_S = 5.0  # beyond the grace, for the keeper to end
_LAST_LINES = 5
_LOG_TAIL = 1 << 14  # bytes


@dataclass(frozen=True, slots=True)
class Launch:
    """What is started. `argv` is a list of words; `url` is where it answers, `health` paths or a URL (the first that
    the server knows counts); `patience_s` from the start to health, `grace_s` from SIGTERM to SIGKILL."""

    argv: Sequence[str]
    url: str
    log: Path
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    health: tuple[str, ...] = HEALTH
    patience_s: float = 600.0
    grace_s: float = 15.0

    def within(self, patience_s: float | None, grace_s: float | None) -> Launch:
        """The same with other limits; None leaves one as it is."""
        patience = self.patience_s if patience_s is None else patience_s
        return replace(self, patience_s=patience, grace_s=self.grace_s if grace_s is None else grace_s)


class Server:
    """A server while it is needed: `with Server(launch): ...` begins when it is healthy and leaves nothing behind.

    Raises EndpointError from the start: it ended, or did not become healthy in time.
    """

    def __init__(self, launch: Launch, say: Callable[[str], None] = lambda line: None) -> None:
        self.launch, self._say = launch, say
        self._keeper: subprocess.Popen[bytes] | None = None
        self.ready_s = 0.0  # from the start to health
        self._log_begin = 0  # bytes of earlier starts

    def __enter__(self) -> Server:
        try:
            self._start()
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def died(self) -> str:
        """How it ended and its last words, where it has ended by itself; "" while it runs."""
        code = None if self._keeper is None else self._keeper.poll()
        if code is None:
            return ""
        how = f"was killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
        return f"{how}{self._last_words()}"

    @contextlib.contextmanager
    def alarmed(self, alarm: Callable[[], None]) -> Iterator[None]:
        """While the block runs, call `alarm` (in another thread, once) as soon as the server ends by itself. The thread
        waits in the kernel: it costs the measurement nothing."""
        assert self._keeper is not None
        pid, over = self._keeper.pid, threading.Event()

        def wait() -> None:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            if not over.is_set():
                alarm()

        threading.Thread(target=wait, daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def stop(self) -> None:
        """End it and everything that it started; returns when nothing of it is left."""
        if self._keeper is None:
            return
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()
        try:
            self._keeper.wait(self.launch.grace_s + _KILL_S)
        except subprocess.TimeoutExpired:  # a keeper that hangs takes the server along
            self._keeper.kill()
            self._keeper.wait()

    def _start(self) -> None:
        launch = self.launch
        with contextlib.suppress(OSError):
            self._log_begin = launch.log.stat().st_size
        told = {
            "argv": list(launch.argv),
            "cwd": str(launch.cwd),
            "env": dict(launch.env),
            "log": str(launch.log.resolve()),
            "grace_s": launch.grace_s,
        }
        # A session of its own: Ctrl-C at the terminal is loadgen's to handle, and then the server is stopped in order.
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__], stdin=subprocess.PIPE, start_new_session=True
        )
        assert self._keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.write(json.dumps(told).encode() + b"\n")
            self._keeper.stdin.flush()

    def _wait(self) -> None:
        """Until the health page says yes. Raises EndpointError: the server ended first, or took too long."""
        begun = time.monotonic()
        while True:
            if told := self.died():
                raise EndpointError(f"the server {told}", where=self.launch.url, do=f"its log: {self.launch.log}")
            if is_healthy(self.launch.url, self.launch.health):
                self.ready_s = time.monotonic() - begun
                return
            if time.monotonic() - begun > self.launch.patience_s:
                what = f"the server was not healthy after {self.launch.patience_s:g} s{self._last_words()}"
                do = f"its log: {self.launch.log}; `patience` gives it longer, `health` names its page"
                raise EndpointError(what, where=self.launch.url, do=do)
            time.sleep(_POLL_S)

    def _last_words(self) -> str:
        lines = last_lines(self.launch.log, self._log_begin)
        return f"; its last lines: {' | '.join(lines)}" if lines else "; its log is empty"


def wait_for(url: str, health: tuple[str, ...], patience_s: float) -> None:
    """Wait for a server that others start. Raises EndpointError when it takes too long."""
    until = time.monotonic() + patience_s
    while not is_healthy(url, health):
        if time.monotonic() > until:
            raise EndpointError(f"was not healthy after {patience_s:g} s", where=url)
        time.sleep(_POLL_S)


def is_healthy(url: str, health: Sequence[str]) -> bool:
    """Whether the first health page that the server has says yes. One that asks for a key is up as well."""
    for page in health:
        status = _status(urljoin(url, page))
        if status is None:
            return False
        if status not in (404, 405, 501):
            return 200 <= status < 300 or status in (401, 403)
    return False


def _status(url: str) -> int | None:
    """The HTTP status of a page; None where nobody answers."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=_ANSWER_S)
        try:
            connection.request("GET", f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}")
            return connection.getresponse().status
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError):
        return None


def last_lines(log: Path, begin: int = 0, most: int = _LAST_LINES) -> list[str]:
    """The last lines of a log, from a place in it on, that say anything."""
    try:
        with open(log, "rb") as file:
            file.seek(max(file.seek(0, 2) - _LOG_TAIL, begin))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if any(map(str.isalnum, line))][-most:]


def take_port(wanted: int = 0) -> int:
    """A port of 127.0.0.1 that is free now: `wanted`, or any. Raises EndpointError where `wanted` is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as bad:
            do = "stop what listens there, or leave `port` out"
            raise EndpointError("is taken by another process", where=f"127.0.0.1:{wanted}", do=do) from bad
        return int(probe.getsockname()[1])
