"""A matrix before it is measured: which visits in which order, how many requests, for how long, at which cost.

Knows: how a matrix's extent is put into words. Must not know: how anything is measured, how a plan is drawn.
Why: a matrix holds a GPU for hours; that can be known before.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadgen.cli.matrix_spec import Matrix, Setting
    from loadgen.plan.budget import Volume
    from loadgen.plan.schedule import StageSpec
    from loadgen.store.matrixfile import MatrixRecord


@dataclass(frozen=True, slots=True)
class _Extent:
    """What one visit to a setting takes, starting the server and warm-up apart. None is not known."""

    volume: Volume
    seconds: float | None
    why: str  # where the seconds come from
    cost: float | None  # at a vendor's prices


def ahead(matrix: Matrix, record: MatrixRecord) -> str:
    """One line: what is still to be done."""
    left = [visit for visit in record.visits if visit.state != "done"]
    words = f"{len(matrix.settings)} settings x {len(record.stages)} cells x {record.repeats} rounds"
    done = len(record.visits) - len(left)
    words += f", {done} of {len(record.visits)} visits done before" if done else ""
    seconds = [_seconds(matrix, record, visit.setting) for visit in left]
    known = [one for one in seconds if one is not None]
    return f"{words}; about {_span(sum(known))} to go" if known and len(known) == len(left) else words


def lines(matrix: Matrix, record: MatrixRecord) -> Iterator[str]:
    """The whole plan."""
    yield f"{matrix.title}: {ahead(matrix, record)}"
    yield f"cells of each setting: {', '.join(str(stage['name']) for stage in record.stages)}"
    extents = {setting.name: _extent(setting, matrix) for setting in matrix.settings}
    yield ""
    yield from _table(_settings(matrix, record, extents))
    yield ""
    order: dict[int, list[str]] = {}
    for visit in record.visits:
        mark = "" if visit.state == "waiting" else f" ({visit.state})"
        order.setdefault(visit.round, []).append(visit.setting + mark)
    for number, names in order.items():
        yield f"round {number}: {', '.join(names)}"
    yield from _totals(matrix, record, extents)
    if record.repeats % 2:
        yield "An odd number of rounds: the last one has no counterpart that runs backwards."
    yield "Nothing was started or sent."


def _settings(matrix: Matrix, record: MatrixRecord, extents: dict[str, _Extent]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("setting", "requests", "prompt tokens", "output tokens", "about", "server")]
    for setting, told in zip(matrix.settings, record.settings, strict=True):
        of, seconds = extents[setting.name], _seconds(matrix, record, setting.name)
        counts = (of.volume.requests, of.volume.prompt_tokens, of.volume.output_tokens)
        texts = [f"{n:,}" if of.volume.whole else "n/a" for n in counts]
        server = told["command"] or told["url"]
        rows.append((setting.name, *texts, "n/a" if seconds is None else _span(seconds), str(server)))
    return rows


def _totals(matrix: Matrix, record: MatrixRecord, extents: dict[str, _Extent]) -> Iterator[str]:
    visits = [extents[visit.setting] for visit in record.visits]
    if all(of.volume.whole for of in visits):
        yield f"in all: {sum(of.volume.requests for of in visits):,} requests, warm-up apart"
    seconds = [_seconds(matrix, record, visit.setting) for visit in record.visits]
    known = [one for one in seconds if one is not None]
    if len(known) < len(seconds):
        yield "time: not known - with `duration` it is, or with `gpu` and `shape` by estimate"
    else:
        yield f"time: about {_span(sum(known))}, starting the servers apart ({visits[0].why})"
        hours = [
            (one / 3600.0) * price * int(setting.given["gpus"])
            for visit, one in zip(record.visits, known, strict=True)
            for setting in matrix.settings
            if setting.name == visit.setting and (price := setting.given["price_per_gpu_hour"]) is not None
        ]
        if hours:
            yield f"cost: about {sum(hours):,.4g} for the hours of the GPUs"
    vendor = [of.cost for of in visits if of.cost is not None]
    if vendor:
        yield f"cost: about {sum(vendor):,.4g} at the vendor's prices"


def _seconds(matrix: Matrix, record: MatrixRecord, name: str) -> float | None:
    """What a visit to a setting takes: by those that are done, else by estimate."""
    done = [v.seconds for v in record.visits if v.state == "done" and v.setting == name and v.seconds is not None]
    if done:
        return statistics.fmean(done)
    return _extent(next(one for one in matrix.settings if one.name == name), matrix).seconds


def _extent(setting: Setting, matrix: Matrix) -> _Extent:
    from loadgen.cli.options import budget_of
    from loadgen.cli.stages import stages_from
    from loadgen.plan.budget import volume

    stages = stages_from(setting.given)
    found = volume(stages, matrix.seed)
    prices = budget_of(setting.given).prices
    cost = (
        None
        if prices is None or not (found.whole and found.told)
        else prices.of(found.prompt_tokens, found.output_tokens)
    )
    seconds, why = _estimate(stages, setting.given)
    return _Extent(found, seconds, why, cost)


def _estimate(stages: Sequence[StageSpec], given: dict[str, Any]) -> tuple[float | None, str]:
    """Seconds of all stages and where they come from: their windows, their rates, else the roofline of the hardware."""
    from loadgen.cli.plan import cost_of
    from loadgen.plan.profile import seconds

    cost, _ = cost_of(given)
    total, why = 0.0, "by the length of the windows"
    for spec in stages:
        if spec.duration_ns is not None:
            total += spec.duration_ns / 1e9
        elif spec.load.kind != "concurrency":
            total += (spec.requests or 0) / spec.load.value if spec.load.value else 0.0
        elif cost is None:
            return None, ""
        else:
            total, why = total + seconds(spec, cost), "by estimate, at plain literature utilisations"
    return total, why


def _span(seconds: float) -> str:
    """`45 s`, `12 min`, `3.4 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    from loadgen.report.comparison_text import aligned

    yield from aligned(rows)
