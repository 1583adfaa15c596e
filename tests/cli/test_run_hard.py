"""`loadgen run` treated badly: signals at bad moments, parents that die, folders that cannot be, servers that leak."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess
from loadgen.store.runfile import open_run
from tests.busy import DEADLINE_S, until
from tests.cli.test_run import QUICK, rows, written
from tests.command import LOADGEN, run
from tests.engine.scripted import Peer, Scripted
from tests.faultserver import document


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with SimulatorProcess(simulated(time_scale=4.0)) as simulator:
        yield simulator.url


def start(endpoint: str, out: Path, *words: str) -> subprocess.Popen[str]:
    line = [*LOADGEN, "run", endpoint, *QUICK, "--concurrency", "4", "--duration", "60s", "-o", str(out), *words]
    child = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    written(child, out, 10)
    return child


def workers_of(out: Path) -> list[int]:
    """Processes whose command line is a spawned worker and whose files lie in `out`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"spawn_main" in (entry / "cmdline").read_bytes():
                files = [str(fd.readlink()) for fd in (entry / "fd").iterdir()]
                found += [int(entry.name)] * any(file.startswith(str(out)) for file in files)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_impatience_loses_nothing(endpoint: str, tmp_path: Path, number: signal.Signals, workers: str) -> None:
    child = start(endpoint, tmp_path / "r", "--workers", workers)
    for _ in range(3):
        child.send_signal(number)
        time.sleep(0.02)
    out, err = child.communicate(timeout=DEADLINE_S)
    assert child.returncode == 130, err
    assert "Traceback" not in err
    assert "chat@4: " in out
    assert open_run(tmp_path / "r")[0].status == "interrupted"


def test_workers_do_not_outlive_a_parent_that_was_killed(endpoint: str, tmp_path: Path) -> None:
    child = start(endpoint, tmp_path / "r", "--workers", "2")
    assert len(workers_of(tmp_path / "r")) == 2
    child.kill()
    _, err = child.communicate(timeout=DEADLINE_S)  # ends when the last holder of the pipe has gone
    until(lambda: workers_of(tmp_path / "r") == [], "the workers have ended")
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_before_the_endpoint_has_answered(tmp_path: Path, number: signal.Signals) -> None:
    def silent(peer: Peer) -> None:
        peer.hold()

    with Scripted(silent) as server:
        words = [*LOADGEN, "run", server.url, *QUICK, "-o", str(tmp_path / "r")]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until(lambda: bool(server.peers), "the endpoint is being asked")
        child.send_signal(number)
        _, err = child.communicate(timeout=DEADLINE_S)
    assert child.returncode == 130
    assert err.strip() == "loadgen: interrupted"
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("where", ["file/run", "n" * 300, ""])
def test_a_folder_that_cannot_be_made_is_one_line(endpoint: str, tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("x")
    out = str(tmp_path / where) if where else ""
    done = run("run", endpoint, *QUICK, "--concurrency", "1", "--requests", "1", "-o", out)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


KEY = "sk-very-secret-key-9"
MODELS = b'{"data": [{"id": "m"}]}'


@pytest.mark.parametrize(
    "leak",
    [
        b'data: {"choices":[{"delta":{"content":"%s"},"finish_reason":"%s"}]}\n\n' % (KEY.encode(), KEY.encode()),
        b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"error":{"message":"bad %s"}}\n\n' % KEY.encode(),
        b"data: {broken " + "".join(f"\\u{ord(c):04x}" for c in KEY).encode() + b"}\n\nevent: error\ndata: x\n\n",
    ],
)
def test_what_a_server_says_of_the_key_reaches_no_disk(tmp_path: Path, leak: bytes) -> None:
    good = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
    seen: list[int] = []

    def answer(peer: Peer) -> None:
        while True:
            asked = peer.request()
            if not asked:
                return
            if asked.startswith(b"GET"):
                peer.send(document("200 OK", MODELS)[0][1])
                continue
            seen.append(1)
            body = good if len(seen) <= 3 else leak + b"data: [DONE]\n\n"
            peer.send(document("200 OK", body, kind="text/event-stream")[0][1])

    out = tmp_path / "r"
    with Scripted(answer) as server:
        words = [
            "--concurrency",
            "1",
            "--requests",
            "3",
            "--warmup",
            "0",
            "--keep-text",
            "--no-report",
            "--metrics",
            "off",
        ]
        done = run(
            *["run", server.url, "-w", "chat", "--prompt-tokens", "20", "--output-tokens", "2", *words, "-o", str(out)],
            *["--api-key-env", "LOADGEN_TEST_KEY"],
            env={"LOADGEN_TEST_KEY": KEY},
        )
    assert len(rows(out)) == 3, done.stderr
    stored = "".join(path.read_text(encoding="utf-8") for path in out.iterdir()) + done.stdout + done.stderr
    for secret in (KEY, "".join(f"\\u{ord(c):04x}" for c in KEY)):
        assert secret not in stored
        assert json.dumps(secret)[1:-1] not in stored


def test_credentials_of_a_url_are_sent_and_never_stored(endpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    url = endpoint.replace("http://", "http://user:hidden-password@")
    done = run("run", url, *QUICK, "--concurrency", "1", "--requests", "2", "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert "hidden-password" not in "".join(path.read_text(encoding="utf-8") for path in out.iterdir())
    assert run("report", str(out)).returncode == 0
    assert "hidden-password" not in (out / "report.html").read_text(encoding="utf-8")
