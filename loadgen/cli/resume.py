"""Go on with a run that was interrupted or killed.

Knows: what must be the same for requests of two sessions to belong to one run. Must not know: how a run is measured.
Why: what was measured is kept; what was in flight, or half done, is done again under a new stage number, so that no row
is ever changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from loadgen.analysis.frame import Requests
    from loadgen.analysis.stats import Floats
    from loadgen.engine.settings import Settings
    from loadgen.model import RunInfo
    from loadgen.plan.budget import Budget

_MOST_WARMED = 1 << 39  # warm-up requests have ids from -1 down; below this they are the guard's
_MAY_DIFFER = (
    "roofline",
    "slo",
    "search",
    "max_tokens_total",
    "max_cost",
    "prices",
)  # what a run is judged by, not how it was made


def resumed(run: Path, settings: Settings, spec: dict[str, Any]) -> tuple[Settings, RunInfo]:
    """The settings and the record with which the run in folder `run` goes on. `spec`: what is asked for now.

    Raises:
        UsageError: no run, or one that was asked for otherwise.
        StorageError: it cannot be read.
    """
    import numpy as np

    from loadgen.store.runfile import open_run

    info, requests = open_run(run)
    other = [
        key for key in spec if key not in _MAY_DIFFER and _plain(spec[key], spec) != _plain(info.spec.get(key), spec)
    ]
    if other or ("search" in spec) != ("search" in info.spec):
        what = ", ".join(other) or "search"
        raise UsageError(f"was made with other flags: {what}", where=f"--resume {run}", do="give those of that run")
    for stage in info.stages:
        if stage.end_ns is None:  # it was running when the process died
            mine = requests.stage == stage.stage
            stage.end_ns = _extreme(np.nanmax, requests.end_ns[mine])
            stage.start_ns = stage.start_ns or _extreme(np.nanmin, requests.dispatched_ns[mine])
            stage.stopped = "interrupted"
    if info.stages:  # time goes on behind everything that was measured
        info.stages[-1].end_ns = max(info.stages[-1].end_ns or 0, _extreme(np.nanmax, requests.end_ns) or 0)
    own = requests.request_id[requests.request_id > -_MOST_WARMED]
    warmed = max(0, -int(own.min())) if len(own) else 0
    asked = int((requests.request_id <= -_MOST_WARMED).sum())
    info.status, info.error, info.limit, info.findings = "running", None, None, []
    info.spec |= {key: spec[key] for key in _MAY_DIFFER if key in spec}
    budget = _spent(settings.budget, requests)
    return replace(settings, nonce=info.nonce, warmed=warmed, asked=asked, budget=budget), info


def _spent(budget: Budget, requests: Requests) -> Budget:
    """The budget with what the run's requests took already."""
    from loadgen.plan.budget import Purse, taken

    purse = Purse(budget)
    for row in range(len(requests) if budget else 0):
        exchange = requests.exchange(row)
        prompt, output, cached = taken(exchange, exchange.prompt_tokens_requested)
        purse.book(prompt + output, budget.prices.of(prompt, output, cached) if budget.prices else 0.0)
    return purse.spent


def _extreme(function: Callable[[Floats], np.float64], stamps: Floats) -> int | None:
    kept = stamps[stamps == stamps]  # without NaN
    return int(function(kept)) if len(kept) else None


def _plain(value: Any, spec: dict[str, Any]) -> Any:
    """A part of a spec as it is compared: of the stages of a search only what does not depend on the probe."""
    if "search" not in spec or not isinstance(value, list):
        return value
    return [{"mix": one["mix"], "kind": one["load"]["kind"], "arrivals": one["load"]["arrivals"]} for one in value]
