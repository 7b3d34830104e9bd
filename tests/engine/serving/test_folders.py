"""What only a folder shows: a cache that is asked for in words of its own, a text that ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from explorer.base.errors import BadModel
from explorer.facts.serving.spec import ServingSpec
from explorer.session import Session

SPEC = ServingSpec(16, (24,), (1,))
SIZES = {"vocab_size": 96, "dtype": "float32"}


def configured(path: Path, **config: object) -> Path:
    (path / "config.json").write_text(json.dumps({**SIZES, **config}))
    return path


@pytest.mark.slow
def test_a_cache_is_had_of_code_that_hands_the_switch_on_without_naming_it(tmp_path: Path) -> None:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 48, "intermediate_size": 64}
    path = configured(tmp_path, model_type="granitemoe", num_hidden_layers=2, num_local_experts=4, **heads)
    with Session(path) as session:
        fact = session.serving(SPEC)
    assert fact.cache.bytes.text == f"{2 * 2 * 2 * 12 * 4}*context"


@pytest.mark.slow
def test_code_that_ends_with_its_longest_text_is_counted_up_to_there_and_refused_beyond(
    tmp_path: Path,
) -> None:
    path = configured(tmp_path, model_type="mpt", d_model=32, n_heads=2, n_layers=2, max_seq_len=100)
    with Session(path) as session:
        fact = session.serving(SPEC)
        assert fact.longest == 100
        assert fact.decode_macs.checked[-1] == 99
        assert fact.cache.bytes.text == f"{2 * 2 * 32 * 4}*context"
        session.serving(ServingSpec(16, (99,), (1,)))
        says = "does not run on more than the 100 tokens .*made for; --prompt 16 --context 99"
        with pytest.raises(BadModel, match=says):
            session.serving(ServingSpec(16, (100,), (1,)))


@pytest.mark.slow
def test_code_that_goes_over_a_prompt_in_pieces_has_no_form_over_it_and_that_is_said(tmp_path: Path) -> None:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "hidden_size": 48}
    linear = dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8)
    linear |= {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "num_hidden_layers": 4}
    experts = dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "intermediate_size"), 32
    )
    experts |= {"num_experts": 4, "num_experts_per_tok": 2}
    path = configured(tmp_path, model_type="qwen3_next", **heads, **linear, **experts)
    with Session(path) as session:
        fact = session.serving(ServingSpec(100, (24,), (1,)))
    assert not fact.prefill_macs.pieces
    assert fact.prefill.macs
    assert any("no closed form over the prompt" in note for note in fact.notes)
    assert fact.decode_macs.pieces
