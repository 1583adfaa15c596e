"""What a pipeline reads of a gate: its exit code, and JUnit XML.

Knows: how outcomes become codes and elements. Must not know: what was gated.
Why: an objective that cannot be decided must be as far from green as one that failed, in every gate alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadgen.errors import NotDecidable

PASSED, FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class Case:
    """One decision. `outcome` is pass, fail or undecidable; `told` the figures and the reason."""

    group: str
    name: str
    outcome: str
    told: str


def exit_code(outcomes: Iterable[str]) -> int:
    """A failure outranks a decision that cannot be made."""
    found = set(outcomes)
    return FAILED if "fail" in found else NotDecidable.exit_code if "undecidable" in found else PASSED


def write_cases(suite_name: str, cases: Sequence[Case], path: Path) -> None:
    """JUnit XML: a fail is a failure, an undecidable one an error, so neither is ever green.

    Raises:
        StorageError: the file cannot be written.
    """
    from xml.etree import ElementTree

    from loadgen.store.wholefile import replacing

    outcomes = [case.outcome for case in cases]
    suite = ElementTree.Element(
        "testsuite",
        name=suite_name,
        tests=str(len(outcomes)),
        failures=str(outcomes.count("fail")),
        errors=str(outcomes.count("undecidable")),
    )
    for case in cases:
        element = ElementTree.SubElement(suite, "testcase", classname=case.group, name=case.name)
        if case.outcome == "pass":
            ElementTree.SubElement(element, "system-out").text = case.told
        else:
            kind = "failure" if case.outcome == "fail" else "error"
            ElementTree.SubElement(element, kind, message=case.told, type=case.outcome)
    with replacing(path) as out:
        ElementTree.ElementTree(suite).write(out, encoding="utf-8", xml_declaration=True)
