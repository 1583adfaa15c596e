"""One visit of a matrix: start the server of a setting, measure it as `loadgen run` does, stop it.

Knows: the order of a visit, and what is written down about it at which moment. Must not know: how a run is measured
(`measure`), how a server is kept (`engine.launch`), figures.
Why written before and after: a visit that was cut short is found by its record and goes on where its run allows it.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from loadgen.errors import EndpointError, LoadgenError, StorageError, UsageError
from loadgen.store.matrixfile import LOGS, RUNS, SCHEMA, MatrixRecord, State, VisitRecord, write_matrix

if TYPE_CHECKING:
    from loadgen.analysis.ending import Ending
    from loadgen.cli.matrix_spec import Matrix, Setting
    from loadgen.engine.course import Course, Rows
    from loadgen.engine.launch import Server
    from loadgen.model import RunInfo
    from loadgen.plan.schedule import StageSpec


def new_record(matrix: Matrix, created: str, argv: Sequence[str]) -> MatrixRecord:
    """The record of a matrix of which nothing is measured yet."""
    from loadgen.cli.record import stage_records
    from loadgen.cli.stages import stages_from
    from loadgen.engine.host import public_command
    from loadgen.plan.interleave import rounds

    names = [setting.name for setting in matrix.settings]
    visits = [
        VisitRecord(names[i], number)
        for number, order in enumerate(rounds(len(names), matrix.repeats, matrix.seed), 1)
        for i in order
    ]
    return MatrixRecord(
        schema=SCHEMA,
        created=created,
        title=matrix.title,
        seed=matrix.seed,
        repeats=matrix.repeats,
        slo=list(matrix.given["slo"]),
        settings=[setting.record() for setting in matrix.settings],
        stages=stage_records(stages_from(matrix.given)),
        visits=visits,
        command=public_command(list(argv)),
    )


def resumed_record(old: MatrixRecord, matrix: Matrix, where: str) -> MatrixRecord:
    """The record with which a matrix goes on: as it was, with more rounds where the spec asks for more, and with the
    gates of now. Raises UsageError where the spec is of another matrix."""
    asked = new_record(matrix, old.created, old.command)
    other = [key for key in ("seed", "settings", "stages") if getattr(old, key) != getattr(asked, key)]
    if other:
        what = ", ".join(other)
        raise UsageError(
            f"was made with another spec: {what} differ", where=f"--resume {where}", do="give its own spec"
        )
    lost = [visit for visit in old.visits if visit.round > matrix.repeats and visit.state != "waiting"]
    if lost:
        most = max(visit.round for visit in lost)
        what = f"has runs of {most} rounds, of which repeats {matrix.repeats} would leave out {len(lost)} visits"
        raise UsageError(what, where=f"--resume {where}", do=f"ask for {most} repeats or more")
    known = {(visit.round, visit.setting): visit for visit in old.visits}
    old.visits = [known.get((visit.round, visit.setting), visit) for visit in asked.visits]
    old.repeats, old.slo, old.status = asked.repeats, asked.slo, "running"
    return old


@dataclass(slots=True)
class Visiting:
    """Makes the visits of one matrix, each after the other; `record` is written to `folder` at each step."""

    matrix: Matrix
    folder: Path
    record: MatrixRecord
    _settings: dict[str, Setting] = field(init=False)

    def __post_init__(self) -> None:
        self._settings = {setting.name: setting for setting in self.matrix.settings}

    def visit(self, visit: VisitRecord) -> bool:
        """Measure; returns False when somebody stopped it. What goes wrong with a setting is written down, not raised.

        Raises StorageError: nothing more can be kept.
        """
        from loadgen.cli.measure import say

        setting, begun = self._settings[visit.setting], time.monotonic()
        number = self.record.visits.index(visit) + 1
        say(f"round {visit.round}, setting {visit.setting} ({number} of {len(self.record.visits)} visits)")
        before = visit.seconds or 0.0
        try:
            state: State = self._measured(setting, visit)
        except StorageError:  # nothing more can be kept
            raise
        except LoadgenError as bad:  # of this setting; the others go on
            state, visit.error = "failed", bad.what
            say(f"setting {visit.setting}: {bad}")
        finally:
            visit.seconds = round(before + time.monotonic() - begun, 3)
        visit.state = state
        write_matrix(self.folder, self.record)
        return state != "interrupted"

    def _measured(self, setting: Setting, visit: VisitRecord) -> State:
        """The state that the visit ends in."""
        port = self._port(setting)
        run, resume = self._run_folder(visit, setting, port)
        visit.state, visit.error = "running", None
        visit.run = str(run.relative_to(self.folder))
        visit.started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        visit.log = None if setting.argv is None else f"{LOGS}/{visit.name}.log"
        write_matrix(self.folder, self.record)
        with self._server(setting, visit, port) as server:
            visit.ready_s = None if server is None else round(server.ready_s, 3)
            with _stopped_by_its_death(server):
                path, interrupted = self._run(setting, visit, port, run, server, resume=resume)
            died = "" if server is None else server.died()
        visit.run = str(path.relative_to(self.folder))
        if died:
            from loadgen.cli.measure import say

            visit.error = f"the server {died}"
            say(f"setting {visit.setting}: {visit.error}")
        self._report(path, setting)
        return "died" if died else "interrupted" if interrupted else "done"

    def _port(self, setting: Setting) -> int:
        """The port of a setting: one for all rounds, so that its runs are of one endpoint; a new one where that is
        taken by now. Raises EndpointError."""
        from loadgen.engine.launch import take_port

        if setting.argv is None:
            return 0
        if setting.port is not None:
            return take_port(setting.port)
        try:
            found = take_port(self.record.ports.get(setting.name, 0))
        except EndpointError:
            found = take_port()
        self.record.ports[setting.name] = found
        return found

    def _run_folder(self, visit: VisitRecord, setting: Setting, port: int) -> tuple[Path, bool]:
        """The folder of the visit's run, and whether the run in it goes on. What cannot go on (its server died, its
        port is taken) stays as it is, and the visit begins anew beside it."""
        from loadgen.engine.host import public_url
        from loadgen.store.runfile import is_run, open_run, unique_run_path

        wanted = self.folder / (visit.run or f"{RUNS}/{visit.name}")
        if visit.state in ("running", "interrupted") and is_run(wanted):
            with contextlib.suppress(StorageError):
                url = str(open_run(wanted)[0].endpoint.get("url", ""))
                if not url or urlsplit(url).netloc == urlsplit(public_url(setting.url_at(port))).netloc:
                    return wanted, True
        return unique_run_path(self.folder / RUNS / visit.name), False

    @contextlib.contextmanager
    def _server(self, setting: Setting, visit: VisitRecord, port: int) -> Iterator[Server | None]:
        """The server while it runs, healthy; None for one that others run. Raises EndpointError."""
        from loadgen.engine.launch import HEALTH, Launch, Server, wait_for

        url = setting.url_at(port)
        if setting.argv is None:
            if setting.health or setting.patience_s is not None:
                wait_for(url, setting.health or HEALTH, setting.patience_s or 600.0)
            yield None
            return
        launch = Launch(
            setting.argv_at(port),
            url,
            self.folder / LOGS / f"{visit.name}.log",
            setting.cwd,
            setting.env_at(port),
            setting.health or HEALTH,
        )
        with Server(launch.within(setting.patience_s, setting.grace_s)) as server:
            yield server

    def _run(
        self, setting: Setting, visit: VisitRecord, port: int, run: Path, server: Server | None, *, resume: bool
    ) -> tuple[Path, bool]:
        """One ordinary run; each round has requests of its own, the same for all settings."""
        from loadgen.cli.measure import measure
        from loadgen.cli.options import settings_from
        from loadgen.cli.run import course_of, recipe_of

        given = setting.given | {
            "seed": self.matrix.seed + visit.round - 1,
            "slo": self.matrix.given["slo"],
            "note": (*setting.given["note"], f"matrix_setting={setting.name}", f"matrix_round={visit.round}"),
        }
        course: Course = course_of(given)
        path, _, interrupted = measure(
            settings_from(setting.url_at(port), given),
            course if server is None else WhileAlive(course, server),
            recipe_of(given),
            output=run,
            resume=run if resume else None,
            ray=given["ray"],
        )
        return path, interrupted

    def _report(self, run: Path, setting: Setting) -> None:
        """The run's own page; without one its figures stand in the matrix's all the same."""
        from loadgen.cli.measure import say
        from loadgen.report.render import write_report

        try:
            write_report(run)
        except Exception as bad:  # whatever it is, it must not end a matrix that has hours to go
            say(f"setting {setting.name}: no page of {run}: {bad} - `loadgen report` makes it again")


@contextlib.contextmanager
def _stopped_by_its_death(server: Server | None) -> Iterator[None]:
    """The run is stopped, as by Ctrl-C, when its server ends: refusals measure nothing. Raises EndpointError where that
    was before there was a run."""
    if server is None:
        yield
        return
    try:
        with server.alarmed(lambda: os.kill(os.getpid(), signal.SIGINT)):
            yield
    except (KeyboardInterrupt, click.exceptions.Abort):
        if told := server.died():
            raise EndpointError(f"the server {told}", where=server.launch.url) from None
        raise
    finally:
        if server.died():  # a run that was stopped ignores further signals, but the matrix goes on
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.default_int_handler)


@dataclass(slots=True)
class WhileAlive:
    """A course that is over as soon as the server has ended: nothing is measured against a closed port."""

    course: Course
    server: Server

    @property
    def ending(self) -> Ending:
        return self.course.ending

    @property
    def foreseen(self) -> Sequence[StageSpec]:
        return self.course.foreseen

    def next(self, info: RunInfo, rows: Rows) -> StageSpec | None:
        """See `Course`."""
        if self.server.died():
            ran = {stage.name for stage in info.stages}
            left = [spec.name for spec in self.course.foreseen if spec.name not in ran]
            info.skipped += [f"{name}: the server had ended" for name in left]
            return None
        return self.course.next(info, rows)
