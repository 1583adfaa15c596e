"""Measured cells: what a fit reads, whoever measured it.

Knows: one measured point (lengths, load, mean TTFT and ITL) and how it was run. Must not know: files, runs or whose
tool wrote them (`store` and `analysis` make cells), or how parameters are estimated (`fit`).
Why: a run of ours, a table from a paper and another tool's result file must enter the fit as the same thing, with the
protocol beside the numbers: the opening burst and the real lengths move TTFT more than any parameter does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from loadgen.roofline.passes import Deployment

LoadKind = Literal["concurrency", "batch", "rate"]


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a cell was run, as far as it is known.

    requests: sent in all, opening burst included; None: unknown, ten per user are assumed.
    length_ratio: real lengths are uniform in [ratio, 1] x nominal; 1: exact.
    stagger_s: the users' first requests are spread over this time; 0: an opening burst.
    cached_share: part of the prompt tokens that the server reports as cached; nan: not reported.
    """

    requests: int | None = None
    length_ratio: float = 1.0
    stagger_s: float = 0.0
    cached_share: float = math.nan


def uniform_law(spread: float) -> tuple[float, float]:
    """(nominal / mean, ratio) of the uniform law on [ratio, 1] x nominal whose deviation is `spread` x its mean.

    nominal = mean + sqrt(3) deviation and ratio = (mean - sqrt(3) deviation) / nominal, not below 0. A spread under 2 %
    is taken for exact lengths.
    """
    if spread < 0.02:
        return 1.0, 1.0
    ratio = max(0.0, (1 - math.sqrt(3) * spread) / (1 + math.sqrt(3) * spread))
    return 2 / (1 + ratio), ratio


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured point of one deployment.

    prompt_tokens, output_tokens: nominal (with `protocol.length_ratio` < 1) or mean tokens per request.
    load_kind: closed loop (`concurrency` users), a static `batch` without a queue, or open loop (`rate`, requests/s).
    ttft_s, itl_s: means, seconds; nan where not measured. `itl_s` is the mean of the requests' TPOT.
    deployment: None where GPU or model is not known (vendors): only black-box constants can be fitted.
    label: which deployment a table meant, in its own words; cells of one label and deployment are fitted together.
    where: "file:line" or "RUN stage", for messages.
    evidence: further measurements by name, for the findings, in SI units: `itl_p99_s`, `max_gap_s`, `itl_p50_s`,
        `error_share`, `short_share` (answers under 90 % of what was asked), `tokens_per_event`, `batch` (the server's
        own running requests), `acceptance`, `network_s` (measured round trip), `shared_receives`, `invalid` (1: the
        client was the bottleneck), `start_s` (when the cell was run, from the run's start), `waiting` and `kv_usage`
        (the server's own queue, mean, and share of its KV cache in use, highest), `preemptions` (its count).
    """

    prompt_tokens: float
    output_tokens: float
    load_kind: LoadKind
    load: float
    ttft_s: float
    itl_s: float
    deployment: Deployment | None = None
    protocol: Protocol = Protocol()
    label: str = ""
    where: str = ""
    evidence: Mapping[str, float] = field(default_factory=dict)
    held_out: bool = False  # measured to test the fit: no fit may see its TTFT and ITL, whatever `holdout` says
