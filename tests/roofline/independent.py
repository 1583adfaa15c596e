"""A serving engine of another make: the truth for recovery studies, with effects that the fitted law does not have.

Knows: nothing of `loadgen.roofline`'s laws or schedulers; its own constants, its own scheduling, noise. Built in are
batches padded to captured sizes, matrix products in tiles of 64 tokens, CPU work that runs beside the GPU (a step takes
the longer, plus a launch), lognormal noise on every step, a pause now and then, and a way over a network with jitter.
Why: recovering one's own simulator proves little.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

GRAPHS = (1, 2, 4, 8, *range(16, 513, 8))
TILE = 64


@dataclass(frozen=True)
class Truth:
    """What the study wants to find again. Rates are of the whole machine."""

    flops_per_token: float
    flops_per_pair: float
    weight_bytes: float
    kv_bytes_per_token: float
    flop_per_s: float
    bytes_per_s: float
    kv_bytes_per_s: float
    launch_s: float = 1.2e-3
    cpu_s: float = 2.5e-3
    cpu_per_sequence_s: float = 8e-6
    chunk: int = 4096
    cap: int = 10**6
    network_s: float = 3e-3
    noise: float = 0.03
    pauses: float = 0.002

    def step(self, contexts: list[int], chunks: list[tuple[int, int]]) -> float:
        """Seconds of a step without noise: decodes by their contexts, prompt chunks by (start, length)."""
        padded = next((size for size in GRAPHS if size >= len(contexts)), len(contexts)) if contexts else 0
        tokens = (0 if chunks else padded) + (len(contexts) if chunks else 0) + sum(length for _, length in chunks)
        tokens = TILE * math.ceil(tokens / TILE) if chunks else tokens
        products = tokens * self.flops_per_token / self.flop_per_s
        reading = self.weight_bytes / self.bytes_per_s
        pairs = sum(length * (start + length / 2) for start, length in chunks)
        gpu = (products**2.6 + reading**2.6) ** (1 / 2.6)
        gpu += pairs * self.flops_per_pair / (0.6 * self.flop_per_s)
        gpu += sum(contexts) * self.kv_bytes_per_token / self.kv_bytes_per_s
        return self.launch_s + max(gpu, self.cpu_s + self.cpu_per_sequence_s * len(contexts))


def measure(truth: Truth, prompt: int, output: int, users: int, requests: int, seed: int) -> tuple[float, float]:
    """Mean TTFT and mean TPOT in seconds of a closed loop with an opening burst."""
    rng = np.random.default_rng(seed)
    coming: deque[tuple[float, int]] = deque()  # (when it is there, when it was sent in microseconds)
    waiting: deque[list[float]] = deque()
    running: list[list[float]] = []  # [sent, prompt tokens done, tokens out, first token]
    left, now, ttft, tpot = requests, 0.0, [], []

    def send(when: float) -> None:
        coming.append((when + truth.network_s * rng.lognormal(0.0, 0.2), round(when * 1e6)))

    for _ in range(min(users, requests)):
        send(0.0)
        left -= 1
    while coming or waiting or running:
        for there, sent in [one for one in coming if one[0] <= now]:
            coming.remove((there, sent))
            waiting.append([sent / 1e6, 0, 0, math.nan])
        while waiting and len(running) < truth.cap:
            running.append(waiting.popleft())
        if not running:
            now = min(one[0] for one in coming)
            continue
        decoding = [one for one in running if one[2] > 0]
        room, chunks, given = truth.chunk - len(decoding), [], []
        for one in running:
            if one[2] == 0 and room > 0:
                take = int(min(room, prompt - one[1]))
                chunks.append((int(one[1]), take))
                given.append((one, take))
                room -= take
        seconds = truth.step([int(prompt + one[2]) for one in decoding], chunks)
        seconds *= rng.lognormal(0.0, truth.noise)
        now += seconds + (0.02 if rng.random() < truth.pauses else 0.0)
        for one in decoding:
            one[2] += 1
        for one, take in given:
            one[1] += take
            if one[1] >= prompt:
                one[2], one[3] = 1, now
        for one in [one for one in running if one[2] >= output]:
            running.remove(one)
            ttft.append(one[3] - one[0] + truth.network_s)
            tpot.append((now - one[3]) / max(1, output - 1))
            if left > 0:
                send(now)
                left -= 1
    return float(np.mean(ttft)), float(np.mean(tpot))
