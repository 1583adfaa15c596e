"""Where the files that users may look at and edit lie: the workloads and the report's templates.

Knows: the two places, a checkout's top level and the wheel's `loadgen/_data`. Must not know: what is in the files.
Why: one answer for both ways of installing, so that nobody else asks.
"""

from __future__ import annotations

from pathlib import Path

from loadgen.errors import StorageError

_PACKAGE = Path(__file__).resolve().parents[1]


def workload_dir() -> Path:
    """The folder of the shipped `*.yaml` workloads."""
    return _find("workloads")


def template_dir() -> Path:
    """The folder of the report's Jinja2 templates."""
    return _find("templates")


def _find(name: str) -> Path:
    # The wheel's copy lies inside the package; an editable install has none and stands beside the originals.
    for folder in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise StorageError(f"the folder {name} of loadgen is missing", where=str(_PACKAGE), do="install loadgen again")
