"""The same plan at each of several endpoints, one run after the other, and their comparison.

Knows: how a run's flags become those of one endpoint, where the runs lie, and which exit code they have together. Must
not know: how a run is made (`cli.run`), how runs are compared (`report.compare`).
Why one after the other: endpoints that share a machine or a network would be measured under each other's load.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from loadgen.errors import UsageError

_INTERRUPTED = 130
# The exit code of all of them: a failure outranks an undecidable verdict.
_RANK = (_INTERRUPTED, 1, 3, 0)

Run = Callable[[str, dict[str, Any]], tuple[Path, int]]


def each(url: str, given: dict[str, Any], run: Run) -> int:
    """Run at `url`, then at every --endpoint; print how they compare. `run` returns a run's folder and exit code.

    The runs lie in OUTPUT-1, OUTPUT-2, ... Raises UsageError for a run to go on with: each goes on by itself.
    """
    from loadgen.engine.contact import knock

    if not given["endpoint"]:
        raise UsageError("--spread needs --endpoint")
    if given["resume"] is not None:
        raise UsageError("goes on with one run", where="--resume", do="give that run's URL without --spread each")
    urls = (url, *given["endpoint"])
    for one in urls:
        knock(one)
    output = _output(given)
    folders: list[Path] = []
    codes: list[int] = []
    for number, one in enumerate(urls, 1):
        click.echo(f"endpoint {number} of {len(urls)}: {_public(one)}")
        own = given | {"endpoint": (), "spread": None, "output": Path(f"{output}-{number}")}
        folder, code = run(one, own)
        folders.append(folder)
        codes.append(code)
        if code == _INTERRUPTED:
            break
    if len(folders) > 1:
        _compare(folders)
    return min(codes, key=_RANK.index)


def _output(given: dict[str, Any]) -> Path:
    import datetime

    now = datetime.datetime.now(datetime.UTC)
    return Path(given["output"]) if given["output"] is not None else Path("runs") / now.strftime("%Y%m%d-%H%M%S")


def _public(url: str) -> str:
    from loadgen.engine.host import public_url

    return public_url(url if "://" in url else f"http://{url}")


def _compare(folders: list[Path]) -> None:
    from loadgen.report.compare import PAGE, compare_runs, render
    from loadgen.report.render import write

    comparison = compare_runs(folders)
    click.echo(render(comparison, "text"), nl=False)
    click.echo(f"page: {write(folders[1] / PAGE, render(comparison, 'html'))}")
