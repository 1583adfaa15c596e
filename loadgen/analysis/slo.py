"""Service-level objectives: the little language, and the verdict pass, fail or undecidable.

Knows: the grammar of expressions, how failures rank, which bound decides. Must not know: exit codes, files, layout.
Why: a release gate that passes by luck, or by failing requests, is worse than none. A verdict follows from the bound
of the interval (one-sided, 95 %), never from the point; failed, cancelled and never-sent requests rank as +infinity.

    expression  := [scope ":"] condition {"and" condition}       several expressions are joined by commas
    condition   := [statistic "("] metric [")"] ("<" | "<=" | ">" | ">=") number [unit]
    scope       := workload | stage, as in `chat:` or `chat@32:`

A request metric without a statistic (`ttft < 1s and tpot < 50ms`) is a limit on each request: it defines
`slo_attainment` and `goodput`, and by itself every offered request has to meet it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.analysis.definitions import METRICS, Metric, metric
from loadgen.analysis.formulas import quantile_of
from loadgen.errors import UsageError

TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
SCHEDULED = {"ttft": "ttft_scheduled", "e2e": "e2e_scheduled"}
OF_LIMITS = ("slo_attainment", "goodput")  # stage metrics that a request-level limit defines

_CONDITION = re.compile(
    r"(?:(?P<stat>[A-Za-z][\w.]*)\s*\(\s*)?(?P<metric>[A-Za-z]\w*)\s*(?P<close>\))?\s*(?P<op><=|>=|<|>)\s*"
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>[^\s\d][^\s]*)?"
)


@dataclass(frozen=True, slots=True)
class Limit:
    """One condition. `value` is SI. `inverse`: the user limited a rate that is 1 / this metric."""

    metric: Metric
    stat: str | None  # None: a limit on each request
    op: str
    value: float
    inverse: bool = False

    def holds(self, x: float) -> bool:
        """Whether x keeps the limit."""
        return {"<": x < self.value, "<=": x <= self.value, ">": x > self.value, ">=": x >= self.value}[self.op]

    @property
    def upper(self) -> bool:
        """Whether large values break it."""
        return self.op in ("<", "<=")


@dataclass(frozen=True, slots=True)
class Slo:
    """One expression: its text, where it applies ("" = everywhere), its conditions."""

    text: str
    scope: str
    limits: tuple[Limit, ...]

    @property
    def per_request(self) -> bool:
        """A limit on each request rather than on a statistic."""
        return self.limits[0].stat is None


def parse(expressions: Sequence[str]) -> tuple[Slo, ...]:
    """Read SLO expressions. Raises UsageError that names the expression and what would be right."""
    found: list[Slo] = []
    for text in expressions:
        for part in text.split(","):
            if not part.strip():
                raise _bad(
                    text, "an expression is empty", "write for example p99(ttft) < 1s"
                )  # an unset variable in CI
            found += _expression(part.strip())
    limited = {limit.metric.name for slo in found for limit in slo.limits}
    missing = [name for name in OF_LIMITS if name in limited]
    if missing and not any(slo.per_request for slo in found):
        raise UsageError(
            f"{missing[0]} needs a limit on each request", where="SLO", do="add one, as in `ttft < 1s and tpot < 50ms`"
        )
    return tuple(found)


def _expression(text: str) -> list[Slo]:
    scope, colon, rest = text.rpartition(":")
    if colon and not scope.strip():
        raise _bad(text, "nothing stands before the colon", "name a workload or stage, as in `chat: p99(ttft) < 1s`")
    limits = [_condition(part.strip(), text) for part in re.split(r"\band\b", rest)]
    if len({limit.stat is None for limit in limits}) > 1:
        raise _bad(text, "a limit on each request and one on a statistic are joined by `and`", "join them by a comma")
    if limits[0].stat is None:
        return [Slo(text, scope.strip(), tuple(limits))]
    parts = [part.strip() for part in re.split(r"\band\b", rest)]
    prefix = f"{scope.strip()}: " if scope.strip() else ""
    return [Slo(prefix + part, scope.strip(), (limit,)) for part, limit in zip(parts, limits, strict=True)]


def _condition(text: str, whole: str) -> Limit:
    match = _CONDITION.fullmatch(text)
    if match is None or (match["stat"] is None) != (match["close"] is None):
        raise _bad(whole, f"cannot read `{text}`", "write it as `p99(ttft) < 1s` or `error_rate < 0.1%`")
    try:
        what = metric(match["metric"])
    except UsageError as unknown:
        raise _bad(whole, unknown.what, unknown.do) from None
    if match["number"].startswith("-"):
        raise _bad(whole, f"{what.name} is never negative", "give a limit of 0 or more")
    value = _value(float(match["number"]), match["unit"] or "", what, whole)
    stat = statistic(match["stat"], what, whole)
    if what.name != "output_tokens_per_s_per_user":
        return Limit(what, stat, match["op"], value)
    if value <= 0.0:
        raise _bad(whole, "a rate has to be above 0", "")
    return Limit(METRICS["tpot"], stat, FLIPPED[match["op"]], 1.0 / value, inverse=True)


def read_statistic(text: str, whole: str) -> tuple[Metric, str]:
    """`p99(ttft)`: the metric and the statistic of it. Raises UsageError that names `whole`."""
    match = re.fullmatch(r"(?:(?P<stat>[A-Za-z][\w.]*)\s*\(\s*)?(?P<metric>[A-Za-z]\w*)\s*(?P<close>\))?", text.strip())
    if match is None or (match["stat"] is None) != (match["close"] is None):
        raise _bad(whole, f"cannot read `{text.strip()}`", "write it as p99(ttft)")
    try:
        what = metric(match["metric"])
    except UsageError as unknown:
        raise _bad(whole, unknown.what, unknown.do) from None
    stat = statistic(match["stat"], what, whole)
    if stat is None:
        raise _bad(whole, f"{what.name} has a value for each request", f"name a statistic, as in p99({what.name})")
    return what, stat


def statistic(word: str | None, what: Metric, whole: str) -> str | None:
    """The statistic that a word means; None: a limit on each request. Raises UsageError that names the expression."""
    if word is None:
        if what.of == "stage":
            return what.stats[0]
        if what.of == "gap":
            raise _bad(whole, f"{what.name} has no value for each request", "limit max_gap, or a statistic such as p99")
        return None
    stat = {"median": "p50", "avg": "mean", "average": "mean"}.get(word.lower(), word.lower())
    if stat in what.stats or (quantile_of(stat) is not None and what.of != "stage"):
        return stat
    near = difflib.get_close_matches(stat, what.stats, n=1, cutoff=0.3)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(what.stats)}"
    raise _bad(whole, f"{what.name} has no statistic `{word}`", hint)


def _value(number: float, unit: str, what: Metric, whole: str) -> float:
    if what.unit == "s":
        if unit in TIME_UNITS:
            return number * TIME_UNITS[unit]
        if not unit and number == 0.0:
            return 0.0
        raise _bad(whole, f"{what.name} is a time: `{unit or number}` is no unit of time", "write 1s or 50ms")
    if what.unit == "1" and unit == "%":
        return number / 100.0
    if unit and unit not in (what.unit, f"/{what.unit.rpartition('/')[2]}" if "/" in what.unit else what.unit):
        raise _bad(whole, f"{what.name} is in {_unit_words(what)}, not in `{unit}`", "")
    return number


def _unit_words(what: Metric) -> str:
    return "a share, such as 0.1% or 0.001" if what.unit == "1" else what.unit


def _bad(text: str, what: str, do: str) -> UsageError:
    return UsageError(what, where=f"SLO `{text}`", do=do)
