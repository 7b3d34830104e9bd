"""What number formats would save of a folder of bfloat16, told without a value of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from explorer import Misuse
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.facts.quantize import QuantizeRule, QuantizeSpec
from explorer.session import Session
from tests.engine.formats.transformers import folders

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


def to(weight: str, input: str = "float32", **more: Any) -> QuantizeSpec:
    return QuantizeSpec(rules=(QuantizeRule(weight=weight, input=input),), **more)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def refuse(self: LoadedModule) -> None:
        raise AssertionError("its values were asked for")

    monkeypatch.setattr(LoadedModule, "materialize", refuse)
    return folders.folder(
        tmp_path / "tiny", {**folders.LLAMA_3_8B, **SIZES}, folders.llama(2, 64, 96, 128, 32)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [to("int8", "int8"), to("int4", block=16), to("mxfp4", "mxfp8"), to("fixed8.4", granularity="tensor")],
)
def test_bytes_are_those_of_the_same_module_with_values(
    folder: Path, monkeypatch: pytest.MonkeyPatch, spec: QuantizeSpec
) -> None:
    with Session(folder) as session:
        told = session.quantize_choice(spec)
    monkeypatch.undo()
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, tie_word_embeddings=False))
    with Session(model.eval(), input_shapes={"input_ids": ("int64", (1, 128))}) as session:
        valued = session.quantize_choice(spec)
    alike = [
        [(one.name, one.weight, one.weight_bytes, one.bits.weight) for one in fact.layers if not one.reason]
        for fact in (told, valued)
    ]
    assert alike[0] == alike[1]
    assert len(alike[0]) == 15
    assert told.totals.weight_bytes.before == valued.totals.weight_bytes.before / 2


def test_bit_operations_are_of_bfloat16_before_and_attention_keeps_them(folder: Path) -> None:
    with Session(folder) as session:
        macs = session.info().totals.macs
        told = session.quantize_choice(to("int8", "int8"))
    products = sum(one.macs or 0 for one in told.layers)
    assert macs is not None
    assert 0 < products < macs
    assert told.totals.bitops.before == macs * 16 * 16
    assert told.totals.bitops.after == products * 8 * 8 + (macs - products) * 16 * 16
    assert "their values were not read" in told.notes[0]


@pytest.mark.slow
def test_experts_are_layers_too(tmp_path: Path) -> None:
    config = {**folders.MIXTRAL_8X7B, **SIZES, "num_local_experts": 4}
    tensors = []
    for name, kind, shape in folders.llama(2, 64, 96, 128, 32):
        front, found, rest = name.partition(".mlp.")
        if not found:
            tensors.append((name, kind, shape))
        elif rest.startswith("gate_proj"):
            at = f"{front}.block_sparse_moe."
            tensors.append((f"{at}gate.weight", kind, (4, 64)))
            for expert in range(4):
                for piece, size in (("w1", (96, 64)), ("w2", (64, 96)), ("w3", (96, 64))):
                    tensors.append((f"{at}experts.{expert}.{piece}.weight", kind, size))
    with Session(folders.folder(tmp_path / "moe", config, tensors)) as session:
        macs = session.info().totals.macs
        told = session.quantize_choice(to("int8"))
    stacks = [one for one in told.layers if one.op == "MixtralExperts"]
    # a scale is that of a channel, in all experts
    assert [one.weight_bytes for one in stacks] == [4 * 3 * 64 * 96 + 4 * (2 * 96 + 64)] * 2
    assert all(one.macs == 128 * 2 * 3 * 64 * 96 for one in stacks)
    assert macs is not None
    assert told.totals.bitops.before == macs * 16 * 16


def test_what_is_written_has_to_be_float32(folder: Path, tmp_path: Path) -> None:
    with Session(folder) as session, pytest.raises(Misuse, match="without -o, explorer quantize prints"):
        session.quantize_module(to("int8"), output=str(tmp_path / "x.pt2"))
    assert not (tmp_path / "x.pt2").exists()
