"""Places tensors with known lifetimes in one buffer, a memory arena, by first fit.

Optimal placement is NP-hard (dynamic storage allocation), so `place_blocks` tries two orders and takes the
smaller arena. One is by birth, like an allocator without lookahead. The other is by decreasing size, like
memory planners of inference runtimes (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
Inference", 2020, "greedy by size"). No arena can be smaller than the peak of the live bytes, so an arena of
that size is optimal and ends the search. Offsets are not aligned.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from msgspec import Struct

MAX_PAIRS = 4_000_000
"""Maximum number of pairs of blocks that are live at the same time for placement by size (takes 1 s)."""

MAX_TOTAL_BYTES = 1 << 62
"""Maximum total bytes for which offsets fit numpy's integers; only a corrupt file exceeds it."""


SMALL_COUNT = 32
"""Number of blocks below which a Python loop is faster than numpy."""


class ArenaBlock(Struct, frozen=True):
    """Memory that is needed from step `born` to step `dies`, both inclusive."""

    size: int
    born: int
    dies: int


class Arena(Struct, frozen=True):
    """Offsets of the blocks in bytes, in the order of the input, and the total size."""

    size: int
    offsets: tuple[int, ...]


def place_blocks(blocks: Sequence[ArenaBlock]) -> Arena:
    """Places blocks by first fit, in order of birth and by decreasing size, and returns the smaller arena.

    Args:
        blocks: Blocks in order of birth.

    Returns:
        Offsets at which no two blocks that are live at the same step overlap.
    """
    by_birth, peak, pairs = _place_by_birth(blocks)
    if by_birth.size == peak or pairs > MAX_PAIRS or sum(b.size for b in blocks) > MAX_TOTAL_BYTES:
        return by_birth
    by_size = _place_by_size(blocks)
    return by_size if by_size.size < by_birth.size else by_birth


def _place_by_birth(blocks: Sequence[ArenaBlock]) -> tuple[Arena, int, int]:
    """Places blocks in order of birth; also returns the peak of live bytes and the number of live pairs."""
    dying: dict[int, list[int]] = {}
    for index, block in enumerate(blocks):
        dying.setdefault(block.dies, []).append(index)
    deaths = sorted(dying)
    offsets = [0] * len(blocks)
    # holes between live blocks, by start; free memory after the last block is not a hole
    holes: list[tuple[int, int]] = []
    top = size = alive = peak = pairs = count = next_death = 0
    for index, block in enumerate(blocks):
        while next_death < len(deaths) and deaths[next_death] < block.born:
            for dead in dying[deaths[next_death]]:
                top = _free(holes, offsets[dead], offsets[dead] + blocks[dead].size, top)
                alive -= blocks[dead].size
                count -= 1
            next_death += 1
        pairs += count
        count += 1
        alive += block.size
        peak = max(peak, alive)
        for hole_index, (start, stop) in enumerate(holes):
            if stop - start >= block.size:
                offsets[index] = start
                if stop - start == block.size:
                    del holes[hole_index]
                else:
                    holes[hole_index] = start + block.size, stop
                break
        else:
            offsets[index] = top
            top += block.size
            size = max(size, top)
    return Arena(size, tuple(offsets)), peak, pairs


def _free(holes: list[tuple[int, int]], start: int, stop: int, top: int) -> int:
    """Frees a byte range, merges it with adjacent holes, and returns the new end of the used memory."""
    position = bisect_left(holes, (start, start))
    if position < len(holes) and holes[position][0] == stop:
        stop = holes.pop(position)[1]
    if position and holes[position - 1][1] == start:
        start = holes.pop(position - 1)[0]
    if stop == top:
        return start
    insort(holes, (start, stop))
    return top


def _place_by_size(blocks: Sequence[ArenaBlock]) -> Arena:
    """Places blocks by decreasing size, each at the lowest offset that is free during its lifetime."""
    rank = [0] * len(blocks)
    order = sorted(range(len(blocks)), key=lambda i: (-blocks[i].size, blocks[i].born - blocks[i].dies, i))
    for position, index in enumerate(order):
        rank[index] = position
    placed_before: list[list[int]] = [[] for _ in blocks]
    alive: list[int] = []
    for index, block in enumerate(blocks):
        if alive and any(blocks[neighbor].dies < block.born for neighbor in alive):
            alive = [neighbor for neighbor in alive if blocks[neighbor].dies >= block.born]
        own_rank = rank[index]
        for neighbor in alive:
            if rank[neighbor] < own_rank:
                placed_before[index].append(neighbor)
            else:
                placed_before[neighbor].append(index)
        alive.append(index)
    offsets, ends = [0] * len(blocks), [0] * len(blocks)
    size = 0
    for index in order:
        need = blocks[index].size
        offset = _find_lowest_offset(offsets, ends, placed_before[index], need)
        offsets[index], ends[index] = offset, offset + need
        size = max(size, offset + need)
    return Arena(size, tuple(offsets))


def _find_lowest_offset(offsets: Sequence[int], ends: Sequence[int], placed: Sequence[int], need: int) -> int:
    """Returns the lowest offset at which `need` bytes are free of the blocks `placed`."""
    if len(placed) < SMALL_COUNT:
        offset = 0
        for start, stop in sorted([(offsets[index], ends[index]) for index in placed]):
            if start - offset >= need:
                break
            offset = max(offset, stop)
        return offset
    import numpy as np  # slow to import, and most models do not need it

    starts = np.array([offsets[index] for index in placed])
    in_order = np.argsort(starts)
    # for each block, the highest end of it and the blocks before it; the gap before a block starts there
    taken_up_to = np.maximum.accumulate(np.array([ends[index] for index in placed])[in_order])
    free_from = np.concatenate(([0], taken_up_to[:-1]))
    is_large_enough = starts[in_order] - free_from >= need
    first = int(np.argmax(is_large_enough))
    return int(free_from[first] if is_large_enough[first] else taken_up_to[-1])
