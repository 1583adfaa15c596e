"""The server's own view of a run: what was read from its metrics, as series in time.

Knows: how samples of any engine become one reading, how readings of several pages become one series. Must not know:
HTTP, files, text formats, findings.
Why: batch, queue and cache as the server saw them explain latencies that a client can only state.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from loadgen.analysis.server_names import ALIASES, SERIES, Alias, Fold
from loadgen.analysis.stats import Floats

Sample = tuple[str, dict[str, str], float]  # name, labels, value


@dataclass(frozen=True, slots=True)
class Histogram:
    """A Prometheus histogram since the server's start: `n[i]` of its values were at most `le[i]` seconds."""

    sum: float
    count: float
    le: tuple[float, ...] = ()
    n: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Scrape:
    """One page of metrics. `t_ns` is the middle between asking and having it, from the run's start.

    `tick` numbers the rounds in which all pages are read, `source` the pages. `engines` says whose names were found.
    """

    t_ns: int
    took_ns: int
    tick: int
    source: int
    engines: tuple[str, ...] = ()
    values: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a page says, in the words of `SERIES`."""

    engines: tuple[str, ...]
    values: dict[str, float]
    histograms: dict[str, Histogram]


def normalise(samples: Iterable[Sample]) -> Reading:
    """Translate the samples of one page. What no alias names is left out; what is not finite is not known."""
    by_name: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for name, labels, value in samples:
        if math.isfinite(value):
            by_name[name].append((labels, value))
    engines: list[str] = []
    values: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}
    for engine, aliases in ALIASES.items():
        for alias in aliases:
            if alias.series in values or alias.series in histograms:
                continue
            if SERIES[alias.series].kind == "histogram":
                histogram = _histogram(alias.names[0], by_name)
                if histogram is not None:
                    histograms[alias.series] = histogram
            else:
                number = _number(alias, by_name)
                if number is not None:
                    values[alias.series] = number
            if engine not in engines and (alias.series in values or alias.series in histograms):
                engines.append(engine)
    return Reading(tuple(engines), values, histograms)


def _number(alias: Alias, by_name: dict[str, list[tuple[dict[str, str], float]]]) -> float | None:
    total = 0.0
    for name in alias.names:
        matching = [
            value
            for labels, value in by_name.get(name, ())
            if all(labels.get(label) == wanted for label, wanted in alias.where)
        ]
        if not matching:
            return None
        total += fold(SERIES[alias.series].fold, matching)
    return total * alias.scale


def _histogram(name: str, by_name: dict[str, list[tuple[dict[str, str], float]]]) -> Histogram | None:
    """The histogram summed over its label sets; None where the page has no sum or no count of it."""
    sums, counts = by_name.get(f"{name}_sum"), by_name.get(f"{name}_count")
    if not sums or not counts:
        return None
    buckets: dict[float, float] = defaultdict(float)
    for labels, value in by_name.get(f"{name}_bucket", ()):
        edge = _edge(labels.get("le", ""))
        if edge is not None:
            buckets[edge] += value
    le = tuple(sorted(buckets))
    total, count = sum(value for _, value in sums), sum(value for _, value in counts)
    return Histogram(total, count, le, tuple(buckets[edge] for edge in le))


def _edge(text: str) -> float | None:
    """A finite upper bound. The infinite one repeats the count."""
    try:
        edge = float(text)
    except ValueError:
        return None
    return edge if math.isfinite(edge) else None


def fold(how: Fold, values: list[float]) -> float:
    """One value of several engines' or GPUs'."""
    total = math.fsum(values)
    return {"sum": total, "mean": total / len(values), "min": min(values), "max": max(values)}[how]


# -- in time --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """One series: moments (ns from the run's start, rising) and values. Counters count from the server's start."""

    t_ns: Floats
    values: Floats

    def __len__(self) -> int:
        return len(self.t_ns)

    def within(self, low_ns: float, high_ns: float) -> Floats:
        """Values at moments from `low_ns` to `high_ns`."""
        return self.values[(self.t_ns >= low_ns) & (self.t_ns <= high_ns)]

    def around(self, low_ns: float, high_ns: float) -> tuple[int, int] | None:
        """The last moment not after `low_ns` and the first not before `high_ns`, as indices.

        Where there is none the outermost moments take their place; None where fewer than two are left.
        """
        first = max(int(np.searchsorted(self.t_ns, low_ns, side="right")) - 1, 0)
        last = min(int(np.searchsorted(self.t_ns, high_ns, side="left")), len(self) - 1)
        return (first, last) if last > first else None


@dataclass(frozen=True)
class ServerLog:
    """Everything read from a server during a run, in the order of reading."""

    scrapes: tuple[Scrape, ...]

    @cached_property
    def engines(self) -> frozenset[str]:
        """Whose names were found."""
        return frozenset(engine for scrape in self.scrapes for engine in scrape.engines)

    @cached_property
    def columns(self) -> dict[str, Column]:
        """Gauges and counters by series, and of each histogram `<series>_sum` and `<series>_count`."""
        found: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
        sources: dict[str, set[int]] = defaultdict(set)
        for scrape in self.scrapes:
            for name, value in _flat(scrape).items():
                found[name][scrape.tick].append((scrape.t_ns, value))
                sources[name].add(scrape.source)
        columns = {}
        for name, ticks in found.items():
            how: Fold = SERIES[name].fold if name in SERIES else "sum"
            # A round in which a page is missing says nothing: half of a sum would look like a restart.
            rows = [
                (sum(t for t, _ in rows) / len(rows), fold(how, [value for _, value in rows]))
                for _, rows in sorted(ticks.items())
                if len(rows) == len(sources[name])
            ]
            if rows:
                t_ns, values = np.asarray(rows, dtype=np.float64).T
                columns[name] = Column(t_ns, values)
        return columns


def _flat(scrape: Scrape) -> dict[str, float]:
    flat = {name: value for name, value in scrape.values.items() if name in SERIES}
    for name, histogram in scrape.histograms.items():
        flat[f"{name}_sum"], flat[f"{name}_count"] = histogram.sum, histogram.count
    return flat


def server_series(log: ServerLog) -> dict[str, tuple[Floats, Floats]]:
    """What to draw: name -> (seconds from the run's start, values), NaN where nothing is known.

    Gauges as they are; a counter as its rate since the moment before (`<series>_per_s`); a histogram as the mean of
    what was added since (`<series>`); `prefix_hit_share` and `spec_acceptance` likewise. Units as in `SERIES`.
    """
    columns = log.columns
    drawn: dict[str, tuple[Floats, Floats]] = {}
    for name, series in SERIES.items():
        if series.kind == "gauge" and name in columns:
            drawn[name] = (columns[name].t_ns / 1e9, columns[name].values)
        elif series.kind == "counter" and name in columns and len(columns[name]) > 1:
            seconds = columns[name].t_ns / 1e9
            drawn[f"{name}_per_s"] = (seconds[1:], added(columns[name].values) / np.diff(seconds))
        elif series.kind == "histogram":
            drawn |= _ratio(name, columns.get(f"{name}_sum"), columns.get(f"{name}_count"))
    drawn |= _ratio("prefix_hit_share", columns.get("prefix_hits"), columns.get("prefix_queries"))
    return drawn | _ratio("spec_acceptance", columns.get("spec_accepted"), columns.get("spec_drafted"))


def _ratio(name: str, over: Column | None, under: Column | None) -> dict[str, tuple[Floats, Floats]]:
    if over is None or under is None or len(under) < 2 or not np.array_equal(over.t_ns, under.t_ns):
        return {}
    more = added(under.values)
    share = np.divide(added(over.values), more, out=np.full(len(more), np.nan), where=more > 0.0)
    return {name: (under.t_ns[1:] / 1e9, share)} if np.isfinite(share).any() else {}


def added(counter: Floats) -> Floats:
    """What a counter grew by from moment to moment; NaN where it fell (the server was started anew)."""
    grown = np.diff(counter)
    return np.where(grown < 0.0, np.nan, grown)
