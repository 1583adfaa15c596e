"""How a parent reaches its workers: what every way has in common, and the plain one, processes of this machine.

Knows: starting a worker, passing messages both ways, noticing that it is gone. Must not know: what a message means
(`workers` and `worker` do), Ray (`raystaff` does).
Why: a worker is the same program wherever it runs. What differs is how it is started, how words reach it, whose clock
it has and where its rows lie; all of that is behind `Link`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from loadgen.engine.worker import Seat, main

Word = tuple[str, Any]
Hear = Callable[[list[Word]], None]


class Link(Protocol):
    """One worker, as its parent reaches it."""

    def listen(self, hear: Hear, gone: Callable[[], None]) -> None:
        """From now on hand over what it says, in order, and tell once when it is gone."""
        ...

    def send(self, word: Word) -> None:
        """Say something to it. Never raises: one that cannot hear is gone, and `gone` tells."""
        ...

    @property
    def shift_ns(self) -> int:
        """The run's time on its clock minus the run's time here, now."""
        ...

    async def settle(self) -> None:
        """Return when every request that it has finished is in the run's folder (or it is gone)."""
        ...

    def facts(self) -> dict[str, Any]:
        """What the run's record says of it: where it runs, how well its clock is known."""
        ...

    async def close(self) -> None:
        """End it; one that does not listen is killed."""
        ...


class Staff(Protocol):
    """Where workers come from."""

    lead_ns: int  # from the last `ready` to the common start: a word must have reached everybody by then
    here: bool  # on this machine, with its clock, its ports and its limits

    async def hire(self, seat: Seat) -> Link:
        """Start the worker of one seat."""
        ...

    def facts(self) -> dict[str, Any]:
        """What the run's record says of them all."""
        ...


class PipeLink:
    """A process of this machine, spawned (never forked: a forked event loop shares its epoll)."""

    shift_ns = 0

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self._process, self._pipe = process, pipe
        self._gone: Callable[[], None] | None = None  # until it is gone

    @classmethod
    def start(cls, seat: Seat) -> PipeLink:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=main, args=(seat, theirs), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours)

    def listen(self, hear: Hear, gone: Callable[[], None]) -> None:
        self._gone = gone
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._read, hear)

    def _read(self, hear: Hear) -> None:
        words: list[Word] = []
        try:
            while self._pipe.poll():
                words.append(self._pipe.recv())
        except (EOFError, OSError):
            hear(words)
            self._lose()
        else:
            hear(words)

    def send(self, word: Word) -> None:
        try:
            self._pipe.send(word)
        except OSError:
            self._lose()

    def _lose(self) -> None:
        if self._gone is not None:
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            gone, self._gone = self._gone, None
            gone()

    async def settle(self) -> None:
        return  # it writes into the run's folder itself

    def facts(self) -> dict[str, Any]:
        return {}

    async def close(self) -> None:
        if self._gone is not None:
            self.send(("quit", None))
        await asyncio.get_running_loop().run_in_executor(None, self._process.join, 10)
        if self._process.is_alive():
            self._process.kill()
        if self._gone is not None:
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._gone = None
        self._pipe.close()


class Processes:
    """Workers as processes of this machine."""

    lead_ns = 100_000_000
    here = True

    async def hire(self, seat: Seat) -> Link:
        return PipeLink.start(seat)

    def facts(self) -> dict[str, Any]:
        return {}
