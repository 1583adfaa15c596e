"""`loadgen matrix`: settings of a server times workloads times loads, measured in turns, in one report.

Knows: flags, the order of a matrix as a user sees it, which exit code an outcome has. Must not know: how a setting is
measured (`matrix_visit`), figures, HTML.
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.errors import EndpointError, StorageError, UsageError

if TYPE_CHECKING:
    from loadgen.cli.matrix_spec import Matrix
    from loadgen.report.matrix import MatrixReport
    from loadgen.store.matrixfile import MatrixRecord


@click.command("matrix")
@click.argument("spec", type=click.Path(path_type=Path), metavar="SPEC.yaml")
@click.option("--resume", type=click.Path(path_type=Path), metavar="MATRIX", help="Go on with a matrix, same spec.")
@click.option("--dry-run", is_flag=True, help="Print what would be measured, in which order, and for how long.")
@click.option("--repeats", type=click.IntRange(1, 100), help="In place of the spec's.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder of the matrix.  [default: runs/TIME]")
def command(spec: Path, resume: Path | None, dry_run: bool, repeats: int | None, output: Path | None) -> int:
    """Measure every setting of SPEC.yaml under its workloads and loads, and compare them in one report.

    A setting is a server that is started by its command, awaited, measured and stopped again, or one that others run.
    Its keys stand under `settings`, beside them those of a run. Every round measures each setting once, every second
    round backwards (A B B A), so that drift does not pass for a difference. Each visit is an ordinary run.

    Exit code 0: measured. With an SLO 1: some workload keeps it under no setting; 3: that cannot be decided. 4: no
    setting could be measured. A server that does not start is a finding of its setting, the others go on.
    """
    from dataclasses import replace

    from loadgen.cli.matrix_spec import check, read_matrix_spec

    matrix = read_matrix_spec(spec)
    matrix = matrix if repeats is None else replace(matrix, repeats=repeats)
    check(matrix, str(spec))
    folder, record = _begun(matrix, resume, output, dry_run)
    if dry_run:
        from loadgen.cli.matrix_plan import lines

        for line in lines(matrix, record):
            click.echo(line)
        return 0
    interrupted = _measure(matrix, folder, record)
    return _finish(folder, record, interrupted)


def _begun(matrix: Matrix, resume: Path | None, output: Path | None, dry_run: bool) -> tuple[Path, MatrixRecord]:
    """The folder and the record of a new matrix, or of one that goes on. Raises UsageError."""
    from loadgen.cli.matrix_visit import new_record, resumed_record
    from loadgen.store.matrixfile import is_matrix, read_matrix, write_matrix
    from loadgen.store.runfile import unique_run_path

    now = datetime.datetime.now(datetime.UTC)
    if resume is not None and output is not None:
        raise UsageError("a matrix goes on in its own folder", where="-o", do="leave it out beside --resume")
    if resume is not None:
        return resume, resumed_record(read_matrix(resume), matrix, str(resume))
    record = new_record(matrix, now.isoformat(timespec="seconds"), sys.argv)
    wanted = output if output is not None else Path("runs") / now.strftime("matrix-%Y%m%d-%H%M%S")
    if dry_run:
        return wanted, record
    if output is not None and is_matrix(output):
        raise UsageError(
            "holds a matrix already", where=f"-o {output}", do=f"give another folder, or --resume {output}"
        )
    folder = unique_run_path(wanted)
    write_matrix(folder, record)
    return folder, record


def _measure(matrix: Matrix, folder: Path, record: MatrixRecord) -> bool:
    """Visit after visit; returns whether somebody stopped it. Raises StorageError."""
    from loadgen.cli.matrix_plan import ahead
    from loadgen.cli.matrix_visit import Visiting
    from loadgen.cli.measure import say
    from loadgen.store.matrixfile import write_matrix

    say(f"matrix {folder}: {ahead(matrix, record)}")
    visiting = Visiting(matrix, folder, record)
    for visit in record.visits:
        if visit.state == "done":
            continue
        try:
            going_on = visiting.visit(visit)
        except (KeyboardInterrupt, click.exceptions.Abort):
            visit.state, going_on = "interrupted", False
        if not going_on:
            record.status = "interrupted"
            write_matrix(folder, record)
            return True
    record.status = "complete"
    write_matrix(folder, record)
    return False


def _finish(folder: Path, record: MatrixRecord, interrupted: bool) -> int:
    """Write the report, print it in short, and decide the exit code."""
    from loadgen.report.matrix import read_report, render, write_report

    report = read_report(folder)
    click.echo(render(report, "text"), nl=False)
    try:
        click.echo(f"report: {write_report(report, folder)}")
    except StorageError as bad:
        click.echo(f"loadgen: no report: {bad}", err=True)
    click.echo(f"matrix: {folder}")
    if interrupted:
        click.echo(f"loadgen: go on with --resume {folder}", err=True)
        return 130
    return exit_code(report)


def exit_code(report: MatrixReport) -> int:
    """0, 1 or 3 by the SLO; raises EndpointError where nothing was measured."""
    if not report.matrix.measured:
        raise EndpointError("no setting could be measured", where=str(report.folder), do="see the findings")
    outcomes = {best.outcome for best in report.matrix.best if best.is_whole}
    return 1 if "fail" in outcomes else 3 if "undecidable" in outcomes else 0
