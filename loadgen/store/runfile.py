"""The only reader and writer of runs.

Knows: the folder's layout, how rows reach the disk safely, what to make of a folder that is not as it should be. Must
not know: what a row means (`analysis.row` has its keys), metrics, verdicts.
Why: a run is worth hours of a GPU; whatever happens to the process, the disk or the folder, what was measured is kept
and can be read, and nobody has to guess what was lost.

    RUN/run.json            `model.RunInfo`, replaced as a whole: there is always an old or a new one, never half of one
    RUN/requests.jsonl      one line per finished request, appended
    RUN/requests.w3.jsonl   the same, written by worker process 3
    RUN/server.jsonl        the server's own metrics, see `serverfile`

Each line is one `write` to the operating system, so that kill -9 loses only what was in flight. After a write that
failed (a full disk) the file is cut back to its last whole line. A reader tolerates a torn last line and counts damaged
ones; it reads files of schema numbers up to `SCHEMA` (a field that an older one lacks has its default).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from loadgen.analysis.frame import FrameBuilder, Requests
from loadgen.analysis.row import Row, row_of
from loadgen.errors import StorageError, UsageError
from loadgen.model import Exchange, Finding, RunInfo
from loadgen.store.fitfile import FIT_FILE
from loadgen.store.rebuild import info_from_rows
from loadgen.store.serverfile import SERVER_FILE
from loadgen.store.wholefile import replacing, storage_error

SCHEMA = 1
_INFO = "run.json"
_ROWS = "requests.jsonl"
_PART = re.compile(r"requests(\.w\d+)?\.jsonl")
_TAIL = 1 << 16  # bytes that are read at a time from the end of a file
_MAX_LINE = 64 << 20  # bytes; a longer "line" is no row


# -- writing --------------------------------------------------------------------------------------------------------


def unique_run_path(path: Path) -> Path:
    """`path`, or where something stands there already `path-2`, `path-3`, ... An empty folder counts as nothing.

    Raises:
        UsageError: no folder can be made there (a part of the path is a file, a name is too long or empty).
    """
    if not path.name:
        raise UsageError("is no name for a new folder", where=f"-o {path}")
    try:
        standing = next((p for p in path.parents if p.exists()), None)
        path.exists()
    except OSError as bad:
        raise UsageError(
            (bad.strerror or str(bad)).lower(), where=f"-o {path}"[:120], do="give another folder"
        ) from bad
    if standing is not None and not standing.is_dir():
        raise UsageError(f"{standing} is not a folder", where=f"-o {path}", do="give another folder")
    candidate, number = path, 1
    while _is_taken(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _is_taken(path: Path) -> bool:
    try:
        return next(path.iterdir(), None) is not None
    except FileNotFoundError:
        return path.is_symlink()
    except OSError:  # a file, or a folder that may not be looked into
        return True


class RowWriter:
    """One file of rows: `model.Sink` for a process. Used as it is by a worker, see `open_part`."""

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        """Create `path`; raises StorageError where it exists or cannot be made. With `resume` go on behind the last
        whole line of what is there; half a line, which a killed process left, is cut off."""
        self._path = path
        self._encoder = msgspec.json.Encoder()
        self._size = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (0 if resume else os.O_EXCL)
        try:
            self._file = os.open(path, flags, 0o644)
            if resume:
                self._size = _whole_lines(self._file)
                os.ftruncate(self._file, self._size)
        except OSError as bad:
            raise storage_error(bad, path) from bad

    def write(self, exchange: Exchange) -> None:
        """Append one request. Raises StorageError when it could not be kept; all earlier ones are."""
        self.append(_encode(self._encoder, row_of(exchange)) + b"\n")

    def append(self, lines: bytes) -> None:
        """Append whole lines. Raises StorageError when they could not be kept; all earlier ones are."""
        done = 0
        try:
            while done < len(lines):
                done += os.write(self._file, lines[done:])
        except OSError as bad:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise storage_error(bad, self._path) from bad
        self._size += done

    def close(self) -> None:
        """Make what was written safe against a power cut, too."""
        try:
            os.fsync(self._file)
        except OSError as bad:
            raise storage_error(bad, self._path) from bad
        finally:
            os.close(self._file)


class RunWriter:
    """A run that is being measured. `path` is its folder."""

    def __init__(self, path: Path, rows: RowWriter, info: RunInfo) -> None:
        self.path, self._rows, self._info = path, rows, info
        # Sockets may use up every descriptor that there is; the run's end needs one all the same.
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)

    @classmethod
    def create(cls, path: Path, info: RunInfo) -> RunWriter:
        """Make the folder (and those above it). Raises StorageError where there is a run already."""
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as bad:
            raise storage_error(bad, path) from bad
        # The rows come first: their file must not exist, so a run.json of another run cannot be replaced.
        writer = cls(path, RowWriter(path / _ROWS), info)
        writer.update(info)
        return writer

    @classmethod
    def resume(cls, path: Path, info: RunInfo) -> RunWriter:
        """Go on with the run in folder `path`. Raises StorageError."""
        return cls(path, RowWriter(path / _ROWS, resume=True), info)

    def write(self, exchange: Exchange) -> None:
        """Append one request. Raises StorageError when it could not be kept; all earlier ones are."""
        self._rows.write(exchange)

    def update(self, info: RunInfo) -> None:
        """Replace run.json. Raises StorageError; the old one is in place then."""
        self._info = info
        plain = msgspec.to_builtins(info)
        del plain["findings"]  # what a reader noticed is no part of the run
        text = msgspec.json.format(_encode(msgspec.json.Encoder(), _without_nan(plain)), indent=2)
        self._release_spare()
        try:
            with replacing(self.path / _INFO) as out:
                out.write(text + b"\n")
        finally:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)

    def _release_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def close(self, status: Literal["complete", "interrupted", "failed"]) -> None:
        """Write the run's end. Raises StorageError."""
        self._info.status = status
        try:
            self.update(self._info)
        finally:
            self._release_spare()
            self._rows.close()


def open_part(path: Path, worker: int, *, resume: bool = False) -> RowWriter:
    """The sink of worker process `worker` of the run at `path`. Raises StorageError: it exists, and no `resume`."""
    return RowWriter(path / f"requests.w{worker}.jsonl", resume=resume)


def _whole_lines(file: int) -> int:
    """Bytes of a file up to the end of its last whole line."""
    end = os.fstat(file).st_size
    while end:
        begin = max(end - _TAIL, 0)
        last = os.pread(file, end - begin, begin).rfind(b"\n")
        if last >= 0:
            return begin + last + 1
        end = begin
    return 0


def _encode(encoder: msgspec.json.Encoder, value: Any) -> bytes:
    try:
        return encoder.encode(value)
    except UnicodeEncodeError:  # half a surrogate pair, from a server or a file name: no UTF-8 can hold it
        return json.dumps(msgspec.to_builtins(value), ensure_ascii=False).encode("utf-8", "replace")


def _without_nan(value: Any) -> Any:
    """Plain values without the numbers that JSON does not have: they are not known, so their keys go."""
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items() if not _is_nan(one)}
    return [_without_nan(one) for one in value] if isinstance(value, list) else value


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


# -- reading --------------------------------------------------------------------------------------------------------


def open_run(path: Path) -> tuple[RunInfo, Requests]:
    """The run in folder `path`, finished or not. Raises StorageError where there is none that can be read.

    What was damaged is told in `info.findings`. Without run.json, what its rows tell about the run takes its place.
    """
    parts = parts_of(path)
    info = _read_info(path / _INFO)
    if info is None and not parts:
        raise UsageError("holds no run", where=str(path), do=_elsewhere(path))
    builder, findings = _read_rows(parts)
    requests = builder.build()
    if info is None:
        info = info_from_rows(requests, SCHEMA)
    info.findings = info.findings + findings
    return info, requests


def is_run(path: Path) -> bool:
    """Whether the folder `path` holds a run, or what a damaged one left."""
    return (path / _INFO).is_file() or any(_PART.fullmatch(file.name) for file in path.glob("requests*.jsonl"))


def is_part_of_run(file: Path, run: Path) -> bool:
    """Whether `file` is one of those that hold the run at `run`: nothing else may be written to it."""
    same_folder = file.resolve().parent == run.resolve()
    return same_folder and (file.name in (_INFO, SERVER_FILE, FIT_FILE) or _PART.fullmatch(file.name) is not None)


def parts_of(path: Path) -> list[Path]:
    """The files of rows; the parent's first, then the workers' by number."""
    try:
        found = [file for file in path.iterdir() if _PART.fullmatch(file.name)]
    except FileNotFoundError:
        raise UsageError("no such folder", where=str(path)) from None
    except NotADirectoryError:
        raise UsageError("is not a folder", where=str(path), do="give the folder of a run") from None
    except OSError as bad:
        raise storage_error(bad, path) from bad
    return sorted(found, key=lambda file: (len(file.name), file.name))


def _elsewhere(path: Path) -> str:
    """What to do about a folder without a run: name one below it, if there is one."""
    below = sorted(file.parent for file in path.glob(f"*/{_INFO}"))
    return f"did you mean {below[-1]}?" if below else f"give a folder with a {_INFO}, as `loadgen run` writes it"


def _read_info(file: Path) -> RunInfo | None:
    """What is in run.json; None where there is no such file."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as bad:
        raise storage_error(bad, file) from bad
    try:
        plain = msgspec.json.decode(content)
        schema = plain.get("schema") if isinstance(plain, dict) else None
        if not isinstance(schema, int) or schema < 1:
            raise StorageError("is not the run.json of a run", where=str(file), do="it has no schema number")
        if schema > SCHEMA:
            do = f"this loadgen reads up to {SCHEMA}: update it"
            raise StorageError(f"was written by a newer loadgen (schema {schema})", where=str(file), do=do)
        return msgspec.convert(plain, RunInfo)
    except (msgspec.MsgspecError, UnicodeDecodeError) as bad:
        do = "move it away to read the requests without it"
        raise StorageError(f"is damaged ({bad})", where=str(file), do=do) from None


def _read_rows(parts: list[Path]) -> tuple[FrameBuilder, list[Finding]]:
    builder, damaged, torn, twice = FrameBuilder(), 0, 0, 0
    seen: set[tuple[int, int]] = set()
    for part in parts:
        for row in _rows_of(part):
            if isinstance(row, str):
                torn, damaged = torn + (row == "torn"), damaged + (row == "damaged")
            elif (row.stage, row.request_id) in seen:
                twice += 1
            else:
                try:
                    builder.add_row(row)
                    seen.add((row.stage, row.request_id))
                except ValueError:
                    damaged += 1
    return builder, _findings(builder, damaged, torn, twice)


def _rows_of(file: Path) -> Iterator[Row | Literal["damaged", "torn"]]:
    """One line at a time. "torn" is a last line without its end, as a killed process can leave it."""
    decoder = msgspec.json.Decoder(Row)
    try:
        with open(file, "rb", buffering=1 << 20) as lines:
            while line := lines.readline(_MAX_LINE):
                too_long = len(line) == _MAX_LINE
                while len(line) == _MAX_LINE:
                    line = lines.readline(_MAX_LINE)
                try:
                    yield "damaged" if too_long else decoder.decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    if not line.isspace():
                        yield "damaged" if line.endswith(b"\n") else "torn"
    except OSError as bad:
        raise storage_error(bad, file) from bad


def _findings(builder: FrameBuilder, damaged: int, torn: int, twice: int) -> list[Finding]:
    found = []
    if twice:
        text = f"requests that stand twice in the run's files, counted once: {twice}"
        found.append(
            Finding("questionable", "rows_twice", text, float(twice), "copy the run again from where it was made")
        )
    if damaged:
        share = damaged / (damaged + len(builder))
        text = f"damaged lines of the run file, left out: {damaged} ({share:.2%} of all)"
        advice = "the figures are about the rest; copy the run again if it was copied, or check the disk"
        found.append(Finding("questionable", "damaged_lines", text, float(damaged), advice))
    if torn:
        text = f"last lines that a killed process left unfinished: {torn}"
        found.append(Finding("info", "torn_line", text, float(torn)))
    return found
