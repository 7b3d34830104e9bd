"""Rules by operator: the batch axis of a node's outputs, and which parts of the node depend on the batch.

Operators without a rule are refused. A rule says where the batch goes; whether the operator mixes examples
shows in the proof, which runs both models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from explorer.engine.convert.rebatching.batch_axis import BatchAxis, Rewriting
from explorer.engine.graph.model import Node
from explorer.engine.operators.registry import BY_NAME
from explorer.facts import Dim

Rule = Callable[[Rewriting, Node], Node]


def _lane_of(r: Rewriting, node: Node, at: int) -> BatchAxis | None:
    return r.batched.get(node.inputs[at]) if at < len(node.inputs) else None


def _whole_lane(r: Rewriting, node: Node, at: int, axis: int) -> BatchAxis:
    """The batch of an input, which must be exactly the axis `axis`."""
    lane = _lane_of(r, node, at)
    if lane is None or lane.axis != axis or not lane.whole:
        r.refuse(f"the batch of '{node.inputs[at]}' would have to be axis {axis}, alone")
    return lane


def _check_others(r: Rewriting, node: Node, *allowed: int) -> None:
    """Refuses a batch in inputs other than these."""
    for at, name in enumerate(node.inputs):
        if name in r.batched and at not in allowed:
            r.refuse(f"input {at} ('{name}') must not depend on the batch")


def _first_lane(r: Rewriting, node: Node) -> BatchAxis:
    """The batch of the first input, the only one that may have a batch."""
    _check_others(r, node, 0)
    return r.batched[node.inputs[0]]


def _broadcast_input(r: Rewriting, node: Node, at: int, axis: int, lane: BatchAxis) -> Node:
    """A node whose input `at` has no batch: where it meets the batch axis, its first row is used."""
    name = node.inputs[at]
    shape = r.shape(name)
    if axis < 0 or shape[axis] == 1:
        return node
    if not lane.whole or shape[axis] != r.old:
        r.refuse(f"'{name}' meets the batch with an axis of {shape[axis]}")
    return _with_input(node, at, r.one_row(name, axis))


def _set_outputs(r: Rewriting, node: Node, *states: BatchAxis | None) -> Node:
    for name, state in zip(node.outputs, states, strict=False):
        if name and state is not None:
            r.batched[name] = state
    return node


def _axis(node: Node, rank: int, default: int, name: str = "axis") -> int:
    axis: int = node.attributes.get(name, default)
    return axis % max(rank, 1)


def _with_input(node: Node, at: int, name: str) -> Node:
    inputs = [name if i == at else old for i, old in enumerate(node.inputs)]
    return node.with_values(inputs, node.outputs)


def _elementwise(r: Rewriting, node: Node) -> Node:
    """Elementwise operators: all batches must lie on the same axis, counted from the end."""
    rank = max(len(r.shape(name)) for name in node.inputs if name)
    lanes = {
        state.at(state.axis + rank - len(r.shape(n)))
        for n in node.inputs
        if n and (state := r.batched.get(n))
    }
    if len(lanes) != 1:
        r.refuse("two batches meet on different axes")
    lane = lanes.pop()
    for at, name in enumerate(node.inputs):
        if name and name not in r.batched:
            node = _broadcast_input(r, node, at, lane.axis - rank + len(r.shape(name)), lane)
    return _set_outputs(r, node, *(lane for _ in node.outputs))


def _first_axis(r: Rewriting, node: Node) -> Node:
    """Operators on images and similar: the batch is the first axis of the first input and the outputs."""
    lane = _first_lane(r, node)
    if lane.axis != 0:
        r.refuse(f"the batch of '{node.inputs[0]}' would have to be its first axis")
    return _set_outputs(r, node, lane)


def _fused(r: Rewriting, node: Node) -> Node:
    """Fused operators: the batch is the first axis of every value that has one."""
    for at, name in enumerate(node.inputs):
        if name in r.batched:
            _whole_lane(r, node, at, 0)
    return _set_outputs(r, node, *(BatchAxis(0) for _ in node.outputs))


def _over_axis(default: int, *, coerced: int = 0) -> Rule:
    """Operators over one axis (before opset `coerced`, also over later ones), which must not be the batch."""

    def rule(r: Rewriting, node: Node) -> Node:
        lane = _first_lane(r, node)
        rank = len(r.shape(node.inputs[0]))
        old = r.opset < coerced
        axis = _axis(node, rank, 1 if old else default)
        behind = node.op in _NORMALISE or old
        if lane.axis == axis or (behind and lane.axis > axis):
            r.refuse("it works along the batch")
        return _set_outputs(r, node, *(lane for _ in node.outputs))

    return rule


def _reduce(r: Rewriting, node: Node) -> Node:
    lane = _first_lane(r, node)
    rank = len(r.shape(node.inputs[0]))
    listed_axes = node.attributes.get("axes")
    if listed_axes is None and len(node.inputs) > 1:
        listed_axes = r.numbers(node.inputs[1])
    if not listed_axes and node.attributes.get("noop_with_empty_axes"):
        return _set_outputs(r, node, lane)
    if node.op in ("ArgMax", "ArgMin"):
        listed_axes = [node.attributes.get("axis", 0)]
    axes = {axis % rank for axis in listed_axes or range(rank)}
    if lane.axis in axes:
        r.refuse("it reduces over the batch")
    removed = 0 if node.attributes.get("keepdims", 1) else sum(axis < lane.axis for axis in axes)
    return _set_outputs(r, node, lane.at(lane.axis - removed))


def _matmul(r: Rewriting, node: Node) -> Node:
    second = _SECOND.get(node.op, 1)
    _check_others(r, node, 0, second)
    ranks = [len(r.shape(node.inputs[at])) for at in (0, second)]
    rank = max(*ranks, 2)
    lanes: set[BatchAxis] = set()
    for at, own_rank, depth in ((0, ranks[0], -1), (second, ranks[1], -2)):
        state = _lane_of(r, node, at)
        if state is None:
            continue
        if own_rank == 1 or state.axis - own_rank == depth:
            r.refuse("it multiplies over the batch")
        lanes.add(state.at(state.axis + rank - own_rank))
        other_at, theirs = (second, ranks[1]) if at == 0 else (0, ranks[0])
        if state.axis - own_rank < -2 and _lane_of(r, node, other_at) is None:
            node = _broadcast_input(r, node, other_at, state.axis - own_rank + theirs, state)
    if len(lanes) != 1 or (all(_lane_of(r, node, at) for at in (0, second)) and min(lanes).axis >= rank - 2):
        r.refuse("two batches meet on different axes")
    lane = lanes.pop()
    # a vector operand has no axis in the result
    if ranks[1] == 1 and ranks[0] > 1:
        return _set_outputs(r, node, lane)
    if ranks[0] == 1 and lane.axis == rank - 1:
        lane = lane.at(lane.axis - 1)
    return _set_outputs(r, node, lane)


def _gemm(r: Rewriting, node: Node) -> Node:
    lanes = set()
    for at, depth in (
        (0, 0 if node.attributes.get("transA", 0) else 1),
        (1, 1 if node.attributes.get("transB", 0) else 0),
    ):
        state = _lane_of(r, node, at)
        if state is not None and state.axis == depth:
            r.refuse("it multiplies over the batch")
        if state is not None:
            lanes.add(state.at(at))
    if len(lanes) != 1:
        r.refuse("two batches meet on different axes")
    lane = lanes.pop()
    if len(node.inputs) > 2 and node.inputs[2]:
        shape, bias = r.shape(node.inputs[2]), _lane_of(r, node, 2)
        if bias is not None and bias.at(bias.axis + 2 - len(shape)) != lane:
            r.refuse("two batches meet on different axes")
        if bias is None:
            node = _broadcast_input(r, node, 2, lane.axis - 2 + len(shape), lane)
    return _set_outputs(r, node, lane)


def _transpose(r: Rewriting, node: Node) -> Node:
    lane = _first_lane(r, node)
    rank = len(r.shape(node.inputs[0]))
    order = list(node.attributes.get("perm") or range(rank)[::-1])
    return _set_outputs(r, node, lane.at(order.index(lane.axis)))


def _possible_lanes(
    r: Rewriting, lane: BatchAxis, source: Sequence[Dim], target: Sequence[Dim]
) -> list[BatchAxis]:
    """The possible batch axes in a new shape of the same elements, likeliest first.

    The number of elements before the batch does not change; for a batch of 1, several axes may match.
    """
    before = r.product(source[: lane.axis]) * lane.outer
    candidates, front = [], 1
    for axis, size in enumerate(target):
        if not isinstance(size, int):
            break  # open sizes come after the batch
        if before % front == 0 and size and size % (before // front * r.old) == 0:
            outer = before // front
            candidates.append(BatchAxis(axis, outer, size // (outer * r.old)))
        front *= size
    return sorted(
        candidates,
        key=lambda candidate: (
            not candidate.whole,
            candidate.axis != lane.axis,
            candidate.outer != 1,
            candidate.axis,
        ),
    )


def _choose_lane(r: Rewriting, places: Sequence[BatchAxis], shape: Sequence[Dim]) -> BatchAxis:
    if not places:
        r.refuse(f"the batch is mixed with another axis: no axis of {list(shape)} can hold it")
    if len(places) == 1:
        return places[0]
    turn = len(r.ways)
    r.ways.append(len(places))
    return places[r.ambiguous[turn] if turn < len(r.ambiguous) else 0]


def _reshape(r: Rewriting, node: Node) -> Node:
    source_lane = _first_lane(r, node)
    source, target = r.shape(node.inputs[0]), r.shape(node.outputs[0])
    lane = _choose_lane(r, _possible_lanes(r, source_lane, source, target), target)
    _set_outputs(r, node, lane)
    requested = list(node.attributes.get("shape") or ()) or r.numbers(node.inputs[1]) or []
    copied = {
        at for at, size in enumerate(requested) if size == 0 and not node.attributes.get("allowzero", 0)
    }
    follows = requested[lane.axis] == -1 or (lane.axis in copied and source_lane == lane)
    if follows and copied <= {lane.axis, *(at for at in copied if at != source_lane.axis)}:
        return node
    # sizes that were open or copied become numbers where known
    sizes: list[Dim] = [
        target[at] if size == -1 or at in copied else size for at, size in enumerate(requested)
    ]
    times = lane.outer * lane.inner
    sizes[lane.axis] = r.new * times if isinstance(r.new, int) else -1
    numbers = [size if isinstance(size, int) else 0 if at in copied else -1 for at, size in enumerate(sizes)]
    if numbers.count(-1) > 1:
        r.refuse("a size beside the batch is open (--dim binds it)")
    r.changed.append(node.label)
    if "shape" in node.attributes:
        return node.with_attributes({**node.attributes, "shape": tuple(numbers)})
    return _with_input(node, 1, r.store(numbers, node.label))


def _flatten(r: Rewriting, node: Node) -> Node:
    lane = _first_lane(r, node)
    source = r.shape(node.inputs[0])
    axis = node.attributes.get("axis", 1)
    axis = axis + len(source) if axis < 0 else axis
    start, stop, to = (0, axis, 0) if lane.axis < axis else (axis, len(source), 1)
    outer = r.product(source[start : lane.axis]) * lane.outer
    inner = lane.inner * r.product(source[lane.axis + 1 : stop])
    return _set_outputs(r, node, BatchAxis(to, outer, inner))


def _change_rank(r: Rewriting, node: Node) -> Node:
    """Squeeze, Unsqueeze."""
    lane = _first_lane(r, node)
    axes = node.attributes.get("axes")
    if axes is None and len(node.inputs) > 1:
        axes = r.numbers(node.inputs[1])
    shape = r.shape(node.inputs[0])
    if node.op == "Unsqueeze":
        rank = len(shape) + len(axes or ())
        new = {axis % rank for axis in axes or ()}
        free = [axis for axis in range(rank) if axis not in new]
        return _set_outputs(r, node, lane.at(free[lane.axis]))
    if not axes:
        axes = [at for at, size in enumerate(shape) if size == 1]
    removed = {axis % len(shape) for axis in axes}
    if lane.axis in removed:
        r.refuse("it drops the axis of the batch")
    return _set_outputs(r, node, lane.at(lane.axis - sum(axis < lane.axis for axis in removed)))


def _concat(r: Rewriting, node: Node) -> Node:
    lanes = {r.batched[name] for name in node.inputs if name in r.batched}
    if len(lanes) != 1:
        r.refuse("two batches meet on different axes")
    lane = lanes.pop()
    if lane.axis == _axis(node, len(r.shape(node.outputs[0])), 0):
        r.refuse("it puts something behind the batch, along its axis")
    for at, name in enumerate(node.inputs):
        if name not in r.batched:
            if not lane.whole:
                r.refuse(f"'{name}' has no batch, and stands beside one that is mixed with another axis")
            node = _with_input(node, at, r.spread(name, lane.axis))
    return _set_outputs(r, node, lane)


def _slice(r: Rewriting, node: Node) -> Node:
    lane = _first_lane(r, node)
    rank = len(r.shape(node.inputs[0]))
    attributes = node.attributes
    if "starts" in attributes:
        starts, ends, steps = (
            list(attributes["starts"]),
            list(attributes["ends"]),
            [1] * len(attributes["starts"]),
        )
        axes = list(attributes.get("axes") or range(len(starts)))
    else:
        starts, ends = r.numbers(node.inputs[1]) or [], r.numbers(node.inputs[2]) or []
        axes = (r.numbers(node.inputs[3]) if len(node.inputs) > 3 else None) or list(range(len(starts)))
        steps = (r.numbers(node.inputs[4]) if len(node.inputs) > 4 else None) or [1] * len(starts)
    at = next((i for i, axis in enumerate(axes) if axis % rank == lane.axis), None)
    if at is not None:
        size = r.shape(node.inputs[0])[lane.axis]
        if starts[at] != 0 or steps[at] != 1 or not isinstance(size, int) or ends[at] < size:
            r.refuse("it takes a part of the batch")
        if ends[at] < _END:
            ends[at] = _END
            r.changed.append(node.label)
            if "starts" in attributes:
                node = node.with_attributes({**attributes, "ends": tuple(ends)})
            else:
                node = _with_input(node, 2, r.store(ends, node.label))
    return _set_outputs(r, node, lane)


def _split(r: Rewriting, node: Node) -> Node:
    lane = _first_lane(r, node)
    if lane.axis == _axis(node, len(r.shape(node.inputs[0])), 0):
        r.refuse("it splits the batch")
    return _set_outputs(r, node, *(lane for _ in node.outputs))


def _gather(r: Rewriting, node: Node) -> Node:
    table_lane, index_lane = _lane_of(r, node, 0), _lane_of(r, node, 1)
    axis = _axis(node, len(r.shape(node.inputs[0])), 0)
    if table_lane is not None and index_lane is not None:
        r.refuse("table and indices both hold the batch")
    if index_lane is not None:
        return _set_outputs(r, node, index_lane.at(index_lane.axis + axis))
    assert table_lane is not None
    if table_lane.axis == axis:
        r.refuse("it takes rows out of the batch")
    rank = len(r.shape(node.inputs[1]))
    return _set_outputs(r, node, table_lane.at(table_lane.axis + (rank - 1 if table_lane.axis > axis else 0)))


def _pad(r: Rewriting, node: Node) -> Node:
    lane = _first_lane(r, node)
    rank = len(r.shape(node.inputs[0]))
    pads = list(node.attributes.get("pads") or ()) or r.numbers(node.inputs[1]) or []
    axes = (r.numbers(node.inputs[3]) if len(node.inputs) > 3 else None) or list(range(rank))
    for at, axis in enumerate(axes):
        if axis % rank == lane.axis and (pads[at] or pads[at + len(axes)]):
            r.refuse("it pads the batch")
    return _set_outputs(r, node, lane)


def _tile(r: Rewriting, node: Node) -> Node:
    lane = _first_lane(r, node)
    if (r.numbers(node.inputs[1]) or [])[lane.axis] != 1:
        r.refuse("it repeats the batch")
    return _set_outputs(r, node, lane)


def _expand(r: Rewriting, node: Node) -> Node:
    lane = _first_lane(r, node)
    target, rank = r.numbers(node.inputs[1]) or [], len(r.shape(node.inputs[0]))
    shift = max(len(target) - rank, 0)
    place = lane.axis - rank + len(target)
    if place >= 0 and target[place] != 1:
        if target[place] != r.shape(node.inputs[0])[lane.axis]:
            r.refuse("it repeats the batch")
        r.changed.append(node.label)
        # an axis of 1 stays 1
        node = _with_input(
            node, 1, r.store([1 if at == place else v for at, v in enumerate(target)], node.label)
        )
    return _set_outputs(r, node, lane.at(lane.axis + shift))


def _resize(r: Rewriting, node: Node) -> Node:
    _check_others(r, node, 0)
    lane = _whole_lane(r, node, 0, 0)
    sizes = r.numbers(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] else None
    listed_axes = node.attributes.get("axes")
    axes = [axis % len(r.shape(node.inputs[0])) for axis in listed_axes] if listed_axes else None
    at = 0 if axes is None else axes.index(0) if 0 in axes else None
    if at is not None and sizes is None:
        read = node.inputs[1:3][-1:]  # up to opset 10 the second input, then the third
        scales = r.contents(read[0]) if read else None
        if scales is None or scales.size <= at or scales.reshape(-1)[at] != 1:
            r.refuse("it resizes the batch")
    elif at is not None and sizes is not None:
        if sizes[at] != r.old:
            r.refuse("it resizes the batch")
        r.changed.append(node.label)
        node = _with_input(
            node, 3, r.sizes([None if i == at else v for i, v in enumerate(sizes)], 1, node.label)
        )
    return _set_outputs(r, node, lane)


def _recurrent(r: Rewriting, node: Node) -> Node:
    """RNN, GRU, LSTM: axes are sequence, batch, features; with `layout`, the batch comes first."""
    first = bool(node.attributes.get("layout", 0))
    _check_others(r, node, 0, 4, 5, 6)
    _whole_lane(r, node, 0, 0 if first else 1)
    for at, axis in ((4, 0), (5, 0 if first else 1), (6, 0 if first else 1)):
        if at < len(node.inputs) and node.inputs[at]:
            if node.inputs[at] in r.batched:
                _whole_lane(r, node, at, axis)
            else:
                node = _with_input(node, at, r.spread(node.inputs[at], axis))
    state = BatchAxis(0 if first else 1)
    return _set_outputs(r, node, BatchAxis(0 if first else 2), state, state)


def _einsum(r: Rewriting, node: Node) -> Node:
    equation = node.attributes["equation"].replace(" ", "")
    operands, _, out = equation.partition("->")
    terms = operands.split(",")
    if "..." in equation or "->" not in equation:
        r.refuse("its equation does not name all axes")
    lanes_by_letter = {terms[at][s.axis]: s for at, n in enumerate(node.inputs) if (s := r.batched.get(n))}
    if len(lanes_by_letter) != 1 or next(iter(lanes_by_letter)) not in out:
        r.refuse("it sums over the batch, or mixes two")
    letter, lane = next(iter(lanes_by_letter.items()))
    if any(letter in term and name not in r.batched for term, name in zip(terms, node.inputs, strict=True)):
        r.refuse("something without a batch stands beside it")
    return _set_outputs(r, node, lane.at(out.index(letter)))


_END = (1 << 63) - 1
_SECOND = {"QLinearMatMul": 3}
_NORMALISE = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")

_SHARED: Mapping[Rule, str] = {
    _first_axis: "Conv ConvTranspose ConvInteger QLinearConv FusedConv AveragePool MaxPool LpPool"
    " GlobalAveragePool GlobalMaxPool GlobalLpPool BatchNormalization InstanceNormalization"
    " GroupNormalization LRN DepthToSpace SpaceToDepth QLinearAveragePool QLinearGlobalAveragePool",
    _fused: "Attention MultiHeadAttention GroupQueryAttention RotaryEmbedding SkipLayerNormalization"
    " SkipSimplifiedLayerNormalization EmbedLayerNormalization",
    _reduce: "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin"
    " ReduceProd ReduceSum ReduceSumSquare",
    _matmul: "MatMul MatMulInteger QLinearMatMul",
    _change_rank: "Squeeze Unsqueeze",
    _recurrent: "RNN GRU LSTM",
    _over_axis(-1, coerced=13): "Softmax LogSoftmax Hardmax",
    _over_axis(-1): " ".join((*_NORMALISE, "LpNormalization", "TopK")),
    _over_axis(0): "CumSum",
}

RULES: Mapping[str, Rule] = {
    **dict.fromkeys((op for op, one in BY_NAME.items() if one.position == "each"), _elementwise),
    **{op: rule for rule, ops in _SHARED.items() for op in ops.split()},
    "Gemm": _gemm,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Pad": _pad,
    "Tile": _tile,
    "Expand": _expand,
    "Resize": _resize,
    "Einsum": _einsum,
}
"""By operator."""
