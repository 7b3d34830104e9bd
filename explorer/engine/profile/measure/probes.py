"""Probes of a machine: kernels as layers have them, from whose times those of layers are predicted.

They are of no model: sizes are powers of two and such, over the range that layers have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from explorer.engine.profile.measure.kernels import Kernels, Run
from explorer.facts.profile.machine import KernelTime
from explorer.facts.profile.profile import Spread

_MATMULS = ((1, 1024, 1024), (1, 4096, 4096), (16, 1024, 1024), (128, 1024, 1024), (256, 64, 256))
"""M, K, N."""
_CONVS = (
    *((64, 56, 3, 1), (128, 28, 3, 1), (256, 14, 3, 1), (512, 7, 3, 1)),
    *((64, 56, 1, 1), (128, 28, 1, 1), (512, 14, 1, 1), (1024, 7, 1, 1)),
    *((32, 112, 3, 32), (128, 56, 3, 128), (256, 14, 3, 256), (1024, 7, 3, 1024)),
)
"""Channels, side, kernel, groups."""
_PAIRS = ((16, 96, 112), (32, 192, 56), (64, 384, 14), (160, 960, 7), (64, 256, 56))
"""Few channels, many, and side of convolutions of 1 x 1 from one to the other."""
_CHAIN = 4
OPS = ("Add", "Relu", "Sigmoid", "Erf", "Softmax", "LayerNormalization", "Transpose", "MaxPool")
_SHAPES = ((1, 8, 64, 64), (1, 64, 128, 128))
_ROWS = ((1, 1, 64, 512), (1, 8, 256, 512))
"""Shapes for what works row by row."""
GROUPED = "Conv, grouped"
COUNT = len(_MATMULS) + len(_CONVS) + len(_PAIRS) + len(OPS) * len(_SHAPES)


def probes(kernels: Kernels, time: Callable[[Run, int], Spread]) -> Iterator[KernelTime]:
    """Times the probes.

    Args:
        kernels: What can be timed.
        time: Seconds of one of so many equal parts of a run.
    """
    for m, k, n in _MATMULS:
        moved = 4 * (m * k + k * n + m * n)
        yield _kernel("MatMul", (m, k, n), m * k * n, moved, time(kernels.matmul(m, k, n), 1))
    for channels, side, kernel, groups in _CONVS:
        inner, places = channels // groups * kernel**2, side**2
        run = kernels.conv((channels, channels), side, kernel, groups, _CHAIN)
        moved = 4 * (2 * channels * places + channels * inner)
        sizes = (channels, inner, places)
        op = GROUPED if groups > 1 else "Conv"
        yield _kernel(op, sizes, channels * inner * places, moved, time(run, _CHAIN))
    for few, many, side in _PAIRS:
        took, places = time(kernels.conv((few, many), side, 1, 1, _CHAIN), _CHAIN), side**2
        moved = 4 * ((few + many) * places + few * many)
        # both ways have the same MACs and bytes; what each takes alone is not told
        for sizes in ((few, many, places), (many, few, places)):
            yield _kernel("Conv", sizes, few * many * places, moved, took)
    for op in OPS:
        for shape in _ROWS if op in ("Softmax", "LayerNormalization") else _SHAPES:
            count = math.prod(shape)
            if op == "Add":
                run, moved = kernels.add(count), 12 * count
            else:
                run, moved = kernels.elementwise(op, shape), 8 * count
            yield _kernel(op, shape, 0, moved, time(run, 1))


def _kernel(op: str, sizes: tuple[int, ...], macs: int, moved: int, took: Spread) -> KernelTime:
    return KernelTime(op, "float32", sizes, macs, moved, took, macs / took.median, moved / took.median)
