"""Times the probes of a machine: kernels whose times predict the times of layers.

A probe has sizes that are usual for layers, mostly powers of two; no probe is copied from a model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from explorer.engine.profile.measure.kernels import ConvShape, DenseBlock, Kernels, ObservedNetwork, Run
from explorer.engine.profile.predict import (
    BIASED,
    COLD,
    FUSED,
    NO_ACTIVATION,
    PRODUCTS,
    SHORT_ROWS,
    TURNED,
    find_conv_family,
)
from explorer.engine.profile.statistics import compute_spread
from explorer.facts.profile.machine import KernelTime
from explorer.facts.profile.profile import Spread

_MATMUL_SIZES = ((1, 1024, 1024), (1, 4096, 4096), (16, 1024, 1024), (128, 1024, 1024), (256, 64, 256))
"""M, K, N of matmuls whose weights stay in a cache."""
_STREAMED_SIZES = ((1, 1024, 1024), (16, 1024, 1024), (128, 1024, 1024), (256, 1024, 1024))
"""M, K, N of matmuls whose weights come from memory."""
_TALL_SIZES = ((512, 256, 1024), (512, 1024, 256), (3136, 128, 512), (3136, 512, 128))
"""M, K, N of matmuls with many rows; for these it hardly matters whether the weights come from memory."""
_PRODUCT_SIZES = ((8, 128, 64, 128), (8, 128, 128, 64), (8, 512, 64, 512), (8, 512, 512, 64))
"""Batch, M, K, N."""
_CONVS = (
    *(ConvShape((wide, wide), side, 3) for wide, side in ((64, 56), (128, 28), (256, 14), (512, 7))),
    *(ConvShape((wide, wide), side, 1) for wide, side in ((64, 56), (128, 28), (512, 14), (1024, 7))),
    ConvShape((3, 64), 256, 7, 1, 2),
    *(
        ConvShape((wide, wide), side, 3, wide, activation=act)
        for act in ("", *FUSED)
        for wide, side in ((32, 112), (512, 14))
    ),
)
"""Convolutions that are timed in a chain of equal convolutions."""
_CHANNEL_PAIRS = tuple([ConvShape((64, 256), 56, 1, batch=batch) for batch in (1, 8)])
"""Convolutions that alternate between few and many channels, as in blocks with many MACs per moved byte."""
_WIDE_WINDOWS = (ConvShape((128, 128), 56, 7, 128), ConvShape((512, 512), 14, 7, 512))
"""Depthwise convolutions with a wide window, each timed with the layout changes before and after it."""
_BLOCKS = (DenseBlock(64, 28, 6), DenseBlock(256, 14, 8))
_CHAIN_LENGTH = 4
"""Number of convolutions in a chain."""
_STAGES = ((16, 112), (32, 56), (64, 28), (128, 14), (256, 7))
"""Channels and side of the output of each block of the network."""
_EXPANSION = 4
"""Factor of the channels inside a block of the network."""
_BATCHES = (1, 8)
"""Batch sizes of the network."""
OPS = (
    *("Add", "Relu", "Sigmoid", "Erf", "Gelu", "Softmax", "LayerNormalization", "SkipLayerNormalization"),
    *("Transpose", "MaxPool", TURNED, SHORT_ROWS),
)
"""Operators without MACs, each timed on two shapes."""
_SHAPES = ((1, 8, 64, 64), (1, 64, 128, 128))
"""Shapes for operators without shapes of their own."""
_ROW_AXES = {"Softmax": 4, "LayerNormalization": 4, "SkipLayerNormalization": 3, SHORT_ROWS: 3}
"""Operators that work row by row, with the number of axes of their input."""
_ROW_SHAPES = ((1, 1, 64, 512), (1, 8, 256, 512))
"""Shapes for the operators in `_ROW_AXES`."""
_SHAPES_BY_OPERATOR = {
    SHORT_ROWS: ((1, 1, 196, 128), (1, 1, 3136, 128)),
    TURNED: ((1, 512, 14, 14), (1, 128, 56, 56)),
}
"""Shapes for the operators that are timed on shapes of their own."""
_NETWORKS = (*_BATCHES, *_BLOCKS)
PROBE_COUNT = sum(
    map(
        len,
        (
            _MATMUL_SIZES,
            _STREAMED_SIZES,
            _TALL_SIZES,
            _TALL_SIZES,
            _PRODUCT_SIZES,
            _CONVS,
            _CHANNEL_PAIRS,
            _WIDE_WINDOWS,
            *[_NETWORKS] * 2,
            *[OPS] * 2,
        ),
    )
)
"""Number of timings in `time_probes`.

Tall matmuls are timed with and without a bias, networks with and without the profiler, and operators on two
shapes.
"""


def list_network_convolutions(batch: int) -> tuple[ConvShape, ...]:
    """Returns the convolutions of a network of low MACs per moved byte, like those for mobile devices.

    A chain of equal convolutions would hide a cost: each thread reads what it wrote itself. In a model,
    threads read what other threads wrote. Where each processor has its own last cache, this takes 2 to 3
    times as long. So the convolutions are arranged in blocks as in models: 1 x 1 to more channels, depthwise,
    1 x 1 to fewer channels.
    """

    def make_pointwise(channels: tuple[int, int], side: int) -> ConvShape:
        return ConvShape(channels, side, 1, batch=batch)

    def make_depthwise(width: int, side: int, stride: int = 1) -> ConvShape:
        return ConvShape((width, width), side, 3, width, stride, batch)

    width, shapes = 32, [ConvShape((3, 32), 224, 3, 1, 2, batch)]
    for (narrow, side), (next_narrow, next_side) in itertools.pairwise(_STAGES):
        shapes += [make_depthwise(width, side), make_pointwise((width, narrow), side)]
        width = _EXPANSION * narrow
        shapes += [
            make_pointwise((narrow, width), side),
            make_depthwise(width, side, 2),
            make_pointwise((width, next_narrow), next_side),
        ]
        width = _EXPANSION * next_narrow
        shapes.append(make_pointwise((next_narrow, width), next_side))
    narrow, side = _STAGES[-1]
    return (
        *shapes,
        make_depthwise(width, side),
        make_pointwise((width, narrow), side),
        make_pointwise((narrow, width), side),
    )


def time_probes(
    kernels: Kernels, time: Callable[[Run, int], Spread], has_time: Callable[[int], bool], streamed: int
) -> Iterator[KernelTime]:
    """Yields the times of the probes.

    Args:
        kernels: Builds the runs.
        time: Times a run; returns the seconds of one of a number of equal parts of it.
        has_time: Takes the MACs of a run; returns whether there is time for it.
        streamed: Bytes of weights that are too many for a cache to hold from one run to the next.
    """
    for m, k, n in _MATMUL_SIZES:
        yield _build_matmul_time("MatMul", (m, k, n), time(kernels.build_matmuls(m, k, n, 1), 1))
    for m, k, n in _STREAMED_SIZES:
        count = max(2, streamed // (4 * k * n))
        if has_time(count * m * k * n):
            yield _build_matmul_time(COLD, (m, k, n), time(kernels.build_matmuls(m, k, n, count), count))
    for m, k, n in _TALL_SIZES:
        seconds = time(kernels.build_matmuls(m, k, n, 1), 1)
        yield _build_matmul_time(COLD, (m, k, n), seconds)
        yield _build_matmul_time("MatMul", (m, k, n), seconds)
        yield _build_matmul_time(BIASED, (m, k, n), time(kernels.build_biased_matmul(m, k, n), 1))
    for batch, m, k, n in _PRODUCT_SIZES:
        yield _build_matmul_time(
            PRODUCTS, (m, k, n), time(kernels.build_batched_matmul(batch, m, k, n), batch)
        )
    for shape in _CONVS:
        yield _build_conv_time(
            shape, time(kernels.build_convolutions(shape, _CHAIN_LENGTH), _CHAIN_LENGTH), in_chain=True
        )
    for shape in _CHANNEL_PAIRS:
        seconds = time(kernels.build_convolutions(shape, _CHAIN_LENGTH), _CHAIN_LENGTH)
        # both directions have the same MACs and bytes, so each gets the mean time
        for channels in (shape.channels, shape.channels[::-1]):
            yield _build_conv_time(shape._replace(channels=channels), seconds)
    for shape in _WIDE_WINDOWS:
        yield _build_conv_time(shape, time(kernels.build_convolutions(shape, 1), 1))
    for block in _BLOCKS:
        yield from _time_in_block(kernels, block, time)
    for batch in _BATCHES:
        shapes = list_network_convolutions(batch)
        if has_time(sum(shape.channels[1] * shape.depth * shape.positions for shape in shapes)):
            yield from _time_in_network(kernels, shapes, time)
    for op in OPS:
        for sizes in _SHAPES_BY_OPERATOR.get(op, _ROW_SHAPES if op in _ROW_AXES else _SHAPES):
            count = math.prod(sizes)
            if op == "Add":
                run, moved = kernels.build_add(count), 12 * count
            else:
                run, moved = kernels.build_elementwise(op, sizes[-_ROW_AXES.get(op, 4) :]), 8 * count
            yield _build_kernel_time(op, sizes, 0, moved, time(run, 1))


def _build_matmul_time(op: str, sizes: tuple[int, int, int], seconds: Spread) -> KernelTime:
    m, k, n = sizes
    return _build_kernel_time(op, sizes, m * k * n, 4 * (m * k + k * n + m * n), seconds)


def _time_in_network(
    kernels: Kernels, shapes: Sequence[ConvShape], time: Callable[[Run, int], Spread]
) -> Iterator[KernelTime]:
    """Yields the times of convolutions as they run in a network.

    The profiler gives the shares of the kernels, and a run without it the total time.
    """
    runs = _measure_kernel_times(kernels.build_network(shapes), kernels.build_observed_network(shapes), time)
    for shape in dict.fromkeys(shapes):
        indices = [index for index, other_shape in enumerate(shapes) if other_shape == shape]
        yield _build_conv_time(
            shape, compute_spread([sum(run[index] for index in indices) / len(indices) for run in runs])
        )


def _time_in_block(
    kernels: Kernels, block: DenseBlock, time: Callable[[Run, int], Spread]
) -> Iterator[KernelTime]:
    """Yields the times of Concat and BatchNormalization in a dense block; see `_time_in_network`."""
    runs = _measure_kernel_times(kernels.build_block(block), kernels.build_observed_block(block), time)
    for number, (op, layer) in enumerate(block.kernels):
        sizes = (1, block.count_channels(layer), block.side, block.side)
        yield _build_kernel_time(
            op, sizes, 0, 8 * math.prod(sizes), compute_spread([run[number] for run in runs])
        )


def _measure_kernel_times(
    unprofiled: Run, profiled: ObservedNetwork, time: Callable[[Run, int], Spread]
) -> list[list[float]]:
    """Returns the seconds of each kernel in each profiled run, corrected for the slowdown by the profiler.

    Args:
        unprofiled: Runs the graph without a profiler.
        profiled: The same graph with a profiler.
        time: Times a run.
    """
    run_seconds = time(unprofiled, 1).median
    time(profiled.run, 1)
    runs = profiled.read_times()
    runs = runs[1:] or runs  # without the first, in which the runtime plans its memory
    slowdown = compute_spread([profiled_seconds for _, profiled_seconds in runs]).median / run_seconds
    return [[seconds / slowdown for seconds in kernel_seconds] for kernel_seconds, _ in runs]


def _build_conv_time(shape: ConvShape, seconds: Spread, in_chain: bool = False) -> KernelTime:
    """Builds the time of a convolution.

    Args:
        shape: The convolution.
        seconds: Seconds of one run of it.
        in_chain: Whether it was timed in a chain of equal convolutions.
    """
    op, sizes = _build_kernel_key(shape, in_chain)
    (inputs, outputs), places = shape.channels, shape.positions
    moved = 4 * (inputs * places * shape.stride**2 + outputs * places + outputs * shape.depth)
    return _build_kernel_time(op, sizes, outputs * shape.depth * places, moved, seconds)


def _build_kernel_key(shape: ConvShape, in_chain: bool = False) -> tuple[str, tuple[int, ...]]:
    """Returns the operator family and sizes by which a convolution's time is looked up."""
    suffix = shape.activation or (NO_ACTIVATION if in_chain else "")
    op = find_conv_family(shape.depth, shape.kernel**2, shape.groups, shape.stride, suffix)
    return op, (shape.channels[1], shape.depth, shape.positions)


def compute_network_time(kernels: Sequence[KernelTime]) -> tuple[float, float] | None:
    """Computes the interval of the time of the network of batch 1, from the times of its convolutions.

    Returns:
        Lower and upper end in seconds, or None if the time of a convolution is unknown.
    """
    seconds_by_key = {(kernel.op, kernel.sizes): kernel.seconds for kernel in kernels}
    parts = [seconds_by_key.get(_build_kernel_key(shape)) for shape in list_network_convolutions(1)]
    times = [kernel for kernel in parts if kernel is not None]
    if len(times) < len(parts):
        return None
    return sum(kernel.low for kernel in times), sum(kernel.high for kernel in times)


def apply_network_factor(kernels: Sequence[KernelTime], factor: float) -> tuple[KernelTime, ...]:
    """Returns the kernels with the times of the networks' convolutions multiplied by `factor`."""
    network_keys = {
        _build_kernel_key(shape) for batch in _BATCHES for shape in list_network_convolutions(batch)
    }
    return tuple(
        [
            _scale_kernel(kernel, factor) if (kernel.op, kernel.sizes) in network_keys else kernel
            for kernel in kernels
        ]
    )


def _scale_kernel(kernel: KernelTime, factor: float) -> KernelTime:
    times = kernel.seconds
    seconds = Spread(
        times.median * factor,
        times.p10 * factor,
        times.p90 * factor,
        times.low * factor,
        times.high * factor,
        times.count,
    )
    return _build_kernel_time(kernel.op, kernel.sizes, kernel.macs, kernel.bytes, seconds)


def _build_kernel_time(op: str, sizes: tuple[int, ...], macs: int, moved: int, seconds: Spread) -> KernelTime:
    return KernelTime(
        op=op,
        dtype="float32",
        sizes=sizes,
        macs=macs,
        bytes=moved,
        seconds=seconds,
        macs_per_second=macs / seconds.median,
        bytes_per_second=moved / seconds.median,
    )
