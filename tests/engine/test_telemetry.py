"""Reading metrics over real HTTP, from servers that do it right and from odd ones."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from loadgen.analysis.server import Scrape, normalise
from loadgen.engine import telemetry as telemetry_module
from loadgen.engine.telemetry import Page, Telemetry, own_pages, pages, parse
from loadgen.engine.transport import Security
from loadgen.errors import StorageError, UsageError
from tests.busy import DEADLINE_S, until

FIXTURES = Path(__file__).with_name("fixtures")
GOOD = "vllm:num_requests_running 3\nvllm:generation_tokens_total 10\n"
PLAIN = Security()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, tuple[int, str, dict[str, str]]] = {}
        self.seen: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("Authorization")))
        status, body, headers = self.server.answers.get(self.path, (404, "none", {}))
        data = body.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(**answers: tuple[int, str, dict[str, str]]) -> Iterator[_Server]:
    server = _Server()
    server.answers = {f"/{path}": answer for path, answer in answers.items()}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def watching(given: list[Page], own: list[Page]) -> Iterator[tuple[Telemetry, list[Scrape]]]:
    scrapes: list[Scrape] = []
    telemetry = Telemetry(time.monotonic_ns, scrapes.append)
    telemetry.open(given, [own])
    try:
        yield telemetry, scrapes
    finally:
        telemetry.close()


@pytest.mark.parametrize(
    ("page", "engine", "values"),
    [
        (
            "vllm",
            "vllm",
            {"prompt_tokens": 922, "generation_tokens": 4596, "prefix_queries": 942, "prefix_hits": 0, "kv_usage": 0},
        ),
        (
            "llama.cpp-gemma",
            "llama.cpp",
            {"prompt_tokens": 428, "prefix_hits": 1083, "prefix_queries": 1511, "generation_tokens": 616},
        ),
        ("llama.cpp-tiny", "llama.cpp", {"prompt_tokens": 164, "prefix_hits": 869, "generation_tokens": 4629}),
    ],
)
def test_pages_of_real_servers(page: str, engine: str, values: dict[str, float]) -> None:
    read = normalise(parse((FIXTURES / f"{page}.metrics.txt").read_bytes()))
    assert read.engines == (engine,)
    assert {name: read.values[name] for name in values} == values
    assert (read.values["running"], read.values["waiting"]) == (0, 0)


def test_histograms_of_a_real_server() -> None:
    read = normalise(parse((FIXTURES / "vllm.metrics.txt").read_bytes()))
    ttft, itl = read.histograms["ttft_s"], read.histograms["itl_s"]
    assert (ttft.count, ttft.sum) == (61, 27.162025451660156)
    assert (itl.count, itl.sum) == (4535, 85.12891452800045)
    assert list(ttft.le) == sorted(ttft.le)
    assert list(ttft.n) == sorted(ttft.n)
    assert ttft.n[-1] <= ttft.count


@pytest.mark.parametrize(
    ("page", "engine", "values", "histograms"),
    [
        (
            "vllm-0.6",
            "vllm",
            {"running": 4, "waiting": 1, "kv_usage": 0.83, "preemptions": 7, "prompt_tokens": 922}
            | {"generation_tokens": 4596, "spec_drafted": 400, "spec_accepted": 300},
            {"ttft_s": (27.2, 61), "itl_s": (85.1, 4535), "queue_s": (1.5, 61)},
        ),
        (
            "vllm-0.9",
            "vllm",
            {"running": 5, "kv_usage": 0.3, "prefix_queries": 200, "prefix_hits": 60, "generation_tokens": 100},
            {},
        ),
        (
            "sglang",
            "sglang",
            {"running": 3, "waiting": 2, "kv_usage": 0.28, "prefix_hits": 61026, "preemptions": 5}
            | {"prompt_tokens": 8128902, "prefix_queries": 8128902, "generation_tokens": 7557572}
            | {"spec_acceptance": 0.7},
            {"ttft_s": (2351.9, 11008), "itl_s": (166000.5, 7400000), "queue_s": (120.5, 11008)},
        ),
        (
            "tgi",
            "tgi",
            {"running": 5, "waiting": 2, "prompt_tokens": 30000, "generation_tokens": 9000},
            {"queue_s": (1.2, 150)},
        ),
        (
            "tensorrt-llm",
            "tensorrt-llm",
            {"running": 2, "waiting": 1, "kv_usage": 0.62, "prefix_queries": 400, "prefix_hits": 40},
            {"ttft_s": (1.5, 12), "queue_s": (0.6, 12)},
        ),
        (
            "triton",
            "triton",
            {"running": 8, "waiting": 3, "kv_usage": 0.25, "gpu_utilization": 0.8, "gpu_power_w": 600}
            | {"gpu_energy_j": 3000, "gpu_memory_bytes": 7e10},
            {},
        ),
        (
            "dcgm",
            "dcgm",
            {"sm_clock_hz": 1.755e9, "memory_clock_hz": 2.619e9, "gpu_temperature_c": 71, "gpu_power_w": 1100}
            | {"gpu_energy_j": 3000, "gpu_utilization": 0.95, "gpu_memory_bytes": 140000 * 2**20}
            | {"throttle_reasons": 4, "throttle_power": 12345, "throttle_thermal": 0},
            {},
        ),
    ],
)
def test_pages_with_every_engines_documented_names(
    page: str, engine: str, values: dict[str, float], histograms: dict[str, tuple[float, float]]
) -> None:
    """Everything that is documented and known is there, and nothing else."""
    read = normalise(parse((FIXTURES / f"{page}.metrics.txt").read_bytes()))
    assert read.engines == (engine,)
    assert read.values == pytest.approx(values)
    assert {name: (found.sum, found.count) for name, found in read.histograms.items()} == histograms


def test_a_prefix_with_an_underscore_is_the_same_engine() -> None:
    """Collectors that allow no colon in a name, and servers behind them."""
    for page in ("sglang", "vllm-0.9"):
        body = (FIXTURES / f"{page}.metrics.txt").read_bytes()
        assert normalise(parse(body.replace(b"sglang:", b"sglang_").replace(b"vllm:", b"vllm_"))) == normalise(
            parse(body)
        )


def test_broken_lines_are_left_out() -> None:
    page = b'vllm:num_requests_running{a="\nvllm:num_requests_running 2\nvllm:num_requests_waiting x\n\xff\xfe\n<html>'
    assert list(parse(page)) == [("vllm:num_requests_running", {}, 2.0)]


def test_the_endpoints_own_page_is_found_and_read_on_demand() -> None:
    with serving(metrics=(200, GOOD, {})) as server:
        with watching([], own_pages(f"{server.url}/v1", {"Authorization": "Bearer abcd"}, PLAIN)) as (telemetry, seen):
            telemetry.mark()
            server.answers["/metrics"] = (200, GOOD.replace(" 3", " 4"), {})
            telemetry.mark()
        record = telemetry.record()
        assert [scrape.values["running"] for scrape in seen][-1] == 4
        assert seen[0].values == {"running": 3, "generation_tokens": 10}
        assert [scrape.tick for scrape in seen] == list(range(len(seen)))
        assert all(scrape.took_ns > 0 for scrape in seen)
        assert record["engines"] == ["vllm"]
        assert record["notes"] == []
        assert {key for _, key in server.seen} == {"Bearer abcd"}


def test_a_second_place_is_looked_at() -> None:
    page = "trtllm_time_to_first_token_seconds_sum 1.5\ntrtllm_time_to_first_token_seconds_count 3\n"
    with serving(metrics=(200, '[{"iter": 1}]', {})) as server:
        server.answers["/prometheus/metrics"] = (200, page, {})
        with watching([], own_pages(server.url, {}, PLAIN)) as (telemetry, seen):
            telemetry.mark()
    assert seen[0].engines == ("tensorrt-llm",)
    assert seen[0].histograms["ttft_s"].sum == 1.5


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ((404, "", {}), "HTTP 404"),
        ((401, "key?", {}), "HTTP 401"),
        ((200, "<html>hello</html>", {}), "no series that is known"),
        ((200, "x" * (9 << 20), {}), "larger than"),
        ((302, "", {"Location": "http://127.0.0.2:1/metrics"}), "another host"),
    ],
)
def test_an_endpoint_without_metrics_is_a_note(answer: tuple[int, str, dict[str, str]], word: str) -> None:
    with serving(metrics=answer) as server:
        with watching([], own_pages(server.url, {}, PLAIN)) as (telemetry, seen):
            telemetry.mark()
        assert seen == []
        assert len(telemetry.record()["notes"]) == 1
        assert word in telemetry.record()["notes"][0]


def test_nobody_there_is_a_note() -> None:
    with watching([Page("http://127.0.0.1:9/metrics")], []) as (telemetry, seen):
        telemetry.mark()
    (note,) = telemetry.record()["notes"]
    assert "refused" in note
    assert seen == []


def test_a_page_that_comes_and_goes_is_read_when_it_is_there() -> None:
    with serving(metrics=(500, "", {})) as server:
        with watching([Page(f"{server.url}/metrics")], []) as (telemetry, seen):
            telemetry.mark()
            assert seen == []
            server.answers["/metrics"] = (200, GOOD, {"Connection": "close"})
            telemetry.mark()
            telemetry.mark()
        assert len(seen) >= 2
        (note,) = telemetry.record()["notes"]
        assert "HTTP 500" in note


def test_a_redirect_within_the_server_is_followed() -> None:
    with serving(metrics=(307, "", {"Location": "/metrics/"})) as server:
        server.answers["/metrics/"] = (200, GOOD, {})
        with watching([Page(f"{server.url}/metrics")], []) as (telemetry, seen):
            telemetry.mark()
            telemetry.mark()
        assert seen[-1].values["running"] == 3
        assert [path for path, _ in server.seen].count("/metrics") == 1


def test_a_disk_that_is_full_is_a_note() -> None:
    def full(scrape: Scrape) -> None:
        raise StorageError("no space left on device")

    with serving(metrics=(200, GOOD, {})) as server:
        telemetry = Telemetry(time.monotonic_ns, full)
        telemetry.open([Page(f"{server.url}/metrics")], [])
        telemetry.mark()
        telemetry.close()
    assert "no space left" in telemetry.record()["notes"][0]


def test_a_key_goes_to_its_own_server_only_and_is_never_recorded() -> None:
    headers = {"Authorization": "Bearer sesame-sesame"}
    given, auto = pages(
        ["http://a.test:8000/metrics,http://user:hidden@b.test:9400", "auto"], ["http://a.test:8000/v1"], headers, PLAIN
    )
    assert auto
    assert [page.headers for page in given] == [headers, {}]
    with serving(metrics=(200, GOOD, {})) as server:
        url = server.url.replace("//", "//user:hidden@")
        with watching([Page(f"{url}/metrics", headers)], []) as (telemetry, _):
            telemetry.mark()
        assert server.seen[0][1] == "Basic dXNlcjpoaWRkZW4="
        assert "hidden" not in str(telemetry.record())
        assert "sesame" not in str(telemetry.record())


def test_what_metrics_names() -> None:
    assert pages(["off"], ["http://a/v1"], {}, PLAIN) == ([], False)
    assert pages(["auto"], ["http://a/v1"], {}, PLAIN) == ([], True)
    (page,), auto = pages(["gpu-host:9400"], ["http://a/v1"], {}, PLAIN)
    assert (page.url, auto) == ("http://gpu-host:9400/metrics", False)
    with pytest.raises(UsageError, match="--metrics"):
        pages(["ftp://x"], ["http://a/v1"], {}, PLAIN)


def test_gpus_of_the_dcgm_exporter() -> None:
    line = 'DCGM_FI_DEV_SM_CLOCK{{gpu="{0}",UUID="GPU-{0}",modelName="NVIDIA H100 80GB HBM3",Hostname="n1"}} 1980\n'
    page = line.format(0) + line.format(1)
    with serving(metrics=(200, page, {})) as s, watching([Page(f"{s.url}/metrics")], []) as (telemetry, seen):
        telemetry.mark()
    record = telemetry.record()
    assert (record["gpu"], record["gpus"]) == ("NVIDIA H100 80GB HBM3", 2)
    assert seen[0].values == {"sm_clock_hz": 1.98e9}


@contextmanager
def hanging() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that answers is waited for, however slow this machine is; tests of pages that hang say otherwise."""
    monkeypatch.setattr(telemetry_module, "PATIENCE_S", DEADLINE_S)
    monkeypatch.setattr(telemetry_module, "_TIMEOUT_S", DEADLINE_S)


def test_a_page_that_hangs_is_waited_for_once_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    original = threading.Condition.wait_for

    def wait_for(self: threading.Condition, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        waits.append(timeout)
        return original(self, ready, timeout)

    monkeypatch.setattr(threading.Condition, "wait_for", wait_for)
    with hanging() as url, serving(metrics=(200, GOOD, {})) as server:
        with watching([Page(f"{url}/metrics"), Page(f"{server.url}/metrics")], []) as (telemetry, seen):
            until(lambda: connected(telemetry), "the page is being read")
            monkeypatch.setattr(telemetry_module, "PATIENCE_S", 0.1)
            for _ in range(5):
                telemetry.mark()
        assert len([one for one in waits if one == 0.1]) == 1
        assert f"{url}/metrics has not answered" in telemetry.record()["notes"][0]
        assert seen == []


def connected(telemetry: Telemetry) -> bool:
    """Whether a page is being read, over a connection that can be cut."""
    reading = telemetry._reading
    return reading is not None and reading._connection is not None and reading._connection.sock is not None


def test_a_page_that_hangs_does_not_keep_the_others_from_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_module, "_REST_S", 3600.0)
    connect = telemetry_module._connect
    with hanging() as url, serving(metrics=(200, GOOD, {})) as server:

        def impatient(scheme: str, host: str, port: int | None, security: Security) -> HTTPConnection:
            connection = connect(scheme, host, port, security)
            if url.endswith(f":{port}"):
                connection.timeout = 0.1  # for the page that never answers; the other has its time
            return connection

        monkeypatch.setattr(telemetry_module, "_connect", impatient)
        with watching([Page(f"{url}/metrics"), Page(f"{server.url}/metrics")], []) as (telemetry, seen):
            for _ in range(5):
                telemetry.mark()
        assert len(seen) >= 5
        assert "timed out (1 of" in telemetry.record()["notes"][-1]


def test_the_endpoints_own_page_may_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(threading.Event):
        """Patience begins when the page is being read."""

        def wait(self, timeout: float | None = None) -> bool:
            until(lambda: connected(telemetry), "the page is being read")
            return super().wait(0.1)

    telemetry = Telemetry(time.monotonic_ns, lambda scrape: None)
    telemetry._searched = Late()
    with hanging() as url:
        telemetry.open([], [own_pages(url, {}, PLAIN)])
        monkeypatch.setattr(telemetry_module, "PATIENCE_S", 0.1)
        telemetry.mark()
        telemetry.close()
    assert telemetry.record()["notes"] == [
        telemetry_module.silent(f"{url}/metrics").replace("0.1 s", f"{DEADLINE_S:g} s")
    ]
    assert telemetry.record()["readings"] == 0
