"""The list of open models: which there are, what each is doing and holds; one is shown or closed."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import Struct
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.base.units import bytes_text, count_text
from explorer.report.blocks import Cell, Column, Rows, Span, Table
from explorer.tui.dialogs.dialogs import ConfirmDialog, SubScreen
from explorer.tui.models.open_models import ModelHost, OpenModel
from explorer.tui.text.drawing import row_line, title_line
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import Line, fit, safe
from explorer.tui.widgets.line_view import LineList
from explorer.tui.widgets.marked_list import MarkedList
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar

# fmt: off
OPEN_KEYS = key_group(
    "In the list of open models",
    ("show", ("enter",), "Enter", "Show it", "The others stay as they are; what runs in them goes on"),
    ("close", ("x", "delete"), "x Del", "Close it", "Asks first if something of it is not saved"),
    ("open", ("O",), "O", "Open another…", "From the chooser"),
    ("pair", ("equals_sign",), "=", "Side by side", "The one under the cursor, as opened, and that on show"),
    ("mark", ("space",), "Space", "Mark", "To set its figures beside those of others"),
    ("figures", ("t",), "t", "Figures", "Of the one on show and of those marked, as opened, in a table"),
)
# fmt: on

_COLUMNS = (
    Column("model", shrink=True, role="strong"),
    Column("format", drop=2, role="kind"),
    Column("params", "right", drop=3),
    Column("state", shrink=True, drop=1),
    Column("memory", "right"),
)


class _Models(MarkedList):
    """A row a model."""

    def __init__(self, host: ModelHost) -> None:
        super().__init__(id="open-models")
        self.host = host
        self.take()
        self.cursor = next((at for at, one in enumerate(self.rows) if one is host.models.current), 0)

    def take(self) -> None:
        """Which there are now."""
        self.rows = tuple(self.host.models.open)
        self.table = Table(_COLUMNS, Rows(_cells, self.rows))

        self.marked = [key for key in self.marked if key in {model.mode for model in self.rows}]

    def key_of(self, index: int) -> str:
        """What a row is known by."""
        model: OpenModel = self.rows[index]
        return model.mode

    def row_line(self, index: int, width: int) -> Line:
        """Row `index` in `width` cells."""
        here = self.rows[index] is self.host.models.current
        mark = f"{self.letter(index)}{'●' if here else ' '} "
        return row_line(self.table, index, width, mark=(mark, "accent"), here=here)


class OpenListRequest(Struct, frozen=True):
    """What the user wants of which models."""

    what: Literal["show", "open", "pair", "figures"]
    models: tuple[OpenModel, ...] = ()


class OpenListScreen(SubScreen[OpenListRequest]):
    """The models that are open.

    Args:
        host: Shows and closes them.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(OPEN_KEYS)
    FOOTER = (
        *(("Enter", "show"), ("x", "close"), ("O", "another"), ("=", "side by side")),
        *(("Space", "mark"), ("t", "figures"), ("Esc", "back")),
    )
    AUTO_FOCUS = "#open-models"

    def __init__(self, host: ModelHost) -> None:
        super().__init__()
        self._host = host

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        yield PaneHead(id="open-head")
        yield _Models(self._host)
        yield Status()

    def on_mount(self) -> None:
        """Show them."""
        self._draw()

    def on_screen_resume(self) -> None:
        """What each holds may have changed."""
        self._draw()

    def _draw(self) -> None:
        rows, models = self.query_one(_Models), self._host.models
        rows.take()
        rows.rows_changed()
        count = len(rows.rows)
        summary = f"{count:,} open, engines hold {bytes_text(models.held)}"
        most = models.memory
        rest = "" if most is None else f"Engines not on show rest when all hold more than {bytes_text(most)}"
        self.query_one(TitleBar).show(
            lambda width: (
                ((" Open models", "strong"), (fit(f"  {summary}", max(width - 12, 0)), "dim")),
                ((fit(f" {rest}", width), "dim"),),
            )
        )
        self.query_one("#open-head", PaneHead).show(lambda width: (title_line(rows.table, width),))
        self._say("")

    @on(LineList.RowHighlighted)
    def _moved(self) -> None:
        self._say("")

    @property
    def _chosen_model(self) -> OpenModel:
        rows = self.query_one(_Models)
        model: OpenModel = rows.rows[rows.cursor]
        return model

    @on(LineList.RowSelected)
    def _chosen(self) -> None:
        self.action_show()

    def action_show(self) -> None:
        """Show the model under the cursor."""
        self.dismiss(OpenListRequest("show", (self._chosen_model,)))

    def action_open(self) -> None:
        """Open another."""
        self.dismiss(OpenListRequest("open"))

    def action_pair(self) -> None:
        """Set the model under the cursor beside the one on show."""
        if self._chosen_model is self._host.models.current:
            self._refuse("this one is on show: choose another")
        else:
            self.dismiss(OpenListRequest("pair", (self._chosen_model,)))

    def action_figures(self) -> None:
        """Set the figures of those that are marked beside those of the one on show."""
        rows, current = self.query_one(_Models), self._host.models.current
        named = {model.mode: model for model in rows.rows if model is not current}
        marked = tuple(named[key] for key in rows.marked if key in named)
        if marked:
            self.dismiss(OpenListRequest("figures", marked))
        else:
            self._refuse("mark one that is not on show: Space")

    def action_close(self) -> None:
        """Close the model under the cursor; ask if something would be lost."""
        model = self._chosen_model
        if not (question := model.question("close")):
            self._close(model)
            return
        dialog = ConfirmDialog("Close?", f"{safe(model.source)}: {question}")
        self.app.push_screen(dialog, lambda yes: self._close(model) if yes else None)

    def _close(self, model: OpenModel) -> None:
        if model is self._host.models.current:
            self.dismiss(None)
            self._host.close_model(model)
        else:
            self._host.close_model(model)
            self._draw()


def _cells(model: OpenModel) -> tuple[Cell, ...]:
    main = model.main
    info = main.store.analysis.info if main is not None and main.store.analysis is not None else None
    resident = model.engine.resident
    return (
        safe(model.source),
        info.model.format if info is not None else "",
        Span(count_text(info.totals.params), "figure") if info is not None else "",
        safe(model.state),
        Span(bytes_text(resident), "figure") if resident else Span("at rest", "quiet"),
    )
