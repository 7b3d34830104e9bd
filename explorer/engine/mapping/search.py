"""Searches for the best mapping of a matrix product to a machine.

The search space has one tile size for each level, in multiples of the unit (the tile of the array), every
order of the loops at every level, and, at the first level, the choice to keep one whole operand.

With one level of memory between the outermost memory and the array, every tile that fits is compared. Lower
bounds over all orders of the inner loops exclude most tiles, so the result is exact for each objective. If
too many tiles fit, only the smallest tile for each number of trips is tried. A larger tile with as many trips
holds more and moves no less, so the least traffic is still exact. A larger tile can leave a smaller partial
tile at the edge, though, and need less energy or fewer cycles.

With more levels of memory, or with several cores, the search computes the most promising mappings.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import MemoryTooSmall, Misuse
from explorer.engine.mapping.bounds import ROUNDING, compute_objective_bound
from explorer.engine.mapping.constraints import Constraints
from explorer.engine.mapping.cost import compute_mapping_cost, count_compulsory_bytes, group_memories
from explorer.engine.mapping.front import find_front, is_undercut
from explorer.engine.mapping.nest import AXES, OPERAND_AXES, Triple
from explorer.engine.mapping.tile_figures import (
    Figures,
    Numbers,
    TileFigures,
    Tiles,
    count_packed_bytes,
    get_operand_dtype,
)
from explorer.facts.mapping import (
    LoopOrder,
    MachineMemory,
    MappingCost,
    MappingSearch,
    MemoryMachine,
    NestLevel,
    Objective,
    SiteMapping,
)

ORDERS: tuple[LoopOrder, ...] = get_args(LoopOrder)
_DATAFLOWS: tuple[LoopOrder, ...] = ("mnk", "knm", "mkn")
"""One order for each operand that stays in the innermost loop."""
_BEST = 5
"""Number of mappings that a search returns."""
_POOL = 30
"""Number of best mappings that the search keeps, and whose exact cost it computes at the end."""
_CERTAIN = 8
"""Number of best mappings that the pruning guarantees: no tile that could be among them is left out."""
_FIRST_LOOK = 8
"""Number of tiles that a search computes first in each branch (an outer order and an operand kept whole)."""
_CHUNK = 1 << 9
"""Number of tiles whose figures are computed at the same time."""
_MAX_PAIRS = 1 << 21
"""Maximum number of pairs of rows and columns for which all tiles are listed."""
_MAX_TILES = 1 << 17
"""Maximum number of tiles that are all compared. With more, one tile for each number of trips is compared."""
_MAX_EVALUATED = 1 << 16
"""Maximum number of tiles that are computed with every inner order."""
_MAX_FRONT_ROUNDS = 8
"""Maximum number of rounds in which the most promising remaining mappings for the Pareto front are
computed."""
_MAX_FRONT_TILES = 1 << 13
"""Number of tiles of a branch above which the front has only the smallest tile for each number of trips."""
_OUTER_TILES = 12
"""Number of outer tiles for which a search over three levels looks for the best inner tile."""


def list_trip_tiles(size: int, unit: int) -> list[int]:
    """Lists the smallest tile for each number of trips along an axis, in multiples of a unit.

    The largest tile is the whole axis.
    """
    units = -(-size // unit)
    tiles = set()
    trips = 1
    while trips <= units:
        tile = -(-units // trips)
        tiles.add(min(tile * unit, size))
        # the next number of trips with a smaller tile
        trips = -(-units // (tile - 1)) if tile > 1 else units + 1
    return sorted(tiles)


def search_mappings(
    mapping: SiteMapping,
    machine: MemoryMachine,
    objective: Objective = "cycles",
    constraints: Constraints | None = None,
    *,
    with_front: bool = False,
) -> MappingSearch:
    """Finds the best mapping of a site to a machine.

    Traffic, cycles, energy and bytes of memory decide between mappings with an equal objective.

    Args:
        mapping: Site with its size, number types and epilogue. Its levels are ignored.
        machine: The machine.
        objective: Figure to minimize.
        constraints: Limits on the tile of the first level, or None.
        with_front: Whether to find the Pareto front as well, which takes as long again.

    Raises:
        Misuse: No tile fits, a constraint leaves no tile, the outermost memory is too small, or the objective
            needs a figure that the machine does not give.
    """
    start = time.perf_counter()
    constraints = constraints or Constraints()
    _check_outermost(mapping, machine)
    groups = group_memories(machine)[1:]
    if not groups and constraints.limits:
        message = f"{machine.hardware.name} has no memory on the chip, so no tile can be limited"
        raise Misuse(message, where="--constrain", hint="leave the limits out, or write order=mnk")
    is_flat = len(groups) == 1 and all(memory.cores == 1 for memory in machine.memories)
    space = _list_whole_space(mapping, machine, constraints) if is_flat else None
    candidates, left_out = space or _list_first_tiles(mapping, machine, constraints)
    least_value = compute_objective_bound(mapping, machine, objective)
    if not groups:
        ranked, count = _compute_array_orders(mapping, machine, constraints)
        key = _build_objective_key(objective, ranked, machine)
        on_front, exact = ranked, True
    elif is_flat:
        # a first mapping shows which figures the machine gives
        smallest = _Entry((), candidates[0].get_tile(0), ORDERS[0], ORDERS[0], "").build_mapping(
            mapping, machine
        )
        smallest_cost = compute_mapping_cost(smallest, machine)
        key = _build_objective_key(objective, [smallest_cost], machine)
        ranking = _Ranking(mapping, machine, objective, constraints, candidates)
        ranking.run()
        ranked, count = ranking.compute_costs(key), ranking.count
        front = ranking.find_front(smallest_cost.pj is not None) if with_front else ()
        on_front = [compute_mapping_cost(entry.build_mapping(mapping, machine), machine) for entry in front]
        value = min(float(key(cost)[0]) for cost in ranked)
        # one tile for each number of trips guarantees only the least traffic, and only without limits
        is_whole = space is not None or (objective == "traffic" and not constraints.limits)
        exact = is_whole and ranking.is_exact(value)
        if is_whole:
            least_value = max(least_value, min(ranking.least_left, ranking.pool[0].ranks[0]))
    else:
        ranked, count = _search_many_levels(mapping, machine, constraints, candidates)
        key = _build_objective_key(objective, ranked, machine)
        on_front, exact = ranked, False
    ordered = sorted(ranked, key=lambda cost: (key(cost), _make_tie_key(cost)))
    value = float(key(ordered[0])[0])
    return MappingSearch(
        best=tuple(_list_distinct(ordered)),
        front=tuple(_list_pareto_front([*ordered, *on_front])) if with_front else (),
        objective=objective,
        count=count,
        left_out=left_out,
        exact=exact or value <= least_value,
        bound=value if exact else min(least_value, value),
        seconds=time.perf_counter() - start,
    )


def _list_distinct(ordered: Sequence[MappingCost]) -> list[MappingCost]:
    """Returns the best mappings that differ in more than the order of the array's loops."""
    by_levels: dict[Any, MappingCost] = {}
    for cost in ordered:
        by_levels.setdefault(cost.mapping.levels[:-1] or cost.mapping.levels, cost)
    return list(by_levels.values())[:_BEST]


def _check_outermost(mapping: SiteMapping, machine: MemoryMachine) -> None:
    """Refuses a product that is larger than the outermost memory.

    Raises:
        MemoryTooSmall: Bytes are missing.
    """
    outermost, needed = machine.memories[0], count_compulsory_bytes(mapping)
    if outermost.size is not None and needed > outermost.size:
        raise MemoryTooSmall(
            f"{mapping.site} needs {needed - outermost.size:,} bytes more",
            where=f"memory '{outermost.name}' of {machine.hardware.name}",
            hint=f"it has {outermost.size:,} bytes, and must hold both operands and the output",
        )


def _make_tie_key(cost: MappingCost) -> tuple[Any, ...]:
    return tuple((level.tile, level.order, level.keep) for level in cost.mapping.levels)


def _build_objective_key(
    objective: Objective, costs: Sequence[MappingCost], machine: MemoryMachine
) -> Callable[[MappingCost], tuple[float, ...]]:
    """Returns a function of a cost: the figure to minimize, then the figures that decide between equal ones.

    Raises:
        Misuse: The machine does not give the figure to minimize.
    """
    figures: dict[Objective, Callable[[MappingCost], tuple[float | None, ...]]] = {
        "cycles": lambda cost: (cost.cycles, cost.traffic, cost.pj),
        "energy": lambda cost: (cost.pj, cost.traffic, cost.cycles),
        "traffic": lambda cost: (cost.traffic, cost.cycles, cost.pj),
        "edp": lambda cost: (cost.edp, cost.traffic, cost.cycles),
    }
    figure = figures[objective]
    if costs and figure(costs[0])[0] is None:
        needed = {
            "cycles": "macs_per_cycle, and bytes_per_cycle of its memories",
            "energy": "mac_pj, and read_pj and write_pj of its memories",
            "edp": "rates, mac_pj, and read_pj and write_pj of its memories",
        }[objective]
        raise Misuse(
            f"machine '{machine.hardware.name}' does not give the {objective} of a mapping",
            where="--objective",
            hint=f"add {needed}; or minimize the traffic: --objective traffic",
        )
    return lambda cost: tuple(
        float(value or 0) for value in (*figure(cost), _sum_held_bytes(cost), _sum_moved_bytes(cost))
    )


def _sum_held_bytes(cost: MappingCost) -> int:
    return sum(memory.held for memory in cost.memories[1:])


def _sum_moved_bytes(cost: MappingCost) -> int:
    return sum(move.loads + move.stores for move in cost.moves)


def _list_pareto_front(costs: Sequence[MappingCost]) -> list[MappingCost]:
    """Lists mappings of which none undercuts another in cycles, energy and bytes on the chip.

    The traffic takes the place of the energy if the machine does not give it.
    """
    energies = [cost.traffic if cost.pj is None else cost.pj for cost in costs]
    points = [(cost.cycles or 0, pj, _sum_held_bytes(cost)) for cost, pj in zip(costs, energies, strict=True)]
    return [costs[index] for index in find_front(np.array(points, np.float64))]


# -- tiles of the first level


def _list_first_tiles(
    mapping: SiteMapping, machine: MemoryMachine, constraints: Constraints
) -> tuple[list[Tiles], dict[str, int]]:
    """Lists the tiles of the first level that fit and meet the constraints, one for each number of trips.

    Returns:
        The tiles, for each operand kept whole, and the number of tiles that were left out, by reason.

    Raises:
        Misuse: No tile fits, or a constraint leaves none.
    """
    groups = group_memories(machine)[1:]
    if not groups:
        return [], {}
    m, k, n = _list_smallest_tiles(mapping, machine).lengths
    left_out: Counter[str] = Counter()
    allowed = np.ones(len(m), dtype=bool)
    for text, is_within in constraints.list_masks((m, k, n)):
        left_out[text] += int((allowed & ~is_within).sum())
        allowed &= is_within
        if not allowed.any():
            raise Misuse(
                f"no tile of {mapping.site} meets '{text}'",
                where="--constrain",
                hint=f"sizes: M {mapping.size[0]}, K {mapping.size[1]}, N {mapping.size[2]}",
            )
    tiles = Tiles((m[allowed], k[allowed], n[allowed]), "")
    fits = np.ones(len(tiles), dtype=bool)
    for memory in groups[0]:
        if memory.size is None:
            continue
        # cores share the tile among them
        is_within = _count_held_bytes(mapping, memory, tiles) <= memory.size * groups[0][0].cores
        left_out[memory.name] += int((fits & ~is_within).sum())
        fits &= is_within
    if not fits.any():
        raise _build_too_small_error(mapping, machine, tiles)
    return _list_with_kept_operands(mapping, machine, tiles.select(fits)), dict(left_out)


def _count_held_bytes(mapping: SiteMapping, memory: MachineMemory, tiles: Tiles) -> Numbers:
    """Computes the bytes that a memory holds for each tile, with all its buffers."""
    total: Numbers = np.zeros(len(tiles), dtype=np.int64)
    for operand, (rows, columns) in OPERAND_AXES.items():
        if operand not in memory.holds:
            continue
        elements = (
            np.full(len(total), mapping.size[rows] * mapping.size[columns])
            if operand == tiles.keep
            else tiles.lengths[rows] * tiles.lengths[columns]
        )
        sizes = [
            getattr(memory.buffers, operand)
            * count_packed_bytes(elements, get_operand_dtype(mapping, operand), mapping.site)
        ]
        if operand == "C":
            sizes.append(memory.buffers.out * count_packed_bytes(elements, mapping.output, mapping.site))
        if memory.ways and memory.size is not None:
            way = max(memory.size // memory.ways, 1)
            sizes = [-(-size // way) * way for size in sizes]
        total = total + sum(sizes)
    return total


def _build_too_small_error(
    mapping: SiteMapping, machine: MemoryMachine, tiles: Tiles | None = None
) -> MemoryTooSmall:
    """Builds the error that names the tile that exceeds a memory by the fewest bytes, and the memory.

    Args:
        mapping: The site.
        machine: The machine.
        tiles: Tiles that the constraints leave, or None for the smallest tile.
    """
    first = group_memories(machine)[1]
    memories = (
        [memory for memory in first if memory.size is not None]
        if tiles
        else [memory for memory in machine.memories[1:] if memory.size is not None]
    )
    if tiles is None:
        m, k, n = (np.array([min(unit, size)]) for unit, size in zip(machine.unit, mapping.size, strict=True))
        tiles = Tiles((m, k, n), "")
    missing = np.array(
        [
            _count_held_bytes(mapping, memory, tiles)
            - (memory.size or 0) * (first[0].cores if memory in first else 1)
            for memory in memories
        ]
    )
    best = int(missing.max(axis=0).argmin())
    memory = memories[int(missing[:, best].argmax())]
    needed = int(missing[:, best].max())
    tile = "x".join(str(length) for length in tiles.get_tile(best))
    return MemoryTooSmall(
        f"no tile of {mapping.site} fits: the smallest, {tile}, needs {needed:,} bytes more",
        where=f"memory '{memory.name}' of {machine.hardware.name}",
        hint=f"it has {memory.size:,} bytes; use fewer buffers, a larger memory or a smaller unit",
    )


# -- one memory between the outermost memory and the array


def _compute_array_orders(
    mapping: SiteMapping, machine: MemoryMachine, constraints: Constraints
) -> tuple[list[MappingCost], int]:
    """Computes the cost of each order of the array's loops, on a machine without a memory on the chip.

    Returns:
        The costs, and their number.
    """
    costs = []
    for order in constraints.orders or ORDERS:
        tried = replace(mapping, levels=(NestLevel(order, machine.unit),))
        costs.append(compute_mapping_cost(tried, machine))
    return costs, len(costs)


class _Entry(NamedTuple):
    """A mapping with its figures. Entries sort by figures, then by tile and orders.

    Attributes:
        ranks: The figures that rank mappings, as in `_list_ranking_figures`.
        tile: Tile of the first level.
        outer, inner: Orders of the loops of the first level and of the array.
        keep: Operand that the first level keeps whole, or ''.
    """

    ranks: tuple[float, ...]
    tile: Triple
    outer: LoopOrder
    inner: LoopOrder
    keep: str

    def build_mapping(self, site: SiteMapping, machine: MemoryMachine) -> SiteMapping:
        """Returns the mapping of a site."""
        levels = NestLevel(self.outer, self.tile, keep=self.keep), NestLevel(self.inner, machine.unit)
        return replace(site, levels=levels)


class _Branch(NamedTuple):
    """Tiles in one outer order.

    Attributes:
        figures: Figures of the tiles.
        outer: Order of the loops of the first level.
        bounds: Lower bounds, over all inner orders, of the first two figures that rank mappings.
        least: Lower bounds of all figures over all inner orders.
    """

    figures: TileFigures
    outer: LoopOrder
    bounds: tuple[Numbers, Numbers]
    least: Figures

    def list_promising(self, threshold: tuple[float, float]) -> Numbers:
        """Lists the tiles whose bounds do not exceed the figures of a mapping, the smallest bound first."""
        first, second = self.bounds
        indices = np.flatnonzero(
            (first < threshold[0]) | ((first == threshold[0]) & (second <= threshold[1]))
        )
        return indices[np.lexsort([second[indices], first[indices]])]


class _Ranking:
    """Search over all tiles and orders with one level of memory on the chip.

    A branch has all tiles in one outer order. Lower bounds over all inner orders exclude most tiles; the
    remaining tiles are computed with every inner order.

    Attributes:
        pool: The best mappings so far, one for each tile, outer order and whole operand.
        threshold: First two figures that a mapping must reach to be among the best.
        count: Number of mappings in the space.
        least_left: Lower bound of the objective of all mappings left out because `_MAX_EVALUATED` is reached,
            or infinity.
    """

    def __init__(
        self,
        mapping: SiteMapping,
        machine: MemoryMachine,
        objective: Objective,
        constraints: Constraints,
        candidates: Sequence[Tiles],
    ) -> None:
        self._mapping, self._machine, self._objective = mapping, machine, objective
        self._budget = _MAX_EVALUATED
        self.pool: list[_Entry] = []
        self.threshold = (math.inf, math.inf)
        self.least_left = math.inf
        self._branches = []
        for tiles in candidates:
            figures = TileFigures(mapping, machine, tiles)
            for outer in constraints.orders or ORDERS:
                least_figures = figures.compute(outer, None, with_cycles=True)
                first, second, _ = _list_ranking_figures(objective, least_figures)
                self._branches.append(_Branch(figures, outer, (first, second), least_figures))
        self.count = sum(len(branch.figures.tiles) for branch in self._branches) * len(ORDERS)
        self._branches.sort(key=lambda branch: float(branch.bounds[0].min()))

    def run(self) -> None:
        """Fills the pool."""
        # a first look at the most promising tiles of each branch sets the threshold for the rest
        for branch in self._branches:
            self._evaluate(branch, branch.list_promising(self.threshold)[:_FIRST_LOOK])
        for branch in self._branches:
            # the list begins with the tiles of the first look
            remaining = branch.list_promising(self.threshold)[_FIRST_LOOK:]
            for start in range(0, len(remaining), _CHUNK):
                indices = remaining[start : start + _CHUNK]
                if branch.bounds[0][indices[0]] > self.threshold[0]:
                    break
                if self._budget <= 0:
                    self.least_left = min(self.least_left, float(branch.bounds[0][indices[0]]))
                    break
                self._evaluate(branch, indices)

    def _evaluate(self, branch: _Branch, indices: Numbers) -> None:
        """Computes tiles with every inner order, and puts the best into the pool."""
        if not len(indices):
            return
        self._budget -= len(indices)
        figures = branch.figures.select(indices)
        best: list[Numbers] = []
        best_inner = np.zeros(len(indices), dtype=np.int64)
        for number, inner in enumerate(ORDERS):
            ranks = _list_ranking_figures(
                self._objective, figures.compute(branch.outer, inner, with_cycles=self._objective != "energy")
            )
            if not best:
                best = ranks
                continue
            is_better = np.zeros(len(indices), dtype=bool)
            is_equal = ~is_better
            for best_rank, rank in zip(best, ranks, strict=True):
                is_better |= is_equal & (rank < best_rank)
                is_equal &= rank == best_rank
            best_inner = np.where(is_better, number, best_inner)
            best = [np.where(is_better, rank, best_rank) for best_rank, rank in zip(best, ranks, strict=True)]
        tiles = figures.tiles
        # ties by tile, then by order, so that the result does not depend on the order of the search
        promising = np.lexsort([*reversed(tiles.lengths), *reversed(best)])[:_POOL]
        self.pool += [
            _Entry(
                tuple(float(rank[i]) for rank in best),
                tiles.get_tile(i),
                branch.outer,
                ORDERS[int(best_inner[i])],
                tiles.keep,
            )
            for i in map(int, promising)
        ]
        # the first look and the rest may meet the same tile
        self.pool = sorted(set(self.pool))[:_POOL]
        if len(self.pool) >= _CERTAIN:
            first, second, *_ = self.pool[_CERTAIN - 1].ranks
            self.threshold = first, second

    def compute_costs(self, key: Callable[[MappingCost], tuple[float, ...]]) -> list[MappingCost]:
        """Computes the exact costs of the pool, until no remaining mapping can be among the best ones.

        Args:
            key: Figure to minimize, then the figures that decide between equal ones.
        """
        costs: list[MappingCost] = []
        for entry in self.pool:
            best = _list_distinct(sorted(costs, key=key))
            # the figures of the pool never exceed the exact ones, apart from rounding
            least = entry.ranks[0] * (1 - ROUNDING), entry.ranks[1]
            if len(best) == _BEST and least > key(best[-1])[:2]:
                break
            costs.append(
                compute_mapping_cost(entry.build_mapping(self._mapping, self._machine), self._machine)
            )
        return costs

    def find_front(self, has_energy: bool) -> list[_Entry]:
        """Finds mappings of which none undercuts another in cycles, energy and bytes on the chip.

        Lower bounds over all inner orders exclude most tiles. Tiles that may be on the front are computed
        with every inner order, until no tile is left or `_MAX_FRONT_ROUNDS` is reached.

        Args:
            has_energy: Whether the machine gives the energy; otherwise the traffic takes its place.
        """

        def list_points(figures: TileFigures, values: Figures) -> Numbers:
            group = group_memories(figures.machine)[1]
            held_bytes = sum(_count_held_bytes(figures.mapping, memory, figures.tiles) for memory in group)
            energy = values.pj if has_energy else values.traffic
            return np.stack([values.cycles, energy, held_bytes], axis=1).astype(np.float64)

        points = [list_points(branch.figures, branch.least) for branch in self._branches]
        remaining = [self._list_front_tiles(branch.figures) for branch in self._branches]
        entries: list[_Entry] = []
        front_points: Numbers = np.zeros((0, 3))
        for _ in range(_MAX_FRONT_ROUNDS):
            promising = []
            for index, rows in enumerate(points):
                tiles = remaining[index][~is_undercut(rows[remaining[index]], front_points)]
                promising.append(tiles[find_front(rows[tiles])])
                remaining[index] = np.setdiff1d(tiles, promising[-1])
            if not any(map(len, promising)):
                break
            for branch, tiles in zip(self._branches, promising, strict=True):
                if len(tiles):
                    computed, rows = self._compute_entries(branch, tiles, list_points)
                    entries += computed
                    front_points = np.concatenate([front_points, rows])
            front_indices = find_front(front_points)
            entries, front_points = [entries[index] for index in front_indices], front_points[front_indices]
        return entries

    def _list_front_tiles(self, figures: TileFigures) -> Numbers:
        """Lists the indices of the tiles among which the front is searched."""
        number = len(figures.tiles)
        if number <= _MAX_FRONT_TILES:
            return np.arange(number)
        mapping, machine = figures.mapping, figures.machine
        is_smallest = np.ones(number, dtype=bool)
        for lengths, size, unit in zip(figures.tiles.lengths, mapping.size, machine.unit, strict=True):
            is_smallest &= np.isin(lengths, list_trip_tiles(size, unit))
        return np.flatnonzero(is_smallest)

    def _compute_entries(
        self, branch: _Branch, indices: Numbers, list_points: Callable[[TileFigures, Figures], Numbers]
    ) -> tuple[list[_Entry], Numbers]:
        """Computes tiles of a branch with every inner order; returns the mappings and their points."""
        figures = branch.figures.select(indices)
        tiles = figures.tiles
        entries, points = [], []
        for inner in ORDERS:
            rows = list_points(figures, figures.compute(branch.outer, inner, with_cycles=True))
            points.append(rows)
            entries += [
                _Entry(tuple(map(float, row)), tiles.get_tile(index), branch.outer, inner, tiles.keep)
                for index, row in enumerate(rows)
            ]
        return entries, np.concatenate(points)

    def is_exact(self, value: float) -> bool:
        """Whether no mapping of the space has a smaller objective than `value`, the smallest of the pool."""
        least = self.pool[0].ranks[0]
        is_complete = len(self.pool) < _POOL or value < self.threshold[0]
        return self.least_left >= value and (value <= least * (1 + ROUNDING) or is_complete)


def _list_ranking_figures(objective: Objective, figures: Figures) -> list[Numbers]:
    """Returns the objective and the figures that decide between tiles with an equal objective, in order."""
    return {
        "cycles": [figures.cycles, figures.traffic, figures.inner],
        "energy": [figures.pj, figures.traffic, figures.inner],
        "traffic": [figures.traffic, figures.cycles, figures.inner],
        "edp": [figures.pj * figures.cycles, figures.traffic, figures.inner],
    }[objective]


def _list_whole_space(
    mapping: SiteMapping, machine: MemoryMachine, constraints: Constraints
) -> tuple[list[Tiles], dict[str, int]] | None:
    """Lists every tile in multiples of the unit that fits and meets the constraints, and counts the others.

    Returns:
        The tiles, and the number of tiles that were left out, by reason; or None if there are too many tiles
        to list them, or none.
    """
    lengths: list[Numbers] = []
    left_out: dict[str, int] = {}
    for size, unit in zip(mapping.size, machine.unit, strict=True):
        lengths.append(np.minimum(np.arange(unit, size + unit, unit, dtype=np.int64), size))
    for text, axis, mask in constraints.list_axis_masks(lengths):
        number = math.prod(map(len, lengths))
        lengths[axis] = lengths[axis][mask]
        left_out[text] = left_out.get(text, 0) + number - math.prod(map(len, lengths))
    m, k, n = lengths
    if not 0 < len(m) * len(n) <= _MAX_PAIRS or not len(k):
        return None
    rows, columns = (axis.ravel() for axis in np.meshgrid(m, n, indexing="ij"))
    depths = np.full(len(rows), len(k))
    for memory in group_memories(machine)[1]:
        if memory.size is None:
            continue
        before = int(depths.sum())
        depths = np.minimum(depths, _count_fitting_depths(mapping, memory, (rows, k, columns)))
        left_out[memory.name] = before - int(depths.sum())
    total = int(depths.sum())
    if not 0 < total <= _MAX_TILES:
        return None
    starts = np.repeat(np.cumsum(depths) - depths, depths)
    tiles = Tiles((np.repeat(rows, depths), k[np.arange(total) - starts], np.repeat(columns, depths)), "")
    return _list_with_kept_operands(mapping, machine, tiles), left_out


def _count_fitting_depths(
    mapping: SiteMapping, memory: MachineMemory, lengths: tuple[Numbers, Numbers, Numbers]
) -> Numbers:
    """Counts for each pair of rows and columns how many of the ascending depths fit a memory."""
    rows, depths, columns = lengths
    low, high = np.zeros(len(rows), dtype=np.int64), np.full(len(rows), len(depths))
    while (low < high).any():
        middle = (low + high + 1) // 2
        tiles = Tiles((rows, depths[np.maximum(middle, 1) - 1], columns), "")
        fits = (_count_held_bytes(mapping, memory, tiles) <= (memory.size or 0)) | (middle == 0)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return low


def _list_with_kept_operands(mapping: SiteMapping, machine: MemoryMachine, tiles: Tiles) -> list[Tiles]:
    """Lists the tiles, and for each operand that fits whole, the tiles that fit beside the whole operand."""
    candidates = [tiles]
    first = group_memories(machine)[1]
    for keep in OPERAND_AXES:
        if not any(keep in memory.holds for memory in first):
            continue
        with_kept_operand = Tiles(tiles.lengths, keep)
        fits = np.ones(len(with_kept_operand), dtype=bool)
        for memory in first:
            if memory.size is not None:
                fits &= _count_held_bytes(mapping, memory, with_kept_operand) <= memory.size * first[0].cores
        if fits.any():
            candidates.append(with_kept_operand.select(fits))
    return candidates


# -- several memories, or several cores


def _search_many_levels(
    mapping: SiteMapping, machine: MemoryMachine, constraints: Constraints, candidates: Sequence[Tiles]
) -> tuple[list[MappingCost], int]:
    """Computes the most promising tiles of the first level, and for each the best levels inside.

    Returns:
        Costs of the mappings, and the number of mappings that were compared.
    """
    pool: list[tuple[float, Triple, LoopOrder, str]] = []
    count = 0
    held_operands = "".join(memory.holds for memory in group_memories(machine)[1])
    for tiles in candidates:
        figures = TileFigures(mapping, machine, tiles)
        for outer in constraints.orders or ORDERS:
            traffic = np.zeros(len(tiles), dtype=np.int64)
            for operand in OPERAND_AXES:
                if operand not in held_operands:
                    continue
                elements = figures.count_first_loads(operand, outer)
                if operand == "C":
                    elements = 2 * elements - mapping.size[0] * mapping.size[2]
                traffic = traffic + count_packed_bytes(
                    elements, get_operand_dtype(mapping, operand), mapping.site
                )
            count += len(traffic)
            order = np.lexsort([*reversed(tiles.lengths), traffic])[:_OUTER_TILES]
            pool += [(float(traffic[i]), tiles.get_tile(i), outer, tiles.keep) for i in map(int, order)]
    pool.sort()
    best: list[MappingCost] = []
    for _, tile, outer, keep in pool[:_OUTER_TILES]:
        for level in _split_levels(tile, outer, keep, group_memories(machine)[1][0].cores, machine.unit):
            for inner in _list_inner_levels(level.tile, machine, mapping):
                count += 1
                tried = replace(mapping, levels=(level, *inner))
                cost = compute_mapping_cost(tried, machine)
                if cost.fits:
                    best.append(cost)
    if not best:
        raise _build_too_small_error(mapping, machine)
    return best, count


def _split_levels(tile: Triple, order: LoopOrder, keep: str, cores: int, unit: Triple) -> Iterator[NestLevel]:
    """Yields a level for each way of `_list_splits` to divide a tile among cores."""
    for split in _list_splits(cores, tile, unit):
        m, k, n = (
            min(-(-length // (number * each)) * each, length)
            for length, number, each in zip(tile, split, unit, strict=True)
        )
        yield NestLevel(order, (m, k, n), split, keep if math.prod(split) == 1 else "")


def _list_splits(cores: int, tile: Triple, unit: Triple) -> list[Triple]:
    """Lists ways to divide a tile among cores so that no further division is possible, at most four."""
    limits = [-(-length // part) for length, part in zip(tile, unit, strict=True)]
    splits = []
    for m in range(1, min(cores, limits[0]) + 1):
        for n in range(1, min(cores // m, limits[2]) + 1):
            k = min(cores // (m * n), limits[1])
            splits.append((m, k, n))
    splits.sort(key=lambda split: (-math.prod(split), split[1], split))
    return splits[:4]


def _list_inner_levels(
    outer: Triple, machine: MemoryMachine, mapping: SiteMapping
) -> Iterator[tuple[NestLevel, ...]]:
    """Yields the levels inside a tile for each combination of dataflows.

    The tile of each memory is the one that fits and needs the fewest loads.
    """
    groups = group_memories(machine)[2:]
    if not groups:
        for order in _DATAFLOWS:
            yield (NestLevel(order, machine.unit),)
        return
    for orders in itertools.product(_DATAFLOWS, repeat=len(groups) + 1):
        tiles = [outer]
        levels = []
        for group, order in zip(groups, orders, strict=False):
            tile = _find_best_inside(tiles[-1], group[0].name, order, machine, mapping)
            level = next(_split_levels(tile, order, "", group[0].cores, machine.unit))
            tiles.append(level.tile)
            levels.append(level)
        yield (*levels, NestLevel(orders[-1], machine.unit))


def _find_best_inside(
    outer: Triple, name: str, order: LoopOrder, machine: MemoryMachine, mapping: SiteMapping
) -> Triple:
    """Finds the tile inside an outer tile that fits a memory and needs the fewest loads."""
    memory = next(memory for memory in machine.memories if memory.name == name)
    axes = [
        np.array(list_trip_tiles(length, unit), dtype=np.int64)
        for length, unit in zip(outer, machine.unit, strict=True)
    ]
    m, k, n = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    tiles = Tiles((m, k, n), "")
    if memory.size is not None:
        fits = _count_held_bytes(mapping, memory, tiles) <= memory.size
        if not fits.any():
            raise _build_too_small_error(mapping, machine)
        tiles = tiles.select(fits)
    moved: Numbers = np.zeros(len(tiles), dtype=np.int64)
    figures = TileFigures(replace(mapping, size=outer), machine, tiles)
    for operand in OPERAND_AXES:
        if operand in memory.holds:
            elements = figures.count_first_loads(operand, order)
            moved = moved + count_packed_bytes(elements, get_operand_dtype(mapping, operand), mapping.site)
    index = int(np.lexsort([*reversed(tiles.lengths), moved])[0])
    return tiles.get_tile(index)


# -- least traffic over the size of the memory


def compute_least_traffic(
    mapping: SiteMapping, machine: MemoryMachine, sizes: Sequence[int]
) -> list[int | None]:
    """Computes the least bytes that a site moves for each size of the first memory on the chip.

    The minimum is over the tiles of the first level, the orders and the operand that is kept whole. The other
    memories of the machine keep their sizes.

    Args:
        mapping: Site with its size and number types.
        machine: The machine.
        sizes: Sizes of the memory in bytes.

    Returns:
        Bytes for each size, or None if no tile fits.
    """
    varied, *other_memories = group_memories(machine)[1]
    held_operands = {operand for memory in (varied, *other_memories) for operand in memory.holds}
    # the order of the array's loops changes the traffic of operands that bypass the first level
    inner_orders: Sequence[LoopOrder | None] = ORDERS if len(held_operands) < len(AXES) else (None,)
    least = np.full(len(sizes), np.inf)
    for keep in ("", *(operand for operand in OPERAND_AXES if operand in held_operands)):
        tiles = _list_smallest_tiles(mapping, machine, keep)
        fits = np.ones(len(tiles), dtype=bool)
        for memory in other_memories:
            if memory.size is not None:
                fits &= _count_held_bytes(mapping, memory, tiles) <= memory.size * varied.cores
        tiles = tiles.select(fits)
        traffic = np.full(len(tiles), np.inf)
        figures = TileFigures(mapping, machine, tiles)
        for outer, inner in itertools.product(ORDERS, inner_orders):
            traffic = np.minimum(traffic, figures.compute(outer, inner, with_cycles=False).traffic)
        for index, size in enumerate(sizes):
            held_bytes = _count_held_bytes(mapping, replace(varied, size=size), tiles)
            least[index] = min(least[index], traffic[held_bytes <= size * varied.cores].min(initial=np.inf))
    return [int(amount) if np.isfinite(amount) else None for amount in least]


def _list_smallest_tiles(mapping: SiteMapping, machine: MemoryMachine, keep: str = "") -> Tiles:
    """Lists the smallest tiles for each number of trips along the three axes."""
    axes = [
        np.array(list_trip_tiles(size, unit), dtype=np.int64)
        for size, unit in zip(mapping.size, machine.unit, strict=True)
    ]
    m, k, n = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    return Tiles((m, k, n), keep)
