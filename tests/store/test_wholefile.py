"""A file is replaced as a whole or stays: full disks, exceptions, links, and what is no regular file."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from loadgen.errors import StorageError
from loadgen.store.wholefile import replacing


@contextmanager
def a_disk_of(limit: int) -> Iterator[None]:
    """No file may grow beyond so many bytes: what a full disk looks like to the one who writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(b"old")
    with a_disk_of(100_000), pytest.raises(StorageError, match=r"report\.html: file too large"), replacing(path) as out:
        out.write(b"x" * 1_000_000)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_exception_leaves_the_old_file_and_is_not_renamed(tmp_path: Path) -> None:
    def interrupted(out: IO[bytes]) -> None:
        out.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "out") as out:
        interrupted(out)
    assert list(tmp_path.iterdir()) == []


def test_the_new_one_is_there_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with replacing(path) as out:
        out.write(b"new")
        out.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def test_a_link_keeps_its_place(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to("real")
    with replacing(link) as out:
        out.write(b"new")
    assert link.is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    with replacing(pipe) as out:
        out.write(b"through")
    reader.join(5)
    assert got == [b"through"]
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["no/such/folder/out", "."])
def test_what_cannot_be_written_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match="directory"), replacing(tmp_path / name) as out:
        out.write(b"x")
