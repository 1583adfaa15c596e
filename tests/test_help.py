"""`loadgen --help` answers at once: nothing heavy is loaded before it is used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest

from loadgen.cli import COMMANDS

HEAVY = ("pandas", "plotly", "scipy", "aiohttp", "numba", "numpy", "pydantic", "rich", "jinja2", "pyarrow", "asyncio")
LINES = ("--help", "--version", *(f"{name} --help" for name in COMMANDS))

# All lines in one process, the general ones first: what is loaded after one is there after the next.
_LOADED = """
import sys
import click
before = len(sys.modules)
from loadgen.cli import main
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit as end:
        code = end.code
    print("LOADED", code, len(sys.modules) - before, *sorted({name.partition(".")[0] for name in sys.modules}))
"""


@cache
def told() -> dict[str, tuple[str, int, set[str]]]:
    """By line: what it prints, how many modules are loaded beside click's, and of which packages. It must end well."""

    def read(lines: list[str]) -> Iterator[tuple[str, tuple[str, int, set[str]]]]:
        printed = ""
        names = iter(LINES)
        for line in lines:
            if not line.startswith("LOADED "):
                printed += line
                continue
            _, code, number, *packages = line.split()
            assert code in ("0", "None"), printed
            yield next(names), (printed, int(number), set(packages))
            printed = ""

    done = subprocess.run([sys.executable, "-c", _LOADED, *LINES], capture_output=True, text=True, check=True)
    return dict(read(done.stdout.splitlines(keepends=True)))


def test_help_lists_every_command() -> None:
    printed, _, _ = told()["--help"]
    assert all(f"  {name} " in printed for name in COMMANDS)


@pytest.mark.parametrize("line", LINES)
def test_help_loads_nothing_heavy(line: str) -> None:
    """What takes processor time is what is loaded: a count says so on any machine, however busy."""
    printed, number, packages = told()[line]
    if line.split()[0] in COMMANDS:
        assert printed.startswith(f"Usage: loadgen {line.split()[0]} ")
    assert not packages & set(HEAVY)
    if line == "--help":
        assert number < 20
