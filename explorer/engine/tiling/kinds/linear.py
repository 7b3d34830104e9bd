"""Sites of Gemm, MatMul and FusedMatMul, with a stored weight or with two activations as in attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from explorer.engine.graph.model import Node
from explorer.engine.tiling.builder import GraphBuilder, Size
from explorer.engine.tiling.emit.operators import HALVES
from explorer.engine.tiling.sites import NoSite, Site, SiteContext, UntiledProduct, Weight

FLOATS = ("float32", "float64", "float16", "bfloat16")
"""Float types that can be tiled."""


def write_scaled_sum(builder: GraphBuilder, z: str, dtype: str, alpha: float, bias: str, beta: float) -> str:
    """Writes alpha z + beta bias, cast from the accumulator's type to the operands' type `dtype`."""
    is_half = dtype in HALVES
    working_type = "float32" if is_half else dtype
    if alpha != 1.0:
        z = builder.add("Mul", (z, builder.add_number(alpha, working_type, "alpha")), "scaled")
    if bias:
        if is_half:
            bias = builder.cast(bias, "float32", "bias32")
        if beta != 1.0:
            bias = builder.add("Mul", (bias, builder.add_number(beta, working_type, "beta")), "bias_scaled")
        z = builder.add("Add", (z, bias), "biased")
    return builder.cast(z, dtype, "narrowed") if is_half else z


def find_product_site(node: Node, context: SiteContext, types: Sequence[str] = FLOATS) -> Site:
    """Returns the site of a Gemm or MatMul.

    Raises:
        NoSite: The node cannot be tiled.
    """
    attributes = node.attributes if node.op == "Gemm" else {}
    left_name, right = node.inputs[0], node.inputs[1]
    left_constant, right_constant = left_name in context.constants, right in context.constants
    if left_constant and right_constant:
        raise NoSite("both operands are constant: a runtime folds it away")
    x = right if left_constant else left_name
    dtype = context.get_dtype(x)
    if dtype is not None and dtype not in types:
        raise NoSite(f"its type is {dtype}, but only {', '.join(types)} can be tiled")
    shape, output_shape = context.get_shape(x), context.get_shape(node.outputs[0])
    if not left_constant and not right_constant:
        return _build_stack_site(node, context, dtype or "float32")
    swapped = left_constant
    trans_x = bool(attributes.get("transB" if swapped else "transA", 0))
    trans_w = bool(attributes.get("transA" if swapped else "transB", 0))
    # if the weight is on the left, both operands are transposed: W X = (X^T W^T)^T
    weight = context.constants.find_matrix(left_name if swapped else right, trans_w != swapped)
    if weight is None or ((swapped or trans_x) and len(shape) != 2):
        return _build_stack_site(node, context, dtype or "float32", swapped=swapped)
    if swapped:
        trans_x = not trans_x
    has_rows_last = trans_x and len(shape) > 1
    rows = shape[-1] if trans_x else math.prod(shape[:-1])
    depth = shape[-2] if has_rows_last else shape[-1]
    if depth != weight.K:
        raise NoSite(f"its operands do not fit: {list(shape)} against a weight of {weight.K} x {weight.N}")
    if not rows or not weight.K or not weight.N:
        raise NoSite("it is empty")
    open_axes = context.find_open_axes(x) - {len(shape) - 2 if has_rows_last else len(shape) - 1}
    return _build_site(
        node, x, shape, open_axes, output_shape, dtype or "float32", rows, weight, trans_x, swapped
    )


def _find_bias(node: Node, beta: float) -> str:
    """Returns the name of C in a Gemm, or '' without it. A factor of 0 omits C, even if it is infinite."""
    return node.inputs[2] if node.op == "Gemm" and len(node.inputs) > 2 and beta else ""


def convert_to_gemm(node: Node, context: SiteContext) -> Node:
    """Returns a FusedMatMul as a Gemm: a MatMul of transposed operands, times alpha.

    Raises:
        NoSite: The FusedMatMul transposes a batch axis.
    """
    attributes = node.attributes
    if attributes.get("transBatchA", 0) or attributes.get("transBatchB", 0):
        raise UntiledProduct("it transposes a batch axis")
    # a vector has nothing to transpose
    transposes = {
        side: int(bool(attributes.get(side, 0)) and len(context.get_shape(name)) > 1)
        for side, name in zip(("transA", "transB"), node.inputs, strict=True)
    }
    factors = {"alpha": float(attributes.get("alpha", 1.0)), **transposes}
    return Node("Gemm", node.inputs, node.outputs, name=node.name, attributes=factors)


def _build_site(
    node: Node,
    x: str,
    shape: tuple[int, ...],
    open_axes: frozenset[int],
    output_shape: tuple[int, ...],
    dtype: str,
    rows: int,
    weight: Weight,
    trans_x: bool,
    swapped: bool,
) -> Site:
    """Builds the site of an activation `x` of this `shape`, times a stored weight.

    `open_axes` are axes of `x` other than its depth. If `trans_x`, the rows of X are columns of `x`. If
    `swapped`, the weight was on the left, and the product is transposed at the end.
    """
    attributes = node.attributes if node.op == "Gemm" else {}
    alpha, beta = float(attributes.get("alpha", 1.0)), float(attributes.get("beta", 1.0))
    bias = _find_bias(node, beta)
    height = -1 if open_axes else rows

    def write_left(builder: GraphBuilder, inputs: Sequence[str]) -> str:
        if trans_x and len(shape) > 1:
            return builder.transpose(inputs[0], (1, 0), "x_transposed")
        if len(shape) != 2:
            return builder.reshape(inputs[0], (height, weight.K), "x_matrix")
        return inputs[0]

    def finish(builder: GraphBuilder, z: str, inputs: Sequence[str]) -> str:
        if swapped:
            z = builder.transpose(z, (1, 0), "turned")
        z = write_scaled_sum(builder, z, dtype, alpha, inputs[1] if bias else "", beta)
        product_shape = (weight.N, rows) if swapped else (rows, weight.N)
        if output_shape == product_shape:
            return z
        # an operand that is a vector has no axis in the output
        lead = [(inputs[0], axis) if axis in open_axes else d for axis, d in enumerate(shape[:-1])]
        target = [*lead, weight.N] if len(output_shape) == len(shape) else lead
        return builder.reshape(z, target if open_axes else output_shape, "shaped")

    return Site(
        node=node,
        label="Linear",
        batch=1,
        M=rows,
        K=weight.K,
        N=weight.N,
        dtype=dtype,
        inputs=(x, bias) if bias else (x,),
        left=write_left,
        right=weight,
        finish=finish,
        has_bias=bool(bias),
        dynamic=("M",) if open_axes else (),
    )


class _Side(Struct, frozen=True):
    """One of the two operands, as a stack of matrices.

    Attributes:
        index: Index among the site's inputs.
        shape: Shape of the operand; a vector gets an axis of 1.
        open_axes: Axes of `shape` whose lengths are known only at run time.
        is_transposed: Whether the matrices are transposed.
        is_vector: Whether the operand is a vector.
    """

    index: int
    shape: tuple[int, ...]
    open_axes: frozenset[int]
    is_transposed: bool
    is_vector: bool

    def get_size(self, axis: int, inputs: Sequence[str]) -> Size:
        """Returns the length of an axis that counts from the end: a number, or a size to read at run time."""
        place = len(self.shape) + axis
        return (inputs[self.index], place) if place in self.open_axes else self.shape[axis]

    @property
    def matrix_axes(self) -> tuple[int, int]:
        """The axes of rows and columns, counted from the end."""
        return (-1, -2) if self.is_transposed else (-2, -1)

    @property
    def axis_order(self) -> tuple[int, ...]:
        """All axes, counted from the end, in the order of the matrices."""
        return (*range(-len(self.shape), -2), *self.matrix_axes)


def _make_side(context: SiteContext, name: str, index: int, is_transposed: bool, is_left: bool) -> _Side:
    """Returns an operand as a stack of matrices."""
    shape = context.get_shape(name)
    open_axes = context.find_open_axes(name)
    if len(shape) > 1:
        return _Side(index, shape, open_axes, is_transposed, False)
    # a vector is a row on the left, and a column on the right
    if is_left:
        return _Side(index, (1, *shape), frozenset(axis + 1 for axis in open_axes), False, True)
    return _Side(index, (*shape, 1), open_axes, False, True)


class _Pairs(Struct, frozen=True):
    """Two stacks of matrices, multiplied in pairs.

    Attributes:
        a, b: The stacks.
        lead: For each axis of the broadcast batch, the side that determines its length, and the axis as a
            negative index.
        dynamic: Axes with open sizes, as in `Site`.
        shared: Whether all left matrices use the same right matrix. They are then the rows of one product.
        stack: Number of products.
        rows: Number of rows of one product.
    """

    a: _Side
    b: _Side
    lead: tuple[tuple[_Side, int], ...]
    dynamic: tuple[str, ...]
    shared: bool
    stack: int
    rows: int

    def write_operand(self, side: _Side, label: str, builder: GraphBuilder, inputs: Sequence[str]) -> str:
        """Writes one operand as a matrix or a stack of matrices."""
        x, count = inputs[side.index], len(side.shape)
        if side.is_transposed:
            x = builder.transpose(x, (*range(count - 2), count - 1, count - 2), f"{label}_transposed")
        r, c = (side.get_size(axis, inputs) for axis in side.matrix_axes)
        if self.shared:
            if side is self.a and self.lead:
                r = -1 if "M" in self.dynamic else self.rows
            target = [r, c]
            sizes: list[Size] = [side.get_size(i, inputs) for i in range(-count, -2)]
            sizes += [side.get_size(axis, inputs) for axis in side.matrix_axes]
            if sizes == target and not side.is_vector:
                return x
            return builder.reshape(x, target, f"{label}_matrix")
        if not all(_has_full_length(side, lead_side, axis) for lead_side, axis in self.lead):
            lead_sizes = [lead_side.get_size(axis, inputs) for lead_side, axis in self.lead]
            x_shape = (
                side.shape[-1:] if side.is_vector else tuple(side.shape[axis] for axis in side.axis_order)
            )
            x = builder.expand(x, (*lead_sizes, r, c), f"{label}_each", x_shape)
        if len(self.lead) == 1 and not side.is_vector:
            return x
        return builder.reshape(x, (-1 if "batch" in self.dynamic else self.stack, r, c), f"{label}_matrix")

    def write_reshape(self, builder: GraphBuilder, z: str, inputs: Sequence[str], swapped: bool) -> str:
        """Reshapes the products to the output's shape; transposes them if they were computed transposed."""
        a, b = self.a, self.b
        target: list[Size] = [side.get_size(axis, inputs) for side, axis in self.lead]
        target += [] if a.is_vector else [a.get_size(a.matrix_axes[0], inputs)]
        target += [] if b.is_vector else [b.get_size(b.matrix_axes[1], inputs)]
        stacked = self.stack != 1 or "batch" in self.dynamic
        is_shaped = len(target) == (3 if stacked else 2) and not (a.is_vector or b.is_vector)
        z = z if is_shaped else builder.reshape(z, target, "shaped")
        if not swapped or a.is_vector or b.is_vector:
            return z
        count = len(self.lead)
        return builder.transpose(z, (*range(count), count + 1, count), "turned")


def _build_stack_site(node: Node, context: SiteContext, dtype: str, *, swapped: bool = False) -> Site:
    """Returns the site of two stacks, multiplied in pairs. At most one stack is a stored weight.

    If `swapped`, it computes A B = (B^T A^T)^T, so that the stored operand is on the right.
    """
    attributes = node.attributes if node.op == "Gemm" else {}
    alpha, beta = float(attributes.get("alpha", 1.0)), float(attributes.get("beta", 1.0))
    bias = _find_bias(node, beta)
    left_name, right = node.inputs[1::-1] if swapped else node.inputs[:2]
    is_same = left_name == right
    transposes = [bool(attributes.get(name, 0)) for name in ("transA", "transB")]
    transposes = [not transpose for transpose in reversed(transposes)] if swapped else transposes
    a = _make_side(context, left_name, 0, transposes[0], True)
    b = _make_side(context, right, 0 if is_same else 1, transposes[1], False)
    (rows, left_depth), (right_depth, columns) = a.matrix_axes, b.matrix_axes
    M, K, N = a.shape[rows], a.shape[left_depth], b.shape[columns]
    if b.shape[right_depth] != K:
        raise NoSite(f"its operands do not fit: {list(a.shape)} against {list(b.shape)}")
    lead = _list_lead_axes(a, b)
    for _, axis in lead:
        if len(a.shape) >= -axis and len(b.shape) >= -axis and _is_open(a, axis) and _is_open(b, axis):
            names = context.get_input_dim(left_name, axis), context.get_input_dim(right, axis)
            if all(names) and names[0] != names[1]:
                options = " ".join(f"--dim {name}=N" for name in names)
                raise NoSite(
                    f"its batch is '{names[0]}' or '{names[1]}', whichever is not 1: bind them with {options}"
                )
    batch = [side.shape[axis] for side, axis in lead]
    if not (M and K and N and math.prod(batch)):
        raise NoSite("it is empty")
    open_batch = any(len(side.shape) + axis in side.open_axes for side, axis in lead)
    # all left matrices use the same right matrix: they are rows of one product
    shared = math.prod(b.shape[:-2]) == 1 and b.open_axes.isdisjoint(range(len(b.shape) - 2))
    stack, row_factor = (1, math.prod(batch)) if shared else (math.prod(batch), 1)
    is_open = {
        "batch": open_batch and not shared,
        "M": _is_open(a, rows) or (open_batch and shared),
        "K": _is_open(a, left_depth) or _is_open(b, right_depth),
        "N": _is_open(b, columns),
    }
    dynamic = tuple(name for name, value in is_open.items() if value)
    pairs = _Pairs(a, b, tuple(lead), dynamic, shared, stack, M * row_factor)

    def finish(builder: GraphBuilder, z: str, inputs: Sequence[str]) -> str:
        z = write_scaled_sum(builder, z, dtype, alpha, inputs[-1] if bias else "", beta)
        return pairs.write_reshape(builder, z, inputs, swapped)

    activations = (left_name,) if is_same else (left_name, right)
    return Site(
        node=node,
        label="Product",
        batch=stack,
        M=M * row_factor,
        K=K,
        N=N,
        dtype=dtype,
        inputs=(*activations, bias) if bias else activations,
        left=partial(pairs.write_operand, a, "x"),
        right=partial(pairs.write_operand, b, "w"),
        finish=finish,
        has_bias=bool(bias),
        dynamic=dynamic,
    )


def _is_open(side: _Side, axis: int) -> bool:
    return len(side.shape) + axis in side.open_axes


def _has_full_length(side: _Side, lead_side: _Side, axis: int) -> bool:
    """Whether a side has the full length of a batch axis without broadcasting."""
    if len(side.shape) < -axis or _is_open(side, axis) != _is_open(lead_side, axis):
        return False
    return _is_open(side, axis) or side.shape[axis] == lead_side.shape[axis]


def _list_lead_axes(a: _Side, b: _Side) -> list[tuple[_Side, int]]:
    """Returns, for each axis of the broadcast batch, the side that determines its length, and the axis.

    The axis is a negative index. An axis of length 1 is broadcast. So is an axis of open length, if the other
    side has a fixed length other than 1. Two open lengths are assumed to be equal.
    """
    lead = []
    for axis in range(-max(len(a.shape), len(b.shape)), -2):
        side = a
        if len(a.shape) < -axis or (
            len(b.shape) >= -axis
            and (not _is_open(b, axis) and b.shape[axis] != 1 if _is_open(a, axis) else a.shape[axis] == 1)
        ):
            side = b
        lead.append((side, axis))
    return lead
