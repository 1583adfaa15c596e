"""`RUN/fit.json`: what `loadgen fit RUN` found, kept beside the run so that its report can show it.

Knows: the file. Must not know: what is in it (`report.fitjson`), how a fit is made.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadgen.errors import StorageError
from loadgen.store.wholefile import replacing

FIT_FILE = "fit.json"


def write_fit(run: Path, fit: dict[str, Any]) -> Path:
    """Keep a fit with its run. Raises StorageError; an earlier fit is in place then."""
    path = run / FIT_FILE
    with replacing(path) as out:
        out.write((json.dumps(fit, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return path


def read_fit(run: Path) -> dict[str, Any] | None:
    """The fit of a run; None where it has none.

    Raises:
        StorageError: it cannot be read.
    """
    path = run / FIT_FILE
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as bad:
        raise StorageError(f"cannot be read: {bad}", where=str(path), do="fit the run again") from bad
    if not isinstance(found, dict) or "limits" not in found:
        raise StorageError("holds no fit", where=str(path), do="fit the run again")
    return found
