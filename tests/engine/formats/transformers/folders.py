"""Folders of transformers models as sparse files: headers, and no byte of weights."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Tensors = Iterable[tuple[str, str, tuple[int, ...]]]
"""Name, type as safetensors spells it, shape."""

BYTES = {
    "BF16": 2,
    "F16": 2,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "U8": 1,
    "F8_E4M3": 1,
    "I8": 1,
    "I16": 2,
    "I64": 8,
}


def sparse(path: Path, tensors: Tensors) -> None:
    """A safetensors file of these tensors that takes no room on the disk."""
    header, at = {}, 0
    for name, kind, shape in tensors:
        size = BYTES[kind]
        for n in shape:
            size *= n
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


def folder(path: Path, config: Mapping[str, Any], tensors: Tensors, shards: int = 1) -> Path:
    """A folder of `config` and these tensors in some shards, with their index."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    found = list(tensors)
    if shards == 1:
        sparse(path / "model.safetensors", found)
        return path
    places = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        sparse(path / name, found[shard::shards])
        places.update((tensor[0], name) for tensor in found[shard::shards])
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return path


def llama(
    layers: int = 32, width: int = 4096, inner: int = 14336, rows: int = 128256, kv: int = 1024
) -> Tensors:
    """The tensors of a Llama, as files have them."""
    yield "model.embed_tokens.weight", "BF16", (rows, width)
    for layer in range(layers):
        at = f"model.layers.{layer}."
        for name, shape in (
            ("self_attn.q_proj", (width, width)),
            ("self_attn.k_proj", (kv, width)),
            ("self_attn.v_proj", (kv, width)),
            ("self_attn.o_proj", (width, width)),
            ("mlp.gate_proj", (inner, width)),
            ("mlp.up_proj", (inner, width)),
            ("mlp.down_proj", (width, inner)),
            ("input_layernorm", (width,)),
            ("post_attention_layernorm", (width,)),
        ):
            yield f"{at}{name}.weight", "BF16", shape
    yield "model.norm.weight", "BF16", (width,)
    yield "lm_head.weight", "BF16", (rows, width)


LLAMA_3_8B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
LLAMA_2_7B = {**LLAMA_3_8B, "vocab_size": 32000, "intermediate_size": 11008, "num_key_value_heads": 32}
MIXTRAL_8X7B = {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def mixtral() -> Tensors:
    """The tensors of Mixtral 8x7B, as its files have them: experts one by one."""
    for name, kind, shape in llama(rows=32000):
        front, found, rest = name.partition(".mlp.")
        if not found:
            yield name, kind, shape
        elif rest.startswith("gate_proj"):
            yield f"{front}.block_sparse_moe.gate.weight", kind, (8, 4096)
            for expert in range(8):
                at = f"{front}.block_sparse_moe.experts.{expert}."
                yield f"{at}w1.weight", kind, (14336, 4096)
                yield f"{at}w2.weight", kind, (4096, 14336)
                yield f"{at}w3.weight", kind, (14336, 4096)
