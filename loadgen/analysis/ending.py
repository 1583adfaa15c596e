"""When a stage has told enough, or too much: rules that end it before its time, and that skip higher loads.

Knows: stop conditions (`error_rate > 5%`), saturation, how close an interval has to be (`p99(ttft) within 5%`), what a
search may spend on a load that has already broken its SLO. Must not know: how a stage is ended, files, clocks.
Why: an hour at a load that the server cannot carry tells no more than a minute. Every rule decides on the bound of an
interval, as a gate does, and never on a handful of requests; checks come at growing distances, because who looks often
enough sees every limit broken once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadgen.analysis import gate, slo
from loadgen.analysis.definitions import METRICS, Metric, estimate
from loadgen.analysis.frame import Requests
from loadgen.analysis.measured import Measured, measure, row_facts
from loadgen.analysis.numbers import quantity
from loadgen.analysis.slo import SCHEDULED, Slo
from loadgen.analysis.stats import GATE_TAIL
from loadgen.errors import UsageError
from loadgen.model import Ended, StageInfo

FEWEST = 20  # requests before a rule may end a stage
SATURATION = "saturation"
_GAIN = 0.05  # a higher load that surely gives less than this more of the tokens gives no more
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_UNTIL = re.compile(r"(?P<what>.+?)\s+within\s+(?P<share>\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True, slots=True)
class Ending:
    """What may end a running stage; texts, so that it can be sent to another process. `keep`: objectives of which none
    may be surely broken. `stop_on`: conditions of which none may surely hold. `until`: what it is to reach."""

    keep: tuple[str, ...] = ()
    stop_on: tuple[str, ...] = ()
    until: str | None = None

    def __bool__(self) -> bool:
        return bool(self.keep or self.stop_on or self.until)


@dataclass(frozen=True, slots=True)
class Until:
    """A statistic whose two-sided 95 % interval is to lie within `share` of its value on both sides."""

    text: str
    metric: Metric
    stat: str
    share: float


def parse_until(text: str) -> Until:
    """`p99(ttft) within 5%`. Raises UsageError."""
    match = _UNTIL.fullmatch(text.strip())
    if match is None:
        raise UsageError("cannot be read", where=f"--until `{text}`", do="write for example 'p99(ttft) within 5%'")
    what, stat = slo.read_statistic(match["what"], text)
    share = float(match["share"]) / 100.0
    if not 0.0 < share < 1.0:
        raise UsageError("must be above 0 and below 100 %", where=f"--until `{text}`")
    return Until(text.strip(), what, stat, share)


def parse_stop_on(texts: Sequence[str]) -> tuple[tuple[Slo, ...], bool]:
    """The conditions, turned round into limits that a stage has to keep, and whether saturation ends a sweep.

    Raises:
        UsageError: not a condition; one on each request (a stage is judged by a statistic).
    """
    words = [word.strip() for text in texts for word in text.split(",")]
    limits = []
    for one in slo.parse([word for word in words if word != SATURATION]) if set(words) - {SATURATION} else ():
        if one.per_request:
            do = "give a statistic, as in p99(ttft) > 10s"
            raise UsageError("is a condition on each request", where=f"--stop-on `{one.text}`", do=do)
        limits.append(replace(one, limits=tuple(replace(x, op=_OPPOSITE[x.op]) for x in one.limits)))
    return tuple(limits), SATURATION in words


def why_end(ending: Ending, stage: StageInfo, requests: Requests, seed: int) -> Ended | None:
    """Whether the running stage should end now, by the requests that have finished so far (`requests`)."""
    m = measure(stage, requests, row_facts(requests), seed)
    if len(m.columns) < FEWEST:
        return None
    if ending.stop_on and (why := stop_reason(parse_stop_on(ending.stop_on)[0], m)):
        return Ended(f"stopped: {why}", False)
    if ending.keep and (why := _broken(slo.parse(ending.keep), m)):
        return Ended(f"decided: {why} is broken", False)
    if ending.until is not None and (reached := _reached(parse_until(ending.until), m)):
        return Ended(reached, True)
    return None


def stop_reason(conditions: Sequence[Slo], m: Measured) -> str:
    """The first condition that surely holds on this stage, with what was observed; "" for none."""
    for limit in conditions:
        if (why := _broken([limit], m)) and len(m.columns) >= FEWEST:
            return why
    return ""


def _broken(slos: Sequence[Slo], m: Measured) -> str:
    mine = [one for one in slos if gate.speaks_of(one, m)]
    gate.apply_limits(mine, [m])
    for result in gate.evaluate(mine, [m], {}):
        if result.outcome == "fail":
            shown = "infinite: requests failed" if result.observed is None else quantity(result.observed, result.unit)
            return f"{result.expr} ({shown})"
    return ""


def half_width(until: Until, m: Measured) -> float:
    """The longer side of the interval as a share of the value; infinite where it has no bound, NaN without a value."""
    what = METRICS[SCHEDULED.get(until.metric.name, until.metric.name)] if m.window.open_loop else until.metric
    found = estimate(m, what, until.stat)
    if math.isnan(found.value) or found.value == 0.0:
        return math.nan
    return max(found.high - found.value, found.value - found.low) / abs(found.value) if found.supported else math.inf


def _reached(until: Until, m: Measured) -> str:
    share = half_width(until, m)
    return f"{until.text}: {share * 100:.2g} %" if share <= until.share else ""


def saturated(lower: Measured, higher: Measured) -> bool:
    """Whether the higher load surely gives no more output tokens (less than a twentieth more) than the lower one."""
    rate = METRICS["output_tokens_per_s"]
    before, after = estimate(lower, rate, "rate", GATE_TAIL), estimate(higher, rate, "rate", GATE_TAIL)
    return after.high < before.value * (1.0 + _GAIN)  # without a bound, or a value, nothing is sure
