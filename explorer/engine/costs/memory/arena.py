"""Memory arena: the smallest that a first-fit allocator needs for tensors whose lives are known beforehand.

To find the optimum is NP-hard (dynamic storage allocation), so two orders of placement are tried and the
better one is taken: in the order of birth, as an allocator that cannot look ahead does it, and by
decreasing size, as memory planners of inference runtimes do (Pisarchyk and Lee, "Efficient Memory
Management for Deep Neural Net Inference", 2020, "greedy by size"). No arena can be smaller than the peak
of the live bytes; where one order reaches that, it is the optimum and the search ends. Nothing is aligned.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from msgspec import Struct

PAIRS = 4_000_000
"""Pairs of blocks alive together up to which placement by size is tried: about a second's worth."""

LARGEST = 1 << 62
"""Bytes up to which offsets fit numpy's integers; only a file made up to say so has more."""


FEW = 32
"""Blocks up to which a loop is faster than numpy."""


class ArenaBlock(Struct, frozen=True):
    """Memory that is needed from step `born` to step `dies`, both included."""

    size: int
    born: int
    dies: int


class Arena(Struct, frozen=True):
    """Where the blocks lie: offsets in bytes, in the order in which the blocks were given."""

    size: int
    offsets: tuple[int, ...]


def place(blocks: Sequence[ArenaBlock]) -> Arena:
    """The smaller of the arenas that first fit in order of birth and by decreasing size need.

    Args:
        blocks: In the order of birth.

    Returns:
        Offsets at which no two blocks that are alive at one step overlap.
    """
    by_birth, peak, pairs = _by_birth(blocks)
    if by_birth.size == peak or pairs > PAIRS or sum(b.size for b in blocks) > LARGEST:
        return by_birth
    by_size = _by_size(blocks)
    return by_size if by_size.size < by_birth.size else by_birth


def _by_birth(blocks: Sequence[ArenaBlock]) -> tuple[Arena, int, int]:
    """First fit in order of birth; also the peak of the live bytes, and how many pairs live together."""
    dying: dict[int, list[int]] = {}
    for index, block in enumerate(blocks):
        dying.setdefault(block.dies, []).append(index)
    deaths = sorted(dying)
    offsets = [0] * len(blocks)
    # holes between live blocks, by start; free memory behind the last block is no hole
    holes: list[tuple[int, int]] = []
    top = size = alive = peak = pairs = count = at = 0
    for index, block in enumerate(blocks):
        while at < len(deaths) and deaths[at] < block.born:
            for gone in dying[deaths[at]]:
                top = _free(holes, offsets[gone], offsets[gone] + blocks[gone].size, top)
                alive -= blocks[gone].size
                count -= 1
            at += 1
        pairs += count
        count += 1
        alive += block.size
        peak = max(peak, alive)
        for spot, (start, stop) in enumerate(holes):
            if stop - start >= block.size:
                offsets[index] = start
                if stop - start == block.size:
                    del holes[spot]
                else:
                    holes[spot] = start + block.size, stop
                break
        else:
            offsets[index] = top
            top += block.size
            size = max(size, top)
    return Arena(size, tuple(offsets)), peak, pairs


def _free(holes: list[tuple[int, int]], start: int, stop: int, top: int) -> int:
    """Frees bytes, joins them with the holes beside them, and returns the new end of the used part."""
    at = bisect_left(holes, (start, start))
    if at < len(holes) and holes[at][0] == stop:
        stop = holes.pop(at)[1]
    if at and holes[at - 1][1] == start:
        start = holes.pop(at - 1)[0]
    if stop == top:
        return start
    insort(holes, (start, stop))
    return top


def _by_size(blocks: Sequence[ArenaBlock]) -> Arena:
    """First fit by decreasing size: each at the lowest place that is free all its life."""
    rank = [0] * len(blocks)
    order = sorted(range(len(blocks)), key=lambda i: (-blocks[i].size, blocks[i].born - blocks[i].dies, i))
    for place_in_order, index in enumerate(order):
        rank[index] = place_in_order
    earlier: list[list[int]] = [[] for _ in blocks]
    alive: list[int] = []
    for index, block in enumerate(blocks):
        if alive and any(blocks[neighbor].dies < block.born for neighbor in alive):
            alive = [neighbor for neighbor in alive if blocks[neighbor].dies >= block.born]
        mine = rank[index]
        for neighbor in alive:
            if rank[neighbor] < mine:
                earlier[index].append(neighbor)
            else:
                earlier[neighbor].append(index)
        alive.append(index)
    offsets, ends = [0] * len(blocks), [0] * len(blocks)
    size = 0
    for index in order:
        need = blocks[index].size
        at = _lowest(offsets, ends, earlier[index], need)
        offsets[index], ends[index] = at, at + need
        size = max(size, at + need)
    return Arena(size, tuple(offsets))


def _lowest(offsets: Sequence[int], ends: Sequence[int], others: Sequence[int], need: int) -> int:
    """The lowest offset at which `need` bytes are free of the blocks `others`."""
    if len(others) < FEW:
        at = 0
        for start, stop in sorted([(offsets[index], ends[index]) for index in others]):
            if start - at >= need:
                break
            at = max(at, stop)
        return at
    import numpy as np  # slow to import, and most models do not need it

    starts = np.array([offsets[index] for index in others])
    in_order = np.argsort(starts)
    # before each block, memory is taken up to the highest end so far
    taken = np.maximum.accumulate(np.array([ends[index] for index in others])[in_order])
    before = np.concatenate(([0], taken[:-1]))
    fits = starts[in_order] - before >= need
    first = int(np.argmax(fits))
    return int(before[first] if fits[first] else taken[-1])
