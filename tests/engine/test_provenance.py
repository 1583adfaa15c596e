"""What each engine tells of itself, from recorded answers and from documented ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loadgen.engine.provenance import Facts, ask, headers_told, info_series, scrub, unknown

PAGE = (Path(__file__).with_name("fixtures") / "vllm.metrics.txt").read_text(encoding="utf-8")
BASE = "http://127.0.0.1:1/v1"


def told(model: dict[str, Any], answers: dict[str, Any]) -> tuple[Facts, list[str]]:
    """The facts, and the paths that were asked. A path without an answer is a 404."""
    asked: list[str] = []

    async def get(url: str) -> tuple[int, Any]:
        path = url.removeprefix("http://127.0.0.1:1")
        asked.append(path)
        return (200, answers[path]) if path in answers else (404, {"detail": "Not Found"})

    return asyncio.run(ask(get, BASE, model)), asked


def test_vllm() -> None:
    model = {"id": "m", "owned_by": "vllm", "root": "models/tiny-llama", "max_model_len": 2048}
    cache = 'vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",enable_prefix_caching="True"} 1.0\n'
    facts, asked = told(model, {"/version": {"version": "0.32.0"}, "/metrics": PAGE + cache})
    assert (facts.engine, facts.version, facts.context_limit) == ("vllm", "0.32.0", 2048)
    assert facts.told["model"]["root"] == "models/tiny-llama"
    assert facts.told["vllm:cache_config_info"]["cache_dtype"] == "auto"
    assert facts.told["python_info"]["version"] == "3.11.7"
    assert "/props" not in asked  # it has said which engine it is


def test_llama_cpp() -> None:
    props = {
        "build_info": "b0-unknown",
        "total_slots": 8,
        "model_ftype": "Q4_K - Medium",
        "default_generation_settings": {"n_ctx": 2048, "params": {"seed": 1}},
    }
    model = {"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx_train": 32768, "n_params": 268098176, "ftype": "Q4_K"}}
    facts, _ = told(model, {"/props": props})
    assert (facts.engine, facts.version, facts.context_limit) == ("llama.cpp", "b0-unknown", 2048)
    assert facts.told["props"] == {"total_slots": 8, "model_ftype": "Q4_K - Medium"}
    assert facts.told["model"]["n_params"] == 268098176


def test_sglang_and_its_key_stays_out() -> None:
    info = {"version": "0.5.3", "tp_size": 8, "api_key": "sk-secret", "context_length": None, "quantization": "fp8"}
    model = {"id": "m", "owned_by": "sglang", "max_model_len": 131072}
    facts, _ = told(model, {"/get_server_info": info, "/get_model_info": {"model_path": "a/b", "is_generation": True}})
    assert (facts.engine, facts.version, facts.context_limit) == ("sglang", "0.5.3", 131072)
    assert facts.told["get_server_info"] == {"tp_size": 8, "quantization": "fp8"}
    assert "sk-secret" not in str(facts)


@pytest.mark.parametrize(
    ("answers", "engine", "version"),
    [
        ({"/info": {"model_id": "m", "max_total_tokens": 4096, "version": "3.3.4", "sha": "ab"}}, "tgi", "3.3.4"),
        ({"/v2": {"name": "triton", "version": "2.55.0", "extensions": ["metrics"]}}, "triton", "2.55.0"),
        ({"/metrics": "sglang:num_running_reqs 0.0\n"}, "sglang", None),
        ({"/metrics": "trtllm_kv_cache_utilization 0.1\n", "/version": {"version": "1.2"}}, "tensorrt-llm", "1.2"),
        ({"/version": {"version": "9.9"}}, None, "9.9"),  # many servers have that path: no engine is guessed
        ({"/version": ["x"], "/props": "text", "/info": None, "/metrics": {"a": 1}}, None, None),
        ({}, None, None),
    ],
)
def test_engines_that_models_does_not_name(answers: dict[str, Any], engine: str | None, version: str | None) -> None:
    facts, _ = told({"id": "m", "owned_by": "me"}, answers)
    assert (facts.engine, facts.version) == (engine, version)


def test_labels_that_name_keys_are_left_out() -> None:
    page = 'x_info{api_key="k1",token="k2",kv_cache_dtype="fp8",max_num_tokens="5"} 1\nx_info{broken 1\n'
    assert info_series(page) == {"x_info": {"kv_cache_dtype": "fp8", "max_num_tokens": "5"}}


def test_response_headers() -> None:
    headers = [
        ("Server", "uvicorn"),
        ("x-litellm-version", "1.80"),
        ("x-litellm-key-spend", "3.2"),
        ("set-cookie", "a=b"),
        ("openai-processing-ms", "12"),
    ]
    assert headers_told(headers) == {
        "server": "uvicorn",
        "x-litellm-version": "1.80",
        "openai-processing-ms": "12",
        "gateway": "litellm",
    }
    assert headers_told([]) == {}


def test_what_is_unknown_is_said() -> None:
    everything = unknown({})
    assert {"engine", "version", "GPU", "parallelism"} <= set(everything)
    endpoint = {"engine": "vllm", "version": None, "provenance": {"get_server_info": {"tp_size": 8}}}
    assert set(everything) - set(unknown(endpoint)) == {"engine", "parallelism"}


def test_a_key_that_a_server_repeats_is_scrubbed_everywhere() -> None:
    value = {"a": ["x sesame y", 1, None], "b": {"c": "sesame"}}
    assert scrub(value, lambda text: text.replace("sesame", "***")) == {"a": ["x *** y", 1, None], "b": {"c": "***"}}
