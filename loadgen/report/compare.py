"""Several runs read, compared, and written as a page, a comment or JSON.

Knows: where runs lie, the formats, the templates. Must not know: any figure, layout.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from loadgen.analysis.compare import compare
from loadgen.analysis.compare_cost import price_of
from loadgen.analysis.compare_gate import decide, parse
from loadgen.analysis.compare_sides import Side, side_of_cells, side_of_run
from loadgen.analysis.compare_stats import BETWEEN_RUNS
from loadgen.errors import UsageError
from loadgen.report import comparison_text, figures
from loadgen.report.comparison import Comparison, view
from loadgen.report.comparison_json import to_json
from loadgen.report.render import environment, load, page
from loadgen.store.inputs import read_cells
from loadgen.store.runfile import is_run

PAGE = "compare.html"


def compare_runs(
    paths: Sequence[Path],
    fail_on: Sequence[str] = (),
    *,
    prices: Sequence[float | None] = (),
    between: float = BETWEEN_RUNS,
    redact: bool = False,
) -> Comparison:
    """Read every run and compare it with the first.

    Args:
        paths: folders of runs, or other tools' results.
        fail_on: expressions of `compare_gate`.
        prices: dollars per GPU and hour, one for each path; where there is none, that which the run was told counts.
        between: see `compare_stats.contrast`.
        redact: leave out addresses, names and notes; runs are then called by their number.

    Raises:
        UsageError: fewer than two paths, the same run twice, or an expression that cannot be read or names no cell.
        StorageError: a run cannot be read.
    """
    if len(paths) < 2:
        raise UsageError("a comparison needs two runs or more", do="give the baseline first, then the others")
    gates = parse(fail_on)  # a mistake is told before a large run is read
    names = [f"run {number}" for number in range(1, len(paths) + 1)] if redact else _names(paths)
    sides = [_side(name, path, redact) for name, path in zip(names, paths, strict=True)]
    _check_apart(paths, sides)
    versus = compare(sides[0], sides[1:], between)
    given = tuple(prices) or (None,) * len(paths)
    known = tuple(price_of(side) if price is None else price for side, price in zip(sides, given, strict=True))
    return Comparison(versus, decide(gates, versus, between), known, between)


def _side(name: str, path: Path, redact: bool) -> Side:
    if is_run(path) or not path.exists():
        return side_of_run(name, load(path, redact=redact))
    return side_of_cells(name, read_cells(path).cells)


def _names(paths: Sequence[Path]) -> list[str]:
    """The folders' own names, as much of their paths as tells them apart; of one folder, its whole path."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _check_apart(paths: Sequence[Path], sides: Sequence[Side]) -> None:
    """A gate that holds a run against itself, or against a copy of it, passes whatever the server does."""
    seen: dict[object, Path] = {}
    for path, side in zip(paths, sides, strict=True):
        info = None if side.summary is None else side.summary.info
        keys: list[object] = [path.resolve(), *([(info.run_id, info.nonce)] if info is not None and info.nonce else [])]
        first = next((seen[key] for key in keys if key in seen), None)
        if first is not None:
            what = "is given twice" if first == path else f"is the same run as {first}"
            raise UsageError(f"{what}: a comparison needs two measurements", where=str(path))
        seen |= dict.fromkeys(keys, path)


def render(comparison: Comparison, fmt: str) -> str:
    """The comparison in one of FORMATS, as text."""
    return FORMATS[fmt](comparison)


def _html(comparison: Comparison) -> str:
    shown = view(comparison)
    return page("compare.html.j2", shown, figures.comparison(shown["series"]))


def _markdown(comparison: Comparison) -> str:
    return environment().get_template("compare.md.j2").render(view=view(comparison))


def _text(comparison: Comparison) -> str:
    return comparison_text.text(view(comparison))


def _json(comparison: Comparison) -> str:
    return json.dumps(to_json(comparison), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[Comparison], str]] = {"text": _text, "html": _html, "md": _markdown, "json": _json}
