"""`loadgen export`: one row per request, as JSON lines, CSV or Parquet.

Knows: the three formats and where they are written. Must not know: the fields (`analysis.records` does).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import click

from loadgen.cli.rows import opened, pyarrow, write_parquet
from loadgen.cli.values import read_form
from loadgen.errors import UsageError

FORMS = ("jsonl", "csv", "parquet")


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMS),
    help="In CSV lists and objects are JSON text; an empty cell is n/a.  [default: by the suffix of -o; jsonl]",
)
@click.option("--warmup", is_flag=True, help="Warm-up requests, too; they bear the flag `warmup`.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.  [default: standard output]")
def command(run: Path, form: str | None, warmup: bool, output: Path | None) -> None:
    """Export RUN, one row per request: seconds from `sent` unless a field's name says otherwise, null when n/a."""
    from loadgen.analysis.records import records
    from loadgen.store.runfile import is_part_of_run, open_run

    if output is not None and is_part_of_run(output, run):
        raise UsageError("is the run itself", where=str(output), do="give another file")
    form = read_form(form, output, FORMS)
    if form == "parquet":
        pyarrow()
    info, requests = open_run(run)
    rows = records(info, requests if warmup else requests.select(~requests.has("warmup")))
    for finding in info.findings:
        click.echo(f"loadgen: {finding.severity}: {finding.message}", err=True)
    with opened(output, binary_only=form == "parquet") as out:
        _FORMATS[form](rows, out)


def _jsonl(rows: Iterator[dict[str, Any]], out: IO[bytes]) -> None:
    import msgspec

    encoder = msgspec.json.Encoder()
    for row in rows:
        out.write(encoder.encode(row) + b"\n")


def _csv(rows: Iterator[dict[str, Any]], out: IO[bytes]) -> None:
    import csv
    import io

    import msgspec

    from loadgen.analysis.records import FIELDS

    text = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    for row in rows:
        writer.writerow(
            [msgspec.json.encode(value).decode() if isinstance(value, list | dict) else value for value in row.values()]
        )
    text.detach()


def _parquet(rows: Iterator[dict[str, Any]], out: IO[bytes]) -> None:
    write_parquet(rows, _schema(pyarrow()), out)


def _schema(pa: Any) -> Any:
    """Types by the fields' own suffixes, the same for every run, so that files of several runs can be read as one."""
    from loadgen.analysis.records import FIELDS

    special = {
        "load": pa.struct([("kind", pa.string()), ("value", pa.float64())]),
        "event_times_s": pa.list_(pa.float64()),
        "event_tokens": pa.list_(pa.int32()),
        "flags": pa.list_(pa.string()),
    }
    whole = {"request_id", "http_status", "turn"}

    def kind(name: str) -> Any:
        if name in special:
            return special[name]
        if name in whole or name.endswith(("_tokens", "_tokens_requested")):
            return pa.int64()
        return pa.float64() if name.endswith("_s") else pa.string()

    return pa.schema([(name, kind(name)) for name in FIELDS])


_FORMATS: dict[str, Callable[[Iterator[dict[str, Any]], IO[bytes]], None]] = {
    "jsonl": _jsonl,
    "csv": _csv,
    "parquet": _parquet,
}
