"""`RUN/fit.json`: what `loadgen fit RUN` found, kept beside the run so that its report can show it.

Knows: the file. Must not know: what is in it (`report.fitjson`), how a fit is made.
Why: fitting takes half a minute, drawing a page a moment. A file that cannot be read costs the report its fit, no more.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.store.wholefile import replacing

FIT_FILE = "fit.json"
VERSION = 1  # of what is in it


def write_fit(run: Path, fit: dict[str, Any]) -> Path:
    """Keep a fit with its run. Raises StorageError; an earlier fit is in place then."""
    path = run / FIT_FILE
    with replacing(path) as out:
        text = json.dumps({"version": VERSION} | fit, indent=1, ensure_ascii=False, allow_nan=False)
        out.write(f"{text}\n".encode())
    return path


def read_fit(run: Path) -> dict[str, Any] | None:
    """The fit of a run; None where it has none that this version can read (fitting again makes one)."""
    try:
        found = json.loads((run / FIT_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("version") == VERSION else None


def load_fit(path: Path) -> dict[str, Any]:
    """A fit that a user names: a run that was fitted, or what `fit --format json` wrote.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    file = path / FIT_FILE if path.is_dir() else path
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as bad:
        reason = bad.strerror.lower() if isinstance(bad, OSError) and bad.strerror else "not JSON"
        do = "fit the run first: loadgen fit RUN" if path.is_dir() else "write one: loadgen fit RUN --format json"
        raise UsageError(f"no fit that can be read: {reason}", where=str(file), do=do) from bad
    if not isinstance(found, dict):
        raise UsageError("is no fit", where=str(file), do="write one: loadgen fit RUN --format json")
    return found
