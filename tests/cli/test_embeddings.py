"""`run --dialect embeddings`: latency of whole answers, no token and no TTFT anywhere."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadgen.cli import cli

ASKED: list[dict[str, Any]] = []
SLOW_S = 0.05


class _Embedder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "embedder"}]} if self.path == "/v1/models" else {}, self.path == "/v1/models")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        ASKED.append(asked)
        time.sleep(SLOW_S)
        words = len(asked["input"].split())
        data = [{"object": "embedding", "index": 0, "embedding": [0.25] * 8}]
        usage = {"prompt_tokens": words, "total_tokens": words}
        self._answer(
            {"object": "list", "data": data, "model": "embedder", "usage": usage}, self.path == "/v1/embeddings"
        )

    def _answer(self, value: Any, known: bool) -> None:
        body = json.dumps(value).encode()
        self.send_response(200 if known else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def embedder() -> Iterator[str]:
    ASKED.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Embedder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_latency_is_all_that_an_embedding_has(embedder: str, tmp_path: Path) -> None:
    words = ["run", embedder, "--dialect", "embeddings", "--concurrency", "2", "--requests", "8", "--warmup", "1"]
    done = CliRunner().invoke(
        cli, [*words, "--prompt-tokens", "40", "--slo", "p50(e2e) < 30s", "-o", str(tmp_path / "r")]
    )
    assert "8 ok, 0 failed" in done.output, done.output
    assert all(asked.keys() == {"model", "input"} for asked in ASKED)
    for name in ("ttft", "tpot", "token"):
        assert f"{name} event" not in done.output.lower()
    told = CliRunner().invoke(cli, ["report", str(tmp_path / "r"), "--format", "json"]).output
    metrics = json.loads(told)["stages"][0]["metrics"]
    values = {(row["metric"], row["stat"]): row["value"] for row in metrics}
    assert values["e2e", "p50"] >= SLOW_S
    assert values["requests_per_s", "rate"] > 0
    none = ("ttft", "tpot", "itl", "output_tokens_per_s")
    assert {row["value"] for row in metrics if row["metric"] in none} <= {None}
    lines = CliRunner().invoke(cli, ["export", str(tmp_path / "r"), "--format", "jsonl"]).output.splitlines()
    rows = [json.loads(line) for line in lines]
    assert {(row["outcome"], row["ttft_s"], row["output_tokens"]) for row in rows} == {("ok", None, None)}
    assert all(row["prompt_tokens"] > 0 for row in rows)
