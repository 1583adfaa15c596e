"""The README is true: every command in it parses, every help block is what the tool prints, every file exists.

`LOADGEN_UPDATE=1 pytest tests/test_docs.py` rewrites the help blocks.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from loadgen.cli import COMMANDS, cli

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
_BLOCK = re.compile(r"```(?:console|sh|bash)\n(.*?)```", re.S)
_HELP = re.compile(r"(```console\n\$ (loadgen[^\n]*--help)\n)(.*?)(```)", re.S)


def _commands() -> list[str]:
    """Every loadgen and make command line of the README and of docs/, continuation lines joined."""
    found = []
    for block in _BLOCK.findall("\n".join(page.read_text(encoding="utf-8") for page in (README, *PAGES))):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.removeprefix("$ ").partition(" #")[0].strip()
            if line.startswith(("loadgen ", "make ")):
                found.append(line)
    return found


def test_the_readme_shows_commands_at_all() -> None:
    assert len(_commands()) >= 8


@pytest.mark.parametrize("line", sorted(set(_commands())))
def test_every_command_of_the_readme_parses(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        assert set(words[1:]) <= set(targets)
        return
    if words[1].startswith("-"):
        return
    command = cli.get_command(click.Context(cli), words[1])
    assert command is not None, f"no command {words[1]}"
    if "--help" not in words:
        parent = click.Context(cli, **cli.context_settings)  # a command keeps the help flag of its first parent
        command.make_context(words[1], [w for w in words[2:] if w not in ("&", "&&")], parent=parent)


def test_help_blocks_are_what_the_tool_prints() -> None:
    text = README.read_text(encoding="utf-8")
    blocks = _HELP.findall(text)
    assert blocks, "the README shows no --help block"

    def printed(command: str) -> str:
        result = CliRunner().invoke(cli, shlex.split(command)[1:], prog_name="loadgen", terminal_width=100)
        assert result.exit_code == 0
        return result.output

    if os.environ.get("LOADGEN_UPDATE"):
        text = _HELP.sub(lambda m: m[1] + printed(m[2]) + m[4], text)
        README.write_text(text, encoding="utf-8")
        blocks = _HELP.findall(text)
    for _, command, shown, _ in blocks:
        assert shown == printed(command), f"the README's block of `{command}` is not what it prints"


def test_every_local_link_and_picture_exists() -> None:
    for document in (README, *PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name} links to {target}, which is not there"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_of_the_table_exists_and_says_what_the_table_says(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.help, f"{name} has no help"
