"""The simulator as a process: it starts, it serves, and it always ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request

import pytest

from loadgen.errors import EndpointError
from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess
from tests.busy import DEADLINE_S
from tests.command import run

WAIT_S = DEADLINE_S


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=WAIT_S) as response:
        return bytes(response.read())


def complete(url: str, tokens: int) -> dict[str, object]:
    data = json.dumps({"prompt": "Hi", "max_tokens": tokens}).encode()
    with urllib.request.urlopen(url + "/v1/completions", data=data, timeout=WAIT_S) as response:
        return dict(json.loads(response.read()))


def test_a_child_serves_and_accounts_for_its_lateness() -> None:
    with SimulatorProcess(simulated(time_scale=100.0, model="m")) as simulator:
        assert complete(simulator.url, 5)["usage"] == {
            "prompt_tokens": 1,
            "total_tokens": 6,
            "completion_tokens": 5,
            "prompt_tokens_details": None,
        }
    assert simulator.lateness.startswith("lateness of 5 steps:")
    with pytest.raises(OSError):
        get(simulator.url + "/health")


def test_a_port_that_is_taken_is_one_clear_error() -> None:
    with SimulatorProcess() as first:
        port = int(first.url.rsplit(":", 1)[1])
        with pytest.raises(EndpointError) as refused:
            SimulatorProcess(port=port).__enter__()
    assert str(refused.value) == f"127.0.0.1:{port}: cannot listen: Address already in use"


def test_a_child_does_not_outlive_its_parent() -> None:
    source = (
        "from loadgen.simulator.process import SimulatorProcess\n"
        "import os\n"
        "SimulatorProcess().__enter__()\n"
        "os._exit(7)\n"
    )
    # The child has inherited the pipe of stderr: `run` returns only when both processes have closed it, or times out.
    parent = subprocess.run([sys.executable, "-c", source], stderr=subprocess.PIPE, timeout=WAIT_S)
    assert (parent.returncode, parent.stderr) == (7, b"")


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_the_command_prints_its_url_first_and_stops_on_a_signal(stop: signal.Signals) -> None:
    command = [sys.executable, "-m", "loadgen", "simulate", "--time-scale", "100", "--model", "m"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            url = child.stdout.readline().strip()
            assert json.loads(get(url + "/v1/models"))["data"][0]["id"] == "m"
            complete(url, 3)
            child.send_signal(stop)
            _, errors = child.communicate(timeout=WAIT_S)
        finally:
            child.kill()
    assert child.returncode == 0
    assert errors.startswith("lateness of 3 steps:")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--fault", "nonsense"], "unknown fault"),
        (["--gpu", "h1000"], "did you mean"),
        (["--shape", "llama-3.1-405b"], "use more GPUs"),
        (["--time-scale", "0"], "--time-scale"),
        (["--eos-rate", "1"], "--eos-rate"),
        (["--keep-alive", "soon"], "--keep-alive"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(flags: list[str], words: str) -> None:
    done = run("simulate", *flags)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
