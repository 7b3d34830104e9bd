"""Sites of MatMulNBits, with weights of 2, 4 or 8 bits packed in blocks along the depth.

The tiles multiply floats. Integer tiles would have to be cut at the end of each block, because each block has
its own scale. The weight is unpacked while the file is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.engine.graph.model import DerivedPayload, Node, Tensor
from explorer.engine.tiling.builder import GraphBuilder
from explorer.engine.tiling.kinds.integer import read_stored_values
from explorer.engine.tiling.kinds.linear import find_product_site
from explorer.engine.tiling.kinds.quantized_operands import find_quantized_operand
from explorer.engine.tiling.sites import Kinds, NoSite, Site, SiteContext, UntiledProduct

Array = np.ndarray[Any, np.dtype[Any]]

_MIN_ROUNDING_LEVEL = 4
"""Accuracy level from which a runtime may round the activation to 8 bits."""


def _build_nbits_site(node: Node, context: SiteContext) -> Site:
    """Returns the site of a MatMulNBits: a float MatMul with the unpacked weight."""
    x, w = node.inputs[0], node.inputs[1]
    scale_name, zero_name, order_name, bias, *_ = [*node.inputs[2:], "", "", "", ""]
    bits, block = int(node.attributes.get("bits", 4)), int(node.attributes.get("block_size", 0))
    K, N = int(node.attributes.get("K", 0)), int(node.attributes.get("N", 0))
    packed = context.constants.resolve(w)
    scales = read_stored_values(context, scale_name)
    zeros = read_stored_values(context, zero_name) if zero_name else None
    if order_name:
        raise UntiledProduct("its depth is in another order (g_idx)")
    if int(node.attributes.get("accuracy_level", 0)) >= _MIN_ROUNDING_LEVEL:
        raise UntiledProduct("a runtime may round its activation to 8 bits (accuracy_level 4)")
    if context.get_dtype(x) not in (None, "float32"):
        raise NoSite(f"its type is {context.get_dtype(x)}, but only float32 can be tiled")
    if packed is None or packed[0].payload is None or scales is None or (zero_name and zeros is None):
        raise NoSite("its weight is not constant")
    if bits not in (2, 4, 8) or block < 1 or K < 1 or N < 1:
        raise UntiledProduct(f"weights of {bits} bits in blocks of {block}")
    blocks = -(-K // block)
    if packed[0].elements != N * blocks * (block * bits // 8) or scales.size != N * blocks:
        raise NoSite("its weight does not fit its attributes")
    unpack = partial(_unpack_weight, packed[0], scales.reshape(N, blocks), zeros, (K, N, bits, block))
    floats = Tensor(f"{w}/floats", "float32", (N, K), DerivedPayload(4 * N * K, unpack))
    context.constants.derived[floats.name] = floats, (1, 0)
    base = find_product_site(Node("MatMul", (x, floats.name), node.outputs, name=node.name), context)
    base_finish = base.finish

    def finish(builder: GraphBuilder, z: str, inputs: Sequence[str]) -> str:
        if bias:
            z = builder.add("Add", (z, inputs[1]), "biased")
        return base_finish(builder, z, inputs)

    inputs = (*base.inputs, bias) if bias else base.inputs
    reason = "its input is not quantized"
    if find_quantized_operand(context, x) is not None:
        reason = "its weight has scales in blocks, so a sum has no common scale"
    return replace(
        base,
        node=node,
        inputs=inputs,
        finish=finish,
        has_bias=bool(bias),
        float_reason=reason,
        code_dtype=f"uint{bits}",
    )


def _unpack_weight(
    tensor: Tensor, scales: Array, zeros: Array | None, sizes: tuple[int, int, int, int]
) -> bytes:
    """Returns the bytes of the weight, (N, K) in float32.

    Args:
        tensor: Packed codes.
        scales: Scale of each block, (N, blocks).
        zeros: Zero points of the blocks, packed or as floats; None for the middle of the codes.
        sizes: K, N, bits of a code, and codes of a block.
    """
    K, N, bits, block = sizes
    blocks = scales.shape[1]
    floats = _unpack_numbers(tensor.array().reshape(N, -1), bits).reshape(N, blocks, block).astype(np.float32)
    if zeros is None:
        zero: Array = np.full((N, blocks), 1 << (bits - 1), np.float32)
    elif zeros.dtype == np.uint8:
        zero = _unpack_numbers(zeros.reshape(N, -1), bits)[:, :blocks].astype(np.float32)
    else:
        zero = zeros.reshape(N, blocks)
    floats -= zero[..., None]
    floats *= scales[..., None]
    return floats.reshape(N, blocks * block)[:, :K].tobytes()


def _unpack_numbers(packed: Array, bits: int) -> Array:
    """Unpacks the numbers in rows of bytes, lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)).reshape(packed.shape[0], -1)


KINDS: Kinds = {("com.microsoft", "MatMulNBits"): _build_nbits_site}
