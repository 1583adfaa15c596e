"""What the columns of a table of cells are called: lengths, loads, deployments, times and their units.

Knows: names, other spellings of them, and what a header must have. Must not know: rows, values.
Why: a header is where most mistakes are; a name that is nearly right gets its right spelling in the answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from loadgen.errors import UsageError
from loadgen.roofline.naming import plain
from loadgen.store.tabletext import SECONDS, Mistakes, TextTable, near, read_table_text

# What a column is, and how else it is called (lower case, letters and digits).
COLUMNS: dict[str, tuple[str, ...]] = {
    "isl": (
        *("isl", "inputlen", "inputlength", "inputtokens", "prompttokens", "promptlen", "promptlength"),
        *("randominputlen", "inputsequencelength", "contexttokens", "prompt", "input"),
    ),
    "osl": (
        *("osl", "outputlen", "outputlength", "outputtokens", "generatedtokens", "randomoutputlen"),
        *("outputsequencelength", "output", "maxtokens"),
    ),
    "concurrency": ("concurrency", "maxconcurrency", "users", "numusers", "concurrentusers", "conc", "streams"),
    "batch": ("batch", "batchsize", "staticbatch"),
    "concurrency_or_batch": ("concurrencyorbatch",),
    "rate": ("rate", "requestrate", "qps", "rps", "requestspers"),
    "requests": ("requests", "numprompts", "numrequests", "requestcount", "completed"),
    "length_range_ratio": ("lengthrangeratio", "rangeratio", "randomrangeratio"),
    "gpu": ("gpu", "gputype", "gpuname", "accelerator", "hardware", "device", "hw"),
    "gpus": ("gpus", "ngpu", "ngpus", "numgpus", "numgpu", "gpucount", "tp", "tpsize", "tensorparallel"),
    "shape": ("shape", "model", "modelname", "modelid"),
    "dtype": ("dtype", "precision", "quantization", "quant"),
    "weights": ("weights", "weightdtype"),
    "compute": ("compute", "computedtype"),
    "kv": ("kv", "kvdtype", "kvcachedtype"),
    "engine": ("engine", "framework", "backend", "runtime"),
    "source": ("source",),
    "metric": ("metric", "metricname"),
    "value": ("value",),
    "unit": ("unit", "units"),
}
_MEANING = {alias: meaning for meaning, aliases in COLUMNS.items() for alias in aliases}
LOADS = ("concurrency", "batch", "concurrency_or_batch", "rate")
_USUAL = ("n_gpu", "model", "ttft_ms", "itl_ms", "ttft_s", "itl_s", "tpot_ms", "users")  # also guessed at
_PHRASES = {"timetofirsttoken": "ttft", "intertokenlatency": "itl", "timeperoutputtoken": "tpot", "average": "avg"}
_TIMING = re.compile(r"(mean|avg|median|p50|p90|p95|p99|max)?(ttft|tpot|itl)(mean|avg|median|p50|p90|p95|p99|max)?")
# Output tokens per second of the whole server, the unit in the name or beside it.
_RATES = frozenset(
    name + unit
    for name in ("outputthroughput", "outputtokenthroughput", "outputtokenspersecond", "outputtokens")
    for unit in ("", "toks", "tokss", "tokenss", "pers")
) - {"outputtokens"}
_STATS = {"": "mean", "avg": "mean", "p50": "median"}


class Timing(NamedTuple):
    """A measured time: "ttft", "tpot" or "itl", its statistic, and seconds per unit (None: the name has no unit)."""

    quantity: str
    stat: str
    unit_s: float | None


@dataclass(frozen=True, slots=True)
class Head:
    """A header that was understood: meaning -> its name; the names of times, of rates, of what says nothing here."""

    columns: dict[str, str] = field(default_factory=dict)
    timings: dict[str, Timing] = field(default_factory=dict)
    rates: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)


def timing(name: str) -> Timing | None:
    """What a column or metric of that name is, where it is a time of a token."""
    words = [word for word in re.split(r"[^a-z0-9µ]+", name.lower()) if word]
    unit_s = SECONDS.get(words[-1]) if len(words) > 1 else None
    joined = "".join(words if unit_s is None else words[:-1])
    for phrase, short in _PHRASES.items():
        joined = joined.replace(phrase, short)
    match = _TIMING.fullmatch(joined)
    if match is None or (match[1] and match[3]):
        return None
    stat = match[1] or match[3] or ""
    return Timing(match[2], _STATS.get(stat, stat), unit_s)


def is_rate(name: str) -> bool:
    """Whether a column or metric of that name is the whole server's output tokens per second."""
    return plain(name) in _RATES


def is_table(text: str) -> bool:
    """Whether a file begins like a table of cells: a header with lengths and a load, a time or a metric."""
    try:
        table = read_table_text(text[:4096], "", Mistakes(""))
    except UsageError:
        return False
    known = [name for name in table.header if plain(name) in _MEANING or timing(name) is not None]
    return len(known) >= 3 or any(near(name, ["isl", "osl", "concurrency"]) for name in table.header)


def read_header(table: TextTable, mistakes: Mistakes) -> Head:
    """What each column is. Raises UsageError with every mistake in the header."""
    head = Head()
    line = table.header_line
    for name in table.header:
        meaning, found = _MEANING.get(plain(name)), timing(name)
        if meaning is not None:
            if meaning in head.columns:
                mistakes.add(line, f"{head.columns[meaning]} and {name} both mean {meaning}")
            head.columns[meaning] = name
        elif found is not None:
            if found.unit_s is None:
                mistakes.add(line, f"column {name} has no unit - call it {name}_ms or {name}_s")
            head.timings[name] = found
        elif is_rate(name):
            head.rates.append(name)
        elif name and (guess := near(name, [*COLUMNS, *_USUAL])) is not None:
            mistakes.add(line, f"unknown column {name} - did you mean {guess}?")
        elif name:
            head.unused.append(name)
    missing = _missing(head)
    if missing:
        listed = ",".join(table.header)[:200]
        mistakes.add(line, f"no column for {', '.join(missing)} in the header {listed!r}")
    mistakes.tell()
    return head


def _missing(head: Head) -> list[str]:
    """What a cell needs and no column says."""
    tidy = "metric" in head.columns or "value" in head.columns
    needed = ("isl", "osl", *(("metric", "value") if tidy else ()))
    missing = [name for name in needed if name not in head.columns]
    if not any(name in head.columns for name in LOADS):
        missing.append("concurrency")
    if not tidy and not head.timings and not head.rates:
        missing.append("ttft_ms or itl_ms")
    return missing
