"""The shape of a transformer: its dimensions, and what follows from them by counting.

Knows: how many weights a layer, an expert or the output head has, how many key and value elements a token leaves
behind, how many FLOPs attention costs. Must not know: GPUs, data types or time (`passes` puts those together).
Why: every roofline figure starts from these counts, so they are recomputed from dimensions instead of being typed in;
a test compares them with the vendors' totals.

Counted are the matrices. Norms and biases are left out: under 0.1 % of every model in the catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of one decoder. Mixture-of-experts, latent attention (MLA) and windows are zeros where absent."""

    name: str
    layers: int
    hidden: int
    ffn: int  # intermediate width of the dense layers; 0 where every layer is mixture-of-experts
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied_embeddings: bool = False
    ffn_matrices: int = 3  # gate, up, down; 2 where there is no gate
    experts: int = 0  # routed experts per layer
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_experts: int = 0
    moe_layers: int = 0
    q_lora: int = 0  # MLA; 0 with kv_lora > 0 is a full-rank query projection
    kv_lora: int = 0  # MLA latent width; 0 is ordinary (grouped-query) attention
    rope_dim: int = 0
    nope_dim: int = 0
    v_dim: int = 0
    window: int = 0  # tokens that a windowed layer looks back
    window_layers: int = 0
    window_chunked: bool = False  # True: the window starts at multiples of `window` (Llama 4); False: it slides
    vendor_total: float | None = None  # parameters, as the vendor says
    source: str = ""
    note: str = ""

    @property
    def mla(self) -> bool:
        """Multi-head latent attention: one compressed key-value vector per token for all heads."""
        return self.kv_lora > 0

    @cached_property
    def attention_params(self) -> int:
        """Weights of the query, key, value and output projections of all layers."""
        if not self.mla:
            query_and_output = 2 * self.hidden * self.heads * self.head_dim
            return self.layers * (query_and_output + 2 * self.hidden * self.kv_heads * self.head_dim)
        query_width = self.heads * (self.nope_dim + self.rope_dim)
        query = self.q_lora * (self.hidden + query_width) if self.q_lora else self.hidden * query_width
        latent = self.hidden * (self.kv_lora + self.rope_dim)
        expand = self.kv_lora * self.heads * (self.nope_dim + self.v_dim)
        return self.layers * (query + latent + expand + self.heads * self.v_dim * self.hidden)

    @cached_property
    def expert_params(self) -> int:
        """Weights of one routed expert of one layer."""
        return self.ffn_matrices * self.hidden * self.expert_ffn

    @cached_property
    def routed_params(self) -> int:
        """Weights of all routed experts of all layers."""
        return self.moe_layers * self.experts * self.expert_params

    @cached_property
    def head_params(self) -> int:
        """Weights of the output head (lm_head); the embedding is as large."""
        return self.vocab * self.hidden

    @cached_property
    def dense_params(self) -> int:
        """Weights that every token passes through, head and embedding apart: attention, dense FFN, shared, router."""
        ffn = (self.layers - self.moe_layers) * self.ffn_matrices * self.hidden * self.ffn
        shared = self.moe_layers * self.shared_experts * self.expert_params
        router = self.moe_layers * self.experts * self.hidden
        return self.attention_params + ffn + shared + router

    @property
    def total_params(self) -> int:
        """All weights; tied embeddings are counted once."""
        return self.dense_params + self.routed_params + self.head_params * (1 if self.tied_embeddings else 2)

    @property
    def active_params(self) -> int:
        """Weights in the matrix products of one prompt token, the head apart (2 FLOP each)."""
        return self.dense_params + self.moe_layers * self.experts_per_token * self.expert_params

    @property
    def kv_elements(self) -> int:
        """Key-value elements that one token leaves in the cache, over all layers."""
        if self.mla:
            return self.layers * (self.kv_lora + self.rope_dim)
        return 2 * self.layers * self.kv_heads * self.head_dim

    def kv_elements_per_gpu(self, gpus: int) -> int:
        """The same on the fullest of `gpus` tensor-parallel ranks.

        A rank holds whole KV heads, at least one (so heads are replicated where there are fewer than ranks), and an MLA
        latent is on every rank.
        """
        return self.kv_elements if self.mla else self.kv_elements // self.kv_heads * -(-self.kv_heads // gpus)

    @property
    def attention_flops_decode(self) -> int:
        """FLOPs of attention per query token and context token when decoding (MLA in its absorbed form)."""
        if self.mla:
            return 2 * self.layers * self.heads * (2 * self.kv_lora + self.rope_dim)
        return 4 * self.layers * self.heads * self.head_dim

    @property
    def attention_flops_prefill(self) -> int:
        """The same in prefill, per pair of query and visible key (MLA expanded to full heads)."""
        if self.mla:
            return 2 * self.layers * self.heads * (self.nope_dim + self.rope_dim + self.v_dim)
        return self.attention_flops_decode

    def __post_init__(self) -> None:
        positive = (self.layers, self.hidden, self.heads, self.kv_heads, self.head_dim, self.vocab)
        if min(positive) <= 0 or self.moe_layers > self.layers or self.window_layers > self.layers:
            raise ValueError(f"{self.name}: impossible dimensions")
        if self.moe_layers and not (0 < self.experts_per_token <= self.experts and self.expert_ffn > 0):
            raise ValueError(f"{self.name}: a mixture of experts needs experts, experts per token and their width")
