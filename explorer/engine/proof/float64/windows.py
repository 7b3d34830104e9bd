"""Computes convolution and pooling in float64.

onnxruntime has no float64 kernels for these operators, and onnx's own evaluator computes them element by
element. A convolution becomes matrix products over bands of output rows. A depthwise convolution and a pool
loop over the kernel positions instead. If a function returns None, onnx's evaluator computes the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.runtime.parallel import compute_pieces

_MAX_BAND_ELEMENTS = 1 << 18
"""Maximum number of elements of a convolution's unfolded input that exist at a time (2 MiB)."""


class Window:
    """The geometry of a sliding window, computed from the ONNX attributes of a convolution or a pool.

    Attributes:
        kernel, strides, dilations: Size, step and spacing of the window on each spatial axis.
        window_extent: Extent of the dilated window on each axis.
        pads: Padding before and after each axis.
        out: Number of window positions on each axis.
        extra: Padding that ceil_mode adds after each axis.
    """

    def __init__(
        self, attributes: Mapping[str, Any], shape: tuple[int, ...], kernel: tuple[int, ...]
    ) -> None:
        rank = len(kernel)
        self.kernel = kernel
        self.strides = tuple(attributes.get("strides") or (1,) * rank)
        self.dilations = tuple(attributes.get("dilations") or (1,) * rank)
        pads = tuple(attributes.get("pads") or (0,) * 2 * rank)
        self.window_extent = tuple(d * (k - 1) + 1 for d, k in zip(self.dilations, kernel, strict=True))
        auto = attributes.get("auto_pad", "NOTSET")
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            totals = [
                max((-(-n // s) - 1) * s + r - n, 0)
                for n, s, r in zip(shape, self.strides, self.window_extent, strict=True)
            ]
            small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
            pads = (*small, *large) if auto == "SAME_UPPER" else (*large, *small)
        elif auto == "VALID":
            pads = (0,) * 2 * rank
        self.pads = tuple((pads[i], pads[i + rank]) for i in range(rank))
        self.out: tuple[int, ...] = ()
        extra = []
        for n, (a, b), s, r in zip(shape, self.pads, self.strides, self.window_extent, strict=True):
            free_length = n + a + b - r
            count = (-(-free_length // s) if attributes.get("ceil_mode", 0) else free_length // s) + 1
            if attributes.get("ceil_mode", 0) and (count - 1) * s >= n + a:
                count -= 1  # ceil_mode omits a window that would start in the trailing padding
            self.out += (count,)
            extra.append(max((count - 1) * s + r - (n + a + b), 0))
        self.extra = tuple(extra)

    def pad(self, x: Array, value: float) -> Array:
        """Pads the input, including the extra padding that ceil_mode needs."""
        widths = [(0, 0), (0, 0), *((a, b + e) for (a, b), e in zip(self.pads, self.extra, strict=True))]
        return np.pad(x, widths, constant_values=value) if any(map(any, widths)) else x

    def iterate_taps(self, padded: Array) -> Iterator[tuple[tuple[int, ...], Array]]:
        """Yields each kernel position with the input elements at it, in shape (N, C, *out)."""
        for tap in np.ndindex(*self.kernel):
            cut: list[slice] = [slice(None), slice(None)]
            for t, d, s, n in zip(tap, self.dilations, self.strides, self.out, strict=True):
                cut.append(slice(t * d, t * d + (n - 1) * s + 1, s))
            yield tap, padded[tuple(cut)]


def compute_conv(attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
    """Computes Conv of float64 arrays: grouped, depthwise or dilated, in any number of dimensions."""
    x, weight = args[0], args[1]
    if x.ndim < 3 or x.ndim != weight.ndim:
        return None
    groups = attributes.get("group", 1)
    window = Window(attributes, x.shape[2:], weight.shape[2:])
    padded = window.pad(x, 0.0)
    in_channels, out_channels = weight.shape[1], weight.shape[0] // groups
    result = np.empty((x.shape[0], weight.shape[0], *window.out))
    if in_channels == 1 and groups > 1:
        _convolve_depthwise(window, padded, weight, groups, result)
    else:
        for g in range(groups):
            part = padded[:, g * in_channels : (g + 1) * in_channels]
            group = slice(g * out_channels, (g + 1) * out_channels)
            _convolve_by_bands(window, part, weight[group], result[:, group])
    if len(args) > 2 and args[2] is not None:
        result += args[2].reshape(1, -1, *(1,) * (x.ndim - 2))
    return result


def _convolve_depthwise(window: Window, padded: Array, weight: Array, groups: int, result: Array) -> None:
    """Convolves with one input channel per group: one multiplication for each kernel position."""
    out_channels = weight.shape[0] // groups
    shape = (padded.shape[0], groups, out_channels, *window.out)
    total = np.zeros(shape)
    ones = (1,) * len(window.out)
    for tap, tap_input in window.iterate_taps(padded):
        tap_index: Any = (slice(None), 0, *tap)
        factors = weight[tap_index].reshape(1, groups, out_channels, *ones)
        total += tap_input[:, :, None] * factors
    result[...] = total.reshape(result.shape)


def _convolve_by_bands(window: Window, padded: Array, weight: Array, result: Array) -> None:
    """Convolves by matrix products over bands of output rows."""
    rank = len(window.kernel)
    view = np.lib.stride_tricks.sliding_window_view(padded, window.window_extent, tuple(range(2, 2 + rank)))
    strided: tuple[slice, ...] = (slice(None), slice(None))
    strided += tuple(slice(0, (n - 1) * s + 1, s) for n, s in zip(window.out, window.strides, strict=True))
    strided += tuple(slice(None, None, d) for d in window.dilations)
    # (N, C, *out, *kernel) -> (N, C, *kernel, *out)
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    view = view[strided].transpose(order)
    matrix = weight.reshape(weight.shape[0], -1)
    row_elements = max(matrix.shape[1] * math.prod(window.out[1:]), 1)
    band_rows = max(_MAX_BAND_ELEMENTS // row_elements, 1)
    band_axis = 2 + rank

    def compute_band(image_and_row: tuple[int, int]) -> None:
        image, first = image_and_row
        cut: Any = (image, *(slice(None),) * (band_axis - 1), slice(first, first + band_rows))
        band = view[cut]
        band_values = matrix @ band.reshape(matrix.shape[1], -1)
        result[image, :, first : first + band_rows] = band_values.reshape(-1, *band.shape[1 + rank :])

    starts = range(0, window.out[0], band_rows)
    compute_pieces(compute_band, [(image, first) for image in range(padded.shape[0]) for first in starts])


def compute_conv_transpose(attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
    """Computes ConvTranspose of float64 arrays, one kernel position at a time.

    onnx's own evaluator adds up groups wrongly and refuses an output_shape.
    """
    x, weight = args[0], args[1]
    if x.ndim < 3 or x.ndim != weight.ndim:
        return None
    groups, rank, kernel = attributes.get("group", 1), x.ndim - 2, weight.shape[2:]
    strides = tuple(attributes.get("strides") or (1,) * rank)
    dilations = tuple(attributes.get("dilations") or (1,) * rank)
    extra = tuple(attributes.get("output_padding") or (0,) * rank)
    sizes = list(zip(x.shape[2:], strides, dilations, kernel, extra, strict=True))
    full = [(n - 1) * s + d * (k - 1) + 1 + e for n, s, d, k, e in sizes]
    pads = tuple(attributes.get("pads") or (0,) * 2 * rank)
    auto, output_size = attributes.get("auto_pad", "NOTSET"), attributes.get("output_shape")
    if not output_size and auto in ("SAME_UPPER", "SAME_LOWER"):
        output_size = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    if output_size:
        cut = [f - o for f, o in zip(full, output_size, strict=True)]
        if min(cut) < 0:
            return None
        leading_crops = [c // 2 if auto == "SAME_UPPER" else -(-c // 2) for c in cut]
    else:
        pads = (0,) * 2 * rank if auto == "VALID" else pads
        leading_crops = list(pads[:rank])
        output_size = [f - a - b for f, a, b in zip(full, pads[:rank], pads[rank:], strict=True)]
    in_channels, out_channels = x.shape[1] // groups, weight.shape[1]
    total = np.zeros((x.shape[0], groups * out_channels, *full))
    for tap in np.ndindex(*kernel):
        tap_output: list[slice] = [slice(None), slice(None)]
        tap_output += [
            slice(t * d, t * d + (n - 1) * s + 1, s) for t, (n, s, d, _, _) in zip(tap, sizes, strict=True)
        ]
        for g in range(groups):
            tap_output[1] = slice(g * out_channels, (g + 1) * out_channels)
            part = x[:, g * in_channels : (g + 1) * in_channels]
            tap_weight: Any = (slice(g * in_channels, (g + 1) * in_channels), slice(None), *tap)
            total[tuple(tap_output)] += np.moveaxis(np.tensordot(part, weight[tap_weight], (1, 0)), -1, 1)
    region: Any = (..., *(slice(h, h + o) for h, o in zip(leading_crops, output_size, strict=True)))
    result = total[region]
    if len(args) > 2 and args[2] is not None:
        result = result + args[2].reshape(1, -1, *(1,) * rank)
    return result


def compute_max_pool(attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
    """Computes MaxPool of a float64 array, or returns None for other arrays."""
    x = args[0]
    if x.dtype != np.float64 or x.ndim < 3:
        return None
    window = Window(attributes, x.shape[2:], tuple(attributes["kernel_shape"]))
    best: Array | None = None
    for _, tap_input in window.iterate_taps(window.pad(x, -np.inf)):
        best = tap_input.copy() if best is None else np.maximum(best, tap_input, out=best)
    return best


def compute_average_pool(attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
    """Computes AveragePool of a float64 array."""
    x = args[0]
    window = Window(attributes, x.shape[2:], tuple(attributes["kernel_shape"]))
    ones = np.ones((1, 1, *x.shape[2:]))
    if attributes.get("count_include_pad", 0):
        ones = np.pad(ones, [(0, 0), (0, 0), *window.pads], constant_values=1.0)
        # padding that only ceil_mode adds does not count
        ones = np.pad(ones, [(0, 0), (0, 0), *((0, e) for e in window.extra)])
    else:
        ones = window.pad(ones, 0.0)
    total = sum(tap_input for _, tap_input in window.iterate_taps(window.pad(x, 0.0)))
    count = sum(tap_input for _, tap_input in window.iterate_taps(ones))
    return np.asarray(total / count)
