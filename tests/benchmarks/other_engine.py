"""A serving engine for judging explanations: it shares no code with `loadgen.roofline` and has effects of its own.

What the fitted model lacks, and this engine has: matrix products that reach their rate only with many tokens, decode
batches padded to captured sizes, host work half hidden behind the GPU, KV reads in whole blocks, attention that waits
for its longest sequence, steps that vary by 3 % and now and then hiccup. The scheduler is the usual one (running
sequences first, then prompts in chunks), written anew over numpy arrays.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Card:
    """One GPU."""

    flop_per_s: float = 989e12
    bytes_per_s: float = 3.35e12
    link_bytes_per_s: float = 80e9  # as an all-reduce sees it


@dataclass(frozen=True)
class World:
    """The engine, its model and what is known of it only here. Defaults: an 8B model in 16 bits on one H100."""

    card: Card = Card()
    gpus: int = 1
    layers: int = 32
    hidden: int = 4096
    weights: float = 7.505e9  # in matrix products, head included
    head: float = 0.525e9
    kv_bytes: float = 131072.0  # per token, all GPUs
    attention_flops: float = 4 * 32 * 4096.0  # per query and context token
    weight_bytes: float = 2.0  # per weight of the layers; the head keeps 2
    speedup: float = 1.0  # of 8-bit products
    mfu: float = 0.62
    mbu: float = 0.75
    kv_mbu: float = 0.68
    half_tokens: float = 60.0  # at which matrix products reach half of their rate's last third
    host_s: float = 1.6e-3
    host_sequence_s: float = 1.2e-5
    hidden_share: float = 0.5  # of the host's work, while only decodes run
    request_s: float = 2.5e-3
    prompt_token_s: float = 3e-7
    budget: int = 2048
    sequences: int = 256
    noise: float = 0.03

    def step_s(self, contexts: np.ndarray, chunks: list[tuple[int, int]], rng: np.random.Generator) -> float:
        """Seconds of a step: `contexts` of the decoding sequences, (start, tokens) of the prompts' chunks."""
        decodes, prompt = len(contexts), sum(tokens for _, tokens in chunks)
        padded = decodes if chunks or decodes <= 4 else 8 * math.ceil(decodes / 8)
        tokens = padded + prompt
        reached = self.mfu * (2 / 3 + tokens / (tokens + self.half_tokens) / 3)
        rate = self.card.flop_per_s * self.gpus * self.speedup * reached
        layers = self.weights - self.head
        compute = 2 * (layers * tokens + self.head * (padded + len(chunks))) / rate
        memory = (layers * self.weight_bytes + self.head * 2) / (self.card.bytes_per_s * self.gpus * self.mbu)
        gpu = max(compute, memory) + 0.15 * min(compute, memory)
        if decodes:
            blocks = float(np.sum(np.ceil(contexts / 16.0) * 16.0))
            uneven = 1.0 + 0.05 * (float(np.max(contexts)) / float(np.mean(contexts)) - 1.0)
            gpu += uneven * blocks * self.kv_bytes / self.gpus / (self.card.bytes_per_s * self.kv_mbu)
        pairs = sum(tokens * (start + tokens / 2) for start, tokens in chunks)
        gpu += self.attention_flops * pairs / (self.card.flop_per_s * self.gpus * self.speedup * 0.45)
        if self.gpus > 1:
            gpu += 2 * self.layers * (5e-6 + tokens * self.hidden * 2 / self.card.link_bytes_per_s)
        host = self.host_s + self.host_sequence_s * decodes
        seen = host * (1.0 - self.hidden_share) if not chunks else host
        hiccup = 2.0 if rng.random() < 0.002 else 1.0
        return (gpu + seen) * math.exp(self.noise * rng.standard_normal()) * hiccup


@dataclass(frozen=True)
class Seen:
    """Means over requests, seconds; output tokens/s of the whole server."""

    ttft: float
    itl: float
    output_tokens_per_s: float


def serve(
    world: World,
    prompt: int,
    output: int,
    users: int,
    *,
    requests: int | None = None,
    cached: float = 0.0,
    seed: int = 0,
) -> Seen:
    """A closed loop of `users`, ten requests each unless said; all begin at once. `cached`: share of each prompt."""
    rng = np.random.default_rng(seed)
    todo = requests or 10 * users
    skip = min(prompt - 1, int(cached * prompt))
    way = world.request_s + world.prompt_token_s * prompt
    arriving = [(way, i, 0.0) for i in range(min(users, todo))]  # seen by the scheduler, number, sent
    heapq.heapify(arriving)
    started = len(arriving)
    waiting: deque[tuple[int, float]] = deque()
    prefill: deque[list[float]] = deque()  # [number, sent, tokens done]
    contexts, left, first = (np.empty(0) for _ in range(3))
    ttft, tpot, now = [], [], 0.0
    while len(tpot) < todo:
        while arriving and arriving[0][0] <= now:
            _, number, at = heapq.heappop(arriving)
            waiting.append((number, at))
        while waiting and len(prefill) + len(contexts) < world.sequences:
            number, at = waiting.popleft()
            prefill.append([number, at, skip])
        if not prefill and not len(contexts):
            now = arriving[0][0]
            continue
        budget, chunks = world.budget - len(contexts), []
        for one in prefill:
            take = min(budget, int(prompt - one[2]))
            if take <= 0:
                break
            chunks.append((int(one[2]), take))
            budget -= take
        now += world.step_s(contexts, chunks, rng)
        contexts, left = contexts + 1, left - 1
        for (start, take), one in zip(chunks, list(prefill), strict=False):
            one[2] = start + take
        gone = left <= 0
        for begun in first[gone]:
            tpot.append((now - begun) / (output - 1) if output > 1 else 0.0)
            if started < todo:
                heapq.heappush(arriving, (now + way, started, now))
                started += 1
        contexts, left, first = (column[~gone] for column in (contexts, left, first))
        while prefill and prefill[0][2] >= prompt:
            _, at, _ = prefill.popleft()
            ttft.append(now - at)
            contexts, left = np.append(contexts, prompt), np.append(left, output - 1)
            first = np.append(first, now)
    return Seen(float(np.mean(ttft)), float(np.mean(tpot)), todo * output / now)
