"""`loadgen run`: measure an endpoint and write the run.

Knows: flags, and which exit code an outcome has. Must not know: how anything is measured.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.options import endpoint_options, limit_options, load_options, rule_options
from loadgen.cli.values import Number
from loadgen.errors import EndpointError

if TYPE_CHECKING:
    from loadgen.cli.measure import Recipe
    from loadgen.engine.course import Course

# What a run says about the hardware under its endpoint; kept in run.json as `roofline`.
HARDWARE = ("gpu", "gpus", "shape", "dtype", "weights", "compute", "kv", "price_per_gpu_hour")


@click.command("run")
@click.argument("url")
@load_options
@rule_options
@limit_options
@endpoint_options
@click.option("--slo", multiple=True, metavar="EXPR", help="Gate, such as 'p99(ttft) < 1s'; decides the exit code.")
@click.option("--note", multiple=True, metavar="K=V", help="A note to keep with the run, such as engine_flags='...'.")
@click.option(
    "--provenance",
    multiple=True,
    metavar="K=V",
    help="A fact about the server that it does not tell, such as tp_size=2, driver=570.86 or engine_flags='...'.",
)
@click.option("--gpu", help="GPU that the endpoint runs on, for the roofline, such as h100-sxm.")
@click.option(
    "--gpus", type=click.IntRange(1), default=1, show_default=True, help="How many of them (tensor parallel)."
)
@click.option("--shape", help="Model shape, for the roofline, such as llama-3.1-8b, or a config.json.")
@click.option("--dtype", default="bf16", show_default=True, help="Data type, for the roofline: bf16, fp8, w4a16, ...")
@click.option("--weights", help="Type of the weights, in place of the data type's.")
@click.option("--compute", help="Type of the matrix products, in place of the data type's.")
@click.option("--kv", help="Type of the KV cache, in place of the data type's.")
@click.option(
    "--price-per-gpu-hour", type=Number(0, min_open=True), help="Price of one GPU for an hour, in any currency."
)
@click.option("--prometheus-port", type=click.IntRange(1, 65535), help="Serve the client's own live metrics meanwhile.")
@click.option("--no-report", is_flag=True, help="Write the run, but no HTML report and no summary.")
@click.option("-o", "--output", type=click.Path(), help="Folder of the run.  [default: runs/TIME]")
@click.option("--dump-spec", is_flag=True, help="Print these flags as a SPEC.yaml, and send nothing.")
@click.pass_context
def command(ctx: click.Context, /, url: str, dump_spec: bool, **given: Any) -> int:
    """Measure the endpoint at URL: every workload at every load, then the report.

    In place of URL, a SPEC.yaml whose keys are these flags (and url).
    """
    from loadgen.cli import spec, values

    url, given = spec.with_spec(ctx, url, given)
    if dump_spec:
        click.echo(spec.dump_spec(ctx, url, given), nl=False)
        return 0
    values.check(given)  # a mistake is told before the first request
    if given["spread"] == "each":
        from loadgen.cli.several import each

        return each(url, given, _one)
    return _one(url, given)[1]


def _one(url: str, given: dict[str, Any]) -> tuple[Path, int]:
    """One run: its folder and its exit code."""
    from loadgen.cli.measure import measure
    from loadgen.cli.options import settings_from

    run_dir, _, interrupted = measure(
        settings_from(url, given),
        course_of(given),
        recipe_of(given),
        output=None if given["output"] is None else Path(given["output"]),
        resume=given["resume"],
        prometheus_port=given["prometheus_port"],
        ray=given["ray"],
    )
    return run_dir, finish(run_dir, given["slo"], report=not given["no_report"], interrupted=interrupted)


def course_of(given: dict[str, Any]) -> Course:
    """What a run of these flags does, stage by stage. Raises UsageError."""
    from loadgen.cli.measure import say
    from loadgen.cli.stages import stages_from, warmup_of
    from loadgen.cli.values import read_budget
    from loadgen.engine.course import Listed
    from loadgen.engine.experiment import Experiment

    stages = stages_from(given)
    if given["profile"] is not None:
        return Experiment(stages, read_budget(given["budget"] or "30m"), warmup_of(given), say)
    return Listed(stages, given["stop_on"], given["until"])


def recipe_of(given: dict[str, Any], search: dict[str, Any] | None = None) -> Recipe:
    """What is kept with the run beside its requests."""
    from loadgen.cli.measure import Recipe
    from loadgen.cli.values import read_fact, read_note

    return Recipe(
        sys.argv,
        dict(read_note(text) for text in given["note"]),
        _hardware(given),
        given["slo"],
        given["until"],
        given["stop_on"],
        search,
        dict(read_fact(text) for text in given["provenance"]),
    )


def _hardware(given: dict[str, Any]) -> dict[str, Any]:
    """What the endpoint is said to run on, in words that need no file beside the run."""
    found = {key: given[key] for key in HARDWARE}
    if found["shape"]:
        from loadgen.roofline.catalog import spelled
        from loadgen.store.shapefile import is_shape_file, read_shape

        found["shape"] = spelled(read_shape(found["shape"])) if is_shape_file(found["shape"]) else found["shape"]
    return found


def finish(run_dir: Path, slo: tuple[str, ...], *, report: bool, interrupted: bool) -> int:
    """Print the summary of a finished run, write its report, and decide the exit code."""
    from loadgen.analysis.summary import summarise
    from loadgen.cli.measure import summary_lines
    from loadgen.store.runfile import open_run
    from loadgen.store.serverfile import read_server

    info, requests = open_run(run_dir)
    summary = summarise(info, requests, slo, read_server(run_dir))
    for line in summary_lines(summary):
        click.echo(line)
    if report:
        from loadgen.report.render import write_report

        click.echo(f"report: {write_report(run_dir)}")
    click.echo(f"run:    {run_dir}")
    if interrupted:
        return 130
    counts = [stage.counts for stage in summary.stages]
    if counts and sum(c.sent for c in counts) > 0 and not any(c.ok for c in counts):
        raise EndpointError("every request failed", where=str(info.endpoint.get("url", "")), do="see the report")
    outcomes = {result.outcome for result in summary.slo}
    if "fail" in outcomes:
        return 1
    return 3 if "undecidable" in outcomes or (slo and summary.verdict == "invalid") else 0
