"""Model picker: one of the models in a folder is chosen before the screen opens on it.

A program of its own, because what follows it is the same as if the model had been typed: the engine starts
with a model, and what is kept of a session is kept under its name.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from explorer.base.errors import ExplorerError
from explorer.base.units import bytes_text
from explorer.tui.app import is_remote
from explorer.tui.program import ExplorerApp
from explorer.tui.text.lines import Line, fit, middle, safe
from explorer.tui.widgets.line_view import LineList
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explorer.base.outline import Outline, OutlineRow
    from explorer.process.client import EngineProcess

_BATCH = 100
_FORMAT, _SIZE = 14, 12
"""Columns of a row behind its name."""


def pick_model(models: Outline, *, remote: bool = False) -> str | None:
    """Lets the user choose.

    Args:
        models: The models in a folder.
        remote: Save bytes as over SSH, even if it does not look like it.

    Returns:
        The path of one within the folder; None if the user leaves.
    """
    app = ModelPickerApp(models, remote=remote or is_remote(os.environ))
    app.run()
    return app.choice


class ModelList(LineList):
    """A row a model: its path, its format, its size."""

    def __init__(self) -> None:
        super().__init__(id="models")
        self.rows: list[OutlineRow] = []

    def row_line(self, index: int, width: int) -> Line:
        """Row `index` in `width` cells."""
        row = self.rows[index]
        room = max(width - _FORMAT - _SIZE - 2, 8)
        size = "" if row.nbytes is None else bytes_text(row.nbytes)
        return (
            (fit(f" {middle(safe(row.path), room - 1)}", room), "text"),
            (fit(safe(row.dtype or row.note), _FORMAT), "dim"),
            (fit(size, _SIZE, right=True), "number"),
        )


class ModelPickerScreen(Screen[None]):
    """The models in a folder, shown as they are found."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,escape", "leave", show=False)]
    AUTO_FOCUS = "#models"

    def __init__(self, models: Outline) -> None:
        super().__init__()
        self._models, self._found = models, iter(models.rows)
        self._state = "looking…"

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        yield ModelList()
        yield Status()

    def on_mount(self) -> None:
        """Name the folder at once; its models come as they are found."""
        self.query_one(TitleBar).show(lambda width: (((" ", "text"), (safe(self._models.source), "strong")),))
        self._say("looking…")
        self.run_worker(self._look(), exit_on_error=False)

    def _say(self, state: str) -> None:
        count = self.query_one(ModelList).row_count
        text = f" {count:,} model{'s' * (count != 1)}   {state}   Enter opens one · q leaves"
        self.query_one(Status).show(lambda width: (((fit(text, width), "dim"),),))

    async def _look(self) -> None:
        rows, state, found = self.query_one(ModelList), "", True
        while found:
            batch, failed = await asyncio.to_thread(_some, self._found)
            found = bool(batch)
            rows.rows += [row for row in batch if row.kind == "model"]
            state = safe(failed) or next((row.note for row in batch if row.kind != "model"), state)
            rows.rows_changed()
            self._say("looking…" if found else state)

    @on(LineList.RowSelected)
    def _opened(self, message: LineList.RowSelected) -> None:
        app = self.app
        assert isinstance(app, ModelPickerApp)
        app.choice = self.query_one(ModelList).rows[message.index].path.rstrip(os.sep)
        app.exit(0)

    def action_leave(self) -> None:
        """Leave without a model."""
        self.app.exit(0)


def _some(rows: Iterator[OutlineRow]) -> tuple[list[OutlineRow], str]:
    """The next few rows, and what ended them before their time."""
    found: list[OutlineRow] = []
    try:
        while len(found) < _BATCH and (row := next(rows, None)) is not None:
            found.append(row)
    except ExplorerError as error:
        return found, str(error)
    return found, ""


class ModelPickerApp(ExplorerApp):
    """Looks like the program that follows it; nothing is open yet, so there is no engine.

    Args:
        models: The models in a folder.
        remote: Over SSH.
    """

    CSS_PATH = "app.tcss"

    def __init__(self, models: Outline, *, remote: bool = False) -> None:
        super().__init__(models.source, cast("EngineProcess", None), remote=remote)
        self._models = models
        self.choice: str | None = None

    def get_default_screen(self) -> Screen[None]:
        """The list."""
        return ModelPickerScreen(self._models)
