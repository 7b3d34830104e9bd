"""Integers with a scale, held against onnxruntime's own QuantizeLinear."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from explorer.base.errors import Misuse
from explorer.engine.quantize.number_formats import format_of
from explorer.engine.quantize.number_formats.number_format import Grid

TYPES = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int16": TensorProto.INT16}


def through_the_runtime(values: np.ndarray, grid: Grid, name: str) -> np.ndarray:
    """QuantizeLinear and DequantizeLinear as onnxruntime runs them."""
    import onnxruntime

    axis = 0 if grid.axis is None else grid.axis
    zero = np.asarray(grid.zero).astype(name)
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=axis),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=axis),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, values.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, values.shape)],
        [
            helper.make_tensor("s", TensorProto.FLOAT, grid.scale.shape, grid.scale.ravel()),
            helper.make_tensor("z", TYPES[name], zero.shape, zero.ravel()),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": values})[0]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("name", sorted(TYPES))
def test_an_integer_rounds_as_the_runtime_does(name: str, symmetric: bool) -> None:
    values = np.random.default_rng(0).normal(0, 3, (5, 400)).astype(np.float32)
    values[0, :4] = [0, -0.0, 1e30, -1e30]
    number_format = format_of(name)
    for axis in (None, 0):
        low, high = (
            (np.float32(-4), np.float32(6)) if axis is None else (values[:, 4:].min(1), values[:, 4:].max(1))
        )
        grid = number_format.grid(low, high, axis=axis, symmetric=symmetric)
        assert np.array_equal(number_format.rounded(values, grid), through_the_runtime(values, grid, name))


def test_a_channel_of_zeros_stays_zero() -> None:
    values = np.zeros((2, 3), np.float32)
    values[1] = [1e-42, 0, -1e-42]
    number_format = format_of("int8")
    grid = number_format.grid(values.min(1), values.max(1), axis=0)
    assert np.isfinite(grid.scale).all()
    assert (grid.scale > 0).all()
    assert np.array_equal(number_format.rounded(values, grid), np.zeros_like(values))


def test_a_format_that_is_none_is_one_line_with_what_was_meant() -> None:
    with pytest.raises(Misuse, match="there is no number format 'int9'"):
        format_of("int9")
