"""A quantized model runs in onnxruntime, at every level of optimization, to what its formats say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from explorer.engine import shapes
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.graph.model import Model
from explorer.engine.quantize.calibration import calibrate_ranges
from explorer.engine.quantize.choice import choose
from explorer.engine.quantize.grids import Grids, list_range_uses
from explorer.engine.quantize.layers import find_layers
from explorer.engine.quantize.quantize import quantize_model
from explorer.engine.quantize.write.opset import find_lowest_opset, raise_opset
from explorer.engine.runtime.samples import random_samples
from explorer.facts.quantize import QuantizeSpec
from tests import stock

SAMPLES = Path(__file__).parents[3] / "sample_models"
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


def quantize(source: Path, target: Path, **spec: Any) -> Model:
    """The model in `source`, quantized into `target`."""
    asked, model = QuantizeSpec(**spec), reader.read(str(source))
    needed = find_lowest_opset(choose(find_layers(model, shapes.infer(model).values), asked))
    model = raise_opset(model, needed) if needed > model.opset else model
    known = shapes.infer(model).values
    choices = choose(find_layers(model, known), asked)
    found = calibrate_ranges(model, list_range_uses(choices), random_samples(model, 2))
    writer.write(quantize_model(model, choices, Grids(found), known), str(target))
    return reader.read(str(target))


def run(path: Path, level: str = "ORT_DISABLE_ALL") -> list[Any]:
    """Its outputs on two random inputs."""
    # without it two products of bytes saturate at 16 bits on a processor without VNNI
    session = stock.opened(path, level, **{"session.x64quantprecision": "1"})
    samples = random_samples(reader.read(str(path)), 2)
    return [output for feeds in samples for output in session.run(None, feeds)]


def snr(one: list[Any], other: list[Any]) -> float:
    """In dB, over all outputs."""
    pairs = list(zip(one, other, strict=True))
    error = sum(float(np.square(np.subtract(a, b, dtype=np.float64)).sum()) for a, b in pairs)
    power = sum(float(np.square(a.astype(np.float64)).sum()) for a in one)
    return float(10 * np.log10(power / max(error, 1e-300)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["lenet", "jsc_tiny", "lstm_tiny", "bert_tiny", "mobilenet_small"])
def test_int8_runs_alike_at_every_level(name: str, tmp_path: Path) -> None:
    """Optimized or not: the same numbers, near the original's."""
    source, target = SAMPLES / f"{name}.onnx", tmp_path / "q.onnx"
    quantize(source, target)
    onnx.checker.check_model(str(target), full_check=True)
    made = run(target)
    assert snr(run(source), made) > 20
    assert all(snr(made, run(target, level)) > 90 for level in LEVELS[1:])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "spec",
    [
        {"weight": "int4", "input": "float32", "block": 32},
        {"weight": "uint4", "input": "float32", "block": 16, "symmetric": False},
        {"form": "qoperator", "input": "uint8"},
        {"weight": "fixed8.4", "input": "fixed8.4"},
        {"weight": "mxfp8", "input": "mxfp8"},
        {"weight": "int8", "input": "uint4"},
        {"weight": "float32", "input": "uint8"},
        {"weight": "float8e4m3", "input": "float8e4m3"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "name",
    ["lenet", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bert_tiny", "mobilenet_small"))],
)
def test_every_way_of_writing_runs_alike_at_every_level(
    name: str, spec: dict[str, Any], tmp_path: Path
) -> None:
    """What onnxruntime fuses wrongly, or refuses to run once it has, is written so that it does not."""
    source, target = SAMPLES / f"{name}.onnx", tmp_path / "q.onnx"
    quantize(source, target, **spec)
    made = run(target)
    lost = snr(run(source), made)
    assert lost > 3
    # what is fused adds up in another order: a few values of few bits fall on the other side of a tie
    assert all(snr(made, run(target, level)) > min(40, lost - 3) for level in LEVELS[1:])


PRODUCTS: dict[str, tuple[str, dict[str, tuple[int, ...]], tuple[int, ...]]] = {
    "weight on the right": ("MatMul x w", {"w": (70, 40)}, (3, 70)),
    "weight on the left": ("MatMul w x", {"w": (40, 70)}, (70, 3)),
    "a weight for each of a stack": ("MatMul x w", {"w": (4, 70, 40)}, (4, 3, 70)),
    "a weight of one column": ("MatMul x w", {"w": (65, 1)}, (3, 65)),
    "a depth below a block": ("MatMul x w", {"w": (31, 7)}, (3, 31)),
    "a bias of a number a column": ("Gemm x w b", {"w": (70, 40), "b": (40,)}, (3, 70)),
    "a bias of one number": ("Gemm x w b", {"w": (70, 40), "b": ()}, (3, 70)),
    "a bias of one number in a list": ("Gemm x w b", {"w": (70, 40), "b": (1,)}, (3, 70)),
    "a bias of a number a row": ("Gemm x w b", {"w": (70, 40), "b": (3, 1)}, (3, 70)),
    "a bias of a number a place": ("Gemm x w b", {"w": (70, 40), "b": (3, 40)}, (3, 70)),
    "a bias beside a weight on the left": ("Gemm w x b", {"w": (40, 70), "b": (3,)}, (70, 3)),
}
"""What is multiplied, the shapes of what is stored, and of what comes in."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("spec", "alike"),
    [({}, 90), ({"form": "function"}, 90), ({"weight": "int4", "input": "float32"}, 100),
     ({"weight": "int4", "input": "float32", "block": 48}, 100), ({"weight": "int4", "input": "int4"}, 90)],
    ids=["int8", "function", "weights of 4 bits", "blocks of 48", "int4"],
)  # fmt: skip
@pytest.mark.parametrize("name", PRODUCTS)
def test_every_arrangement_of_a_product_runs_alike_at_every_level(
    name: str, spec: dict[str, Any], alike: float, tmp_path: Path
) -> None:
    """Wherever its weight stands, and whatever the shape of its bias; its activation as it was asked for."""
    (words, stored, given), helper = PRODUCTS[name], onnx.helper
    random = np.random.default_rng(0)
    op, *inputs = words.split()
    tensors = [
        onnx.numpy_helper.from_array(np.asarray(random.normal(size=size), np.float32), key)
        for key, size in stored.items()
    ]
    ends = helper.make_tensor_value_info("x", 1, given), helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph([helper.make_node(op, inputs, ["y"])], "g", [ends[0]], [ends[1]], tensors)
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), source)
    quantize(source, target, **spec)
    made = run(target)
    assert snr(run(source), made) > 8
    assert all(snr(made, run(target, level)) > alike for level in LEVELS[1:])


def test_blocks_of_four_bits_are_what_their_definition_says(tmp_path: Path) -> None:
    """Unit vectors read the weight off a MatMulNBits; the depth is no multiple of the block."""
    k, n, block = 40, 3, 16
    weight = np.random.default_rng(0).normal(size=(k, n)).astype(np.float32)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    x, y = (onnx.helper.make_tensor_value_info(name, 1, [k, size]) for name, size in (("x", k), ("y", n)))
    graph = onnx.helper.make_graph([node], "g", [x], [y], [onnx.numpy_helper.from_array(weight, "w")])
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "m.onnx",
    )
    model = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", weight="int4", input="float32", block=block)
    assert [node.op for node in model.graph.nodes] == ["MatMulNBits"]
    session = onnxruntime.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.eye(k, dtype=np.float32)})
    for at in range(0, k, block):
        part = weight[at : at + block]
        scale = np.abs(part).max(0) / np.float32(7)
        np.testing.assert_allclose(found[at : at + block], np.rint(part / scale) * scale, rtol=1e-6)


@pytest.mark.parametrize("block", [48, 101])
def test_blocks_of_any_length_keep_their_scales_in_a_large_weight(block: int, tmp_path: Path) -> None:
    """Weights of several hundred thousand numbers are read in parts, which must not divide a block."""
    scales = 10.0 ** np.random.default_rng(3).integers(-3, 3, -(-520 // block))
    weight = np.random.default_rng(4).uniform(-1, 1, (520, 1024)) * np.repeat(scales, block)[:520, None]
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g (float[1,520] x) => (float[1,1024] y) { y = MatMul(x,w) }'
    )
    proto = parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), "w"))
    onnx.save(proto, tmp_path / "m.onnx")
    model = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", weight="int8", input="float32", block=block)
    stored = {name: tensor.array() for name, tensor in model.graph.initializers.items()}
    steps = np.repeat(stored["w_scale"], block, 0)[:520]
    assert (np.abs(stored["w_quantized"] * steps - weight) <= 0.51 * steps).all()


def test_tiny_values_behind_a_clip_stay_what_they_are(tmp_path: Path) -> None:
    """onnxruntime takes ends of ranges below float32's epsilon for the same, and drops the Clip."""
    helper = onnx.helper
    nodes = [
        helper.make_node("Clip", ["x", "low", "high"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, 1, [1, 2]) for name in "xy")
    stored = {"low": np.float32(0), "high": np.float32(6), "w": np.eye(2, dtype=np.float32)}
    tensors = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), source)
    model = reader.read(str(source))
    known = shapes.infer(model).values
    choices = choose(find_layers(model, known), QuantizeSpec())
    grids = Grids(dict.fromkeys(list_range_uses(choices), (0.0, 1e-8)))
    writer.write(quantize_model(model, choices, grids, known), str(target))
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.array([[-1e-8, 1e-8]], np.float32)})
    assert abs(found[0, 0]) < 1e-12
    assert found[0, 1] == pytest.approx(1e-8)
