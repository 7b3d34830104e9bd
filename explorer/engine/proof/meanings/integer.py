"""Integer and quantized operators as products: MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv, QGemm.

What meets what is said by the same operator on floats. The zero points are taken off the operands, as the
standard words it, before anything is multiplied; a graph that takes them off behind the products has to give
the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.model import Node
from explorer.engine.proof.meanings import conv, linear
from explorer.engine.proof.meanings.product_spec import (
    Integers,
    Meaning,
    NodeReader,
    Original,
    ProductSpec,
    Rows,
)
from explorer.engine.proof.symbolic.blocks import NotTiled
from explorer.engine.runtime.onnxruntime import Array

Tail = Callable[[Array, Callable[[Array], Array]], Array]
"""From sums in int32 to the output; the second makes one number for every element out of one a column."""


class _Number(Struct, frozen=True):
    """A zero point or a bias: numbers of the file, or which of the inputs it is."""

    stored: Array | None
    at: int = -1

    def value(self, inputs: Sequence[Array]) -> Array:
        """In int64."""
        return np.asarray(inputs[self.at] if self.stored is None else self.stored).astype(np.int64)


def _integral(
    node: Node,
    look: NodeReader,
    base: Original,
    x: str,
    w: str,
    zeros: tuple[str, str],
    bias: str | Array,
    tail: Tail,
    scale: Array | None = None,
) -> Original:
    """The meaning of an operator on integers.

    Args:
        node: The operator.
        look: The original.
        base: The same product of floats.
        x: Value name of the left operand.
        w: Of the right one.
        zeros: Of their zero points; '' for zero.
        bias: Value name of what is added in int32, or the numbers; '' for nothing.
        tail: What comes behind.
        scale: What one is worth in a sum, where the original multiplies the floats.
    """
    inputs = list(base.inputs)

    def known(name: str) -> _Number:
        stored = look.number(name) if name else np.zeros((), np.int64)
        if stored is not None:
            first = stored.reshape(-1)[:1]
            return _Number(first.reshape(()) if (stored == first).all() else stored)
        if name not in inputs:
            inputs.append(name)
        return _Number(None, inputs.index(name))

    a, b = known(zeros[0]), known(zeros[1])
    if isinstance(bias, np.ndarray):
        c = _Number(bias)
    else:
        stored = look.number(bias) if bias else np.zeros((), np.int64)
        c = _Number(stored) if stored is not None else known(bias)
    count = len(base.inputs)
    worth = None if scale is None else partial(_worth, scale)

    def at(shapes: Sequence[tuple[int, ...]], out: tuple[int, ...]) -> ProductSpec:
        plain = base.at(shapes[:count], out)

        def saturates(values: Sequence[Array]) -> bool:
            right = plain.right if isinstance(plain.right, np.ndarray) else values[count - 1]
            return (values[0].dtype, right.dtype) == (np.uint8, np.int8)

        point = int(a.stored) if a.stored is not None and a.stored.size == 1 else None
        exact = _exact(plain, (a, b, c), count, tail, bounded=scale is not None)
        return replace(
            plain,
            bias=_added(plain, out, a, c),
            integers=Integers(exact, point, a.at, saturates, worth),
        )

    return replace(base, node=node, inputs=tuple(inputs), at=at)


def _worth(scale: Array, spread: Callable[[Array], Array]) -> Array:
    """What one is worth in the sum of every element; `spread` makes that of what there is for a column."""
    return spread(scale if scale.size > 1 else scale.reshape(()))


def _exact(
    plain: ProductSpec, numbers: tuple[_Number, _Number, _Number], count: int, tail: Tail, *, bounded: bool
) -> Callable[[Sequence[Array]], tuple[Array, Array | None]]:
    """The product in whole numbers, and (`bounded`) the sums of the sizes of its terms.

    `plain` is the same of floats, with so many inputs; `numbers` are both zero points, and what is added.
    """
    a, b, c = numbers

    def exact(values: Sequence[Array]) -> tuple[Array, Array | None]:
        lefts, rights = list(values[:count]), list(values[:count])
        lefts[0] = _off(lefts[0], a.value(values), row=True)
        if isinstance(plain.right, np.ndarray):
            zero = b.value(values).reshape(-1).astype(np.int16)
            # what stands off the blocks of packed groups is no weight
            weight = plain.right.astype(np.int16) - zero if zero.any() else plain.right
        else:
            rights[-1] = _off(rights[-1], b.value(values), row=False)
            weight = plain.weight(rights)
        left = plain.left(lefts)
        sums = _sums(left, plain.M, weight) + plain.added(c.value(values))
        size = np.abs(weight.astype(np.int16))
        bound = _sums(lambda b, some: np.abs(left(b, some)), plain.M, size) if bounded else None
        return tail(sums.astype(np.int32), plain.added), bound

    return exact


def _added(plain: ProductSpec, out: tuple[int, ...], a: _Number, c: _Number) -> Array | int | None:
    """What is added in int32: the bias, less what the left operand's zero point takes from every column."""
    if c.stored is None:
        return c.at
    total = c.stored.astype(np.int64)
    if isinstance(plain.right, np.ndarray) and a.stored is not None and a.stored.size == 1 and int(a.stored):
        lost = int(a.stored.reshape(())) * plain.right.astype(np.int64).sum(1)
        # one number a column: (batch, N) of a stack is its channels in a row, those that fill up a pack apart
        total = total - lost.reshape(-1)[: out[1] if plain.spread is not None else plain.N]
    added: Array = total.astype(np.int32)
    return added


def _off(values: Array, zero: Array, *, row: bool) -> Array:
    """Without the zero point: one number, or one for each row of a matrix or for each column."""
    zero = zero.astype(np.int16)
    zero = zero.reshape(()) if zero.size == 1 else (zero.reshape(-1, 1) if row else zero)
    made: Array = values.astype(np.int16) - zero
    return made


_ROWS = 1 << 21
"""Elements of the left operand that are widened at a time."""


def _sums(left: Rows, M: int, right: Array) -> Array:
    """The sums of products in int64: float64 holds every sum of products of bytes, and has a BLAS."""
    batch, depth, width = right.shape
    made = np.empty((batch, M, width), np.int64)
    step = max(1, _ROWS // max(depth, 1))
    for b in range(batch):
        wide = right[b].astype(np.float64)
        for first in range(0, M, step):
            rows = slice(first, first + step)
            made[b, rows] = left(b, rows).astype(np.float64) @ wide
    return made


def _scaled(scale: Array, zero: Array | None) -> Tail:
    """Times the scale in float32; with a zero point rounded half to even and saturated to its type."""

    def tail(sums: Array, spread: Callable[[Array], Array]) -> Array:
        y = sums.astype(np.float32) * spread(scale.reshape(-1) if scale.size > 1 else scale.reshape(()))
        if zero is None:
            return y
        least, most = np.iinfo(zero.dtype).min, np.iinfo(zero.dtype).max
        return np.clip(np.rint(y) + float(zero.reshape(())), least, most).astype(zero.dtype)

    return tail


def _as(op: str, node: Node, x: str, w: str, look: NodeReader) -> Original:
    """The meaning of a float operator with these operands in the place of `node`."""
    made = Node(op, (x, w), node.outputs, name=node.name, attributes=node.attributes)
    return (conv.convolution if op == "Conv" else linear.product)(made, look)


def _name(node: Node, at: int) -> str:
    return node.inputs[at] if len(node.inputs) > at else ""


def _stored(look: NodeReader, node: Node, at: int) -> Array:
    """The numbers of an input that the standard allows to be computed, and that a tiled one has stored."""
    found = look.number(_name(node, at))
    if found is None:
        raise NotTiled(f"'{_name(node, at)}' of the original is no constant")
    return found


def _integer(op: str) -> Meaning:
    def mean(node: Node, look: NodeReader) -> Original:
        x, w = node.inputs[0], node.inputs[1]
        zeros = _name(node, 2), _name(node, 3)
        return _integral(node, look, _as(op, node, x, w, look), x, w, zeros, "", lambda sums, spread: sums)

    return mean


def _quantized(op: str, bias: int, out: int, alpha: bool = False) -> Meaning:
    """X, scale, zero; W, scale, zero; a bias and the scale and zero of Y where their inputs say."""

    def mean(node: Node, look: NodeReader) -> Original:
        x, w = node.inputs[0], node.inputs[3]
        factor = np.float32(node.attributes.get("alpha", 1.0) if alpha else 1.0)
        scale: Array = factor * _stored(look, node, 1).reshape(()) * _stored(look, node, 4)
        zero: Array | None = None
        if _name(node, out):
            scale = scale / _stored(look, node, out).reshape(())
            zero = _stored(look, node, out + 1) if _name(node, out + 1) else np.zeros((), np.uint8)
        zeros = _name(node, 2), _name(node, 5)
        turns = {key: value for key, value in node.attributes.items() if key.startswith("trans")}
        base = _as(op, node.with_attributes(turns) if alpha else node, x, w, look)
        tail = _scaled(np.asarray(scale, np.float32), zero)
        return _integral(node, look, base, x, w, zeros, _name(node, bias) if bias else "", tail)

    return mean


def _between(op: str) -> Meaning:
    """A float operator behind DequantizeLinear nodes, where the plan takes it for one of integers."""
    plain = conv.convolution if op == "Conv" else linear.product

    def mean(node: Node, look: NodeReader) -> Original:
        if look.planned is None or look.planned.dtype not in ("uint8", "int8"):
            return plain(node, look)
        makers = {o: n for n in look.model.graph.nodes for o in n.outputs if o}
        x, w = (makers.get(name) for name in node.inputs[:2])
        if x is None or w is None or {x.op, w.op} != {"DequantizeLinear"}:
            raise NotTiled(f"the operands of '{node.label}' were not quantised")
        scale = np.asarray(_stored(look, x, 1).reshape(()) * _stored(look, w, 1).reshape(-1), np.float32)
        bias: str | Array = ""
        floats: Array | None = None
        if _name(node, 2):
            maker = makers.get(node.inputs[2])
            if maker is not None and maker.op == "DequantizeLinear":
                own = np.broadcast_to(_stored(look, maker, 1), scale.shape)
                zero = look.number(_name(maker, 2)) if _name(maker, 2) else None
                if np.array_equal(own, scale) and (zero is None or not zero.any()):
                    bias = maker.inputs[0]
            if not bias:
                floats = _stored(look, node, 2).astype(np.float32)
        base = _as(op, node, x.inputs[0], w.inputs[0], look)

        def tail(sums: Array, spread: Callable[[Array], Array]) -> Array:
            y = _scaled(scale, None)(sums, spread)
            return y if floats is None else y + spread(floats)

        zeros = _name(x, 2), _name(w, 2)
        return _integral(node, look, base, x.inputs[0], w.inputs[0], zeros, bias, tail, scale)

    return mean


MEANINGS: Mapping[tuple[str, str], Meaning] = {
    ("", "MatMul"): _between("MatMul"),
    ("", "Gemm"): _between("Gemm"),
    ("", "Conv"): _between("Conv"),
    ("", "MatMulInteger"): _integer("MatMul"),
    ("", "ConvInteger"): _integer("Conv"),
    ("", "QLinearMatMul"): _quantized("MatMul", 0, 6),
    ("", "QLinearConv"): _quantized("Conv", 8, 6),
    ("com.microsoft", "QLinearConv"): _quantized("Conv", 8, 6),
    ("com.microsoft", "QGemm"): _quantized("Gemm", 6, 7, alpha=True),
}
