"""Decides, while a stage runs, whether it should end; in a process of its own.

Knows: when to look, and how a child process reads the run's rows and judges them. Must not know: the rules
(`analysis`), how a stage is ended.
Why a process: a percentile's interval over many requests takes longer than a client may be away from its sockets. The
child reads what the run has on disk, so one worker or eight make no difference to it. It has the lowest priority, and
lives no longer than its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from multiprocessing.connection import Connection

from loadgen.analysis.ending import Ending, why_end
from loadgen.engine.course import Rows
from loadgen.errors import LoadgenError
from loadgen.model import Clock, Ended, StageInfo

_FIRST_NS = 2_000_000_000
_GROWTH = 0.25  # of the time that a stage has run, until the next look


async def watch(clock: Clock, ask: Callable[[], Awaitable[Ended | None]], end: Callable[[Ended], None]) -> None:
    """Ask at growing distances whether the stage that has just begun should end, until it should."""
    start = clock.now_ns()
    while True:
        now = clock.now_ns()
        await clock.sleep_until(now + max(_FIRST_NS, round((now - start) * _GROWTH)))
        if (ended := await ask()) is not None:
            end(ended)
            return


class Umpire:
    """The parent's side. `make_rows()` opens a reader of the run's rows; it is called in the child, and picklable."""

    def __init__(self, ending: Ending, seed: int, make_rows: Callable[[], Rows]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(theirs, ending, seed, make_rows), daemon=True)
        self._process.start()
        theirs.close()

    async def ask(self, stage: StageInfo) -> Ended | None:
        """Whether `stage`, of which the rows on disk are what has finished, should end now."""
        return await asyncio.to_thread(self._ask, replace(stage, window_end_ns=None))

    def _ask(self, stage: StageInfo) -> Ended | None:
        with contextlib.suppress(EOFError, OSError):  # the child is gone: the stage runs as long as it was to run
            self._pipe.send(stage)
            answer: Ended | None = self._pipe.recv()
            return answer
        return None

    def close(self) -> None:
        """End the process; an answer that is waited for becomes None."""
        self._process.terminate()
        self._process.join()
        self._pipe.close()


def _main(pipe: Connection, ending: Ending, seed: int, make_rows: Callable[[], Rows]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    with contextlib.suppress(OSError):
        os.nice(19)
    rows = make_rows()
    with contextlib.suppress(EOFError, OSError):
        while True:
            stage: StageInfo = pipe.recv()
            answer: Ended | None = None
            with contextlib.suppress(LoadgenError):  # rows that cannot be read now: the stage goes on
                answer = why_end(ending, stage, rows(stage.stage), seed)
            pipe.send(answer)
