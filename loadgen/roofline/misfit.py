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
from loadgen.roofline.caps import behind, caps
from loadgen.roofline.causes import Cause, Phase
from loadgen.roofline.cells import Cell
from loadgen.roofline.fitted import Fit, FitCell
from loadgen.roofline.marks import lowest_loads, name, residual, several, spread_of, told, trend
from loadgen.roofline.parts import QUEUE
from loadgen.roofline.words import count, number, percent, quantity, seconds

Rule = Callable[[Fit, Sequence[Cause]], Iterator[Finding]]

# Measured time / roof time below which a phase is too fast. Real engines reach at most about 0.92 of the bandwidth and
# 0.85 of the FLOP/s (the best matrix products on an H100 reach 0.80 in bf16).
TOO_FAST: dict[Phase, float] = {"decode": 1.03, "prefill": 1.10}
LONG = 512  # tokens of a prompt that is computed long enough to judge
SEVERAL = 1.05  # tokens per event
INTERFERES = 0.25  # of ITL, that prefills of others must add
EXPLAINED = 0.05  # of ITL, that a trend of residuals must explain
SURE = 4.5  # standard errors of a trend
CERTAIN = 0.02  # of the prompt tokens, reported as cached
SHORT = 0.05  # of the answers
FAILED = 0.01  # of the requests
FAR = 0.4  # of |log(measured / fit)|, and FAR_SPREADS times the fit's spread: a cell that follows another law
FAR_SPREADS = 6.0
BUFFERED = 0.2  # of the events, received together with another
NETWORK = 0.2  # of TTFT at the lowest load
DRIFT = 0.03  # of the time, over the run
UNSTEADY = 2.0  # p99 of ITL / p50, of one user alone


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
        both = f" Prefill is too fast as well: {_against_roof(prefill)}." if prefill is not None else ""
        yield Finding(
            "invalid",
            "faster_than_physics",
            f"{name(decode.of.cell)}: {_against_roof(decode)}.{both}",
            decode.distance,
            "check --gpu, --gpus, --shape and --dtype: another GPU, fewer bits or a smaller model serves here",
        )
    elif prefill is not None and decode is None:
        yield Finding(
            "questionable",
            "prefix_cache",
            f"{name(prefill.of.cell)}: {_against_roof(prefill)}, while decode is not too fast: most likely prompts, or "
            "the beginnings that they share, were in the prefix cache",
            prefill.distance,
            "send unique prompts; else check --dtype (8-bit products compute twice as fast) and --gpu",
        )


def _fastest(causes: Sequence[Cause], phase: Phase) -> Cause | None:
    long = [
        cause
        for cause in causes
        if cause.phase == phase and cause.distance < TOO_FAST[phase] and not cause.of.outlier
        and (phase == "decode" or cause.of.cell.prompt_tokens >= LONG)
    ]  # fmt: skip
    return min(long, key=lambda cause: cause.distance, default=None)


def _against_roof(cause: Cause) -> str:
    what = "TTFT" if cause.phase == "prefill" else "ITL"
    return (
        f"{what} {seconds(cause.measured_s)} is {percent(cause.distance)} of the {seconds(cause.roof_s)} that "
        f"{quantity(cause.work.flops, 'FLOP')} and {quantity(cause.work.bytes, 'B')} take at the hardware's peak"
    )


def _speculates(cell: Cell) -> bool:
    return told(cell, "acceptance") > 0 or told(cell, "tokens_per_event") > SEVERAL


def prefix_cache(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """The server says that prompt tokens were cached, or single cells have a far too short TTFT beside a normal ITL."""
    said = [one for one in fit.cells if one.cell.protocol.cached_share > CERTAIN]
    if said:
        most = max(said, key=lambda one: one.cell.protocol.cached_share)
        share = most.cell.protocol.cached_share
        yield Finding(
            "info",
            "prefix_cache",
            f"the server took prompt tokens from its prefix cache in {several(said)}: up to {percent(share)} "
            f"({name(most.cell)}); the fit computes only the others",
            share,
            "send unique prompts to learn what a new prompt costs",
        )
    own = {id(cause.of): _passes(cause) for cause in causes if cause.phase == "prefill"}
    early = [
        one
        for one in fit.cells
        if one not in said and _skipped(one) and one.cell.ttft_s < own.get(id(one), math.inf)  # not a shorter wait
    ]
    if early:
        worst = min(early, key=lambda one: one.cell.ttft_s / one.ttft_fit_s)
        ratio = worst.cell.ttft_s / worst.ttft_fit_s
        yield Finding(
            "questionable",
            "prefix_cache",
            f"TTFT is far below what prompts of this length cost elsewhere, ITL is not, in {several(early)}: "
            f"{percent(ratio)} of the fit's {seconds(worst.ttft_fit_s)} ({name(worst.cell)}): prompts were cached",
            ratio,
            "send unique prompts",
        )


def _skipped(one: FitCell) -> bool:
    ttft, itl = residual(one, "ttft"), residual(one, "itl")
    return ttft < -FAR and one.cell.prompt_tokens >= LONG and not itl < -FAR / 2


def several_tokens(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """Several tokens to an event: drafted and accepted together, or grouped on their way."""
    many = [one for one in fit.cells if told(one.cell, "tokens_per_event") > SEVERAL]
    drafted = [one for one in fit.cells if told(one.cell, "acceptance") > 0]
    if not many and not drafted:
        return
    width = max((told(one.cell, "tokens_per_event") for one in many), default=math.nan)
    fast = next((c for c in causes if c.phase == "decode" and c.of in many and c.distance < TOO_FAST["decode"]), None)
    head = f"up to {number(width)} tokens to an event in {several(many)}" if many else ""
    if drafted:
        most = max(told(one.cell, "acceptance") for one in drafted)
        text = f"the server drafts tokens and accepts {percent(most)} of them" + (f"; {head}" if head else "")
    elif fast is not None:
        text = f"{head}, and {_against_roof(fast)}: tokens were drafted and accepted together"
    else:
        yield Finding(
            "info",
            "grouped_tokens",
            f"{head}: the server groups its stream, or drafts tokens (speculative decoding); ITL alone cannot tell",
            width,
            "send answers that are easy and hard to foresee (a word repeated, random words): drafting makes the easy "
            "ones faster, grouping does not",
        )
        return
    advice = (
        "a step yields several tokens, so the fitted decode rates are of tokens, not of steps: fit without drafting"
    )
    yield Finding("questionable", "speculative_decoding", text, width, advice)


# --- the scheduler ----------------------------------------------------------------------------------------------------


def interference(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """Decode steps that carry others' prompts: told where it is large, and where the fit does not reproduce it."""
    decodes = [cause for cause in causes if cause.phase == "decode" and not cause.of.outlier]
    share = {id(cause): _waiting_share(cause) for cause in decodes}
    slowed = [cause for cause in decodes if share[id(cause)] > INTERFERES]
    if slowed:
        worst = max(slowed, key=lambda cause: share[id(cause)])
        others = next(part.seconds for part in worst.parts if part.bound == QUEUE)
        text = f"prefills of others add {seconds(others)} to each token ({percent(share[id(worst)])} of ITL, "
        text += f"{name(worst.of.cell)})"
        p99, p50 = (told(worst.of.cell, f"itl_{q}_s") for q in ("p99", "p50"))
        if p99 > 2 * p50:
            text += f"; p99 of ITL is {seconds(p99)} at a p50 of {seconds(p50)}: a step that carries a chunk"
        advice = "smaller chunks shorten the stalls; prefill on GPUs of its own, or fewer users, removes them"
        yield Finding("info", "prefill_interference", text, share[id(worst)], advice)
    rows = [(share[id(cause)], residual(cause.of, "itl"), cause.of) for cause in decodes]
    x, y, of = zip(*rows, strict=True) if rows else ((), (), ())
    slope, error = trend(np.array(x), np.array(y), list(of), covariates=False)
    effect = slope * max(x, default=0.0)
    if abs(effect) > EXPLAINED and abs(slope) > SURE * error:
        more = "more" if effect > 0 else "less"
        yield Finding(
            "questionable",
            "prefill_interference",
            f"steps that carry prompts cost {percent(abs(effect))} {more} ITL than the fit says, where they are most "
            "frequent: the engine mixes prompts into decode steps otherwise than modelled",
            effect,
            "trust ITL under load only between the measured cells; measure short prompts at these loads",
        )


def _passes(cause: Cause) -> float:
    """What the phase's own work takes, nothing waits."""
    return sum(part.seconds for part in cause.parts if part.bound != QUEUE)


def _waiting_share(cause: Cause) -> float:
    total = sum(part.seconds for part in cause.parts)
    return sum(part.seconds for part in cause.parts if part.bound == QUEUE) / total if total > 0 else 0.0


# --- the measurement --------------------------------------------------------------------------------------------------


def failed(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """Cells whose requests failed, or that follow another law than all others."""
    wrong = [one for one in fit.cells if told(one.cell, "error_share") > FAILED]
    if wrong:
        worst = max(wrong, key=lambda one: told(one.cell, "error_share"))
        share = told(worst.cell, "error_share")
        text = f"requests failed in {several(wrong)}: up to {percent(share)} ({name(worst.cell)})"
        yield Finding(
            "questionable", "failed_cells", text, share, "what was answered is not what was asked: leave it out"
        )
    usual = {metric: spread_of(fit, metric) for metric in ("ttft", "itl")}
    capped = {id(cause.of) for cause in causes if cause.phase == "prefill" and behind(cause) is not None}
    for one in fit.cells:
        if id(one) in capped:  # `caps` names what holds them
            continue
        off = {m: residual(one, m) for m, (middle, spread) in usual.items()
               if abs(residual(one, m) - middle) > max(FAR, FAR_SPREADS * spread)}  # fmt: skip
        if (off or one.outlier) and one not in wrong and not _skipped(one):
            by = ", ".join(f"{m.upper()} {number(math.exp(r))} times the fit's" for m, r in off.items())
            yield Finding(
                "questionable",
                "failed_cells",
                f"{name(one.cell)}: {by or 'far from the law that the other cells agree on'}: the cell failed, was "
                "evicted, or was served otherwise",
                max((math.exp(abs(r)) for r in off.values()), default=None),
                "measure it again; it is named here and not averaged in",
            )


def evicted(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """The server says that it threw out sequences for lack of KV memory."""
    some = [one for one in fit.cells if told(one.cell, "preemptions") > 0]
    if some:
        total = sum(told(one.cell, "preemptions") for one in some)
        text = f"the server evicted sequences {count(total)} times in {several(some)}: its KV cache was full"
        advice = "fewer users, an fp8 KV cache or more memory for it; evicted work is done twice"
        yield Finding("questionable", "evicted", text, total, advice)


def client(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """The client could not keep up, by its own verdict."""
    some = [one for one in fit.cells if told(one.cell, "invalid") > 0]
    if some:
        yield Finding(
            "invalid",
            "client_saturated",
            f"the client was the bottleneck in {several(some)}: their times are its own, not the server's",
            float(len(some)),
            "more --workers, an idle machine, or lower loads; `loadgen selfcheck` says what this machine can measure",
        )


def network(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """The way there is a large part of TTFT, or something on it holds tokens back."""
    alone = lowest_loads(fit)
    far = [one for one in alone if told(one.cell, "network_s") > NETWORK * one.cell.ttft_s]
    if far:
        worst = max(far, key=lambda one: told(one.cell, "network_s") / one.cell.ttft_s)
        trip = told(worst.cell, "network_s")
        text = f"a round trip of {seconds(trip)} is {percent(trip / worst.cell.ttft_s)} of TTFT ({name(worst.cell)})"
        advice = "measure from beside the server, or read TTFT less the round trip as the server's"
        yield Finding("info", "network", text, trip, advice)
    held = [cause.of for cause in causes if cause.phase == "decode" and _buffered(cause)]
    if held:
        worst = max(held, key=lambda one: told(one.cell, "shared_receives", -1.0))
        share, p50 = told(worst.cell, "shared_receives"), told(worst.cell, "itl_p50_s")
        facts = [f"{percent(share)} of the events came together with another"] if share > 0 else []
        facts += (
            [f"p50 of ITL is {seconds(p50)} at a mean of {seconds(worst.cell.itl_s)}"] if math.isfinite(p50) else []
        )
        yield Finding(
            "questionable",
            "buffered_stream",
            f"{' and '.join(facts)} in {several(held)}: something between server and client holds tokens back",
            share,
            "switch the proxy's buffering off (nginx: proxy_buffering off) or measure past it; mean ITL stays true, "
            "its percentiles do not, and TTFT holds the wait for the first flush",
        )


def _buffered(cause: Cause) -> bool:
    """Events share receives, or the middle gap is shorter than any decode step could be while the mean is not."""
    cell = cause.of.cell
    if told(cell, "tokens_per_event") > SEVERAL:
        return False
    step = sum(part.seconds for part in cause.parts if part.bound != QUEUE)
    return told(cell, "shared_receives") > BUFFERED or told(cell, "itl_p50_s") < 0.5 * min(step, cell.itl_s)


def short(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """Answers ended before the length that was asked for."""
    some = [one for one in fit.cells if told(one.cell, "short_share") > SHORT]
    if some:
        worst = max(some, key=lambda one: told(one.cell, "short_share"))
        share = told(worst.cell, "short_share")
        text = f"answers were over 10 % shorter than asked in {several(some)}: up to {percent(share)} of them "
        text += f"({name(worst.cell)})"
        advice = (
            "force the length (ignore_eos, min_tokens): else slots fall free early and the load is not what it says"
        )
        yield Finding("questionable", "short_answers", text, share, advice)


def drift(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """The same work takes longer or shorter as the run goes on, or one user alone is served unsteadily."""
    for metric in ("itl", "ttft"):
        cells = [one for one in fit.cells if math.isfinite(told(one.cell, "start_s")) and not one.outlier]
        x = np.array([told(one.cell, "start_s") for one in cells])
        slope, error = trend(x, np.array([residual(one, metric) for one in cells]), cells, covariates=True)
        effect = slope * (float(np.ptp(x)) if len(x) else 0.0)
        if abs(effect) > DRIFT and abs(slope) > SURE * error:
            word = "slower" if effect > 0 else "faster"
            yield Finding(
                "questionable",
                "drift",
                f"{metric.upper()} became {percent(abs(math.expm1(effect)))} {word} over {seconds(float(np.ptp(x)))} "
                "of the run, at the same work: clocks that fall with heat or power, or something else on the GPU",
                effect,
                "let the GPU warm up first, fix its clocks, and look for other work on it; measure again",
            )
            return
    for one in lowest_loads(fit):
        p50, p99 = told(one.cell, "itl_p50_s"), told(one.cell, "itl_p99_s")
        single = p50 > 0.5 * one.cell.itl_s and told(one.cell, "tokens_per_event", 1.0) <= SEVERAL
        if one.cell.load == 1 and single and p99 > UNSTEADY * p50:
            text = f"with one user alone p99 of ITL is {seconds(p99)} at a p50 of {seconds(p50)} ({name(one.cell)}): "
            text += "something else runs on this GPU or its host"
            yield Finding("questionable", "drift", text, p99 / p50, "measure on a machine of its own")
            return


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
