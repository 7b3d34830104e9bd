"""Computes the cost of a mapping from the counts of `nest`: bytes at each level, capacity, cycles, energy.

Time is a pipeline over the tiles of the first level: while the array computes a tile, the next tile is loaded
and the previous output is stored, as far as the memory has buffers for it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, NamedTuple

from explorer.base.errors import Misuse
from explorer.engine.mapping.nest import (
    AXES,
    OPERAND_AXES,
    Nest,
    Operand,
    Triple,
    count_core_extents,
    count_extents,
    count_moved,
)
from explorer.engine.tiling.cost import compute_lower_bound, dimensions
from explorer.facts.cost import ORDERS
from explorer.facts.mapping import (
    Epilogue,
    LevelMoves,
    MachineMemory,
    MappingCost,
    MemoryCost,
    MemoryMachine,
    NestLevel,
    SiteMapping,
)
from explorer.settings.site_mappings import ARRAY


def group_memories(machine: MemoryMachine) -> list[tuple[MachineMemory, ...]]:
    """Groups the memories into levels, from the outermost in.

    Memories inside the outermost that follow each other and hold different operands form one level, such as a
    scratchpad for both operands and an accumulator for the sums. A memory with several cores, or with
    `inside` set, starts a new level.
    """
    groups: list[list[MachineMemory]] = []
    for index, memory in enumerate(machine.memories):
        group_holds = {operand for grouped in groups[-1] for operand in grouped.holds} if index > 1 else set()
        same_cores = index > 1 and memory.cores == 1
        if index > 1 and not memory.inside and same_cores and not group_holds & set(memory.holds):
            groups[-1].append(memory)
        else:
            groups.append([memory])
    return [tuple(group) for group in groups]


def build_nest(mapping: SiteMapping, machine: MemoryMachine) -> Nest:
    """Builds the loop nest of a mapping.

    Raises:
        Misuse: The mapping does not have one level for each level of memory and one for the array; a level
            divides tiles among more cores than it has; two levels divide K; a tile is larger than the tile
            outside of it; or a level cannot keep a whole operand, or no level can apply the epilogue.
    """
    groups = group_memories(machine)[1:]
    if len(mapping.levels) != len(groups) + 1:
        names = ", ".join([*("+".join(memory.name for memory in group) for group in groups), ARRAY])
        raise Misuse(
            f"{len(mapping.levels)} levels, but the machine has {len(groups) + 1}: {names}",
            where=mapping.site,
            hint="a mapping has one level for each of them, the outermost first",
        )
    outer: Triple = mapping.size
    for index, level in enumerate(mapping.levels):
        cores = groups[index][0].cores if index < len(groups) else 1
        if math.prod(level.split) > cores:
            message = f"a split into {math.prod(level.split)} cores"
            raise Misuse(message, where=f"{mapping.site}, level {index + 1}", hint=f"the level has {cores}")
        for axis, (inner_tile, outer_tile) in enumerate(zip(level.tile, outer, strict=True)):
            if inner_tile > outer_tile and index < len(groups):
                raise Misuse(
                    f"a tile of {inner_tile} along {AXES[axis].upper()}",
                    where=f"{mapping.site}, level {index + 1}",
                    hint=f"the tile outside of it has {outer_tile}",
                )
        outer = level.tile
    if sum(level.split[1] > 1 for level in mapping.levels) > 1:
        raise Misuse("K is split among cores at two levels", where=mapping.site, hint="split K at one level")
    for index, level in enumerate(mapping.levels):
        first_operands = {operand for memory in groups[0] for operand in memory.holds} if groups else set()
        if level.keep and (index or math.prod(level.split) > 1 or not set(level.keep) <= first_operands):
            raise Misuse(
                f"level {index + 1} keeps the whole of {level.keep}",
                where=mapping.site,
                hint="only the first memory can keep a whole operand, if it holds it and has no cores",
            )
    holds = [*("".join(sorted("".join(memory.holds for memory in group))) for group in groups), "ABC"]
    nest = Nest(mapping.size, mapping.levels, tuple(holds), machine.registers)
    if mapping.epilogue != Epilogue() and find_epilogue_level(nest) < 0:
        raise Misuse(
            "cores divide K and add their sums in the outermost memory, so no operator can be fused",
            where=mapping.site,
            hint="divide M or N among the cores, or leave the epilogue out",
        )
    return nest


class _Widths(NamedTuple):
    """Bits of an element of A, of B, of the sums, and of the output."""

    left: int
    right: int
    sums: int
    output: int

    def get_bits(self, operand: Operand) -> int:
        return {"A": self.left, "B": self.right, "C": self.sums}[operand]


def _get_widths(mapping: SiteMapping) -> _Widths:
    dtypes = mapping.dtype, mapping.right_dtype, mapping.accumulator, mapping.output
    return _Widths(*(dimensions.get_type_bits(dtype, mapping.site) for dtype in dtypes))


def compute_mapping_cost(mapping: SiteMapping, machine: MemoryMachine) -> MappingCost:
    """Computes the cost of one run of a mapping, its batch included.

    Raises:
        Misuse: The mapping does not match the machine, or the size of a number type is unknown.
    """
    nest, widths = build_nest(mapping, machine), _get_widths(mapping)
    moves = tuple(_list_moves(mapping, machine, nest, widths))
    memories = tuple(_compute_memory_costs(mapping, machine, nest, widths, moves))
    multiplied = mapping.batch * math.prod(mapping.size)
    macs = mapping.macs or multiplied
    rate = machine.rates.get(mapping.dtype) or machine.hardware.macs_per_cycle
    array = _compute_array_cycles(nest, machine, rate)
    array_cycles = None if array is None else math.ceil(array * mapping.batch)
    slots = count_array_slots(mapping, machine)
    cycles_by_name = {memory.name: memory.cycles for memory in memories if memory.cycles is not None}
    if array_cycles is not None:
        cycles_by_name = {ARRAY: array_cycles, **cycles_by_name}
    pipeline = _compute_pipeline_cycles(mapping, machine, nest, widths, rate) if array is not None else None
    cycles = None if pipeline is None else max(math.ceil(pipeline * mapping.batch), *cycles_by_name.values())
    clock = machine.hardware.clock
    capacity = compute_capacity_on_chip(machine)
    outer = memories[0]
    energies = [memory.pj for memory in memories]
    arithmetic = None if machine.mac_pj is None else multiplied * machine.mac_pj
    return MappingCost(
        mapping=mapping,
        macs=macs,
        utilization=macs / slots,
        moves=moves,
        memories=memories,
        traffic=outer.reads + outer.writes,
        fits=not any(memory.missing for memory in memories),
        array_cycles=array_cycles,
        cycles=cycles,
        bound=max(cycles_by_name, key=lambda name: cycles_by_name[name]) if array is not None else "",
        seconds=None if cycles is None or clock is None else cycles / clock,
        pj=None if arithmetic is None or None in energies else arithmetic + sum(pj or 0 for pj in energies),
        compulsory=count_compulsory_bytes(mapping),
        lower_bound=compute_traffic_bound(mapping, capacity),
    )


def count_array_slots(mapping: SiteMapping, machine: MemoryMachine) -> int:
    """Counts the multiply-accumulates that all arrays could do in the time that the busiest array needs."""
    nest = build_nest(mapping, machine)
    return mapping.batch * _count_products(nest) * math.prod(nest.levels[-1].tile) * _count_cores(machine)


def get_operand_bits(mapping: SiteMapping, operand: Operand) -> int:
    """Returns the bits of an element of an operand; for C, the bits of a sum."""
    return _get_widths(mapping).get_bits(operand)


def count_compulsory_bytes(mapping: SiteMapping) -> int:
    """Computes the bytes of both operands read once and of the output written once."""
    widths = _get_widths(mapping)
    left, right = _count_bytes(mapping.size, "A", widths.left), _count_bytes(mapping.size, "B", widths.right)
    return mapping.batch * (left + right + _count_bytes(mapping.size, "C", widths.output))


def compute_capacity_on_chip(machine: MemoryMachine) -> int | None:
    """Returns the bytes of all memories but the outermost, with all instances, or None without a limit."""
    capacity, instances = 0, 1
    for memory in machine.memories[1:]:
        instances *= memory.cores
        if memory.size is None:
            return None
        capacity += memory.size * instances
    # the array holds one tile of each operand; 8 is the bytes of the widest element
    return capacity + 8 * sum(a * b for a, b in itertools.combinations(machine.unit, 2)) * instances


def compute_traffic_bound(mapping: SiteMapping, capacity: int | None) -> int:
    """Computes a lower bound of the bytes that a mapping moves, with `capacity` bytes on the chip.

    Args:
        mapping: Site with its size and number types.
        capacity: Bytes on the chip, or None if they are not limited.
    """
    if capacity is None:
        return count_compulsory_bytes(mapping)
    widths, macs = _get_widths(mapping), mapping.batch * math.prod(mapping.size)
    narrow = min(widths.sums, widths.output)
    shape = dimensions.SiteDims(
        *mapping.size, mapping.batch, mapping.size, False, min(widths.left, widths.right), narrow, macs
    )
    return compute_lower_bound(shape, capacity, count_compulsory_bytes(mapping))


def _count_bytes(sizes: Sequence[int], operand: Operand, bits: int) -> int:
    rows, columns = OPERAND_AXES[operand]
    return dimensions.count_packed_bytes(sizes[rows] * sizes[columns], bits)


def _count_cores(machine: MemoryMachine) -> int:
    return math.prod(memory.cores for memory in machine.memories)


def find_epilogue_level(nest: Nest) -> int:
    """Returns the level that applies the epilogue to finished sums before they leave it, or -1.

    The level is the innermost level that holds sums in a memory, or the array if no memory holds sums. If
    cores divide K, the level is outside of these cores, where their sums are added. -1 means that the sums
    are added in the outermost memory, so they leave the chip in the accumulator's type.
    """
    last = len(nest.levels) - 1
    split = next((index for index, level in enumerate(nest.levels) if level.split[1] > 1), last + 1)
    levels = [level for level in nest.list_holders("C") if level < last and level < split]
    if levels:
        return levels[-1]
    return last if split > last and nest.list_holders("C") == [last] else -1


def _list_moves(
    mapping: SiteMapping, machine: MemoryMachine, nest: Nest, widths: _Widths, single_instance_level: int = -1
) -> list[LevelMoves]:
    """Lists the bytes that move at each level; for `single_instance_level`, see `nest.list_core_classes`."""
    groups = group_memories(machine)
    finishing_level = find_epilogue_level(nest)
    last = len(nest.levels) - 1

    def find_holder(level: int, operand: Operand) -> str:
        if level == last:
            return ARRAY
        return next(memory.name for memory in groups[level + 1] if operand in memory.holds)

    def count_transfers(level: int, operand: Operand) -> int:
        group = groups[level + 1] if level < last else ()
        block = next((memory.transfer for memory in group if operand in memory.holds), None)
        if block is None:
            return 0
        count = count_moved(
            nest,
            operand,
            level,
            reads_initial_sum=machine.first_read,
            single_instance_level=single_instance_level,
            block=block,
        )
        return mapping.batch * (count.loads + count.stores)

    def count_sum_bytes(count: int, finished: int, level: int) -> int:
        finished = finished if level <= finishing_level else 0
        partial = dimensions.count_packed_bytes(count - finished, widths.sums)
        return partial + dimensions.count_packed_bytes(finished, widths.output)

    moves = []
    for level in range(len(nest.levels)):
        for operand in OPERAND_AXES:
            if operand not in nest.holds[level]:
                continue
            count = count_moved(
                nest,
                operand,
                level,
                reads_initial_sum=machine.first_read,
                single_instance_level=single_instance_level,
            )
            outer = [index for index in nest.list_holders(operand) if index < level]
            width = widths.get_bits(operand)
            moves.append(
                LevelMoves(
                    level=level,
                    operand=operand,
                    memory=find_holder(level, operand),
                    outside=find_holder(outer[-1], operand) if outer else machine.memories[0].name,
                    loads=mapping.batch * dimensions.count_packed_bytes(count.loads, width),
                    stores=mapping.batch * count_sum_bytes(count.stores, count.finished, level),
                    outside_reads=mapping.batch * dimensions.count_packed_bytes(count.outside_reads, width),
                    outside_writes=mapping.batch
                    * count_sum_bytes(count.outside_writes, count.outside_finished, level),
                    transfers=count_transfers(level, operand),
                )
            )
    moves += _list_epilogue_moves(mapping, machine, nest, finishing_level, find_holder(finishing_level, "C"))
    return moves


def _list_epilogue_moves(
    mapping: SiteMapping, machine: MemoryMachine, nest: Nest, level: int, memory: str
) -> list[LevelMoves]:
    """Lists the bytes of the bias and the residual, which are read when a tile of sums is finished."""
    epilogue, (M, _, N) = mapping.epilogue, mapping.size
    rows_of_tiles = sum(count_extents(M, nest.levels[: level + 1], 0).values())
    outside = machine.memories[0].name
    sizes = {
        "bias": mapping.batch * rows_of_tiles * N * epilogue.bias_bytes,
        "residual": mapping.batch * M * N * epilogue.residual_bytes,
    }
    return [
        LevelMoves(level, operand, memory, outside, size, 0, size, 0)  # type: ignore[arg-type]
        for operand, size in sizes.items()
        if size
    ]


# -- memories


def _compute_memory_costs(
    mapping: SiteMapping, machine: MemoryMachine, nest: Nest, widths: _Widths, moves: Sequence[LevelMoves]
) -> list[MemoryCost]:
    outermost = 0 if machine.memories[0].size is None else count_compulsory_bytes(mapping)
    costs = []
    for index, group in enumerate(group_memories(machine)):
        has_cores = any(math.prod(level.split) > 1 for level in nest.levels[:index])
        moves_of_instance = _list_moves(mapping, machine, nest, widths, index - 1) if has_cores else moves
        for memory in group:
            tiles = _count_tile_bytes(memory, nest, index - 1, widths) if index else {}
            held_bytes = count_held_bytes(memory, tiles) if index else outermost
            reads, writes = _sum_accesses(moves, memory.name)
            busiest_reads, busiest_writes = _sum_accesses(moves_of_instance, memory.name)
            missing = 0 if memory.size is None else max(held_bytes - memory.size, 0)
            costs.append(
                MemoryCost(
                    name=memory.name,
                    size=memory.size,
                    held=held_bytes,
                    tiles=tiles,
                    missing=missing,
                    reads=sum(reads.values()),
                    writes=sum(writes.values()),
                    cycles=_round_up(
                        compute_transfer_cycles(
                            memory, sum(busiest_reads.values()), sum(busiest_writes.values())
                        )
                    ),
                    pj=_sum_energy(memory, reads, writes),
                )
            )
    return costs


def count_held_bytes(memory: MachineMemory, tiles: Mapping[str, int]) -> int:
    """Computes the bytes that a memory needs for all buffers of its tiles; a cache allocates whole ways."""
    sizes = [getattr(memory.buffers, operand) * size for operand, size in tiles.items()]
    if memory.ways and memory.size is not None:
        way = max(memory.size // memory.ways, 1)
        sizes = [-(-size // way) * way for size in sizes]
    return sum(sizes)


def _count_tile_bytes(memory: MachineMemory, nest: Nest, level: int, widths: _Widths) -> dict[str, int]:
    """Computes the bytes of one tile of each operand that a memory holds."""
    step = nest.levels[level]
    tiles: dict[str, int] = {}
    for operand, (rows, columns) in OPERAND_AXES.items():
        if operand in memory.holds:
            lengths = nest.size if operand in step.keep else step.tile
            elements = min(lengths[rows], nest.size[rows]) * min(lengths[columns], nest.size[columns])
            tiles[operand] = dimensions.count_packed_bytes(elements, widths.get_bits(operand))
            if operand == "C":
                tiles["out"] = dimensions.count_packed_bytes(elements, widths.output)
    return tiles


def _sum_accesses(moves: Sequence[LevelMoves], name: str) -> tuple[dict[str, int], dict[str, int]]:
    """Adds up the bytes read from a memory and written to it, by operand."""
    reads: dict[str, int] = {}
    writes: dict[str, int] = {}
    for move in moves:
        if move.outside == name:
            reads[move.operand] = reads.get(move.operand, 0) + move.outside_reads
            writes[move.operand] = writes.get(move.operand, 0) + move.outside_writes
        if move.memory == name and move.operand in OPERAND_AXES:
            reads[move.operand] = reads.get(move.operand, 0) + move.stores
            writes[move.operand] = writes.get(move.operand, 0) + move.loads
    return reads, writes


def _sum_energy(memory: MachineMemory, reads: Mapping[str, int], writes: Mapping[str, int]) -> float | None:
    if (any(reads.values()) and memory.read_pj is None) or (any(writes.values()) and memory.write_pj is None):
        return None

    return count_word_accesses(reads, memory.read_word) * (memory.read_pj or 0) + count_word_accesses(
        writes, memory.write_word
    ) * (memory.write_pj or 0)


def count_word_accesses(sizes: Mapping[str, int], words: Mapping[Any, int]) -> float:
    """Computes the number of accesses for bytes of each operand. The epilogue's inputs use C's word size."""
    return sum(size / words.get(operand, words.get("C", 1)) for operand, size in sizes.items())


def compute_transfer_cycles(memory: MachineMemory, reads: int, writes: int) -> Fraction | None:
    """Computes the cycles in which a memory moves bytes, or None if none of its rates is known."""
    rates = memory.bytes_per_cycle, memory.read_bytes_per_cycle, memory.write_bytes_per_cycle
    amounts = reads + writes, reads, writes
    times = [
        Fraction(amount) / _convert_to_fraction(rate)
        for amount, rate in zip(amounts, rates, strict=True)
        if rate
    ]
    return max(times) if times else None


@lru_cache(maxsize=64)
def _convert_to_fraction(rate: float) -> Fraction:
    # use the decimal that the user wrote: with the binary fraction nearest to 51.2, 10 cycles become 11
    return Fraction(Decimal(repr(rate)))


def _round_up(amount: Fraction | None) -> int | None:
    return None if amount is None else math.ceil(amount)


# -- time


def _list_first_core(levels: int) -> tuple[Triple, ...]:
    """Returns the index of the first core along M, K and N at each of the outermost `levels` levels."""
    return ((0, 0, 0),) * levels


def _count_products(nest: Nest) -> int:
    """Counts the tiles of the array that the first core, which has the most work, computes."""
    last = len(nest.levels) - 1
    core = _list_first_core(last + 1)
    return math.prod(sum(count_core_extents(nest, last, core, axis).values()) for axis in range(3))


def _compute_array_cycles(nest: Nest, machine: MemoryMachine, rate: float | None) -> Fraction | None:
    """Computes the cycles of the array for one product of the batch, or None if its rate is unknown.

    A systolic array of R rows and C columns takes 2 R + C + T - 2 cycles for each stationary tile, where T is
    the length of the streaming axis: Samajdar et al., ISPASS 2020. With a second buffer for the stationary
    tile, only the first tile waits for its load, and only the last one for its results. A rate below one
    multiply-accumulate for each cell and cycle makes each streamed row take longer.
    """
    array = machine.hardware.array
    last = len(nest.levels) - 1
    if machine.overlap == "ideal" or array is None:
        if rate is None:
            return None
        return _count_products(nest) * math.prod(nest.levels[last].tile) / _convert_to_fraction(rate)
    rows, columns = array
    row_cycles = Fraction(rows * columns) / _convert_to_fraction(rate) if rate is not None else Fraction(1)
    axes = dimensions.ARRAY_AXES[ORDERS[nest.levels[last].order]]
    lengths = [count_core_extents(nest, last - 1, _list_first_core(last), axis) for axis in axes]
    cycles = 0
    for (row, row_times), (column, column_times), (stream, stream_times) in itertools.product(
        *(counter.items() for counter in lengths)
    ):
        folds = -(-row // rows) * -(-column // columns)
        streaming = math.ceil(stream * row_cycles)
        if machine.overlap == "none":
            tile_cycles = folds * (2 * rows + columns + streaming - 2)
        else:
            tile_cycles = rows + folds * max(streaming, rows) + rows + columns - 2
        cycles += row_times * column_times * stream_times * tile_cycles
    return Fraction(cycles)


def _compute_pipeline_cycles(
    mapping: SiteMapping, machine: MemoryMachine, nest: Nest, widths: _Widths, rate: float | None
) -> Fraction | None:
    """Computes the cycles of one product of the batch as a pipeline over the tiles of the first level.

    The first load, then for each tile the longer of its computation and of the transfers that overlap with
    it, then the last store. Transfers without a second buffer add to the time. Steps of the loops with equal
    neighbors have equal times, so at most five positions of each loop are computed.
    """
    if len(nest.levels) == 1:
        total = _compute_array_cycles(nest, machine, rate)
        moves = _list_moves(mapping, machine, nest, widths)
        reads, writes = _sum_accesses(moves, machine.memories[0].name)
        moving = compute_transfer_cycles(
            machine.memories[0], sum(reads.values()), sum(writes.values())
        ) or Fraction(0)
        return None if total is None else max(total, moving / mapping.batch)
    parts = _Pipeline(mapping, machine, nest, widths, rate).compute_parts()
    return None if parts is None else sum(parts, Fraction(0))


def compute_pipeline_parts(
    mapping: SiteMapping, machine: MemoryMachine
) -> tuple[Fraction, Fraction, Fraction] | None:
    """Computes the cycles of the first load, of all steps and of the last store of one product of the batch.

    Returns:
        The three parts, or None without a memory on the chip or if the rate of the array is unknown.
    """
    nest = build_nest(mapping, machine)
    if len(nest.levels) == 1:
        return None
    rate = machine.rates.get(mapping.dtype) or machine.hardware.macs_per_cycle
    return _Pipeline(mapping, machine, nest, _get_widths(mapping), rate).compute_parts()


class _Pipeline:
    """Steps of the loops of the first level: what each loads, computes and stores.

    Operands that bypass the first level, the bias and the residual move while a step computes. A core without
    work in a step at the edge is assumed to load its tile again in the next step.

    Attributes:
        level: The first level.
        order: Axes of its loops, from the outermost in.
        chunk: M, K and N of one step over all cores.
        trips: Number of steps along M, K and N.
        overlaps: Whether the transfers of each operand overlap with computation.
        outermost: Outermost level that holds each operand.
        finishing: Level that applies the epilogue, as in `find_epilogue_level`.
        reads_first: Whether the first visit of a sum reads it from the outermost memory.
        compute, transfer: Cached functions that return the cycles of a step and of a transfer.
    """

    def __init__(
        self, mapping: SiteMapping, machine: MemoryMachine, nest: Nest, widths: _Widths, rate: float | None
    ) -> None:
        self.mapping, self.machine, self.nest, self.widths, self.rate = mapping, machine, nest, widths, rate
        self.level: NestLevel = nest.levels[0]
        self.order = [AXES.index(axis) for axis in self.level.order]
        self.chunk = tuple(
            tile * split for tile, split in zip(self.level.tile, self.level.split, strict=True)
        )
        self.trips = tuple(-(-size // chunk) for size, chunk in zip(nest.size, self.chunk, strict=True))
        buffers = dict.fromkeys("ABC", 1)
        for memory in group_memories(machine)[1]:
            for operand in memory.holds:
                buffers[operand] = getattr(memory.buffers, operand) + (
                    memory.buffers.out if operand == "C" else 0
                )
        self.overlaps = {operand: count > 1 for operand, count in buffers.items()}
        self.outermost = {operand: nest.list_holders(operand)[0] for operand in OPERAND_AXES}
        self.finishing = find_epilogue_level(nest)
        sums = count_moved(nest, "C", self.outermost["C"])
        self.reads_first = machine.first_read and sums.outside_writes > sums.outside_finished
        self.compute = cache(self._compute_step_cycles)
        self.transfer = cache(self._compute_transfer_cycles)

    def compute_parts(self) -> tuple[Fraction, Fraction, Fraction] | None:
        """Computes the cycles of the first load, of all steps and of the last store."""
        positions = [self._list_positions(trips) for trips in self.trips]
        first: Triple = (0, 0, 0)
        last: Triple = tuple(trips - 1 for trips in self.trips)  # type: ignore[assignment]
        first_load = self._compute_transfer(self._count_loads(first, None), {})
        last_store = self._compute_transfer({}, self._count_stores(last, None))
        if self.compute(self._compute_part(first)) is None:
            return None
        # steps that compute and move the same take the same time
        steps_by_work: Counter[tuple[Triple, tuple[int, int], tuple[int, int]]] = Counter()
        for axis_positions in itertools.product(*positions):
            step: Triple = tuple(position for position, _ in axis_positions)  # type: ignore[assignment]
            weight = math.prod(count for _, count in axis_positions)
            after, before = self._find_neighbor(step, 1), self._find_neighbor(step, -1)
            loads = self._count_loads(after, step) if after is not None else {}
            stores = self._count_stores(before, step) if before is not None else {}
            reads, writes = self._count_passing_bytes(step, before, after)
            hidden = self._add_up(loads, True) + reads, self._add_up(stores, True) + writes
            waiting = self._add_up(loads, False), self._add_up(stores, False)
            steps_by_work[self._compute_part(step), hidden, waiting] += weight
        total = Fraction(0)
        for (part, hidden, waiting), number in steps_by_work.items():
            computing = self.compute(part) or Fraction(0)
            total += number * (max(computing, self.transfer(*hidden)) + self.transfer(*waiting))
        return first_load, total, last_store

    def _list_positions(self, trips: int) -> list[tuple[int, int]]:
        """Lists representative positions of a loop, each with the number of positions like it."""
        if trips <= 5:
            return [(position, 1) for position in range(trips)]
        return [(0, 1), (1, 1), (2, trips - 4), (trips - 2, 1), (trips - 1, 1)]

    def _find_neighbor(self, step: Triple, by: int) -> Triple | None:
        """Returns the next or the previous step of the loops, or None at the end."""
        neighbor = list(step)
        for axis in reversed(self.order):
            neighbor[axis] += by
            if 0 <= neighbor[axis] < self.trips[axis]:
                return neighbor[0], neighbor[1], neighbor[2]
            neighbor[axis] = 0 if by > 0 else self.trips[axis] - 1
        return None

    def _compute_lengths(self, step: Triple) -> Triple:
        """Returns M, K and N of a step over all cores, shorter at the edge."""
        m, k, n = (
            min(chunk, size - position * chunk)
            for position, chunk, size in zip(step, self.chunk, self.nest.size, strict=True)
        )
        return m, k, n

    def _is_changed(self, operand: Operand, step: Triple, neighbor: Triple | None) -> bool:
        """Whether the first level holds another tile of an operand in a step than in the neighboring step."""
        if operand not in self.nest.holds[0]:
            return False
        if operand in self.level.keep:
            return neighbor is None
        return not _has_same_tile(operand, step, neighbor)

    def _count_loads(self, step: Triple, before: Triple | None) -> dict[str, int]:
        """Computes the bytes of each operand that a step loads after the step before it."""
        lengths = self._compute_lengths(step)
        loads: dict[str, int] = {}
        for operand in OPERAND_AXES:
            if not self._is_changed(operand, step, before):
                continue
            is_whole = operand in self.level.keep
            size = _count_bytes(
                self.nest.size if is_whole else lengths, operand, self.widths.get_bits(operand)
            )
            if operand == "C" and (is_whole or (step[1] == 0 and not self.reads_first)):
                size = 0  # the first visit starts from zero
            loads[operand] = size
        return loads

    def _count_stores(self, step: Triple, after: Triple | None) -> dict[str, int]:
        """Computes the bytes of sums or outputs that leave after a step."""
        if not self._is_changed("C", step, after):
            return {}
        is_whole = "C" in self.level.keep
        is_finished = is_whole or step[1] == self.trips[1] - 1
        bits = self.widths.output if is_finished else self.widths.sums
        return {"C": _count_bytes(self.nest.size if is_whole else self._compute_lengths(step), "C", bits)}

    def _count_passing_bytes(
        self, step: Triple, before: Triple | None, after: Triple | None
    ) -> tuple[int, int]:
        """Computes the bytes that a step reads and writes outside of what the first level holds.

        These are the operands that bypass the first level, the bias and the residual.
        """
        lengths, is_last = self._compute_lengths(step), step[1] == self.trips[1] - 1
        reads = writes = 0
        for operand, level in self.outermost.items():
            if level == 0:
                continue
            count = count_moved(self.nest._replace(size=lengths), operand, level)
            stays = self._has_one_tile(operand, level, lengths)
            kept_before = stays and _has_same_tile(operand, step, before)
            kept_after = stays and _has_same_tile(operand, step, after)
            if operand != "C":
                elements = 0 if kept_before else count.outside_reads
                reads += dimensions.count_packed_bytes(elements, self.widths.get_bits(operand))
                continue
            is_fresh = step[1] == 0 and not self.reads_first
            elements = 0 if kept_before else count.outside_reads if is_fresh else count.outside_writes
            reads += dimensions.count_packed_bytes(elements, self.widths.sums)
            if not kept_after:
                finished = count.outside_finished if is_last else 0
                writes += dimensions.count_packed_bytes(count.outside_writes - finished, self.widths.sums)
                writes += dimensions.count_packed_bytes(finished, self.widths.output)
        if is_last:
            epilogue, (m, _, n) = self.mapping.epilogue, lengths
            rows = sum(count_extents(m, self.nest.levels[: self.finishing + 1], 0).values())
            reads += rows * n * epilogue.bias_bytes + m * n * epilogue.residual_bytes
        return reads, writes

    def _has_one_tile(self, operand: Operand, level: int, lengths: Triple) -> bool:
        """Whether each core needs only one tile of an operand at a level in a step."""
        if level == len(self.nest.levels) - 1 and not self.nest.has_registers:
            return False
        nest, core = self.nest._replace(size=lengths), _list_first_core(level + 1)
        return all(
            sum(count_core_extents(nest, level, core, axis).values()) == 1 for axis in OPERAND_AXES[operand]
        )

    def _add_up(self, sizes: Mapping[str, int], overlapping: bool) -> int:
        """Adds up the bytes of the operands whose transfers overlap with computation, or of all others."""
        return sum(size for name, size in sizes.items() if self.overlaps[name] is overlapping)

    def _compute_transfer(self, loads: Mapping[str, int], stores: Mapping[str, int]) -> Fraction:
        """Computes the cycles in which the outermost memory moves bytes."""
        return self.transfer(sum(loads.values()), sum(stores.values()))

    def _compute_transfer_cycles(self, reads: int, writes: int) -> Fraction:
        return compute_transfer_cycles(self.machine.memories[0], reads, writes) or Fraction(0)

    def _compute_part(self, step: Triple) -> Triple:
        """Returns the lengths of the tile that the first core computes in a step."""
        m, k, n = (
            min(length, tile)
            for length, tile in zip(self._compute_lengths(step), self.level.tile, strict=True)
        )
        return m, k, n

    def _compute_step_cycles(self, part: Triple) -> Fraction | None:
        """Computes the cycles of one step: the array, or a memory inside that is slower."""
        inner = self.nest._replace(size=part, levels=self.nest.levels[1:], holds=self.nest.holds[1:])
        cycles = _compute_array_cycles(inner, self.machine, self.rate)
        if cycles is None:
            return None
        groups = group_memories(self.machine)[1:]
        for index, group in enumerate(groups):
            for memory in group:
                reads = writes = 0
                for operand in OPERAND_AXES:
                    if operand not in memory.holds:
                        continue
                    inside = next(level for level in inner.list_holders(operand) if level >= index)
                    count = count_moved(inner, operand, inside, single_instance_level=index - 1)
                    reads += dimensions.count_packed_bytes(count.outside_reads, self.widths.get_bits(operand))
                    writes += dimensions.count_packed_bytes(
                        count.outside_writes, self.widths.get_bits(operand)
                    )
                cycles = max(cycles, compute_transfer_cycles(memory, reads, writes) or Fraction(0))
        return cycles


def _has_same_tile(operand: Operand, step: Triple, neighbor: Triple | None) -> bool:
    """Whether two steps need the same tile of an operand; False if `neighbor` is None."""
    return neighbor is not None and all(step[axis] == neighbor[axis] for axis in OPERAND_AXES[operand])
