"""What limits each measured cell, phase by phase, and how far it is from the roof.

Knows: how a fitted step divides into compute, memory, communication, overhead and waiting, what the bare hardware would
allow, and how an engineer says so. Must not know: how parameters were estimated (`fit`), or what would help
(`remedies`).
Why: a bound is only believed with its numbers, so a cause carries the parts of its time, each with formula and inputs;
and a bound that plausible fits disagree on names them all: a confident wrong cause is worse than an honest pair.

    prefill: TTFT = requests' overhead + the prompt's passes + waiting (steps and prefills of others, a free slot)
    decode:  ITL  = one step of the running batch + prefills of others
    batch = load * D / (TTFT + D), D = (output tokens - 1) * ITL   (Little's law; else the server's own figure)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from loadgen.errors import UsageError
from loadgen.roofline.cells import Cell
from loadgen.roofline.fit_parameters import TOP_MBU
from loadgen.roofline.fitted import Fit, FitCell
from loadgen.roofline.parts import CLIENT, COMPUTE, MEMORY, OVERHEAD, QUEUE, Part, added, bound_of, per_token, step
from loadgen.roofline.passes import StepLaw, step_law, step_parts, visible_pairs
from loadgen.roofline.serving import EngineConfig

Phase = Literal["prefill", "decode"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")
PLAUSIBLE = 0.1  # of the plausible fits that must name a bound before it is told as a rival


@dataclass(frozen=True, slots=True)
class Work:
    """What a phase puts through the GPUs: one prompt's passes, or one decode step."""

    passes: float
    tokens: float  # of all passes
    flops: float
    bytes: float
    kv_bytes: float  # of `bytes`, all GPUs


@dataclass(frozen=True, slots=True)
class Cause:
    """Why one phase of one cell takes as long as it does. Times in seconds; nan where there is none."""

    phase: Phase
    of: FitCell
    bound: str | None  # what takes most of the fitted time; None: constants alone, which do not tell
    rivals: tuple[str, ...]  # bounds that other fits, as plausible, name
    measured_s: float
    fit_s: float
    roof_s: float  # the hardware's: max(FLOP / peak, bytes / bandwidth)
    fitted_roof_s: float  # the same work at the fitted rates, no overhead, nothing waits
    batch: float
    work: Work
    parts: tuple[Part, ...]
    roof_inputs: Mapping[str, float] = field(default_factory=dict)

    @property
    def passes_s(self) -> float:
        """What the phase's own work takes, nothing waits."""
        return sum(part.seconds for part in self.parts if part.bound != QUEUE)

    @property
    def bound_share(self) -> float:
        """Of the phase's time, what counts as the bound; nan where none is told, or the client is it."""
        total = sum(part.seconds for part in self.parts)
        if self.bound in (None, CLIENT) or total <= 0:
            return math.nan
        return sum(part.seconds for part in self.parts if part.bound == self.bound) / total

    @property
    def work_bound(self) -> str | None:
        """What bounds the phase's own passes, waiting left out."""
        return bound_of(tuple(part for part in self.parts if part.bound != QUEUE))

    @property
    def distance(self) -> float:
        """Measured time / the hardware roof's: 1 is at the roof, below it a fact is wrong; nan without a roof."""
        return self.measured_s / self.roof_s if self.roof_s > 0 else math.nan

    @property
    def fitted_distance(self) -> float:
        """Measured time / that at the fitted rates: what overheads, communication and waiting cost."""
        return self.measured_s / self.fitted_roof_s if self.fitted_roof_s > 0 else math.nan


# How the numbers of a cause follow from others. Names are those of the cost law, of `Work` and of the cell.
FORMULAS: Mapping[str, str] = {
    "roof_s": "max(flops / peak_flop_per_s, bytes / peak_bytes_per_s)",
    "distance_to_roof": "measured_s / roof_s",
    "distance_to_fitted_roof": "measured_s / fitted_roof_s",
    "fitted_roof_s": "the sum of the parts bound by compute or memory",
    "passes_s": "the sum of the parts that are not bound by queue",
    "bound_share": "the sum of the parts bound by what the phase is bound by / the sum of all parts",
    "flops": "flops_per_token * tokens + head_flops * sampled tokens + attention_flops per pair * pairs",
    "bytes": "passes * (dense_bytes + expert_bytes * (1 - (1 - expert_share) ^ tokens of a pass)) + kv_bytes",
    "kv_bytes": "gpus * kv_bytes of a token and GPU * batch * context tokens (decode)",
    "batch": "load * D / (TTFT + D), D = (osl - 1) * ITL; the server's own figure or a static batch where known",
}


def find_causes(fit: Fit) -> tuple[Cause, ...]:
    """Both phases of every cell that has them, in the order of the cells. Cells without an engine are left out."""
    found: list[Cause] = []
    for one in fit.cells:
        engine = fit.engine.get(one.cell.label)
        if engine is None:
            continue
        draws, extremes = fit.draws.get(one.cell.label, ()), tuple(ends(fit, engine))
        both = (_cause(phase, one, engine, draws, extremes) for phase in PHASES)
        found += (cause for cause in both if cause is not None)
    return tuple(found)


def _cause(
    phase: Phase, one: FitCell, engine: EngineConfig, draws: Sequence[EngineConfig], extremes: Sequence[EngineConfig]
) -> Cause | None:
    measured, fitted = (one.cell.ttft_s, one.ttft_fit_s) if phase == "prefill" else (one.cell.itl_s, one.itl_fit_s)
    if math.isnan(measured) and math.isnan(fitted):
        return None
    batch = min(running(one), float(engine.max_sequences)) if one.cell.load_kind != "batch" else one.cell.load
    if phase == "decode" and (one.cell.output_tokens < 2 or math.isnan(batch)):
        return None
    work, parts = _explain(phase, one, engine, batch)
    # A client that could not keep up explains its own figures, whatever the server did.
    client = one.cell.evidence.get("invalid", 0.0) > 0
    bound = CLIENT if client else bound_of(parts)
    named = () if client else _rivals(phase, one, draws, extremes, batch)
    roof, inputs = _roof(one.cell, work)
    return Cause(
        phase=phase,
        of=one,
        bound=bound,
        rivals=tuple(name for name in named if name != bound),
        measured_s=measured,
        fit_s=fitted,
        roof_s=roof,
        fitted_roof_s=_device_time(parts),
        batch=batch,
        work=work,
        parts=parts,
        roof_inputs=inputs,
    )


def running(one: FitCell) -> float:
    """Sequences that decode together: the server's own figure, a static batch, or Little's law; nan if unknown."""
    cell = one.cell
    if (told := cell.evidence.get("batch", math.nan)) >= 1:
        return told
    if cell.load_kind == "batch":
        return cell.load
    itl = cell.itl_s if math.isfinite(cell.itl_s) else one.itl_fit_s
    ttft = cell.ttft_s if math.isfinite(cell.ttft_s) else one.ttft_fit_s
    decoding = (mean_length(cell, cell.output_tokens) - 1.0) * itl
    rate = cell.load if cell.load_kind == "rate" else cell.load / (ttft + decoding)
    return max(1.0, rate * decoding) if math.isfinite(rate * decoding) else math.nan


def mean_length(cell: Cell, nominal: float) -> float:
    """Mean tokens where real lengths are uniform in [ratio, 1] x nominal."""
    return max(1.0, nominal * (1.0 + cell.protocol.length_ratio) / 2.0)


def _explain(phase: Phase, one: FitCell, engine: EngineConfig, batch: float) -> tuple[Work, tuple[Part, ...]]:
    return _prefill(one, engine) if phase == "prefill" else _decode(one, engine, batch)


# --- the two phases --------------------------------------------------------------------------------------------------


def _prefill(one: FitCell, engine: EngineConfig) -> tuple[Work, tuple[Part, ...]]:
    """One prompt (in a static batch: all of them together) in as many passes as the token budget makes of it."""
    cell, law = one.cell, engine.law
    prompt = mean_length(cell, cell.prompt_tokens)
    cached = prompt * cell.protocol.cached_share if cell.protocol.cached_share > 0 else 0.0
    together = cell.load if cell.load_kind == "batch" else 1.0
    fresh = max(1.0, prompt - cached)
    passes = math.ceil(fresh / engine.token_budget) if engine.chunked and cell.load_kind != "batch" else 1
    sums: dict[str, Part] = {}
    flops = moved = 0.0
    for k in range(passes):
        tokens = fresh / passes
        pairs = together * visible_pairs(law, cached + k * tokens, tokens)
        head = together if k == passes - 1 else 0.0
        flops += law.flops_per_token * tokens * together + law.head_flops * head + law.attention_flops_prefill * pairs
        moved += law.dense_bytes + law.expert_bytes * _touched(law, tokens * together)
        seconds = step_parts(law, 0.0, 0.0, tokens * together, head, 0.0, 0.0, pairs)
        sums = added(sums, step(law, seconds, prefill_tokens=tokens * together))
    request = engine.request_s + engine.prompt_token_s * prompt
    told = {"request_s": engine.request_s, "prompt_token_s": engine.prompt_token_s, "prompt_tokens": prompt}
    if request > 0:
        sums["request"] = Part("request", OVERHEAD, request, "request_s + prompt_token_s * prompt_tokens", told)
    done = sum(part.seconds for part in sums.values())
    ttft = one.ttft_fit_s if math.isfinite(one.ttft_fit_s) else cell.ttft_s
    sums["waiting"] = _rest("waiting", ttft, done, "ttft_fit_s")
    return Work(float(passes), fresh * together, flops, moved, 0.0), _present(sums)


def _decode(one: FitCell, engine: EngineConfig, batch: float) -> tuple[Work, tuple[Part, ...]]:
    """One step of the batch, its sequences at their mean context; a drafting engine shares a step over its tokens."""
    cell, law = one.cell, engine.law
    steps = mean_length(cell, cell.output_tokens) - 1.0
    seen = visible_pairs(law, mean_length(cell, cell.prompt_tokens) + 0.5, max(steps, 1.0)) / max(steps, 1.0)
    width = 1.0 + engine.draft_tokens
    accepted = sum(engine.acceptance**k for k in range(engine.draft_tokens + 1))
    tokens = batch * width
    flops = (law.flops_per_token + law.head_flops) * tokens
    attention = law.attention_flops_decode * tokens * seen
    weights = law.dense_bytes + law.expert_bytes * _touched(law, tokens)
    kv_per_gpu = law.kv_bytes * batch * seen
    seconds = step_parts(law, batch, tokens, 0.0, tokens, batch * seen, tokens * seen, 0.0)
    sums = step(law, seconds, batch=batch, context_tokens=seen, decodes=True)
    if engine.draft_tokens:
        drafting = engine.draft_tokens * engine.draft_token_s
        told = {"draft_tokens": float(engine.draft_tokens), "draft_token_s": engine.draft_token_s}
        sums["drafting"] = Part("drafting", OVERHEAD, drafting, "draft_tokens * draft_token_s", told)
        sums = {name: per_token(part, accepted) for name, part in sums.items()}
    done = sum(part.seconds for part in sums.values())
    itl = one.itl_fit_s if math.isfinite(one.itl_fit_s) else cell.itl_s
    sums["prefills of others"] = _rest("prefills of others", itl, done, "itl_fit_s")
    kv = kv_per_gpu * law.gpus
    return Work(1.0, tokens, flops + attention, weights + kv, kv), _present(sums)


def _touched(law: StepLaw, tokens: float) -> float:
    untouched: float = (1.0 - law.expert_share) ** tokens
    return 1.0 - untouched


def _rest(name: str, whole: float, done: float, what: str) -> Part:
    inputs = {what: whole, "passes_s": done}
    return Part(name, QUEUE, max(0.0, whole - done), f"{what} - passes_s, at least 0", inputs)


def _present(sums: Mapping[str, Part]) -> tuple[Part, ...]:
    return tuple(part for part in sums.values() if part.seconds > 0)


def _device_time(parts: tuple[Part, ...]) -> float:
    """What the GPUs' own work takes at the fitted rates; nan without physics."""
    own = [part.seconds for part in parts if part.bound in (COMPUTE, MEMORY)]
    return sum(own) if own else math.nan


def _roof(cell: Cell, work: Work) -> tuple[float, Mapping[str, float]]:
    """The hardware's roof for this work, and what it was computed from; nan where GPU or model are not known."""
    if cell.deployment is None:
        return math.nan, {}
    try:
        bare = step_law(cell.deployment)
    except UsageError:
        return math.nan, {}
    inputs = {
        "flops": work.flops,
        "bytes": work.bytes,
        "peak_flop_per_s": bare.peak_flop_per_s,
        "peak_bytes_per_s": bare.peak_bytes_per_s,
    }
    return max(work.flops / bare.peak_flop_per_s, work.bytes / bare.peak_bytes_per_s), inputs


# --- how sure ---------------------------------------------------------------------------------------------------------


def _rivals(
    phase: Phase, one: FitCell, draws: Sequence[EngineConfig], extremes: Sequence[EngineConfig], batch: float
) -> tuple[str, ...]:
    """Bounds that enough of the plausible engines name; each end of an unidentified range counts by itself."""
    drawn = Counter(bound_of(_explain(phase, one, engine, batch)[1]) for engine in draws)
    named = [name for name, times in drawn.most_common() if times >= PLAUSIBLE * len(draws)]
    named += [bound_of(_explain(phase, one, engine, batch)[1]) for engine in extremes]
    return tuple(dict.fromkeys(name for name in named if name))


def ends(fit: Fit, engine: EngineConfig) -> Iterator[EngineConfig]:
    """The engine at both ends of a bandwidth utilisation that one deployment cannot tell from overhead.

    Their sum is what was seen, so what the weights take less, overhead takes more, and never less than nothing. A
    second deployment of the same engine (other GPUs, other weights) tells them apart. With one, what a fit says of
    them rests on the model's knee between compute and memory, which real engines need not have: then both ends of
    what physics allows are kept, however sure the fit is.
    """
    mbu = next((p for p in fit.parameters if p.name == "mbu"), None)
    law = engine.law
    if mbu is None or math.isnan(law.peak_bytes_per_s) or (mbu.identified and len(fit.engine) > 1):
        return
    weights = law.dense_bytes + law.expert_bytes * law.expert_share
    floor, now = law.step_s + weights / law.weight_rate, law.weight_rate / law.peak_bytes_per_s
    low, high = (mbu.low, mbu.high) if not mbu.identified else (weights / (floor * law.peak_bytes_per_s), TOP_MBU)
    for value in (min(low, now), max(high, now)):
        rate = law.peak_bytes_per_s * value
        yield replace(engine, law=law._replace(weight_rate=rate, step_s=max(0.0, floor - weights / rate)))
