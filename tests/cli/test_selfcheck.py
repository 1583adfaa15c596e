"""`loadgen selfcheck`: what it compares, when a trial counts, how the result is said."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from loadgen.cli.selfcheck import to_json, to_text
from loadgen.model import Exchange
from loadgen.simulator import selfcheck as library
from loadgen.simulator.null import NullEndpoint, Sent
from loadgen.simulator.selfcheck import OpenLoop, Rung, SelfCheck, Trial, run_trial

MS = 1_000_000
GOOD = Trial(32, 20_000.0, 19_990.0, 20_000, 0, 0.001, 20_000.0, 3_000.0, 9_000.0, 50_000.0, 0.4, 65_000.0, 300_000.0)


def exchange(number: int, arrivals: list[int]) -> Exchange:
    return Exchange(number, 0, "null", "ok", 2, len(arrivals), event_ns=tuple(arrivals))


def sent(number: int, stamps: list[int], gap_ns: int) -> Sent:
    return Sent(number, 0, gap_ns, stamps[0], array("q", stamps))


def compare(rows: list[Exchange], log: list[Sent], begin: int, end: int) -> library._Seen:
    return library._compare(library._Measured(rows, {s.number: s for s in log}, {}, 0), begin, end)


def test_every_gap_is_compared_with_the_servers_own() -> None:
    stamps = [10 * MS, 20 * MS, 31 * MS, 40 * MS]  # the third left 1 ms late
    arrivals = [stamp + 5_000 for stamp in stamps]
    arrivals[3] += 200_000  # and the client saw the fourth 0.2 ms late
    seen = compare([exchange(7, arrivals)], [sent(7, stamps, 10 * MS)], 0, 1000 * MS)
    assert seen.gap_errors_ns.tolist() == [0, 0, 200_000]
    assert seen.stamp_errors_ns.tolist() == [5_000, 5_000, 5_000, 205_000]
    assert seen.late_ns.tolist() == [0, 0, 1 * MS, 0]
    assert (seen.sent, seen.shared) == (4, 0)


def test_events_of_one_receive_are_counted_and_cost_two_gaps() -> None:
    stamps = [10 * MS, 20 * MS, 30 * MS, 40 * MS]
    seen = compare([exchange(1, [10 * MS, 30 * MS, 30 * MS, 40 * MS])], [sent(1, stamps, 10 * MS)], 0, 1000 * MS)
    assert seen.shared == 1
    assert seen.gap_errors_ns.tolist() == [10 * MS, 10 * MS, 0]


def test_only_the_window_counts_and_what_never_arrived_counts_as_sent() -> None:
    stamps = [k * 10 * MS for k in range(1, 11)]
    rows = [exchange(1, stamps)]
    seen = compare(rows, [sent(1, stamps, 10 * MS), sent(2, stamps, 10 * MS)], 35 * MS, 75 * MS)
    assert seen.sent == 8
    assert len(seen.stamp_errors_ns) == 4
    cut = compare([exchange(1, stamps[:5])], [sent(1, stamps, 10 * MS)], 0, 1000 * MS)
    assert (cut.sent, len(cut.stamp_errors_ns)) == (10, 5)
    assert len(compare([], [], 0, 1).stamp_errors_ns) == 0


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ({}, None),
        ({"shared": 0.01}, "shared receives"),
        ({"gap_error_p99_ns": 500_000.0}, "ITL error"),
        ({"gap_error_p99_ns": None}, "no events"),
        ({"failed": 1}, "failed requests"),
    ],
)
def test_when_a_trial_can_be_believed(change: dict[str, float], trouble: str | None) -> None:
    assert replace(GOOD, **change).trouble == trouble  # type: ignore[arg-type]


@pytest.mark.parametrize(("good_up_to", "limit"), [(50_000.0, "ITL error"), (1e9, "null endpoint"), (0.0, "ITL error")])
def test_the_ladder_brackets_the_limit(monkeypatch: pytest.MonkeyPatch, good_up_to: float, limit: str) -> None:
    clock = [0.0]

    def trial(null: object, streams: int, rate: float, window_s: float) -> Trial:
        clock[0] += 0.1
        error = 1_000.0 if rate <= good_up_to else 600_000.0
        return replace(GOOD, asked_per_s=rate, rate_per_s=rate, gap_error_p99_ns=error)

    monkeypatch.setattr(library, "run_trial", trial)
    monkeypatch.setattr("loadgen.simulator.selfcheck.time.monotonic", lambda: clock[0])
    rung = library._climb(None, 32, 5.0, lambda line: None)  # type: ignore[arg-type]
    assert rung.limit == limit
    if good_up_to == 50_000.0:
        assert rung.best is not None
        assert 50_000.0 / 1.12 <= rung.best.rate_per_s <= 50_000.0
    elif not good_up_to:
        assert rung.best is None
    assert clock[0] <= 5.3


def test_one_hiccup_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []

    def trial(null: object, streams: int, rate: float, window_s: float) -> Trial:
        calls.append(rate)
        bad = len(calls) in (1, 4)
        return replace(GOOD, asked_per_s=rate, rate_per_s=rate, shared=0.5 if bad else 0.0)

    monkeypatch.setattr(library, "run_trial", trial)
    rung = library._climb(None, 32, 60.0, lambda line: None)  # type: ignore[arg-type]
    assert rung.limit == "null endpoint"
    assert rung.best is not None
    assert rung.best.rate_per_s == max(calls)


def test_a_small_trial_with_real_sockets() -> None:
    with NullEndpoint() as null:
        for window_s in (0.5, 2.0, 8.0):  # a machine busy with other tests may sleep through a short window
            trial = run_trial(null, 4, 200.0, window_s)
            if trial.events > 20:
                break
    assert trial.failed == 0
    assert trial.events > 20
    assert trial.gap_error_p99_ns is not None
    assert trial.stamp_error_p50_ns is not None
    assert trial.stamp_error_p50_ns > -MS  # how large it is depends on the machine; `loadgen selfcheck` measures that
    assert 0 <= trial.shared <= 1


def test_the_result_is_said_in_words_and_in_json() -> None:
    loop = OpenLoop(1000.0, 5000, 0, 150_000.0, 420_000.0, 2_300_000.0)
    rungs = (
        Rung(32, GOOD, "shared receives", (GOOD,)),
        Rung(256, replace(GOOD, streams=256), "null endpoint", (GOOD,)),
        Rung(1024, None, "ITL error", (replace(GOOD, gap_error_p99_ns=1e6),)),
    )
    found = SelfCheck(2, 0.3, True, "kernel", 74, rungs, loop, 42.0)
    text = to_text(found)
    assert "32 users: good to 19,990 token events/s" in text
    assert "256 users: good to at least 19,990" in text
    assert "1,024 users: no rate that was tried was good (20,000 events/s: ITL error)" in text
    assert "for each; beyond that use --workers" in text.splitlines()[-3]
    assert "--workers" not in text.splitlines()[-2]  # the client's own limit was not found
    assert "busy" not in text
    assert "load 7.0" in to_text(replace(found, load=7.0))
    assert "p99 420 µs" in text
    assert "one core" not in text
    assert "one core" in to_text(replace(found, pinned=False))
    assert "--workers" in to_text(replace(found, open_loop=replace(loop, late_p99_ns=3e6))).splitlines()[-1]
    plain = to_json(found)
    assert plain["open_loop"]["send_late_p99_s"] == pytest.approx(420e-6)
    assert [rung["events_per_s"] for rung in plain["ladder"]] == [19_990.0, 19_990.0, None]
    assert plain["ladder"][0]["best"]["itl_error_p99_s"] == pytest.approx(20e-6)
    assert plain["clock_error_s"] == pytest.approx(74e-9)
