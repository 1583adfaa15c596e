"""A matrix read from its folder, and written as a page, a comment, JSON or text.

Knows: where the runs of a matrix lie, the formats, the templates. Must not know: any figure, layout.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadgen.analysis.compare_sides import Side, side_of_run
from loadgen.analysis.matrix import Matrix, Visit, matrix, whole_side
from loadgen.analysis.matrix_findings import judge
from loadgen.analysis.summary import summarise
from loadgen.errors import LoadgenError
from loadgen.model import Finding
from loadgen.report import figures, matrix_text
from loadgen.report.matrix_json import to_json
from loadgen.report.matrix_view import view
from loadgen.report.render import COMMENT, environment, page, write
from loadgen.store.matrixfile import MatrixRecord, VisitRecord, read_matrix
from loadgen.store.runfile import is_run, open_run
from loadgen.store.serverfile import read_server

PAGE = "matrix.html"


@dataclass(frozen=True, slots=True)
class MatrixReport:
    """A matrix with its record and what a reader must know."""

    folder: Path
    record: MatrixRecord
    matrix: Matrix
    findings: tuple[Finding, ...]


def read_report(folder: Path) -> MatrixReport:
    """Everything about the matrix in a folder, as far as it is measured. Raises UsageError, StorageError."""
    record = read_matrix(folder)
    visits = [_visit(folder, record, visit) for visit in record.visits]
    found = matrix([str(setting["name"]) for setting in record.settings], visits)
    return MatrixReport(folder, record, found, judge(found))


def _visit(folder: Path, record: MatrixRecord, visit: VisitRecord) -> Visit:
    side, error = None, visit.error or ""
    if visit.run is not None and is_run(folder / visit.run):
        try:
            side = _side(visit.setting, folder / visit.run, tuple(record.slo))
        except LoadgenError as bad:
            error = error or str(bad)
    return Visit(visit.setting, visit.round, visit.state, side, Path(visit.run or "").name, error, visit.ready_s)


def _side(name: str, run: Path, slo: tuple[str, ...]) -> Side | None:
    """The run as a side; None where no stage of it is whole."""
    info, requests = open_run(run)
    side = whole_side(side_of_run(name, summarise(info, requests, slo, read_server(run))))
    return side if side.cells else None


def write_report(report: MatrixReport, folder: Path) -> Path:
    """Write the page and the comment into the matrix's folder; returns the path of the page. Raises StorageError."""
    path = write(folder / PAGE, render(report, "html"))
    write(folder / COMMENT, render(report, "md"))
    return path


def render(report: MatrixReport, fmt: str) -> str:
    """The matrix in one of FORMATS, as text."""
    return FORMATS[fmt](report)


def _view(report: MatrixReport) -> dict[str, object]:
    return view(report.record, report.matrix, report.findings)


def _html(report: MatrixReport) -> str:
    shown = view(report.record, report.matrix, report.findings)
    return page("matrix.html.j2", shown, figures.matrix(shown["series"]))


def _markdown(report: MatrixReport) -> str:
    return environment().get_template("matrix.md.j2").render(view=_view(report))


def _text(report: MatrixReport) -> str:
    return matrix_text.text(view(report.record, report.matrix, report.findings))


def _json(report: MatrixReport) -> str:
    found = to_json(report.record, report.matrix, report.findings)
    return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[MatrixReport], str]] = {"text": _text, "html": _html, "md": _markdown, "json": _json}
