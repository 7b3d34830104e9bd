"""MatMulNBits: W at (k, n) is number k of row n, less the zero of its block, times the scale of its block."""

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

    def __init__(self, look: NodeReader, name: str, weight: Array) -> None:
        super().__init__(look.model, look.planned, look.wiring)
        self._name = name
        self._weight = weight

    def number(self, name: str) -> Array | None:
        """The numbers of a value."""
        return self._weight if name == self._name else super().number(name)


def _packed(node: Node, look: NodeReader) -> Original:
    names = [*node.inputs, "", "", "", ""]
    K, N = int(node.attributes["K"]), int(node.attributes["N"])
    bits, block = int(node.attributes.get("bits", 4)), int(node.attributes["block_size"])
    packed, scales = look.number(names[1]), look.number(names[2])
    if packed is None or scales is None:
        raise NotTiled(f"the weight of '{node.label}' is computed")
    blocks = -(-K // block)
    k = np.arange(K)
    whole = _numbers(packed.reshape(N, -1), bits)[:, k]
    packed_zeros = look.number(names[3]) if names[3] else None
    if packed_zeros is None:
        zeros: Array = np.full((N, blocks), 2 ** (bits - 1))
    elif packed_zeros.dtype == np.uint8:
        zeros = _numbers(packed_zeros.reshape(N, -1), bits)
    else:
        zeros = packed_zeros.reshape(N, blocks)
    each = whole.astype(np.float32) - zeros[:, k // block].astype(np.float32)
    weight = (each * scales.reshape(N, blocks)[:, k // block]).T
    inputs = (names[0], names[1], names[5]) if names[5] else (names[0], names[1])
    plain = Node("Gemm" if names[5] else "MatMul", inputs, node.outputs, name=node.name)
    meaning = linear.product(plain, _UnpackedReader(look, names[1], weight))
    return Original(node, meaning.inputs, meaning.operands, meaning.dtype, meaning.at)


def _numbers(rows: Array, bits: int) -> Array:
    """Numbers of a given bit width, the lowest bits first."""
    stream = np.unpackbits(rows, axis=1, bitorder="little").reshape(rows.shape[0], -1, bits)
    return stream @ (1 << np.arange(bits))


MEANINGS: Mapping[tuple[str, str], Meaning] = {("com.microsoft", "MatMulNBits"): _packed}
