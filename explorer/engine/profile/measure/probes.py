"""Probes of a machine: kernels as layers have them, from whose times those of layers are predicted.

They are of no model: sizes are powers of two and such, over the range that layers have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from explorer.engine.profile.measure.kernels import ConvShape, Kernels, Run
from explorer.engine.profile.predict import COLD, FUSED, PRODUCTS, conv_family
from explorer.facts.profile.machine import KernelTime
from explorer.facts.profile.profile import Spread

_MATMULS = ((1, 1024, 1024), (1, 4096, 4096), (16, 1024, 1024), (128, 1024, 1024), (256, 64, 256))
_STREAMED = ((1, 1024, 1024), (16, 1024, 1024), (128, 1024, 1024), (256, 1024, 1024))
"""M, K, N."""
_PRODUCTS = ((8, 128, 64, 128), (8, 128, 128, 64), (8, 512, 64, 512), (8, 512, 512, 64))
"""Batch, M, K, N."""
_CONVS = (
    *(ConvShape((wide, wide), side, 3) for wide, side in ((64, 56), (128, 28), (256, 14), (512, 7))),
    *(ConvShape((wide, wide), side, 1) for wide, side in ((64, 56), (128, 28), (512, 14), (1024, 7))),
    *(
        ConvShape((wide, wide), side, 3, wide, batch=batch)
        for batch in (1, 8)
        for wide, side in ((32, 112), (128, 56), (256, 28), (512, 14), (1024, 7))
    ),
    *(
        ConvShape((wide, wide), 2 * side, 3, wide, 2, batch)
        for batch, wide, side in ((1, 64, 56), (1, 256, 14), (1, 512, 7), (8, 64, 56), (8, 256, 14))
    ),
    *(
        ConvShape((3, wide), 256, kernel, 1, 2, batch)
        for batch, wide, kernel in ((1, 32, 3), (1, 64, 7), (8, 32, 3))
    ),
    *(
        ConvShape((wide, wide), side, 3, wide, then=act)
        for act in FUSED
        for wide, side in ((32, 112), (512, 14))
    ),
)
_PAIRS = (
    *((1, *pair) for pair in ((16, 64, 112), (24, 128, 56), (32, 192, 28), (64, 384, 14), (160, 960, 7))),
    *((1, 64, 256, 56), (8, 16, 64, 112), (8, 24, 128, 56)),
)
"""Batch, few channels, many, and side of convolutions of 1 x 1 from one to the other."""
_CHAIN, _LONG_CHAIN = 4, 24
"""Convolutions one after the other. In a model other weights lie between two runs of a convolution, so no
cache near a processor holds its own: small ones are timed in a chain whose weights it cannot hold."""
OPS = (
    *("Add", "Relu", "Sigmoid", "Erf", "Gelu", "Softmax", "LayerNormalization", "SkipLayerNormalization"),
    *("Transpose", "MaxPool"),
)
_SHAPES = ((1, 8, 64, 64), (1, 64, 128, 128))
_BY_ROW = {"Softmax": 4, "LayerNormalization": 4, "SkipLayerNormalization": 3}
"""What works row by row, and the axes of an array that it takes."""
_ROWS = ((1, 1, 64, 512), (1, 8, 256, 512))
COUNT = sum(map(len, (_MATMULS, _STREAMED, _PRODUCTS, _CONVS, _PAIRS))) + len(OPS) * len(_SHAPES)


def probes(
    kernels: Kernels, time: Callable[[Run, int], Spread], fits: Callable[[int], bool], streamed: int
) -> Iterator[KernelTime]:
    """Times the probes.

    Args:
        kernels: What can be timed.
        time: Seconds of one of so many equal parts of a run.
        fits: Whether there is time for a run of so many MACs.
        streamed: Bytes of weights that no cache holds from one run to the next.
    """
    for m, k, n in _MATMULS:
        yield _matmul("MatMul", (m, k, n), time(kernels.matmul(m, k, n, 1), 1))
    for m, k, n in _STREAMED:
        count = max(2, streamed // (4 * k * n))
        if fits(count * m * k * n):
            yield _matmul(COLD, (m, k, n), time(kernels.matmul(m, k, n, count), count))
    for batch, m, k, n in _PRODUCTS:
        yield _matmul(PRODUCTS, (m, k, n), time(kernels.products(batch, m, k, n), batch))
    for shape in _CONVS:
        yield _conv(shape, shape.channels, time(kernels.conv(shape, _CHAIN), _CHAIN))
    for batch, few, many, side in _PAIRS:
        shape = ConvShape((few, many), side, 1, batch=batch)
        count = _LONG_CHAIN if batch == 1 else _CHAIN
        took = time(kernels.conv(shape, count), count)
        # both ways have the same MACs and bytes; what each takes alone is not told
        yield _conv(shape, (few, many), took)
        yield _conv(shape, (many, few), took)
    for op in OPS:
        for sizes in _ROWS if op in _BY_ROW else _SHAPES:
            count = math.prod(sizes)
            if op == "Add":
                run, moved = kernels.add(count), 12 * count
            else:
                run, moved = kernels.elementwise(op, sizes[-_BY_ROW.get(op, 4) :]), 8 * count
            yield _kernel(op, sizes, 0, moved, time(run, 1))


def _matmul(op: str, sizes: tuple[int, int, int], took: Spread) -> KernelTime:
    m, k, n = sizes
    return _kernel(op, sizes, m * k * n, 4 * (m * k + k * n + m * n), took)


def _conv(shape: ConvShape, channels: tuple[int, int], took: Spread) -> KernelTime:
    """A convolution from so many channels to so many."""
    before, after = channels
    inner = before // shape.groups * shape.kernel**2
    read = before * shape.places * shape.stride**2
    moved = 4 * (read + after * shape.places + after * inner)
    op = conv_family(inner, shape.kernel**2, shape.groups, shape.stride, shape.then)
    return _kernel(op, (after, inner, shape.places), after * inner * shape.places, moved, took)


def _kernel(op: str, sizes: tuple[int, ...], macs: int, moved: int, took: Spread) -> KernelTime:
    return KernelTime(op, "float32", sizes, macs, moved, took, macs / took.median, moved / took.median)
