"""Statistics on the screen: chosen figures of every tensor, beside its layer, operator, type and shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.base.errors import Misuse
from explorer.features.values.weights_words import statistics
from explorer.report.blocks import Table
from explorer.report.csv_table import csv_text
from explorer.report.json_records import statistics_record
from explorer.settings.parse import path_word
from explorer.settings.statistics import parse_statistics
from explorer.tui.dialogs.dialogs import FormDialog, SubScreen
from explorer.tui.text.drawing import row_line, title_line
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import Line, safe
from explorer.tui.widgets.line_view import LineList
from explorer.tui.widgets.option_field import OptionField
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts.values import StatisticsRow
    from explorer.report.blocks import Block

WEIGHTS, ACTIVATIONS = "weights", "activations"

# fmt: off
STATISTICS_KEYS = key_group(
    "In a table of statistics",
    ("statistics_sort(1)", ("s",), "s", "Sort by the next column", "The largest first; of words the first"),
    ("statistics_sort(-1)", ("S",), "S", "Sort by the column before", "The same, the other way round"),
    ("statistics_reverse", ("r",), "r", "Reverse", "The smallest first, or the largest again"),
    ("statistics_anew", ("n",), "n", "Anew…", "Other statistics, layers or tensors"),
    ("statistics_exact", ("e",), "e", "Exact or rounded", "12.5 % or 12.4893 %"),
)
# fmt: on


_NARROW = 100
"""Columns below which what the rows are sorted by stands before the other figures: these may be cut off."""


class StatisticsRequest(NamedTuple):
    """What is asked for, as `explorer weights` and `activations` take it; several words between commas."""

    of: str = WEIGHTS
    stat: str = "var,absmean,range:3sigma,quantile:0.97,absmax,zeros"
    layers: str = ""
    kinds: str = ""
    axis: str = ""
    input: str = ""

    def arguments(self) -> tuple[list[str], dict[str, Any]]:
        """Globs, and what else `Session.weights` or `activations` are told.

        Raises:
            ExplorerError: The statistics or the axis cannot be read, or weights are given an input.
        """
        parse_statistics(self.stat, "statistics")
        if self.input and self.of == WEIGHTS:
            raise Misuse("weights need none", where="input")
        try:
            axis = int(self.axis) if self.axis else None
        except ValueError:
            raise Misuse(f"'{self.axis}' is no axis", where="axis", hint="0, or -1 from behind") from None
        told = {"kinds": words(self.kinds), "stat": self.stat, "axis": axis}
        return words(self.layers), {**told, "input": self.input} if self.input else told


def words(text: str) -> list[str]:
    """What stands between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


class StatisticsDialog(FormDialog[StatisticsRequest]):
    """Asks which statistics, of what.

    Args:
        last: What was asked last.
    """

    TITLE_TEXT = "Statistics"
    HINT = "↑↓ choose · ←→ change · Enter show · Esc cancel"

    def __init__(self, last: StatisticsRequest) -> None:
        super().__init__()
        self._last = last

    def fields(self) -> ComposeResult:
        """The fields."""
        yield OptionField("of the", (WEIGHTS, ACTIVATIONS), self._last.of, id="of")
        yield from self.entry("statistics", self._last.stat, "var, absmax, zeros, quantile:0.97", "stat")
        yield from self.entry("layers", self._last.layers, "all; globs such as *attn*, fc?", "layers")
        yield from self.entry("operators", self._last.kinds, "all; Conv, Linear", "kinds")
        yield from self.entry("axis", self._last.axis, "none; 0 tells output channels apart", "axis")
        yield from self.entry("input", self._last.input, "random; an .npy or .npz file", "input")

    def meaning(self) -> list[tuple[str, str]]:
        """The columns."""
        request = self.answer()
        said = [(f"columns: {', '.join(one.label for one in parse_statistics(request.stat))}", "dim")]
        if request.of == ACTIVATIONS:
            said.append(("The model runs: on random numbers, or on every sample of the file.", "dim"))
        return said

    def _request(self) -> StatisticsRequest:
        typed = (self.text_of(name).strip() for name in StatisticsRequest._fields[1:])
        return StatisticsRequest(self.query_one("#of", OptionField).value, *typed)

    def answer(self) -> StatisticsRequest:
        """What the fields say."""
        request = self._request()
        request.arguments()
        return request


class _Rows(LineList):
    """A row a tensor, or an index of the axis."""

    rows: Sequence[StatisticsRow] = ()
    exact = False
    table: Table = Table((), ())

    def take(self, rows: Sequence[StatisticsRow]) -> None:
        """Show these rows, from the first."""
        self.rows = rows
        self.table = next((b for b in statistics(rows, "tensors") if isinstance(b, Table)), self.table)
        figures = list(rows[0].values)[1:] if rows else []
        # a name in a few letters is none: figures leave before it, the last one first
        drops = {name: at for at, name in enumerate(figures, 1)}
        columns = [
            one._replace(drop=drops.get(one.title, one.drop and one.drop + len(figures)))
            for one in self.table.columns
        ]
        self.table = replace(self.table, columns=columns)
        self.move_to(0)
        self.rows_changed()

    def row_line(self, index: int, width: int) -> Line:
        """Row `index` in `width` cells."""
        return row_line(self.table, index, width - 1, self.exact, mark=(" ", "text"))


Column = tuple[str, Callable[["StatisticsRow"], Any], bool]
"""Its name, what it sorts by, and whether the largest is first."""


class StatisticsScreen(SubScreen[str]):
    """Statistics as a table that sorts; answers with a layer to go to, or '' for other statistics.

    Args:
        request: What was asked.
        rows: What was found.
        notes: What is worth knowing of the numbers.
        exact: Exact or rounded numbers.
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
        self._request, self._found, self._exact = request, rows, exact
        self._by, self._turned = 0, False
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
        """The parts."""
        yield TitleBar()
        yield PaneHead(id="statistics-head")
        yield _Rows(id="statistics")
        yield Status(id="figure-keys")

    def on_mount(self) -> None:
        """Show the table."""
        what = "tensors" if self._request.of == WEIGHTS else "outputs"
        if any(row.index is not None for row in self._found):
            what = f"indices of axis {self._request.axis}"
        where = ", ".join(filter(None, (self._request.layers, self._request.kinds)))
        head = (
            ((" Statistics", "strong"), (f"   of the {self._request.of}   {safe(where)}", "dim")),
            ((f" {'; '.join((f'{len(self._found):,} {what}', *map(safe, self._notes)))}", "dim"),),
        )
        self.query_one(TitleBar).show(lambda width: head)
        self._show()

    @property
    def _rows(self) -> _Rows:
        return self.query_one(_Rows)

    def _show(self, said: str = "") -> None:
        rows = self._rows
        rows.exact = self._exact
        name, key, falls = self._columns[self._by]
        known = [row for row in self._found if key(row) is not None]
        known.sort(key=key, reverse=falls != self._turned)
        ordered: Sequence[StatisticsRow] = known + [row for row in self._found if key(row) is None]
        ordered = ordered if self._by else self._found[:: -1 if self._turned else 1]
        self._ordered = ordered
        rows.take([_first(name, row) for row in ordered] if falls and self.size.width < _NARROW else ordered)
        self.query_one("#statistics-head", PaneHead).show(
            lambda width: (title_line(rows.table, width - 1, self._exact),)
        )
        self.show_keys(said)

    def page_blocks(self) -> Sequence[Block]:
        """What `explorer weights --stat` tells, in this order."""
        return statistics(self._ordered, "tensors")

    def page_csv(self) -> str:
        """Every row in this order, with the columns of `--csv`."""
        return csv_text([statistics_record(row) for row in self._ordered])

    def verb_words(self, source: str) -> list[str]:
        """The verb that tells the same."""
        request, made = self._request, [self._request.of, source, "--stat", self._request.stat]
        options = [("--layer", word) for word in words(request.layers)]
        options += [("--op", word) for word in words(request.kinds)]
        options += [("--axis", request.axis)] if request.axis else []
        options += [("--input", path_word(request.input))] if request.input else []
        return made + [word for option in options for word in option]

    @on(LineList.RowSelected)
    def _chosen(self, event: LineList.RowSelected) -> None:
        if layer := self._rows.rows[event.index].layer:
            self.dismiss(layer)

    def action_statistics_sort(self, step: int) -> None:
        """By the next column, or the one before."""
        self._by, self._turned = (self._by + step) % len(self._columns), False
        self._tell()

    def action_statistics_reverse(self) -> None:
        """The other way round."""
        self._turned = not self._turned
        self._tell()

    def _tell(self) -> None:
        name, _, falls = self._columns[self._by]
        way = "the largest first" if falls != self._turned else "the smallest first"
        way = way if falls else ("backwards" if self._turned else "")
        self._show(f"by {name}, {way}" if self._by and way else f"by {name}" if self._by else name)

    def action_statistics_anew(self) -> None:
        """Ask for others."""
        self.dismiss("")

    def action_statistics_exact(self) -> None:
        """Write the figures out, or round them."""
        self._exact = not self._exact
        self._show()


def _first(label: str, row: StatisticsRow) -> StatisticsRow:
    return replace(row, values={label: row.values[label], **row.values})
