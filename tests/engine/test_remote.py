"""Workers on other machines, as far as one machine can show them: hands with clocks of their own, and one that dies.

The hands here are real and start real workers; only what carries their calls is made up.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli import cli
from loadgen.engine import remote
from loadgen.engine.links import Link
from loadgen.engine.remote import Hand, RemoteLink
from loadgen.engine.worker import Seat
from loadgen.simulator.config import simulated
from loadgen.simulator.process import SimulatorProcess
from loadgen.store.runfile import open_run
from tests.cli.test_run import QUICK, rows

HOUR_NS = 3_600_000_000_000
KEY = "sk-very-secret"


class Gone(Exception):
    """What this carrier raises for a hand that is gone."""


class Elsewhere(Hand):
    """A machine whose clock shows `ahead_ns` more than this one's, and gains `drift` of the time."""

    def __init__(self, ahead_ns: int, drift: float) -> None:
        super().__init__()
        self.seat: Seat | None = None
        self._ahead_ns, self._drift, self._from = ahead_ns, drift, time.monotonic_ns()

    async def ping(self) -> int:
        now = time.monotonic_ns()
        return now + self._ahead_ns + round((now - self._from) * self._drift)

    async def open(self, seat: Seat) -> str:
        self.seat = seat
        return await super().open(replace(seat, origin_ns=seat.origin_ns - self._ahead_ns))


class MadeUp:
    """A staff of hands in this process. `dies`: the worker whose machine goes once some of its rows were fetched."""

    lead_ns = 200_000_000
    here = False

    def __init__(self, ahead_ns: tuple[int, ...], drift: float = 0.0, dies: int | None = None) -> None:
        self.hands = [Elsewhere(ahead, drift) for ahead in ahead_ns]
        self.dies, self.dead, self.waiting = dies, set[int](), set[asyncio.Task[Any]]()

    async def hire(self, seat: Seat) -> Link:
        def call(name: str, *arguments: Any) -> Any:
            return asyncio.ensure_future(self.carry(seat.number, name, *arguments))

        link = RemoteLink(call, (Gone,), {"node": seat.number})
        await link.open(seat, asyncio.Lock())
        return link

    async def carry(self, number: int, name: str, *arguments: Any) -> Any:
        if number in self.dead:
            raise Gone
        answer = asyncio.ensure_future(getattr(self.hands[number], name)(*arguments))
        while not answer.done():
            await asyncio.wait({answer}, timeout=0.05)
            if number in self.dead:
                answer.cancel()
                raise Gone
        if number == self.dies and name == "fetch" and answer.result():
            self.dead.add(number)
            pipe_link: Any = self.hands[number]._link
            pipe_link._process.kill()
        return answer.result()

    def facts(self) -> dict[str, Any]:
        return {"nodes": len(self.hands)}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with SimulatorProcess(simulated(time_scale=4.0)) as simulator:
        yield simulator.url


def measured(monkeypatch: pytest.MonkeyPatch, endpoint: str, out: Path, staff: MadeUp, *words: str) -> int:
    monkeypatch.setattr(remote, "_BEAT_S", 0.05)
    monkeypatch.setattr("loadgen.cli.measure._staffed", lambda address, workers: nullcontext(staff))
    line = ["run", endpoint, *QUICK, "--ray", "auto", "--workers", str(len(staff.hands)), "-o", str(out), *words]
    code: int = cli.main(line, standalone_mode=False)
    return code


def test_stamps_of_machines_hours_apart_lie_on_one_axis(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, tmp_path: Path
) -> None:
    staff = MadeUp((HOUR_NS, -5_000_000_000), drift=2e-3)  # so much that a short run shows it
    words = ["--rate", "50", "--requests", "60", "--arrivals", "constant", "--header", f"Authorization: Bearer {KEY}"]
    assert measured(monkeypatch, endpoint, tmp_path / "r", staff, *words) == 0
    info, _ = open_run(tmp_path / "r")
    stage, told = info.stages[0], info.host["ray"]["workers"]
    assert [one["worker"] for one in told] == [0, 1]
    for one, ahead in zip(told, (HOUR_NS, -5_000_000_000), strict=True):
        assert abs(one["offset_ns"] - ahead) < 1_000_000_000
        assert 0 < one["round_trip_ns"] <= 2 * one["error_ns"]
        assert one["drift_ns"] > 0
    found = rows(tmp_path / "r")
    assert sorted((row["id"], row.get("k", 0)) for row in found) == [(k, k % 2) for k in range(60)]
    assert stage.start_ns is not None
    assert stage.end_ns is not None
    # The clocks gain two milliseconds a second while it lasts: that, and no hours.
    assert all(abs(row["ts"] - stage.start_ns / 1000 - row["id"] * 20_000) < 50_000 for row in found)
    assert {"start_skew_ns", "start_late_ns", "worker_clock_error_ns"} <= stage.health.keys()
    # A row is moved as a whole.
    for row in found:
        assert row["ts"] <= row["td"] <= row["t0"] <= row["te"]
    # The key goes to the worker, and nowhere else.
    seat = staff.hands[0].seat
    assert seat is not None
    assert seat.headers["Authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(seat)
    assert not any(KEY in file.read_text(encoding="utf-8") for file in (tmp_path / "r").iterdir())


def test_a_machine_that_goes_leaves_its_rows_and_the_next_stage_is_whole(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    staff = MadeUp((0, 0), dies=1)
    words = ["--concurrency", "4,6", "--requests", "200"]
    assert measured(monkeypatch, endpoint, tmp_path / "r", staff, *words) == 0
    assert "1 of 2 workers died" in capsys.readouterr().out
    info, requests = open_run(tmp_path / "r")
    first, second = info.stages
    assert (first.health["workers"], first.health["workers_lost"]) == (2, 1)
    of = requests.stage == first.stage
    kept = of & (requests.worker == 1) & requests.holds("outcome", "ok")
    marked = of & requests.holds("outcome", "cancelled")
    assert kept.sum() > 0
    assert marked.sum() == first.health["requests_lost"]
    assert (requests.worker[marked] == 1).all()
    assert of.sum() + first.unsent == 200
    assert (second.health["workers"], second.health["workers_lost"], second.unsent) == (1, 0, 0)
    assert (requests.stage == second.stage).sum() == 200
    alive, gone = info.host["ray"]["workers"]
    assert (alive["lost"], gone["lost"], "rows" in alive) == (False, True, False)
    left = Path(gone["rows"])  # where what was not fetched can still be found
    fetched = (tmp_path / "r" / "requests.w1.jsonl").read_bytes()
    assert (left / "requests.w1.jsonl").read_bytes().startswith(fetched)
    shutil.rmtree(left)
