"""A GGUF file answers like a module: its metadata tells the architecture, its blocks the bytes of a layer."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from explorer.session import Session

pytest.importorskip("transformers")

Tensors = Iterable[tuple[str, str, tuple[int, ...]]]
KEYS = {
    "block_count": 32,
    "context_length": 8192,
    "embedding_length": 4096,
    "feed_forward_length": 14336,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
    "rope.dimension_count": 128,
}


def sparse(path: Path, architecture: str, keys: Mapping[str, int | list[int]], tensors: Tensors) -> Path:
    """A file by llama.cpp's own writer that ends in a hole where the weights would be."""
    made = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        add = made.add_array if isinstance(value, list) else made.add_uint32
        add(f"{architecture}.{key}", value)  # type: ignore[arg-type]
    total = 0
    for name, kind, shape in tensors:
        each, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        bytes_ = math.prod(shape) // each * size
        packed = kind not in ("F32", "F16")
        stored = (*shape[:-1], shape[-1] // each * size) if packed else shape
        numpy = np.dtype("uint8" if packed else {"F32": "float32", "F16": "float16"}[kind])
        made.add_tensor_info(name, stored, numpy, bytes_, raw_dtype=GGMLQuantizationType[kind])
        total += -(-bytes_ // 32) * 32
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_ti_data_to_file()
    made.close()
    os.truncate(path, -(-os.path.getsize(path) // 32) * 32 + total)
    return path


def llama(rows: int = 128256, experts: int = 0) -> Tensors:
    """The tensors of a Llama 3 8B as llama.cpp stores them: some layers in six bits; or of a Mixtral."""
    width, inner = 4096, 14336
    yield "token_embd.weight", "Q4_K", (rows, width)
    for block in range(32):
        at, more = f"blk.{block}.", "Q6_K" if block % 2 else "Q4_K"
        yield f"{at}attn_norm.weight", "F32", (width,)
        yield f"{at}attn_q.weight", "Q4_K", (width, width)
        yield f"{at}attn_k.weight", "Q4_K", (1024, width)
        yield f"{at}attn_v.weight", more, (1024, width)
        yield f"{at}attn_output.weight", "Q4_K", (width, width)
        yield f"{at}ffn_norm.weight", "F32", (width,)
        many, ending = ((experts,), "_exps") if experts else ((), "")
        if experts:
            yield f"{at}ffn_gate_inp.weight", "F32", (experts, width)
        yield f"{at}ffn_gate{ending}.weight", "Q4_K", (*many, inner, width)
        yield f"{at}ffn_up{ending}.weight", "Q4_K", (*many, inner, width)
        yield f"{at}ffn_down{ending}.weight", more, (*many, width, inner)
    yield "output_norm.weight", "F32", (width,)
    yield "output.weight", "Q6_K", (rows, width)


def test_layers_have_the_macs_of_the_module_and_the_bytes_of_the_blocks(tmp_path: Path) -> None:
    path = sparse(tmp_path / "llama.gguf", "llama", KEYS, llama())
    with Session(path) as session:
        info = session.info()
        layers = {layer.path: layer for layer in session.analysis().layers}
    assert info.model.format == "gguf"
    assert info.totals.params == 8_030_261_248
    assert info.totals.macs == 128 * 7_504_658_432 + 128 * 128 * 262_144
    four, six = (layers[f"model.layers.{n}.self_attn.v_proj"] for n in (0, 1))
    assert four.macs == six.macs
    assert four.weight_bytes == 4096 * 1024 // 256 * 144 == four.weight_bytes_read
    assert six.weight_bytes == 4096 * 1024 // 256 * 210 == six.weight_bytes_read
    assert six.weights[0].dtype == "Q6_K"
    assert six.attributes["stored as"] == "blk.1.attn_v.weight"
    shapes = [(kind, shape) for _, kind, shape in llama()]
    sizes = {kind: GGML_QUANT_SIZES[GGMLQuantizationType[kind]] for kind, _ in shapes}
    held = sum(math.prod(shape) // sizes[kind][0] * sizes[kind][1] for kind, shape in shapes)
    assert info.totals.weight_bytes == held


@pytest.mark.slow
def test_experts_are_those_of_a_mixtral(tmp_path: Path) -> None:
    keys = {**KEYS, "expert_count": 8, "expert_used_count": 2}
    path = sparse(tmp_path / "mixtral.gguf", "llama", keys, llama(rows=32000, experts=8))
    with Session(path) as session:
        info = session.info()
    assert info.totals.params == 46_702_792_704
    # embedding and norms multiply nothing
    active = 12_879_925_248 - 32000 * 4096 - (2 * 32 + 1) * 4096
    assert info.totals.macs == 128 * active + 128 * 128 * 262_144


@pytest.mark.slow
def test_another_name_is_known_by_its_tensors(tmp_path: Path) -> None:
    with Session(sparse(tmp_path / "m.gguf", "internlm2", KEYS, llama())) as session:
        info = session.info()
    assert info.totals.params == 8_030_261_248
    assert any("'internlm2' is counted as transformers' llama" in note for note in info.model.notes)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("architecture", "keys", "more", "why"),
    [
        ("llama", {"block_count": None}, (), "does not say llama.block_count"),
        (
            "llama",
            {"block_count": 33},
            (),
            "9 of 300 parameters of the module that its metadata describes are in no file",
        ),
        ("llama", {"feed_forward_length": 512}, (), "contradicts 96 tensors (blk.0.ffn_gate.weight is"),
        (
            "rwkv7",
            {},
            (("blk.0.strange.weight", "F32", (8,)),),
            "know llama.cpp's architecture 'rwkv7'",
        ),
    ],
)
def test_what_is_not_said_or_contradicts_is_unknown_with_its_reason(
    tmp_path: Path, architecture: str, keys: Any, more: Tensors, why: str
) -> None:
    said = {key: value for key, value in {**KEYS, **keys}.items() if value is not None}
    with Session(sparse(tmp_path / "m.gguf", architecture, said, [*llama(), *more])) as session:
        info = session.info()
    assert info.totals.macs is None
    assert why in info.model.notes[0]


SMALL = {"block_count": 3, "context_length": 512, "embedding_length": 64, "feed_forward_length": 96}
SMALL |= {"attention.head_count": 4, "vocab_size": 64}


def lfm2() -> Tensors:
    """The tensors of a small LFM2: attention between two convolutions, told by heads layer by layer."""
    yield "token_embd.weight", "F16", (64, 64)
    yield "token_embd_norm.weight", "F32", (64,)
    for block in range(3):
        at = f"blk.{block}."
        yield f"{at}attn_norm.weight", "F32", (64,)
        if block == 1:
            for name, rows in (("q", 64), ("k", 32), ("v", 32), ("output", 64)):
                yield f"{at}attn_{name}.weight", "F16", (rows, 64)
            yield f"{at}attn_q_norm.weight", "F32", (16,)
            yield f"{at}attn_k_norm.weight", "F32", (16,)
        else:
            yield f"{at}shortconv.conv.weight", "F32", (64, 3)
            yield f"{at}shortconv.in_proj.weight", "F16", (192, 64)
            yield f"{at}shortconv.out_proj.weight", "F16", (64, 64)
        yield f"{at}ffn_norm.weight", "F32", (64,)
        for name, shape in (("gate", (96, 64)), ("up", (96, 64)), ("down", (64, 96))):
            yield f"{at}ffn_{name}.weight", "F16", shape


def test_heads_layer_by_layer_tell_which_layers_of_an_lfm2_attend(tmp_path: Path) -> None:
    keys = {**SMALL, "attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3}
    with Session(sparse(tmp_path / "m.gguf", "lfm2", keys, lfm2())) as session:
        info = session.info()
    matrices = 2 * (192 * 64 + 64 * 64) + 192 * 64 + 3 * 3 * 96 * 64 + 64 * 64
    convolutions = 2 * 64 * 3 * (128 + 2)  # its code pads both ends
    assert info.totals.macs == 128 * matrices + convolutions + 2 * 128 * 128 * 64
    assert info.totals.params == sum(math.prod(shape) for *_, shape in lfm2())


@pytest.mark.parametrize(
    "keys",
    [{"attention.head_count_kv": [8, 4] * 16}, {"feed_forward_length": [14336] * 31 + [512]}],
)
def test_what_differs_from_layer_to_layer_is_unknown_with_its_reason(tmp_path: Path, keys: Any) -> None:
    with Session(sparse(tmp_path / "m.gguf", "llama", {**KEYS, **keys}, llama())) as session:
        info = session.info()
    assert info.totals.macs is None
    assert f"its layers differ in {next(iter(keys))}" in info.model.notes[0]


@pytest.mark.slow
def test_what_is_the_same_in_every_layer_may_be_said_layer_by_layer(tmp_path: Path) -> None:
    keys = {**KEYS, "attention.head_count_kv": [8] * 32}
    with Session(sparse(tmp_path / "m.gguf", "llama", keys, llama())) as session:
        info = session.info()
    assert info.totals.macs == 128 * 7_504_658_432 + 128 * 128 * 262_144


@pytest.mark.slow
def test_keys_and_values_of_blocks_are_kept_in_16_bits_as_llama_cpp_does(tmp_path: Path) -> None:
    with Session(sparse(tmp_path / "m.gguf", "llama", KEYS, llama()), past=10) as session:
        info = session.info()
    assert info.totals.kv_cache_bytes == 10 * 131_072


def test_values_of_a_layer_are_those_of_the_tensors_that_hold_its_parameters(tmp_path: Path) -> None:
    path, generator = tmp_path / "small.gguf", np.random.default_rng(0)
    made = gguf.GGUFWriter(path, "llama")
    for key, value in {"block_count": 1, "embedding_length": 64, "attention.head_count": 4}.items():
        made.add_uint32(f"llama.{key}", value)
    for key, value in {"context_length": 32, "feed_forward_length": 96, "attention.head_count_kv": 4}.items():
        made.add_uint32(f"llama.{key}", value)
    shapes = {f"attn_{part}": (64, 64) for part in ("q", "k", "v", "output")}
    shapes |= {"ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}
    shapes |= {"attn_norm": (64,), "ffn_norm": (64,)}
    held = {f"blk.0.{name}.weight": shape for name, shape in shapes.items()}
    held |= {"token_embd.weight": (50, 64), "output.weight": (50, 64), "output_norm.weight": (64,)}
    numbers = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in held.items()}
    for name, values in numbers.items():
        made.add_tensor(name, values)
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()
    with Session(str(path)) as session:
        (up,) = session.weights(["model.layers.0.mlp.up_proj"]).tensors
        inside = session.weights(["model.layers.0.mlp"]).tensors
        window = session.heat_map("model.layers.0.mlp.up_proj.weight")
    assert up.tensor.name == "blk.0.ffn_up.weight"
    assert up.maximum == numbers["blk.0.ffn_up.weight"].max()
    assert {one.tensor.name for one in inside} == {
        f"blk.0.ffn_{part}.weight" for part in ("gate", "up", "down")
    }
    assert window.tensor.shape == (96, 64)
