"""Did the two runs measure alike? What differs, what nobody knows, and which figures may therefore not be compared.

Knows: the facts of run.json that a figure depends on, the lengths that were asked for and got. Must not know:
statistics, verdicts, layout.
Why: most differences between two benchmarks are differences of conditions. What was *asked of the server* must be the
same, or the cell is refused; how it was asked should be, or the reader is warned; what the server *is* may differ, as
that is what one compares, and is listed; and where nobody told what it is, two runs are never called alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from loadgen.analysis.compare_sides import Cell, Side
from loadgen.analysis.measured import Measured
from loadgen.model import RunInfo

Kind = Literal["refused", "unlike", "both", "unknown", "subject"]
Likeness = Literal["alike", "unlike", "unknown"]

ALL = ("*",)
_ASKED_OFF = 0.05  # of mean asked lengths, where no spec says them
_GOT_OFF, _GOT_WITHHELD = 0.02, 0.05  # of got / asked
_OF_PROMPT = ("ttft", "ttft_scheduled", "e2e", "e2e_scheduled", "time_to_first_answer")
_OF_OUTPUT = ("e2e", "e2e_scheduled", "requests_per_s", "goodput")
_RTT_OFF_S = 1e-3


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition that is not the same on both sides, or (`both`) is, and is bad for either. `withholds`: metrics
    without a verdict because of it."""

    kind: Kind
    what: str
    base: str
    other: str
    cell: str = ""  # "": of the whole run
    withholds: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """`3 against 4`; what is the same on both sides is said once."""
        return self.base if self.base == self.other else f"{self.base} against {self.other}"


def _unlike(what: str, base: str, other: str, cell: str = "") -> Condition:
    """Something that harms a measurement, whether the sides differ in it or share it."""
    return Condition("both" if base == other else "unlike", what, base, other, cell)


def likeness(conditions: Sequence[Condition]) -> Likeness:
    """Whether the two measured alike, as far as can be known; what is compared may differ."""
    kinds = {condition.kind for condition in conditions}
    return "unlike" if kinds & {"refused", "unlike"} else "unknown" if "unknown" in kinds else "alike"


# -- of whole runs --------------------------------------------------------------------------------------------------

Fact = Callable[[RunInfo], Any]


def _of(attribute: str, *keys: str) -> Fact:
    def get(info: RunInfo) -> Any:
        value: Any = getattr(info, attribute)
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    return get


def _seconds(limits: Any) -> str | None:
    """Limits in ns, as a user writes them."""
    if not isinstance(limits, dict):
        return None
    return ", ".join(f"{name} {'off' if ns is None else f'{ns * 1e-9:g}s'}" for name, ns in limits.items())


# How it was measured; a fact that one side lacks counts as a difference.
_MEASURED: tuple[tuple[str, Fact], ...] = (
    ("state of the run", _of("status")),
    ("client version", _of("versions", "loadgen")),
    ("stamp source", _of("clock", "stamp_source")),
    ("client's processor", _of("host", "cpu")),
    ("client's cores", _of("host", "cores")),
    ("machines of the load", _of("host", "ray", "nodes")),
    ("seed of lengths, arrivals and texts", lambda info: info.seed),
    ("API", _of("endpoint", "dialect")),
    ("output length forced by ignore_eos", _of("endpoint", "ignore_eos")),
    ("output length forced by min_tokens", _of("endpoint", "min_tokens")),
    ("usage in the stream", _of("endpoint", "include_usage")),
    ("connections kept open", _of("endpoint", "keep_alive")),
    ("warm-up requests", _of("spec", "warmup")),
    ("opening burst", _of("spec", "burst_start")),
    ("temperature", _of("spec", "temperature")),
    ("extra body", _of("spec", "extra_body")),
    ("timeouts", lambda info: _seconds(_of("spec", "timeouts_ns")(info))),
)
# What was measured. Provenance is compared key by key.
_SUBJECT: tuple[tuple[str, Fact], ...] = (
    ("model", _of("endpoint", "model")),
    ("engine", _of("endpoint", "engine")),
    ("version", _of("endpoint", "version")),
    ("context limit", _of("endpoint", "context_limit")),
    ("endpoint", _of("endpoint", "url")),
    ("GPU", _of("spec", "roofline", "gpu")),
    ("GPUs", _of("spec", "roofline", "gpus")),
    ("model shape", _of("spec", "roofline", "shape")),
    ("data type", _of("spec", "roofline", "dtype")),
)
_NOT_SETTINGS = ("response_headers",)  # differ with every request


def of_runs(base: Side, other: Side) -> list[Condition]:
    """Conditions of the two runs as wholes."""
    if base.summary is None or other.summary is None:
        return [_foreign(side) for side in (base, other) if side.summary is None]
    a, b = base.summary.info, other.summary.info
    measured = ((name, text(fact(a)), text(fact(b))) for name, fact in _MEASURED if fact(a) != fact(b))
    found = [Condition("unlike", *one) for one in measured]
    verdicts = base.summary.verdict, other.summary.verdict
    if "invalid" in verdicts:
        found.append(_unlike("verdict on the measurement", *verdicts))
    subject = ((name, text(fact(a)), text(fact(b))) for name, fact in _SUBJECT if fact(a) != fact(b))
    return [
        *found,
        *_status(a, b),
        *_network(a, b),
        *_busy(a, b),
        *_unknown(a, b),
        *(Condition("subject", *one) for one in subject),
        *_provenance(a, b),
    ]


def _foreign(side: Side) -> Condition:
    return Condition("unknown", "how it was measured", side.name, "another tool's results: means alone, no requests")


def _status(a: RunInfo, b: RunInfo) -> Iterator[Condition]:
    """Two runs that both ended early are alike in that, and still not whole."""
    if a.status == b.status and a.status != "complete":
        yield _unlike("state of the run", a.status, b.status)


def _network(a: RunInfo, b: RunInfo) -> Iterator[Condition]:
    x, y = a.endpoint.get("rtt_ns"), b.endpoint.get("rtt_ns")
    if isinstance(x, int | float) and isinstance(y, int | float) and abs(x - y) / 1e9 > _RTT_OFF_S:
        yield Condition("unlike", "network round trip", f"{x / 1e6:.3g} ms", f"{y / 1e6:.3g} ms")


def _busy(a: RunInfo, b: RunInfo) -> Iterator[Condition]:
    """Other work on the client's machine comes and goes between two runs, and no interval within one knows of it."""
    loads = [(info.host.get("load_average_1m"), info.host.get("cores")) for info in (a, b)]
    known = [(x, n) for x, n in loads if isinstance(x, int | float) and isinstance(n, int | float)]
    if any(x > n for x, n in known) and len(known) == 2:
        words = [f"load {x:.3g} on {n:g} cores" for x, n in known]
        yield _unlike("other work on the client's machine", words[0], words[1])


def _unknown(a: RunInfo, b: RunInfo) -> Iterator[Condition]:
    """What nobody told of either endpoint: a server may differ in it, and no one could see."""
    known = _words_unknown(a), _words_unknown(b)
    if known[0] is None or known[1] is None:
        x, y = ("not recorded" if one is None else "recorded" for one in known)
        yield Condition("unknown", "what the endpoint is", x, y)
        return
    for word in dict.fromkeys((*known[0], *known[1])):
        x, y = ("unknown" if word in words else "known" for words in (known[0], known[1]))
        yield Condition("unknown", word, x, y)


def _words_unknown(info: RunInfo) -> list[str] | None:
    words = info.endpoint.get("unknown")
    return [str(word) for word in words] if isinstance(words, list) else None


def _provenance(a: RunInfo, b: RunInfo) -> Iterator[Condition]:
    """Settings that the two servers told of themselves."""
    sides = [dict(_flat(info.endpoint.get("provenance") or {})) for info in (a, b)]
    for key in dict.fromkeys((*sides[0], *sides[1])):
        x, y = (side.get(key) for side in sides)
        if x != y:
            yield Condition("subject", key, text(x), text(y))
    for key in dict.fromkeys((*a.notes, *b.notes)):
        if a.notes.get(key) != b.notes.get(key):
            yield Condition("subject", f"note: {key}", text(a.notes.get(key)), text(b.notes.get(key)))


def _flat(of: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in of.items():
        if key in _NOT_SETTINGS:
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}: ")
        else:
            yield before + str(key), value


def text(value: Any) -> str:
    """A fact in words."""
    if value is None or value == "":
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


# -- of cells -------------------------------------------------------------------------------------------------------


def of_cells(base: Side, other: Side, a: Cell, b: Cell) -> list[Condition]:
    """Conditions of two cells that have one workload and load."""
    if a.stage is None or b.stage is None or a.measured is None or b.measured is None:
        return []
    found = [
        Condition("refused", what, text(one), text(two), a.name, ALL)
        for what, one, two in (
            ("arrivals", a.load.arrivals, b.load.arrivals),
            ("limit of requests in flight", a.load.cap, b.load.cap),
        )
        if one != two
    ]
    found += _window(a, b)
    x, y = _asked_in_spec(base, a), _asked_in_spec(other, b)
    if x is not None and y is not None:
        found += _of_specs(a.name, x, y)
    else:
        found += _asked_means(a.name, a.measured, b.measured)
    if not any(condition.kind == "refused" for condition in found):
        found += _got(a.name, "prompt", _OF_PROMPT, a.measured, b.measured)
        found += _got(a.name, "output", _OF_OUTPUT, a.measured, b.measured)
    return found + list(_sources(a.name, a.measured, b.measured))


def _window(a: Cell, b: Cell) -> Iterator[Condition]:
    assert a.stage is not None
    assert b.stage is not None
    x, y = a.stage.info, b.stage.info
    if (x.duration_ns is None) != (y.duration_ns is None):
        words = ["a number of requests" if info.duration_ns is None else "a time" for info in (x, y)]
        yield Condition("unlike", "length of the stage given by", words[0], words[1], a.name)
    if x.stopped or y.stopped:
        yield _unlike("stage stopped early", x.stopped or "no", y.stopped or "no", a.name)


def _asked_in_spec(side: Side, cell: Cell) -> list[dict[str, Any]] | None:
    """The mix of the cell's stage, as the run's spec says it."""
    assert side.summary is not None
    stages = side.summary.info.spec.get("stages")
    for stage in stages if isinstance(stages, list) else ():
        if isinstance(stage, dict) and stage.get("name") == cell.name and isinstance(stage.get("mix"), list):
            return [part for part in stage["mix"] if isinstance(part, dict)]
    return None


def _of_specs(cell: str, a: list[dict[str, Any]], b: list[dict[str, Any]]) -> Iterator[Condition]:
    if len(a) != len(b):
        yield Condition("refused", "workloads of the mix", str(len(a)), str(len(b)), cell, ALL)
        return
    for x, y in zip(a, b, strict=True):
        for key in dict.fromkeys((*x, *y)):
            if x.get(key) != y.get(key):
                what = f"{str(key).replace('_', ' ')} asked"
                yield Condition("refused", what, text(x.get(key)), text(y.get(key)), cell, ALL)


def _asked_means(cell: str, a: Measured, b: Measured) -> Iterator[Condition]:
    for side in ("prompt", "output"):
        x, y = (_mean(getattr(m.columns, f"{side}_requested")) for m in (a, b))
        if not _near(x, y, _ASKED_OFF) and not (math.isnan(x) and math.isnan(y)):
            yield Condition("refused", f"{side} tokens asked", _tokens(x), _tokens(y), cell, ALL)


def _got(cell: str, side: str, figures: tuple[str, ...], a: Measured, b: Measured) -> Iterator[Condition]:
    """Lengths that came, over those that were asked for: drawn lengths may differ by chance, kept ones must not."""
    kept: list[float] = []
    got: list[float] = []
    for m in (a, b):
        asked, came = getattr(m.columns, f"{side}_requested"), getattr(m.columns, f"{side}_tokens")
        known = m.columns.ok & ~np.isnan(came)
        got.append(_mean(came[known]))
        kept.append(got[-1] / _mean(asked[known]) if (asked[known] > 0).all() else got[-1])
    if any(math.isnan(x) for x in kept) or _near(kept[0], kept[1], _GOT_OFF):
        return
    withheld = () if _near(kept[0], kept[1], _GOT_WITHHELD) else figures
    yield Condition("unlike", f"{side} tokens got", _tokens(got[0]), _tokens(got[1]), cell, withheld)


def _sources(cell: str, a: Measured, b: Measured) -> Iterator[Condition]:
    """Who counted the tokens."""
    for side in ("prompt", "output"):
        x, y = (_words(m, f"{side}_tokens_source") for m in (a, b))
        if x and y and x != y:
            yield Condition("unlike", f"{side} tokens counted by", ", ".join(x), ", ".join(y), cell)


def _words(m: Measured, column: str) -> list[str]:
    codes = np.unique(getattr(m.requests, column)[m.columns.rows[m.columns.ok]])
    return sorted(m.requests.words[column][code] for code in codes if code >= 0)


def _mean(values: Any) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _near(x: float, y: float, off: float) -> bool:
    return math.isclose(x, y, rel_tol=off, abs_tol=1e-9)


def _tokens(x: float) -> str:
    return "n/a" if math.isnan(x) else f"{x:,.4g}"
