"""Integer and quantized operators as products: MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv, QGemm.

The same operator on floats says which elements are multiplied. The zero points are subtracted from the
operands before the products, as the standard defines; a graph that subtracts them after the products must
give the same numbers.
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

Tail = Callable[[Array, Callable[[Array], Array]], Array]
"""From sums to the output; the second argument expands one number per column to one per element."""


Exact = Callable[[Sequence[Array]], tuple[Array, Array | None]]
"""See `Integers.exact`."""

Grid = tuple[float, int, int]
"""See `Integers.grids`."""


class _Number(Struct, frozen=True):
    """A zero point or a bias: stored numbers, or the index of an input."""

    stored: Array | None
    at: int = -1

    def value(self, inputs: Sequence[Array]) -> Array:
        """The numbers, in int64."""
        return np.asarray(inputs[self.at] if self.stored is None else self.stored).astype(np.int64)


def _integral(
    node: Node,
    look: NodeReader,
    base: Original,
    zeros: tuple[str, str],
    bias: str | Array,
    tail: Tail,
    scale: Array | None = None,
    grids: Mapping[str, Grid | None] = MappingProxyType({}),
) -> Original:
    """The meaning of an operator on integers.

    Args:
        node: The operator.
        look: The original.
        base: The same product of floats.
        zeros: Value names of the zero points of both operands; '' for zero.
        bias: Value name of the int32 bias, or its numbers; '' for none.
        tail: The steps after the sums.
        scale: The factor of a sum, where the original multiplies the floats.
        grids: Of values that arrive as floats, by their names: see `Integers.grids`.
    """
    inputs = list(base.inputs)
    steps = [grids.get(name) for name in inputs]

    def known(name: str) -> _Number:
        constant = look.number(name) if name else np.zeros((), np.int64)
        if constant is not None:
            first = constant.reshape(-1)[:1]
            return _Number(first.reshape(()) if (constant == first).all() else constant)
        if name not in inputs:
            inputs.append(name)
        return _Number(None, inputs.index(name))

    a, b = known(zeros[0]), known(zeros[1])
    if isinstance(bias, np.ndarray):
        c = _Number(bias)
    else:
        constant = look.number(bias) if bias else np.zeros((), np.int64)
        c = _Number(constant) if constant is not None else known(bias)
    count, kind = len(base.inputs), _sum_type(look)
    worth = None if scale is None else partial(_scale_of, scale)

    def at(shapes: Sequence[tuple[int, ...]], out: tuple[int, ...]) -> ProductSpec:
        plain = base.at(shapes[:count], out)

        point = int(a.stored) if a.stored is not None and a.stored.size == 1 else None
        whole = _with_steps(_exact(plain, (a, b, c), count, tail, kind, bounded=scale is not None), steps)
        return replace(
            plain,
            bias=_total_bias(plain, out, a, c, kind),
            spread=partial(_spread, plain, out),
            integers=Integers(whole, point, a.at, partial(_saturates, plain, count), worth, steps),
        )

    return replace(base, node=node, inputs=tuple(inputs), at=at)


def _sum_type(look: NodeReader) -> str:
    planned = look.planned.accumulator if look.planned is not None else ""
    return planned if "int" in planned else "int32"


def _saturates(plain: ProductSpec, count: int, values: Sequence[Array]) -> bool:
    right = plain.right if isinstance(plain.right, np.ndarray) else values[count - 1]
    return (values[0].dtype, right.dtype) == (np.uint8, np.int8)


def _with_steps(whole: Exact, steps: Sequence[Grid | None]) -> Exact:
    """The same, for inputs that arrive as floats: codes times a step."""

    def exact(values: Sequence[Array]) -> tuple[Array, Array | None]:
        each = [*steps, *(None,) * (len(values) - len(steps))]
        pairs = zip(values, each, strict=True)
        return whole([v if s is None else np.rint(v / v.dtype.type(s[0])) for v, s in pairs])

    return exact


def _spread(plain: ProductSpec, out: tuple[int, ...], values: Array) -> Array:
    """Numbers in the shape of Y; a bias that includes the zero points has that shape already."""
    whole = values.shape == out or plain.spread is None
    return np.broadcast_to(values, out) if whole or plain.spread is None else plain.spread(values)


def _scale_of(scale: Array, spread: Callable[[Array], Array]) -> Array:
    """The factor of every element's sum; `spread` expands one number per column."""
    return spread(scale if scale.size > 1 else scale.reshape(()))


def _exact(
    plain: ProductSpec,
    numbers: tuple[_Number, _Number, _Number],
    count: int,
    tail: Tail,
    kind: str,
    *,
    bounded: bool,
) -> Exact:
    """The product in whole numbers, and (`bounded`) the sums of the absolute values of its terms.

    `plain` is the same product of floats, `count` the number of its inputs; `numbers` are both zero points
    and the bias; `kind` is the type of the sums.
    """
    a, b, c = numbers

    def exact(values: Sequence[Array]) -> tuple[Array, Array | None]:
        lefts, rights = list(values[:count]), list(values[:count])
        lefts[0] = _less_zero(lefts[0], a.value(values), row=True)
        if isinstance(plain.right, np.ndarray):
            zero = b.value(values).reshape(-1).astype(np.int32)
            # outside the blocks of packed groups the weight is the zero point
            weight = plain.right.astype(np.int32) - zero if zero.any() else plain.right
        else:
            rights[-1] = _less_zero(rights[-1], b.value(values), row=False)
            weight = plain.weight(rights)
        left_rows = plain.left(lefts)
        sums = _sums(left_rows, plain.M, weight) + plain.added(c.value(values))
        size = np.abs(weight.astype(np.int32))
        bound = _sums(lambda b, some: np.abs(left_rows(b, some)), plain.M, size) if bounded else None
        return tail(sums.astype(kind), plain.added), bound

    return exact


def _total_bias(
    plain: ProductSpec, out: tuple[int, ...], a: _Number, c: _Number, kind: str
) -> Array | int | None:
    """The added numbers: the bias, less the effect of the left operand's zero point on every column."""
    if c.stored is None:
        return c.at
    total = c.stored.astype(np.int64)
    if isinstance(plain.right, np.ndarray) and a.stored is not None and a.stored.size == 1 and int(a.stored):
        lost = int(a.stored.reshape(())) * plain.right.astype(np.int64).sum(1)
        whole = plain.spread(total) if plain.spread is not None else total
        total = whole - _on_elements(plain, lost[:, None], out)
    added: Array = total.astype(kind)
    return added


def _on_elements(plain: ProductSpec, values: Array, out: tuple[int, ...]) -> Array:
    """Numbers per column of each product, (batch, 1, N), at the elements of the output."""
    at = plain.out(np.arange(math.prod(out)).reshape(out))
    placed = np.zeros(math.prod(out), values.dtype)
    each = np.broadcast_to(values, at.shape)
    placed[at if plain.shown is None else at[plain.shown]] = (
        each if plain.shown is None else each[plain.shown]
    )
    return placed.reshape(out)


def _less_zero(values: Array, zero: Array, *, row: bool) -> Array:
    """Values less the zero point: one number, or one for each row or each column of a matrix."""
    zero = zero.astype(np.int32)
    zero = zero.reshape(()) if zero.size == 1 else (zero.reshape(-1, 1) if row else zero)
    difference: Array = values.astype(np.int32) - zero
    return difference


_ROWS = 1 << 21
"""Elements of the left operand that are widened at a time."""


def _sums(left_rows: Rows, M: int, right: Array) -> Array:
    """The sums of products in int64. float64 is exact for sums of products of bytes, and has a BLAS."""
    batch, depth, width = right.shape
    sums = np.empty((batch, M, width), np.int64)
    step = max(1, _ROWS // max(depth, 1))
    for b in range(batch):
        wide = right[b].astype(np.float64)
        for first in range(0, M, step):
            rows = slice(first, first + step)
            sums[b, rows] = left_rows(b, rows).astype(np.float64) @ wide
    return sums


def _scale_tail(scale: Array, zero: Array | None) -> Tail:
    """Multiplies by the scale in float32; with a zero point, rounds half to even and saturates."""

    def tail(sums: Array, spread: Callable[[Array], Array]) -> Array:
        y = sums.astype(np.float32) * _scale_of(scale, spread)
        if zero is None:
            return y
        least, most = np.iinfo(zero.dtype).min, np.iinfo(zero.dtype).max
        return np.clip(np.rint(y) + float(zero.reshape(())), least, most).astype(zero.dtype)

    return tail


def _float_meaning(op: str, node: Node, names: tuple[str, str], zero: str, look: NodeReader) -> Original:
    """The meaning of a float operator that has these operands, in place of `node`.

    Between the kernels of two groups the weight is the zero point, whose value name is `zero`.
    """
    attributes = {k: v for k, v in node.attributes.items() if k not in ("alpha", "beta")}
    float_node = Node(op, names, node.outputs, name=node.name, attributes=attributes)
    if op not in ("Conv", "ConvTranspose"):
        return _PLAIN[op](float_node, look)
    zero_points = look.number(zero) if zero else None
    alike = zero_points is not None and (zero_points == zero_points.reshape(-1)[0]).all()
    return conv.convolution(
        float_node, look, int(zero_points.reshape(-1)[0]) if zero_points is not None and alike else 0
    )


def _name(node: Node, at: int) -> str:
    return node.inputs[at] if len(node.inputs) > at else ""


def _stored_input(look: NodeReader, node: Node, at: int) -> Array:
    """The numbers of an input that must be stored here, although the standard allows a computed one."""
    numbers = look.number(_name(node, at))
    if numbers is None:
        raise NotTiled(f"'{_name(node, at)}' of the original is no constant")
    return numbers


def _integer(op: str) -> Meaning:
    def mean(node: Node, look: NodeReader) -> Original:
        x, w = node.inputs[0], node.inputs[1]
        zeros = _name(node, 2), _name(node, 3)
        base = _float_meaning(op, node, (x, w), zeros[1], look)
        return _integral(node, look, base, zeros, "", lambda sums, spread: sums)

    return mean


def _quantized(op: str, bias: int, out: int, alpha: bool = False) -> Meaning:
    """An operator with inputs X, scale, zero, W, scale, zero, then bias and the scale and zero of Y."""

    def mean(node: Node, look: NodeReader) -> Original:
        x, w = node.inputs[0], node.inputs[3]
        factor = np.float32(node.attributes.get("alpha", 1.0) if alpha else 1.0)
        scale: Array = factor * _stored_input(look, node, 1).reshape(()) * _stored_input(look, node, 4)
        zero: Array | None = None
        if _name(node, out):
            scale = scale / _stored_input(look, node, out).reshape(())
            zero = _stored_input(look, node, out + 1) if _name(node, out + 1) else np.zeros((), np.uint8)
        zeros = _name(node, 2), _name(node, 5)
        base = _float_meaning(op, node, (x, w), zeros[1], look)
        tail = _scale_tail(np.asarray(scale, np.float32), zero)
        return _integral(node, look, base, zeros, _name(node, bias) if bias else "", tail)

    return mean


def _behind_dequantize(op: str) -> Meaning:
    """A float operator behind DequantizeLinear nodes that the plan treats as an integer operator."""
    plain = _PLAIN[op]

    def mean(node: Node, look: NodeReader) -> Original:
        if look.planned is None or "int" not in look.planned.dtype:
            return plain(node, look)
        makers = {o: n for n in look.model.graph.nodes for o in n.outputs if o}
        turned = look.weighs(node.inputs[0])
        x, w = (makers.get(name) for name in (node.inputs[1::-1] if turned else node.inputs[:2]))
        if x is None or w is None:
            raise NotTiled(f"the operands of '{node.label}' were not quantised")
        x_, w_ = _operand(x, look), _operand(w, look)
        alpha, beta = (np.float32(node.attributes.get(factor, 1.0)) for factor in ("alpha", "beta"))
        each = np.asarray(x_.scale.reshape(()) * w_.scale.reshape(-1), np.float32)
        bias: str | Array = ""
        floats: Array | None = None
        if _name(node, 2) and beta:
            whole = _whole_bias(look, makers.get(node.inputs[2]), each, float(alpha), float(beta))
            if whole is None:
                floats = beta * _stored_input(look, node, 2).astype(np.float32)
            else:
                bias = whole
        names = (w_.name, x_.name) if turned else (x_.name, w_.name)
        base = _float_meaning(op, node, names, w_.zero, look)
        spread = partial(_on_output, node, look, w_, turned)

        def tail(sums: Array, added: Callable[[Array], Array]) -> Array:
            y = _scale_tail(spread(each * alpha), None)(sums, added)
            return y if floats is None else y + added(floats)

        scale = spread(np.abs(each * alpha))
        grids = {operand.name: operand.grid for operand in (x_, w_) if operand.grid is not None}
        zeros = x_.zero, w_.zero
        return _integral(node, look, base, zeros, bias, tail, scale, grids)

    return mean


class _Operand(Struct, frozen=True):
    """An operand as its codes.

    Attributes:
        name: Value name of the codes, or of the floats that become the codes.
        scale: One, or along `axis`.
        zero: Value name of their zero point; '' for zero.
        axis: Of the scales.
        grid: As in `Integers.grids`.
    """

    name: str
    scale: Array
    zero: str
    axis: int
    grid: Grid | None = None


def _operand(maker: Node, look: NodeReader) -> _Operand:
    """The operand behind a DequantizeLinear or a call of IntQuant.

    Raises:
        NotTiled: The node is neither.
    """
    if maker.op == "DequantizeLinear":
        codes = look.number(maker.inputs[0])
        if codes is not None and str(codes.dtype) in ("int4", "uint4", "int2", "uint2"):
            look.codes[maker.inputs[0]] = codes.astype("uint8" if str(codes.dtype)[0] == "u" else "int8")
        axis = int(maker.attributes.get("axis", 1))
        return _Operand(maker.inputs[0], _stored_input(look, maker, 1), _name(maker, 2), axis)
    if maker.op != "IntQuant":
        raise NotTiled(f"'{maker.label}' quantises nothing")
    scale, zeros, bits = (_stored_input(look, maker, at).astype(np.float32) for at in (1, 2, 3))
    zero, half = float(zeros.reshape(-1)[0]), 2.0 ** (float(bits.reshape(-1)[0]) - 1)
    narrow, signed = int(maker.attributes.get("narrow", 0)), int(maker.attributes.get("signed", 1))
    least, largest = (narrow - half, half - 1) if signed else (0.0, 2 * half - 1 - narrow)
    axis = next((at - scale.ndim for at, size in enumerate(scale.shape) if size > 1), 1)
    name, values = maker.outputs[0], look.number(maker.inputs[0])
    if values is None:
        grid = float(scale.reshape(-1)[0]), int(least - zero), int(largest - zero)
        return _Operand(name, scale, "", axis, grid)
    moved = values.astype(np.float32) / scale + np.float32(zero)
    look.codes[name] = (np.rint(np.clip(moved, least, largest)) - zero).astype(np.int32)
    return _Operand(name, scale, "", axis)


def _whole_bias(look: NodeReader, maker: Node | None, each: Array, alpha: float, beta: float) -> Array | None:
    """A bias in the integers of the sum, times beta / alpha; None where it has no such integers."""
    if maker is None or maker.op != "DequantizeLinear" or not alpha:
        return None
    codes, scales = _stored_input(look, maker, 0), _stored_input(look, maker, 1)
    zero = look.number(_name(maker, 2)) if _name(maker, 2) else None
    axis = int(maker.attributes.get("axis", 1))
    last = scales.size == 1 or codes.ndim == 1 or axis % codes.ndim == codes.ndim - 1
    if not last or codes.dtype != np.int32 or (zero is not None and zero.any()):
        return None
    wide = np.resize(each, max(scales.size, each.size))
    if scales.size not in (1, wide.size) or not np.array_equal(np.broadcast_to(scales, wide.shape), wide):
        return None
    scaled = codes.astype(np.float64) * (beta / alpha)
    is_exact = (beta / alpha).is_integer() and np.abs(scaled).max(initial=0) < 2**31
    return scaled.astype(np.int32) if is_exact else None


def _on_output(node: Node, look: NodeReader, w: _Operand, turned: bool, values: Array) -> Array:
    """Numbers of a weight's channels, in a shape that broadcasts to the output; for Conv, one a channel."""
    if values.size == 1 or node.op == "Conv":
        return values
    if node.op in ("Gemm", "MatMul", "FusedMatMul"):
        return values[:, None] if turned else values
    if node.op == "ConvTranspose":
        return np.tile(values, int(node.attributes.get("group", 1)))
    text = einsum.equation_of(node)
    # letters are counted from the end, so that an ellipsis does not matter
    subscripts = text.split("->")[0].split(",")[0 if turned else 1]
    weight = look.number(w.name)
    rank = 0 if weight is None else weight.ndim
    letter = subscripts[w.axis % rank - rank]
    out = text.split("->")[1]
    return values.reshape(-1, *(1,) * (len(out) - 1 - out.index(letter)))


_PLAIN: Mapping[str, Meaning] = {
    "MatMul": linear.product,
    "Gemm": linear.product,
    "FusedMatMul": linear.product,
    "Conv": conv.convolution,
    "ConvTranspose": conv.convolution,
    "Einsum": einsum.product,
}

MEANINGS: Mapping[tuple[str, str], Meaning] = {
    **{("com.microsoft" if op == "FusedMatMul" else "", op): _behind_dequantize(op) for op in _PLAIN},
    ("", "MatMulInteger"): _integer("MatMul"),
    ("", "ConvInteger"): _integer("Conv"),
    ("", "QLinearMatMul"): _quantized("MatMul", 0, 6),
    ("", "QLinearConv"): _quantized("Conv", 8, 6),
    ("com.microsoft", "QLinearConv"): _quantized("Conv", 8, 6),
    ("com.microsoft", "QGemm"): _quantized("Gemm", 6, 7, alpha=True),
}
