"""A file that is there as a whole or not at all.

Knows: that a new file beside the old one, renamed when it is complete, is the only way to replace one safely. Must not
know: what is in it.
Why: a disk that is full, or a process that is killed, must leave the old report, and never half of a new one.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from loadgen.errors import StorageError

_ADVICE = {
    errno.ENOSPC: "free some space; what was written before is kept",
    errno.EDQUOT: "the quota is used up; what was written before is kept",
    errno.EEXIST: "a run is never overwritten: give another folder",
    errno.EACCES: "choose a place that you may read and write",
    errno.ENOENT: "choose a folder that exists",
}


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of `path` in one step when the block ends well; else `path` stays.

    What is no regular file (a pipe, /dev/null) is written to as it is; a symbolic link keeps pointing where it does.

    Raises:
        StorageError: it cannot be written.
    """
    target = path.resolve()
    direct = target.exists() and not target.is_file()
    fresh = target if direct else target.with_name(f"{target.name}.new")
    try:
        with open(fresh, "wb") as out:
            yield out
            if not direct:
                out.flush()
                os.fsync(out.fileno())
        if not direct:
            fresh.replace(target)
    except BaseException as bad:
        if not direct:
            with contextlib.suppress(OSError):
                fresh.unlink()
        if isinstance(bad, OSError) and not isinstance(bad, BrokenPipeError):  # a reader who has had enough is no fault
            raise storage_error(bad, path) from bad
        raise


def storage_error(bad: OSError, path: Path) -> StorageError:
    """What the operating system said, in one line with what to do."""
    return StorageError((bad.strerror or str(bad)).lower(), where=str(path), do=_ADVICE.get(bad.errno or 0, ""))
