"""A real llama.cpp server for tests: the C++ HTTP server from the xllamacpp wheel, with a model of random weights.

The model is made here in a second: a byte-level tokenizer trained on the standard library's sources, and a two-layer
Llama of random numbers (1.4 MB). What it says is nonsense; the wire is the real one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONTEXT = 2048
_VOCAB, _WIDTH, _LAYERS, _HEADS = 2048, 64, 2, 4
_SPECIAL = ["<|unk|>", "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SERVER = """
import signal, sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.model_alias = sys.argv[1], {"micro"}
params.hostnames, params.port = ["127.0.0.1"], int(sys.argv[2])
params.n_ctx, params.n_parallel, params.cont_batching = int(sys.argv[3]), int(sys.argv[4]), True
params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
if len(sys.argv) > 5:
    params.api_keys = [sys.argv[5]]
server = xllamacpp.Server(params)
print("READY", server.listening_address, flush=True)
signal.sigwait([signal.SIGTERM, signal.SIGINT])
"""


def make_model(path: Path) -> None:
    """Write the model as a GGUF file."""
    import gguf
    import numpy as np

    tokens, merges = tokenizer()
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("micro-llama-random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(2 * _WIDTH)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    kinds = [gguf.TokenType.CONTROL] * len(_SPECIAL) + [gguf.TokenType.NORMAL] * (len(tokens) - len(_SPECIAL))
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(4)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(_TEMPLATE)
    rng = np.random.default_rng(0)
    width, wide = _WIDTH, 2 * _WIDTH
    shapes = {"token_embd": (len(tokens), width), "output": (len(tokens), width), "output_norm": (width,)}
    for layer in range(_LAYERS):
        block = {"attn_q": (width, width), "attn_k": (width, width), "attn_v": (width, width)}
        block |= {"attn_output": (width, width), "ffn_gate": (wide, width), "ffn_up": (wide, width)}
        block |= {"ffn_down": (width, wide), "attn_norm": (width,), "ffn_norm": (width,)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    for name, shape in shapes.items():
        weights = rng.standard_normal(shape) * 0.05 if len(shape) == 2 else np.ones(shape)
        writer.add_tensor(f"{name}.weight", weights.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tokenizer() -> tuple[list[str], list[str]]:
    """(vocabulary in order, merges) of a byte-level BPE trained on Python's own sources."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(str(file) for file in Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    made.train(sources, trainer)
    model = json.loads(made.to_str())["model"]
    tokens = sorted(model["vocab"], key=lambda word: model["vocab"][word])
    return tokens, [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]


@contextmanager
def server(model: Path, port: int, *, slots: int = 4, api_key: str | None = None) -> Iterator[str]:
    """The server in a process of its own; yields its URL. Raises RuntimeError when it does not come up."""
    words = [sys.executable, "-c", _SERVER, str(model), str(port), str(slots * CONTEXT), str(slots)]
    child = subprocess.Popen(
        words + ([api_key] if api_key else []), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert child.stdout is not None
    try:
        if not any(line.startswith("READY") for line in child.stdout):
            raise RuntimeError("llama.cpp did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.stdout.close()
        child.wait(timeout=20)
