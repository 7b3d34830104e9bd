"""Specifies MatMulNBits as a product.

W at (k, n) is number k of row n, minus the zero point of its block, times the scale of its block.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from explorer.engine.graph.model import Node
from explorer.engine.proof.meanings import linear
from explorer.engine.proof.meanings.product_spec import Meaning, NodeReader, Original
from explorer.engine.proof.symbolic.blocks import NotTiled
from explorer.engine.runtime.onnxruntime import Array


class _UnpackedReader(NodeReader):
    """Reads the unpacked weight under the name of the packed weight."""

    def __init__(self, reader: NodeReader, name: str, weight: Array) -> None:
        super().__init__(reader.model, reader.planned, reader.wiring)
        self._name = name
        self._weight = weight

    def read_numbers(self, name: str) -> Array | None:
        """Returns the numbers of a value, unpacked for the packed weight."""
        return self._weight if name == self._name else super().read_numbers(name)


def _describe_product(node: Node, reader: NodeReader) -> Original:
    """Returns the product that a MatMulNBits computes, with the unpacked weight.

    Raises:
        NotTiled: The weight is computed.
    """
    names = [*node.inputs, "", "", "", ""]
    K, N = int(node.attributes["K"]), int(node.attributes["N"])
    bits, block = int(node.attributes.get("bits", 4)), int(node.attributes["block_size"])
    packed, scales = reader.read_numbers(names[1]), reader.read_numbers(names[2])
    if packed is None or scales is None:
        raise NotTiled(f"the weight of '{node.label}' is computed")
    blocks = -(-K // block)
    k = np.arange(K)
    codes = _unpack_codes(packed.reshape(N, -1), bits)[:, k]
    packed_zeros = reader.read_numbers(names[3]) if names[3] else None
    if packed_zeros is None:
        zeros: Array = np.full((N, blocks), 2 ** (bits - 1))
    elif packed_zeros.dtype == np.uint8:
        zeros = _unpack_codes(packed_zeros.reshape(N, -1), bits)
    else:
        zeros = packed_zeros.reshape(N, blocks)
    shifted = codes.astype(np.float32) - zeros[:, k // block].astype(np.float32)
    weight = (shifted * scales.reshape(N, blocks)[:, k // block]).T
    inputs = (names[0], names[1], names[5]) if names[5] else (names[0], names[1])
    float_node = Node("Gemm" if names[5] else "MatMul", inputs, node.outputs, name=node.name)
    meaning = linear.describe_product(float_node, _UnpackedReader(reader, names[1], weight))
    return Original(node, meaning.inputs, meaning.operands, meaning.dtype, meaning.spec_for)


def _unpack_codes(rows: Array, bits: int) -> Array:
    """Unpacks numbers of `bits` bits; the lowest bits come first."""
    stream = np.unpackbits(rows, axis=1, bitorder="little").reshape(rows.shape[0], -1, bits)
    return stream @ (1 << np.arange(bits))


MEANINGS: Mapping[tuple[str, str], Meaning] = {("com.microsoft", "MatMulNBits"): _describe_product}
