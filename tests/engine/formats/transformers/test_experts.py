"""Experts are counted the same in float32 and bfloat16, whichever of them torch's meta kernels take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from explorer import Session

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}
LATENT = {
    "num_key_value_heads": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}
MAMBA = {
    "mamba_d_state": 8,
    "mamba_dt_rank": 4,
    "use_mamba_kernels": False,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
}
EXPERTS = 2 * 128 * 3 * 64
"""Two experts for each of 128 tokens, with three products of 64 each: of a layer, for a width of 1."""
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "qwen3_moe": ({"head_dim": 16}, 2 * 48),
    "mixtral": ({}, 2 * 96),
    "deepseek_v3": (LATENT, 48),
    "gpt_oss": ({"head_dim": 16, "sliding_window": 32}, 2 * 96),
    "granitemoe": ({}, 2 * 96),
    "jamba": (MAMBA, 96),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_experts_count_the_same_in_float32_and_bfloat16(name: str, tmp_path: Path) -> None:
    more, width = MODELS[name]
    totals = []
    for dtype in ("float32", "bfloat16"):
        folder = tmp_path / dtype
        folder.mkdir()
        config = {**SIZES, **more, "model_type": name, "dtype": dtype}
        (folder / "config.json").write_text(json.dumps(config))
        with Session(str(folder)) as session:
            about = session.open()
            rows = [row for row in session.layers().layers if "grouped_mm" in row.path and not row.group]
        assert about.totals.status == "exact"
        assert sum(row.macs or 0 for row in rows) == EXPERTS * width
        totals.append((about.totals.macs, about.totals.elementwise_ops))
    assert totals[0] == totals[1]
