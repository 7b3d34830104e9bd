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


def test_a_cache_is_had_of_code_that_hands_the_switch_on_without_naming_it(tmp_path: Path) -> None:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 48, "intermediate_size": 64}
    path = configured(tmp_path, model_type="granitemoe", num_hidden_layers=2, num_local_experts=4, **heads)
    with Session(path) as session:
        fact = session.serving(SPEC)
    assert fact.cache.bytes.text == f"{2 * 2 * 2 * 12 * 4}*context"


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
        says = "behind 100 tokens fails: transformer.blocks.0.attn.add: .*made for 100 tokens.*--context 99"
        with pytest.raises(BadModel, match=says):
            session.serving(ServingSpec(16, (100,), (1,)))
