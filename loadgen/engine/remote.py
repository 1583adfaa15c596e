"""A worker on another machine: the hand that starts it there, and the link that reaches it from here.

Knows: what is asked of a hand (start, say, hear, ping, fetch), that its clock is another one, that its rows lie with it
until they are fetched. Must not know: Ray (`raystaff` makes hands into actors), what a word means, what a row says.

Theory of operation. A hand holds a `PipeLink` to a worker process of its machine and passes words on, so whatever
carries the hand's calls is never on the path of a request, nor in the process that measures. The link pings the hand:
a burst before the worker starts, a few each second until the end. The worker's clock begins at the best reading; what
the two clocks drift apart later is taken off its rows when they are fetched. Rows are fetched once a second, in whole
lines and bounded chunks, so that a machine that dies takes a second of finished requests with it and no more.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadgen.analysis.clocks import Reading, RemoteClock, shortest
from loadgen.analysis.row import moved_lines
from loadgen.engine.host import host_facts, versions
from loadgen.engine.links import Hear, PipeLink, Word
from loadgen.engine.settings import PartSink
from loadgen.engine.worker import Seat
from loadgen.errors import LoadgenError

_FIRST_PINGS, _PINGS = 30, 5
_BEAT_S = 1.0
_SILENCE_S = 30.0  # after which a hand that does not answer is given up
_CHUNK = 4 << 20  # bytes of rows at a time
Call = Callable[..., Awaitable[Any]]  # a hand's method by its name, with its arguments


class Hand:
    """On the other machine. Every method is called from afar, one after the other as they were sent."""

    def __init__(self) -> None:
        self._link: PipeLink | None = None
        self._words: list[Word] = []
        self._arrived = asyncio.Event()
        self._folder: Path | None = None
        self._part: Path | None = None

    async def about(self) -> dict[str, Any]:
        """Which loadgen, which machine."""
        return {"versions": versions(), "host": host_facts()}

    async def ping(self) -> int:
        """CLOCK_MONOTONIC of this machine."""
        return time.monotonic_ns()

    async def open(self, seat: Seat) -> str:
        """Start the worker; returns the folder of this machine, the user's alone, in which its rows lie."""
        self._folder = Path(tempfile.mkdtemp(prefix="loadgen-"))
        with _no_main():
            self._link = PipeLink.start(replace(seat, folder=self._folder))
        self._link.listen(self._hear, lambda: self._hear([("gone", None)]))
        return str(self._folder)

    def _hear(self, words: list[Word]) -> None:
        self._words += words
        self._arrived.set()

    async def say(self, word: Word) -> None:
        """Pass a word on to the worker."""
        if self._link is not None:
            self._link.send(word)

    async def hear(self) -> list[Word]:
        """What the worker has said since the last call; waits until there is something."""
        await self._arrived.wait()
        self._arrived.clear()
        words, self._words = self._words, []
        return words

    async def fetch(self, start: int) -> bytes:
        """Whole lines of the worker's rows from byte `start`, about `_CHUNK` at most; empty: no more at present."""
        if self._part is None:
            self._part = next(self._folder.glob("requests*.jsonl"), None) if self._folder is not None else None
        if self._part is None:
            return b""
        return _whole_lines(self._part, start)

    async def close(self) -> None:
        """End the worker and forget its rows."""
        if self._link is not None:
            await self._link.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _whole_lines(part: Path, start: int) -> bytes:
    with open(part, "rb") as file:
        size = _CHUNK
        while True:
            data = os.pread(file.fileno(), size, start)
            end = data.rfind(b"\n") + 1
            if end or len(data) < size:
                return data[:end]
            size *= 2  # one line that is longer


@contextmanager
def _no_main() -> Iterator[None]:
    """A spawned process imports the main module of its parent; here that is the carrier's, which the worker must not
    have in it."""
    main = vars(sys.modules["__main__"])
    file = main.pop("__file__", None)
    try:
        yield
    finally:
        if file is not None:
            main["__file__"] = file


class RemoteLink:
    """The parent's end. `call(name, *arguments)` calls a method of the hand; it raises one of `losses` when the hand
    is gone."""

    def __init__(self, call: Call, losses: tuple[type[BaseException], ...], about: dict[str, Any]) -> None:
        self._raw, self._about = call, about
        self._losses: tuple[type[BaseException], ...] = (*losses, TimeoutError)
        self._clock: RemoteClock | None = None
        self._sink: PartSink | None = None
        self._folder = ""  # on its machine
        self._read = 0  # bytes of its rows that are here
        self._fetching = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_gone = False
        self._hear: Hear = lambda words: None
        self._gone: Callable[[], None] = lambda: None

    async def open(self, seat: Seat, quiet: asyncio.Lock) -> None:
        """Read its clock, while nobody else does (`quiet`), and start the worker. Raises LoadgenError."""
        try:
            async with quiet:
                self._clock = RemoteClock(await self._reading(_FIRST_PINGS))
            self._folder = await self._call(
                "open", replace(seat, origin_ns=seat.origin_ns + self._clock.base.offset_ns)
            )
        except self._losses as bad:
            raise LoadgenError(
                f"worker {seat.number} did not start: {type(bad).__name__}", do="see the logs of its node"
            ) from None
        self._sink = seat.open_part(seat.folder, seat.number)

    def listen(self, hear: Hear, gone: Callable[[], None]) -> None:
        self._hear, self._gone = hear, gone
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._tend())]

    def send(self, word: Word) -> None:
        if not self._is_gone:
            self._raw("say", word)  # in the order of sending; whether it is gone the others notice

    @property
    def shift_ns(self) -> int:
        return self._clock.shift_ns if self._clock is not None else 0

    async def settle(self) -> None:
        try:
            while not self._is_gone and await self._fetch():
                pass
        except self._losses:
            self._lose()

    def facts(self) -> dict[str, Any]:
        if self._clock is None:
            return self._about
        clock = self._clock
        left = {"rows": self._folder} if self._is_gone else {}  # what was not fetched is still there, if anything is
        return (
            self._about
            | left
            | {
                "offset_ns": clock.used_ns,
                "error_ns": clock.error_ns,
                "drift_ns": clock.shift_ns,
                "round_trip_ns": clock.round_trip_ns,
                "readings": clock.count,
            }
        )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            if not self._is_gone:
                self.send(("quit", None))
                if self._clock is not None:
                    self._clock.take(await self._reading(_PINGS))
                await self.settle()
                await self._call("close")
        except self._losses:
            self._is_gone = True

    # -- the parts ----------------------------------------------------------------------------------------------

    async def _call(self, name: str, *arguments: Any) -> Any:
        async with asyncio.timeout(_SILENCE_S):
            return await self._raw(name, *arguments)

    async def _reading(self, count: int) -> Reading:
        readings = []
        for _ in range(count):
            sent = time.monotonic_ns()
            remote = await self._call("ping")
            readings.append(Reading.of(sent, remote, time.monotonic_ns()))
        return shortest(readings)

    async def _listen(self) -> None:
        """Hand on what is said, until the hand or its worker is gone."""
        try:
            while True:
                words = await self._raw("hear")
                self._hear([word for word in words if word[0] != "gone"])
                if any(word[0] == "gone" for word in words):
                    break  # the worker; what it wrote is still there
            await self.settle()
        except self._losses:
            pass
        self._lose()

    async def _tend(self) -> None:
        """Once a second: read the clock, fetch what has been written."""
        try:
            while not self._is_gone:
                await asyncio.sleep(_BEAT_S)
                if self._clock is not None:
                    self._clock.take(await self._reading(_PINGS))
                while await self._fetch():
                    pass
        except self._losses:
            self._lose()
        except LoadgenError as bad:  # rows that cannot be kept: the stage must hear of it
            self._hear([("error", (type(bad), bad.what, bad.where, bad.do))])

    async def _fetch(self) -> bool:
        """One chunk; whether there was one."""
        async with self._fetching:
            lines: bytes = await self._call("fetch", self._read)
            if lines and self._sink is not None:
                self._sink.append(moved_lines(lines, -self.shift_ns))
                self._read += len(lines)
            return bool(lines)

    def _lose(self) -> None:
        if not self._is_gone:
            self._is_gone = True
            self._gone()
