"""Where rows go: a file or standard output, and Parquet where its extra is installed.

Knows: how an output is opened, how Parquet is written. Must not know: which rows, or what they mean.
Why: `export` writes requests, `report` statistics; a full disk, a terminal, a missing extra are the same for both.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from loadgen.errors import StorageError, UsageError

_BATCH = 5000  # rows of a Parquet row group


@contextlib.contextmanager
def opened(output: Path | None, *, binary_only: bool) -> Iterator[IO[bytes]]:
    """The file, or standard output. A disk that is full or a folder that is not there is one line for the user."""
    from loadgen.store.wholefile import replacing

    if output is None and binary_only and sys.stdout.isatty():
        raise UsageError("Parquet is no text for a terminal", where="--format parquet", do="give -o FILE")
    if output is not None:
        with replacing(output) as out:
            yield out
        return
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has had enough
        raise
    except OSError as bad:
        raise StorageError((bad.strerror or str(bad)).lower(), where="standard output") from bad


def write_parquet(rows: Iterator[dict[str, Any]], schema: Any, out: IO[bytes]) -> None:
    """Write rows of a pyarrow schema, some thousands in memory at a time."""
    from pyarrow import parquet

    pa = pyarrow()
    with parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        while batch := list(itertools.islice(rows, _BATCH)):
            writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))


def pyarrow() -> Any:
    """The library that writes Parquet. Raises UsageError where its extra is not installed."""
    try:
        import pyarrow
    except ImportError:
        raise UsageError(
            "needs the extra `parquet`", where="--format parquet", do="pip install 'loadgen[parquet]'"
        ) from None
    return pyarrow
