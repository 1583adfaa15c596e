"""A null endpoint: answers at once or on an absolute schedule, does nothing else, and logs when it sent what.

Knows: sockets, an epoll, a heap of due events, bytes made beforehand. Must not know: models, batching, the client.
Why: to find out what a client can honestly measure, the other end must be known better than the client. It runs in a
process of its own; its send stamps lie on the same CLOCK_MONOTONIC as the client's and are taken just before each send.

The model name in the request says what is sent: `t<us>-i<us>-k<n>` is the first token `t` microseconds after the
request's last byte, one event every `i` microseconds, `n` tokens in each (t50000-i10000-k1 where left out). The number
of tokens is `max_tokens`; prompt tokens are counted as words. Every POST is answered as a stream of chat chunks, every
GET with a list of one model.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import multiprocessing
import os
import re
import select
import signal
import socket
import time
from array import array
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import msgspec

from loadgen.engine.clock import TimerFd
from loadgen.errors import EndpointError

_BEHAVIOUR = re.compile(r"t(\d+)(?:-i(\d+))?(?:-k(\d+))?")
_NUMBER = re.compile(rb"#(\d+)")
_SPIN_NS = 50_000  # with a core of its own: awake this long before an event is due
_BURST = 128  # events sent before requests are looked at again
_PATIENCE_S = 30.0
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\nx-request-id: %d\r\n\r\n"
)
_MODELS = b'{"object":"list","data":[{"id":"t50000-i10000","object":"model","created":0,"owned_by":"null"}]}'
_LIST = (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_MODELS)) + _MODELS


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent for one request. All stamps in ns on CLOCK_MONOTONIC."""

    number: int  # N where the prompt holds "#N", else -1
    received_ns: int  # the request's last byte was read
    gap_ns: int
    first_due_ns: int
    sends_ns: array[int] = field(default_factory=lambda: array("q"))  # event k was due at first_due + k * gap


def behaviour(model: str) -> tuple[int, int, int]:
    """(ns to the first token, ns between events, tokens per event) that a model name asks for."""
    found = _BEHAVIOUR.fullmatch(model)
    first, gap, tokens = (found.groups() if found else (None, None, None)) if model else (None, None, None)
    return int(first or 50_000) * 1000, int(gap or 10_000) * 1000, max(int(tokens or 1), 1)


def _event(payload: bytes) -> bytes:
    """One SSE event in an HTTP chunk of its own."""
    data = b"data: " + payload + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def _chunk(delta: bytes, finish: bytes = b"null") -> bytes:
    return _event(
        b'{"id":"chatcmpl-null","object":"chat.completion.chunk","created":1732000000,"model":"null","choices":'
        b'[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}]}' % (delta, finish)
    )


_ROLE = _chunk(b'{"role":"assistant","content":""}')
_FINISH = _chunk(b"{}", b'"length"')
_END = _event(b"[DONE]") + b"0\r\n\r\n"


def _tail(prompt_tokens: int, tokens: int, usage: bool) -> bytes:
    if not usage:
        return _FINISH + _END
    counts = (prompt_tokens, tokens, prompt_tokens + tokens)
    return (
        _FINISH
        + _event(
            b'{"id":"chatcmpl-null","object":"chat.completion.chunk","created":1732000000,"model":"null","choices":[],'
            b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}' % counts
        )
        + _END
    )


class _Stream:
    """One connection, and the answer that is being sent on it."""

    __slots__ = ("buffer", "event", "gap_ns", "last", "left", "record", "sock", "tail")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = bytearray()
        self.left = 0  # events still to be sent; 0: idle
        self.gap_ns = 0
        self.event = self.last = self.tail = b""
        self.record: Sent | None = None


class _Server:
    """The loop of the child process."""

    def __init__(self, control: Connection, spin_ns: int) -> None:
        self._control, self._spin_ns = control, spin_ns
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=65_535)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._epoll = select.epoll()
        self._timer = TimerFd()
        self._streams: dict[int, _Stream] = {}
        self._heap: list[tuple[int, int, _Stream]] = []  # due, number of the request, stream
        self._records: list[Sent] = []
        self._requests = 0
        self._events: dict[int, bytes] = {}
        for fd in (self._listener.fileno(), control.fileno(), self._timer.fileno):
            self._epoll.register(fd, select.EPOLLIN)

    def run(self) -> None:
        """Serve until the parent closes its end of the pipe."""
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                self._fire()
                self._wait()

    def _fire(self) -> None:
        """Send what is due, at most `_BURST` events."""
        heap, now_ns = self._heap, time.monotonic_ns
        for _ in range(_BURST):
            if not heap or heap[0][0] > now_ns():
                return
            due, number, stream = heap[0]
            record = stream.record
            if record is None:  # the client has gone
                heapq.heappop(heap)
                continue
            stream.left -= 1
            first = not record.sends_ns
            data = stream.event if stream.left else stream.last
            if first:
                data = _HEAD % number + _ROLE + data
            record.sends_ns.append(now_ns())
            if not self._send(stream, data):
                heapq.heappop(heap)
            elif stream.left:
                heapq.heapreplace(heap, (due + stream.gap_ns, number, stream))
            else:
                heapq.heappop(heap)
                stream.record = None
                if self._send(stream, stream.tail):
                    self._take(stream)

    def _send(self, stream: _Stream, data: bytes) -> bool:
        """Send all of it, or drop a client that does not read (its socket buffers are full) or has gone."""
        try:
            if stream.sock.send(data) == len(data):
                return True
        except OSError:
            pass
        self._drop(stream)
        return False

    def _wait(self) -> None:
        timeout = -1.0
        if self._heap:
            due = self._heap[0][0] - self._spin_ns
            if due <= time.monotonic_ns():
                timeout = 0.0
            else:
                self._timer.arm(due)
        for fd, _ in self._epoll.poll(timeout, 1024):
            stream = self._streams.get(fd)
            if stream is not None:
                self._receive(stream)
            elif fd == self._timer.fileno:
                self._timer.clear()
            elif fd == self._control.fileno():
                self._control.recv()
                self._control.send(self._records)
                self._records = [record for record in self._records if not record.sends_ns]
            else:
                self._accept()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._streams[sock.fileno()] = _Stream(sock)
                self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _receive(self, stream: _Stream) -> None:
        try:
            data = stream.sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(stream)
            return
        stream.buffer += data
        if not stream.left:
            self._take(stream)

    def _drop(self, stream: _Stream) -> None:
        stream.record, stream.left = None, 0
        if self._streams.pop(stream.sock.fileno(), None) is not None:
            self._epoll.unregister(stream.sock.fileno())
            stream.sock.close()

    def _take(self, stream: _Stream) -> None:
        """Take one whole request off the buffer and put its first event on the schedule."""
        buffer = stream.buffer
        end = buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        if buffer.startswith(b"GET "):
            del buffer[:end]
            self._send(stream, _LIST)
            return
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", buffer[:end])
        size = int(length[1]) if length else 0
        if len(buffer) < end + size:
            return
        received = time.monotonic_ns()
        body = bytes(buffer[end : end + size])
        del buffer[: end + size]
        try:
            asked = msgspec.json.decode(body)
            self._start(stream, asked, body, received)
        except (msgspec.DecodeError, AttributeError, TypeError, ValueError):
            self._send(stream, b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    def _start(self, stream: _Stream, asked: dict[str, Any], body: bytes, received_ns: int) -> None:
        first_ns, stream.gap_ns, per_event = behaviour(str(asked.get("model", "")))
        tokens = max(int(asked.get("max_completion_tokens") or asked.get("max_tokens") or 16), 1)
        usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        stream.left = -(-tokens // per_event)
        stream.event = self._encoded(per_event)
        stream.last = self._encoded(tokens - per_event * (stream.left - 1))
        words = sum(str(message.get("content")).count(" ") + 1 for message in asked.get("messages", ()))
        stream.tail = _tail(words, tokens, usage)
        number = _NUMBER.search(body)
        due = received_ns + first_ns
        record = Sent(int(number[1]) if number else -1, received_ns, stream.gap_ns, due)
        stream.record = record
        self._records.append(record)
        self._requests += 1
        heapq.heappush(self._heap, (due, self._requests, stream))

    def _encoded(self, tokens: int) -> bytes:
        if tokens not in self._events:
            self._events[tokens] = _chunk(b'{"content":"%s"}' % (b" token" * tokens))
        return self._events[tokens]


def _child(control: Connection, core: int | None, spin_ns: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this ends
    if core is not None:
        os.sched_setaffinity(0, {core})
    gc.freeze()
    gc.disable()
    server = _Server(control, spin_ns)
    control.send(server.port)
    server.run()


class NullEndpoint:
    """The null endpoint in a child process: `with NullEndpoint(core=1) as null: ... null.url ... null.log()`.

    `core` pins the child; only then does it spin before events are due, which would starve a client on the same core.
    Raises EndpointError when the child does not start.
    """

    def __init__(self, core: int | None = None) -> None:
        self._core = core
        self.url = ""

    def __enter__(self) -> NullEndpoint:
        context = multiprocessing.get_context("spawn")
        self._control, theirs = context.Pipe()
        spin_ns = _SPIN_NS if self._core is not None else 0
        self._child = context.Process(target=_child, args=(theirs, self._core, spin_ns), daemon=True)
        self._child.start()
        theirs.close()
        try:
            if not self._control.poll(_PATIENCE_S):
                raise EOFError
            self.url = f"http://127.0.0.1:{self._control.recv()}/v1"
        except (EOFError, ConnectionError):
            self.__exit__(None, None, None)
            raise EndpointError("the null endpoint did not start") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._control.close()
        self._child.join(5)
        if self._child.is_alive():
            self._child.kill()
            self._child.join()
        self._child.close()

    def log(self) -> list[Sent]:
        """What was sent since the last call (requests whose first token is not due yet come with the next one)."""
        self._control.send("log")
        records: list[Sent] = self._control.recv()
        return [record for record in records if record.sends_ns]
