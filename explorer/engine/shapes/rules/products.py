"""Shapes of operators that sum products, and of windows: convolution, pooling, matrix products, attention."""

from __future__ import annotations

from explorer.engine.shapes.rules.registry import Answer, Handler, Rule, ShapeCall, broadcast
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape

__all__ = ["RULES", "blocked_conv", "fused_matmul"]


# -- windows --------------------------------------------------------------------------------------


def _windows(call: ShapeCall, sizes: Shape, kernel: Shape, *, ceil: bool = False) -> list[Dim] | None:
    """How many places a window takes on each axis: floor((size + pads - reach) / stride) + 1."""
    rank = len(sizes)
    strides = call.ints("strides") or (1,) * rank
    dilations = call.ints("dilations") or (1,) * rank
    pads = call.ints("pads") or (0,) * (2 * rank)
    auto = call.attributes.get("auto_pad", "NOTSET") or "NOTSET"
    if not (len(kernel) == len(strides) == len(dilations) == rank == len(pads) / 2) or min(strides) < 1:
        return None
    result: list[Dim] = []
    for at, (size, taps) in enumerate(zip(sizes, kernel, strict=True)):
        stride = strides[at]
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            result.append(dims.ceil_div(size, stride))
            continue
        before, after = (pads[at], pads[at + rank]) if auto == "NOTSET" else (0, 0)
        reach = dims.add(dims.multiply(dims.subtract(taps, 1), dilations[at]), 1)
        room = dims.subtract(dims.add(size, before + after), reach)
        steps = dims.ceil_div(room, stride) if ceil else dims.floor_div(room, stride)
        if ceil and isinstance(reach, int) and after + stride > reach:
            # a window that would begin behind the data is left out
            steps = dims.least(steps, dims.floor_div(dims.add(size, before - 1), stride))
        places = dims.add(steps, 1)
        if isinstance(places, int) and places < 0:
            return None
        result.append(places)
    return result


def _conv_shape(call: ShapeCall, source: Shape | None, weight: Shape | None) -> Shape | None:
    if source is None or weight is None:
        known = source if source is not None else weight
        return None if known is None else (None,) * len(known)
    if len(source) != len(weight) or len(source) < 3:
        raise ValueError("ranks")
    kernel = call.ints("kernel_shape") or weight[2:]
    group = call.whole("group", 1)
    expected = dims.multiply(weight[1], group)
    if isinstance(expected, int) and isinstance(source[1], int) and expected != source[1]:
        raise ValueError("channels")
    places = _windows(call, source[2:], kernel)
    if places is None:
        raise ValueError("window")
    return (source[0], weight[0], *places)


def _conv(weight: int = 1, dtype: str | int = 0) -> Handler:
    def rule(call: ShapeCall) -> Answer:
        kind = dtype if isinstance(dtype, str) else call.dtype(dtype)
        return ((kind, _conv_shape(call, call.shape(0), call.shape(weight))),)

    return rule


def _conv_transpose(call: ShapeCall) -> Answer:
    source, weight, dtype = call.shape(0), call.shape(1), call.dtype(0)
    if source is None or weight is None:
        return ((dtype, None if source is None else (None,) * len(source)),)
    rank = len(source) - 2
    if len(source) != len(weight) or rank < 1:
        return None
    channels = dims.multiply(weight[1], call.whole("group", 1))
    if isinstance(source[1], int) and isinstance(weight[0], int) and source[1] != weight[0]:
        return None
    wanted = call.ints("output_shape")
    if wanted is not None:
        return ((dtype, (source[0], channels, *wanted[-rank:])),)
    strides = call.ints("strides") or (1,) * rank
    dilations = call.ints("dilations") or (1,) * rank
    pads = call.ints("pads") or (0,) * (2 * rank)
    more = call.ints("output_padding") or (0,) * rank
    kernel: Shape = call.ints("kernel_shape") or weight[2:]
    auto = call.attributes.get("auto_pad", "NOTSET") or "NOTSET"
    if not (len(kernel) == len(strides) == len(dilations) == len(more) == rank == len(pads) / 2):
        return None
    sizes: list[Dim] = []
    for at in range(rank):
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            sizes.append(dims.multiply(source[at + 2], strides[at]))
            continue
        trimmed = pads[at] + pads[at + rank] if auto == "NOTSET" else 0
        reach = dims.add(dims.multiply(dims.subtract(kernel[at], 1), dilations[at]), 1)
        length = dims.multiply(dims.subtract(source[at + 2], 1), strides[at])
        sizes.append(dims.add(dims.add(length, reach), more[at] - trimmed))
    return ((dtype, (source[0], channels, *sizes)),)


def _pool(call: ShapeCall) -> Answer:
    source, dtype = call.shape(0), call.dtype(0)
    kernel = call.ints("kernel_shape")
    shape: Shape | None = None
    if source is not None:
        if kernel is None or len(source) != len(kernel) + 2:
            return None
        places = _windows(call, source[2:], kernel, ceil=bool(call.whole("ceil_mode", 0)))
        if places is None:
            return None
        shape = (*source[:2], *places)
    return ((dtype, shape), ("int64", shape))[: call.count]


def _global_pool(call: ShapeCall) -> Answer:
    source, dtype = call.shape(0), call.dtype(0)
    if source is None:
        return ((dtype, None),)
    return ((dtype, source[:2] + (1,) * (len(source) - 2)),)


def blocked_conv(call: ShapeCall) -> Answer:
    """As a convolution, its weight padded to whole blocks of channels."""
    source, weight = call.shape(0), call.shape(1)
    kernel = call.ints("kernel_shape") or (weight[2:] if weight else None)
    if source is None or weight is None or kernel is None or len(source) != len(weight):
        return None
    places = _windows(call, source[2:], kernel)
    return None if places is None else ((call.dtype(0), (source[0], weight[0], *places)),)


# -- matrix products ------------------------------------------------------------------------------


def _product_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """Shape of numpy.matmul.

    Raises:
        ValueError: The operands do not fit.
    """
    if a is None or b is None:
        return None
    if not a or not b:
        raise ValueError("a scalar")
    inner, other = a[-1], b[-2 if len(b) > 1 else -1]
    if isinstance(inner, int) and isinstance(other, int) and inner != other:
        raise ValueError(f"{inner} against {other}")
    rows = a[-2:-1]
    columns = b[-1:] if len(b) > 1 else ()
    batch = broadcast(a[:-2], b[:-2])
    assert batch is not None
    return (*batch, *rows, *columns)


def _matmul(second: int = 1, dtype: str | int = 0) -> Handler:
    def rule(call: ShapeCall) -> Answer:
        kind = dtype if isinstance(dtype, str) else call.dtype(dtype)
        return ((kind, _product_shape(call.shape(0), call.shape(second))),)

    return rule


def fused_matmul(call: ShapeCall) -> Answer:
    """A product whose operands may be turned first, by attributes."""
    if call.whole("transBatchA", 0) or call.whole("transBatchB", 0):
        return None
    a, b = call.shape(0), call.shape(1)
    if a is not None and call.whole("transA", 0) and len(a) > 1:
        a = (*a[:-2], a[-1], a[-2])
    if b is not None and call.whole("transB", 0) and len(b) > 1:
        b = (*b[:-2], b[-1], b[-2])
    return ((call.dtype(0), _product_shape(a, b)),)


def _gemm(call: ShapeCall) -> Answer:
    a, b, dtype = call.shape(0), call.shape(1), call.dtype(0)
    if (a is not None and len(a) != 2) or (b is not None and len(b) != 2):
        return None
    rows: Dim = None
    columns: Dim = None
    inner: list[Dim] = []
    if a is not None:
        rows, depth = (a[1], a[0]) if call.whole("transA", 0) else (a[0], a[1])
        inner.append(depth)
    if b is not None:
        depth, columns = (b[1], b[0]) if call.whole("transB", 0) else (b[0], b[1])
        inner.append(depth)
    if len({d for d in inner if isinstance(d, int)}) > 1:
        return None
    return ((dtype, (rows, columns)),)


def _einsum(call: ShapeCall) -> Answer:
    equation = call.attributes.get("equation", "")
    equation = equation.replace(" ", "") if isinstance(equation, str) else ""
    shapes = [call.shape(i) for i in range(len(call.types))]
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not equation or "." in equation or len(terms) != len(shapes):
        return None
    if any(s is None for s in shapes):
        return ((call.dtype(0), (None,) * len(right) if arrow else None),)
    sizes: dict[str, Dim] = {}
    for term, shape in zip(terms, shapes, strict=True):
        assert shape is not None
        if len(term) != len(shape):
            return None
        for letter, size in zip(term, shape, strict=True):
            known = sizes.get(letter)
            if known is None or known == 1 or (isinstance(size, int) and not isinstance(known, int)):
                sizes[letter] = size
    if not arrow:
        right = "".join(sorted(c for c in sizes if left.count(c) == 1))
    if any(letter not in sizes for letter in right):
        return None
    return ((call.dtype(0), tuple(sizes[letter] for letter in right)),)


def _stft(call: ShapeCall) -> Answer:
    """Frames of `length` samples, `step` apart; half of the spectrum, and the middle, if one-sided."""
    signal, window, dtype = call.shape(0), call.shape(2), call.dtype(0)
    step, length = call.contents.get(1), call.contents.get(3)
    if signal is None or len(signal) < 2:
        return ((dtype, (None,) * 4),)
    taps: Dim = None
    if length and isinstance(length[0], int):
        taps = length[0]
    elif window is not None and not call.has(3):
        taps = window[0] if window else None
    frames: Dim = None
    if step and isinstance(step[0], int) and step[0] > 0:
        frames = dims.add(dims.floor_div(dims.subtract(signal[1], taps), step[0]), 1)
    one_sided = call.whole("onesided", 1)
    return ((dtype, (signal[0], frames, dims.add(dims.floor_div(taps, 2), 1) if one_sided else taps, 2)),)


# -- recurrent layers and attention ---------------------------------------------------------------


def _recurrent(call: ShapeCall) -> Answer:
    source, dtype = call.shape(0), call.dtype(0)
    directions = 2 if call.attributes.get("direction", "forward") == "bidirectional" else 1
    recurrence = call.shape(2)
    hidden: Dim = call.attributes.get("hidden_size", recurrence[2] if recurrence else None)
    if source is not None and len(source) != 3:
        return None
    first, second = (None, None) if source is None else source[:2]
    if call.whole("layout", 0):
        whole: Shape = (first, second, directions, hidden)
        state: Shape = (first, directions, hidden)
    else:
        whole, state = (first, directions, second, hidden), (directions, second, hidden)
    return ((dtype, whole), (dtype, state), (dtype, state))[: call.count]


RULES: dict[tuple[str, str], Rule] = {
    ("", "Conv"): Rule(_conv()),
    ("", "ConvInteger"): Rule(_conv(dtype="int32")),
    ("", "QLinearConv"): Rule(_conv(3, 7)),
    ("", "ConvTranspose"): Rule(_conv_transpose),
    **{("", op): Rule(_pool) for op in ("MaxPool", "AveragePool", "LpPool")},
    **{("", op): Rule(_global_pool) for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")},
    ("", "MatMul"): Rule(_matmul()),
    ("", "MatMulInteger"): Rule(_matmul(dtype="int32")),
    ("", "QLinearMatMul"): Rule(_matmul(3, 7)),
    ("", "Gemm"): Rule(_gemm),
    ("", "Einsum"): Rule(_einsum),
    ("", "STFT"): Rule(_stft, (1, 3)),
    **{("", op): Rule(_recurrent) for op in ("RNN", "GRU", "LSTM")},
}
"""Rule by (domain, operator)."""
