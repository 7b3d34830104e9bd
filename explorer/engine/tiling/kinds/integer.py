"""Products of integers: MatMulInteger, QLinearMatMul, QGemm, and convolutions: ConvInteger, QLinearConv.

The tiles multiply 8-bit numbers as stored and add them in int32; the matrix unit does not know zero points.
With a and b the zero points of the operands,

    sum (x - a) (w - b)  =  sum x w  -  a sum w  -  b sum (x - a)

The column sums of a stored weight are constants, which join the bias. The terms that depend on data are
computed beside the products, as on a vector unit. Tiles are padded with zero, images with their zero point.
The sum is requantized once at the end, multiplied by the scales in onnxruntime's order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.model import Node
from explorer.engine.tiling.accumulator import Ends, reach
from explorer.engine.tiling.builder import GraphBuilder
from explorer.engine.tiling.emit.weights import column_sums
from explorer.engine.tiling.kinds.conv import convolution
from explorer.engine.tiling.kinds.convolution_windows import Kernel
from explorer.engine.tiling.kinds.linear import product
from explorer.engine.tiling.sites import (
    WORDS,
    Kinds,
    LeftAsItWas,
    NoSite,
    OperandBuilder,
    Site,
    SiteContext,
    Weight,
)
from explorer.facts.quantize import Accumulator

Array = np.ndarray[Any, np.dtype[Any]]

BYTES = ("uint8", "int8")
"""Element types that integer operators multiply."""

CODES = (*BYTES, *WORDS)
"""Element types whose products can be tiled."""

Zero = int | Array | str
"""A zero point: one number, one for each row or column, or the value name of a computed one."""

Spread = Callable[[Array], Array]
"""Converts values to the product's shape."""


class Terms(Struct, frozen=True):
    """The zero points and the bias of a product.

    Attributes:
        a, b: The zero points.
        bias: The bias in int32, for each column or as a matrix; None if there is none.
        bias_name: Value name of a computed bias; '' if there is none.
        x, w: The ends of the operands' codes, if narrower than those of their types.
    """

    a: Zero = 0
    b: Zero = 0
    bias: Array | None = None
    bias_name: str = ""
    x: Ends | None = None
    w: Ends | None = None


class Columns(Struct, frozen=True):
    """Converts values to the shape of the product, (M, N) or (batch, M, N).

    Attributes:
        channels: Converts values of the weight's channels: one for each, or one for all.
        bias: Converts a bias in the operator's shape.
        count: The columns of all groups in one phase; 0 if there are no phases.
    """

    channels: Spread
    bias: Spread
    count: int = 0


Tail = Callable[[GraphBuilder, str, Columns], str]
"""Writes the nodes from the int32 sum to values of the output's type."""


def numbers(context: SiteContext, name: str) -> Array | None:
    """The contents of a stored value; None if it is computed."""
    resolved = context.constants.resolve(name)
    if resolved is None or resolved[0].payload is None:
        return None
    tensor, _, axes, _ = resolved
    return tensor.array().transpose(axes)


def _zero_point(context: SiteContext, name: str) -> Zero:
    """A zero point: 0, its stored values, or its value name."""
    if not name:
        return 0
    values = numbers(context, name)
    if values is None:
        return name
    return single(values)


def single(values: Array) -> int | Array:
    """The single number if all values are equal; else the values."""
    flat = values.reshape(-1).astype(np.int64)
    return int(flat[0]) if (flat == flat[0]).all() else flat


def _input(node: Node, at: int) -> str:
    return node.inputs[at] if len(node.inputs) > at else ""


def integral(
    node: Node,
    context: SiteContext,
    base: Site,
    terms: Terms,
    tail: Tail | None,
    columns: Columns | None = None,
) -> Site:
    """The site of an integer operator, from the site of the same operator on floats.

    Args:
        node: The operator.
        context: The graph around it.
        base: The site of a Gemm, MatMul, Conv, ConvTranspose or Einsum of the same operands, whose `finish`
            only moves elements.
        terms: Zero points and bias.
        tail: Writes the nodes after the sum; None if the sum is the output.
        columns: Converts values of channels and of the bias to the product's shape; None for the operator's
            default.
    """
    site_inputs = list(base.inputs)
    right_dtype = (
        base.weight.tensor.dtype if base.weight is not None else operand_type(context, base.inputs[-1])
    )
    if right_dtype not in CODES:
        raise NoSite(f"its weight is of type {right_dtype}, tiled are {', '.join(CODES)}")
    base = replace(base, other=right_dtype if right_dtype != base.dtype else "")
    at: dict[str, int] = {}
    for name in (terms.a, terms.b, terms.bias_name):
        if isinstance(name, str) and name and name not in at:
            at[name] = len(site_inputs)
            site_inputs.append(name)
    if base.weight is not None and base.weight.cut is not None and terms.b != 0:
        if not isinstance(terms.b, int):
            raise LeftAsItWas("more than one zero point of its kernels")
        base = replace(base, right=_fill_zero(base.weight, terms.b))
    converter = columns or columns_of(base, context)

    def finish(builder: GraphBuilder, z: str, inputs: Sequence[str]) -> str:
        z = _add_corrections(builder, z, inputs, at, base, terms, converter)
        if tail is not None:
            z = tail(builder, z, converter)
        return base.finish(builder, z, inputs)

    return replace(
        base,
        node=node,
        inputs=tuple(site_inputs),
        finish=finish,
        bias=False,
        sums=cache(lambda: _needed_accumulator(base, terms, converter, right_dtype)),
    )


def _needed_accumulator(base: Site, terms: Terms, converter: Columns, right_dtype: str) -> Accumulator:
    """The accumulator that the sums need; computed zero points count as 0."""
    a = terms.a if isinstance(terms.a, int) else 0
    b = 0 if isinstance(terms.b, str) else terms.b
    bias = 0 if terms.bias is None else converter.bias(terms.bias.astype(np.int64))
    limits = [
        ends or (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
        for ends, kind in ((terms.x, base.dtype), (terms.w, right_dtype))
    ]
    right = base.weight or limits[1]
    zeros = converter.channels(b) if isinstance(b, np.ndarray) else b
    accumulator = reach(base.K, limits[0], a, right, zeros, bias, limits[1])
    return (
        replace(accumulator, channel=accumulator.channel % converter.count)
        if converter.count
        else accumulator
    )


def _fill_zero(weight: Weight, zero: int) -> Weight:
    """A weight cut from kernels, with the zero point instead of 0 outside of the groups' blocks."""
    assert isinstance(weight.cut, Kernel)
    make = replace(weight.cut, zero=zero)

    def cut(at: int, k: int, n: int, height: int, width: int) -> Array:
        block = make(at, k, n, height, width)
        block[max(0, weight.K - k) :] = 0
        block[:, max(0, weight.N - n) :] = 0
        return block

    return replace(weight, cut=cut, layout=(*weight.layout, zero))


def operand_type(context: SiteContext, name: str) -> str | None:
    """The element type of a stored or computed value; None if unknown."""
    resolved = context.constants.resolve(name)
    return resolved[0].dtype if resolved is not None else context.dtype(name)


def columns_of(base: Site, context: SiteContext, *, turned: bool = False) -> Columns:
    """The default conversion for an operator: per channel for images, by broadcasting for a Gemm.

    If the weight stood on the left, the product is transposed (`turned`).
    """
    if base.node.op in ("Conv", "ConvTranspose"):
        channels = (context.known(base.node.outputs[0]) or (0, base.N))[1]
        packs = -(-channels // base.N)

        def each(values: Array) -> Array:
            """The values for the channels of every pack of groups, in every phase."""
            if values.size == 1:
                return values
            # the groups of a transposed convolution share the scales of their kernels
            values = np.resize(values, channels)
            if base.batch == 1:
                return values
            filled = np.zeros(packs * base.N, values.dtype)
            filled[:channels] = values
            return np.tile(filled.reshape(packs, 1, base.N), (base.batch // packs, 1, 1))

        return Columns(each, each, packs * base.N)
    if not turned:
        return Columns(lambda values: values, lambda values: values)
    return Columns(lambda values: values, lambda values: np.atleast_2d(values).T if values.ndim else values)


def _add_corrections(
    builder: GraphBuilder,
    z: str,
    inputs: Sequence[str],
    at: Mapping[str, int],
    base: Site,
    terms: Terms,
    converter: Columns,
) -> str:
    """The sum with the bias added and the terms of the zero points subtracted."""
    a, b, kind = terms.a, terms.b, base.accumulator
    right = base.right
    added = np.zeros(1, np.int64) if terms.bias is None else converter.bias(terms.bias.astype(np.int64))
    sums: Array | None = None
    if isinstance(right, Weight) and not (isinstance(a, int) and a == 0):
        sums = column_sums(right)
        if base.stacked:
            sums = sums.reshape(-1, 1, right.N)
        if isinstance(a, int) and not terms.bias_name:
            added = added - a * sums
    if added.any():
        z = builder.add("Add", (z, _integer_constant(builder, added, "bias", kind)), "biased")
    if terms.bias_name:
        z = builder.add("Add", (z, inputs[at[terms.bias_name]]), "bias_added")
    worth = not (isinstance(a, int) and (a == 0 or (sums is not None and not terms.bias_name)))
    some = not (isinstance(b, int) and b == 0)
    zero = _zero_value(builder, a, inputs, at, "x_zero", kind, column=True) if worth or some else ""
    if zero and worth:
        if sums is not None:
            below = _integer_constant(builder, sums, "w_sums", kind)
        else:
            assert not isinstance(right, Weight)
            below = _operand_sums(builder, right, inputs, base, 0, "w", "")
        if isinstance(a, int):
            # the stored terms are a constant, which joins the bias
            minus = _integer_constant(builder, np.asarray(-a), "x_zero_less", kind)
            less = builder.add("Mul", (minus, below), "x_zero_worth")
            z = builder.add("Add", (z, less), "x_zero_off")
        else:
            lost = builder.add("Mul", (zero, below), "x_zero_worth")
            z = builder.add("Sub", (z, lost), "x_zero_off")
    if some:
        b = converter.channels(b) if isinstance(b, np.ndarray) else b
        beside = _zero_value(builder, b, inputs, at, "w_zero", kind, column=False)
        across = _operand_sums(builder, base.left, inputs, base, 1, "x", zero)
        lost = builder.add("Mul", (across, beside), "w_zero_worth")
        z = builder.add("Sub", (z, lost), "w_zero_off")
    return z


def _integer_constant(builder: GraphBuilder, values: Array, label: str, kind: str) -> str:
    """A Constant in the accumulator's type, where sums wrap around as in the products."""
    return builder.array(np.ascontiguousarray(values.astype(kind)), label)


def _zero_value(
    builder: GraphBuilder,
    zero: Zero,
    inputs: Sequence[str],
    at: Mapping[str, int],
    label: str,
    kind: str,
    *,
    column: bool,
) -> str:
    """A zero point in the accumulator's type; '' for zero."""
    if isinstance(zero, str):
        return builder.cast(inputs[at[zero]], kind, label)
    if isinstance(zero, int):
        return _integer_constant(builder, np.asarray(zero), label, kind) if zero else ""
    return _integer_constant(builder, zero[:, None] if column else zero, label, kind)


def _operand_sums(
    builder: GraphBuilder,
    make: OperandBuilder,
    inputs: Sequence[str],
    base: Site,
    axis: int,
    label: str,
    zero: str,
) -> str:
    """The sums of an operand along the depth: column sums (axis 0) or row sums (axis 1)."""
    inner = builder.inner(f"{label}_sums")
    matrix = make(inner, inputs)
    builder.nodes += inner.nodes
    wide = builder.cast(matrix, base.accumulator, f"{label}_wide")
    if zero:
        wide = builder.add("Sub", (wide, zero), f"{label}_centred")
    along = axis + (1 if base.stacked else 0)
    return builder.unsqueeze(builder.reduce_sum(wide, along, f"{label}_total"), along, f"{label}_along")


def requantization(scale: Array, zero: Array) -> Tail:
    """Multiplies by `scale` in float32, rounds half to even, adds the zero point, and saturates."""

    def tail(builder: GraphBuilder, z: str, converter: Columns) -> str:
        z = rescaling(scale)(builder, z, converter)
        quantum = builder.number(1, np.float32, "quantum")
        point = builder.array(zero.reshape(()), "y_zero")
        return builder.add("QuantizeLinear", (z, quantum, point), "requantised")

    return tail


def rescaling(scale: Array) -> Tail:
    """Multiplies by `scale` in float32."""

    def tail(builder: GraphBuilder, z: str, converter: Columns) -> str:
        z = builder.cast(z, "float32", "y_float")
        values = np.ascontiguousarray(converter.channels(scale if scale.size > 1 else scale.reshape(())))
        return builder.add("Mul", (z, builder.array(values, "scale")), "rescaled")

    return tail


def _zero_points(node: Node, context: SiteContext, at: tuple[int, int]) -> tuple[Zero, Zero]:
    """The zero points of an operator, at these inputs."""
    names = [_input(node, i) for i in at]
    a, b = (_zero_point(context, name) for name in names)
    if any(isinstance(z, str) and context.known(z, static=True) not in ((), (1,)) for z in (a, b)):
        raise LeftAsItWas("zero points, one for every row or column, that are computed")
    if isinstance(a, np.ndarray) and len(context.known(node.inputs[0]) or ()) != 2:
        raise LeftAsItWas("a zero point for every row of a stack")
    return a, b


def matrix(node: Node, context: SiteContext, x: str, w: str, op: str = "MatMul") -> Site:
    """The site of the float product of the same operands; `x` is on the left."""
    attributes = {k: v for k, v in node.attributes.items() if k in ("transA", "transB")}
    return product(Node(op, (x, w), node.outputs, name=node.name, attributes=attributes), context, CODES)


def slid(node: Node, context: SiteContext, x: str, w: str, zero: Zero) -> Site:
    """The site of the float convolution of the same operands, with images padded by their zero point."""
    if isinstance(zero, np.ndarray):
        raise LeftAsItWas("more than one zero point of its images")
    shape = context.known(zero) if isinstance(zero, str) else ()

    def around(builder: GraphBuilder, inputs: Sequence[str]) -> str:
        if isinstance(zero, int):
            if not zero:
                return ""
            dtype = context.dtype(x) or "uint8"
            return builder.number(zero, dtype, "x_around_value")
        # behind the operands
        value = inputs[1 if w in context.constants else 2]
        return value if shape == () else builder.reshape(value, (), "x_around_value")

    op = node.op if node.op == "ConvTranspose" else "Conv"
    plain = Node(op, (x, w), node.outputs, name=node.name, attributes=node.attributes)
    return convolution(plain, context, CODES, around)


def _refuse_left_weight(node: Node, context: SiteContext) -> None:
    """Refuses a weight on the left, whose zero points would belong to rows."""
    if node.inputs[0] in context.constants:
        raise LeftAsItWas("the weight stands on the left of an integer product")


def _integer_kind(node: Node, context: SiteContext) -> Site:
    """MatMulInteger and ConvInteger; inputs: X, W, and their zero points."""
    zeros = _zero_points(node, context, (2, 3))
    x, w = node.inputs[:2]
    _refuse_left_weight(node, context)
    base = slid(node, context, x, w, zeros[0]) if node.op == "ConvInteger" else matrix(node, context, x, w)
    return integral(node, context, base, Terms(*zeros), None)


def _sum_scale(context: SiteContext, node: Node, y: int) -> Array:
    """The factor of the sum, in float32 and onnxruntime's order of operations; per column, or one."""
    scales = [numbers(context, _input(node, at)) for at in (1, 4, y)]
    if scales[0] is None or scales[1] is None or (scales[2] is None and _input(node, y)):
        raise LeftAsItWas("its scales are computed")
    if scales[0].size != 1 or (scales[2] is not None and scales[2].size != 1):
        raise LeftAsItWas("a scale for every row")
    if any(scale_part is not None and scale_part.dtype != np.float32 for scale_part in scales):
        raise LeftAsItWas("its scales are not float32")
    if scales[2] is not None and not scales[2].all():
        raise LeftAsItWas("its output is divided by a scale of 0")
    scale = np.float32(node.attributes.get("alpha", 1.0)) * scales[0].reshape(-1)[0] * scales[1].reshape(-1)
    if scales[2] is not None:
        scale = scale / scales[2].reshape(-1)[0]
    return np.asarray(scale, np.float32)


def _quantized_kind(op: str, bias: int, out: int) -> Callable[[Node, SiteContext], Site]:
    """The kind of an operator with quantized inputs.

    Its inputs are X, scale, zero; W, scale, zero; an int32 bias at `bias`; and the scale and zero point of Y
    at `out`. Without these last two, Y is float32.

    Args:
        op: The same operator on floats.
        bias: The index of the bias; 0 for none.
        out: The index of the scale of Y.
    """

    def kind(node: Node, context: SiteContext) -> Site:
        if node.attributes.get("channels_last", 0):
            raise LeftAsItWas("its channels lie last")
        zeros = _zero_points(node, context, (2, 5))
        if any(isinstance(zero, str) for zero in zeros):
            raise LeftAsItWas("its zero points are computed")
        scale = _sum_scale(context, node, out)
        tail = rescaling(scale)
        if _input(node, out):
            name = _input(node, out + 1)
            point = numbers(context, name) if name else np.zeros((), np.uint8)
            if point is None or point.size != 1 or str(point.dtype) not in BYTES:
                raise LeftAsItWas("the zero point of its output is not one stored number")
            tail = requantization(scale, point)
        bias_name = _input(node, bias) if bias else ""
        bias_values = numbers(context, bias_name) if bias_name else None
        if bias_name and bias_values is None and op == "Conv":
            raise LeftAsItWas("its bias is computed")
        terms = Terms(*zeros, bias=bias_values, bias_name=bias_name if bias_values is None else "")
        x, w = node.inputs[0], node.inputs[3]
        _refuse_left_weight(node, context)
        conv = op == "Conv"
        base = slid(node, context, x, w, zeros[0]) if conv else matrix(node, context, x, w, op)
        return integral(node, context, base, terms, tail)

    return kind


KINDS: Kinds = {
    ("", "MatMulInteger"): _integer_kind,
    ("", "ConvInteger"): _integer_kind,
    ("", "QLinearMatMul"): _quantized_kind("MatMul", 0, 6),
    ("", "QLinearConv"): _quantized_kind("Conv", 8, 6),
    ("com.microsoft", "QLinearConv"): _quantized_kind("Conv", 8, 6),
    ("com.microsoft", "QGemm"): _quantized_kind("Gemm", 6, 7),
}
