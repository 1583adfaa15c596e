"""What a session is given: how to reach the endpoint, where a run is written, who watches.

Knows: fields and small protocols. Must not know: how any of them is used.
Why: everything that a run needs to be repeated stands in `Settings` and the stage specs; both can be sent to a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from loadgen.analysis.server import Scrape
from loadgen.engine.course import Rows
from loadgen.engine.timeouts import Limits
from loadgen.engine.tokenize import Tokenizer
from loadgen.engine.transport import Security
from loadgen.model import Exchange, Features, RunInfo, Sink, StageInfo
from loadgen.plan.budget import Budget


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach an endpoint and what to send with every request. `headers` hold the key: never store them."""

    url: str
    others: tuple[str, ...] = ()  # URLs of further endpoints, among which requests are shared out in turn
    model: str | None = None
    dialect: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    features: Features = field(default_factory=Features)
    limits: Limits = field(default_factory=Limits)
    security: Security = field(default_factory=Security)
    seed: int = 0
    nonce: str = ""
    warmup: int = 4
    burst_start: bool = False
    keep_text: bool = False
    tokenizer: Tokenizer | None = None  # at hand
    ask_tokenize: bool = True  # the server's /tokenize, where it has one and no tokenizer is at hand
    workers: int = 1
    cooldown_ns: int = 0  # of silence between stages
    budget: Budget = field(default_factory=Budget)
    warmed: int = 0  # warm-up requests that the run holds already (a run that is resumed) ...
    asked: int = 0  # ... and questions of the guard
    metrics: tuple[str, ...] = ()  # URLs of Prometheus pages; "auto": the endpoint's own, too
    guard: bool = False  # ask checkable questions beside the load


class PartSink(Sink, Protocol):
    """Where the rows of one worker go: as requests, or as whole lines that were written elsewhere."""

    def append(self, lines: bytes) -> None: ...


class RunSink(Protocol):
    """Where a run is written: rows as they finish, and what is known about the run whenever it changes."""

    def write(self, exchange: Exchange) -> None: ...

    def update(self, info: RunInfo) -> None: ...

    def telemetry(self) -> Callable[[Scrape], None]:
        """What takes the server's metrics as they are read, in a thread of their own."""
        ...

    def tail(self) -> Callable[[], Rows]:
        """What opens a reader of the stages' rows, also in another process; picklable."""
        ...

    def parts(self) -> tuple[Path, Callable[[Path, int], PartSink]]:
        """The run's folder, and what opens a worker's own part in a folder, by the worker's number; picklable."""
        ...


class Observer(Protocol):
    """Who watches a run (the progress line), from the first stage to the end."""

    def stage(self, info: StageInfo | None) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None: ...
