"""`loadgen search`: the highest request rate, or concurrency, that keeps an SLO.

Knows: flags, how the answer is printed, and which exit code it has. Must not know: which load is tried next
(`analysis.search`), how a probe is measured.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from loadgen.cli.run import command as run_command
from loadgen.cli.values import Number
from loadgen.errors import EndpointError, NotDecidable, UsageError

# The flags that only a search has.
SEARCH_OPTIONS: tuple[click.Option, ...] = (
    click.Option(
        ["--precision"],
        type=Number(0.1, 100),
        default=5.0,
        show_default=True,
        metavar="PERCENT",
        help="Search until what keeps the SLO and what does not are so near.",
    ),
    click.Option(
        ["--max-probes"], type=click.IntRange(1), default=40, show_default=True, help="Search: loads tried at most."
    ),
    click.Option(["--max-requests"], type=click.IntRange(1), help="Search: requests of all probes at most."),
    click.Option(["--max-time"], help="Search: time of all probes at most, such as 30m."),
)
# What `run` has and a search does not; with the value that says "not given".
_NOT_HERE: dict[str, Any] = dict.fromkeys(
    ("trace", "trace_speed", "trace_slice", "trace_context", "trace_block", "trace_spread", "until")
) | {"stop_on": ()}


@click.command(
    "search", params=[*(p for p in run_command.params if p.name not in ("url", *_NOT_HERE)), *SEARCH_OPTIONS]
)
@click.argument("url")
@click.pass_context
def command(ctx: click.Context, /, url: str, dump_spec: bool, **given: Any) -> int:
    """Find the highest --rate LO..HI (or --concurrency LO..HI) at which the endpoint at URL keeps every --slo.

    Each probe is a stage of a run; --requests or --duration is the length of a first one, which grows where a verdict
    needs more. Exit code 0: found. 1: even the lowest load breaks the SLO. 3: a limit, too little data, or an INVALID
    measurement ended it.
    """
    from loadgen.cli import spec, values
    from loadgen.cli.measure import measure, say
    from loadgen.cli.options import settings_from
    from loadgen.cli.run import recipe_of
    from loadgen.cli.stages import search_from
    from loadgen.engine.course import Searching

    url, given = spec.with_spec(ctx, url, given)
    if dump_spec:
        click.echo(spec.dump_spec(ctx, url, given), nl=False)
        return 0
    values.check(given)  # a mistake is told before the first request
    given = _NOT_HERE | given
    if given["spread"] == "each":
        raise UsageError("a search has one answer", where="--spread each", do="search at each endpoint by itself")
    likes, search = search_from(given)
    top = f"{search.high or likes[0].load.value:g}"
    settings = settings_from(url, given | {"concurrency" if search.whole else "rate": top})
    run_dir, _, interrupted = measure(
        settings,
        Searching(likes, search, given["slo"], say),
        recipe_of(given, asdict(search)),
        output=None if given["output"] is None else Path(given["output"]),
        resume=given["resume"],
        prometheus_port=given["prometheus_port"],
        ray=given["ray"],
    )
    return _finish(run_dir, report=not given["no_report"], interrupted=interrupted)


def _finish(run_dir: Path, *, report: bool, interrupted: bool) -> int:
    """Print what the run is worth and what was found, write the report, and decide the exit code."""
    from loadgen.analysis.summary import summarise
    from loadgen.cli.measure import summary_lines
    from loadgen.report.search import answer
    from loadgen.store.runfile import open_run
    from loadgen.store.serverfile import read_server

    info, requests = open_run(run_dir)
    summary = summarise(info, requests, (), read_server(run_dir))
    found = [f"search {one['workload']}: {answer(one)}" for one in info.search]
    for line in [*summary_lines(summary, gates=False), *found]:
        click.echo(line)
    if report:
        from loadgen.report.render import write_report

        click.echo(f"report: {write_report(run_dir)}")
    click.echo(f"run:    {run_dir}")
    if interrupted:
        return 130
    counts = [stage.counts for stage in summary.stages]
    if sum(c.sent for c in counts) > 0 and not any(c.ok for c in counts):
        raise EndpointError("every request failed", where=str(info.endpoint.get("url", "")), do="see the report")
    endings = {result["ending"] for result in info.search}
    return 1 if "none" in endings else NotDecidable.exit_code if "open" in endings or not endings else 0
