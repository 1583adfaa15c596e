"""The record of a matrix: what was to be measured, in which order, and how far that went.

Knows: the folder's layout and how the record is read and replaced. Must not know: servers, figures, flags.
Why: a matrix runs for hours, unattended. Whatever ends it, the record says which visits are done; the runs themselves
are ordinary folders that anything else can read.

    MATRIX/matrix.json                 this record, replaced as a whole
    MATRIX/runs/r1-SETTING/            the run of the first round's visit to a setting, as `loadgen run` writes it
    MATRIX/logs/r1-SETTING.log         what the server printed meanwhile
    MATRIX/matrix.html, summary.md     the report over all of them
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from loadgen.errors import StorageError, UsageError
from loadgen.store.wholefile import replacing, storage_error

SCHEMA = 1
RECORD = "matrix.json"
RUNS, LOGS = "runs", "logs"

# `failed`: the server did not start, or could not be used; `died`: it ended while it was measured.
State = Literal["waiting", "running", "done", "interrupted", "failed", "died"]


@dataclass(slots=True)
class VisitRecord:
    """A round's turn of one setting. `started` is ISO 8601, UTC; `ready_s` from there to health."""

    setting: str
    round: int  # from 1
    state: State = "waiting"
    run: str | None = None  # folder, from the matrix's
    log: str | None = None
    started: str | None = None
    seconds: float | None = None  # that the visit took
    ready_s: float | None = None
    error: str | None = None

    @property
    def name(self) -> str:
        """What its run and its log are called."""
        return f"r{self.round}-{self.setting}"


@dataclass(slots=True)
class MatrixRecord:
    """`matrix.json`. Plain JSON values only; values of environment variables and keys never enter."""

    schema: int
    created: str
    title: str
    seed: int
    repeats: int
    slo: list[str]
    settings: list[dict[str, Any]]
    stages: list[dict[str, Any]]
    visits: list[VisitRecord]
    status: Literal["running", "complete", "interrupted"] = "running"
    ports: dict[str, int] = field(default_factory=dict)  # of each setting: the same in every round
    command: list[str] = field(default_factory=list)


def is_matrix(path: Path) -> bool:
    """Whether the folder `path` holds a matrix."""
    return (path / RECORD).is_file()


def read_matrix(path: Path) -> MatrixRecord:
    """The record in folder `path`. Raises UsageError where there is none, StorageError where it cannot be read."""
    file = path / RECORD
    try:
        plain = msgspec.json.decode(file.read_bytes())
        schema = plain.get("schema") if isinstance(plain, dict) else None
        if isinstance(schema, int) and schema > SCHEMA:
            do = f"this loadgen reads up to {SCHEMA}: update it"
            raise StorageError(f"was written by a newer loadgen (schema {schema})", where=str(file), do=do)
        return msgspec.convert(plain, MatrixRecord)
    except FileNotFoundError:
        do = f"give a folder with a {RECORD}, as `loadgen matrix` writes it"
        raise UsageError("holds no matrix", where=str(path), do=do) from None
    except OSError as bad:
        raise storage_error(bad, file) from bad
    except (msgspec.MsgspecError, UnicodeDecodeError) as bad:
        raise StorageError(f"is damaged ({bad})", where=str(file), do="the runs beside it can still be read") from None


def write_matrix(path: Path, record: MatrixRecord) -> None:
    """Replace the record in folder `path`, which is made if need be. Raises StorageError; the old one stays then."""
    try:
        for folder in (path, path / RUNS, path / LOGS):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as bad:
        raise storage_error(bad, path) from bad
    with replacing(path / RECORD) as out:
        out.write(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
