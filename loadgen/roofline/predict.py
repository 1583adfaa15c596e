"""What a request should take: its two phases, priced by the law of one step.

Knows: TTFT = queue + prefill; end to end = TTFT + TPOT * (N - 1); which rate is the server's and which a user's. Must
not know: where the law came from (hardware facts, a fit, typed-in constants) or how a scheduler mixes requests.
Why: this is the page of arithmetic that every other figure is compared with, so it stays short enough to check by hand.

The prompt is prefilled in one pass on its own. Decode is `batch` such requests in step, each with the same context.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.errors import UsageError
from loadgen.roofline.passes import Pass, StepLaw, decode_pass, prefill_pass, visible_pairs


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a request: `passes` passes that cost `one` each (in decode: the mean over its contexts)."""

    name: str
    passes: int
    one: Pass

    @property
    def time_s(self) -> float:
        """Seconds of the whole phase."""
        return self.passes * self.one.time_s


@dataclass(frozen=True, slots=True)
class Prediction:
    """A request on an otherwise steady server. What needs a second output token is None where there is none."""

    prompt_tokens: int
    output_tokens: int
    batch: int
    queue_s: float
    prefill: Phase
    decode: Phase | None

    @property
    def ttft_s(self) -> float:
        """Queue and prefill; the prefill pass yields the first token."""
        return self.queue_s + self.prefill.time_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first."""
        return self.decode.one.time_s if self.decode else None

    @property
    def e2e_s(self) -> float:
        """TTFT + TPOT * (output tokens - 1)."""
        return self.ttft_s + (self.decode.time_s if self.decode else 0.0)

    @property
    def decode_share(self) -> float:
        """Part of the user's wait that is decode, 0 to 1."""
        return 1.0 - self.ttft_s / self.e2e_s

    @property
    def decode_output_tokens_per_s(self) -> float | None:
        """Whole server while it decodes: batch / TPOT."""
        return self.batch / self.tpot_s if self.tpot_s else None

    @property
    def request_output_tokens_per_s(self) -> float:
        """Whole server over the whole request, queue and prefill included: batch * output tokens / end to end."""
        return self.batch * self.output_tokens / self.e2e_s

    @property
    def output_tokens_per_s_per_user(self) -> float | None:
        """1 / TPOT."""
        return 1.0 / self.tpot_s if self.tpot_s else None


def predict(
    law: StepLaw, *, prompt_tokens: int, output_tokens: int, batch: int = 1, queue_s: float = 0.0
) -> Prediction:
    """Price one request.

    Args:
        law: the cost of a step.
        prompt_tokens: tokens of the prompt, all of them computed.
        output_tokens: tokens of the answer, the first included.
        batch: sequences decoding together.
        queue_s: wait before the prefill.

    Raises:
        UsageError: a count below 1.
    """
    if min(prompt_tokens, output_tokens, batch) < 1:
        raise UsageError("prompt tokens, output tokens and batch must be at least 1")
    steps = output_tokens - 1
    decode = None
    if steps:
        # Step i reads prompt + i tokens, i = 1 ... steps: centred on +1/2 for the integral.
        seen = visible_pairs(law, prompt_tokens + 0.5, float(steps)) / steps
        decode = Phase("decode", steps, decode_pass(law, batch, seen))
    prefill = Phase("prefill", 1, prefill_pass(law, prompt_tokens))
    return Prediction(prompt_tokens, output_tokens, batch, queue_s, prefill, decode)
