"""The command line as tests call it: in this process, or in one of its own.

Knows: how `loadgen` is called, and what it leaves: exit code and both outputs. Must not know: what a command does.
Why: starting Python and importing everything costs the better part of a second of CPU; what a command says and how it
ends is the same without. A process of its own is for what only a process has: signals, workers, closed outputs.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping
from unittest import mock

from loadgen.cli import main
from tests.busy import DEADLINE_S

LOADGEN = [sys.executable, "-m", "loadgen"]


def run(*words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`loadgen WORDS` in this process; output that is no terminal's. Workers are processes: they need `run_process`."""
    line = ["loadgen", *words]
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    with mock.patch.dict(os.environ, env or {}), mock.patch.object(sys, "argv", line):
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main(list(words))
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(line, code, out.getvalue(), err.getvalue())


def run_process(*words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`loadgen WORDS` in a process of its own."""
    return subprocess.run(
        [*LOADGEN, *words],
        capture_output=True,
        text=True,
        timeout=5 * DEADLINE_S,
        check=False,
        env={**os.environ, **(env or {})},
    )
