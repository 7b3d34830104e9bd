"""The chooser: lists the models that can be opened, with figures from their headers.

One list contains the models of a folder, sessions to resume, recent models, and the models of torchvision.
Typed words filter it. `explorer.process.header_reader` reads headers in the background, starting with the
visible models. No model is loaded.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import Input

from explorer.base.errors import BadModel, ExplorerError
from explorer.facts.models.listing import KeptSession, ModelFile, NamedModel, RecentModel
from explorer.host import confinement
from explorer.process import recent_models, saved_sessions
from explorer.process.header_reader import AT_ONCE, HeaderReader
from explorer.report.present.shell.list import describe_stored, shorten_path
from explorer.session import headers
from explorer.tui.models.choice_list import RECENT, SESSIONS, SORTS, ChoiceList
from explorer.tui.models.open_models import ModelChoice
from explorer.tui.models.opening import check_source, is_served
from explorer.tui.terminal.slices import call_after_paint
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import Line, cut_message, cut_middle, escape_name, fit
from explorer.tui.widgets.line_view import LineList
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar
from explorer.tui.widgets.text_input import create_text_input

if TYPE_CHECKING:
    from explorer.base.outline import OutlineRow

# fmt: off
CHOOSER_KEYS = key_group(
    "Choosing a model",
    ("go", ("enter",), "Enter", "Open", "The model under the cursor, or the typed path or name"),
    ("move(-1)", ("up",), "↑", "One up", "Move the cursor up; typed letters filter the list"),
    ("move(1)", ("down",), "↓", "One down", "Move the cursor down"),
    ("page(-1)", ("pageup",), "PgUp", "A page up", "Move the cursor up by a page"),
    ("page(1)", ("pagedown",), "PgDn", "A page down", "Move the cursor down by a page"),
    ("sort", ("tab",), "Tab", "Sort", "By name, size, parameters, date, or as they were found"),
    ("turn", ("shift+tab",), "Shift+Tab", "Reverse", "Reverse the order of the list"),
    ("app.help", ("question_mark",), "?", "Help", "If you typed nothing"),
    ("leave", ("escape",), "Esc", "Clear, leave", "Clear the typed text; a second time, leave the list"),
)
# fmt: on

_KEYS = " Enter open · Tab sort · Esc leave"
_BATCH = 100  # models that are added to the list at once
_UPDATE_SECONDS = 0.2
"""Seconds between two updates of the list while headers are read."""
_NAMES = "torchvision, by name"


class ChooserScreen(Screen[None]):
    """Lists the models that can be opened.

    Args:
        folder: Folder to list, or '' for the current folder.
        answer: Callback that receives the choice, or None if the user leaves. An `ExplorerError` is shown.
        home: Whether this is the first screen, with no other screen below it.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(key for key in CHOOSER_KEYS if key.id not in ("go",))
    AUTO_FOCUS = "Input"

    def __init__(
        self, folder: str, answer: Callable[[ModelChoice | None], None], *, home: bool = False
    ) -> None:
        super().__init__()
        self._folder, self._answer, self._home = folder or ".", answer, home
        self._reader = HeaderReader()
        self._files: dict[str, ModelFile] = {}

        self._openings: dict[str, recent_models.RecentOpening] = {}
        self._note = self._message = ""
        self._busy = 0

    def compose(self) -> ComposeResult:
        """Yield the widgets."""
        yield TitleBar()
        yield create_text_input(placeholder="type part of a name, or a path", accepts_wildcards=True)
        yield PaneHead(id="choices-head")
        yield ChoiceList()
        yield Status()

    @property
    def _list(self) -> ChoiceList:
        return self.query_one(ChoiceList)

    def on_mount(self) -> None:
        """Show the folder at once, and its models as they are found."""
        # the start of the program disables the garbage collector until the first paint
        call_after_paint(self, gc.enable)
        self.query_one(Input).cursor_blink = False
        self._begin()

    def on_unmount(self) -> None:
        """Stop reading headers."""
        self._reader.close()

    def on_screen_resume(self) -> None:
        """Update the recent models, because a model may have been opened meanwhile."""
        self.run_worker(self._load_recent(), group="back", exclusive=True, exit_on_error=False)

    # contents of the list

    def _begin(self) -> None:
        """List the folder from the beginning."""
        self._files, self._note, self._message = {}, "", ""
        title = shorten_path(os.path.abspath(self._folder))
        title_in_folder = f"In {title}"
        self._list.parts = {title_in_folder: (), SESSIONS: (), RECENT: (), _NAMES: ()}
        self._title = title_in_folder
        self.query_one(TitleBar).show(
            lambda width: (
                ((" Open a model", "strong"), ("  ", "dim"), (cut_middle(title, max(width - 18, 8)), "dim")),
                ((fit(" Reads headers; loads no model", width), "dim"),),
            )
        )
        self.run_worker(self._load_folder(), group="look", exclusive=True, exit_on_error=False)
        self.run_worker(self._load_recent(), group="back", exclusive=True, exit_on_error=False)
        if not is_served():
            self.run_worker(self._load_torchvision(), group="names", exclusive=True, exit_on_error=False)

    async def _load_recent(self) -> None:
        """Load the sessions to resume and the recent models."""
        sessions = await asyncio.to_thread(saved_sessions.list_kept_sessions, os.environ)
        openings = await asyncio.to_thread(recent_models.list_openings, os.environ)
        self._openings = {shorten_path(opening.model.source): opening for opening in openings}
        self._list.parts[SESSIONS] = _select_sessions(sessions)
        self._list.parts[RECENT] = [
            replace(opening.model, source=name) for name, opening in self._openings.items()
        ]
        self._draw()

    async def _load_torchvision(self) -> None:
        models = await asyncio.to_thread(self._reader.list_torchvision_models)
        self._list.parts[_NAMES] = models or ()
        self._draw()

    async def _load_folder(self) -> None:
        """Add the models of the folder as they are found, then read their headers."""
        self._busy += 1
        try:
            models = await asyncio.to_thread(headers.list_choices, self._folder)
            rows = iter(models.rows) if models is not None else iter(())
            is_complete = models is None
            if models is None:  # the folder itself is a model
                self._files[os.curdir] = ModelFile(os.curdir, "")
            while not is_complete:
                batch, failed = await asyncio.to_thread(_read_next_rows, rows)
                is_complete = not batch
                self._note = failed or next((row.note for row in batch if row.kind != "model"), self._note)
                for row in batch:
                    if row.kind == "model":
                        self._files[row.path] = ModelFile(row.path, row.dtype, row.nbytes)
                self._list.parts[self._title] = list(self._files.values())
                self._draw()
            self._list.parts[self._title] = list(self._files.values())
            await self._read_headers()
        except BadModel as error:
            self._note = error.what.removeprefix("this is a directory, not a model, and ")
        finally:
            self._busy -= 1
            self._draw()

    async def _read_headers(self) -> None:
        """Read the headers, starting with the visible models, and update the list periodically."""
        unread = dict.fromkeys(self._files)
        loop = asyncio.get_running_loop()
        running: set[asyncio.Future[tuple[str, ModelFile | None]]] = set()
        last_update = loop.time()
        while unread or running:
            while unread and len(running) < AT_ONCE:
                paths_in_view = (row.path for row in self._list.in_view if isinstance(row, ModelFile))
                path = next((path for path in paths_in_view if path in unread), next(iter(unread)))
                del unread[path]
                running.add(asyncio.ensure_future(asyncio.to_thread(self._read, path)))
            completed, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for future in completed:
                path, model = future.result()
                if model is None:
                    del self._files[path]
                else:
                    self._files[path] = model
            if loop.time() - last_update > _UPDATE_SECONDS:
                self._list.parts[self._title] = list(self._files.values())
                self._draw()
                last_update = loop.time()
        self._list.parts[self._title] = list(self._files.values())

    def _read(self, path: str) -> tuple[str, ModelFile | None]:
        """Read the header of a listed file, keeping known figures that the header lacks. Runs in a thread."""
        header = self._reader.read(os.path.join(self._folder, path))
        listed_file = self._files[path]
        if header is None:
            return path, None
        size = listed_file.bytes if header.bytes is None else header.bytes
        return path, replace(header, path=path, format=header.format or listed_file.format, bytes=size)

    # drawing

    def _draw(self, *, keep: bool = True) -> None:
        if not self.is_mounted:
            return
        rows = self._list
        rows.lay_out(keep=keep)
        self.query_one("#choices-head", PaneHead).show(lambda width: (rows.title(width),))
        self._draw_status()

    def _draw_status(self) -> None:
        rows, count = self._list, len(self._files)
        order = f"{rows.sort}, turned" if rows.turned else rows.sort
        chosen_row = rows.current_choice
        note = chosen_row.note if isinstance(chosen_row, (ModelFile, KeptSession)) else ""
        state = escape_name(note) or ("reading…" if self._busy else escape_name(self._note))
        if rows.words and not rows.shown:
            state = "no name matches: Backspace shows more"
        data_types = ""
        if rows.is_short and not state and isinstance(chosen_row, ModelFile) and chosen_row.architecture:
            data_types = describe_stored(chosen_row)  # narrow rows have no room for the data types
        models = f"{count:,}{'+' * bool(self._busy)} model{'s' * (count != 1)}"
        models = "counting models" if self._busy and not count else models
        if rows.words:  # the words also match choices of the other sections
            models = f"{len(rows.shown):,}{'+' * bool(self._busy)} match{'es' * (len(rows.shown) != 1)}"
        summary = " · ".join(filter(None, (data_types, models, order, state)))

        def line(width: int) -> tuple[Line, ...]:
            if self._message:
                return (((cut_message(f" {self._message}", width), "warn"),),)
            return (((fit(f" {summary}", max(width - len(_KEYS), 0)), "dim"), (_KEYS, "dim")),)

        self.query_one(Status).show(line)

    # keys

    @on(LineList.SizeChanged)
    def _size_changed(self) -> None:
        self._draw()

    @on(LineList.RowHighlighted)
    def _row_highlighted(self) -> None:
        self._message = ""
        self._draw_status()

    @on(Input.Changed)
    def _input_changed(self, event: Input.Changed) -> None:
        self._message = ""
        rows = self._list
        rows.words = tuple(event.value.lower().split())
        self._draw(keep=False)

    def action_move(self, step: int) -> None:
        """Move the cursor by `step` rows."""
        self._list.move_to(self._list.cursor + step)

    def action_page(self, step: int) -> None:
        """Move the cursor by `step` pages."""
        self._list.action_page(step)

    def action_sort(self) -> None:
        """Sort by the next column."""
        rows, names = self._list, list(SORTS)
        rows.sort, rows.turned = names[(names.index(rows.sort) + 1) % len(names)], False
        self._draw(keep=False)

    def action_turn(self) -> None:
        """Reverse the sort order."""
        self._list.turned = not self._list.turned
        self._draw(keep=False)

    def action_leave(self) -> None:
        """Clear the typed text, or leave if there is none."""
        entry = self.query_one(Input)
        if entry.value:
            entry.value = ""
        else:
            self._send_answer(None)

    @on(Input.Submitted)
    @on(LineList.RowSelected)
    def _go(self) -> None:
        typed, chosen_row = self.query_one(Input).value.strip(), self._list.current_choice
        if chosen_row is None or os.sep in typed:
            if typed:
                self.run_worker(self._open_typed(os.path.expanduser(typed)), exit_on_error=False)
        elif isinstance(chosen_row, ModelFile):
            self._open(ModelChoice(os.path.normpath(os.path.join(self._folder, chosen_row.path))))
        elif isinstance(chosen_row, NamedModel):
            self._open(ModelChoice(chosen_row.name))
        elif isinstance(chosen_row, RecentModel):
            opening = self._openings[chosen_row.source]
            if chosen_row.missing:
                recent_models.forget(opening.model.source, os.environ)
                self._complain("it no longer exists, and was removed from the list")
                self.on_screen_resume()
            else:
                self._open(ModelChoice(_make_relative(opening.model.source), opening.opening))
        elif isinstance(chosen_row, KeptSession):
            if chosen_row.note:
                self._complain(chosen_row.note)
            else:
                self._open(ModelChoice(chosen_row.source, kept=chosen_row.kept))

    async def _open_typed(self, source: str) -> None:
        """Open a typed path or name. A folder of models is listed instead."""
        try:
            if os.path.exists(source):
                confinement.check(source)
            if os.path.isdir(source) and await asyncio.to_thread(headers.list_choices, source) is not None:
                self._folder = source
                self.query_one(Input).value = ""
                self._begin()
                return
            await asyncio.to_thread(check_source, source)
        except ExplorerError as error:
            self._complain(_format_error(error))
            return
        self._open(ModelChoice(source))

    def _open(self, choice: ModelChoice) -> None:
        try:
            self._send_answer(choice)
        except ExplorerError as error:
            self._complain(_format_error(error))

    def _complain(self, message: str) -> None:
        self._message = escape_name(message)
        self.app.bell()
        self._draw_status()

    def _send_answer(self, choice: ModelChoice | None) -> None:
        if self.is_active:  # a second key press that arrived at the same time is ignored
            self._answer(choice)


def _format_error(error: ExplorerError) -> str:
    """Return the message of an error without its path, which the list or the input shows already."""
    return "; ".join(filter(None, (error.what, error.hint)))


def _select_sessions(sessions: Sequence[KeptSession]) -> list[KeptSession]:
    """Return the sessions to list: the newest session of each model, and all with changes or a note."""
    newest: dict[tuple[str, str], KeptSession] = {}
    for session in sessions:
        newest.setdefault((session.folder, session.source), session)
    return [
        session
        for session in sessions
        if session.states > 1 or session.note or newest[session.folder, session.source] is session
    ]


def _read_next_rows(rows: Iterator[OutlineRow]) -> tuple[list[OutlineRow], str]:
    """Return the next rows, and the error that ended them early, or ''."""
    rows_read: list[OutlineRow] = []
    try:
        while len(rows_read) < _BATCH and (row := next(rows, None)) is not None:
            rows_read.append(row)
    except ExplorerError as error:
        return rows_read, str(error)
    return rows_read, ""


def _make_relative(path: str) -> str:
    """Return the relative path of a path below the current folder; other paths unchanged."""
    current_folder = os.getcwd().rstrip(os.sep) + os.sep
    return path[len(current_folder) :] if path.startswith(current_folder) else path
