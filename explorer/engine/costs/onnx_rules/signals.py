"""Fourier transforms, and the matrices whose cost depends on how they are worked out."""

from __future__ import annotations

from msgspec.structs import replace

from explorer.engine.costs.onnx_rules.call import MS, Call, Key, Rule, each
from explorer.engine.operators import formulas
from explorer.engine.operators.formulas import Cost
from explorer.facts import Dim, Shape

__all__ = ["READERS", "RULES"]


def _dft(call: Call) -> Cost:
    source, output = call.shape(0), call.output()
    axis = _axis(call, len(source))
    if axis is not None:
        return _transform(call, source, output, axis)
    # the axis comes with the data: the one that changed its size, or else the costliest
    axes = range(len(source) - 1)
    changed = [a for a in axes if source[a] != output[a]]
    costs = [_transform(call, source, output, a) for a in changed[:1] or axes]
    dearest = max(costs, key=lambda cost: cost.macs or 0)
    if None in {cost.macs for cost in costs} or changed:
        return dearest
    return replace(
        dearest, reason="along which axis it transforms depends on the data; counted is the longest"
    )


def _transform(call: Call, source: Shape, output: Shape, axis: int) -> Cost:
    lead: Shape = (*source[:axis], *source[axis + 1 : -1])
    return formulas.fourier(
        lead,
        _length(call, source, output, axis),
        output[axis],
        complex_in=source[-1] == 2,
        complex_out=output[-1] != 1,
    )


def _length(call: Call, source: Shape, output: Shape, axis: int) -> Dim:
    """Samples that one transform takes, those that pad it included."""
    given = call.number(1)
    onesided = bool(call.attributes.get("onesided", 0))
    if onesided and call.attributes.get("inverse", 0):
        # one side goes in, each of its frequencies is a sample of the sum
        return source[axis]
    if given is not None:
        return given
    if not onesided:
        return output[axis]
    return _both_sides(output[axis]) if call.has(1) else source[axis]


def _both_sides(frequencies: Dim) -> Dim:
    """The longest signal that has so many frequencies on one side."""
    return 2 * frequencies - 1 if isinstance(frequencies, int) and frequencies else None


def _axis(call: Call, rank: int) -> int | None:
    """The axis of the transform: an attribute up to opset 19, an input from 20 on; None if not known."""
    if "axis" in call.attributes:
        axis = int(call.attributes["axis"])
    elif call.has(2):
        known = call.number(2)
        if known is None:
            return None
        axis = known
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
        known = call.number(3)
        onesided = call.attributes.get("onesided", 1)
        length = known if known is not None else _both_sides(frequencies) if onesided else frequencies
    complex_in = len(signal) == 3 and signal[2] == 2
    cost = formulas.fourier((*output[:1], frames), length, frequencies, complex_in=complex_in)
    if call.has(2):
        return formulas.adding(cost, "window", (*output[:1], frames, length, 1 + complex_in))
    return cost


def _real_fft(call: Call) -> Cost:
    """Rfft: real (..., n) to complex (..., n // 2 + 1, 2) along the last axis."""
    if call.attributes.get("signal_ndim", 1) != 1:
        return formulas.unknown("a transform of several dimensions is not followed")
    source = call.shape(0)
    return formulas.fourier(source[:-1], source[-1], call.output()[-2], complex_in=False)


def _inverse_real_fft(call: Call) -> Cost:
    """Irfft: complex (..., n // 2 + 1, 2) to real (..., n) along the last axis."""
    if call.attributes.get("signal_ndim", 1) != 1:
        return formulas.unknown("a transform of several dimensions is not followed")
    source = call.shape(0)
    return formulas.fourier(source[:-2], source[-2], call.output()[-1], complex_in=True, complex_out=False)


def _determinant(call: Call) -> Cost:
    """Gaussian elimination: below each pivot one division a row, then a product and a sum per element."""
    shape = call.shape(0)
    m = _side(shape)
    each = None
    if isinstance(m, int):
        # the sums of 2 j^2 + j over j < M, and the product of the pivots
        each = (m - 1) * m * (2 * m - 1) // 3 + m * (m - 1) // 2 + max(m - 1, 0)
    cost = formulas.elementwise(f"Det of {m}x{m} by elimination", (*shape[:-2], each))
    return formulas.bounded(cost, "counted as Gaussian elimination; other ways take fewer or more")


def _side(shape: Shape) -> Dim:
    """Of a square matrix."""
    rows, columns = shape[-2:]
    return columns if rows == columns else None


def _inverse(call: Call) -> Cost:
    """Gauss-Jordan: each of M pivots scales a row of 2M and takes it off the others."""
    shape = call.shape(0)
    m = _side(shape)
    each = m * (2 * m + (m - 1) * 4 * m) if isinstance(m, int) else None
    cost = formulas.elementwise(f"Inverse of {m}x{m} by Gauss-Jordan", (*shape[:-2], each))
    return formulas.bounded(cost, "counted as Gauss-Jordan elimination; other ways take fewer or more")


def _mel(call: Call) -> Cost:
    cost = formulas.elementwise("MelWeightMatrix (two slopes of 2, the lower, not below 0)", call.output(), 6)
    return formulas.bounded(cost, "most elements lie outside of a triangle and are 0")


def _warping(call: Call) -> Cost:
    return formulas.elementwise("DynamicTimeWarping (two comparisons and a sum)", call.shape(0), 3)


RULES: dict[Key, Rule] = {
    ("", "DFT"): _dft,
    ("", "STFT"): _stft,
    ("", "MelWeightMatrix"): _mel,
    ("", "HannWindow"): each(4, "angle, cosine, scale, subtract"),
    ("", "HammingWindow"): each(4, "angle, cosine, scale, subtract"),
    ("", "BlackmanWindow"): each(8, "two angles, two cosines, scale both, subtract, add"),
    ("", "Det"): _determinant,
    (MS, "Rfft"): _real_fft,
    (MS, "Irfft"): _inverse_real_fft,
    (MS, "Inverse"): _inverse,
    (MS, "DynamicTimeWarping"): _warping,
}

READERS: frozenset[Key] = frozenset({("", "DFT"), ("", "STFT")})
