"""Two servers that were each measured several times, compared as two runs are.

Knows: which repeats belong together, and that a doubt about one of them is a doubt about the whole. Must not know: how
an interval is computed, what the servers are, layout.
Why the same value as of two runs (`Versus`): whatever shows a comparison of two runs shows this one, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from loadgen.analysis import compare_conditions
from loadgen.analysis.compare import Compared, Pair, Versus, contrasts, paired, row
from loadgen.analysis.compare_conditions import Condition
from loadgen.analysis.compare_sides import Cell, Side, matched
from loadgen.analysis.compare_stats import BETWEEN_RUNS, Contrast, Nothing
from loadgen.analysis.repeats import joined
from loadgen.analysis.stats import CONFIDENCE

_Both = tuple[Cell, Cell]


def compare_repeats(rounds: Sequence[tuple[Side, Side]], between: float = BETWEEN_RUNS) -> Versus:
    """Compare two servers by the rounds in which both were measured: (baseline, other) of each, at least one.

    `between`: by how much two runs of one server differ at least, see `repeats.joined`.
    """
    cells = _cells(rounds)
    conditions = [_once(_of_cells(rounds, pairs)) for pairs in cells]
    found = [[contrasts(a, b, 0.0) for a, b in pairs] for pairs in cells]
    keys = list(dict.fromkeys(key for of in found for one in of for key in one))
    whole = {key: joined([[one[key] for one in of if key in one] for of in found], between) for key in keys}
    verdicts = sum(not isinstance(one, Nothing) for of in whole.values() for one in of)
    tail = (1.0 - CONFIDENCE) / 2 / max(verdicts, 1)
    pairs_of = []
    for number, (pairs, some, of) in enumerate(zip(cells, conditions, found, strict=True)):
        rows = [_row(pairs, key, whole[key][number], tail, some) for key in keys if any(key in one for one in of)]
        same = all(paired(a, b) for a, b in pairs)
        pairs_of.append(Pair(*pairs[0], tuple(some), same, tuple(rows)))
    base, other = rounds[0]
    alone = matched(base, other)
    runs = _once(one for a, b in rounds for one in compare_conditions.of_runs(a, b))
    return Versus(base, other, tuple(runs), tuple(pairs_of), tuple(alone[1]), tuple(alone[2]), verdicts)


def _cells(rounds: Sequence[tuple[Side, Side]]) -> list[list[_Both]]:
    """For each cell that both measured its pairs, a pair for each round that has it."""
    found: dict[str, list[_Both]] = {}
    for base, other in rounds:
        for a, b in matched(base, other)[0]:
            found.setdefault(a.name, []).append((a, b))
    return list(found.values())


def _of_cells(rounds: Sequence[tuple[Side, Side]], pairs: Sequence[_Both]) -> Iterable[Condition]:
    for base, other in rounds:
        for a, b in pairs:
            if any(a is cell for cell in base.cells):
                yield from compare_conditions.of_cells(base, other, a, b)


def _once(conditions: Iterable[Condition]) -> list[Condition]:
    """The same condition of several rounds told once, as it was first."""
    found: dict[tuple[str, str, str], Condition] = {}
    for one in conditions:
        found.setdefault((one.kind, one.what, one.cell), one)
    return list(found.values())


def _row(
    pairs: Sequence[_Both], key: tuple[str, str], one: Contrast | Nothing, tail: float, conditions: Sequence[Condition]
) -> Compared:
    rows = [row(a, b, key, one, tail, conditions) for a, b in pairs]
    told = next((found for found in rows if found.why), rows[0])
    return replace(told, base=_middle(found.base for found in rows), other=_middle(found.other for found in rows))


def _middle(values: Iterable[float | None]) -> float | None:
    """The geometric mean; the plain one where a value is 0."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if min(known) <= 0.0:
        return sum(known) / len(known)
    return math.exp(sum(map(math.log, known)) / len(known))
