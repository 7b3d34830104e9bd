"""Specifies Gemm, MatMul and FusedMatMul as products."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from explorer.engine.graph.model import Node
from explorer.engine.proof.meanings.product_spec import Arrange, NodeReader, Original, ProductSpec, Rows
from explorer.engine.proof.symbolic.blocks import NotTiled
from explorer.engine.runtime.onnxruntime import Array


def describe_product(node: Node, reader: NodeReader) -> Original:
    """Returns the product that a Gemm, MatMul or FusedMatMul computes.

    Raises:
        NotTiled: Both operands are stored, or a batch axis is transposed.
    """
    attributes = node.attributes if node.op in ("Gemm", "FusedMatMul") else {}
    if attributes.get("transBatchA", 0) or attributes.get("transBatchB", 0):
        raise NotTiled(f"{node.op} '{node.label}' of the original transposes a batch axis")
    left_weight, right_weight = reader.read_factors(node)
    beta = float(attributes.get("beta", 1.0))
    # a factor of 0 omits C, even if it is infinite
    name = node.inputs[2] if node.op == "Gemm" and len(node.inputs) > 2 and beta else ""
    bias = reader.read_numbers(name) if name else None
    numbers = left_weight if left_weight is not None else right_weight
    multiplied = [n for n, v in zip(node.inputs[:2], (left_weight, right_weight), strict=True) if v is None]
    inputs = list(dict.fromkeys(multiplied))
    operands = len(inputs)
    if name and bias is None and name not in inputs:
        inputs.append(name)
    bias_source: Array | int | None = bias if bias is not None else (inputs.index(name) if name else None)
    transposes = bool(attributes.get("transA", 0)), bool(attributes.get("transB", 0))
    alpha = float(attributes.get("alpha", 1.0))

    def build_spec(shapes: Sequence[tuple[int, ...]], output_shape: tuple[int, ...]) -> ProductSpec:
        planned = reader.planned
        keeps_batch = planned is not None and (planned.batch != 1 or "batch" in planned.dynamic)
        if left_weight is not None:
            return _build_swapped_spec(
                left_weight, transposes, shapes[0], output_shape, alpha, beta, bias_source, keeps_batch
            )
        second = right_weight if right_weight is not None else inputs.index(node.inputs[1])
        return _build_spec(second, transposes, shapes, output_shape, alpha, beta, bias_source, keeps_batch)

    return Original(
        node, tuple(inputs), operands, str(numbers.dtype) if numbers is not None else "", build_spec
    )


def _get_matrix_shape(shape: tuple[int, ...], is_transposed: bool, is_right: bool) -> tuple[int, ...]:
    """Returns an operand's shape as (..., rows, columns). A vector is a row, or a column if `is_right`."""
    if len(shape) == 1:
        return (shape[0], 1) if is_right else (1, shape[0])
    return (*shape[:-2], shape[-1], shape[-2]) if is_transposed else shape


def _transpose_matrix(array: Array, is_transposed: bool, is_right: bool) -> Array:
    if array.ndim == 1:
        return array[:, None] if is_right else array[None, :]
    return array.swapaxes(-1, -2) if is_transposed else array


def _build_spec(
    second: Array | int,
    transposes: tuple[bool, bool],
    shapes: Sequence[tuple[int, ...]],
    output_shape: tuple[int, ...],
    alpha: float,
    beta: float,
    bias: Array | int | None,
    keeps_batch: bool,
) -> ProductSpec:
    """Builds the specification Y = alpha X W + beta C.

    Without `keeps_batch`, a batch of left matrices with one right matrix is a single product.
    """
    a = _get_matrix_shape(shapes[0], transposes[0], False)
    b = _get_matrix_shape(shapes[second] if isinstance(second, int) else second.shape, transposes[1], True)
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    is_single = math.prod(b[:-2]) == 1 and not keeps_batch
    M, K, N = a[-2], a[-1], b[-1]
    stack = 1 if is_single else math.prod(batch)
    rows = M * math.prod(batch) if is_single else M

    def read_left(values: Sequence[Array]) -> Rows:
        x = _transpose_matrix(values[0], transposes[0], False)
        x = np.broadcast_to(x, (*batch, M, K)).reshape(stack, rows, K)
        return lambda b, row_range: x[b, row_range]

    def read_right(values: Sequence[Array]) -> Array:
        assert isinstance(second, int)
        return stack_weight(values[second])

    def stack_weight(w: Array) -> Array:
        w = _transpose_matrix(w, transposes[1], True)
        return w.reshape(1, K, N) if is_single else np.broadcast_to(w, (*batch, K, N)).reshape(stack, K, N)

    W: Array | Arrange = read_right if isinstance(second, int) else stack_weight(second)
    return ProductSpec(
        stack, rows, K, N, read_left, W, lambda y: y.reshape(stack, rows, N), output_shape, alpha, beta, bias
    )


def _build_swapped_spec(
    weight: Array,
    transposes: tuple[bool, bool],
    shape: tuple[int, ...],
    output_shape: tuple[int, ...],
    alpha: float,
    beta: float,
    bias: Array | int | None,
    keeps_batch: bool,
) -> ProductSpec:
    """Builds the specification of W X as (X^T W^T)^T, so that the activation is the left operand."""
    swapped_transposes = not transposes[1], not transposes[0]
    spec = _build_spec(weight, swapped_transposes, (shape,), output_shape, alpha, beta, bias, keeps_batch)
    M = _get_matrix_shape(shape, swapped_transposes[0], False)[-2]

    def flatten_output(y: Array) -> Array:
        return y.reshape(-1, spec.N, M).swapaxes(-1, -2).reshape(spec.batch, spec.M, spec.N)

    return replace(spec, flatten_output=flatten_output)
