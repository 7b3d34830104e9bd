"""Runs the loops of a mapping in NumPy, with the buffers and counters of the emitted C code.

This replaces a run of the C code of `emit_c` on a machine without a compiler. The numbers and the counted
bytes are the same.
"""

from __future__ import annotations

import itertools
from typing import Any, TypeAlias

import numpy as np

from explorer.engine.mapping.cost import build_nest, find_epilogue_level
from explorer.engine.mapping.emit_c import COUNTERS, EpilogueStep
from explorer.engine.mapping.nest import AXES, OPERAND_AXES, Operand, Triple, find_reduction_level
from explorer.engine.mapping.proof import RunInputs, RunResult
from explorer.facts.mapping import MemoryMachine, SiteMapping

_Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_Place = tuple[int, int, int, int]
"""First row, first column, rows and columns of a tile."""

_EMPTY = -1, 0, 0, 0
"""Place of an empty buffer."""


class _Tile:
    """Buffer of an instance of a level for one operand.

    Attributes:
        place: Place of the tile in the matrix; its first row is -1 if the buffer is empty.
        k_end: End of the last range of K that was added to the sums.
        values: Elements of the tile.
        finished: Outputs of the tile, in the output's type.
    """

    __slots__ = ("finished", "k_end", "place", "values")

    def __init__(self, values: _Array, finished: _Array) -> None:
        self.place: _Place = _EMPTY
        self.k_end = 0
        self.values, self.finished = values, finished


def finish_sums(
    sums: _Array, steps: tuple[EpilogueStep, ...], inputs: RunInputs, index: int, output: np.dtype[Any]
) -> _Array:
    """Applies the epilogue to all sums of one product; see `EpilogueStep`.

    Args:
        sums: Sums of shape (M, N).
        steps: Operators of the epilogue.
        inputs: Values of bias, scale, offset and residual.
        index: Index of the product in the batch.
        output: Number type of the output.
    """
    return _finish(sums, steps, inputs, index, (slice(None), slice(None)), output)


def _finish(
    sums: _Array,
    steps: tuple[EpilogueStep, ...],
    inputs: RunInputs,
    index: int,
    part: tuple[slice, slice],
    output: np.dtype[Any],
) -> _Array:
    """Applies the epilogue to a part of the sums of one product."""
    rows, columns = part
    real = sums.dtype if sums.dtype.kind == "f" else np.dtype(np.float32)
    value = sums
    for step in steps:
        low, high = (real.type(number) for number in (step.low, step.high))
        if step.kind == "bias" and inputs.bias is not None:
            value = value + inputs.bias[index, columns]
        elif step.kind == "scale":
            factor = low if step.low or inputs.scale is None else inputs.scale[index, columns]
            value = value.astype(real) * factor
        elif step.kind == "offset" and inputs.offset is not None:
            value = value.astype(real) + inputs.offset[index, columns]
        elif step.kind == "residual" and inputs.residual is not None:
            value = value + inputs.residual[index, rows, columns]
        elif step.kind == "relu":
            value = np.maximum(value, 0)
        elif step.kind == "clip" and value.dtype.kind == "i":
            limits = np.iinfo(value.dtype)
            value = np.clip(value, int(max(step.low, limits.min)), int(min(step.high, limits.max)))
        elif step.kind == "clip":
            value = np.minimum(np.maximum(value, low), high)
        elif step.kind in ("quantize", "requantize"):
            value = value.astype(real)
            scaled = value / low if step.kind == "quantize" else value * low
            limits = np.iinfo(output)
            value = np.clip(np.rint(scaled) + high, limits.min, limits.max)
    return value.astype(output)


def walk_nest(
    mapping: SiteMapping, machine: MemoryMachine, inputs: RunInputs, steps: tuple[EpilogueStep, ...] = ()
) -> RunResult:
    """Runs the loops of a mapping on values, in NumPy.

    Args:
        mapping: The mapping.
        machine: The machine, for its memories and what they hold.
        inputs: Values of the operands.
        steps: Operators of the epilogue.

    Raises:
        Misuse: The mapping does not match the machine.
    """
    walker = _Walker(mapping, machine, inputs, steps)
    return RunResult(
        np.stack([walker.compute_product(index) for index in range(len(inputs.A))]), walker.counters
    )


class _Walker:
    """Runs the loops of one site as the C code of `emit_c` does.

    Attributes:
        finishing, last, adding, instances: As in `emit_c`.
        counters: Bytes so far, by level and counter name.
        outside: Next outer level that holds an operand, by (operand, level); -1 for the outermost memory.
        seen: For each tile of sums, the last visit in which it was loaded. The key is the level, the instance
            of the level `adding`, and the first row and column.
        visits: Number of visits of each instance of the level `adding`.
        added: First row and column of the tiles of sums that cores have added to.
        cores, ids: Current core of each level along M, K and N, and its index among all instances.
    """

    def __init__(
        self, mapping: SiteMapping, machine: MemoryMachine, inputs: RunInputs, steps: tuple[EpilogueStep, ...]
    ) -> None:
        self.nest = build_nest(mapping, machine)
        self.inputs, self.steps, self.epilogue = inputs, steps, mapping.epilogue
        self.types = {
            "A": inputs.A.dtype,
            "B": inputs.B.dtype,
            "C": np.dtype(mapping.accumulator),
            "O": np.dtype(mapping.epilogue.output or mapping.accumulator),
        }
        self.finishing, self.last = find_epilogue_level(self.nest), len(self.nest.levels) - 1
        self.adding = find_reduction_level(self.nest)
        self.instances = self.nest.count_instances()
        self.counters = {(level, name): 0 for level in range(self.last + 1) for name in COUNTERS}
        self.outside = {
            (operand, level): max((i for i in self.nest.list_holders(operand) if i < level), default=-1)
            for operand in OPERAND_AXES
            for level in range(self.last + 1)
        }

    def compute_product(self, index: int) -> _Array:
        """Computes one product of the batch."""
        M, _, N = self.nest.size
        self.index = index
        self.matrices = {"A": self.inputs.A[index], "B": self.inputs.B[index]}
        self.sums = self.matrices["C"] = np.zeros((M, N), self.types["C"])
        self.output = np.zeros((M, N), self.types["O"])
        self.tiles: dict[tuple[str, int], list[_Tile]] = {}
        for level, operands in enumerate(self.nest.holds):
            for operand in operands:
                shape = self.nest.get_buffer_size(operand, level)  # type: ignore[arg-type]
                self.tiles[operand, level] = [
                    _Tile(
                        np.zeros(shape, self.types[operand]),
                        np.zeros(shape if operand == "C" else (0, 0), self.types["O"]),
                    )
                    for _ in range(self.instances[level])
                ]
        self.seen: dict[tuple[int, int, int, int], int] = {}
        self.visits = [0] * (self.instances[self.adding] if self.adding is not None else 0)
        self.added: set[tuple[int, int]] = set()
        self.cores: list[Triple] = [(0, 0, 0)] * (self.last + 1)
        self.ids = [0] * (self.last + 1)
        self._run_loops(0, (0, 0, 0), self.nest.size, 0)
        outermost = self.nest.list_holders("C")[0]
        for instance in range(self.instances[outermost]):
            self._flush(outermost, instance, self._is_first_core(instance, outermost, -1))
        return self.output

    def _run_loops(self, level: int, start: Triple, lengths: Triple, instance: int) -> None:
        """Runs the loops of a level over a tile at `start`, on one instance of the outer level."""
        step = self.nest.levels[level]
        order = [AXES.index(axis) for axis in step.order]
        chunks = [tile * split for tile, split in zip(step.tile, step.split, strict=True)]
        trips = [range(start[axis], start[axis] + lengths[axis], chunks[axis]) for axis in order]
        ends = [first + length for first, length in zip(start, lengths, strict=True)]
        cores = list(itertools.product(*(range(count) for count in step.split)))
        for places in itertools.product(*trips):
            position = [0, 0, 0]
            for axis, place in zip(order, places, strict=True):
                position[axis] = place
            for number, core in enumerate(cores):
                m, k, n = (position[axis] + core[axis] * step.tile[axis] for axis in range(3))
                if m >= ends[0] or k >= ends[1] or n >= ends[2]:
                    continue
                size = (
                    min(step.tile[0], ends[0] - m),
                    min(step.tile[1], ends[1] - k),
                    min(step.tile[2], ends[2] - n),
                )
                self.cores[level] = (core[0], core[1], core[2])
                self.ids[level] = instance * len(cores) + number
                for operand in self.nest.holds[level]:
                    self._load(operand, level, (m, k, n), size)  # type: ignore[arg-type]
                if level == self.last:
                    self._multiply(size)
                else:
                    self._run_loops(level + 1, (m, k, n), size, self.ids[level])

    def _multiply(self, size: Triple) -> None:
        """Multiplies the tiles in the array's buffers and adds the product to its sums."""
        a, b, c = (self.tiles[operand, self.last][self.ids[self.last]].values for operand in "ABC")
        left, right = a[: size[0], : size[1]], b[: size[1], : size[2]]
        target = c[: size[0], : size[2]]
        if target.dtype.kind == "f":
            target += left.astype(target.dtype) @ right.astype(target.dtype)
            return
        # products of bytes and 16-bit integers are exact in float64
        zeros = self.inputs.zero_a, self.inputs.zero_b
        products = (left.astype(np.float64) - zeros[0]) @ (right.astype(np.float64) - zeros[1])
        target += products.astype(np.int64).astype(target.dtype)

    def _load(self, operand: Operand, level: int, start: Triple, size: Triple) -> None:
        """Makes the current instance of a level hold the tile of an operand at `start`."""
        rows, columns = OPERAND_AXES[operand]
        keeps = operand in self.nest.levels[level].keep
        instance = self.ids[level]
        tile = self.tiles[operand, level][instance]
        matrix_place = (0, 0, self.nest.size[rows], self.nest.size[columns])
        place = matrix_place if keeps else (start[rows], start[columns], size[rows], size[columns])
        if tile.place != place:
            self._replace(operand, level, tile, place)
        if operand == "C":
            tile.k_end = start[1] + size[1]

    def _replace(self, operand: Operand, level: int, tile: _Tile, place: _Place) -> None:
        """Loads another tile into a buffer, after sending the sums of the old tile outside."""
        instance = self.ids[level]
        if operand == "C":
            self._flush(level, instance, self._is_first_core_of_tile(operand, level))
        else:
            for inner in self.nest.list_holders(operand):
                if inner > level:
                    each = self.instances[inner] // self.instances[level]
                    for part in self.tiles[operand, inner][instance * each : (instance + 1) * each]:
                        part.place = _EMPTY
        tile.place, tile.k_end = place, 0
        if operand == "C":
            if level == self.adding:
                tile.values[:] = 0
                self.visits[instance] += 1
                return
            owner, visit = 0, 1
            if self.adding is not None and level > self.adding:
                owner = self.ids[self.adding]
                visit = self.visits[owner]
            key = (level, owner, place[0], place[1])
            if self.seen.get(key) != visit:
                tile.values[:] = 0
                self.seen[key] = visit
                return
        self._copy(operand, level, tile)
        size = place[2] * place[3] * self.types[operand].itemsize
        self.counters[level, f"{operand} loads"] += size
        if operand == "C" or self._is_first_core_of_tile(operand, level):
            self.counters[level, f"{operand} reads"] += size

    def _copy(self, operand: Operand, level: int, tile: _Tile) -> None:
        """Copies the elements of a tile from the outer level into its buffer."""
        row, column, rows, columns = tile.place
        outer = self.outside[operand, level]
        source = self.matrices[operand]
        if outer >= 0:
            origin = self.tiles[operand, outer][self.ids[outer]]
            source = origin.values
            row, column = row - origin.place[0], column - origin.place[1]
        tile.values[:rows, :columns] = source[row : row + rows, column : column + columns]

    def _is_first_core_of_tile(self, operand: Operand, level: int) -> bool:
        """Whether the current core is the first of the cores that need the same tile from outside."""
        axis = 3 - sum(OPERAND_AXES[operand])
        return all(
            self.cores[index][axis] == 0 for index in range(self.outside[operand, level] + 1, level + 1)
        )

    def _is_first_core(self, instance: int, inner: int, level: int) -> bool:
        """Whether a core inside an instance of a level is the first along K."""
        below = 1
        for index in range(inner, level, -1):
            m, k, n = self.nest.levels[index].split
            if (instance // (below * n)) % k:
                return False
            below *= m * k * n
        return True

    def _flush(self, level: int, instance: int, first: bool) -> None:
        """Sends a tile of sums outside, innermost tiles first."""
        tile = self.tiles["C", level][instance]
        if tile.place[0] < 0:
            return
        inner = next((i for i in self.nest.list_holders("C") if i > level), None)
        if inner is not None:
            each = self.instances[inner] // self.instances[level]
            for i in range(each):
                self._flush(inner, instance * each + i, self._is_first_core(i, inner, level))
        finishes = level <= self.finishing
        finished = finishes and tile.k_end == self.nest.size[1]
        self._store(level, instance, tile, finished)
        rows, columns = tile.place[2:]
        kind = self.types["O"] if finished else self.types["C"]
        size = rows * columns * kind.itemsize
        self.counters[level, "C stores"] += size
        if level != self.adding:
            self.counters[level, "C writes"] += size
        elif first:
            self.counters[level, "C writes"] += size
            corner = (tile.place[0], tile.place[1])
            if corner in self.added:
                self.counters[level, "C reads"] += size
            self.added.add(corner)
        if finished and level == self.finishing:
            step = self.nest.levels[level]
            times = -(-rows // step.tile[0]) if "C" in step.keep else 1
            self.counters[level, "bias reads"] += times * columns * self.epilogue.bias_bytes
            self.counters[level, "residual reads"] += rows * columns * self.epilogue.residual_bytes
        tile.place = _EMPTY

    def _store(self, level: int, instance: int, tile: _Tile, finished: bool) -> None:
        """Writes a tile to the outer level: added to its sums, as outputs if `finished`, or as sums."""
        row, column, rows, columns = tile.place
        part = slice(row, row + rows), slice(column, column + columns)
        outer = self.outside["C", level]
        values, finished_values = tile.values[:rows, :columns], tile.finished[:rows, :columns]
        to, output, place = self.sums, self.output, part
        if outer >= 0:
            origin = self.tiles["C", outer][instance // (self.instances[level] // self.instances[outer])]
            to, output = origin.values, origin.finished
            top, left = row - origin.place[0], column - origin.place[1]
            place = slice(top, top + rows), slice(left, left + columns)
        if level == self.adding:
            to[place] += values
            if outer < 0:
                self.output[part] = self._finish_part(to[place], part)
        elif finished and level == self.finishing:
            output[place] = self._finish_part(values, part)
        elif finished:
            output[place] = finished_values
        else:
            to[place] = values

    def _finish_part(self, sums: _Array, part: tuple[slice, slice]) -> _Array:
        return _finish(sums, self.steps, self.inputs, self.index, part, self.types["O"])
