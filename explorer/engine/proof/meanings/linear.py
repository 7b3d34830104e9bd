"""Gemm, MatMul and FusedMatMul as products."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from explorer.engine.graph.model import Node
from explorer.engine.proof.meanings.product_spec import Arrange, NodeReader, Original, ProductSpec, Rows
from explorer.engine.proof.symbolic.blocks import NotTiled
from explorer.engine.runtime.onnxruntime import Array


def product(node: Node, look: NodeReader) -> Original:
    """The meaning of a Gemm, a MatMul or a FusedMatMul, which has transposes and an alpha like a Gemm.

    Raises:
        NotTiled: Both operands are stored, or a batch axis is transposed.
    """
    attributes = node.attributes if node.op in ("Gemm", "FusedMatMul") else {}
    if attributes.get("transBatchA", 0) or attributes.get("transBatchB", 0):
        raise NotTiled(f"{node.op} '{node.label}' of the original turns an axis of its batch")
    left_weight, right_weight = look.factors(node)
    name = node.inputs[2] if node.op == "Gemm" and len(node.inputs) > 2 else ""
    bias = look.number(name) if name else None
    numbers = left_weight if left_weight is not None else right_weight
    multiplied = [n for n, v in zip(node.inputs[:2], (left_weight, right_weight), strict=True) if v is None]
    inputs = list(dict.fromkeys(multiplied))
    operands = len(inputs)
    if name and bias is None and name not in inputs:
        inputs.append(name)
    added: Array | int | None = bias if bias is not None else (inputs.index(name) if name else None)
    turns = bool(attributes.get("transA", 0)), bool(attributes.get("transB", 0))
    alpha, beta = float(attributes.get("alpha", 1.0)), float(attributes.get("beta", 1.0))

    def at(shapes: Sequence[tuple[int, ...]], out: tuple[int, ...]) -> ProductSpec:
        planned = look.planned
        apart = planned is not None and (planned.batch != 1 or "batch" in planned.dynamic)
        if left_weight is not None:
            return _weight_on_the_left(left_weight, turns, shapes[0], out, alpha, beta, added, apart)
        second = right_weight if right_weight is not None else inputs.index(node.inputs[1])
        return _plain(second, turns, shapes, out, alpha, beta, added, apart)

    return Original(node, tuple(inputs), operands, str(numbers.dtype) if numbers is not None else "", at)


def _matrix(shape: tuple[int, ...], turned: bool, column: bool) -> tuple[int, ...]:
    """The shape as (..., rows, columns); a vector is a row on the left and a column on the right."""
    if len(shape) == 1:
        return (shape[0], 1) if column else (1, shape[0])
    return (*shape[:-2], shape[-1], shape[-2]) if turned else shape


def _arranged(array: Array, turned: bool, column: bool) -> Array:
    if array.ndim == 1:
        return array[:, None] if column else array[None, :]
    return array.swapaxes(-1, -2) if turned else array


def _plain(
    second: Array | int,
    turns: tuple[bool, bool],
    shapes: Sequence[tuple[int, ...]],
    out: tuple[int, ...],
    alpha: float,
    beta: float,
    bias: Array | int | None,
    apart: bool,
) -> ProductSpec:
    """`apart`: the matrices are multiplied one by one, although one right matrix may serve all."""
    a = _matrix(shapes[0], turns[0], False)
    b = _matrix(shapes[second] if isinstance(second, int) else second.shape, turns[1], True)
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    single = math.prod(b[:-2]) == 1 and not apart
    M, K, N = a[-2], a[-1], b[-1]
    stack = 1 if single else math.prod(batch)
    rows = M * math.prod(batch) if single else M

    def left(values: Sequence[Array]) -> Rows:
        x = _arranged(values[0], turns[0], False)
        x = np.broadcast_to(x, (*batch, M, K)).reshape(stack, rows, K)
        return lambda b, some: x[b, some]

    def right(values: Sequence[Array]) -> Array:
        assert isinstance(second, int)
        return stacked(values[second])

    def stacked(w: Array) -> Array:
        w = _arranged(w, turns[1], True)
        return w.reshape(1, K, N) if single else np.broadcast_to(w, (*batch, K, N)).reshape(stack, K, N)

    W: Array | Arrange = right if isinstance(second, int) else stacked(second)
    return ProductSpec(
        stack, rows, K, N, left, W, lambda y: y.reshape(stack, rows, N), out, alpha, beta, bias
    )


def _weight_on_the_left(
    weight: Array,
    turns: tuple[bool, bool],
    shape: tuple[int, ...],
    out: tuple[int, ...],
    alpha: float,
    beta: float,
    bias: Array | int | None,
    apart: bool,
) -> ProductSpec:
    """W X = (X^T W^T)^T: the activation becomes the left operand, and Y is transposed."""
    turned = not turns[1], not turns[0]
    plain = _plain(weight, turned, (shape,), out, alpha, beta, bias, apart)
    M = _matrix(shape, turned[0], False)[-2]

    def out_(y: Array) -> Array:
        return y.reshape(-1, plain.N, M).swapaxes(-1, -2).reshape(plain.batch, plain.M, plain.N)

    return replace(plain, out=out_)
