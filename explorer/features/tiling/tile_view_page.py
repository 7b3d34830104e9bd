"""Tile view of a site as lines: the grid of output blocks on the left, the chosen block on the right.

How much of the matrix unit a block needs is shown by a sign and by a color, so nothing is lost on a terminal
without colors. If there are more blocks than cells, a cell stands for several, and the title says how many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.features.tiling.steps_words import buffer_fields, traffic_fields
from explorer.features.tiling.tile_blocks import Scale, TileGrid, TilePlace, TileProduct
from explorer.features.tiling.tile_words import how_tiled
from explorer.report.blocks import Fields
from explorer.report.present.figures import share_text
from explorer.tui.text.drawing import draw, side_by_side
from explorer.tui.text.lines import (
    BLANK,
    Line,
    Span,
    bar,
    cut,
    ending,
    first_shown,
    fit,
    flow,
    line_width,
    safe,
    wrap,
)

if TYPE_CHECKING:
    from explorer.facts import SitePlan
    from explorer.facts.cost import TileStep, TileSteps


FULL = 16
"""Lines of a step that is described in full."""


def step_lines(steps: TileSteps, step: TileStep, playing: str, width: int, room: int) -> list[Line]:
    """A step in at most `room` lines: in full, in three, or in one.

    Args:
        steps: All steps.
        step: The step to describe.
        playing: The speed as text, '' when stopped.
        width: In cells.
        room: In lines.
    """
    at = f"{step.step + 1:,} of {steps.count:,}"
    speed = f" {playing}" if playing else ""
    head: list[Span] = [(" Step ", "head"), (at, "number"), (f"  {steps.order}", "accent"), (speed, "warn")]
    comes = [name for name, load in zip("ABC", step.loads, strict=True) if load]
    came = f"  {' '.join(comes)} in" if comes else "  nothing in"
    gone = ", C out" if step.stores else ""
    if room < 3:
        moved = f"  {share_text(step.traffic, steps.traffic)} moved, {units.bytes_text(step.traffic)}"
        line: Line = (*head, (moved, "dim"))
        # if that is too wide: what enters and leaves the buffer
        return [
            line if line_width(line) <= width else cut((*head[:2], *head[3:], (came + gone, "dim")), width)
        ]
    share = step.traffic / steps.traffic if steps.traffic else 1.0
    filled, track = bar(share, max(4, min(20, width - 40)))
    if room < FULL:
        buffer_size = units.bytes_text(step.a + step.b + step.c)
        traffic = f"{units.bytes_text(step.traffic)} {share_text(step.traffic, steps.traffic)} "
        return [
            cut(head, width),
            cut(((" buffer   ", "dim"), (buffer_size, "number"), (came + gone, "dim")), width),
            cut(((" moved    ", "dim"), (traffic, "number"), filled, track), width),
        ]
    head.append((f"  {steps.dataflow}", "dim"))
    lines: list[Line] = [cut(head, width), ((" In the buffer", "head"),), *draw([buffer_fields(step)], width)]
    lines += [((" Moved so far", "head"),), *draw([traffic_fields(step, steps.traffic)], width)[1:]]
    whole = f"  of {units.bytes_text(steps.traffic)}"
    return [cut(line, width) for line in (*lines, ((" ", "text"), filled, track, (whole, "dim")))][:room]


_SHADES: Sequence[tuple[float, str, str, str]] = (
    (1.0, "█", "good", "all"),
    (0.75, "▓", "accent", "¾"),
    (0.5, "▒", "number", "½"),
    (0.25, "░", "warn", "¼"),
    (0.0, "·", "bad", "less"),
)
"""Sign, color and legend word, by the least share of a tile's arithmetic that they stand for."""

BESIDE = 56
"""Least width at which the chosen block stands beside the grid rather than below it."""


def _shade(used: float) -> tuple[str, str]:
    """Sign and role of a share; only exactly 1 counts as full."""
    return next((sign, role) for least, sign, role, _ in _SHADES if used >= least)


def site_lines(sites: Sequence[SitePlan], at: int, width: int) -> tuple[Line, Line]:
    """The two title lines: the matmul, its number, and how it is tiled."""
    site = sites[at]
    blocks = TileGrid.of(site)
    number = f"matmul {at + 1:,} of {len(sites):,} " if len(sites) > 1 else ""
    room = max(8, width - len(number) - 2)
    batch = f"{blocks.batch:,} × " if blocks.batch > 1 else ""
    size = f"{batch}{site.M:,} × {site.K:,} × {site.N:,}"
    name = ending(safe(site.name), max(8, room - len(size) - len(site.op) - 3))
    first: list[Span] = [(" " + name, "strong"), (f"  {safe(site.op)} ", "accent"), (size, "number")]
    gap = width - line_width(first) - len(number)
    first.append((" " * max(1, gap) + number, "dim"))
    return cut(first, width), side_by_side(Fields(how_tiled(site)), width)[0]


def tile_footer(many_sites: bool, batch: bool) -> list[tuple[str, str]]:
    """The keys that work here, the most used first."""
    words = [("←↑↓→", "block"), ("[ ]", "K")]
    words += [(", .", "batch")] if batch else []
    words += [("n p", "matmul")] if many_sites else []
    words += [("Space", "play"), ("s", "step"), ("+ -", "speed"), ("o", "order")]
    return [*words, ("PgUp PgDn Home End", "jump"), ("y", "copy"), ("Esc", "back")]


# the grid


_TALL, _OPERANDS = 26, 8
"""Least height of a pane that shows the operands under the grid, and their least height."""
_LARGEST = 6
"""Most lines of a block."""
_WIDEST = 16
"""Most columns of a block for each of its lines."""


class _Frame:
    """Where the grid lies in its pane, both for drawing and for finding a clicked block."""

    def __init__(self, blocks: TileGrid, width: int, height: int) -> None:
        # a small number of blocks is drawn large, up to `_LARGEST` lines high
        self.brief = height < 12
        self.margin = len(f"{blocks.m.count - 1:,}") + 2
        room = max(1, width - self.margin - 1)
        # under the grid: its edges, a blank, the depth and its strip, the legend
        other_lines = 6 if self.brief else 8
        other_lines += _OPERANDS + 1 if height >= _TALL else 0
        self.rows = Scale.of(blocks.m.count, max(1, height - other_lines))
        self.cols = Scale.of(blocks.n.count, room)
        self.depths = Scale.of(blocks.k.count, room)
        self.down = max(1, min(_LARGEST, (height - other_lines) // self.rows.cells))
        self.across = max(1, min(_WIDEST * self.down, room // self.cols.cells))
        self.deep = max(1, min(_WIDEST * self.down, room // self.depths.cells))
        self.top = 2


def grid_page(site: SitePlan, place: TilePlace, width: int, height: int) -> list[Line]:
    """The blocks of the output, and the depth of the chosen one."""
    blocks = TileGrid.of(site)
    frame = _Frame(blocks, width, height)
    lines = [_title(blocks, place, frame, width), _columns(blocks, place, frame)]
    here = place.row // frame.rows.per
    for row in range(frame.rows.cells):
        first, stop = frame.rows.tiles(row)
        label = fit(f"{first:,}", frame.margin - 1, right=True) + " "
        cells: list[Span] = []
        for col in range(frame.cols.cells):
            start, end = frame.cols.tiles(col)
            sign, role = _shade(blocks.cell(first, stop, start, end))
            _put(cells, sign, role, frame.across, row == here and col == place.col // frame.cols.per)
        lines.append(((label, "accent" if row == here else "dim"), *cells))
        below: Line = ((" " * frame.margin, "text"), *cells)
        lines += [below] * (frame.down - 1 - (frame.down > 2))
        lines += [BLANK] * (frame.down > 2)
    lines += wrap(_edges(site, blocks), width - 1, 1)[: 1 if frame.brief else 2]
    if not frame.brief:
        lines.append(BLANK)
    lines += [*_depth(blocks, place, frame, width), _legend(width)]
    spare = height - len(lines) - 1
    if spare >= 4:
        lines += [BLANK, *_operands(blocks, place, width, spare)]
    return [cut(line, width) for line in lines[:height]]


def _put(spans: list[Span], sign: str, role: str, across: int, is_chosen: bool) -> None:
    """Appends a cell: its sign, and a gap after it if cells are wide."""
    filled = across - (across > 1)
    # without colors the cursor is drawn in reverse, and a full block in reverse is blank
    spans.append(("◆" * filled, "mark") if is_chosen else (sign * filled, role))
    if across > 1:
        spans.append((" ", "text"))


def _title(blocks: TileGrid, place: TilePlace, frame: _Frame, width: int) -> Line:
    counts = f"{blocks.m.count:,} × {blocks.n.count:,}"
    spans: list[Span] = [(" Output ", "head"), (f"{counts} blocks", "text")]
    if blocks.batch > 1:
        spans.append((f"  matmul {place.batch + 1:,} of {blocks.batch:,}", "accent"))
    if frame.rows.per > 1 or frame.cols.per > 1:
        spans.append((f"  {frame.rows.per:,} × {frame.cols.per:,} a cell", "warn"))
    return cut(spans, width)


def _columns(blocks: TileGrid, place: TilePlace, frame: _Frame) -> Line:
    """The line above the grid: numbers of the first, the last and the chosen column."""
    cells = frame.cols.cells
    line = [" "] * (cells * frame.across)
    here = place.col // frame.cols.per * frame.across
    marks: list[tuple[int, str]] = [(here, f"{place.col:,}"), (0, "0")]
    marks.append(((cells - 1) * frame.across, f"{blocks.n.count - 1:,}"))
    spans: list[Span] = []
    lit = range(0)
    for at, word in marks:
        at = max(0, min(at, len(line) - len(word)))
        if all(c == " " for c in line[max(0, at - 1) : at + len(word) + 1]):
            line[at : at + len(word)] = word
            lit = lit or range(at, at + len(word))
    spans = [(" " * frame.margin, "text")]
    spans += [
        ("".join(line[: lit.start]), "dim"),
        ("".join(line[lit.start : lit.stop]), "accent"),
        ("".join(line[lit.stop :]), "dim"),
    ]
    return tuple(spans)


def _edges(site: SitePlan, blocks: TileGrid) -> list[Span]:
    """Sizes of the partial tiles."""
    short = [
        f"{word} {axis.rest:,} of {axis.tile:,}"
        for word, axis in (("M", blocks.m), ("N", blocks.n), ("K", blocks.k))
        if axis.rest != axis.tile
    ]
    if not short:
        return [(" every tile is full", "dim")]
    edge_text = (
        "filled up with zeros" if site.edges == "padded" else units.edges_text(site.edges, brief=False)
    )
    return [(f" {edge_text}: ", "dim"), (" · ".join(short), "warn")]


def _depth(blocks: TileGrid, place: TilePlace, frame: _Frame, width: int) -> list[Line]:
    """The slices along K that are summed up, as a strip."""
    per = f"  {frame.depths.per:,} a cell" if frame.depths.per > 1 else ""
    slices = f"{units.many_text(blocks.k.count, 'slice')} of {blocks.k.tile:,}"
    title = [(" K ", "head"), (slices, "text"), (f"  k {place.depth:,}", "accent"), (per, "warn")]
    spans: list[Span] = [(" " * frame.margin, "text")]
    for cell in range(frame.depths.cells):
        first, stop = frame.depths.tiles(cell)
        sign, role = _shade(blocks.k.used(first, stop))
        _put(spans, sign, role, frame.deep, cell == place.depth // frame.depths.per)
    return [cut(title, width), tuple(spans)]


def _operands(blocks: TileGrid, place: TilePlace, width: int, height: int) -> list[Line]:
    """The operands of the chosen block: a band of A, a band of B, and the chosen tile in each."""
    half = width // 2
    a = _operand_grid("A", blocks.m.count, blocks.k.count, (place.row, place.depth), 0, half - 1, height)
    b = _operand_grid("B", blocks.k.count, blocks.n.count, (place.depth, place.col), 1, width - half, height)
    missing = [BLANK] * (height + 1)
    lines = []
    for _, left, right in zip(range(max(len(a), len(b))), [*a, *missing], [*b, *missing], strict=False):
        lines.append((*left, (" " * max(0, half - line_width(left)), "text"), *right))
    return lines


def _operand_grid(
    name: str, rows: int, cols: int, chosen_tile: tuple[int, int], band: int, width: int, height: int
) -> list[Line]:
    """An operand as a grid of tiles; `band` says whether the chosen row (0) or column (1) of it is lit."""
    down, along = Scale.of(rows, height - 1), Scale.of(cols, width - 2)
    tall = max(1, min(_LARGEST // 2, (height - 1) // down.cells))
    wide = max(1, min(_WIDEST // 2 * tall, (width - 2) // along.cells))
    here = chosen_tile[0] // down.per, chosen_tile[1] // along.per
    lines: list[Line] = [((f" {name} ", "head"), (f"{rows:,} × {cols:,} tiles", "dim"))]
    for y in range(down.cells):
        spans: list[Span] = [(" ", "text")]
        for x in range(along.cells):
            lit = (y, x)[band] == here[band]
            sign, role = ("◆", "mark") if (y, x) == here else ("▒", "accent") if lit else ("·", "track")
            spans.append((sign * wide, role))
        lines += [tuple(spans)] * tall
    return lines


def _legend(width: int) -> Line:
    pieces: list[Line] = [((" util.:", "dim"),)]
    pieces += [((f"{sign} ", role), (word, "dim")) for _, sign, role, word in _SHADES]
    return cut((flow(pieces, width, 0) or [BLANK])[0], width)


def block_at(site: SitePlan, place: TilePlace, x: int, y: int, width: int, height: int) -> TilePlace | None:
    """The place that a click on the grid's page chooses; None outside the grid."""
    blocks = TileGrid.of(site)
    frame = _Frame(blocks, width, height)
    row, col = (y - frame.top) // frame.down, (x - frame.margin) // frame.across
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
    """The chosen block: where it lies, how much of it is used, and the tile matmuls that make it.

    Args:
        site: Its site.
        place: Which block, and which of its products.
        width: In cells.
        height: In cells; the list of products is cut to it and follows the chosen one.
        operands: Names of the operands 'A' and 'B', where they are known.
        step: Makes the lines about the step of the loops, of a width and so many lines at most.
    """
    blocks = TileGrid.of(site)
    block, product = blocks.block(place), blocks.product(place, place.depth)
    width -= 1
    rows, cols = block.rows, block.cols
    at = f"{place.batch:,}, " if blocks.batch > 1 else ""
    lines: list[Line] = [
        ((f" Block {at}{place.row:,}, {place.col:,}", "head"),),
        _field("lies at", ((_range(rows, cols), "number"),), width),
    ]
    if height >= 10:
        name = ending(safe(site.output) or "the output", width - 9)
        lines.insert(1, _field("of", ((name, "text"),), width))
        size = (_size(rows, cols), "number")
        lines.append(_field("is", (size, (f"  of {blocks.m.tile}×{blocks.n.tile}", "dim")), width))
    filled, track = bar(block.used, 8 if width >= 40 else 0)
    share = (f"{share_text(block.used, 1)} ", _shade(block.used)[1])
    lines.append(_field("util.", (share, filled, track, (_idle(site, block.used), "dim")), width))
    if height >= 14:
        lines.append(BLANK)
    lines.append(((f" Tile matmul k = {product.index:,}", "head"), (f"  of {blocks.k.count:,}", "dim")))
    lines += _operand_lines(site, product, operands or {}, width, named=height >= 11)
    if height >= 17:
        mnk = f"{place.row},{place.col},{product.index}"
        lines += [_field("named", ((f"m,n,k {mnk}", "dim"),), width), BLANK]
    if step is not None:
        lines += _step_part(step, width, height - len(lines))
    room = height - len(lines) - 1
    if room < 1:
        visible = lines if len(lines) <= height else [*lines[: height - 1], lines[-1]]
        return [cut(line, width) for line in visible]
    return [cut(line, width) for line in (*lines, *_products(blocks, place, width, room))]


def _operand_lines(
    site: SitePlan, product: TileProduct, names: Mapping[str, str], width: int, *, named: bool
) -> list[Line]:
    """The operands of a tile matmul, with their names if `named`."""
    lines: list[Line] = []
    name_of_a, right = names.get("A", ""), site.weight or names.get("B", "")
    fed, unnamed = (
        ("patches of", "patches of the input") if "Conv" in site.op else ("activation", "an activation")
    )
    weight_kind = "initializer" if site.weight else "activation"
    for letter, first, second, name, role, nameless in (
        ("A", product.rows, product.depth, name_of_a, fed, unnamed),
        ("B", product.depth, product.cols, right, weight_kind, f"an {weight_kind}"),
    ):
        where: list[Span] = [(_range(first, second), "number"), (f" {_size(first, second)}", "dim")]
        lines.append(_field(letter, where, width))
        if named:
            operand = f"{role} {ending(safe(name), max(8, width - 5 - len(role)))}"
            lines.append((("   ", "text"), (operand, "text") if name else (nameless, "dim")))
    return lines


def _step_part(step: Callable[[int, int], Sequence[Line]], width: int, spare: int) -> list[Line]:
    """The lines about the step; four lines stay free for products if there is room."""
    full = spare > FULL + 4
    return [*step(width, spare - 4 if full else 3 if spare > 7 else 1), *[BLANK] * full]


def product_text(site: SitePlan, place: TilePlace) -> str:
    """The chosen product as an assignment, with the names that the plan knows."""
    blocks = TileGrid.of(site)
    p = blocks.product(place, place.depth)
    at = f"[{place.batch}]" if blocks.batch > 1 else ""
    to = f"{safe(site.output) or 'C'}{at}{_range(p.rows, p.cols)}"
    right = f"{safe(site.weight) or 'B'}{at}{_range(p.depth, p.cols)}"
    return f"{to} += A{at}{_range(p.rows, p.depth)} @ {right}"


def _products(blocks: TileGrid, place: TilePlace, width: int, room: int) -> list[Line]:
    """The products that the block sums, around the chosen one."""
    count = blocks.k.count
    start = first_shown(place.depth, room, count)
    products = [blocks.product(place, k) for k in range(start, min(count, start + room))]
    wide = width >= 58
    cells: list[tuple[str, ...]] = []
    for p in products:
        a, b = _size(p.rows, p.depth), _size(p.depth, p.cols)
        if wide:
            a, b = f"{_range(p.rows, p.depth)} {a}", f"{_range(p.depth, p.cols)} {b}"
            cells.append((f"{p.index:,}", a, b, share_text(p.used, 1)))
        else:
            cells.append((f"{p.index:,}", _part(p.depth), a, b, share_text(p.used, 1)))
    titles = ("k", "A", "B", "util.") if wide else ("k", "along K", "A", "B", "util.")
    widths = [max(len(t), *(len(row[i]) for row in cells)) for i, t in enumerate(titles)]
    while len(widths) > 3 and sum(widths) + 2 * len(widths) + 1 > width:
        widths.pop()
    line = "".join("  " + fit(t, w, right=True) for t, w in zip(titles, widths, strict=False))
    lines: list[Line] = [((line, "dim"),)]
    for row, p in zip(cells, products, strict=True):
        here = p.index == place.depth
        pieces = "".join("  " + fit(c, w, right=True) for c, w in zip(row, widths, strict=False))
        lines.append((("▸" if here else " ", "accent"), (pieces[1:], "strong" if here else "number")))
    return lines


def _field(label: str, value: Sequence[Span], width: int) -> Line:
    """A label and its value, always one line, so that the page does not jump under the arrow keys."""
    name = f" {fit(label, 8)}" if len(label) > 1 else f" {label} "
    return cut(((name, "dim"), *value), width)


def _range(first: tuple[int, int], second: tuple[int, int]) -> str:
    return f"[{_part(first)}, {_part(second)}]"


def _part(span: tuple[int, int]) -> str:
    return f"{span[0]}:{span[1]}"


def _size(first: tuple[int, int], second: tuple[int, int]) -> str:
    return f"{first[1] - first[0]}×{second[1] - second[0]}"


def _idle(site: SitePlan, used: float) -> str:
    if used >= 1:
        return ""
    return f" {share_text(1 - used, 1)} {'zeros' if site.edges == 'padded' else 'idle'}"
