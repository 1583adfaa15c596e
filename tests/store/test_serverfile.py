"""`server.jsonl`: what is written can be read, and what cannot be read is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.analysis.server import Histogram, Scrape
from loadgen.errors import StorageError
from loadgen.store.serverfile import ServerWriter, read_server

SCRAPE = Scrape(5, 1, 0, 0, ("vllm",), {"running": 2.0}, {"ttft_s": Histogram(1.5, 3.0, (0.1, 1.0), (1.0, 3.0))})


def test_a_log_comes_back_as_it_was(tmp_path: Path) -> None:
    write = ServerWriter(tmp_path)
    write(SCRAPE)
    write(Scrape(9, 1, 1, 0))
    log = read_server(tmp_path)
    assert log is not None
    assert log.scrapes == (SCRAPE, Scrape(9, 1, 1, 0))


def test_a_run_without_telemetry_has_no_log(tmp_path: Path) -> None:
    assert read_server(tmp_path) is None
    assert read_server(tmp_path / "nothing") is None
    (tmp_path / "server.jsonl").write_bytes(b"")
    assert read_server(tmp_path) is None


def test_torn_and_damaged_lines_are_left_out(tmp_path: Path) -> None:
    ServerWriter(tmp_path)(SCRAPE)
    with open(tmp_path / "server.jsonl", "ab") as out:
        out.write(b'{"t_ns": "soon"}\n\xff\n\n{"t_ns":12,"to')
    log = read_server(tmp_path)
    assert log is not None
    assert log.scrapes == (SCRAPE,)


def test_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such file"):
        ServerWriter(tmp_path / "gone")(SCRAPE)
