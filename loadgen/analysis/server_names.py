"""What each serving engine calls the same things: one table from its Prometheus names to normalised series.

Knows: names, labels, units and versions of vLLM, SGLang, llama.cpp, TGI, TensorRT-LLM, Triton and the DCGM exporter.
Must not know: how a page is fetched or parsed, what a series is used for.
Why: an engine that renames a metric is one more line here, and everything else speaks of `kv_usage`.

Names are from recorded pages (vLLM 0.32, llama.cpp) and from the engines' public documentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]
Fold = Literal["sum", "mean", "min", "max"]


@dataclass(frozen=True, slots=True)
class Series:
    """One normalised series. `fold` makes one value of those of several engines or GPUs; `unit` is SI."""

    kind: Kind
    unit: str
    title: str
    fold: Fold = "sum"


SERIES: dict[str, Series] = {
    "running": Series("gauge", "requests", "Requests in the server's batch"),
    "waiting": Series("gauge", "requests", "Requests in the server's queue"),
    "kv_usage": Series("gauge", "share", "KV cache in use", "mean"),
    "prefix_queries": Series("counter", "tokens", "Prompt tokens looked up in the prefix cache"),
    "prefix_hits": Series("counter", "tokens", "Prompt tokens found in the prefix cache"),
    "preemptions": Series("counter", "requests", "Requests preempted"),
    "prompt_tokens": Series("counter", "tokens", "Prompt tokens processed"),
    "generation_tokens": Series("counter", "tokens", "Tokens generated"),
    "spec_drafted": Series("counter", "tokens", "Tokens drafted by speculation"),
    "spec_accepted": Series("counter", "tokens", "Drafted tokens accepted"),
    "spec_acceptance": Series("gauge", "share", "Drafted tokens accepted", "mean"),
    "queue_s": Series("histogram", "s", "Time in the server's queue"),
    "ttft_s": Series("histogram", "s", "TTFT as the server measures it"),
    "itl_s": Series("histogram", "s", "Time between tokens as the server measures it"),
    "gpu_utilization": Series("gauge", "share", "GPU utilisation", "mean"),
    "gpu_power_w": Series("gauge", "W", "GPU power"),
    "gpu_energy_j": Series("counter", "J", "GPU energy"),
    "sm_clock_hz": Series("gauge", "Hz", "SM clock (the slowest GPU)", "min"),
    "memory_clock_hz": Series("gauge", "Hz", "Memory clock (the slowest GPU)", "min"),
    "gpu_memory_bytes": Series("gauge", "bytes", "GPU memory in use"),
    "gpu_temperature_c": Series("gauge", "°C", "GPU temperature (the hottest GPU)", "max"),
    "throttle_reasons": Series("gauge", "bits", "Reasons for lowered clocks", "max"),
    "throttle_power": Series("counter", "ticks", "Time held back by the power limit"),
    "throttle_thermal": Series("counter", "ticks", "Time held back by the temperature limit"),
}


@dataclass(frozen=True, slots=True)
class Alias:
    """Where one engine tells a series: the sum of `names` (all must be there), of samples whose labels match `where`.

    For a histogram a name is without `_bucket`, `_sum` and `_count`. `scale` turns its unit into the series' unit.
    """

    series: str
    names: tuple[str, ...]
    where: tuple[tuple[str, str], ...] = ()
    scale: float = 1.0


def _plain(prefixes: tuple[str, ...], table: dict[str, tuple[str, ...]]) -> tuple[Alias, ...]:
    """Aliases of one name each, the preferred one first, under each prefix (collectors turn colons to underscores)."""
    return tuple(
        Alias(series, (prefix + name,)) for prefix in prefixes for series, names in table.items() for name in names
    )


def _triton(series: str, name: str, label: str, value: str) -> Alias:
    return Alias(series, (f"nv_trt_llm_{name}",), ((label, value),))


_TRTLLM: dict[str, tuple[str, ...]] = {
    "running": ("num_requests_running",),
    "waiting": ("num_requests_waiting",),
    "kv_usage": ("kv_cache_utilization",),
    "prompt_tokens": ("prompt_tokens_total",),
    "generation_tokens": ("generation_tokens_total",),
    "queue_s": ("request_queue_time_seconds",),
    "ttft_s": ("time_to_first_token_seconds",),
    "itl_s": ("inter_token_latency_seconds",),
}

# Within an engine the first alias of a series that a page has is the one that counts.
ALIASES: dict[str, tuple[Alias, ...]] = {
    "vllm": _plain(
        ("vllm:", "vllm_"),
        {
            "running": ("num_requests_running",),
            "waiting": ("num_requests_waiting",),
            "kv_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),  # renamed in 0.10
            "prefix_queries": ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
            "prefix_hits": ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
            "preemptions": ("num_preemptions_total",),
            "prompt_tokens": ("prompt_tokens_total",),
            "generation_tokens": ("generation_tokens_total",),
            "spec_drafted": ("spec_decode_num_draft_tokens_total",),
            "spec_accepted": ("spec_decode_num_accepted_tokens_total",),
            "queue_s": ("request_queue_time_seconds",),
            "ttft_s": ("time_to_first_token_seconds",),
            "itl_s": ("inter_token_latency_seconds", "time_per_output_token_seconds"),  # renamed in 0.11
        },
    ),
    "sglang": (
        *_plain(
            ("sglang:", "sglang_"),
            {
                "running": ("num_running_reqs",),
                "waiting": ("num_queue_reqs",),
                "kv_usage": ("token_usage",),
                "prefix_hits": ("cached_tokens_total",),
                "preemptions": ("num_retracted_requests_total", "num_retracted_reqs_total"),
                "prompt_tokens": ("prompt_tokens_total",),
                "generation_tokens": ("generation_tokens_total",),
                "spec_acceptance": ("spec_accept_rate",),
                "queue_s": ("queue_time_seconds",),
                "ttft_s": ("time_to_first_token_seconds",),
                "itl_s": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
            },
        ),
        # Every prompt is looked up in the radix cache.
        Alias("prefix_queries", ("sglang:prompt_tokens_total",)),
        Alias("prefix_queries", ("sglang_prompt_tokens_total",)),
    ),
    "llama.cpp": (
        *_plain(
            ("llamacpp:", "llamacpp_"),
            {
                "running": ("requests_processing",),
                "waiting": ("requests_deferred",),
                "kv_usage": ("kv_cache_usage_ratio",),
                "prefix_hits": ("prompt_tokens_cached_total",),
                "prompt_tokens": ("prompt_tokens_total",),
                "generation_tokens": ("tokens_predicted_total",),
                "spec_drafted": ("spec_decode_num_draft_tokens_total",),
                "spec_accepted": ("spec_decode_num_accepted_tokens_total",),
            },
        ),
        # Its prompt tokens are those that were not cached.
        Alias("prefix_queries", ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total")),
    ),
    "tgi": _plain(
        ("tgi_",),
        {
            "running": ("batch_current_size",),
            "waiting": ("queue_size",),
            "prompt_tokens": ("request_input_length_sum",),
            "generation_tokens": ("request_generated_tokens_sum",),
            "queue_s": ("request_queue_duration",),
        },
    ),
    "tensorrt-llm": (
        *_plain(("trtllm_", "trtllm:"), _TRTLLM),
        # It counts blocks, not tokens; what is read is their ratio.
        Alias("prefix_hits", ("trtllm_kv_cache_reused_blocks_total",)),
        Alias("prefix_queries", ("trtllm_kv_cache_reused_blocks_total", "trtllm_kv_cache_missed_blocks_total")),
    ),
    "triton": (
        _triton("running", "request_metrics", "request_type", "scheduled"),
        _triton("running", "request_metrics", "request_type", "active"),
        _triton("waiting", "request_metrics", "request_type", "waiting"),
        _triton("kv_usage", "kv_cache_block_metrics", "kv_cache_block_type", "fraction"),
        Alias("gpu_utilization", ("nv_gpu_utilization",)),
        Alias("gpu_power_w", ("nv_gpu_power_usage",)),
        Alias("gpu_energy_j", ("nv_energy_consumption",)),
        Alias("gpu_memory_bytes", ("nv_gpu_memory_used_bytes",)),
    ),
    "dcgm": (
        Alias("gpu_utilization", ("DCGM_FI_DEV_GPU_UTIL",), scale=0.01),
        Alias("gpu_power_w", ("DCGM_FI_DEV_POWER_USAGE",)),
        Alias("gpu_energy_j", ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",), scale=1e-3),
        Alias("sm_clock_hz", ("DCGM_FI_DEV_SM_CLOCK",), scale=1e6),
        Alias("memory_clock_hz", ("DCGM_FI_DEV_MEM_CLOCK",), scale=1e6),
        Alias("gpu_memory_bytes", ("DCGM_FI_DEV_FB_USED",), scale=2.0**20),
        Alias("gpu_temperature_c", ("DCGM_FI_DEV_GPU_TEMP",)),
        Alias("throttle_reasons", ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS",)),
        Alias("throttle_reasons", ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",)),  # its older name
        Alias("throttle_power", ("DCGM_FI_DEV_POWER_VIOLATION",)),
        Alias("throttle_thermal", ("DCGM_FI_DEV_THERMAL_VIOLATION",)),
    ),
}

# Engines that add a request's tokens to their counters when it ends, not as they are generated.
COUNTS_AT_FINISH = frozenset({"llama.cpp", "tgi"})

# Bits of `throttle_reasons` (NVML's clocks event reasons) that lower the clocks of a GPU that has work.
THROTTLED: dict[int, str] = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal limit",
    0x40: "hardware thermal limit",
    0x80: "power brake",
}


def wanted_names() -> frozenset[str]:
    """Every sample name that some alias reads."""
    found: set[str] = set()
    for aliases in ALIASES.values():
        for alias in aliases:
            endings = ("_bucket", "_sum", "_count") if SERIES[alias.series].kind == "histogram" else ("",)
            found |= {name + ending for name in alias.names for ending in endings}
    return frozenset(found)
