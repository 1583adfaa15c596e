"""Result files of other tools, format by format: where each writes lengths, loads and times, and what it means.

Knows: the keys of each format, its units, its definitions of TTFT, ITL and TPOT. Must not know: files, fits.
Why one `Point` for all: whatever the keys are called, a point is lengths, a load, a TTFT and a time per output token.

Formats and sources: vLLM `vllm bench serve --save-result` and SGLang `bench_serving`, `bench_one_batch` (their public
sources), GuideLLM's benchmarks.json and AIPerf's and GenAI-Perf's exports (their documentation), EvalScope `perf`
(benchmark_summary.json), inference-perf (stage_N_lifecycle_metrics.json), InferenceMAX's aggregated results.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loadgen.roofline.cells import LoadKind
from loadgen.store.tabletext import SECONDS

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """One measured point as a tool tells it: mean tokens, seconds; nan and None where it does not say."""

    prompt_tokens: float
    output_tokens: float
    load_kind: LoadKind
    load: float
    ttft_s: float
    itl_s: float
    requests: float = math.nan
    spread: float = 0.0  # relative deviation of the lengths
    ratio: float | None = None  # the tool's own statement: lengths uniform in [ratio, 1] x nominal
    model: str = ""
    gpu: str = ""
    gpus: float = math.nan
    dtype: str = ""
    engine: str = ""
    evidence: dict[str, float] = field(default_factory=dict)


class Tool(NamedTuple):
    """A format: how a document of it is known, its points, and what the tool means by its figures."""

    name: str
    recognises: Callable[[Document], bool]
    points: Callable[[Document, str], Iterator[Point]]
    meaning: str


def dig(document: Any, *paths: str) -> Any:
    """The first of the dotted paths that leads to something; None where none does. Numbers step into lists."""
    for path in paths:
        found = document
        for step in path.split("."):
            if isinstance(found, list) and step.isdigit() and int(step) < len(found):
                found = found[int(step)]
            elif isinstance(found, dict):
                found = found.get(step)
            else:
                found = None
                break
        if found is not None:
            return found
    return None


def number(document: Any, *paths: str) -> float:
    """As `dig`, as a number; nan where it is none. "inf" is infinity."""
    found = dig(document, *paths)
    try:
        return math.nan if found is None or isinstance(found, bool) else float(found)
    except (TypeError, ValueError):
        return math.nan


def text(document: Any, *paths: str) -> str:
    """As `dig`, as a text; of a list its first member; "" where there is none."""
    found = dig(document, *paths)
    found = found[0] if isinstance(found, list) and found else found
    return found if isinstance(found, str) else ""


def _load(users: float, rate: float, requests: float) -> tuple[LoadKind, float]:
    """A finite rate is open loop; else so many users, or all requests at once. nan: the file does not say."""
    if math.isfinite(rate) and rate > 0:
        return "rate", rate
    return "concurrency", users if users > 0 and math.isfinite(users) else requests


def _deviation(lengths: Any) -> float:
    """Relative deviation of a list of lengths; 0 where there is no such list."""
    known = [float(n) for n in lengths if isinstance(n, int | float)] if isinstance(lengths, list) else []
    mean = sum(known) / len(known) if known else 0.0
    return math.sqrt(sum((n - mean) ** 2 for n in known) / len(known)) / mean if mean > 0 else 0.0


# -- vLLM and SGLang: one flat object for each run -------------------------------------------------------------------

_SGLANG = ("sharegpt_output_len", "random_input_len", "total_output_tokens_retokenized")


def _flat(document: Document, _: str) -> Iterator[Point]:
    done, failed = number(document, "completed"), number(document, "failed")
    sent = number(document, "num_prompts")
    sent = done + (0.0 if math.isnan(failed) else failed) if math.isnan(sent) else sent
    kind, load = _load(number(document, "max_concurrency"), number(document, "request_rate"), sent)
    itl = number(document, "mean_tpot_ms")
    yield Point(
        prompt_tokens=number(document, "total_input_tokens") / done if done else math.nan,
        output_tokens=number(document, "total_output_tokens") / done if done else math.nan,
        load_kind=kind,
        load=load,
        ttft_s=number(document, "mean_ttft_ms") / 1e3,
        itl_s=(number(document, "mean_itl_ms") if math.isnan(itl) else itl) / 1e3,
        requests=sent,
        spread=max(_deviation(document.get("input_lens")), _deviation(document.get("output_lens"))),
        model=text(document, "model_id", "model"),
        gpu=text(document, "gpu", "hardware", "gpu_type"),
        gpus=number(document, "tensor_parallel_size", "tp_size", "tp", "gpus"),
        dtype=text(document, "dtype", "precision", "quantization"),
        engine=_engine(text(document, "backend", "endpoint_type")),
        evidence={
            "itl_p50_s": number(document, "median_itl_ms") / 1e3,
            "itl_p99_s": number(document, "p99_itl_ms") / 1e3,
            "error_share": 1.0 - done / sent if sent else math.nan,
        },
    )


def _engine(backend: str) -> str:
    """The engine, where a backend names one and not a dialect ("openai-chat")."""
    engines = ("vllm", "sglang", "trt", "tensorrt", "lmdeploy", "tgi", "llama", "deepspeed")
    return backend if backend.lower().startswith(engines) else ""


def _one_batch(document: Document, _: str) -> Iterator[Point]:
    yield Point(
        prompt_tokens=number(document, "input_len"),
        output_tokens=number(document, "output_len"),
        load_kind="batch",
        load=number(document, "batch_size"),
        ttft_s=number(document, "prefill_latency"),
        itl_s=number(document, "median_decode_latency"),
        requests=number(document, "batch_size"),
        model=text(document, "model_path"),
        engine="sglang",
    )


def _inferencemax(document: Document, _: str) -> Iterator[Point]:
    users = number(document, "conc")
    yield Point(
        prompt_tokens=number(document, "isl"),
        output_tokens=number(document, "osl"),
        load_kind="concurrency",
        load=users,
        ttft_s=number(document, "mean_ttft"),
        itl_s=number(document, "mean_tpot", "mean_itl"),
        requests=10 * users,
        ratio=0.8,
        model=text(document, "model"),
        gpu=text(document, "hw").split("-")[0],
        gpus=number(document, "tp"),
        dtype=text(document, "precision"),
        engine=text(document, "framework"),
    )


# -- GuideLLM: a list of benchmarks, each with a strategy ------------------------------------------------------------


def _guidellm(document: Document, _: str) -> Iterator[Point]:
    for one in document["benchmarks"]:
        metrics = dig(one, "metrics") or {}
        strategy = dig(one, "config.strategy", "args.strategy") or {}
        word = text(strategy, "type_", "type", "kind")
        users = number(strategy, "streams", "max_concurrency")
        users = 1.0 if word == "synchronous" else users
        if math.isnan(users) and word == "throughput":
            users = number(metrics, "request_concurrency.successful.mean")
        rate = number(strategy, "rate", "initial_rate") if word in ("constant", "poisson", "asynchronous") else math.nan
        done = number(metrics, "request_totals.successful", "requests_per_second.successful.count")
        done = (
            number(one, "request_totals.successful", "run_stats.requests_made.successful") if math.isnan(done) else done
        )
        failed = number(metrics, "request_totals.errored")
        kind, load = _load(users, rate, math.nan)
        sent = done + (0.0 if math.isnan(failed) else failed)
        yield Point(
            prompt_tokens=number(metrics, "prompt_token_count.successful.mean"),
            output_tokens=number(metrics, "output_token_count.successful.mean"),
            load_kind=kind,
            load=load,
            ttft_s=number(metrics, "time_to_first_token_ms.successful.mean") / 1e3,
            itl_s=number(metrics, "inter_token_latency_ms.successful.mean") / 1e3,
            requests=sent,
            spread=max(_relative(metrics, "prompt_token_count"), _relative(metrics, "output_token_count")),
            model=text(one, "config.backend.model", "args.model") or text(document, "args.model", "args.backend.model"),
            evidence={
                "itl_p99_s": number(metrics, "inter_token_latency_ms.successful.percentiles.p99") / 1e3,
                "error_share": 1.0 - done / sent if sent else math.nan,
            },
        )


def _relative(metrics: Any, name: str) -> float:
    mean, deviation = (number(metrics, f"{name}.successful.{stat}") for stat in ("mean", "std_dev"))
    return deviation / mean if mean > 0 and math.isfinite(deviation) else 0.0


# -- AIPerf and GenAI-Perf: a statistics object for each metric ------------------------------------------------------


def _aiperf(document: Document, where: str) -> Iterator[Point]:
    records = document["records"] if isinstance(document.get("records"), dict) else document
    config = document.get("input_config") or {}
    stimulus = dig(config, "perf_analyzer.stimulus") or {}
    users = number(config, "loadgen.concurrency", "concurrency") if config else math.nan
    users = number(stimulus, "concurrency") if math.isnan(users) else users
    rate = number(config, "loadgen.request_rate", "request_rate")
    rate = number(stimulus, "request_rate") if math.isnan(rate) else rate
    if math.isnan(users) and math.isnan(rate):  # GenAI-Perf writes the load into the name of its folder alone
        named = re.findall(r"(concurrency|request_rate)[-_=]?(\d+(?:\.\d+)?)", where)
        users = next((float(value) for what, value in named if what == "concurrency"), math.nan)
        rate = next((float(value) for what, value in named if what == "request_rate"), math.nan)
    done, failed = _stat(records, "avg", "request_count"), _stat(records, "avg", "error_request_count")
    failed = 0.0 if math.isnan(failed) else failed
    kind, load = _load(users, rate, math.nan)
    yield Point(
        prompt_tokens=_stat(records, "avg", "input_sequence_length", "isl"),
        output_tokens=_stat(records, "avg", "output_sequence_length", "osl"),
        load_kind=kind,
        load=load,
        ttft_s=_seconds(records, "avg", "time_to_first_token", "ttft"),
        itl_s=_seconds(records, "avg", "inter_token_latency", "itl"),
        requests=done + failed,
        spread=max(_spread_of(records, "input_sequence_length"), _spread_of(records, "output_sequence_length")),
        model=text(config, "endpoint.model_names", "model_names", "endpoint.model", "model"),
        evidence={"error_share": failed / (done + failed) if done + failed > 0 else math.nan},
    )


def _stat(records: Any, stat: str, *names: str) -> float:
    return number(
        records, *(f"{name}.{stat}" for name in names), *((f"{n}.value" for n in names) if stat == "avg" else ())
    )


def _seconds(records: Any, stat: str, *names: str) -> float:
    unit = text(records, *(f"{name}.unit" for name in names)).lower()
    return _stat(records, stat, *names) * SECONDS.get(unit, 1e-3)


def _spread_of(records: Any, name: str) -> float:
    mean, deviation = _stat(records, "avg", name), _stat(records, "std", name)
    return deviation / mean if mean > 0 and math.isfinite(deviation) else 0.0


# -- EvalScope, inference-perf ---------------------------------------------------------------------------------------

_FIRST = "Average time to first token (s)"


def _evalscope(document: Document, _: str) -> Iterator[Point]:
    sent, failed = (_named(document, name) for name in ("Total requests", "Failed requests"))
    kind, load = _load(_named(document, "Number of concurrency"), _named(document, "Request rate (req/s)"), math.nan)
    itl = _named(document, "Average time per output token (s)")
    yield Point(
        prompt_tokens=_named(document, "Average input tokens per request"),
        output_tokens=_named(document, "Average output tokens per request"),
        load_kind=kind,
        load=load,
        ttft_s=_named(document, _FIRST),
        itl_s=_named(document, "Average inter-token latency (s)") if math.isnan(itl) else itl,
        requests=sent,
        evidence={"error_share": failed / sent if sent else math.nan},
    )


def _named(document: Document, name: str) -> float:
    """A key that has dots or blanks in it, as a number."""
    return number({"it": document.get(name)}, "it")


def _inference_perf(document: Document, _: str) -> Iterator[Point]:
    load_of, good = document["load_summary"], document["successes"]
    done, failed = number(good, "count"), number(document, "failures.count")
    failed = 0.0 if math.isnan(failed) else failed
    kind, load = _load(number(load_of, "concurrency"), number(load_of, "requested_rate"), math.nan)
    itl = number(good, "latency.time_per_output_token.mean")
    yield Point(
        prompt_tokens=number(good, "prompt_len.mean"),
        output_tokens=number(good, "output_len.mean"),
        load_kind=kind,
        load=load,
        ttft_s=number(good, "latency.time_to_first_token.mean"),
        itl_s=number(good, "latency.inter_token_latency.mean") if math.isnan(itl) else itl,
        requests=done + failed,
        evidence={
            "itl_p99_s": number(good, "latency.inter_token_latency.p99"),
            "error_share": failed / (done + failed) if done + failed > 0 else math.nan,
        },
    )


def _is_flat(document: Document) -> bool:
    return "completed" in document and ("mean_ttft_ms" in document or "mean_tpot_ms" in document)


def _is_sglang(document: Document) -> bool:
    return _is_flat(document) and any(key in document for key in _SGLANG)


def _is_guidellm(document: Document) -> bool:
    return isinstance(document.get("benchmarks"), list) and any(
        isinstance(dig(one, "metrics"), dict) for one in document["benchmarks"]
    )


def _is_aiperf(document: Document) -> bool:
    records = document["records"] if isinstance(document.get("records"), dict) else document
    return isinstance(dig(records, "time_to_first_token", "ttft", "inter_token_latency"), dict)


# In the order in which they are asked: the first that recognises a document reads it.
TOOLS: tuple[Tool, ...] = (
    Tool(
        "SGLang bench_serving",
        _is_sglang,
        _flat,
        "TTFT from sending to the first chunk; TPOT = (latency - TTFT) / (tokens - 1), mean over requests; tokens as "
        "asked for, not as counted",
    ),
    Tool(
        "vLLM bench serve",
        _is_flat,
        _flat,
        "TTFT from sending to the first chunk; TPOT = (latency - TTFT) / (tokens - 1), mean over requests: taken in "
        "place of its ITL, which is a gap between chunks",
    ),
    Tool(
        "SGLang bench_one_batch",
        lambda document: "prefill_latency" in document and "batch_size" in document,
        _one_batch,
        "a static batch without a server: TTFT is the prefill of the whole batch, ITL the median decode step",
    ),
    Tool(
        "InferenceMAX",
        lambda document: "conc" in document and "mean_ttft" in document,
        _inferencemax,
        "lengths uniform in [0.8, 1] x nominal, ten requests per user, the opening burst included",
    ),
    Tool(
        "GuideLLM",
        _is_guidellm,
        _guidellm,
        "ITL = (last token - first) / (tokens - 1), averaged by tokens: taken in place of its TPOT, which holds the "
        "TTFT, too; users start over the ramp that it was told",
    ),
    Tool(
        "AIPerf / GenAI-Perf",
        _is_aiperf,
        _aiperf,
        "ITL = (latency - TTFT) / (tokens - 1), mean over requests: what others call TPOT; tokens by its own tokenizer",
    ),
    Tool(
        "EvalScope perf",
        lambda document: _FIRST in document or "Average time per output token (s)" in document,
        _evalscope,
        "TPOT mean over requests; its workers may pause between requests, so that fewer than its concurrency run",
    ),
    Tool(
        "inference-perf",
        lambda document: isinstance(document.get("load_summary"), dict) and isinstance(document.get("successes"), dict),
        _inference_perf,
        "TPOT = (last token - first) / (tokens - 1), mean over requests; tokens by its own tokenizer",
    ),
)
