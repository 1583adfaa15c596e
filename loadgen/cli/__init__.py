"""The command line: a table of commands, each in a file of its own that is imported only when it is called.

Knows: names, one-line helps, and how an error becomes one line and an exit code. Must not know: what a command does.
Why: `loadgen --help` must answer at once, so nothing heavy (aiohttp, pandas, plotly, scipy) may load before it is used.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import signal
import sys
from typing import Any

import click

from loadgen import __version__
from loadgen.errors import LoadgenError, StorageError, UsageError

# name -> (module under loadgen.cli, one line of help). The command object in the module is called `command`.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "Measure an embedded simulated H100 endpoint over real HTTP and write the report."),
    "run": ("run", "Measure an endpoint: workloads and loads against a URL."),
    "plan": ("plan", "Print the schedule that `run` would follow; send nothing."),
    "matrix": ("matrix", "Measure settings of a server in turns, workloads times loads; one report."),
    "search": ("search", "Find the highest rate or concurrency that keeps an SLO."),
    "report": ("report", "Build the report of a run: HTML, Markdown, JSON, CSV or Parquet."),
    "check": ("check", "The release gate: does a run keep its SLOs?"),
    "compare": ("compare", "Compare runs side by side; the regression gate."),
    "predict": ("predict", "Predict TTFT, TPOT and rates from GPU and model facts."),
    "fit": ("fit", "Fit an engine to measured cells: what limits it, what would help, another GPU."),
    "plan-capacity": ("plan_capacity", "How many GPUs keep the limits at a rate, and at which cost."),
    "simulate": ("simulate", "Serve a simulated engine as an OpenAI-compatible endpoint."),
    "export": ("export", "Export a run, one row per request."),
    "selfcheck": ("selfcheck", "Measure what this client can honestly measure on this machine."),
    "explain": ("explain", "Explain a metric: its formula, unit and caveats."),
    "catalog": ("catalog", "List known GPUs, model shapes and workloads."),
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"loadgen.cli.{COMMANDS[cmd_name][0]}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="loadgen")
def cli() -> None:
    """Load-generation benchmark for OpenAI-compatible APIs."""


def main(argv: list[str] | None = None) -> Any:
    """Run the command line; every error of a user is one line and an exit code by kind."""
    gc.set_threshold(50_000, 20, 100)  # what is imported is no garbage: looking for some took a tenth of the start
    with contextlib.suppress(ValueError):  # not the main thread: whoever runs us there has his own signals
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM acts as Ctrl-C
    try:
        if not "".join(sys.argv if argv is None else argv).isprintable():
            raise UsageError("the command line holds what is no text")
        code = cli.main(args=argv, prog_name="loadgen", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("loadgen: interrupted", err=True)
        code = 130
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.ClickException as bad:
        hint = f" - see {bad.ctx.command_path} --help" if isinstance(bad, click.UsageError) and bad.ctx else ""
        click.echo(f"loadgen: {' '.join(bad.format_message().split())}{hint}", err=True)
        code = bad.exit_code
    except LoadgenError as bad:
        click.echo(f"loadgen: {_plain(str(bad))}", err=True)
        code = bad.exit_code
    except SystemExit:  # click's answer to a closed pipe; 1 would say that a gate had failed
        code = 141
    except OSError as bad:
        if bad.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS):
            code = _report_bug(bad)
        else:
            click.echo(f"loadgen: the output cannot be written: {(bad.strerror or str(bad)).lower()}", err=True)
            code = StorageError.exit_code
    except Exception as bug:
        code = _report_bug(bug)
    gc.freeze()  # the interpreter looks for garbage several times on its way out
    sys.exit(code if isinstance(code, int) else 0)


def _plain(text: str) -> str:
    """One line without control characters: parts of it may come from a server."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def _report_bug(bug: Exception) -> int:
    """A bug in the tool: one line on the terminal, the details in a file whose name is printed."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="loadgen-bug-", suffix=".txt", delete=False, encoding="utf-8") as out:
        traceback.print_exception(bug, file=out)
    click.echo(f"loadgen: a bug in loadgen: {type(bug).__name__}: {bug} - details are in {out.name}", err=True)
    return LoadgenError.exit_code
