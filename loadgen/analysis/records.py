"""Each request of a run as one plain record with the names that users script against.

Knows: those names, their order, and which column or metric each one shows. Must not know: files, formats, formulas.
Why: JSON lines, CSV and Parquet are one table in three spellings; a duration in it is the metric of that name.

Durations follow from the stamps alone, whatever the outcome: a request that broke off in the middle shows the TTFT that
its user saw, and its `outcome` says that it broke off. (In tables of statistics failures have no latency.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from loadgen.analysis.definitions import METRICS
from loadgen.analysis.endpoints import urls
from loadgen.analysis.frame import Requests
from loadgen.analysis.measured import Columns, columns, row_facts
from loadgen.model import RunInfo

# A record: JSON values only, None where not applicable.
Record = dict[str, Any]

_BLOCK = 1000  # requests that are turned into Python objects at a time

# Field -> metric of analysis.definitions.
_METRICS = {
    "schedule_delay_s": "schedule_delay",
    "ttft_s": "ttft",
    "ttft_scheduled_s": "ttft_scheduled",
    "time_to_first_answer_s": "time_to_first_answer",
    "e2e_s": "e2e",
    "tpot_s": "tpot",
    "tpot_after_first_event_s": "tpot_after_first_event",
    "max_gap_s": "max_gap",
    "connect_s": "connect",
}
_WORDS = {
    "workload": "workload",
    "outcome": "outcome",
    "error_kind": "error_kind",
    "error": "error",
    "finish_reason": "finish_reason",
    "end_seen": "end_seen",
    "prompt_tokens_source": "prompt_tokens_source",
    "output_tokens_source": "output_tokens_source",
    "stamp_source": "stamp_source",
    "session_id": "session_id",
}
_COUNTS = (
    "http_status",
    "prompt_tokens",
    "prompt_tokens_requested",
    "output_tokens",
    "output_tokens_requested",
    "reasoning_tokens",
    "cached_tokens",
    "repeated_tokens",
    "turn",
)

# The fields in their order; every record has all of them.
FIELDS = (
    "request_id",
    "stage",
    "workload",
    "load",
    "scheduled_s",
    "sent_s",
    "schedule_delay_s",
    "outcome",
    "error_kind",
    "error",
    "http_status",
    "finish_reason",
    "end_seen",
    "ttft_s",
    "ttft_scheduled_s",
    "time_to_first_answer_s",
    "e2e_s",
    "tpot_s",
    "tpot_after_first_event_s",
    "max_gap_s",
    "connect_s",
    "sent_end_s",
    "headers_s",
    "prompt_tokens",
    "prompt_tokens_source",
    "prompt_tokens_requested",
    "output_tokens",
    "output_tokens_source",
    "output_tokens_requested",
    "reasoning_tokens",
    "cached_tokens",
    "event_times_s",
    "event_tokens",
    "stamp_source",
    "flags",
    "session_id",
    "turn",
    "repeated_tokens",
    "endpoint",
)


def records(info: RunInfo, requests: Requests, fields: Sequence[str] = FIELDS) -> Iterator[Record]:
    """One record for each request, in the order of the frame, with some of FIELDS. Holds a block of them at a time."""
    columns_of = _columns(info, requests)
    for low in range(0, len(requests), _BLOCK):
        high = min(low + _BLOCK, len(requests))
        made = {name: columns_of[name](low, high) for name in fields}
        for i in range(high - low):
            yield {name: made[name][i] for name in fields}


_Column = Callable[[int, int], list[Any]]  # the values of rows [low, high)


def _columns(info: RunInfo, requests: Requests) -> dict[str, _Column]:
    names = {stage.stage: stage.name for stage in info.stages}  # warm-up belongs to no stage
    loads = {stage.stage: {"kind": stage.load.kind, "value": stage.load.value} for stage in info.stages}
    known = dict(enumerate(urls(info)))
    stamped = _stamped(requests)
    made: dict[str, _Column] = {
        "request_id": lambda low, high: requests.request_id[low:high].tolist(),
        "stage": lambda low, high: [names.get(stage) for stage in requests.stage[low:high].tolist()],
        "load": lambda low, high: [loads.get(stage) for stage in requests.stage[low:high].tolist()],
        "scheduled_s": _numbers(requests.scheduled_ns / 1e9),
        "sent_s": _numbers(requests.sent_ns / 1e9),
        "sent_end_s": _numbers((requests.sent_end_ns - requests.sent_ns) / 1e9),
        "headers_s": _numbers((requests.headers_ns - requests.sent_ns) / 1e9),
        "event_times_s": lambda low, high: [_event_times(requests, i) for i in range(low, high)],
        "event_tokens": lambda low, high: [requests.tokens_of(i).tolist() for i in range(low, high)],
        "flags": lambda low, high: [requests.flags_of(i) for i in range(low, high)],
        "endpoint": lambda low, high: [known.get(place) for place in requests.endpoint[low:high].tolist()],
    }
    made |= {name: _words(requests, column) for name, column in _WORDS.items()}
    made |= {name: _wholes(getattr(requests, name)) for name in _COUNTS}
    for name, metric in _METRICS.items():
        formula = METRICS[metric].per_request
        assert formula is not None
        made[name] = _numbers(formula(stamped))
    return made


def _stamped(requests: Requests) -> Columns:
    """All requests as the formulas take them; every one that streamed at all has its moments."""
    facts = row_facts(requests)
    made = columns(requests, facts, np.arange(len(requests)))
    return replace(made, streamed_ok=(made.events > 0) & ~requests.has("not_streamed") & ~np.isnan(made.sent_ns))


def _event_times(requests: Requests, i: int) -> list[float]:
    low, high = requests.event_offset[i], requests.event_offset[i + 1]
    times: list[float] = (np.cumsum(requests.gap_us[low:high], dtype=np.int64) / 1e6).tolist()
    return times


def _numbers(values: np.ndarray[Any, np.dtype[np.float64]]) -> _Column:
    return lambda low, high: [None if math.isnan(value) else value for value in values[low:high].tolist()]


def _wholes(values: np.ndarray[Any, np.dtype[np.float64]]) -> _Column:
    return lambda low, high: [None if math.isnan(value) else int(value) for value in values[low:high].tolist()]


def _words(requests: Requests, column: str) -> _Column:
    words, codes = (*requests.words[column], None), getattr(requests, column)  # code -1 finds the None at the end
    return lambda low, high: [words[code] for code in codes[low:high].tolist()]
