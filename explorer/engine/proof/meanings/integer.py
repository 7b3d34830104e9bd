"""Specifies integer and quantized operators as products: MatMulInteger, QLinearConv, QGemm and others.

The float form of an operator determines which elements are multiplied. Zero points are subtracted from the
operands before the products, as the ONNX standard defines. A graph that subtracts them after the products
must give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.model import Node
from explorer.engine.proof.meanings import conv, einsum, linear
from explorer.engine.proof.meanings.product_spec import Meaning, NodeReader, Original, ProductSpec, Rows
from explorer.engine.proof.symbolic.blocks import NotTiled
from explorer.engine.proof.symbolic.integers import Integers
from explorer.engine.runtime.onnxruntime import Array

FinishSums = Callable[[Array, Callable[[Array], Array]], Array]
"""Function that computes the output from sums. Its second argument is a function that expands numbers per
column to numbers per element."""


Exact = Callable[[Sequence[Array]], tuple[Array, Array | None]]
"""Function from the inputs to Y and, if needed, to |X| |W|, the bound of its sums; see `Integers.exact`."""

Grid = tuple[float, int, int]
"""Step, smallest code and largest code of an input; see `Integers.grids`."""


class _Parameter(Struct, frozen=True):
    """A zero point or a bias.

    Attributes:
        stored: Its numbers if they are constant, otherwise None.
        input_index: Index of the input that has the numbers if they are not constant.
    """

    stored: Array | None
    input_index: int = -1

    def read(self, inputs: Sequence[Array]) -> Array:
        """Returns the numbers as int64, given the inputs of the operator."""
        return np.asarray(inputs[self.input_index] if self.stored is None else self.stored).astype(np.int64)


def _describe_integer_operator(
    node: Node,
    reader: NodeReader,
    base: Original,
    zeros: tuple[str, str],
    bias: str | Array,
    finish_sums: FinishSums,
    scale: Array | None = None,
    grids: Mapping[str, Grid | None] = MappingProxyType({}),
) -> Original:
    """Builds the specification of an operator on integers.

    Args:
        node: Operator.
        reader: Reader of the original graph.
        base: The same product on floats.
        zeros: Value names of the zero points of both operands; '' if the zero point is 0.
        bias: Value name of the int32 bias, its numbers, or '' without a bias.
        finish_sums: Steps after the sums.
        scale: Factor of a sum if the operator takes dequantized floats; None if its operands are codes.
        grids: Grids of inputs that are floats, by value name; see `Integers.grids`.
    """
    inputs = list(base.inputs)
    input_grids = [grids.get(name) for name in inputs]

    def add_parameter(name: str) -> _Parameter:
        """Returns a constant parameter, or adds a computed one to the inputs."""
        constant = reader.read_numbers(name) if name else np.zeros((), np.int64)
        if constant is not None:
            first = constant.reshape(-1)[:1]
            return _Parameter(first.reshape(()) if (constant == first).all() else constant)
        if name not in inputs:
            inputs.append(name)
        return _Parameter(None, inputs.index(name))

    x_zero, w_zero = add_parameter(zeros[0]), add_parameter(zeros[1])
    if isinstance(bias, np.ndarray):
        sum_bias = _Parameter(bias)
    else:
        constant = reader.read_numbers(bias) if bias else np.zeros((), np.int64)
        sum_bias = _Parameter(constant) if constant is not None else add_parameter(bias)
    input_count, sum_type = len(base.inputs), _get_sum_type(reader)
    expand_scale = None if scale is None else partial(_expand_scale, scale)

    def build_spec(shapes: Sequence[tuple[int, ...]], output_shape: tuple[int, ...]) -> ProductSpec:
        float_spec = base.spec_for(shapes[:input_count], output_shape)
        zero_point = int(x_zero.stored) if x_zero.stored is not None and x_zero.stored.size == 1 else None
        exact = _divide_by_steps(
            _build_exact_product(
                float_spec,
                (x_zero, w_zero, sum_bias),
                input_count,
                finish_sums,
                sum_type,
                needs_bound=scale is not None,
            ),
            input_grids,
        )
        return replace(
            float_spec,
            bias=_combine_bias(float_spec, output_shape, x_zero, sum_bias, sum_type),
            expand_bias=partial(_expand_to_output, float_spec, output_shape),
            integers=Integers(
                exact,
                zero_point,
                x_zero.input_index,
                partial(_may_saturate, float_spec, input_count),
                expand_scale,
                input_grids,
            ),
        )

    return replace(base, node=node, inputs=tuple(inputs), spec_for=build_spec)


def _get_sum_type(reader: NodeReader) -> str:
    """Returns the integer type in which the plan adds products, or int32, the type of ONNX's operators."""
    planned = reader.planned.accumulator if reader.planned is not None else ""
    return planned if "int" in planned else "int32"


def _may_saturate(float_spec: ProductSpec, input_count: int, values: Sequence[Array]) -> bool:
    """Whether onnxruntime's kernel for the operands may saturate: uint8 times int8 (see `Integers`)."""
    right = float_spec.right if isinstance(float_spec.right, np.ndarray) else values[input_count - 1]
    return (values[0].dtype, right.dtype) == (np.uint8, np.int8)


def _divide_by_steps(exact_codes: Exact, input_grids: Sequence[Grid | None]) -> Exact:
    """Returns a function like `exact_codes` that first divides each float input by its step."""

    def compute_exact(values: Sequence[Array]) -> tuple[Array, Array | None]:
        all_grids = [*input_grids, *(None,) * (len(values) - len(input_grids))]
        pairs = zip(values, all_grids, strict=True)
        return exact_codes([v if grid is None else np.rint(v / v.dtype.type(grid[0])) for v, grid in pairs])

    return compute_exact


def _expand_to_output(float_spec: ProductSpec, output_shape: tuple[int, ...], values: Array) -> Array:
    """Expands numbers to the shape of Y; a bias that includes the zero points already has this shape."""
    if values.shape == output_shape or float_spec.expand_bias is None:
        return np.broadcast_to(values, output_shape)
    return float_spec.expand_bias(values)


def _expand_scale(scale: Array, expand: Callable[[Array], Array]) -> Array:
    """Returns the factor of every element's sum; `expand` expands numbers per column to elements."""
    return expand(scale if scale.size > 1 else scale.reshape(()))


def _build_exact_product(
    float_spec: ProductSpec,
    numbers: tuple[_Parameter, _Parameter, _Parameter],
    input_count: int,
    finish_sums: FinishSums,
    sum_type: str,
    *,
    needs_bound: bool,
) -> Exact:
    """Returns a function that computes the product exactly in integers.

    Args:
        float_spec: The same product on floats.
        numbers: Zero points of both operands, and the bias.
        input_count: Number of inputs of `float_spec`.
        finish_sums: Steps after the sums.
        sum_type: Element type of the sums.
        needs_bound: Whether the function also returns the sums of the absolute values of the terms.
    """
    x_zero, w_zero, sum_bias = numbers

    def compute_exact(values: Sequence[Array]) -> tuple[Array, Array | None]:
        left_inputs, right_inputs = list(values[:input_count]), list(values[:input_count])
        left_inputs[0] = _subtract_zero(left_inputs[0], x_zero.read(values), per_row=True)
        if isinstance(float_spec.right, np.ndarray):
            zero = w_zero.read(values).reshape(-1).astype(np.int32)
            # outside of a grouped convolution's blocks, the elements are the zero point, and become 0
            weight = float_spec.right.astype(np.int32) - zero if zero.any() else float_spec.right
        else:
            right_inputs[-1] = _subtract_zero(right_inputs[-1], w_zero.read(values), per_row=False)
            weight = float_spec.arrange_weight(right_inputs)
        left_rows = float_spec.left(left_inputs)
        sums = _sum_products(left_rows, float_spec.M, weight) + float_spec.arrange_bias(sum_bias.read(values))
        magnitudes = np.abs(weight.astype(np.int32))
        bound = None
        if needs_bound:
            bound = _sum_products(lambda b, rows: np.abs(left_rows(b, rows)), float_spec.M, magnitudes)
        return finish_sums(sums.astype(sum_type), float_spec.arrange_bias), bound

    return compute_exact


def _combine_bias(
    float_spec: ProductSpec,
    output_shape: tuple[int, ...],
    x_zero: _Parameter,
    sum_bias: _Parameter,
    sum_type: str,
) -> Array | int | None:
    """Returns a stored bias minus the effect of the left zero point, or the input index of a computed bias.

    The effect is subtracted only if the weight is stored and the zero point is one stored number.
    """
    if sum_bias.stored is None:
        return sum_bias.input_index
    total = sum_bias.stored.astype(np.int64)
    if (
        isinstance(float_spec.right, np.ndarray)
        and x_zero.stored is not None
        and x_zero.stored.size == 1
        and int(x_zero.stored)
    ):
        offsets = int(x_zero.stored.reshape(())) * float_spec.right.astype(np.int64).sum(1)
        expanded = float_spec.expand_bias(total) if float_spec.expand_bias is not None else total
        total = expanded - _expand_columns(float_spec, offsets[:, None], output_shape)
    bias: Array = total.astype(sum_type)
    return bias


def _expand_columns(float_spec: ProductSpec, values: Array, output_shape: tuple[int, ...]) -> Array:
    """Expands one number per column of each product, shape (batch, 1, N), to the shape of the output."""
    positions = float_spec.flatten_output(np.arange(math.prod(output_shape)).reshape(output_shape))
    output_values = np.zeros(math.prod(output_shape), values.dtype)
    column_values = np.broadcast_to(values, positions.shape)
    output_values[positions if float_spec.contained is None else positions[float_spec.contained]] = (
        column_values if float_spec.contained is None else column_values[float_spec.contained]
    )
    return output_values.reshape(output_shape)


def _subtract_zero(values: Array, zero: Array, *, per_row: bool) -> Array:
    """Subtracts a zero point: one number, or one for each row (`per_row`) or column of a matrix."""
    zero = zero.astype(np.int32)
    zero = zero.reshape(()) if zero.size == 1 else (zero.reshape(-1, 1) if per_row else zero)
    difference: Array = values.astype(np.int32) - zero
    return difference


_CONVERTED_ELEMENTS = 1 << 21
"""Number of elements of the left operand that are converted to float64 at a time."""


def _sum_products(left_rows: Rows, M: int, right: Array) -> Array:
    """Computes the sums of products as int64. float64 is exact for codes of 16 bits, and uses BLAS."""
    batch, depth, width = right.shape
    sums = np.empty((batch, M, width), np.int64)
    step = max(1, _CONVERTED_ELEMENTS // max(depth, 1))
    for b in range(batch):
        right_float64 = right[b].astype(np.float64)
        for first in range(0, M, step):
            rows = slice(first, first + step)
            sums[b, rows] = left_rows(b, rows).astype(np.float64) @ right_float64
    return sums


def _make_scaling(scale: Array, zero: Array | None) -> FinishSums:
    """Makes the function that multiplies sums by the scale.

    With a zero point, it also rounds and saturates.
    """

    def finish_sums(sums: Array, expand: Callable[[Array], Array]) -> Array:
        y = sums.astype(np.float32) * _expand_scale(scale, expand)
        if zero is None:
            return y
        smallest, largest = np.iinfo(zero.dtype).min, np.iinfo(zero.dtype).max
        return np.clip(np.rint(y) + float(zero.reshape(())), smallest, largest).astype(zero.dtype)

    return finish_sums


def _describe_float_operator(
    op: str, node: Node, names: tuple[str, str], zero: str, reader: NodeReader
) -> Original:
    """Builds the specification of the float operator `op` with the operands `names` of `node`.

    A grouped convolution is a product with a block-diagonal weight. The elements outside of the blocks are
    the weight's zero point (value name `zero`), so that they add nothing, or 0 if its zero points differ.
    """
    attributes = {k: v for k, v in node.attributes.items() if k not in ("alpha", "beta")}
    float_node = Node(op, names, node.outputs, name=node.name, attributes=attributes)
    if op not in ("Conv", "ConvTranspose"):
        return _FLOAT_MEANINGS[op](float_node, reader)
    zero_points = reader.read_numbers(zero) if zero else None
    is_uniform = zero_points is not None and (zero_points == zero_points.reshape(-1)[0]).all()
    return conv.describe_convolution(
        float_node, reader, int(zero_points.reshape(-1)[0]) if zero_points is not None and is_uniform else 0
    )


def _get_input_name(node: Node, index: int) -> str:
    return node.inputs[index] if len(node.inputs) > index else ""


def _read_stored_input(reader: NodeReader, node: Node, index: int) -> Array:
    """Returns the numbers of a stored input; a computed input is not supported, although ONNX allows it."""
    numbers = reader.read_numbers(_get_input_name(node, index))
    if numbers is None:
        raise NotTiled(f"'{_get_input_name(node, index)}' of the original is not a constant")
    return numbers


def _build_integer_meaning(op: str) -> Meaning:
    """Returns the meaning of an operator with inputs X, W, zero of X, zero of W, and sums as its output."""

    def build_original(node: Node, reader: NodeReader) -> Original:
        x, w = node.inputs[0], node.inputs[1]
        zeros = _get_input_name(node, 2), _get_input_name(node, 3)
        base = _describe_float_operator(op, node, (x, w), zeros[1], reader)
        return _describe_integer_operator(node, reader, base, zeros, "", lambda sums, expand: sums)

    return build_original


def _build_quantized_meaning(op: str, bias: int, output_scale: int, has_alpha: bool = False) -> Meaning:
    """Returns the meaning of an operator with inputs X, scale, zero, W, scale, zero.

    Args:
        op: The float form of the operator.
        bias: Input index of the bias, or 0 without a bias.
        output_scale: Input index of Y's scale. The next input is Y's zero point; without one, Y is float32.
        has_alpha: Whether the attribute `alpha` scales the product.
    """

    def build_original(node: Node, reader: NodeReader) -> Original:
        x, w = node.inputs[0], node.inputs[3]
        factor = np.float32(node.attributes.get("alpha", 1.0) if has_alpha else 1.0)
        scale: Array = (
            factor * _read_stored_input(reader, node, 1).reshape(()) * _read_stored_input(reader, node, 4)
        )
        if _get_input_name(node, output_scale):
            scale = scale / _read_stored_input(reader, node, output_scale).reshape(())
        zero = None
        if _get_input_name(node, output_scale + 1):
            zero = _read_stored_input(reader, node, output_scale + 1)
        zeros = _get_input_name(node, 2), _get_input_name(node, 5)
        base = _describe_float_operator(op, node, (x, w), zeros[1], reader)
        finish_sums = _make_scaling(np.asarray(scale, np.float32), zero)
        return _describe_integer_operator(
            node, reader, base, zeros, _get_input_name(node, bias) if bias else "", finish_sums
        )

    return build_original


def _build_dequantized_meaning(op: str) -> Meaning:
    """Returns the meaning of a float operator, on the codes of its operands if the plan uses integers."""
    float_meaning = _FLOAT_MEANINGS[op]

    def build_original(node: Node, reader: NodeReader) -> Original:
        if reader.planned is None or "int" not in reader.planned.dtype:
            return float_meaning(node, reader)
        producers = {o: n for n in reader.model.graph.nodes for o in n.outputs if o}
        is_weight_left = reader.is_weight(node.inputs[0])
        x, w = (producers.get(name) for name in (node.inputs[1::-1] if is_weight_left else node.inputs[:2]))
        if x is None or w is None:
            raise NotTiled(f"the operands of '{node.label}' were not quantized")
        data_operand, weight_operand = _read_quantized_operand(x, reader), _read_quantized_operand(w, reader)
        alpha, beta = (np.float32(node.attributes.get(factor, 1.0)) for factor in ("alpha", "beta"))
        scales = np.asarray(data_operand.scale.reshape(()) * weight_operand.scale.reshape(-1), np.float32)
        bias: str | Array = ""
        float_bias: Array | None = None
        if _get_input_name(node, 2) and beta:
            integer_bias = _convert_bias_to_integers(
                reader, producers.get(node.inputs[2]), scales, float(alpha), float(beta)
            )
            if integer_bias is None:
                float_bias = beta * _read_stored_input(reader, node, 2).astype(np.float32)
            else:
                bias = integer_bias
        names = (
            (weight_operand.name, data_operand.name)
            if is_weight_left
            else (data_operand.name, weight_operand.name)
        )
        base = _describe_float_operator(op, node, names, weight_operand.zero, reader)
        broadcast = partial(_broadcast_channels, node, reader, weight_operand, is_weight_left)

        def finish_sums(sums: Array, expand: Callable[[Array], Array]) -> Array:
            y = _make_scaling(broadcast(scales * alpha), None)(sums, expand)
            return y if float_bias is None else y + expand(float_bias)

        scale = broadcast(np.abs(scales * alpha))
        grids = {
            operand.name: operand.grid
            for operand in (data_operand, weight_operand)
            if operand.grid is not None
        }
        zeros = data_operand.zero, weight_operand.zero
        return _describe_integer_operator(node, reader, base, zeros, bias, finish_sums, scale, grids)

    return build_original


class _QuantizedOperand(Struct, frozen=True):
    """A quantized operand.

    Attributes:
        name: Value name of the codes, or of floats that are converted to codes.
        scale: One scale, or scales along `axis`.
        zero: Value name of the zero point; '' if the zero point is 0.
        axis: Axis of the scales.
        grid: Grid of a float operand, or None for codes; see `Integers.grids`.
    """

    name: str
    scale: Array
    zero: str
    axis: int
    grid: Grid | None = None


def _read_quantized_operand(producer: Node, reader: NodeReader) -> _QuantizedOperand:
    """Reads the operand that a DequantizeLinear or IntQuant computes; may add its codes to `reader.codes`.

    Raises:
        NotTiled: The node is another operator.
    """
    if producer.op == "DequantizeLinear":
        codes = reader.read_numbers(producer.inputs[0])
        if codes is not None and str(codes.dtype) in ("int4", "uint4", "int2", "uint2"):
            reader.codes[producer.inputs[0]] = codes.astype("uint8" if str(codes.dtype)[0] == "u" else "int8")
        axis = int(producer.attributes.get("axis", 1))
        return _QuantizedOperand(
            producer.inputs[0], _read_stored_input(reader, producer, 1), _get_input_name(producer, 2), axis
        )
    if producer.op != "IntQuant":
        raise NotTiled(f"'{producer.label}' does not quantize")
    scale, zeros, bits = (
        _read_stored_input(reader, producer, index).astype(np.float32) for index in (1, 2, 3)
    )
    zero, half = float(zeros.reshape(-1)[0]), 2.0 ** (float(bits.reshape(-1)[0]) - 1)
    narrow, signed = int(producer.attributes.get("narrow", 0)), int(producer.attributes.get("signed", 1))
    smallest, largest = (narrow - half, half - 1) if signed else (0.0, 2 * half - 1 - narrow)
    axis = next((index - scale.ndim for index, size in enumerate(scale.shape) if size > 1), 1)
    name, values = producer.outputs[0], reader.read_numbers(producer.inputs[0])
    if values is None:
        grid = float(scale.reshape(-1)[0]), int(smallest - zero), int(largest - zero)
        return _QuantizedOperand(name, scale, "", axis, grid)
    scaled = values.astype(np.float32) / scale + np.float32(zero)
    reader.codes[name] = (np.rint(np.clip(scaled, smallest, largest)) - zero).astype(np.int32)
    return _QuantizedOperand(name, scale, "", axis)


def _convert_bias_to_integers(
    reader: NodeReader, producer: Node | None, sum_scales: Array, alpha: float, beta: float
) -> Array | None:
    """Returns bias x beta / alpha as integers in units of the sums, or None if the result is not exact."""
    if producer is None or producer.op != "DequantizeLinear" or not alpha:
        return None
    codes, scales = _read_stored_input(reader, producer, 0), _read_stored_input(reader, producer, 1)
    zero = reader.read_numbers(_get_input_name(producer, 2)) if _get_input_name(producer, 2) else None
    axis = int(producer.attributes.get("axis", 1))
    is_last_axis = scales.size == 1 or codes.ndim == 1 or axis % codes.ndim == codes.ndim - 1
    if not is_last_axis or codes.dtype != np.int32 or (zero is not None and zero.any()):
        return None
    all_scales = np.resize(sum_scales, max(scales.size, sum_scales.size))
    if scales.size not in (1, all_scales.size) or not np.array_equal(
        np.broadcast_to(scales, all_scales.shape), all_scales
    ):
        return None
    scaled = codes.astype(np.float64) * (beta / alpha)
    is_exact = (beta / alpha).is_integer() and np.abs(scaled).max(initial=0) < 2**31
    return scaled.astype(np.int32) if is_exact else None


def _broadcast_channels(
    node: Node, reader: NodeReader, w: _QuantizedOperand, is_weight_left: bool, values: Array
) -> Array:
    """Reshapes numbers per channel of the weight so that they broadcast to the output.

    For convolutions, the result has one number per output channel.
    """
    if values.size == 1 or node.op == "Conv":
        return values
    if node.op in ("Gemm", "MatMul", "FusedMatMul"):
        return values[:, None] if is_weight_left else values
    if node.op == "ConvTranspose":
        return np.tile(values, int(node.attributes.get("group", 1)))
    equation = einsum.get_equation(node)
    # count letters from the end, because an ellipsis may come first
    subscripts = equation.split("->")[0].split(",")[0 if is_weight_left else 1]
    weight = reader.read_numbers(w.name)
    rank = 0 if weight is None else weight.ndim
    letter = subscripts[w.axis % rank - rank]
    output_letters = equation.split("->")[1]
    return values.reshape(-1, *(1,) * (len(output_letters) - 1 - output_letters.index(letter)))


_FLOAT_MEANINGS: Mapping[str, Meaning] = {
    "MatMul": linear.describe_product,
    "Gemm": linear.describe_product,
    "FusedMatMul": linear.describe_product,
    "Conv": conv.describe_convolution,
    "ConvTranspose": conv.describe_convolution,
    "Einsum": einsum.describe_product,
}

MEANINGS: Mapping[tuple[str, str], Meaning] = {
    **{
        ("com.microsoft" if op == "FusedMatMul" else "", op): _build_dequantized_meaning(op)
        for op in _FLOAT_MEANINGS
    },
    ("", "MatMulInteger"): _build_integer_meaning("MatMul"),
    ("", "ConvInteger"): _build_integer_meaning("Conv"),
    ("", "QLinearMatMul"): _build_quantized_meaning("MatMul", 0, 6),
    ("", "QLinearConv"): _build_quantized_meaning("Conv", 8, 6),
    ("com.microsoft", "QLinearConv"): _build_quantized_meaning("Conv", 8, 6),
    ("com.microsoft", "QGemm"): _build_quantized_meaning("Gemm", 6, 7, has_alpha=True),
}
