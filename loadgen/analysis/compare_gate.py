"""The regression gate: `p99(ttft) worse by 5%`, read and decided.

Knows: the grammar, which bound decides, how failures rank. Must not know: exit codes, files, layout.
Why: as for SLOs, the bound of an interval decides and never the point. A regression is found where even the favourable
bound is beyond the limit, excluded where the unfavourable one is within it; between them nobody can tell.

    expression := [scope ":"] statistic "(" metric ")" "worse by" number "%"
    scope      := workload | stage, as in `chat:` or `chat@32:`

A rate or share of a whole stage needs no statistic. Of a share (error_rate, slo_attainment) the limit is in percentage
points. All decisions that can find a regression share one error of 5 %; those that exclude one need not, since all of
them have to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadgen.analysis import slo, stats
from loadgen.analysis.compare import Pair, Versus, doubts, meant, of_cells
from loadgen.analysis.compare_sides import Cell
from loadgen.analysis.compare_stats import SHARES, Nothing
from loadgen.analysis.definitions import Metric, metric
from loadgen.analysis.formulas import quantile_of
from loadgen.analysis.gate import SloOutcome
from loadgen.analysis.stats import GATE_TAIL
from loadgen.errors import UsageError

_EXPRESSION = re.compile(
    r"(?:(?P<scope>[^:()]+):\s*)?(?:(?P<stat>[A-Za-z][\w.]*)\s*\(\s*)?(?P<metric>[A-Za-z]\w*)\s*(?P<close>\))?"
    r"\s+worse\s+by\s+(?P<number>\d+\.?\d*|\.\d+)\s*%"
)
_WRITE = "write it as `p99(ttft) worse by 5%`"


@dataclass(frozen=True, slots=True)
class Regression:
    """One expression. `limit` is a share, 0.05 for 5 %."""

    text: str
    scope: str
    metric: Metric
    stat: str
    limit: float


@dataclass(frozen=True, slots=True)
class Decision:
    """One expression on one cell of one run. `change`, `low`, `high` and `bound` are ratios to the baseline, of shares
    differences; None is n/a. A fail is a regression that was found."""

    expr: str
    outcome: SloOutcome
    run: str
    cell: str
    metric: str
    stat: str
    change: float | None
    low: float | None
    high: float | None
    bound: float
    is_share: bool
    why: str


def parse(expressions: Sequence[str]) -> tuple[Regression, ...]:
    """Read expressions, joined by commas. Raises UsageError that names the expression and what would be right."""
    found = []
    for given in expressions:
        for part in given.split(","):
            match = _EXPRESSION.fullmatch(part.strip())
            if match is None or (match["stat"] is None) != (match["close"] is None):
                raise UsageError("cannot be read", where=f"--fail-on `{part.strip()}`", do=_WRITE)
            found.append(_regression(part.strip(), match))
    return tuple(found)


def _regression(text: str, match: re.Match[str]) -> Regression:
    try:
        what = metric(match["metric"])
        stat = slo.statistic(match["stat"], what, text)
    except UsageError as bad:
        raise UsageError(bad.what, where=f"--fail-on `{text}`", do=bad.do) from None
    if stat is None:
        do = f"say which statistic: `p99({what.name}) worse by 5%`"
        raise UsageError(f"{what.name} is a value of each request", where=f"--fail-on `{text}`", do=do)
    if what.better == "neither":
        raise UsageError(f"neither more nor less {what.name} is worse", where=f"--fail-on `{text}`")
    return Regression(text, (match["scope"] or "").strip(), what, stat, float(match["number"]) / 100.0)


def decide(gates: Sequence[Regression], comparison: Sequence[Versus], between: float) -> tuple[Decision, ...]:
    """Every expression on every cell that it speaks of, of every run. Raises UsageError when a scope names no cell."""
    for gate in gates:
        _known_scope(gate, comparison)
    chances = sum(_in_scope(gate, pair) for gate in gates for versus in comparison for pair in versus.pairs)
    tails = GATE_TAIL / max(chances, 1), GATE_TAIL
    limited = any(gate.metric.name == "error_rate" for gate in gates)
    found = []
    for gate in gates:
        for versus in comparison:
            pairs = [pair for pair in versus.pairs if _in_scope(gate, pair)]
            found += [_decide(gate, versus, pair, between, tails, limited) for pair in pairs]
            found += _missing(gate, versus, pairs)
    return tuple(found)


def _names(cell: Cell) -> tuple[str, ...]:
    return cell.name.lower(), cell.workload.lower(), f"{cell.workload}@{cell.load.value:g}".lower()


def _in_scope(gate: Regression, pair: Pair) -> bool:
    return not gate.scope or gate.scope.lower() in (*_names(pair.base), *_names(pair.other))


def _known_scope(gate: Regression, comparison: Sequence[Versus]) -> None:
    cells = [cell for versus in comparison for side in (versus.base, versus.other) for cell in side.cells]
    if gate.scope and not any(gate.scope.lower() in _names(cell) for cell in cells):
        known = ", ".join(dict.fromkeys(cell.name for cell in cells)) or "none"
        raise UsageError(
            f"no workload or stage is called {gate.scope!r}", where=f"--fail-on `{gate.text}`", do=f"stages: {known}"
        )


def _missing(gate: Regression, versus: Versus, pairs: Sequence[Pair]) -> list[Decision]:
    """What cannot be decided because there is nothing to decide on: nothing in common, or a run that ended early."""
    if not pairs:
        return [_undecided(gate, versus, gate.scope or "all", "the runs have no such workload and load in common")]
    ended_early = versus.other.summary is not None and versus.other.summary.info.status != "complete"
    lost = [cell for cell in versus.only_base if not gate.scope or gate.scope.lower() in _names(cell)]
    if not ended_early:
        return []
    return [_undecided(gate, versus, cell.name, "the run ended before it was measured") for cell in lost]


def _undecided(gate: Regression, versus: Versus, cell: str, why: str) -> Decision:
    share = gate.metric.name in SHARES
    return Decision(
        gate.text,
        "undecidable",
        versus.other.name,
        cell,
        gate.metric.name,
        gate.stat,
        None,
        None,
        None,
        _bound(gate, gate.metric),
        share,
        why,
    )


def _bound(gate: Regression, what: Metric) -> float:
    """The limit as a ratio (of a share: a difference) to the baseline."""
    sign = 1.0 if what.better == "lower" else -1.0
    return sign * gate.limit if what.name in SHARES else 1.0 + sign * gate.limit


def _decide(
    gate: Regression, versus: Versus, pair: Pair, between: float, tails: tuple[float, float], limited: bool
) -> Decision:
    what = meant(gate.metric.name, pair.base)
    result = replace(_undecided(gate, versus, pair.name, ""), metric=what.name, bound=_bound(gate, what))
    unsent = _nothing_sent(pair)
    if any(cell.measured is not None and not cell.measured.window.offered for cell in (pair.base, pair.other)):
        return replace(result, why=unsent)
    lost = pair.base.lost, pair.other.lost
    q = quantile_of(gate.stat)
    ranks = (0.0, 0.0)
    if what.of != "stage" and pair.base.measured is not None and pair.other.measured is not None:
        if q is None or what.of == "gap":
            if max(lost) > 0.0 and not limited:
                text = "requests failed and gave no value: limit error_rate too, or a percentile, which counts them"
                return replace(result, why=unsent or text)
        else:
            ranks = lost
            if found := _infinite(result, pair, q):
                return found
    one = of_cells(pair.base, pair.other, what, gate.stat, between, ranks)
    if isinstance(one, Nothing):
        return replace(result, why=one.why)
    upward = what.better == "lower"
    find, exclude = (one.bounds(tail) for tail in tails)
    low, high = (find[0], exclude[1]) if upward else (exclude[0], find[1])
    result = replace(result, change=one.value, low=low, high=high)
    beyond = low > result.bound if upward else high < result.bound
    within = high <= result.bound if upward else low >= result.bound
    outcome: SloOutcome = "fail" if beyond else "pass" if within else "undecidable"
    doubt = doubts(pair.base, pair.other, what, pair.conditions)
    return replace(result, outcome="undecidable" if doubt else outcome, why=doubt or _WHY[outcome])


_WHY: dict[SloOutcome, str] = {
    "fail": "even the favourable 95 % bound is beyond the limit",
    "pass": "the unfavourable 95 % bound is within the limit",
    "undecidable": "the limit lies inside the 95 % interval: measure longer (loadgen plan --detect)",
}


def _nothing_sent(pair: Pair) -> str:
    """What to say of a cell none of whose requests was sent; "" where both sides have some."""
    for which, cell in (("baseline", pair.base), ("run", pair.other)):
        if cell.measured is not None and not len(cell.measured.window.rows):
            return f"no request of the {which} was sent in its window: there is nothing to compare"
    return ""


def _infinite(result: Decision, pair: Pair, q: float) -> Decision | None:
    """Where so many failed that the percentile itself is one of them, or may be: they rank as infinitely slow."""
    sides = []
    for cell in (pair.base, pair.other):
        assert cell.measured is not None
        offered = cell.measured.window.offered
        sides.append(stats.proportion(round(cell.lost * offered), offered, GATE_TAIL))
    if sides[0].value >= 1.0 - q:
        return replace(result, why=f"{sides[0].value:.1%} of the baseline's requests failed: it has no such percentile")
    if sides[1].low > 1.0 - q:
        text = f"{sides[1].value:.1%} of the requests failed, and rank as infinitely slow"
        return replace(result, outcome="fail", why=text)
    if sides[1].value >= 1.0 - q:
        return replace(result, why=f"{sides[1].value:.1%} of the requests failed: the percentile may be one of them")
    return None
