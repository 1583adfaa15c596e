"""What `run`, `search` and `demo` have in common: make the run folder, run the session, say in short what came of it.

Knows: the order of a run as a user sees it. Must not know: flags, HTML, how a metric is computed.
"""

from __future__ import annotations

import datetime
import math
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.analysis.numbers import percent, quantity, significant, whole
from loadgen.cli.expense import ahead, spent
from loadgen.cli.resume import resumed
from loadgen.errors import LoadgenError
from loadgen.model import Exchange, RunInfo

if TYPE_CHECKING:
    from loadgen.analysis.server import Scrape
    from loadgen.analysis.summary import StageSummary, Summary
    from loadgen.cli.progress import Progress
    from loadgen.engine.course import Course, Rows
    from loadgen.engine.links import Staff
    from loadgen.engine.runner import Live
    from loadgen.engine.settings import PartSink, Settings
    from loadgen.plan.schedule import StageSpec
    from loadgen.store.runfile import RunWriter


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is kept with a run beside its requests: how it was asked for, and what is known of the hardware."""

    command: list[str]
    notes: dict[str, str]
    roofline: dict[str, Any]
    slo: Sequence[str] = ()
    until: str | None = None
    stop_on: Sequence[str] = ()
    search: dict[str, Any] | None = None
    provenance: dict[str, str] = field(default_factory=dict)  # facts about the server that it does not tell


def measure(
    settings: Settings,
    course: Course,
    recipe: Recipe,
    *,
    output: Path | None,
    resume: Path | None = None,
    prometheus_port: int | None = None,
    ray: str | None = None,
) -> tuple[Path, RunInfo, bool]:
    """Run and write; returns the run's folder, its info, and whether it was interrupted.

    The folder appears only once the endpoint has answered: an unusable endpoint leaves nothing behind. With `resume`
    the run in that folder goes on.
    """
    from loadgen.engine.session import run_session
    from loadgen.store.runfile import unique_run_path

    now = datetime.datetime.now(datetime.UTC)
    spec = {"roofline": recipe.roofline, "slo": list(recipe.slo), **_spec(settings, course.foreseen)}
    spec |= {"until": recipe.until, "stop_on": list(recipe.stop_on)}
    spec |= {} if recipe.search is None else {"search": recipe.search}
    if resume is None:
        info = _new_info(settings, spec, recipe, now.isoformat(timespec="seconds"))
        wanted = output if output is not None else Path("runs") / now.strftime("%Y%m%d-%H%M%S")
        unique_run_path(wanted)  # a folder that cannot be made is told before anything is sent
        sink = _LateSink(wanted, lambda: say(ahead(settings, course.foreseen, recipe.search)))
    else:
        settings, info = resumed(resume, settings, spec)
        sink = _LateSink(resume, lambda: None, resume=True)
    watch, close_page = _watched(info, prometheus_port)
    try:
        with _staffed(ray, settings.workers) as staff:
            interrupted = run_session(settings, course, info, sink, say=say, observe=watch, staff=staff)
    except LoadgenError as bad:
        info.error = str(bad)
        sink.close(info, "failed")
        raise
    except BaseException:
        sink.close(info, "failed")
        raise
    finally:
        close_page()
    if interrupted and not sink.opened:
        raise click.exceptions.Abort  # stopped before the endpoint had answered: there is nothing to keep
    path = sink.close(info, "interrupted" if interrupted else "complete")
    return path, info, interrupted


def _staffed(ray: str | None, workers: int) -> AbstractContextManager[Staff]:
    """Where the workers come from: this machine, or the nodes of a Ray cluster."""
    if ray is None:
        from loadgen.engine.links import Processes

        return nullcontext(Processes())
    from loadgen.engine.raystaff import ray_staff

    return ray_staff(ray, workers, say)


def _watched(info: RunInfo, port: int | None) -> tuple[Callable[[Live], Progress], Callable[[], None]]:
    """Who watches the run: the progress line and, with a port, a page of live metrics; and what closes that page."""
    from loadgen.cli.progress import Progress

    if port is None:
        return Progress, lambda: None
    from loadgen.analysis.tally import Tally
    from loadgen.engine.livepage import LivePage, serve
    from loadgen.engine.runner import Live

    page = LivePage(Live(), lambda: (str(info.endpoint.get("dialect", "")), str(info.endpoint.get("model", ""))))
    close = serve(page, port)
    say(f"live metrics at http://127.0.0.1:{port}/metrics")

    def watch(live: Live) -> Progress:
        page.live = live
        live.tally = Tally()
        return Progress(live)

    return watch, close


def _new_info(settings: Settings, spec: dict[str, Any], recipe: Recipe, created: str) -> RunInfo:
    from loadgen.engine.host import host_facts, public_command, versions
    from loadgen.store.runfile import SCHEMA

    return RunInfo(
        schema=SCHEMA,
        status="running",
        run_id=uuid.uuid4().hex,
        created=created,
        spec=spec,
        command=public_command(recipe.command),
        host=host_facts(),
        versions=versions(),
        seed=settings.seed,
        nonce=settings.nonce,
        endpoint={"given": recipe.provenance} if recipe.provenance else {},
        notes=recipe.notes,
    )


def say(line: str) -> None:
    """A line about how the run goes, beside its results."""
    click.echo(f"loadgen: {line}", err=True)


def _spec(settings: Settings, stages: Sequence[StageSpec]) -> dict[str, Any]:
    """What the run was asked to do, in plain values."""
    from loadgen.cli.record import stage_records
    from loadgen.engine.host import public_url

    return ({"endpoints": [public_url(url) for url in settings.others]} if settings.others else {}) | {
        "seed": settings.seed,
        "max_tokens_total": settings.budget.tokens,
        "max_cost": settings.budget.cost,
        "prices": None if settings.budget.prices is None else asdict(settings.budget.prices),
        "warmup": settings.warmup,
        "burst_start": settings.burst_start,
        "keep_text": settings.keep_text,
        "guard": settings.guard,
        "temperature": settings.features.temperature,
        "extra_body": settings.features.extra_body,
        "timeouts_ns": {
            "connect": settings.limits.connect_ns,
            "first": settings.limits.first_ns,
            "idle": settings.limits.idle_ns,
            "total": settings.limits.total_ns,
        },
        "stages": stage_records(stages),
    }


class _LateSink:
    """Creates the run folder at the first update, which the session makes when the endpoint has answered."""

    def __init__(self, wanted: Path, announce: Callable[[], None], *, resume: bool = False) -> None:
        self._wanted, self._announce, self._resume = wanted, announce, resume
        self._writer: RunWriter | None = None

    @property
    def opened(self) -> bool:
        """Whether the run's folder has been made."""
        return self._writer is not None

    def update(self, info: RunInfo) -> None:
        from loadgen.store.runfile import RunWriter, unique_run_path

        if self._writer is None and self._resume:
            self._writer = RunWriter.resume(self._wanted, info)
        elif self._writer is None:
            self._writer = RunWriter.create(unique_run_path(self._wanted), info)
            self._announce()
        self._writer.update(info)

    def write(self, exchange: Exchange) -> None:
        assert self._writer is not None
        self._writer.write(exchange)

    def telemetry(self) -> Callable[[Scrape], None]:
        from loadgen.store.serverfile import ServerWriter

        assert self._writer is not None
        return ServerWriter(self._writer.path)

    def parts(self) -> tuple[Path, Callable[[Path, int], PartSink]]:
        from loadgen.store.runfile import open_part

        assert self._writer is not None
        return self._writer.path, partial(open_part, resume=self._resume)

    def tail(self) -> Callable[[], Rows]:
        from loadgen.store.tail import Tail

        assert self._writer is not None
        return partial(Tail, self._writer.path)

    def close(self, info: RunInfo, status: Any) -> Path:
        if self._writer is None:
            return self._wanted
        info.status = status
        self._writer.update(info)
        self._writer.close(status)
        return self._writer.path


def summary_lines(summary: Summary, *, gates: bool = True) -> list[str]:
    """The run in short: the verdict of trust first, then a line for each stage, then what was skipped, the gates."""
    from loadgen.report.costs import table

    lines = [f"measurement: {summary.verdict.upper()}"]
    lines += [f"  {f.severity}: {f.message}" + (f" - {f.advice}" if f.advice else "") for f in summary.findings]
    for stage in summary.stages:
        lines += [_stage_line(stage), *_asked_line(stage), *_endpoint_lines(summary.info, stage)]
    lines += _error_lines(summary)
    lines += [f"skipped {line}" for line in summary.info.skipped]
    if (prices := summary.info.spec.get("prices")) and summary.stages:
        lines.append(spent(summary.stages[0].measured.requests, prices))
    lines += [f"cost: {text}" for text in table(summary)["sentences"]]
    told = summary.slo if gates else ()
    lines += [f"SLO {r.outcome.upper()} {r.stage}: {r.expr}" + (f"; {r.why}" if r.why else "") for r in told]
    return lines


def _error_lines(summary: Summary) -> list[str]:
    """One line for each kind of error: how many, and what the first one said."""
    counts: dict[str, int] = {}
    samples: dict[str, str] = {}
    for stage in summary.stages:
        requests = stage.measured.requests
        for row in stage.measured.columns.rows[stage.measured.columns.missed]:
            kind = requests.word("error_kind", int(row)) or "unknown"
            counts[kind] = counts.get(kind, 0) + 1
            samples.setdefault(kind, requests.word("error", int(row)) or "no reason given")
    return [f"error {kind}, {count} requests, the first: {samples[kind]}" for kind, count in counts.items()]


def _stage_line(stage: StageSummary) -> str:
    from loadgen.analysis.definitions import number

    counts = stage.counts
    head = f"{stage.info.name}: {counts.ok} ok, {counts.failed} failed"
    head += f", {counts.cancelled} cancelled" if counts.cancelled else ""
    figures = [
        ("TTFT p50", "ttft", "p50", "s"),
        ("p99", "ttft", "p99", "s"),
        ("TTFT from schedule p99", "ttft_scheduled", "p99", "s"),
        ("TPOT p50", "tpot", "p50", "s"),
        ("e2e p50", "e2e", "p50", "s"),
        ("whole server", "output_tokens_per_s", "rate", "output tokens/s"),
    ]
    parts = []
    for label, metric, stat, unit in figures:
        value = number(stage.measured, metric, stat)
        if not math.isnan(value) or metric != "ttft_scheduled":  # closed loop has no schedule
            parts.append(f"{label} {quantity(value if math.isfinite(value) else None, unit, 4)}")
    ended = stage.info.stopped or stage.info.reached
    return f"{head} | " + ", ".join(parts) + (f" | {ended}" if ended else "")


def _endpoint_lines(info: RunInfo, stage: StageSummary) -> list[str]:
    """A line for each of several endpoints."""
    from loadgen.analysis.endpoints import by_endpoint

    return [
        f"  {of['endpoint']}: {of['ok']} ok, {of['sent'] - of['ok']} not | "
        f"TTFT p50 {quantity(of['ttft_p50'], 's', 4)}, p99 {quantity(of['ttft_p99'], 's', 4)}, "
        f"TPOT p50 {quantity(of['tpot_p50'], 's', 4)}, {quantity(of['output_tokens_per_s'], 'output tokens/s', 4)}"
        for of in by_endpoint(info, stage.measured)
    ]


def _asked_line(stage: StageSummary) -> list[str]:
    """Lengths and arrivals, asked and got, in one line; nothing where no request succeeded."""
    from loadgen.analysis.asked import asked

    found = asked(stage.measured)
    parts = []
    for side in ("prompt", "output"):
        of = found[f"{side}_tokens"]
        if of["asked"] and of["got"]:
            words = f"{side} tokens {significant(of['asked']['mean'])} asked, {significant(of['got']['mean'])} got"
            words += f" ({whole(of['got']['p5'])} to {whole(of['got']['p95'])})"
            parts.append(words + (f", {of['misses']} of {of['compared']} off" if of["misses"] else ""))
    if (of := found["arrivals"]) is not None and of["sent"]["rate"] is not None:
        drawn = (
            "" if of["asked"]["cv"] is not None else f", {significant(of['planned']['rate'], 3)} drawn"
        )  # by a shape
        words = (
            f"{significant(of['asked']['rate'], 3)} requests/s asked{drawn}, {significant(of['sent']['rate'], 3)} sent"
        )
        cvs = [significant(of[name]["cv"], 3) for name in ("asked", "sent")]
        parts.append(f"{words}, variation of the gaps {' asked, '.join(cvs)}")
    if (of := found["cached_tokens"]) is not None and of["expected"]:
        share, told = of["expected"] / of["prompt_tokens"], of["reported"]
        reported = "not reported" if told is None else f"{percent(told / of['prompt_tokens'])} reported"
        parts.append(f"cached {percent(share)} of the prompt tokens expected, {reported}")
    return [f"  {'; '.join(parts)}"] if parts else []
