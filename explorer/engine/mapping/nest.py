"""Counts the elements that each level of a loop nest moves, without running the loops.

A nest divides C = A x B into tiles for each level of memory, from the outermost in. The loops of a level
iterate over its tiles within a tile of the next outer level. A level loads a tile of an operand when the tile
differs from the tile that it holds. It keeps the tile while loops advance on which the operand does not
depend. This is the model of Timeloop (Parashar et al., ISPASS 2019) and ZigZag (Mei et al., IEEE Transactions
on Computers 2021).

Tiles at the edge may be smaller than full tiles. The count is a recursion over the loops: all full tiles of a
loop have the same cost, and the last, smaller tile has a cost of its own.

Cores: `split` of a level divides neighboring tiles among several cores. Each core has its own tiles. An idle
core keeps its tile until an outer memory above it loads another tile of the same operand. A tile that several
cores need at the same time is read once from the outer memory (multicast). If cores divide K, each of them
starts its sums from zero, and the sums of all cores are added on their way to the outer memory (reduction).

Lengths along an axis: an extent is the length of a tile of the outer level. It is cut into chunks of `tile`
times the number of cores. The part of a core in a chunk is at most one tile, and shorter at the edge.
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
"""Names of the loops over M, K and N. Every `Triple` has this order."""

OPERAND_AXES: dict[Operand, tuple[int, int]] = {"A": (0, 1), "B": (1, 2), "C": (0, 2)}
"""Axes of each operand, as indices into (M, K, N)."""

_K_AXIS = 1

Triple = tuple[int, int, int]
"""Three numbers that belong to M, K and N."""


class Nest(NamedTuple):
    """A loop nest with the operands that each level holds.

    Attributes:
        size: M, K and N.
        levels: Levels from the outermost in. The last is the array of multiply-accumulate units, which holds
            all operands.
        holds: Operands that each level holds, as text: 'AB'.
        has_registers: Whether the array keeps its tiles in registers. Without registers, every
            multiply-accumulate reads A, B and C, as Timeloop counts.
    """

    size: Triple
    levels: tuple[NestLevel, ...]
    holds: tuple[str, ...]
    has_registers: bool = True

    def list_holders(self, operand: Operand) -> list[int]:
        """Lists the levels that hold the operand, from the outermost in."""
        return [index for index, operands in enumerate(self.holds) if operand in operands]

    def get_buffer_size(self, operand: Operand, level: int) -> tuple[int, int]:
        """Returns the rows and columns of the buffer of an operand at a level."""
        step = self.levels[level]
        lengths = self.size if operand in step.keep else step.tile
        rows, columns = OPERAND_AXES[operand]
        return min(lengths[rows], self.size[rows]), min(lengths[columns], self.size[columns])

    def count_instances(self) -> list[int]:
        """Returns the number of instances of each level, over all cores."""
        splits = (math.prod(level.split) for level in self.levels)
        return list(itertools.accumulate(splits, lambda total, split: total * split))


class Moved(NamedTuple):
    """Elements of one operand that move between a level and the next outer memory that holds it.

    Attributes:
        loads: Elements written into the level, over all cores.
        stores: Elements of C that leave the level, over all cores.
        finished: Part of `stores` that is finished and not needed again.
        outside_reads: Elements read from the outer memory.
        outside_writes: Elements of C written to the outer memory.
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
    reads_initial_sum: bool = False,
    single_instance_level: int = -1,
    block: tuple[int, int] = (1, 1),
) -> Moved:
    """Counts the elements of an operand that move between a level that holds it and the outer memory.

    Args:
        nest: The nest.
        operand: The operand.
        level: Index of the level.
        reads_initial_sum: Whether the first partial sum is read from the outer memory instead of starting at
            zero. This applies only to sums that are loaded more than once.
        single_instance_level: Level at which only one memory counts; -1 counts all memories.
        block: Rows and columns of the blocks that are counted; (1, 1) counts elements.
    """
    loaded = _sum_over_cores(nest, operand, level, single_instance_level, block=block)
    outer_level = max((index for index in nest.list_holders(operand) if index < level), default=-1)
    multicast = _sum_over_cores(
        nest, operand, level, single_instance_level, multicast_level=outer_level, block=block
    )
    if operand != "C":
        return Moved(loaded, 0, 0, multicast, 0, 0)
    outputs = _count_outputs(nest, level, single_instance_level, block)
    reduction = find_reduction_level(nest)
    # more loads than outputs mean that a sum is loaded again; the first load may start from zero
    if reduction is None or level < reduction:
        from_zero = 0 if reads_initial_sum and loaded > outputs else outputs
        return Moved(loaded - from_zero, loaded, outputs, multicast - from_zero, multicast, outputs)
    if level > reduction:
        # each core starts its sums from zero at every visit of the level at which the sums are added
        from_zero = _sum_over_cores(nest, "C", reduction, single_instance_level, block=block)
        loads = loaded if reads_initial_sum and loaded > from_zero else loaded - from_zero
        return Moved(loads, loaded, 0, loads, loaded, 0)
    from_zero = 0 if reads_initial_sum and multicast > outputs else outputs
    return Moved(0, loaded, 0, multicast - from_zero, multicast, outputs)


def _count_outputs(nest: Nest, level: int, single_instance_level: int, block: tuple[int, int]) -> int:
    """Counts the elements of C that a level computes. Cores that divide K compute the same elements."""
    total = 0
    for core, count in list_core_classes(
        nest, level, _K_AXIS, multicast_level=-1, single_instance_level=single_instance_level
    ):
        rows, columns = (count_core_extents(nest, level, core, axis) for axis in OPERAND_AXES["C"])
        total += count * _count_blocks_on_axis(rows, block[0]) * _count_blocks_on_axis(columns, block[1])
    return total


def _count_blocks_on_axis(lengths: Counter[int], size: int) -> int:
    """Counts the blocks of a size that cover tiles along an axis; `lengths` counts the tiles by length."""
    return sum(-(-length // size) * count for length, count in lengths.items())


def _sum_over_cores(
    nest: Nest,
    operand: Operand,
    level: int,
    single_instance_level: int = -1,
    *,
    multicast_level: int | None = None,
    block: tuple[int, int] = (1, 1),
) -> int:
    """Adds up the elements that the cores load.

    Args:
        nest: The nest.
        operand: The operand.
        level: Index of the level.
        single_instance_level: See `list_core_classes`.
        multicast_level: See `list_core_classes`.
        block: Rows and columns of the blocks that are counted; (1, 1) counts elements.
    """
    unused_axis = 3 - sum(OPERAND_AXES[operand])  # the axis on which the operand does not depend: 0+1+2 = 3
    classes = list_core_classes(nest, level, unused_axis, multicast_level, single_instance_level)
    return sum(count * count_fetched(nest, operand, level, core, block) for core, count in classes)


def find_reduction_level(nest: Nest) -> int | None:
    """Finds the level at which the sums of several cores are added, or None if no level splits K.

    It is the outermost level that holds C, from the first level that splits K inward.
    """
    split = next((index for index, level in enumerate(nest.levels) if level.split[_K_AXIS] > 1), None)
    if split is None:
        return None
    return next(index for index in nest.list_holders("C") if index >= split)


# -- cores


def list_core_classes(
    nest: Nest, level: int, shared_axis: int, multicast_level: int | None, single_instance_level: int = -1
) -> Iterator[tuple[tuple[Triple, ...], int]]:
    """Yields classes of cores with the same loops, each with the number of its cores.

    Args:
        nest: The nest.
        level: Index of the innermost level whose cores are told apart.
        shared_axis: Axis along which cores need the same tile.
        multicast_level: Cores within one memory of this level that need the same tile count once. None counts
            every core; -1 is the memory outside of all levels.
        single_instance_level: Levels up to and including this level count only their first core; -1 for none.

    Yields:
        Index of a core along M, K and N for each level up to `level`, and the number of cores in its class.
    """
    if all(nest_level.split == (1, 1, 1) for nest_level in nest.levels[: level + 1]):
        yield ((0, 0, 0),) * (level + 1), 1
        return
    classes_by_loop = []
    for index in range(level + 1):
        for axis in range(3):
            classes = _group_axis_cores(nest.size[axis], nest.levels[: index + 1], axis)
            is_shared = multicast_level is not None and index > multicast_level and axis == shared_axis
            if is_shared or index <= single_instance_level:
                classes = [(0, 1)]
            classes_by_loop.append(classes)
    for combination in itertools.product(*classes_by_loop):
        indices = [core for core, _ in combination]
        core = tuple((indices[i], indices[i + 1], indices[i + 2]) for i in range(0, len(indices), 3))
        yield core, math.prod(count for _, count in combination)


def _group_axis_cores(size: int, levels: Sequence[NestLevel], axis: int) -> list[tuple[int, int]]:
    """Groups the cores of the innermost level that have equal work along an axis.

    Returns:
        Pairs of the first core of a class and the number of cores in the class, in the order of the cores.
        Cores without work are left out.
    """
    innermost = levels[-1]
    core_count = innermost.split[axis]
    if core_count == 1:
        return [(0, 1)]
    tile = innermost.tile[axis]
    chunks = {
        chunk
        for extent in count_extents(size, levels[:-1], axis)
        for chunk in _list_chunk_sizes(extent, tile * core_count)
    }
    parts_by_core = [
        tuple(compute_core_part(chunk, tile, core) for chunk in sorted(chunks)) for core in range(core_count)
    ]
    counts = Counter(parts_by_core)
    first_core_by_parts = {parts: core for core, parts in reversed(list(enumerate(parts_by_core)))}
    return [(first_core_by_parts[parts], count) for parts, count in counts.items() if any(parts)]


def compute_core_part(chunk: int, tile: int, core: int) -> int:
    """Returns the length that one core gets from a chunk: at most `tile`, 0 if nothing is left."""
    return min(max(chunk - core * tile, 0), tile)


def _list_chunk_sizes(extent: int, chunk: int) -> list[int]:
    """Returns the different lengths of the chunks of an extent: full chunks, and a shorter last chunk."""
    full_count, remainder = divmod(extent, chunk)
    return [chunk] * bool(full_count) + [remainder] * bool(remainder)


def count_extents(size: int, levels: Sequence[NestLevel], axis: int) -> Counter[int]:
    """Returns how many tiles of each length the innermost level has along an axis, over all cores."""
    lengths = Counter({size: 1})
    for level in levels:
        inner_lengths: Counter[int] = Counter()
        tile = level.tile[axis]
        for length, count in lengths.items():
            full_count, remainder = divmod(length, tile)
            inner_lengths[tile] += count * full_count
            if remainder:
                inner_lengths[remainder] += count
        lengths = +inner_lengths
    return lengths


# -- one core


class _Visit(NamedTuple):
    """The loads by the loops from one position inward.

    Attributes:
        elements: Elements that the core loads; 0 if it has no work.
        needs_reload: Whether the tile at the end differs from the tile at the start, so that a repetition
            loads it again.
        deepest_busy_level: Innermost level that has work, on this core or on a core that shares its outer
            memories.
    """

    elements: int
    needs_reload: bool
    deepest_busy_level: int


@lru_cache(maxsize=1 << 14)
def count_fetched(
    nest: Nest, operand: Operand, level: int, core: tuple[Triple, ...], block: tuple[int, int] = (1, 1)
) -> int:
    """Counts the elements of an operand that one core loads into a level, initial loads included.

    Args:
        nest: The nest.
        operand: The operand.
        level: Index of the level.
        core: Index of the core along M, K and N at each level up to `level`.
        block: Rows and columns of a block. The count is in blocks: (1, 1) counts elements.
    """
    axes = OPERAND_AXES[operand]
    if operand in nest.levels[level].keep:
        # the level holds the whole operand, so it loads each element once
        return _count_blocks_in_tile([compute_core_length(nest, level, core, axis) for axis in axes], block)
    always_reloads = level == len(nest.levels) - 1 and not nest.has_registers
    loops = [(index, AXES.index(axis)) for index in range(level + 1) for axis in nest.levels[index].order]
    # a memory drops its tile when an outer memory loads another tile of the operand
    holders = [
        index
        for index in nest.list_holders(operand)
        if index <= level and operand not in nest.levels[index].keep
    ]
    outermost_holder = [next(holder for holder in holders if holder >= index) for index in range(level + 1)]

    @lru_cache(None)
    def visit(position: int, lengths: Triple) -> _Visit:
        """Counts the loads by the loops from `position` inward, for a tile with these lengths."""
        if position == len(loops):
            elements = _count_blocks_in_tile([lengths[axis] for axis in axes], block)
            return _Visit(elements, always_reloads, level)
        index, axis = loops[position]
        parts = _list_visits(nest.levels[index], axis, lengths[axis], core[index][axis])
        visits = [
            (visit(position + 1, (*lengths[:axis], part, *lengths[axis + 1 :])), times)
            for part, times in parts
        ]
        deepest = max((result.deepest_busy_level for result, _ in visits), default=index - 1)
        # iterations in which an outer holder of the operand has work, and so may replace its tile
        tile_changes = sum(
            times for result, times in visits if result.deepest_busy_level >= outermost_holder[index]
        )
        # a core without work in a part does not visit it
        visits = [(result, times) for result, times in visits if result.elements]
        needs_reload = any(result.needs_reload for result, _ in visits)
        if axis in axes:
            total = sum(result.elements * times for result, times in visits)
            return _Visit(total, needs_reload or tile_changes > 1, deepest)
        # the operand does not depend on this loop: its tile stays unless an inner loop changed it
        total = 0
        for number, (result, times) in enumerate(visits):
            total += result.elements * (times if result.needs_reload else number == 0)
        return _Visit(total, needs_reload, deepest)

    return visit(0, nest.size).elements


def _count_blocks_in_tile(lengths: Sequence[int], block: tuple[int, int]) -> int:
    """Counts the blocks that cover a tile with these lengths."""
    return math.prod(-(-length // size) for length, size in zip(lengths, block, strict=True))


def _list_visits(level: NestLevel, axis: int, length: int, core: int) -> list[tuple[int, int]]:
    """Lists the lengths of a core's tiles along a loop, each with the number of its visits."""
    tile, chunk = level.tile[axis], level.tile[axis] * level.split[axis]
    full_count, remainder = divmod(length, chunk)
    visits = [(tile, full_count)] if full_count else []
    part = compute_core_part(remainder, tile, core)
    return [*visits, (part, 1)] if part else visits


def compute_core_length(nest: Nest, level: int, core: tuple[Triple, ...], axis: int) -> int:
    """Returns the total length of all tiles of a core along an axis."""
    return sum(length * count for length, count in count_core_extents(nest, level, core, axis).items())


def count_core_extents(nest: Nest, level: int, core: tuple[Triple, ...], axis: int) -> Counter[int]:
    """Returns how many tiles of each length a core has along an axis."""
    lengths = Counter({nest.size[axis]: 1})
    for index in range(level + 1):
        inner_lengths: Counter[int] = Counter()
        for length, count in lengths.items():
            for part, times in _list_visits(nest.levels[index], axis, length, core[index][axis]):
                inner_lengths[part] += count * times
        lengths = inner_lengths
    return lengths
