"""What falsifies a fit: cells that went wrong, and a measurement that saw something else than the server.

Knows: the marks of failed and evicted cells, of a client, a network, a proxy or a neighbour in the way. Must not know:
what the engine itself does otherwise (`misfit`, which calls these).
Why: a cell that failed, or times that are not the server's, look like parameters to an estimator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from loadgen.model import Finding
from loadgen.roofline.caps import behind
from loadgen.roofline.causes import Cause
from loadgen.roofline.figures import ASSUMED, Figure, ratio, read
from loadgen.roofline.fitted import Fit, FitCell
from loadgen.roofline.marks import (
    FAR,
    SEVERAL,
    SURE,
    Floats,
    evidence,
    first,
    lowest_loads,
    misfit,
    residual,
    skipped,
    spread_of,
    trend,
)

SHORT, SHORTER = 0.05, 0.1  # of the answers that ended early; of their length, by which
FAILED = 0.01  # of the requests
FAR_SPREADS = 6.0
BUFFERED = 0.2  # of the events, received together with another
NETWORK = 0.2  # of TTFT at the lowest load
DRIFT = 0.03  # of the time, over the run
UNSTEADY = 2.0  # p99 of ITL / p50, of one user alone


def failed(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """Cells whose requests failed, or that follow another law than all others."""
    wrong = [one for one in fit.cells if evidence(one.cell, "error_share") > FAILED]
    if wrong:
        worst = max(wrong, key=lambda one: evidence(one.cell, "error_share"))
        share = evidence(worst.cell, "error_share")
        yield misfit(
            "questionable",
            "failed_cells",
            "requests failed in {cells}: up to {share} ({cell})",
            share,
            "what was answered is not what was asked: leave it out",
            first(worst, wrong),
            share=read(share, "share", "error_share"),
        )
    usual = {metric: spread_of(fit, metric) for metric in ("ttft", "itl")}
    capped = {id(cause.of) for cause in causes if cause.phase == "prefill" and behind(cause) is not None}
    for one in fit.cells:
        if id(one) in capped:  # `caps` names what holds them
            continue
        off = {m: residual(one, m) for m, (middle, spread) in usual.items()
               if abs(residual(one, m) - middle) > max(FAR, FAR_SPREADS * spread)}  # fmt: skip
        if (off or one.outlier) and one not in wrong and not skipped(one):
            by = ", ".join(f"{m.upper()} {{{m}}} times the fit's" for m in off)
            yield misfit(
                "questionable",
                "failed_cells",
                f"{{cell}}: {by or 'far from the law that the other cells agree on'}: the cell failed, was evicted, or "
                "was served otherwise",
                max((math.exp(abs(r)) for r in off.values()), default=None),
                "measure it again; it is named here and not averaged in",
                [one],
                **{m: _times(one, m) for m in off},
            )


def _times(one: FitCell, metric: str) -> Figure:
    measured, fitted = (f"{metric}_s", getattr(one.cell, f"{metric}_s")), getattr(one, f"{metric}_fit_s")
    return ratio(measured, (f"{metric}_fit_s", fitted), "number")


def evicted(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """The server says that it threw out sequences for lack of KV memory."""
    some = [one for one in fit.cells if evidence(one.cell, "preemptions") > 0]
    if some:
        total = sum(evidence(one.cell, "preemptions") for one in some)
        text = "the server evicted sequences {total} times in {cells}: its KV cache was full"
        advice = "fewer users, an fp8 KV cache or more memory for it; evicted work is done twice"
        yield misfit("questionable", "evicted", text, total, advice, some, total=read(total, "count", "preemptions"))


def client(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """The client could not keep up, by its own verdict."""
    some = [one for one in fit.cells if evidence(one.cell, "invalid") > 0]
    if some:
        yield misfit(
            "invalid",
            "client_saturated",
            "the client was the bottleneck in {cells}: their times are its own, not the server's",
            float(len(some)),
            "more --workers, an idle machine, or lower loads; `loadgen selfcheck` says what this machine can measure",
            some,
        )


def network(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """The way there is a large part of TTFT, or something on it holds tokens back."""
    alone = lowest_loads(fit)
    far = [one for one in alone if evidence(one.cell, "network_s") > NETWORK * one.cell.ttft_s]
    if far:
        worst = max(far, key=lambda one: evidence(one.cell, "network_s") / one.cell.ttft_s)
        trip = evidence(worst.cell, "network_s")
        yield misfit(
            "info",
            "network",
            "a round trip of {trip} is {share} of TTFT ({cell})",
            trip,
            "measure from beside the server, or read TTFT less the round trip as the server's",
            first(worst, far),
            trip=read(trip, "s", "network_s"),
            share=ratio(("network_s", trip), ("ttft_s", worst.cell.ttft_s)),
        )
    held = [cause.of for cause in causes if cause.phase == "decode" and _buffered(cause)]
    if held:
        worst = max(held, key=lambda one: evidence(one.cell, "shared_receives", -1.0))
        share, p50 = evidence(worst.cell, "shared_receives"), evidence(worst.cell, "itl_p50_s")
        facts = ["{share} of the events came together with another"] if share > 0 else []
        facts += ["p50 of ITL is {p50} at a mean of {itl}"] if math.isfinite(p50) else []
        yield misfit(
            "questionable",
            "buffered_stream",
            f"{' and '.join(facts)} in {{cells}}: something between server and client holds tokens back",
            share,
            "switch the proxy's buffering off (nginx: proxy_buffering off) or measure past it; mean ITL stays true, "
            "its percentiles do not, and TTFT holds the wait for the first flush",
            first(worst, held),
            share=read(share, "share", "shared_receives"),
            p50=read(p50, "s", "itl_p50_s"),
            itl=read(worst.cell.itl_s, "s", "itl_s"),
        )


def _buffered(cause: Cause) -> bool:
    """Events share receives, or the middle gap is shorter than any decode step could be while the mean is not."""
    cell = cause.of.cell
    if evidence(cell, "tokens_per_event") > SEVERAL:
        return False
    shared, p50 = evidence(cell, "shared_receives"), evidence(cell, "itl_p50_s")
    return shared > BUFFERED or p50 < 0.5 * min(cause.passes_s, cell.itl_s)


def short(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """Answers ended before the length that was asked for."""
    some = [one for one in fit.cells if evidence(one.cell, "short_share") > SHORT]
    if some:
        worst = max(some, key=lambda one: evidence(one.cell, "short_share"))
        share = evidence(worst.cell, "short_share")
        yield misfit(
            "questionable",
            "short_answers",
            "answers were over {least} shorter than asked in {cells}: up to {share} of them ({cell})",
            share,
            "force the length (ignore_eos, min_tokens): else slots fall free early and the load is not what it says",
            first(worst, some),
            share=read(share, "share", "short_share"),
            least=Figure(SHORTER, "share", ASSUMED),
        )


def drift(fit: Fit, causes: Sequence[Cause]) -> Iterator[Finding]:
    """The same work takes longer or shorter as the run goes on, or one user alone is served unsteadily."""
    cells = [one for one in fit.cells if math.isfinite(evidence(one.cell, "start_s")) and not one.outlier]
    x = np.array([evidence(one.cell, "start_s") for one in cells])
    # Constants in place of a refused physics leave so much over that some of it follows the time by chance.
    metrics, slope = _drifting(x, cells) if not fit.refused else ((), 0.0)
    span = float(np.ptp(x)) if len(x) else 0.0
    if metrics and abs(slope * span) > DRIFT:
        yield misfit(
            "questionable",
            "drift",
            "{metrics} became {change} {word} over {span} of the run, at the same work: clocks that fall with heat or "
            "power, or something else on the GPU",
            slope * span,
            "let the GPU warm up first, fix its clocks, and look for other work on it; measure again",
            cells,
            metrics=" and ".join(name.upper() for name in metrics),
            change=Figure(abs(math.expm1(slope * span)), "share", "abs(exp(slope * span) - 1)",
                          {"slope": slope, "span": span}),
            word="slower" if slope > 0 else "faster",
            span=Figure(span, "s", "last - first", {"last": float(np.max(x)), "first": float(np.min(x))}),
        )  # fmt: skip
        return
    for one in lowest_loads(fit):
        p50, p99 = evidence(one.cell, "itl_p50_s"), evidence(one.cell, "itl_p99_s")
        single = p50 > 0.5 * one.cell.itl_s and evidence(one.cell, "tokens_per_event", 1.0) <= SEVERAL
        if one.cell.load == 1 and single and p99 > UNSTEADY * p50:
            yield misfit(
                "questionable",
                "drift",
                "with one user alone p99 of ITL is {p99} at a p50 of {p50} ({cell}): something else runs on this GPU "
                "or its host",
                p99 / p50,
                "measure on a machine of its own",
                [one],
                p99=read(p99, "s", "itl_p99_s"),
                p50=read(p50, "s", "itl_p50_s"),
            )
            return


def _drifting(x: Floats, cells: Sequence[FitCell]) -> tuple[tuple[str, ...], float]:
    """(metrics that change with x, their mean slope): together where their trends are sure together, else one of them.

    z = slope / its standard error;  together: (z of TTFT + z of ITL) / sqrt(2)
    """
    found = {}
    for metric in ("ttft", "itl"):
        slope, error = trend(x, np.array([residual(one, metric) for one in cells]), cells, covariates=True)
        if math.isfinite(error):
            found[metric] = slope, slope / error
    if found and abs(sum(z for _, z in found.values())) > SURE * math.sqrt(len(found)):
        return tuple(found), sum(slope for slope, _ in found.values()) / len(found)
    return next((((name,), slope) for name, (slope, z) in found.items() if abs(z) > SURE), ((), 0.0))
