"""Windows and points of an image: pooling, resizing, sampling, regions."""

from __future__ import annotations

from msgspec.structs import replace

from explorer.engine.costs.onnx_rules.call import MS, Call, Key, Rule, each_input, free
from explorer.engine.graph.layouts import NCHWC, NHWC
from explorer.engine.operators import formulas
from explorer.engine.operators.formulas import ELEMENTWISE, FREE, Cost
from explorer.facts import Dim, Shape

__all__ = ["RULES"]

_NEAREST = replace(FREE, formula="0 (nearest neighbour, no arithmetic)")

_TAPS = {"linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}
"""Neighbours along one axis."""

_CONVERSION = ELEMENTWISE["dequantize"][0] + ELEMENTWISE["quantize"][0]


def _pool(per_tap: int = 1, *, quantized: bool = False, masked: bool = False) -> Rule:
    def rule(call: Call) -> Cost:
        kernel = tuple(call.attributes["kernel_shape"])
        cost = formulas.pooling(call.op, call.output(), kernel, per_tap)
        cost = formulas.adding(cost, "mask", call.shape(0)) if masked else cost
        return formulas.adding(cost, "convert", call.output(), _CONVERSION) if quantized else cost

    return rule


def _quantized_mean(call: Call) -> Cost:
    cost = formulas.elementwise(f"{call.op}, each input element", call.shape(0))
    return formulas.adding(cost, "convert", call.output(), _CONVERSION)


def _lrn(call: Call) -> Cost:
    size = call.attributes["size"]
    return formulas.elementwise(
        f"LRN ({size} squares summed, scale, add, power, divide)", call.output(), size + 4
    )


def _resize(call: Call) -> Cost:
    mode = call.attributes.get("mode", "nearest")
    if mode == "nearest":
        return _NEAREST
    source, output = call.shape(0), call.output()
    axes = sum(a != b for a, b in zip(source, output, strict=True))
    if not axes:
        return replace(FREE, formula="0 (every size stays what it was)")
    if call.attributes.get("antialias"):
        return _smoothed(call, source, output, _TAPS[mode])
    taps = _TAPS[mode] ** axes
    return formulas.elementwise(f"{call.op} ({taps} products and their sum)", output, 2 * taps - 1)


def _smoothed(call: Call, source: Shape, output: Shape, taps: int) -> Cost:
    """Resize with antialias: where an axis shrinks, the filter is as much wider."""
    widths: list[Dim] = []
    for size, after in zip(source, output, strict=True):
        if size == after:
            continue
        if isinstance(size, int) and isinstance(after, int) and after:
            reach = -(-taps * max(size, after) // (2 * after))
            widths.append(taps if after > size else 2 * reach + 1)
        else:
            widths.append(None)
    total = formulas.count(widths)
    per_element = None if total is None else 2 * total - 1
    cost = formulas.elementwise(f"{call.op} (a filter of {total} taps)", (*output, per_element))
    return formulas.bounded(cost, "at the edges of the image the filter is narrower")


def _grid_sample(call: Call) -> Cost:
    mode = call.attributes.get("mode", "linear")
    if mode == "nearest":
        return _NEAREST
    taps = _TAPS[mode] ** (len(call.shape(0)) - 2)
    return formulas.elementwise(f"{call.op} ({taps} products and their sum)", call.output(), 2 * taps - 1)


def _crop_and_resize(call: Call) -> Cost:
    if call.attributes.get("mode", "bilinear") == "nearest":
        return _NEAREST
    return formulas.elementwise("CropAndResize (4 products and their sum)", call.output(), 7)


def _cells(source: Shape, output: Shape) -> Shape:
    """Pixels that one cell of the output covers at most, if the region is the whole image."""
    sizes: list[Dim] = []
    for size, cells in zip(source[-2:], output[-2:], strict=True):
        numbers = isinstance(size, int) and isinstance(cells, int) and cells
        sizes.append(-(-size // cells) if numbers else None)  # type: ignore[operator]
    return tuple(sizes)


def _roi_align(call: Call) -> Cost:
    ratio = call.attributes.get("sampling_ratio", 0)
    points: Shape = (ratio, ratio) if ratio else _cells(call.shape(0), call.output())
    what = "RoiAlign (each point 4 products and their sum, then their mean)"
    cost = formulas.pooling(what, call.output(), points, 8)
    return cost if ratio else formulas.bounded(cost, "counted as if every region were the whole image")


def _max_roi_pool(call: Call) -> Cost:
    # a cell begins and ends between two pixels, and takes both
    sizes = tuple(d + 1 if isinstance(d, int) else d for d in _cells(call.shape(0), call.output()))
    cost = formulas.pooling("MaxRoiPool", call.output(), sizes)
    return formulas.bounded(cost, "counted as if every region were the whole image")


def _suppression(call: Call) -> Cost:
    """Every pair of boxes compared, for every class: 15 operations for intersection over union."""
    boxes, scores = call.shape(0), call.shape(1)
    number = boxes[1]
    pairs = number * (number - 1) // 2 if isinstance(number, int) else None
    cost = formulas.elementwise(
        "NonMaxSuppression (intersection over union of a pair)", (*scores[:2], pairs), 15
    )
    return formulas.bounded(cost, "how many boxes are compared depends on the data; counted are all pairs")


RULES: dict[Key, Rule] = {
    ("", "MaxPool"): _pool(),
    ("", "AveragePool"): _pool(),
    ("", "LpPool"): _pool(2),
    ("", "GlobalAveragePool"): each_input(),
    ("", "GlobalMaxPool"): each_input(),
    ("", "GlobalLpPool"): each_input(2, "power and sum, each input element"),
    ("", "MaxUnpool"): free,
    ("", "LRN"): _lrn,
    ("", "Resize"): _resize,
    ("", "Upsample"): _resize,
    ("", "GridSample"): _grid_sample,
    ("", "RoiAlign"): _roi_align,
    ("", "MaxRoiPool"): _max_roi_pool,
    ("", "NonMaxSuppression"): _suppression,
    (MS, "NhwcMaxPool"): _pool(),
    (MS, "MaxpoolWithMask"): _pool(masked=True),
    (MS, "QLinearAveragePool"): _pool(quantized=True),
    (MS, "QLinearGlobalAveragePool"): _quantized_mean,
    (MS, "GridSample"): _grid_sample,
    (MS, "CropAndResize"): _crop_and_resize,
    **{(NCHWC, op): _pool() for op in ("MaxPool", "AveragePool")},
    **{(NCHWC, op): each_input() for op in ("GlobalAveragePool", "GlobalMaxPool")},
    (NCHWC, "Upsample"): _resize,
    (NCHWC, "ReorderInput"): free,
    (NCHWC, "ReorderOutput"): free,
    **{(NHWC, op): _pool() for op in ("MaxPool", "AveragePool")},
    **{(NHWC, op): each_input() for op in ("GlobalAveragePool", "GlobalMaxPool")},
    (NHWC, "LpPool"): _pool(2),
    (NHWC, "GlobalLpPool"): each_input(2, "power and sum, each input element"),
    (NHWC, "QLinearAveragePool"): _pool(quantized=True),
    (NHWC, "MaxUnpool"): free,
    (NHWC, "LRN"): _lrn,
    (NHWC, "Resize"): _resize,
    (NHWC, "GridSample"): _grid_sample,
    (NHWC, "DepthToSpace"): free,
    (NHWC, "SpaceToDepth"): free,
}
