"""What the simulator counts, and its page of `/metrics` in vLLM's names.

Knows: counters, histograms, and the Prometheus text format. Must not know: HTTP, engines, who counts.
Why: a client that reads server metrics needs a server whose metrics are exact; and the simulator must state its own
lateness, so that its host's faults are not read as the client's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

# Bucket bounds in seconds, as vLLM publishes them.
_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_LATENESS_S = tuple(1e-5 * 2 ** (step / 2) for step in range(35))  # 10 us to 1.3 s, factor sqrt(2)


class Histogram:
    """Counts of values up to each bound (seconds), their sum and their maximum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0
        self.sum = 0.0
        self.max = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += times
        self.sum += value * times
        self.max = max(self.max, value)

    def quantile(self, share: float) -> float | None:
        """The bound under which at least `share` of the values lie, so not below the quantile; None: no values."""
        seen = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if self.total and seen >= share * self.total:
                return min(bound, self.max)
        return self.max if self.total else None

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """Prometheus text, without HELP and TYPE."""
        seen = 0
        comma = "," if labels else ""
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            edge = "+Inf" if bound == float("inf") else f"{bound:.7g}"
            yield f'{name}_bucket{{{labels}{comma}le="{edge}"}} {seen}'
        yield f"{name}_sum{{{labels}}} {self.sum!r}"
        yield f"{name}_count{{{labels}}} {self.total}"


@dataclass(slots=True)
class Lateness:
    """How late the simulator was, per step: `start` until the first write after the due time, `end` until the last.

    `resets` counts the steps after which the schedule was given up because the host had fallen too far behind.
    """

    start: Histogram = field(default_factory=lambda: Histogram(_LATENESS_S))
    end: Histogram = field(default_factory=lambda: Histogram(_LATENESS_S))
    resets: int = 0

    def summary(self) -> str:
        """One line for people."""
        if not self.end.total:
            return "lateness: no step was run"
        parts = (
            f"{name} p50 <= {_ms(part.quantile(0.5))}, p99 <= {_ms(part.quantile(0.99))}, max {_ms(part.max)}"
            for name, part in (("first write", self.start), ("last write", self.end))
        )
        return f"lateness of {self.end.total:,} steps: {'; '.join(parts)}; schedule given up {self.resets} times"


def _ms(value_s: float | None) -> str:
    return "n/a" if value_s is None else f"{value_s * 1e3:.3g} ms"


@dataclass(slots=True)
class Counters:
    """What has happened since the start."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    succeeded: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})  # by finish reason
    faults: dict[str, int] = field(default_factory=dict)
    refused: int = 0  # by the queue limit
    ttft: Histogram = field(default_factory=lambda: Histogram(_TTFT_S))
    itl: Histogram = field(default_factory=lambda: Histogram(_ITL_S))
    lateness: Lateness = field(default_factory=Lateness)


@dataclass(frozen=True, slots=True)
class Gauges:
    """The engine's state at this moment."""

    running: int
    waiting: int
    kv_usage: float  # 0 to 1
    prefix_queries: int  # tokens
    prefix_hits: int
    preemptions: int


# Name, type, help, and the field of each engine's state.
_STATE: tuple[tuple[str, str, str, Callable[[Gauges], float]], ...] = (
    ("vllm:num_requests_running", "gauge", "Requests in the batch.", attrgetter("running")),
    ("vllm:num_requests_waiting", "gauge", "Requests waiting to be processed.", attrgetter("waiting")),
    ("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage, 1 is full.", attrgetter("kv_usage")),
    ("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up.", attrgetter("prefix_queries")),
    ("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the cache.", attrgetter("prefix_hits")),
    ("vllm:num_preemptions_total", "counter", "Preemptions.", attrgetter("preemptions")),
)


def render(counters: Counters, now: Sequence[Gauges], model: str, cache: Mapping[str, object]) -> str:
    """The `/metrics` page. `now` is the state of each engine (a prefill pool first); `cache`: its configuration."""
    labels = f'engine="0",model_name="{_escape(model)}"'
    lines: list[str] = []
    for name, kind, text, value in _STATE:
        lines += _head(name, kind, text)
        lines += [f'{name}{{engine="{i}",model_name="{_escape(model)}"}} {value(one)}' for i, one in enumerate(now)]
    for name, text, total in (
        ("vllm:prompt_tokens_total", "Prompt tokens of prefilled requests.", counters.prompt_tokens),
        ("vllm:generation_tokens_total", "Generated tokens.", counters.generation_tokens),
    ):
        lines += [*_head(name, "counter", text), f"{name}{{{labels}}} {total}"]
    name = "vllm:request_success_total"
    lines += _head(name, "counter", "Finished requests by reason.")
    lines += [f'{name}{{{labels},finished_reason="{why}"}} {n}' for why, n in counters.succeeded.items()]
    name = "vllm:cache_config_info"
    shown = ",".join(f'{key}="{value}"' for key, value in cache.items())
    lines += [*_head(name, "gauge", "Cache configuration."), f'{name}{{engine="0",{shown}}} 1.0']
    for name, text, histogram in (
        ("vllm:time_to_first_token_seconds", "Time to first token.", counters.ttft),
        ("vllm:inter_token_latency_seconds", "Inter-token latency.", counters.itl),
    ):
        lines += [*_head(name, "histogram", text), *histogram.lines(name, labels)]
    return "\n".join([*lines, *_own_lines(counters)]) + "\n"


def _own_lines(counters: Counters) -> list[str]:
    late = counters.lateness
    lines: list[str] = []
    for name, text, histogram in (
        ("simulator_lateness_start_seconds", "From a step's due time to its first write.", late.start),
        ("simulator_lateness_end_seconds", "From a step's due time to the end of its last write.", late.end),
    ):
        lines += [*_head(name, "histogram", text), *histogram.lines(name, "")]
    for name, kind, text, value in (
        ("simulator_lateness_max_seconds", "gauge", "The latest write so far.", late.end.max),
        ("simulator_schedule_resets_total", "counter", "Steps after which the schedule was given up.", late.resets),
        ("simulator_refused_total", "counter", "Requests refused by the queue limit.", counters.refused),
    ):
        lines += [*_head(name, kind, text), f"{name} {value}"]
    name = "simulator_faults_total"
    lines += _head(name, "counter", "Faults acted out, by kind.")
    return lines + [f'{name}{{kind="{kind}"}} {count}' for kind, count in counters.faults.items()]


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
