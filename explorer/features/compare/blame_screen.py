"""Blame screen: plots the error of each value of the graph and lists the values below the plot.

One cursor marks the same value in the plot and in the list. The figures come from a `Blame` record.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.facts.blame import Blame, Probe
from explorer.features.compare.blame_words import (
    STATES,
    blame,
    build_probe_figures,
    claim,
    decades,
    grounds,
    list_unpaired,
    values,
)
from explorer.features.quantize.quantization_record import QuantizationRecord
from explorer.features.quantize.quantize_screen import (
    LayerRequest,
    QuantizeCommand,
    ask_other_format,
    exclude,
)
from explorer.report.blocks import Field, Fields, Paragraph, Table
from explorer.report.blocks import Line as TextLine
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import PageDialog, SubScreen
from explorer.tui.text.drawing import ROLES, draw, draw_side_by_side, row_line, title_line
from explorer.tui.text.keys import bindings, key_group, keys_line
from explorer.tui.text.lines import BLANK, Line, cut_line, escape_name, find_first_visible, fit, wrap
from explorer.tui.text.plot import (
    build_lines,
    column_values,
    draw_axes,
    draw_columns,
    find_columns,
    log_ticks,
    map_to_axis,
    put_text,
)
from explorer.tui.widgets.plot_view import PlotView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explorer.facts.quantize import QuantizedLayer
    from explorer.report.blocks import Block


_FOOTER = (
    *(("←→", "value"), ("n p", "at fault"), ("w", "worst"), ("Enter", "layer"), ("i", "how")),
    ("Esc", "back"),
)
_REMAKE = ("x", "exclude"), ("f", "format")  # keys for a quantized model

# fmt: off
BLAME_KEYS = key_group(
    "In the error growth",
    ("blame_next(1)", ("n",), "n", "Next that adds error", "To the next layer with more error than rounding"),
    ("blame_next(-1)", ("p",), "p", "Previous that adds error", "To the layer before it"),
    ("blame_worst", ("w",), "w", "Worst", "Go to the layer that introduces the largest error"),
    ("blame_how", ("i",), "i", "How it was found", "The criterion, the inputs, what was not compared"),
    ("blame_exclude", ("x",), "x", "Exclude", "Quantize the model again without this layer, or with it"),
    ("blame_format", ("f",), "f", "Format…", "Quantize the model again with another format for this layer"),
    ("blame_copy", ("y",), "y", "Copy", "Copy the verdict to the clipboard"),
)
# fmt: on


class BlameScreen(SubScreen[LayerRequest]):
    """Show how the error grows; the result is a layer to show in the tree or to quantize differently.

    Args:
        fact: The errors of all compared values.
        quantized: Quantized layers of the second model if it is the current model, else empty.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(BLAME_KEYS)
    AUTO_FOCUS = "#growth"

    def __init__(self, fact: Blame, quantized: Sequence[QuantizedLayer] = ()) -> None:
        super().__init__()
        self._quantized = {layer.name: layer for layer in quantized}
        self.fact, self._growth = fact, build_growth(fact)

    def compose(self) -> ComposeResult:
        """Yield the title bar, the plot with its list, and the key line."""
        yield TitleBar()
        yield PlotView(id="growth")
        yield Status(id="blame-keys")

    def on_mount(self) -> None:
        """Show the plot with the cursor on the first layer that introduces error, or on the largest error."""
        fact, growth = self.fact, self._growth
        self.query_one(TitleBar).show(lambda width: draw_blame_head(fact, width))
        self._say("")
        begin = fact.first if fact.first is not None else fact.worst or 0
        self.plot.show_plot(
            lambda at, width, height: draw_growth_page(growth, at, width, height),
            len(fact.probes),
            begin,
            lambda x, y, width, height: find_probe_at(growth, self.plot.cursor, y, width, height),
        )

    def _say(self, message: str) -> None:
        self.has_message = bool(message)
        keys = (*_FOOTER[:-1], *_REMAKE, _FOOTER[-1]) if self._quantized else _FOOTER
        self.query_one(Status).show(lambda width: (keys_line(keys, width, message),))

    def page_blocks(self) -> list[Block]:
        """Return the same blocks that `explorer blame` prints."""
        return blame(self.fact)

    @property
    def plot(self) -> PlotView:
        """The widget that shows the plot and the list."""
        return self.query_one(PlotView)

    def on_plot_view_point_selected(self, event: PlotView.PointSelected) -> None:
        """Close the screen and go to the layer under the cursor."""
        event.stop()
        self.dismiss(LayerRequest("layer", self.fact.probes[event.source.cursor].layer))

    @property
    def _layer(self) -> QuantizedLayer | None:
        """The quantized layer under the cursor. If there is none, show a message and return None."""
        probes = self.fact.probes
        layer = self._quantized.get(probes[self.plot.cursor].layer) if probes else None
        if layer is None:
            self._refuse("no layer here takes a number format")
        return layer

    def action_blame_exclude(self) -> None:
        """Close the screen and quantize the model again without this layer."""
        if (layer := self._layer) is not None:
            self.dismiss(exclude(layer))

    def action_blame_format(self) -> None:
        """Ask for another number format for this layer."""
        if (layer := self._layer) is not None:
            ask_other_format(self, layer)

    def action_blame_next(self, step: int) -> None:
        """Move to the next (`step` 1) or previous (`step` -1) layer that introduces error."""
        cursor, guilty = self.plot.cursor, self._growth.guilty
        candidates = (
            [i for i in guilty if i > cursor] if step > 0 else [i for i in reversed(guilty) if i < cursor]
        )
        if candidates:
            self.plot.move_to(candidates[0])
            self._say("")
        else:
            end = "last" if step > 0 else "first"
            self._refuse(
                f"{end} at fault: value {guilty[-(step > 0)] + 1:,}" if guilty else "no value is at fault"
            )

    def action_blame_worst(self) -> None:
        """Move to the value with the largest error."""
        if self.fact.worst is not None:
            self.plot.move_to(self.fact.worst)
            self._say("")
        else:
            self._refuse("no value differs")

    def action_blame_how(self) -> None:
        """Open a dialog that explains the verdict, the criterion and the measurement."""
        fact = self.fact
        paragraphs = [Paragraph(fact.verdict), *grounds(fact), *list_unpaired(fact, len(fact.unpaired))]
        spaced = [block for paragraph in paragraphs for block in (paragraph, TextLine())]
        self.app.push_screen(PageDialog("How this was found", lambda width: draw(spaced, width - 1)))

    def action_blame_copy(self) -> None:
        """Send the verdict to the terminal's clipboard."""
        self.app.copy_to_clipboard(self.fact.verdict)
        self.query_one(Status).show(lambda width: (((fit(" sent to terminal", width), "good"),),))


class BlameCommand(ScreenCommand):
    """Command that compares two models and opens the blame screen."""

    def run(self) -> None:
        """Compare the current model with the opened model."""
        if not self.context.ready():
            return
        if not self.store.can_compare:
            self.store.say("no other state to compare with: = opens another model beside this one")
        else:
            self.begin()

    def begin(self, **request: Any) -> None:
        """Start the comparison; `request` has the keyword arguments of `Session.blame`."""
        self.context.start("Blame", self._run_blame(**request))

    async def _run_blame(self, **request: Any) -> None:
        fact: Blame = await self.jobs.run("looking for the first layer that differs", "blame", **request)
        state_index, entry = self.store.history_place, self.store.entry
        # only a layer of the current state can get another format
        is_current = "spec" not in request and request.get("after", state_index) == state_index
        record = entry.record if entry is not None and is_current else None
        layers = record.quantization.layers if isinstance(record, QuantizationRecord) else ()
        self.context.ask(BlameScreen(fact, layers), QuantizeCommand(self.context).handle_request)


_MINUS_INFINITY = -math.inf
_PLOT_EDGE_LINES = 3
"""Number of lines that the plot needs besides its rows: legend, axis and axis labels."""

_MIN_FULL_HEIGHT = 14
"""Screen height, in lines, below which the page uses fewer lines for text."""

_MARK_DECADES = 0.35
"""Free space above the largest error, in decades, for its mark."""


class Growth(Struct, frozen=True):
    """The figures of a `Blame` in the form that the plot draws.

    Attributes:
        fact: Record with the figures.
        errors, noise: For each value, the decimal logarithm of its relative error, and of its rounding error
            in the original model. Minus infinity stands for 0 and for unknown.
        guilty: Indices of the values whose layer introduces error. If there are none, indices of the values
            with a coarser number type.
        table: Table with one row for each value.
    """

    fact: Blame
    errors: tuple[float, ...]
    noise: tuple[float, ...]
    guilty: tuple[int, ...]
    table: Table


def build_growth(fact: Blame) -> Growth:
    """Compute the logarithms of the errors and the table of the probes, once for all redraws."""
    guilty = [i for i, p in enumerate(fact.probes) if p.state == "introduced"]
    guilty = guilty or [i for i, p in enumerate(fact.probes) if p.state == "coarser"]
    errors, noise = (
        tuple(_compute_log(getattr(probe, name)) for probe in fact.probes) for name in ("relative", "noise")
    )
    # the plot marks the first layer itself
    table = values(replace(fact, first=None), range(len(fact.probes)))
    return Growth(fact, errors, noise, tuple(guilty), table)


def _compute_log(value: float | None) -> float:
    return math.log10(value) if value and math.isfinite(value) else _MINUS_INFINITY


def draw_blame_head(fact: Blame, width: int) -> tuple[Line, ...]:
    """Build the two title lines: the names of both models, and the verdict in a few words."""
    # the label of a state begins with the name of its model
    names = f" {escape_name(fact.before)} → {escape_name(fact.after.removeprefix(f'{fact.before}, '))}"
    answer = f" {claim(fact).capitalize()}"
    return ((fit(names, width), "strong"),), ((fit(answer, width), "good" if fact.same else "bad"),)


def draw_growth_page(growth: Growth, cursor: int, width: int, height: int) -> list[Line]:
    """Build the page: the verdict, the plot and the list of values around the cursor.

    Args:
        growth: Figures to draw.
        cursor: Index of the value under the cursor.
        width: Width of the page, in cells.
        height: Height of the page, in lines. The list scrolls with the cursor to fit.
    """
    width -= 1
    fact = growth.fact
    if not fact.probes:
        return _draw_verdict(fact, width, 20)
    cursor = max(0, min(cursor, len(fact.probes) - 1))
    lines, rows = _draw_top(growth, width, height)
    lines += _draw_plot(growth, cursor, width, rows)
    lines += _draw_cursor(growth, cursor, width, 1 if height < _MIN_FULL_HEIGHT else 2)
    return [*lines, *_draw_list(growth, cursor, width, _count_rows(len(lines), height))]


def find_probe_at(growth: Growth, cursor: int, row: int, width: int, height: int) -> int | None:
    """Return the index of the value that `draw_growth_page` lists in line `row`, or None for other lines."""
    count = len(growth.fact.probes)
    lines_above, rows = _draw_top(growth, width - 1, height)
    list_top = len(lines_above) + rows + _PLOT_EDGE_LINES + (1 if height < _MIN_FULL_HEIGHT else 2)
    room = _count_rows(list_top, height)
    probe = find_first_visible(cursor, room, count) + row - list_top - 1
    return (
        probe
        if row > list_top and probe < min(count, find_first_visible(cursor, room, count) + room)
        else None
    )


def _draw_top(growth: Growth, width: int, height: int) -> tuple[list[Line], int]:
    """Return the lines above the plot, and the height of the plot in lines."""
    lines = _draw_verdict(growth.fact, width, 1 if height < _MIN_FULL_HEIGHT else 2 if height < 18 else 4)
    if height > 20:
        lines.append(BLANK)
    # 4 lines for the heading and three rows of the list, 1 or 2 for the value under the cursor
    room = height - len(lines) - _PLOT_EDGE_LINES - 4 - (1 if height < _MIN_FULL_HEIGHT else 2)
    return lines, max(2, min(14, room * 5 // 8))


def _draw_verdict(fact: Blame, width: int, max_lines: int) -> list[Line]:
    lines = wrap(((f" {escape_name(fact.verdict)}", "text"),), width, 1)
    if len(lines) > max_lines:
        last = "".join(text for text, _ in lines[max_lines - 1])
        lines = [*lines[: max_lines - 1], ((fit(last + " …", width), "text"),)]
    return lines


def _draw_plot(growth: Growth, cursor: int, width: int, rows: int) -> list[Line]:
    """Draw the errors, the rounding errors of the original, and a mark at each introduced error."""
    probes, count = growth.fact.probes, len(growth.fact.probes)
    powers = decades([*(p.relative for p in probes), *(p.noise for p in probes)]) or (-8, 0)
    low, high = powers[0], powers[1] + _MARK_DECADES
    ticks = log_ticks(low, high, max(2, rows // 2))
    margin = max(len(f"1e{power}") for power in (*ticks, low))
    plot_width = max(8, width - margin - 2)
    cursor_columns = find_columns(cursor, count, plot_width)

    def row(value: float) -> int:
        return rows - 1 - map_to_axis(value, low, high, rows)

    guilty = "bad" if growth.fact.kind in ("fault", "spread") else "warn"
    roles = ["bar"] * plot_width
    for index in growth.guilty:
        for x in find_columns(index, count, plot_width):
            roles[x] = guilty
    for x in cursor_columns:
        roles[x] = "accent"
    errors = column_values(growth.errors, plot_width)
    cells = draw_columns([max(0.0, (value - low) / (high - low)) for value in errors], rows, roles)
    for x, value in enumerate(column_values(growth.noise, plot_width)):
        if value > _MINUS_INFINITY:
            put_text(cells, x, row(value), "•", "dim")
    for index in growth.guilty:
        if (size := _measure_mark(probes[index])) > _MINUS_INFINITY:
            x = _find_middle(find_columns(index, count, plot_width))
            put_text(cells, x, row(max(low, size)), "●", guilty)
    largest = max(errors)
    if largest > _MINUS_INFINITY:
        put_text(cells, errors.index(largest), max(0, row(largest) - 1), "▼", "warn")
    put_text(cells, _find_middle(cursor_columns), row(max(low, growth.errors[cursor])), "◆", "accent")
    labels = {row(power): f"1e{power}" for power in reversed(ticks)}
    below = [(0, "first"), (plot_width - 1, "last")]
    if growth.guilty:
        first, label = growth.guilty[0], f"node {probes[growth.guilty[0]].step:,}"
        below.insert(1, (_find_middle(find_columns(first, count, plot_width)), label))
    legend = _build_legend(margin, guilty if growth.guilty else "", 10**largest)
    return [
        cut_line(legend, width),
        *draw_axes(build_lines(cells), labels, below, mark=_find_middle(cursor_columns)),
    ]


def _find_middle(columns: range) -> int:
    return columns[len(columns) // 2]


def _build_legend(margin: int, guilty: str, largest: float) -> Line:
    """Build the line that explains the symbols; `guilty` is the role of the marks, or '' without marks."""
    return (
        (" " * (margin + 2) + "█ ", "bar"),
        ("error / value", "dim"),
        (f"  ▼ largest {largest:.1e}" if largest else "", "warn"),
        ("  ● introduced" if guilty else "", guilty),
        ("  • the original's noise", "dim"),
    )


def _measure_mark(probe: Probe) -> float:
    """Return the height of the mark of a value: the larger logarithm of its error and introduced error."""
    return max(_compute_log(probe.relative), _compute_log(probe.introduced))


def _draw_cursor(growth: Growth, cursor: int, width: int, line_count: int) -> list[Line]:
    """Return exactly `line_count` lines with the figures of the value under the cursor."""
    probes = growth.fact.probes
    position = Field("value", f"{cursor + 1:,} of {len(probes):,}")
    lines = draw_side_by_side(Fields([position, *build_probe_figures(probes[cursor]).rows]), width)[
        :line_count
    ]
    return [*lines, *[()] * (line_count - len(lines))]


def _count_rows(lines: int, height: int) -> int:
    """Return how many rows of the list fit below `lines` other lines."""
    return max(3, height - lines - 1)


def _draw_list(growth: Growth, cursor: int, width: int, room: int) -> list[Line]:
    """Build the title and the visible rows of the list, in execution order."""
    probes = growth.fact.probes
    lines = [title_line(growth.table, width)]
    start = find_first_visible(cursor, room, len(probes))
    for i in range(start, min(start + room, len(probes))):
        role = "accent" if i == cursor else ROLES[STATES[probes[i].state][1]]
        mark = (" ◆ " if i == cursor else " ● " if i in growth.guilty else "   ", role)
        lines.append(row_line(growth.table, i, width, mark=mark, is_current=i == cursor))
    return lines
