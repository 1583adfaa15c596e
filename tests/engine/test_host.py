"""Secrets never get out; limits are told before the run."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.engine.host import Secrets, ensure_capacity, host_facts, public_command, public_url, versions
from loadgen.errors import UsageError


def test_a_key_is_scrubbed_however_it_was_given() -> None:
    secrets = Secrets.of(
        "http://user:hunter22@host/v1", {"Authorization": "Bearer sk-abc123", "X-Api-Key": "other-key"}
    )
    text = "Incorrect API key provided: sk-abc123 (other-key) hunter22; sent Bearer sk-abc123"
    assert secrets.scrub(text) == "Incorrect API key provided: *** (***) ***; sent ***"


def test_harmless_headers_and_tiny_values_are_left_alone() -> None:
    assert Secrets.of("host", {"Accept": "text/event-stream", "X-A": "on"}).values == ()


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://u:p@h:1/v1", "http://h:1/v1"),
        ("https://h/v1?api-version=1&key=abc", "https://h/v1?api-version=***&key=***"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
    ],
)
def test_a_url_is_shown_without_its_secrets(given: str, shown: str) -> None:
    assert public_url(given) == shown


def test_a_command_line_is_shown_without_header_values() -> None:
    argv = ["loadgen", "run", "http://u:pw@h/v1", "--header", "X-Key: abc", "--header=X-Other:def"]
    assert public_command(argv) == ["loadgen", "run", "http://h/v1", "--header", "X-Key: ***", "--header=X-Other: ***"]


def test_the_descriptor_limit_is_raised_where_it_may_be() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
        assert "raised" in (ensure_capacity(300) or "")
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_than_the_system_allows_is_one_clear_line() -> None:
    with pytest.raises(UsageError, match=r"connections need"):
        ensure_capacity(10_000_000)


def test_the_host_tells_what_it_is() -> None:
    facts = host_facts()
    assert facts["cores"] >= 1
    assert facts["system"]
    assert "loadgen" in versions()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell the size of the table")
def test_the_descriptor_table_does_not_grow_while_connections_are_opened() -> None:
    code = """
import pathlib, resource, socket
from loadgen.engine.host import ensure_capacity
resource.setrlimit(resource.RLIMIT_NOFILE, (512, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
def size():
    return int(pathlib.Path("/proc/self/status").read_text().partition("FDSize:")[2].split()[0])
before = size()
ensure_capacity(300)
grown = size()
held = [socket.socket() for _ in range(300)]
print(before, grown, size())
"""
    before, grown, after = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    assert int(before) < 300 < int(grown) == int(after)
