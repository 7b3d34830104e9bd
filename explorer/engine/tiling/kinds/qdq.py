"""Sites of matmuls with DequantizeLinear nodes before them, as quantizers write them ('QDQ').

If both operands are quantized, the tiles multiply the stored codes, and the int32 sum is converted to floats
once. An accelerator computes such a graph in the same way. The QuantizeLinear after the matmul stays.
Otherwise the tiles multiply floats, and the weight is stored dequantized. `Site.float_reason` has the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.engine.graph.model import Node
from explorer.engine.tiling.accumulator import CodeRange, count_signed_bits
from explorer.engine.tiling.builder import GraphBuilder
from explorer.engine.tiling.kinds import conv, einsum, integer, linear
from explorer.engine.tiling.kinds.quantized_operands import (
    QuantizedOperand,
    convert_to_codes,
    find_quantized_operand,
    is_stored,
)
from explorer.engine.tiling.sites import Kinds, NoSite, Site, SiteContext, UntiledProduct

Array = np.ndarray[Any, np.dtype[Any]]


class _NeedsFloats(Exception):
    """The operator must multiply floats. The text is the reason, or '' if no operand is quantized."""


class _TooWide(_NeedsFloats):
    """The codes have too many bits for integer tiles.

    Attributes:
        code_ranges: Ranges of both operands' codes.
    """

    def __init__(self, message: str, code_ranges: tuple[CodeRange, CodeRange]) -> None:
        super().__init__(message)
        self.code_ranges = code_ranges


def _build_integer_site(node: Node, context: SiteContext) -> Site:
    """Returns the site with integer tiles.

    Raises:
        _NeedsFloats: The operator must multiply floats.
        NoSite: The node cannot be tiled.
    """
    # a stored left operand becomes the right operand of the product
    swapped = is_stored(context, node.inputs[0])
    names = node.inputs[1::-1] if swapped else node.inputs[:2]
    x, w = (find_quantized_operand(context, name) for name in names)
    if x is None or w is None:
        raise _NeedsFloats(_explain_floats(node, context, swapped))
    for operand, role in ((x, "input"), (w, "weight")):
        if not operand.name:
            code_ranges = _find_code_range(context, x), _find_code_range(context, w)
            bits = count_signed_bits(*_find_code_range(context, operand))
            raise _TooWide(f"its {role} has codes of {bits} bits, but tiles multiply 16 bits", code_ranges)
    for operand, role in ((x, "input"), (w, "weight")):
        dtype = integer.get_operand_type(context, operand.name)
        if dtype not in integer.CODES:
            raise _NeedsFloats(f"its {role} has type {dtype}, but integer tiles multiply 8 and 16 bits")
    if x.scale.size != 1 or x.zero.size != 1:
        raise _NeedsFloats("its input has scales along an axis")
    for operand, role in ((x, "input"), (w, "weight")):
        if not operand.scale.all() and (operand is x or operand.node.op == "IntQuant"):
            raise _NeedsFloats(f"its {role} is divided by a scale of 0, so its codes are undefined")
        if not np.isfinite(operand.scale).all():
            raise _NeedsFloats(f"its {role} has a scale that is not a number, or infinite")
    alpha, beta = (float(node.attributes.get(factor, 1.0)) for factor in ("alpha", "beta"))
    zeros = int(x.zero.reshape(())), integer.simplify_equal_values(w.zero)
    base = _find_base_site(node, context, (w.name, x.name) if swapped else (x.name, w.name), zeros[0])
    columns = _get_weight_columns(node, context, x, w, base, swapped=swapped)
    scale = (x.scale.reshape(()) * w.scale.reshape(-1)).astype(np.float32)
    if node.op == "ConvTranspose" and scale.size > 1:
        # the groups share the scales of their kernels
        scale = np.resize(scale, context.get_shape(node.outputs[0])[1])
    absorbed = [x.node, w.node] if not x.floats else [w.node]
    terms = integer.Terms(*zeros, x=x.code_range, w=w.code_range)
    write_output = integer.make_rescaling(scale * np.float32(alpha))
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    if bias and beta:
        bias_values, bias_node = _find_bias(context, bias, scale, (alpha, beta))
        absorbed += [bias_node] if bias_node is not None else []
        if bias_values.dtype == np.int32:
            terms = replace(terms, bias=bias_values)
        else:
            write_output = _add_bias(write_output, bias_values)
    site = integer.build_integer_site(node, context, base, terms, write_output, columns)
    return replace(convert_to_codes(site, (x, w)), absorbed=tuple(absorbed))


def _find_code_range(context: SiteContext, operand: QuantizedOperand) -> CodeRange:
    """Returns the smallest and the largest code of an operand."""
    limits = np.iinfo(integer.get_operand_type(context, operand.name) or "int32")
    return operand.code_range or (int(limits.min), int(limits.max))


def _explain_floats(node: Node, context: SiteContext, swapped: bool) -> str:
    """Returns why tiles cannot multiply the codes of both operands, or '' if neither operand is quantized."""
    names = node.inputs[1::-1] if swapped else node.inputs[:2]
    producers = [context.constants.producers.get(name) for name in names]
    quantized_flags = [
        producer is not None and producer.op in ("DequantizeLinear", "IntQuant") for producer in producers
    ]
    if not any(quantized_flags):
        return ""
    for role, is_quantized, name in zip(("input", "weight"), quantized_flags, names, strict=True):
        if not is_quantized:
            return f"its {role} is not quantized"
        if find_quantized_operand(context, name) is None:
            return f"its {role} has scales in blocks or computed scales"
    return ""


def _find_base_site(node: Node, context: SiteContext, names: tuple[str, str], zero: int) -> Site:
    """Returns the site of the same operator on codes, with operands in the operator's order."""
    if node.op in ("Conv", "ConvTranspose"):
        return integer.find_float_convolution(node, context, *names, zero)
    if node.op == "Einsum":
        return einsum.find_product_site(_replace_inputs_by_codes(node, names), context, integer.CODES)
    return integer.find_float_product(node, context, *names, node.op)


def _replace_inputs_by_codes(node: Node, names: tuple[str, str]) -> Node:
    """Returns the node with codes as inputs."""
    return Node(node.op, names, node.outputs, name=node.name, attributes=node.attributes)


def _get_weight_columns(
    node: Node, context: SiteContext, x: QuantizedOperand, w: QuantizedOperand, base: Site, *, swapped: bool
) -> integer.Columns:
    """Returns the conversion of a weight's scales to the product's shape.

    Raises:
        _NeedsFloats: The scales do not belong to the product's columns.
    """
    default = integer.get_default_columns(base, context, swapped=swapped)
    if w.scale.size == w.zero.size == 1:
        return default
    resolved = context.constants.resolve(w.name)
    if resolved is None:
        raise _NeedsFloats("its weight is computed and has scales along an axis")
    rank = len(resolved[2])
    axis = w.axis % rank
    if node.op == "Einsum":
        code_node = _replace_inputs_by_codes(node, (w.name, x.name) if swapped else (x.name, w.name))
        return replace(
            default,
            channels=lambda v: (
                v if v.size == 1 else einsum.convert_column_values(code_node, context, axis, v)
            ),
        )
    if node.op in ("Conv", "ConvTranspose"):
        column_axis = int(node.op == "ConvTranspose")
    else:
        is_transposed = bool(node.attributes.get("transA" if swapped else "transB", 0)) and node.op == "Gemm"
        column_axis = rank - 1 if swapped == is_transposed else rank - 2
    if axis != column_axis or rank == 1:
        raise _NeedsFloats("its weight has scales along its depth, so a sum has no common scale")
    return default


def _find_bias(
    context: SiteContext, name: str, scale: Array, factors: tuple[float, float]
) -> tuple[Array, Node | None]:
    """Returns the bias and the DequantizeLinear that it comes from, or None.

    The bias is int32 if it is a whole number of units of the integer sum, and float32 otherwise. An int32
    bias is multiplied by beta / alpha, because the sum is multiplied by alpha.

    Raises:
        _NeedsFloats: The bias is computed.
    """
    float_bias = integer.read_stored_values(context, name)
    if float_bias is None:
        raise _NeedsFloats("its bias is computed")
    alpha, beta = factors
    operand = find_quantized_operand(context, name)
    codes = integer.read_stored_values(context, operand.name) if operand is not None else None
    if operand is not None and codes is not None and codes.dtype == np.int32 and not operand.zero.any():
        is_last = operand.scale.size == 1 or codes.ndim == 1 or operand.axis % codes.ndim == codes.ndim - 1
        matches_sum = is_last and operand.scale.size in (1, scale.size)
        if matches_sum and np.array_equal(np.broadcast_to(operand.scale, scale.shape), scale):
            factor = beta / alpha if alpha else math.nan  # not an integer, so the bias stays float32
            scaled_codes = codes.astype(np.float64) * factor
            if factor.is_integer() and np.abs(scaled_codes).max(initial=0) < 2**31:
                return scaled_codes.astype(np.int32), operand.node
    return np.float32(beta) * float_bias.astype(np.float32), operand.node if operand is not None else None


def _add_bias(write_output: integer.WriteOutput, bias: Array) -> integer.WriteOutput:
    """Returns a function that writes the output of `write_output` plus a float bias."""

    def add_bias(builder: GraphBuilder, z: str, converter: integer.Columns) -> str:
        z = write_output(builder, z, converter)
        values = np.ascontiguousarray(converter.bias(bias).astype(np.float32))
        return builder.add("Add", (z, builder.add_array(values, "bias_float")), "float_biased")

    return add_bias


def _choose_integers_or_floats(
    find_float_site: Callable[[Node, SiteContext], Site],
) -> Callable[[Node, SiteContext], Site]:
    """Returns a kind whose sites multiply integers if possible, otherwise floats as in `find_float_site`."""

    def try_integers(node: Node, context: SiteContext) -> Site:
        if len(node.inputs) < 2:
            return find_float_site(node, context)
        try:
            return _build_integer_site(node, context)
        except (_NeedsFloats, NoSite) as why:
            site = find_float_site(node, context)
            reason = why.cause if isinstance(why, UntiledProduct) else str(why)
            if isinstance(why, _TooWide):
                products = [site.K * a * b for a in why.code_ranges[0] for b in why.code_ranges[1]]
                needed = count_signed_bits(min(products), max(products))
                reason += f"; a sum of K = {site.K:,} products needs {needed} bits"
            return replace(site, float_reason=reason, code_dtype=_get_stored_type(node, context))

    return try_integers


def _get_stored_type(node: Node, context: SiteContext) -> str:
    """Returns the element type of the codes of a quantized weight, or '' if the weight is not quantized."""
    weight = node.inputs[0] if is_stored(context, node.inputs[0]) else node.inputs[1]
    producer = context.constants.producers.get(weight)
    if producer is None or producer.op != "DequantizeLinear":
        return ""
    return integer.get_operand_type(context, producer.inputs[0]) or ""


def _find_fused_matmul_site(node: Node, context: SiteContext) -> Site:
    """Returns the site of a FusedMatMul."""
    return replace(
        _choose_integers_or_floats(linear.find_product_site)(linear.convert_to_gemm(node, context), context),
        node=node,
    )


KINDS: Kinds = {
    ("", "Gemm"): _choose_integers_or_floats(linear.find_product_site),
    ("", "MatMul"): _choose_integers_or_floats(linear.find_product_site),
    ("", "Conv"): _choose_integers_or_floats(conv.find_convolution_site),
    ("", "ConvTranspose"): _choose_integers_or_floats(conv.find_convolution_site),
    ("", "Einsum"): _choose_integers_or_floats(einsum.find_product_site),
    ("com.microsoft", "FusedMatMul"): _find_fused_matmul_site,
}
