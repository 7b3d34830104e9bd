"""Numbers of a slice are those in the file: of every format, dequantized, beside another model, as a map."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from explorer.base.errors import Misuse
from explorer.cli.main import main
from explorer.engine.values.numbers import Numbers, make_slabs
from explorer.engine.values.slices.read import read, split_selection
from explorer.engine.values.slices.ulps import compute_ulps
from explorer.session import Session
from explorer.settings.slices import parse_slice, select_edges
from tests.engine.formats.tflite.tflite_writer import Op, Sub, T, write

LENET = "sample_models/lenet.onnx"
STORED = {t.name: numpy_helper.to_array(t) for t in onnx.load(LENET).graph.initializer}


# -- slices


@pytest.mark.parametrize(
    "said",
    [
        *("", "[0:1, :8]", "3", "-1, ..., ::2", "..., 1:3"),
        *("::-1, 2", ":, 5:1:-2, -1", "[1:3,0:9:4]", "0,0,0"),
    ],
)
def test_a_slice_is_what_numpy_makes_of_it(said: str) -> None:
    array = np.arange(7 * 6 * 5, dtype=np.float32).reshape(7, 6, 5)
    numbers = Numbers("t", "float32", array.shape, array.nbytes, make_slabs(array))
    selection = parse_slice(said, array.shape)
    wanted = eval(f"array[{said.strip('[]') or '...'}]", {"array": array})
    assert selection.shape == wanted.shape
    np.testing.assert_array_equal(read(numbers, selection).reshape(selection.shape), wanted)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("9", "no index 9"),
        ("-8", "no index -8"),
        (":, 6:9", "'6:9' of axis 1 holds nothing: its size is 6"),
        ("2:2", "'2:2' of axis 0 holds nothing"),
        ("0,0,0,0", "has 3 axes"),
        ("...,...", "only one '...'"),
        ("a:b", "not a slice"),
        ("1:2:0", "step"),
        ("0,,1", "not a slice"),
        ("1:2:3:4", "not a slice"),
    ],
)
def test_what_is_no_slice_is_refused(said: str, words: str) -> None:
    with pytest.raises(Misuse, match=words):
        parse_slice(said, (7, 6, 5))


def test_parts_of_a_large_slice_are_the_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("explorer.engine.values.slices.read.PIECE", 10)
    array = np.arange(420).reshape(4, 3, 35)
    numbers = Numbers("t", "int64", array.shape, array.nbytes, make_slabs(array))
    selection = parse_slice("::2, :, ::3", array.shape)
    cut = list(split_selection(selection))
    assert max(math.prod(part.sizes) for part in cut) <= 10
    whole = np.concatenate([read(numbers, part).reshape(-1) for part in cut])
    np.testing.assert_array_equal(whole, array[::2, :, ::3].reshape(-1))


def test_edges_are_the_first_and_the_last() -> None:
    told = select_edges(parse_slice("", (5, 100, 3)), 4, 2)
    assert told.indices == ((0, 4), (0, 1, 98, 99), range(3))


# -- formats


def values_of(path: Any, name: str, said: str = "", **how: Any) -> Any:
    with Session(path) as session:
        return session.values(name, said, **how)


def array_of(fact: Any, values: Any = None) -> Any:
    return np.array(fact.values if values is None else values).reshape([len(axis) for axis in fact.indices])


def test_a_stored_tensor_is_told_as_it_is() -> None:
    fact = values_of(LENET, "conv2.weight", "[3, 1:3, ::2, -1]")
    assert (fact.role, fact.layer, fact.shape, fact.dtype) == ("weight", "/conv2/Conv", (2, 3), "float32")
    np.testing.assert_array_equal(array_of(fact).reshape(2, 3), STORED["conv2.weight"][3, 1:3, ::2, -1])
    short = values_of(LENET, "fc1.weight")
    rows, columns = short.indices
    assert (rows, columns) == ((0, 1, 2, 3, 116, 117, 118, 119), (0, 1, 2, 3, 396, 397, 398, 399))
    np.testing.assert_array_equal(array_of(short), STORED["fc1.weight"][np.ix_(rows, columns)])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int4", "uint2", "int64", "bool"])
def test_every_type_of_an_onnx_file_is_read_in_place(dtype: str, tmp_path: Path) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    array = np.random.default_rng(0).integers(-2 if dtype == "int4" else 0, 2, (301, 17)).astype(kind)
    weight = numpy_helper.from_array(array, "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    nodes = [helper.make_node("Identity", ["w"], ["y"])]
    out = helper.make_tensor_value_info("y", weight.data_type, array.shape)
    graph = helper.make_graph(nodes, "g", [x], [out], [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    onnx.save(made, tmp_path / "m.onnx")
    fact = values_of(str(tmp_path / "m.onnx"), "w", "13:297:71, 3:12")
    wanted = array[13:297:71, 3:12].astype(np.float64)
    np.testing.assert_array_equal(array_of(fact).astype(np.float64), wanted)


def safetensors(path: Path, array: Any, name: str = "a.w") -> str:
    header = {name: {"dtype": "F32", "shape": array.shape, "data_offsets": [0, array.nbytes]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + array.tobytes())
    return str(path)


def test_safetensors_and_checkpoints(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
    fact = values_of(safetensors(tmp_path / "m.safetensors", array), "a.w", "5:9, ::7")
    np.testing.assert_array_equal(array_of(fact), array[5:9, ::7])
    torch = pytest.importorskip("torch")
    torch.save({"a.w": torch.from_numpy(array), "t": torch.from_numpy(array).T}, tmp_path / "m.pt")
    np.testing.assert_array_equal(array_of(values_of(str(tmp_path / "m.pt"), "a.w", "5:9")), array[5:9])
    np.testing.assert_array_equal(array_of(values_of(str(tmp_path / "m.pt"), "t", "5:9")), array.T[5:9])


def gguf_file(path: Path, kind: str) -> tuple[str, np.ndarray, np.ndarray]:
    """A file with six rows of 512 numbers; their bytes, and the numbers that they stand for."""
    which = gguf.GGMLQuantizationType[kind]
    many, size = gguf.GGML_QUANT_SIZES[which]
    # gguf cannot make all of these blocks: any bytes are some, but for halves that are no numbers
    packed = np.random.default_rng(1).integers(0, 255, (6, 512 // many * size), np.uint8)
    for at in {"Q4_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}.get(kind, ()):
        packed.reshape(-1, size)[:, at : at + 2] = np.array([0.01], np.float16).view(np.uint8)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("w", packed, raw_dtype=which)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    return str(path), packed, gguf.quants.dequantize(packed, which)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q6_K", "Q4_K"])
def test_blocks_of_gguf_are_the_numbers_that_they_stand_for(kind: str, tmp_path: Path) -> None:
    path, _, numbers = gguf_file(tmp_path / "m.gguf", kind)
    fact = values_of(path, "w", "2:4, 30:300:9")
    np.testing.assert_array_equal(array_of(fact), numbers[2:4, 30:300:9])
    assert fact.dtype == "float32"
    added = 0 if fact.offsets is None else array_of(fact, fact.offsets).astype(np.float32)
    codes = array_of(fact, fact.codes) - array_of(fact, fact.zero_points)
    made = array_of(fact, fact.scales).astype(np.float32) * codes.astype(np.float32) + added
    np.testing.assert_array_equal(made, numbers[2:4, 30:300:9])


def test_codes_and_scales_of_gguf_are_those_of_its_blocks(tmp_path: Path, capsys: Any) -> None:
    """By the layouts of ggml-common.h, a number at a time."""
    path, packed, _ = gguf_file(tmp_path / "a.gguf", "Q4_0")
    fact, block = values_of(path, "w", "1, 32:64"), packed[1, 18:36]
    assert fact.codes == tuple(int(b) & 15 for b in block[2:]) + tuple(int(b) >> 4 for b in block[2:])
    assert set(fact.scales) == {float(np.float16(0.01))}
    assert set(fact.zero_points) == {8}
    path, packed, _ = gguf_file(tmp_path / "b.gguf", "Q8_0")
    assert values_of(path, "w", "5, :3").codes == tuple(packed[5, 2:5].view(np.int8))
    path, packed, _ = gguf_file(tmp_path / "c.gguf", "Q4_K")
    fact, block = values_of(path, "w", "0, 64:66"), packed[0]
    # numbers 64 to 95 are the lower halves of the second 32 bytes, with the third scale and minimum
    assert fact.codes == (block[16 + 32] & 15, block[16 + 33] & 15)
    d = np.float32(np.float16(0.01))
    assert set(fact.scales) == {float(d * np.float32(block[4 + 2] & 63))}
    assert set(fact.offsets) == {-float(d * np.float32(block[8 + 2] & 63))}
    assert main(["values", path, "w", "--slice", "0, 64:66"]) == 0
    assert "Offsets   number = scale x (integer - zero point) + offset" in capsys.readouterr().out


def test_numbers_out_of_a_codebook_have_no_codes_and_say_why(tmp_path: Path, capsys: Any) -> None:
    path, _, _ = gguf_file(tmp_path / "m.gguf", "IQ2_XXS")
    assert values_of(path, "w", "0, :4").codes is None
    assert main(["values", path, "w", "--slice", "0, :4"]) == 0
    assert "no codes: IQ2_XXS stores indices of a codebook" in capsys.readouterr().out


def test_tensorflow_lite_tells_codes_and_scales(tmp_path: Path) -> None:
    codes = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
    weight = T((3, 4), "int8", codes, "w", scales=[0.5, 0.25, 2.0], zero_points=[0, 1, 0])
    tensors = [T((1, 4), name="x"), weight, T((1, 3), name="y")]
    sub = Sub(tensors, [Op("FULLY_CONNECTED", [0, 1, -1], [2])], [0], [2])
    fact = values_of(write(tmp_path, sub), "w")
    scale, zero = np.array([[0.5], [0.25], [2.0]], np.float32), [[0], [1], [0]]
    np.testing.assert_array_equal(array_of(fact), (codes - zero) * scale)
    np.testing.assert_array_equal(array_of(fact, fact.codes), codes)
    assert (fact.dtype, fact.tensor.dtype) == ("float32", "int8")


def test_a_module_has_its_parameters_and_outputs() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    with Session(model, input_shapes={"input": (None, (2, 4))}) as session:
        weight, out = session.values("0.weight", "1"), session.values("1", seed=5)
    np.testing.assert_array_equal(array_of(weight)[0], model[0].weight[1].detach().numpy())
    x = np.random.default_rng(5).standard_normal((2, 4)).astype(np.float32)
    np.testing.assert_allclose(array_of(out), model(torch.from_numpy(x)).detach().numpy(), rtol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_quantized_tensor_of_torch_is_told_by_what_it_stands_for() -> None:
    torch = pytest.importorskip("torch")
    floats = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    module = torch.nn.Module()
    kept = torch.quantize_per_channel(
        floats, torch.tensor([0.1, 0.02, 0.5]), torch.tensor([0, 3, -1]), 0, torch.qint8
    )
    module.register_buffer("w", kept)
    module.forward = lambda x: x
    with Session(module, input_shapes={"x": (None, (1,))}) as session:
        fact = session.values("w")
    np.testing.assert_allclose(array_of(fact), kept.dequantize().numpy(), rtol=1e-6)
    np.testing.assert_array_equal(array_of(fact, fact.codes), kept.int_repr().numpy())


# -- quantized


def dequantizing(
    folder: Path, name: str, codes: Any, scale: Any, zero: Any = None, *, called: str = "w", **attributes: Any
) -> str:
    stored = {called: codes, "s": scale, **({} if zero is None else {"z": zero})}
    tensors = [numpy_helper.from_array(a, n) for n, a in stored.items()]
    node = helper.make_node("DequantizeLinear", list(stored), ["d"], **attributes)
    relu = helper.make_node("Relu", ["d"], ["y"])
    kind = attributes.get("output_dtype") or helper.np_dtype_to_tensor_dtype(scale.dtype)
    out = helper.make_tensor_value_info("y", kind, codes.shape)
    graph = helper.make_graph([node, relu], "g", [], [out], tensors)
    opsets = [helper.make_opsetid("", 24 if "output_dtype" in attributes else 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / name)
    return str(folder / name)


@pytest.mark.parametrize("kind", ["tensor", "axis 0", "axis 1", "blocks"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4"])
def test_what_is_quantized_is_told_by_what_dequantize_linear_gives(
    kind: str, dtype: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    which = np.dtype(getattr(ml_dtypes, dtype, dtype))
    codes = rng.integers(0 if dtype[0] == "u" else -8, 8, (6, 10)).astype(which)
    shape = {"tensor": (), "axis 0": (6,), "axis 1": (10,), "blocks": (6, 3)}[kind]
    scale = np.asarray(rng.uniform(0.01, 1, shape), np.float32)
    zero = np.asarray(rng.integers(0, 4, shape)).astype(which)
    more = {"blocks": {"axis": 1, "block_size": 4}, "axis 0": {"axis": 0}}.get(kind, {})
    path = dequantizing(tmp_path, "m.onnx", codes, scale, zero, **more)
    fact = values_of(path, "w", "1:5, ::3")
    (made,) = ReferenceEvaluator(helper_model(path)).run(["d"], {})
    np.testing.assert_array_equal(array_of(fact), made[1:5, ::3])
    np.testing.assert_array_equal(array_of(fact, fact.codes), codes[1:5, ::3].astype(int))
    scales, zeros = (array_of(fact, some) for some in (fact.scales, fact.zero_points))
    again = (array_of(fact, fact.codes) - zeros) * scales
    np.testing.assert_allclose(array_of(fact), again, rtol=1e-6)


def helper_model(path: str) -> Any:
    model = onnx.load(path)
    model.graph.output.append(onnx.ValueInfoProto(name="d"))
    return model


def test_the_quantized_stand_beside_the_original(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(-100, 100, (20, 30)).astype(np.int8)
    path = dequantizing(tmp_path, "q.onnx", codes, np.float32(0.02), np.int8(3))
    floats = (codes.astype(np.float32) - 3) * np.float32(0.02)
    floats[4, 5] += np.float32(0.5)
    floats[7, 7] = np.nextafter(floats[7, 7], np.float32(np.inf))
    before = safetensors(tmp_path / "m.safetensors", floats)
    fact = values_of(path, "w", before=before, before_name="a.w").before
    assert fact is not None
    assert (fact.equal, fact.elements, fact.tensor.name) == (598, 600, "a.w")
    assert fact.largest == pytest.approx(0.5, rel=1e-5)
    words = ["values", path, "w", "--before", before, "--before-name", "a.w"]
    assert main([*words, "--slice", "7", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["before"]
    assert told["largest_ulps"] == 1
    assert [n for n in told["ulps"] if n] == [1]
    assert main(words) == 0
    assert "598 of 600" in capsys.readouterr().out


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("bits", "depth"), [(4, 70), (8, 64), (4, 32)])
def test_packed_weights_are_told_by_what_matmulnbits_multiplies(
    bits: int, depth: int, zeros: bool, tmp_path: Path
) -> None:
    rng, blocks = np.random.default_rng(0), -(-depth // 32)
    stored = {
        "x": np.eye(depth, dtype=np.float32),
        "w": rng.integers(0, 256, (5, blocks, 32 * bits // 8), np.uint8),
        "s": rng.uniform(0.5, 1, 5 * blocks).astype(np.float32),
        "z": rng.integers(0, 256, 5 * -(-blocks * bits // 8), np.uint8),
    }
    names = ["x", "w", "s", "z"][: 4 if zeros else 3]
    more = {"K": depth, "N": 5, "bits": bits, "block_size": 32}
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **more)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [depth, 5])
    tensors = [numpy_helper.from_array(stored[name], name) for name in names]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [], [out], tensors)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    (made,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {})
    fact = values_of(str(tmp_path / "m.onnx"), "w", "::3, 1:4")
    assert (fact.tensor.dtype, fact.tensor.shape) == (f"uint{bits}", (depth, 5))
    np.testing.assert_allclose(array_of(fact), made[::3, 1:4], rtol=1e-5)


def test_integers_find_the_floats_that_they_were_made_of(tmp_path: Path) -> None:
    codes = np.arange(12, dtype=np.int8).reshape(3, 4)
    path = dequantizing(tmp_path, "q.onnx", codes, np.float32(0.5), np.int8(0), called="fc.w_quantized")
    floats = codes * np.float32(0.5)
    before = safetensors(tmp_path / "m.safetensors", floats, "fc.w")
    fact = values_of(path, "fc.w_quantized", before=before).before
    assert (fact.tensor.name, fact.equal) == ("fc.w", 12)
    assert values_of(before, "fc.w", before=path).before.tensor.name == "fc.w_quantized"
    with Session(path) as session:
        found = session.heat_map("fc.w_quantized", before=before)
    assert found.before is not None
    assert found.before.cells == found.cells


def test_a_layer_is_named_as_the_tree_shows_it_and_a_group_by_what_leaves_it(tmp_path: Path) -> None:
    value, node = helper.make_tensor_value_info, helper.make_node
    nodes = [
        node("Relu", ["x"], ["a"], name="/block/act/Relu"),
        node("Neg", ["a"], ["b"], name="/block/Neg"),
        node("Exp", ["b"], ["y"], name="/out/Exp"),
    ]
    ends = value("x", TensorProto.FLOAT, [2, 3]), value("y", TensorProto.FLOAT, [2, 3])
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]), ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    x = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    np.save(tmp_path / "x.npy", x)
    wanted = {"block": ("b", -np.maximum(x, 0)), "block.act": ("a", np.maximum(x, 0))}
    wanted["out"] = "y", np.exp(-np.maximum(x, 0))
    for name, (tensor, numbers) in wanted.items():
        fact = values_of(str(tmp_path / "m.onnx"), name, input=str(tmp_path / "x.npy"))
        assert (fact.tensor.name, fact.calls) == (tensor, 1)
        np.testing.assert_allclose(array_of(fact), numbers, rtol=1e-6)


@pytest.mark.parametrize("to", ["int8", "weight=fixed8.4", "weight=int4", "float16", "bfloat16", "mxfp4"])
def test_a_quantized_weight_answers_to_the_name_that_it_had(to: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "q.onnx"
    assert main(["quantize", LENET, "-o", str(path), "--to", to, "--no-report", "--quiet"]) == 0
    capsys.readouterr()
    fact = values_of(path, "fc1.weight", "0:2, :5", before=LENET)
    assert fact.tensor.name in {t.name for t in onnx.load(path).graph.initializer}
    np.testing.assert_allclose(array_of(fact), STORED["fc1.weight"][:2, :5], atol=0.04)
    assert fact.before.tensor.name == "fc1.weight"


def test_small_floats_with_a_scale_are_no_integers(tmp_path: Path) -> None:
    codes = np.array([[0.5, -1.75], [448, 0.0625]], ml_dtypes.float8_e4m3fn)
    path = dequantizing(tmp_path, "q.onnx", codes, np.float32(0.25), np.zeros((), codes.dtype))
    fact = values_of(path, "w")
    assert fact.values == (0.125, -0.4375, 112.0, 0.015625)
    assert fact.codes == (0.5, -1.75, 448.0, 0.0625)


def test_numbers_are_rounded_once_to_the_type_that_the_node_gives(tmp_path: Path) -> None:
    """The type is `output_dtype`, if given; scales that are powers of two have no sign and no fraction."""
    codes = np.array([[0.75, -3.5], [448, -0.0625]], ml_dtypes.float8_e4m3fn)
    scale = np.array([[2, 0.5]], ml_dtypes.float8_e8m0fnu)
    path = dequantizing(
        tmp_path, "mx.onnx", codes, scale, axis=0, block_size=2, output_dtype=TensorProto.FLOAT
    )
    assert values_of(path, "w").values == (1.5, -1.75, 896.0, -0.03125)
    wide = np.array([[20001, -4099]], np.int16)
    path = dequantizing(tmp_path, "h.onnx", wide, np.float16(0.0005))
    (made,) = ReferenceEvaluator(helper_model(path)).run(["d"], {})
    np.testing.assert_array_equal(array_of(values_of(path, "w")), made)


def test_scales_that_do_not_fit_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes, scale = np.zeros((3, 4), np.int8), np.ones(2, np.float32)
    path = dequantizing(tmp_path, "q.onnx", codes, scale, np.zeros(2, np.int8), axis=0)
    assert main(["values", path, "w"]) == 2
    told = capsys.readouterr().err
    assert "2 scales" in told
    assert told.count("\n") <= 2


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_ulps_are_the_numbers_between(dtype: Any) -> None:
    values = np.array([1.0, -1.0, 0.0, 300.0], dtype)
    steps = [values]
    for n in range(1, 4):
        steps.append(np.nextafter(steps[-1], dtype(-np.inf)))
        found = compute_ulps(values, steps[n])
        assert found is not None
        assert found.tolist() == [n] * 4
    across = compute_ulps(np.array([-0.0], dtype), np.array([0.0], dtype))
    assert across is not None
    assert across.tolist() == [0]
    odd = compute_ulps(np.array([np.nan, np.inf], dtype), np.array([1, np.inf], dtype))
    assert odd is not None
    assert odd.tolist() == [-1, -1]
    assert compute_ulps(values, np.arange(4)) is None


def test_ulps_of_two_types_are_those_of_the_wider() -> None:
    wide = np.array([1 + 2**-12, -3.0, 0.0], np.float32)
    found = compute_ulps(wide.astype(ml_dtypes.bfloat16), wide)
    assert found is not None
    assert found.tolist() == [2**11, 0, 0]
    deep = compute_ulps(np.array([1 + 2**-40]), np.ones(1, np.float32))
    assert deep is not None
    assert deep.tolist() == [2**12]


# -- files and words


def test_a_slice_goes_into_a_file_as_numpy_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("explorer.engine.values.slices.read.PIECE", 100)
    output = str(tmp_path / "w.npy")
    fact = values_of(LENET, "conv2.weight", ":, 2", output=output)
    assert fact.output == output
    np.testing.assert_array_equal(np.load(output), STORED["conv2.weight"][:, 2])
    codes = np.arange(12, dtype=np.uint8).reshape(3, 4)
    path = dequantizing(tmp_path, "q.onnx", codes, np.float32(0.5), np.uint8(2))
    values_of(path, "w", output=output, overwrite=True)
    np.testing.assert_array_equal(np.load(output), (codes.astype(np.float32) - 2) * 0.5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fc1.wieght"], "fc1.weight"),
        (["fc1.weight", "--slice", "[200]"], "no index 200"),
        (["fc1.weight", "--slice", "200:210"], "holds nothing: its size is 120"),
        (["fc1.weight", "--slice", ":"], "48,000 numbers, and 10,000 at most"),
        (["fc1.weight", "-o", "x.npz"], "not a .npy file"),
        (["fc1.weight", "--before", "sample_models/mlp_128.onnx"], "no tensor or layer is called"),
        (["fc1.weight", "--before", LENET, "--before-name", "fc2.weight"], "[84, 120] there"),
        (["fc1.weight", "--at", "0"], "applies only with --map"),
        (["fc1.weight", "--map", "24"], "not a size of a map"),
        (["conv1.weight", "--map", "9x9", "--at", "6"], "not a position"),
        (["fc1.weight", "--map", "9x9", "--rows", "0:121"], "not part of 120"),
        (["fc1.weight", "--map", "9x9", "--slice", "0"], "does not apply with --map"),
    ],
)
def test_what_cannot_be_told_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["values", LENET, *words]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.err.count("\n") <= 2
    assert not told.out


def test_text_shows_the_numbers_with_their_indices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["values", LENET, "fc1.weight", "--slice", "100:104:3, 7:9"]) == 0
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert ["7", "8"] in lines
    for row in (100, 103):
        assert [str(row), *(f"{v:.6g}" for v in STORED["fc1.weight"][row, 7:9].tolist())] in lines
    assert main(["values", LENET, "conv1.bias"]) == 0
    assert f"{STORED['conv1.bias'][3].item():.6g}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_slice_of_a_large_file_takes_the_memory_of_the_slice(tmp_path: Path) -> None:
    size = 3 << 30
    header = {"w": {"dtype": "F32", "shape": [size // 4096, 1024], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.seek(8 + len(text) + size - 4096)
        file.write(np.arange(1024, dtype=np.float32).tobytes())
    code = (
        "import resource, sys; from explorer.session import Session\n"
        "with Session(sys.argv[1]) as session:\n"
        "    session.values('w', '0, 0'); had = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "    fact = session.values('w', '::98304, -3:')\n"
        "    assert fact.values == (0.0,) * 24, fact\n"
        "    assert session.values('w', '-1, -1').values == (1023.0,)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - had)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    path.unlink()
    assert int(done.stdout) < 8 << 10, "KiB"


# -- maps


def test_a_cell_is_the_number_of_the_largest_magnitude_in_it() -> None:
    array = STORED["fc1.weight"]
    with Session(LENET) as session:
        fact = session.heat_map("fc1.weight", size=(7, 13))
        part = session.heat_map("fc1.weight", rows=(10, 14), columns=(5, 9), size=(24, 64), whole=False)
    assert (fact.heights, fact.widths) == (7, 13)
    rows, columns = (np.arange(n) * cells // n for n, cells in zip(array.shape, (7, 13), strict=True))
    for at, cell in enumerate(fact.cells):
        inside = array[rows == at // 13][:, columns == at % 13]
        assert cell == inside.reshape(-1)[np.abs(inside).argmax()]
    np.testing.assert_array_equal(np.array(part.cells, np.float32).reshape(4, 4), array[10:14, 5:9])
    assert part.stats is None
    far = np.abs(array.astype(np.float64) - array.mean(dtype=np.float64))
    first = fact.outliers[0]
    assert first.index == np.unravel_index(far.argmax(), far.shape)
    assert [abs(o.value - float(array.mean(dtype=np.float64))) for o in fact.outliers] == pytest.approx(
        np.sort(far.ravel())[::-1][:10]
    )
    assert first.deviations == pytest.approx(far.max() / array.std(dtype=np.float64), rel=1e-6)
    assert fact.channels == tuple((float(r.min()), float(r.max())) for r in array)


def test_a_map_of_any_rank_and_of_what_is_quantized(tmp_path: Path, capsys: Any) -> None:
    with Session(LENET) as session:
        third = session.heat_map("conv2.weight", place=(3, 1), whole=False)
        line = session.heat_map("conv1.bias")
        made = session.heat_map("/fc3/Gemm")
    np.testing.assert_array_equal(
        np.array(third.cells, np.float32).reshape(5, 5), STORED["conv2.weight"][3, 1]
    )
    assert (line.heights, line.widths) == (1, 6)
    assert (made.role, made.widths) == ("activation", 10)
    codes = np.array([[1, -7], [0, 5]], np.int8)
    path = dequantizing(tmp_path, "q.onnx", codes, np.float32(0.5), np.int8(1))
    with Session(path) as session:
        fact = session.heat_map("w")
    assert fact.cells == (0.0, -4.0, -0.5, 2.0)
    assert fact.stats is not None
    assert (fact.stats.minimum, fact.outliers[0].value) == (-4.0, -4.0)
    assert main(["values", path, "w", "--map", "9x9"]) == 0
    text = capsys.readouterr().out
    assert "  " + " █" in text
    assert "[0, 1]" in text


def test_nan_is_no_number_of_a_map(tmp_path: Path) -> None:
    array = np.array([[np.nan, 1, np.inf, -2]], np.float32)
    with Session(safetensors(tmp_path / "m.safetensors", array)) as session:
        fact = session.heat_map("a.w")
        halves = session.heat_map("a.w", size=(1, 2))
    assert fact.cells == (None, 1.0, None, -2.0)
    assert halves.cells == (1.0, -2.0)
    assert {o.value for o in fact.outliers} == {1.0, -2.0}


# -- numbers that float64 does not hold


def odd_file(path: Path, *tensors: Any) -> str:
    """A graph that passes its input on, beside stored tensors."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", ends[:1], ends[1:], list(tensors))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def test_integers_that_float64_takes_for_one_are_two(tmp_path: Path) -> None:
    large = np.array([2**62 + 1, -(2**63), 5, 2**63 - 1], np.int64)
    other = np.array([2**62, 2**63 - 1, 5, 2**63 - 1], np.int64)
    paths = [
        odd_file(tmp_path / f"{at}.onnx", numpy_helper.from_array(array, "w"))
        for at, array in enumerate((large, other))
    ]
    before = values_of(paths[0], "w", before=paths[1]).before
    assert before.equal == 2
    assert before.differences == (1, -(2.0**64), 0, 0)


def test_complex_numbers_differ_by_their_imaginary_parts_and_are_drawn_by_magnitude(tmp_path: Path) -> None:
    array = np.array([[3 + 4j, 1], [0, -2j]], np.complex64)
    paths = [
        odd_file(tmp_path / f"{at}.onnx", numpy_helper.from_array(one, "w"))
        for at, one in enumerate((array, array.real.astype(np.complex64)))
    ]
    before = values_of(paths[0], "w", before=paths[1]).before
    assert (before.equal, before.largest) == (2, 4)
    assert before.differences == (4j, 0, 0, -2j)
    assert before.rms == math.sqrt((16 + 4) / 4)
    with Session(paths[0]) as session:
        drawn = session.heat_map("w")
    assert drawn.cells == (5, 1, 0, 2)
    assert (drawn.stats.maximum, drawn.outliers[0].index) == (5, (0, 0))
    assert "complex: magnitudes are drawn" in drawn.notes


def test_a_string_that_is_no_utf8_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = helper.make_tensor("words", TensorProto.STRING, [1], [b"\xff"])
    # onnxruntime has no such numbers, so that the second opinion runs it
    number = numpy_helper.from_array(np.ones(1, np.complex64), "c")
    path = odd_file(tmp_path / "m.onnx", words, number)
    assert main(["values", path, "words"]) == 2
    assert main(["values", path, "y"]) in (0, 2)
    assert "internal error" not in capsys.readouterr().err
