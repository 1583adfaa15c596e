"""Warm-up and calibration: a few unmeasured requests that teach how long prompts and requests really are.

Knows: the rounds of a warm-up, and what is learned from the server's `usage`. Must not know: stages, windows, files.
Why: without a tokenizer a prompt's length is an estimate; the server's own count corrects it before the measurement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadgen.engine.runner import Runner
from loadgen.model import Exchange, Load, StageInfo
from loadgen.plan.schedule import StageSpec, plan_warm_up
from loadgen.plan.tokens import DEFAULTS, Exact, Sizer, calibrate
from loadgen.plan.workload import Workload

if TYPE_CHECKING:
    from loadgen.engine.session import Settings

_WARMUP_USERS = 4


class WarmUp:
    """What is known so far: `sizers` (how texts of a workload are measured) and `service_ns` (how long a request of it
    takes alone), by the workload's name."""

    def __init__(self, settings: Settings) -> None:
        self.sizers: dict[str, Sizer] = {}
        self.service_ns: dict[str, int] = {}
        self._settings = settings
        self._warmed = 0  # requests so far

    async def run(self, runner: Runner, spec: StageSpec) -> None:
        """Send the stage's warm-up requests; learn from the server's `usage` how long prompts really are.

        Two rounds: the first, at two lengths, shows density and overhead; the second is sized by that and corrects it.
        With a tokenizer only the overhead of the template is to be learned.
        """
        settings = self._settings
        count = settings.count_tokens
        for workload, _ in spec.mix:
            if workload.name in self.sizers:
                continue
            if count is not None:
                self.sizers[workload.name] = Exact(count, 0, DEFAULTS[workload.kind].density)
            if not settings.warmup:
                continue
            second = settings.warmup // 2
            seen = await self._round(runner, spec, workload, settings.warmup - second)
            sizer = self.sizers.get(workload.name)
            if sizer is None:
                sizer = calibrate(_prompt_sizes(seen), DEFAULTS[workload.kind])
            else:
                sizer = sizer.through(_text_and_server_tokens(seen))
            self.sizers[workload.name] = sizer
            if second and not runner.stop.is_set():
                seen = await self._round(runner, spec, workload, second)
                if count is None:
                    self.sizers[workload.name] = sizer.through(_prompt_sizes(seen))
            took = [_service_ns(e, workload.output_tokens.mean()) for e in seen if e.event_ns]
            self.service_ns[workload.name] = sum(took) // len(took) if took else 0

    async def _round(self, runner: Runner, spec: StageSpec, workload: Workload, count: int) -> list[Exchange]:
        """The exchanges that succeeded."""
        settings = self._settings
        seen: list[Exchange] = []
        self._warmed += count
        plan = plan_warm_up(
            spec,
            workload,
            count,
            seed=settings.seed,
            nonce=f"{settings.nonce}w{self._warmed}",
            first_id=-self._warmed,
            sizer=self.sizers if workload.name in self.sizers else None,
        )
        load = Load("concurrency", min(count, _WARMUP_USERS), "closed")
        runner.on_exchange = seen.append
        await runner.run(StageInfo(-1, f"{workload.name} warm-up", workload.name, load, count), plan)
        runner.on_exchange = lambda exchange: None
        return [e for e in seen if e.outcome == "ok"]


def _prompt_sizes(exchanges: list[Exchange]) -> list[tuple[int, int]]:
    """(characters sent, prompt tokens counted by the server), where it counts them."""
    return [(e.prompt_chars, e.prompt_tokens) for e in exchanges if e.prompt_chars and e.prompt_tokens]


def _text_and_server_tokens(exchanges: list[Exchange]) -> list[tuple[int, int]]:
    """(text tokens, prompt tokens counted by the server) of prompts made by a tokenizer that took no overhead."""
    return [(e.prompt_tokens_requested, e.prompt_tokens) for e in exchanges if e.prompt_tokens]


def _service_ns(exchange: Exchange, output_tokens: float) -> int:
    """How long a request with so many output tokens would take, by one with fewer: TTFT + TPOT * (N - 1)."""
    first, last, n = exchange.event_ns[0], exchange.event_ns[-1], sum(exchange.event_tokens)
    tpot_ns = (last - first) / (n - 1) if n > 1 else 0.0
    return first - (exchange.sent_ns or first) + round(tpot_ns * max(output_tokens - 1, 0))
