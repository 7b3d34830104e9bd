"""Rules by operator: find the batch axis of a node's outputs, and replace inputs that contain the batch size.

An operator without a rule is refused. A rule refuses a node that visibly mixes examples, such as a sum over
the batch. The proof, which runs both models, detects the other cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from explorer.engine.convert.rebatching.batch_axis import BatchAxis, Rewriting
from explorer.engine.graph.model import Node
from explorer.engine.operators.registry import BY_NAME
from explorer.facts import Dim

Rule = Callable[[Rewriting, Node], Node]
"""Returns the node for the new batch, and records the batch axes of its outputs in `Rewriting.batched`.

A rule raises `RewriteError` for a node that cannot be rewritten.
"""


def _get_batch(rewriting: Rewriting, node: Node, index: int) -> BatchAxis | None:
    return rewriting.batched.get(node.inputs[index]) if index < len(node.inputs) else None


def _require_batch_axis(rewriting: Rewriting, node: Node, index: int, axis: int) -> BatchAxis:
    """Returns the batch of an input, which must be exactly the axis `axis`."""
    batch = _get_batch(rewriting, node, index)
    if batch is None or batch.axis != axis or not batch.is_unmerged:
        rewriting.refuse(
            f"the batch of '{node.inputs[index]}' must be axis {axis}, not merged with another axis"
        )
    return batch


def _refuse_other_batches(rewriting: Rewriting, node: Node, *allowed: int) -> None:
    """Refuses a node if an input outside `allowed` has a batch."""
    for index, name in enumerate(node.inputs):
        if name in rewriting.batched and index not in allowed:
            rewriting.refuse(f"input {index} ('{name}') must not depend on the batch")


def _find_first_input_batch(rewriting: Rewriting, node: Node) -> BatchAxis:
    """Returns the batch of the first input, and refuses a batch in any other input."""
    _refuse_other_batches(rewriting, node, 0)
    return rewriting.batched[node.inputs[0]]


def _broadcast_input(rewriting: Rewriting, node: Node, index: int, axis: int, batch: BatchAxis) -> Node:
    """Makes an input without a batch broadcast to a batched input: keeps only its first row on `axis`.

    Args:
        rewriting: State of the graph.
        node: Node with both inputs.
        index: Index of the input without a batch.
        axis: Axis of this input that meets the batch. It is negative if the input has fewer axes.
        batch: Batch axis of the other input.

    Raises:
        RewriteError: The axis has neither size 1 nor the batch size, or the rows differ.
    """
    name = node.inputs[index]
    shape = rewriting.get_shape(name)
    if axis < 0 or shape[axis] == 1:
        return node
    if not batch.is_unmerged or shape[axis] != rewriting.old_batch:
        rewriting.refuse(
            f"axis {axis} of '{name}' has size {shape[axis]}, not the batch size {rewriting.old_batch}"
        )
    return _replace_input(node, index, rewriting.take_first_row(name, axis))


def _set_outputs(rewriting: Rewriting, node: Node, *batches: BatchAxis | None) -> Node:
    """Records the batch axis of each output, and returns the node."""
    for name, batch in zip(node.outputs, batches, strict=False):
        if name and batch is not None:
            rewriting.batched[name] = batch
    return node


def _read_axis(node: Node, rank: int, default: int, name: str = "axis") -> int:
    axis: int = node.attributes.get(name, default)
    return axis % max(rank, 1)


def _replace_input(node: Node, index: int, name: str) -> Node:
    inputs = [name if i == index else old_name for i, old_name in enumerate(node.inputs)]
    return node.replace_values(inputs, node.outputs)


def _rewrite_elementwise(rewriting: Rewriting, node: Node) -> Node:
    """Rewrites an elementwise operator: all batches must be on the same axis, counted from the last."""
    rank = max(len(rewriting.get_shape(name)) for name in node.inputs if name)
    batches = {
        batch.move_to(batch.axis + rank - len(rewriting.get_shape(name)))
        for name in node.inputs
        if name and (batch := rewriting.batched.get(name))
    }
    if len(batches) != 1:
        rewriting.refuse("its inputs have the batch on different axes")
    batch = batches.pop()
    for index, name in enumerate(node.inputs):
        if name and name not in rewriting.batched:
            node = _broadcast_input(
                rewriting, node, index, batch.axis - rank + len(rewriting.get_shape(name)), batch
            )
    return _set_outputs(rewriting, node, *(batch for _ in node.outputs))


def _rewrite_first_axis(rewriting: Rewriting, node: Node) -> Node:
    """Rewrites an operator whose batch is the first axis of the first input and of the output."""
    batch = _find_first_input_batch(rewriting, node)
    if batch.axis != 0:
        rewriting.refuse(f"the batch of '{node.inputs[0]}' must be its first axis")
    return _set_outputs(rewriting, node, batch)


def _rewrite_fused(rewriting: Rewriting, node: Node) -> Node:
    """Rewrites a fused operator: the batch is the first axis of every value that has a batch."""
    for index, name in enumerate(node.inputs):
        if name in rewriting.batched:
            _require_batch_axis(rewriting, node, index, 0)
    return _set_outputs(rewriting, node, *(BatchAxis(0) for _ in node.outputs))


def _build_one_axis_rule(default: int, *, one_axis_since: int = 0) -> Rule:
    """Builds a rule for operators that compute along one axis, which must not be the batch axis.

    Args:
        default: Axis of an operator without the attribute `axis`.
        one_axis_since: First opset in which the operator covers only this axis. In earlier opsets, it also
            covers all later axes, and the default axis is 1.
    """

    def rule(rewriting: Rewriting, node: Node) -> Node:
        batch = _find_first_input_batch(rewriting, node)
        rank = len(rewriting.get_shape(node.inputs[0]))
        is_old_opset = rewriting.opset < one_axis_since
        axis = _read_axis(node, rank, 1 if is_old_opset else default)
        covers_later_axes = node.op in _NORMALIZATIONS or is_old_opset
        if batch.axis == axis or (covers_later_axes and batch.axis > axis):
            rewriting.refuse("it computes along the batch")
        return _set_outputs(rewriting, node, *(batch for _ in node.outputs))

    return rule


def _rewrite_reduction(rewriting: Rewriting, node: Node) -> Node:
    """Rewrites a reduction over other axes than the batch."""
    batch = _find_first_input_batch(rewriting, node)
    rank = len(rewriting.get_shape(node.inputs[0]))
    listed_axes = node.attributes.get("axes")
    if listed_axes is None and len(node.inputs) > 1:
        listed_axes = rewriting.read_integers(node.inputs[1])
    if not listed_axes and node.attributes.get("noop_with_empty_axes"):
        return _set_outputs(rewriting, node, batch)
    if node.op in ("ArgMax", "ArgMin"):
        listed_axes = [node.attributes.get("axis", 0)]
    axes = {axis % rank for axis in listed_axes or range(rank)}
    if batch.axis in axes:
        rewriting.refuse("it reduces over the batch")
    removed = 0 if node.attributes.get("keepdims", 1) else sum(axis < batch.axis for axis in axes)
    return _set_outputs(rewriting, node, batch.move_to(batch.axis - removed))


def _rewrite_matmul(rewriting: Rewriting, node: Node) -> Node:
    """Rewrites a matmul. The batch may be a leading axis, the rows or the columns, not the summed axis."""
    second = _SECOND_MATRIX_INPUTS.get(node.op, 1)
    _refuse_other_batches(rewriting, node, 0, second)
    ranks = [len(rewriting.get_shape(node.inputs[index])) for index in (0, second)]
    rank = max(*ranks, 2)
    batches: set[BatchAxis] = set()
    for index, operand_rank, contracted_axis in ((0, ranks[0], -1), (second, ranks[1], -2)):
        batch = _get_batch(rewriting, node, index)
        if batch is None:
            continue
        if operand_rank == 1 or batch.axis - operand_rank == contracted_axis:
            rewriting.refuse("it sums products over the batch")
        batches.add(batch.move_to(batch.axis + rank - operand_rank))
        other_index, other_rank = (second, ranks[1]) if index == 0 else (0, ranks[0])
        if batch.axis - operand_rank < -2 and _get_batch(rewriting, node, other_index) is None:
            other_axis = batch.axis - operand_rank + other_rank
            node = _broadcast_input(rewriting, node, other_index, other_axis, batch)
    if len(batches) != 1 or (
        all(_get_batch(rewriting, node, index) for index in (0, second)) and min(batches).axis >= rank - 2
    ):
        rewriting.refuse("its inputs have the batch on different axes")
    batch = batches.pop()
    # a vector operand has no axis in the result
    if ranks[1] == 1 and ranks[0] > 1:
        return _set_outputs(rewriting, node, batch)
    if ranks[0] == 1 and batch.axis == rank - 1:
        batch = batch.move_to(batch.axis - 1)
    return _set_outputs(rewriting, node, batch)


def _rewrite_gemm(rewriting: Rewriting, node: Node) -> Node:
    """Rewrites Gemm. The batch is the rows of the first factor or the columns of the second factor."""
    batches = set()
    for index, contracted_axis in (
        (0, 0 if node.attributes.get("transA", 0) else 1),
        (1, 1 if node.attributes.get("transB", 0) else 0),
    ):
        batch = _get_batch(rewriting, node, index)
        if batch is not None and batch.axis == contracted_axis:
            rewriting.refuse("it sums products over the batch")
        if batch is not None:
            batches.add(batch.move_to(index))
    if len(batches) != 1:
        rewriting.refuse("its inputs have the batch on different axes")
    batch = batches.pop()
    if len(node.inputs) > 2 and node.inputs[2]:
        shape, bias = rewriting.get_shape(node.inputs[2]), _get_batch(rewriting, node, 2)
        if bias is not None and bias.move_to(bias.axis + 2 - len(shape)) != batch:
            rewriting.refuse("its inputs have the batch on different axes")
        if bias is None:
            node = _broadcast_input(rewriting, node, 2, batch.axis - 2 + len(shape), batch)
    return _set_outputs(rewriting, node, batch)


def _rewrite_transpose(rewriting: Rewriting, node: Node) -> Node:
    batch = _find_first_input_batch(rewriting, node)
    rank = len(rewriting.get_shape(node.inputs[0]))
    order = list(node.attributes.get("perm") or range(rank)[::-1])
    if sorted(order) != list(range(rank)):
        rewriting.refuse(f"its order of axes does not fit {rank} axes")
    return _set_outputs(rewriting, node, batch.move_to(order.index(batch.axis)))


def _list_possible_batches(
    rewriting: Rewriting, batch: BatchAxis, source: Sequence[Dim], target: Sequence[Dim]
) -> list[BatchAxis]:
    """Lists the possible batch axes in a new shape of the same elements, likeliest first.

    The number of elements before the batch does not change. For a batch of 1, several axes can match.
    """
    leading_size = rewriting.multiply_sizes(source[: batch.axis]) * batch.outer
    candidates, leading_product = [], 1
    for axis, size in enumerate(target):
        if not isinstance(size, int):
            break  # the sizes that follow are open
        if (
            leading_size % leading_product == 0
            and size
            and size % (leading_size // leading_product * rewriting.old_batch) == 0
        ):
            outer = leading_size // leading_product
            candidates.append(BatchAxis(axis, outer, size // (outer * rewriting.old_batch)))
        leading_product *= size
    return sorted(
        candidates,
        key=lambda option: (
            not option.is_unmerged,
            option.axis != batch.axis,
            option.outer != 1,
            option.axis,
        ),
    )


def _choose_batch(rewriting: Rewriting, candidates: Sequence[BatchAxis], shape: Sequence[Dim]) -> BatchAxis:
    """Returns the candidate that `rewriting.choices` selects, and records the count if there are several."""
    if not candidates:
        rewriting.refuse(f"the batch is merged with another axis: no axis of {list(shape)} can hold it")
    if len(candidates) == 1:
        return candidates[0]
    reshape_index = len(rewriting.option_counts)
    rewriting.option_counts.append(len(candidates))
    return candidates[rewriting.choices[reshape_index] if reshape_index < len(rewriting.choices) else 0]


def _rewrite_reshape(rewriting: Rewriting, node: Node) -> Node:
    """Rewrites Reshape: its target shape gets the new batch size, unless a 0 or -1 already follows the batch.

    The attribute or the input `shape` gives the target.
    """
    source_batch = _find_first_input_batch(rewriting, node)
    source, target = rewriting.get_shape(node.inputs[0]), rewriting.get_shape(node.outputs[0])
    batch = _choose_batch(rewriting, _list_possible_batches(rewriting, source_batch, source, target), target)
    _set_outputs(rewriting, node, batch)
    requested = list(node.attributes.get("shape") or ()) or rewriting.read_integers(node.inputs[1]) or []
    copied_axes = {
        index for index, size in enumerate(requested) if size == 0 and not node.attributes.get("allowzero", 0)
    }
    grows_with_batch = requested[batch.axis] == -1 or (batch.axis in copied_axes and source_batch == batch)
    # a size of 0 at the old position of the batch would copy the batch to a second axis
    copies_batch_elsewhere = source_batch.axis in copied_axes and source_batch.axis != batch.axis
    if grows_with_batch and not copies_batch_elsewhere:
        return node
    # -1 (inferred) and 0 (copied) become the sizes of the original model where they are known
    sizes: list[Dim] = [
        target[index] if size == -1 or index in copied_axes else size for index, size in enumerate(requested)
    ]
    multiple = batch.outer * batch.inner
    sizes[batch.axis] = rewriting.new_batch * multiple if isinstance(rewriting.new_batch, int) else -1
    numbers = [
        size if isinstance(size, int) else 0 if index in copied_axes else -1
        for index, size in enumerate(sizes)
    ]
    if numbers.count(-1) > 1:
        rewriting.refuse("a size other than the batch is open: bind it with --dim")
    rewriting.changed.append(node.label)
    if "shape" in node.attributes:
        return node.replace_attributes({**node.attributes, "shape": tuple(numbers)})
    return _replace_input(node, 1, rewriting.add_constant(numbers, node.label))


def _rewrite_flatten(rewriting: Rewriting, node: Node) -> Node:
    """Rewrites Flatten, which merges the batch with the axes on its side of the attribute `axis`."""
    batch = _find_first_input_batch(rewriting, node)
    source = rewriting.get_shape(node.inputs[0])
    axis = node.attributes.get("axis", 1)
    axis = axis + len(source) if axis < 0 else axis
    start, stop, output_axis = (0, axis, 0) if batch.axis < axis else (axis, len(source), 1)
    outer = rewriting.multiply_sizes(source[start : batch.axis]) * batch.outer
    inner = batch.inner * rewriting.multiply_sizes(source[batch.axis + 1 : stop])
    return _set_outputs(rewriting, node, BatchAxis(output_axis, outer, inner))


def _rewrite_rank_change(rewriting: Rewriting, node: Node) -> Node:
    """Rewrites Squeeze and Unsqueeze."""
    batch = _find_first_input_batch(rewriting, node)
    axes = node.attributes.get("axes")
    if axes is None and len(node.inputs) > 1:
        axes = rewriting.read_integers(node.inputs[1])
    shape = rewriting.get_shape(node.inputs[0])
    if node.op == "Unsqueeze":
        rank = len(shape) + len(axes or ())
        added_axes = {axis % rank for axis in axes or ()}
        kept_axes = [axis for axis in range(rank) if axis not in added_axes]
        return _set_outputs(rewriting, node, batch.move_to(kept_axes[batch.axis]))
    if not axes:
        axes = [index for index, size in enumerate(shape) if size == 1]
    removed = {axis % len(shape) for axis in axes}
    if batch.axis in removed:
        rewriting.refuse("it drops the axis of the batch")
    return _set_outputs(
        rewriting, node, batch.move_to(batch.axis - sum(axis < batch.axis for axis in removed))
    )


def _rewrite_concat(rewriting: Rewriting, node: Node) -> Node:
    """Rewrites Concat along another axis than the batch. Inputs without a batch are repeated for it."""
    batches = {rewriting.batched[name] for name in node.inputs if name in rewriting.batched}
    if len(batches) != 1:
        rewriting.refuse("its inputs have the batch on different axes")
    batch = batches.pop()
    if batch.axis == _read_axis(node, len(rewriting.get_shape(node.outputs[0])), 0):
        rewriting.refuse("it concatenates along the batch")
    for index, name in enumerate(node.inputs):
        if name not in rewriting.batched:
            if not batch.is_unmerged:
                rewriting.refuse(f"'{name}' has no batch, but other inputs merge the batch with another axis")
            node = _replace_input(node, index, rewriting.expand_to_batch(name, batch.axis))
    return _set_outputs(rewriting, node, batch)


def _rewrite_slice(rewriting: Rewriting, node: Node) -> Node:
    """Rewrites Slice. A slice of the entire batch gets the end `_END`; a slice of a part of it is refused."""
    batch = _find_first_input_batch(rewriting, node)
    rank = len(rewriting.get_shape(node.inputs[0]))
    attributes = node.attributes
    if "starts" in attributes:
        starts = list(attributes["starts"])
        ends = list(attributes["ends"])
        steps = [1] * len(attributes["starts"])
        axes = list(attributes.get("axes") or range(len(starts)))
    else:
        starts = rewriting.read_integers(node.inputs[1]) or []
        ends = rewriting.read_integers(node.inputs[2]) or []
        axes = (rewriting.read_integers(node.inputs[3]) if len(node.inputs) > 3 else None) or list(
            range(len(starts))
        )
        steps = (rewriting.read_integers(node.inputs[4]) if len(node.inputs) > 4 else None) or [1] * len(
            starts
        )
    index = next((i for i, axis in enumerate(axes) if axis % rank == batch.axis), None)
    if index is not None:
        size = rewriting.get_shape(node.inputs[0])[batch.axis]
        if starts[index] != 0 or steps[index] != 1 or not isinstance(size, int) or ends[index] < size:
            rewriting.refuse("it takes a part of the batch")
        if ends[index] < _END:
            ends[index] = _END
            rewriting.changed.append(node.label)
            if "starts" in attributes:
                node = node.replace_attributes({**attributes, "ends": tuple(ends)})
            else:
                node = _replace_input(node, 2, rewriting.add_constant(ends, node.label))
    return _set_outputs(rewriting, node, batch)


def _rewrite_split(rewriting: Rewriting, node: Node) -> Node:
    batch = _find_first_input_batch(rewriting, node)
    if batch.axis == _read_axis(node, len(rewriting.get_shape(node.inputs[0])), 0):
        rewriting.refuse("it splits the batch")
    return _set_outputs(rewriting, node, *(batch for _ in node.outputs))


def _rewrite_gather(rewriting: Rewriting, node: Node) -> Node:
    """Rewrites Gather with a batch either in the table or in the indices."""
    table_batch, index_batch = _get_batch(rewriting, node, 0), _get_batch(rewriting, node, 1)
    axis = _read_axis(node, len(rewriting.get_shape(node.inputs[0])), 0)
    if table_batch is not None and index_batch is not None:
        rewriting.refuse("the table and the indices both have the batch")
    if index_batch is not None:
        return _set_outputs(rewriting, node, index_batch.move_to(index_batch.axis + axis))
    assert table_batch is not None
    if table_batch.axis == axis:
        rewriting.refuse("it takes rows out of the batch")
    rank = len(rewriting.get_shape(node.inputs[1]))
    return _set_outputs(
        rewriting, node, table_batch.move_to(table_batch.axis + (rank - 1 if table_batch.axis > axis else 0))
    )


def _rewrite_pad(rewriting: Rewriting, node: Node) -> Node:
    batch = _find_first_input_batch(rewriting, node)
    rank = len(rewriting.get_shape(node.inputs[0]))
    pads = list(node.attributes.get("pads") or ()) or rewriting.read_integers(node.inputs[1]) or []
    axes = (rewriting.read_integers(node.inputs[3]) if len(node.inputs) > 3 else None) or list(range(rank))
    for index, axis in enumerate(axes):
        if axis % rank == batch.axis and (pads[index] or pads[index + len(axes)]):
            rewriting.refuse("it pads the batch")
    return _set_outputs(rewriting, node, batch)


def _rewrite_tile(rewriting: Rewriting, node: Node) -> Node:
    batch = _find_first_input_batch(rewriting, node)
    if (rewriting.read_integers(node.inputs[1]) or [])[batch.axis] != 1:
        rewriting.refuse("it repeats the batch")
    return _set_outputs(rewriting, node, batch)


def _rewrite_expand(rewriting: Rewriting, node: Node) -> Node:
    """Rewrites Expand, whose target shape must not repeat the batch."""
    batch = _find_first_input_batch(rewriting, node)
    target, rank = rewriting.read_integers(node.inputs[1]) or [], len(rewriting.get_shape(node.inputs[0]))
    shift = max(len(target) - rank, 0)
    position = batch.axis - rank + len(target)
    if position >= 0 and target[position] != 1:
        if target[position] != rewriting.get_shape(node.inputs[0])[batch.axis]:
            rewriting.refuse("it repeats the batch")
        rewriting.changed.append(node.label)
        # an axis of 1 stays 1
        node = _replace_input(
            node,
            1,
            rewriting.add_constant(
                [1 if index == position else v for index, v in enumerate(target)], node.label
            ),
        )
    return _set_outputs(rewriting, node, batch.move_to(batch.axis + shift))


def _rewrite_resize(rewriting: Rewriting, node: Node) -> Node:
    """Rewrites Resize, whose batch is the first axis and keeps its size."""
    _refuse_other_batches(rewriting, node, 0)
    batch = _require_batch_axis(rewriting, node, 0, 0)
    sizes = rewriting.read_integers(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] else None
    listed_axes = node.attributes.get("axes")
    axes = [axis % len(rewriting.get_shape(node.inputs[0])) for axis in listed_axes] if listed_axes else None
    index = 0 if axes is None else axes.index(0) if 0 in axes else None
    if index is not None and sizes is None:
        scale_inputs = node.inputs[1:3][-1:]  # the scales: the second input up to opset 10, then the third
        scales = rewriting.read_array(scale_inputs[0]) if scale_inputs else None
        if scales is None or scales.size <= index or scales.reshape(-1)[index] != 1:
            rewriting.refuse("it resizes the batch")
    elif index is not None and sizes is not None:
        if sizes[index] != rewriting.old_batch:
            rewriting.refuse("it resizes the batch")
        rewriting.changed.append(node.label)
        node = _replace_input(
            node,
            3,
            rewriting.add_sizes([None if i == index else v for i, v in enumerate(sizes)], 1, node.label),
        )
    return _set_outputs(rewriting, node, batch)


def _rewrite_recurrent(rewriting: Rewriting, node: Node) -> Node:
    """Rewrites RNN, GRU and LSTM: axes are sequence, batch, features; with `layout`, the batch is first.

    Inputs 4, 5 and 6 are the sequence lengths and the initial states.
    """
    has_batch_first = bool(node.attributes.get("layout", 0))
    _refuse_other_batches(rewriting, node, 0, 4, 5, 6)
    _require_batch_axis(rewriting, node, 0, 0 if has_batch_first else 1)
    for index, axis in ((4, 0), (5, 0 if has_batch_first else 1), (6, 0 if has_batch_first else 1)):
        if index < len(node.inputs) and node.inputs[index]:
            if node.inputs[index] in rewriting.batched:
                _require_batch_axis(rewriting, node, index, axis)
            else:
                node = _replace_input(node, index, rewriting.expand_to_batch(node.inputs[index], axis))
    batch = BatchAxis(0 if has_batch_first else 1)
    return _set_outputs(rewriting, node, BatchAxis(0 if has_batch_first else 2), batch, batch)


def _rewrite_einsum(rewriting: Rewriting, node: Node) -> Node:
    """Rewrites Einsum. One letter names the batch, and occurs only in batched operands and in the output."""
    equation = node.attributes["equation"].replace(" ", "")
    operands, _, output_term = equation.partition("->")
    terms = operands.split(",")
    if "..." in equation or "->" not in equation:
        rewriting.refuse("its equation does not name all axes")
    batch_by_letter = {
        term[batch.axis]: batch
        for term, name in zip(terms, node.inputs, strict=True)
        if (batch := rewriting.batched.get(name))
    }
    if len(batch_by_letter) != 1 or next(iter(batch_by_letter)) not in output_term:
        rewriting.refuse("it sums over the batch, or its inputs have the batch on different axes")
    letter, batch = next(iter(batch_by_letter.items()))
    if any(
        letter in term and name not in rewriting.batched
        for term, name in zip(terms, node.inputs, strict=True)
    ):
        rewriting.refuse("an operand that has no batch also has an axis at the place of the batch")
    return _set_outputs(rewriting, node, batch.move_to(output_term.index(letter)))


_END = (1 << 63) - 1
"""End of a Slice that covers an axis of any size: the largest int64."""
_SECOND_MATRIX_INPUTS = {"QLinearMatMul": 3}
"""Index of the second matrix among the inputs; 1 for other operators."""

_NORMALIZATIONS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")

_SHARED_RULES: Mapping[Rule, str] = {
    _rewrite_first_axis: "Conv ConvTranspose ConvInteger QLinearConv FusedConv AveragePool MaxPool LpPool"
    " GlobalAveragePool GlobalMaxPool GlobalLpPool BatchNormalization InstanceNormalization"
    " GroupNormalization LRN DepthToSpace SpaceToDepth QLinearAveragePool QLinearGlobalAveragePool",
    _rewrite_fused: "Attention MultiHeadAttention GroupQueryAttention RotaryEmbedding SkipLayerNormalization"
    " SkipSimplifiedLayerNormalization EmbedLayerNormalization",
    _rewrite_reduction: "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean"
    " ReduceMin ReduceProd ReduceSum ReduceSumSquare",
    _rewrite_matmul: "MatMul MatMulInteger QLinearMatMul",
    _rewrite_rank_change: "Squeeze Unsqueeze",
    _rewrite_recurrent: "RNN GRU LSTM",
    _build_one_axis_rule(-1, one_axis_since=13): "Softmax LogSoftmax Hardmax",
    _build_one_axis_rule(-1): " ".join((*_NORMALIZATIONS, "LpNormalization", "TopK")),
    _build_one_axis_rule(0): "CumSum",
}

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        (op for op, operator in BY_NAME.items() if operator.position == "each"), _rewrite_elementwise
    ),
    **{op: rule for rule, ops in _SHARED_RULES.items() for op in ops.split()},
    "Gemm": _rewrite_gemm,
    "Transpose": _rewrite_transpose,
    "Reshape": _rewrite_reshape,
    "Flatten": _rewrite_flatten,
    "Concat": _rewrite_concat,
    "Slice": _rewrite_slice,
    "Split": _rewrite_split,
    "Gather": _rewrite_gather,
    "Pad": _rewrite_pad,
    "Tile": _rewrite_tile,
    "Expand": _rewrite_expand,
    "Resize": _rewrite_resize,
    "Einsum": _rewrite_einsum,
}
"""Rule of each operator, by name."""
