"""Everything that a server can put on the wire, byte by byte, and the real client to receive it.

Knows: SSE events of the OpenAI dialects and of what deviates from them, HTTP heads and framings, timed scripts. Must
not know: how the client reads any of it. Built on `tests.engine.scripted`, whose send stamps are the truth.
A script is a list of (delay in seconds, bytes or CLOSE, RESET, HOLD); one script answers one request of a connection.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from itertools import pairwise
from typing import Any

import numpy as np

from loadgen.engine.clock import MonotonicClock
from loadgen.engine.sockets import StampingSelector
from loadgen.engine.timeouts import Limits
from loadgen.engine.transport import Security, Transport
from loadgen.model import Capture, Exchange, Message, PlannedRequest
from loadgen.wire.timeline import decode, last_token_ns
from tests.busy import until_so
from tests.engine.scripted import Peer, Scripted, chunk

GAP_S = 0.02  # between segments: long enough to tell one from the next by order, whatever this machine is doing


class Act(Enum):
    """What a step can do instead of sending bytes."""

    CLOSE = auto()
    RESET = auto()
    HOLD = auto()  # keep the connection open and silent until the test is over


CLOSE, RESET, HOLD = Act.CLOSE, Act.RESET, Act.HOLD
Step = tuple[float, bytes | Act]


def play(*scripts: Sequence[Step]) -> Callable[[Peer], None]:
    """Answer the n-th request of each connection with the n-th script; then wait for the client to go."""

    def run(peer: Peer) -> None:
        for script in scripts:
            peer.request()
            for delay_s, what in script:
                peer.wait(delay_s)
                if what is CLOSE:
                    return
                if what is RESET:
                    peer.reset()
                    return
                if what is HOLD:
                    peer.hold()
                elif isinstance(what, bytes):
                    peer.send(what)
        peer.hold()

    return run


# -- events -----------------------------------------------------------------------------------------------------------


def data(value: Any) -> bytes:
    """One SSE event with a JSON document (characters beyond ASCII as UTF-8)."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def chat(delta: dict[str, Any] | None, finish: str | None = None, /, **more: Any) -> bytes:
    """A chat chunk; `more` goes beside `choices`, but `token_ids` and `logprobs` into the choice. None: no delta."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    choice |= {key: more.pop(key) for key in ("token_ids", "logprobs") if key in more}
    if delta is not None:
        choice["delta"] = delta
    return data({"id": "x", "object": "chat.completion.chunk", "choices": [choice], **more})


def say(text: str, finish: str | None = None, /, **more: Any) -> bytes:
    """A chat chunk with visible text."""
    return chat({"content": text}, finish, **more)


def write(text: str, finish: str | None = None, /, **more: Any) -> bytes:
    """A chunk of the completions dialect."""
    return data({"id": "x", "choices": [{"index": 0, "text": text, "finish_reason": finish}], **more})


def tool(index: int = 0, **function: str) -> bytes:
    """A fragment of a tool call: `name` or `arguments`."""
    return chat({"tool_calls": [{"index": index, "type": "function", "function": function}]})


def used(output: int | None, prompt: int | None = 7, **more: Any) -> dict[str, Any]:
    """A usage object; None leaves the count out."""
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": (prompt or 0) + (output or 0)}
    return {key: value for key, value in counts.items() if value is not None} | more


def bill(use: dict[str, Any], **more: Any) -> bytes:
    """The chunk of `include_usage`: no choices."""
    return data({"id": "x", "choices": [], "usage": use, **more})


ROLE = chat({"role": "assistant", "content": ""})
ROLE_NULL = chat({"role": "assistant", "content": None})
FINISH = chat({}, "length")
DONE = b"data: [DONE]\n\n"


# -- responses --------------------------------------------------------------------------------------------------------


def head(status: str = "200 OK", *headers: str, kind: str = "text/event-stream") -> bytes:
    """A response head."""
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def stream(
    *segments: bytes,
    framing: str = "chunked",
    gap_s: float = GAP_S,
    headers: Iterable[str] = (),
    end: Act | None = None,
) -> list[Step]:
    """A 200 whose head and segments are sent one by one. Segment i is the send i + 1 of the peer.

    `framing`: chunked, length or close. `end` replaces the proper end of the body.
    """
    ends: dict[str, tuple[str, bytes | Act | None]] = {
        "chunked": ("transfer-encoding: chunked", b"0\r\n\r\n"),
        "length": (f"content-length: {sum(map(len, segments))}", None),
        "close": ("connection: close", CLOSE),
    }
    header, last = ends[framing]
    steps: list[Step] = [(gap_s, head("200 OK", header, *headers))]
    steps += [(gap_s, chunk(segment) if framing == "chunked" else segment) for segment in segments]
    if end is not None:
        last = end
    return steps if last is None else [*steps, (gap_s, last)]


def document(status: str, body: bytes, *headers: str, kind: str = "application/json") -> list[Step]:
    """A response in one piece with its length."""
    return [(0.0, head(status, f"content-length: {len(body)}", *headers, kind=kind) + body)]


def refused(status: str, message: str, *headers: str) -> list[Step]:
    """An error status with an OpenAI error document."""
    return document(status, json.dumps({"error": {"message": message, "type": "error"}}).encode(), *headers)


def shred(whole: bytes, pieces: int, seed: int) -> list[bytes]:
    """`whole` cut at random places into (at most) `pieces` non-empty pieces."""
    cuts = np.random.default_rng(seed).integers(1, len(whole), size=pieces - 1).tolist()
    edges = sorted({0, *cuts, len(whole)})
    return [whole[a:b] for a, b in pairwise(edges)]


def gzipped(*segments: bytes) -> list[bytes]:
    """One gzip stream, flushed after each segment."""
    packer = zlib.compressobj(wbits=31)
    packed = [packer.compress(segment) + packer.flush(zlib.Z_SYNC_FLUSH) for segment in segments]
    return [*packed[:-1], packed[-1] + packer.flush()]


def completed_in(segments: Sequence[bytes], events: Sequence[bytes]) -> list[int]:
    """For each of `events`, in order, the index of the segment that holds its last byte."""
    whole, found, at = b"".join(segments), [], 0
    edges = np.cumsum([len(segment) for segment in segments])
    for event in events:
        at = whole.index(event, at) + len(event)
        found.append(int(np.searchsorted(edges, at)))
    return found


# -- the client -------------------------------------------------------------------------------------------------------


def measure(
    script: Callable[[Peer], None],
    *,
    dialect: str = "chat",
    asked: int = 3,
    requests: int = 1,
    closing: bool = False,
    url: str | None = None,
    limits: Limits | None = None,
    tokenizer: Callable[[str], int] | None = None,
) -> tuple[list[Exchange], Scripted]:
    """Send `requests`, one after the other, through the real transport, and decode what came. `url`: not the script's.
    `closing`: the server closes after each, and the next request waits until it has.

    All stamps, the server's and the client's, lie on CLOCK_MONOTONIC.
    """
    selector = StampingSelector(0)
    got: list[Exchange] = []

    async def run(where: str) -> None:
        transport = Transport(
            MonotonicClock(0),
            selector=selector,
            headers={},
            limits=limits or Limits(),
            security=Security(),
            last_token_ns=last_token_ns,
        )
        async with asyncio.timeout(20), transport:
            for number in range(requests):
                if number and closing:
                    await until_so(lambda: server.peers[-1].sock.fileno() < 0, "the server has closed")
                planned = PlannedRequest(number, 0, "test", (Message("user", "hello"),), 7, asked)
                capture = Capture(planned, dialect, dispatched_ns=transport.clock.now_ns())
                await transport.stream(capture, where, b'{"stream":true}')
                got.append(decode(capture, count_tokens=tokenizer, keep_text=True))

    factory = lambda: asyncio.SelectorEventLoop(selector)  # noqa: E731
    with Scripted(script) as server, asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run(url or server.url))
    return got, server
