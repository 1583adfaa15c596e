"""All that is known of a fit in one value.

Knows: which parts make the account: the fit, its causes, misfits and remedies, what it says of other GPUs. Must not
know: how any part is computed, JSON, words.
Why: text, pages and JSON of a fit are made from this one value, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from loadgen.model import Finding
from loadgen.roofline.causes import Cause, find_causes
from loadgen.roofline.fitted import Fit, Parameter
from loadgen.roofline.misfit import find_misfits
from loadgen.roofline.overlay import Prediction
from loadgen.roofline.remedies import Remedy, find_remedies

# What the estimator calls them -> what users script against.
NAMES = {"step_s": "overhead_s", "sequence_s": "overhead_per_request_s"}


@dataclass(frozen=True, slots=True)
class Account:
    """A fit with what follows from it. `notes`: how the files were read, one line each."""

    fit: Fit
    causes: tuple[Cause, ...] = ()
    findings: tuple[Finding, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The deployments that were fitted together."""
        return " + ".join(label for label in self.fit.engine if label)


def account(fit: Fit, predictions: Sequence[Prediction] = (), notes: Sequence[str] = ()) -> Account:
    """Everything that the cells and the fit say together."""
    causes = find_causes(fit)
    return Account(fit, causes, find_misfits(fit, causes), find_remedies(fit), tuple(predictions), tuple(notes))


def parameters(fit: Fit) -> tuple[Parameter, ...]:
    """The fit's parameters by the names that users script against, and what follows from them directly.

    kv_bandwidth = kv_mbu * peak bandwidth of one GPU, bytes/s: what reading the KV cache reaches.
    """
    found = [replace(one, name=_scripted(one.name)) for one in fit.parameters]
    share = next((one for one in found if one.name == "kv_mbu"), None)
    if share is not None and fit.deployment is not None and all(one.name != "kv_bandwidth" for one in found):
        peak = fit.deployment.gpu.bandwidth_bytes_per_s
        ends = {name: getattr(share, name) * peak for name in ("value", "low", "high")}
        found.append(replace(share, name="kv_bandwidth", unit="bytes/s", **ends))
    return tuple(found)


def scripted(values: Mapping[str, float]) -> dict[str, float]:
    """Values of parameters by the names that users script against."""
    return {_scripted(name): value for name, value in values.items()}


def _scripted(name: str) -> str:
    """Its name for users; what belongs to one of several deployments says so: "step_s of LABEL"."""
    word, of, label = name.partition(" of ")
    return f"{NAMES.get(word, word)}{of}{label}"
