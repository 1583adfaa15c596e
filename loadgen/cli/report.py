"""`loadgen report`: the report of a run, as a page, as Markdown, or as data.

Knows: where each format is written. Must not know: what is in it.
"""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.errors import StorageError, UsageError

FORMATS = ("html", "md", "json", "csv")


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="html",
    show_default=True,
    help="html writes RUN/report.html and RUN/summary.md; the others go to standard output.",
)
@click.option(
    "--slo", multiple=True, metavar="EXPR", help="Objective. Repeatable. Without it: those of the run itself."
)
@click.option("--open", "show", is_flag=True, help="Open the page in a browser.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write instead.")
def command(run: Path, form: str, slo: tuple[str, ...], show: bool, output: Path | None) -> None:
    """Build the report of RUN, finished or not: HTML, Markdown, JSON or CSV."""
    from loadgen.analysis.slo import parse
    from loadgen.report.render import write_report
    from loadgen.store.runfile import is_part_of_run

    parse(slo)  # a mistake in an expression is told before a large run is read
    if show and form != "html":
        raise UsageError("only a page can be opened", where=f"--format {form}", do="leave --open out")
    if output is not None and is_part_of_run(output, run):
        raise UsageError("is the run itself", where=str(output), do="give another file")
    path = write_report(run, slo) if form == "html" and output is None else _write(run, form, slo, output)
    if path is not None:
        click.echo(path)
    if show and path is not None:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def _write(run: Path, form: str, slo: tuple[str, ...], output: Path | None) -> Path | None:
    """One format, to a file or to standard output."""
    from loadgen.analysis.summary import summarise
    from loadgen.report.render import render, write
    from loadgen.store.runfile import open_run

    info, requests = open_run(run)
    for finding in info.findings:
        click.echo(f"loadgen: {finding.severity}: {finding.message}", err=True)
    text = render(summarise(info, requests, slo), form)
    if output is not None:
        write(output, text)
        return output
    try:
        click.get_binary_stream("stdout").write(text.encode("utf-8", "replace"))
    except BrokenPipeError:  # the reader has had enough
        raise
    except OSError as bad:
        raise StorageError((bad.strerror or str(bad)).lower(), where="standard output") from bad
    return None
