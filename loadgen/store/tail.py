"""The rows of one stage of a run that may still be written.

Knows: that the files of rows only grow. Must not know: what is made of the rows.
Why: whoever looks at a running stage again and again reads each row once.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from loadgen.analysis.frame import FrameBuilder, Requests
from loadgen.analysis.row import Row
from loadgen.store.runfile import parts_of
from loadgen.store.wholefile import storage_error


class Tail:
    """Reads the run at `path`; call it with a stage's number for what has finished of it. A line that cannot be read,
    or is not whole yet, is left out: `open_run` tells of damage."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: dict[Path, int] = {}  # bytes of each file
        self._rows: list[Row] = []
        self._from = 0  # rows of earlier stages are not kept
        self._decoder = msgspec.json.Decoder(Row)

    def __call__(self, stage: int) -> Requests:
        """The stage's requests, warm-up left out. Raises StorageError."""
        if stage < self._from:
            self._read, self._rows = {}, []
        self._from = stage
        self._rows = [row for row in self._rows if row.stage >= stage]
        for part in parts_of(self._path):
            self._more(part)
        builder = FrameBuilder()
        for row in self._rows:
            if row.stage == stage:
                try:
                    builder.add_row(row)
                except ValueError:
                    continue
        return builder.build()

    def _more(self, part: Path) -> None:
        done = self._read.get(part, 0)
        try:
            with open(part, "rb") as lines:
                lines.seek(done)
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    done += len(line)
                    try:
                        row = self._decoder.decode(line)
                    except (msgspec.MsgspecError, UnicodeDecodeError):
                        continue
                    if row.stage >= self._from:
                        self._rows.append(row)
        except OSError as bad:
            raise storage_error(bad, part) from bad
        self._read[part] = done
