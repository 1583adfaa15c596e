"""The loads of other tools: numbers of requests, warm-up, spread of lengths."""

from __future__ import annotations

import click
import numpy as np
import pytest

from loadgen.cli.run import command
from loadgen.errors import UsageError
from loadgen.model import Load
from loadgen.plan.lengths import fixed, parse_length
from loadgen.plan.protocols import PROTOCOLS, checked


@pytest.mark.parametrize(
    ("name", "users", "requests", "warmups", "burst"),
    [
        ("native", 1, 32, 4, False),
        ("native", 64, 256, 4, False),
        ("vllm", 64, 1000, 1, True),
        ("guidellm", 64, 256, 0, True),
        ("aiperf", 2, 10, 0, True),
        ("aiperf", 64, 128, 0, True),
        ("inferencemax", 64, 640, 128, True),
    ],
)
def test_a_closed_loop_of_each_tool(name: str, users: int, requests: int, warmups: int, burst: bool) -> None:
    protocol = checked(name, closed=True)
    assert protocol.requests(Load("concurrency", users)) == requests
    assert protocol.warmups(users) == warmups
    assert protocol.burst is burst
    assert protocol.source


def test_the_flag_knows_every_protocol() -> None:
    (flag,) = [one for one in command.params if one.name == "protocol"]
    assert isinstance(flag.type, click.Choice)
    assert list(flag.type.choices) == list(PROTOCOLS)


def test_mlperf_is_ten_minutes_of_an_open_loop() -> None:
    with pytest.raises(UsageError, match="open loop"):
        checked("mlperf", closed=True)
    protocol = checked("mlperf", closed=False)
    assert protocol.requests(Load("rate", 4.0)) is None
    assert protocol.duration_ns == 600 * 10**9


def test_lengths_are_spread_only_where_the_tool_spreads_them_and_a_number_was_asked() -> None:
    spread = PROTOCOLS["inferencemax"].length(fixed(1000))
    drawn = spread.at(np.linspace(0, 0.999, 1000))
    assert (drawn.min(), drawn.max()) == (800, 1000)
    own = parse_length("normal:2000±200")
    assert PROTOCOLS["inferencemax"].length(own) is own
    assert PROTOCOLS["vllm"].length(fixed(1000)) == fixed(1000)
    assert PROTOCOLS["inferencemax"].length(fixed(1)).at(np.array([0.0, 0.9])).tolist() == [1, 1]
