"""The chooser: what there is to be opened, by what the headers say, before anything is loaded.

A folder's models, sessions to resume, recent models and torchvision's names stand in one list; what is typed
narrows it. Headers are read by `explorer.process.header_reader`, those on the screen first, while the list
can be used.
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
from explorer.report.present.shell.list import stored
from explorer.session import headers
from explorer.tui.models.choice_list import RECENT, SESSIONS, SORTS, ChoiceList
from explorer.tui.models.open_models import ModelChoice
from explorer.tui.models.opening import check_source, is_served
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import Line, fit, middle, safe
from explorer.tui.widgets.line_view import LineList
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar
from explorer.tui.widgets.text_input import text_input

if TYPE_CHECKING:
    from explorer.base.outline import OutlineRow

# fmt: off
CHOOSER_KEYS = key_group(
    "Choosing a model",
    ("go", ("enter",), "Enter", "Open", "What the cursor is on; a path or name that is typed"),
    ("move(-1)", ("up",), "↑", "One up", "Letters are typed: they narrow the list by name, format, types"),
    ("move(1)", ("down",), "↓", "One down", "Likewise"),
    ("page(-1)", ("pageup",), "PgUp", "A page up", "Likewise"),
    ("page(1)", ("pagedown",), "PgDn", "A page down", "Likewise"),
    ("sort", ("tab",), "Tab", "Sort", "By name, size, parameters, date, or as found"),
    ("turn", ("shift+tab",), "Shift+Tab", "Turn round", "The same order, the other way round"),
    ("leave", ("escape",), "Esc", "Clear, leave", "What is typed, then the chooser"),
)
# fmt: on

_KEYS = " Enter open · Tab sort · Esc leave"
_BATCH = 100
_EVERY = 0.2
"""Seconds between two drawings of what was read meanwhile."""
_NAMES = "torchvision, by name"


class ChooserScreen(Screen[None]):
    """What there is to be opened.

    Args:
        folder: Whose models are listed; empty for the current one, behind what is recent.
        answer: Gets what was chosen; None if the user leaves. What it raises is shown.
        home: Nothing lies under it.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(key for key in CHOOSER_KEYS if key.id not in ("go",))
    AUTO_FOCUS = "Input"

    def __init__(
        self, folder: str, answer: Callable[[ModelChoice | None], None], *, home: bool = False
    ) -> None:
        super().__init__()
        self._folder, self._named, self._answer, self._home = folder or ".", bool(folder), answer, home
        self._reader = HeaderReader()
        self._files: dict[str, ModelFile] = {}
        self._wanted: dict[str, None] = {}
        self._openings: dict[str, recent_models.RecentOpening] = {}
        self._note = self._said = ""
        self._busy = 0

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        yield text_input(placeholder="type part of a name, or a path")
        yield PaneHead(id="choices-head")
        yield ChoiceList()
        yield Status()

    @property
    def _list(self) -> ChoiceList:
        return self.query_one(ChoiceList)

    def on_mount(self) -> None:
        """Name the folder at once; what is in it comes as it is found."""
        self.call_after_refresh(gc.enable)  # a start has it wait for the first paint
        self.query_one(Input).cursor_blink = False
        self._begin()

    def on_unmount(self) -> None:
        """Headers that are still read are for nobody."""
        self._reader.close()

    def on_screen_resume(self) -> None:
        """A model that was opened meanwhile is recent now."""
        self.run_worker(self._look_back(), group="back", exit_on_error=False)

    # what there is

    def _begin(self) -> None:
        """Look at the folder, from the beginning."""
        self._files, self._wanted, self._note, self._said = {}, {}, "", ""
        title = _short(os.path.abspath(self._folder))
        here = f"In {title}"
        first = {here: ()} if self._named else {}
        below = {SESSIONS: (), RECENT: ()}
        self._list.parts = {**first, **below, here: (), _NAMES: ()}
        self._title = here
        self.query_one(TitleBar).show(
            lambda width: (
                ((" Open a model", "strong"), ("  ", "dim"), (middle(title, max(width - 18, 8)), "dim")),
                ((fit(" Headers are read, nothing is loaded", width), "dim"),),
            )
        )
        self.run_worker(self._look(), group="look", exclusive=True, exit_on_error=False)
        self.run_worker(self._look_back(), group="back", exclusive=True, exit_on_error=False)
        if not is_served():
            self.run_worker(self._look_up_names(), group="names", exclusive=True, exit_on_error=False)

    async def _look_back(self) -> None:
        """Sessions to resume, and recent models."""
        sessions = await asyncio.to_thread(saved_sessions.kept_sessions, os.environ)
        openings = await asyncio.to_thread(recent_models.openings, os.environ)
        self._openings = {_short(_from_here(opening.model.source)): opening for opening in openings}
        self._list.parts[SESSIONS] = _telling(sessions)
        self._list.parts[RECENT] = [
            replace(opening.model, source=name) for name, opening in self._openings.items()
        ]
        self._draw()

    async def _look_up_names(self) -> None:
        found = await asyncio.to_thread(self._reader.torchvision)
        self._list.parts[_NAMES] = found or ()
        self._draw()

    async def _look(self) -> None:
        """The models of the folder as they are found, then what their headers say."""
        self._busy += 1
        try:
            models = await asyncio.to_thread(headers.choices, self._folder)
            rows = iter(models.rows) if models is not None else iter(())
            ended = models is None
            if models is None:  # the folder is a model itself
                self._files[os.curdir] = ModelFile(os.curdir, "")
            while not ended:
                batch, failed = await asyncio.to_thread(_some, rows)
                ended = not batch
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
        """The headers, those on the screen first; drawn now and then."""
        unread = dict.fromkeys(self._files)
        loop = asyncio.get_running_loop()
        running: set[asyncio.Future[tuple[str, ModelFile | None]]] = set()
        drawn = loop.time()
        while unread or running:
            while unread and len(running) < AT_ONCE:
                paths_in_view = (
                    future.path for future in self._list.in_view if isinstance(future, ModelFile)
                )
                path = next((path for path in paths_in_view if path in unread), next(iter(unread)))
                del unread[path]
                running.add(asyncio.ensure_future(asyncio.to_thread(self._read, path)))
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                path, model = future.result()
                if model is None:
                    del self._files[path]
                else:
                    self._files[path] = model
            if loop.time() - drawn > _EVERY:
                self._list.parts[self._title] = list(self._files.values())
                self._draw()
                drawn = loop.time()
        self._list.parts[self._title] = list(self._files.values())

    def _read(self, path: str) -> tuple[str, ModelFile | None]:
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
        self._tell()

    def _tell(self) -> None:
        rows, count = self._list, len(self._files)
        order = f"{rows.sort}, turned" if rows.turned else rows.sort
        chosen_row = rows.chosen
        note = chosen_row.note if isinstance(chosen_row, (ModelFile, KeptSession)) else ""
        state = safe(note) or ("reading…" if self._busy else safe(self._note))
        if rows.words and not rows.shown:
            state = "none is called so"
        whole = ""
        if rows.short and not state and isinstance(chosen_row, ModelFile) and chosen_row.architecture:
            whole = stored(chosen_row)  # among short rows there is no room for it
        summary = " · ".join(filter(None, (whole, f"{count:,} model{'s' * (count != 1)}", order, state)))

        def line(width: int) -> tuple[Line, ...]:
            if self._said:
                return (((fit(f" {self._said}", width), "warn"),),)
            return (((fit(f" {summary}", max(width - len(_KEYS), 0)), "dim"), (_KEYS, "dim")),)

        self.query_one(Status).show(line)

    # keys

    @on(LineList.SizeChanged)
    def _sized(self) -> None:
        self._draw()

    @on(LineList.RowHighlighted)
    def _moved(self) -> None:
        self._said = ""
        self._tell()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._said = ""
        rows = self._list
        rows.words = tuple(event.value.lower().split())
        self._draw(keep=False)

    def action_move(self, step: int) -> None:
        """Move the cursor."""
        self._list.move_to(self._list.cursor + step)

    def action_page(self, step: int) -> None:
        """Move it by a page."""
        self._list.action_page(step)

    def action_sort(self) -> None:
        """Sort by the next column."""
        rows, names = self._list, list(SORTS)
        rows.sort, rows.turned = names[(names.index(rows.sort) + 1) % len(names)], False
        self._draw(keep=False)

    def action_turn(self) -> None:
        """The other way round."""
        self._list.turned = not self._list.turned
        self._draw(keep=False)

    def action_leave(self) -> None:
        """Clear what is typed; leave if nothing is."""
        entry = self.query_one(Input)
        if entry.value:
            entry.value = ""
        else:
            self._end(None)

    @on(Input.Submitted)
    @on(LineList.RowSelected)
    def _go(self) -> None:
        typed, chosen_row = self.query_one(Input).value.strip(), self._list.chosen
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
                self._complain("it is not there any more, and is off the list now")
                self.on_screen_resume()
            else:
                self._open(ModelChoice(_from_here(opening.model.source), opening.opening))
        elif isinstance(chosen_row, KeptSession):
            if chosen_row.note:
                self._complain(chosen_row.note)
            else:
                self._open(ModelChoice(chosen_row.source, kept=chosen_row.kept))

    async def _open_typed(self, source: str) -> None:
        """A path, or a name; a folder of models is listed."""
        try:
            if os.path.exists(source):
                confinement.check(source)
            if os.path.isdir(source) and await asyncio.to_thread(headers.choices, source) is not None:
                self._folder, self._named = source, True
                self.query_one(Input).value = ""
                self._begin()
                return
            await asyncio.to_thread(check_source, source)
        except ExplorerError as error:
            self._complain(_in_short(error))
            return
        self._open(ModelChoice(source))

    def _open(self, choice: ModelChoice) -> None:
        try:
            self._end(choice)
        except ExplorerError as error:
            self._complain(_in_short(error))

    def _complain(self, said: str) -> None:
        self._said = safe(said)
        self.app.bell()
        self._tell()

    def _end(self, choice: ModelChoice | None) -> None:
        if self.is_active:  # of two keys that came together the second is for nobody
            self._answer(choice)


def _in_short(error: ExplorerError) -> str:
    """An error without the path, which stands in the list or was typed."""
    return "; ".join(filter(None, (error.what, error.hint)))


def _telling(sessions: Sequence[KeptSession]) -> list[KeptSession]:
    """The sessions to choose from: of those of a model in which nothing was changed the newest alone."""
    newest: dict[tuple[str, str], KeptSession] = {}
    for one in sessions:
        newest.setdefault((one.folder, one.source), one)
    return [one for one in sessions if one.states > 1 or one.note or newest[one.folder, one.source] is one]


def _some(rows: Iterator[OutlineRow]) -> tuple[list[OutlineRow], str]:
    """The next few rows, and what ended them before their time."""
    rows_read: list[OutlineRow] = []
    try:
        while len(rows_read) < _BATCH and (row := next(rows, None)) is not None:
            rows_read.append(row)
    except ExplorerError as error:
        return rows_read, str(error)
    return rows_read, ""


def _short(path: str) -> str:
    """A path with the home folder as it is typed."""
    home = os.path.expanduser("~")
    return f"~{path[len(home) :]}" if path == home or path.startswith(home.rstrip(os.sep) + os.sep) else path


def _from_here(path: str) -> str:
    """A path as it is typed here, if the file lies below."""
    here = os.getcwd().rstrip(os.sep) + os.sep
    return path[len(here) :] if path.startswith(here) else path
