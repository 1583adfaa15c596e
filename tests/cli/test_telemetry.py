"""Telemetry and provenance through the whole route: real processes, real HTTP."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.analysis.measured import row_facts
from loadgen.analysis.server import ServerLog, server_series
from loadgen.analysis.server_stage import Client
from loadgen.analysis.summary import Summary, summarise
from loadgen.model import Finding
from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess
from loadgen.store.runfile import open_run
from loadgen.store.serverfile import read_server
from tests import llama
from tests.busy import until
from tests.cli.test_run import free_port, rows
from tests.command import LOADGEN, run, run_process
from tests.gateway import gateway

QUICK = ["-w", "chat", "--prompt-tokens", "200", "--output-tokens", "200", "--warmup", "2", "--no-report"]
_AROUND_NS = 100e6  # a reading takes as long on a busy machine
_MISSING = [name for name in ("xllamacpp", "gguf", "tokenizers") if importlib.util.find_spec(name) is None]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with SimulatorProcess(simulated(time_scale=2.0)) as simulator:
        yield simulator.url


def endpoint_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "run.json").read_text(encoding="utf-8"))["endpoint"]
    return found


def codes(path: Path) -> tuple[Summary, set[str]]:
    info, requests = open_run(path)
    summary = summarise(info, requests, (), read_server(path))
    return summary, {finding.code for finding in summary.findings}


def assert_running_is_ours(path: Path, log: ServerLog) -> None:
    """At every reading the server held what this client had in flight, give or take what began or ended around it."""
    _, requests = open_run(path)
    client = Client(requests, row_facts(requests))
    held = log.columns["running"].values + log.columns["waiting"].values
    took = {scrape.t_ns: scrape.took_ns for scrape in log.scrapes}
    checked = 0
    for moment, theirs in zip(log.columns["running"].t_ns, held, strict=True):
        around = _AROUND_NS + took[moment]  # where the machine stood still, the reading took as long
        edges = [client.in_flight(np.array([moment + shift]))[0] for shift in (-around, 0.0, around)]
        began = np.count_nonzero(np.abs(client.sent_ns - moment) < around)
        ended = np.count_nonzero(np.abs(client.last_ns - moment) < around)
        assert min(edges) - ended <= theirs <= max(edges) + began
        checked += bool(theirs)
    assert checked


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_servers_counter_agrees_with_the_client(endpoint: str, tmp_path: Path, workers: str) -> None:
    out = tmp_path / "r"
    words = [
        "--concurrency",
        "4",
        "--requests",
        "16",
        "--workers",
        workers,
        "--provenance",
        "tp_size=2",
        "-o",
        str(out),
    ]
    done = (run if workers == "1" else run_process)("run", endpoint, *QUICK, *words)
    assert done.returncode == 0, done.stderr
    summary, found = codes(out)
    assert not found & {"another_tenant", "metrics_of_a_part", "gateway_buffers", "server_restarted"}
    figures = summary.stages[0].server
    assert figures["generation_tokens"] == figures["client_generation_tokens"] == 16 * 200
    assert figures["running_max"] <= 4
    log = read_server(out)
    assert log is not None
    assert_running_is_ours(out, log)
    assert {"running", "kv_usage", "generation_tokens_per_s", "ttft_s", "itl_s"} <= set(server_series(log))
    told = endpoint_of(out)
    assert told["engine"] == "loadgen-simulator"
    assert told["provenance"]["vllm:cache_config_info"]["block_size"] == "16"
    assert told["telemetry"]["notes"] == []
    assert told["provenance"]["given"] == {"tp_size": "2"}
    assert "GPU" in told["unknown"]
    assert "parallelism" not in told["unknown"]


def test_a_second_load_on_the_server_is_named(endpoint: str, tmp_path: Path) -> None:
    words = [*QUICK, "--concurrency", "4", "--requests", "16"]
    hidden = tmp_path / "hidden"
    line = [*LOADGEN, "run", endpoint, *QUICK, "--concurrency", "4", "--duration", "10m", "--metrics", "off"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen([*line, "-o", str(hidden)], stdout=quiet, stderr=quiet) as other:
        until(lambda: len(rows(hidden)) > 0, "the other load is there")
        done = run("run", endpoint, *words, "-o", str(tmp_path / "r"))
        other.kill()
    assert done.returncode == 0, done.stderr
    assert "somebody else loads this server" in done.stdout
    assert "another_tenant" in codes(tmp_path / "r")[1]
    assert not (hidden / "server.jsonl").exists()


def found(path: Path, code: str) -> Finding:
    """The finding of that code; how busy this machine is decides on others, too."""
    info, requests = open_run(path)
    findings = summarise(info, requests, (), read_server(path)).findings
    return next(finding for finding in findings if finding.code == code)


def test_a_gateways_time_is_told_from_the_servers(endpoint: str, tmp_path: Path) -> None:
    """Compared with what the gateway itself measured: this machine may add to its delay."""
    words = [*QUICK, "--output-tokens", "20", "--concurrency", "2", "--requests", "32", "-o", str(tmp_path / "r")]
    with gateway(endpoint, delay_s=0.03) as between:
        done = run("run", between.url, *words)
    assert done.returncode == 0, done.stderr
    waited = float(np.mean(between.waited_s[-32:]))
    assert waited >= 0.03
    value = found(tmp_path / "r", "outside_engine").value
    assert value is not None
    assert waited <= value + 1e-3
    assert "pass outside the engine" in done.stdout


def test_a_gateway_that_buffers_is_named(endpoint: str, tmp_path: Path) -> None:
    words = [*QUICK, "--concurrency", "4", "--requests", "8", "-o", str(tmp_path / "r")]
    with gateway(endpoint, hold_s=0.4) as between:
        done = run("run", between.url, *words)
    assert done.returncode == 0, done.stderr
    assert found(tmp_path / "r", "gateway_buffers").severity != "info"
    assert "holds tokens back" in done.stdout


def test_a_metrics_page_that_hangs_is_told_and_left_alone(endpoint: str, tmp_path: Path) -> None:
    words = [*QUICK, "--concurrency", "1", "--requests", "2", "-o", str(tmp_path / "r")]
    with gateway(endpoint, hangs=b"GET /metrics") as between:
        done = run("run", between.url, *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("/metrics has not answered within 2 s: the run goes on without these metrics") == 1
    assert read_server(tmp_path / "r") is None


def test_metrics_that_cannot_be_read_never_fail_a_run(endpoint: str, tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/metrics"
    words = ["--concurrency", "1", "--requests", "2", "--metrics", nowhere, "-o", str(tmp_path / "r")]
    done = run("run", endpoint, *QUICK, *words)
    assert done.returncode == 0, done.stderr
    assert "refused" in endpoint_of(tmp_path / "r")["telemetry"]["notes"][0]
    assert read_server(tmp_path / "r") is None


def test_a_page_that_is_no_url_is_told_before_anything_is_sent(endpoint: str, tmp_path: Path) -> None:
    done = run("run", endpoint, *QUICK, "--metrics", "gopher://x", "-o", str(tmp_path / "r"))
    assert done.returncode == 2
    assert "--metrics" in done.stderr
    assert not (tmp_path / "r").exists()


@pytest.mark.llama
@pytest.mark.skipif(bool(_MISSING) and not os.environ.get("LOADGEN_NO_SKIP"), reason="llama.cpp is not installed")
def test_a_real_server_behind_a_key(tmp_path: Path) -> None:
    llama.make_model(tmp_path / "micro.gguf")
    out = tmp_path / "r"
    with llama.server(tmp_path / "micro.gguf", free_port(), api_key="right-key-123") as url:
        words = ["--concurrency", "2", "--requests", "8", "--api-key-env", "LG_KEY", "-o", str(out)]
        done = run("run", url, *QUICK, *words, env={"LG_KEY": "right-key-123"})
    assert done.returncode == 0, done.stderr
    told = endpoint_of(out)
    assert told["engine"] == "llama.cpp"
    assert told["provenance"]["props"]["total_slots"] >= 1
    assert told["telemetry"]["engines"] == ["llama.cpp"]
    summary, found = codes(out)
    assert not found & {"another_tenant", "metrics_of_a_part"}
    figures = summary.stages[0].server
    assert figures["generation_tokens"] == figures["client_generation_tokens"]
    for file in out.iterdir():
        assert b"right-key" not in file.read_bytes()
