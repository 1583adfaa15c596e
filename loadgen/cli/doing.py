"""What a long command is busy with, on stderr: a line that changes on a terminal, one that stays elsewhere.

Knows: how to draw a line. Must not know: what is being done.
Why: half a minute of silence looks like a hang; a log wants to know what was begun, once, and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Tell = Callable[[str], None]


@contextmanager
def doing(what: str) -> Iterator[Tell]:
    """Tell that `what` has begun; what comes of it, word by word, is shown by the function given, on a terminal."""
    if not sys.stderr.isatty():
        click.echo(f"loadgen: {what} ...", err=True)
        yield lambda step: None
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} ...") as status:
        yield lambda step: status.update(f"{what}: {step} ...")
