"""A gateway between client and server, with the faults of gateways: it adds time, holds back, or swallows.

Knows: bytes of two connections. Must not know: HTTP beyond a request's first line.
Why: what lies between engine and client must be told from the engine; a test needs to say how much there is of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field


@dataclass
class Gateway:
    """What it does to every connection.

    delay_s: a request for tokens is passed on so much later.
    hold_s: the bytes of a stream are passed on in heaps, so much time after the first of each heap.
    hangs: a request whose first line holds this is never passed on.
    waited_s: how long requests for tokens really waited (the machine may add to `delay_s`).
    """

    upstream: tuple[str, int]
    delay_s: float = 0.0
    hold_s: float = 0.0
    hangs: bytes = b""
    url: str = ""
    waited_s: list[float] = field(default_factory=list)
    _serving: set[asyncio.Task[None] | None] = field(default_factory=set)  # asyncio itself forgets its tasks

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self.upstream)
        task = asyncio.current_task()
        self._serving.add(task)
        try:
            await asyncio.gather(self._ask(reader, back), self._answer(there, writer))
        finally:
            self._serving.discard(task)
            for end in (back, writer):
                end.close()

    async def _ask(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await _read(reader):
            came = loop.time()
            if self.hangs and self.hangs in data.split(b"\r\n", 1)[0]:
                continue
            if not data.startswith(b"POST /v1/"):
                back.write(data)
                continue
            await asyncio.sleep(self.delay_s)
            back.write(data)
            self.waited_s.append(loop.time() - came)
        with contextlib.suppress(OSError):
            back.write_eof()

    async def _answer(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await _read(there):
            if self.hold_s and b"data: " in data:
                async for more in _heap(there, self.hold_s):
                    data += more
            writer.write(data)
        writer.close()


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(1 << 16)
    except OSError:
        return b""


async def _heap(reader: asyncio.StreamReader, span_s: float) -> AsyncIterator[bytes]:
    """What comes within a span."""
    loop = asyncio.get_running_loop()
    until = loop.time() + span_s
    while (left := until - loop.time()) > 0:
        try:
            async with asyncio.timeout(left):
                data = await _read(reader)
        except TimeoutError:
            return
        if not data:
            return
        yield data


@asynccontextmanager
async def listening(gateway: Gateway) -> AsyncIterator[Gateway]:
    """The gateway on a port of its own, in this loop."""
    server = await asyncio.start_server(gateway, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    gateway.url = f"http://{host}:{port}"
    try:
        yield gateway
    finally:
        server.close()


@contextmanager
def gateway(upstream: str, **faults: object) -> Iterator[Gateway]:
    """A gateway to the server at URL `upstream`, in a thread with a loop of its own."""
    host, port = upstream.removeprefix("http://").split(":")
    made = Gateway((host, int(port)), **faults)  # type: ignore[arg-type]
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with listening(made):
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    try:
        yield made
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()
