"""`loadgen --help` answers at once: nothing heavy is loaded before it is used."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from loadgen.cli import COMMANDS

HEAVY = ("pandas", "plotly", "scipy", "aiohttp", "numba", "numpy", "pydantic", "rich", "jinja2", "pyarrow", "asyncio")

_LOADED = """
import sys
from loadgen.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print("LOADED", code, *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def loaded(*argv: str) -> tuple[str, set[str]]:
    """What the command prints, and the packages that are loaded when it has ended. It must end well."""
    done = subprocess.run([sys.executable, "-c", _LOADED, *argv], capture_output=True, text=True, check=True)
    printed, _, modules = done.stdout.rpartition("LOADED ")
    code, *names = modules.split()
    assert code in ("0", "None"), done.stdout + done.stderr
    return printed, set(names)


def test_help_lists_every_command_and_loads_nothing_heavy() -> None:
    printed, modules = loaded("--help")
    assert all(f"  {name} " in printed for name in COMMANDS)
    assert not modules & set(HEAVY)


def test_the_version_loads_nothing_heavy() -> None:
    _, modules = loaded("--version")
    assert not modules & set(HEAVY)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command_loads_nothing_heavy(name: str) -> None:
    printed, modules = loaded(name, "--help")
    assert printed.startswith(f"Usage: loadgen {name} ")
    assert not modules & set(HEAVY)


def test_help_takes_little_processor_time() -> None:
    """Processor time of the whole process, not time on the wall; the least of three, as others may be at work."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "loadgen", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(3)) < 0.3
