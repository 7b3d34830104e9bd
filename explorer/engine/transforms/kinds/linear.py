"""Gemm and MatMul: with a stored weight, or with two activations, as attention has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from explorer.engine.graph import Node, dtype_code, tensor_from_array
from explorer.engine.transforms.region import Region
from explorer.engine.transforms.sites import Look, Make, Site, Weight

__all__ = ["FLOATS", "KINDS", "scaled"]

FLOATS = ("float32", "float64", "float16")
"""Element types whose products a runtime can run."""


def scaled(region: Region, z: str, dtype: str, alpha: float, bias: str, beta: float) -> str:
    """The sum alpha z + beta bias, from the accumulator's type to that of the operands, `dtype`."""
    wide = dtype == "float16"
    working = "float32" if wide else dtype
    if alpha != 1.0:
        z = region.add("Mul", (z, _scalar(region, alpha, working, "alpha")), "scaled")
    if bias:
        if wide:
            bias = region.add("Cast", (bias,), "bias32", attributes={"to": dtype_code("float32")})
        if beta != 1.0:
            bias = region.add("Mul", (bias, _scalar(region, beta, working, "beta")), "bias_scaled")
        z = region.add("Add", (z, bias), "biased")
    if wide:
        z = region.add("Cast", (z,), "narrowed", attributes={"to": dtype_code("float16")})
    return z


def _scalar(region: Region, value: float, dtype: str, label: str) -> str:
    return region.constant(tensor_from_array("", np.asarray(value, dtype)), label)


def _product(node: Node, look: Look) -> Site | str:
    """The site that a Gemm or MatMul is, or the reason why it is none."""
    attributes = node.attributes if node.op == "Gemm" else {}
    left, right = node.inputs[0], node.inputs[1]
    left_constant, right_constant = left in look.constants, right in look.constants
    if left_constant and right_constant:
        return "both operands are constant: a runtime folds it away"
    x = right if left_constant else left
    dtype = look.dtype(x)
    if dtype is not None and dtype not in FLOATS:
        return f"its type is {dtype}, tiled are {', '.join(FLOATS)}"
    shape, out = look.static(x), look.static(node.outputs[0])
    if isinstance(shape, str):
        return shape
    if isinstance(out, str):
        return out
    if not left_constant and not right_constant:
        return _two_activations(node, look, shape, out, dtype or "float32")
    swapped = left_constant
    trans_x = bool(attributes.get("transB" if swapped else "transA", 0))
    trans_w = bool(attributes.get("transA" if swapped else "transB", 0))
    # W X = (X^T W^T)^T: with the weight on the left both operands turn
    weight = look.constants.matrix(left if swapped else right, trans_w != swapped)
    if isinstance(weight, str):
        return weight
    if swapped and node.op == "MatMul" and len(shape) != 2:
        return "the weight stands on the left of a product with more or fewer than two dimensions"
    if swapped:
        trans_x = not trans_x
    rows = shape[-1] if trans_x else math.prod(shape[:-1])
    depth = shape[-2] if trans_x and len(shape) > 1 else shape[-1]
    if depth != weight.K:
        return f"its operands do not fit: {list(shape)} against a weight of {weight.K} x {weight.N}"
    if not rows or not weight.K or not weight.N:
        return "it is empty"
    return _site(node, x, shape, out, dtype or "float32", rows, weight, trans_x, swapped)


def _site(
    node: Node,
    x: str,
    shape: tuple[int, ...],
    out: tuple[int, ...],
    dtype: str,
    rows: int,
    weight: Weight,
    trans_x: bool,
    swapped: bool,
) -> Site:
    attributes = node.attributes if node.op == "Gemm" else {}
    bias = node.inputs[2] if node.op == "Gemm" and len(node.inputs) > 2 else ""
    alpha, beta = float(attributes.get("alpha", 1.0)), float(attributes.get("beta", 1.0))

    def left(region: Region, inputs: Sequence[str]) -> str:
        if trans_x and len(shape) > 1:
            return region.transpose(inputs[0], (1, 0), "x_transposed")
        if len(shape) != 2:
            return region.reshape(inputs[0], (rows, weight.K), "x_matrix")
        return inputs[0]

    def finish(region: Region, z: str, inputs: Sequence[str]) -> str:
        if swapped:
            z = region.transpose(z, (1, 0), "turned")
        z = scaled(region, z, dtype, alpha, inputs[1] if bias else "", beta)
        made = (weight.N, rows) if swapped else (rows, weight.N)
        return z if out == made else region.reshape(z, out, "shaped")

    return Site(
        node=node,
        label="Linear",
        batch=1,
        M=rows,
        K=weight.K,
        N=weight.N,
        dtype=dtype,
        inputs=(x, bias) if bias else (x,),
        left=left,
        right=weight,
        finish=finish,
        bias=bool(bias),
    )


def _two_activations(
    node: Node, look: Look, a: tuple[int, ...], out: tuple[int, ...], dtype: str
) -> Site | str:
    """Both operands come from the data: a product for each pair of matrices."""
    b = look.static(node.inputs[1])
    if isinstance(b, str):
        return b
    attributes = node.attributes if node.op == "Gemm" else {}
    turn_a, turn_b = bool(attributes.get("transA", 0)), bool(attributes.get("transB", 0))
    alpha, beta = float(attributes.get("alpha", 1.0)), float(attributes.get("beta", 1.0))
    bias = node.inputs[2] if node.op == "Gemm" and len(node.inputs) > 2 else ""
    M, K = _rows_columns(a, turn_a, left=True)
    depth, N = _rows_columns(b, turn_b, left=False)
    if depth != K:
        return f"its operands do not fit: {list(a)} against {list(b)}"
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    if not (M and K and N and math.prod(batch)):
        return "it is empty"
    shared = len(b) <= 2 or math.prod(b[:-2]) == 1
    if shared:
        # every matrix of the left meets the same right: rows of one product
        M, stack = M * math.prod(batch), 1
    else:
        stack = math.prod(batch)
    same = node.inputs[0] == node.inputs[1]

    def operand(at: int, shape: tuple[int, ...], turn: bool, matrix: tuple[int, int], label: str) -> Make:
        def make(region: Region, inputs: Sequence[str]) -> str:
            x = inputs[at]
            if turn:
                return region.transpose(x, (1, 0), f"{label}_transposed")
            if stack != 1 and math.prod(shape[:-2]) != stack:
                x = region.expand(x, (*batch, *_matrix(shape, label == "x")), f"{label}_each")
            wanted = matrix if stack == 1 else (stack, *matrix)
            return x if shape == wanted else region.reshape(x, wanted, f"{label}_matrix")

        return make

    def finish(region: Region, z: str, inputs: Sequence[str]) -> str:
        z = scaled(region, z, dtype, alpha, inputs[-1] if bias else "", beta)
        return z if out == ((M, N) if stack == 1 else (stack, M, N)) else region.reshape(z, out, "shaped")

    activations = (node.inputs[0],) if same else (node.inputs[0], node.inputs[1])
    return Site(
        node=node,
        label="Product",
        batch=stack,
        M=M,
        K=K,
        N=N,
        dtype=dtype,
        inputs=(*activations, bias) if bias else activations,
        left=operand(0, a, turn_a, (M, K), "x"),
        right=operand(0 if same else 1, b, turn_b, (K, N), "w"),
        finish=finish,
        bias=bool(bias),
    )


def _matrix(shape: tuple[int, ...], left: bool) -> tuple[int, int]:
    """The last two dimensions; a vector is a row on the left and a column on the right."""
    if len(shape) >= 2:
        return shape[-2], shape[-1]
    return (1, shape[0]) if left else (shape[0], 1)


def _rows_columns(shape: tuple[int, ...], turned: bool, *, left: bool) -> tuple[int, int]:
    rows, columns = _matrix(shape, left)
    return (columns, rows) if turned else (rows, columns)


KINDS: Mapping[tuple[str, str], Callable[[Node, Look], Site | str]] = {
    ("", "Gemm"): _product,
    ("", "MatMul"): _product,
}
