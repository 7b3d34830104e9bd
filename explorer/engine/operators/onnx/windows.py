"""Image operators that read windows or points: pooling, resizing, sampling and region pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from explorer.engine.graph.layouts import (
    MS,
    NCHWC,
    NHWC,
    PADDED_CHANNELS,
    move_channels_first,
    move_channels_last,
    pad_to_blocks,
)
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import Answer, Call, Rule
from explorer.engine.operators.cost_formulas import ELEMENTWISE, FREE, Cost
from explorer.engine.operators.cost_rules import free, per_input
from explorer.engine.operators.operator import Operator
from explorer.engine.operators.shape_rules import (
    count_window_positions,
    like_first_input,
    normalize_axis,
    size_of,
    sizes_of,
)
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape


def _pool_shape(call: Call) -> Answer:
    source, dtype = call.shape_or_none(0), call.dtype(0)
    kernel = call.ints("kernel_shape")
    shape: Shape | None = None
    if source is not None:
        if kernel is None or len(source) != len(kernel) + 2:
            return None
        window_counts = count_window_positions(
            call, source[2:], kernel, ceil=bool(call.integer("ceil_mode", 0))
        )
        if window_counts is None:
            return None
        shape = (*source[:2], *window_counts)
    return ((dtype, shape), ("int64", shape))[: call.output_count]


def _global_pool(call: Call) -> Answer:
    source, dtype = call.shape_or_none(0), call.dtype(0)
    if source is None:
        return ((dtype, None),)
    return ((dtype, source[:2] + (1,) * (len(source) - 2)),)


def _resize_shape(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(0)
    if shape is None:
        return ((dtype, None),)
    if call.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    scales_index = 1 if call.op == "Upsample" or (call.opset < 11 and not call.domain) else 2
    axes = call.ints("axes")
    resized_axes = range(len(shape)) if axes is None else [normalize_axis(a, len(shape)) for a in axes]
    result: list[Dim] = list(shape)
    if call.has(3):
        target = sizes_of(call, 3)
        if target is None:
            return ((dtype, (None,) * len(shape)),)
        if len(target) != len(resized_axes):
            return None
        for axis, size in zip(resized_axes, target, strict=True):
            result[axis] = size
        return ((dtype, tuple(result)),)
    if call.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return None
    scales: Sequence[Any] | None
    if "scales" in call.attributes:
        scales = call.attributes["scales"]
    else:
        scales = call.elements(scales_index)
    if scales is None:
        return ((dtype, (None,) * len(shape)),)
    if len(scales) != len(resized_axes):
        return None
    for axis, scale in zip(resized_axes, scales, strict=True):
        result[axis] = _scale_size(result[axis], scale)
    return ((dtype, tuple(result)),)


def _scale_size(size: Dim, scale: Any) -> Dim:
    """Computes floor(size x scale), as the operator's specification defines it."""
    if size is None or not isinstance(scale, (int, float)):
        return None
    if isinstance(size, int):
        return math.floor(size * scale)
    try:
        return dims.dim(math.floor(dims.expression(size) * dims.number_expression(scale)))
    except dims.UndecidedSize:
        return None


def _grid_shape(call: Call) -> Answer:
    source, grid, dtype = call.shape_or_none(0), call.shape_or_none(1), call.dtype(0)
    if source is None or grid is None or len(grid) < 3:
        return ((dtype, None),)
    return ((dtype, (*source[:2], *grid[1:-1])),)


def _roi_shape(call: Call) -> Answer:
    source, regions, dtype = call.shape_or_none(0), call.shape_or_none(1), call.dtype(0)
    size = call.integer("output_height", 1), call.integer("output_width", 1)
    channels = source[1] if source is not None and len(source) == 4 else None
    return ((dtype, (regions[0] if regions else None, channels, *size)),)


def _crop_shape(call: Call) -> Answer:
    regions, source = call.shape_or_none(1), call.shape_or_none(0)
    size = call.elements(3) or (None, None)
    if regions is None or source is None:
        return ((call.dtype(0), (None,) * 4),)
    return ((call.dtype(0), (regions[0], source[1], size[0], size[1])),)


def _non_max_suppression(call: Call) -> Answer:
    boxes, scores = call.shape_or_none(0), call.shape_or_none(1)
    max_count: Dim = None
    if scores is not None and boxes is not None and len(scores) == 3 and len(boxes) == 3:
        per_class: Any = 0
        if call.has(2):
            content = call.elements(2)
            per_class = content[0] if content else None
        spatial = scores[2] if scores[2] is not None else boxes[1]
        per_class_count: Dim = spatial
        if per_class is not None:
            limit = size_of(per_class)
            per_class_count = dims.find_smaller(limit, spatial) if spatial is not None else limit
        max_count = dims.product((scores[0], scores[1], per_class_count))
    # with a limit of 0, the default, there is no output
    return (("int64", (0 if max_count == 0 else call.fresh(max_count), 3)),)


def _reorder_input(call: Call) -> Answer:
    """Infers the output type of ReorderInput, which splits channels into blocks.

    The output has whole blocks of channels. The convolution that reads it sets their number.
    """
    shape = call.shape_or_none(0)
    if call.integer("channels_last", 0):
        shape = move_channels_first(shape)
    if shape is not None and len(shape) > 1:
        shape = (shape[0], call.attributes.get(PADDED_CHANNELS, pad_to_blocks(shape[1])), *shape[2:])
    return ((call.dtype(0), shape),)


def _reorder_output(call: Call) -> Answer:
    shape = call.shape_or_none(0)
    if shape is None:
        return ((call.dtype(0), None),)
    shape = (shape[0], call.attributes.get("channels", shape[1]), *shape[2:])
    return ((call.dtype(0), move_channels_last(shape) if call.integer("channels_last", 0) else shape),)


def _blocked_upsample(call: Call) -> Answer:
    shape, scales = call.shape_or_none(0), call.ints("scales")
    if shape is None or scales is None or len(scales) != len(shape):
        return None
    return ((call.dtype(0), tuple(dims.multiply(d, s) for d, s in zip(shape, scales, strict=True))),)


_NEAREST = replace(FREE, formula="0 (nearest neighbor, no arithmetic)")


_TAPS_PER_AXIS = {"linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}
"""Number of interpolated neighbors along one axis, by mode."""


_CONVERSION = ELEMENTWISE["dequantize"][0] + ELEMENTWISE["quantize"][0]


def _pool(per_tap: int = 1, *, is_quantized: bool = False, has_mask: bool = False) -> Rule:
    def rule(call: Call) -> Cost:
        kernel = tuple(call.attributes["kernel_shape"])
        cost = cost_formulas.pooling(call.op, call.output(), kernel, per_tap)
        cost = cost_formulas.adding(cost, "mask", call.shape(0)) if has_mask else cost
        return cost_formulas.adding(cost, "convert", call.output(), _CONVERSION) if is_quantized else cost

    return rule


def _quantized_mean(call: Call) -> Cost:
    cost = cost_formulas.elementwise(f"{call.op}, each input element", call.shape(0))
    return cost_formulas.adding(cost, "convert", call.output(), _CONVERSION)


def _lrn(call: Call) -> Cost:
    size = call.attributes["size"]
    return cost_formulas.elementwise(
        f"LRN ({size} squares summed, scale, add, power, divide)", call.output(), size + 4
    )


def _resize(call: Call) -> Cost:
    mode = call.attributes.get("mode", "nearest")
    if mode == "nearest":
        return _NEAREST
    source, output = call.shape(0), call.output()
    axes = sum(a != b for a, b in zip(source, output, strict=True))
    if not axes:
        return replace(FREE, formula="0 (no size changes)")
    if call.attributes.get("antialias"):
        return _antialias(call, source, output, _TAPS_PER_AXIS[mode])
    taps = _TAPS_PER_AXIS[mode] ** axes
    return cost_formulas.elementwise(f"{call.op} ({taps} products and their sum)", output, 2 * taps - 1)


def _antialias(call: Call, source: Shape, output: Shape, taps: int) -> Cost:
    """Returns the cost of Resize with antialias: its filter widens by the factor by which an axis shrinks."""
    widths: list[Dim] = []
    for size, output_size in zip(source, output, strict=True):
        if size == output_size:
            continue
        if isinstance(size, int) and isinstance(output_size, int) and output_size:
            filter_radius = -(-taps * max(size, output_size) // (2 * output_size))
            widths.append(taps if output_size > size else 2 * filter_radius + 1)
        else:
            widths.append(None)
    total = cost_formulas.count(widths)
    per_element = None if total is None else 2 * total - 1
    cost = cost_formulas.elementwise(f"{call.op} (a filter of {total} taps)", (*output, per_element))
    return cost_formulas.bounded_work(cost, "at the edges of the image the filter is narrower")


def _grid_sample(call: Call) -> Cost:
    mode = call.attributes.get("mode", "linear")
    if mode == "nearest":
        return _NEAREST
    taps = _TAPS_PER_AXIS[mode] ** (len(call.shape(0)) - 2)
    return cost_formulas.elementwise(
        f"{call.op} ({taps} products and their sum)", call.output(), 2 * taps - 1
    )


def _crop_and_resize(call: Call) -> Cost:
    if call.attributes.get("mode", "bilinear") == "nearest":
        return _NEAREST
    return cost_formulas.elementwise("CropAndResize (4 products and their sum)", call.output(), 7)


def _count_cell_pixels(source: Shape, output: Shape) -> Shape:
    """Returns the maximum number of pixels, by axis, in one output cell if the region is the whole image."""
    sizes: list[Dim] = []
    for size, cells in zip(source[-2:], output[-2:], strict=True):
        is_known = isinstance(size, int) and isinstance(cells, int) and cells
        sizes.append(-(-size // cells) if is_known else None)  # type: ignore[operator]
    return tuple(sizes)


def _roi_align(call: Call) -> Cost:
    ratio = call.attributes.get("sampling_ratio", 0)
    points: Shape = (ratio, ratio) if ratio else _count_cell_pixels(call.shape(0), call.output())
    label = "RoiAlign (each point 4 products and their sum, then their mean)"
    cost = cost_formulas.pooling(label, call.output(), points, 8)
    return (
        cost if ratio else cost_formulas.bounded_work(cost, "counted as if every region were the whole image")
    )


def _max_roi_pool(call: Call) -> Cost:
    # a cell starts and ends between two pixels and includes both
    sizes = tuple(
        d + 1 if isinstance(d, int) else d for d in _count_cell_pixels(call.shape(0), call.output())
    )
    cost = cost_formulas.pooling("MaxRoiPool", call.output(), sizes)
    return cost_formulas.bounded_work(cost, "counted as if every region were the whole image")


def _suppression(call: Call) -> Cost:
    """Returns the cost of comparing each pair of boxes for each class.

    Intersection over union takes 15 operations.
    """
    boxes, scores = call.shape(0), call.shape(1)
    number = boxes[1]
    pairs = number * (number - 1) // 2 if isinstance(number, int) else None
    cost = cost_formulas.elementwise(
        "NonMaxSuppression (intersection over union of a pair)", (*scores[:2], pairs), 15
    )
    return cost_formulas.bounded_work(
        cost, "the number of compared boxes depends on the data; all pairs are counted"
    )


_IMAGES = ("", NHWC, NCHWC)

OPERATORS = (
    Operator("MaxPool AveragePool", _pool(), _IMAGES, _pool_shape),
    Operator("LpPool", _pool(2), ("", NHWC), _pool_shape),
    Operator("NhwcMaxPool", _pool(), MS, _pool_shape, layout="last"),
    Operator("MaxpoolWithMask", _pool(has_mask=True), MS, _pool_shape),
    Operator("QLinearAveragePool", _pool(is_quantized=True), (MS, NHWC), _pool_shape, layout="attribute"),
    Operator("GlobalAveragePool GlobalMaxPool", per_input(), _IMAGES, _global_pool),
    Operator("GlobalLpPool", per_input(2, "power and sum, each input element"), ("", NHWC), _global_pool),
    Operator("QLinearGlobalAveragePool", _quantized_mean, MS, _global_pool, layout="attribute"),
    Operator("MaxUnpool", free, ("", NHWC), layout="either"),
    Operator("LRN", _lrn, ("", NHWC), like_first_input),
    # scales and sizes are in the order of the axes, so the rule works for any layout
    Operator(
        "Resize",
        _resize,
        ("", NHWC),
        _resize_shape,
        layout="either",
        shape_reads=(1, 2, 3),
        settings=(1, 2, 3),
    ),
    Operator("Upsample", _resize, shape=_resize_shape, shape_reads=(1,), settings=(1,)),
    Operator("Upsample", _resize, NCHWC, _blocked_upsample, settings=(1,)),
    Operator("GridSample", _grid_sample, ("", MS, NHWC), _grid_shape),
    Operator("CropAndResize", _crop_and_resize, MS, _crop_shape, shape_reads=(3,)),
    Operator("RoiAlign", _roi_align, shape=_roi_shape),
    Operator("MaxRoiPool", _max_roi_pool),
    Operator(
        "NonMaxSuppression",
        _suppression,
        shape=_non_max_suppression,
        shape_reads=(2,),
        node_specific=True,
        settings=(2, 3, 4),
    ),
    Operator("ReorderInput", free, NCHWC, _reorder_input, node_specific=True),
    Operator("ReorderOutput", free, NCHWC, _reorder_output),
)
