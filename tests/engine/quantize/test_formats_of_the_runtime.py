"""What QuantizeLinear and Cast can say, held against onnxruntime's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from explorer.base.errors import Misuse
from explorer.engine.graph.model import get_dtype_code
from explorer.engine.number_formats import find_format
from explorer.engine.number_formats.number_format import Grid, reshape_for_tensor
from tests import stock

LINEAR = (
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int4",
    "uint4",
    "fixed8.4",
    "ufixed8.4",
    "fixed16.8",
    "fixed4.2",
)
FLOATS = ("float8e4m3", "float8e5m2")
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


def run(nodes: list[Any], tensors: list[Any], values: np.ndarray, level: str = LEVELS[-1]) -> np.ndarray:
    """A graph from x to y as onnxruntime runs it."""
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, values.shape) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    return stock.outputs(model.SerializeToString(), {"x": values}, level)[0]


def through_the_runtime(values: np.ndarray, grid: Grid, element_type: str) -> np.ndarray:
    """QuantizeLinear and DequantizeLinear as onnxruntime runs them."""
    axis = 0 if grid.axis is None else grid.axis
    zero = np.asarray(grid.zero).astype(np.float32)
    # what has the type is the zero point
    kind = get_dtype_code(element_type)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=axis),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=axis),
    ]
    tensors = [
        helper.make_tensor("s", TensorProto.FLOAT, grid.scale.shape, grid.scale.ravel()),
        helper.make_tensor(
            "z", kind, zero.shape, zero.ravel() if "float" in element_type else zero.ravel().astype(int)
        ),
    ]
    return run(nodes, tensors, values)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("name", [*LINEAR, *FLOATS])
def test_a_format_of_quantize_linear_rounds_as_the_runtime_does(name: str, symmetric: bool) -> None:
    values = np.random.default_rng(0).normal(0, 3, (5, 400)).astype(np.float32)
    values[0, :4] = [0, -0.0, 1e30, -1e30]
    number_format = find_format(name)
    assert number_format is not None
    assert number_format.writing == "linear"
    for axis in (None, 0):
        low, high = (
            (np.float32(-4), np.float32(6)) if axis is None else (values[:, 4:].min(1), values[:, 4:].max(1))
        )
        grid = number_format.build_grid(low, high, axis=axis, symmetric=symmetric)
        expected = through_the_runtime(values, grid, number_format.element_type)
        assert np.array_equal(number_format.round_values(values, grid), expected)
        scale, zero = (
            reshape_for_tensor(of, values.shape, grid).astype(np.float32) for of in (grid.scale, grid.zero)
        )
        codes = number_format.encode(values, grid).astype(np.float32)
        assert np.array_equal((codes - zero) * scale, expected)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision_rounds_as_a_cast_there_and_back_does(name: str, level: str) -> None:
    values = np.random.default_rng(0).normal(0, 3, 4000).astype(np.float32) * np.float32(1e-6)
    values[:9] = [0, -0.0, 65504, 65519, 65520, -1e9, 3.4e38, 1 / 3, np.inf]
    nodes = [
        helper.make_node("Cast", ["x"], ["q"], to=get_dtype_code(name)),
        helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
    ]
    number_format = find_format(name)
    assert number_format is not None
    expected = run(nodes, [], values, level)
    assert np.array_equal(
        number_format.round_values(values, number_format.build_grid(values, values)), expected
    )


def test_a_channel_of_zeros_stays_zero() -> None:
    values = np.zeros((2, 3), np.float32)
    values[1] = [1e-42, 0, -1e-42]
    number_format = find_format("int8")
    grid = number_format.build_grid(values.min(1), values.max(1), axis=0)
    assert np.isfinite(grid.scale).all()
    assert (grid.scale > 0).all()
    assert np.array_equal(number_format.round_values(values, grid), np.zeros_like(values))


def test_a_format_that_is_none_is_one_line_with_what_was_meant() -> None:
    with pytest.raises(Misuse, match="there is no number format 'int9'"):
        find_format("int9")
