"""Specifies an Einsum of two operands as a batch of matrix products.

The products sum over the letters that both operands have and the output lacks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from explorer.engine.graph.model import Node
from explorer.engine.proof.meanings.product_spec import NodeReader, Original, ProductSpec, Rows
from explorer.engine.proof.symbolic.blocks import NotTiled
from explorer.engine.runtime.onnxruntime import Array


def describe_product(node: Node, reader: NodeReader) -> Original:
    """Returns the product that an Einsum of two operands computes.

    Raises:
        NotTiled: The Einsum does not have two operands, or `reader` finds that both are stored.
    """
    if len(node.inputs) != 2:
        raise NotTiled(f"Einsum '{node.label}' of the original has {len(node.inputs)} operands")
    stored_values = reader.read_factors(node)
    # a stored operand becomes the right operand W of the product
    left_index = 1 if stored_values[0] is not None else 0
    constant = stored_values[1 - left_index]
    names = [node.inputs[left_index], node.inputs[1 - left_index]]
    inputs = tuple(dict.fromkeys(names[:1] if constant is not None else names))
    equation = get_equation(node)

    def build_spec(shapes: Sequence[tuple[int, ...]], output_shape: tuple[int, ...]) -> ProductSpec:
        first_shape = shapes[0]
        second_shape = constant.shape if constant is not None else shapes[-1]
        ranks = [len(first_shape), len(second_shape)]
        labels = _label_axes(equation, ranks if left_index == 0 else ranks[::-1])
        # labels of the axes of the left operand, the right operand and the output
        x, w = (labels[0], labels[1]) if left_index == 0 else (labels[1], labels[0])
        y = labels[2]
        sizes = {**dict(zip(x, first_shape, strict=True)), **dict(zip(w, second_shape, strict=True))}
        batch = [c for c in y if c in x and c in w]
        rows = [c for c in y if c in x and c not in w]
        columns = [c for c in y if c in w and c not in x]
        depth = [c for c in x if c in w and c not in y]
        B, M, K, N = (math.prod(sizes[c] for c in group) for group in (batch, rows, depth, columns))

        def read_left(values: Sequence[Array]) -> Rows:
            matrices = values[0].transpose([x.index(c) for c in (*batch, *rows, *depth)]).reshape(B, M, K)
            return lambda b, row_slice: matrices[b, row_slice]

        def read_right(weight: Array) -> Array:
            return weight.transpose([w.index(c) for c in (*batch, *depth, *columns)]).reshape(B, K, N)

        def flatten_output(output: Array) -> Array:
            return output.transpose([y.index(c) for c in (*batch, *rows, *columns)]).reshape(B, M, N)

        return ProductSpec(
            B,
            M,
            K,
            N,
            read_left,
            read_right(constant) if constant is not None else lambda values: read_right(values[-1]),
            flatten_output,
            output_shape,
        )

    dtype = str(np.asarray(constant).dtype) if constant is not None else ""
    return Original(node, inputs, len(inputs), dtype, build_spec)


def get_equation(node: Node) -> str:
    """Returns the equation of an Einsum, without spaces."""
    equation = node.attributes["equation"]
    return (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")


def _label_axes(equation: str, ranks: Sequence[int]) -> list[list[str]]:
    """Returns a label for each axis of the operands and the output: its letter, or a place in '...'.

    The last axis of '...' is '~1', the one before it '~2'. Equal labels are the same axis.
    """
    operand_texts, _, output_text = equation.partition("->")
    labels = []
    for text, rank in zip(operand_texts.split(","), ranks, strict=True):
        ellipsis_rank = rank - len(text.replace("...", ""))
        head, dots, tail = text.partition("...")
        labels.append([*head, *(f"~{ellipsis_rank - i}" for i in range(ellipsis_rank if dots else 0)), *tail])
    longest_ellipsis = max((int(c[1:]) for side in labels for c in side if c[0] == "~"), default=0)
    ellipsis_labels = [f"~{i}" for i in range(longest_ellipsis, 0, -1)]
    if "->" not in equation:
        letters = "".join(operand_texts.split(",")).replace(".", "")
        return [*labels, [*ellipsis_labels, *sorted(c for c in set(letters) if letters.count(c) == 1)]]
    head, dots, tail = output_text.partition("...")
    return [*labels, [*head, *(ellipsis_labels if dots else ()), *tail]]
