"""Pages of the tile view: the grid of output blocks on the left, the chosen block on the right.

A character and a color show the utilization of a block: the share of its tiles' arithmetic that is not
padding. Terminals without colors lose nothing. If there are more blocks than cells, each cell shows several
blocks, and the title tells how many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.features.tiling.steps_words import buffer_fields, traffic_fields
from explorer.features.tiling.tile_blocks import Scale, TileGrid, TilePlace, TileProduct
from explorer.features.tiling.tile_words import build_tiling_fields
from explorer.report.blocks import Fields
from explorer.report.names import shorten_name
from explorer.report.present.figures import share_text
from explorer.tui.text.drawing import draw, draw_side_by_side
from explorer.tui.text.lines import (
    BLANK,
    Line,
    Span,
    cut_line,
    draw_bar,
    escape_name,
    find_first_visible,
    fit,
    flow_pieces,
    line_width,
    wrap_within,
)

if TYPE_CHECKING:
    from explorer.facts import SitePlan
    from explorer.facts.cost import TileStep, TileSteps


FULL_STEP_LINES = 16
"""Number of lines of a full step description."""


def step_lines(steps: TileSteps, step: TileStep, playing: str, width: int, room: int) -> list[Line]:
    """Describe a step in at most `room` lines: in full, in three lines, or in one.

    Args:
        steps: All steps of the site.
        step: Step to describe.
        playing: Speed as text, or '' when stopped.
        width: Available width, in cells.
        room: Available height, in lines.
    """
    step_number = f"{step.step + 1:,} of {steps.count:,}"
    speed = f" {playing}" if playing else ""
    head: list[Span] = [
        (" Step ", "head"),
        (step_number, "number"),
        (f"  {steps.order}", "accent"),
        (speed, "warn"),
    ]
    loaded = [name for name, load in zip("ABC", step.loads, strict=True) if load]
    came = f"  {' '.join(loaded)} in" if loaded else "  nothing in"
    output_text = ", C out" if step.stores else ""
    if room < 3:
        moved = f"  {share_text(step.traffic, steps.traffic)} moved, {units.bytes_text(step.traffic)}"
        line: Line = (*head, (moved, "dim"))
        # in a narrow pane, the operands that enter and leave the buffer replace the order and the bytes
        return [
            line
            if line_width(line) <= width
            else cut_line((*head[:2], *head[3:], (came + output_text, "dim")), width)
        ]
    share = step.traffic / steps.traffic if steps.traffic else 1.0
    filled, track = draw_bar(share, max(4, min(20, width - 40)))
    if room < FULL_STEP_LINES:
        buffer_size = units.bytes_text(step.a + step.b + step.c)
        traffic = f"{units.bytes_text(step.traffic)} {share_text(step.traffic, steps.traffic)} "
        return [
            cut_line(head, width),
            cut_line(((" buffer   ", "dim"), (buffer_size, "number"), (came + output_text, "dim")), width),
            cut_line(((" moved    ", "dim"), (traffic, "number"), filled, track), width),
        ]
    head.append((f"  {steps.dataflow}", "dim"))
    lines: list[Line] = [
        cut_line(head, width),
        ((" In the buffer", "head"),),
        *draw([buffer_fields(step)], width),
    ]
    lines += [((" Moved so far", "head"),), *draw([traffic_fields(step, steps.traffic)], width)[1:]]
    total_text = f"  of {units.bytes_text(steps.traffic)}"
    return [cut_line(line, width) for line in (*lines, ((" ", "text"), filled, track, (total_text, "dim")))][
        :room
    ]


_SHADES: Sequence[tuple[float, str, str, str]] = (
    (1.0, "█", "good", "all"),
    (0.75, "▓", "accent", "¾"),
    (0.5, "▒", "number", "½"),
    (0.25, "░", "warn", "¼"),
    (0.0, "·", "bad", "less"),
)
"""Minimum share of the tiles' arithmetic; character, role and legend text for it."""

SIGNS = (
    ("█ ▓ ▒ ░ ·", "utilization of a block or slice: all of it is used, at least ¾, ½, ¼, or less"),
    ("◆", "the chosen block, the chosen slice along K, and its tiles in A and B"),
    ("▒ in A, B", "the other tiles that the chosen block reads"),
    ("· in A, B", "tiles that the chosen block does not read"),
    (
        "m,n,k",
        "row, column and slice of the chosen tile matmul, counted from 0; the tiled file has this label",
    ),
)
"""Signs of the page with their meanings, for the help."""

MIN_BESIDE_WIDTH = 56
"""Minimum width, in cells, for the chosen block next to the grid instead of below it."""


def _choose_shade(share: float) -> tuple[str, str]:
    """Return the character and role of a share; only exactly 1 counts as full."""
    return next((sign, role) for least, sign, role, _ in _SHADES if share >= least)


def site_lines(sites: Sequence[SitePlan], index: int, width: int) -> tuple[Line, Line]:
    """Build the two title lines: the matmul with its number, and its tiling."""
    site = sites[index]
    blocks = TileGrid.from_site(site)
    number = f"matmul {index + 1:,} of {len(sites):,} " if len(sites) > 1 else ""
    room = max(8, width - len(number) - 2)
    batch = f"{blocks.batch:,} × " if blocks.batch > 1 else ""
    size = f"{batch}{site.M:,} × {site.K:,} × {site.N:,}"
    name = shorten_name(escape_name(site.title), max(8, room - len(size) - len(site.op) - 3))
    first: list[Span] = [(" " + name, "strong"), (f"  {escape_name(site.op)} ", "accent"), (size, "number")]
    gap = width - line_width(first) - len(number)
    first.append((" " * max(1, gap) + number, "dim"))
    return cut_line(first, width), draw_side_by_side(Fields(build_tiling_fields(site)), width)[0]


def tile_footer(many_sites: bool, batch: bool) -> list[tuple[str, str]]:
    """Return the keys that have an effect, the most used first."""
    words = [("←↑↓→", "block"), ("[ ]", "K")]
    words += [(", .", "batch")] if batch else []
    words += [("n p", "matmul")] if many_sites else []
    words += [("Space", "play"), ("s", "step"), ("+ -", "speed"), ("o", "order")]
    return [*words, ("PgUp PgDn Home End", "jump"), ("y", "copy"), ("Esc", "back")]


# the grid


_OPERANDS_FROM, _OPERAND_LINES = 26, 8
"""Height of a pane from which lines below the grid are reserved for the operands, and number of these lines.

A lower pane draws the operands in the lines that the grid leaves free, if any.
"""
_MAX_BLOCK_HEIGHT = 6
"""Maximum height of a block, in lines."""
_MAX_BLOCK_WIDTH = 16
"""Maximum width of a block, in characters for each line of its height."""


class _Frame:
    """Position and scale of the grid in its pane, for drawing and for finding a clicked block.

    A cell of the grid is `cell_height` lines high and `cell_width` characters wide. A cell of the strip along
    K is `depth_cell_width` characters wide.
    """

    def __init__(self, blocks: TileGrid, width: int, height: int) -> None:
        # few blocks are drawn large, up to `_MAX_BLOCK_HEIGHT` lines high
        self.is_brief = height < 12
        self.margin = len(f"{blocks.m.count - 1:,}") + 2
        room = max(1, width - self.margin - 1)
        # lines around the grid: title, column numbers, partial tiles, a blank line, K and its strip, legend
        other_lines = 6 if self.is_brief else 8
        other_lines += _OPERAND_LINES + 1 if height >= _OPERANDS_FROM else 0
        self.rows = Scale.fit(blocks.m.count, max(1, height - other_lines))
        self.cols = Scale.fit(blocks.n.count, room)
        self.depths = Scale.fit(blocks.k.count, room)
        self.cell_height = max(1, min(_MAX_BLOCK_HEIGHT, (height - other_lines) // self.rows.cells))
        self.cell_width = max(1, min(_MAX_BLOCK_WIDTH * self.cell_height, room // self.cols.cells))
        self.depth_cell_width = max(1, min(_MAX_BLOCK_WIDTH * self.cell_height, room // self.depths.cells))
        self.top = 2


def grid_page(site: SitePlan, place: TilePlace, width: int, height: int) -> list[Line]:
    """Draw the blocks of the output, and the depth of the chosen block."""
    blocks = TileGrid.from_site(site)
    frame = _Frame(blocks, width, height)
    lines = [_build_title(blocks, place, frame, width), _build_column_numbers(blocks, place, frame)]
    chosen_row = place.row // frame.rows.per
    for row in range(frame.rows.cells):
        first, stop = frame.rows.tiles(row)
        label = fit(f"{first:,}", frame.margin - 1, right=True) + " "
        cells: list[Span] = []
        for col in range(frame.cols.cells):
            start, end = frame.cols.tiles(col)
            sign, role = _choose_shade(blocks.compute_utilization(first, stop, start, end))
            _append_cell(
                cells, sign, role, frame.cell_width, row == chosen_row and col == place.col // frame.cols.per
            )
        lines.append(((label, "accent" if row == chosen_row else "dim"), *cells))
        below: Line = ((" " * frame.margin, "text"), *cells)
        lines += [below] * (frame.cell_height - 1 - (frame.cell_height > 2))
        lines += [BLANK] * (frame.cell_height > 2)
    lines += wrap_within(_describe_partial_tiles(site, blocks), width - 1, 1 if frame.is_brief else 2, 1)
    if not frame.is_brief:
        lines.append(BLANK)
    lines += [*_draw_depth(blocks, place, frame, width), _build_legend(width)]
    spare = height - len(lines) - 1
    if spare >= 4:
        lines += [BLANK, *_draw_operands(blocks, place, width, spare)]
    return [cut_line(line, width) for line in lines[:height]]


def _append_cell(spans: list[Span], sign: str, role: str, cell_width: int, is_chosen: bool) -> None:
    """Append a cell: its character, and a gap if cells are wide."""
    filled = cell_width - (cell_width > 1)
    # without colors the cursor is drawn in reverse, and a full block in reverse is blank
    spans.append(("◆" * filled, "mark") if is_chosen else (sign * filled, role))
    if cell_width > 1:
        spans.append((" ", "text"))


def _build_title(blocks: TileGrid, place: TilePlace, frame: _Frame, width: int) -> Line:
    counts = f"{blocks.m.count:,} × {blocks.n.count:,}"
    spans: list[Span] = [(" Output ", "head"), (f"{counts} blocks", "text")]
    if blocks.batch > 1:
        spans.append((f"  batch {place.batch + 1:,} of {blocks.batch:,}", "accent"))
    if frame.rows.per > 1 or frame.cols.per > 1:
        spans.append((f"  {frame.rows.per:,} × {frame.cols.per:,} a cell", "warn"))
    return cut_line(spans, width)


def _build_column_numbers(blocks: TileGrid, place: TilePlace, frame: _Frame) -> Line:
    """Build the line above the grid: numbers of the first, the last and the chosen column."""
    cells = frame.cols.cells
    line = [" "] * (cells * frame.cell_width)
    chosen_column = place.col // frame.cols.per * frame.cell_width
    marks: list[tuple[int, str]] = [(chosen_column, f"{place.col:,}"), (0, "0")]
    marks.append(((cells - 1) * frame.cell_width, f"{blocks.n.count - 1:,}"))
    spans: list[Span] = []
    highlighted = range(0)
    for column, word in marks:
        column = max(0, min(column, len(line) - len(word)))
        if all(c == " " for c in line[max(0, column - 1) : column + len(word) + 1]):
            line[column : column + len(word)] = word
            highlighted = highlighted or range(column, column + len(word))
    spans = [(" " * frame.margin, "text")]
    spans += [
        ("".join(line[: highlighted.start]), "dim"),
        ("".join(line[highlighted.start : highlighted.stop]), "accent"),
        ("".join(line[highlighted.stop :]), "dim"),
    ]
    return tuple(spans)


def _describe_partial_tiles(site: SitePlan, blocks: TileGrid) -> list[Span]:
    """Describe the sizes of the partial tiles."""
    partial_sizes = [
        f"{word} {axis.last_size:,} of {axis.tile:,}"
        for word, axis in (("M", blocks.m), ("N", blocks.n), ("K", blocks.k))
        if axis.last_size != axis.tile
    ]
    if not partial_sizes:
        return [(" every tile is full", "dim")]
    edge_text = (
        "filled up with zeros" if site.edges == "padded" else units.edges_text(site.edges, brief=False)
    )
    return [(f" {edge_text}: ", "dim"), (" · ".join(partial_sizes), "warn")]


def _draw_depth(blocks: TileGrid, place: TilePlace, frame: _Frame, width: int) -> list[Line]:
    """Draw the slices along K, which are summed, as a strip."""
    scale_text = f"  {frame.depths.per:,} a cell" if frame.depths.per > 1 else ""
    slices = f"{units.many_text(blocks.k.count, 'slice')} of {blocks.k.tile:,}"
    title = [(" K ", "head"), (slices, "text"), (f"  k {place.depth:,}", "accent"), (scale_text, "warn")]
    spans: list[Span] = [(" " * frame.margin, "text")]
    for cell in range(frame.depths.cells):
        first, stop = frame.depths.tiles(cell)
        sign, role = _choose_shade(blocks.k.compute_filled_share(first, stop))
        _append_cell(spans, sign, role, frame.depth_cell_width, cell == place.depth // frame.depths.per)
    return [cut_line(title, width), tuple(spans)]


def _draw_operands(blocks: TileGrid, place: TilePlace, width: int, height: int) -> list[Line]:
    """Draw A and B as grids of tiles; highlight the row of A, the column of B, and the chosen tiles."""
    half, height = width // 2, height - 1
    a = _draw_grid("A", blocks.m.count, blocks.k.count, (place.row, place.depth), 0, half - 1, height)
    b = _draw_grid("B", blocks.k.count, blocks.n.count, (place.depth, place.col), 1, width - half, height)
    missing = [BLANK] * (height + 1)
    lines = []
    for _, left, right in zip(range(max(len(a), len(b))), [*a, *missing], [*b, *missing], strict=False):
        lines.append((*left, (" " * max(0, half - line_width(left)), "text"), *right))
    legend: Line = (
        (" ", "text"),
        ("◆", "mark"),
        (" chosen tile  ", "dim"),
        ("▒ ", "accent"),
        ("the block's tiles  ", "dim"),
    )
    return [*lines, (*legend, ("· ", "track"), ("others", "dim"))]


def _draw_grid(
    name: str, rows: int, cols: int, chosen_tile: tuple[int, int], band: int, width: int, height: int
) -> list[Line]:
    """Draw an operand as a grid of tiles; highlight the row (`band` 0) or column (1) of the chosen tile."""
    row_scale, col_scale = Scale.fit(rows, height - 1), Scale.fit(cols, width - 2)
    tile_height = max(1, min(_MAX_BLOCK_HEIGHT // 2, (height - 1) // row_scale.cells))
    cell_width = max(1, min(_MAX_BLOCK_WIDTH // 2 * tile_height, (width - 2) // col_scale.cells))
    chosen_cell = chosen_tile[0] // row_scale.per, chosen_tile[1] // col_scale.per
    lines: list[Line] = [((f" {name} ", "head"), (f"{rows:,} × {cols:,} tiles", "dim"))]
    for y in range(row_scale.cells):
        spans: list[Span] = [(" ", "text")]
        for x in range(col_scale.cells):
            highlighted = (y, x)[band] == chosen_cell[band]
            sign, role = (
                ("◆", "mark") if (y, x) == chosen_cell else ("▒", "accent") if highlighted else ("·", "track")
            )
            spans.append((sign * cell_width, role))
        lines += [tuple(spans)] * tile_height
    return lines


def _build_legend(width: int) -> Line:
    pieces: list[Line] = [((" util.:", "dim"),)]
    pieces += [((f"{sign} ", role), (word, "dim")) for _, sign, role, word in _SHADES]
    return cut_line((flow_pieces(pieces, width, 0) or [BLANK])[0], width)


def block_at(site: SitePlan, place: TilePlace, x: int, y: int, width: int, height: int) -> TilePlace | None:
    """Return the place that a click on the grid chooses, or None outside the grid."""
    blocks = TileGrid.from_site(site)
    frame = _Frame(blocks, width, height)
    row, col = (y - frame.top) // frame.cell_height, (x - frame.margin) // frame.cell_width
    if 0 <= row < frame.rows.cells and 0 <= col < frame.cols.cells:
        return TilePlace(place.batch, frame.rows.tiles(row)[0], frame.cols.tiles(col)[0], place.depth)
    return None


# the chosen block


def block_page(
    site: SitePlan,
    place: TilePlace,
    width: int,
    height: int,
    operands: Mapping[str, str] | None = None,
    step: Callable[[int, int], Sequence[Line]] | None = None,
) -> list[Line]:
    """Describe the chosen block: its position, its utilization, and the tile matmuls that make it.

    Args:
        site: Site of the block.
        place: Chosen block and tile matmul.
        width: Width of the page, in cells.
        height: Height of the page, in lines. The list of tile matmuls scrolls with the chosen one to fit.
        operands: Names of the operands 'A' and 'B', where known.
        step: Function that describes the current step for a width and a maximum number of lines, or None.
    """
    blocks = TileGrid.from_site(site)
    block, product = blocks.block(place), blocks.product(place, place.depth)
    width -= 1
    rows, cols = block.rows, block.cols
    batch_text = f"{place.batch:,}, " if blocks.batch > 1 else ""
    lines: list[Line] = [
        ((f" Block {batch_text}{place.row:,}, {place.col:,}", "head"),),
        _build_field("lies at", ((_slice_text(rows, cols), "number"),), width),
    ]
    if height >= 10:
        name = shorten_name(escape_name(site.output) or "the output", width - 9)
        lines.insert(1, _build_field("of", ((name, "text"),), width))
        size = (_size_text(rows, cols), "number")
        lines.append(_build_field("is", (size, (f"  of {blocks.m.tile}×{blocks.n.tile}", "dim")), width))
    filled, track = draw_bar(block.utilization, 8 if width >= 40 else 0)
    share = (f"{share_text(block.utilization, 1)} ", _choose_shade(block.utilization)[1])
    lines.append(
        _build_field("util.", (share, filled, track, (_format_idle(site, block.utilization), "dim")), width)
    )
    if height >= 14:
        lines.append(BLANK)
    lines.append(((f" Tile matmul k = {product.index:,}", "head"), (f"  of {blocks.k.count:,}", "dim")))
    lines += _operand_lines(site, product, operands or {}, width, named=height >= 11)
    if height >= 17:
        mnk = f"{place.row},{place.col},{product.index}"
        lines += [_build_field("m,n,k", ((mnk, "number"), ("  its label in the file", "dim")), width), BLANK]
    if step is not None:
        lines += _step_block(step, width, height - len(lines))
    room = height - len(lines) - 1
    if room < 1:
        visible = lines if len(lines) <= height else [*lines[: height - 1], lines[-1]]
        return [cut_line(line, width) for line in visible]
    return [cut_line(line, width) for line in (*lines, *_list_tile_matmuls(blocks, place, width, room))]


def _operand_lines(
    site: SitePlan, product: TileProduct, names: Mapping[str, str], width: int, *, named: bool
) -> list[Line]:
    """Describe the operands of a tile matmul, with their names if `named`."""
    lines: list[Line] = []
    name_of_a, right = names.get("A", ""), site.weight or names.get("B", "")
    input_role, unnamed = (
        ("patches of", "patches of the input") if "Conv" in site.op else ("activation", "an activation")
    )
    weight_kind = "initializer" if site.weight else "activation"
    for letter, first, second, name, role, nameless in (
        ("A", product.rows, product.depth, name_of_a, input_role, unnamed),
        ("B", product.depth, product.cols, right, weight_kind, f"an {weight_kind}"),
    ):
        where: list[Span] = [(_slice_text(first, second), "number"), (f" {_size_text(first, second)}", "dim")]
        lines.append(_build_field(letter, where, width))
        if named:
            operand = f"{role} {shorten_name(escape_name(name), max(8, width - 5 - len(role)))}"
            lines.append((("   ", "text"), (operand, "text") if name else (nameless, "dim")))
    return lines


def _step_block(step: Callable[[int, int], Sequence[Line]], width: int, spare: int) -> list[Line]:
    """Build the lines about the step; leave four lines for tile matmuls if there is room."""
    has_room = spare > FULL_STEP_LINES + 4
    return [*step(width, spare - 4 if has_room else 3 if spare > 7 else 1), *[BLANK] * has_room]


def product_text(site: SitePlan, place: TilePlace) -> str:
    """Write the chosen tile matmul as an assignment, with the names in the plan."""
    blocks = TileGrid.from_site(site)
    tile = blocks.product(place, place.depth)
    batch_text = f"[{place.batch}]" if blocks.batch > 1 else ""
    target = f"{escape_name(site.output) or 'C'}{batch_text}{_slice_text(tile.rows, tile.cols)}"
    right = f"{escape_name(site.weight) or 'B'}{batch_text}{_slice_text(tile.depth, tile.cols)}"
    return f"{target} += A{batch_text}{_slice_text(tile.rows, tile.depth)} @ {right}"


def _list_tile_matmuls(blocks: TileGrid, place: TilePlace, width: int, room: int) -> list[Line]:
    """List the tile matmuls of the block around the chosen one."""
    count = blocks.k.count
    start = find_first_visible(place.depth, room, count)
    products = [blocks.product(place, k) for k in range(start, min(count, start + room))]
    is_wide = width >= 58
    cells: list[tuple[str, ...]] = []
    for tile in products:
        a, b = _size_text(tile.rows, tile.depth), _size_text(tile.depth, tile.cols)
        if is_wide:
            a, b = f"{_slice_text(tile.rows, tile.depth)} {a}", f"{_slice_text(tile.depth, tile.cols)} {b}"
            cells.append((f"{tile.index:,}", a, b, share_text(tile.utilization, 1)))
        else:
            cells.append((f"{tile.index:,}", _range_text(tile.depth), a, b, share_text(tile.utilization, 1)))
    titles = ("k", "A", "B", "util.") if is_wide else ("k", "along K", "A", "B", "util.")
    widths = [max(len(t), *(len(row[i]) for row in cells)) for i, t in enumerate(titles)]
    while len(widths) > 3 and sum(widths) + 2 * len(widths) + 1 > width:
        widths.pop()
    line = "".join("  " + fit(t, w, right=True) for t, w in zip(titles, widths, strict=False))
    lines: list[Line] = [((line, "dim"),)]
    for row, tile in zip(cells, products, strict=True):
        is_chosen = tile.index == place.depth
        pieces = "".join("  " + fit(c, w, right=True) for c, w in zip(row, widths, strict=False))
        lines.append(
            (("▸" if is_chosen else " ", "accent"), (pieces[1:], "strong" if is_chosen else "number"))
        )
    return lines


def _build_field(label: str, value: Sequence[Span], width: int) -> Line:
    """Build a label and its value in exactly one line, so that lines do not jump when the block changes."""
    name = f" {fit(label, 8)}" if len(label) > 1 else f" {label} "
    return cut_line(((name, "dim"), *value), width)


def _slice_text(first: tuple[int, int], second: tuple[int, int]) -> str:
    return f"[{_range_text(first)}, {_range_text(second)}]"


def _range_text(span: tuple[int, int]) -> str:
    return f"{span[0]}:{span[1]}"


def _size_text(first: tuple[int, int], second: tuple[int, int]) -> str:
    return f"{first[1] - first[0]}×{second[1] - second[0]}"


def _format_idle(site: SitePlan, share: float) -> str:
    if share >= 1:
        return ""
    return f" {share_text(1 - share, 1)} {'zeros' if site.edges == 'padded' else 'idle'}"
