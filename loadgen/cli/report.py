"""`loadgen report`: the report of a run as a page, a comment, JSON, CSV or Parquet.

Knows: flags, and where the output goes. Must not know: what is in a report.
"""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.cli.values import read_form

FORMS = ("html", "md", "json", "csv", "parquet")


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMS),
    help="CSV and Parquet: a row per statistic; `export` has one per request.  [default: by the suffix of -o; html]",
)
@click.option("--redact", is_flag=True, help="Take out addresses, names and notes, to share the report.")
@click.option("--open", "show", is_flag=True, help="Show the page in the browser.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write to FILE.")
def command(run: Path, form: str | None, redact: bool, show: bool, output: Path | None) -> None:
    """Build the report of RUN, or of the matrix in that folder.

    HTML without -o goes to RUN/report.html, with RUN/summary.md beside it, and the path is printed. Everything else
    without -o goes to standard output.
    """
    from loadgen.errors import UsageError
    from loadgen.report.render import load, render, write, write_report
    from loadgen.store.matrixfile import is_matrix
    from loadgen.store.runfile import is_part_of_run

    if output is not None and is_part_of_run(output, run):
        raise UsageError("is the run itself", where=str(output), do="give another file")
    form = read_form(form, output, FORMS)
    if show and form != "html":
        raise UsageError(f"shows a page, and {form} is none", where="--open", do="leave one of the two out")
    whole = is_matrix(run)
    if whole and redact:
        raise UsageError("is of a run, not of a matrix", where="--redact", do="give a run of it")
    if form == "html" and output is None:
        path = _write_matrix(run) if whole else write_report(run, redact=redact)
    elif form == "parquet" and not whole:
        _parquet(run, output, redact=redact)
        return
    else:
        text = _matrix(run, form) if whole else render(load(run, redact=redact), form)
        if output is None:
            click.echo(text, nl=False)
            return
        path = write(output, text)
    click.echo(path)
    if show:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def _write_matrix(folder: Path) -> Path:
    from loadgen.report import matrix

    return matrix.write_report(matrix.read_report(folder), folder)


def _matrix(folder: Path, form: str) -> str:
    """The report of a matrix as text. Raises UsageError for a form that it has not."""
    from loadgen.errors import UsageError
    from loadgen.report import matrix

    if form not in matrix.FORMATS:
        raise UsageError(f"{form} is of a run, not of a matrix", where="--format", do="give json, or a run of it")
    return matrix.render(matrix.read_report(folder), form)


def _parquet(run: Path, output: Path | None, *, redact: bool) -> None:
    """The rows of the CSV, in Parquet. Raises UsageError without the extra, or for a terminal."""
    from loadgen.cli.rows import opened, pyarrow, write_parquet
    from loadgen.report.render import METRIC_FIELDS, load, metric_rows

    pa = pyarrow()
    kinds = {"load": pa.float64(), "n": pa.int64(), "supported": pa.bool_()}
    kinds |= dict.fromkeys(("value", "ci_low", "ci_high"), pa.float64())
    rows = metric_rows(load(run, redact=redact))
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in METRIC_FIELDS])
    with opened(output, binary_only=True) as out:
        write_parquet(iter(rows), schema, out)
    if output is not None:
        click.echo(output)
