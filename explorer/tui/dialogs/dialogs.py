"""The small dialogs: a message, a question, a path, a choice from a list, a page to read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

from msgspec import Struct
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from explorer.tui.text.lines import BLANK, Line, fit, safe, wrap
from explorer.tui.widgets.line_view import LineList, LineView
from explorer.tui.widgets.text_input import text_input

__all__ = ["ConfirmDialog", "Dialog", "MenuItem", "MessageDialog", "PageDialog", "PathDialog", "PickDialog"]

T = TypeVar("T")


class Dialog(ModalScreen[T], Generic[T]):
    """A box over the main screen; Esc closes it without an answer."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", show=False),
        Binding("o", "app.reopen", show=False),
    ]
    TITLE_TEXT = ""
    HINT = "Esc close"

    def compose(self) -> ComposeResult:
        """The parts."""
        with Vertical(id="box") as box:
            box.border_title = self.TITLE_TEXT
            box.border_subtitle = self.HINT
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
        self.query_one(LineView).show(self._page)

    def action_accept(self) -> None:
        """Close with yes."""
        self.dismiss(True)

    def action_copy(self) -> None:
        """Send the text to the terminal's clipboard."""
        if self._copy:
            self.app.copy_to_clipboard(self._copy)
            self.query_one("#box").border_subtitle = "sent to terminal · Esc close"


class MessageDialog(PageDialog):
    """One line that went wrong, or a word that needs no answer."""

    def __init__(self, title: str, said: str, *, tone: str = "bad", hint: str = "") -> None:
        # an error is one line made of what the engine says; names in it are the model's
        super().__init__(
            title,
            lambda width: (BLANK, *wrap(((safe(said), "text"),), width), BLANK),
            hint=hint or "y copy · Esc close",
            tone=tone,
            copy=said,
        )


class ConfirmDialog(Dialog[bool]):
    """A question that y or Enter answers with yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "yes", show=False),
        Binding("n,q", "close", show=False),
    ]
    HINT = "y yes · n no"

    def __init__(self, title: str, question: str) -> None:
        super().__init__()
        self.TITLE_TEXT = title
        self._question = question

    def body(self) -> ComposeResult:
        """What is in the box."""
        view = LineView()
        view.show(self._page)
        yield view

    def on_mount(self) -> None:
        """Show the question."""
        self.query_one(LineView).show(self._page)

    def _page(self, width: int) -> Sequence[Line]:
        return (BLANK, *wrap(((safe(self._question), "text"),), width), BLANK)

    def action_yes(self) -> None:
        """Yes."""
        self.dismiss(True)


class PathDialog(Dialog[str]):
    """Where to write a file."""

    HINT = "Enter write · Esc cancel"

    def __init__(self, title: str, path: str, said: str, *, blink: bool = False) -> None:
        super().__init__()
        self.TITLE_TEXT = title
        self._path, self._said, self._blink = path, said, blink

    def body(self) -> ComposeResult:
        """What is in the box."""
        view = LineView()
        view.can_focus = False
        view.show(self._page)
        yield view
        yield text_input(self._path, placeholder="path", blink=self._blink)

    def on_mount(self) -> None:
        """Go to the entry."""
        self.query_one(LineView).show(self._page)
        self.query_one(Input).focus()

    def _page(self, width: int) -> Sequence[Line]:
        return (*wrap(((self._said, "dim"),), width), BLANK)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.dismiss(os.path.expanduser(event.value.strip()))


class MenuItem(Struct, frozen=True):
    """A row of a `Pick`: what it returns, the key beside it, its title and a word more."""

    id: str
    key: str
    title: str
    tip: str = ""


class _Choices(LineList):
    """The rows of a `Pick`."""

    choices: Sequence[MenuItem] = ()

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return len(self.choices)

    def row_line(self, index: int, width: int) -> Line:
        """Row `index` in `width` cells."""
        choice = self.choices[index]
        key = max((len(c.key) for c in self.choices), default=0)
        name = min(28, max((len(c.title) for c in self.choices), default=0))
        return (
            (" " + fit(choice.key, key), "key"),
            ("  " + fit(choice.title, name), "text"),
            ("  " + fit(choice.tip, max(0, width - key - name - 6)), "dim"),
        )


class PickDialog(Dialog[str]):
    """A list to choose from: by cursor, by key, or, with `typed`, by writing part of the name."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
    ]

    def __init__(
        self, title: str, choices: Sequence[MenuItem], *, typed: bool = False, blink: bool = False
    ) -> None:
        super().__init__()
        self.TITLE_TEXT = title
        self.HINT = "↑↓ Enter · Esc close"
        self._choices, self._typed, self._blink = tuple(choices), typed, blink

    def body(self) -> ComposeResult:
        """What is in the box."""
        if self._typed:
            yield text_input(placeholder="type part of a command", blink=self._blink)
        yield _Choices()

    def on_mount(self) -> None:
        """Show all choices."""
        rows = self.query_one(_Choices)
        rows.styles.height = min(len(self._choices), max(3, self.app.size.height - 8))
        self._narrow("")
        (self.query_one(Input) if self._typed else rows).focus()

    def _narrow(self, text: str) -> None:
        rows = self.query_one(_Choices)
        words = text.lower().split()
        rows.choices = [
            c for c in self._choices if all(w in f"{c.title} {c.tip} {c.id}".lower() for w in words)
        ]
        # a title that holds the words goes before a mere mention
        rows.choices = sorted(rows.choices, key=lambda c: not all(w in c.title.lower() for w in words))
        rows.rows_changed(keep_cursor=False)

    def action_move(self, step: int) -> None:
        """Move the cursor while the entry has the focus."""
        rows = self.query_one(_Choices)
        rows.move_to(rows.cursor + step)

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        self._narrow(event.value)

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self._choose()

    @on(LineList.RowSelected)
    def _chosen(self) -> None:
        self._choose()

    def _choose(self) -> None:
        rows = self.query_one(_Choices)
        if rows.choices:
            self.dismiss(rows.choices[rows.cursor].id)

    def on_key(self, event: events.Key) -> None:
        """A choice's own key chooses it."""
        if self._typed or not event.character:
            return
        for choice in self._choices:
            if choice.key == event.character:
                event.stop()
                event.prevent_default()
                self.dismiss(choice.id)
                return
