"""How bad is a finding? The rule from the error that it implies to its severity.

Knows: the two pairs of limits. Must not know: any check.
Why: a finding is judged by the error that it implies in a headline metric, not by a limit of its own: half a
millisecond of client delay is nothing beside a TTFT of two seconds and everything beside one of two milliseconds.
"""

from __future__ import annotations

import math

from loadgen.model import Severity

QUESTIONABLE_SHARE, QUESTIONABLE_S = 0.02, 0.2e-3  # over both
INVALID_SHARE, INVALID_S = 0.10, 1e-3  # over both
ORDER: dict[Severity, int] = {"invalid": 0, "questionable": 1, "info": 2}


def of_error(error_s: float, metric_s: float) -> Severity:
    """Severity of an error of so many seconds in a metric of so many seconds; "info" when it is negligible."""
    if math.isnan(error_s) or math.isnan(metric_s):
        return "info"
    share = error_s / metric_s if metric_s > 0.0 else math.inf
    if share > INVALID_SHARE and error_s > INVALID_S:
        return "invalid"
    return "questionable" if share > QUESTIONABLE_SHARE and error_s > QUESTIONABLE_S else "info"


def of_share(share: float) -> Severity:
    """Severity of a relative error in something that is no time: a rate, a count, a load."""
    return "invalid" if share > INVALID_SHARE else "questionable" if share > QUESTIONABLE_SHARE else "info"


def at_most(limit: Severity, found: Severity) -> Severity:
    """`found`, but no worse than `limit`: for what limits the meaning of the figures without making them false."""
    return max(limit, found, key=ORDER.__getitem__)


def worst(*severities: Severity) -> Severity:
    """The worst of several."""
    return min(severities, key=ORDER.__getitem__, default="info")
