"""Closed form of the elements that each level of a loop nest moves.

A nest divides C = A x B into tiles for each level of memory, from the outermost in. The loops of a level walk
over its tiles within the tile of the level outside. A level loads a tile of an operand when the tile differs
from the one that it holds; the tile stays while other loops turn. This is the model of Timeloop (Parashar et
al., ISPASS 2019) and ZigZag (Mei et al., IEEE Transactions on Computers 2021).

Tiles at the edge may be smaller than full ones. The count is a recursion over the loops: the full tiles of a
loop all cost the same, and the last, smaller tile has a cost of its own.

Cores: `split` of a level divides neighboring tiles among several cores. Each core has its own tiles. A core
without work keeps its tiles until a memory outside changes its own tile of the operand. A tile that several
cores need at the same time is read once from outside (multicast). If cores divide K, each of them starts its
sums from zero, and the sums of all cores are added on their way outside (reduction).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from explorer.facts.mapping import NestLevel

Operand = Literal["A", "B", "C"]

AXES = "mkn"
"""Names of the loops over M, K and N, in the order of all triples of sizes."""

OPERAND_AXES: dict[Operand, tuple[int, int]] = {"A": (0, 1), "B": (1, 2), "C": (0, 2)}
"""Axes of each operand, as indices into (M, K, N)."""

Triple = tuple[int, int, int]


class Nest(NamedTuple):
    """A loop nest with the operands that each level holds.

    Attributes:
        size: M, K and N.
        levels: Levels from the outermost in. The last is the array, which holds all operands.
        holds: Operands that each level holds, as text: 'AB'.
        registers: Whether the array holds its tiles while other loops turn. Without registers, each of its
            products reads both operands and the sum anew, as Timeloop counts.
    """

    size: Triple
    levels: tuple[NestLevel, ...]
    holds: tuple[str, ...]
    registers: bool = True

    def holders(self, operand: Operand) -> list[int]:
        """Lists the levels that hold the operand, from the outermost in."""
        return [index for index, held in enumerate(self.holds) if operand in held]


class Moved(NamedTuple):
    """Elements of one operand that move between a level and the next memory outside.

    Attributes:
        loads: Elements written into the level, over all cores.
        stores: Elements of C that leave the level, over all cores.
        finished: Part of `stores` that is finished and not needed again.
        outside_reads: Elements read from the memory outside.
        outside_writes: Elements of C written to the memory outside.
        outside_finished: Part of `outside_writes` that is finished.
    """

    loads: int
    stores: int
    finished: int
    outside_reads: int
    outside_writes: int
    outside_finished: int


def count_moved(
    nest: Nest,
    operand: Operand,
    level: int,
    *,
    first_read: bool = False,
    instance: int = -1,
    block: tuple[int, int] = (1, 1),
) -> Moved:
    """Counts the elements of an operand that move between a level that holds it and the memory outside.

    Args:
        nest: The nest.
        operand: The operand.
        level: Index of the level.
        first_read: Whether the first visit of a sum reads it from outside, if the sum has several visits.
        instance: Level of which only the first instance of its memories counts, or -1 to count everything.
        block: Rows and columns of the blocks that are counted; (1, 1) counts elements.
    """
    all_cores = _sum_over_cores(nest, operand, level, instance, block=block)
    outside = max((index for index in nest.holders(operand) if index < level), default=-1)
    first_cores = _sum_over_cores(nest, operand, level, instance, first_inside=outside, block=block)
    if operand != "C":
        return Moved(all_cores, 0, 0, first_cores, 0, 0)
    outputs = _count_outputs(nest, level, instance, block)
    reduction = _find_reduction_level(nest)
    if reduction is None or level < reduction:
        fresh = 0 if first_read and all_cores > outputs else outputs
        return Moved(all_cores - fresh, all_cores, outputs, first_cores - fresh, first_cores, outputs)
    if level > reduction:
        # each core starts its sums from zero at every visit of the level at which the sums are added
        starts = _sum_over_cores(nest, "C", reduction, instance, block=block)
        loads = all_cores if first_read and all_cores > starts else all_cores - starts
        return Moved(loads, all_cores, 0, loads, all_cores, 0)
    fresh = 0 if first_read and first_cores > outputs else outputs
    return Moved(0, all_cores, 0, first_cores - fresh, first_cores, outputs)


def _count_outputs(nest: Nest, level: int, instance: int, block: tuple[int, int]) -> int:
    """Counts the elements of C that the cores of a level compute, those of cores that divide K once."""
    total = 0
    for core, count in list_core_classes(nest, level, 1, -1, instance):
        rows, columns = (count_core_extents(nest, level, core, axis) for axis in OPERAND_AXES["C"])
        total += count * _count_covering(rows, block[0]) * _count_covering(columns, block[1])
    return total


def _count_covering(lengths: Counter[int], size: int) -> int:
    """Counts the blocks of a size that cover tiles along an axis."""
    return sum(-(-length // size) * count for length, count in lengths.items())


def _sum_over_cores(
    nest: Nest,
    operand: Operand,
    level: int,
    instance: int = -1,
    *,
    first_inside: int | None = None,
    block: tuple[int, int] = (1, 1),
) -> int:
    """Adds up the elements that all cores load.

    Args:
        nest: The nest.
        operand: The operand.
        level: Index of the level.
        instance: Level of which only the first instance counts, or -1.
        first_inside: Level inside of which cores with the same tile count once, or None to count all cores.
        block: Rows and columns of the blocks that are counted; (1, 1) counts elements.
    """
    other = 3 - sum(OPERAND_AXES[operand])
    classes = list_core_classes(nest, level, other, first_inside, instance)
    return sum(count * count_fetched(nest, operand, level, core, block) for core, count in classes)


def _find_reduction_level(nest: Nest) -> int | None:
    """Finds the level whose sums are added across cores: the outermost holder of C inside a split of K."""
    split = next((index for index, level in enumerate(nest.levels) if level.split[1] > 1), None)
    if split is None:
        return None
    return next(index for index in nest.holders("C") if index >= split)


# -- cores


def list_core_classes(
    nest: Nest, level: int, shared_axis: int, first_inside: int | None, instance: int = -1
) -> Iterator[tuple[tuple[Triple, ...], int]]:
    """Yields classes of cores with the same loops, each with the number of its cores.

    Args:
        nest: The nest.
        level: Index of the innermost level whose cores are told apart.
        shared_axis: Axis along which cores need the same tile.
        first_inside: Level inside of which only the first core along `shared_axis` counts, or None to count
            all cores.
        instance: Level through which only the first core counts, or -1.

    Yields:
        Index of a core along M, K and N for each level up to `level`, and the number of cores in its class.
    """
    if all(step.split == (1, 1, 1) for step in nest.levels[: level + 1]):
        yield ((0, 0, 0),) * (level + 1), 1
        return
    choices = []
    for index in range(level + 1):
        for axis in range(3):
            classes = _group_axis_cores(nest.size[axis], nest.levels[: index + 1], axis)
            is_shared = first_inside is not None and index > first_inside and axis == shared_axis
            if is_shared or index <= instance:
                classes = [(0, 1)]
            choices.append(classes)
    for chosen in itertools.product(*choices):
        first = [core for core, _ in chosen]
        core = tuple((first[i], first[i + 1], first[i + 2]) for i in range(0, len(first), 3))
        yield core, math.prod(number for _, number in chosen)


def _group_axis_cores(size: int, levels: Sequence[NestLevel], axis: int) -> list[tuple[int, int]]:
    """Groups the cores of the last of the levels along an axis by their parts.

    Returns:
        Pairs of the first core of a class and the number of cores in the class, in the order of the cores.
    """
    last = levels[-1]
    count = last.split[axis]
    if count == 1:
        return [(0, 1)]
    tile = last.tile[axis]
    chunks = {
        chunk
        for extent in count_extents(size, levels[:-1], axis)
        for chunk in _list_chunk_sizes(extent, tile * count)
    }
    parts = [tuple(compute_core_part(chunk, tile, core) for chunk in sorted(chunks)) for core in range(count)]
    numbers = Counter(parts)
    first = {part: core for core, part in reversed(list(enumerate(parts)))}
    return [(first[part], number) for part, number in numbers.items() if any(part)]


def compute_core_part(chunk: int, tile: int, core: int) -> int:
    """Computes the length of a core's part of a chunk that several cores divide, at most `tile`."""
    return min(max(chunk - core * tile, 0), tile)


def _list_chunk_sizes(extent: int, step: int) -> list[int]:
    full, rest = divmod(extent, step)
    return [step] * bool(full) + [rest] * bool(rest)


def count_extents(size: int, levels: Sequence[NestLevel], axis: int) -> Counter[int]:
    """Counts the lengths along an axis of the tiles of the last of the levels, over all cores."""
    lengths = Counter({size: 1})
    for level in levels:
        inner: Counter[int] = Counter()
        tile = level.tile[axis]
        for length, count in lengths.items():
            full, rest = divmod(length, tile)
            inner[tile] += count * full
            if rest:
                inner[rest] += count
        lengths = +inner
    return lengths


# -- one core


class _Visit(NamedTuple):
    """Loads of the loops from a position on.

    Attributes:
        elements: Elements that the core loads; 0 if it has no work.
        changed: Whether the tile changed, so that a repetition loads it again.
        depth: Innermost level at which the core's memories, or those outside of it, have work.
    """

    elements: int
    changed: bool
    depth: int


@lru_cache(maxsize=1 << 14)
def count_fetched(
    nest: Nest, operand: Operand, level: int, core: tuple[Triple, ...], block: tuple[int, int] = (1, 1)
) -> int:
    """Counts the elements of an operand that one core loads into a level, first visits included.

    Args:
        nest: The nest.
        operand: The operand.
        level: Index of the level.
        core: Index of the core along M, K and N at each level up to `level`.
        block: Rows and columns of a block. The count is in blocks: (1, 1) counts elements.
    """
    own_axes = OPERAND_AXES[operand]
    if operand in nest.levels[level].keep:
        return _count_blocks([compute_core_length(nest, level, core, axis) for axis in own_axes], block)
    rereads = level == len(nest.levels) - 1 and not nest.registers
    loops = [(index, AXES.index(axis)) for index in range(level + 1) for axis in nest.levels[index].order]
    # a memory drops its tile when a memory outside of it changes its own tile of the operand
    holders = [index for index in nest.holders(operand) if index <= level]
    holders = [index for index in holders if operand not in nest.levels[index].keep]
    outermost_holder = [next(holder for holder in holders if holder >= index) for index in range(level + 1)]

    @lru_cache(None)
    def visit(position: int, lengths: Triple) -> _Visit:
        if position == len(loops):
            return _Visit(_count_blocks([lengths[axis] for axis in own_axes], block), rereads, level)
        index, axis = loops[position]
        parts = _list_visits(nest.levels[index], axis, lengths[axis], core[index][axis])
        inner = [
            (visit(position + 1, (*lengths[:axis], part, *lengths[axis + 1 :])), times)
            for part, times in parts
        ]
        depth = max((result.depth for result, _ in inner), default=index - 1)
        turns = sum(times for result, times in inner if result.depth >= outermost_holder[index])
        # a core without work in a part does not visit it
        inner = [(result, times) for result, times in inner if result.elements]
        changed = any(result.changed for result, _ in inner)
        if axis in own_axes:
            total = sum(result.elements * times for result, times in inner)
            return _Visit(total, changed or turns > 1, depth)
        # the operand does not depend on this loop: its tile stays unless a loop inside changed it
        total = 0
        for number, (result, times) in enumerate(inner):
            total += result.elements * (times if result.changed else number == 0)
        return _Visit(total, changed, depth)

    return visit(0, nest.size).elements


def _count_blocks(lengths: Sequence[int], block: tuple[int, int]) -> int:
    """Counts the blocks that cover a tile."""
    return math.prod(-(-length // size) for length, size in zip(lengths, block, strict=True))


def _list_visits(level: NestLevel, axis: int, length: int, core: int) -> list[tuple[int, int]]:
    """Lists the lengths of a core's tiles along a loop, each with the number of its visits."""
    tile, step = level.tile[axis], level.tile[axis] * level.split[axis]
    full, rest = divmod(length, step)
    visits = [(tile, full)] if full else []
    part = compute_core_part(rest, tile, core)
    return [*visits, (part, 1)] if part else visits


def compute_core_length(nest: Nest, level: int, core: tuple[Triple, ...], axis: int) -> int:
    """Computes the length of a core's part of an axis, added up over all its tiles."""
    return sum(length * count for length, count in count_core_extents(nest, level, core, axis).items())


def count_core_extents(nest: Nest, level: int, core: tuple[Triple, ...], axis: int) -> Counter[int]:
    """Counts the lengths of a core's tiles along an axis."""
    lengths = Counter({nest.size[axis]: 1})
    for index in range(level + 1):
        inner: Counter[int] = Counter()
        for length, count in lengths.items():
            for part, times in _list_visits(nest.levels[index], axis, length, core[index][axis]):
                inner[part] += count * times
        lengths = inner
    return lengths
