"""Checks on the answers to checkable questions (`--guard`): a server that is fast and wrong.

Knows: how many of a stage's questions were answered right. Must not know: the questions, or how they were asked.
Why: no time in a run shows that the text is nonsense. A model may be too small for some questions, so only a share that
is surely below a half is held against a run by itself; a smaller loss shows against an earlier run (`compare`).
"""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.analysis import stats
from loadgen.analysis.measured import Measured
from loadgen.model import Finding, RunInfo

_HALF = 0.5
_TAIL = 0.025  # the share lies above the bound in at most so many of 1


def wrong_answers(info: RunInfo, m: Measured) -> Iterator[Finding]:
    """Fewer than half of the questions were answered right: what is fast here is not the model that was meant."""
    asked, right = int(m.info.health.get("guard_asked", 0)), int(m.info.health.get("guard_right", 0))
    if "guard_asked" not in m.info.health:
        return
    if asked == 0:
        text = "none of the checkable questions was answered: whether answers are right is not known"
        yield Finding("questionable", "guard_unanswered", text, 0.0, "see the errors; the endpoint may refuse them")
        return
    if stats.proportion(right, asked, _TAIL).high < _HALF:
        text = f"only {right} of {asked} checkable questions were answered right: fast, and wrong"
        advice = "the run keeps some answers: check weights, quantisation and chat template, or use a larger model"
        yield Finding("questionable", "wrong_answers", text, right / asked, advice)


CHECKS = (wrong_answers,)
