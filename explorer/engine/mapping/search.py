"""Search for the best mapping of a matrix product to a machine.

The search space has one tile size for each level, in multiples of the array's unit, every order of the loops
at every level, and, at the first level, the choice to keep one whole operand. For each number of trips only
the smallest tile is tried: a larger tile with as many trips holds more and moves no less.

With one memory between the outermost memory and the array, and without constraints, the least traffic is
exact. Energy is the best of these tiles; a larger tile with as many trips can leave a smaller rest and need
less. Cycles are those of a pipeline, which is computed for the most promising mappings; the result is exact
if it reaches the bound that no mapping goes below. With more memories, or with several cores, the search
computes the most promising mappings.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import MemoryTooSmall, Misuse
from explorer.engine.mapping.constraints import Constraints
from explorer.engine.mapping.cost import compulsory_bytes, mapping_cost, memory_levels
from explorer.engine.mapping.nest import AXES, OPERAND_AXES, Operand, Triple
from explorer.engine.tiling.cost import dimensions
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

_Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

ORDERS: tuple[LoopOrder, ...] = get_args(LoopOrder)
_DATAFLOWS: tuple[LoopOrder, ...] = ("mnk", "knm", "mkn")
"""One order for each operand that stays in the innermost loop."""
_BEST = 5
"""Number of mappings that a search returns."""
_EVALUATED = 60
"""Largest number of mappings whose exact cycles or exact cost the search computes."""
_SEEDS = 3
"""Number of outer orders, with the operand kept whole, that a search looks at first."""
_CHUNK = 1 << 13
"""Number of tiles whose figures are computed at the same time."""
_OUTER_TILES = 12
"""Number of outer tiles for which a search over three levels looks for the best inner tile."""


def trip_tiles(size: int, unit: int) -> list[int]:
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
) -> MappingSearch:
    """Finds the best mapping of a site to a machine.

    Traffic, cycles, energy and bytes of memory decide between mappings with an equal objective.

    Args:
        mapping: Site with its size, number types and epilogue. Its levels are ignored.
        machine: The machine.
        objective: Figure to minimize.
        constraints: Limits on the tile of the first level, or None.

    Raises:
        Misuse: No tile fits, a constraint leaves no tile, the outermost memory is too small, or the objective
            needs a figure that the machine does not give.
    """
    start = time.perf_counter()
    constraints = constraints or Constraints()
    _check_outermost(mapping, machine)
    groups = memory_levels(machine)[1:]
    if not groups and constraints.limits:
        raise Misuse(
            f"{machine.hardware.name} has no memory on the chip, so no tile can be limited",
            where="--constrain",
            hint="leave the limits out, or write order=mnk",
        )
    has_cores = any(memory.cores > 1 for memory in machine.memories)
    candidates, left_out = _first_tiles(mapping, machine, constraints)
    if not groups:
        ranked, count, bound = _array_only(mapping, machine, constraints)
        exact = not constraints.orders
    elif len(groups) == 1 and not has_cores:
        ranked, count, bound = _two_boundaries(mapping, machine, objective, constraints, candidates)
        # only for traffic does the smallest tile for a number of trips never lose, and only without limits
        exact = objective in ("traffic", "cycles") and constraints == Constraints()
    else:
        ranked, count = _many_levels(mapping, machine, constraints, candidates)
        exact, bound = False, 0.0  # no bound is known
    key = _objective_key(objective, ranked, machine)
    ordered = sorted(ranked, key=lambda cost: (key(cost), _tie(cost)))
    best = ordered[0]
    value = float(key(best)[0])
    if objective == "cycles" and groups:
        # the pipeline is computed for the most promising mappings: one that reaches the bound is the best
        exact = exact and value <= bound
    elif objective != "traffic":
        exact, bound = exact and not groups, 0.0
    return MappingSearch(
        best=tuple(_distinct(ordered)),
        front=tuple(_pareto(ordered)),
        objective=objective,
        count=count,
        left_out=left_out,
        exact=exact,
        bound=value if exact else bound if bound <= value else 0.0,
        seconds=time.perf_counter() - start,
    )


def _distinct(ordered: Sequence[MappingCost]) -> list[MappingCost]:
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
    outermost, needed = machine.memories[0], compulsory_bytes(mapping)
    if outermost.size is not None and needed > outermost.size:
        raise MemoryTooSmall(
            f"{mapping.site} needs {needed - outermost.size:,} bytes more",
            where=f"memory '{outermost.name}' of {machine.hardware.name}",
            hint=f"it has {outermost.size:,} bytes, and must hold both operands and the output",
        )


def _tie(cost: MappingCost) -> tuple[Any, ...]:
    return tuple((level.tile, level.order, level.keep) for level in cost.mapping.levels)


def _objective_key(
    objective: Objective, costs: Sequence[MappingCost], machine: MemoryMachine
) -> Callable[[MappingCost], tuple[float, ...]]:
    """Returns the figure to minimize, then the figures that decide between equal ones.

    Raises:
        Misuse: The machine does not give the figures.
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
        float(value or 0) for value in (*figure(cost), _held_bytes(cost), _moved_bytes(cost))
    )


def _held_bytes(cost: MappingCost) -> int:
    return sum(memory.held for memory in cost.memories[1:])


def _moved_bytes(cost: MappingCost) -> int:
    return sum(move.loads + move.stores for move in cost.moves)


def _pareto(costs: Iterable[MappingCost]) -> list[MappingCost]:
    """Keeps the costs that no other improves in cycles, energy and bytes held in the first level at once."""
    front: list[tuple[tuple[float, ...], MappingCost]] = []
    for cost in costs:
        figures = (float(cost.cycles or cost.traffic), float(cost.pj or 0), float(_held_bytes(cost)))
        if any(all(a <= b for a, b in zip(other, figures, strict=True)) for other, _ in front):
            continue
        front = [
            (other, kept)
            for other, kept in front
            if not all(a <= b for a, b in zip(figures, other, strict=True))
        ]
        front.append((figures, cost))
    return [cost for _, cost in sorted(front, key=lambda entry: entry[0])]


# -- tiles of the first level


class _Tiles(NamedTuple):
    """Tiles of the first level: their lengths along M, K and N, and the operand that each keeps whole."""

    lengths: tuple[_Numbers, _Numbers, _Numbers]
    keep: str

    def chosen(self, mask: _Numbers) -> _Tiles:
        m, k, n = (axis[mask] for axis in self.lengths)
        return _Tiles((m, k, n), self.keep)

    def tile(self, index: int) -> Triple:
        m, k, n = (int(axis[index]) for axis in self.lengths)
        return m, k, n


def _first_tiles(
    mapping: SiteMapping, machine: MemoryMachine, constraints: Constraints
) -> tuple[list[_Tiles], dict[str, int]]:
    """Lists the tiles of the first level that fit and meet the constraints.

    Raises:
        Misuse: No tile fits, or a constraint leaves none.
    """
    groups = memory_levels(machine)[1:]
    if not groups:
        return [], {}
    m, k, n = _all_tiles(mapping, machine).lengths
    left_out: Counter[str] = Counter()
    allowed = np.ones(len(m), dtype=bool)
    for text, mask in constraints.masks((m, k, n)):
        left_out[text] += int((allowed & ~mask).sum())
        allowed &= mask
        if not allowed.any():
            raise Misuse(
                f"no tile of {mapping.site} meets '{text}'",
                where="--constrain",
                hint=f"sizes: M {mapping.size[0]}, K {mapping.size[1]}, N {mapping.size[2]}",
            )
    cores = groups[0][0].cores
    kept = []
    for keep in ("", "A", "B", "C"):
        tiles = _Tiles((m[allowed], k[allowed], n[allowed]), keep)
        fits = np.ones(len(tiles.lengths[0]), dtype=bool)
        for memory in groups[0]:
            if memory.size is None:
                continue
            held = _held(mapping, memory, tiles)
            # cores share the tile among them
            mask = held <= memory.size * cores
            if not keep:
                left_out[memory.name] += int((fits & ~mask).sum())
            fits &= mask
        if keep and keep not in "".join(memory.holds for memory in groups[0]):
            continue
        if fits.any():
            kept.append(tiles.chosen(fits))
    if not kept:
        raise _too_small(mapping, machine, _Tiles((m[allowed], k[allowed], n[allowed]), ""))
    return kept, dict(left_out)


def _held(mapping: SiteMapping, memory: MachineMemory, tiles: _Tiles) -> _Numbers:
    """Computes the bytes that a memory holds for each tile, with all its buffers."""
    total: _Numbers = np.zeros(len(tiles.lengths[0]), dtype=np.int64)
    for operand, (rows, columns) in OPERAND_AXES.items():
        if operand not in memory.holds:
            continue
        elements = (
            np.full(len(total), mapping.size[rows] * mapping.size[columns])
            if operand == tiles.keep
            else tiles.lengths[rows] * tiles.lengths[columns]
        )
        sizes = [getattr(memory.buffers, operand) * _packed(elements, _dtype(mapping, operand), mapping.site)]
        if operand == "C":
            sizes.append(memory.buffers.out * _packed(elements, mapping.output, mapping.site))
        if memory.ways and memory.size is not None:
            way = max(memory.size // memory.ways, 1)
            sizes = [-(-size // way) * way for size in sizes]
        total = total + sum(sizes)
    return total


def _dtype(mapping: SiteMapping, operand: Operand) -> str:
    return {"A": mapping.dtype, "B": mapping.right_dtype, "C": mapping.accumulator}[operand]


def _packed(elements: _Numbers, dtype: str, site: str) -> _Numbers:
    return dimensions.count_packed_bytes(elements, dimensions.get_type_bits(dtype, site))


def _too_small(mapping: SiteMapping, machine: MemoryMachine, tiles: _Tiles | None = None) -> MemoryTooSmall:
    """Describes the tile that misses the fewest bytes, and the memory in which they are missing.

    Args:
        mapping: The site.
        machine: The machine.
        tiles: Tiles that the constraints leave, or None for the smallest tile.
    """
    first = memory_levels(machine)[1]
    memories = (
        [memory for memory in first if memory.size is not None]
        if tiles
        else [memory for memory in machine.memories[1:] if memory.size is not None]
    )
    if tiles is None:
        m, k, n = (np.array([min(unit, size)]) for unit, size in zip(machine.unit, mapping.size, strict=True))
        tiles = _Tiles((m, k, n), "")
    missing = np.array(
        [
            _held(mapping, memory, tiles) - (memory.size or 0) * (first[0].cores if memory in first else 1)
            for memory in memories
        ]
    )
    best = int(missing.max(axis=0).argmin())
    memory = memories[int(missing[:, best].argmax())]
    needed = int(missing[:, best].max())
    tile = "x".join(str(length) for length in tiles.tile(best))
    return MemoryTooSmall(
        f"no tile of {mapping.site} fits: the smallest, {tile}, needs {needed:,} bytes more",
        where=f"memory '{memory.name}' of {machine.hardware.name}",
        hint=f"it has {memory.size:,} bytes; use fewer buffers, a larger memory or a smaller unit",
    )


# -- one memory between the outermost memory and the array


def _array_only(
    mapping: SiteMapping, machine: MemoryMachine, constraints: Constraints
) -> tuple[list[MappingCost], int, float]:
    costs = []
    for order in constraints.orders or ORDERS:
        tried = replace(mapping, levels=(NestLevel(order, machine.unit),))
        costs.append(mapping_cost(tried, machine))
    return costs, len(costs), math.inf


class _Figures(NamedTuple):
    """Figures of many tiles in one pair of orders; arrays with an entry for each tile.

    Attributes:
        traffic: Bytes at the outermost memory.
        inner: Bytes between the first level and the array.
        pj: Energy of all transfers, or zeros.
        cycles: Cycles of the busiest of the array and the memories.
        least: Cycles that no pipeline of the mapping goes below.
    """

    traffic: _Numbers
    inner: _Numbers
    pj: _Numbers
    cycles: _Numbers
    least: _Numbers


def _two_boundaries(
    mapping: SiteMapping,
    machine: MemoryMachine,
    objective: Objective,
    constraints: Constraints,
    candidates: Sequence[_Tiles],
) -> tuple[list[MappingCost], int, float]:
    """Computes every tile and pair of orders, and the exact cost of the best ones.

    A bound on each tile and outer order leaves out the tiles that no inner order can bring among the best
    mappings.
    """
    # vectors hold a bound of the cycles, so the exact cycles of many mappings decide between them
    limit = _BEST * 6 if objective == "energy" else _EVALUATED
    pairs = []
    for tiles in candidates:
        for outer in constraints.orders or ORDERS:
            figures = _figures(mapping, machine, tiles, outer, None)
            pairs.append((tiles, outer, _ranks(objective, figures)[:2], figures.least))
    count = sum(len(tiles.lengths[0]) for tiles, *_ in pairs) * len(ORDERS)
    # a first look at the most promising tiles of each pair sets the threshold for the rest
    seeds: list[_Entry] = []
    for tiles, outer, bounds, _ in sorted(pairs, key=lambda pair: float(pair[2][0].min()))[:_SEEDS]:
        promising = np.lexsort([*reversed(bounds)])[:limit]
        seeds += _evaluated(mapping, machine, objective, tiles.chosen(promising), outer, limit)[0]
    threshold = sorted(seeds)[:limit][-1][0][:2]
    pool: list[_Entry] = []
    least = math.inf
    for tiles, outer, bounds, lower in pairs:
        is_promising = (bounds[0] < threshold[0]) | (
            (bounds[0] == threshold[0]) & (bounds[1] <= threshold[1])
        )
        least = min(least, float(lower[~is_promising].min(initial=math.inf)))
        indices = np.flatnonzero(is_promising)
        for start in range(0, len(indices), _CHUNK):
            chosen = tiles.chosen(indices[start : start + _CHUNK])
            entries, least_of_chunk = _evaluated(mapping, machine, objective, chosen, outer, limit)
            least = min(least, least_of_chunk)
            pool = sorted([*pool, *entries])[:limit]
            threshold = min(threshold, pool[-1][0][:2]) if len(pool) == limit else threshold
    return [_exact_cost(mapping, machine, entry) for entry in pool], count, least


_Entry: TypeAlias = tuple[tuple[float, ...], Triple, LoopOrder, LoopOrder, str]
"""Figures, tile, both orders and whole operand of a mapping. Entries sort by figures, then by tile."""


def _exact_cost(mapping: SiteMapping, machine: MemoryMachine, entry: _Entry) -> MappingCost:
    _, tile, outer, inner, keep = entry
    levels = NestLevel(outer, tile, keep=keep), NestLevel(inner, machine.unit)
    return mapping_cost(replace(mapping, levels=levels), machine)


def _evaluated(
    mapping: SiteMapping,
    machine: MemoryMachine,
    objective: Objective,
    tiles: _Tiles,
    outer: LoopOrder,
    limit: int,
) -> tuple[list[_Entry], float]:
    """Computes the figures of tiles in an outer order and every inner order.

    Returns:
        The best mappings, and the cycles that none of the tiles goes below.
    """
    entries: list[_Entry] = []
    least = math.inf
    for inner in ORDERS:
        figures = _figures(mapping, machine, tiles, outer, inner)
        least = min(least, float(figures.least.min()))
        ranks = _ranks(objective, figures)
        # ties by tile, then by order, so that the result does not depend on the order of the search
        chosen = np.lexsort([*reversed(tiles.lengths), *reversed(ranks)])[:limit]
        entries += [
            (tuple(float(rank[i]) for rank in ranks), tiles.tile(i), outer, inner, tiles.keep)
            for i in map(int, chosen)
        ]
    return sorted(entries)[:limit], least


def _ranks(objective: Objective, figures: _Figures) -> list[_Numbers]:
    return {
        "cycles": [figures.cycles, figures.traffic, figures.inner],
        "energy": [figures.pj, figures.traffic, figures.inner],
        "traffic": [figures.traffic, figures.cycles, figures.inner],
        "edp": [figures.pj * figures.cycles, figures.traffic, figures.inner],
    }[objective]


def _counts(
    mapping: SiteMapping, machine: MemoryMachine, tiles: _Tiles, outer: LoopOrder, inner: LoopOrder | None
) -> dict[Operand, _Numbers]:
    """Counts the elements loaded into the first level, or into the array if an inner order is given."""
    holds = "".join(memory.holds for memory in memory_levels(machine)[1])
    return {
        operand: _loaded(mapping.size, tiles, machine.unit, outer, inner, operand, machine.registers)
        for operand in OPERAND_AXES
        if inner is not None or operand in holds
    }


def _loaded(
    size: Triple,
    tiles: _Tiles,
    unit: Triple,
    outer: LoopOrder,
    inner: LoopOrder | None,
    operand: Operand,
    registers: bool = True,
) -> _Numbers:
    """Computes `nest.fetched` for many tiles at the same time, without cores."""
    own_axes = OPERAND_AXES[operand]
    number = len(tiles.lengths[0])
    if inner is None and operand == tiles.keep:
        return np.full(number, size[own_axes[0]] * size[own_axes[1]], dtype=np.int64)
    loops = [(0, AXES.index(axis)) for axis in outer]
    if inner is not None:
        loops += [(1, AXES.index(axis)) for axis in inner]
    memo: dict[Any, tuple[_Numbers, _Numbers]] = {}

    def count(
        position: int, key: tuple[str, ...], lengths: tuple[_Numbers, ...]
    ) -> tuple[_Numbers, _Numbers]:
        """Returns the elements loaded from a loop on, and whether the tile changed.

        Args:
            position: Index of the loop.
            key: For each axis, which full ('f') and last ('r') tiles led to its length.
            lengths: Lengths of the current tile.
        """
        place = position, key
        if place in memo:
            return memo[place]
        if position == len(loops):
            rereads = inner is not None and not registers
            result = lengths[own_axes[0]] * lengths[own_axes[1]], np.full(number, rereads)
            memo[place] = result
            return result
        level, axis = loops[position]
        tile = tiles.lengths[axis] if level == 0 else unit[axis]
        length = lengths[axis]
        full = length // tile
        rest = length - full * tile

        def inside(letter: str, part: _Numbers) -> tuple[_Numbers, _Numbers]:
            inner_key = (*key[:axis], key[axis] + letter, *key[axis + 1 :])
            return count(position + 1, inner_key, (*lengths[:axis], part, *lengths[axis + 1 :]))

        full_count, full_changed = inside("f", np.minimum(tile, length))
        rest_count, rest_changed = inside("r", rest)
        has_rest, has_full = rest > 0, full > 0
        if axis in own_axes:
            total = full_count * full + np.where(has_rest, rest_count, 0)
            changed = (full + has_rest > 1) | (has_full & full_changed) | (has_rest & rest_changed)
        else:
            first = np.where(full_changed, full_count * full, np.where(has_full, full_count, 0))
            last = np.where(rest_changed | ~has_full, rest_count, 0)
            total = first + np.where(has_rest, last, 0)
            changed = (has_full & full_changed) | (has_rest & rest_changed)
        memo[place] = total, changed
        return memo[place]

    sizes = tuple(np.full(number, length, dtype=np.int64) for length in size)
    return count(0, ("", "", ""), sizes)[0]


def _figures(
    mapping: SiteMapping,
    machine: MemoryMachine,
    tiles: _Tiles,
    outer: LoopOrder,
    inner: LoopOrder | None,
) -> _Figures:
    """Computes the figures of many tiles in a pair of orders, or figures that no inner order goes below."""
    number = len(tiles.lengths[0])
    outputs = mapping.size[0] * mapping.size[2]
    first = _counts(mapping, machine, tiles, outer, None)
    if inner is not None:
        last = _counts(mapping, machine, tiles, outer, inner)
    else:  # the array loads each element as often as the first level does, or once
        last = {
            operand: first.get(operand, np.full(number, mapping.size[rows] * mapping.size[columns]))
            for operand, (rows, columns) in OPERAND_AXES.items()
        }
    reads: dict[tuple[str, str], _Numbers] = {}
    writes: dict[tuple[str, str], _Numbers] = {}

    def add(sizes: dict[tuple[str, str], _Numbers], place: tuple[str, str], amount: _Numbers) -> None:
        sizes[place] = sizes.get(place, np.zeros(number, dtype=np.int64)) + mapping.batch * amount

    inner_bytes = np.zeros(number, dtype=np.int64)
    holder = {
        operand: next((memory.name for memory in memory_levels(machine)[1] if operand in memory.holds), "")
        for operand in OPERAND_AXES
    }
    outermost = machine.memories[0].name
    for operand in OPERAND_AXES:
        name = holder[operand]
        levels = [(first[operand], outermost, name)] if name else []
        levels.append((last[operand], name or outermost, ""))
        for elements, outside, inside in levels:
            if operand != "C":
                loads, stores = (
                    _packed(elements, _dtype(mapping, operand), mapping.site),
                    np.zeros(number, dtype=np.int64),
                )
            else:
                fresh = outputs if not machine.first_read else np.where(elements > outputs, 0, outputs)
                loads = _packed(elements - fresh, mapping.accumulator, mapping.site)
                # sums leave the innermost memory that holds them as outputs when they are finished
                is_output = inside == name
                finished = outputs if is_output else 0
                stores = _packed(elements - finished, mapping.accumulator, mapping.site) + int(
                    _packed(np.array(finished), mapping.output, mapping.site)
                )
            add(reads, (outside, operand), loads)
            add(writes, (outside, operand), stores)
            if inside:
                add(writes, (inside, operand), loads)
                add(reads, (inside, operand), stores)
            else:
                inner_bytes = inner_bytes + mapping.batch * (loads + stores)
    fixed = mapping_epilogue_bytes(mapping, tiles)
    add(reads, (outermost, "C"), fixed)
    traffic = sum(
        (amount for sizes in (reads, writes) for (name, _), amount in sizes.items() if name == outermost),
        np.zeros(number, dtype=np.int64),
    )
    pj = np.zeros(number)
    cycles = np.zeros(number)
    for memory in machine.memories:
        totals = []
        for sizes, words, energy in (
            (reads, memory.read_word, memory.read_pj),
            (writes, memory.write_word, memory.write_pj),
        ):
            total = np.zeros(number)
            for (place, loaded), amount in sizes.items():
                if place == memory.name:
                    total = total + amount
                    pj = pj + amount / {str(key): size for key, size in words.items()}.get(loaded, 1) * (
                        energy or 0
                    )
            totals.append(total)
        for rate, amount in (
            (memory.bytes_per_cycle, totals[0] + totals[1]),
            (memory.read_bytes_per_cycle, totals[0]),
            (memory.write_bytes_per_cycle, totals[1]),
        ):
            if rate:
                cycles = np.maximum(cycles, amount / rate)
    pj = pj + mapping.batch * math.prod(mapping.size) * (machine.mac_pj or 0)
    computing, ends = _least_computing(mapping, machine, tiles)
    least = np.maximum(np.floor(cycles), np.floor(computing + ends))
    cycles = np.maximum(cycles, computing)
    return _Figures(traffic, inner_bytes, pj, cycles, least)


def _least_computing(
    mapping: SiteMapping, machine: MemoryMachine, tiles: _Tiles
) -> tuple[_Numbers, _Numbers]:
    """Computes the cycles of all products, and those of the first load and the last store."""
    number = len(tiles.lengths[0])
    rate = machine.rates.get(mapping.dtype) or machine.hardware.macs_per_cycle
    if rate is None or machine.overlap != "ideal":
        return np.zeros(number), np.zeros(number)
    products = np.ones(number)
    for size, tile, unit in zip(mapping.size, tiles.lengths, machine.unit, strict=True):
        full, rest = size // tile, size % tile
        products = products * (full * -(-tile // unit) + -(-rest // unit))
    outer = machine.memories[0]
    ends = np.zeros(number)
    reading, writing = (
        each or outer.bytes_per_cycle for each in (outer.read_bytes_per_cycle, outer.write_bytes_per_cycle)
    )
    holds = "".join(memory.holds for memory in memory_levels(machine)[1])
    for operand, (rows, columns) in OPERAND_AXES.items():
        if operand not in holds or operand == tiles.keep:
            continue
        rate_of = writing if operand == "C" else reading
        lengths = [np.minimum(tiles.lengths[axis], mapping.size[axis]) for axis in (rows, columns)]
        if operand == "C":  # the last tile may be smaller
            lengths = [
                np.where(mapping.size[axis] % length, mapping.size[axis] % length, length)
                for axis, length in zip((rows, columns), lengths, strict=True)
            ]
        dtype = mapping.output if operand == "C" else _dtype(mapping, operand)
        if rate_of:
            ends = ends + _packed(lengths[0] * lengths[1], dtype, mapping.site) / rate_of
    computing = products * math.prod(machine.unit) / rate
    return mapping.batch * computing, mapping.batch * ends


def mapping_epilogue_bytes(mapping: SiteMapping, tiles: _Tiles) -> _Numbers:
    """Computes the bytes of bias and residual of one product for each tile."""
    M, _, N = mapping.size
    rows = -(-M // tiles.lengths[0])
    return rows * N * mapping.epilogue.bias_bytes + M * N * mapping.epilogue.residual_bytes


# -- several memories, or several cores


def _many_levels(
    mapping: SiteMapping,
    machine: MemoryMachine,
    constraints: Constraints,
    candidates: Sequence[_Tiles],
) -> tuple[list[MappingCost], int]:
    """Computes the most promising tiles of the first level, and for each the best levels inside.

    Returns:
        Costs of the mappings, and the number of mappings that were compared.
    """
    pool: list[tuple[float, Triple, LoopOrder, str]] = []
    count = 0
    for tiles in candidates:
        for outer in constraints.orders or ORDERS:
            first = _counts(mapping, machine, tiles, outer, None)
            traffic = sum(
                (
                    _packed(elements, _dtype(mapping, operand), mapping.site)
                    for operand, elements in first.items()
                    if operand != "C"
                ),
                np.zeros(len(tiles.lengths[0]), dtype=np.int64),
            )
            if "C" in first:
                twice = 2 * first["C"] - mapping.size[0] * mapping.size[2]
                traffic = traffic + _packed(twice, mapping.accumulator, mapping.site)
            count += len(traffic)
            order = np.lexsort([*reversed(tiles.lengths), traffic])[:_OUTER_TILES]
            pool += [(float(traffic[i]), tiles.tile(i), outer, tiles.keep) for i in map(int, order)]
    pool.sort()
    best: list[MappingCost] = []
    for _, tile, outer, keep in pool[:_OUTER_TILES]:
        for level in _split_levels(tile, outer, keep, memory_levels(machine)[1][0].cores, machine.unit):
            for inner in _inner_levels(level.tile, machine, mapping):
                count += 1
                tried = replace(mapping, levels=(level, *inner))
                cost = mapping_cost(tried, machine)
                if cost.fits:
                    best.append(cost)
    if not best:
        raise _too_small(mapping, machine)
    return best, count


def _split_levels(tile: Triple, order: LoopOrder, keep: str, cores: int, unit: Triple) -> Iterator[NestLevel]:
    """Yields a level for each way to divide a tile among cores."""
    for split in _splits(cores, tile, unit):
        m, k, n = (
            min(-(-length // (number * each)) * each, length)
            for length, number, each in zip(tile, split, unit, strict=True)
        )
        yield NestLevel(order, (m, k, n), split, keep if math.prod(split) == 1 else "")


def _splits(cores: int, tile: Triple, unit: Triple) -> list[Triple]:
    """Lists ways to divide a tile among cores so that no further division is possible, at most four."""
    limits = [-(-length // part) for length, part in zip(tile, unit, strict=True)]
    found = []
    for m in range(1, min(cores, limits[0]) + 1):
        for n in range(1, min(cores // m, limits[2]) + 1):
            k = min(cores // (m * n), limits[1])
            found.append((m, k, n))
    found.sort(key=lambda split: (-math.prod(split), split[1], split))
    return found[:4]


def _inner_levels(
    outer: Triple, machine: MemoryMachine, mapping: SiteMapping
) -> Iterator[tuple[NestLevel, ...]]:
    """Yields levels inside a tile: the largest tiles that fit each memory, in the three kinds of dataflow."""
    groups = memory_levels(machine)[2:]
    if not groups:
        for order in _DATAFLOWS:
            yield (NestLevel(order, machine.unit),)
        return
    for orders in itertools.product(_DATAFLOWS, repeat=len(groups) + 1):
        tiles = [outer]
        levels = []
        for group, order in zip(groups, orders, strict=False):
            tile = _largest_inside(tiles[-1], group[0].name, order, machine, mapping)
            level = next(_split_levels(tile, order, "", group[0].cores, machine.unit))
            tiles.append(level.tile)
            levels.append(level)
        yield (*levels, NestLevel(orders[-1], machine.unit))


def _largest_inside(
    outer: Triple, name: str, order: LoopOrder, machine: MemoryMachine, mapping: SiteMapping
) -> Triple:
    """Finds the tile inside an outer tile that fits a memory and needs the fewest loads."""
    memory = next(memory for memory in machine.memories if memory.name == name)
    axes = [
        np.array(trip_tiles(length, unit), dtype=np.int64)
        for length, unit in zip(outer, machine.unit, strict=True)
    ]
    m, k, n = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    tiles = _Tiles((m, k, n), "")
    if memory.size is not None:
        fits = _held(mapping, memory, tiles) <= memory.size
        if not fits.any():
            raise _too_small(mapping, machine)
        tiles = tiles.chosen(fits)
    moved: _Numbers = np.zeros(len(tiles.lengths[0]), dtype=np.int64)
    for operand in OPERAND_AXES:
        if operand in memory.holds:
            elements = _loaded(outer, tiles, machine.unit, order, None, operand)
            moved = moved + _packed(elements, _dtype(mapping, operand), mapping.site)
    index = int(np.lexsort([*reversed(tiles.lengths), moved])[0])
    return tiles.tile(index)


# -- least traffic over the size of the memory


def least_traffic(mapping: SiteMapping, machine: MemoryMachine, sizes: Sequence[int]) -> list[int | None]:
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
    varied, *rest = memory_levels(machine)[1]
    held_operands = {operand for memory in (varied, *rest) for operand in memory.holds}
    # the order of the array's loops changes the traffic of operands that bypass the first level
    inner_orders: Sequence[LoopOrder | None] = ORDERS if len(held_operands) < len(AXES) else (None,)
    least = np.full(len(sizes), np.inf)
    for keep in ("", *(operand for operand in OPERAND_AXES if operand in held_operands)):
        tiles = _all_tiles(mapping, machine, keep)
        fits = np.ones(len(tiles.lengths[0]), dtype=bool)
        for memory in rest:
            if memory.size is not None:
                fits &= _held(mapping, memory, tiles) <= memory.size * varied.cores
        tiles = tiles.chosen(fits)
        traffic = np.full(len(tiles.lengths[0]), np.inf)
        for outer, inner in itertools.product(ORDERS, inner_orders):
            traffic = np.minimum(traffic, _figures(mapping, machine, tiles, outer, inner).traffic)
        for index, size in enumerate(sizes):
            held = _held(mapping, replace(varied, size=size), tiles)
            least[index] = min(least[index], traffic[held <= size * varied.cores].min(initial=np.inf))
    return [int(amount) if np.isfinite(amount) else None for amount in least]


def _all_tiles(mapping: SiteMapping, machine: MemoryMachine, keep: str = "") -> _Tiles:
    """Lists the smallest tiles for each number of trips along the three axes."""
    axes = [
        np.array(trip_tiles(size, unit), dtype=np.int64)
        for size, unit in zip(mapping.size, machine.unit, strict=True)
    ]
    m, k, n = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    return _Tiles((m, k, n), keep)
