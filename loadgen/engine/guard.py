"""Asks checkable questions beside the load, one at a time, and notes which answers were right.

Knows: when the next question is due, how it is sent, what is written down about it. Must not know: the questions'
content (`plan.guard`), stages, verdicts.
Why: a server must answer right under the very load that is measured, so the questions go in between; at one question
every few seconds they change nothing that is measured. Their rows are kept with the run and counted in no figure.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

from loadgen.engine.runner import Runner, Target
from loadgen.model import Capture, Exchange, Message, PlannedRequest
from loadgen.plan.guard import MAX_TOKENS, QUESTIONS, Question, right, spoken
from loadgen.wire.timeline import answer, decode

WORKLOAD = "guard"
_FIRST_ID = -(1 << 40)  # request ids that no stage and no warm-up has
_PAUSE_S = 1.0  # between an answer and the next question
_AFTER_S = 10.0  # a stage that was too short for all questions is followed by the rest of one round, for so long
_SAMPLES = 5


@dataclass(slots=True)
class Guard:
    """Asks through a runner's own connection. `wrong` keeps a few (question, answer); `answers` the digest of each."""

    runner: Runner
    asked: int = 0
    right: int = 0
    unanswered: int = 0  # failed, or nothing visible before the limit: says nothing about being right
    by_kind: dict[str, list[int]] = field(default_factory=dict)  # right, asked
    wrong: list[dict[str, str]] = field(default_factory=list)
    answers: dict[int, str] = field(default_factory=dict)
    _next: int = 0
    _before: tuple[int, int] = (0, 0)
    _hurry: asyncio.Event = field(default_factory=asyncio.Event)
    _asking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to ask beside a stage."""
        self._before = (self.asked, self.right)
        self._hurry.clear()
        self._asking = asyncio.ensure_future(self._ask_on())

    async def end(self) -> dict[str, float]:
        """The stage is over: ask what is missing of one round, for a bounded time; returns the stage's own counts."""
        self._hurry.set()
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=_AFTER_S)
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        asked, good = self._before
        return {"guard_asked": float(self.asked - asked), "guard_right": float(self.right - good)}

    async def _ask_on(self) -> None:
        tried = 0
        while not self.runner.stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), _PAUSE_S)
            if self._hurry.is_set() and (tried >= len(QUESTIONS) or self.runner.stop.is_set()):
                return
            await self._one()
            tried += 1

    async def _one(self) -> None:
        number = self._next
        self._next += 1
        question = QUESTIONS[number % len(QUESTIONS)]
        endpoint = number % len(self.runner.targets)
        target = _plain(self.runner.targets[endpoint])
        planned = PlannedRequest(
            _FIRST_ID + number, -1, WORKLOAD, (Message("user", question.text),), 0, MAX_TOKENS, warmup=True
        )
        purse = self.runner.purse
        held = None if purse is None else purse.take(planned)
        if purse is not None and held is None:
            return
        capture = Capture(planned, target.dialect, endpoint=endpoint, dispatched_ns=self.runner.clock.now_ns())
        await self.runner.streamer.stream(capture, target.url, target.body(planned))
        exchange = decode(capture, keep_text=self.runner.keep_text)
        if purse is not None and held is not None:
            purse.settle(held, exchange)
        self.runner.sink.write(exchange)
        self._judge(number % len(QUESTIONS), question, answer(capture), exchange)

    def _judge(self, index: int, question: Question, said: str, exchange: Exchange) -> None:
        if exchange.outcome != "ok" or (not spoken(said) and exchange.finish_reason == "length"):
            self.unanswered += 1
            return
        self.asked += 1
        good = right(question, said)
        self.right += good
        kind = self.by_kind.setdefault(question.kind, [0, 0])
        kind[0] += good
        kind[1] += 1
        self.answers.setdefault(index, hashlib.sha256(spoken(said).encode("utf-8", "replace")).hexdigest()[:16])
        if not good and len(self.wrong) < _SAMPLES:
            self.wrong.append({"question": question.text, "expected": question.expected, "answer": said[:200]})

    def record(self) -> dict[str, Any]:
        """What is kept with the run. `fingerprint`: digest of the greedy answers, by question number; texts are kept
        of a few wrong answers only."""
        return {
            "asked": self.asked,
            "right": self.right,
            "unanswered": self.unanswered,
            "by_kind": {kind: {"right": good, "asked": asked} for kind, (good, asked) in self.by_kind.items()},
            "wrong": self.wrong,
            "fingerprint": {str(index): digest for index, digest in sorted(self.answers.items())},
        }


def _plain(target: Target) -> Target:
    """The target for answers that end by themselves, greedy where the endpoint takes a temperature."""
    features = target.features
    extra = {name: value for name, value in features.extra_body.items() if name not in ("ignore_eos", "min_tokens")}
    plain = replace(features, ignore_eos=False, min_tokens=False, temperature=0.0, extra_body=extra)
    return replace(target, features=plain)
