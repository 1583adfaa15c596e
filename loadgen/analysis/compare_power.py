"""How many requests a comparison needs: planned before the runs, not excused after them.

Knows: the interval of `compare_stats`, turned round. Must not know: runs, flags, texts.
Why: two short runs show "no difference" whatever the truth is; the number that would show one follows from the spread.
"""

from __future__ import annotations

import math

from scipy import special

from loadgen.analysis.compare_stats import BETWEEN_RUNS, MIN_VALUES, student
from loadgen.analysis.stats import CONFIDENCE, MIN_BLOCKS
from loadgen.errors import UsageError

POWER = 0.9  # chance to show a difference of the planned size
_MOST = 10**9


def needed_requests(
    cv: float, detect: float, *, verdicts: int = 1, power: float = POWER, between: float = BETWEEN_RUNS
) -> int:
    """Requests in each of two runs with which a ratio of 1 + `detect` between their means is shown.

    The smallest n with (t(1 - tail) + t(power)) * sqrt(2 cv**2 / n + between**2) <= log(1 + detect): the usual formula
    for two means (Cohen, Statistical Power Analysis, section 2.4) on the log, with Student's t for few requests.

    Args:
        cv: standard deviation over mean of single requests (or `compare_stats.relative_spread`).
        detect: the difference as a share, 0.05 for 5 %.
        verdicts: how many verdicts the comparison gives at once: each has its part of the 5 % error.
        power: chance to show it.
        between: standard deviation of the log ratio of two runs of one server.

    Raises:
        UsageError: no number of requests shows a difference so small.
    """
    if not (math.isfinite(cv) and cv >= 0.0 and detect > 0.0 and 0.0 < power < 1.0):
        raise UsageError(f"no difference of {detect:.3g} at a spread of {cv:.3g} can be planned for")

    def shown(n: int) -> bool:
        df = 2.0 * (min(n, MIN_BLOCKS) - 1)
        reach = student(df, (1.0 - CONFIDENCE) / 2 / verdicts) + student(df, 1.0 - power)
        return bool(reach * math.sqrt(2.0 * cv * cv / n + between * between) <= math.log1p(detect))

    if not shown(_MOST):
        least = math.expm1(between * _reach(verdicts, power))
        raise UsageError(
            f"a difference of {detect:.2%} is within what two runs of one server may differ by",
            do=f"plan for more than {least:.1%}, or repeat whole runs",
        )
    low, high = MIN_VALUES - 1, MIN_VALUES
    while not shown(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shown(middle) else (middle, high)
    return high


def _reach(verdicts: int, power: float) -> float:
    """Standard errors that a difference must measure, with many requests."""
    return float(special.ndtri(1.0 - (1.0 - CONFIDENCE) / 2 / verdicts) + special.ndtri(power))
