"""The wheel is whole: installed into a fresh environment and run from an empty folder, it finds its own files."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
Run = Callable[..., str]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program of an environment that has the wheel, and the dependencies of this one, in an empty folder."""
    home = tmp_path_factory.mktemp("env")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, capture_output=True, check=True)
    (site,) = home.glob("lib/python*/site-packages")
    # A path in a .pth file is searched, but the .pth files in it are not followed: this checkout stays out of sight.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    empty = tmp_path_factory.mktemp("empty")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(program: str, *argv: str) -> str:
        done = subprocess.run(
            [home / "bin" / program, *argv], cwd=empty, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_wheel_holds_the_package_and_the_users_files_and_no_more(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"loadgen"}
    for folder in ("workloads", "templates"):
        ours = {file.relative_to(ROOT).as_posix() for file in (ROOT / folder).rglob("*") if file.is_file()}
        assert ours, f"{folder} is empty"
        assert {f"loadgen/_data/{name}" for name in ours} == {
            n for n in names if n.startswith(f"loadgen/_data/{folder}")
        }
    inside = {file for file in (ROOT / "loadgen").rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    assert {file.relative_to(ROOT).as_posix() for file in inside} <= set(names)


def test_the_installed_package_finds_its_own_files(installed: Run) -> None:
    printed = installed(
        "python",
        "-c",
        "import loadgen; from loadgen.store.resources import *; "
        "print(loadgen.__file__, workload_dir(), template_dir())",
    )
    package, workloads, templates = map(Path, printed.split())
    assert not package.is_relative_to(ROOT)
    assert workloads == package.parent / "_data" / "workloads"
    assert templates == package.parent / "_data" / "templates"


def test_the_installed_command_answers(installed: Run) -> None:
    assert "Load-generation benchmark" in installed("loadgen", "--help")
    assert installed("loadgen", "--version").startswith("loadgen, version")
    assert "h100" in installed("loadgen", "catalog", "gpus").lower()
    assert "chat" in installed("loadgen", "catalog", "workloads")
