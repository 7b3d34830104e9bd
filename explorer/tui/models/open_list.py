"""The list of open models: shows their state and memory, and can show, close or compare them."""

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
from explorer.tui.text.lines import Line, escape_name, fit
from explorer.tui.widgets.line_view import LineList
from explorer.tui.widgets.marked_list import MarkedList
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar

# fmt: off
OPEN_KEYS = key_group(
    "In the list of open models",
    ("show", ("enter",), "Enter", "Show it", "The other models stay open, and their jobs continue"),
    ("close", ("x", "delete"), "x Del", "Close it", "Asks first if a change is not saved"),
    ("open", ("O",), "O", "Open another…", "Choose it in the list of models"),
    ("pair", ("equals_sign",), "=", "Side by side", "The model under the cursor and the visible one"),
    ("mark", ("space",), "Space", "Mark", "Mark the model to compare its figures"),
    ("figures", ("t",), "t", "Figures", "Table of the visible and marked models, as opened"),
)
# fmt: on

_COLUMNS = (
    Column("model", shrink=True, role="strong", paths=True),
    Column("format", drop=2, role="kind"),
    Column("params", "right", drop=3),
    Column("state", shrink=True, drop=1),
    Column("memory", "right"),
)


class _ModelList(MarkedList):
    """List with one row per open model."""

    def __init__(self, host: ModelHost) -> None:
        super().__init__(id="open-models")
        self.host = host
        self.update_rows()
        self.cursor = next(
            (index for index, model in enumerate(self.rows) if model is host.models.current), 0
        )

    def update_rows(self) -> None:
        """Set the rows to the open models, and drop the marks of models that were closed."""
        self.rows = tuple(self.host.models.open)
        self.table = Table(_COLUMNS, Rows(_build_cells, self.rows))
        self.marked = [key for key in self.marked if key in {model.mode for model in self.rows}]

    def key_of(self, index: int) -> str:
        """Return the key of a row: the Textual mode of the model."""
        model: OpenModel = self.rows[index]
        return model.mode

    def row_line(self, index: int, width: int) -> Line:
        """Draw row `index` in `width` cells."""
        is_current = self.rows[index] is self.host.models.current
        mark = f"{self.letter(index)}{'●' if is_current else ' '} "
        return row_line(self.table, index, width, mark=(mark, "accent"), is_current=is_current)


class OpenListRequest(Struct, frozen=True):
    """Action that the user chose, and the models to apply it to."""

    action: Literal["show", "open", "pair", "figures"]
    models: tuple[OpenModel, ...] = ()


class OpenListScreen(SubScreen[OpenListRequest]):
    """Lists the open models.

    Args:
        host: Program that shows and closes models.
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
        """Yield the widgets."""
        yield TitleBar()
        yield PaneHead(id="open-head")
        yield _ModelList(self._host)
        yield Status()

    def on_mount(self) -> None:
        """Draw the list."""
        self._draw()

    def on_screen_resume(self) -> None:
        """Draw the list again, because the memory of the models may have changed."""
        self._draw()

    def _draw(self) -> None:
        rows, models = self.query_one(_ModelList), self._host.models
        rows.update_rows()
        rows.refresh_rows()
        count = len(rows.rows)
        summary = f"{count:,} open, engines hold {bytes_text(models.used_memory)}"
        memory_limit = models.memory
        note = ""
        if memory_limit is not None:
            note = (
                f"Engines of hidden models rest when all together hold more than {bytes_text(memory_limit)}"
            )
        self.query_one(TitleBar).show(
            lambda width: (
                ((" Open models", "strong"), (fit(f"  {summary}", max(width - 12, 0)), "dim")),
                ((fit(f" {note}", width), "dim"),),
            )
        )
        self.query_one("#open-head", PaneHead).show(lambda width: (title_line(rows.table, width),))
        self._say("")

    @on(LineList.RowHighlighted)
    def _row_highlighted(self) -> None:
        self._say("")

    @property
    def _chosen_model(self) -> OpenModel:
        rows = self.query_one(_ModelList)
        model: OpenModel = rows.rows[rows.cursor]
        return model

    @on(LineList.RowSelected)
    def _row_selected(self) -> None:
        self.action_show()

    def action_show(self) -> None:
        """Show the model under the cursor."""
        self.dismiss(OpenListRequest("show", (self._chosen_model,)))

    def action_open(self) -> None:
        """Open another model."""
        self.dismiss(OpenListRequest("open"))

    def action_pair(self) -> None:
        """Compare the model under the cursor with the visible model."""
        if self._chosen_model is self._host.models.current:
            self._refuse("this is the visible model: choose another")
        else:
            self.dismiss(OpenListRequest("pair", (self._chosen_model,)))

    def action_figures(self) -> None:
        """Compare the figures of the marked models with the figures of the visible model."""
        rows, current = self.query_one(_ModelList), self._host.models.current
        models_by_key = {model.mode: model for model in rows.rows if model is not current}
        marked = tuple(models_by_key[key] for key in rows.marked if key in models_by_key)
        if marked:
            self.dismiss(OpenListRequest("figures", marked))
        else:
            self._refuse("mark another model than the visible one: Space")

    def action_close(self) -> None:
        """Close the model under the cursor, asking first if something would be lost."""
        model = self._chosen_model
        if not (question := model.question("close")):
            self._close(model)
            return
        dialog = ConfirmDialog("Close?", f"{escape_name(model.source)}: {question}")
        self.app.push_screen(dialog, lambda is_confirmed: self._close(model) if is_confirmed else None)

    def _close(self, model: OpenModel) -> None:
        if model is self._host.models.current:
            self.dismiss(None)
            self._host.close_model(model)
        else:
            self._host.close_model(model)
            self._draw()


def _build_cells(model: OpenModel) -> tuple[Cell, ...]:
    main = model.main
    info = main.store.analysis.info if main is not None and main.store.analysis is not None else None
    resident = model.engine.resident
    return (
        escape_name(model.source),
        info.model.format if info is not None else "",
        Span(count_text(info.totals.params), "figure") if info is not None else "",
        escape_name(model.state),
        Span(bytes_text(resident), "figure") if resident else Span("at rest", "quiet"),
    )
