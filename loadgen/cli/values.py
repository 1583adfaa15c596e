"""How the text of a flag, or of its key in a spec, is read: the one home of these spellings.

Knows: for each flag whose text has a grammar the function that reads it. Must not know: which flags go together, what
they are for.
Why a table: a spec file tells all its mistakes at once, so a value must be readable alone, before anything is done.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from loadgen.errors import UsageError

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a header's name, RFC 9110
_RANGE = re.compile(r"(\d+(?:\.\d+)?)\.\.(\d+(?:\.\d+)?)")
_FRAMING = {"content-length", "transfer-encoding", "connection", "host", "content-type"}
_SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".json": "json", ".txt": "text", ".csv": "csv"}
_SUFFIXES |= {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
FORM_HELP = "[default: by the suffix of -o; text on the terminal]"
SEEDS = click.IntRange(0, (1 << 63) - 1)


class Number(click.FloatRange):
    """A finite number in a range: click's own lets `nan` through every bound."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


def read_header(text: str) -> tuple[str, str]:
    """`NAME: VALUE`. The value stays out of every message."""
    name, colon, value = (part.strip() for part in text.partition(":"))
    if not colon or _TOKEN.fullmatch(name) is None or not value.isprintable():
        shown = f"--header {name}" if colon and name.isprintable() else "--header"
        raise UsageError("is not NAME: VALUE", where=shown)
    if name.lower() in _FRAMING:
        raise UsageError("is set by the client itself", where=f"--header {name}")
    return name, value


def read_note(text: str) -> tuple[str, str]:
    """`KEY=VALUE`."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError("is not KEY=VALUE", where=f"--note {text}")
    return key.strip(), value


def read_fact(text: str) -> tuple[str, str]:
    """`KEY=VALUE` of --provenance; keys and tokens are refused, as they would be stored."""
    from loadgen.engine.provenance import is_secret

    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise UsageError("is not KEY=VALUE", where=f"--provenance {text}")
    if is_secret(key):
        raise UsageError("names a secret, and would be stored", where=f"--provenance {key}=...", do="leave it out")
    return key, value


def read_extra_body(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as bad:
        raise UsageError(f"not JSON that can be sent: {bad}", where="--extra-body") from bad
    if not isinstance(value, dict):
        raise UsageError("must be a JSON object", where="--extra-body")
    return value


def read_workers(text: str) -> int | None:
    """1 to 256; None for `auto`."""
    if text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= 256:
        raise UsageError("give a number from 1 to 256, or auto", where=f"--workers {text}")
    return int(text)


def read_limit(name: str) -> Callable[[str], int | None]:
    """The reader of `--timeout-NAME`: nanoseconds above 0; None for `off`."""

    def read(text: str) -> int | None:
        from loadgen.plan.units import duration_ns

        if text.strip().lower() in ("off", "none"):
            return None
        try:
            value = duration_ns(text)
        except UsageError as bad:
            raise UsageError(bad.what, where=f"--timeout-{name}", do="give a duration such as 10s, or off") from bad
        if value <= 0:
            raise UsageError("must be longer than 0", where=f"--timeout-{name} {text}", do="give off for no limit")
        return value

    return read


def read_window(text: str) -> int:
    """The length of a stage's window in nanoseconds, above 0."""
    from loadgen.plan.units import duration_ns

    value = duration_ns(text)
    if value <= 0:
        raise UsageError("must be longer than 0", where=f"--duration {text}")
    return value


def read_budget(text: str) -> int:
    """The time that an experiment may take, in nanoseconds, above 0."""
    from loadgen.plan.units import duration_ns

    value = duration_ns(text)
    if value <= 0:
        raise UsageError("must be longer than 0", where=f"--budget {text}")
    return value


def read_weights(text: str) -> list[float]:
    """`70,20,10`, with or without %: each above 0."""
    try:
        weights = [float(part.strip().removesuffix("%")) for part in text.split(",")]
    except ValueError as bad:
        raise UsageError("is not a list of weights", where=f"--mix {text}", do="write 70,20,10") from bad
    if not all(0 < weight < math.inf for weight in weights):
        raise UsageError("weights must be above 0", where=f"--mix {text}")
    return weights


def read_form(form: str | None, output: Path | None, forms: Sequence[str] = ("text", "html", "md", "json")) -> str:
    """The format that was asked for, else the one of `forms` that the output's suffix means, else the first. Raises
    UsageError for a suffix that means none of them: text in an `x.pdf` would be found out by its reader."""
    if form is not None or output is None or not output.suffix:
        return form or forms[0]
    if (found := _SUFFIXES.get(output.suffix.lower(), "")) not in forms:
        do = f"give --format, or one of {', '.join(suffix for suffix, one in _SUFFIXES.items() if one in forms)}"
        raise UsageError(f"{output.suffix} is no format that is written here", where=f"-o {output}", do=do)
    return found


def read_share(flag: str, text: str) -> float:
    """`5%` or `0.05`: at least 0 and below 1. Raises UsageError that names the flag."""
    bare = text.strip()
    try:
        value = float(bare.removesuffix("%")) / (100.0 if bare.endswith("%") else 1.0)
    except ValueError:
        raise UsageError("is no share", where=f"{flag} {text}", do="write 5%") from None
    if not 0.0 <= value < 1.0:
        raise UsageError("must be at least 0 and below 100 %", where=f"{flag} {text}")
    return value


def read_slice(text: str) -> tuple[int, int | None]:
    """`10m..20m`, `..5m`, `1h..`: from and to in nanoseconds; None for no end."""
    from loadgen.plan.units import duration_ns

    start, dots, end = text.partition("..")
    if not dots:
        raise UsageError("is not a slice", where=f"--trace-slice {text}", do="write 10m..20m")
    return duration_ns(start) if start.strip() else 0, duration_ns(end) if end.strip() else None


def read_slo(text: str) -> Any:
    """Gates, joined by commas."""
    from loadgen.analysis.slo import parse

    return parse([text])


def read_range(text: str) -> tuple[float, float]:
    """`2..40`: the loads that a search may try."""
    match = _RANGE.fullmatch(text.replace(" ", ""))
    if match is None:
        raise UsageError(f"{text!r} is not a range of loads", do="write for example 1..64")
    low, high = float(match[1]), float(match[2])
    if not 0.0 < low < high:
        raise UsageError(f"{text!r} holds no load to search", do="give the smaller first, above 0")
    return low, high


def read_cooldown(text: str) -> int:
    """Nanoseconds of silence between stages."""
    from loadgen.plan.units import duration_ns

    return duration_ns(text)


def read_max_time(text: str) -> float:
    """The longest time of a search in seconds, above 0."""
    from loadgen.plan.units import duration_ns

    value = duration_ns(text)
    if value <= 0:
        raise UsageError("must be longer than 0", where=f"--max-time {text}")
    return value / 1e9


def _until(text: str) -> Any:
    from loadgen.analysis.ending import parse_until

    return parse_until(text)


def _stop_on(text: str) -> Any:
    from loadgen.analysis.ending import parse_stop_on

    return parse_stop_on([text])


def _loads(integers: bool) -> Callable[[str], Any]:
    """A list of loads, or the range of a search, which may be wider than any list."""
    sweep = _sweep(integers)
    return lambda text: read_range(text) if _RANGE.fullmatch(text) else sweep(text)


def _sweep(integers: bool) -> Callable[[str], list[float]]:
    def read(text: str) -> list[float]:
        from loadgen.plan.schedule import parse_sweep

        return parse_sweep(text, integers=integers)

    return read


def _arrivals(text: str) -> Any:
    from loadgen.plan.arrivals import parse_arrivals

    return parse_arrivals(text)


def _length(text: str) -> Any:
    from loadgen.plan.lengths import parse_length

    return None if text.startswith("file:") else parse_length(text)  # files are read when the workloads are


def _gpu(text: str) -> Any:
    from loadgen.roofline.named import find_gpu

    return find_gpu(text)


def _shape(text: str) -> Any:
    from loadgen.store.shapefile import read_shape

    return read_shape(text)


def _dtype(text: str) -> Any:
    from loadgen.roofline.precision import dtypes

    return dtypes(text)


def _kind(name: str) -> Callable[[str], Any]:
    """The reader of `--weights`, `--compute` or `--kv`."""

    def read(text: str) -> Any:
        from loadgen.roofline.precision import dtypes

        kinds = dict.fromkeys(("weights", "compute", "kv"), "") | {name: text}
        return dtypes(weights=kinds["weights"], compute=kinds["compute"], kv=kinds["kv"])

    return read


READERS: dict[str, Callable[[str], Any]] = {
    "concurrency": _loads(integers=True),
    "rate": _loads(integers=False),
    "mix": read_weights,
    "trace_speed": _sweep(integers=False),
    "trace_slice": read_slice,
    "arrivals": _arrivals,
    "duration": read_window,
    "budget": read_budget,
    "prompt_tokens": _length,
    "output_tokens": _length,
    "workers": read_workers,
    "header": read_header,
    "extra_body": read_extra_body,
    **{f"timeout_{name}": read_limit(name) for name in ("connect", "first", "idle", "total")},
    "slo": read_slo,
    "stop_on": _stop_on,
    "until": _until,
    "cooldown": read_cooldown,
    "max_time": read_max_time,
    "note": read_note,
    "provenance": read_fact,
    "gpu": _gpu,
    "shape": _shape,
    "dtype": _dtype,
    **{name: _kind(name) for name in ("weights", "compute", "kv")},
}


def check(given: dict[str, Any]) -> None:
    """Read every value that has a grammar, so that a mistake is told before anything is sent. Raises UsageError."""
    for name, read in READERS.items():
        value = given.get(name)
        for text in value if isinstance(value, tuple) else (value,):
            if text is not None:
                read(text)
