"""Quantization and dequantization, and quantized operators that are not matrix products."""

from __future__ import annotations

from msgspec.structs import replace

from explorer.engine.graph.layouts import MS
from explorer.engine.graph.model import DTYPES
from explorer.engine.operators.call import Answer, Call
from explorer.engine.operators.cost_formulas import ELEMENTWISE
from explorer.engine.operators.cost_rules import UNPACKING_REASON, from_table, per_output, unknown_cost
from explorer.engine.operators.onnx.movement import concat
from explorer.engine.operators.operator import Operator, blocked
from explorer.engine.operators.shape_rules import broadcast_inputs, like, normalize_axis
from explorer.engine.symbolic import dimensions as dims


def _quantize_shape(call: Call) -> Answer:
    code = call.attributes.get("output_dtype", 0)
    dtype = DTYPES[code].name if code else call.dtype(2) if call.has(2) else "uint8"
    return ((dtype, call.shape_or_none(0)),)


def _dequantize_shape(call: Call) -> Answer:
    code = call.attributes.get("output_dtype", 0)
    # before opset 19, the output type was always float32
    return (
        (
            DTYPES[code].name if code else call.dtype(1) if call.opset >= 19 else "float32",
            call.shape_or_none(0),
        ),
    )


def _dynamic_shape(call: Call) -> Answer:
    return (("uint8", call.shape_or_none(0)), ("float32", ()), ("uint8", ()))


def _cast_back(call: Call) -> Answer:
    """Infers the output type of DequantizeWithOrder: that of the attribute `to`, by default float32."""
    code = call.attributes.get("to", 1)
    return ((DTYPES[code].name, call.shape_or_none(0)),) if code in DTYPES else None


def _quantized_concat(call: Call) -> Answer:
    """Infers the output type of QLinearConcat.

    Its inputs are the scale and the zero point of the result, then (input, scale, zero) triples.
    """
    answer = concat(replace(call, inputs=call.inputs[2::3], opset=21))
    return answer and ((call.dtype(1), answer[0][1]),)


def _gather_blocks(call: Call) -> Answer:
    """Infers the output type of GatherBlockQuantized. A byte of its table may hold several values."""
    table, index = call.shape_or_none(0), call.shape_or_none(1)
    if table is None or index is None:
        return ((call.dtype(2), None),)
    if call.dtype(0) == "uint8":
        table = (*table[:-1], dims.multiply(table[-1], 8 // call.integer("bits", 4)))
    axis = normalize_axis(call.integer("gather_axis", 0), len(table))
    return ((call.dtype(2), (*table[:axis], *index, *table[axis + 1 :])),)


def _gather_packed(call: Call) -> Answer:
    """Infers the output type of GatherPacked: each row of the table has K values in a packed format."""
    index, code = call.shape_or_none(1), call.integer("output_dtype", 16)
    dtype = DTYPES[code].name if code in DTYPES else None
    return ((dtype, None if index is None else (*index, call.integer("K", -1))),)


OPERATORS = (
    Operator(
        "QuantizeLinear",
        from_table("quantize"),
        shape=_quantize_shape,
        gradient=blocked,
        position="each",
        quantized=True,
        same_parameter=True,
    ),
    Operator("QuantizeLinear", from_table("quantize"), MS, _quantize_shape),
    Operator(
        "DequantizeLinear",
        from_table("dequantize"),
        shape=_dequantize_shape,
        gradient=blocked,
        position="each",
        quantized=True,
        same_parameter=True,
    ),
    Operator("DequantizeLinear", from_table("dequantize"), MS, like(0, dtype=1)),
    Operator(
        "DynamicQuantizeLinear",
        per_output(5, "min, max, divide, round, add"),
        shape=_dynamic_shape,
        gradient=blocked,
    ),
    Operator("QuantizeWithOrder", per_output(2, "divide, round"), MS, like(0, dtype="int8")),
    Operator("DequantizeWithOrder", per_output(1, "multiply"), MS, _cast_back),
    Operator("QuantizeBFP", per_output(3, "largest of the block, shift, round"), MS),
    Operator("DequantizeBFP", per_output(1, "shift"), MS),
    Operator(
        "GatherBlockQuantized", from_table("dequantize"), MS, _gather_blocks, packed=(((0,), ("bits",), 4),)
    ),
    Operator("GatherPacked", unknown_cost(UNPACKING_REASON, products=False), MS, _gather_packed, rows=(0,)),
    Operator("QLinearAdd", per_output(8, "dequantize both, add, quantize"), MS, broadcast_inputs(0, 3)),
    Operator("QLinearMul", per_output(8, "dequantize both, multiply, quantize"), MS, broadcast_inputs(0, 3)),
    Operator(
        "QLinearWhere", per_output(6, "choose, dequantize, quantize"), MS, broadcast_inputs(0, 1, 4, dtype=1)
    ),
    Operator(
        "QLinearLeakyRelu QLinearSigmoid QOrderedGelu",
        per_output(6, "dequantize, activate, quantize"),
        MS,
        like(0),
    ),
    Operator(
        "QLinearSoftmax", per_output(10, f"dequantize, {ELEMENTWISE['softmax'][1]}, quantize"), MS, like(0)
    ),
    Operator("QLinearConcat", per_output(5, "dequantize, quantize"), MS, _quantized_concat),
    Operator(
        "MulInteger",
        per_output(3, "subtract both zero points, multiply"),
        MS,
        broadcast_inputs(0, 2, dtype="int32"),
    ),
)
