"""Flame view: draws the groups of a model as nested boxes whose widths show a figure.

The figure is measured time, MACs, parameters, weights or activations. Levels are drawn from the top down (an
icicle plot). The arrow keys move between boxes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.base.families import FAMILIES
from explorer.base.units import many_text
from explorer.facts import Layer
from explorer.report.flame_layout import (
    COUNTED,
    MEASURED,
    FlameFigure,
    FlameLabel,
    IcicleBox,
    create_counted_figure,
    create_measured_figure,
    find_box,
    find_child,
    icicle,
    label_of,
    parent_of,
    shorten_labels,
)
from explorer.report.names import shorten_name
from explorer.report.present.figures import share_text
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import Line, Span, escape_name, fit
from explorer.tui.widgets.line_view import PanelView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext


FILL = "fill--"
"""Prefix of the roles that fill a box with the color of its operator family."""
CHOSEN = "chosen"
"""Role suffix of the box under the cursor. The usual accent color resembles some family colors."""
_MIN_NAMED_WIDTH = 3
"""Minimum width of a box with a name in cells."""


def compute_level_tops(boxes: Sequence[IcicleBox], height: int) -> list[int]:
    """Return the first line of each level, and the line after the last level. The levels share all lines."""
    levels = 1 + max((box.level for box in boxes), default=0)
    return [level * height // levels for level in range(levels + 1)]


def draw_flame_lines(
    boxes: Sequence[IcicleBox],
    labels: Sequence[FlameLabel],
    figures: Callable[[int], tuple[str, str]],
    chosen_box: int,
    height: int,
    uses_letters: bool,
) -> list[Line]:
    """Draw the boxes as lines, one level below the other, with the chosen box highlighted.

    Args:
        boxes: Boxes laid out by `icicle`.
        labels: Label of each box.
        figures: Function that returns the figure of a box and its share of the top box, as text.
        chosen_box: Index of the highlighted box.
        height: Available height, in lines.
        uses_letters: Whether to mark families by letters and draw right edges of boxes, for lack of colors.
    """
    tops = compute_level_tops(boxes, height)
    levels: list[list[int]] = [[] for _ in range(1 + max((box.level for box in boxes), default=0))]
    for index, box in enumerate(boxes):
        levels[box.level].append(index)
    lines: list[Line] = []
    for level, (top, bottom) in zip(levels, pairwise(tops), strict=True):
        for y in range(bottom - top):
            line: list[Span] = []
            x = 0
            for index in level:
                box, label = boxes[index], labels[index]
                if box.start > x:
                    line.append((" " * (box.start - x), "text"))
                room = box.width - 1 - uses_letters
                text = _format_box(y, label, figures(index), room, uses_letters) if room > 0 else ""
                filled = FILL + (CHOSEN if index == chosen_box else label.family)
                role = filled if not uses_letters else "mark" if index == chosen_box else label.family
                line.append((_pad_cells(text, box.width, uses_letters), role))
                x = box.start + box.width
            lines.append(tuple(line))
    return lines[:height]


def _format_box(y: int, label: FlameLabel, figures: tuple[str, str], room: int, uses_letters: bool) -> str:
    """Return line `y` of a box: its name, its figure, or its operator."""
    if y == 0:
        return _format_name(label, room, uses_letters)
    return (
        _format_figure(figures, room) if y == 1 else label.kind if y == 2 and room >= _MIN_NAMED_WIDTH else ""
    )


def _format_figure(texts: tuple[str, str], room: int) -> str:
    """Join the figure and the share; return the share alone if both do not fit."""
    figure, share = texts
    if len(figure) + len(share) + 2 * bool(share) <= room:
        return f"{figure}  {share}".rstrip()
    return share if share and len(share) <= room else ""


def _format_name(label: FlameLabel, room: int, uses_letters: bool) -> str:
    """Return the name of a box after the letter of its family, or only the letter in a narrow box."""
    mark = _find_mark(label, uses_letters)
    if room < _MIN_NAMED_WIDTH + 2 * bool(mark):
        return mark
    return f"{mark} {escape_name(label.name)}".lstrip()


def _find_mark(label: FlameLabel, uses_letters: bool) -> str:
    return FAMILIES[label.family].letter if uses_letters and label.family != "other" else ""


def _count_name_cells(label: FlameLabel, room: int, uses_letters: bool) -> int:
    """Return the cells for a name in a box with `room` cells for text."""
    return room - 2 * bool(_find_mark(label, uses_letters))


def _pad_cells(text: str, width: int, uses_letters: bool) -> str:
    """Pad a line of a box and add its left edge; with `uses_letters`, also its right edge."""
    last = "▕" if uses_letters and width > 1 else ""
    room = width - 1 - len(last)
    return f"▏{fit(text, room)}{last}" if room > 0 else f"▏{last}"[:width]


def describe_chosen(
    name: str, kind: str, amount: tuple[str, float], parts: Sequence[tuple[str, float]], width: int
) -> Line:
    """Describe the chosen box in one line: name, kind, figure, and its share of each enclosing box.

    `amount` is the figure as text and as number. `parts` has the name and figure of each enclosing box.
    """
    figure, value = amount
    shares = [f"{share_text(value, total)} of {escape_name(part)}" for part, total in parts if total]
    summary = " · ".join(filter(None, (escape_name(kind), figure, *shares)))
    room = max(10, width - cell_len(summary) - 4)
    name = shorten_name(escape_name(name), room)
    return ((f" {name}", "strong"), ("  " + fit(summary, max(0, width - cell_len(name) - 3)), "dim"))


def describe_rows(box: IcicleBox, layers: Sequence[Layer]) -> str:
    """Describe a box that stands for several thin rows: how many there are, and the first one."""
    return f"{many_text(box.rows, 'row')} from {layers[box.first].path or '(unnamed)'}"


# fmt: off
FLAME_KEYS = key_group(
    "In the flame view",
    ("flame_beside(-1)", ("left", "h"), "← h", "Box to the left", "On the same level"),
    ("flame_beside(1)", ("right", "l"), "→ l", "Box to the right", "On the same level"),
    ("flame_up", ("up", "k"), "↑ k", "Outer box", "The box above"),
    ("flame_down", ("down", "j"), "↓ j", "Inner box", "The widest of the boxes below"),
    ("flame_into", ("enter",), "Enter", "Zoom in", "Draw the box over the full width; for a layer, go"
                                                   " to it in the tree"),
    ("flame_back", ("backspace",), "Backspace", "Back", "What was drawn before"),
    ("flame_whole", ("0",), "0", "The whole model", "Draw the whole model again"),
    ("flame_figure", ("c",), "c", "Next figure", "Measured time, MACs, parameters, weights, activations"),
    ("flame_tree", ("t",), "t", "To the tree", "The layer or group of the box"),
    ("flame_exact", ("e",), "e", "Exact or rounded", "714,188,480 or 714.19 M"),
)
# fmt: on

_Top = tuple[int, int, int]
"""The top box: index of its first row, index after its last row, and how many sibling rows it joins."""


class _Panel(PanelView):
    """Widget that draws the boxes filled with the colors of their families."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"{FILL}{name}" for name in (*FAMILIES, CHOSEN)}

    def _style(self, role: str, under: str) -> Style:
        if not role.startswith(FILL):
            return super()._style(role, under)
        style = self._styles_drawn.get((role, under))
        if style is None:
            style = self.rich_style + self.get_component_styles(role).partial_rich_style
            self._styles_drawn[role, under] = style
        return style


class FlameView(SubScreen[int]):
    """Show the flame view; the result is the row of the layer that the user goes to.

    The keys `t`, and Enter on a layer, close the view with that row.

    Args:
        figures: Figures that can set the box widths; the first one is shown first.
        layers: Rows of the layer tree.
        model: Name of the model.
        chosen_row: Row of the layer whose box is chosen first, or -1 for the whole model.
        exact: Whether to show exact instead of rounded numbers.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(FLAME_KEYS)
    FOOTER = (
        ("←→↑↓", "walk"),
        ("Enter", "zoom"),
        ("Backspace", "back"),
        ("c", "figure"),
        ("t", "to the tree"),
        ("0", "whole"),
        ("e", "exact"),
        ("Esc", "leave"),
    )  # fmt: skip
    AUTO_FOCUS = ""

    def __init__(
        self,
        figures: Sequence[FlameFigure],
        layers: Sequence[Layer],
        model: str,
        chosen_row: int,
        *,
        exact: bool = False,
    ) -> None:
        super().__init__()
        self._figures, self._layers, self._model, self._exact = figures, layers, model, exact
        self._figure_index = 0
        self._top: _Top | None = None
        self._zooms: list[tuple[_Top | None, IcicleBox]] = []  # top and chosen box before each zoom
        self._boxes: list[IcicleBox] = []
        self._labels: list[FlameLabel] = []
        self._layout_key: tuple[object, ...] = ()
        self._target: IcicleBox | int = chosen_row  # box or row that the next layout chooses
        self.chosen = 0

    @property
    def figure(self) -> FlameFigure:
        """The figure that sets the box widths."""
        return self._figures[self._figure_index]

    @property
    def box(self) -> IcicleBox | None:
        """The chosen box; None before the first layout."""
        return self._boxes[self.chosen] if self._boxes else None

    def compose(self) -> ComposeResult:
        """Yield the title bar, the boxes, the line of the chosen box and the key line."""
        yield TitleBar()
        yield _Panel(self._draw_page, id="flame")
        yield Status(id="flame-box")
        yield Status(id="flame-keys")

    def on_mount(self) -> None:
        """Draw the whole model."""
        self.show_keys()
        self._draw()

    def verb_words(self, source: str) -> list[str]:
        """Return the command that draws the same boxes as a picture."""
        words = ["plot", source, "--what", "flame", "--by", self.figure.id]
        if self._top is not None and self._top[2] == 1:
            words += ["--layer", self._layers[self._top[0]].path]
        return [*words, "-o", "flame.svg"]

    def _draw(self) -> None:
        self.query_one(_Panel).redraw()
        self._show_title()

    def _draw_page(self, width: int, height: int) -> list[Line]:
        """Draw the boxes. Recompute the layout when the figure, the top box or the size changed."""
        needs_letters = self.app.no_color or self.app.console.color_system not in ("256", "truecolor")
        layout_key = self._figure_index, self._top, width, height
        if height < 1:
            return []
        if layout_key != self._layout_key:
            self._layout_key = layout_key
            self._lay_out(width, height, needs_letters)
            self.call_later(self._show_title)
        return draw_flame_lines(
            self._boxes, self._labels, self._format_figures, self.chosen, height, needs_letters
        )

    def _lay_out(self, width: int, height: int, uses_letters: bool) -> None:
        weights, top, target = self.figure.weights, self._top, self._target
        span, rows = (None, 1) if top is None else (top[:2], top[2])
        self._boxes = icicle(weights, span, width, height, rows=rows)
        labels = [label_of(box, self._layers, self._model) for box in self._boxes]
        rooms = [
            _count_name_cells(label, box.width - 1 - uses_letters, uses_letters)
            for box, label in zip(self._boxes, labels, strict=True)
        ]
        self._labels = shorten_labels(self._boxes, labels, rooms)
        if isinstance(target, int):
            self.chosen = find_box(self._boxes, target)
            return
        matches = [
            i for i, box in enumerate(self._boxes) if box.span == target.span and box.name == target.name
        ]
        self.chosen = matches[0] if matches else find_box(self._boxes, target.first)

    def _format_figures(self, index: int) -> tuple[str, str]:
        """Return the figure of a box and its share of the top box; the top box has no share."""
        box, total = self._boxes[index], self._boxes[0].value
        share = share_text(box.value, total) if index and total else ""
        return self.figure.text(box.value, self._exact), share

    def _show_title(self) -> None:
        """Update the title and the line of the chosen box."""
        figure, box = self.figure, self.box
        if box is None:
            return
        top = self._boxes[0]
        top_title = escape_name(self._title_of(top))
        height = self.query_one(_Panel).size.height
        has_more_levels = len(compute_level_tops(self._boxes, height)) > height and self._is_deep()
        folded = sum(thin_box.rows for thin_box in self._boxes if thin_box.rows > 1)
        summary = f" by {figure.title}: {figure.text(top.value, self._exact)}"
        summary += f"; {folded:,} rows are too thin for a box of their own" if folded else ""
        summary += "; no row has any" if not top.value else ""
        summary += "; zoom in for what lies deeper" if has_more_levels else ""

        def title(width: int) -> tuple[Line, ...]:
            return (
                ((" Flame ", "head"), (shorten_name(top_title, max(8, width - 8)), "strong")),
                ((fit(summary, width), "dim"),),
            )

        self.query_one(TitleBar).show(title)
        kind = self._layers[box.row].kind_text if box.rows == 1 else ""
        model_total = figure.weights.total
        parts = [("the model", model_total)] if self.chosen or self._top else []
        if self._top is not None and self.chosen:
            parts.append((self._labels[0].name, top.value))
        amount = f"{figure.text(box.value, self._exact)} {figure.title}"
        self.query_one("#flame-box", Status).show(
            lambda width: (describe_chosen(self._title_of(box), kind, (amount, box.value), parts, width),)
        )

    def _is_deep(self) -> bool:
        last = max(box.level for box in self._boxes)
        return any(box.rows == 1 and not self._is_layer(box) for box in self._boxes if box.level == last)

    def _is_layer(self, box: IcicleBox) -> bool:
        """Whether the row of a box has no rows below it in the tree."""
        return self.figure.weights.end[box.row] == box.row + 1

    def _title_of(self, box: IcicleBox) -> str:
        if box.first < 0:
            return box.name
        if not box.rows:
            return self._model
        return (
            self._layers[box.row].path or "(unnamed)" if box.rows == 1 else describe_rows(box, self._layers)
        )

    def _choose(self, index: int | None) -> None:
        if index is not None and index != self.chosen:
            self.chosen, self._target = index, self._boxes[index]
            self._draw()

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked box, or zoom into it if it is chosen already."""
        if getattr(event.widget, "id", "") != "flame" or not self._boxes:
            return
        level = bisect_right(compute_level_tops(self._boxes, self.query_one(_Panel).size.height), event.y) - 1
        for index, box in enumerate(self._boxes):
            if box.level == level and box.start <= event.x < box.start + box.width:
                if index == self.chosen:
                    self.action_flame_into()
                else:
                    self._choose(index)
                return

    # keys

    def action_flame_beside(self, step: int) -> None:
        """Move to the next (`step` 1) or previous (`step` -1) box of the same level."""
        box, index = self.box, self.chosen + step
        if box is not None and 0 <= index < len(self._boxes) and self._boxes[index].level == box.level:
            self._choose(index)

    def action_flame_up(self) -> None:
        """Move to the box that encloses the chosen one."""
        if self._boxes:
            self._choose(parent_of(self._boxes, self.chosen))

    def action_flame_down(self) -> None:
        """Move to the widest box inside the chosen one."""
        if self._boxes:
            self._choose(find_child(self._boxes, self.chosen))

    def action_flame_into(self) -> None:
        """Zoom into the chosen box. If it has no boxes inside, close the view and go to its layer."""
        box = self.box
        if box is None or not box.rows:
            self.app.bell()
        elif box.rows == 1 and (not self.chosen or self._is_layer(box)):
            self.dismiss(box.row)
        elif self.chosen:
            self._zooms.append((self._top, box))
            self._zoom((*box.span, box.rows), box)
        else:
            self.app.bell()

    def action_flame_back(self) -> None:
        """Undo the last zoom."""
        if self._zooms:
            self._zoom(*self._zooms.pop())
        else:
            self.app.bell()

    def action_flame_whole(self) -> None:
        """Zoom out to the whole model."""
        if self._top is not None and (box := self.box) is not None:
            self._zooms.append((self._top, box))
            self._zoom(None, box)

    def _zoom(self, top: _Top | None, target: IcicleBox) -> None:
        self._top, self._target = top, target
        self._draw()

    def action_flame_figure(self) -> None:
        """Switch to the next figure. The chosen box, or the smallest box that encloses it, stays chosen."""
        self._figure_index = (self._figure_index + 1) % len(self._figures)
        self._draw()

    def action_flame_tree(self) -> None:
        """Close the view and go to the layer in the tree."""
        if self.box is not None and self.box.rows:
            self.dismiss(self.box.row)
        else:
            self.app.bell()

    def action_flame_exact(self) -> None:
        """Switch between exact and rounded figures."""
        self._exact = not self._exact
        self._draw()


def flame(context: CommandContext) -> None:
    """Open the flame view. It starts with measured time if the model was profiled."""
    context.open_view("Flame", _show(context))


async def _show(context: CommandContext) -> None:
    store, model = context.store, context.tree.model
    assert store.analysis is not None
    totals, structure, profile = store.analysis.info.totals, model.structure, store.profile
    figure_names = [name for name, column in COUNTED.items() if max(structure.columns[column], default=0) > 0]
    figures = [create_counted_figure(name, structure, totals) for name in figure_names]
    if profile is not None:
        seconds = await context.jobs.ask("column", MEASURED)
        figures.insert(0, create_measured_figure(structure, seconds, profile))
    if not figures:
        store.say("there is nothing to draw: no row has a figure")
        return
    layer = context.tree.current_layer
    view = FlameView(figures, model.layers, store.stem, -1 if layer is None else layer.id, exact=store.exact)
    context.ask(view, context.move_to_row)
