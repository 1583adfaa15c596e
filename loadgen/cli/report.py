"""`loadgen report`: the report of a run as a page, a comment, JSON or CSV.

Knows: flags, and where the output goes. Must not know: what is in a report.
"""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["html", "md", "json", "csv"]), default="html", show_default=True)
@click.option("--redact", is_flag=True, help="Take out addresses, names and notes, to share the report.")
@click.option("--open", "show", is_flag=True, help="Show the page in the browser.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write to FILE.")
def command(run: Path, form: str, redact: bool, show: bool, output: Path | None) -> None:
    """Build the report of RUN.

    HTML without -o goes to RUN/report.html, with RUN/summary.md beside it, and the path is printed. Markdown, JSON and
    CSV without -o are printed.
    """
    from loadgen.errors import UsageError
    from loadgen.report.render import load, render, write, write_report
    from loadgen.store.runfile import is_part_of_run

    if show and form != "html":
        raise UsageError(f"shows a page, and {form} is none", where="--open", do="leave one of the two out")
    if output is not None and is_part_of_run(output, run):
        raise UsageError("is the run itself", where=str(output), do="give another file")
    if form == "html" and output is None:
        path = write_report(run, redact=redact)
    else:
        text = render(load(run, redact=redact), form)
        if output is None:
            click.echo(text, nl=False)
            return
        path = write(output, text)
    click.echo(path)
    if show:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
