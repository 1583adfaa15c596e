"""The experiment from which an engine's parameters can be told apart: which prompts, answers and loads, in which order.

Knows: the grid, why each part of it is there, what a stage costs by guess or by what the stages before it cost. Must
not know: endpoints, clocks, the model that is fitted.
Why: one sweep of concurrency at one length leaves compute, bandwidth and overhead in one sum. The parts:

    prompt length at one user      TTFT against length: compute, attention (the quadratic part), time before the prompt
    context at one user            ITL against context: the floor (overhead and weights), KV reads
    concurrency, short prompts     ITL against batch: per-sequence cost, the knee; powers of two and sizes beside them,
                                   because captured graphs are padded to powers of two and hide their steps there
    concurrency, long prompts      prefill between decode steps, the token budget, the caps of batch and KV cache
    held out                       drawn at random inside the grid; no fit may see them: the error that is printed

Cheapest first, so that a small budget gives the widest experiment that it pays for. Prompts are all different from
their first token on, answers have forced lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadgen.model import Load
from loadgen.plan.lengths import fixed
from loadgen.plan.schedule import StageSpec
from loadgen.plan.workload import Workload

PROFILES = ("roofline",)
KIND = "summarize"  # the writer of the prompts
_SHORT = 128
_ANSWER = 256
_PROMPTS = (32, 128, 512, 2048, 8192, 16_384, 32_768, 65_536, 122_880)
_CONTEXTS = (128, 2048, 8192, 32_768)
_USERS = (2, 3, 4, 8, 12, 16, 32, 33, 64, 128, 129, 256, 257, 512)
_LONG_USERS = (4, 16, 64, 256)
_FEW = 30  # requests, at least, where several users share them
_HELD_OUT = ((2, 8), (8, 32), (32, 128))  # users, one cell drawn from each


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds per prompt token, per decode step, and per output token and user in a step: guessed or learned."""

    prompt_s: float
    step_s: float
    user_s: float


# An 8B model in 16 bits on one H100, from the literature's utilisations; only the order of the stages rests on it.
GUESS = Cost(prompt_s=35e-6, step_s=8e-3, user_s=60e-6)


@dataclass(frozen=True, slots=True)
class Part:
    """A stage and the part of the experiment that it belongs to."""

    purpose: str
    spec: StageSpec


def design(rng: np.random.Generator, cost: Cost = GUESS) -> tuple[Part, ...]:
    """The whole experiment, cheapest stage first by `cost`; `rng` draws the cells that are held out."""
    parts = [_part("prompt length", prompt, 16, 1, 8 if prompt < 32_768 else 4) for prompt in _PROMPTS]
    parts += [_part("context", prompt, _ANSWER, 1, 4) for prompt in _CONTEXTS]
    parts += [_part("concurrency", _SHORT, _ANSWER, users) for users in _USERS]
    parts += [_part("long prompts", prompt, _ANSWER, users) for prompt in (2048, 8192) for users in _LONG_USERS]
    for low, high in _HELD_OUT:
        users, prompt = (int(np.exp(rng.uniform(np.log(a), np.log(b)))) for a, b in ((low, high), (_SHORT, 8192)))
        parts.append(_part("held out", prompt, int(rng.integers(64, _ANSWER + 1)), users))
    parts.sort(key=lambda part: seconds(part.spec, cost))
    return tuple(replace(part, spec=replace(part.spec, stage=number)) for number, part in enumerate(parts))


def _part(purpose: str, prompt: int, output: int, users: int, requests: int = 0) -> Part:
    name = f"p{prompt}-o{output}"
    workload = Workload(name, KIND, fixed(prompt), fixed(output))
    held_out = purpose == "held out"
    spec = StageSpec(
        stage=0,
        name=f"{name}@{users}{' held out' if held_out else ''}",
        mix=((workload, 1.0),),
        load=Load("concurrency", users),
        requests=requests or max(3 * users, _FEW),
        held_out=held_out,
    )
    return Part(purpose, spec)


def seconds(spec: StageSpec, cost: Cost) -> float:
    """What a stage of the experiment takes: its prompts one after the other, its answers in rounds of all users."""
    prompts, steps, outputs = _work(spec)
    return prompts * cost.prompt_s + steps * cost.step_s + outputs * cost.user_s


def learned(done: Sequence[tuple[StageSpec, float]], spec: StageSpec) -> float | None:
    """What `spec` takes by the seconds of the stages that are done; None before there is one.

    Non-negative least squares of the relative error over the three terms of `seconds`.
    """
    known = [(spec, took) for spec, took in done if took > 0]
    if not known:
        return None
    from scipy.optimize import nnls

    rows = np.array([np.array(_work(one)) / took for one, took in known])
    scale = np.where(rows.max(axis=0) > 0, rows.max(axis=0), 1.0)
    rates = nnls(rows / scale, np.ones(len(known)))[0] / scale
    return float(np.dot(_work(spec), rates))


def tokens(spec: StageSpec) -> float:
    """The context that a request of the stage needs, in tokens; with a little room for a template."""
    return max(w.prompt_tokens.mean() * 1.02 + 32 + w.output_tokens.mean() for w, _ in spec.mix)


def _work(spec: StageSpec) -> tuple[float, float, float]:
    """Prompt tokens, decode steps one after the other, and output tokens of a stage."""
    workload, count = spec.mix[0][0], spec.requests or 0
    output = workload.output_tokens.mean()
    return count * workload.prompt_tokens.mean(), -(-count // max(1, int(spec.load.value))) * output, count * output
