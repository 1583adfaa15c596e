"""How many tokens a text has: estimated, calibrated by the server's own counts, or known unit by unit.

Knows: server tokens = overhead (template) + the sizes of a text's units; how these are learned from counts. Must not
know: servers, tokenizer files (counts come in), plans.
Why: a prompt must have the asked length as the server counts it. A tokenizer counts every unit once, ahead of the run;
where there is none, the server's `usage` tells after the fact by how much an estimate is off.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from loadgen.plan import prompts
from loadgen.plan.pools import units
from loadgen.plan.prompts import Sizes

_SPREAD = 1.3  # lengths must differ by this factor before an overhead can be told from the density
_MAX_OVERHEAD = 2_000.0  # tokens; templates with a built-in system prompt reach hundreds
_SAMPLES = (40, 64, 100, 160, 250, 400, 640, 1_000, 1_600)  # tokens of the sections that a table is tried on
_EXACT = 1  # tokens by which a sample may be off for units to count as independent

Source = Literal["tokenizer", "server"]
# What counting asks for (texts of one sort) and is given (their tokens), until the table is complete.
Counting = Generator[list[str], list[int], "Counted"]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Server tokens of a text of r rough tokens (`prompts.rough_tokens`): `overhead_tokens + scale * r`.

    The defaults are a first guess, replaced by what the warm-up shows.
    """

    scale: float = 1.0
    overhead_tokens: float = 10.0

    def sizes(self, kind: str) -> Sizes:
        """Sizes of the units of `kind`, in rough tokens."""
        return prompts.rough_sizes(kind)

    def budget(self, tokens: int) -> int:
        """The rough tokens in a whole prompt of `tokens` server tokens (>= 1)."""
        return max(1, round((tokens - self.overhead_tokens) / self.scale))

    def share(self, tokens: int) -> int:
        """The rough tokens of `tokens` tokens of text (>= 1)."""
        return max(1, round(tokens / self.scale))

    def through(self, observations: Sequence[tuple[int, int]]) -> Calibration:
        """The same overhead, with the scale that (rough tokens, server tokens) near the wanted length really showed: a
        straight line through two lengths is off where the mixture of a text changes with its length."""
        rough = sum(r for r, _ in observations)
        tokens = sum(t - self.overhead_tokens for _, t in observations)
        return Calibration(tokens / rough, self.overhead_tokens) if rough > 0 and tokens > 0 else self


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """The tokens of every unit of one kind, to which the template adds `overhead_tokens`. Picklable where `check` is.

    `off_tokens` is the most by which the sum of its units missed a sample text. Where that is more than a token (a
    tokenizer that joins over blanks) and one is at hand, `check` counts every text whole, and its size is corrected.
    """

    table: Sizes
    source: Source
    off_tokens: int = 0
    overhead_tokens: int = 0
    check: Callable[[str], int] | None = None

    @property
    def pieces(self) -> int:
        """How many units were counted."""
        return sum(len(some) for some in (self.table.first, self.table.words, self.table.asks, self.table.lines))

    def sizes(self, kind: str) -> Sizes:
        """Sizes of the units of the kind that was counted, in tokens."""
        return self.table

    def budget(self, tokens: int) -> int:
        """The tokens of text in a whole prompt of `tokens` server tokens (>= 1)."""
        return max(1, tokens - self.overhead_tokens)

    def share(self, tokens: int) -> int:
        """The tokens of `tokens` tokens of text (>= 1)."""
        return max(1, tokens)

    def through(self, observations: Sequence[tuple[int, int]]) -> Counted:
        """The same table with the overhead that (tokens asked for, server tokens) of prompts made by it showed: the
        median difference, on top of the overhead that they were made with."""
        if not observations:
            return self
        more = float(np.median([server - asked for asked, server in observations]))
        return replace(self, overhead_tokens=max(0, self.overhead_tokens + round(more)))


Sizer = Calibration | Counted


def calibrate(observations: Sequence[tuple[int, int]]) -> Calibration:
    """Learn from (rough tokens sent, prompt tokens that the server counted) pairs.

    Least squares with an overhead where the lengths differ enough to tell it apart, else the mean ratio. Without an
    observation that makes sense it is the first guess.
    """
    if not observations:
        return Calibration()
    rough, tokens = (np.asarray(column, dtype=np.float64) for column in zip(*observations, strict=True))
    plain = Calibration(float(tokens.sum() / max(rough.sum(), 1.0)), 0.0)
    if plain.scale <= 0:
        return Calibration()
    if rough.max() < _SPREAD * rough.min():
        return plain
    slope, overhead = (float(x) for x in np.polyfit(rough, tokens, 1))
    if slope <= 0 or not 0 <= overhead <= min(_MAX_OVERHEAD, float(tokens.min())):
        return plain
    return Calibration(slope, overhead)


def counting(kind: str, source: Source) -> Counting:
    """Count the units of `kind`: yields texts to count, takes their counts, returns the table.

    A unit is counted between the characters that stand beside it in a text, which are counted without it, too. Then
    some whole sections are counted: what they have beside their units, and how far the sums are off.
    """
    of = units(kind)
    whole = [*of.asks, *of.lines]
    base = np.asarray((yield ["a", "a a", "a\na"]), dtype=np.int64)
    first = np.asarray((yield [f"{unit} a" for unit in of.first]), dtype=np.int64)
    words = np.asarray((yield [f"a{unit}" for unit in of.words]), dtype=np.int64)
    lines = np.asarray((yield [f"a\n{unit}a" for unit in whole]), dtype=np.int64)
    lines = np.maximum(lines - base[2], 1)
    table = Sizes(
        np.maximum(first - (base[1] - base[0]), 1),
        np.maximum(words - base[0], 1),
        lines[: len(of.asks)],
        lines[len(of.asks) :],
        0,
    )
    rng = np.random.default_rng(0)
    made = [prompts.section(kind, size, rng.bytes(8), rng, table) for size in _SAMPLES]
    seen = np.asarray((yield [f"a\n{text}a" for text, _ in made]), dtype=np.int64) - base[2]
    rest = seen - np.asarray([size for _, size in made])
    middle = round(float(np.median(rest)))
    return Counted(replace(table, rest=middle), source, int(np.abs(rest - middle).max()))


def counted(kind: str, many: Callable[[list[str]], list[int]], check: Callable[[str], int]) -> Counted:
    """The table of `kind` by a tokenizer at hand: `many` counts texts, `check` one."""
    steps, counts = counting(kind, "tokenizer"), None
    try:
        texts = next(steps)
        while True:
            counts = many(texts)
            texts = steps.send(counts)
    except StopIteration as done:
        table: Counted = done.value
    return replace(table, check=check) if table.off_tokens > _EXACT else table
