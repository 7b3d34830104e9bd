"""Small configurations of eight architectures of transformers, and their figures in every version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MODELS", "Model"]

_SIZES = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_GROUPED = {**_SIZES, "intermediate_size": 96, "num_key_value_heads": 2}
_EXPERTS = {**_GROUPED, "num_experts_per_tok": 2}


@dataclass(frozen=True, slots=True)
class Model:
    """An architecture, its sizes, and its figures.

    Attributes:
        name: The `model_type` of its configuration.
        config: Its sizes.
        prompt_macs: MACs of the prompt that a folder is opened with.
        step_macs: MACs of one decode step, over the tokens in the cache.
        step: The same for a context of 24.
        other_step: The two figures of a step in versions that compute it otherwise.
        cache_bytes: Bytes of the cache in float32, over the tokens in it.
    """

    name: str
    prompt_macs: int
    step_macs: str
    step: int
    cache_bytes: str
    config: Mapping[str, Any] = field(default_factory=dict)
    other_step: tuple[str, int] | None = None

    @property
    def steps(self) -> list[tuple[str, int]]:
        """What a step may count."""
        return [(self.step_macs, self.step), *([self.other_step] if self.other_step else [])]


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
MODELS = (
    Model("llama", 12846080, "256*context+67848", 73992, "512*context", {**_GROUPED, **_HEADS}),
    Model(
        "gpt2",
        17563648,
        "256*context+104704",
        110848,
        "1024*context",
        {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4},
    ),
    Model(
        "qwen3_moe",
        11338752,
        "256*context+56072",
        62216,
        "512*context",
        {**_EXPERTS, **_HEADS, "num_experts": 4, "moe_intermediate_size": 32},
    ),
    Model(
        "mixtral",
        17630208,
        "256*context+105224",
        111368,
        "512*context",
        {**_EXPERTS, **_HEADS, "num_local_experts": 4},
    ),
    Model(
        "gpt_oss",
        17630208,
        "from 1: 256*context+105224; from 7: 128*context+106120",
        109192,
        "from 1: 512*context; from 7: 256*context+1792",
        {**_EXPERTS, **_HEADS, "num_local_experts": 4, "sliding_window": 8},
    ),
    Model(
        "granitemoe",
        17630208,
        "256*context+105224",
        111368,
        "512*context",
        {**_EXPERTS, "num_local_experts": 4},
    ),
    Model(
        "jamba",
        15697408,
        "128*context+105856",
        108928,
        "256*context+10240",
        {
            **_EXPERTS,
            "num_experts": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "use_mamba_kernels": False,
            "max_position_embeddings": 128,  # 5.0 walks over each token of a context
        },
        # up to 5.12 the convolution of a step is an elementwise product and a sum, later it is nn.Conv1d
        other_step=("128*context+106880", 109952),
    ),
    Model(
        "deepseek_v3",
        12354048,
        "256*context+64004",
        70148,
        "1024*context",
        {**_EXPERTS, **_LATENT, **_EXPERTS_OF_DEEPSEEK},
    ),
)
