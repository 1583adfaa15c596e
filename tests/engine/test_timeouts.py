"""Every time-out, and cancelling, against servers that go silent in their own ways."""

from __future__ import annotations

import asyncio
import socket
from itertools import pairwise

import pytest

from loadgen.engine.timeouts import Limits
from loadgen.model import Capture
from tests.busy import Busy, again, until_so
from tests.engine.scripted import (
    CHUNKED,
    ROLE,
    TOKEN,
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

MS = 1_000_000


def test_connect_time_out() -> None:
    """A listener whose queue is full: the handshake of a further connection is not answered."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(address)
            fillers.append(filler)

        async def use(client: Client) -> None:
            capture = await client.ask(f"http://127.0.0.1:{address[1]}/v1/chat/completions")
            assert capture.failure is not None
            assert capture.failure.kind in ("connect", "timeout")
            assert "connection" in capture.failure.message
            assert capture.sent_ns is None

        with_client(use, limits=Limits(connect_ns=150 * MS))
        for filler in fillers:
            filler.close()


def test_first_token_time_out_before_the_head() -> None:
    capture, _ = ask_once(sends(), limits=Limits(first_ns=150 * MS))
    failed_with(capture, "timeout", "first token")
    assert capture.sent_ns is not None


@pytest.mark.parametrize("noise", [chunk(ROLE), chunk(b": keep-alive\n\n")], ids=["role", "comment"])
@pytest.mark.parametrize("stamping", [True, False], ids=["fast lane", "tap"])
def test_what_is_no_token_does_not_reset_the_first_token_time_out(noise: bytes, stamping: bool) -> None:
    """The noise never ends: if it reset the time-out, the request would go on for as long as the test may."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(CHUNKED)
        while not peer.halt.is_set():
            peer.wait(0.02)
            peer.send(noise)

    capture, _ = ask_once(script, limits=Limits(first_ns=250 * MS), stamping=stamping)
    failed_with(capture, "timeout", "first token")
    assert capture.sent_ns is not None
    assert capture.end_ns is not None
    assert capture.end_ns - capture.sent_ns >= 250 * MS
    assert set(received(capture).split(noise)) <= {b""}


def test_idle_time_out_runs_between_tokens() -> None:
    """Six tokens keep a limit alive that all of them together exceed; comments without end do not."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(CHUNKED, *[chunk(TOKEN)] * 6, gap_s=0.06)
        while not peer.halt.is_set():
            peer.wait(0.06)
            peer.send(chunk(b": ping\n\n"))

    def attempt(number: int) -> None:
        capture, server = ask_once(script, limits=Limits(idle_ns=200 * MS))
        failed_with(capture, "timeout", "no further token")
        begun = [before for before, _ in server.peers[0].sends[:7]]
        if len(begun) < 7 or max(b - a for a, b in pairwise(begun)) > 150 * MS:
            raise Busy  # it was this machine that made a gap as long as the limit
        assert received(capture).count(TOKEN) == 6
        assert capture.end_ns is not None
        stamps = [stamp for stamp, data, _ in capture.body if TOKEN in data]
        assert stamps[-1] - stamps[0] > 200 * MS
        assert capture.end_ns - stamps[-1] >= 200 * MS

    again(attempt)


def test_total_time_out_ends_a_stream_that_goes_on() -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(CHUNKED)
        while not peer.halt.is_set():
            peer.send(chunk(TOKEN))
            peer.wait(0.02)

    def attempt(number: int) -> None:
        capture, server = ask_once(script, limits=Limits(total_ns=300 * MS))
        failed_with(capture, "timeout", "complete")
        assert capture.end_ns is not None
        in_time = [after for _, after in server.peers[0].sends if after < capture.end_ns - 100 * MS]
        if len(in_time) < 4:
            raise Busy  # nothing to be received before the end
        assert received(capture).count(TOKEN) >= 3

    again(attempt)


def test_total_time_out_before_the_head() -> None:
    capture, _ = ask_once(sends(), limits=Limits(total_ns=150 * MS))
    failed_with(capture, "timeout", "whole request")


def test_cancelling_keeps_the_bytes_that_came() -> None:
    captures: list[Capture] = []
    with Scripted(sends(CHUNKED, *[chunk(TOKEN)] * 500, gap_s=0.02)) as server:

        async def use(client: Client) -> None:
            task = asyncio.ensure_future(client.ask(server.url))
            await until_so(lambda: bool(server.peers) and len(server.peers[0].sends) > 4)
            task.cancel()
            captures.append(await task)

        with_client(use)
    failed_with(captures[0], "cancelled", "")
    assert received(captures[0]).count(TOKEN) >= 2
    assert not captures[0].complete
