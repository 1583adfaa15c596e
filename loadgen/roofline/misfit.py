"""What falsifies a fit: causes outside the model, each found by the mark that it leaves in the cells.

Knows: the mark of each cause - in residuals, in what the hardware allows, in the cells' further evidence - and how it
is told. Must not know: how parameters were estimated, or files.
Why: a fit absorbs what it does not model into a utilisation, and looks well. Each rule here looks for one such cause,
speaks only with its evidence, and where two causes leave the same mark names both.

A rule is a function of (fit, causes); RULES is all of them. Codes are stable words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from loadgen.model import Finding
from loadgen.roofline.caps import caps
from loadgen.roofline.causes import Cause, Phase
from loadgen.roofline.cells import Cell
from loadgen.roofline.figures import Figure, ratio, read
from loadgen.roofline.fitted import Fit, FitCell
from loadgen.roofline.marks import LONG, SEVERAL, SURE, evidence, first, misfit, residual, skipped, trend
from loadgen.roofline.misfit_run import client, drift, evicted, failed, network, short
from loadgen.roofline.parts import QUEUE

Rule = Callable[[Fit, Sequence[Cause]], Iterator[Finding]]

# Measured time / roof time below which a phase is too fast. Real engines reach at most about 0.92 of the bandwidth and
# 0.85 of the FLOP/s (the best matrix products on an H100 reach 0.80 in bf16).
TOO_FAST: dict[Phase, float] = {"decode": 1.03, "prefill": 1.10}
INTERFERES = 0.25  # of ITL, that prefills of others must add
EXPLAINED = 0.05  # of ITL, that a trend of residuals must explain
CERTAIN = 0.02  # of the prompt tokens, reported as cached


def find_misfits(fit: Fit, causes: Sequence[Cause]) -> tuple[Finding, ...]:
    """All findings, the gravest first; what the estimation itself found comes before them."""
    found = [*fit.findings, *(finding for rule in RULES for finding in rule(fit, causes))]
    order = {"invalid": 0, "questionable": 1, "info": 2}
    return tuple(sorted(found, key=lambda finding: order[finding.severity]))


# --- too fast ---------------------------------------------------------------------------------------------------------


def too_fast(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """Faster than the named hardware could do what was asked: a fact is wrong, or the work was not done."""
    fast = {phase: _fastest(causes, phase) for phase in TOO_FAST}
    decode, prefill = fast["decode"], fast["prefill"]
    if decode is not None and not _speculates(decode.of.cell):
        text, of, figures = f"{{cell}}: {_AGAINST_ROOF}.", [decode.of], _against_roof(decode)
        if prefill is not None:
            text += f" Prefill is too fast as well: {_AGAINST_ROOF.replace('{', '{prefill_')}."
            of.append(prefill.of)
            figures |= {f"prefill_{key}": one for key, one in _against_roof(prefill).items()}
        advice = "check --gpu, --gpus, --shape and --dtype: another GPU, fewer bits or a smaller model serves here"
        yield misfit("invalid", "faster_than_physics", text, decode.distance, advice, of, **figures)
    elif prefill is not None and decode is None:
        yield misfit(
            "questionable",
            "prefix_cache",
            f"{{cell}}: {_AGAINST_ROOF}, while decode is not too fast: most likely prompts, or the beginnings that "
            "they share, were in the prefix cache",
            prefill.distance,
            "send unique prompts; else check --dtype (8-bit products compute twice as fast) and --gpu",
            [prefill.of],
            **_against_roof(prefill),
        )


def _fastest(causes: Sequence[Cause], phase: Phase) -> Cause | None:
    long = [
        cause
        for cause in causes
        if cause.phase == phase and cause.distance < TOO_FAST[phase] and not cause.of.outlier
        and (phase == "decode" or cause.of.cell.prompt_tokens >= LONG)
    ]  # fmt: skip
    return min(long, key=lambda cause: cause.distance, default=None)


_AGAINST_ROOF = "{metric} {measured} is {distance} of the {roof} that {flops} and {bytes} take at the hardware's peak"


def _against_roof(cause: Cause) -> dict[str, Figure | str]:
    roof = Figure(cause.roof_s, "s", "max(flops / peak_flop_per_s, bytes / peak_bytes_per_s)", dict(cause.roof_inputs))
    return {
        "metric": "TTFT" if cause.phase == "prefill" else "ITL",
        "measured": read(cause.measured_s, "s", "measured_s"),
        "distance": ratio(("measured_s", cause.measured_s), ("roof_s", cause.roof_s)),
        "roof": roof,
        "flops": read(cause.work.flops, "FLOP", "flops"),
        "bytes": read(cause.work.bytes, "B", "bytes"),
    }


def _speculates(cell: Cell) -> bool:
    return evidence(cell, "acceptance") > 0 or evidence(cell, "tokens_per_event") > SEVERAL


def prefix_cache(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """The server says that prompt tokens were cached, or single cells have a far too short TTFT beside a normal ITL."""
    said = [one for one in fit.cells if one.cell.protocol.cached_share > CERTAIN]
    if said:
        most = max(said, key=lambda one: one.cell.protocol.cached_share)
        share = most.cell.protocol.cached_share
        yield misfit(
            "info",
            "prefix_cache",
            "the server took prompt tokens from its prefix cache in {cells}: up to {share} ({cell}); the fit computes "
            "only the others",
            share,
            "send unique prompts to learn what a new prompt costs",
            first(most, said),
            share=read(share, "share", "cached_share"),
        )
    own = {id(cause.of): cause.passes_s for cause in causes if cause.phase == "prefill"}
    early = [
        one
        for one in fit.cells
        if one not in said and skipped(one) and one.cell.ttft_s < own.get(id(one), math.inf)  # not a shorter wait
    ]
    if early:
        worst = min(early, key=lambda one: one.cell.ttft_s / one.ttft_fit_s)
        short = ratio(("ttft_s", worst.cell.ttft_s), ("ttft_fit_s", worst.ttft_fit_s))
        yield misfit(
            "questionable",
            "prefix_cache",
            "TTFT is far below what prompts of this length cost elsewhere, ITL is not, in {cells}: {short} of the "
            "fit's {fitted} ({cell}): prompts were cached",
            short.value,
            "send unique prompts",
            first(worst, early),
            short=short,
            fitted=read(worst.ttft_fit_s, "s", "ttft_fit_s"),
        )


def several_tokens(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """Several tokens to an event: drafted and accepted together, or grouped on their way."""
    many = [one for one in fit.cells if evidence(one.cell, "tokens_per_event") > SEVERAL]
    drafted = [one for one in fit.cells if evidence(one.cell, "acceptance") > 0]
    if not many and not drafted:
        return
    width = max((evidence(one.cell, "tokens_per_event") for one in many), default=math.nan)
    fast = next((c for c in causes if c.phase == "decode" and c.of in many and c.distance < TOO_FAST["decode"]), None)
    head = "up to {width} tokens to an event in {many}" if many else ""
    figures: dict[str, Figure | str] = {"width": read(width, "number", "tokens_per_event"),
                                        "many": read(len(many), "cells", "cells")}  # fmt: skip
    of: list[FitCell] = [*many, *(one for one in drafted if one not in many)]
    if drafted:
        most = max(evidence(one.cell, "acceptance") for one in drafted)
        figures["most"] = read(most, "share", "acceptance")
        text = "the server drafts tokens and accepts {most} of them" + (f"; {head}" if head else "")
    elif fast is not None:
        text = f"{head}, and {_AGAINST_ROOF}: tokens were drafted and accepted together"
        figures |= _against_roof(fast)
    else:
        yield misfit(
            "info",
            "grouped_tokens",
            f"{head}: the server groups its stream, or drafts tokens (speculative decoding); ITL alone cannot tell",
            width,
            "send answers that are easy and hard to foresee (a word repeated, random words): drafting makes the easy "
            "ones faster, grouping does not",
            of,
            **figures,
        )
        return
    advice = (
        "a step yields several tokens, so the fitted decode rates are of tokens, not of steps: fit without drafting"
    )
    yield misfit("questionable", "speculative_decoding", text, width, advice, of, **figures)


# --- the scheduler ----------------------------------------------------------------------------------------------------


def interference(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """Decode steps that carry others' prompts: told where it is large, and where the fit does not reproduce it."""
    decodes = [cause for cause in causes if cause.phase == "decode" and not cause.of.outlier]
    share = {id(cause): _waiting_share(cause) for cause in decodes}
    slowed = [cause for cause in decodes if share[id(cause)] > INTERFERES]
    if slowed:
        worst = max(slowed, key=lambda cause: share[id(cause)])
        others = next(part.seconds for part in worst.parts if part.bound == QUEUE)
        total = sum(part.seconds for part in worst.parts)
        text = "prefills of others add {others} to each token ({share} of ITL, {cell})"
        p99, p50 = (evidence(worst.of.cell, f"itl_{q}_s") for q in ("p99", "p50"))
        if p99 > 2 * p50:
            text += "; p99 of ITL is {p99} at a p50 of {p50}: a step that carries a chunk"
        advice = "smaller chunks shorten the stalls; prefill on GPUs of its own, or fewer users, removes them"
        yield misfit(
            "info",
            "prefill_interference",
            text,
            share[id(worst)],
            advice,
            first(worst.of, [cause.of for cause in slowed]),
            others=read(others, "s", "prefills_of_others_s"),
            share=ratio(("prefills_of_others_s", others), ("parts_s", total)),
            p99=read(p99, "s", "itl_p99_s"),
            p50=read(p50, "s", "itl_p50_s"),
        )
    steps = [cause for cause in decodes if not _speculates(cause.of.cell)]  # else a step is not a token's time
    rows = [(share[id(cause)], residual(cause.of, "itl"), cause.of) for cause in steps]
    x, y, of = zip(*rows, strict=True) if rows else ((), (), ())
    slope, error = trend(np.array(x), np.array(y), list(of), covariates=False)
    effect = slope * max(x, default=0.0)
    if abs(effect) > EXPLAINED and abs(slope) > SURE * error:
        yield misfit(
            "questionable",
            "prefill_interference",
            "steps that carry prompts cost {effect} {more} ITL than the fit says, where they are most frequent: the "
            "engine mixes prompts into decode steps otherwise than modelled",
            effect,
            "trust ITL under load only between the measured cells; measure short prompts at these loads",
            [cause.of for cause in steps],
            effect=Figure(abs(effect), "share", "abs(slope) * most", {"slope": slope, "most": max(x)}),
            more="more" if effect > 0 else "less",
        )


def _waiting_share(cause: Cause) -> float:
    total = sum(part.seconds for part in cause.parts)
    return sum(part.seconds for part in cause.parts if part.bound == QUEUE) / total if total > 0 else 0.0


RULES: tuple[Rule, ...] = (
    too_fast,
    prefix_cache,
    several_tokens,
    interference,
    caps,
    failed,
    evicted,
    client,
    network,
    short,
    drift,
)
