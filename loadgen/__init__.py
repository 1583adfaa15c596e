"""loadgen: measures OpenAI-compatible streaming endpoints, and says what limits them.

The front door for notebooks and scripts: `loadgen.open_run(path)`. Everything else is the command line's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

    from loadgen.report.notebook import Run

__version__ = "0.1.0"


def open_run(path: str | PathLike[str]) -> Run:
    """The run in a folder, as tables and charts: see `loadgen.report.notebook.Run`.

    Raises:
        UsageError: there is no run.
    """
    from loadgen.report.notebook import open_run as opened  # here: `loadgen --help` must load nothing of it

    return opened(path)
