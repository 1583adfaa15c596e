"""Several runs side by side: for each figure of each cell that both measured, the change and a verdict.

Knows: which figures are compared, how the error is shared out among them, what takes a verdict away. Must not know: how
an interval is computed (`compare_stats`), what makes runs unlike (`compare_conditions`), layout, exit codes.
Why: of fifty figures of two runs of one server, two or three "differ significantly" if each is tested alone. Here all
intervals of one comparison hold together with 95 % (Bonferroni), so that a verdict in a table of fifty means as much as
one alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadgen.analysis import compare_conditions, compare_stats
from loadgen.analysis.compare_conditions import ALL, Condition, Likeness
from loadgen.analysis.compare_sides import Cell, Side, matched
from loadgen.analysis.compare_stats import BETWEEN_RUNS, SHARES, Contrast, Nothing
from loadgen.analysis.definitions import METRICS, Metric
from loadgen.analysis.slo import SCHEDULED
from loadgen.analysis.stats import CONFIDENCE

Verdict = Literal["better", "worse", "no difference shown", "not decidable"]

# What is compared in each cell; in open loop ttft and e2e mean those from the scheduled time, as for gates.
COMPARED: tuple[tuple[str, str], ...] = (
    ("ttft", "mean"),
    ("ttft", "p50"),
    ("ttft", "p99"),
    ("tpot", "mean"),
    ("tpot", "p50"),
    ("tpot", "p99"),
    ("chunk_gap", "p99"),
    ("e2e", "mean"),
    ("e2e", "p50"),
    ("e2e", "p99"),
    ("output_tokens_per_s", "rate"),
    ("requests_per_s", "rate"),
    ("goodput", "rate"),
    ("error_rate", "rate"),
    ("guard_right", "rate"),
)
_IF_ANY = ("goodput", "guard_right")  # left out where neither side has it
VERDICTS_PER_CELL = sum(name not in _IF_ANY for name, _ in COMPARED)
_LOST = 0.01  # share of requests by which a side may have lost more than the other and its latencies still be compared
# Findings that say that requests failed: they take nothing from a comparison of how many did.
_OF_FAILURES = ("all_failed", "errors")
_UNTIMED = ("guard_right",)  # figures that no mistake of a time can touch


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one cell. `change` is other / baseline, or for `is_share` other - baseline; `low` and `high` its
    bounds, which hold for all figures of the comparison together with 95 %. None is n/a; `why` there is no verdict."""

    metric: str
    stat: str
    unit: str
    base: float | None
    other: float | None
    change: float | None
    low: float | None
    high: float | None
    is_share: bool
    verdict: Verdict
    why: str


@dataclass(frozen=True, slots=True)
class Pair:
    """One workload at one load, measured by both."""

    base: Cell
    other: Cell
    conditions: tuple[Condition, ...]
    paired: bool  # both sent the very same requests
    rows: tuple[Compared, ...]

    @property
    def name(self) -> str:
        """That of the baseline's stage."""
        return self.base.name if self.base.workload or not self.other.workload else self.other.name


@dataclass(frozen=True, slots=True)
class Versus:
    """One run against the baseline. `verdicts` is how many figures share the 5 % error."""

    base: Side
    other: Side
    conditions: tuple[Condition, ...]  # of the whole runs
    pairs: tuple[Pair, ...]
    only_base: tuple[Cell, ...]
    only_other: tuple[Cell, ...]
    verdicts: int

    @property
    def all_conditions(self) -> tuple[Condition, ...]:
        """Those of the cells, too."""
        return (*self.conditions, *(condition for pair in self.pairs for condition in pair.conditions))

    @property
    def likeness(self) -> Likeness:
        """Whether the two measured alike."""
        return compare_conditions.likeness(self.all_conditions)


def compare(base: Side, others: Sequence[Side], between: float = BETWEEN_RUNS) -> tuple[Versus, ...]:
    """Compare each of `others` with the baseline. `between`: see `compare_stats.contrast`."""
    return tuple(_versus(base, other, between) for other in others)


def _versus(base: Side, other: Side, between: float) -> Versus:
    pairs, only_base, only_other = matched(base, other)
    conditions = [tuple(compare_conditions.of_cells(base, other, a, b)) for a, b in pairs]
    found = [contrasts(a, b, between) for a, b in pairs]
    verdicts = sum(not isinstance(one, Nothing) for cell in found for one in cell.values())
    tail = (1.0 - CONFIDENCE) / 2 / max(verdicts, 1)
    return Versus(
        base,
        other,
        tuple(compare_conditions.of_runs(base, other)),
        tuple(
            Pair(a, b, some, paired(a, b), tuple(row(a, b, key, one, tail, some) for key, one in cell.items()))
            for (a, b), some, cell in zip(pairs, conditions, found, strict=True)
        ),
        tuple(only_base),
        tuple(only_other),
        verdicts,
    )


def paired(a: Cell, b: Cell) -> bool:
    """Whether both sent the very same requests."""
    return a.measured is not None and b.measured is not None and compare_stats.same_plan(a.measured, b.measured)


def meant(name: str, a: Cell) -> Metric:
    """The metric that a name means in this cell: in open loop ttft and e2e count from the scheduled time."""
    measured = a.measured
    open_loop = measured is not None and measured.window.open_loop
    return METRICS[SCHEDULED.get(name, name)] if open_loop else METRICS[name]


def contrasts(a: Cell, b: Cell, between: float) -> dict[tuple[str, str], Contrast | Nothing]:
    """The contrast of each figure of COMPARED of two cells, by metric and statistic."""
    found: dict[tuple[str, str], Contrast | Nothing] = {}
    for name, stat in COMPARED:
        metric = meant(name, a)
        values = a.value(metric.name, stat), b.value(metric.name, stat)
        if values == (None, None) and name in _IF_ANY:
            continue
        if None in values and (a.stage is None or b.stage is None):
            continue  # another tool's file does not say it
        found[metric.name, stat] = of_cells(a, b, metric, stat, between)
    return found


def of_cells(
    a: Cell, b: Cell, metric: Metric, stat: str, between: float, lost: tuple[float, float] = (0.0, 0.0)
) -> Contrast | Nothing:
    """The contrast of two cells, where both have their requests."""
    if a.measured is None or b.measured is None:
        return Nothing("another tool's file holds no requests, so there is no interval")
    return compare_stats.contrast(a.measured, b.measured, metric, stat, between, lost)


def row(
    a: Cell,
    b: Cell,
    key: tuple[str, str],
    one: Contrast | Nothing,
    tail: float,
    conditions: Sequence[Condition],
) -> Compared:
    """One figure of two cells with its verdict, from its contrast; each bound is missed with probability `tail`."""
    metric, stat = METRICS[key[0]], key[1]
    base, other = a.value(*key), b.value(*key)
    share = metric.name in SHARES
    low = high = None
    verdict: Verdict = "not decidable"
    if isinstance(one, Nothing):
        change = None if base is None or other is None else other - base if share else _ratio(base, other)
        why = one.why
    else:
        change, (low, high) = one.value, one.bounds(tail)
        none = 0.0 if share else 1.0
        verdict = "no difference shown" if low <= none <= high else direction(metric, change > none)
        why = doubts(a, b, metric, conditions) or _survivors(a, b, metric, verdict)
        verdict = "not decidable" if why else verdict
    return Compared(metric.name, stat, metric.unit, base, other, change, low, high, share, verdict, why)


def _ratio(base: float, other: float) -> float | None:
    return other / base if base > 0.0 else None


def direction(metric: Metric, larger: bool) -> Verdict:
    """What a larger (or smaller) value means."""
    return "better" if larger == (metric.better == "higher") else "worse"


def doubts(a: Cell, b: Cell, metric: Metric, conditions: Sequence[Condition]) -> str:
    """Why no verdict on this metric may be given, whatever the figures say; "" where one may."""
    for which, cell in (("the baseline", a), ("this run", b)):
        codes = [code for code in cell.invalid if metric.name not in SHARES or code not in _OF_FAILURES]
        if codes and metric.name not in _UNTIMED:
            return f"the measurement of {which} is INVALID ({', '.join(codes)})"
    unlike = [one for one in conditions if one.withholds == ALL or metric.name in one.withholds]
    return "; ".join(f"{one.what}: {one.words}" for one in unlike)


def _survivors(a: Cell, b: Cell, metric: Metric, verdict: Verdict) -> str:
    """Latencies are those of successes: a server that drops what it cannot serve in time must not look faster."""
    if metric.of != "stage" and verdict == "better" and b.lost - a.lost > _LOST:
        return f"{b.lost:.1%} of this run's requests gave no value: those that survived are faster"
    if metric.of != "stage" and verdict == "worse" and a.lost - b.lost > _LOST:
        return f"{a.lost:.1%} of the baseline's requests gave no value: those that survived were faster"
    return ""
