"""What the tests of the report share: summaries made once, and a run whose every text from outside is hostile."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from loadgen.analysis.summary import Summary, summarise
from loadgen.model import Exchange, Failure, RunInfo
from loadgen.report.view import view
from tests import synthetic
from tests.synthetic import StageCase

# Ends a script, opens one, is an image with a handler, breaks a table, breaks a format string and a template.
MARKUP = "</script><script>alert(1)</script><img src=x onerror=alert(2)>|`{{ 7*7 }}`%{x}${y}&amp;\u2028"


@cache
def summary_of(name: str) -> Summary:
    """The summary of a case of `synthetic.CASES`. Everybody gets the same one: nothing may be changed in it."""
    return summarise(*synthetic.run(name))


@cache
def view_of(name: str) -> dict[str, Any]:
    """The view of that summary; the same one for everybody, too."""
    return view(summary_of(name))


def hostile() -> tuple[RunInfo, tuple[Exchange, ...]]:
    """Model, workload, stage, URL, note, command, spec, trial and error are all MARKUP."""
    info, rows = synthetic.build((StageCase(MARKUP, value=2, requests=24, failed=0.3), StageCase("chat", requests=12)))
    info.endpoint |= {"model": MARKUP, "url": f"http://127.0.0.1/{MARKUP}", "engine": MARKUP, "trials": [MARKUP]}
    info.notes = {MARKUP: MARKUP}
    info.command = ["loadgen", "run", MARKUP]
    info.host |= {"cpu": MARKUP}
    info.spec |= {MARKUP: [MARKUP]}
    bad = Failure("server_error", MARKUP)
    return info, tuple(row if row.failure is None else replace(row, failure=bad) for row in rows)
