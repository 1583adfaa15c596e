"""What a reader must know before he believes a matrix.

Knows: what can go wrong with its visits, and how drift between rounds shows. Must not know: layout, files.
Why: a table of settings hides that one never started, that another was measured while the machine was busy, or that
everything became slower from round to round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from loadgen.analysis.compare import of_cells
from loadgen.analysis.compare_sides import Cell
from loadgen.analysis.compare_stats import BETWEEN_RUNS, Ratio
from loadgen.analysis.definitions import METRICS
from loadgen.analysis.matrix import Matrix, Visit
from loadgen.analysis.numbers import significant
from loadgen.analysis.stats import CONFIDENCE
from loadgen.model import Finding, Severity

# Figures in which drift is looked for: one of each phase and the rate of the whole.
_DRIFT = (("ttft", "mean"), ("tpot", "mean"), ("output_tokens_per_s", "rate"))
_SHOWN = 3  # cells that a finding about drift names
_NAMED = 4


def judge(matrix: Matrix) -> tuple[Finding, ...]:
    """Every finding, the gravest first."""
    found = [*_not_measured(matrix), *_invalid(matrix), *_unlike(matrix), *_drift(matrix), *_extent(matrix)]
    order = ("invalid", "questionable", "info")
    return tuple(sorted(found, key=lambda one: order.index(one.severity)))


def _not_measured(matrix: Matrix) -> Iterator[Finding]:
    """Settings whose server did not start, could not be used, or ended while it was measured."""
    for name in matrix.settings:
        mine = [visit for visit in matrix.visits if visit.setting == name]
        for state, code, words in (
            ("failed", "not_measured", "could not be measured"),
            ("died", "server_died", "lost its server while it was measured"),
        ):
            bad = [visit for visit in mine if visit.state == state]
            if bad:
                rounds = _rounds(bad, mine)
                severity: Severity = "invalid" if len(bad) == len(mine) else "questionable"
                text = f"setting {name} {words}{rounds}: {bad[0].error or 'no reason is known'}"
                advice = (
                    "read its log, if it was started here, or see whether it can be reached"
                    if state == "failed"
                    else "what was measured before is kept"
                )
                yield Finding(severity, code, text, float(len(bad)), advice)


def _rounds(bad: Sequence[Visit], mine: Sequence[Visit]) -> str:
    if len(bad) == len(mine):
        return "" if len(mine) == 1 else f" in any of {len(mine)} rounds"
    return f" in round {', '.join(str(visit.round) for visit in bad)}"


def _invalid(matrix: Matrix) -> Iterator[Finding]:
    """Measurements that must not be believed, or only with care: one finding for each verdict, with the words of what
    is wrong and the first of them in full. Their own reports have the rest."""
    verdicts: tuple[Severity, ...] = ("invalid", "questionable")
    for verdict in verdicts:
        runs: list[str] = []
        codes: dict[str, int] = {}
        first: Finding | None = None
        for visit in matrix.visits:
            summary = None if visit.side is None else visit.side.summary
            if summary is None or visit.state == "died" or summary.verdict != verdict:
                continue
            runs.append(visit.run)
            for code in dict.fromkeys(one.code for one in summary.findings if one.severity == verdict):
                codes[code] = codes.get(code, 0) + 1
            first = first or next((one for one in summary.findings if one.severity == verdict), None)
        if first is not None:
            made = sum(visit.side is not None for visit in matrix.visits)
            more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
            text = f"{len(runs)} of {made} runs are {verdict.upper()} ({', '.join(runs[:_NAMED])}{more}): "
            text += ", ".join(f"{code} in {n}" for code, n in codes.items())
            yield Finding(
                verdict, f"{verdict}_runs", f"{text}; the first: {first.message}", float(len(runs)), first.advice
            )


def _unlike(matrix: Matrix) -> Iterator[Finding]:
    """Conditions that are not those of the first setting; what the settings are is no condition."""
    for one in matrix.versus:
        unlike = [c for c in one.all_conditions if c.kind in ("refused", "unlike")]
        if unlike:
            told = "; ".join(f"{c.what}{f' of {c.cell}' if c.cell else ''}: {c.words}" for c in unlike[:_SHOWN])
            more = f"; and {len(unlike) - _SHOWN} more" if len(unlike) > _SHOWN else ""
            text = f"{one.other.name} and {one.base.name} were not measured alike: {told}{more}"
            yield Finding("questionable", "unlike", text, float(len(unlike)), "read what differs before the figures")


def _drift(matrix: Matrix) -> Iterator[Finding]:
    """Repeats of one setting that differ by more than two runs of one server do, and a common direction."""
    tests = [(name, cell, key, one) for name in matrix.measured for cell, key, one in _first_to_last(matrix, name)]
    tail = (1.0 - CONFIDENCE) / 2 / max(len(tests), 1)
    for name in matrix.measured:
        far = []
        for setting, cell, key, one in tests:
            low, high = one.bounds(tail)
            if setting == name and not low <= 1.0 <= high:
                far.append((abs(one.log), f"{key[0]} of {cell}: {_times(one.value)}"))
        if far:
            far.sort(reverse=True)
            text = f"the rounds of {name} differ by more than chance: {', '.join(words for _, words in far[:_SHOWN])}"
            advice = "the intervals over the rounds allow for it; more rounds (repeats) would narrow them"
            yield Finding("questionable", "rounds_differ", text, math.exp(far[0][0]) - 1.0, advice)
    yield from _common(matrix, [(name, key, one) for name, _, key, one in tests])


def _first_to_last(matrix: Matrix, setting: str) -> Iterator[tuple[str, tuple[str, str], Ratio]]:
    """The change from the first round to the last, of each cell that both have."""
    sides = [visit.side for visit in matrix.visits if visit.setting == setting and visit.side is not None]
    if len(sides) < 2:
        return
    last = {cell.name: cell for cell in sides[-1].cells}
    for cell in sides[0].cells:
        twin = last.get(cell.name)
        for name, stat in _DRIFT if twin is not None else ():
            found = _contrast(cell, twin, name, stat)
            if found is not None:
                yield cell.name, (name, stat), found


def _contrast(a: Cell, b: Cell | None, name: str, stat: str) -> Ratio | None:
    if b is None:
        return None
    found = of_cells(a, b, METRICS[name], stat, BETWEEN_RUNS)
    return found if isinstance(found, Ratio) else None


def _common(matrix: Matrix, tests: Sequence[tuple[str, tuple[str, str], Ratio]]) -> Iterator[Finding]:
    """All settings moved alike from the first round to the last: the machine did, not a server."""
    for key in _DRIFT:
        logs: dict[str, list[float]] = {}
        spread: dict[str, float] = {}
        for name, one_key, one in tests:
            if one_key == key:
                logs.setdefault(name, []).append(one.log)
                spread[name] = spread.get(name, 0.0) + one.se**2
        if len(logs) < 2:
            continue
        means = [sum(some) / len(some) for some in logs.values()]
        error = math.sqrt(sum(spread[name] / len(some) ** 2 for name, some in logs.items())) / len(means)
        middle = sum(means) / len(means)
        alike = all(one > 0.0 for one in means) or all(one < 0.0 for one in means)
        if alike and abs(middle) > 3.0 * error:
            by = _times(math.exp(middle))
            text = f"from the first round to the last {key[0]} of every setting changed alike, by {by}"
            advice = "rounds that run backwards keep this out of the differences between settings"
            yield Finding("info", "drift", text, math.exp(middle) - 1.0, advice)


def _times(ratio: float) -> str:
    if not 0.5 < ratio < 2.0:
        return f"{significant(ratio, 3)} times"
    return f"{'+' if ratio > 1.0 else '−'}{significant(abs(ratio - 1.0) * 100, 2)} %"


def _extent(matrix: Matrix) -> Iterator[Finding]:
    """What is not there: visits that were not made, stages that were skipped, a second round."""
    left = [visit for visit in matrix.visits if visit.state in ("waiting", "running", "interrupted")]
    if left:
        text = f"{len(left)} of {len(matrix.visits)} visits are not done"
        yield Finding("questionable", "incomplete", text, float(len(left)), "go on with --resume")
    skipped = [
        f"{visit.run}: {line}"
        for visit in matrix.visits
        if visit.side is not None and visit.side.summary is not None and visit.state != "died"
        for line in visit.side.summary.info.skipped
    ]
    if skipped:
        more = f"; and {len(skipped) - _SHOWN} more" if len(skipped) > _SHOWN else ""
        text = f"stages that were not begun: {'; '.join(skipped[:_SHOWN])}{more}"
        yield Finding("info", "skipped", text, float(len(skipped)))
    if matrix.measured and max(visit.round for visit in matrix.visits) == 1:
        text = "every setting was measured once: by how much another start of the same server differs is not known"
        yield Finding("info", "one_round", text, 1.0, "give repeats: 2 or more")
    if len(matrix.measured) > 1 and not matrix.by_gpu and any(matrix.gpus.values()):
        lacking = [name for name in matrix.measured if matrix.gpus.get(name) is None]
        text = f"rates are of whole servers, not of a GPU: {', '.join(lacking)} does not say how many it has"
        yield Finding("info", "gpus_unknown", text, float(len(lacking)), "give gpu and gpus for each setting")
