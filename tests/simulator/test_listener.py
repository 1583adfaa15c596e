"""HTTP at the edge: methods, versions, sizes, kept connections, and the clock that a request's latency counts from."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from loadgen.engine.clock import TimerFd
from loadgen.simulator.config import simulated
from loadgen.simulator.listener import Received
from loadgen.simulator.server import Simulator
from loadgen.simulator.stepper import Alarm


async def talk(url: str, *requests: bytes) -> list[bytes]:
    """Send requests over one connection, each after the answer to the one before; the answers."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answers = []
    for request in requests:
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b"chunked" in answer:
            answer += await reader.readuntil(b"0\r\n\r\n")
        else:
            length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            answer += await reader.readexactly(int(length[15:]))
        answers.append(answer)
    writer.close()
    await writer.wait_closed()
    return answers


def post(body: object, version: str = "1.1") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


STREAM = {"prompt": "Hi", "max_tokens": 3, "stream": True}


async def ask(*requests: bytes) -> list[bytes]:
    async with asyncio.timeout(20), Simulator(simulated(time_scale=200.0)) as simulator:
        return await talk(simulator.url, *requests)


async def test_a_connection_serves_one_request_after_another() -> None:
    whole = {**STREAM, "stream": False}
    answers = await ask(post(STREAM), post(whole), b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", post(STREAM))
    assert [answer[9:12] for answer in answers] == [b"200"] * 4
    assert [answer.count(b"data: ") for answer in answers] == [4, 0, 0, 4]


async def test_a_client_that_has_gone_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def gone(received: Received) -> None:
        raise ConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr(Received, "open_stream", gone)
    assert [answer[9:12] for answer in await ask(post(STREAM))] == [b"499"]
    assert caplog.text == ""


async def test_paths_and_methods_that_are_not_there() -> None:
    answers = await ask(b"GET /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert [answer[9:12] for answer in answers] == [b"405", b"404"]


async def test_http_1_0_has_no_streams() -> None:
    assert [answer[9:12] for answer in await ask(post(STREAM, "1.0"))] == [b"505"]


async def test_a_prompt_of_two_megabytes_is_taken() -> None:
    (answer,) = await ask(post({"prompt": "word " * 400_000, "max_tokens": 3}))
    assert b"your prompt contains 400001 input tokens" in answer


async def test_many_streams_at_once_are_all_complete() -> None:
    async with asyncio.timeout(20), Simulator(simulated(time_scale=20.0)) as simulator:
        many = [talk(simulator.url, post({**STREAM, "max_tokens": 20})) for _ in range(64)]
        answers = [answer for (answer,) in await asyncio.gather(*many)]
        histogram = simulator.counters.itl
    assert {answer.count(b'"text":') for answer in answers} == {20}
    assert histogram.total == 64 * 19


async def test_latency_counts_from_the_last_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the handler is told lies between the moment before the last byte was sent and the moment it is called."""
    seen: list[tuple[float, float]] = []
    original = Simulator._generate

    async def spy(self: Simulator, dialect: object, got: Received) -> object:
        seen.append((got.arrival_s, time.monotonic()))
        return await original(self, dialect, got)  # type: ignore[arg-type]

    monkeypatch.setattr(Simulator, "_generate", spy)
    request = post(STREAM)
    async with asyncio.timeout(20), Simulator(simulated(time_scale=200.0)) as simulator:
        host, port = simulator.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request[:-5])
        await asyncio.sleep(0.05)
        sent = time.monotonic()
        writer.write(request[-5:])
        await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        await writer.wait_closed()
    ((arrival, called),) = seen
    assert sent <= arrival <= called


@pytest.mark.parametrize("timerfd", [True, False])
async def test_an_alarm_rings_once_and_never_early(timerfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not timerfd:
        monkeypatch.setattr(TimerFd, "__init__", lambda self: setattr(self, "fileno", -1))
    elif TimerFd().fileno < 0:
        pytest.skip("no timerfd on this system")
    rung: list[float] = []
    alarm = Alarm(lambda: rung.append(time.monotonic()))
    due = time.monotonic() + 0.02
    alarm.set(due + 5)
    alarm.set(due)  # replaces
    await asyncio.sleep(0.06)
    assert len(rung) == 1
    assert rung[0] >= due
    alarm.set(time.monotonic() - 1)  # already past
    await asyncio.sleep(0.02)
    assert len(rung) == 2
    alarm.set(time.monotonic() + 0.01)
    alarm.close()
    await asyncio.sleep(0.03)
    assert len(rung) == 2
