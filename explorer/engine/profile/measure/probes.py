"""Probes of a machine: kernels as layers have them, from whose times those of layers are predicted.

They are of no model: sizes are powers of two and such, over the range that layers have.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from explorer.engine.profile.measure.kernels import ConvShape, DenseBlock, Kernels, ObservedNetwork, Run
from explorer.engine.profile.predict import (
    ALONE,
    BIASED,
    COLD,
    FUSED,
    PRODUCTS,
    SHORT_ROWS,
    TURNED,
    conv_family,
)
from explorer.engine.profile.statistics import spread
from explorer.facts.profile.machine import KernelTime
from explorer.facts.profile.profile import Spread

_MATMULS = ((1, 1024, 1024), (1, 4096, 4096), (16, 1024, 1024), (128, 1024, 1024), (256, 64, 256))
_STREAMED = ((1, 1024, 1024), (16, 1024, 1024), (128, 1024, 1024), (256, 1024, 1024))
_TALL = ((512, 256, 1024), (512, 1024, 256), (3136, 128, 512), (3136, 512, 128))
"""M, K, N; of many rows, for which it matters little where the weights come from."""
_PRODUCTS = ((8, 128, 64, 128), (8, 128, 128, 64), (8, 512, 64, 512), (8, 512, 512, 64))
"""Batch, M, K, N."""
_CONVS = (
    *(ConvShape((wide, wide), side, 3) for wide, side in ((64, 56), (128, 28), (256, 14), (512, 7))),
    *(ConvShape((wide, wide), side, 1) for wide, side in ((64, 56), (128, 28), (512, 14), (1024, 7))),
    ConvShape((3, 64), 256, 7, 1, 2),
    *(
        ConvShape((wide, wide), side, 3, wide, then=act)
        for act in ("", *FUSED)
        for wide, side in ((32, 112), (512, 14))
    ),
)
_PAIRS = tuple([ConvShape((64, 256), 56, 1, batch=batch) for batch in (1, 8)])
"""To and fro between few channels and many, as in blocks of many MACs for what they move."""
_WINDOWS = (ConvShape((128, 128), 56, 7, 128), ConvShape((512, 512), 14, 7, 512))
"""Depthwise convolutions with a wide window: each with the change of layout before and behind it."""
_BLOCKS = (DenseBlock(64, 28, 6), DenseBlock(256, 14, 8))
_CHAIN = 4
"""Convolutions one after the other."""
_STAGES = ((16, 112), (32, 56), (64, 28), (128, 14), (256, 7))
"""Channels and side of what the blocks of the network hand on."""
_WIDER = 4
_BATCHES = (1, 8)
OPS = (
    *("Add", "Relu", "Sigmoid", "Erf", "Gelu", "Softmax", "LayerNormalization", "SkipLayerNormalization"),
    *("Transpose", "MaxPool", TURNED, SHORT_ROWS),
)
_SHAPES = ((1, 8, 64, 64), (1, 64, 128, 128))
_BY_ROW = {"Softmax": 4, "LayerNormalization": 4, "SkipLayerNormalization": 3, SHORT_ROWS: 3}
"""What works row by row, and the axes of an array that it takes."""
_ROWS = ((1, 1, 64, 512), (1, 8, 256, 512))
_OF_OP = {SHORT_ROWS: ((1, 1, 196, 128), (1, 1, 3136, 128)), TURNED: ((1, 512, 14, 14), (1, 128, 56, 56))}
"""Sizes of arrays of those operators that have others."""
_NETWORKS = (*_BATCHES, *_BLOCKS)
COUNT = sum(
    map(
        len,
        (
            _MATMULS,
            _STREAMED,
            _TALL,
            _TALL,
            _PRODUCTS,
            _CONVS,
            _PAIRS,
            _WINDOWS,
            *[_NETWORKS] * 2,
            *[OPS] * 2,
        ),
    )
)


def network(batch: int) -> tuple[ConvShape, ...]:
    """Convolutions of few MACs for what they move, as networks for small devices have them: of no model.

    Chains of equal ones hand on to each thread what it made itself, and so hide what it takes to come by what
    another made: 2 to 3 times their time where each processor has a last cache of its own. So these stand one
    after the other in blocks, as in models: 1 x 1 to more channels, depthwise, 1 x 1 to few.
    """

    def one(channels: tuple[int, int], side: int) -> ConvShape:
        return ConvShape(channels, side, 1, batch=batch)

    def depthwise(wide: int, side: int, stride: int = 1) -> ConvShape:
        return ConvShape((wide, wide), side, 3, wide, stride, batch)

    wide, found = 32, [ConvShape((3, 32), 224, 3, 1, 2, batch)]
    for (few, side), (more, less) in itertools.pairwise(_STAGES):
        found += [depthwise(wide, side), one((wide, few), side)]
        wide = _WIDER * few
        found += [one((few, wide), side), depthwise(wide, side, 2), one((wide, more), less)]
        wide = _WIDER * more
        found.append(one((more, wide), less))
    few, side = _STAGES[-1]
    return (*found, depthwise(wide, side), one((wide, few), side), one((few, wide), side))


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
    for m, k, n in _TALL:
        took = time(kernels.matmul(m, k, n, 1), 1)
        yield _matmul(COLD, (m, k, n), took)
        yield _matmul("MatMul", (m, k, n), took)
        yield _matmul(BIASED, (m, k, n), time(kernels.biased(m, k, n), 1))
    for batch, m, k, n in _PRODUCTS:
        yield _matmul(PRODUCTS, (m, k, n), time(kernels.products(batch, m, k, n), batch))
    for shape in _CONVS:
        yield _conv(shape, time(kernels.conv(shape, _CHAIN), _CHAIN), alone=True)
    for shape in _PAIRS:
        took = time(kernels.conv(shape, _CHAIN), _CHAIN)
        # both ways have the same MACs and bytes; what each takes alone is not told
        for channels in (shape.channels, shape.channels[::-1]):
            yield _conv(shape._replace(channels=channels), took)
    for shape in _WINDOWS:
        yield _conv(shape, time(kernels.conv(shape, 1), 1))
    for block in _BLOCKS:
        yield from _in_block(kernels, block, time)
    for batch in _BATCHES:
        shapes = network(batch)
        if fits(sum(shape.channels[1] * shape.inner * shape.places for shape in shapes)):
            yield from _in_network(kernels, shapes, time)
    for op in OPS:
        for sizes in _OF_OP.get(op, _ROWS if op in _BY_ROW else _SHAPES):
            count = math.prod(sizes)
            if op == "Add":
                run, moved = kernels.add(count), 12 * count
            else:
                run, moved = kernels.elementwise(op, sizes[-_BY_ROW.get(op, 4) :]), 8 * count
            yield _kernel(op, sizes, 0, moved, time(run, 1))


def _matmul(op: str, sizes: tuple[int, int, int], took: Spread) -> KernelTime:
    m, k, n = sizes
    return _kernel(op, sizes, m * k * n, 4 * (m * k + k * n + m * n), took)


def _in_network(
    kernels: Kernels, shapes: Sequence[ConvShape], time: Callable[[Run, int], Spread]
) -> Iterator[KernelTime]:
    """Convolutions as they run in a network: their parts of a run under a profiler, of its time without."""
    runs = _unslowed(kernels.network(shapes), kernels.observed(shapes), time)
    for shape in dict.fromkeys(shapes):
        places = [at for at, other in enumerate(shapes) if other == shape]
        yield _conv(shape, spread([sum(each[at] for at in places) / len(places) for each in runs]))


def _in_block(
    kernels: Kernels, block: DenseBlock, time: Callable[[Run, int], Spread]
) -> Iterator[KernelTime]:
    """Joins and scalings of a dense block, as `_in_network` tells convolutions."""
    runs = _unslowed(kernels.block(block), kernels.observed_block(block), time)
    for number, (op, at) in enumerate(block.kernels):
        sizes = (1, block.width(at), block.side, block.side)
        yield _kernel(op, sizes, 0, 8 * math.prod(sizes), spread([each[number] for each in runs]))


def _unslowed(plain: Run, seen: ObservedNetwork, time: Callable[[Run, int], Spread]) -> list[list[float]]:
    """Seconds of each kernel, run by run: as a profiler sees them, less what it slows them all."""
    whole = time(plain, 1).median
    time(seen.run, 1)
    runs = seen.each()
    runs = runs[1:] or runs  # the runtime plans its memory in the first
    slower = spread([ran for _, ran in runs]).median / whole
    return [[one / slower for one in each] for each, _ in runs]


def _conv(shape: ConvShape, took: Spread, alone: bool = False) -> KernelTime:
    """A convolution; `alone`: in a chain of such."""
    op, sizes = _point(shape, alone)
    (before, after), places = shape.channels, shape.places
    moved = 4 * (before * places * shape.stride**2 + after * places + after * shape.inner)
    return _kernel(op, sizes, after * shape.inner * places, moved, took)


def _point(shape: ConvShape, alone: bool = False) -> tuple[str, tuple[int, ...]]:
    """The operator and the sizes by which a convolution is known."""
    then = shape.then or (ALONE if alone else "")
    op = conv_family(shape.inner, shape.kernel**2, shape.groups, shape.stride, then)
    return op, (shape.channels[1], shape.inner, shape.places)


def network_time(known: Sequence[KernelTime]) -> tuple[float, float] | None:
    """The interval of the time of the network of batch 1, by its parts; None where they are not known."""
    by_point = {(one.op, one.sizes): one.seconds for one in known}
    parts = [by_point.get(_point(shape)) for shape in network(1)]
    found = [one for one in parts if one is not None]
    if len(found) < len(parts):
        return None
    return sum(one.low for one in found), sum(one.high for one in found)


def slowed(known: Sequence[KernelTime], times: float) -> tuple[KernelTime, ...]:
    """The same kernels with those of networks so many times slower."""
    of_network = {_point(shape) for batch in _BATCHES for shape in network(batch)}
    return tuple([_slower(one, times) if (one.op, one.sizes) in of_network else one for one in known])


def _slower(one: KernelTime, times: float) -> KernelTime:
    a = one.seconds
    took = Spread(a.median * times, a.p10 * times, a.p90 * times, a.low * times, a.high * times, a.count)
    return _kernel(one.op, one.sizes, one.macs, one.bytes, took)


def _kernel(op: str, sizes: tuple[int, ...], macs: int, moved: int, took: Spread) -> KernelTime:
    return KernelTime(op, "float32", sizes, macs, moved, took, macs / took.median, moved / took.median)
