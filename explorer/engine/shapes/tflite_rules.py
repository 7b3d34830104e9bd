"""Infers the output shapes of TensorFlow Lite's operators from the shapes of their inputs.

A size is a number, or None if unknown; TensorFlow Lite files have no named dimensions. A rule that needs an
unknown shape, size or content raises LookupError or TypeError. The outputs then keep their declared shape.
The rules compute the same as the `Prepare` functions of the operators' kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import Call
from explorer.engine.operators.shape_rules import normalize_axis
from explorer.facts import Dim, Shape


def _require_shape(call: Call, index: int) -> tuple[Any, ...]:
    """Returns the shape of an input, with None for an unknown size.

    Raises:
        LookupError: The shape is unknown.
    """
    shape = call.shape_or_none(index)
    if shape is None:
        raise LookupError(index)
    return shape


def _require_integers(call: Call, index: int) -> list[int]:
    """Returns the integers in a small input.

    Raises:
        LookupError: The contents are unknown.
    """
    content = call.content(index)
    if content is None:
        raise LookupError(index)
    return [int(n) for n in content.reshape(-1)]


Rule = Callable[[Call], Sequence[Shape | None]]
"""Function that returns the shapes of an operator's outputs, or None for an unknown shape."""


def _get_declared_shape(call: Call) -> Shape | None:
    """Returns the shape that the file declares for the first output, or None if it declares none."""
    return None if call.outputs[0] is None else call.outputs[0].shape


def _keep_shape(call: Call) -> Sequence[Shape | None]:
    return [call.shape_or_none(0)]


def _infer_broadcast(call: Call) -> Sequence[Shape | None]:
    return [cost_formulas.broadcast(*(_require_shape(call, index) for index in range(len(call.inputs))))]


def _count_windows(size: Dim, kernel: Dim, stride: int, dilation: int, padding: str) -> Dim:
    """Returns the number of positions of a window along one axis, or None if a size is unknown."""
    if not isinstance(size, int) or not isinstance(kernel, int) or stride < 1:
        return None
    if padding == "SAME":
        return -(-size // stride)
    return max(-(-(size - (kernel - 1) * dilation) // stride), 0)


_AXES = ("d", "h", "w")
"""Letters of the spatial axes in the names of attributes: depth, height, width."""


def _slide_window(call: Call, kernel: Shape, channels: Dim) -> Sequence[Shape | None]:
    """Returns the shape of the only output of a window that slides over an input (N, *spatial, C).

    Args:
        call: The operator.
        kernel: Sizes of the window.
        channels: Number of output channels.
    """
    source, attributes = _require_shape(call, 0), call.attributes
    letters = _AXES[-len(kernel) :]
    sizes = [
        _count_windows(
            size,
            kernel_size,
            attributes[f"stride_{letter}"],
            attributes.get(f"dilation_{letter}_factor", 1),
            attributes["padding"],
        )
        for size, kernel_size, letter in zip(source[1:-1], kernel, letters, strict=True)
    ]
    return [(source[0], *sizes, channels)]


def _make_conv_rule(first: int, last: int, channels: int) -> Rule:
    """Returns the rule of a convolution.

    Args:
        first: First axis of the weight that is a size of the kernel.
        last: Axis after the last size of the kernel.
        channels: Axis of the weight that is the number of output channels.
    """
    return lambda call: _slide_window(
        call, _require_shape(call, 1)[first:last], _require_shape(call, 1)[channels]
    )


def _infer_pool(call: Call) -> Sequence[Shape | None]:
    attributes = call.attributes
    return _slide_window(
        call, (attributes["filter_height"], attributes["filter_width"]), _require_shape(call, 0)[-1]
    )


def _make_content_rule(index: int) -> Rule:
    """Returns a rule for operators whose output shape is the content of an input."""

    def rule(call: Call) -> Sequence[Shape | None]:
        return [tuple(_require_integers(call, index))]

    return rule


def _infer_conv_transpose(call: Call) -> Sequence[Shape | None]:
    try:
        return [tuple(_require_integers(call, 0))]
    except LookupError:
        declared = _get_declared_shape(call)
        return [None if declared is None else (_require_shape(call, 2)[0], *declared[1:])]


def _infer_fully_connected(call: Call) -> Sequence[Shape | None]:
    source, weight = _require_shape(call, 0), _require_shape(call, 1)
    if call.attributes.get("keep_num_dims"):
        return [(*source[:-1], weight[0])]
    total = None if None in source else math.prod(source)
    rows = None if total is None else total // weight[1]
    return [(rows, weight[0])]


def _infer_matmul(call: Call) -> Sequence[Shape | None]:
    a, b = _require_shape(call, 0), _require_shape(call, 1)
    rows = a[-1] if call.attributes.get("adj_x") else a[-2]
    columns = b[-2] if call.attributes.get("adj_y") else b[-1]
    return [(*cost_formulas.broadcast(a[:-2], b[:-2]), rows, columns)]


def _infer_reshape(call: Call) -> Sequence[Shape | None]:
    source = _require_shape(call, 0)
    try:
        target = _require_integers(call, 1)
    except LookupError:
        new_shape = call.attributes.get("new_shape")
        declared = _get_declared_shape(call)
        if len(call.inputs) < 2 and new_shape is not None:
            target = list(new_shape)
        elif declared is not None and declared.count(None) == 1:
            # a single open size follows from the fixed ones
            target = [d if isinstance(d, int) else -1 for d in declared]
        else:
            return [None]
    total = None if None in source else math.prod(source)
    fixed_product = math.prod(d for d in target if d != -1)
    inferred_size = None
    if total is not None and fixed_product and not total % fixed_product:
        inferred_size = total // fixed_product
    sizes: list[Dim] = [inferred_size if size == -1 else size for size in target]
    return [tuple(sizes)]


def _infer_concatenation(call: Call) -> Sequence[Shape | None]:
    shapes = [_require_shape(call, index) for index in range(len(call.inputs))]
    axis = normalize_axis(call.attributes["axis"], len(shapes[0]))
    sizes = [s[axis] for s in shapes]
    total = None if None in sizes else sum(sizes)
    return [(*shapes[0][:axis], total, *shapes[0][axis + 1 :])]


def _infer_pack(call: Call) -> Sequence[Shape | None]:
    source = _require_shape(call, 0)
    axis = normalize_axis(call.attributes["axis"], len(source) + 1)
    return [(*source[:axis], len(call.inputs), *source[axis:])]


def _infer_unpack(call: Call) -> Sequence[Shape | None]:
    source = _require_shape(call, 0)
    axis = normalize_axis(call.attributes["axis"], len(source))
    return [(*source[:axis], *source[axis + 1 :])] * call.output_count


def _infer_split(call: Call) -> Sequence[Shape | None]:
    source = _require_shape(call, 1)
    axis = normalize_axis(_require_integers(call, 0)[0], len(source))
    size, parts = source[axis], call.attributes["num_splits"]
    part = size // parts if isinstance(size, int) else None
    return [(*source[:axis], part, *source[axis + 1 :])] * call.output_count


def _infer_split_v(call: Call) -> Sequence[Shape | None]:
    source, sizes = _require_shape(call, 0), _require_integers(call, 1)
    axis = normalize_axis(_require_integers(call, 2)[0], len(source))
    axis_size = source[axis]
    if -1 in sizes:
        fixed_sum = sum(s for s in sizes if s != -1)
        sizes = [s if s != -1 else axis_size - fixed_sum for s in sizes]
    return [(*source[:axis], size, *source[axis + 1 :]) for size in sizes]


def _infer_transpose(call: Call) -> Sequence[Shape | None]:
    source = _require_shape(call, 0)
    return [tuple([source[normalize_axis(n, len(source))] for n in _require_integers(call, 1)])]


def _infer_pad(call: Call) -> Sequence[Shape | None]:
    source, amounts = _require_shape(call, 0), _require_integers(call, 1)
    pads = zip(amounts[::2], amounts[1::2], strict=True)
    return [tuple([None if d is None else d + a + b for d, (a, b) in zip(source, pads, strict=True)])]


def _infer_reduce(call: Call) -> Sequence[Shape | None]:
    source = _require_shape(call, 0)
    axes = {normalize_axis(n, len(source)) for n in _require_integers(call, 1)}
    if call.attributes.get("keep_dims"):
        return [tuple([1 if index in axes else d for index, d in enumerate(source)])]
    return [tuple([d for index, d in enumerate(source) if index not in axes])]


def _infer_arg_reduce(call: Call) -> Sequence[Shape | None]:
    source = _require_shape(call, 0)
    axis = normalize_axis(_require_integers(call, 1)[0], len(source))
    return [(*source[:axis], *source[axis + 1 :])]


def _infer_strided_slice(call: Call) -> Sequence[Shape | None]:
    """Infers the shape of a slice; in a mask, bit i applies to axis i."""
    source, attributes = _require_shape(call, 0), call.attributes
    if attributes.get("ellipsis_mask") or attributes.get("new_axis_mask") or attributes.get("offset"):
        return [None]
    begins, ends, strides = _require_integers(call, 1), _require_integers(call, 2), _require_integers(call, 3)
    sizes: list[Dim] = []
    for axis, size in enumerate(source):
        if axis >= len(begins):
            sizes.append(size)
            continue
        mask = 1 << axis
        if attributes.get("shrink_axis_mask", 0) & mask:
            continue
        is_full = attributes.get("begin_mask", 0) & mask and attributes.get("end_mask", 0) & mask
        if size is None:
            sizes.append(None)
            continue
        if is_full and strides[axis] == 1:
            sizes.append(size)
            continue
        first = None if attributes.get("begin_mask", 0) & mask else begins[axis]
        last = None if attributes.get("end_mask", 0) & mask else ends[axis]
        assert isinstance(size, int)
        sizes.append(len(range(*slice(first, last, strides[axis]).indices(size))))
    return [tuple(sizes)]


def _infer_slice(call: Call) -> Sequence[Shape | None]:
    source = _require_shape(call, 0)
    sizes = _require_integers(call, 2)
    if -1 not in sizes:
        return [tuple(sizes)]
    begins = _require_integers(call, 1)
    sliced_sizes: list[Dim] = []
    for dim, begin, size in zip(source, begins, sizes, strict=True):
        remaining = None if dim is None else dim - begin
        sliced_sizes.append(remaining if size == -1 else size)
    return [tuple(sliced_sizes)]


def _infer_gather(call: Call) -> Sequence[Shape | None]:
    source, index_shape = _require_shape(call, 0), _require_shape(call, 1)
    axis = normalize_axis(call.attributes.get("axis", 0), len(source))
    batch_dims = call.attributes.get("batch_dims", 0)
    return [(*source[:axis], *index_shape[batch_dims:], *source[axis + 1 :])]


def _infer_gather_nd(call: Call) -> Sequence[Shape | None]:
    source, index_shape = _require_shape(call, 0), _require_shape(call, 1)
    depth = index_shape[-1]
    return [(*index_shape[:-1], *source[depth:])] if isinstance(depth, int) else [None]


def _infer_expand(call: Call) -> Sequence[Shape | None]:
    source = _require_shape(call, 0)
    axis = normalize_axis(_require_integers(call, 1)[0], len(source) + 1)
    return [(*source[:axis], 1, *source[axis:])]


def _infer_squeeze(call: Call) -> Sequence[Shape | None]:
    source = _require_shape(call, 0)
    axes = {normalize_axis(n, len(source)) for n in call.attributes.get("squeeze_dims", ())}
    if not axes and None in source:
        return [None]
    return [tuple([d for index, d in enumerate(source) if not (index in axes if axes else d == 1)])]


def _infer_tile(call: Call) -> Sequence[Shape | None]:
    counts = _require_integers(call, 1)
    return [
        tuple([None if d is None else d * n for d, n in zip(_require_shape(call, 0), counts, strict=True)])
    ]


def _infer_range(call: Call) -> Sequence[Shape | None]:
    start, stop, step = (float(call.content(index).reshape(-1)[0]) for index in range(3))
    return [(max(math.ceil((stop - start) / step), 0),)]


def _infer_one_hot(call: Call) -> Sequence[Shape | None]:
    index_shape, depth = _require_shape(call, 0), _require_integers(call, 1)[0]
    axis = call.attributes.get("axis", -1)
    position = len(index_shape) if axis == -1 else normalize_axis(axis, len(index_shape) + 1)
    return [(*index_shape[:position], depth, *index_shape[position:])]


def _infer_top_k(call: Call) -> Sequence[Shape | None]:
    return [(*_require_shape(call, 0)[:-1], _require_integers(call, 1)[0])] * 2


def _infer_resize(call: Call) -> Sequence[Shape | None]:
    source = _require_shape(call, 0)
    return [(source[0], *_require_integers(call, 1), source[3])]


def _make_depth_rule(to_space: bool) -> Rule:
    """Returns the rule of DEPTH_TO_SPACE if `to_space`, else of SPACE_TO_DEPTH."""

    def rule(call: Call) -> Sequence[Shape | None]:
        source, block = _require_shape(call, 0), call.attributes["block_size"]
        sizes = [None if d is None else d * block if to_space else d // block for d in source[1:3]]
        depth = source[3]
        if depth is not None:
            depth = depth // block**2 if to_space else depth * block**2
        return [(source[0], *sizes, depth)]

    return rule


def _infer_space_to_batch(call: Call) -> Sequence[Shape | None]:
    source, blocks, pads = _require_shape(call, 0), _require_integers(call, 1), _require_integers(call, 2)
    count = len(blocks)
    sizes = [
        (d + pads[2 * i] + pads[2 * i + 1]) // b
        for i, (d, b) in enumerate(zip(source[1 : 1 + count], blocks, strict=True))
    ]
    return [(source[0] * math.prod(blocks), *sizes, *source[1 + count :])]


def _infer_batch_to_space(call: Call) -> Sequence[Shape | None]:
    source, blocks, crops = _require_shape(call, 0), _require_integers(call, 1), _require_integers(call, 2)
    count = len(blocks)
    sizes = [
        d * b - crops[2 * i] - crops[2 * i + 1]
        for i, (d, b) in enumerate(zip(source[1 : 1 + count], blocks, strict=True))
    ]
    return [(source[0] // math.prod(blocks), *sizes, *source[1 + count :])]


def _infer_lookup(call: Call) -> Sequence[Shape | None]:
    return [(*_require_shape(call, 0), *_require_shape(call, 1)[1:])]


def _infer_rank(call: Call) -> Sequence[Shape | None]:
    return [(len(_require_shape(call, 0)),)]


def _infer_sequence_lstm(call: Call) -> Sequence[Shape | None]:
    # the output is as wide as the projection, or else as the cells
    width = _require_shape(call, 16)[0] if call.shape_or_none(16) is not None else _require_shape(call, 2)[0]
    return [(*_require_shape(call, 0)[:2], width)]


_SAME = str.split("""
    ABS CAST CEIL COS CUMSUM DEQUANTIZE DYNAMIC_UPDATE_SLICE ELU EXP FAKE_QUANT FLOOR GELU HARD_SWISH
    L2_NORMALIZATION LEAKY_RELU LOCAL_RESPONSE_NORMALIZATION LOG LOGICAL_NOT LOGISTIC LOG_SOFTMAX NEG QUANTIZE
    RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1 REVERSE_SEQUENCE REVERSE_V2 ROUND RSQRT SIGN SIN SOFTMAX SQRT SQUARE
    TANH ZEROS_LIKE ADD_N COMPLEX_ABS REAL IMAG
""")

_BROADCAST = str.split("""
    ADD SUB MUL DIV MAXIMUM MINIMUM SQUARED_DIFFERENCE FLOOR_DIV FLOOR_MOD POW ATAN2 PRELU LESS LESS_EQUAL
    GREATER GREATER_EQUAL EQUAL NOT_EQUAL LOGICAL_AND LOGICAL_OR BITWISE_XOR RIGHT_SHIFT SELECT SELECT_V2
""")

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_SAME, _keep_shape),
    **dict.fromkeys(_BROADCAST, _infer_broadcast),
    **dict.fromkeys(
        ["MEAN", "SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_ANY", "REDUCE_ALL"], _infer_reduce
    ),
    **dict.fromkeys(("ARG_MAX", "ARG_MIN"), _infer_arg_reduce),
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"), _infer_pool),
    **dict.fromkeys(("PAD", "PADV2", "MIRROR_PAD"), _infer_pad),
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), _infer_resize),
    "CONV_2D": _make_conv_rule(1, 3, 0),
    "DEPTHWISE_CONV_2D": _make_conv_rule(1, 3, 3),
    "CONV_3D": _make_conv_rule(0, 3, 4),
    "TRANSPOSE_CONV": _infer_conv_transpose,
    "CONV_3D_TRANSPOSE": _infer_conv_transpose,
    "FULLY_CONNECTED": _infer_fully_connected,
    "BATCH_MATMUL": _infer_matmul,
    "RESHAPE": _infer_reshape,
    "CONCATENATION": _infer_concatenation,
    "PACK": _infer_pack,
    "UNPACK": _infer_unpack,
    "SPLIT": _infer_split,
    "SPLIT_V": _infer_split_v,
    "TRANSPOSE": _infer_transpose,
    "STRIDED_SLICE": _infer_strided_slice,
    "SLICE": _infer_slice,
    "GATHER": _infer_gather,
    "GATHER_ND": _infer_gather_nd,
    "EXPAND_DIMS": _infer_expand,
    "SQUEEZE": _infer_squeeze,
    "TILE": _infer_tile,
    "BROADCAST_TO": _make_content_rule(1),
    "FILL": _make_content_rule(0),
    "SCATTER_ND": _make_content_rule(2),
    "SPARSE_TO_DENSE": _make_content_rule(1),
    "RANGE": _infer_range,
    "ONE_HOT": _infer_one_hot,
    "TOPK_V2": _infer_top_k,
    "SPACE_TO_DEPTH": _make_depth_rule(False),
    "DEPTH_TO_SPACE": _make_depth_rule(True),
    "SPACE_TO_BATCH_ND": _infer_space_to_batch,
    "BATCH_TO_SPACE_ND": _infer_batch_to_space,
    "EMBEDDING_LOOKUP": _infer_lookup,
    "SHAPE": _infer_rank,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _infer_sequence_lstm,
}
"""Rules for the output shapes, by operator name."""
