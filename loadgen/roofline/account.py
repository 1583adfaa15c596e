"""All that is known of a fit in one value.

Knows: which parts make the account: the fit, its causes, misfits and remedies, what it says of other GPUs. Must not
know: how any part is computed, JSON, words.
Why: text, pages and JSON of a fit are made from this one value, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.model import Finding
from loadgen.roofline.causes import Cause, find_causes
from loadgen.roofline.fitted import Fit
from loadgen.roofline.misfit import find_misfits
from loadgen.roofline.overlay import Prediction
from loadgen.roofline.remedies import Remedy, find_remedies


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
