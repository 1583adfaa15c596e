"""Causes in words: one sentence for each phase of each cell, with the numbers that it follows from; alternatives, too.

Knows: the parts of a cause and how an engineer names them. Must not know: how they were computed (`causes`).
Why: the table is checked, the sentence is read; both come from the same parts, so neither can say what the other lacks.
"""

from __future__ import annotations

import math

from loadgen.roofline.causes import Cause
from loadgen.roofline.figures import written
from loadgen.roofline.fitted import Alternative
from loadgen.roofline.parts import CLIENT, QUEUE, Part
from loadgen.roofline.words import count, loads, number, percent, quantity, seconds

WORTH = 0.05  # of the phase's time: smaller parts are left to the table
BEATS = 0.95  # of the roof's time; a measurement below it is faster than the named facts allow


def sentence(cause: Cause) -> str:
    """What the phase's time is spent on, and how far it is from the roof."""
    return ". ".join(text for text in (_spent(cause), _bound(cause), _distance(cause)) if text) + "."


def _spent(cause: Cause) -> str:
    cell, step = cause.of.cell, cause.passes_s
    parts = [part for part in cause.parts if part.bound != QUEUE]
    spent = [text for part in _sorted(parts) if part.seconds > WORTH * step and (text := _part(cause, part))]
    lengths = f"{count(cell.prompt_tokens)} → {count(cell.output_tokens)} tokens at {loads(cell.load_kind, cell.load)}"
    if cause.phase == "decode":
        head = f"Decode, {lengths} ({count(cause.batch)} in the batch): a step takes {seconds(step)}"
    else:
        passes = f" in {count(cause.work.passes)} passes" if cause.work.passes > 1 else ""
        head = f"Prefill, {lengths}: {count(cause.work.tokens)} prompt tokens take {seconds(step)}{passes}"
    text = f"{head}: {'; '.join(spent)}" if spent else head
    waits = next((part for part in cause.parts if part.bound == QUEUE), None)
    if waits is not None and waits.seconds > WORTH * step:
        more = "prefills of others add" if cause.phase == "decode" else "waiting adds"
        unit = " a token" if cause.phase == "decode" else ""
        text += f"; {more} {seconds(waits.seconds)}{unit}"
    return text


def _sorted(parts: list[Part]) -> list[Part]:
    return sorted(parts, key=lambda part: -part.seconds)


def _part(cause: Cause, part: Part) -> str:
    """One part: what it moves or computes, and how long that takes."""
    time, inputs = seconds(part.seconds), part.inputs
    if not part.bound:
        constants = {"KV cache": "for context", "attention": "for pairs of prompt tokens"}
        return f"{time} {constants.get(part.name, 'of constant cost')}"
    if part.name == "weights":
        told = f"{time} to read {quantity(inputs['bytes'], 'B')} of weights at {_rate(inputs['bytes_per_s'], 'B')}"
        return told + _overlapped(part.seconds, inputs["bytes"] / inputs["bytes_per_s"])
    if part.name == "KV cache":
        context = count(inputs["context_tokens"])
        return f"{time} to read {quantity(cause.work.kv_bytes, 'B')} of KV cache ({context} tokens each)"
    if part.name == "matrix products":
        flops = quantity(inputs["flops"], "FLOP")
        told = f"{time} for {flops} of matrix products at {_rate(inputs['flop_per_s'], 'FLOP')}"
        return told + _overlapped(part.seconds, inputs["flops"] / inputs["flop_per_s"])
    if part.name == "attention":
        return f"{time} for {quantity(inputs['attention_flops'], 'FLOP')} of attention"
    names = {
        "all-reduce": "for all-reduces between GPUs",
        "overhead": "of overhead (launches, scheduler, sampler)",
        "request": "before the prompt reaches the scheduler",
        "drafting": "to draft tokens",
    }
    return f"{time} {names.get(part.name, part.name)}"


def _overlapped(took_s: float, alone_s: float) -> str:
    """Reading and multiplying go on side by side, and the time that they share is shared out to the two: what is left
    of one is then less than its amount over its rate."""
    return " (what it adds beside the other)" if took_s < 0.97 * alone_s else ""


def _rate(value: float, unit: str) -> str:
    return f"{quantity(value, unit)}/s"


def _bound(cause: Cause) -> str:
    if cause.bound == CLIENT:
        return "The client was the bottleneck here, so the figures are its own"
    if cause.bound is None:
        return "What the constants stand for is not told: name GPU and model to learn it"
    share = cause.bound_share
    name = {QUEUE: "Waiting", "memory": "Memory traffic"}.get(cause.bound, cause.bound.capitalize())
    text = f"{name} takes {percent(share)} of it"
    if cause.bound == QUEUE and cause.work_bound:
        text += f"; the pass itself is bound by {cause.work_bound}"
    if cause.rivals:
        text += f", but fits that are as plausible name {' or '.join(cause.rivals)}"
    return text


def _distance(cause: Cause) -> str:
    distance = cause.distance
    if math.isnan(distance):
        return ""
    roof = f"The hardware's roof is {seconds(cause.roof_s)}"
    if distance < BEATS:
        return f"{roof}: measured {seconds(cause.measured_s)} is faster than the named facts allow"
    return f"{roof}: measured {seconds(cause.measured_s)} is {number(distance)} times that"


def off(other: Alternative, whose: str = "") -> str:
    """Mean errors of TTFT / ITL of another explanation (`_here`: of the fit that it stands beside): `9.8 % / 3.1 %`."""
    names = [f"{metric}_error{whose}" for metric in ("ttft", "itl")]
    return " / ".join(written(other.figures[name]) if name in other.figures else "n/a" for name in names)
