"""`loadgen compare`: several runs side by side, and the regression gate.

Knows: flags, where the output goes, and which exit code decisions make. Must not know: how anything is compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.cli.values import FORM_HELP, read_form
from loadgen.errors import StorageError, UsageError

if TYPE_CHECKING:
    from loadgen.report.comparison import Comparison


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...", type=click.Path(path_type=Path))
@click.option(
    "--fail-on",
    multiple=True,
    metavar="EXPR",
    help="Regression gate, e.g. 'p99(ttft) worse by 5%'. Repeatable; decides the exit code.",
)
@click.option(
    "--price-per-gpu-hour",
    "prices",
    metavar="$[,$...]",
    help="Dollars per GPU and hour: one for all, or one for each run, e.g. 2.5,1.8.",
)
@click.option(
    "--between-runs",
    metavar="SHARE",
    default="0.5%",
    show_default=True,
    help="Standard deviation by which two runs of one server differ; no smaller change is believed.",
)
@click.option("--redact", is_flag=True, help="Take out addresses, names and notes, to share the comparison.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "html", "md", "json"]),
    help=FORM_HELP,
)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write to FILE.")
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Also write JUnit XML.")
def command(
    runs: tuple[Path, ...],
    fail_on: tuple[str, ...],
    prices: str | None,
    between_runs: str,
    redact: bool,
    form: str | None,
    output: Path | None,
    junit: Path | None,
) -> None:
    """Compare runs: the first RUN is the baseline. Other tools' result files are read, too; means alone get no verdict.

    Cells of the same workload and load are matched. Every change has an interval and a verdict: better, worse, no
    difference shown, or not decidable; all intervals of one comparison hold together with 95 %. Without -o and --format
    the text is printed, and the page is written as compare.html into the folder of the second RUN.

    Exit code with --fail-on: 0: no regression. 1: at least one is found. 3: none is found, but at least one cannot be
    excluded, because there are too few samples, the runs are not alike, or a measurement is INVALID.
    """
    from loadgen.cli.junit import exit_code
    from loadgen.cli.values import read_share
    from loadgen.report.compare import PAGE, compare_runs, render
    from loadgen.report.render import write
    from loadgen.store.runfile import is_part_of_run

    if junit is not None and not fail_on:
        raise UsageError("there is nothing to write down", where="--junit", do="give --fail-on, too")
    for file in (output, junit):
        if file is not None and any(is_part_of_run(file, run) or file.resolve() == run.resolve() for run in runs):
            raise UsageError("is what is compared", where=str(file), do="give another file")
    chosen = read_form(form, output)
    comparison = compare_runs(
        runs,
        fail_on,
        prices=read_prices(prices, len(runs)),
        between=read_share("--between-runs", between_runs),
        redact=redact,
    )
    if junit is not None:
        write_junit(comparison, junit)
    if output is not None:
        click.echo(write(output, render(comparison, chosen)))
    else:
        click.echo(render(comparison, chosen), nl=False)
    if output is None and form is None:
        try:
            folder = runs[1] if runs[1].is_dir() else runs[1].parent
            click.echo(f"page: {write(folder / PAGE, render(comparison, 'html'))}")
        except StorageError as bad:  # the folder may be read-only: the verdict must still come through
            click.echo(f"loadgen: no page: {bad}", err=True)
    raise click.exceptions.Exit(exit_code(one.outcome for one in comparison.decisions))


def read_prices(text: str | None, runs: int) -> tuple[float | None, ...]:
    """One price for each run. Raises UsageError."""
    if text is None:
        return (None,) * runs
    where = f"--price-per-gpu-hour {text}"
    try:
        found = [float(part.strip().removeprefix("$")) for part in text.split(",")]
    except ValueError:
        raise UsageError("is no price", where=where, do="write 2.5, or 2.5,1.8 with one for each run") from None
    if not all(0.0 < price < float("inf") for price in found):
        raise UsageError("a price must be above 0", where=where)
    if len(found) not in (1, runs):
        raise UsageError(f"{len(found)} prices for {runs} runs", where=where, do="give one, or one for each run")
    return tuple(found * runs if len(found) == 1 else found)


def write_junit(comparison: Comparison, path: Path) -> None:
    """JUnit XML of the gate, see `cli.junit`. Raises StorageError."""
    from loadgen.cli.junit import Case, write_cases
    from loadgen.report.comparison import bounds, change

    cases = []
    for one in comparison.decisions:
        figures = f"{change(one.change, one.is_share)} ({bounds(one.low, one.high, one.is_share) or 'no interval'})"
        group = f"{one.run} against {comparison.sides[0].name}"
        cases.append(Case(group, f"{one.cell}: {one.expr}", one.outcome, f"{figures}; {one.why}"))
    write_cases("loadgen compare", cases, path)
