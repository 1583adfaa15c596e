"""A matrix in figures: every cell over its repeats, the Pareto front, the best setting for each SLO.

Knows: what follows from the runs of a matrix taken together. Must not know: files, how a figure of one run is computed,
what is worth a finding (`matrix_findings`), layout.
Why here: page, comment, terminal and JSON show one matrix, so it is worked out once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from loadgen.analysis.compare import Verdict, Versus, direction, doubts, of_cells
from loadgen.analysis.compare_repeats import compare_repeats
from loadgen.analysis.compare_sides import Cell, Side
from loadgen.analysis.compare_stats import BETWEEN_RUNS, Nothing
from loadgen.analysis.cost import MILLION, NOTHING, THOUSAND, Amount, Costs, by_hours, costs, gpus_told, per_second
from loadgen.analysis.definitions import METRICS
from loadgen.analysis.repeats import Over, joined, over
from loadgen.analysis.stats import CONFIDENCE
from loadgen.model import Load

# The figures of each cell, over its repeats.
FIGURES: tuple[tuple[str, str], ...] = (
    ("ttft", "p50"),
    ("ttft", "p99"),
    ("ttft_scheduled", "p99"),
    ("tpot", "p50"),
    ("tpot", "p99"),
    ("e2e", "p50"),
    ("output_tokens_per_s", "rate"),
    ("output_tokens_per_s_per_user", "p50"),
    ("requests_per_s", "rate"),
    ("goodput", "rate"),
    ("error_rate", "rate"),
)
SERVER, USER = ("output_tokens_per_s", "rate"), ("output_tokens_per_s_per_user", "p50")
_CUT = ("interrupted", "run.json is missing")  # a stage that stopped so was done again, or is not whole

Front = Literal["front", "within the error", "behind"]
Rounds = dict[str, dict[int, Side]]  # setting -> round -> what was measured
State = Literal["waiting", "running", "done", "interrupted", "failed", "died"]


@dataclass(frozen=True, slots=True)
class Visit:
    """One setting's turn in one round. `side` is None where nothing was measured; `run` is its folder's name."""

    setting: str
    round: int
    state: State
    side: Side | None = None
    run: str = ""
    error: str = ""
    ready_s: float | None = None


@dataclass(frozen=True, slots=True)
class CellOver:
    """One workload at one load under one setting. `cells` are its repeats, in the order of the rounds."""

    setting: str
    name: str
    workload: str
    load: Load
    cells: tuple[Cell, ...]
    figures: dict[tuple[str, str], Over]
    outcomes: dict[str, str]  # objective -> pass, undecidable, fail
    costs: Costs = NOTHING
    per_gpu: Over | None = None  # tokens/s of the whole server for each GPU
    front: Front | None = None

    @property
    def outcome(self) -> str:
        """The worst of any objective; "" without one."""
        return _worst(self.outcomes.values())

    def get(self, key: tuple[str, str]) -> Over | None:
        """A figure that is known."""
        found = self.figures.get(key)
        return None if found is None or found.value is None else found


@dataclass(frozen=True, slots=True)
class BestRow:
    """One setting under an SLO: the cell that serves most while it keeps it, and that against the best of all."""

    setting: str
    cell: CellOver | None
    outcome: str  # of the best of its cells
    verdict: Verdict | Literal["best", ""] = ""
    change: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Best:
    """One workload and one objective ("" for all of them together); the best setting first."""

    workload: str
    expr: str
    rows: tuple[BestRow, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it speaks of all objectives."""
        return not self.expr

    @property
    def outcome(self) -> str:
        """pass: some setting keeps it; fail: none does at any load."""
        found = [row.outcome for row in self.rows]
        return "pass" if "pass" in found else "undecidable" if "undecidable" in found else "fail"


@dataclass(frozen=True, slots=True)
class Matrix:
    """Everything that follows. `versus`: each setting that was measured against the first one that was."""

    settings: tuple[str, ...]
    visits: tuple[Visit, ...]
    cells: tuple[CellOver, ...]
    best: tuple[Best, ...]
    versus: tuple[Versus, ...]
    gpus: dict[str, int | None] = field(default_factory=dict)

    @property
    def measured(self) -> tuple[str, ...]:
        """Settings of which there is at least one run."""
        ran = {visit.setting for visit in self.visits if visit.side is not None}
        return tuple(name for name in self.settings if name in ran)

    @property
    def by_gpu(self) -> bool:
        """Whether rates can be compared for each GPU: every measured setting says how many it has."""
        return bool(self.measured) and all(self.gpus.get(name) is not None for name in self.measured)

    def of_workload(self, workload: str) -> list[CellOver]:
        """Its cells, setting after setting."""
        return [cell for cell in self.cells if cell.workload == workload]


def whole_side(side: Side) -> Side:
    """The side without stages that were cut short: after a resume they stand beside those that took their place."""
    kept = [cell for cell in side.cells if cell.stage is not None and not _is_cut(cell)]
    return replace(side, cells=tuple({cell.name: cell for cell in kept}.values()))


def _is_cut(cell: Cell) -> bool:
    info = None if cell.stage is None else cell.stage.info
    return info is None or info.end_ns is None or info.stopped in _CUT


def matrix(settings: Sequence[str], visits: Sequence[Visit], between: float = BETWEEN_RUNS) -> Matrix:
    """Work it out. `between`: by how much two runs of one server differ at least, see `repeats`."""
    sides = {name: [v.side for v in visits if v.setting == name and v.side is not None] for name in settings}
    gpus = {name: _gpus(some) for name, some in sides.items()}
    cells = _with_front(_cells(sides, gpus))
    rounds = {name: {v.round: v.side for v in visits if v.setting == name and v.side is not None} for name in settings}
    return Matrix(
        tuple(settings),
        tuple(visits),
        tuple(cells),
        tuple(_best(cells, rounds, between)),
        tuple(_versus(settings, rounds, between)),
        gpus,
    )


def _gpus(sides: Sequence[Side]) -> int | None:
    told = [gpus_told(side.summary.info.spec.get("roofline")) for side in sides if side.summary is not None]
    return told[0] if told else None


# -- cells ---------------------------------------------------------------------------------------------------------


def _cells(sides: dict[str, list[Side]], gpus: dict[str, int | None]) -> list[CellOver]:
    groups: dict[tuple[str, str], list[tuple[Side, Cell]]] = {}
    for name, some in sides.items():
        for side in some:
            for cell in side.cells:
                groups.setdefault((name, cell.name), []).append((side, cell))
    found = [_cell(name, pairs, gpus[name]) for (name, _), pairs in groups.items()]
    for key in FIGURES:
        for one, value in zip(found, over([one.cells for one in found], *key), strict=True):
            one.figures[key] = value
    return [_with_costs(cell, [side for side, _ in pairs], gpus[cell.setting])
            for cell, pairs in zip(found, groups.values(), strict=True)]  # fmt: skip


def _cell(setting: str, pairs: Sequence[tuple[Side, Cell]], gpus: int | None) -> CellOver:
    first = pairs[0][1]
    told: dict[str, list[str]] = {}
    for side, cell in pairs:
        for result in side.summary.slo if side.summary is not None else ():
            if result.stage == cell.name:
                told.setdefault(result.expr, []).append(result.outcome)
    outcomes = {expr: _worst(some) for expr, some in told.items()}
    return CellOver(setting, first.name, first.workload, first.load, tuple(cell for _, cell in pairs), {}, outcomes)


def _worst(outcomes: Iterable[str]) -> str:
    """An SLO that fails in one repeat is not kept, and one that is undecidable in one is not known to be."""
    found = set(outcomes)
    return next((word for word in ("fail", "undecidable", "pass") if word in found), "")


def _with_costs(cell: CellOver, sides: Sequence[Side], gpus: int | None) -> CellOver:
    """By hours from the rates over the repeats; a vendor's and energy as the mean of the repeats."""
    specs = [side.summary.info.spec for side in sides if side.summary is not None]
    each = [costs(one.stage, spec) for one, spec in zip(cell.cells, specs, strict=True) if one.stage is not None]
    per_s = per_second(specs[0].get("roofline")) if specs else None
    return replace(
        cell,
        per_gpu=_per_gpu(cell.get(SERVER), gpus),
        costs=Costs(
            by_hours(per_s, _amount(cell.get(SERVER)), MILLION),
            by_hours(per_s, _amount(cell.get(("requests_per_s", "rate"))), THOUSAND),
            _mean_amount([one.vendor_per_million for one in each]),
            _mean_amount([one.vendor_per_thousand for one in each]),
            _mean([one.energy_per_token_j for one in each]),
            _mean([one.energy_per_request_j for one in each]),
        ),
    )


def _per_gpu(rate: Over | None, gpus: int | None) -> Over | None:
    if rate is None or rate.value is None or gpus is None:
        return None
    low, high = (None if end is None else end / gpus for end in (rate.low, rate.high))
    return replace(rate, value=rate.value / gpus, low=low, high=high)


def _amount(of: Over | None) -> Amount | None:
    return None if of is None or of.value is None else Amount(of.value, of.low, of.high)


def _mean_amount(amounts: Sequence[Amount | None]) -> Amount | None:
    found = _mean([None if one is None else one.value for one in amounts])
    return None if found is None else Amount(found)


def _mean(values: Sequence[float | None]) -> float | None:
    """None where one is not known: a mean of some repeats is not one of all."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


# -- the Pareto front ----------------------------------------------------------------------------------------------


def _with_front(cells: Sequence[CellOver]) -> list[CellOver]:
    """Each cell's place: nothing of its workload is better in both rates (front), or nothing surely is."""
    by_gpu = all(cell.per_gpu is not None for cell in cells if cell.get(SERVER) is not None)
    found = []
    for cell in cells:
        rivals = [one for one in cells if one.workload == cell.workload and one is not cell]
        found.append(replace(cell, front=_place(cell, rivals, by_gpu)))
    return found


def point(cell: CellOver, by_gpu: bool) -> tuple[Over, Over] | None:
    """(per-user rate, whole server's rate, by GPU or not) of a cell where both are known."""
    user, server = cell.get(USER), cell.per_gpu if by_gpu else cell.get(SERVER)
    return None if user is None or server is None else (user, server)


def _place(cell: CellOver, rivals: Sequence[CellOver], by_gpu: bool) -> Front | None:
    mine = point(cell, by_gpu)
    if mine is None:
        return None
    others = [other for one in rivals if (other := point(one, by_gpu)) is not None]
    ahead = [other for other in others if _beats(other, mine)]
    if not ahead:
        return "front"
    return "behind" if any(_surely(other, mine) for other in ahead) else "within the error"


def _beats(a: tuple[Over, Over], b: tuple[Over, Over]) -> bool:
    values = [(x.value or 0.0, y.value or 0.0) for x, y in zip(a, b, strict=True)]
    return all(x >= y for x, y in values) and any(x > y for x, y in values)


def _surely(a: tuple[Over, Over], b: tuple[Over, Over]) -> bool:
    """Whether no interval leaves a doubt: in both rates the one's lower bound is above the other's upper bound."""
    return all(x.low is not None and y.high is not None and x.low > y.high for x, y in zip(a, b, strict=True))


# -- the best for an SLO -------------------------------------------------------------------------------------------


def _best(cells: Sequence[CellOver], rounds: Rounds, between: float) -> list[Best]:
    found = []
    for workload in dict.fromkeys(cell.workload for cell in cells):
        mine = [cell for cell in cells if cell.workload == workload]
        exprs = list(dict.fromkeys(expr for cell in mine for expr in cell.outcomes))
        asked = ["", *exprs] if len(exprs) > 1 else [""] if exprs else []
        found += [Best(workload, expr, _ranked(mine, expr, rounds, between)) for expr in asked]
    return found


def _ranked(cells: Sequence[CellOver], expr: str, rounds: Rounds, between: float) -> tuple[BestRow, ...]:
    """The settings by what they serve at the load at which they serve most and keep the SLO."""
    served = served_key(cells)
    rows = []
    for name in dict.fromkeys(cell.setting for cell in cells):
        mine = [cell for cell in cells if cell.setting == name]
        told = [cell.outcomes.get(expr, "") if expr else cell.outcome for cell in mine]
        kept = [cell for cell, outcome in zip(mine, told, strict=True) if outcome == "pass" and cell.get(served)]
        top = max(kept, key=lambda cell: _value(cell, served), default=None)
        rows.append(BestRow(name, top, _gentlest(told)))
    order = {"pass": 0, "undecidable": 1}
    rows.sort(key=lambda row: (order.get(row.outcome, 2), -_value(row.cell, served)))
    if not rows or rows[0].cell is None:
        return tuple(rows)
    best, others = rows[0], [row for row in rows[1:] if row.cell is not None]
    tail = (1.0 - CONFIDENCE) / 2 / max(len(others), 1)
    judged = [_against(row, best, served, rounds, between, tail) if row.cell is not None else row for row in rows[1:]]
    return (replace(best, verdict="best"), *judged)


def served_key(cells: Sequence[CellOver]) -> tuple[str, str]:
    """What a setting is ranked by: requests per second that keep a limit on each request, where there is one."""
    goodput = ("goodput", "rate")
    return goodput if any(cell.get(goodput) for cell in cells) else ("requests_per_s", "rate")


def _value(cell: CellOver | None, key: tuple[str, str]) -> float:
    found = None if cell is None else cell.get(key)
    return 0.0 if found is None or found.value is None else found.value


def _gentlest(outcomes: Sequence[str]) -> str:
    return next((word for word in ("pass", "undecidable", "fail") if word in outcomes), "")


def _against(
    row: BestRow,
    best: BestRow,
    key: tuple[str, str],
    rounds: Rounds,
    between: float,
    tail: float,
) -> BestRow:
    """What a setting serves over what the best one does, by the rounds that have both."""
    assert row.cell is not None
    assert best.cell is not None
    metric, pairs = METRICS[key[0]], []
    for number, side in rounds[row.setting].items():
        twin = rounds[best.setting].get(number)
        a, b = _named(twin, best.cell.name), _named(side, row.cell.name)
        if a is not None and b is not None:
            pairs.append((a, b))
    if not pairs:
        return replace(row, verdict="not decidable", why="no round measured both")
    one = joined([[of_cells(a, b, metric, key[1], 0.0) for a, b in pairs]], between)[0]
    if isinstance(one, Nothing):
        return replace(row, verdict="not decidable", why=one.why)
    low, high = one.bounds(tail)
    why = next((doubt for a, b in pairs if (doubt := doubts(a, b, metric, ()))), "")
    verdict: Verdict = "no difference shown" if low <= 1.0 <= high else direction(metric, one.value > 1.0)
    return replace(row, verdict="not decidable" if why else verdict, change=one.value, low=low, high=high, why=why)


def _named(side: Side | None, name: str) -> Cell | None:
    return None if side is None else next((cell for cell in side.cells if cell.name == name), None)


def _versus(settings: Sequence[str], rounds: Rounds, between: float) -> list[Versus]:
    """Each setting against the first one that was measured, by the rounds that have both."""
    measured = [name for name in settings if rounds[name]]
    found = []
    for name in measured[1:]:
        base = rounds[measured[0]]
        pairs = [(a, b) for number, b in rounds[name].items() if (a := base.get(number)) is not None]
        if pairs:
            found.append(compare_repeats(pairs, between))
    return found
