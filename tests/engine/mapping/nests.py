"""Random loop nests, and counts of what they move by walking every loop of every core."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from hypothesis import strategies as st

from explorer.engine.mapping.nest import Nest
from explorer.facts.mapping import NestLevel

_AXES = {"A": "mk", "B": "kn", "C": "mn"}


@dataclass
class Walk:
    """Elements moved at each (operand, level): into the level, out of it, and outside of it."""

    loads: Counter = field(default_factory=Counter)
    stores: Counter = field(default_factory=Counter)
    outside_reads: Counter = field(default_factory=Counter)
    outside_writes: Counter = field(default_factory=Counter)


def walk(nest: Nest) -> Walk:
    """Runs the loops of all cores side by side and counts every element that moves between two levels."""
    counts = Walk()
    held: dict = {}  # (operand, level, core) -> range that the core holds
    seen = defaultdict(set)  # first visits of sums
    epoch: Counter = Counter()  # visits of the level at which the sums of cores are added, per core
    split_k = next((i for i, level in enumerate(nest.levels) if level.split[1] > 1), None)
    adds = None if split_k is None else min(i for i in nest.list_holders("C") if i >= split_k)

    def arrive(level: int, cores: list) -> None:
        for operand, axes in _AXES.items():
            if operand not in nest.holds[level]:
                continue
            keep = operand in nest.levels[level].keep
            together = {}
            for core, ranges in cores:
                tile = tuple(ranges["mkn".index(axis)] for axis in axes)
                key = (operand, level, core)
                if keep:
                    parts = held.setdefault(key, set())
                    if tile in parts:
                        continue
                    parts.add(tile)
                elif held.get(key) == tile and (nest.has_registers or level < len(nest.levels) - 1):
                    continue
                else:
                    held[key] = tile
                    for inner in [
                        k for k in held if k[0] == operand and k[1] > level and k[2][: level + 1] == core
                    ]:
                        if operand not in nest.levels[inner[1]].keep:
                            del held[inner]
                elements = (tile[0][1] - tile[0][0]) * (tile[1][1] - tile[1][0])
                fresh = False
                if operand == "C":
                    counts.stores["C", level] += elements
                    if adds == level:
                        epoch[core[: level + 1]] += 1
                        fresh = True
                    owner = (
                        (core[: adds + 1], epoch[core[: adds + 1]])
                        if adds is not None and level > adds
                        else 0
                    )
                    place = (owner, tile)
                    if adds != level:
                        fresh = place not in seen[level]
                        seen[level].add(place)
                if not fresh:
                    counts.loads[operand, level] += elements
                outside = max((i for i in nest.list_holders(operand) if i < level), default=-1)
                together.setdefault((tile, core[: outside + 1]), elements)
            for (tile, _), elements in together.items():
                if operand == "C":
                    counts.outside_writes["C", level] += elements
                    if adds == level:
                        if tile in seen["added"]:
                            counts.outside_reads["C", level] += elements
                        seen["added"].add(tile)
                else:
                    counts.outside_reads[operand, level] += elements

    def loops(level: int, position: int, cores: list) -> None:
        if not cores:
            return
        if level == len(nest.levels):
            return
        step = nest.levels[level]
        if position == 3:
            split = list(itertools.product(*(range(count) for count in step.split)))
            inner = []
            for core, ranges in cores:
                for index in split:
                    parts = []
                    for axis, (start, stop) in enumerate(ranges):
                        low = start + index[axis] * step.tile[axis]
                        parts.append((low, min(stop, low + step.tile[axis])))
                    if all(low < high for low, high in parts):
                        inner.append(((*core, index), tuple(parts)))
            arrive(level, inner)
            loops(level + 1, 0, inner)
            return
        axis = "mkn".index(step.order[position])
        chunk = step.tile[axis] * step.split[axis]
        trips = max(-(-(ranges[axis][1] - ranges[axis][0]) // chunk) for _, ranges in cores)
        for trip in range(trips):
            inside = []
            for core, ranges in cores:
                low = ranges[axis][0] + trip * chunk
                high = min(ranges[axis][1], low + chunk)
                if low < high:
                    inside.append((core, (*ranges[:axis], (low, high), *ranges[axis + 1 :])))
            loops(level, position + 1, inside)

    loops(0, 0, [((), tuple((0, length) for length in nest.size))])
    return counts


@st.composite
def nests(draw, max_size: int = 9, cores: bool = True, registers: bool = True) -> Nest:
    """Draws a nest of one to three levels with bypass, cores and whole operands.

    If `registers` is false, some nests have an array that holds nothing.
    """
    size = tuple(draw(st.integers(1, max_size)) for _ in range(3))
    count = draw(st.integers(1, 3))
    split_level = draw(st.integers(0, count - 1)) if cores and draw(st.booleans()) else None
    levels, tile = [], size
    for index in range(count):
        split = (1, 1, 1)
        if index == split_level:
            split = tuple(draw(st.integers(1, 3)) for _ in range(3))
        tile = tuple(draw(st.integers(1, length)) for length in tile)
        order = "".join(draw(st.permutations("mkn")))
        may_keep = index == 0 and count > 1 and split == (1, 1, 1)
        keep = draw(st.sampled_from(["", "", "", "A", "B", "C"])) if may_keep else ""
        levels.append(NestLevel(order, tile, split, keep))
    holds = []
    for index in range(count):
        held = "ABC" if index == count - 1 else draw(st.sampled_from(["ABC", "ABC", "AB", "C", "A", "BC"]))
        holds.append("".join(sorted({*held, *levels[index].keep})))
    return Nest(size, tuple(levels), tuple(holds), registers or draw(st.booleans()))
