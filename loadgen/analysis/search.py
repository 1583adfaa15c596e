"""The highest load that keeps an SLO: which load to try next, and when the answer stands.

Knows: probes (a load, its verdict, the interval that decided), the range that is searched, what the search may cost.
Must not know: how a load is sent, where probes are kept, exit codes.
Why a pure function of all probes so far: the same probes give the same next one, so that a search that was killed goes
on from its run folder, and every rule here is tested by a table.

Theory of operation. Loads are compared by ratio. A load is *kept* when its last verdict is pass, *broken* when it is
fail, and broken, too, when it stays undecidable after the longest probe that is worth it: what is returned was shown to
keep the SLO. The bracket is the lowest broken load and the highest kept one below it. Inside a bracket, or a range with
two ends, the next load is the geometric middle; without an upper (lower) end it is four times more (less). A probe
that could not be decided is repeated, longer by as much as its interval is too wide. The search ends when the two sides
of the bracket are within the precision, or for whole numbers neighbours. A load that breaks although a higher one is
kept is tried once more, longer; if it breaks again, the answer lies below it, and that the verdicts are not in order is
said. A load whose measurement is INVALID is *blind*: nothing is known of the server there. It is measured once more; if
that is no better, the search goes on below it, and at last tries the next load above. An answer with a blind load
beside it is not decided: nobody saw the server break the SLO.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from loadgen.analysis.gate import SloOutcome

GROWTH = 4.0  # of the load while one side of the bracket is open
LONGEST = 8  # times the first length: no probe is longer
_LOWEST = 1e-3  # requests per second; below this nothing is searched
_DIGITS = 4  # of a load
_PER_USER = 4
_ANSWERS = 40  # that a forecast plays
_SETTLED = 4.0  # first lengths: what has not settled in so many is not sustained
_TRIES = 2  # of a load whose measurement is INVALID
_HOPELESS = 4  # a probe that would have to be so many times longer than the longest is not repeated

Ending = Literal["found", "all", "none", "open"]


@dataclass(frozen=True, slots=True)
class Probe:
    """One stage of the search. `length` counts first lengths (2: twice as many requests). The objective that decided
    observed `observed` with the one-sided 95 % bounds `low` and `high` against `bound`, SI; None is n/a.
    `final`: the measurement is INVALID, and a longer probe would not change it (the client was the limit).
    `rising`: undecided only because it had not settled."""

    load: float
    verdict: SloOutcome
    length: float = 1.0
    requests: int = 0
    seconds: float = 0.0
    observed: float | None = None
    bound: float | None = None
    low: float | None = None
    high: float | None = None
    final: bool = False
    rising: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Search:
    """What is searched: loads from `low` to `high` (None: open), to within `precision`; a first probe has `requests`
    requests, or lasts `seconds`. The limits hold for the whole search; None is none."""

    whole: bool  # concurrency: whole numbers
    low: float | None = None
    high: float | None = None
    precision: float = 0.05
    requests: int | None = None
    seconds: float | None = None
    least_seconds: float = 0.0  # by number of requests in open loop: at least for so long
    max_probes: int = 40
    max_requests: int | None = None
    max_seconds: float | None = None

    def first(self, load: float) -> float:
        """The length of a first probe of this load, in requests or seconds. A closed loop settles only after some
        requests of each user."""
        if self.requests is None:
            return self.seconds or 1.0
        least = _PER_USER * round(load) if self.whole else math.ceil(self.least_seconds * load)
        return float(max(self.requests, least))


@dataclass(frozen=True, slots=True)
class NextProbe:
    """Probe this load, `length` times as long as a first probe."""

    load: float
    length: float
    why: str


@dataclass(frozen=True, slots=True)
class Found:
    """The end. `kept` is the highest load that keeps the SLO, `broken` the lowest that does not (None: there is none).
    `ending`: found; all (the whole range keeps it); none (nothing does); open (a limit of the search ended it, or a
    load that could not be measured)."""

    kept: float | None
    broken: float | None
    ending: Ending
    why: str


def decide(probes: Sequence[Probe], search: Search) -> NextProbe | Found:
    """What to do after these probes, in the order in which they were made."""
    last = _strongest(probes)
    kept, broken = _bracket(last)
    wanted = _again(probes, last) or _wanted(last, kept, broken, search)
    if isinstance(wanted, Found):
        return wanted
    spent = _spent(probes, wanted, search)
    return given_up(probes, spent) if spent else wanted


def given_up(probes: Sequence[Probe], why: str) -> Found:
    """The end of a search that may not go on."""
    kept, broken = _bracket(_strongest(probes))
    return Found(kept, broken, "open", f"{why}: {_between(kept, broken)}")


@dataclass(frozen=True, slots=True)
class Forecast:
    """The fewest and the most that a search takes if every verdict comes at once, whatever its answer is."""

    probes: tuple[int, int]
    requests: tuple[int, int] | None  # None: by time
    first: float  # load of the first probe


def forecast(search: Search) -> Forecast:
    """Play the search for answers all over its range (with an open end: four growths from 1)."""
    low, high = search.low or 1.0 / GROWTH, search.high or GROWTH**4
    played = [_play(search, low * (high / low) ** (k / _ANSWERS)) for k in range(-1, _ANSWERS + 2)]
    probes, requests = (sorted(values) for values in zip(*played, strict=True))
    first = decide((), replace(search, max_seconds=None, max_requests=None))
    assert isinstance(first, NextProbe)
    counted = (requests[0], requests[-1]) if search.requests is not None else None
    return Forecast((probes[0], probes[-1]), counted, first.load)


def _play(search: Search, answer: float) -> tuple[int, int]:
    """(probes, requests) of a search that knows at once what is kept: loads up to `answer`."""
    probes: list[Probe] = []
    while isinstance(wanted := decide(probes, search), NextProbe):
        count = math.ceil(search.first(wanted.load) * wanted.length)
        probes.append(Probe(wanted.load, "pass" if wanted.load <= answer else "fail", wanted.length, count))
    return len(probes), sum(probe.requests for probe in probes)


def _strongest(probes: Sequence[Probe]) -> dict[float, Probe]:
    """For each load the longest probe, of equally long ones the last."""
    last: dict[float, Probe] = {}
    for probe in probes:
        if probe.load not in last or probe.length >= last[probe.load].length:
            last[probe.load] = probe
    return last


def _bracket(last: dict[float, Probe]) -> tuple[float | None, float | None]:
    broken = min((load for load, probe in last.items() if _is_broken(probe)), default=None)
    kept = [load for load, probe in last.items() if probe.verdict == "pass" and (broken is None or load < broken)]
    return max(kept, default=None), broken


def _is_broken(probe: Probe) -> bool:
    undecided = probe.verdict == "undecidable" and not _is_blind(probe) and _longer(probe) is None
    return probe.verdict == "fail" or undecided


def _is_blind(probe: Probe) -> bool:
    return probe.verdict == "undecidable" and probe.final


def _blind(last: dict[float, Probe], kept: float | None, broken: float | None) -> list[float]:
    """Loads inside the bracket of which nothing is known, ascending."""
    above, below = kept or 0.0, math.inf if broken is None else broken
    return sorted(load for load, probe in last.items() if _is_blind(probe) and above < load < below)


def _again(probes: Sequence[Probe], last: dict[float, Probe]) -> NextProbe | None:
    """A load whose first measurement was INVALID, once more: what disturbed the client may be over."""
    for load, probe in last.items():
        if _is_blind(probe) and sum(one.load == load and one.final for one in probes) < _TRIES:
            return NextProbe(load, probe.length, f"{load:g} could not be decided ({probe.why}): once more")
    return None


def _longer(probe: Probe) -> float | None:
    """How long an undecided probe has to be for a verdict, in first lengths; None where that is not worth it.

    An interval shrinks with the root of the length: it must shrink to the distance between what was observed and the
    limit.
    """
    if probe.final or probe.length >= (_SETTLED if probe.rising else LONGEST):
        return None
    if probe.rising:
        return _SETTLED
    factor = 2.0
    if None not in (probe.observed, probe.bound, probe.low, probe.high):
        assert probe.observed is not None
        assert probe.bound is not None
        assert probe.low is not None
        assert probe.high is not None
        distance = abs(probe.bound - probe.observed)
        half = (probe.high if probe.bound >= probe.observed else probe.low) - probe.observed
        factor = max(factor, (half / distance) ** 2) if distance > 0.0 else math.inf
    if factor * probe.length > _HOPELESS * LONGEST:
        return None
    return min(probe.length * factor, LONGEST)


def _wanted(last: dict[float, Probe], kept: float | None, broken: float | None, search: Search) -> NextProbe | Found:
    for load, probe in last.items():
        if probe.verdict == "undecidable" and (longer := _longer(probe)) is not None:
            return NextProbe(load, longer, f"{load:g} could not be decided: longer")
    if broken is not None:
        above = [load for load, probe in last.items() if probe.verdict == "pass" and load > broken]
        if above and last[broken].verdict == "fail" and last[broken].length < 2:
            return NextProbe(broken, 2.0, f"{broken:g} breaks the SLO although {min(above):g} keeps it: once more")
    blind = _blind(last, kept, broken)
    untried = _next_load(kept, blind[0] if blind else broken, search)
    if untried is None and blind:
        untried = _above(blind, broken, search)
    if untried is None:
        return _blind_end(last[blind[0]], kept, broken) if blind else _end(last, kept, broken, search)
    return NextProbe(untried, 1.0, _between(kept, broken))


def _above(blind: list[float], broken: float | None, search: Search) -> float | None:
    """The load next above the lowest blind one; None where it is known already, or outside of the range."""
    load = blind[0] + 1.0 if search.whole else _rounded(blind[0] * (1.0 + search.precision), search)
    known = min([*blind[1:], math.inf if broken is None else broken])
    return load if load < known and (search.high is None or load <= search.high) else None


def _blind_end(probe: Probe, kept: float | None, broken: float | None) -> Found:
    return Found(kept, broken, "open", "; ".join(filter(None, (_doubt(probe), _sides(kept, broken)))))


def _next_load(kept: float | None, broken: float | None, search: Search) -> float | None:
    """The next load; None when there is nothing left to learn."""
    low: float | None = search.low if kept is None else kept
    high: float | None = search.high if broken is None else broken
    if low is None and high is None:
        return 1.0
    if kept is None and broken is None and (low is None or high is None):
        return low or high
    if high is None:
        assert low is not None
        return _rounded(low * GROWTH, search)
    if low is None:
        lowest = 1.0 if search.whole else _LOWEST
        return None if high <= lowest else max(_rounded(high / GROWTH, search), lowest)
    if not _close(low, high, search):
        middle = _rounded(math.sqrt(low * high), search)
        return float(min(max(middle, math.floor(low) + 1), math.ceil(high) - 1)) if search.whole else middle
    # The two sides are near each other: an end of the range that nobody has tried is tried itself.
    if broken is None and kept != search.high:
        return search.high
    return search.low if kept is None and broken != search.low else None


def _close(low: float, high: float, search: Search) -> bool:
    return high <= low * (1.0 + search.precision) * (1.0 + 1e-9) or (search.whole and high - low <= 1)


def _rounded(load: float, search: Search) -> float:
    return float(max(round(load), 1)) if search.whole else float(f"{load:.{_DIGITS}g}")


def _end(last: dict[float, Probe], kept: float | None, broken: float | None, search: Search) -> Found:
    if broken is None:
        return Found(kept, None, "all", "the highest load of the range keeps the SLO")
    if kept is None:
        doubt = _doubt(last[broken])
        return Found(None, broken, "open" if doubt else "none", doubt or "even the lowest load breaks the SLO")
    above = [load for load, probe in last.items() if probe.verdict == "pass" and load > broken]
    why = _doubt(last[broken]) or f"{broken:g} breaks the SLO"
    if above:
        why += f"; not in order: {', '.join(f'{load:g}' for load in sorted(above))} kept it above that"
    return Found(kept, broken, "found", why)


def _doubt(probe: Probe) -> str:
    """Why a load that was not shown to break the SLO counts as if it had; "" where it was shown."""
    return f"{probe.load:g} could not be decided ({probe.why})" if probe.verdict == "undecidable" else ""


def _between(kept: float | None, broken: float | None) -> str:
    return _sides(kept, broken) or "nothing is known yet"


def _sides(kept: float | None, broken: float | None) -> str:
    sides = [f"{kept:g} keeps the SLO"] if kept is not None else []
    sides += [f"{broken:g} does not"] if broken is not None else []
    return ", ".join(sides)


def _spent(probes: Sequence[Probe], wanted: NextProbe, search: Search) -> str:
    """Which limit of the search the next probe would break; "" for none."""
    asked = search.first(wanted.load) * wanted.length
    by_number = search.requests is not None
    requests = math.ceil(asked) if by_number else 0
    seconds = asked if not by_number else 0.0 if search.whole else requests / wanted.load
    if len(probes) >= search.max_probes:
        return f"the limit of {search.max_probes} probes is reached"
    if search.max_requests is not None and sum(p.requests for p in probes) + requests > search.max_requests:
        return f"the limit of {search.max_requests:,} requests is reached"
    if search.max_seconds is not None and sum(p.seconds for p in probes) + seconds > search.max_seconds:
        return f"the limit of {search.max_seconds:g} s is reached"
    return ""
