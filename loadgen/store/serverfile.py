"""`RUN/server.jsonl`: what was read from the server's metrics, one line per page read.

Knows: the file and its lines. Must not know: HTTP, what a series means.
Why: appended line by line as it comes, so that a run that is killed keeps what its server said until then. A line that
cannot be read is left out: telemetry is never a reason to refuse a run.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from loadgen.analysis.server import Scrape, ServerLog
from loadgen.errors import StorageError

SERVER_FILE = "server.jsonl"


class ServerWriter:
    """Appends scrapes to the run folder `run`. The file appears with the first of them."""

    def __init__(self, run: Path) -> None:
        self._path = run / SERVER_FILE
        self._encoder = msgspec.json.Encoder()

    def __call__(self, scrape: Scrape) -> None:
        """Append one line. Raises StorageError."""
        try:
            with open(self._path, "ab", buffering=0) as out:
                out.write(self._encoder.encode(scrape) + b"\n")
        except OSError as bad:
            raise StorageError((bad.strerror or str(bad)).lower(), where=str(self._path)) from bad


def read_server(run: Path) -> ServerLog | None:
    """The telemetry of the run at `run`; None where it has none."""
    decoder = msgspec.json.Decoder(Scrape)
    scrapes = []
    try:
        with open(run / SERVER_FILE, "rb") as lines:
            for line in lines:
                with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                    scrapes.append(decoder.decode(line))
    except OSError:
        return None
    return ServerLog(tuple(scrapes)) if scrapes else None
