"""Sites of integer matmuls (MatMulInteger, QLinearMatMul, QGemm) and convolutions (ConvInteger, QLinearConv).

The tiles multiply the stored codes and add them in int32. The matrix unit does not subtract zero points. The
graph uses this identity, where a and b are the zero points of the operands:

    sum (x - a) (w - b)  =  sum x w  -  a sum w  -  b sum (x - a)

If W is stored and a is a constant, the term a sum w is a constant that is added to the bias. Separate nodes
compute the terms that depend on data, as a vector unit would. Tiles are padded with zero, images with their
zero point. QLinearMatMul, QGemm and QLinearConv then multiply the sum by their scales, in onnxruntime's
order, and round it once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.model import Node
from explorer.engine.tiling.accumulator import CodeRange, find_accumulator
from explorer.engine.tiling.builder import GraphBuilder
from explorer.engine.tiling.emit.weights import create_column_sums
from explorer.engine.tiling.kinds.conv import find_convolution_site
from explorer.engine.tiling.kinds.convolution_windows import KernelBlocks
from explorer.engine.tiling.kinds.linear import find_product_site
from explorer.engine.tiling.sites import (
    INT16_TYPES,
    Kinds,
    NoSite,
    OperandBuilder,
    Site,
    SiteContext,
    UntiledProduct,
    Weight,
)
from explorer.facts.quantize import Accumulator

Array = np.ndarray[Any, np.dtype[Any]]

BYTES = ("uint8", "int8")
"""Element types that integer operators multiply."""

CODES = (*BYTES, *INT16_TYPES)
"""Element types that can be tiled."""

Zero = int | Array | str
"""A zero point: a number, an array with one per row or column, or the name of a computed zero point."""

Expand = Callable[[Array], Array]
"""Converts values to the product's shape."""


class Terms(Struct, frozen=True):
    """The zero points and the bias of a product.

    Attributes:
        a, b: The zero points of the left and right operand.
        bias: The bias in int32, for each column or as a matrix, or None if there is none or it is computed.
        bias_name: Value name of a computed bias, or ''.
        x, w: Ranges of the operands' codes, or None for the ranges of their types.
    """

    a: Zero = 0
    b: Zero = 0
    bias: Array | None = None
    bias_name: str = ""
    x: CodeRange | None = None
    w: CodeRange | None = None


class Columns(Struct, frozen=True):
    """Converts values to the shape of the product, (M, N) or (batch, M, N).

    Attributes:
        channels: Converts values of the weight's channels: an array with one for each, or with one for all.
        bias: Converts a bias in the operator's shape.
        count: For a convolution, number of columns of all groups in one phase; 0 for other operators.
    """

    channels: Expand
    bias: Expand
    count: int = 0


WriteOutput = Callable[[GraphBuilder, str, Columns], str]
"""Writes the nodes from the int32 sum to values of the output's type."""


def read_stored_values(context: SiteContext, name: str) -> Array | None:
    """Returns the contents of a stored value, or None if it is computed."""
    resolved = context.constants.resolve(name)
    if resolved is None or resolved[0].payload is None:
        return None
    tensor, _, axes, _ = resolved
    return tensor.array().transpose(axes)


def _read_zero_point(context: SiteContext, name: str) -> Zero:
    """Returns a zero point: 0, its stored values, or its value name."""
    if not name:
        return 0
    values = read_stored_values(context, name)
    if values is None:
        return name
    return simplify_equal_values(values)


def simplify_equal_values(values: Array) -> int | Array:
    """Returns a single number if all values are equal, else the values as a flat int64 array."""
    flat = values.reshape(-1).astype(np.int64)
    return int(flat[0]) if (flat == flat[0]).all() else flat


def _get_input(node: Node, index: int) -> str:
    return node.inputs[index] if len(node.inputs) > index else ""


def build_integer_site(
    node: Node,
    context: SiteContext,
    base: Site,
    terms: Terms,
    write_output: WriteOutput | None,
    columns: Columns | None = None,
) -> Site:
    """Builds the site of an integer operator from the site of the same operator on floats.

    Args:
        node: The operator.
        context: The graph around it.
        base: The site of a Gemm, MatMul, Conv, ConvTranspose or Einsum of the same operands. Its `finish`
            must only move elements.
        terms: Zero points and bias.
        write_output: Writes the nodes after the sum, or None if the sum is the output.
        columns: Converts values of channels and of the bias to the product's shape, or None for the
            operator's default.

    Raises:
        NoSite: The weight's type, or the zero points of packed kernels, cannot be tiled.
    """
    site_inputs = list(base.inputs)
    right_dtype = (
        base.weight.tensor.dtype if base.weight is not None else get_operand_type(context, base.inputs[-1])
    )
    if right_dtype not in CODES:
        raise NoSite(f"its weight has type {right_dtype}, but only {', '.join(CODES)} can be tiled")
    base = replace(base, other_right_dtype=right_dtype if right_dtype != base.dtype else "")
    input_index: dict[str, int] = {}
    for name in (terms.a, terms.b, terms.bias_name):
        if isinstance(name, str) and name and name not in input_index:
            input_index[name] = len(site_inputs)
            site_inputs.append(name)
    if base.weight is not None and isinstance(base.weight.compute_block, KernelBlocks) and np.any(terms.b):
        has_groups = base.weight.compute_block.window.groups.count > 1
        if isinstance(terms.b, str) or (has_groups and not isinstance(terms.b, int)):
            raise UntiledProduct("its kernels have more than one zero point")
        if isinstance(terms.b, int):
            base = replace(base, right=_fill_zero(base.weight, terms.b))
    converter = columns or get_default_columns(base, context)

    def finish(builder: GraphBuilder, z: str, inputs: Sequence[str]) -> str:
        z = _add_corrections(builder, z, inputs, input_index, base, terms, converter)
        if write_output is not None:
            z = write_output(builder, z, converter)
        return base.finish(builder, z, inputs)

    return replace(
        base,
        node=node,
        inputs=tuple(site_inputs),
        finish=finish,
        has_bias=False,
        find_accumulator=cache(lambda: _find_needed_accumulator(base, terms, converter, right_dtype)),
    )


def _find_needed_accumulator(base: Site, terms: Terms, converter: Columns, right_dtype: str) -> Accumulator:
    """Computes the accumulator that the sums need. Computed zero points count as 0."""
    a = terms.a if isinstance(terms.a, int) else 0
    b = 0 if isinstance(terms.b, str) else terms.b
    bias = 0 if terms.bias is None else converter.bias(terms.bias.astype(np.int64))
    limits = [
        ends or (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        for ends, dtype in ((terms.x, base.dtype), (terms.w, right_dtype))
    ]
    right = base.weight or limits[1]
    zeros = converter.channels(b) if isinstance(b, np.ndarray) else b
    accumulator = find_accumulator(base.K, limits[0], a, right, zeros, bias, limits[1])
    if not converter.count:
        return accumulator
    return replace(accumulator, channel=accumulator.channel % converter.count)


def _fill_zero(weight: Weight, zero: int) -> Weight:
    """Returns a weight cut from kernels, with the zero point instead of 0 between the blocks of its groups.

    The padding of its tiles stays 0.
    """
    assert isinstance(weight.compute_block, KernelBlocks)
    kernel_blocks = replace(weight.compute_block, zero=zero)

    def compute_block(matrix: int, k: int, n: int, height: int, width: int) -> Array:
        block = kernel_blocks(matrix, k, n, height, width)
        block[max(0, weight.K - k) :] = 0
        block[:, max(0, weight.N - n) :] = 0
        return block

    return replace(weight, compute_block=compute_block, layout=(*weight.layout, zero))


def get_operand_type(context: SiteContext, name: str) -> str | None:
    """Returns the element type of a stored or computed value, or None if unknown."""
    resolved = context.constants.resolve(name)
    return resolved[0].dtype if resolved is not None else context.get_dtype(name)


def get_default_columns(base: Site, context: SiteContext, *, swapped: bool = False) -> Columns:
    """Returns the default conversion: repeated for each pack and phase of a convolution, unchanged otherwise.

    Args:
        base: The site of the operator on floats.
        context: The graph around it.
        swapped: Whether the weight was on the left, so that the product is transposed, and so is its bias.
    """
    if base.node.op in ("Conv", "ConvTranspose"):
        channels = (context.find_shape(base.node.outputs[0]) or (0, base.N))[1]
        packs = -(-channels // base.N)

        def repeat_per_channel(values: Array) -> Array:
            """Repeats the values of the channels for every pack of groups in every phase."""
            if values.size == 1:
                return values
            # the groups of a transposed convolution share their scales
            values = np.resize(values, channels)
            if base.batch == 1:
                return values
            padded_values = np.zeros(packs * base.N, values.dtype)
            padded_values[:channels] = values
            return np.tile(padded_values.reshape(packs, 1, base.N), (base.batch // packs, 1, 1))

        return Columns(repeat_per_channel, repeat_per_channel, packs * base.N)
    if not swapped:
        return Columns(lambda values: values, lambda values: values)
    return Columns(lambda values: values, lambda values: np.atleast_2d(values).T if values.ndim else values)


def _add_corrections(
    builder: GraphBuilder,
    z: str,
    inputs: Sequence[str],
    input_index: Mapping[str, int],
    base: Site,
    terms: Terms,
    converter: Columns,
) -> str:
    """Adds the bias to the sum, and subtracts the terms of the zero points."""
    a, b, dtype = terms.a, terms.b, base.accumulator
    right = base.right
    bias_terms = np.zeros(1, np.int64) if terms.bias is None else converter.bias(terms.bias.astype(np.int64))
    sums: Array | None = None
    if isinstance(right, Weight) and not (isinstance(a, int) and a == 0):
        sums = create_column_sums(right)
        if base.stacked:
            sums = sums.reshape(-1, 1, right.N)
        if isinstance(a, int) and not terms.bias_name:
            bias_terms = bias_terms - a * sums
    if bias_terms.any():
        z = builder.add("Add", (z, _write_integer_constant(builder, bias_terms, "bias", dtype)), "biased")
    if terms.bias_name:
        z = builder.add("Add", (z, inputs[input_index[terms.bias_name]]), "bias_added")
    has_left_term = not (isinstance(a, int) and (a == 0 or (sums is not None and not terms.bias_name)))
    has_right_term = not (isinstance(b, int) and b == 0)
    zero = ""
    if has_left_term or has_right_term:
        zero = _write_zero_point(builder, a, inputs, input_index, "x_zero", dtype, column=True)
    if zero and has_left_term:
        if sums is not None:
            column_terms = _write_integer_constant(builder, sums, "w_sums", dtype)
        else:
            assert not isinstance(right, Weight)
            column_terms = _write_operand_sums(builder, right, inputs, base, 0, "w", "")
        if isinstance(a, int):
            # added as a negative term: if W is stored, a runtime can fold it into the bias
            minus = _write_integer_constant(builder, np.asarray(-a), "x_zero_less", dtype)
            correction = builder.add("Mul", (minus, column_terms), "x_zero_worth")
            z = builder.add("Add", (z, correction), "x_zero_off")
        else:
            correction = builder.add("Mul", (zero, column_terms), "x_zero_worth")
            z = builder.add("Sub", (z, correction), "x_zero_off")
    if has_right_term:
        b = converter.channels(b) if isinstance(b, np.ndarray) else b
        zero_value = _write_zero_point(builder, b, inputs, input_index, "w_zero", dtype, column=False)
        row_sums = _write_operand_sums(builder, base.left, inputs, base, 1, "x", zero)
        correction = builder.add("Mul", (row_sums, zero_value), "w_zero_worth")
        z = builder.add("Sub", (z, correction), "w_zero_off")
    return z


def _write_integer_constant(builder: GraphBuilder, values: Array, label: str, dtype: str) -> str:
    """Adds a Constant in the accumulator's type, in which sums wrap around like sums of products."""
    return builder.add_array(np.ascontiguousarray(values.astype(dtype)), label)


def _write_zero_point(
    builder: GraphBuilder,
    zero: Zero,
    inputs: Sequence[str],
    input_index: Mapping[str, int],
    label: str,
    dtype: str,
    *,
    column: bool,
) -> str:
    """Writes a zero point in the accumulator's type; returns '' for zero."""
    if isinstance(zero, str):
        return builder.cast(inputs[input_index[zero]], dtype, label)
    if isinstance(zero, int):
        return _write_integer_constant(builder, np.asarray(zero), label, dtype) if zero else ""
    return _write_integer_constant(builder, zero[:, None] if column else zero, label, dtype)


def _write_operand_sums(
    builder: GraphBuilder,
    write_operand: OperandBuilder,
    inputs: Sequence[str],
    base: Site,
    axis: int,
    label: str,
    zero: str,
) -> str:
    """Writes the sums of an operand along the depth: column sums (axis 0) or row sums (axis 1).

    The summed axis stays, with length 1. `zero` is the value name of a number that is subtracted from every
    element, or ''.
    """
    inner = builder.create_inner(f"{label}_sums")
    matrix = write_operand(inner, inputs)
    builder.nodes += inner.nodes
    wide = builder.cast(matrix, base.accumulator, f"{label}_wide")
    if zero:
        wide = builder.add("Sub", (wide, zero), f"{label}_centred")
    index = axis + (1 if base.stacked else 0)
    return builder.unsqueeze(builder.reduce_sum(wide, index, f"{label}_total"), index, f"{label}_along")


def make_requantization(scale: Array, zero: Array) -> WriteOutput:
    """Returns a function that scales the sum, rounds half to even, adds the zero point, and saturates."""

    def write_output(builder: GraphBuilder, z: str, converter: Columns) -> str:
        z = make_rescaling(scale)(builder, z, converter)
        quantum = builder.add_number(1, np.float32, "quantum")
        point = builder.add_array(zero.reshape(()), "y_zero")
        return builder.add("QuantizeLinear", (z, quantum, point), "requantised")

    return write_output


def make_rescaling(scale: Array) -> WriteOutput:
    """Returns a function that writes the sum times `scale` in float32."""

    def write_output(builder: GraphBuilder, z: str, converter: Columns) -> str:
        z = builder.cast(z, "float32", "y_float")
        values = np.ascontiguousarray(converter.channels(scale if scale.size > 1 else scale.reshape(())))
        return builder.add("Mul", (z, builder.add_array(values, "scale")), "rescaled")

    return write_output


def _read_zero_points(node: Node, context: SiteContext, indices: tuple[int, int]) -> tuple[Zero, Zero]:
    """Returns the zero points of an operator, from the inputs at `indices`."""
    names = [_get_input(node, i) for i in indices]
    a, b = (_read_zero_point(context, name) for name in names)
    if any(isinstance(z, str) and context.find_shape(z, static=True) not in ((), (1,)) for z in (a, b)):
        raise UntiledProduct("its zero points, one for each row or column, are computed")
    if isinstance(a, np.ndarray) and len(context.find_shape(node.inputs[0]) or ()) != 2:
        raise UntiledProduct("it has a zero point for each row of a stack")
    return a, b


def find_float_product(node: Node, context: SiteContext, x: str, w: str, op: str = "MatMul") -> Site:
    """Returns the site of a plain matmul of the codes `x` and `w`, without zero points and scales."""
    attributes = {k: v for k, v in node.attributes.items() if k in ("transA", "transB")}
    return find_product_site(
        Node(op, (x, w), node.outputs, name=node.name, attributes=attributes), context, CODES
    )


def find_float_convolution(node: Node, context: SiteContext, x: str, w: str, zero: Zero) -> Site:
    """Returns the site of a plain convolution of the codes `x` and `w`, with images padded by `zero`."""
    if isinstance(zero, np.ndarray):
        raise UntiledProduct("its images have more than one zero point")
    shape = context.find_shape(zero) if isinstance(zero, str) else ()

    def write_fill(builder: GraphBuilder, inputs: Sequence[str]) -> str:
        if isinstance(zero, int):
            if not zero:
                return ""
            dtype = context.get_dtype(x) or "uint8"
            return builder.add_number(zero, dtype, "x_around_value")
        # the zero point is the input after the operands
        value = inputs[1 if w in context.constants else 2]
        return value if shape == () else builder.reshape(value, (), "x_around_value")

    op = node.op if node.op == "ConvTranspose" else "Conv"
    float_node = Node(op, (x, w), node.outputs, name=node.name, attributes=node.attributes)
    return find_convolution_site(float_node, context, CODES, write_fill)


def _check_weight_is_right(node: Node, context: SiteContext) -> None:
    """Checks that the weight is on the right; on the left, its zero points would belong to rows."""
    if node.inputs[0] in context.constants:
        raise UntiledProduct("the weight is the left operand of an integer product")


def _find_integer_site(node: Node, context: SiteContext) -> Site:
    """Returns the site of a MatMulInteger or ConvInteger, whose inputs are X, W and their zero points."""
    zeros = _read_zero_points(node, context, (2, 3))
    x, w = node.inputs[:2]
    _check_weight_is_right(node, context)
    base = (
        find_float_convolution(node, context, x, w, zeros[0])
        if node.op == "ConvInteger"
        else find_float_product(node, context, x, w)
    )
    return build_integer_site(node, context, base, Terms(*zeros), None)


def _compute_sum_scale(context: SiteContext, node: Node, y: int) -> Array:
    """Computes the factor from the sum to the output, alpha x scale of X x scale of W / scale of Y.

    It is computed in float32 and in onnxruntime's order, per column or as one number.

    Raises:
        UntiledProduct: A scale is computed, zero, or not float32, or X or Y has several scales.
    """
    scales = [read_stored_values(context, _get_input(node, index)) for index in (1, 4, y)]
    if scales[0] is None or scales[1] is None or (scales[2] is None and _get_input(node, y)):
        raise UntiledProduct("its scales are computed")
    if scales[0].size != 1 or (scales[2] is not None and scales[2].size != 1):
        raise UntiledProduct("it has a scale for each row")
    if any(scale_part is not None and scale_part.dtype != np.float32 for scale_part in scales):
        raise UntiledProduct("its scales are not float32")
    if scales[2] is not None and not scales[2].all():
        raise UntiledProduct("its output is divided by a scale of 0")
    scale = np.float32(node.attributes.get("alpha", 1.0)) * scales[0].reshape(-1)[0] * scales[1].reshape(-1)
    if scales[2] is not None:
        scale = scale / scales[2].reshape(-1)[0]
    return np.asarray(scale, np.float32)


def _make_quantized_kind(op: str, bias: int, output_index: int) -> Callable[[Node, SiteContext], Site]:
    """Returns the kind (the function that builds the site) of an operator with quantized inputs.

    Its inputs are X, scale, zero; W, scale, zero; an int32 bias at `bias`; and the scale and zero point of Y
    at `output_index`. Without a zero point, Y is float32: the sum divided by Y's scale if there is one.

    Args:
        op: The corresponding operator on floats.
        bias: Index of the bias among the inputs, or 0 for none.
        output_index: Index of Y's scale among the inputs.
    """

    def build_site(node: Node, context: SiteContext) -> Site:
        if node.attributes.get("channels_last", 0):
            raise UntiledProduct("its channels are the last axis")
        zeros = _read_zero_points(node, context, (2, 5))
        if any(isinstance(zero, str) for zero in zeros):
            raise UntiledProduct("its zero points are computed")
        scale = _compute_sum_scale(context, node, output_index)
        write_output = make_rescaling(scale)
        name = _get_input(node, output_index + 1)
        if name:
            point = read_stored_values(context, name)
            if point is None or point.size != 1 or str(point.dtype) not in BYTES:
                raise UntiledProduct("the zero point of its output is not one stored number")
            write_output = make_requantization(scale, point)
        bias_name = _get_input(node, bias) if bias else ""
        bias_values = read_stored_values(context, bias_name) if bias_name else None
        if bias_name and bias_values is None and op == "Conv":
            raise UntiledProduct("its bias is computed")
        terms = Terms(*zeros, bias=bias_values, bias_name=bias_name if bias_values is None else "")
        x, w = node.inputs[0], node.inputs[3]
        _check_weight_is_right(node, context)
        is_conv = op == "Conv"
        base = (
            find_float_convolution(node, context, x, w, zeros[0])
            if is_conv
            else find_float_product(node, context, x, w, op)
        )
        return build_integer_site(node, context, base, terms, write_output)

    return build_site


KINDS: Kinds = {
    ("", "MatMulInteger"): _find_integer_site,
    ("", "ConvInteger"): _find_integer_site,
    ("", "QLinearMatMul"): _make_quantized_kind("MatMul", 0, 6),
    ("", "QLinearConv"): _make_quantized_kind("Conv", 8, 6),
    ("com.microsoft", "QLinearConv"): _make_quantized_kind("Conv", 8, 6),
    ("com.microsoft", "QGemm"): _make_quantized_kind("Gemm", 6, 7),
}
