"""From a stage's description to its requests, in order: what to send, and when.

Knows: how lengths, texts and due times come together, and how workers share a plan. Must not know: sockets, clocks,
files, what has been answered.

Theory of operation. A stage is a sequence of units (a request, or the turns of a conversation). Everything cheap is
drawn for all units in blocks of 1,024 from generators seeded by (seed, stage, block); texts, which cost time, are made
only for the units of the caller's part, each from a generator seeded by (seed, stage, unit). So a unit depends on
(seed, stage, its number) only, and one process or seven make the same plan.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import UsageError
from loadgen.model import Load, PlannedRequest
from loadgen.plan.arrivals import parse_arrivals
from loadgen.plan.lengths import fixed, tie
from loadgen.plan.prompts import tag, tag_text
from loadgen.plan.tokens import Sizer
from loadgen.plan.workload import Trace, TraceRow, Workload
from loadgen.plan.writer import ARRIVALS, LENGTHS, Drawn, Writer, generator, key_of

_BLOCK = 1024
_MAX_SWEEP = 1000
_WARM_UP_TOKENS = 64  # of an answer


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage: a mix of workloads at one load, for a number of requests or a time."""

    stage: int
    name: str
    mix: tuple[tuple[Workload, float], ...]  # (workload, weight)
    load: Load
    requests: int | None = None
    duration_ns: int | None = None
    trace: Trace | None = None  # with load "trace": lengths and due times come from it; the mix names one workload
    held_out: bool = False  # measured to test a fit, which must not see it

    @property
    def workload(self) -> str:
        """Its workloads' names, joined by +."""
        return "+".join(workload.name for workload, _ in self.mix)


def plan_stage(
    spec: StageSpec,
    *,
    seed: int,
    nonce: str,
    first_id: int,
    sizer: Mapping[str, Sizer] | None = None,
    part: tuple[int, int] = (0, 1),
) -> Iterator[PlannedRequest]:
    """The stage's requests in order of their due times; lazily, so that a million need not be held.

    `sizer` says for each workload (by name) how its texts are measured; without one the kind's estimate is used.
    `part` = (index, count) yields only the units index, index + count, ... With `spec.requests` there are exactly so
    many requests (a conversation may be cut); by duration the plan has no end (a trace has). `request_id` is
    `first_id` plus the request's place in the stage.

    Raises:
        UsageError: an arrival process that does not exist, an empty mix.
    """
    writer = Writer(spec.mix, spec.stage, seed, nonce, sizer or {})
    index, count = part
    place = 0
    for number, (drawn, due) in enumerate(outline(spec, seed)):
        text = writer.text(drawn.workload, number)
        turns = drawn.turns if text is None else min(drawn.turns, len(text.turns))
        turns = turns if spec.requests is None else min(turns, spec.requests - place)
        if turns <= 0:
            return
        repeated = writer.sent_before(number, drawn)
        if number % count == index:
            yield from writer.unit(number, drawn._replace(turns=turns), first_id + place, due, repeated)
        place += turns


def plan_warm_up(
    spec: StageSpec,
    workload: Workload,
    count: int,
    *,
    seed: int,
    nonce: str,
    first_id: int,
    sizer: Mapping[str, Sizer] | None = None,
) -> Iterator[PlannedRequest]:
    """`count` requests of one workload to warm up and calibrate with: without a `sizer` every second one has half the
    prompt, so that the template's overhead can be told from the density of the text. Never due, marked `warmup`, and
    with short answers: prompts are what is to be learned."""
    answer = fixed(max(1, min(_WARM_UP_TOKENS, round(workload.output_tokens.mean()))))
    single = replace(workload, turns=None, output_tokens=answer)
    half = replace(single, prompt_tokens=fixed(max(1, round(workload.prompt_tokens.mean() / 2))))
    like = None if spec.trace is None else next(spec.trace.rows(), None)
    plans = [
        plan_stage(
            replace(
                spec,
                mix=((kind, 1.0),),
                load=Load("concurrency", 1),
                requests=count,
                duration_ns=None,
                trace=None if like is None else _Rehearsal(like, count, round(kind.prompt_tokens.mean())),
            ),
            seed=seed,
            nonce=nonce,
            first_id=first_id,
            sizer=sizer,
        )
        for kind in (single, half if sizer is None else single)
    ]
    for place, pair in enumerate(zip(*plans, strict=True)):
        request = replace(pair[place % 2], warmup=True, stage=-1, offset_ns=None)
        if workload.texts is not None:  # a text of one's own must not be in the cache when its turn comes
            first, *rest = request.messages
            tagged = replace(first, content=f"{tag_text(tag(key_of(nonce), request.request_id))}\n{first.content}")
            request = replace(request, messages=(tagged, *rest))
        yield request


@dataclass(frozen=True, slots=True)
class _Rehearsal:
    """Rows of one length whose prompts are put together as those of a trace are, with blocks that are all new."""

    like: TraceRow
    count: int
    prompt_tokens: int

    def rows(self) -> Iterator[TraceRow]:
        size = -(-self.prompt_tokens // self.like.block_tokens) if self.like.blocks else 0
        for number in range(self.count):
            blocks = tuple(range(number * size, (number + 1) * size))
            yield self.like._replace(offset_ns=0, prompt_tokens=self.prompt_tokens, blocks=blocks)


def parse_sweep(text: str, *, integers: bool) -> list[float]:
    """`1,8,32`, `1..256*2` (doubling), `2..10+2` (adding), and mixtures, in order, each value once.

    Raises:
        UsageError: not a sweep, a value of 0 or less, a fraction where `integers`.
    """
    number = r"\d+(?:\.\d+)?"
    values: list[float] = []
    for item in text.replace(" ", "").split(","):
        span = re.fullmatch(rf"({number})\.\.({number})(?:([*+])({number}))?", item)
        if span:
            low, high, step = float(span[1]), float(span[2]), float(span[4] or 1)
            values += _range(low, high, span[3] or "+", step, text)
        elif re.fullmatch(number, item):
            values.append(float(item))
        else:
            raise UsageError(f"{text!r} is not a list of loads", do="write 8, or 1,8,32, or 1..256*2, or 2..10+2")
    if any(value <= 0 for value in values):
        raise UsageError(f"{text!r} holds a load of 0", do="give loads above 0")
    if integers and any(value != int(value) for value in values):
        raise UsageError(f"{text!r} holds a fraction", do="give whole numbers")
    return list(dict.fromkeys(values))


def _range(low: float, high: float, operator: str, step: float, text: str) -> list[float]:
    grows = step > 1 and low > 0 if operator == "*" else step > 0
    if high < low or not grows:
        raise UsageError(f"{text!r} never gets there", do="give the smaller number first and a step that grows")
    size = (math.log(high / low) / math.log(step) if operator == "*" else (high - low) / step) + 1e-9
    if size > _MAX_SWEEP:
        raise UsageError(f"{text!r} holds more than {_MAX_SWEEP} loads", do="give a larger step")
    steps = range(int(size) + 1)
    return [round(low * step**k if operator == "*" else low + k * step, 9) for k in steps]


# -- what is drawn for every unit ----------------------------------------------------------------------------------


def outline(spec: StageSpec, seed: int) -> Iterator[tuple[Drawn, int | None]]:
    """What every unit of the stage is, and when it is due (None in closed loop)."""
    if not spec.mix or sum(weight for _, weight in spec.mix) <= 0:
        raise UsageError(f"stage {spec.name} has no workload", do="give a workload with a weight above 0")
    if spec.trace is not None:
        for row in spec.trace.rows():
            yield Drawn(0, row.prompt_tokens, row.output_tokens, 1, row), row.offset_ns
        return
    yield from zip(_drawn(spec, seed), _due_times(spec, seed), strict=False)


def _drawn(spec: StageSpec, seed: int) -> Iterator[Drawn]:
    for block in itertools.count():
        rng = generator(seed, spec.stage, LENGTHS, block)
        for facts in draw_units(spec.mix, rng.random((4, _BLOCK))).T.tolist():
            yield Drawn(*facts)


def draw_units(mix: tuple[tuple[Workload, float], ...], u: NDArray[np.float64]) -> NDArray[np.int64]:
    """Rows: workload, prompt tokens, output tokens, turns; for every workload the lengths are its own. `u`: uniform
    numbers, four rows of as many as there are to be units."""
    weights = np.cumsum([weight for _, weight in mix])
    chosen = np.searchsorted(weights / weights[-1], u[0], "right")
    rows = np.empty((4, u.shape[1]), dtype=np.int64)
    rows[0] = chosen
    for number, (workload, _) in enumerate(mix):
        mine = chosen == number
        joint = workload.prompt_tokens.joint == workload.output_tokens.joint != ""
        second = tie(u[1][mine], u[2][mine], 1.0 if joint else workload.correlation)
        rows[1, mine] = workload.prompt_tokens.at(u[1][mine])
        rows[2, mine] = workload.output_tokens.at(second)
        rows[3, mine] = 1 if workload.turns is None else workload.turns.count.at(u[3][mine])
    return rows


def _due_times(spec: StageSpec, seed: int) -> Iterator[int | None]:
    if spec.load.kind == "concurrency":
        return itertools.repeat(None)
    return parse_arrivals(spec.load.arrivals).offsets(spec.load.value, generator(seed, spec.stage, ARRIVALS))


def too_long(spec: StageSpec, limit: int) -> str | None:
    """What to tell when a workload's typical request does not fit into the server's context of `limit` tokens."""
    for workload, _ in spec.mix:
        needed = workload.prompt_tokens.mean() + workload.output_tokens.mean()
        if needed > limit:
            return (
                f"{workload.name}: a typical request needs {needed:,.0f} tokens, the server's context holds {limit:,}: "
                "expect refusals or short answers; give a smaller --prompt-tokens or --output-tokens"
            )
    return None
