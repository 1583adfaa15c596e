"""A model shape from the `config.json` of a Hugging Face repository.

Knows: under which keys the architectures keep their dimensions. Must not know: files or the network; it gets the parsed
JSON object.
Why: a model that is not in the catalogue is one file away. Keys that mean the same are one row of a table; a dimension
that cannot be found is an error, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.errors import UsageError
from loadgen.roofline.ownshape import SOURCE
from loadgen.roofline.shapes import ModelShape

# dimension -> keys that hold it, first found wins
_KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "vocab": ("vocab_size",),
    "ffn": ("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "experts_per_token", "moe_topk"),
    "expert_ffn": ("moe_intermediate_size", "intermediate_size"),
}
# Feed-forward blocks without a gate: two matrices in place of three.
_UNGATED = frozenset({"bloom", "gpt2", "gpt_neox", "gptj", "opt", "falcon", "phi", "starcoder2", "gpt_bigcode", "mpt"})


def shape_from_config(config: Mapping[str, Any], name: str, *, where: str = "") -> ModelShape:
    """The shape that a `config.json` describes (its text part, where it has several).

    Args:
        config: the parsed object.
        name: what to call the model.
        where: the place named in errors; else the name.

    Raises:
        UsageError: a dimension is missing or impossible.
    """
    where = where or name
    inner = config.get("text_config")
    text: Mapping[str, Any] = inner if isinstance(inner, Mapping) else config
    kind = str(text.get("model_type", config.get("model_type", "")))
    layers, hidden, heads = (_need(text, key, where) for key in ("layers", "hidden", "heads"))
    window, window_layers, chunked = _windows(text, layers)
    try:
        return ModelShape(
            name=name,
            layers=layers,
            hidden=hidden,
            ffn=_find(text, "ffn") or 4 * hidden,
            heads=heads,
            kv_heads=1 if text.get("multi_query") else _find(text, "kv_heads") or heads,
            head_dim=int(text.get("head_dim") or hidden // heads),
            vocab=_need(text, "vocab", where),
            tied_embeddings=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", _ties(kind)))),
            ffn_matrices=2 if kind in _UNGATED else 3,
            **_experts(text, layers, kind, where),
            **_latent(text),
            window=window,
            window_layers=window_layers,
            window_chunked=chunked,
            source=SOURCE,
        )
    except ValueError as bad:
        raise UsageError(str(bad), where=where, do="check the file") from bad


def _find(text: Mapping[str, Any], dimension: str) -> int | None:
    for key in _KEYS[dimension]:
        value = text.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _need(text: Mapping[str, Any], dimension: str, name: str) -> int:
    value = _find(text, dimension)
    if value is None:
        raise UsageError(f"no {_KEYS[dimension][0]} in it", where=name, do="give a model's config.json")
    return value


def _ties(kind: str) -> bool:
    """Does the architecture tie its embeddings where the file does not say?"""
    return kind.startswith("gemma") or kind in {"bloom", "gpt2"}


def _experts(text: Mapping[str, Any], layers: int, kind: str, name: str) -> dict[str, Any]:
    experts = _find(text, "experts") or 0
    if experts < 2:
        return {}
    width = _need(text, "expert_ffn", name)
    listed = text.get("moe_layers")
    step = max(1, int(text.get("interleave_moe_layer_step") or text.get("decoder_sparse_step") or 1))
    first = int(text.get("first_k_dense_replace") or 0)
    dense = len(text.get("mlp_only_layers") or ())
    shared = int(text.get("n_shared_experts") or (1 if kind.startswith("llama4") else 0))
    shared = shared or -(-int(text.get("shared_expert_intermediate_size") or 0) // width)
    return {
        "experts": experts,
        "experts_per_token": _need(text, "experts_per_token", name),
        "expert_ffn": width,
        "shared_experts": shared,
        "moe_layers": len(listed) if isinstance(listed, list) else (layers - first) // step - dense,
    }


def _latent(text: Mapping[str, Any]) -> dict[str, Any]:
    if not text.get("kv_lora_rank"):
        return {}
    keys = {
        "q_lora": "q_lora_rank",
        "kv_lora": "kv_lora_rank",
        "rope_dim": "qk_rope_head_dim",
        "nope_dim": "qk_nope_head_dim",
        "v_dim": "v_head_dim",
    }
    return {field: int(text.get(key) or 0) for field, key in keys.items()}


def _windows(text: Mapping[str, Any], layers: int) -> tuple[int, int, bool]:
    """(window tokens, layers that have it, whether it comes in chunks)."""
    chunk = text.get("attention_chunk_size")
    if chunk:
        rope = text.get("no_rope_layers") or [int((layer + 1) % 4 != 0) for layer in range(layers)]
        return int(chunk), sum(1 for chunked in rope if chunked), True
    window = text.get("sliding_window")
    if not window or text.get("use_sliding_window") is False:
        return 0, 0, False
    types = text.get("layer_types")
    if isinstance(types, list):
        return int(window), sum(1 for one in types if "sliding" in str(one)), False
    pattern = text.get("sliding_window_pattern") or text.get("_sliding_window_pattern")
    if not pattern and str(text.get("model_type", "")).startswith("gemma3"):
        pattern = 6
    return int(window), layers - layers // int(pattern) if pattern else layers, False
