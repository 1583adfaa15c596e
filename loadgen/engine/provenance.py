"""What a server tells of itself: engine, version, limits, settings, GPUs.

Knows: which path of which engine answers what, and which of its fields may be kept. Must not know: load, loops, files.
Why: figures without the settings that made them cannot be compared. Only listed fields are kept, because such answers
hold keys, too (SGLang's server info has the API key in it); what nobody tells is said to be unknown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadgen.analysis.server import normalise
from loadgen.engine.telemetry import parse

Get = Callable[[str], Awaitable[tuple[int, Any]]]  # URL -> status and JSON (or text); status 0 where nothing came

_MAX_TEXT = 300
_MAX_LABELS = 60
# A word in `owned_by` of /v1/models -> the engine.
_OWNERS = {
    "vllm": "vllm",
    "llamacpp": "llama.cpp",
    "sglang": "sglang",
    "tensorrt": "tensorrt-llm",
    "tgi": "tgi",
    "loadgen-simulator": "loadgen-simulator",
}
# Engines that may be known by the names of their metrics alone.
_BY_METRICS = ("vllm", "sglang", "llama.cpp", "tgi", "tensorrt-llm")
_MODEL_FIELDS = ("owned_by", "root", "parent", "quantization", "dtype")
_META_FIELDS = ("ftype", "n_params", "size", "n_vocab", "n_embd", "n_ctx_train")


@dataclass(frozen=True, slots=True)
class _Question:
    """A GET and what its answer proves. `proof`: fields that it must have. Fields within fields are joined by `/`."""

    path: str
    proof: tuple[str, ...]
    engine: str | None = None
    version: str = "version"
    limit: str | None = None
    keep: tuple[str, ...] = ()


_SGLANG_SETTINGS = (
    *("tp_size", "dp_size", "pp_size", "ep_size", "dtype", "quantization", "kv_cache_dtype", "device", "nnodes"),
    *("mem_fraction_static", "max_total_num_tokens", "max_running_requests", "max_prefill_tokens", "page_size"),
    *("chunked_prefill_size", "schedule_policy", "schedule_conservativeness", "attention_backend", "sampling_backend"),
    *("disable_radix_cache", "disable_cuda_graph", "cuda_graph_max_bs", "enable_torch_compile", "stream_interval"),
    *("speculative_algorithm", "speculative_num_steps", "speculative_num_draft_tokens", "served_model_name"),
)
_TGI_SETTINGS = (
    *("model_id", "model_sha", "model_dtype", "model_device_type", "docker_label", "sha", "router", "num_shard"),
    *("max_concurrent_requests", "max_input_tokens", "max_input_length", "max_batch_total_tokens"),
    *("max_batch_prefill_tokens", "max_waiting_tokens", "waiting_served_ratio", "max_batch_size"),
)
_QUESTIONS = (
    _Question("/version", ("version",)),
    _Question(
        "/props",
        ("build_info",),
        "llama.cpp",
        "build_info",
        "default_generation_settings/n_ctx",
        ("total_slots", "model_ftype", "model_alias", "model_path"),
    ),
    _Question("/get_server_info", ("tp_size",), "sglang", "version", "context_length", _SGLANG_SETTINGS),
    _Question("/server_info", ("tp_size",), "sglang", "version", "context_length", _SGLANG_SETTINGS),
    _Question("/get_model_info", ("model_path", "is_generation"), "sglang", keep=("model_path", "weight_version")),
    _Question("/info", ("model_id", "max_total_tokens"), "tgi", "version", "max_total_tokens", _TGI_SETTINGS),
    _Question("/v2", ("name", "extensions"), "triton", keep=("name",)),
    _Question("/v1/metadata", ("modelInfo",), "nim"),
    _Question("/api/version", ("version",), "ollama"),
)

# Response headers that say who answered, and how long that took. Names of keys, spend and accounts are not among them.
_HEADER = re.compile(
    r"server|via|x-powered-by|x-served-by|openai-version|openai-processing-ms|x-envoy-upstream-service-time"
    r"|x-litellm-(version|model-id|model-name|model-group|response-duration-ms|overhead-duration-ms|attempted-\w+)"
    r"|x-(inference|compute|queue|total|validation|process)-time(-\w+)?"
)
_GATEWAYS = {
    "x-litellm-": "litellm",
    "x-envoy-": "envoy",
    "x-kong-": "kong",
    "x-portkey-": "portkey",
    "cf-": "cloudflare",
}

# What a reader needs to call two servers alike: a word, and the fields that would tell.
_NEEDED: dict[str, tuple[str, ...]] = {
    "engine": ("engine",),
    "version": ("version",),
    "context limit": ("context_limit",),
    "data type of the weights": ("dtype", "quantization", "quantisation", "model_dtype", "model_ftype", "ftype"),
    "parallelism": ("tp_size", "tp", "num_shard", "tensor_parallel_size"),
    "prefix cache": ("enable_prefix_caching", "disable_radix_cache", "prefix_cache"),
    "GPU": ("gpu",),
    "driver": ("driver",),
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server told. `told` holds plain values, by the name of the answer that they are from."""

    engine: str | None = None
    version: str | None = None
    context_limit: int | None = None  # tokens
    told: dict[str, Any] = field(default_factory=dict)


async def ask(get: Get, base: str, model: Mapping[str, Any]) -> Facts:
    """Ask the server at base URL `base`, whose /v1/models says `model` of the model in use. Never raises for answers.

    A server that has said which engine it is gets that engine's questions only.
    """
    root = base.removesuffix("/v1")
    owner = str(model.get("owned_by", "")).lower()
    engine = next((name for word, name in _OWNERS.items() if word in owner), None)
    asked = [q for q in _QUESTIONS if engine is None or q.engine in (None, engine)]
    *answers, (status, page) = await asyncio.gather(*(get(root + q.path) for q in asked), get(root + "/metrics"))
    metas = model.get("meta")
    meta: Mapping[str, Any] = metas if isinstance(metas, dict) else {}
    told: dict[str, Any] = {"model": {**_kept(model, _MODEL_FIELDS), **_kept(meta, _META_FIELDS)}}
    version: str | None = None
    limit = model.get("max_model_len") or model.get("context_length") or meta.get("n_ctx_train")
    for question, (code, data) in zip(asked, answers, strict=True):
        if code != 200 or not isinstance(data, dict) or any(_at(data, key) is None for key in question.proof):
            continue
        engine = engine or question.engine
        version = version or _text(_at(data, question.version))
        limit = _at(data, question.limit) or limit if question.limit else limit
        told[question.path.strip("/")] = _kept(data, question.keep)
    if status == 200 and isinstance(page, str):
        told |= info_series(page)
        known = normalise(parse(page.encode())).engines
        engine = engine or next((name for name in _BY_METRICS if name in known), None)
    context = int(limit) if isinstance(limit, int | float) and limit > 0 else None
    return Facts(engine, version, context, {name: value for name, value in told.items() if value})


def info_series(page: str) -> dict[str, dict[str, str]]:
    """The series of a metrics page whose labels are the message (`vllm:cache_config_info`): name -> labels."""
    from prometheus_client.parser import text_string_to_metric_families  # here: most endpoints have no such page

    found: dict[str, dict[str, str]] = {}
    for line in re.findall(r"^[\w:]+_info\{.*\} 1(?:\.0)?$", page, re.MULTILINE):
        try:
            families = list(text_string_to_metric_families(line + "\n"))
        except (ValueError, IndexError, KeyError):
            continue
        for sample in (sample for family in families for sample in family.samples):
            labels = {k: v[:_MAX_TEXT] for k, v in list(sample.labels.items())[:_MAX_LABELS] if not is_secret(k)}
            found[sample.name] = labels
    return found


def headers_told(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What response headers say of who answered; `gateway` names one that is known by its headers."""
    lowered = [(name.lower(), value) for name, value in headers]
    told = {name: value[:_MAX_TEXT] for name, value in lowered if _HEADER.fullmatch(name)}
    for prefix, gateway in _GATEWAYS.items():
        if any(name.startswith(prefix) for name, _ in lowered):
            told["gateway"] = gateway
    return told


def unknown(endpoint: Mapping[str, Any]) -> list[str]:
    """What nobody told of what one needs to call two servers alike."""
    fields = set(_fields(endpoint))
    return [word for word, names in _NEEDED.items() if not fields & set(names)]


def scrub(value: Any, clean: Callable[[str], str]) -> Any:
    """Plain values with `clean` applied to every text: a server may tell the key that it was started with."""
    if isinstance(value, dict):
        return {key: scrub(one, clean) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [scrub(one, clean) for one in value]
    return clean(value) if isinstance(value, str) else value


def _fields(value: Any) -> Iterable[str]:
    """Names of all fields that hold something, at any depth."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            if one is not None and one != "":
                yield key
            yield from _fields(one)


def _kept(data: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    found = {name: _plain(data.get(name)) for name in fields}
    return {name: value for name, value in found.items() if value is not None}


def _plain(value: Any) -> str | int | float | bool | None:
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    return value if isinstance(value, bool | int | float) else None


def _text(value: Any) -> str | None:
    return str(value)[:_MAX_TEXT] if isinstance(value, str | int | float) else None


def _at(data: Any, path: str) -> Any:
    for name in path.split("/"):
        data = data.get(name) if isinstance(data, dict) else None
    return data


def is_secret(name: str) -> bool:
    """Does a field of that name hold a key, a token or a password?"""
    return re.search(r"(^|_)(api_?key|key|token|secret|password|credentials?|auth)$", name, re.IGNORECASE) is not None
