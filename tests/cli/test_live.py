"""What a run shows while it goes on: the page of live metrics, and the progress line on a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from loadgen.cli import main
from loadgen.engine.livepage import LivePage, serve
from loadgen.engine.runner import Live
from loadgen.errors import UsageError
from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess
from tests.busy import DEADLINE_S, Busy, again

FLAGS = ["-w", "chat", "--no-report", "--metrics", "off", "--warmup", "1", "--concurrency", "2", "--requests", "6"]
LENGTHS = ["--prompt-tokens", "40", "--output-tokens", "60"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_the_page_shows_what_the_client_sees_while_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SimulatorProcess(simulated()) as server:

        def attempt(number: int) -> tuple[int, str]:
            port = free_port()
            given = [server.url, *FLAGS, *LENGTHS, "-o", str(tmp_path / "run"), "--prometheus-port", str(port)]
            page = _watched(["run", *given], port)
            if not _first_chunks(page):
                raise Busy  # the page was never read between the first answer and the end
            return port, page

        port, page = again(attempt)
    assert "in flight" not in capsys.readouterr().err  # no progress line where there is no terminal
    families = {family.name: family for family in text_string_to_metric_families(page)}
    (seen,) = _first_chunks(page)
    assert 0 < seen.value <= 6
    assert seen.labels == {"gen_ai_operation_name": "chat", "gen_ai_request_model": "Llama-3.1-8B"}
    assert {"gen_ai_client_token_usage", "loadgen_requests_in_flight", "loadgen_requests_sent"} <= families.keys()
    ttft = families["gen_ai_client_operation_time_to_first_chunk_seconds"].samples
    assert max(s.value for s in ttft if s.name.endswith("_bucket")) == seen.value
    with pytest.raises(OSError, match="refused"):  # the page went with the run
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S)


def _watched(words: list[str], port: int) -> str:
    """The last page that was read while the command ran, which must end well."""
    pages, over = [""], threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            url = f"http://127.0.0.1:{port}/metrics"
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=DEADLINE_S) as page:
                pages.append(page.read().decode())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with pytest.raises(SystemExit) as left:
            main(words)
    finally:
        over.set()
        watcher.join()
    assert left.value.code == 0
    return pages[-1]


def _first_chunks(page: str) -> list[Sample]:
    """The count of first chunks, if there has been one."""
    families = {family.name: family for family in text_string_to_metric_families(page)}
    ttft = families.get("gen_ai_client_operation_time_to_first_chunk_seconds")
    return [s for s in ttft.samples if s.name.endswith("_count") and s.value] if ttft else []


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="cannot be used"):
        serve(LivePage(Live(), lambda: ("chat", "m")), taken.getsockname()[1])


def test_the_progress_line_is_drawn_on_a_terminal(tmp_path: Path) -> None:
    with SimulatorProcess(simulated()) as server:
        command = [sys.executable, "-m", "loadgen", "run", server.url, *FLAGS, *LENGTHS, "-o", str(tmp_path / "run")]
        ours, theirs = pty.openpty()
        done = subprocess.Popen(command, stderr=theirs, stdout=subprocess.DEVNULL, env={**os.environ, "COLUMNS": "120"})
        os.close(theirs)
        shown = b""
        while True:
            try:
                data = os.read(ours, 4096)
            except OSError:  # the terminal ends with the program
                break
            if not data:
                break
            shown += data
        os.close(ours)
        assert done.wait(DEADLINE_S) == 0
        assert b"in flight" in shown
