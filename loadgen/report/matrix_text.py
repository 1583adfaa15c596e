"""A matrix for the terminal: findings first, then the best for the SLO, then every cell.

Knows: columns and which of them a terminal has room for. Must not know: how a figure is found or written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loadgen.report.comparison_text import aligned


def text(shown: dict[str, Any]) -> str:
    """The view of a matrix as lines."""
    return "".join(f"{line.rstrip()}\n" for line in _lines(shown))


def _lines(shown: dict[str, Any]) -> Iterator[str]:
    yield f"{shown['title']}: {shown['tagline']}"
    for f in shown["findings"]:
        yield f"  {f['severity']}: {f['message']}" + (f" - {f['advice']}" if f["advice"] else "")
    for workload in shown["cells"]:
        yield ""
        yield from _cells(workload, shown)
    for one in shown["best"]:
        if one["is_whole"]:
            yield ""
            yield f"{one['workload']}, best while {one['expr']} is kept"
            yield from _best(one)
    if shown["versus"]:
        yield ""
        yield from (one["sentence"] for one in shown["versus"])


_TERMINAL = ("ttft p50", "ttft p99", "tpot p50", "e2e p50", "tokens/s, whole server", "tokens/s per user, p50")


def _cells(workload: dict[str, Any], shown: dict[str, Any]) -> Iterator[str]:
    """The figures that a terminal has room for, with half of the width of their intervals left to the page."""
    heads = [(i, head) for i, head in enumerate(workload["heads"]) if head["label"] in _TERMINAL]
    front = {
        (row["setting"], row["load"]): row["place"]
        for one in shown["front"]
        if one["workload"] == workload["workload"]
        for row in one["rows"]
    }
    words = [_SHORT.get(head["label"], f"{head['label']} {head['unit']}") for _, head in heads]
    table = [(workload["workload"], "setting", "ok", *words, "SLO", "front")]
    for load in workload["loads"]:
        for number, row in enumerate(load["rows"]):
            figures = [row["cells"][i]["text"] for i, _ in heads]
            place = front.get((row["setting"], load["load"]), "")
            head = load["load"] if number == 0 else ""
            table.append((head, row["setting"], row["ok"], *figures, row["outcome"] or "-", place))
    yield from aligned(table)


_SHORT = {"tokens/s, whole server": "tokens/s", "tokens/s per user, p50": "per user"}


def _best(one: dict[str, Any]) -> Iterator[str]:
    table = [("setting", "load", one["served"], "interval", "per million", "change", "verdict")]
    for row in one["rows"]:
        change = f"{row['change']} ({row['bounds']})" if row["change"] else ""
        verdict = row["verdict"] or row["kept"]
        verdict += f": {row['why']}" if row["why"] else ""
        served = row["served"]
        table.append(
            (row["setting"], row["load"], served["text"], served["note"], row["per_million"]["text"], change, verdict)
        )
    yield from aligned(table)
