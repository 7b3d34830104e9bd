"""Fourier transforms, window functions, and matrix operators whose cost depends on the algorithm."""

from __future__ import annotations

from msgspec.structs import replace

from explorer.engine.graph.layouts import MS
from explorer.engine.graph.model import DTYPES
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import Answer, Call
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.cost_rules import per_input, per_output
from explorer.engine.operators.operator import Operator
from explorer.engine.operators.shape_rules import like, size_of
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape


def _stft_shape(call: Call) -> Answer:
    """Infers the output type of STFT: (batch, frames, frequencies, 2).

    A one-sided spectrum has length // 2 + 1 frequencies.
    """
    signal, window, dtype = call.shape_or_none(0), call.shape_or_none(2), call.dtype(0)
    step, length = call.elements(1), call.elements(3)
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
    is_one_sided = call.integer("onesided", 1)
    return ((dtype, (signal[0], frames, dims.add(dims.floor_div(taps, 2), 1) if is_one_sided else taps, 2)),)


def _window(call: Call) -> Answer:
    """Infers the output type of a window function, whose input is the length."""
    content = call.elements(0)
    size = size_of(content[0]) if content and content[0] is not None else None
    return ((DTYPES[call.integer("output_datatype", 1)].name, (size,)),)


def _fourier_shape(call: Call) -> Answer:
    """Infers the output type of Rfft, (..., n) to (..., n // 2 + 1, 2), and of its inverse Irfft."""
    source = call.shape_or_none(0)
    if source is None or call.integer("signal_ndim", 1) != 1 or not call.integer("onesided", 1):
        return None
    if call.op == "Rfft":
        return ((call.dtype(0), (*source[:-1], dims.add(dims.floor_div(source[-1], 2), 1), 2)),)
    return ((call.dtype(0), (*source[:-2], dims.multiply(dims.subtract(source[-2], 1), 2))),)


def _warping_shape(call: Call) -> Answer:
    cost = call.shape_or_none(0)
    longest = None if cost is None else dims.subtract(dims.add(cost[-1], cost[-2]), 1)
    return (("int32", (2, call.fresh(longest))),)


def _dft(call: Call) -> Cost:
    source, output = call.shape(0), call.output()
    axis = _find_axis(call, len(source))
    if axis is not None:
        return _transform(call, source, output, axis)
    # the axis is data: use the axis whose size changed, or else the most expensive one
    axes = range(len(source) - 1)
    changed = [a for a in axes if source[a] != output[a]]
    costs = [_transform(call, source, output, a) for a in changed[:1] or axes]
    largest = max(costs, key=lambda cost: cost.macs or 0)
    if None in {cost.macs for cost in costs} or changed:
        return largest
    return replace(
        largest, reason="the axis of the transform depends on the data; the longest axis is counted"
    )


def _transform(call: Call, source: Shape, output: Shape, axis: int) -> Cost:
    batch: Shape = (*source[:axis], *source[axis + 1 : -1])
    return cost_formulas.fourier(
        batch,
        _get_length(call, source, output, axis),
        output[axis],
        complex_in=source[-1] == 2,
        complex_out=output[-1] != 1,
    )


def _get_length(call: Call, source: Shape, output: Shape, axis: int) -> Dim:
    """Returns the number of samples of one transform, including padding."""
    dft_length = call.number(1)
    is_one_sided = bool(call.attributes.get("onesided", 0))
    if is_one_sided and call.attributes.get("inverse", 0):
        # the input is one side of a spectrum, and each output sums over its frequencies
        return source[axis]
    if dft_length is not None:
        return dft_length
    if not is_one_sided:
        return output[axis]
    return _get_signal_length(output[axis]) if call.has(1) else source[axis]


def _get_signal_length(frequencies: Dim) -> Dim:
    """Returns the length of the longest signal with this number of frequencies on one side."""
    return 2 * frequencies - 1 if isinstance(frequencies, int) and frequencies else None


def _find_axis(call: Call, rank: int) -> int | None:
    """Returns the axis of the transform, or None if unknown.

    It is an attribute before opset 20 and an input since then.
    """
    if "axis" in call.attributes:
        axis = int(call.attributes["axis"])
    elif call.has(2):
        axis_input = call.number(2)
        if axis_input is None:
            return None
        axis = axis_input
    else:
        axis = -2 if call.opset >= 20 else 1
    return axis % rank


def _stft(call: Call) -> Cost:
    signal, output = call.shape(0), call.output()
    frames, frequencies = output[-3], output[-2]
    length: Dim = signal[1]
    if call.has(2):
        length = call.shape(2)[0]
    elif call.has(3):
        frame_length = call.number(3)
        is_one_sided = call.attributes.get("onesided", 1)
        length = (
            frame_length
            if frame_length is not None
            else _get_signal_length(frequencies)
            if is_one_sided
            else frequencies
        )
    complex_in = len(signal) == 3 and signal[2] == 2
    cost = cost_formulas.fourier((*output[:1], frames), length, frequencies, complex_in=complex_in)
    if call.has(2):
        return cost_formulas.adding(cost, "window", (*output[:1], frames, length, 1 + complex_in))
    return cost


def _real_fft(call: Call) -> Cost:
    """Returns the cost of Rfft, real (..., n) to complex (..., n // 2 + 1, 2), and of its inverse Irfft."""
    if call.attributes.get("signal_ndim", 1) != 1:
        return cost_formulas.unknown("a transform of several dimensions is not analyzed")
    source, is_inverse = call.shape(0), call.op == "Irfft"
    axis = -2 if is_inverse else -1
    frequencies = call.output()[-1 if is_inverse else -2]
    return cost_formulas.fourier(
        source[:axis], source[axis], frequencies, complex_in=is_inverse, complex_out=not is_inverse
    )


def _determinant(call: Call) -> Cost:
    """Returns the cost of Gaussian elimination.

    Each row below a pivot takes one division, and each of its remaining elements a product and a sum.
    """
    shape = call.shape(0)
    m = _get_side(shape)
    operations = None
    if isinstance(m, int):
        # the sum of 2 j^2 + j for j < M, and the product of the pivots
        operations = (m - 1) * m * (2 * m - 1) // 3 + m * (m - 1) // 2 + max(m - 1, 0)
    cost = cost_formulas.elementwise(f"Det of {m}x{m} by elimination", (*shape[:-2], operations))
    return cost_formulas.bounded_work(cost, "counted as Gaussian elimination; faster algorithms exist")


def _get_side(shape: Shape) -> Dim:
    """Returns the number of rows of a square matrix, or None if the matrix is not known to be square."""
    rows, columns = shape[-2:]
    return columns if rows == columns else None


def _inverse(call: Call) -> Cost:
    """Returns the cost of Gauss-Jordan elimination.

    Each of M pivots scales a row of 2M elements and subtracts it from every other row.
    """
    shape = call.shape(0)
    m = _get_side(shape)
    operations = m * (2 * m + (m - 1) * 4 * m) if isinstance(m, int) else None
    cost = cost_formulas.elementwise(f"Inverse of {m}x{m} by Gauss-Jordan", (*shape[:-2], operations))
    return cost_formulas.bounded_work(cost, "counted as Gauss-Jordan elimination; faster algorithms exist")


def _mel(call: Call) -> Cost:
    cost = cost_formulas.elementwise(
        "MelWeightMatrix (two slopes of 2, the lower, not below 0)", call.output(), 6
    )
    return cost_formulas.bounded_work(cost, "most elements lie outside of a triangle and are 0")


OPERATORS = (
    Operator("DFT", _dft, cost_reads=True, settings=(1, 2)),
    Operator("STFT", _stft, shape=_stft_shape, shape_reads=(1, 3), cost_reads=True, settings=(1, 3)),
    Operator("Rfft Irfft", _real_fft, MS, _fourier_shape),
    Operator(
        "HannWindow HammingWindow",
        per_output(4, "angle, cosine, scale, subtract"),
        shape=_window,
        shape_reads=(0,),
    ),
    Operator(
        "BlackmanWindow",
        per_output(8, "two angles, two cosines, scale both, subtract, add"),
        shape=_window,
        shape_reads=(0,),
    ),
    Operator("MelWeightMatrix", _mel, settings=(0, 1, 2, 3, 4)),
    Operator("Det", _determinant),
    Operator("Inverse", _inverse, MS, like(0)),
    Operator(
        "DynamicTimeWarping",
        per_input(3, "two comparisons and a sum"),
        MS,
        _warping_shape,
        node_specific=True,
    ),
)
