"""Quantized operands of a product: finds their codes, their scales and their zero points.

The input of a DequantizeLinear holds codes. A call of QONNX's IntQuant returns floats, (code - zero point) x
scale. Tiles multiply codes, so these floats are converted back to codes minus the zero point. A tiled graph
does this for activations when it runs. Stored weights are converted while the file is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.model import DerivedPayload, Node, Tensor
from explorer.engine.tiling.accumulator import CodeRange
from explorer.engine.tiling.builder import GraphBuilder
from explorer.engine.tiling.kinds import integer
from explorer.engine.tiling.sites import NoSite, Site, SiteContext

Array = np.ndarray[Any, np.dtype[Any]]

_QONNX = "qonnx.custom_op.general"

_STORAGE_TYPES = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8"}
"""Type in which tiles store codes of less than 8 bits, by the type of the codes."""


class QuantizedOperand(Struct, frozen=True):
    """An operand that was quantized.

    Attributes:
        node: The DequantizeLinear, or the call of IntQuant.
        name: Value name of the codes, or '' if the codes have too many bits for tiles. If the graph lacks the
            value, `SiteContext.codes` has its type.
        scale: The scale: one number, or one for each index along `axis`.
        zero: The zero points, in the shape of `scale`. 0 for IntQuant, whose codes do not contain them.
        axis: The axis along which scales differ; negative if it counts from the end. Unused for one scale.
        code_range: Range of the codes, or None for the range of their type.
        floats: Value name of the floats from which the codes are computed at run time; '' if the codes exist.
        dtype: Type of codes that are computed at run time, or ''.
    """

    node: Node
    name: str
    scale: Array
    zero: Array
    axis: int
    code_range: CodeRange | None = None
    floats: str = ""
    dtype: str = ""


def find_quantized_operand(context: SiteContext, name: str) -> QuantizedOperand | None:
    """Returns the quantization of a value, or None if tiles cannot use it or the value is not quantized.

    Codes that the graph lacks are registered in `context`.
    """
    node = context.constants.producers.get(name)
    if node is not None and node.op == "IntQuant" and node.domain == _QONNX:
        return _read_int_quant(context, node)
    if node is None or node.op != "DequantizeLinear" or node.attributes.get("block_size"):
        return None
    scale = integer.read_stored_values(context, node.inputs[1])
    zero_name = node.inputs[2] if len(node.inputs) > 2 else ""
    zero = integer.read_stored_values(context, zero_name) if zero_name else np.zeros((), np.int8)
    if scale is None or zero is None or scale.dtype != np.float32 or scale.ndim > 1:
        return None
    axis = int(node.attributes.get("axis", 1))
    operand = QuantizedOperand(node, node.inputs[0], scale, zero, axis)
    codes = integer.read_stored_values(context, operand.name) if operand.name in context.constants else None
    dtype = integer.get_operand_type(context, operand.name)
    if codes is None or dtype not in _STORAGE_TYPES:
        return operand
    storage_type = _STORAGE_TYPES[dtype]
    bits = int(dtype[-1])
    code_range = (0, (1 << bits) - 1) if dtype[0] == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    name = f"{operand.name}/codes"
    _register_codes(
        context,
        name,
        storage_type,
        codes.shape,
        lambda: _read_stored_numbers(context, operand.name).astype(storage_type),
    )
    context.codes[name] = storage_type, node.outputs[0]
    return replace(operand, name=name, code_range=code_range, zero=zero.astype(np.int32))


def is_stored(context: SiteContext, name: str) -> bool:
    """Whether a value is stored, or an IntQuant of a stored value."""
    producer = context.constants.producers.get(name)
    is_call = producer is not None and producer.op == "IntQuant" and producer.domain == _QONNX
    return (producer.inputs[0] if is_call and producer is not None else name) in context.constants


def _read_stored_numbers(context: SiteContext, name: str) -> Array:
    values = integer.read_stored_values(context, name)
    assert values is not None
    return values


def _register_codes(
    context: SiteContext, name: str, dtype: str, shape: tuple[int, ...], make: Callable[[], Array]
) -> None:
    """Registers the codes of a stored operand under a name, once for all sites that share the operand."""
    if name in context.constants.derived:
        return
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    payload = DerivedPayload(size, lambda: np.ascontiguousarray(make().astype(dtype)).tobytes())
    context.constants.derived[name] = Tensor(name, dtype, shape, payload), tuple(range(len(shape)))


def _read_int_quant(context: SiteContext, node: Node) -> QuantizedOperand | None:
    """Returns the operand that an IntQuant quantizes, or None if its parameters are computed or too fine.

    Its codes do not contain the zero point.
    """
    parameters = [integer.read_stored_values(context, name) for name in node.inputs[1:]]
    if len(parameters) != 3 or any(values is None for values in parameters):
        return None
    scale, zeros, bits = (values.astype(np.float32) for values in parameters if values is not None)
    zero = integer.simplify_equal_values(zeros)
    if not isinstance(zero, int) or bits.size != 1 or sum(size > 1 for size in scale.shape) > 1:
        return None
    code_range = get_code_range(node, int(bits.reshape(-1)[0]), zero)
    dtype = next((d for d in ("int8", "uint8", "int16", "uint16") if _can_hold(d, code_range)), "")
    value = node.outputs[0]
    name = f"{value}/codes" if dtype else ""
    axis = next((index - scale.ndim for index, size in enumerate(scale.shape) if size > 1), 1)
    input_values = integer.read_stored_values(context, node.inputs[0])
    steps = scale.reshape(-1) if scale.size > 1 else scale.reshape(())
    operand = QuantizedOperand(node, name, steps, np.zeros((), np.int8), axis, code_range)
    if not dtype:
        return operand
    context.codes[name] = dtype, value
    if input_values is not None:
        make = partial(_compute_codes, context, node.inputs[0], scale, zero, code_range)
        _register_codes(context, name, dtype, input_values.shape, make)
        return operand
    return replace(operand, floats=value, dtype=dtype)


def _can_hold(dtype: str, code_range: CodeRange) -> bool:
    limits = np.iinfo(dtype)
    return bool(limits.min <= code_range[0] and code_range[1] <= limits.max)


def get_code_range(node: Node, bits: int, zero: int) -> CodeRange:
    """Returns the smallest and the largest code of an IntQuant, minus its zero point."""
    narrow, half = int(node.attributes.get("narrow", 0)), 1 << (bits - 1)
    if node.attributes.get("signed", 1):
        return narrow - half - zero, half - 1 - zero
    return -zero, 2 * half - 1 - narrow - zero


def _compute_codes(context: SiteContext, name: str, scale: Array, zero: int, code_range: CodeRange) -> Array:
    """Computes codes in float32, with the operations of IntQuant's function body in the same order."""
    values = _read_stored_numbers(context, name).astype(np.float32)
    shifted = values / scale + np.float32(zero)
    codes: Array = np.rint(np.clip(shifted, code_range[0] + zero, code_range[1] + zero)) - zero
    return codes


def convert_to_codes(site: Site, operands: Sequence[QuantizedOperand]) -> Site:
    """Returns a site that converts its float inputs to codes at run time; `site` itself if it has none.

    Raises:
        NoSite: The tiled graph would cut codes that are computed only while the file is written.
    """
    computed: Mapping[str, QuantizedOperand] = {o.name: o for o in operands if o.floats}
    if any(o.name in site.inputs for o in operands if not o.floats and o.name != o.node.inputs[0]):
        raise NoSite("its weight is cut at run time, but its codes are computed while the file is written")
    if not computed:
        return site
    left, right, gather_rows = site.left, site.right, site.gather_rows

    def write_codes(builder: GraphBuilder, inputs: Sequence[str], index: int, label: str) -> list[str]:
        operand = computed.get(site.inputs[index])
        names = list(inputs)
        if operand is not None:
            step = builder.add_number(float(operand.scale.reshape(-1)[0]), np.float32, f"{label}_step")
            quotient = builder.add("Div", (inputs[index], step), f"{label}_steps")
            if builder.emission.opset >= 11:  # IntQuant runs in no older operator set, which has no Round
                quotient = builder.add("Round", (quotient,), f"{label}_whole")
            names[index] = builder.cast(quotient, operand.dtype, f"{label}_codes")
        return names

    right_index = min(1, len(site.inputs) - 1)
    return replace(
        site,
        inputs=tuple(computed[name].floats if name in computed else name for name in site.inputs),
        left=lambda builder, inputs: left(builder, write_codes(builder, inputs, 0, "x")),
        gather_rows=None
        if gather_rows is None
        else lambda builder, inputs: gather_rows(builder, write_codes(builder, inputs, 0, "x")),
        right=right
        if isinstance(right, Struct)
        else lambda builder, inputs: right(builder, write_codes(builder, inputs, right_index, "w")),
    )
