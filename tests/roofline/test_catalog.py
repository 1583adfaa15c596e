"""The catalogue: counts follow from dimensions, names are found as people type them, nothing is guessed."""

from __future__ import annotations

import csv
from dataclasses import replace
from importlib import resources

import pytest

from loadgen.errors import UsageError
from loadgen.roofline import catalog
from loadgen.roofline.hfconfig import shape_from_config
from loadgen.roofline.passes import Deployment, step_law
from loadgen.roofline.precision import Dtypes, dtypes


@pytest.mark.parametrize("shape", catalog.shapes(), ids=lambda shape: shape.name)
def test_parameter_counts_follow_from_the_dimensions(shape: catalog.ModelShape) -> None:
    text = resources.files("loadgen.roofline").joinpath("data", "models.csv").read_text()
    row = next(row for row in csv.DictReader(text.splitlines()) if row["name"] == shape.name)
    assert shape.total_params == pytest.approx(shape.vendor_total, rel=1e-3)
    assert shape.active_params + shape.head_params == pytest.approx(float(row["counted_matmul_b"]) * 1e9, rel=2e-4)
    assert shape.source


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("LLAMA 3.1 8b", "Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "Llama-3.1-8B"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic", "Llama-3.1-70B"),
        ("Llama-3.3-70B", "Llama-3.1-70B"),
        ("llama2-70b", "Llama-2-70B"),
        ("google/gemma-3-27b-it", "Gemma-3-27B"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen3-30B-A3B"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "Mistral-7B-v0.3"),
        ("deepseek-ai/DeepSeek-R1-0528", "DeepSeek-V3"),
        ("bigscience/bloom", "BLOOM-176B"),
    ],
)
def test_shapes_are_found_by_any_spelling(typed: str, name: str) -> None:
    assert catalog.shape(typed).name == name


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("h100", "H100-SXM"),
        ("H100_sxm", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM-40"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_gpus_are_found_by_any_spelling(typed: str, name: str) -> None:
    assert catalog.gpu(typed).name == name


def test_every_name_finds_its_own_row() -> None:
    assert all(catalog.shape(one.name) is one for one in catalog.shapes())
    assert all(catalog.gpu(one.name) is one and one.source for one in catalog.gpus())


def test_an_unknown_name_says_what_is_near() -> None:
    with pytest.raises(UsageError, match=r"did you mean .*Llama-3\.1-8B"):
        catalog.shape("llama-3.1-9b")
    with pytest.raises(UsageError, match="H200-SXM"):
        catalog.gpu("h20")


def test_a_gpu_may_be_written_out_as_its_facts() -> None:
    gpu = catalog.gpu("custom:989T:3.35TB/s:80GB")
    assert (gpu.rate("fp8"), gpu.bandwidth_bytes_per_s, gpu.memory_bytes) == (989e12, 3.35e12, 80e9)
    assert catalog.gpu(gpu.name) == gpu
    assert catalog.gpu("custom:1T:1T").memory_bytes == float("inf")


def test_the_ridge_of_known_gpus() -> None:
    assert catalog.gpu("h100-sxm").ridge() == pytest.approx(295, abs=0.5)
    assert catalog.gpu("h200").ridge() == pytest.approx(206, abs=0.5)


# What the catalogue holds and a config.json says must be the same shape: counts, KV, windows.
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "vocab_size": 201088,
    "tie_word_embeddings": False,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
GEMMA = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "head_dim": 256,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_attention_heads": 8,
        "num_hidden_layers": 34,
        "num_key_value_heads": 4,
        "sliding_window": 1024,
        "vocab_size": 262208,
    },
}
MAVERICK = {
    "text_config": {
        "model_type": "llama4_text",
        "attention_chunk_size": 8192,
        "head_dim": 128,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "interleave_moe_layer_step": 2,
        "num_attention_heads": 40,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_local_experts": 128,
        "vocab_size": 202048,
    }
}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA, "llama-3.1-8b"),
        (GPT_OSS, "gpt-oss-20b"),
        (DEEPSEEK, "deepseek-v3"),
        (GEMMA, "gemma-3-4b"),
        (MAVERICK, "llama-4-maverick"),
    ],
)
def test_a_config_json_gives_the_shape_of_the_catalogue(config: dict[str, object], name: str) -> None:
    read, known = shape_from_config(config, "config.json"), catalog.shape(name)
    for gpus in (1, 8):
        where = [Deployment(catalog.gpu("h100"), gpus, shape, Dtypes()) for shape in (read, known)]
        assert step_law(where[0]) == step_law(where[1])
    assert read.total_params == known.total_params


@pytest.mark.parametrize("config", [LLAMA, GPT_OSS, DEEPSEEK, GEMMA, MAVERICK])
def test_a_shape_of_ones_own_is_kept_as_text(config: dict[str, object]) -> None:
    shape = shape_from_config(config, "My-Model: 7B, v2")
    text = catalog.spelled(shape)
    again = catalog.shape(text)
    assert again == replace(shape, name="My-Model- 7B- v2")
    assert catalog.spelled(again) == text
    assert catalog.spelled(catalog.shape("llama-3.1-8b")) == "Llama-3.1-8B"


@pytest.mark.parametrize("facts", ["", "layers=2", "layers=two,hidden=3", "layers=2,colour=3", "layers"])
def test_a_shape_written_out_wrongly_is_refused(facts: str) -> None:
    with pytest.raises(UsageError, match=r"custom:NAME:layers=32"):
        catalog.shape(f"custom:Mine:{facts}")


def test_a_config_without_dimensions_is_named() -> None:
    with pytest.raises(UsageError, match=r"x\.json: no num_hidden_layers"):
        shape_from_config({"hidden_size": 4096}, "x.json")


def test_a_preset_without_a_rate_is_computed_in_16_bits_but_an_explicit_wish_is_refused() -> None:
    a100, h100 = catalog.gpu("a100"), catalog.gpu("h100")
    assert dtypes("fp8", h100) == Dtypes("fp8", "fp8", "bf16")
    assert dtypes("fp8", a100) == Dtypes("fp8", "bf16", "bf16")
    assert dtypes("FP16", a100) == Dtypes()
    assert dtypes("w4a16", h100, kv="FP8").kv == "fp8"
    assert dtypes("int8", h100).compute == "int8"
    with pytest.raises(UsageError, match="no fp8 rate"):
        dtypes("bf16", a100, compute="fp8")
    with pytest.raises(UsageError, match="did you mean fp8"):
        dtypes("fp9")


def test_quantised_checkpoints_have_the_size_that_is_published() -> None:
    """gpt-oss-120b in MXFP4 is about 65 GB on disk, an 8B in bf16 16.06 GB."""
    assert dtypes("mxfp4").stored_bytes(catalog.shape("gpt-oss-120b")) == pytest.approx(65e9, rel=0.03)
    assert dtypes("bf16").stored_bytes(catalog.shape("llama-3.1-8b")) == pytest.approx(16.06e9, rel=0.001)


def test_kv_heads_are_replicated_and_latents_too() -> None:
    qwen, deepseek, llama = (catalog.shape(name) for name in ("qwen3-235b-a22b", "deepseek-v3", "llama-3.1-8b"))
    assert qwen.kv_elements_per_gpu(8) == qwen.kv_elements // 4  # 4 heads on 8 ranks: twice 1/8
    assert deepseek.kv_elements_per_gpu(8) == deepseek.kv_elements
    assert llama.kv_elements_per_gpu(8) == llama.kv_elements // 8
