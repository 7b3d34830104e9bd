"""Flame view: a model's groups as an icicle that the arrow keys walk, by time, MACs, parameters or bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    box_of,
    child_of,
    counted_figure,
    icicle,
    label_of,
    measured_figure,
    parent_of,
)
from explorer.report.present.figures import share_text
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import Line, Span, ending, fit, safe
from explorer.tui.widgets.line_view import PanelView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext


FILL = "fill--"
"""Prefix of the role of a box that is filled with the color of its family."""
CHOSEN = "chosen"
"""Stands for the family of the box under the cursor: the usual accent resembles some family colors."""
_TALLEST, _NARROW = 5, 3
"""Most lines of a level, and least width of a box with a name."""


def heights(boxes: Sequence[IcicleBox], height: int) -> int:
    """Lines that a level takes."""
    levels = 1 + max((box.level for box in boxes), default=0)
    return max(1, min(_TALLEST, height // levels))


def flame_lines(
    boxes: Sequence[IcicleBox],
    labels: Sequence[FlameLabel],
    figures: Callable[[int], tuple[str, str]],
    chosen_box: int,
    height: int,
    letters: bool,
) -> list[Line]:
    """The boxes as lines, level below level; the chosen one stands out.

    Args:
        boxes: As `icicle` lays them out.
        labels: A label for each box.
        figures: For a box its figure and its share of the top, as text.
        chosen_box: Which one is.
        height: In lines.
        letters: Mark families by letters and box edges, for a terminal with too few colors.
    """
    tall = heights(boxes, height)
    levels: list[list[int]] = [[] for _ in range(1 + max((box.level for box in boxes), default=0))]
    for at, box in enumerate(boxes):
        levels[box.level].append(at)
    lines: list[Line] = []
    for level in levels:
        for y in range(tall):
            line: list[Span] = []
            x = 0
            for at in level:
                box, label = boxes[at], labels[at]
                if box.start > x:
                    line.append((" " * (box.start - x), "text"))
                room = box.width - 1 - letters
                text = _said(y, label, figures(at), room, letters) if room > 0 else ""
                filled = FILL + (CHOSEN if at == chosen_box else label.family)
                role = filled if not letters else "mark" if at == chosen_box else label.family
                line.append((_cells(text, box.width, letters), role))
                x = box.start + box.width
            lines.append(tuple(line))
    return lines[:height]


def _said(y: int, label: FlameLabel, figures: tuple[str, str], room: int, letters: bool) -> str:
    """Line `y` of a box: its name, its figure, its operator."""
    if y == 0:
        return _name(label, room, letters)
    return _figure_text(figures, room) if y == 1 else label.kind if y == 2 and room >= _NARROW else ""


def _figure_text(said: tuple[str, str], room: int) -> str:
    """A figure and a share, or the share alone if there is no room for both."""
    figure, share = said
    if len(figure) + len(share) + 2 * bool(share) <= room:
        return f"{figure}  {share}".rstrip()
    return share if share and len(share) <= room else ""


def _name(label: FlameLabel, room: int, letters: bool) -> str:
    """The name of a box after the letter of its family; a narrow box has only the letter."""
    mark = FAMILIES[label.family].letter if letters and label.family != "other" else ""
    if room < _NARROW + 2 * bool(mark):
        return mark
    return f"{mark} {safe(label.name)}".lstrip()


def _cells(said: str, width: int, letters: bool) -> str:
    """A line of a box with its edges."""
    last = "▕" if letters and width > 1 else ""
    room = width - 1 - len(last)
    return f"▏{fit(said, room)}{last}" if room > 0 else f"▏{last}"[:width]


def chosen_line(
    name: str, kind: str, amount: tuple[str, float], parts: Sequence[tuple[str, float]], width: int
) -> Line:
    """The chosen box in a line: name, kind, figure, and its share of the boxes around it.

    `parts` are the boxes around it: name and figure of each.
    """
    figure, value = amount
    shares = [f"{share_text(value, whole)} of {safe(part)}" for part, whole in parts if whole]
    figure = " · ".join(filter(None, (safe(kind), figure, *shares)))
    room = max(10, width - cell_len(figure) - 4)
    name = ending(safe(name), room)
    return ((f" {name}", "strong"), ("  " + fit(figure, max(0, width - cell_len(name) - 3)), "dim"))


def rows_text(box: IcicleBox, layers: Sequence[Layer]) -> str:
    """The rows that share one box: the first, and how many there are."""
    return f"{many_text(box.rows, 'row')} from {layers[box.first].path or '(unnamed)'}"


# fmt: off
FLAME_KEYS = key_group(
    "In the flame view",
    ("flame_beside(-1)", ("left", "h"), "← h", "Box to the left", "On the same level"),
    ("flame_beside(1)", ("right", "l"), "→ l", "Box to the right", "On the same level"),
    ("flame_up", ("up", "k"), "↑ k", "What it lies in", "The box above"),
    ("flame_down", ("down", "j"), "↓ j", "What lies in it", "The widest of the boxes below"),
    ("flame_into", ("enter",), "Enter", "Zoom in", "A box over the whole width; a layer: to it in the tree"),
    ("flame_back", ("backspace",), "Backspace", "Back", "What was drawn before"),
    ("flame_whole", ("0",), "0", "The whole model", "All of it again"),
    ("flame_figure", ("c",), "c", "Next figure", "Measured time, MACs, parameters, weights, activations"),
    ("flame_tree", ("t",), "t", "To the tree", "The layer or group of the box"),
    ("flame_exact", ("e",), "e", "Exact or rounded", "714.19 M or 714,188,480"),
)
# fmt: on

_Top = tuple[int, int, int]
"""The rows of the box at the top: first, one past the last, and how many siblings it joins."""


class _Panel(PanelView):
    """The pane of the boxes, filled with the colors of their families."""

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
    """Shows an icicle; `t`, or Enter on a layer, answers with its row.

    Args:
        figures: What boxes can be as wide as; the first is shown first.
        layers: The rows of the tree.
        model: What the model is called.
        chosen_row: Row of the layer that is chosen first.
        exact: Exact or rounded numbers.
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
        self._by = 0
        self._top: _Top | None = None
        self._zooms: list[tuple[_Top | None, IcicleBox]] = []
        self._boxes: list[IcicleBox] = []
        self._labels: list[FlameLabel] = []
        self._laid: tuple[object, ...] = ()
        self._target: IcicleBox | int = chosen_row
        self.chosen = 0

    @property
    def figure(self) -> FlameFigure:
        """The figure that sets the width of boxes."""
        return self._figures[self._by]

    @property
    def box(self) -> IcicleBox | None:
        """The chosen box; None before the first layout."""
        return self._boxes[self.chosen] if self._boxes else None

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        yield _Panel(self._page, id="flame")
        yield Status(id="flame-box")
        yield Status(id="flame-keys")

    def on_mount(self) -> None:
        """Show the whole model."""
        self.show_keys()
        self._draw()

    def verb_words(self, source: str) -> list[str]:
        """The command that draws the same boxes as a picture."""
        words = ["plot", source, "--what", "flame", "--by", self.figure.id]
        if self._top is not None and self._top[2] == 1:
            words += ["--layer", self._layers[self._top[0]].path]
        return [*words, "-o", "flame.svg"]

    def _draw(self) -> None:
        self.query_one(_Panel).again()
        self._show_title()

    def _page(self, width: int, height: int) -> list[Line]:
        """The boxes; laid out anew for another figure, top or size."""
        layout_key = self._by, self._top, width, height
        if height < 1:
            return []
        if layout_key != self._laid:
            self._laid = layout_key
            self._lay_out(width, height)
            self.call_later(self._show_title)
        letters = self.app.no_color or self.app.console.color_system not in ("256", "truecolor")
        return flame_lines(self._boxes, self._labels, self._said, self.chosen, height, letters)

    def _lay_out(self, width: int, height: int) -> None:
        weights, top, target = self.figure.weights, self._top, self._target
        span, rows = (None, 1) if top is None else (top[:2], top[2])
        self._boxes = icicle(weights, span, width, height, rows=rows)
        self._labels = [label_of(box, self._layers, self._model) for box in self._boxes]
        if isinstance(target, int):
            self.chosen = box_of(self._boxes, target)
            return
        same = [i for i, box in enumerate(self._boxes) if box.span == target.span and box.name == target.name]
        self.chosen = same[0] if same else box_of(self._boxes, target.first)

    def _said(self, at: int) -> tuple[str, str]:
        box, whole = self._boxes[at], self._boxes[0].value
        share = share_text(box.value, whole) if at and whole else ""
        return self.figure.text(box.value, self._exact), share

    def _show_title(self) -> None:
        """Show the title and the chosen box."""
        figure, box = self.figure, self.box
        if box is None:
            return
        top = self._boxes[0]
        around = safe(self._title_of(top))
        drawn = heights(self._boxes, self.query_one(_Panel).size.height)
        folded = sum(piece.rows for piece in self._boxes if piece.rows > 1)
        summary = f" by {figure.title}: {figure.text(top.value, self._exact)}"
        summary += f"; {folded:,} rows are too thin for a box of their own" if folded else ""
        summary += "; no row has any" if not top.value else ""
        summary += (
            "; zoom in for what lies deeper" if len(self._boxes) and drawn == 1 and self._is_deep() else ""
        )

        def title(width: int) -> tuple[Line, ...]:
            return (
                ((" Flame ", "head"), (ending(around, max(8, width - 8)), "strong")),
                ((fit(summary, width), "dim"),),
            )

        self.query_one(TitleBar).show(title)
        kind = self._layers[box.first].kind_text if box.rows == 1 else ""
        whole = figure.weights.whole
        parts = [("the model", whole)] if self.chosen or self._top else []
        if self._top is not None and self.chosen:
            parts.append((self._labels[0].name, top.value))
        amount = f"{figure.text(box.value, self._exact)} {figure.title}"
        self.query_one("#flame-box", Status).show(
            lambda width: (chosen_line(self._title_of(box), kind, (amount, box.value), parts, width),)
        )

    def _is_deep(self) -> bool:
        last = max(box.level for box in self._boxes)
        return any(box.rows == 1 and box.stop > box.first + 1 for box in self._boxes if box.level == last)

    def _title_of(self, box: IcicleBox) -> str:
        if box.first < 0:
            return box.name
        if not box.rows:
            return self._model
        return self._layers[box.first].path or "(unnamed)" if box.rows == 1 else rows_text(box, self._layers)

    def _choose(self, at: int | None) -> None:
        if at is not None and at != self.chosen:
            self.chosen, self._target = at, self._boxes[at]
            self._draw()

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked box; zoom into it if it is chosen already."""
        if getattr(event.widget, "id", "") != "flame" or not self._boxes:
            return
        level = event.y // heights(self._boxes, self.query_one(_Panel).size.height)
        for at, box in enumerate(self._boxes):
            if box.level == level and box.start <= event.x < box.start + box.width:
                if at == self.chosen:
                    self.action_flame_into()
                else:
                    self._choose(at)
                return

    # keys

    def action_flame_beside(self, step: int) -> None:
        """Move to the next box of the level."""
        box, at = self.box, self.chosen + step
        if box is not None and 0 <= at < len(self._boxes) and self._boxes[at].level == box.level:
            self._choose(at)

    def action_flame_up(self) -> None:
        """Move to the box that contains the chosen one."""
        if self._boxes:
            self._choose(parent_of(self._boxes, self.chosen))

    def action_flame_down(self) -> None:
        """Move to the widest box inside the chosen one."""
        if self._boxes:
            self._choose(child_of(self._boxes, self.chosen))

    def action_flame_into(self) -> None:
        """Zoom into the chosen box, or go to the layer if nothing lies in it."""
        box = self.box
        if box is None or not box.rows:
            self.app.bell()
        elif box.rows == 1 and (not self.chosen or box.stop == box.first + 1):
            self.dismiss(box.first)
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
        """The whole model."""
        if self._top is not None and (box := self.box) is not None:
            self._zooms.append((self._top, box))
            self._zoom(None, box)

    def _zoom(self, top: _Top | None, wanted: IcicleBox) -> None:
        self._top, self._target = top, wanted
        self._draw()

    def action_flame_figure(self) -> None:
        """Switch to the next figure; the chosen box, or the one that contains it, stays chosen."""
        self._by = (self._by + 1) % len(self._figures)
        self._draw()

    def action_flame_tree(self) -> None:
        """Leave for the layer in the tree."""
        if self.box is not None and self.box.rows:
            self.dismiss(self.box.first)
        else:
            self.app.bell()

    def action_flame_exact(self) -> None:
        """Write the figures out, or round them."""
        self._exact = not self._exact
        self._draw()


def flame(context: CommandContext) -> None:
    """Open the flame view: by measured time if the model was timed, and by counted figures."""
    context.start("Flame", _show(context))


async def _show(context: CommandContext) -> None:
    store, model = context.store, context.tree.model
    assert store.analysis is not None
    totals, structure, profile = store.analysis.info.totals, model.structure, store.profile
    counted = [name for name, of in COUNTED.items() if max(structure.columns[of], default=0) > 0]
    figures = [counted_figure(name, structure, totals) for name in counted]
    if profile is not None:
        seconds = await context.jobs.ask("column", MEASURED)
        figures.insert(0, measured_figure(structure, seconds, profile))
    if not figures:
        store.say("there is nothing to draw: no row has a figure")
        return
    layer = context.tree.current_layer
    view = FlameView(figures, model.layers, store.stem, -1 if layer is None else layer.id, exact=store.exact)
    context.ask(view, context.to_row)
