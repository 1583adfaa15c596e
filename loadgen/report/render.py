"""The report in its four formats, and the two files that a run gets.

Knows: Jinja2, how plain values become HTML, Markdown, JSON and CSV, and that nothing from outside may become markup.
Must not know: what a figure means, where runs lie beyond the folder that it is given.
Why: one view for all formats. Markup in a model's name, an error or a path stays text: HTML is escaped by the template
engine, the data of the charts is JSON in which `<` is written as an escape, Markdown has its own escapes.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2

from loadgen.analysis.summary import Summary, summarise, to_json
from loadgen.errors import StorageError
from loadgen.report import figures
from loadgen.report.palette import THEMES
from loadgen.report.view import view
from loadgen.store.resources import template_dir
from loadgen.store.runfile import open_run

MAX_COMMENT = 60_000  # characters; a comment on GitHub ends at 65,536
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~$])")


def write_report(run_dir: Path, slo: Sequence[str] = ()) -> Path:
    """Write `report.html` and `summary.md` into a run's folder and return the path of the former.

    Without `slo` the objectives that the run was made with apply.

    Raises:
        StorageError: the folder holds no run, or cannot be written to.
        UsageError: an objective that cannot be read.
    """
    info, requests = open_run(run_dir)
    summary = summarise(info, requests, slo)
    target = run_dir / "report.html"
    shown = view(summary)
    write(target, _html(shown))
    write(run_dir / "summary.md", _markdown(shown))
    return target


def render(summary: Summary, fmt: str) -> str:
    """The report as text; `fmt` is a key of FORMATS."""
    return FORMATS[fmt](summary)


def write(path: Path, text: str) -> None:
    """Put text into a file. Raises StorageError."""
    try:
        path.write_text(text, encoding="utf-8", errors="replace", newline="\n")
    except OSError as bad:
        raise StorageError(
            f"cannot be written: {(bad.strerror or str(bad)).lower()}", where=str(path), do="give another file: -o FILE"
        ) from bad


# -- HTML -----------------------------------------------------------------------------------------------------------


def _html(shown: dict[str, Any]) -> str:
    charts = figures.build(shown["series"])
    folder = template_dir()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html.j2").render(
        shown,
        charts=charts,
        figures=_embedded(
            {name: {"data": c.data, "layout": c.layout, "height": c.height} for name, c in charts.items()}
        ),
        themes=THEMES,
        themes_json=_embedded(THEMES),
        css=(folder / "report.css").read_text(encoding="utf-8"),
        script=(folder / "report.js").read_text(encoding="utf-8"),
        plotly_js=figures.plotly_js(),
    )


def _embedded(value: Any) -> str:
    """JSON that may stand inside a `<script>`: no `<`, `>` or `&`, whatever the texts in it say."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# -- Markdown -------------------------------------------------------------------------------------------------------


def _markdown(shown: dict[str, Any]) -> str:
    text = ""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_dir()),
        autoescape=False,  # Markdown has other escapes: the filter `md`
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["md"] = _escaped
    template = environment.get_template("summary.md.j2")
    for rows in (len(shown["brief"]), 200, 50, 10):
        text = template.render(shown, rows=rows)
        if len(text) <= MAX_COMMENT:
            break
    return text


def _escaped(words: object) -> str:
    """Text as text: no emphasis, link, cell border or tag; in one line."""
    return _MARKDOWN.sub(r"\\\1", " ".join(str(words).split())).replace("\\<", "&lt;").replace("\\>", "&gt;")


# -- JSON and CSV ---------------------------------------------------------------------------------------------------


def _json(summary: Summary) -> str:
    return json.dumps(to_json(summary), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _csv(summary: Summary) -> str:
    """One row for each statistic of each stage; an empty cell is n/a."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    fields = ("metric", "stat", "value", "unit", "n", "ci_low", "ci_high", "supported")
    writer.writerow(("stage", "workload", "load_kind", "load_value", *fields))
    for stage in summary.stages:
        head = (stage.info.name, stage.info.workload, stage.info.load.kind, stage.info.load.value)
        writer.writerows((*head, *(getattr(value, name) for name in fields)) for value in stage.values)
    return out.getvalue()


FORMATS: dict[str, Callable[[Summary], str]] = {
    "html": lambda summary: _html(view(summary)),
    "md": lambda summary: _markdown(view(summary)),
    "json": _json,
    "csv": _csv,
}
