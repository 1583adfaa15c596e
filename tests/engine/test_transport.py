"""The transport against servers that do what real ones do, over real sockets on the loopback."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time

import pytest

from loadgen.engine.timeouts import Limits
from loadgen.model import Capture
from tests.busy import DEADLINE_S, Busy, again, until_so
from tests.engine.scripted import (
    BODY,
    CHUNKED,
    DONE,
    EVENTS,
    LAST,
    OK,
    TOKEN,
    WHOLE,
    Client,
    Peer,
    Scripted,
    ask_once,
    chunk,
    failed_with,
    received,
    sends,
    with_client,
)

MS, S = 1_000_000, 1_000_000_000


ENDINGS = {
    "last chunk by itself": (CHUNKED, *EVENTS, LAST),
    "last chunk with the last event": (CHUNKED, *EVENTS[:-1], EVENTS[-1] + LAST),
    "last chunk cut after its digit": (CHUNKED, *EVENTS, LAST[:1], LAST[1:]),
    "last chunk cut in the middle": (CHUNKED, *EVENTS, LAST[:3], LAST[3:]),
    "last chunk cut before its last byte": (CHUNKED, *EVENTS, LAST[:4], LAST[4:]),
    "last chunk cut off the event's own CRLF": (CHUNKED, BODY[:-2], b"\r\n0\r\n", b"\r\n"),
    "one byte at a time at the end": (CHUNKED, BODY[:-4], *(bytes([b]) for b in BODY[-4:] + LAST)),
    "trailers": (CHUNKED, *EVENTS, b"0\r\nx-checksum: 1\r\n\r\n"),
    "trailers cut": (CHUNKED, *EVENTS, b"0\r\nx-check", b"sum: 1\r\n", b"\r\n"),
    "upper-case size with an extension": (CHUNKED, *EVENTS[:3], b"0E;name=value\r\n" + DONE + b"\r\n", LAST),
    "head and everything in one read": (WHOLE,),
    "head cut": (CHUNKED[:20], CHUNKED[20:-2], CHUNKED[-2:] + EVENTS[0], *EVENTS[1:], LAST),
    "events cut anywhere": (CHUNKED, BODY[:7], BODY[7:90], BODY[90:91], BODY[91:], LAST),
    "chunk ends on an empty line of CRLF events": (CHUNKED, chunk(b"data: x\r\n\r\n"), chunk(b"data: y\r\n\r\n"), LAST),
    "content-length": (OK + b"content-length: 30\r\n\r\n", b"data: 1234\n\n", b"data: [DONE]\n\n    "),
    "content-length in one read": (OK + b"content-length: 14\r\n\r\n" + DONE,),
}


@pytest.mark.parametrize("case", ENDINGS)
@pytest.mark.parametrize("stamping", [True, False], ids=["fast lane", "tap"])
def test_the_end_is_seen_when_its_last_byte_comes(case: str, stamping: bool) -> None:
    """The server stays open, so an end that is missed shows as a body that is not complete (or a test time-out)."""
    parts = ENDINGS[case]
    capture, server = ask_once(sends(*parts), stamping=stamping)
    assert capture.failure is None
    assert capture.complete
    assert received(capture) == b"".join(parts).partition(b"\r\n\r\n")[2]
    assert capture.end_ns is not None
    assert server.peers[0].sends[-1][0] - MS <= capture.end_ns == capture.body[-1][0]
    assert capture.stamp_source == ("kernel" if stamping else "process")


@pytest.mark.parametrize("stamping", [True, False], ids=["fast lane", "tap"])
def test_a_close_delimited_body_ends_with_the_connection(stamping: bool) -> None:
    capture, _ = ask_once(sends(OK + b"connection: close\r\n\r\n", TOKEN, DONE, hold=False), stamping=stamping)
    assert (capture.failure, capture.complete, capture.framing) == (None, True, "close")
    assert received(capture) == TOKEN + DONE


def test_a_close_delimited_body_in_one_read_with_its_head() -> None:
    capture, _ = ask_once(sends(OK + b"\r\n" + TOKEN + DONE, hold=False))
    assert (capture.failure, capture.complete) == (None, True)
    assert received(capture) == TOKEN + DONE


@pytest.mark.parametrize("stamping", [True, False], ids=["fast lane", "tap"])
def test_done_with_an_open_body_ends_after_a_grace(stamping: bool) -> None:
    begun = time.monotonic_ns()
    capture, _ = ask_once(sends(CHUNKED, *EVENTS), stamping=stamping)
    assert capture.failure is None
    assert not capture.complete
    assert received(capture) == b"".join(EVENTS)
    assert time.monotonic_ns() - begun >= 900 * MS


def test_done_cut_in_two_with_an_open_body_still_ends() -> None:
    capture, _ = ask_once(sends(CHUNKED, *EVENTS[:3], EVENTS[3][:10], EVENTS[3][10:]), limits=Limits(idle_ns=4000 * MS))
    assert capture.failure is None
    assert received(capture).endswith(EVENTS[3])


def test_bytes_after_done_within_the_grace_are_kept() -> None:
    usage = chunk(b'data: {"usage":{}}\n\n')

    def attempt(number: int) -> None:
        capture, server = ask_once(sends(CHUNKED, *EVENTS, usage, LAST, gap_s=0.05))
        if server.peers[0].sends[-1][1] - server.peers[0].sends[-3][0] > 800 * MS:
            raise Busy  # the grace may have been over
        assert capture.complete
        assert received(capture) == b"".join(EVENTS) + usage + LAST

    again(attempt)


# -- connections --------------------------------------------------------------------------------------------------


def test_a_kept_connection_is_used_again_and_is_new_only_once() -> None:
    def script(peer: Peer) -> None:
        while True:
            peer.request()
            peer.send(CHUNKED, *EVENTS, LAST, gap_s=0.002)

    captures: list[Capture] = []
    with Scripted(script) as server:

        async def use(client: Client) -> None:
            captures.extend([await client.ask(server.url) for _ in range(5)])
            assert client.transport.peak_connections == 1

        with_client(use)
    assert len(server.peers) == 1
    assert [c.connected_ns is not None for c in captures] == [True, False, False, False, False]
    assert all(c.complete and received(c) == BODY + LAST for c in captures)
    first = captures[0]
    assert (first.connect_start_ns or 0) <= (first.connected_ns or 0) <= (first.sent_ns or 0)
    for capture in captures:
        assert capture.dispatched_ns is not None
        assert capture.sent_ns is not None
        assert capture.sent_end_ns is not None
        assert capture.headers_ns is not None
        # The end of sending is stamped when the kernel has returned, which a busy machine may delay past the answer.
        assert capture.dispatched_ns <= capture.sent_ns <= min(capture.sent_end_ns, capture.headers_ns)
        assert capture.headers_ns <= capture.body[0][0] <= capture.body[-1][0] == capture.end_ns


def test_a_kept_connection_that_the_server_has_closed_is_no_reason_to_fail() -> None:
    """A close that has already been seen: the pool drops the connection and a new one is opened."""
    captures: list[Capture] = []
    with Scripted(sends(WHOLE, hold=False)) as server:

        async def use(client: Client) -> None:
            captures.append(await client.ask(server.url))
            await until_so(lambda: server.peers[0].sock.fileno() < 0, "the server has closed")
            captures.append(await client.ask(server.url))

        with_client(use)
    assert [c.failure for c in captures] == [None, None]
    assert len(server.peers) == 2


@pytest.mark.parametrize("reset", [True, False])
def test_a_kept_connection_that_the_server_closes_on_the_next_request_is_stale(reset: bool) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(WHOLE)
        peer.request()
        if reset:
            peer.reset()

    captures: list[Capture] = []
    with Scripted(script) as server:

        async def use(client: Client) -> None:
            captures.append(await client.ask(server.url))
            captures.append(await client.ask(server.url))

        with_client(use)
    assert captures[0].failure is None
    assert captures[1].failure is not None
    assert captures[1].failure.kind == "stale"
    assert len(server.peers) == 1  # never sent again behind the user's back


@pytest.mark.parametrize("reset", [True, False])
def test_a_new_connection_closed_without_an_answer_is_not_stale(reset: bool) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        if reset:
            peer.reset()

    capture, _ = ask_once(script)
    assert capture.failure is not None
    assert capture.failure.kind == "truncated"


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("stamping", [True, False], ids=["fast lane", "tap"])
def test_a_cut_in_mid_stream_keeps_what_came(reset: bool, stamping: bool) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(CHUNKED, *EVENTS[:3], gap_s=0.02)
        peer.wait(0.05)
        if reset:
            peer.reset()

    capture, _ = ask_once(script, stamping=stamping)
    assert received(capture) == b"".join(EVENTS[:3])
    assert not capture.complete
    # An orderly close may still be the end of a good stream ([DONE] seen): `wire` decides. A reset never is.
    if reset:
        failed_with(capture, "truncated", "connection")
    else:
        assert capture.failure is None


def test_a_content_length_that_is_not_reached_is_not_complete() -> None:
    capture, _ = ask_once(sends(OK + b"content-length: 1000\r\n\r\n", TOKEN, hold=False))
    assert received(capture) == TOKEN
    assert not capture.complete


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    async def use(client: Client) -> None:
        capture = await client.ask(f"http://127.0.0.1:{port}/v1/chat/completions")
        assert capture.failure is not None
        assert capture.failure.kind == "connect"
        assert capture.sent_ns is None
        assert capture.end_ns is not None

    with_client(use)


def test_a_name_that_does_not_exist() -> None:
    async def use(client: Client) -> None:
        capture = await client.ask("http://no-such-host.invalid/v1/chat/completions")
        assert capture.failure is not None
        assert capture.failure.kind == "connect"

    with_client(use)


def test_many_at_once_are_not_limited() -> None:
    captures: list[Capture] = []
    everybody = threading.Barrier(150, timeout=DEADLINE_S)

    def script(peer: Peer) -> None:
        peer.request()
        everybody.wait()
        peer.send(CHUNKED, chunk(TOKEN), LAST)
        peer.hold()

    with Scripted(script) as server:

        async def use(client: Client) -> None:
            captures.extend(await asyncio.gather(*(client.ask(server.url) for _ in range(150))))
            assert client.transport.peak_connections == 150

        with_client(use)
    assert all(c.complete and received(c) == chunk(TOKEN) + LAST for c in captures)


# -- a request that is handed over before it is due -------------------------------------------------------------------


@pytest.mark.parametrize("stamping", [True, False])
def test_a_request_waits_on_its_connection_until_it_is_due(stamping: bool) -> None:
    with Scripted(sends(WHOLE)) as server:

        async def use(client: Client) -> None:
            capture = await client.ask(server.url, due_in_ns=150 * MS)
            assert capture.failure is None
            assert capture.scheduled_ns is not None
            assert capture.connected_ns is not None
            assert capture.connected_ns < capture.scheduled_ns  # ready before it was due ...
            assert capture.dispatched_ns is not None
            assert capture.sent_ns is not None
            assert capture.scheduled_ns - 2_000 <= capture.dispatched_ns <= capture.sent_ns  # ... and sent no earlier

        with_client(use, stamping=stamping)


def test_what_is_late_already_is_sent_at_once() -> None:
    with Scripted(sends(WHOLE)) as server:

        async def use(client: Client) -> None:
            capture = await client.ask(server.url, due_in_ns=-10 * S)
            assert capture.failure is None
            assert capture.sent_ns is not None
            assert capture.dispatched_ns is not None
            assert capture.sent_ns - capture.dispatched_ns < 5 * S

        with_client(use)


def test_time_outs_begin_when_a_request_is_due() -> None:
    with Scripted(sends(WHOLE)) as server:

        async def use(client: Client) -> None:
            capture = await client.ask(server.url, due_in_ns=700 * MS)
            assert capture.failure is None

        with_client(use, limits=Limits(first_ns=400 * MS, total_ns=600 * MS))


def test_a_request_given_up_before_it_is_due_sends_nothing_and_leaves_no_connection_open() -> None:
    with Scripted(sends(WHOLE)) as server:

        async def use(client: Client) -> None:
            task = asyncio.ensure_future(client.ask(server.url, due_in_ns=3600 * S))
            await asyncio.sleep(0.2)  # the connection stands by now
            task.cancel()
            capture = await task
            assert capture.failure is not None
            assert capture.failure.kind == "cancelled"
            assert capture.sent_ns is None

        with_client(use)  # a connection that nobody had given back would be a ResourceWarning
        gc.collect()


LAST_WORDS = [b"", b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"]


@pytest.mark.parametrize("words", LAST_WORDS, ids=["closed", "408"])
@pytest.mark.parametrize("due_in_ms", [300, None], ids=["held", "at once"])
def test_a_kept_connection_that_ended_is_replaced_before_anything_is_sent(words: bytes, due_in_ms: int | None) -> None:
    served: list[int] = []

    def script(peer: Peer) -> None:
        for _ in range(1 if not served else 3):
            if not peer.request():
                return
            served.append(1)
            peer.send(WHOLE)
        peer.wait(0.05)
        if words:
            peer.send(words)

    with Scripted(script) as server:

        async def use(client: Client) -> None:
            assert (await client.ask(server.url)).failure is None
            if due_in_ms is None:
                await asyncio.sleep(0.25)
            due = None if due_in_ms is None else due_in_ms * MS
            capture = await client.ask(server.url, due_in_ns=due)
            assert capture.failure is None
            assert capture.status == 200
            assert capture.sent_ns is not None
            assert capture.connected_ns is not None

        with_client(use)
    assert len(served) == 2


def test_an_answer_that_came_before_the_request_is_no_answer() -> None:
    def script(peer: Peer) -> None:
        peer.send(WHOLE)
        peer.hold()

    with Scripted(script) as server:

        async def use(client: Client) -> None:
            capture = await client.ask(server.url, due_in_ns=100 * MS)
            assert capture.failure is not None
            assert capture.failure.kind == "protocol"
            assert "before it was asked" in capture.failure.message

        with_client(use)


@pytest.mark.parametrize("stamping", [True, False], ids=["fast lane", "tap"])
@pytest.mark.parametrize(
    "parts",
    [
        (CHUNKED + b"".join(EVENTS),),
        (CHUNKED, *EVENTS[:-1], *(bytes([byte]) for byte in EVENTS[-1])),
    ],
    ids=["with the head", "byte by byte"],
)
def test_a_body_left_open_ends_a_second_after_its_done(parts: tuple[bytes, ...], stamping: bool) -> None:
    limits = Limits(idle_ns=9 * S)
    capture, _ = ask_once(sends(*parts, gap_s=0.002), limits=limits, stamping=stamping)
    assert capture.sent_ns is not None
    assert capture.end_ns is not None
    assert capture.end_ns - capture.sent_ns < 6 * S


def test_a_reset_right_behind_the_first_bytes_keeps_its_reason() -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(CHUNKED + EVENTS[0])
        peer.reset()

    kinds = set()
    for _ in range(5):
        capture, _ = ask_once(script)
        failed_with(capture, "truncated", "reset")
        kinds.add(capture.complete)
    assert kinds == {False}
