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

    from loadgen.analysis.stats import Floats
    from loadgen.engine.settings import Settings
    from loadgen.model import RunInfo

_MAY_DIFFER = ("roofline", "slo", "search")  # what a run is judged by, not how it was made


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
    warmed = max(0, -int(requests.request_id.min())) if len(requests) else 0
    info.status, info.error, info.findings = "running", None, []
    info.spec |= {key: spec[key] for key in _MAY_DIFFER if key in spec}
    return replace(settings, nonce=info.nonce, warmed=warmed), info


def _extreme(function: Callable[[Floats], np.float64], stamps: Floats) -> int | None:
    kept = stamps[stamps == stamps]  # without NaN
    return int(function(kept)) if len(kept) else None


def _plain(value: Any, spec: dict[str, Any]) -> Any:
    """A part of a spec as it is compared: of the stages of a search only what does not depend on the probe."""
    if "search" not in spec or not isinstance(value, list):
        return value
    return [{"mix": one["mix"], "kind": one["load"]["kind"], "arrivals": one["load"]["arrivals"]} for one in value]
