"""The keeper of one server: a small process of its own that starts it, and that lets nothing of it outlive loadgen.

Knows: processes and signals; how it is told what to do (a line of JSON on its standard input, whose end means: stop).
Must not know: loadgen. It is run as a script by `launch`, without the package, so that it is there at once.
Why a process: whoever is killed with -9 cleans up nothing. The keeper sees the end of its input when loadgen is gone,
however it went, asks the server's process group to end (SIGTERM) and after a grace kills (SIGKILL) whatever is left. It
is the "subreaper" of all that the server starts (prctl(2), Linux), so that not even a daemon that left its group and
its session gets away; and if the keeper itself is killed, the kernel kills the server (PR_SET_PDEATHSIG).

Its exit code is that of the server, 128 + N where signal N ended it, 127 where it could not be started at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_TICK_S = 0.05
_NOT_STARTED = 127


def main() -> int:
    """Start the server that the first line of the input describes and keep it until it ends or the input does."""
    told: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # loadgen alone says when it is over
    _prctl(_SET_CHILD_SUBREAPER, 1)
    with open(told["log"], "ab", buffering=0) as log:
        try:
            child = subprocess.Popen(
                told["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=told["cwd"],
                env={**os.environ, **told["env"]},
                start_new_session=True,
                preexec_fn=_dies_with_its_keeper,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as bad:
            log.write(f"cannot be started: {bad}\n".encode())
            return _NOT_STARTED
    code = _wait(child)
    _end_all(child, told["grace_s"])
    return _shell_code(child.wait() if code is None else code)


def _prctl(what: int, value: int) -> None:
    """Linux only; elsewhere the process group is all that is kept."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


def _dies_with_its_keeper() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is ignored stays ignored through exec
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)


def _wait(child: subprocess.Popen[bytes]) -> int | None:
    """The server's exit code once it has ended; None when the input ends first."""
    while (code := child.poll()) is None:
        if select.select([sys.stdin.buffer], [], [], _TICK_S)[0] and not os.read(sys.stdin.fileno(), 1024):
            return None
    return code


def _end_all(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM to the server's group, and after the grace SIGKILL to everything that it left."""
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while (left := _living(child)) and time.monotonic() < until:
        time.sleep(_TICK_S)
    while left:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_TICK_S / 5)
        left = _living(child)


def _living(child: subprocess.Popen[bytes]) -> list[int]:
    """The server and all that it started, while they live; those that have ended are reaped."""
    child.poll()
    parents = _parents()
    if not parents:  # no /proc
        return [child.pid] if child.returncode is None else []
    found, mine = [], {os.getpid()}
    grown = True
    while grown:
        grown = False
        for pid, (parent, state) in parents.items():
            if parent in mine and pid not in mine:
                mine.add(pid)
                grown = True
                if state != "Z":
                    found.append(pid)
                elif parent == os.getpid() and pid != child.pid:
                    with contextlib.suppress(OSError):
                        os.waitpid(pid, os.WNOHANG)
    return found


def _parents() -> dict[int, tuple[int, str]]:
    """Every process with its parent and its state."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            found[int(entry.name)] = int(words[1]), words[0]
    return found


def _shell_code(code: int) -> int:
    """As a shell tells it: 128 + N of a server that signal N ended."""
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
