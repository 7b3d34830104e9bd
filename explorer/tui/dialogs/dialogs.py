"""Modal dialogs, the small ones: a message, a question, a path, a choice from a list, a page to read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from msgspec import Struct
from textual import events, on
from textual.app import App, ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from explorer.base.errors import ExplorerError
from explorer.tui.text.keys import keys_line
from explorer.tui.text.lines import BLANK, Line, fit, middle, safe, wrap
from explorer.tui.widgets.line_view import LineList, LineView
from explorer.tui.widgets.option_field import STACKED, OptionField
from explorer.tui.widgets.page_text import screen_text
from explorer.tui.widgets.strips import Status
from explorer.tui.widgets.text_input import LONGEST, text_input

if TYPE_CHECKING:
    from explorer.report.blocks import Block

T = TypeVar("T")


def key_hint(keys: str) -> Content:
    """Keys and what they do, between dots, as the bar below the screen has them."""
    pieces: list[tuple[str, str]] = []
    for part in keys.split(" · "):
        key, _, label = part.partition(" ")
        pieces += [(f" {key}", "$accent"), (f" {label} ", "")]
    return Content.assemble(*pieces)


class AnsweredOnce(Screen[T], Generic[T]):
    """A screen that is gone with its first answer: keys that came together with that one are for nobody."""

    CSS_PATH = Path(__file__).with_suffix(
        ".tcss"
    )  # whole: of a relative one each class would look beside itself

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Close with an answer, unless it is closed already or another one lies on it."""
        # Textual would take away whatever is on top
        return super().dismiss(result) if self.is_active else AwaitComplete()


class Dialog(AnsweredOnce[T], ModalScreen[T], Generic[T]):
    """A box over the main screen; Esc closes it without an answer."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", show=False),
        Binding("o", "app.reopen", show=False),
        Binding("question_mark", "app.help", show=False),
    ]
    TITLE_TEXT = ""
    HINT = "Esc close"
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012 (Textual declares it an instance variable)
        (0, "-fields-beside"),
        (24, STACKED),
    ]

    @property
    def stacks_fields(self) -> bool:
        """Whether each field has a row of its own."""
        return self.app.size.height >= (self.VERTICAL_BREAKPOINTS or [(0, "")])[-1][0]

    def compose(self) -> ComposeResult:
        """The parts."""
        with Vertical(id="box") as box:
            box.border_title = self.TITLE_TEXT
            box.border_subtitle = key_hint(self.HINT)
            yield from self.body()

    def body(self) -> ComposeResult:
        """What is in the box."""
        raise NotImplementedError

    def action_close(self) -> None:
        """Close without an answer."""
        self.dismiss(None)


class PageDialog(Dialog[bool]):
    """Lines to read; Enter closes it with yes."""

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
        self.TITLE_TEXT = title
        self.HINT = hint or "↑↓ scroll · Esc close"

    def body(self) -> ComposeResult:
        """What is in the box."""
        view = LineView()
        view.show(self._page)
        yield view

    def on_mount(self) -> None:
        """Show the page in its tone."""
        if self._tone:
            self.query_one("#box").add_class(self._tone)

    def action_accept(self) -> None:
        """Close with yes."""
        self.dismiss(True)

    def action_copy(self) -> None:
        """Send the text to the terminal's clipboard."""
        if self._copy:
            self.app.copy_to_clipboard(self._copy)
            self.query_one("#box").border_subtitle = Content("sent to terminal ") + key_hint("Esc close")


def without_options(error: ExplorerError) -> str:
    """The line of an error; an option that is at fault, or is to be left out, was not typed here."""
    where = "" if error.where.startswith("--") else error.where
    hint = "" if error.code == "drop_option" else error.hint
    return str(ExplorerError(error.what, where=where, hint=hint))


def _sentence(said: str) -> Callable[[int], Sequence[Line]]:
    """A page of one line made of what the engine says; names in it are the model's."""
    return lambda width: (BLANK, *wrap(((safe(said), "text"),), width), BLANK)


class NoteDialog(PageDialog):
    """One line that went well, where no line of status would tell it."""

    def __init__(self, title: str, said: str) -> None:
        super().__init__(title, _sentence(said), hint="y copy · Esc close", copy=said)


class MessageDialog(PageDialog):
    """One line that went wrong."""

    def __init__(self, title: str, said: str, *, hint: str = "") -> None:
        super().__init__(title, _sentence(said), hint=hint or "y copy · Esc close", tone="bad", copy=said)


class ConfirmDialog(PageDialog):
    """A question that y or Enter answers with yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "accept", show=False),
        Binding("n,q", "close", show=False),
    ]

    def __init__(self, title: str, question: str) -> None:
        super().__init__(title, _sentence(question), hint="y yes · n no")


class EntryDialog(Dialog[str]):
    """One line to type: a path, a name."""

    def __init__(
        self, title: str, value: str, question: str, *, placeholder: str, hint: str, required: bool
    ) -> None:
        super().__init__()
        self.TITLE_TEXT, self.HINT = title, f"Enter {hint} · Esc cancel"
        self._value, self._said, self._placeholder = value, question, placeholder
        self._required = required

    def body(self) -> ComposeResult:
        """What is in the box."""
        view = LineView(focusable=False)
        view.show(self._page)
        yield view
        yield text_input(self._value, placeholder=self._placeholder)

    def on_mount(self) -> None:
        """Go to the entry."""
        self.query_one(Input).focus()

    def _page(self, width: int) -> Sequence[Line]:
        return (*wrap(((self._said, "dim"),), width), BLANK)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        if event.value.strip() or not self._required:
            self.dismiss(event.value.strip())


def ask_path(
    app: App[object],
    title: str,
    path: str,
    question: str,
    write: Callable[[str, bool, Callable[[], None]], None],
) -> None:
    """Asks where to write, and before a file is lost.

    Args:
        app: The program.
        title: Of the dialog.
        path: What stands in it first.
        question: What is written.
        write: Gets the path, whether a file may be replaced, and what asks again if it cannot be written.
    """

    def answered(typed: str | None) -> None:
        if typed is None:
            return
        chosen_path = os.path.expanduser(typed)

        def again() -> None:
            ask_path(app, title, chosen_path, question, write)

        def go(yes: bool | None) -> None:
            if yes:
                write(chosen_path, there, again)
            else:
                again()

        there = os.path.isfile(chosen_path)
        if there:
            app.push_screen(ConfirmDialog("Replace the file?", f"{chosen_path} exists. Replace it?"), go)
        else:
            go(True)

    dialog = EntryDialog(title, path, question, placeholder="path", hint="write", required=True)
    app.push_screen(dialog, answered)


class FormDialog(Dialog[T], Generic[T]):
    """Fields, and below them what they mean; Enter answers with what they say."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "apply", show=False, priority=True),
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
    ]

    def body(self) -> ComposeResult:
        """What is in the box."""
        yield from self.fields()
        yield LineView(id="said", focusable=False)

    def entry(
        self, label: str, value: str, placeholder: str, id: str, *, longest: int = LONGEST
    ) -> ComposeResult:
        """A field to type into."""
        with Horizontal(classes="form-row"):
            yield from self.pair_entry(label, value, placeholder, id, longest=longest)

    def pair_entry(
        self, label: str, value: str, placeholder: str, id: str, *, longest: int = LONGEST
    ) -> ComposeResult:
        """The same without a row of its own, for one beside others."""
        # a blank before a label stands between it and the field at its left
        second = " second" * label.startswith(" ")
        yield Static(label.strip(), classes=f"form-label{second}", markup=False)
        yield text_input(value, placeholder=placeholder, id=id, longest=longest)

    def text_of(self, id: str) -> str:
        """What stands in such a field."""
        return self.query_one(f"#{id}", Input).value

    def on_mount(self) -> None:
        """Go to the first field."""
        self.first().focus()
        self.tell()

    @on(Input.Changed)
    @on(OptionField.OptionChanged)
    def tell(self) -> None:
        """Say what the fields mean, or why they cannot be read."""
        self._say(self._told())

    def _told(self) -> Sequence[tuple[str, str]]:
        try:
            return self.meaning()
        except ExplorerError as error:
            return [(str(error), "bad")]

    def _say(self, pieces: Sequence[tuple[str, str]]) -> None:
        said = [(safe(text), role) for text, role in pieces if text]
        self.query_one("#said", LineView).show(
            lambda width: [line for piece in said for line in wrap((piece,), width)]
        )

    def action_apply(self) -> None:
        """Answer, if the fields say something."""
        try:
            self.dismiss(self.answer())
        except ExplorerError as error:
            self.app.bell()
            notes = self._told()
            if all(role != "bad" for _, role in notes):
                self._say([(str(error), "bad"), *notes])

    # what a subclass says

    def first(self) -> Widget:
        """The field to begin with."""
        return self.query(Input).first()

    def fields(self) -> ComposeResult:
        """The fields."""
        raise NotImplementedError

    def meaning(self) -> Sequence[tuple[str, str]]:
        """What the fields mean: lines, each with its role.

        Raises:
            ExplorerError: They cannot be read.
        """
        raise NotImplementedError

    def answer(self) -> T:
        """What the fields say.

        Raises:
            ExplorerError: They cannot be read.
        """
        raise NotImplementedError


class SubScreen(AnsweredOnce[T], Generic[T]):
    """A screen in place of the main one, which q and Esc lead back to."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", show=False),
        Binding("question_mark", "app.help", show=False),
        Binding("P", "app.picture", show=False),
        Binding("Y", "app.copy_as", show=False),
    ]

    FOOTER: ClassVar[Sequence[tuple[str, str]]] = ()
    """Its keys, those used most first, which the last line tells."""

    def show_keys(self, said: str = "") -> None:
        """Tell the keys, behind a word."""
        self.query(Status).last().show(lambda width: (keys_line(self.FOOTER, width, said),))

    def _say(self, said: str) -> None:
        """A word where one is looked for."""
        self.show_keys(said)

    def _refuse(self, why: str) -> None:
        """Why a key does nothing."""
        self.app.bell()
        self._say(why)

    @property
    def noun(self) -> str:
        """What a picture of it is called: 'graph' for a `GraphView`."""
        return type(self).__name__.removesuffix("Screen").removesuffix("View").lower()

    # what `Y` copies

    def page_text(self) -> str:
        """What it shows, as text."""
        return screen_text(self)

    def page_blocks(self) -> Sequence[Block]:
        """The same as blocks, for Markdown; none where there are only lines."""
        return ()

    has_table: ClassVar[bool] = False
    """Whether it is a table that is copied as CSV."""

    def page_csv(self) -> str:
        """That."""
        return ""

    def verb_words(self, source: str) -> Sequence[str]:
        """The verb that prints it of a model as opened, and what it is told; none if no verb does."""
        return ()

    def action_leave(self) -> None:
        """Back."""
        self.dismiss(None)


class MenuItem(Struct, frozen=True):
    """A row of a `Pick`: what it returns, the key beside it, its title and a word more."""

    id: str
    key: str
    title: str
    tip: str = ""


class _Choices(LineList):
    """The rows of a `Pick`."""

    rows: Sequence[MenuItem] = ()
    heads: Sequence[str] = ()

    def head_line(self, width: int) -> Line:
        """What stands above the columns."""
        return self._line(MenuItem("", *self.heads), width)

    def row_line(self, index: int, width: int) -> Line:
        """Row `index` in `width` cells."""
        return self._line(self.rows[index], width)

    def _line(self, choice: MenuItem, width: int) -> Line:
        every = [*self.rows, *([MenuItem("", *self.heads)] if self.heads else [])]
        key = max((len(c.key) for c in every), default=0)
        name = min(28, max((len(c.title) for c in every), default=0))
        if not choice.tip:
            room = max(0, width - key - 4)
            title = fit(middle(safe(choice.title), room), room)
            return (" " + fit(choice.key, key), "key"), ("  " + title, "text")
        return (
            (" " + fit(choice.key, key), "key"),
            ("  " + fit(safe(choice.title), name), "text"),
            ("  " + fit(choice.tip, max(0, width - key - name - 6)), "dim"),
        )


class PickDialog(Dialog[str]):
    """A list to choose from: by cursor, by key, or, with `typed`, by writing part of the name."""

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
        self.HINT = "↑↓ Enter · Esc close"
        self.choices, self._typed = tuple(choices), typed

    def body(self) -> ComposeResult:
        """What is in the box."""
        if self._typed:
            yield text_input(placeholder="type part of a name")
        rows = _Choices()
        if self._heads is not None:
            rows.heads = self._heads
            yield LineView(id="pick-head", focusable=False)
        yield rows

    def on_mount(self) -> None:
        """Show all choices."""
        rows = self.query_one(_Choices)
        rows.styles.height = min(len(self.choices), max(3, self.app.size.height - 8))
        self.narrow("")
        (self.query_one(Input) if self._typed else rows).focus()

    def narrow(self, text: str) -> None:
        """Show the choices that hold all words of a text."""
        words = text.lower().split()
        found = [c for c in self.choices if all(w in f"{c.title} {c.tip} {c.id}".lower() for w in words)]
        # a title that holds the words goes before a mere mention
        self.show_choices(sorted(found, key=lambda c: not all(w in c.title.lower() for w in words)))

    def show_choices(self, choices: Sequence[MenuItem]) -> None:
        """Show these, from the first."""
        rows = self.query_one(_Choices)
        rows.rows = choices
        rows.rows_changed(keep_cursor=False)
        if self._heads is not None:
            self.query_one("#pick-head", LineView).show(
                lambda width: [tuple((piece, "dim") for piece, _ in rows.head_line(width))]
            )

    def action_move(self, step: int) -> None:
        """Move the cursor while the entry has the focus."""
        rows = self.query_one(_Choices)
        rows.move_to(rows.cursor + step)

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        self.narrow(event.value)

    @on(Input.Submitted)
    @on(LineList.RowSelected)
    def _choose(self) -> None:
        rows = self.query_one(_Choices)
        if rows.rows:
            self.dismiss(rows.rows[rows.cursor].id)

    def on_key(self, event: events.Key) -> None:
        """A choice's own key chooses it."""
        if self._typed or not event.character:
            return
        for choice in self.choices:
            if choice.key == event.character:
                event.stop()
                event.prevent_default()
                self.dismiss(choice.id)
                return
