"""Computes figures of many tiles at once, for a machine with one level of memory on the chip.

The figures are the closed forms of `nest` and `cost` for two levels of loops without cores, as arrays with an
entry for each tile. Each operand is independent of one of the three loops. It moves again for each trip of
this loop, if a loop inside it that the operand depends on has several trips.

Times are computed as floats. `_round_up` rounds them so that they never exceed the exact cycles of `cost`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from explorer.engine.mapping.cost import group_memories
from explorer.engine.mapping.nest import AXES, OPERAND_AXES, Operand, Triple
from explorer.engine.tiling.cost import dimensions
from explorer.facts.cost import ORDERS as DATAFLOWS
from explorer.facts.mapping import LoopOrder, MachineMemory, MemoryMachine, SiteMapping

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_ROUNDING = 1e-13
"""Upper bound of the relative error of all float operations behind a figure."""

_Result = TypeVar("_Result")


class Tiles(NamedTuple):
    """Tiles of the first level.

    Attributes:
        lengths: Lengths along M, K and N, each with an entry for each tile.
        keep: Operand that the first level keeps whole with all of these tiles, or ''.
    """

    lengths: tuple[Numbers, Numbers, Numbers]
    keep: str

    def __len__(self) -> int:
        return len(self.lengths[0])

    def select(self, mask: Numbers) -> Tiles:
        """Returns the tiles of a mask or of indices."""
        m, k, n = (axis[mask] for axis in self.lengths)
        return Tiles((m, k, n), self.keep)

    def get_tile(self, index: int) -> Triple:
        """Returns the lengths of one tile."""
        m, k, n = (int(axis[index]) for axis in self.lengths)
        return m, k, n


class Figures(NamedTuple):
    """Figures of many tiles in a pair of orders, or lower bounds over all inner orders.

    Attributes:
        traffic: Bytes at the outermost memory.
        inner: Bytes between the first level and the array.
        pj: Energy of all transfers and of the arithmetic. Unknown energies count as 0.
        cycles: Cycles as a pipeline, never more than the exact cycles; without a rate of the array, the
            cycles of the slowest memory.
    """

    traffic: Numbers
    inner: Numbers
    pj: Numbers
    cycles: Numbers


class _Lengths(NamedTuple):
    """Lengths of a tile along M, K and N, with the number of the array's tiles along each."""

    lengths: tuple[Numbers, Numbers, Numbers]
    parts: tuple[Numbers, Numbers, Numbers]


class TileFigures:
    """Figures of tiles, computed on demand and cached.

    Args:
        mapping: Site with its size, number types and epilogue.
        machine: Machine with one level of memory on the chip, without cores.
        tiles: The tiles.

    Attributes:
        group: Memories of the level on the chip.
        holder: Memory of the group that holds each operand, or None if the operand bypasses them.
        rate: Multiply-accumulates of the array per cycle, or None if unknown.
        outputs: Number of elements of C.
        trips: Number of trips along M, K and N.
        last_lengths: Lengths of the last tile along M, K and N.
        parts, last_parts, all_parts: Number of the array's tiles along M, K and N in a full tile, in the last
            tile, and in all tiles.
    """

    def __init__(self, mapping: SiteMapping, machine: MemoryMachine, tiles: Tiles) -> None:
        self.mapping, self.machine, self.tiles = mapping, machine, tiles
        self.group = group_memories(machine)[1]
        self.holder: dict[Operand, MachineMemory | None] = {
            operand: next((memory for memory in self.group if operand in memory.holds), None)
            for operand in OPERAND_AXES
        }
        self.rate = machine.rates.get(mapping.dtype) or machine.hardware.macs_per_cycle
        self.is_systolic = machine.overlap != "ideal" and machine.hardware.array is not None
        self.outputs = mapping.size[0] * mapping.size[2]
        self._memo: dict[Any, Any] = {}
        size, unit = mapping.size, machine.unit
        lengths = tiles.lengths
        self.trips = [-(-length // tile) for length, tile in zip(size, lengths, strict=True)]
        self.last_lengths = [
            length - (trips - 1) * tile for length, tile, trips in zip(size, lengths, self.trips, strict=True)
        ]
        self.parts = [-(-tile // each) for tile, each in zip(lengths, unit, strict=True)]
        self.last_parts = [-(-length // each) for length, each in zip(self.last_lengths, unit, strict=True)]
        self.all_parts = [
            (trips - 1) * parts + last
            for trips, parts, last in zip(self.trips, self.parts, self.last_parts, strict=True)
        ]

    def select(self, indices: Numbers) -> TileFigures:
        """Returns the figures of some of the tiles."""
        return TileFigures(self.mapping, self.machine, self.tiles.select(indices))

    @property
    def has_cycles(self) -> bool:
        """Whether the machine gives the time of the array."""
        return self.is_systolic or self.rate is not None

    def _compute_once(self, key: tuple[Any, ...], compute: Callable[[], _Result]) -> _Result:
        if key not in self._memo:
            self._memo[key] = compute()
        result: _Result = self._memo[key]
        return result

    # -- elements

    def count_first_loads(self, operand: Operand, outer: LoopOrder) -> Numbers:
        """Counts the elements of an operand that the first level loads in an outer order."""
        rows, columns = OPERAND_AXES[operand]
        elements = self.mapping.size[rows] * self.mapping.size[columns]
        if operand == self.tiles.keep:
            return np.full(len(self.tiles), elements)
        inside = self._list_inside_axes(operand, outer)

        def count() -> Numbers:
            return elements * np.where(
                self._has_several_trips(self.trips, inside), self.trips[_get_independent_axis(operand)], 1
            )

        return self._compute_once(("first", operand, inside), count)

    def count_array_loads(self, operand: Operand, outer: LoopOrder, inner: LoopOrder | None) -> Numbers:
        """Counts the elements that the array loads, or without an inner order their lower bound."""
        outside = self._list_inside_axes(operand, outer)
        inside = () if inner is None else self._list_inside_axes(operand, inner)
        rereads = inner is not None and not self.machine.registers
        return self._compute_once(
            ("array", operand, outside, inside, rereads),
            lambda: self._count_array_loads_of_orders(operand, outside, inside, rereads),
        )

    def _count_array_loads_of_orders(
        self, operand: Operand, outside: tuple[int, ...], inside: tuple[int, ...], rereads: bool
    ) -> Numbers:
        """Does the work of `count_array_loads`, from `_list_inside_axes` of the outer and the inner order."""
        rows, columns = OPERAND_AXES[operand]
        third_axis = _get_independent_axis(operand)
        if rereads:
            elements: Numbers = (
                self.mapping.size[rows] * self.mapping.size[columns] * self.all_parts[third_axis]
            )
            return elements
        is_reloaded = self._has_several_trips(self.trips, outside)
        total: Numbers = np.zeros(len(self.tiles), dtype=np.int64)
        # full tiles and the last one along both axes of the operand
        for is_last_row, is_last_column in itertools.product((False, True), repeat=2):
            parts = {
                rows: (self.last_parts if is_last_row else self.parts)[rows],
                columns: (self.last_parts if is_last_column else self.parts)[columns],
            }
            elements = self._sum_lengths(rows, is_last_row) * self._sum_lengths(columns, is_last_column)
            passes = np.where(
                self._has_several_trips(parts, inside), self.all_parts[third_axis], self.trips[third_axis]
            )
            stays = ~is_reloaded & (parts[rows] * parts[columns] == 1)
            total = total + elements * np.where(stays, 1, passes)
        return total

    def _sum_lengths(self, axis: int, is_last: bool) -> Numbers:
        """Adds up the lengths of all full tiles, or of the last tile, along an axis."""
        return self.last_lengths[axis] if is_last else (self.trips[axis] - 1) * self.tiles.lengths[axis]

    def _has_several_trips(
        self, trips: Mapping[int, Numbers] | list[Numbers], axes: Iterable[int]
    ) -> Numbers:
        """Whether a loop over one of the axes has several trips."""
        turns = np.zeros(len(self.tiles), dtype=bool)
        for axis in axes:
            turns = turns | (trips[axis] > 1)
        return turns

    @staticmethod
    def _list_inside_axes(operand: Operand, order: LoopOrder) -> tuple[int, ...]:
        """Lists the axes of an operand whose loops are inside the loop that it does not depend on."""
        position = order.index(AXES[_get_independent_axis(operand)])
        return tuple(axis for axis in OPERAND_AXES[operand] if order.index(AXES[axis]) > position)

    # -- bytes

    def get_dtype(self, operand: Operand) -> str:
        """Returns the number type of an operand; for C, the number type of the sums."""
        return get_operand_dtype(self.mapping, operand)

    def count_packed_bytes(self, elements: Numbers, dtype: str) -> Numbers:
        """Computes the bytes of densely packed elements."""
        return count_packed_bytes(elements, dtype, self.mapping.site)

    def sum_moved_bytes(
        self, outer: LoopOrder, inner: LoopOrder | None
    ) -> tuple[dict[tuple[str, str], Numbers], dict[tuple[str, str], Numbers], Numbers]:
        """Sums the bytes that each memory reads and writes, by operand, and the bytes of the array.

        Without an inner order, the bytes are lower bounds over all inner orders.
        """
        number, batch = len(self.tiles), self.mapping.batch
        reads: dict[tuple[str, str], Numbers] = {}
        writes: dict[tuple[str, str], Numbers] = {}
        inner_bytes = np.zeros(number, dtype=np.int64)
        outermost = self.machine.memories[0].name

        def add(sizes: dict[tuple[str, str], Numbers], memory: str, operand: str, amount: Numbers) -> None:
            key = memory, operand
            sizes[key] = sizes.get(key, np.zeros(number, dtype=np.int64)) + batch * amount

        for operand, memory in self.holder.items():
            levels = []
            if memory is not None:
                levels.append((self.count_first_loads(operand, outer), outermost, memory.name))
            outside = outermost if memory is None else memory.name
            levels.append((self.count_array_loads(operand, outer, inner), outside, ""))
            for index, (elements, source, target) in enumerate(levels):
                loads, stores = self._count_loads_and_stores(operand, elements, is_first=index == 0)
                add(reads, source, operand, loads)
                add(writes, source, operand, stores)
                if target:
                    add(writes, target, operand, loads)
                    add(reads, target, operand, stores)
                else:
                    inner_bytes = inner_bytes + batch * (loads + stores)
        add(reads, outermost, "C", self._count_epilogue_bytes())
        return reads, writes, inner_bytes

    def _count_loads_and_stores(
        self, operand: Operand, elements: Numbers, *, is_first: bool
    ) -> tuple[Numbers, Numbers]:
        """Returns the bytes that a level loads and stores, if it visits `elements` elements of an operand.

        `is_first` is true for the outermost level that holds the operand.
        """
        if operand != "C":
            return self.count_packed_bytes(elements, self.get_dtype(operand)), np.zeros(
                len(self.tiles), dtype=np.int64
            )
        fresh = np.full(len(elements), self.outputs)
        if self.machine.first_read:
            fresh = np.where(elements > self.outputs, 0, fresh)
        # sums leave the innermost memory that holds them as outputs when they are finished
        finished = self.outputs if is_first else 0
        stores = self.count_packed_bytes(elements - finished, self.mapping.accumulator)
        stores = stores + self.count_packed_bytes(np.full(len(elements), finished), self.mapping.output)
        return self.count_packed_bytes(elements - fresh, self.mapping.accumulator), stores

    def _count_epilogue_bytes(self) -> Numbers:
        """Computes the bytes of bias and residual of one product."""
        M, _, N = self.mapping.size
        epilogue = self.mapping.epilogue
        rows = self.all_parts[0] if self.holder["C"] is None else self.trips[0]
        return rows * N * epilogue.bias_bytes + M * N * epilogue.residual_bytes

    # -- figures

    def compute(self, outer: LoopOrder, inner: LoopOrder | None, *, with_cycles: bool) -> Figures:
        """Computes the figures in a pair of orders, or lower bounds over all inner orders.

        Args:
            outer: Order of the loops of the first level.
            inner: Order of the loops of the array, or None.
            with_cycles: Whether to compute the pipeline of a pair; without it, the cycles are those of the
                slowest memory.
        """
        reads, writes, inner_bytes = self.sum_moved_bytes(outer, inner)
        number = len(self.tiles)
        outermost = self.machine.memories[0].name
        traffic = sum(
            (amount for sizes in (reads, writes) for (name, _), amount in sizes.items() if name == outermost),
            np.zeros(number, dtype=np.int64),
        )
        pj = np.full(number, self.mapping.batch * math.prod(self.mapping.size) * (self.machine.mac_pj or 0.0))
        cycles = np.zeros(number)
        for memory in self.machine.memories:
            totals = []
            for sizes, words, energy in (
                (reads, memory.read_word, memory.read_pj),
                (writes, memory.write_word, memory.write_pj),
            ):
                total = np.zeros(number)
                by_name = {str(key): word for key, word in words.items()}
                for (name, operand), amount in sizes.items():
                    if name == memory.name:
                        total = total + amount
                        pj = pj + amount / by_name.get(operand, 1) * (energy or 0)
                totals.append(total)
            cycles = np.maximum(cycles, _round_up(compute_transfer_time(memory, totals[0], totals[1])))
        if self.has_cycles and (with_cycles or inner is None):
            array = self._sum_array_cycles(inner)
            cycles = np.maximum(cycles, _round_up(self.mapping.batch * array))
            pipeline = (
                self._compute_least_pipeline(outer, array)
                if inner is None
                else self._compute_once(
                    ("pipeline", outer, self.get_array_kind(inner)),
                    lambda: self._compute_pipeline(outer, inner),
                )
            )
            cycles = np.maximum(cycles, _round_up(self.mapping.batch * pipeline))
        return Figures(traffic, inner_bytes, pj, cycles)

    # -- time

    def _compute_array_cycles(self, lengths: _Lengths, inner: LoopOrder) -> Numbers:
        """Computes the cycles of the array for one tile; see `cost`."""
        array = self.machine.hardware.array
        if not self.is_systolic or array is None:
            products = lengths.parts[0] * lengths.parts[1] * lengths.parts[2]
            return products * (math.prod(self.machine.unit) / (self.rate or 1.0))
        rows, columns = array
        row_cycles = rows * columns / self.rate if self.rate is not None else 1.0
        row, column, stream = (lengths.lengths[axis] for axis in dimensions.ARRAY_AXES[DATAFLOWS[inner]])
        folds = -(-row // rows) * -(-column // columns)
        streaming = _round_up(stream * row_cycles)
        cycles: Numbers = rows + folds * np.maximum(streaming, rows) + rows + columns - 2
        if self.machine.overlap == "none":
            cycles = folds * (2 * rows + columns + streaming - 2)
        return cycles

    def get_array_kind(self, inner: LoopOrder) -> str:
        """Returns a key that inner orders with equal cycles share."""
        if any(memory is None for memory in self.holder.values()) or self._has_inner_rates:
            return inner
        return DATAFLOWS[inner] if self.is_systolic else ""

    @property
    def _array_kinds(self) -> tuple[LoopOrder, ...]:
        """One inner order for each different number of cycles of the array."""
        return ("mnk", "knm", "mkn") if self.is_systolic else ("mnk",)

    @cached_property
    def _has_inner_rates(self) -> bool:
        return any(
            rate is not None
            for memory in self.group
            for rate in (memory.bytes_per_cycle, memory.read_bytes_per_cycle, memory.write_bytes_per_cycle)
        )

    def _sum_array_cycles(self, inner: LoopOrder | None) -> Numbers:
        """Adds up the cycles of the array for one product; without an order, the minimum over all orders."""
        if inner is None:
            return _find_smallest(self._sum_array_cycles(kind) for kind in self._array_kinds)

        def count() -> Numbers:
            total = np.zeros(len(self.tiles))
            for m, k, n in itertools.product((False, True), repeat=3):
                number: Any = 1
                for is_last, trips in zip((m, k, n), self.trips, strict=True):
                    number = number * (1 if is_last else trips - 1)
                total = total + number * self._compute_array_cycles(self._get_lengths((m, k, n)), inner)
            return total

        return self._compute_once(("array cycles", DATAFLOWS[inner] if self.is_systolic else ""), count)

    def _get_lengths(self, last: tuple[bool, bool, bool]) -> _Lengths:
        m, k, n = (
            (self.last_lengths if is_last else self.tiles.lengths)[axis] for axis, is_last in enumerate(last)
        )
        a, b, c = ((self.last_parts if is_last else self.parts)[axis] for axis, is_last in enumerate(last))
        return _Lengths((m, k, n), (a, b, c))

    @cached_property
    def _first_lengths(self) -> _Lengths:
        """Lengths of the tile of the first step."""
        is_only = [trips == 1 for trips in self.trips]
        m, k, n = (
            np.where(only, last, tile)
            for only, last, tile in zip(is_only, self.last_lengths, self.tiles.lengths, strict=True)
        )
        a, b, c = (
            np.where(only, last, parts)
            for only, last, parts in zip(is_only, self.last_parts, self.parts, strict=True)
        )
        return _Lengths((m, k, n), (a, b, c))

    @cached_property
    def _overlaps(self) -> dict[Operand, bool]:
        """Whether the transfers of each operand overlap with computation."""
        return {
            operand: memory is not None
            and getattr(memory.buffers, operand) + (memory.buffers.out if operand == "C" else 0) > 1
            for operand, memory in self.holder.items()
        }

    def _count_tile_bytes(self, operand: Operand, lengths: tuple[Numbers, ...], dtype: str) -> Numbers:
        rows, columns = OPERAND_AXES[operand]
        return self.count_packed_bytes(lengths[rows] * lengths[columns], dtype)

    def _count_whole_bytes(self, operand: Operand, dtype: str) -> Numbers:
        rows, columns = OPERAND_AXES[operand]
        elements = self.mapping.size[rows] * self.mapping.size[columns]
        return self.count_packed_bytes(np.full(len(self.tiles), elements), dtype)

    def _reads_first(self, outer: LoopOrder, inner: LoopOrder | None) -> Numbers:
        """Whether the first visit of a sum reads it."""
        if not self.machine.first_read:
            return np.zeros(len(self.tiles), dtype=bool)
        is_held = self.holder["C"] is not None
        loads = self.count_first_loads("C", outer) if is_held else self.count_array_loads("C", outer, inner)
        return loads > self.outputs

    def _count_end_bytes(self, reads_first: Numbers) -> tuple[dict[Operand, Numbers], Numbers]:
        """Computes the bytes of the first load by operand, and the bytes of the last store."""
        sums, output = self.mapping.accumulator, self.mapping.output
        zeros = np.zeros(len(self.tiles), dtype=np.int64)
        first: dict[Operand, Numbers] = {}
        lengths = self._first_lengths.lengths
        for operand, memory in self.holder.items():
            if memory is None:
                continue
            is_kept = operand == self.tiles.keep
            if operand == "C":
                tile = self._count_tile_bytes("C", lengths, sums)
                first["C"] = zeros if is_kept else np.where(reads_first, tile, 0)
            elif is_kept:
                first[operand] = self._count_whole_bytes(operand, self.get_dtype(operand))
            else:
                first[operand] = self._count_tile_bytes(operand, lengths, self.get_dtype(operand))
        last = zeros
        if self.holder["C"] is not None and self.tiles.keep == "C":
            last = self._count_whole_bytes("C", output)
        elif self.holder["C"] is not None:
            last = self._count_tile_bytes("C", tuple(self.last_lengths), output)
        return first, last

    def _compute_least_pipeline(self, outer: LoopOrder, array: Numbers) -> Numbers:
        """Computes a lower bound of the cycles of the pipeline over all inner orders.

        The bound uses sums over all steps: of the transfers that overlap with computation, and of all others.
        """
        no_reads = np.zeros(len(self.tiles), dtype=bool)
        first, last = self._count_end_bytes(no_reads)
        zeros = np.zeros(len(self.tiles), dtype=np.int64)
        passing = [self._count_epilogue_bytes() + zeros, zeros]
        hidden, waiting = [zeros, zeros], [zeros, zeros]
        sums, output = self.mapping.accumulator, self.mapping.output
        for operand, memory in self.holder.items():
            if memory is None:
                dtype = output if operand == "C" else self.get_dtype(operand)
                passing[operand == "C"] = passing[operand == "C"] + self._count_whole_bytes(operand, dtype)
                continue
            moved = hidden if self._overlaps[operand] else waiting
            elements = self.count_first_loads(operand, outer)
            if operand == "C":
                partial = self.count_packed_bytes(elements - self.outputs, sums)
                moved[0] = moved[0] + partial
                moved[1] = moved[1] + partial + self._count_whole_bytes("C", output) - last
            else:
                moved[0] = (
                    moved[0] + self.count_packed_bytes(elements, self.get_dtype(operand)) - first[operand]
                )
        memory = self.machine.memories[0]
        ends = compute_transfer_time(memory, sum(first.values(), np.zeros(1)), 0.0)
        ends = ends + compute_transfer_time(memory, 0.0, last)
        busy = np.maximum(
            array, compute_transfer_time(memory, hidden[0] + passing[0], hidden[1] + passing[1])
        )
        # the last step loads nothing and stores one tile of sums at most; the first step stores nothing
        lengths = tuple(self.tiles.lengths)
        stored_bytes = np.maximum(
            self._count_tile_bytes("C", lengths, sums), self._count_tile_bytes("C", lengths, output)
        )
        loaded = sum(
            (
                self._count_tile_bytes(operand, lengths, self.get_dtype(operand))
                for operand, overlaps in self._overlaps.items()
                if overlaps and operand != self.tiles.keep
            ),
            zeros,
        )
        reads, writes = hidden
        fewer_reads, fewer_writes = np.maximum(reads - loaded, 0), np.maximum(writes - stored_bytes, 0)
        has_several = self.trips[0] * self.trips[1] * self.trips[2] > 1
        first_step = np.where(has_several, self._find_fewest_cycles(False), 0)
        last_step = self._find_fewest_cycles(True)
        busy = np.maximum.reduce(
            [
                busy,
                first_step + compute_transfer_time(memory, fewer_reads, writes),
                compute_transfer_time(memory, reads, fewer_writes) + last_step,
                first_step + compute_transfer_time(memory, fewer_reads, fewer_writes) + last_step,
            ]
        )
        cycles: Numbers = ends + busy + compute_transfer_time(memory, waiting[0], waiting[1])
        return cycles

    def _find_fewest_cycles(self, is_last: bool) -> Numbers:
        """Computes the fewest cycles of the array in the first or in the last step, of all inner orders."""
        lengths = self._get_lengths((True, True, True)) if is_last else self._first_lengths
        return _find_smallest(self._compute_array_cycles(lengths, kind) for kind in self._array_kinds)

    def _compute_pipeline(self, outer: LoopOrder, inner: LoopOrder) -> Numbers:
        """Computes the cycles of one product as a pipeline over the tiles of the first level; see `cost`."""
        steps = self._compute_once(("steps", outer), lambda: _Steps(self, outer))
        memory = self.machine.memories[0]
        sums, output = self.mapping.accumulator, self.mapping.output
        reads_first = self._reads_first(outer, inner)
        hidden: list[Any] = [0, 0]
        waiting: list[Any] = [0, 0]
        for operand, holder in self.holder.items():
            if holder is None:
                reads, writes = self._count_passing_bytes(operand, inner, steps, reads_first)
                hidden = [hidden[0] + reads, hidden[1] + writes]
                continue
            if operand == self.tiles.keep:
                continue
            moved = hidden if self._overlaps[operand] else waiting
            loads = steps.changes_after(operand)
            if operand == "C":
                loads = loads & ~(steps.starts_sums_after & ~reads_first)
            moved[0] = moved[0] + np.where(
                loads, self._count_tile_bytes(operand, steps.after, self.get_dtype(operand)), 0
            )
            if operand == "C":
                stored_bytes = np.where(
                    steps.finishes_sums_before,
                    self._count_tile_bytes("C", steps.before, output),
                    self._count_tile_bytes("C", steps.before, sums),
                )
                moved[1] = moved[1] + np.where(steps.changes_before("C"), stored_bytes, 0)
        epilogue = self.mapping.epilogue
        if epilogue.bias_bytes or epilogue.residual_bytes:
            m, _, n = steps.now.lengths
            rows = steps.now.parts[0] if self.holder["C"] is None else 1
            fused = rows * n * epilogue.bias_bytes + m * n * epilogue.residual_bytes
            hidden[0] = hidden[0] + np.where(steps.finishes_sums, fused, 0)
        computing = self._compute_step_cycles(steps.now, inner)
        each = np.maximum(computing, compute_transfer_time(memory, hidden[0], hidden[1]))
        each = each + compute_transfer_time(memory, waiting[0], waiting[1])
        first, last = self._count_end_bytes(reads_first)
        ends = compute_transfer_time(memory, sum(first.values(), np.zeros(1)), 0.0)
        ends = ends + compute_transfer_time(memory, 0.0, last)
        cycles: Numbers = ends + (each * steps.weights).sum(axis=(0, 1, 2))
        return cycles

    def _count_passes(self, operand: Operand, inner: LoopOrder, lengths: _Lengths) -> Numbers:
        """Counts how often the array loads an operand within one step."""
        third_parts = lengths.parts[_get_independent_axis(operand)]
        if not self.machine.registers:
            return third_parts
        turns: Any = False
        for axis in self._list_inside_axes(operand, inner):
            turns = turns | (lengths.parts[axis] > 1)
        return np.where(turns, third_parts, 1)

    def _count_passing_bytes(
        self, operand: Operand, inner: LoopOrder, steps: _Steps, reads_first: Numbers
    ) -> tuple[Any, Any]:
        """Computes the bytes that each step reads and writes of an operand that bypasses the first level."""
        rows, columns = OPERAND_AXES[operand]
        now = steps.now
        elements = now.lengths[rows] * now.lengths[columns]
        loads = elements * self._count_passes(operand, inner, now)
        stays = (now.parts[rows] * now.parts[columns] == 1) if self.machine.registers else np.array(False)
        is_kept_before = stays & ~steps.changes_before(operand) & ~steps.is_start
        if operand != "C":
            return self.count_packed_bytes(np.where(is_kept_before, 0, loads), self.get_dtype(operand)), 0
        is_kept_after = stays & ~steps.changes_after("C") & ~steps.is_end
        is_fresh = steps.starts_sums & ~reads_first
        read_elements = np.where(is_kept_before, 0, np.where(is_fresh, loads - elements, loads))
        finished = np.where(steps.finishes_sums, elements, 0)
        writes = self.count_packed_bytes(loads - finished, self.mapping.accumulator)
        writes = writes + self.count_packed_bytes(finished, self.mapping.output)
        return self.count_packed_bytes(read_elements, self.mapping.accumulator), np.where(
            is_kept_after, 0, writes
        )

    def _compute_step_cycles(self, now: _Lengths, inner: LoopOrder) -> Numbers:
        """Computes the cycles of each step: the array, or a memory of the first level that is slower."""
        cycles = self._compute_array_cycles(now, inner)
        if not self._has_inner_rates:
            return cycles
        for memory in self.group:
            reads: Any = 0
            writes: Any = 0
            for operand, (rows, columns) in OPERAND_AXES.items():
                if operand not in memory.holds:
                    continue
                elements = now.lengths[rows] * now.lengths[columns]
                loads = elements * self._count_passes(operand, inner, now)
                if operand == "C":
                    reads = reads + self.count_packed_bytes(loads - elements, self.mapping.accumulator)
                    writes = writes + self.count_packed_bytes(loads, self.mapping.accumulator)
                else:
                    reads = reads + self.count_packed_bytes(loads, self.get_dtype(operand))
            cycles = np.maximum(cycles, compute_transfer_time(memory, reads, writes))
        return cycles


class _Steps:
    """Representative steps of the loops of the first level: four positions of each loop.

    The positions are the first, one in the middle, the last but one and the last. All arrays have an axis for
    each loop, from the outermost in, and an axis for the tiles.

    Attributes:
        weights: Number of steps that each position represents.
        now: Lengths of the tile of each step.
        after: Lengths of the tile of the next step.
        before: Lengths of the tile of the step before.
        is_start: Whether a step is the first step.
        is_end: Whether a step is the last step.
        starts_sums: Whether a step visits its sums for the first time.
        finishes_sums: Whether a step visits its sums for the last time.
        starts_sums_after: Whether the next step visits its sums for the first time.
        finishes_sums_before: Whether the step before visits its sums for the last time.
    """

    def __init__(self, figures: TileFigures, outer: LoopOrder) -> None:
        number = len(figures.tiles)
        axes = [AXES.index(axis) for axis in outer]
        is_first, is_last, weights = [], [], []
        now: list[Any] = [None] * 3
        parts: list[Any] = [None] * 3
        after: list[Any] = [None] * 3
        before: list[Any] = [None] * 3
        one_further: list[Any] = []
        for depth, axis in enumerate(axes):
            trips = figures.trips[axis]
            shape = [1, 1, 1, number]
            shape[depth] = 4

            def place(rows: list[Numbers], shape: list[int] = shape) -> Numbers:
                return np.stack(rows).reshape(shape)

            tile, last = figures.tiles.lengths[axis], figures.last_lengths[axis]
            yes, no = np.ones(number, dtype=bool), np.zeros(number, dtype=bool)
            weights.append(
                place([yes.astype(int), np.maximum(trips - 3, 0), (trips >= 3) * 1, (trips >= 2) * 1])
            )
            is_first.append(place([yes, no, no, no]))
            is_last.append(place([trips == 1, no, no, yes]))
            now[axis] = np.where(is_last[-1], last, tile)
            parts[axis] = np.where(is_last[-1], figures.last_parts[axis], figures.parts[axis])
            one_further.append(np.where(place([trips == 2, no, yes, no]), last, tile))
        self.weights = weights[0] * weights[1] * weights[2]
        # the innermost loop advances at each step; an outer loop advances when the loops inside it restart
        moves_on = (is_last[2] & is_last[1], is_last[2], np.array(True))
        moves_back = (is_first[2] & is_first[1], is_first[2], np.array(True))
        self.is_end = is_last[0] & is_last[1] & is_last[2]
        self.is_start = is_first[0] & is_first[1] & is_first[2]
        changed_after: list[Any] = [None] * 3
        changed_before: list[Any] = [None] * 3
        for depth, axis in enumerate(axes):
            trips, tile = figures.trips[axis], figures.tiles.lengths[axis]
            last = figures.last_lengths[axis]
            first = np.where(trips == 1, last, tile)
            next_length = np.where(is_last[depth], first, one_further[depth])
            after[axis] = np.where(moves_on[depth], next_length, now[axis])
            previous_length = np.where(is_first[depth], last, tile)
            before[axis] = np.where(moves_back[depth], previous_length, now[axis])
            changed_after[axis] = moves_on[depth] & (trips > 1) & ~self.is_end
            changed_before[axis] = moves_back[depth] & (trips > 1) & ~self.is_start
        self.now = _Lengths((now[0], now[1], now[2]), (parts[0], parts[1], parts[2]))
        self.after = after[0], after[1], after[2]
        self.before = before[0], before[1], before[2]
        self._changed_after, self._changed_before = changed_after, changed_before
        depth = outer.index("k")
        self.starts_sums, self.finishes_sums = is_first[depth], is_last[depth]
        self.starts_sums_after = np.where(moves_on[depth], is_last[depth], is_first[depth])
        self.finishes_sums_before = np.where(moves_back[depth], is_first[depth], is_last[depth])

    def changes_after(self, operand: Operand) -> Numbers:
        """Whether the next step needs another tile of an operand; False at the last step."""
        rows, columns = OPERAND_AXES[operand]
        changes: Numbers = self._changed_after[rows] | self._changed_after[columns]
        return changes

    def changes_before(self, operand: Operand) -> Numbers:
        """Whether the previous step needs another tile of an operand; False at the first step."""
        rows, columns = OPERAND_AXES[operand]
        changes: Numbers = self._changed_before[rows] | self._changed_before[columns]
        return changes


def _find_smallest(rows: Iterable[Numbers]) -> Numbers:
    """Returns the smallest entry of each tile."""
    smallest: Numbers = np.minimum.reduce(list(rows))
    return smallest


def _get_independent_axis(operand: Operand) -> int:
    """Returns the axis on which an operand does not depend."""
    return 3 - sum(OPERAND_AXES[operand])


def compute_transfer_time(memory: MachineMemory, reads: Any, writes: Any) -> Numbers:
    """Computes the cycles in which a memory moves bytes, 0 if none of its rates is known."""
    time: Any = np.zeros(1)
    for rate, amount in (
        (memory.bytes_per_cycle, reads + writes),
        (memory.read_bytes_per_cycle, reads),
        (memory.write_bytes_per_cycle, writes),
    ):
        if rate:
            time = np.maximum(time, amount / rate)
    return np.asarray(time)


def _round_up(time: Numbers) -> Numbers:
    """Rounds up to whole cycles; the result never exceeds the exact result, despite rounding errors."""
    return np.ceil(time * (1 - _ROUNDING) - _ROUNDING)


def get_operand_dtype(mapping: SiteMapping, operand: Operand) -> str:
    """Returns the number type of an operand; for C, the number type of the sums."""
    return {"A": mapping.dtype, "B": mapping.right_dtype, "C": mapping.accumulator}[operand]


def count_packed_bytes(elements: Numbers, dtype: str, site: str) -> Numbers:
    """Computes the bytes of densely packed elements of a number type."""
    return dimensions.count_packed_bytes(elements, dimensions.get_type_bits(dtype, site))
