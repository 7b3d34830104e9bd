"""Quantized folders as each library writes them: the parameters of the module, the bytes of the file.

Names, types and shapes are those of AutoAWQ, compressed-tensors, bitsandbytes, DeepSeek-V3 (fp8) and gpt-oss
(MXFP4). No tensor is left over, and one of another shape is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil, prod
from pathlib import Path
from typing import Any

import pytest

from explorer.engine.models.registry import recognize
from explorer.facts import Info
from explorer.facts.serving.spec import ServingSpec
from explorer.session import Session
from tests.engine.formats.transformers import folders

pytest.importorskip("transformers")

Pieces = list[tuple[str, str, tuple[int, ...]]]
"""Behind a layer's name: last pieces, types, shapes."""


def gptq(bits: int) -> Callable[[int, int], Pieces]:
    def pieces(rows: int, columns: int) -> Pieces:
        return [
            ("qweight", "I32", (columns * bits // 32, rows)),
            ("qzeros", "I32", (columns // 64, rows * bits // 32)),
            ("scales", "F16", (columns // 64, rows)),
            ("g_idx", "I32", (columns,)),
        ]

    return pieces


def awq_gemm(rows: int, columns: int) -> Pieces:
    return [
        ("qweight", "I32", (columns, rows // 8)),
        ("qzeros", "I32", (columns // 64, rows // 8)),
        ("scales", "F16", (columns // 64, rows)),
    ]


def awq_gemv(rows: int, columns: int) -> Pieces:
    width = 2 * ceil(columns / 64 / 8 / 2)
    return [
        ("qweight", "I32", (rows, columns // 8)),
        ("qzeros", "I32", (rows, width)),
        ("scales", "F16", (rows, 8 * width)),
    ]


def awq_gemv_fast(rows: int, columns: int) -> Pieces:
    width = 2 * ceil(columns / 64 / 8 / 2)
    return [
        ("qweight", "I16", (rows // 4, columns)),
        ("scales", "F16", (8 * width, rows)),
        ("scaled_zeros", "F16", (8 * width, rows)),
    ]


def nf4(rows: int, columns: int) -> Pieces:
    return [
        ("weight", "U8", (rows * columns // 2, 1)),
        ("weight.absmax", "U8", (rows * columns // 64,)),
        ("weight.quant_map", "F32", (16,)),
        ("weight.nested_absmax", "F32", (ceil(rows * columns / 64 / 256),)),
        ("weight.nested_quant_map", "F32", (256,)),
        ("weight.quant_state.bitsandbytes__nf4", "U8", (85,)),
    ]


def fp4_in_bfloat16(rows: int, columns: int) -> Pieces:
    return [
        ("weight", "BF16", (rows * columns // 4, 1)),
        ("weight.absmax", "F32", (rows * columns // 64,)),
        ("weight.quant_map", "F32", (16,)),
        ("weight.quant_state.bitsandbytes__fp4", "U8", (70,)),
    ]


def int8(rows: int, columns: int) -> Pieces:
    return [("weight", "I8", (rows, columns)), ("SCB", "F32", (rows,)), ("weight_format", "U8", ())]


def deepseek(rows: int, columns: int) -> Pieces:
    scales = ceil(rows / 128), ceil(columns / 128)
    return [("weight", "F8_E4M3", (rows, columns)), ("weight_scale_inv", "F32", scales)]


def packed(rows: int, columns: int) -> Pieces:
    return [
        ("weight_packed", "I32", (rows, ceil(columns / 8))),
        ("weight_scale", "BF16", (rows, columns // 64)),
        ("weight_zero_point", "I32", (rows // 8, columns // 64)),
        ("weight_shape", "I64", (2,)),
    ]


def in_rows(kind: str) -> Callable[[int, int], Pieces]:
    def pieces(rows: int, columns: int) -> Pieces:
        return [("weight", kind, (rows, columns)), ("weight_scale", "BF16", (rows, 1))]

    return pieces


def nvfp4(rows: int, columns: int) -> Pieces:
    return [
        ("weight_packed", "U8", (rows, columns // 2)),
        ("weight_scale", "F8_E4M3", (rows, columns // 16)),
        ("weight_global_scale", "F32", (1,)),
        ("input_global_scale", "F32", (1,)),
    ]


def modelopt(rows: int, columns: int) -> Pieces:
    return [
        ("weight", "U8", (rows, columns // 2)),
        ("weight_scale", "F8_E4M3", (rows, columns // 16)),
        ("weight_scale_2", "F32", ()),
        ("input_scale", "F32", ()),
    ]


def mlx(bits: int) -> Callable[[int, int], Pieces]:
    def pieces(rows: int, columns: int) -> Pieces:
        beside = rows, columns // 64
        return [
            ("weight", "U32", (rows, columns * bits // 32)),
            ("scales", "BF16", beside),
            ("biases", "BF16", beside),
        ]

    return pieces


def hqq(bits: int) -> Callable[[int, int], Pieces]:
    def pieces(rows: int, columns: int) -> Pieces:
        inner = rows * columns // 64
        kind, stored = ("I32", -(-inner // 10)) if bits == 3 else ("U8", inner * bits // 8)
        return [
            ("W_q", kind, (stored, 64)),
            *((name, "F16", (inner, 1)) for name in ("scale", "zero")),
            *((name, "I64", ()) for name in ("nbits", "axis")),
            ("shape", "I64", (2,)),
        ]

    return pieces


def bitnet(rows: int, columns: int) -> Pieces:
    return [("weight", "U8", (rows // 4, columns)), ("weight_scale", "BF16", (1,))]


def vptq(rows: int, columns: int) -> Pieces:
    return [
        ("indices", "I32", (1, columns, -(-rows // 8 * 20 // 32))),
        ("centroids.weight", "BF16", (1, 4096 * 8)),
        ("res_centroids.weight", "BF16", (1, 256 * 8)),
        *((name, "BF16", (columns,)) for name in ("weight_scale", "weight_bias")),
    ]


def of_hqq(bits: int) -> dict[str, Any]:
    chosen = {"weight_quant_params": {"nbits": bits, "group_size": 64, "axis": 1}}
    return {"quant_method": "hqq", "quant_config": chosen}


def of_vptq() -> dict[str, Any]:
    how = {"vector_lens": [-1, 8], "num_centroids": [-1, 4096], "num_res_centroids": [-1, 256]}
    layers = {
        name.removesuffix(".weight"): {
            **how, "out_features": shape[0], "in_features": shape[1], "is_indice_packed": True
        }
        for name, _, shape in plain()
        if ".mlp." in name or ".self_attn." in name
    }  # fmt: skip
    return {"quant_method": "vptq", "config_for_layers": layers}


def groups(form: str, bits: int, kind: str) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "symmetric": True, "strategy": "group", "group_size": 64}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": {"num_bits": 8}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


def plain() -> folders.Tensors:
    return folders.llama(layers=1, width=128, inner=192, rows=32, kv=64)


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
FORMS: Mapping[str, tuple[dict[str, Any], Callable[[int, int], Pieces], str]] = {
    "GPTQ 4": ({"quant_method": "gptq", "bits": 4, "group_size": 64}, gptq(4), "int4"),
    "GPTQ 3": ({"quant_method": "gptq", "bits": 3, "group_size": 64}, gptq(3), "int3"),
    "GPTQ mixed": ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:x": {"bits": 8}}}, gptq(4), "packed"),
    "AWQ": ({**AWQ, "version": "gemm"}, awq_gemm, "int4"),
    "AWQ GEMV": ({**AWQ, "version": "gemv"}, awq_gemv, "int4"),
    "AWQ GEMV fast": ({**AWQ, "version": "gemv_fast"}, awq_gemv_fast, "int4"),
    "bitsandbytes nf4": (BNB, nf4, "nf4"),
    "bitsandbytes fp4": ({**BNB, "bnb_4bit_quant_storage": "bfloat16"}, fp4_in_bfloat16, "fp4"),
    "bitsandbytes int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, int8, "int8"),
    "fp8 in blocks": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, deepseek, "float8_e4m3fn"),
    "fp8 in rows": ({"quant_method": "fbgemm_fp8"}, in_rows("F8_E4M3"), "float8_e4m3fn"),
    "pack-quantized": (groups("pack-quantized", 4, "int"), packed, "int4"),
    "naive-quantized": (groups("naive-quantized", 8, "int"), in_rows("I8"), "int8"),
    "float-quantized": (groups("float-quantized", 8, "float"), in_rows("F8_E4M3"), "float8_e4m3fn"),
    "nvfp4-pack-quantized": (groups("nvfp4-pack-quantized", 4, "float"), nvfp4, "float4_e2m1fn"),
    "MLX 4": ({"group_size": 64, "bits": 4}, mlx(4), "int4"),
    "MLX 6": ({"group_size": 64, "bits": 6}, mlx(6), "int6"),
    **{f"HQQ {bits}": (of_hqq(bits), hqq(bits), f"int{bits}") for bits in (1, 2, 3, 4, 8)},
    "BitNet": ({"quant_method": "bitnet", "linear_class": "autobitlinear"}, bitnet, "int2"),
    "VPTQ": (of_vptq(), vptq, "packed"),
    "ModelOpt": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, modelopt, "float4_e2m1fn"),
}
UNTOLD = "GPTQ mixed"
"""Whose shapes headers do not tell: layers of several widths."""

SIZES = {"num_hidden_layers": 1, "hidden_size": 128, "intermediate_size": 192, "vocab_size": 32}
SMALL = {**folders.LLAMA_3_8B, **SIZES, "num_attention_heads": 4, "num_key_value_heads": 2}
CHANGED = "model.layers.0.mlp.down_proj"


def quantized(
    pieces: Callable[[int, int], Pieces], more: int = 0
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """The tensors of a Llama; one layer takes `more` inputs than its configuration says."""
    for name, kind, shape in plain():
        if ".mlp." not in name and ".self_attn." not in name:
            yield name, kind, shape
            continue
        front = name.removesuffix(".weight")
        rows, columns = shape
        for last, stored, size in pieces(rows, columns + (more if front == CHANGED else 0)):
            yield f"{front}.{last}", stored, size


def held(tensors: folders.Tensors) -> int:
    return sum(folders.BYTES[kind] * prod(shape) for _, kind, shape in tensors)


def about(info: Info) -> str:
    return "\n".join(info.model.notes)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
def test_a_quantized_folder_has_the_parameters_of_its_module_and_the_bytes_of_its_file(
    tmp_path: Path, form: str
) -> None:
    config, pieces, dtype = FORMS[form]
    path = folders.folder(tmp_path / "m", {**SMALL, "quantization_config": config}, quantized(pieces))
    with Session(path) as session:
        info = session.info()
        row = next(x for x in session.analysis().layers if x.path == CHANGED)
    assert info.totals.macs
    assert info.totals.params == sum(prod(shape) for _, _, shape in plain())
    assert (row.params, row.weights[0].shape, row.weights[0].dtype) == (128 * 192, (128, 192), dtype)
    assert row.weight_bytes == held(pieces(128, 192)) == row.weight_bytes_read
    assert "are those of the integers" not in about(info)
    assert info.totals.weight_bytes == held(quantized(pieces))
    assert "in no file" not in about(info)
    assert "of the files not in the module" not in about(info)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
def test_the_outline_of_a_quantized_folder_has_the_parameters_of_its_module_or_says_what_it_counts(
    tmp_path: Path, form: str
) -> None:
    config, pieces, _ = FORMS[form]
    path = folders.folder(tmp_path / "m", {**SMALL, "quantization_config": config}, quantized(pieces))
    outline = recognize(str(path)).outline
    assert outline is not None
    told = outline(str(path))
    notes = " ".join(text for key, text in told.facts if key == "note")
    if form == UNTOLD:
        assert "types, parameters and bytes are those of the integers and scales that are stored" in notes
    else:
        assert told.params == sum(prod(shape) for _, _, shape in plain())
        assert "types and bytes are those of the integers and scales that are stored" in notes
        assert "parameters are counted as stored" not in notes


def test_a_packed_weight_without_an_axis_is_outlined_as_stored(tmp_path: Path) -> None:
    tensors = [("a.weight", "U8", ()), ("a.weight_scale_2", "F32", ()), ("b.qweight", "I32", ())]
    config = {"quantization_config": {"quant_method": "modelopt", "bits": 4}}
    outline = recognize(path := str(folders.folder(tmp_path / "m", config, tensors))).outline
    assert outline is not None
    assert outline(path).params == 3


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", ["AWQ", "fp8 in blocks"])
def test_serving_reads_the_bytes_of_the_file_unless_another_type_is_asked_for(
    tmp_path: Path, form: str
) -> None:
    config, pieces, dtype = FORMS[form]
    path = folders.folder(tmp_path / "m", {**SMALL, "quantization_config": config}, quantized(pieces))
    with Session(path) as session:
        served = session.serving(ServingSpec(prompt=8, contexts=(64,)))
        wide = session.serving(ServingSpec(prompt=8, contexts=(64,), dtype="bf16"))
    total = held(quantized(pieces))
    assert served.weight_bytes == total
    assert {part.dtype for part in served.parts if "proj" in part.name} == {dtype}
    # a token reads one row of the embedding and all else
    assert served.decode.weight_bytes == total - 31 * 128 * 2
    assert wide.weight_bytes == held(plain())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", [form for form in FORMS if form != UNTOLD])
def test_a_packed_weight_of_another_shape_is_named(tmp_path: Path, form: str) -> None:
    config, pieces, _ = FORMS[form]
    tensors = list(quantized(pieces, more=64))
    path = folders.folder(tmp_path / "m", {**SMALL, "quantization_config": config}, tensors)
    with Session(path) as session:
        info = session.info()
    assert info.totals.macs is None
    method = config.get("quant_method", "mlx")
    assert f"config.json, for '{method}', contradicts 1 tensor ({CHANGED}" in info.model.notes[0]
    assert info.totals.weight_bytes == held(tensors)


def test_the_key_of_mlx_is_read_too(tmp_path: Path) -> None:
    config, pieces, _ = FORMS["MLX 4"]
    path = folders.folder(tmp_path / "m", {**SMALL, "quantization": config}, quantized(pieces))
    with Session(path) as session:
        info = session.info()
    assert info.totals.params == sum(prod(shape) for _, _, shape in plain())
    assert info.totals.macs


def test_a_row_that_does_not_fill_its_last_number_is_none_of_another_shape(tmp_path: Path) -> None:
    config = {**SMALL, "intermediate_size": 187, "quantization_config": FORMS["pack-quantized"][0]}
    tensors = []
    for name, kind, shape in folders.llama(layers=1, width=128, inner=187, rows=32, kv=64):
        front = name.removesuffix(".weight")
        if front.endswith("down_proj"):
            tensors += [(f"{front}.{last}", stored, size) for last, stored, size in packed(*shape)]
        else:
            tensors.append((name, kind, shape))
    with Session(folders.folder(tmp_path / "m", config, tensors)) as session:
        info = session.info()
    assert info.totals.params == sum(prod(shape) for *_, shape in folders.llama(1, 128, 187, 32, 64))


def test_settings_of_single_layers_are_followed(tmp_path: Path) -> None:
    chosen = {"self_attn.q_proj": of_hqq(4)["quant_config"], "mlp.up_proj": of_hqq(2)["quant_config"]}
    tensors: list[tuple[str, str, tuple[int, ...]]] = []
    for name, kind, shape in plain():
        front = name.removesuffix(".weight")
        bits = 4 if front.endswith("q_proj") else 2 if front.endswith("up_proj") else 0
        pieces = hqq(bits)(*shape) if bits else [("weight", kind, shape)]
        tensors += [(f"{front}.{last}", stored, size) for last, stored, size in pieces]
    config = {**SMALL, "quantization_config": {"quant_method": "hqq", "quant_config": chosen}}
    with Session(folders.folder(tmp_path / "m", config, tensors)) as session:
        info = session.info()
    assert info.totals.macs
    assert info.totals.params == sum(prod(shape) for _, _, shape in plain())
    assert info.totals.weight_bytes == held(tensors)


def test_a_form_that_is_not_known_is_no_number(tmp_path: Path) -> None:
    def unsaid(rows: int, columns: int) -> Pieces:
        return [("W_q", "U8", (rows * columns // 128, 64)), ("scale", "F16", (rows * columns // 64, 1))]

    config = {**SMALL, "quantization_config": {"quant_method": "hqq"}}
    with Session(folders.folder(tmp_path / "m", config, quantized(unsaid))) as session:
        info = session.info()
    assert info.totals.macs is None
    assert (
        "7 of 12 parameters of the module that config.json, for 'hqq', describes are in no file"
        in info.model.notes[0]
    )
    assert info.totals.weight_bytes == held(quantized(unsaid))


GPT_OSS = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
}


def gpt_oss(blocks: int = 3) -> folders.Tensors:
    """The tensors of a gpt-oss: experts in blocks of 32 numbers, 16 bytes each, with one exponent a block."""
    yield "model.embed_tokens.weight", "BF16", (32, 64)
    for layer in range(1):
        at = f"model.layers.{layer}."
        for name, rows in (("q", 64), ("k", 32), ("v", 32), ("o", 64)):
            yield f"{at}self_attn.{name}_proj.weight", "BF16", (rows, 64)
            yield f"{at}self_attn.{name}_proj.bias", "BF16", (rows,)
        yield f"{at}self_attn.sinks", "BF16", (4,)
        yield f"{at}mlp.router.weight", "BF16", (4, 64)
        yield f"{at}mlp.router.bias", "BF16", (4,)
        for name, rows, count in (("gate_up", 192, 2), ("down", 64, blocks)):
            yield f"{at}mlp.experts.{name}_proj_blocks", "U8", (4, rows, count, 16)
            yield f"{at}mlp.experts.{name}_proj_scales", "U8", (4, rows, count)
            yield f"{at}mlp.experts.{name}_proj_bias", "BF16", (4, rows)
        yield f"{at}input_layernorm.weight", "BF16", (64,)
        yield f"{at}post_attention_layernorm.weight", "BF16", (64,)
    yield "model.norm.weight", "BF16", (64,)
    yield "lm_head.weight", "BF16", (32, 64)


@pytest.mark.slow
def test_experts_in_mxfp4_have_two_numbers_a_byte(tmp_path: Path) -> None:
    with Session(folders.folder(tmp_path / "m", GPT_OSS, gpt_oss())) as session:
        info = session.info()
        rows = {layer.path: layer for layer in session.analysis().layers}
        served = session.serving(ServingSpec(prompt=8, contexts=(64,)))
    experts = rows["model.layers.0.mlp.experts"]
    assert experts.params == 4 * (192 * 64 + 192 + 64 * 96 + 64)
    assert experts.weight_bytes == 4 * (192 * 2 * 17 + 2 * 192 + 64 * 3 * 17 + 2 * 64)
    own = [weight for path, row in rows.items() if ".experts" in path for weight in row.weights]
    assert {weight.dtype for weight in own} == {"float4_e2m1fn", "bfloat16"}
    assert info.totals.weight_bytes == held(gpt_oss()) == served.weight_bytes
    assert "in no file" not in about(info)
    assert "of the files not in the module" not in about(info)


def test_experts_in_mxfp4_of_another_shape_are_named(tmp_path: Path) -> None:
    with Session(folders.folder(tmp_path / "m", GPT_OSS, gpt_oss(blocks=4))) as session:
        info = session.info()
    assert info.totals.macs is None
    assert "model.layers.0.mlp.experts.down_proj_blocks is [4, 128, 64], by" in info.model.notes[0]
