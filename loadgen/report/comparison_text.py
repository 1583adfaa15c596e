"""A comparison for the terminal: what is unlike first, then a table for each cell.

Knows: columns and how wide they are. Must not know: how a figure is found or written (`comparison`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_HEAD = ("metric", "baseline", "this run", "change", "interval", "verdict")


def text(shown: dict[str, Any]) -> str:
    """The view of a comparison as lines."""
    return "".join(f"{line.rstrip()}\n" for line in _lines(shown))


def _lines(shown: dict[str, Any]) -> Iterator[str]:
    yield f"baseline: {shown['names'][0]} ({_measurement(shown, 0)})"
    for number, one in enumerate(shown["versus"]):
        yield ""
        yield f"{one['sentence']} ({_measurement(shown, number + 1)})"
        yield f"  {one['likeness_sentence']}{' Both sent the very same requests.' if one['paired'] else ''}"
        for c in one["conditions"]:
            where = f" of {c['cell']}" if c["cell"] else ""
            withheld = f": no verdict on {c['withholds']}" if c["withholds"] not in ("", "all") else ""
            yield f"  {c['kind_words']}: {c['what']}{where}: {c['words']}{withheld}"
        for c in one["subject"]:
            yield f"  {c['kind_words']}: {c['what']}: {c['words']}"
        yield from _tables(shown, number)
    yield from _costs(shown)
    for row in shown["unmatched"]:
        yield f"not matched: {row['cell']} is in {row['only']}, not in {row['missing']}"
    for d in shown["decisions"]:
        bounds = f" ({d['bounds']})" if d["bounds"] else ""
        yield f"{d['outcome'].upper():<11} {d['run']}, {d['cell']}: {d['expr']}: {d['change']}{bounds}; {d['why']}"


def _measurement(shown: dict[str, Any], number: int) -> str:
    return str(next(row["values"][number] for row in shown["runs"] if row["name"] == "Measurement"))


def _tables(shown: dict[str, Any], number: int) -> Iterator[str]:
    for workload in shown["cells"]:
        for cell in workload["cells"]:
            rows = [
                (row["label"], row["base"], of["value"], of["change"], of["bounds"], _verdict(of))
                for row in cell["rows"]
                if (of := row["others"][number]) is not None
            ]
            if rows:
                yield ""
                yield f"{workload['workload']}, {cell['load']}"
                yield from aligned([_HEAD, *rows])


def _verdict(of: dict[str, str]) -> str:
    return f"{of['verdict']}: {of['why']}" if of["why"] else of["verdict"]


def _costs(shown: dict[str, Any]) -> Iterator[str]:
    costs = shown["costs"]
    if not costs["rows"]:
        return
    yield ""
    yield "cost, per GPU and in all"
    changes = {"per_gpu", "per_dollar"}
    head = ["cell", "run", "GPUs"]
    for name, title in costs["heads"]:
        head += [title.removesuffix(", whole server"), *(["change"] if name in changes else [])]
    rows = []
    for row in costs["rows"]:
        for i, (name, of) in enumerate(zip(shown["names"], row["runs"], strict=True)):
            if of is None:
                continue
            cells = [row["cell"] if i == 0 else "", name, costs["gpus"][i]]
            for key, _ in costs["heads"]:
                cells += [of[key], *([of[f"{key}_change"]] if key in changes else [])]
            rows.append([*cells, of["at_slo"]])
    head.append("")
    yield from aligned([head, *rows])


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows with columns of one width: the first to the left, the last as it is, those between to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        yield "  " + "  ".join([*cells, row[-1]])
