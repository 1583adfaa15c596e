"""Runs stages over one transport: what a runner needs, what it counts, and how several of them share a plan.

Knows: the target, the live counters, the slice of a worker. Must not know: due times and slots (`stage` does), sockets,
HTTP, metrics, plan making.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from loadgen.analysis.tally import Tally
from loadgen.engine.stage import Stage
from loadgen.engine.units import Slice
from loadgen.model import Capture, Clock, Ended, Exchange, Features, Message, PlannedRequest, Sink, StageInfo
from loadgen.plan.budget import Purse
from loadgen.wire.dialects import DIALECTS


class Streamer(Protocol):
    """What the runner needs of a transport. `lead_ns`: how long before its due time a request may be handed over; the
    transport makes it ready and holds it until then, so that nothing is left to do at that time but to send."""

    @property
    def lead_ns(self) -> int: ...

    async def stream(self, capture: Capture, url: str, body: bytes) -> None:
        """Send, receive, fill `capture`; never raises for what the endpoint does."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, and how they are phrased."""

    base_url: str  # ends before "/chat/completions"
    dialect: str
    model: str
    features: Features = field(default_factory=Features)
    query: str = ""  # what the user's URL has behind its "?", sent with every request (a gateway's api-version)

    @property
    def url(self) -> str:
        return self.base_url + DIALECTS[self.dialect].path + (f"?{self.query}" if self.query else "")

    def body(self, planned: PlannedRequest, history: tuple[Message, ...] = ()) -> bytes:
        return msgspec.json.encode(DIALECTS[self.dialect].body(planned, self.model, self.features, history))


@dataclass(slots=True)
class Live:
    """Counters for whoever watches."""

    sent: int = 0
    finished: int = 0
    failed: int = 0
    in_flight: int = 0
    tally: Tally | None = None  # kept where somebody may look while the run goes on


class Runner:
    """Runs stages one after the other over one transport.

    `look` is called between sends (it reads what has arrived); `on_exchange` sees every decoded request. With `others`
    the units of a plan go to `target` and to each of them in turn.
    """

    def __init__(
        self,
        clock: Clock,
        streamer: Streamer,
        target: Target,
        sink: Sink,
        *,
        look: Callable[[], None] = lambda: None,
        on_exchange: Callable[[Exchange], None] = lambda exchange: None,
        keep_text: bool = False,
        count_tokens: Callable[[str], int] | None = None,
        worker: int = 0,
        purse: Purse | None = None,
        others: Sequence[Target] = (),
    ) -> None:
        self.clock, self.streamer, self.sink = clock, streamer, sink
        self.targets = (target, *others)
        self.look, self.on_exchange, self.keep_text, self.worker = look, on_exchange, keep_text, worker
        self.count_tokens = count_tokens
        self.purse = purse
        self.live = Live()
        self.stop = asyncio.Event()  # set: send nothing more, cancel what is in flight
        self._stage: Stage | None = None

    async def run(
        self,
        info: StageInfo,
        plan: Iterator[PlannedRequest],
        *,
        stagger_ns: int = 0,
        part: Slice | None = None,
        agreed_start: Callable[[], Awaitable[int]] | None = None,
        give_back: Callable[[int], None] | None = None,
    ) -> None:
        """Run one stage (or this worker's part of it, whose requests `plan` holds) and fill in `info`.

        `stagger_ns` spreads the opening of a closed loop over that time. `agreed_start` is awaited once bodies are
        built and returns the common start of several workers. `give_back(n)` is told of slots that this worker has no
        more requests for; others get them by `lend`.
        """
        stage = self._stage = Stage(self, info, plan, stagger_ns, part or Slice(), give_back)
        stage.build_ahead(stage.depth)
        stage.begin(self.clock.now_ns() if agreed_start is None else await agreed_start())
        await stage.run()

    def end(self, ended: Ended) -> None:
        """End the running stage before its time, see `Stage.end`."""
        if self._stage is not None:
            self._stage.end(ended)

    def lend(self, slots: int) -> None:
        """Let this worker's running stage have more users at a time, from now on."""
        if self._stage is not None:
            self._stage.add_slots(slots)
