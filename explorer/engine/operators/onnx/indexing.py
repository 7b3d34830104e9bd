"""Indexing operators: lookup, scatter, sorting and selection. Output sizes may depend on data."""

from __future__ import annotations

from explorer.engine.graph.layouts import MS
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import Answer, Call
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.cost_rules import data_movement, free, unknown_cost
from explorer.engine.operators.operator import Operator, blocked
from explorer.engine.operators.shape_rules import from_sizes, like, like_first_input, normalize_axis, size_of
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape


def _gather(call: Call) -> Answer:
    shape, index, dtype = call.shape_or_none(0), call.shape_or_none(1), call.dtype(0)
    if shape is None or index is None:
        return ((dtype, None),)
    axis = normalize_axis(call.integer("axis", 0), len(shape))
    return ((dtype, shape[:axis] + index + shape[axis + 1 :]),)


def _gather_nd(call: Call) -> Answer:
    shape, index, dtype = call.shape_or_none(0), call.shape_or_none(1), call.dtype(0)
    if shape is None or index is None or not index or not isinstance(index[-1], int):
        return ((dtype, None),)
    depth = index[-1] + call.integer("batch_dims", 0)
    if depth > len(shape):
        return None
    return ((dtype, index[:-1] + shape[depth:]),)


def _one_hot(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(2)
    if shape is None:
        return ((dtype, None),)
    content = call.elements(1)
    value = content[0] if content else None
    depth: Dim = (
        dims.dim(value) if isinstance(value, dims.Expression) else None if value is None else int(value)
    )
    axis = normalize_axis(call.integer("axis", -1), len(shape) + 1)
    return ((dtype, (*shape[:axis], depth, *shape[axis:])),)


def _non_zero(call: Call) -> Answer:
    shape = call.shape_or_none(0)
    if shape is None:
        return (("int64", (None, call.fresh(None))),)
    return (("int64", (len(shape), call.fresh(dims.product(shape)))),)


def _compress(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(0)
    if shape is None:
        return ((dtype, None if "axis" in call.attributes else (call.fresh(None),)),)
    if "axis" not in call.attributes:
        return ((dtype, (call.fresh(dims.product(shape)),)),)
    axis = normalize_axis(call.integer("axis", 0), len(shape))
    mask = call.elements(1)
    size: Dim = None
    if mask is not None and all(v is not None for v in mask):
        size = sum(bool(v) for v in mask)
    else:
        size = call.fresh(shape[axis])
    return ((dtype, (*shape[:axis], size, *shape[axis + 1 :])),)


def _unique_shape(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(0)
    if shape is None:
        unique_count = call.fresh(None)
        unique_shape: Shape | None = None if "axis" in call.attributes else (unique_count,)
        element_count: Dim = None
    elif "axis" in call.attributes:
        axis = normalize_axis(call.integer("axis", 0), len(shape))
        element_count = shape[axis]
        unique_count = call.fresh(element_count)
        unique_shape = (*shape[:axis], unique_count, *shape[axis + 1 :])
    else:
        element_count = dims.product(shape)
        unique_count = call.fresh(element_count)
        unique_shape = (unique_count,)
    return (
        (dtype, unique_shape),
        ("int64", (unique_count,)),
        ("int64", (element_count,)),
        ("int64", (unique_count,)),
    )


def _top_k(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(0)
    if shape is None:
        return ((dtype, None), ("int64", None))
    axis = normalize_axis(call.integer("axis", -1), len(shape))
    k: Dim
    if "k" in call.attributes:
        k = call.integer("k", 1)
    else:
        content = call.elements(1)
        k = size_of(content[0]) if content and content[0] is not None else call.fresh(shape[axis])
    output = (*shape[:axis], k, *shape[axis + 1 :])
    return ((dtype, output), ("int64", output))


def _unique_rows(call: Call) -> Answer:
    source = call.shape_or_none(0)
    unique_count = call.fresh(None if source is None else source[0])
    return ((call.dtype(0), (unique_count,)), ("int64", source), ("int64", (unique_count,)))[
        : call.output_count
    ]


def _embedding(call: Call) -> Answer:
    table, index = call.shape_or_none(0), call.shape_or_none(1)
    return ((call.dtype(0), None if table is None or index is None else (*index, table[-1])),)


def _remove_padding_shape(call: Call) -> Answer:
    """Infers the output types of RemovePadding, whose number of remaining tokens depends on data."""
    source = call.shape_or_none(0)
    if source is None or len(source) != 3:
        return None
    tokens = call.fresh(dims.multiply(source[0], source[1]))
    offsets = ("int32", source[:2]), ("int32", (dims.add(source[0], 1),)), ("int32", (1,))
    return ((call.dtype(0), (tokens, source[2])), *offsets)[: call.output_count]


def _scatter(call: Call) -> Cost:
    reduction = call.attributes.get("reduction", "none")
    if reduction == "none":
        return free(call)
    return cost_formulas.elementwise(f"{call.op} {reduction}", call.shape(2))


def _prefix_commit_shape(call: Call) -> Answer:
    """Infers the output types of SpeculativePrefixCommit, with tokens of one sequence or (batch, rows)."""
    tokens = call.shape_or_none(0)
    batch: Shape | None = None if tokens is None else tokens[:1] if len(tokens) == 2 else (1,)
    return (("int32", batch), call.type(3), call.type(4))[: call.output_count]


def _merged_indices_shape(call: Call) -> Answer:
    rows = call.shape_or_none(2)
    width = call.integer("max_output_entries", -1)
    merged: Shape | None = None if rows is None else (*rows, width)
    return ((call.dtype(0), merged), (call.dtype(0), rows), (call.dtype(0), rows))[: call.output_count]


_HASH = data_movement("words to numbers of a table, no arithmetic on values")

OPERATORS = (
    Operator("Gather", free, shape=_gather, settings=(1,), rows=(0,)),
    Operator("GatherElements", free, shape=like(1, dtype=0), settings=(1,), rows=(0,)),
    Operator("GatherND", free, ("", MS), _gather_nd, settings=(1,), rows=(0,)),
    Operator("Scatter", free, shape=like_first_input, settings=(1,)),
    Operator("ScatterElements ScatterND", _scatter, shape=like_first_input, settings=(1,)),
    Operator("TensorScatter", free, shape=like_first_input),
    Operator("Trilu", free, shape=like_first_input, settings=(1,)),
    Operator("Trilu", free, MS, like(0)),
    Operator("OneHot", free, shape=_one_hot, shape_reads=(1,), gradient=blocked, settings=(1, 2)),
    Operator("NonZero", free, shape=_non_zero, node_specific=True),
    Operator("Compress", free, shape=_compress, shape_reads=(1,), node_specific=True),
    Operator("Unique", free, shape=_unique_shape, node_specific=True),
    Operator("Unique", free, MS, _unique_rows, node_specific=True),
    Operator("TopK", free, shape=_top_k, shape_reads=(1,), node_specific=True, settings=(1,)),
    Operator("TorchEmbedding", free, MS, _embedding, rows=(0,)),
    Operator("NGramRepeatBlock", free, MS, like(1)),
    Operator("SampleOp", free, MS, like(0)),
    Operator("RemovePadding", free, MS, _remove_padding_shape, node_specific=True),
    Operator("RestorePadding", free, MS, from_sizes((1, 0), (1, 1), (0, 1))),
    Operator("Tokenizer", free, MS),
    Operator("BifurcationDetector", _HASH, MS),
    Operator(
        "MurmurHash3",
        _HASH,
        MS,
        lambda call: ((("uint32" if call.integer("positive", 1) else "int32"), call.shape_or_none(0)),),
    ),
    Operator("NGramHashMapping", _HASH, MS, from_sizes((0, 0), (0, 1), (2, 0))),
    Operator("VarlenNGramHashMapping", _HASH, MS, from_sizes((0, 0), (2, 0))),
    Operator(
        "PackedSparseAttentionIndexerMerge",
        data_movement("lists of indices to one list, no arithmetic on values"),
        MS,
        _merged_indices_shape,
    ),
    Operator(
        "SpeculativePrefixCommit",
        unknown_cost("the number of compared tokens depends on the accepted ones", products=False),
        MS,
        _prefix_commit_shape,
    ),
)
