"""The accumulator that is said to be needed: there is an input that needs it, and none that needs more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import explorer
from explorer.facts.quantize import QuantizedLayer, QuantizeSpec

RANDOM = np.random.default_rng(3)


def one_layer(path: Path, op: str, weight: np.ndarray, bias: np.ndarray | None, **attributes: Any) -> str:
    """A model of one layer, whose input is 2 x K, or an image."""
    shapes = {"Conv": ([1, 3, 6, 6], [1, weight.shape[0], 4, 4])}
    depth, columns = weight.shape[::-1] if attributes.get("transB") else weight.shape[:2]
    x, y = shapes.get(op, ([2, depth], [2, columns]))
    stored = {"w": weight} | ({} if bias is None else {"b": bias})
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *stored], ["y"], **attributes)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in stored.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return str(path)


def quantized(model: str, output: Path, **spec: Any) -> QuantizedLayer:
    with explorer.Session(model) as session:
        return session.quantize(QuantizeSpec(**spec), output=str(output)).layers[0]


def codes_of(path: Path) -> tuple[np.ndarray, np.ndarray, int, tuple[int, int]]:
    """Of a written layer: weights less their zero points, the bias, the input's zero point and its ends."""
    graph = onnx.load(path).graph
    stored = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    made = {out: node for node in graph.node for out in node.output}
    layer = next(node for node in graph.node if node.op_type in ("Gemm", "MatMul", "Conv"))
    weight, zero = (stored[name] for name in (made[layer.input[1]].input[i] for i in (0, 2)))
    axis = next((a.i for a in made[layer.input[1]].attribute if a.name == "axis"), 1)
    wide = zero.astype(np.int64)
    wide = wide.reshape([-1 if at == axis else 1 for at in range(weight.ndim)]) if wide.ndim else wide
    bias = stored[made[layer.input[2]].input[0]] if len(layer.input) > 2 else np.zeros((), np.int32)
    given = stored[made[layer.input[0]].input[2]]
    ends = np.iinfo(given.dtype)
    return weight.astype(np.int64) - wide, bias.astype(np.int64), int(given), (ends.min, ends.max)


def extremes(weight: np.ndarray, bias: np.ndarray, zero: int, ends: tuple[int, int]) -> tuple[int, int]:
    """The least and largest sums of K x N weights, one product after the other."""
    found = []
    for column in range(weight.shape[1]):
        for best in (min, max):
            total = int(np.broadcast_to(bias, weight.shape[1:])[column])
            for code in weight[:, column].tolist():
                total += best(code * (end - zero) for end in ends)
            found.append(total)
    return min(found), max(found)


def holds(bits: int, value: int) -> bool:
    return -(1 << (bits - 1)) <= value <= (1 << (bits - 1)) - 1


@pytest.mark.sampled(5)
@pytest.mark.parametrize("weight_format", ["int8", "int16"])
@pytest.mark.parametrize("given", ["int8", "uint8"])
@pytest.mark.parametrize("layer", ["MatMul", "Gemm", "Gemm transB", "Conv"])
def test_some_input_needs_all_the_bits_and_none_needs_more(
    tmp_path: Path, layer: str, given: str, weight_format: str
) -> None:
    op, turned = layer.split()[0], "transB" in layer
    shape = {"Conv": (5, 3, 3, 3)}.get(op, (7, 300) if turned else (300, 7))
    weight = RANDOM.normal(0, 1, shape) + 0.3
    bias = None if op == "MatMul" else RANDOM.normal(0, 50, 5 if op == "Conv" else 7)
    model = one_layer(tmp_path / "m.onnx", op, weight, bias, **({"transB": 1} if turned else {}))
    output = tmp_path / "q.onnx"
    found = quantized(model, output, weight=weight_format, input=given, symmetric=given == "int8").accumulator
    codes, offset, zero, ends = codes_of(output)
    matrix = codes.reshape(codes.shape[0], -1).T if op == "Conv" or turned else codes
    low, high = extremes(matrix, offset, zero, ends)
    assert found is not None
    assert found.depth == matrix.shape[0]
    assert found.reach in (low, high)
    assert abs(found.reach) == max(-low, high)
    assert holds(found.bits, low)
    assert holds(found.bits, high)
    assert not (holds(found.bits - 1, low) and holds(found.bits - 1, high))
    assert found.bits_any >= found.bits - 1  # which knows of no bias


def test_layers_that_an_accumulator_is_too_narrow_for_are_named(tmp_path: Path) -> None:
    model = one_layer(tmp_path / "m.onnx", "MatMul", RANDOM.normal(0, 1, (300, 7)), None)
    wide = quantized(model, tmp_path / "q.onnx").accumulator
    assert wide is not None
    with explorer.Session(model) as session:
        narrow = session.quantize_choice(QuantizeSpec(accumulator=wide.bits - 1))
        assert narrow.overflows == ()  # no weight was looked at
    for bits, named in ((wide.bits - 1, 1), (wide.bits, 0)):
        with explorer.Session(model) as session:
            unmeasured = session.quantize(QuantizeSpec(accumulator=bits), report=False)
            session.undo()
            fact = session.quantize(QuantizeSpec(accumulator=bits))
            assert len(fact.overflows) == len(unmeasured.overflows) == named
            assert fact.accumulator_bits == bits
            assert f"--accumulator {bits}" in fact.command
