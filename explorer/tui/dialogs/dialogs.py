"""Small modal dialogs (message, question, path, list, page), and base classes of forms and screens."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from msgspec import Struct
from rich.cells import cell_len
from rich.console import RenderableType
from textual import events, on
from textual.app import App, ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, Static

from explorer.base.errors import ExplorerError
from explorer.report.names import NameSet
from explorer.tui.compat import dim_quickly
from explorer.tui.text.keys import keys_line
from explorer.tui.text.lines import BLANK, Line, cut_middle, escape_name, fit, wrap
from explorer.tui.widgets.line_view import LineList, LineView
from explorer.tui.widgets.option_field import STACKED, OptionField
from explorer.tui.widgets.page_text import read_screen_text
from explorer.tui.widgets.strips import Status
from explorer.tui.widgets.text_input import MAX_LENGTH, create_text_input

if TYPE_CHECKING:
    from explorer.base.errors import ErrorCode
    from explorer.report.blocks import Block

T = TypeVar("T")
_BOX_SHARE, _HINT_MARGIN = 0.96, 6
"""Width of a box as a share of the screen, as in dialogs.tcss, and cells beside its keys."""


def key_hint(keys: str, width: int) -> Content:
    """Format keys and their labels, separated by dots in `keys`, for the lower border of a box.

    If not all fit in `width` cells, the keys before the last two are left out from the right.
    """
    parts = keys.split(" · ")
    while len(parts) > 1 and sum(cell_len(part) + 2 for part in parts) > width:
        del parts[max(len(parts) - 3, 0)]
    spans: list[tuple[str, str]] = []
    for part in parts:
        key, _, label = part.partition(" ")
        spans += [(f" {key}", "$accent"), (f" {label} ", "")]
    return Content.assemble(*spans)


class AnsweredOnce(Screen[T], Generic[T]):
    """A screen that accepts only its first answer. Later keys that arrived at the same time are ignored."""

    # an absolute path, because Textual looks for a relative path beside each subclass
    CSS_PATH = Path(__file__).with_suffix(".tcss")

    @on(events.Compose)
    def _set_breakpoint_classes(self) -> None:
        """Set the classes of the terminal's size, so that the first layout is the final one."""
        width, height = self.app.size
        for cells, breakpoints in ((width, self.HORIZONTAL_BREAKPOINTS), (height, self.VERTICAL_BREAKPOINTS)):
            names = [name for least, name in sorted(breakpoints or ()) if cells >= least]
            self.add_class(*names[-1:], update=False)

    _was_resized = False

    @on(events.Resize)
    async def _lay_out_once(self, event: events.Resize) -> None:
        """Handle other events before a resize, and prevent the second layout of a new screen.

        Textual reports to a new screen the size of its first layout, and would lay it out and draw it again.
        """
        await asyncio.sleep(0)
        if not self._was_resized and event.size == self.outer_size == self.app.size:
            event.stop()
            event.prevent_default()
        self._was_resized = True

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Close with an answer, unless the screen is closed already or another screen is above it."""
        # Textual would close the topmost screen instead
        return super().dismiss(result) if self.is_active else AwaitComplete()


class Dialog(AnsweredOnce[T], ModalScreen[T], Generic[T]):
    """A box above the main screen. Esc closes it without an answer."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", show=False),
        Binding("o", "app.reopen", show=False),
        Binding("question_mark", "app.help", show=False),
    ]
    TITLE_TEXT = ""
    HINT = "Esc close"
    """Keys of the dialog with their labels, separated by dots, for its lower border and its help."""
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012 (Textual declares it an instance variable)
        (0, "-fields-beside"),
        (24, STACKED),
    ]

    @property
    def stacks_fields(self) -> bool:
        """Whether each field has its own row."""
        return self.app.size.height >= (self.VERTICAL_BREAKPOINTS or [(0, "")])[-1][0]

    def compose(self) -> ComposeResult:
        """Yield the box."""
        with Vertical(id="box") as box:
            box.border_title = self.TITLE_TEXT
            box.border_subtitle = key_hint(self.HINT, self._hint_width)
            yield from self.compose_body()

    @property
    def _hint_width(self) -> int:
        return int(self.app.size.width * _BOX_SHARE) - _HINT_MARGIN

    def render(self) -> RenderableType:
        """Render the dimmed screen below."""
        return dim_quickly(super().render())

    def show_hint(self, message: str = "") -> None:
        """Show the keys of the dialog that fit in its lower border, after an optional message."""
        for box in self.query("#box"):
            room = self._hint_width - cell_len(message)
            box.border_subtitle = Content(message) + key_hint(self.HINT, room)

    def on_resize(self) -> None:
        """Show as many keys as fit."""
        self.show_hint()

    def compose_body(self) -> ComposeResult:
        """Yield the contents of the box."""
        raise NotImplementedError

    def action_close(self) -> None:
        """Close without an answer."""
        self.dismiss(None)


class PageDialog(Dialog[bool]):
    """A page to read. Enter closes it with True.

    Args:
        title: Title of the box.
        page: Function that draws the page in a width.
        hint: Keys at the lower border; '' for the default.
        tone: CSS class of the box, such as 'bad'; '' for none.
        copy: Text that the y key copies; '' for none.

    Attributes:
        first_heading: Heading that the page is scrolled to first; '' for its beginning.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,q", "accept", show=False),
        Binding("y", "copy", show=False),
        Binding("P", "app.picture", show=False),
    ]

    def __init__(
        self,
        title: str,
        page: Callable[[int], Sequence[Line]],
        *,
        hint: str = "",
        tone: str = "",
        copy: str = "",
    ) -> None:
        super().__init__()
        self._page, self._tone, self._copy = page, tone, copy
        self.first_heading = ""
        self.TITLE_TEXT = title
        self.HINT = hint or f"↑↓ scroll · {'y copy · ' * bool(copy)}Esc close"

    def compose_body(self) -> ComposeResult:
        """Yield the page."""
        view = LineView()
        view.show(self._page)
        yield view

    def on_mount(self) -> None:
        """Apply the tone, and scroll to the first heading."""
        if self._tone:
            self.query_one("#box").add_class(self._tone)
        if self.first_heading:
            self.query_one(LineView).reveal(self.first_heading)

    def action_accept(self) -> None:
        """Close with True."""
        self.dismiss(True)

    def action_copy(self) -> None:
        """Copy the text to the terminal's clipboard."""
        if self._copy:
            self.app.copy_to_clipboard(self._copy)
            self.show_hint("sent to terminal ")


_DIM = re.compile(r"'?--dim(?: [^\s=']+=[^\s,;')]+)?(?: --dim [^\s=']+=[^\s,;')]+)*'?")
_OPTION = re.compile(r"'--([\w-]+) ([^']+)'")


def name_keys(message: str) -> str:
    """Replace the options that a message recommends by the key or the field with the same effect."""
    return _OPTION.sub(r"'\1 \2'", _DIM.sub("D", message))


def format_without_options(error: ExplorerError, keys: Mapping[ErrorCode, str] | None = None) -> str:
    """Format an error without references to command-line options, which do not exist on the screen.

    Args:
        error: The error.
        keys: Next step on this screen by the code of the error, such as 'm chooses another machine'.
    """
    where = "" if error.where.startswith("--") else error.where
    hint = (keys or {}).get(error.code) or ("" if error.code == "drop_option" else error.hint)
    return name_keys(str(ExplorerError(error.what, where=where, hint=hint)))


def _make_sentence_page(message: str) -> Callable[[int], Sequence[Line]]:
    """Return a page that consists of one sentence. It may contain names from the model."""
    return lambda width: (BLANK, *wrap(((escape_name(message), "text"),), width), BLANK)


class NoteDialog(PageDialog):
    """Reports a success where no status line is visible."""

    def __init__(self, title: str, message: str) -> None:
        super().__init__(title, _make_sentence_page(message), hint="y copy · Esc close", copy=message)


class MessageDialog(PageDialog):
    """Reports an error."""

    def __init__(self, title: str, message: str, *, hint: str = "") -> None:
        super().__init__(
            title, _make_sentence_page(message), hint=hint or "y copy · Esc close", tone="bad", copy=message
        )


class ConfirmDialog(PageDialog):
    """A question about something that would be lost. Only y answers it with True.

    Enter does nothing, because a user who confirms the dialog before it may press Enter twice.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "accept", show=False),
        Binding("enter", "keep_asking", show=False),
        Binding("n,q", "close", show=False),
    ]

    def __init__(self, title: str, question: str) -> None:
        super().__init__(title, _make_sentence_page(question), hint="y yes · n no · Esc no")

    def action_keep_asking(self) -> None:
        """Ring the bell, and stay open."""
        self.app.bell()


class EntryDialog(Dialog[str]):
    """Asks for one line of text, such as a path or a name."""

    def __init__(
        self, title: str, value: str, question: str, *, placeholder: str, hint: str, required: bool
    ) -> None:
        super().__init__()
        self.TITLE_TEXT, self.HINT = title, f"Enter {hint} · Esc cancel"
        self._value, self._question, self._placeholder = value, question, placeholder
        self._required = required

    def compose_body(self) -> ComposeResult:
        """Yield the question and the input."""
        view = LineView(focusable=False)
        view.show(self._page)
        yield view
        yield create_text_input(self._value, placeholder=self._placeholder)

    def on_mount(self) -> None:
        """Focus the input."""
        self.query_one(Input).focus()

    def _page(self, width: int) -> Sequence[Line]:
        return (*wrap(((self._question, "dim"),), width), BLANK)

    @on(Input.Submitted)
    def _handle_submit(self, event: Input.Submitted) -> None:
        if event.value.strip() or not self._required:
            self.dismiss(event.value.strip())


def ask_path(
    app: App[object],
    title: str,
    path: str,
    question: str,
    write: Callable[[str, bool, Callable[[], None]], None],
) -> None:
    """Ask for a path to write to, and confirm before a file is replaced.

    Args:
        app: The application.
        title: Title of the dialog.
        path: Initial path.
        question: Description of the file.
        write: Function that writes the file. Its arguments are the path, whether a file may be replaced, and
            a function that asks for another path after a failure.
    """

    def handle_answer(typed: str | None) -> None:
        if typed is None:
            return
        chosen_path = os.path.expanduser(typed)

        def ask_again() -> None:
            ask_path(app, title, chosen_path, question, write)

        def answer_confirmation(is_confirmed: bool | None) -> None:
            if is_confirmed:
                write(chosen_path, exists, ask_again)
            else:
                ask_again()

        exists = os.path.isfile(chosen_path)
        if exists:
            app.push_screen(
                ConfirmDialog("Replace the file?", f"{chosen_path} exists. Replace it?"), answer_confirmation
            )
        else:
            answer_confirmation(True)

    dialog = EntryDialog(title, path, question, placeholder="path", hint="write", required=True)
    app.push_screen(dialog, handle_answer)


class FormDialog(Dialog[T], Generic[T]):
    """Base class of dialogs with fields, and a description of their values below."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "apply", show=False, priority=True),
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
    ]

    def compose_body(self) -> ComposeResult:
        """Yield the fields and the description."""
        yield from self.compose_fields()
        yield LineView(id="said", focusable=False)

    def compose_row(
        self, label: str, value: str, placeholder: str, id: str, *, max_length: int = MAX_LENGTH
    ) -> ComposeResult:
        """Yield a labeled text input in its own row."""
        with Horizontal(classes="form-row"):
            yield from self.compose_pair(label, value, placeholder, id, max_length=max_length)

    def compose_pair(
        self, label: str, value: str, placeholder: str, id: str, *, max_length: int = MAX_LENGTH
    ) -> ComposeResult:
        """Yield a labeled text input without a row, to be placed beside others."""
        # a label that starts with a space is separated from the field on its left
        second = " second" * label.startswith(" ")
        yield Static(label.strip(), classes=f"form-label{second}", markup=False)
        yield create_text_input(value, placeholder=placeholder, id=id, max_length=max_length)

    def get_text(self, id: str) -> str:
        """Return the text of an input."""
        return self.query_one(f"#{id}", Input).value

    def on_mount(self) -> None:
        """Focus the first field and show the description."""
        self.find_first_field().focus()
        self.update_description()

    @on(Input.Changed)
    @on(OptionField.WordChosen)
    def update_description(self) -> None:
        """Show the description of the values, or why they are invalid."""
        self._say(self._description())

    def _description(self) -> Sequence[tuple[str, str]]:
        try:
            return self.describe()
        except ExplorerError as error:
            return [(str(error), "bad")]

    def _say(self, spans: Sequence[tuple[str, str]]) -> None:
        visible_spans = [(escape_name(text), role) for text, role in spans if text]
        self.query_one("#said", LineView).show(
            lambda width: [line for span in visible_spans for line in wrap((span,), width)]
        )

    def action_apply(self) -> None:
        """Close with the answer, if the values are valid."""
        try:
            self.dismiss(self.read_answer())
        except ExplorerError as error:
            self.app.bell()
            notes = self._description()
            if all(role != "bad" for _, role in notes):
                self._say([(str(error), "bad"), *notes])

    # methods for subclasses

    def find_first_field(self) -> Widget:
        """Return the field to focus first."""
        return self.query(Input).first()

    def compose_fields(self) -> ComposeResult:
        """Yield the fields."""
        raise NotImplementedError

    def describe(self) -> Sequence[tuple[str, str]]:
        """Return lines that describe the values, each with its role.

        Raises:
            ExplorerError: A value is invalid.
        """
        raise NotImplementedError

    def read_answer(self) -> T:
        """Return the answer that the fields describe.

        Raises:
            ExplorerError: A value is invalid.
        """
        raise NotImplementedError


class SubScreen(AnsweredOnce[T], Generic[T]):
    """Base class of screens that replace the main screen. The keys q and Esc return to it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", show=False),
        Binding("question_mark", "app.help", show=False),
        Binding("P", "app.picture", show=False),
        Binding("Y", "app.copy_as", show=False),
    ]

    FOOTER: ClassVar[Sequence[tuple[str, str]]] = ()
    """Pairs of a key and its label in the last line, the most used first."""
    SIGNS: ClassVar[Sequence[tuple[str, str]]] = ()
    """Pairs of a sign that the screen draws and its meaning, for its help."""

    def show_keys(self, message: str = "") -> None:
        """Show the keys in the last line, after an optional message."""
        self.query(Status).last().show(lambda width: (keys_line(self.FOOTER, width, message),))

    has_message = False
    """Whether the last line shows a message about the last key."""

    def _say(self, message: str) -> None:
        """Show a message in the last line, until the next key."""
        self.has_message = bool(message)
        self.show_keys(message)

    def forget_message(self) -> None:
        """Remove the message about the key before this one."""
        if self.has_message:
            self._say("")

    def _refuse(self, reason: str) -> None:
        """Report why a key does nothing."""
        self.app.bell()
        self._say(reason)

    @property
    def noun(self) -> str:
        """Base name of a picture of the screen: 'graph' for `GraphView`."""
        return type(self).__name__.removesuffix("Screen").removesuffix("View").lower()

    # contents that `Y` copies

    def page_text(self) -> str:
        """Return the contents of the screen as text."""
        return read_screen_text(self)

    def page_blocks(self) -> Sequence[Block]:
        """Return the contents of the screen as blocks for Markdown, or () if it has only lines."""
        return ()

    has_table: ClassVar[bool] = False
    """Whether the screen has a table that can be copied as CSV."""

    def page_csv(self) -> str:
        """Return the table of the screen as CSV."""
        return ""

    def verb_words(self, source: str) -> Sequence[str]:
        """Return the words of the command that prints this page of the model `source`; () without one."""
        return ()

    def action_leave(self) -> None:
        """Return to the main screen."""
        self.dismiss(None)


class MenuItem(Struct, frozen=True):
    """A row of a `PickDialog`.

    Attributes:
        id: Answer of the dialog if this row is chosen.
        key: Key that chooses the row, or the text of the first column.
        title: Title of the row.
        tip: Description of the row.
    """

    id: str
    key: str
    title: str
    tip: str = ""


_NARROW_TITLE = 28
"""Maximum cells of the titles of a narrow list. In a wide list, titles may take a third of the width."""


class Choices(LineList):
    """The rows of a `PickDialog`.

    Attributes:
        heads: Titles of the columns: key, title and description; empty for none.
        empty_note: Line that is shown if there are no rows.
    """

    rows: Sequence[MenuItem] = ()
    heads: Sequence[str] = ()
    empty_note = ""
    _names: tuple[Sequence[MenuItem], NameSet] | None = None

    def strip(self, y: int, width: int) -> Strip:
        """Render the row that is visible in line `y`, or the note in an empty list."""
        if not self.rows and y == 0:
            return self.draw(((f" {self.empty_note}", "dim"),), width)
        return super().strip(y, width)

    def head_line(self, width: int) -> Line:
        """Draw the titles of the columns."""
        return self._line(MenuItem("", *self.heads), width)

    def row_line(self, index: int, width: int) -> Line:
        """Draw row `index` in `width` cells."""
        return self._line(self.rows[index], width)

    def _line(self, choice: MenuItem, width: int) -> Line:
        all_items = [*self.rows, *([MenuItem("", *self.heads)] if self.heads else [])]
        key_cells = max((len(c.key) for c in all_items), default=0)
        longest_title = max((len(c.title) for c in all_items), default=0)
        if not choice.tip:
            room = max(0, width - key_cells - 4)
            title = fit(self._shorten_title(escape_name(choice.title), room), room)
            return (" " + fit(choice.key, key_cells), "key"), ("  " + title, "text")
        title_cells = min(max(_NARROW_TITLE, width // 3), longest_title)
        return (
            (" " + fit(choice.key, key_cells), "key"),
            ("  " + fit(escape_name(choice.title), title_cells), "text"),
            ("  " + fit(choice.tip, max(0, width - key_cells - title_cells - 6)), "dim"),
        )

    def _shorten_title(self, title: str, room: int) -> str:
        """Shorten the name of a layer or tensor so that it differs from the names in the other rows."""
        if cell_len(title) <= room:
            return title
        if self._names is None or self._names[0] is not self.rows:
            self._names = self.rows, NameSet(escape_name(choice.title) for choice in self.rows)
        return cut_middle(self._names[1].shorten({title: room}).texts[title], room)


_ABOUT_ROWS = 2
"""Rows below a list with titles, for the description of the row under the cursor."""


class PickDialog(Dialog[str]):
    """A list to choose from with the cursor, with keys, or (`typed`) by typing part of a name."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
    ]

    def __init__(
        self,
        title: str,
        choices: Sequence[MenuItem],
        *,
        heads: tuple[str, str, str] | None = None,
        typed: bool = False,
    ) -> None:
        super().__init__()
        self.TITLE_TEXT, self._heads = title, heads
        # without an input, a letter chooses the row of that key
        has_keys = not typed and any(len(choice.key) == 1 for choice in choices)
        self.HINT = f"↑↓ move · Enter choose{', or press its key' * has_keys} · Esc close"
        self.choices, self._typed, self._typed_text = tuple(choices), typed, ""

    def compose_body(self) -> ComposeResult:
        """Yield the input, the titles and the list."""
        if self._typed:
            yield create_text_input(placeholder="type part of a name", accepts_wildcards=True)
        rows = Choices()
        if self._heads is not None:
            rows.heads = self._heads
            yield LineView(id="pick-head", focusable=False)
        yield rows
        if self._heads is not None:
            yield LineView(id="pick-about", focusable=False)

    def on_mount(self) -> None:
        """Show all choices."""
        rows = self.query_one(Choices)
        about_rows = 0 if self._heads is None else _ABOUT_ROWS
        rows.styles.height = max(1, min(len(self.choices), max(3, self.app.size.height - 8 - about_rows)))
        self.narrow("")
        (self.query_one(Input) if self._typed else rows).focus()

    def narrow(self, text: str) -> None:
        """Show the choices that contain all words of a text."""
        words = text.lower().split()
        matches = [c for c in self.choices if all(w in f"{c.title} {c.tip} {c.id}".lower() for w in words)]
        # matches in the title precede those in the description
        self.show_choices(sorted(matches, key=lambda c: not all(w in c.title.lower() for w in words)))

    def show_choices(self, choices: Sequence[MenuItem]) -> None:
        """Replace the choices, with the cursor on the first."""
        rows = self.query_one(Choices)
        rows.rows, rows.empty_note = choices, self.empty_note()
        rows.refresh_rows(keep_cursor=False)
        if self._heads is not None:
            self.query_one("#pick-head", LineView).show(
                lambda width: [tuple((text, "dim") for text, _ in rows.head_line(width))]
            )

    @on(LineList.RowHighlighted)
    def _show_about(self) -> None:
        """Show the description of the row under the cursor, which the row itself may cut."""
        if self._heads is not None:
            choices = self.query_one(Choices)
            tip = escape_name(choices.rows[choices.cursor].tip) if choices.rows else ""
            self.query_one("#pick-about", LineView).show(
                lambda width: [*wrap(((tip, "dim"),), width - 1, 1), *[BLANK] * _ABOUT_ROWS][:_ABOUT_ROWS]
            )

    def empty_note(self) -> str:
        """Return the line that is shown if there are no choices."""
        return f"nothing matches '{escape_name(self._typed_text.strip())}'"

    def action_move(self, step: int) -> None:
        """Move the cursor while the input has the focus."""
        rows = self.query_one(Choices)
        rows.move_to(rows.cursor + step)

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        self._typed_text = event.value
        self.narrow(event.value)

    @on(Input.Submitted)
    @on(LineList.RowSelected)
    def _choose(self) -> None:
        rows = self.query_one(Choices)
        if rows.rows:
            self.dismiss(rows.rows[rows.cursor].id)

    def on_key(self, event: events.Key) -> None:
        """Choose the row of the pressed key."""
        if self._typed or not event.character:
            return
        for choice in self.choices:
            if choice.key == event.character:
                event.stop()
                event.prevent_default()
                self.dismiss(choice.id)
                return
