"""The search: every rule of the decision by table, and whole searches on endpoints whose capacity is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from loadgen.analysis.ending import Ending, why_end
from loadgen.analysis.frame import FrameBuilder, Requests
from loadgen.analysis.probes import needed_requests, probe_of
from loadgen.analysis.search import Found, NextProbe, Probe, Search, decide
from loadgen.analysis.slo import parse
from loadgen.model import Load, RunInfo, StageInfo
from tests.analysis.made import ok

RATE = Search(whole=False, low=1.0, high=64.0, requests=400)
USERS = Search(whole=True, low=1.0, high=64.0, requests=400)


def passed(load: float, **more: object) -> Probe:
    return Probe(load, "pass", requests=400, **more)  # type: ignore[arg-type]


def failed(load: float, **more: object) -> Probe:
    return Probe(load, "fail", requests=400, **more)  # type: ignore[arg-type]


def unsure(load: float, **more: object) -> Probe:
    return Probe(load, "undecidable", requests=400, why="the limit lies inside", **more)  # type: ignore[arg-type]


OPEN = Search(whole=False, requests=400)
UP = Search(whole=True, low=2.0, requests=400)


@pytest.mark.parametrize(
    ("search", "probes", "load", "length"),
    [
        (RATE, [], 8.0, 1),  # the geometric middle
        (RATE, [passed(8)], 22.63, 1),
        (RATE, [failed(8)], 2.828, 1),
        (RATE, [failed(8), passed(2.828)], 4.756, 1),
        (USERS, [], 8, 1),
        (USERS, [passed(8), failed(10)], 9, 1),
        (USERS, [failed(8), passed(5)], 6, 1),
        (USERS, [passed(8), passed(23), passed(38), passed(49), passed(56), passed(60), passed(62)], 64, 1),
        (RATE, [passed(62)], 64, 1),  # the end is tried itself
        (RATE, [failed(1.03)], 1, 1),
        (OPEN, [], 1, 1),
        (OPEN, [passed(1)], 4, 1),
        (OPEN, [passed(1), passed(4)], 16, 1),
        (OPEN, [failed(1)], 0.25, 1),
        (UP, [], 2, 1),
        (UP, [passed(2)], 8, 1),
        (RATE, [unsure(8)], 8, 2),  # longer, twice where nothing is known ...
        (RATE, [unsure(8, length=2.0)], 8, 4),
        (
            RATE,
            [unsure(8, observed=0.8, bound=1.0, low=0.7, high=1.2)],
            8,
            pytest.approx(4),
        ),  # ... by the interval where it is
        (RATE, [unsure(8, observed=0.9, bound=1.0, low=0.7, high=1.4)], 8, 8),
        (RATE, [unsure(8, observed=1.2, bound=1.0, low=0.9, high=2.0)], 8, pytest.approx(2.25)),
        (RATE, [unsure(8), passed(8, length=2.0)], 22.63, 1),  # the longer one counts
        (RATE, [passed(8), failed(8, length=2.0)], 2.828, 1),
        (RATE, [unsure(8, length=8.0)], 2.828, 1),  # the longest did not decide: it counts as broken
        (RATE, [unsure(8, final=True)], 8, 1),  # INVALID: once more ...
        (RATE, [unsure(8, final=True), passed(8)], 22.63, 1),
        (RATE, [unsure(8, final=True)] * 2, 2.828, 1),  # ... then below it ...
        (USERS, [passed(5), *[unsure(6, final=True)] * 2], 7, 1),  # ... and its neighbour above
        (USERS, [passed(5), *[unsure(6, final=True)] * 2, passed(7)], 21, 1),
        (RATE, [passed(8), *[unsure(8.2, final=True)] * 2], 8.61, 1),
        (RATE, [unsure(8, rising=True)], 8, 4),
        (RATE, [unsure(8, rising=True, length=4.0)], 2.828, 1),
        (RATE, [unsure(8, observed=0.999, bound=1.0, low=0.7, high=1.4)], 2.828, 1),  # no length would do
        (RATE, [failed(8), passed(16)], 8, 2),  # not in order: once more
        (RATE, [failed(8), passed(16), passed(8, length=2.0)], 32, 1),
    ],
)
def test_the_next_load(search: Search, probes: list[Probe], load: float, length: float) -> None:
    wanted = decide(probes, search)
    assert isinstance(wanted, NextProbe)
    assert (wanted.load, wanted.length) == (load, length)


@pytest.mark.parametrize(
    ("search", "probes", "kept", "broken", "ending", "word"),
    [
        (RATE, [passed(8), failed(8.4)], 8, 8.4, "found", "8.4 breaks"),
        (USERS, [passed(8), failed(9)], 8, 9, "found", "9 breaks"),
        (RATE, [passed(64)], 64, None, "all", "highest"),
        (RATE, [failed(1)], None, 1, "none", "lowest"),
        (replace(RATE, high=1.0), [unsure(1, final=True)] * 2, None, None, "open", "1 could not be decided"),
        (USERS, [passed(5), *[unsure(6, final=True)] * 2, *[unsure(7, final=True)] * 2], 5, None, "open", "6 could"),
        (USERS, [passed(5), *[unsure(6, final=True)] * 2, failed(7)], 5, 7, "open", "5 keeps the SLO, 7 does not"),
        (replace(USERS, high=6.0), [passed(5), *[unsure(6, final=True)] * 2], 5, None, "open", "6 could not be"),
        (RATE, [*[unsure(8, final=True)] * 2, passed(64)], 64, None, "all", "highest"),
        (RATE, [passed(8), unsure(8.4, length=8.0)], 8, 8.4, "found", "8.4 could not be decided (the limit lies"),
        (RATE, [passed(7.8), failed(8), failed(8, length=2.0), passed(16)], 7.8, 8, "found", "not in order: 16"),
        (Search(whole=True, requests=9), [failed(1)], None, 1, "none", "lowest"),
        (replace(RATE, max_probes=2), [passed(8), passed(22.63)], 22.63, None, "open", "2 probes"),
        (replace(RATE, max_requests=1000), [passed(8), passed(22.63)], 22.63, None, "open", "1,000 requests"),
        (replace(RATE, max_seconds=60.0), [passed(8, seconds=50.0)], 8, None, "open", "60 s"),
        (replace(RATE, max_seconds=60.0), [], None, None, "open", "nothing is known"),  # 50 s would do, 400 / 8 / s
    ],
)
def test_the_end(
    search: Search, probes: list[Probe], kept: float | None, broken: float | None, ending: str, word: str
) -> None:
    if not probes:
        search = replace(search, max_seconds=10.0)
    found = decide(probes, search)
    assert isinstance(found, Found)
    assert (found.kept, found.broken, found.ending) == (kept, broken, ending)
    assert word in found.why


def test_a_first_probe_is_long_enough_to_pass() -> None:
    for text, least in (("p99(ttft) < 1s", 299), ("p50(ttft) < 1s", 100), ("error_rate < 0.1%", 2995)):
        assert needed_requests(parse([text])) >= least * 1.3
    assert needed_requests(parse(["p99.99999(ttft) < 1s"])) == 20_000


# -- whole searches ------------------------------------------------------------------------------------------------

Endpoint = Callable[[float, int, np.random.Generator], np.ndarray]  # (load, requests) -> TTFT of each, seconds


def _requests(ttft: np.ndarray, load: float, whole: bool) -> Requests:
    builder = FrameBuilder()
    for number, value in enumerate(ttft):
        at = number / (load if not whole else load * 2.0)
        due = None if whole else at
        builder.add(ok(number, sent=at, scheduled=due, dispatched=at, events=(float(value), float(value) + 0.01)))
    return builder.build()


def _stage(requests: Requests, load: float, count: int, whole: bool) -> StageInfo:
    end = int(np.nanmax(requests.end_ns))
    return StageInfo(
        0, "chat@x", "chat", Load("concurrency" if whole else "rate", load), count, start_ns=0, window_start_ns=0,
        window_end_ns=end, end_ns=end, planned=count, health={"peak_in_flight": 1e9},
    )  # fmt: skip


def _measure(ttft: np.ndarray, load: float, search: Search, slo: Sequence[str]) -> tuple[StageInfo, Requests]:
    """The stage as an engine runs it: it is looked at again and again, and ends once the SLO is surely broken."""
    seen = 40
    while seen < len(ttft):
        requests = _requests(ttft[:seen], load, search.whole)
        stage = _stage(requests, load, len(ttft), search.whole)
        if (ended := why_end(Ending(keep=tuple(slo)), stage, requests, 0)) is not None:
            return replace(stage, stopped=ended.why, unsent=len(ttft) - seen), requests
        seen = math.ceil(seen * 1.25)
    requests = _requests(ttft, load, search.whole)
    return _stage(requests, load, len(ttft), search.whole), requests


def _search(endpoint: Endpoint, search: Search, slo: Sequence[str], seed: int = 0) -> tuple[Found, list[Probe]]:
    rng = np.random.default_rng(seed)
    probes: list[Probe] = []
    for _ in range(60):
        wanted = decide(probes, search)
        if isinstance(wanted, Found):
            return wanted, probes
        count = math.ceil(search.first(wanted.load) * wanted.length)
        stage, requests = _measure(endpoint(wanted.load, count, rng), wanted.load, search, slo)
        probes.append(probe_of(RunInfo(1, "complete", "r", "", seed=seed), stage, requests, parse(slo), search))
    raise AssertionError(f"no end after {len(probes)} probes")


def rising(capacity: float, noise: float) -> Endpoint:
    """Lognormal TTFT that grows with the square of the load: its p99 is exactly 1 s at `capacity`."""

    def ttft(load: float, count: int, rng: np.random.Generator) -> np.ndarray:
        median = math.exp(-2.3263 * noise) * (load / capacity) ** 2
        return median * np.exp(noise * rng.standard_normal(count))

    return ttft


def queue(capacity: float) -> Endpoint:
    """One server that takes 1 / capacity for each of the evenly spaced requests of `_requests`: above its capacity the
    wait grows for as long as the stage lasts, and below there is none."""

    def ttft(load: float, count: int, rng: np.random.Generator) -> np.ndarray:
        late = np.maximum(1.0 / capacity - 1.0 / load, 0.0) * np.arange(count)
        return 1.0 / capacity + late + 1e-3 * rng.random(count)

    return ttft


SWEEP = round(math.log(64.0) / math.log(1.05)) * 400  # every load of the range, 5 % apart, as long as a first probe


@pytest.mark.parametrize(("capacity", "noise"), [(1.7, 0.1), (13.0, 0.02), (13.0, 0.1), (55.0, 0.1)])
def test_the_capacity_is_found_within_5_percent_at_a_tenth_of_a_sweep(capacity: float, noise: float) -> None:
    costs = []
    for seed in range(2):
        found, probes = _search(rising(capacity, noise), RATE, ["p99(ttft) < 1s"], seed)
        assert found.ending == "found"
        assert found.kept == pytest.approx(capacity, rel=0.05)
        costs.append(sum(probe.requests for probe in probes))
    assert np.mean(costs) <= 0.1 * SWEEP * (1.0 if noise < 0.1 else 1.3)


def test_users_are_found_to_the_nearest() -> None:
    found, _ = _search(rising(20.5, 0.01), USERS, ["p90(ttft) < 1s"])
    assert (found.kept, found.broken) == (20, 21)


def test_much_noise_costs_precision_on_the_safe_side() -> None:
    found, _ = _search(rising(13.0, 0.4), replace(RATE, requests=200), ["p95(ttft) < 0.7s"])
    truth = 13.0 * math.sqrt(0.7 * math.exp((2.3263 - 1.6449) * 0.4))
    assert found.kept is not None
    assert 0.85 * truth < found.kept < 1.03 * truth


def test_a_queue_that_only_grows_is_no_capacity_even_under_a_lenient_limit() -> None:
    """At 10 % over its capacity the server's wait is 4 s after a first probe: the limit is not broken, but no load is
    kept that is not sustained."""
    found, probes = _search(queue(10.0), RATE, ["p99(ttft) < 10s, error_rate < 1%"])
    assert found.kept == pytest.approx(10.0, rel=0.05)
    assert any("still rose" in probe.why for probe in probes)
    stage = _stage(
        requests := _requests(queue(10.0)(11.0, 400, np.random.default_rng(0)), 11.0, False), 11.0, 400, False
    )
    above = probe_of(RunInfo(1, "complete", "r", ""), stage, requests, parse(["p99(ttft) < 10s"]), RATE)
    assert (above.verdict, "not sustained: the wait grows by 0.1 s in a second" in above.why) == ("fail", True)
    assert sum(probe.requests for probe in probes) < 0.2 * SWEEP


def test_everything_passes_and_nothing_does() -> None:
    fast = _search(rising(1e6, 0.1), RATE, ["p99(ttft) < 1s"])
    assert (fast[0].ending, fast[0].kept) == ("all", 64.0)
    slow = _search(rising(1e-2, 0.1), RATE, ["p99(ttft) < 1s"])
    assert (slow[0].ending, slow[0].broken) == ("none", 1.0)
    assert sum(probe.requests for probe in slow[1]) < 400  # each was over as soon as it was sure


def test_a_hole_below_what_is_kept_ends_the_answer_below_the_hole() -> None:
    def holed(load: float, count: int, rng: np.random.Generator) -> np.ndarray:
        return rising(40.0, 0.1)(80.0 if 6.0 < load < 9.0 else load, count, rng)

    found, _ = _search(holed, RATE, ["p99(ttft) < 1s"])
    assert found.kept == pytest.approx(6.0, rel=0.05)


def test_a_client_at_its_limit_decides_nothing() -> None:
    requests = _requests(np.full(400, 2.0), 8.0, False)
    late = FrameBuilder()
    for number in range(400):
        at = number / 8.0
        late.add(ok(number, sent=at + 1.0, scheduled=at, dispatched=at + 1.0, ready=at, events=(0.5, 0.6)))
    stage = _stage(requests, 8.0, 400, False)
    info = RunInfo(1, "complete", "r", "")
    slo = parse(["p99(ttft) < 1s"])
    assert probe_of(info, stage, requests, slo, RATE).verdict == "fail"
    probe = probe_of(info, stage, late.build(), slo, RATE)
    assert (probe.verdict, probe.final) == ("undecidable", True)
    assert "client_delay" in probe.why
