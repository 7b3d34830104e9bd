"""Finds Einsums of two operands that are matmuls, and describes them as sites.

Each letter of the equation belongs to the batch, the rows, the columns or the depth of the matmul.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from explorer.engine.graph.model import Node
from explorer.engine.tiling.builder import GraphBuilder, Size
from explorer.engine.tiling.kinds.linear import FLOATS, write_scaled_sum
from explorer.engine.tiling.sites import NoSite, OperandBuilder, Site, SiteContext, Weight

Array = np.ndarray[Any, np.dtype[Any]]


def _parse_terms(equation: str, ranks: tuple[int, int]) -> tuple[str, str, str]:
    """Parses the equation for operands with the ranks `ranks`.

    Returns:
        The letters of both operands and of the output, with the ellipsis expanded.

    Raises:
        NoSite: The equation does not have two operands of these ranks.
    """
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    operands = inputs.split(",")
    if len(operands) != 2:
        raise NoSite(f"an Einsum of {len(operands)} operands is not a product of two operands")
    unused_letters = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation]
    widths = [rank - len(text.replace("...", "")) for text, rank in zip(operands, ranks, strict=True)]
    if any("..." not in text and width for text, width in zip(operands, widths, strict=True)):
        raise NoSite("its equation does not fit its operands")
    ellipsis_rank = max((w for w, text in zip(widths, operands, strict=True) if "..." in text), default=0)
    if min(widths) < 0 or ellipsis_rank > len(unused_letters):
        raise NoSite("its equation does not fit its operands")
    letters = "".join(unused_letters[:ellipsis_rank])
    left, right = (
        text.replace("...", letters[ellipsis_rank - width :])
        for text, width in zip(operands, widths, strict=True)
    )
    if not arrow:
        singles = sorted(c for c in set(left + right) if (left + right).count(c) == 1 and c not in letters)
        output = "..." + "".join(singles)
    return left, right, output.replace("...", letters)


def find_product_site(node: Node, context: SiteContext, types: Sequence[str] = FLOATS) -> Site:
    """Returns the site of an Einsum.

    Raises:
        NoSite: The node cannot be tiled.
    """
    names, (left, right, output), constant = _order_operands(node, context)
    a, b = (context.get_shape(name) for name in names)
    dtype = context.get_dtype(names[0])
    if dtype is not None and dtype not in types:
        raise NoSite(f"its type is {dtype}, but only {', '.join(types)} can be tiled")
    if any(len(set(side)) != len(side) for side in (left, right, output)):
        raise NoSite("a letter occurs twice in one operand: a diagonal")
    sizes = {**dict(zip(right, b, strict=True)), **dict(zip(left, a, strict=True))}
    if any(sizes[c] != size for c, size in zip(right, b, strict=True)):
        raise NoSite("one operand is repeated along an axis of the other")
    groups = _group_letters(left, right, output)
    left_open = context.find_open_axes(names[0])
    right_open = frozenset[int]() if constant else context.find_open_axes(names[1])
    open_letters = {c: (1, i) for i, c in enumerate(right) if i in right_open}
    open_letters |= {c: (0, i) for i, c in enumerate(left) if i in left_open}
    if any((left.index(c) in left_open) != (i in right_open) for i, c in enumerate(right) if c in left):
        # the fixed length may be 1, which would have to be broadcast
        raise NoSite("an axis is open in one operand and fixed in the other: bind it with --dim")
    letters = left, right, output
    return _build_site(node, context, names, letters, groups, sizes, open_letters, dtype or "float32")


def _order_operands(node: Node, context: SiteContext) -> tuple[list[str], tuple[str, str, str], bool]:
    """Orders the operands, so that a stored operand is on the right.

    Returns:
        Names of both operands; letters of both operands and of the output; and whether the right operand is
        stored.
    """
    if len(node.inputs) != 2:
        raise NoSite(f"it has {len(node.inputs)} operands, not two")
    constant = [name in context.constants for name in node.inputs]
    if all(constant):
        raise NoSite("both operands are constant: a runtime folds it away")
    order = (1, 0) if constant[0] else (0, 1)
    names = [node.inputs[i] for i in order]
    ranks = [len(context.get_shape(name)) for name in node.inputs]
    *terms, output = _parse_terms(str(node.attributes["equation"]), (ranks[0], ranks[1]))
    left, right = (terms[i] for i in order)
    return names, (left, right, output), constant[order[1]]


def convert_column_values(node: Node, context: SiteContext, axis: int, values: Array) -> Array:
    """Converts values along an axis of the stored operand to the product's shape: (N,), or (batch, 1, N).

    Raises:
        NoSite: The axis belongs to the depth.
    """
    names, (left, right, output), _ = _order_operands(node, context)
    batch, _, depth, columns = _group_letters(left, right, output)
    shape = context.get_shape(names[1])
    letter = right[axis % len(right)]
    if letter in depth:
        raise NoSite("its weight has scales along its depth, so a sum has no common scale")
    lengths = [1 if c in depth else size for c, size in zip(right, shape, strict=True)]
    shaped = values.reshape([-1 if c == letter else 1 for c in right])
    broadcast = np.broadcast_to(shaped, lengths).transpose([right.index(c) for c in batch + depth + columns])
    count = math.prod(shape[right.index(c)] for c in batch)
    return broadcast.reshape(count, 1, -1) if count != 1 else broadcast.reshape(-1)


def _group_letters(left: str, right: str, output: str) -> tuple[str, str, str, str]:
    """Returns the letters of batch, rows, depth and columns.

    Raises:
        NoSite: A letter belongs to none of them, or there is no depth.
    """
    batch = "".join(c for c in output if c in left and c in right)
    rows = "".join(c for c in output if c in left and c not in right)
    columns = "".join(c for c in output if c in right and c not in left)
    depth = "".join(c for c in left if c in right and c not in output)
    if set(left) - set(batch + rows + depth) or set(right) - set(batch + columns + depth):
        raise NoSite("it sums over an axis of a single operand")
    if not depth:
        raise NoSite("it multiplies without a sum")
    return batch, rows, depth, columns


def _make_operand_writer(
    index: int,
    term: str,
    parts: tuple[str, str, str],
    stacked: bool,
    length: Callable[[str, Sequence[str]], Size],
) -> OperandBuilder:
    """Creates a function that writes an operand as matrices.

    Args:
        index: Index of the operand: 0 or 1.
        term: Letters of the operand's axes.
        parts: Letters of batch, rows and columns.
        stacked: Whether the result has a batch axis.
        length: Returns the length of the axis that some letters form.
    """
    label = "xw"[index]

    def write_operand(builder: GraphBuilder, inputs: Sequence[str]) -> str:
        x = inputs[min(index, len(inputs) - 1)]
        order = "".join(parts)
        if order != term:
            x = builder.transpose(x, [term.index(c) for c in order], f"{label}_turned")
        axes = parts if stacked else parts[1:]
        target = [length(part, inputs) for part in axes]
        is_matrix = len(term) == len(target) and all(len(part) == 1 for part in axes)
        return x if is_matrix else builder.reshape(x, target, f"{label}_matrix")

    return write_operand


def _build_site(
    node: Node,
    context: SiteContext,
    names: Sequence[str],
    letters: tuple[str, str, str],
    groups: tuple[str, str, str, str],
    sizes: Mapping[str, int],
    open_letters: Mapping[str, tuple[int, int]],
    dtype: str,
) -> Site:
    """Builds the site of an Einsum.

    Args:
        node: The Einsum.
        context: Shapes and constants of the graph.
        names: Names of the left and the right operand.
        letters: Letters of the left operand, the right operand and the output.
        groups: Letters of batch, rows, depth and columns.
        sizes: Length of the axis of each letter.
        open_letters: Letters of symbolic length, with the index of the operand and of its axis.
        dtype: Element type.

    Raises:
        NoSite: The product is empty, or symbolic lengths cannot be written.
    """
    left, right, output = letters
    batch, rows, depth, columns = groups
    lengths = [math.prod(sizes[c] for c in group) for group in groups]
    if not all(lengths):
        raise NoSite("it is empty")
    has_open_letter = [any(c in open_letters for c in group) for group in groups]
    if sum(is_open and len(group) > 1 for is_open, group in zip(has_open_letter, groups, strict=True)) > 1:
        raise NoSite("several open sizes form one axis of the product: bind them with --dim")
    B, M, K, N = lengths
    axis_names = ("batch", "M", "K", "N")
    dynamic = tuple(axis for axis, is_open in zip(axis_names, has_open_letter, strict=True) if is_open)
    stacked = B != 1 or "batch" in dynamic
    weight = _find_weight(context, names[1], right, groups, sizes)
    inputs = (names[0],) if isinstance(weight, Weight) or names[0] == names[1] else tuple(names)

    def get_size(letter: str, values: Sequence[str]) -> Size:
        if letter not in open_letters:
            return sizes[letter]
        input_index, axis = open_letters[letter]
        return values[min(input_index, len(values) - 1)], axis

    def get_length(group: str, values: Sequence[str]) -> Size:
        if open_letters.keys().isdisjoint(group):
            return math.prod(sizes[c] for c in group)
        return -1 if len(group) > 1 else get_size(group, values)

    def write_output(builder: GraphBuilder, z: str, values: Sequence[str]) -> str:
        z = write_scaled_sum(builder, z, dtype, 1.0, "", 1.0)
        axes = batch + rows + columns
        output_groups = (batch, rows, columns) if stacked else (rows, columns)
        if (batch and not stacked) or not all(len(group) == 1 for group in output_groups):
            z = builder.reshape(z, [get_size(c, values) for c in axes], "apart")
        if axes != output:
            z = builder.transpose(z, [axes.index(c) for c in output], "shaped")
        return z

    return Site(
        node=node,
        label="Einsum",
        batch=B,
        M=M,
        K=K,
        N=N,
        dtype=dtype,
        inputs=inputs,
        left=_make_operand_writer(0, left, (batch, rows, depth), stacked, get_length),
        right=weight
        if isinstance(weight, Weight)
        else _make_operand_writer(1, right, (batch, depth, columns), stacked, get_length),
        finish=write_output,
        dynamic=dynamic,
    )


def _find_weight(
    context: SiteContext, name: str, term: str, groups: tuple[str, str, str, str], sizes: Mapping[str, int]
) -> Weight | None:
    """Returns the second operand as a stored weight, or None if its layout does not fit the product."""
    resolved = context.constants.resolve(name)
    if resolved is None or resolved[0].payload is None:
        return None
    tensor, stored_name, axes, chain = resolved
    batch, _, depth, columns = groups
    stored_letters = "".join(term[axes.index(i)] for i in range(len(axes)))
    B, K, N = (math.prod(sizes[c] for c in group) for group in (batch, depth, columns))
    for transposed, order in ((False, batch + depth + columns), (True, batch + columns + depth)):
        if stored_letters == order:
            return Weight(tensor, stored_name, transposed, K, N, chain, B)
    return None
