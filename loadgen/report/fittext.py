"""A fit in a terminal: sentences and aligned tables.

Knows: the order in which an engineer reads a fit, and how a number is written. Must not know: how any figure came about
(`roofline.account` has them), flags.
Why this order: first how far the model can be trusted, then what it says, the cells themselves at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from loadgen.report.fitjson import plain
from loadgen.report.fitprediction import predictions
from loadgen.roofline.account import Account, parameters
from loadgen.roofline.fit_parameters import NO_CAP
from loadgen.roofline.fitted import Errors, Fit, FitCell, Parameter
from loadgen.roofline.named import describe
from loadgen.roofline.overlay import Prediction, prediction_json
from loadgen.roofline.remedies import Remedy, operating_points
from loadgen.roofline.tell import off, sentence
from loadgen.roofline.words import count, loads, number, percent, quantity, seconds, signed

COUNTED = ("tokens per step", "sequences", "context tokens")  # units whose numbers are whole, and exact
MOST_HELP = 12  # rows of "what would help"
NOTHING = 0.01  # of the upper end of an interval: a lower end below it says only how large the value can be
_WORDS = {"ttft": "TTFT", "itl": "ITL", "output_tokens_per_s": "whole server, output tokens/s"}


@dataclass(frozen=True, slots=True)
class Section:
    """A title, sentences, and a table; any of the latter two may be empty."""

    title: str
    lines: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def title(one: Account) -> str:
    """What was fitted."""
    return one.label or describe(one.fit.deployment) or "an endpoint whose GPU and model are not named"


def sections(one: Account) -> tuple[Section, ...]:
    """The whole account, empty parts left out."""
    fit = one.fit
    found = (
        _error(fit),
        _parameters(fit),
        Section("Findings", tuple(_finding(f.severity, f.message, f.advice) for f in one.findings)),
        _limits(one),
        _help(one),
        _alternatives(fit),
        *_predictions(one.predictions),
        _cells(fit),
        Section("How the files were read", one.notes),
    )
    return tuple(section for section in found if section.lines or section.rows)


PLAIN = ("interpolation", "regression")  # the guesses that need no model


# -- the parts -------------------------------------------------------------------------------------------------------


def _error(fit: Fit) -> Section:
    """How far the model is off on cells that it never saw, beside what needs no model."""
    rows = [
        (name, *(_off(errors, metric) for metric in ("ttft", "itl")), str(errors.n))
        for name, errors in (
            ("held out, this fit", fit.held_out),
            ("held out, the engine alone", fit.baselines.get("engine_alone")),
            *((f"held out, {name}", fit.baselines.get(name)) for name in PLAIN),
            ("seen by the fit", fit.in_sample),
        )
        if errors is not None
    ]
    lines = [f"Refused: {fit.refused}"] if fit.refused else []
    head = ("median error (90th percentile)", "TTFT", "ITL", "cells")
    return Section("How far off", (*lines, *_verdict(fit)), head, tuple(rows))


def _verdict(fit: Fit) -> Iterator[str]:
    held = fit.held_out
    if held is None:
        yield "No cell was held out, so nothing here says how well the model predicts."
        return
    for metric in ("ttft", "itl"):
        mine = getattr(held, metric)
        others = {name: getattr(fit.baselines[name], metric) for name in PLAIN if name in fit.baselines}
        better = {name: value for name, value in others.items() if value < mine}
        if better and math.isfinite(mine):
            name = min(better, key=lambda one: better[one])
            yield (
                f"The model loses to plain {name} on {_WORDS[metric]}: {percent(mine)} against {percent(better[name])}."
            )


def _off(errors: Errors, metric: str) -> str:
    middle, tail = getattr(errors, metric), getattr(errors, f"{metric}_p90")
    return "n/a" if not math.isfinite(middle) else f"{percent(middle)} ({percent(tail)})"


def _parameters(fit: Fit) -> Section:
    rows = [
        (
            one.name,
            _amount(one, one.value) if one.identified else "not identified",
            _range(one),
            _of(one.unit),
            one.settle if not one.identified else "",
        )
        for one in parameters(fit)
    ]
    lines = [
        f"{f'{label}: ' if label and len(fit.engine) > 1 else ''}token budget {engine.token_budget:,} per step, "
        f"{'chunked prefill' if engine.chunked else 'whole prompts in steps of their own'}, "
        + ("no cap on sequences" if engine.max_sequences >= NO_CAP else f"at most {engine.max_sequences:,} sequences")
        + (f", KV cache of {engine.kv_tokens:,} tokens" if engine.kv_tokens is not None else "")
        for label, engine in fit.engine.items()
    ]
    lines += [f"to use them: loadgen predict --constants {text}" for text in _constants(fit)]
    return Section("Parameters", tuple(lines), ("parameter", "value", "90 %", "", "what would settle it"), tuple(rows))


def _constants(fit: Fit) -> Iterator[str]:
    """Black-box constants as `predict` takes them."""
    for engine in fit.engine.values():
        law = engine.law
        if law.prefill_token_s > 0 and law.decode_step_s > 0:
            named = (("prefill", law.prefill_token_s), ("step", law.decode_step_s), ("user", law.sequence_s))
            yield ",".join(f"{name}={float(f'{value * 1e3:.4g}'):g}ms" for name, value in named)


def _amount(one: Parameter, value: float) -> str:
    """The value with its unit; `_of` says of what it is."""
    if one.unit == "s" or one.unit.startswith("s "):
        return seconds(value)
    if one.unit in COUNTED and math.isfinite(value):
        return f"{value:,.0f}"
    if one.unit.startswith("share "):
        return quantity(value * 100, "%")
    return f"{quantity(value, 'B')}/s" if one.unit == "bytes/s" else number(value)


def _of(unit: str) -> str:
    """What stands behind a value that has its unit already: per step, of peak bandwidth."""
    return "" if unit in ("s", "bytes/s") else unit.removeprefix("s ").removeprefix("share ")


def _range(one: Parameter) -> str:
    """The ends of the interval; one that is nothing beside the other, or has no end, is not a number to read."""
    low, high = _amount(one, one.low), _amount(one, one.high)
    if math.isinf(one.high):
        return f"{low} or more"
    return f"at most {high}" if one.low < NOTHING * one.high else f"{low} to {high}"


def _finding(severity: str, message: str, advice: str) -> str:
    return f"{severity}: {message}" + (f" - {advice}" if advice else "")


def _limits(one: Account) -> Section:
    """The sentences of the cells that stand for the rest: the highest loads, and the longest prompt alone."""
    chosen = {id(cell) for cell in operating_points(one.fit)}
    lines = [sentence(cause) for cause in one.causes if id(cause.of) in chosen]
    if len(lines) < len(one.causes):
        lines.insert(0, f"The highest loads and the longest prompt alone; all {len(one.causes)} cells are on the page.")
    return Section("What limits it", tuple(lines))


def _help(one: Account) -> Section:
    shown = _largest(one.remedies)
    rows = [
        (
            remedy.text,
            f"{count(remedy.of.cell.prompt_tokens)} → {count(remedy.of.cell.output_tokens)}, "
            f"{loads(remedy.of.cell.load_kind, remedy.of.cell.load)}",
            _WORDS.get(remedy.metric, remedy.metric.replace("_", " ")),
            _value(remedy.metric, remedy.before),
            _value(remedy.metric, remedy.after),
            f"{percent(remedy.gain)} ({signed(remedy.low)} to {signed(remedy.high)})",
            remedy.costs,
        )
        for remedy in shown
    ]
    head = ("change", "at", "of", "measured", "predicted", "gain (90 %)", "costs")
    more = len(one.remedies) - len(shown)
    lines = (f"The largest gains of each metric; {more} more are on the page and in the JSON.",) if more else ()
    return Section("What would help", lines, head, tuple(rows))


def _largest(remedies: Sequence[Remedy]) -> list[Remedy]:
    """The largest gains of each metric in turn, as many as a terminal has room for; a phase that gains less than
    another is not left out. They come by their gain already."""
    queues: dict[str, list[Remedy]] = {}
    for one in remedies:
        queues.setdefault(one.metric, []).append(one)
    turns = zip_longest(*queues.values())
    chosen = [one for turn in turns for one in turn if one is not None][:MOST_HELP]
    return [one for one in remedies if any(one is other for other in chosen)]


def _value(metric: str, value: float) -> str:
    return quantity(value, "tokens/s") if metric == "output_tokens_per_s" else seconds(value)


def _alternatives(fit: Fit) -> Section:
    lines = [f"{other.explanation} ({off(other)}). To decide: {other.decide}" for other in fit.alternatives]
    head = [f"Mean error of TTFT / ITL in brackets; this fit: {off(one, '_here')}." for one in fit.alternatives[:1]]
    return Section("Explanations that fit as well", (*head, *lines))


def _predictions(several: Sequence[Prediction]) -> Iterator[Section]:
    for one in predictions([plain(prediction_json(prediction)) for prediction in several]):
        yield Section(one["title"], tuple(one["lines"]), tuple(one["head"]), tuple(tuple(row) for row in one["rows"]))


def _cells(fit: Fit) -> Section:
    several = len(fit.engine) > 1
    rows = [(*((one.cell.label,) if several else ()), *_cell(one)) for one in fit.cells]
    head = ("tokens", "load", "TTFT", "fit", "off", "ITL", "fit", "off", "")
    return Section("Cells", (), (*(("deployment",) if several else ()), *head), tuple(rows))


def _cell(one: FitCell) -> tuple[str, ...]:
    cell = one.cell
    words = " ".join(word for word, said in (("held out", one.held_out), ("outlier", one.outlier)) if said)
    return (
        f"{count(cell.prompt_tokens)} → {count(cell.output_tokens)}",
        loads(cell.load_kind, cell.load),
        *_beside(cell.ttft_s, one.ttft_fit_s),
        *_beside(cell.itl_s, one.itl_fit_s),
        words,
    )


def _beside(measured: float, fitted: float) -> tuple[str, str, str]:
    off = signed(fitted / measured - 1.0) if measured > 0 and fitted > 0 else "n/a"
    return seconds(measured), seconds(fitted), off


# -- forms -----------------------------------------------------------------------------------------------------------


def to_text(accounts: Sequence[Account]) -> str:
    """For a terminal."""
    lines: list[str] = []
    for one in accounts:
        lines += [title(one), "=" * min(len(title(one)), 100), ""]
        for section in sections(one):
            lines += [section.title, *(f"  {line}" for line in section.lines), *_aligned(section), ""]
    return "\n".join([*lines, *(["Overview", *_aligned(overview(accounts))] if len(accounts) > 1 else [])]).rstrip()


def overview(accounts: Sequence[Account]) -> Section:
    """One line for each fit: what was fitted, and its held-out error beside interpolation's."""
    rows = []
    for one in accounts:
        held, plain = one.fit.held_out, one.fit.baselines.get("interpolation")
        errors = [
            "n/a" if errors is None else percent(getattr(errors, metric))
            for metric in ("ttft", "itl")
            for errors in (held, plain)
        ]
        named = sum(1 for cell in one.fit.cells if cell.outlier)
        rows.append((title(one), *errors, str(len(one.fit.cells)), str(named) if named else ""))
    head = ("fit", "TTFT, held out", "interpolation", "ITL, held out", "interpolation", "cells", "outliers")
    return Section("Overview", (), head, tuple(rows))


def _aligned(section: Section) -> Iterator[str]:
    if not section.rows:
        return
    table = [section.head, *section.rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(section.head))]
    for row in table:
        texts = (
            f"{cell:<{width}}" if not i else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield f"  {'  '.join(texts)}".rstrip()
