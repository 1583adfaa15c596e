"""What a user may type as an endpoint: whole URLs with a query, bad ports, one that is down, one given twice."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.cli import cli
from loadgen.engine.contact import knock
from loadgen.engine.host import Secrets, split_credentials
from loadgen.engine.probe import Probe
from loadgen.engine.runner import Target
from loadgen.engine.telemetry import pages
from loadgen.engine.transport import Security
from loadgen.errors import EndpointError, UsageError
from loadgen.model import Exchange, Features, PlannedRequest
from loadgen.store.yamlfile import parse_yaml


def test_a_query_goes_with_every_request() -> None:
    asked: list[str] = []

    async def gateway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode())
        body = b'{"data": [{"id": "m"}]}' if b"/models?" in asked[-1].encode() else b"{}"
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async def run() -> list[str]:
        tried: list[str] = []

        async def trial(target: Target, planned: PlannedRequest) -> Exchange:
            tried.append(target.url)
            raise EndpointError("enough")

        async with await asyncio.start_server(gateway, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            url = f"http://127.0.0.1:{port}/openai/v1/chat/completions?api-version=2024-06-01"
            with pytest.raises(EndpointError, match="enough"):
                await Probe({}, Security(), trial).run(url, model=None, dialect=None, wanted=Features())
            assert tried == [url]
        return asked

    assert "GET /openai/v1/models?api-version=2024-06-01 HTTP/1.1" in asyncio.run(run())


def test_a_key_in_a_query_is_a_secret_and_a_version_is_none() -> None:
    secrets = Secrets.of("http://a/v1?api-version=2024-06-01&code=abcdefghijklmnop", {})
    assert secrets.scrub("2024-06-01 abcdefghijklmnop") == "2024-06-01 ***"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:99999", "http://127.0.0.1:abc", "http://::1:8000", "127.0.0.1:99999"]
)
def test_a_bad_port_is_a_mistake_of_the_user(url: str) -> None:
    with pytest.raises(UsageError, match="not a URL"):
        split_credentials(url)
    with pytest.raises(UsageError, match="not an http"):
        pages((url,), "http://127.0.0.1:1/v1", {}, Security())


def test_one_endpoint_given_twice_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    words = ["run", "http://127.0.0.1:9/v1", "--endpoint", "http://127.0.0.1:9/v1/chat/completions"]
    done = CliRunner().invoke(cli, [*words, "-o", str(tmp_path / "r")])
    assert isinstance(done.exception, UsageError)
    assert "twice" in str(done.exception)
    assert not (tmp_path / "r").exists()


def test_an_endpoint_that_is_down_is_told_at_the_door() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        knock(url)
    with pytest.raises(EndpointError, match="cannot be reached"):
        knock(url)


@pytest.mark.parametrize("text", ["seed: !!int foo", "seed: 2001-99-99", "seed: !!python/object/apply:os.system [id]"])
def test_a_value_that_yaml_itself_cannot_make_is_a_mistake_in_the_file(text: str) -> None:
    from loadgen.cli.spec import spec_model

    with pytest.raises(UsageError, match=r"x\.yaml"):
        parse_yaml(text, "x.yaml", spec_model())
