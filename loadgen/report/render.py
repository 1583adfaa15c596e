"""A run as a page, a comment, JSON or CSV.

Knows: the formats, the templates' folder, where a report of a run lies. Must not know: any figure, layout, colours.
Why: every format is made from one summary, so that a page and the comment beside it cannot differ.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from loadgen.analysis.summary import Summary, Value, summarise, to_json
from loadgen.report import figures
from loadgen.report.chart import Chart
from loadgen.report.palette import THEMES
from loadgen.report.redact import redacted, redacted_fit
from loadgen.report.view import view
from loadgen.store.fitfile import read_fit
from loadgen.store.resources import template_dir
from loadgen.store.runfile import open_run
from loadgen.store.serverfile import read_server
from loadgen.store.wholefile import replacing

REPORT, COMMENT = "report.html", "summary.md"
# What Markdown or the HTML in it would take for markup.
_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_|[]~#"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def load(run_dir: Path, *, redact: bool = False) -> Summary:
    """The summary of the run in a folder; with `redact` without addresses, names and notes.

    Raises:
        StorageError: there is no run.
    """
    info, requests = open_run(run_dir)
    named = info
    if redact:
        info, requests = redacted(info, requests)
    summary = summarise(info, requests, server=read_server(run_dir))
    fit = read_fit(run_dir)
    return replace(summary, fit=redacted_fit(named, fit) if redact and fit is not None else fit)


def write_report(run_dir: Path, *, redact: bool = False) -> Path:
    """Write `report.html` and `summary.md` into the run's folder; returns the path of the page.

    Raises:
        StorageError: there is no run, or the folder cannot be written.
    """
    shown = view(load(run_dir, redact=redact))
    path = write(run_dir / REPORT, _page(shown))
    write(run_dir / COMMENT, _comment(shown))
    return path


def write(path: Path, text: str) -> Path:
    """Write one file as a whole. Raises StorageError; what stood there before is in place then."""
    with replacing(path) as out:
        out.write(text.encode("utf-8", "replace"))
    return path


def render(summary: Summary, fmt: str) -> str:
    """The report in one of FORMATS, as text."""
    return FORMATS[fmt](summary)


def _page(shown: dict[str, Any]) -> str:
    charts = figures.build(shown["series"])
    if shown["fit"] is not None:
        charts |= figures.fit(shown["fit"]["series"])
    return page("report.html.j2", shown, charts)


def page(template: str, shown: dict[str, Any], charts: dict[str, Chart]) -> str:
    """A page that is complete in itself: a template on `base.html.j2`, its view and its charts."""
    specs = {name: {"data": chart.data, "layout": chart.layout} for name, chart in charts.items()}
    return (
        environment()
        .get_template(template)
        .render(view=shown, charts=charts, specs=_script(specs), plotly_js=figures.plotly_js(), themes=THEMES)
    )


def _script(value: object) -> str:
    """JSON that can stand inside a script element: no `<`, so no `</script>` and no comment."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _comment(shown: dict[str, Any]) -> str:
    return environment().get_template("summary.md.j2").render(view=shown)


def _json(summary: Summary) -> str:
    return json.dumps(to_json(summary), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


# The columns of `metric_rows`.
METRIC_FIELDS = ("stage", "workload", "load_kind", "load", *Value.__dataclass_fields__)


def metric_rows(summary: Summary) -> list[dict[str, Any]]:
    """One row for each statistic of each stage, SI units; None is n/a."""
    return [
        {
            "stage": stage.info.name,
            "workload": stage.info.workload,
            "load_kind": stage.info.load.kind,
            "load": stage.info.load.value,
            **asdict(value),
        }
        for stage in summary.stages
        for value in stage.values
    ]


def _csv(summary: Summary) -> str:
    """One row for each statistic; an empty field is n/a."""
    out = io.StringIO()
    table = csv.DictWriter(out, METRIC_FIELDS, lineterminator="\n")
    table.writeheader()
    table.writerows(metric_rows(summary))
    return out.getvalue()


FORMATS: dict[str, Callable[[Summary], str]] = {
    "html": lambda summary: _page(view(summary)),
    "md": lambda summary: _comment(view(summary)),
    "json": _json,
    "csv": _csv,
}


def _breakable(text: str) -> markupsafe.Markup:
    """A long name that may be broken before each `_per_`, still found and copied as it is."""
    return markupsafe.Markup("<wbr>_per_").join(text.split("_per_"))


def environment() -> jinja2.Environment:
    """Templates from the folder that users may edit. Whatever a page prints is escaped; a comment escapes by `md`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_dir()),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    environment.filters["md"] = lambda text: " ".join(str(text).split()).translate(_MARKDOWN)
    return environment
