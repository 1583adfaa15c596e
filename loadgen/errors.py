"""The one exception family, and the exit code of each member.

Knows: what kinds of user-visible failure exist. Must not know: how they are printed (`cli` does) or who raises them.
Why: a script that calls `loadgen` decides on the exit code, so a kind of failure is one class with one code.

    LoadgenError                70  a bug in the tool (anything else that escapes is reported as this, too)
    ├── UsageError               2  a bad flag, a bad spec, workload, trace or table file, a folder that is no run
    ├── NotDecidable             3  too few samples, or the measurement is INVALID where a verdict was asked for
    ├── EndpointError            4  the endpoint cannot be used: unreachable, refuses, every request failed
    ├── StorageError             2  a run cannot be written (a full disk) or what is there cannot be read
    └── WireError                4  bytes that no reading of the protocol allows (never leaves `wire` during a run)

A failed *request* is data (`model.Failure`), not an exception. An SLO that failed is a result (exit 1), not one either.
"""

from __future__ import annotations


class LoadgenError(Exception):
    """Base of all errors that the project raises on purpose.

    `what` says what was wrong, `where` the place (`file:line`, a flag, a URL), `do` what the user can do about it.
    """

    exit_code = 70

    def __init__(self, what: str, *, where: str = "", do: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.do = what, where, do

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head} - {self.do}" if self.do else head


class UsageError(LoadgenError):
    """The user asked for something that cannot be: a bad flag or a bad input file."""

    exit_code = 2


class NotDecidable(LoadgenError):
    """A verdict was asked for that the data cannot support."""

    exit_code = 3


class EndpointError(LoadgenError):
    """The endpoint cannot be used at all."""

    exit_code = 4


class StorageError(LoadgenError):
    """A run cannot be written, or its files cannot be read."""

    exit_code = 2


class WireError(LoadgenError):
    """Received bytes break the protocol beyond what any real server sends (a line over the cap, bad framing)."""

    exit_code = 4
