"""A server that loadgen starts: awaited, stopped with all that it started, and outlived by nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from loadgen.engine.launch import Launch, Server, is_healthy, take_port
from loadgen.errors import EndpointError

# Answers 503 once, then 200 at /health. It ignores SIGTERM, has a child, and a grandchild that left its session.
_STUBBORN = """
import http.server, os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(99)"
child = subprocess.Popen([sys.executable, "-c", deaf])
daemon = subprocess.Popen(["sleep", "99"], start_new_session=True)
asked = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global asked
        asked += 1
        self.send_response(503 if asked == 1 else 200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *words): pass
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print(os.getpid(), child.pid, daemon.pid, flush=True)
server.serve_forever()
"""


def _launch(folder: Path, code: str, *, patience_s: float = 20.0) -> Launch:
    port = take_port()
    words = [sys.executable, "-c", code, str(port)]
    return Launch(words, f"http://127.0.0.1:{port}", folder / "log", folder, patience_s=patience_s, grace_s=0.2)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _pids(log: Path) -> list[int]:
    return [int(word) for word in log.read_text().split()]


def _until(true: Callable[[], object]) -> None:
    for _ in range(2000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come true")


def test_it_is_awaited_and_nothing_that_it_started_is_left(tmp_path: Path) -> None:
    with Server(_launch(tmp_path, _STUBBORN)) as server:
        pids = _pids(tmp_path / "log")
        assert len(pids) == 3
        assert all(map(_lives, pids))
        assert server.died() == ""
        assert server.ready_s > 0
    assert not any(map(_lives, pids))


def test_nothing_survives_a_kill_of_loadgen(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from loadgen.engine.launch import Launch, Server, take_port
port = take_port()
with Server(Launch([sys.executable, "-c", {_STUBBORN!r}, str(port)], f"http://127.0.0.1:{{port}}",
                   Path("log"), Path("."), grace_s=0.1)):
    print("up", flush=True)
    time.sleep(99)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "up\n"
    pids = _pids(tmp_path / "log")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    _until(lambda: not any(map(_lives, pids)))


def test_one_that_ends_is_told_at_once_with_its_last_lines(tmp_path: Path) -> None:
    launch = _launch(tmp_path, "print('loading'); print('CUDA out of memory'); raise SystemExit(7)", patience_s=600)
    with pytest.raises(EndpointError, match=r"ended with exit code 7; its last lines: loading \| CUDA out of memory"):
        Server(launch).__enter__()
    killed = _launch(tmp_path / "x", "import os; os.kill(os.getpid(), 9)", patience_s=600)
    (tmp_path / "x").mkdir()
    with pytest.raises(EndpointError, match="was killed by signal 9; its log is empty"):
        Server(killed).__enter__()


def test_one_that_cannot_be_started_or_never_gets_healthy_is_told(tmp_path: Path) -> None:
    missing = Launch(["no-such-program-here"], "http://127.0.0.1:9", tmp_path / "log", tmp_path)
    with pytest.raises(EndpointError, match=r"exit code 127.*cannot be started.*no-such-program-here"):
        Server(missing).__enter__()
    slow = _launch(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(99)", patience_s=0.5)
    slow.log.unlink()
    with pytest.raises(EndpointError, match=r"not healthy after 0\.5 s"):
        Server(slow).__enter__()
    assert not any(map(_lives, _pids(slow.log)))


def test_one_that_dies_while_it_is_measured_says_so(tmp_path: Path) -> None:
    with Server(_launch(tmp_path, _STUBBORN)) as server:
        told = Event()
        with server.alarmed(told.set):
            os.kill(_pids(tmp_path / "log")[0], signal.SIGKILL)
            assert told.wait(20)
        assert server.died().startswith("was killed by signal 9")


def test_one_that_is_stopped_in_order_raises_no_alarm(tmp_path: Path) -> None:
    told = Event()
    with Server(_launch(tmp_path, _STUBBORN)) as server, server.alarmed(told.set):
        pass
    assert not told.is_set()


@pytest.fixture
def pages() -> Iterator[tuple[str, dict[str, int]]]:
    """A server whose pages answer with the statuses of a dict; all others 404."""
    statuses: dict[str, int] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses.get(self.path, 404))
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", statuses
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("statuses", "healthy"),
    [
        ({"/health": 200}, True),
        ({"/health": 503, "/v1/models": 200}, False),  # it loads its weights
        ({"/v1/models": 200}, True),
        ({"/v1/models": 401}, True),  # it wants a key, so it is up
        ({"/health": 500}, False),
        ({}, False),
    ],
)
def test_the_first_health_page_that_there_is_decides(
    pages: tuple[str, dict[str, int]], statuses: dict[str, int], healthy: bool
) -> None:
    url, known = pages
    known |= statuses
    assert is_healthy(url, ("/health", "/v1/models")) is healthy


def test_a_port_that_is_taken_is_refused(pages: tuple[str, dict[str, int]]) -> None:
    with pytest.raises(EndpointError, match="taken by another process"):
        take_port(int(pages[0].rpartition(":")[2].removesuffix("/v1")))
