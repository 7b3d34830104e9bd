"""Small configurations of eight architectures of transformers, and their figures in every version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["MODELS", "Figures", "Model"]

_SIZES = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_GROUPED = {**_SIZES, "intermediate_size": 96, "num_key_value_heads": 2}
_EXPERTS = {**_GROUPED, "num_experts_per_tok": 2}


@dataclass(frozen=True, slots=True)
class Figures:
    """What a model counts.

    Attributes:
        prompt_macs: MACs of the prompt that a folder is opened with.
        step_macs: MACs of one decode step, over the tokens in the cache.
        step: The same for a context of 24.
        cache_bytes: Bytes of the cache in float32, over the tokens in it.
    """

    prompt_macs: int
    step_macs: str
    step: int
    cache_bytes: str


@dataclass(frozen=True, slots=True)
class Model:
    """An architecture, its sizes, and its figures.

    Attributes:
        name: The `model_type` of its configuration.
        config: Its sizes.
        figures: In transformers 5.0 to 5.12, and in 5.24 where its code computes otherwise.
    """

    name: str
    config: Mapping[str, Any]
    figures: tuple[Figures, ...]


# Rotary angles are a product of K = 1 up to 5.12, and an elementwise one in 5.24: 8 MACs a token.
# `serving` omits them.

_HEADS = {"head_dim": 16}
_EXPERTS_OF_DEEPSEEK = {
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}
_WINDOW_CACHE = "from 1: 512*context; from 7: 256*context+1792"
MODELS = (
    Model(
        "llama",
        {**_GROUPED, **_HEADS},
        (
            Figures(12846080, "256*context+67840", 73992, "512*context"),
            Figures(12845056, "256*context+67840", 73984, "512*context"),
        ),
    ),
    Model(
        "gpt2",
        {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4},
        (Figures(17563648, "256*context+104704", 110848, "1024*context"),),
    ),
    Model(
        "qwen3_moe",
        {**_EXPERTS, **_HEADS, "num_experts": 4, "moe_intermediate_size": 32},
        (
            Figures(11338752, "256*context+56064", 62216, "512*context"),
            Figures(11337728, "256*context+56064", 62208, "512*context"),
        ),
    ),
    Model(
        "mixtral",
        {**_EXPERTS, **_HEADS, "num_local_experts": 4},
        (
            Figures(17630208, "256*context+105216", 111368, "512*context"),
            Figures(17629184, "256*context+105216", 111360, "512*context"),
        ),
    ),
    Model(
        "gpt_oss",
        {**_EXPERTS, **_HEADS, "num_local_experts": 4, "sliding_window": 8},
        (
            Figures(
                17630208, "from 1: 256*context+105216; from 7: 128*context+106112", 109192, _WINDOW_CACHE
            ),
            Figures(
                17629184, "from 1: 256*context+105216; from 7: 128*context+106112", 109184, _WINDOW_CACHE
            ),
        ),
    ),
    Model(
        "granitemoe",
        {**_EXPERTS, "num_local_experts": 4},
        (
            Figures(17630208, "256*context+105216", 111368, "512*context"),
            Figures(17629184, "256*context+105216", 111360, "512*context"),
        ),
    ),
    Model(
        "jamba",
        {
            **_EXPERTS,
            "num_experts": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "use_mamba_kernels": False,
            "max_position_embeddings": 128,  # 5.0 walks over each token of a context
        },
        (
            Figures(15697408, "128*context+105856", 108928, "256*context+10240"),
            # the convolution of a step is nn.Conv1d, and no longer an elementwise product and a sum
            Figures(15697408, "128*context+106880", 109952, "256*context+10240"),
        ),
    ),
    Model(
        "deepseek_v3",
        {**_EXPERTS, **_LATENT, **_EXPERTS_OF_DEEPSEEK},
        (
            Figures(12354048, "256*context+64000", 70148, "1024*context"),
            # it caches the latents, and makes keys and values of them in every step
            Figures(12353536, "3328*context+64000", 143872, "192*context"),
        ),
    ),
)
