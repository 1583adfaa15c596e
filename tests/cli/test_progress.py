"""The line on the terminal: what it shows is of the stage that runs, by histograms that any number of workers fill."""

from __future__ import annotations

import io

import pytest

from loadgen.analysis.tally import Tally, merged
from loadgen.cli.doing import doing
from loadgen.cli.progress import Progress
from loadgen.engine.runner import Live
from tests.analysis.made import ok, stage


async def test_percentiles_are_those_of_the_stage_with_their_error() -> None:
    live = Live()
    live.tally = Tally()
    progress = Progress(live)
    assert progress.line() == "probing and warming up ..."
    for k in range(100):
        live.tally.add(ok(k, events=(5.0, 5.5)))  # of the stage before
    live.finished = 100
    progress.stage(stage(requests=40))
    assert "TTFT" not in progress.line()
    parts = [Tally(), Tally()]
    for k in range(40):
        parts[k % 2].add(ok(k, events=(0.105, 0.125)))
    live.tally, live.finished, live.in_flight = merged([live.tally, *parts]), 140, 3
    line = progress.line()
    assert "40 done, 3 in flight, 0 failed" in line
    assert "TTFT p50 106 p99 106 ms, ITL p50 21.1 p99 21.1 ms (±6 %)" in line


def test_a_long_command_says_what_it_is_doing_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stderr", screen := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with doing("fitting 60 cells") as tell:
        tell("intervals")
    assert "fitting 60 cells: intervals ..." in screen.getvalue()
    assert "\x1b" in screen.getvalue()  # it is drawn in place
