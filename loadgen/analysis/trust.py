"""Is the measurement to be trusted? The findings, their severity, and the verdict that is printed first.

Knows: which checks there are, and how their findings are told. Must not know: how a check works (`trust_client`,
`trust_load`, `trust_data`, `trust_guard`, `trust_server`), how severe a finding is (`severity`), layout, exit codes.
Why: a figure that the client, the load or the stream made is worse than none, so every run is judged before it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from loadgen.analysis import trust_client, trust_data, trust_guard, trust_load, trust_server
from loadgen.analysis.measured import Measured
from loadgen.analysis.server_stage import ServerStage
from loadgen.analysis.severity import ORDER, worst
from loadgen.model import Finding, RunInfo

Verdict = Literal["valid", "questionable", "invalid"]
Check = Callable[[RunInfo, Measured], Iterator[Finding]]

MAX_NAMES = 8  # of stages that share a finding
CHECKS: tuple[Check, ...] = (*trust_client.CHECKS, *trust_load.CHECKS, *trust_data.CHECKS, *trust_guard.CHECKS)


def judge(info: RunInfo, stages: Sequence[Measured], server: Sequence[ServerStage] = ()) -> list[Finding]:
    """Every finding of a run, each with the number of its stage, the worst first. `server`: stages as it saw them."""
    found = [_of_stage(m, finding) for m in stages for check in CHECKS for finding in check(info, m)]
    found += [_of_stage(s.m, finding) for s in server for seen in trust_server.CHECKS for finding in seen(info, s)]
    if not any(len(m.columns) for m in stages):
        found = [Finding("invalid", "nothing_measured", "no request was measured", 0.0, "see how the run ended")]
    found += info.findings  # what the reader of the run's files noticed
    if info.status == "interrupted":
        text = "the run was interrupted: what was measured until then is reported"
        found.append(Finding("info", "interrupted", text))
    return sorted(found, key=lambda finding: ORDER[finding.severity])


def _of_stage(m: Measured, finding: Finding) -> Finding:
    return replace(finding, stage=m.info.stage, message=f"{m.info.name}: {finding.message}")


def merged(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The same finding on several stages, told once: the first of the worst, and where else it applies."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.code, finding.severity), []).append(finding)
    told = []
    for same in groups.values():
        head, rest = same[0], same[1:]
        if not rest:
            told.append(head)
            continue
        names = ", ".join(finding.message.partition(": ")[0] for finding in rest[:MAX_NAMES])
        names += f" and {len(rest) - MAX_NAMES} more" if len(rest) > MAX_NAMES else ""
        told.append(replace(head, message=f"{head.message} (likewise {names})", stage=None))
    return tuple(told)


def verdict(findings: Sequence[Finding]) -> Verdict:
    """The worst severity, as a word about the measurement."""
    severity = worst(*(finding.severity for finding in findings))
    return "valid" if severity == "info" else severity


def invalid_codes(findings: Sequence[Finding], stages: Sequence[Measured]) -> dict[int, tuple[str, ...]]:
    """For each stage number the codes that make its measurement invalid, those of the whole run included."""
    return {
        m.info.stage: tuple(f.code for f in findings if f.severity == "invalid" and f.stage in (None, m.info.stage))
        for m in stages
    }
