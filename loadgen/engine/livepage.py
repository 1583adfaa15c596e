"""The client's own live metrics as a Prometheus page, while a run goes on.

Knows: names of series and how a page is served. Must not know: stages, sockets of the load, verdicts.
Why: a dashboard that already shows the server should show what the client sees beside it. The page is written by a
thread of its own from counts that the run keeps anyway; nothing is computed for it on the path of a request.

Names are those of OpenTelemetry's GenAI client metrics where they exist (in Prometheus' spelling), else `loadgen_...`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from loadgen.analysis.tally import Histogram, Tally
from loadgen.engine.runner import Live
from loadgen.errors import UsageError

_TTFT = "gen_ai_client_operation_time_to_first_chunk_seconds"
_GAP = "gen_ai_client_operation_time_per_output_chunk_seconds"
_DURATION = "gen_ai_client_operation_duration_seconds"
_TOKENS = "gen_ai_client_token_usage"
_LABELS = ("gen_ai_operation_name", "gen_ai_request_model")
Series = dict[tuple[str, ...], Histogram]  # by the values of further labels
_OPERATIONS = {"chat": "chat", "completions": "text_completion", "responses": "chat", "embeddings": "embeddings"}


@dataclass(slots=True, eq=False)
class LivePage(Collector):
    """Collects from a run's live counters. `about` is asked whenever the page is: the probe learns the model."""

    live: Live
    about: Callable[[], tuple[str, str]]  # (dialect, model)

    def collect(self) -> Iterator[Metric]:
        """All families, of this moment."""
        live = self.live
        dialect, model = self.about()
        labels = (_OPERATIONS.get(dialect, dialect), model)
        yield from (
            _gauge("loadgen_requests_in_flight", "Requests between sent and their end", labels, live.in_flight),
            _counter("loadgen_requests_sent", "Requests sent, warm-up included", labels, live.sent),
            _counter("loadgen_requests_finished", "Requests that ended, warm-up included", labels, live.finished),
            _counter("loadgen_requests_failed", "Requests that failed, warm-up included", labels, live.failed),
        )
        tally = live.tally or Tally()
        yield _histogram(_TTFT, "Sent to first token event, of requests that succeeded", labels, {(): tally.ttft})
        yield _histogram(_GAP, "Between token events of a request", labels, {(): tally.gap})
        took: Series = {(kind,): histogram for kind, histogram in tally.duration.items()}
        yield _histogram(_DURATION, "Sent to last token event", labels, took, ("error_type",))
        used: Series = {("input",): tally.prompt, ("output",): tally.output}
        yield _histogram(_TOKENS, "Tokens of requests that succeeded", labels, used, ("gen_ai_token_type",))


def serve(page: LivePage, port: int) -> Callable[[], None]:
    """Serve the page on 127.0.0.1; returns what stops it. Raises UsageError where the port is taken."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(page)
    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as trouble:
        reason = f"port {port} cannot be used: {trouble.strerror}"
        raise UsageError(reason, where="--prometheus-port", do="choose another") from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _gauge(name: str, help_text: str, labels: tuple[str, ...], value: float) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=_LABELS)
    family.add_metric(labels, value)
    return family


def _counter(name: str, help_text: str, labels: tuple[str, ...], value: float) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=_LABELS)
    family.add_metric(labels, value)
    return family


def _histogram(
    name: str,
    help_text: str,
    labels: tuple[str, ...],
    of: Series,
    more: tuple[str, ...] = (),
) -> Metric:
    family = HistogramMetricFamily(name, help_text, labels=(*_LABELS, *more))
    for values, histogram in of.items():
        reached = histogram.counts.cumsum().tolist()
        edges = [*(f"{bound:.6g}" for bound in histogram.bounds.tolist()), "+Inf"]
        family.add_metric((*labels, *values), list(zip(edges, reached, strict=True)), histogram.total)
    return family
