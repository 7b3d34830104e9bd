"""Edits of a mapping: another tile, another order of the loops, another operand that a memory keeps whole.

Each edit returns a mapping that is valid for the machine. Tiles are multiples of the smallest matmul that the
machine's matrix unit computes, cut to the tile of the level outside. A mapping may need more bytes than a
memory has, so that the screen can show how many bytes are missing.
"""

from __future__ import annotations

import math
from typing import get_args

from msgspec.structs import replace

from explorer.facts import SitePlan
from explorer.facts.mapping import LoopOrder, NestLevel, SiteMapping, Sizes

ORDERS: tuple[LoopOrder, ...] = get_args(LoopOrder)


def resize(mapping: SiteMapping, level: int, axis: str, step: int, unit: Sizes) -> SiteMapping | None:
    """Change the tile of a level along an axis, to the next size that changes the trip count of its loop.

    Args:
        mapping: The mapping.
        level: Index of the level.
        axis: 'm', 'k' or 'n'.
        step: 1 for a larger tile, -1 for a smaller one.
        unit: M, K and N of the smallest matmul that the machine's matrix unit computes.

    Returns:
        The mapping, or None if the tile has no next size. The array's tile never changes.
    """
    if level == len(mapping.levels) - 1:
        return None
    position = "mkn".index(axis)
    outer = mapping.size if level == 0 else mapping.levels[level - 1].tile
    edited = mapping.levels[level]
    split = edited.split[position]
    length = _find_next_length(edited.tile[position], outer[position], unit[position], split, step)
    return None if length is None else _set_tile(mapping, level, position, length)


def _find_next_length(length: int, outer: int, unit: int, split: int, step: int) -> int | None:
    """Return the next length of a tile that changes the trip count of its loop, or None if there is none."""
    units = -(-outer // (unit * split))
    current = min(-(-length // unit), units)
    trips = -(-units // current)
    if step > 0:
        return None if trips == 1 else min(-(-units // (trips - 1)) * unit, outer)
    if current == 1:
        return None
    more_trips = -(-units // (current - 1))
    return min(-(-units // more_trips) * unit, outer)


def _set_tile(mapping: SiteMapping, level: int, position: int, length: int) -> SiteMapping:
    """Replace a length of a tile, and shorten the tiles inside it that would be larger."""
    levels = list(mapping.levels)
    for index in range(level, len(levels) - 1):
        inner = levels[index].tile[position]
        tile = list(levels[index].tile)
        tile[position] = length if index == level else min(inner, length)
        levels[index] = replace(levels[index], tile=(tile[0], tile[1], tile[2]))
    return replace(mapping, levels=tuple(levels))


def reorder(mapping: SiteMapping, level: int, step: int) -> SiteMapping:
    """Take the next (`step` 1) or the previous (`step` -1) order of the loops of a level."""
    order = mapping.levels[level].order
    return _set_level(mapping, level, order=ORDERS[(ORDERS.index(order) + step) % len(ORDERS)])


def keep_next(mapping: SiteMapping, operands: str) -> SiteMapping | None:
    """Change which operand the first level on the chip holds whole: none, then each of `operands`, in turn.

    Returns:
        The mapping, or None if the level divides its tiles among cores, or is the array.
    """
    first = mapping.levels[0]
    if len(mapping.levels) == 1 or math.prod(first.split) > 1:
        return None
    choices = ["", *operands]
    current = choices.index(first.keep) if first.keep in choices else 0
    return _set_level(mapping, 0, keep=choices[(current + 1) % len(choices)])


def _set_level(mapping: SiteMapping, index: int, **fields: str) -> SiteMapping:
    levels: list[NestLevel] = list(mapping.levels)
    levels[index] = replace(levels[index], **fields)
    return replace(mapping, levels=tuple(levels))


def build_tiled_site(site: SitePlan, level: NestLevel) -> SitePlan:
    """Return the site with the tile of a level of its mapping."""
    sizes = site.M, site.K, site.N
    m, k, n = (-(-size // length) for size, length in zip(sizes, level.tile, strict=True))
    products = site.batch * m * k * n
    used = site.batch * math.prod(sizes) / (products * math.prod(level.tile))
    return replace(site, tile=level.tile, grid=(m, k, n), products=products, utilisation=used, edges="ragged")
