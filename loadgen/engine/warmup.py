"""Warm-up and calibration: a few unmeasured requests that teach how long prompts and requests really are.

Knows: the rounds of a warm-up, who counts tokens, and what is learned from the server's `usage`. Must not know: stages,
windows, files.
Why: a tokenizer does not know the template around a text, and without one a prompt's length is an estimate; the
server's own count corrects both before the measurement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loadgen.engine.probe import Probed
from loadgen.engine.runner import Runner
from loadgen.engine.tokenize import ServerTokenizer
from loadgen.errors import EndpointError
from loadgen.model import Exchange, Load, PlannedRequest, StageInfo
from loadgen.plan.prompts import rough_tokens
from loadgen.plan.schedule import StageSpec, plan_warm_up
from loadgen.plan.tokens import Counted, Sizer, calibrate, counted
from loadgen.plan.workload import Workload

if TYPE_CHECKING:
    from loadgen.engine.settings import Settings

_WARMUP_USERS = 4
_MOST_OFF = 16  # tokens by which sums of units may miss before the server's counts are not used


class WarmUp:
    """What is known so far: `sizers` (how texts of a workload are measured) and `service_ns` (how long a request of it
    takes alone), by the workload's name."""

    def __init__(self, settings: Settings, say: Callable[[str], None] = lambda line: None) -> None:
        self.sizers: dict[str, Sizer] = {}
        self.service_ns: dict[str, int] = {}
        self._server: ServerTokenizer | None = None
        self._settings, self._say = settings, say
        self._warmed = settings.warmed  # requests so far
        self._met: set[str] = set()  # workloads that were warmed up
        self._learned: set[str] = set()  # of those, the ones whose prompts the server has counted

    def meet(self, probed: Probed) -> None:
        """The server counts where no tokenizer is at hand, if it can and may be asked."""
        settings = self._settings
        if probed.tokenize_url is not None and settings.tokenizer is None and settings.ask_tokenize:
            self._server = ServerTokenizer(probed, settings.headers, settings.security)

    async def run(self, runner: Runner, spec: StageSpec) -> None:
        """Send the stage's warm-up requests; learn from the server's `usage` how long prompts really are.

        Two rounds: the first, at two lengths, shows density and overhead; the second is sized by that and corrects it.
        Where tokens are counted only the overhead of the template is to be learned.
        """
        settings = self._settings
        for workload, _ in spec.mix:
            if workload.name in self._met:
                continue
            self._met.add(workload.name)
            table = await self._table(workload)
            if table is not None:
                self.sizers[workload.name] = table
            if not settings.warmup:
                continue
            count = settings.warmup * len(runner.targets)
            second = count // 2
            seen = await self._round(runner, spec, workload, count - second)
            if second and not runner.stop.is_set():
                seen = await self._round(runner, spec, workload, second)
            took = [_service_ns(e, workload.output_tokens.mean()) for e in seen if e.event_ns]
            self.service_ns[workload.name] = sum(took) // len(took) if took else 0

    def told(self) -> dict[str, dict[str, Any]]:
        """For each workload how its prompts are sized: who counts (None: nobody, it is an estimate), the tokens that
        the template adds to a text, and by how much sums of units are off or what an estimate is multiplied by."""
        return {name: _told(sizer, name in self._learned) for name, sizer in self.sizers.items()}

    async def _table(self, workload: Workload) -> Counted | None:
        """The tokens of what the workload's texts are made of, by a tokenizer at hand, else by the server."""
        tokenizer = self._settings.tokenizer
        if workload.texts is not None:
            return None
        if tokenizer is not None:
            return await asyncio.to_thread(counted, workload.kind, tokenizer.many, tokenizer)
        if self._server is None:
            return None
        try:
            known = self._server.knows(workload.kind)
            if not known:
                self._say(f"{workload.name}: asking the server for the tokens of what its prompts are made of ...")
            table = await self._server.table(workload.kind)
            if not known:
                self._say(
                    f"{workload.name}: ... {table.pieces:,} pieces by {self._server.asked} questions to /tokenize"
                )
            if table.off_tokens > _MOST_OFF:
                raise EndpointError("the server's counts do not add up")
        except EndpointError as bad:
            self._say(f"{bad}: prompts are calibrated from usage instead")
            self._server = None
            return None
        if table.off_tokens > 1:
            self._say(
                f"{workload.name}: the server's tokens do not add up: prompts may miss by {table.off_tokens} tokens"
            )
        return table

    async def _round(self, runner: Runner, spec: StageSpec, workload: Workload, count: int) -> list[Exchange]:
        """Send some requests and correct the workload's sizer by what the server counted; those that succeeded."""
        settings = self._settings
        seen: list[Exchange] = []
        self._warmed += count
        plan = list(
            plan_warm_up(
                spec,
                workload,
                count,
                seed=settings.seed,
                nonce=f"{settings.nonce}w{self._warmed}",
                first_id=-self._warmed,
                sizer=self.sizers if workload.name in self.sizers else None,
            )
        )
        load = Load("concurrency", min(count, _WARMUP_USERS), "closed")
        runner.on_exchange = seen.append
        await runner.run(StageInfo(-1, f"{workload.name} warm-up", workload.name, load, count), iter(plan))
        runner.on_exchange = lambda exchange: None
        seen = [e for e in seen if e.outcome == "ok"]
        if workload.texts is None:
            self._learn(workload.name, plan, seen)
        return seen

    def _learn(self, name: str, plan: list[PlannedRequest], seen: list[Exchange]) -> None:
        """Correct a workload's sizer by what the server counted of the prompts of a plan."""
        sizer = self.sizers.get(name)
        counts = {e.request_id: e.prompt_tokens for e in seen if e.prompt_tokens}
        sent = [request for request in plan if request.request_id in counts]
        if isinstance(sizer, Counted):
            least = sizer.table.least  # below it a prompt may be longer than asked
            pairs = [(r.prompt_tokens, counts[r.request_id]) for r in sent if sizer.budget(r.prompt_tokens) >= least]
            self.sizers[name] = sizer.through(pairs)
        else:
            pairs = [(rough_tokens(request.messages[0].content), counts[request.request_id]) for request in sent]
            self.sizers[name] = calibrate(pairs) if sizer is None else sizer.through(pairs)
        if pairs:
            self._learned.add(name)


def _told(sizer: Sizer, learned: bool) -> dict[str, Any]:
    if isinstance(sizer, Counted):
        template = sizer.overhead_tokens if learned else None
        return {"counted_by": sizer.source, "template_tokens": template, "off_tokens": sizer.off_tokens}
    template = round(sizer.overhead_tokens) or None if learned else None  # 0: could not be told from the scale
    return {"counted_by": "usage" if learned else None, "template_tokens": template, "scale": round(sizer.scale, 4)}


def _service_ns(exchange: Exchange, output_tokens: float) -> int:
    """How long a request with so many output tokens would take, by one with fewer: TTFT + TPOT * (N - 1)."""
    first, last, n = exchange.event_ns[0], exchange.event_ns[-1], sum(exchange.event_tokens)
    tpot_ns = (last - first) / (n - 1) if n > 1 else 0.0
    return first - (exchange.sent_ns or first) + round(tpot_ns * max(output_tokens - 1, 0))
