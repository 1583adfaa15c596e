"""The server's metrics during one run: which pages, when they are read, what is said of them.

Knows: what a run's flags and its probe say of metrics. Must not know: how a page is read (`telemetry`), stages, files.
Why: nothing of this may ever hold up or fail a run, so it is kept out of the session's order of things.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from loadgen.analysis.server import Scrape
from loadgen.engine.probe import Probed
from loadgen.engine.telemetry import Page, Telemetry, own_pages, pages, silent
from loadgen.engine.transport import Security


class _Settings(Protocol):
    @property
    def metrics(self) -> tuple[str, ...]: ...
    @property
    def headers(self) -> dict[str, str]: ...
    @property
    def security(self) -> Security: ...


class ServerWatch:
    """Reads the server's metrics from `open` to `close`; both return what is known then, as plain values."""

    def __init__(
        self, telemetry: Telemetry, given: Sequence[Page], own: Sequence[Sequence[Page]], say: Callable[[str], None]
    ) -> None:
        self._telemetry, self._given, self._own, self._say = telemetry, given, own, say
        self._said = 0

    @classmethod
    def of(
        cls,
        settings: _Settings,
        probed: Sequence[Probed],
        now_ns: Callable[[], int],
        writer: Callable[[], Callable[[Scrape], None]],
        say: Callable[[str], None],
    ) -> ServerWatch | None:
        """The watch that a run's settings ask for; None with `--metrics off`. `probed`: every endpoint."""
        bases = [one.target.base_url for one in probed]
        given, auto = pages(settings.metrics, bases, settings.headers, settings.security)
        if not given and not auto:
            return None
        own = [own_pages(base, settings.headers, settings.security) for base in bases] if auto else []
        telemetry = Telemetry(now_ns, writer())
        still = {url for one in probed for url in one.silent}
        telemetry.notes += [silent(page.url) for some in own for page in some if page.url in still]
        return cls(telemetry, given, [[page for page in some if page.url not in still] for some in own], say)

    async def open(self) -> dict[str, Any]:
        """Begin to read."""
        await asyncio.to_thread(self._telemetry.open, self._given, self._own)
        await self.mark()
        return self._telemetry.record()

    async def mark(self) -> None:
        """Read now, and say what has not been said yet."""
        await asyncio.to_thread(self._telemetry.mark)
        for note in self._telemetry.notes[self._said :]:
            self._say(note)
        self._said = len(self._telemetry.notes)

    async def close(self) -> dict[str, Any]:
        """End."""
        await asyncio.to_thread(self._telemetry.close)
        return self._telemetry.record()
