"""`loadgen check`: the release gate. One line for each objective, and an exit code that a pipeline can act on.

Knows: how verdicts are printed as text, Markdown, GitHub annotations and JUnit XML, and which exit code they make.
Must not know: how an objective is read or decided (`analysis.slo`, `analysis.gate`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.analysis.numbers import NONE, brief
from loadgen.cli.junit import Case, exit_code, write_cases
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.analysis.gate import SloResult
    from loadgen.analysis.summary import Summary

# Outcome of an objective or severity of a finding -> kind of annotation.
_ANNOTATION = {
    "pass": "notice",
    "fail": "error",
    "undecidable": "warning",
    "invalid": "error",
    "questionable": "warning",
}


@click.command("check")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--slo",
    multiple=True,
    metavar="EXPR",
    help="Objective, e.g. 'p99(ttft) < 1s, error_rate < 0.1%'. Repeatable. Without it: those of the run itself.",
)
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Also write JUnit XML.")
@click.option("--format", "form", type=click.Choice(["text", "md", "github"]), default="text", show_default=True)
def command(run: Path, slo: tuple[str, ...], junit: Path | None, form: str) -> None:
    """Does RUN keep its SLOs?

    Exit code 0: all pass. 1: at least one fails. 3: none fails, but at least one cannot be decided, because there are
    too few samples or the measurement is INVALID.
    """
    from loadgen.analysis.slo import parse
    from loadgen.analysis.summary import summarise
    from loadgen.store.runfile import open_run
    from loadgen.store.serverfile import read_server

    parse(slo)  # a mistake in an expression is told before a large run is read
    info, requests = open_run(run)
    summary = summarise(info, requests, slo, read_server(run))
    if not summary.slo:
        raise UsageError("there is no objective to check", where=str(run), do="give one: --slo 'p99(ttft) < 1s'")
    if junit is not None:
        write_junit(summary, junit)
    click.echo(FORMATS[form](summary))
    raise click.exceptions.Exit(exit_code(result.outcome for result in summary.slo))


def human(value: float | None, unit: str) -> str:
    """A number as people read it: times in s, ms or µs, shares in %, n/a for nothing."""
    return NONE if value is None else brief(value, unit)


def interval(result: SloResult) -> str:
    """The bounds that the verdict went by; an open one is n/a."""
    return f"[{human(result.low, result.unit)}, {human(result.high, result.unit)}]"


def _text(summary: Summary) -> str:
    lines = [f"measurement: {summary.verdict.upper()}"]
    lines += [f"  {f.severity}: {f.message}" for f in summary.findings if f.severity != "info"]
    for r in summary.slo:
        figures = f"{human(r.observed, r.unit)} {interval(r)}, n = {r.n}"
        lines.append(f"{r.outcome.upper():<11} {_where(r)}: {figures}; {r.why}")
    return "\n".join(lines)


def _markdown(summary: Summary) -> str:
    lines = [
        f"Measurement: **{summary.verdict.upper()}**",
        "",
        "| outcome | objective | observed | 95 % bounds | n | why |",
        "|---|---|---:|---|---:|---|",
    ]
    lines += [
        f"| {r.outcome} | {_cell(_where(r))} | {human(r.observed, r.unit)} | {interval(r)} | {r.n} | {_cell(r.why)} |"
        for r in summary.slo
    ]
    return "\n".join(lines)


def _github(summary: Summary) -> str:
    lines = [
        _annotation(_ANNOTATION[f.severity], f"measurement {f.severity}", f.message)
        for f in summary.findings
        if f.severity in _ANNOTATION
    ]
    lines += [
        _annotation(
            _ANNOTATION[r.outcome],
            f"SLO {r.outcome}",
            f"{_where(r)}: {human(r.observed, r.unit)} {interval(r)}, n = {r.n}; {r.why}",
        )
        for r in summary.slo
    ]
    return "\n".join(lines)


def _annotation(kind: str, title: str, text: str) -> str:
    """One workflow command of GitHub."""
    return f"::{kind} title={title}::{_escaped(text)}"


def _where(result: SloResult) -> str:
    """The objective with its stage, unless the expression already names it."""
    return result.expr if result.expr.startswith(f"{result.stage}:") else f"{result.stage}: {result.expr}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _escaped(text: str) -> str:
    """As GitHub's workflow commands want the characters that would end one."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


FORMATS: dict[str, Callable[[Summary], str]] = {"text": _text, "md": _markdown, "github": _github}


def write_junit(summary: Summary, path: Path) -> None:
    """One case for each objective and stage, see `cli.junit`. Raises StorageError."""
    told = (f"{human(r.observed, r.unit)} {interval(r)}, n = {r.n}; {r.why}" for r in summary.slo)
    cases = [Case(r.stage, r.expr, r.outcome, text) for r, text in zip(summary.slo, told, strict=True)]
    write_cases(f"loadgen {summary.info.run_id}", cases, path)
