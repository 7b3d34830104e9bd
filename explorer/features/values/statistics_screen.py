"""Statistics screen: a dialog that asks for statistics, and a sortable table of tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.base.errors import Misuse
from explorer.base.options import DeclaredOption, find_option
from explorer.facts.values import StatisticsSpec
from explorer.features.values.weights_words import statistics
from explorer.report.blocks import Table
from explorer.report.csv_table import format_csv
from explorer.report.json_records import encode_chosen_statistics
from explorer.settings.option_values import read_option
from explorer.settings.parse import write_path_word
from explorer.settings.statistics import parse_statistics
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import FormDialog, SubScreen
from explorer.tui.text.drawing import row_line, title_line
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import Line, escape_name
from explorer.tui.widgets.line_view import LineList
from explorer.tui.widgets.option_field import OptionField
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts.values import Activations, StatisticsRow, Weights
    from explorer.report.blocks import Block


WEIGHTS, ACTIVATIONS = "weights", "activations"

_STAT, _KINDS, _AXIS = (find_option(StatisticsSpec, name) for name in ("stat", "kinds", "axis"))
"""Declared options that have a field in the dialog."""

# fmt: off
STATISTICS_KEYS = key_group(
    "In a table of statistics",
    ("statistics_sort(1)", ("s",), "s", "Sort by the next column", "Largest numbers first; words A to Z"),
    ("statistics_sort(-1)", ("S",), "S", "Sort by the previous column", "The largest first"),
    ("statistics_reverse", ("r",), "r", "Reverse", "The smallest first, or the largest again"),
    ("statistics_anew", ("n",), "n", "Choose again…", "Other statistics, layers or tensors"),
    ("statistics_exact", ("e",), "e", "Exact or rounded", "12.4893 % or 12.5 %"),
)
# fmt: on


_MIN_USUAL_ORDER_WIDTH = 100
"""Screen width, in cells, below which the sorted column comes first, because others may be cut off."""


class StatisticsRequest(NamedTuple):
    """Options of `explorer weights` or `explorer activations`, as typed, with commas between words."""

    subject: str = WEIGHTS
    stat: str = "var,absmean,range:3sigma,quantile:0.97,absmax,zeros"
    layers: str = ""
    kinds: str = ""
    axis: str = ""
    input: str = ""

    def arguments(self) -> tuple[list[str], dict[str, Any]]:
        """Return the globs and keyword arguments for `Session.weights` or `Session.activations`.

        Raises:
            ExplorerError: The statistics or the axis cannot be parsed, or weights have an input.
        """
        read_option(_STAT, self.stat, _STAT.declared.label)
        if self.input and self.subject == WEIGHTS:
            raise Misuse("weights need no input", where="input")
        axis = read_option(_AXIS, self.axis, _AXIS.declared.label) if self.axis else None
        choices = {"kinds": words(self.kinds), "stat": self.stat, "axis": axis}
        return words(self.layers), {**choices, "input": self.input} if self.input else choices


def words(text: str) -> list[str]:
    """Split text at commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


class StatisticsDialog(FormDialog[StatisticsRequest]):
    """Ask for statistics and tensors.

    Args:
        last: Initial content of the fields.
    """

    TITLE_TEXT = "Statistics"
    HINT = "↑↓ choose · ←→ change · Enter show · Esc cancel"

    def __init__(self, last: StatisticsRequest) -> None:
        super().__init__()
        self._last = last

    def compose_fields(self) -> ComposeResult:
        """Yield a field for each option."""
        yield OptionField("of the", (WEIGHTS, ACTIVATIONS), self._last.subject, id="of")
        yield from self._build_entry(_STAT)
        yield from self.compose_row("layers", self._last.layers, "all; globs such as *attn*, fc?", "layers")
        yield from self._build_entry(_KINDS)
        yield from self._build_entry(_AXIS)
        yield from self.compose_row("input", self._last.input, "random; an .npy or .npz file", "input")

    def _build_entry(self, option: DeclaredOption) -> ComposeResult:
        """Yield the input of an option of `StatisticsSpec`, with the text that was typed last."""
        text = getattr(self._last, option.name)
        yield from self.compose_row(option.declared.label, text, option.declared.placeholder, option.name)

    def describe(self) -> list[tuple[str, str]]:
        """List the columns of the table, and mention that activations run the model."""
        request = self.read_answer()
        lines = [
            (f"columns: {', '.join(statistic.label for statistic in parse_statistics(request.stat))}", "dim")
        ]
        if request.subject == ACTIVATIONS:
            lines.append(("The model runs: on random numbers, or on every sample of the file.", "dim"))
        return lines

    def _request(self) -> StatisticsRequest:
        typed = (self.get_text(name).strip() for name in StatisticsRequest._fields[1:])
        return StatisticsRequest(self.query_one("#of", OptionField).value, *typed)

    def read_answer(self) -> StatisticsRequest:
        """Return the request of the fields; check that they can be parsed."""
        request = self._request()
        request.arguments()
        return request


class _Rows(LineList):
    """List with a row for each tensor, or for each index of the axis."""

    rows: Sequence[StatisticsRow] = ()
    exact = False
    table: Table = Table((), ())

    def set_rows(self, rows: Sequence[StatisticsRow]) -> None:
        """Show other rows, from the first one."""
        self.rows = rows
        self.table = next((b for b in statistics(rows, "tensors") if isinstance(b, Table)), self.table)
        figures = list(rows[0].values)[1:] if rows else []
        # a narrow screen drops figures before it shortens names, the last figure first
        drops = {name: index for index, name in enumerate(figures, 1)}
        columns = [
            column._replace(drop=drops.get(column.title, column.drop and column.drop + len(figures)))
            for column in self.table.columns
        ]
        self.table = replace(self.table, columns=columns)
        self.move_to(0)
        self.refresh_rows()

    def row_line(self, index: int, width: int) -> Line:
        """Build the line of row `index`, `width` cells wide."""
        return row_line(self.table, index, width - 1, self.exact, mark=(" ", "text"))


Column = tuple[str, Callable[["StatisticsRow"], Any], bool]
"""Title of a column, sort key, and whether the largest value comes first."""


class StatisticsScreen(SubScreen[str]):
    """Show statistics in a sortable table; the result is a layer to go to, or '' to ask again.

    Args:
        request: Request that produced the statistics.
        rows: Rows of statistics.
        notes: Remarks on the numbers.
        exact: Whether to show exact instead of rounded numbers.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(STATISTICS_KEYS)
    FOOTER = (
        *(("Enter", "layer"), ("s", "sort"), ("r", "reverse"), ("n", "anew"), ("e", "exact"), ("Y", "copy")),
        ("Esc", "back"),
    )
    AUTO_FOCUS = "#statistics"
    has_table = True

    def __init__(
        self,
        request: StatisticsRequest,
        rows: Sequence[StatisticsRow],
        *,
        notes: Sequence[str] = (),
        exact: bool = False,
    ) -> None:
        super().__init__()
        self._notes = notes
        self._request, self._statistics, self._exact = request, rows, exact
        self._column_index, self._reversed = 0, False
        self._ordered = rows
        labels = tuple(rows[0].values) if rows else ()
        self._columns: tuple[Column, ...] = (
            ("as in the model", lambda row: None, False),
            ("tensor", lambda row: row.tensor, False),
            ("layer", lambda row: row.layer, False),
            ("operator", lambda row: row.operator, False),
            ("dtype", lambda row: row.dtype, False),
            *((label, lambda row, label=label: row.values[label], True) for label in labels),
        )

    def compose(self) -> ComposeResult:
        """Yield the title bar, the table and the key line."""
        yield TitleBar()
        yield PaneHead(id="statistics-head")
        yield _Rows(id="statistics")
        yield Status(id="figure-keys")

    def on_mount(self) -> None:
        """Show the table."""
        noun = "tensors" if self._request.subject == WEIGHTS else "outputs"
        if any(row.index is not None for row in self._statistics):
            noun = f"indices of axis {self._request.axis}"
        where = ", ".join(filter(None, (self._request.layers, self._request.kinds)))
        head = (
            ((" Statistics", "strong"), (f"   of the {self._request.subject}   {escape_name(where)}", "dim")),
            (
                (
                    f" {'; '.join((f'{len(self._statistics):,} {noun}', *map(escape_name, self._notes)))}",
                    "dim",
                ),
            ),
        )
        self.query_one(TitleBar).show(lambda width: head)
        self._show()

    @property
    def _rows(self) -> _Rows:
        return self.query_one(_Rows)

    def _show(self, note: str = "") -> None:
        rows = self._rows
        rows.exact = self._exact
        name, key, descends = self._columns[self._column_index]
        rows_with_value = [row for row in self._statistics if key(row) is not None]
        rows_with_value.sort(key=key, reverse=descends != self._reversed)
        ordered: Sequence[StatisticsRow] = rows_with_value + [
            row for row in self._statistics if key(row) is None
        ]
        ordered = ordered if self._column_index else self._statistics[:: -1 if self._reversed else 1]
        self._ordered = ordered
        rows.set_rows(
            [_add_first_figure(name, row) for row in ordered]
            if descends and self.size.width < _MIN_USUAL_ORDER_WIDTH
            else ordered
        )
        self.query_one("#statistics-head", PaneHead).show(
            lambda width: (title_line(rows.table, width - 1, self._exact),)
        )
        self.show_keys(note)

    def page_blocks(self) -> Sequence[Block]:
        """Return the blocks that `explorer weights --stat` prints, in the order of the screen."""
        return statistics(self._ordered, "tensors")

    def page_csv(self) -> str:
        """Return every row as CSV, in the order of the screen and with the columns of `--csv`."""
        return format_csv([encode_chosen_statistics(row) for row in self._ordered])

    def verb_words(self, source: str) -> list[str]:
        """Return the command line that prints the same statistics."""
        request, verb = self._request, [self._request.subject, source, "--stat", self._request.stat]
        options = [("--layer", word) for word in words(request.layers)]
        options += [("--op", word) for word in words(request.kinds)]
        options += [("--axis", request.axis)] if request.axis else []
        options += [("--input", write_path_word(request.input))] if request.input else []
        return verb + [word for option in options for word in option]

    @on(LineList.RowSelected)
    def _go_to_layer(self, event: LineList.RowSelected) -> None:
        if layer := self._rows.rows[event.index].layer:
            self.dismiss(layer)

    def action_statistics_sort(self, step: int) -> None:
        """Sort by the next (`step` 1) or previous (`step` -1) column."""
        self._column_index, self._reversed = (self._column_index + step) % len(self._columns), False
        self._show_order()

    def action_statistics_reverse(self) -> None:
        """Reverse the order."""
        self._reversed = not self._reversed
        self._show_order()

    def _show_order(self) -> None:
        name, _, descends = self._columns[self._column_index]
        direction_text = "the largest first" if descends != self._reversed else "the smallest first"
        direction_text = direction_text if descends else ("backwards" if self._reversed else "")
        self._show(
            f"by {name}, {direction_text}"
            if self._column_index and direction_text
            else f"by {name}"
            if self._column_index
            else name
        )

    def action_statistics_anew(self) -> None:
        """Close the screen and ask again."""
        self.dismiss("")

    def action_statistics_exact(self) -> None:
        """Switch between exact and rounded figures."""
        self._exact = not self._exact
        self._show()


def _add_first_figure(label: str, row: StatisticsRow) -> StatisticsRow:
    return replace(row, values={label: row.values[label], **row.values})


class StatisticsCommand(ScreenCommand):
    """Command that asks for statistics and shows them."""

    def run(self) -> None:
        """Open the dialog."""
        if self.context.ready():
            last = StatisticsRequest(*self.store.requested_statistics)
            self.context.ask(StatisticsDialog(last), self._handle_answer)

    def _handle_answer(self, request: StatisticsRequest | None) -> None:
        if request is not None:
            self.store.requested_statistics = tuple(request)
            self.context.start("Statistics", self._show_statistics(request), self.run)

    async def _show_statistics(self, request: StatisticsRequest) -> None:
        globs, arguments = request.arguments()
        if "input" in arguments:
            arguments["input"] = os.path.expanduser(arguments["input"])
        job_title = "reading weights" if request.subject == WEIGHTS else "running the model"
        fact: Weights | Activations = await self.jobs.run(job_title, request.subject, globs, **arguments)
        if not fact.statistics:
            self.store.say(f"no {request.subject} to compute statistics of")
            return
        page = StatisticsScreen(request, fact.statistics, notes=fact.notes, exact=self.store.exact)
        self.context.ask(page, self._handle_result)

    def _handle_result(self, layer: str | None) -> None:
        if layer == "":
            self.run()
        else:
            self.context.go_to_layer(layer)
