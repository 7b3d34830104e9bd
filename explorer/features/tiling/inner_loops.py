"""Loops inside one tile of a mapping, for the tile view: the tiles of the next memory level, in order."""

from __future__ import annotations

from msgspec import Struct

from explorer.base.units import sizes_text
from explorer.features.tiling.tile_blocks import TileAxis, TileGrid, TilePlace
from explorer.tui.text.lines import Line, cut_line, escape_name

_MAX_DRAWN_TILES = 12
"""Maximum number of tiles along an axis that are drawn one by one."""


class InnerLoops(Struct, frozen=True):
    """Loops over the tiles of the next level inside each tile of a site.

    Attributes:
        name: Memory that holds a tile of the next level, or 'array'.
        tile: M, K and N of a tile of the next level, in elements.
        order: Loops from the outermost to the innermost.
    """

    name: str
    tile: tuple[int, int, int]
    order: str

    def grid(self, blocks: TileGrid, place: TilePlace) -> TileGrid:
        """Return the tiles of the next level inside a tile matmul, which may be smaller at an edge."""
        matmul = blocks.product(place, place.depth)
        rows, depth, cols = (stop - first for first, stop in (matmul.rows, matmul.depth, matmul.cols))
        tile_m, tile_k, tile_n = self.tile
        return TileGrid(TileAxis(rows, tile_m), TileAxis(depth, tile_k), TileAxis(cols, tile_n))

    def move(
        self, blocks: TileGrid, place: TilePlace, inner_step: int, count: int, order: str
    ) -> tuple[TilePlace, int]:
        """Move by a number of inner steps, if necessary into later or earlier tile matmuls.

        Args:
            blocks: Tiles of the site.
            place: Tile matmul of the site.
            inner_step: Index of the inner step in it.
            count: Number of inner steps, negative for back.
            order: Order of the loops of the site.

        Returns:
            The new tile matmul and inner step. The move ends at the first and at the last step of the site.
        """
        step, last = blocks.find_step(place, order), blocks.products - 1
        target = inner_step + count
        while target < 0 and step > 0:
            step -= 1
            target += self.grid(blocks, blocks.find_place(step, order)).products
        while (steps := self.grid(blocks, blocks.find_place(step, order)).products) <= target and step < last:
            step += 1
            target -= steps
        return blocks.find_place(step, order), max(0, min(target, steps - 1))

    def lines(self, grid: TileGrid, inner_step: int, width: int, room: int) -> list[Line]:
        """Describe an inner step in at most three lines.

        Args:
            grid: Tiles inside the current tile matmul.
            inner_step: Index of the inner step.
            width: Width in cells.
            room: Maximum number of lines.
        """
        place = grid.find_place(inner_step, self.order)
        previous = grid.find_place(inner_step - 1, self.order) if inner_step else None
        changed = [
            operand
            for operand, axes in (("A", ("row", "depth")), ("B", ("depth", "col")), ("C", ("row", "col")))
            if previous is None or any(getattr(place, axis) != getattr(previous, axis) for axis in axes)
        ]
        head: Line = (
            (f" In {escape_name(self.name)} ", "head"),
            (f"{inner_step + 1:,} of {grid.products:,}", "number"),
            (f"  {self.order}", "accent"),
            (f"  new: {' '.join(changed) or 'nothing'}", "dim"),
        )
        matmul = grid.product(place, place.depth)
        spans = matmul.rows, matmul.depth, matmul.cols
        size = sizes_text(tuple(stop - first for first, stop in spans))
        axes = (("m", place.row, grid.m), ("k", place.depth, grid.k), ("n", place.col, grid.n))
        bars: Line = tuple((f" {name} {_draw_bar(index, axis.count)}", "bar") for name, index, axis in axes)
        tile: Line = ((" tile ", "dim"), (size, "number"), (f"  of {sizes_text(self.tile)}", "dim"))
        return [cut_line(line, width) for line in (head, bars, tile)[:room]]


def _draw_bar(index: int, count: int) -> str:
    """Draw the tiles along an axis with the current tile marked; for many tiles, return '13/40' instead."""
    if count > _MAX_DRAWN_TILES:
        return f"{index + 1:,}/{count:,}"
    return "░" * index + "◆" + "░" * (count - index - 1)
