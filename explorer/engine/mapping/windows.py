"""Counts the elements of a convolution's input that each memory loads if it does not gather the windows.

A mapping counts a convolution as the matmul of its windows: A has a row for each position, and a column for
each channel and tap, so neighboring windows repeat elements. A memory that holds the input itself loads only
new elements: when a window moves by one position, its new column. This is how Timeloop counts inputs with
sliding windows. K is in the order of a stored kernel: channel by channel, the taps within.

The count visits the tiles of A in order. Loops over N repeat the tiles of the loops inside. Only their first
and second iterations are visited; the second represents all later iterations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from explorer.engine.graph.interpreter import Wiring
from explorer.engine.graph.model import Model
from explorer.engine.mapping.cost import build_nest, get_operand_bits
from explorer.engine.mapping.nest import AXES, Nest, Triple, compute_core_part
from explorer.engine.proof.sites.proof import find_original
from explorer.engine.proof.symbolic.blocks import NotTiled
from explorer.engine.tiling.cost import dimensions
from explorer.facts import SitePlan
from explorer.facts.mapping import MappingCost, MemoryMachine, WindowMoves

_Ids: TypeAlias = "npt.NDArray[np.int64]"
_MAX_ELEMENTS = 1 << 24
"""Maximum number of elements of A whose windows are counted."""
_MAX_TILES = 1 << 15
"""Maximum number of tiles that are visited for one memory."""
_CONVOLUTIONS = ("Conv", "ConvInteger", "QLinearConv")
"""Convolutions whose windows are counted."""


def list_window_elements(
    model: Model, plan: SitePlan, shape_of: Callable[[str], tuple[int, ...] | None]
) -> _Ids | None:
    """Lists the element of the input behind each element of A of the first group.

    Args:
        model: The model.
        plan: The site.
        shape_of: Function that returns the shape of a value, or None if it is not known.

    Returns:
        Numbers of elements from 1, or 0 for padding, of shape (M, K). None if the site is not a convolution,
        is inside a body, or is too large.
    """
    if plan.is_in_body or plan.M * plan.K > _MAX_ELEMENTS:
        return None
    try:
        original = find_original(model, plan.output, plan, Wiring.from_graph(model.graph))
        if original is None or original.node.op not in _CONVOLUTIONS:
            return None
        shapes, output = [shape_of(name) for name in original.inputs], shape_of(original.output)
        if output is None or any(shape is None for shape in shapes):
            return None
        meaning = original.spec_for([shape or () for shape in shapes], output)
    except NotTiled:
        return None
    if (meaning.batch, meaning.M, meaning.K) != (plan.batch, plan.M, plan.K):
        return None
    size, channels = shapes[0] or (), int((shapes[0] or (0, 0))[1]) // plan.batch
    elements = np.arange(1, math.prod(size) + 1).reshape(size)
    rows = meaning.left([elements, *(np.empty(0),) * (len(shapes) - 1)])(0, slice(0, plan.M))
    by_tap = np.asarray(rows, np.int64).reshape(plan.M, -1, channels)
    return np.ascontiguousarray(by_tap.swapaxes(1, 2).reshape(plan.M, plan.K))


def count_window_moves(cost: MappingCost, machine: MemoryMachine, elements: _Ids) -> tuple[WindowMoves, ...]:
    """Counts what each memory that holds A loads of the input itself.

    Args:
        cost: Cost of the mapping of a convolution.
        machine: The machine.
        elements: Elements of the input, as `list_window_elements` returns them.

    Returns:
        Bytes for each memory, from the outermost in. Bytes are None if there are too many tiles.
    """
    mapping = cost.mapping
    nest, bits = build_nest(mapping, machine), get_operand_bits(mapping, "A")
    moves = []
    for move in cost.moves:
        if move.operand != "A" or move.level == len(nest.levels) - 1:
            continue
        counted = _TileVisitor(nest, move.level, elements).run()
        loads, reads = (
            None if number is None else mapping.batch * dimensions.count_packed_bytes(number, bits)
            for number in counted or (None, None)
        )
        moves.append(WindowMoves(move.memory, move.outside, loads, reads, move.loads))
    return tuple(moves)


class _Core(NamedTuple):
    """A core with its part of the tile of the current loops.

    Attributes:
        position: Position of the core along M, K and N at each level.
        starts: First element along M, K and N.
        lengths: Elements along M, K and N.
    """

    position: tuple[Triple, ...]
    starts: Triple
    lengths: Triple


class _TileVisitor:
    """Visits the tiles of A at one level of a nest in order, with all cores side by side."""

    def __init__(self, nest: Nest, level: int, elements: _Ids) -> None:
        self._nest, self._elements = nest, elements
        self._holders = [index for index in nest.list_holders("A") if index <= level]
        self._level = level
        self._held: dict[tuple[int, tuple[Triple, ...]], Any] = {}
        self._parts: dict[tuple[int, int, int, int], _Ids] = {}
        self._loads = self._reads = 0

    def run(self) -> tuple[int, int] | None:
        """Counts the elements loaded by all cores, and the elements read from the memory outside.

        Returns:
            Both numbers, or None if there are too many tiles.
        """
        nest = self._nest
        tiles = math.prod(
            math.prod(-(-outer // inner) for outer, inner in zip(outside, level.tile[:2], strict=True))
            * min(2, -(-size // level.tile[2]))
            for outside, size, level in zip(
                (nest.size[:2], *(level.tile[:2] for level in nest.levels)),
                (nest.size[2], *(level.tile[2] for level in nest.levels)),
                nest.levels[: self._level + 1],
                strict=False,
            )
        )
        if tiles > _MAX_TILES:
            return None
        self._run_loops(0, 0, [_Core((), (0, 0, 0), nest.size)])
        return self._loads, self._reads

    def _run_loops(self, level: int, position: int, cores: Sequence[_Core]) -> None:
        """Runs the loops from a position of a level inward."""
        step = self._nest.levels[level]
        if position == len(step.order):
            inner = [part for core in cores for part in self._divide_among_cores(core, level)]
            if level in self._holders:
                self._load_tiles(level, inner)
            if level < self._level:
                self._run_loops(level + 1, 0, inner)
            return
        axis = AXES.index(step.order[position])
        chunk = step.tile[axis] * step.split[axis]
        trips = max(-(-core.lengths[axis] // chunk) for core in cores)
        iteration_counts = 0, 0
        for trip in range(trips):
            if axis == 2 and trip > 1 and all((trip + 1) * chunk <= core.lengths[axis] for core in cores):
                # full iterations over N are equal, from the second on
                self._loads += iteration_counts[0]
                self._reads += iteration_counts[1]
                continue
            before = self._loads, self._reads
            inside = [
                core._replace(
                    starts=_replace_axis(core.starts, axis, core.starts[axis] + trip * chunk),
                    lengths=_replace_axis(core.lengths, axis, min(chunk, core.lengths[axis] - trip * chunk)),
                )
                for core in cores
                if core.lengths[axis] > trip * chunk
            ]
            self._run_loops(level, position + 1, inside)
            iteration_counts = self._loads - before[0], self._reads - before[1]

    def _divide_among_cores(self, core: _Core, level: int) -> Iterator[_Core]:
        """Yields the cores inside a core that have a part of its tile."""
        step = self._nest.levels[level]
        for index in itertools.product(*(range(number) for number in step.split)):
            lengths = tuple(
                compute_core_part(length, tile, number)
                for length, tile, number in zip(core.lengths, step.tile, index, strict=True)
            )
            if all(lengths):
                starts = tuple(
                    start + number * tile
                    for start, tile, number in zip(core.starts, step.tile, index, strict=True)
                )
                yield _Core((*core.position, index), starts, lengths)  # type: ignore[arg-type]

    def _load_tiles(self, level: int, cores: Sequence[_Core]) -> None:
        """Loads the tiles of a level. A memory drops its tile when a memory outside it loads another tile."""
        keeps_whole = "A" in self._nest.levels[level].keep
        new_elements_by_core: dict[tuple[Triple, ...], list[_Ids]] = {}
        outer = max((holder for holder in self._holders if holder < level), default=-1)
        for core in cores:
            tile = (core.starts[0], core.lengths[0], core.starts[1], core.lengths[1])
            if keeps_whole:
                tile = (0, self._nest.size[0], 0, self._nest.size[1])
            key = level, core.position
            earlier_tile = self._held.get(key)
            if earlier_tile == tile:
                continue
            self._held[key] = tile
            for inner_key in [
                inner_key
                for inner_key in self._held
                if inner_key[0] > level and inner_key[1][: level + 1] == core.position
            ]:
                if "A" not in self._nest.levels[inner_key[0]].keep:
                    del self._held[inner_key]
            if level == self._level:
                new_elements = self._list_elements(*tile)
                if earlier_tile is not None:
                    new_elements = np.setdiff1d(
                        new_elements, self._list_elements(*earlier_tile), assume_unique=True
                    )
                self._loads += len(new_elements)
                new_elements_by_core.setdefault(core.position[: outer + 1], []).append(new_elements)
        for parts in new_elements_by_core.values():
            self._reads += len(parts[0]) if len(parts) == 1 else len(np.unique(np.concatenate(parts)))

    def _list_elements(self, row: int, rows: int, column: int, columns: int) -> _Ids:
        """Returns the different elements of the input in a tile of A, without padding."""
        key = row, rows, column, columns
        part = self._parts.get(key)
        if part is None:
            part = np.unique(self._elements[row : row + rows, column : column + columns])
            part = self._parts[key] = part[part > 0]
        return part


def _replace_axis(triple: Triple, axis: int, number: int) -> Triple:
    """Returns a triple with another number at one axis."""
    m, k, n = (number if index == axis else each for index, each in enumerate(triple))
    return m, k, n
