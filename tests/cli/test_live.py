"""What a run shows while it goes on: the page of live metrics, and the progress line on a terminal."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.cli import main
from loadgen.engine.livepage import LivePage, serve
from loadgen.engine.runner import Live
from loadgen.errors import UsageError
from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess

FLAGS = ["-w", "chat", "--no-report", "--metrics", "off", "--warmup", "1", "--concurrency", "2", "--requests", "6"]
LENGTHS = ["--prompt-tokens", "40", "--output-tokens", "60"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_the_page_shows_what_the_client_sees_while_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port, pages, over = free_port(), [""], threading.Event()

    def watch() -> None:
        while not over.is_set():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
                    pages.append(page.read().decode())
            except OSError:
                pass
            time.sleep(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with SimulatorProcess(simulated()) as server:
            given = [server.url, *FLAGS, *LENGTHS, "-o", str(tmp_path / "run"), "--prometheus-port", str(port)]
            with pytest.raises(SystemExit) as left:
                main(["run", *given])
    finally:
        over.set()
        watcher.join()
    assert left.value.code == 0
    assert "in flight" not in capsys.readouterr().err  # no progress line where there is no terminal
    families = {family.name: family for family in text_string_to_metric_families(pages[-1])}
    ttft = families["gen_ai_client_operation_time_to_first_chunk_seconds"].samples
    seen = next(s for s in ttft if s.name.endswith("_count"))
    assert 0 < seen.value <= 6
    assert seen.labels == {"gen_ai_operation_name": "chat", "gen_ai_request_model": "Llama-3.1-8B"}
    assert {"gen_ai_client_token_usage", "loadgen_requests_in_flight", "loadgen_requests_sent"} <= families.keys()
    assert max(s.value for s in ttft if s.name.endswith("_bucket")) == seen.value
    with pytest.raises(OSError, match="refused"):  # the page went with the run
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


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
        assert done.wait(30) == 0
        assert b"in flight" in shown
