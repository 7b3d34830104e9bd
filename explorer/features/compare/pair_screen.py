"""Screen that shows two aligned layer trees, and the dialog that asks for the second model.

One cursor moves through both trees.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from explorer.base.errors import Misuse
from explorer.features.compare import pair_page as page
from explorer.features.compare.compare_words import tree_diff
from explorer.features.compare.pair_page import PairRows
from explorer.host import confinement
from explorer.session import headers
from explorer.tui.dialogs.dialogs import MenuItem, PickDialog, SubScreen
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import Line
from explorer.tui.widgets.line_view import LineList, PanelView
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar

if TYPE_CHECKING:
    from explorer.report.blocks import Block


# fmt: off
PAIR_KEYS = key_group(
    "With two models side by side",
    ("pair_next(1)", ("n",), "n", "Next difference", "Go to it, and open its group"),
    ("pair_next(-1)", ("N",), "N", "Previous difference", "Go to it, and open its group"),
    ("only", ("o",), "o", "Differences only", "Hide equal rows, or show them again"),
    ("fold_all", ("minus",), "-", "Close all groups", "Every group of both trees"),
    ("pair_exact", ("e",), "e", "Exact or rounded numbers", "+35,079,600 or +35.08 M"),
    ("ask('diff')", ("d",), "d", "Diff", "Show what changed, node by node, with both as ONNX graphs"),
    ("ask('blame')", ("B",), "B", "Blame", "Show which layer differs first, and how the error grows"),
    ("ask('compare')", ("c",), "c", "Compare", "Show totals and operators of both, and why they differ"),
    ("ask('verify')", ("v",), "v", "Verify", "Prove that both compute the same"),
    ("ask('profile')", ("percent_sign",), "%", "Profile", "Time both in turn, and show which layers differ"),
    ("copy_command", ("y",), "y", "Copy", "Copy the command that prints this to the clipboard"),
)
# fmt: on


class PairRequest(Struct, frozen=True):
    """The user's choice: a question about both models ('diff', 'blame', ...), or 'tree' to go to a layer.

    `row` is the id of that layer in the first model.
    """

    question: str
    row: int = 0


class _Rows(LineList):
    """List widget with the rows of both trees."""

    def __init__(self, pair: PairRows, cursor: int) -> None:
        super().__init__(id="pair")
        self.pair, self.exact, self.cursor = pair, False, cursor

    @property
    def row_count(self) -> int:
        """Number of visible rows."""
        return len(self.pair.visible)

    def row_line(self, index: int, width: int) -> Line:
        """Build the line of visible row `index`, `width` cells wide."""
        row_index = self.pair.visible[index]
        if row_index < 0:
            return page.graph_line(self.pair.fact.graph[-1 - row_index], width)
        count = self.pair.count_folded_constants(row_index)
        if count:
            return page.draw_constants_line(self.pair.fact.rows[row_index], count, self.columns(width))
        sign = "  "
        if self.pair.has_inside(index):
            sign = "▾ " if self.pair.is_open(row_index) else "▸ "
        shorten = partial(self.pair.shorten_name, index)
        row, widths = self.pair.fact.rows[row_index], self.columns(width)
        return page.row_line(row, sign, widths, shorten, exact=self.exact)

    def columns(self, width: int) -> page.PairColumns:
        """Return the columns that fit in `width` cells."""
        return page.choose_columns(width, self.pair.longest_kind, exact=self.exact)

    def toggle_row(self, index: int, should_open: bool | None = None) -> bool:
        """Open or close a row."""
        return self.pair.toggle(index, should_open)

    def parent_of(self, index: int) -> int | None:
        """Return the index of the group that contains row `index`, or None at the top level."""
        return self.pair.parent(index)


class PairScreen(SubScreen[PairRequest]):
    """Show two aligned layer trees; the result is a `PairRequest`, or None if the user leaves.

    Args:
        pair: Rows of both trees with their open groups.
        cursor: Initial index of the cursor among the visible rows.
        words: Words of the command line that prints the same page; empty if there is no such command.
        leave: Callback that receives the index of the cursor when the user leaves the screen.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(PAIR_KEYS)
    FOOTER = (
        *(("n N", "difference"), ("o", "only those"), ("d", "diff"), ("B", "blame"), ("c", "compare")),
        *(("v", "verify"), ("%", "profile"), ("Enter", "layer"), ("Esc", "back")),
    )
    AUTO_FOCUS = "#pair"

    def __init__(
        self, pair: PairRows, cursor: int, words: Sequence[str], leave: Callable[[int], None]
    ) -> None:
        super().__init__()
        self._pair, self._cursor, self._words, self._tell_cursor = pair, cursor, words, leave

    def compose(self) -> ComposeResult:
        """Yield the title bar, the column titles, the rows, the details and the key line."""
        yield TitleBar()
        yield PaneHead(id="pair-head")
        yield _Rows(self._pair, self._cursor)
        yield PaneHead(id="pair-rule")
        yield PanelView(self._draw_details, id="pair-about")
        yield Status(id="pair-keys")

    @property
    def rows(self) -> _Rows:
        """The list widget."""
        return self.query_one(_Rows)

    def on_mount(self) -> None:
        """Draw the rows and the details."""
        self.query_one("#pair-rule", PaneHead).show(lambda width: ((("─" * width, "track"),),))
        self._fit()
        self.rows.refresh_rows()
        self._draw()
        self._say("")

    def on_resize(self) -> None:
        """Lay out the columns and the details for the new size."""
        self._fit()
        self._draw()

    def _fit(self) -> None:
        height = self.size.height
        self.query_one("#pair-about").styles.height = 12 if height >= 34 else 6 if height >= 20 else 4

    def page_blocks(self) -> list[Block]:
        """Return the same blocks that `explorer diff --tree` prints."""
        return tree_diff(self._pair.fact, self._pair.only)

    def verb_words(self, source: str) -> list[str]:
        """Return the command line that prints the same page; empty for two states of a session."""
        return [*self._words, *(["--differences"] if self._pair.only else [])] if self._words else []

    def _draw(self) -> None:
        pair, rows = self._pair, self.rows
        self.query_one(TitleBar).show(lambda width: page.draw_title(pair.fact, pair.only, width))
        head = self.query_one("#pair-head", PaneHead)
        # a scroll bar narrows the rows
        head.show(lambda width: (page.draw_head(rows.columns(rows.size.width or width)),))
        self.query_one("#pair-about", PanelView).redraw()

    def _draw_details(self, width: int, height: int) -> list[Line]:
        pair, cursor = self._pair, self.rows.cursor
        if not pair.visible or height < 1:
            return []
        row_index = pair.visible[cursor]
        row = pair.fact.graph[-1 - row_index] if row_index < 0 else pair.fact.rows[row_index]
        return page.build_detail_lines(row, width, height)

    @on(LineList.RowHighlighted)
    def _show_details(self) -> None:
        self.query_one("#pair-about", PanelView).redraw()

    @on(LineList.SizeChanged)
    def _redraw(self) -> None:
        self._draw()

    @on(LineList.RowSelected)
    def _go_to_layer(self) -> None:
        """Close the screen and go to the layer in the tree of the first model, if that model has it."""
        row = self._pair.row(self.rows.cursor)
        if row is not None and row.before is not None:
            self._leave(PairRequest("tree", row.before.id))
        else:
            self._refuse("only in the second model")

    def _leave(self, request: PairRequest | None) -> None:
        self._tell_cursor(self.rows.cursor)
        self.dismiss(request)

    def action_leave(self) -> None:
        """Close the screen without a choice."""
        self._leave(None)

    def action_ask(self, question: str) -> None:
        """Close the screen and ask `question` about both models."""
        self._leave(PairRequest(question))

    def _move_to(self, place: int) -> None:
        rows = self.rows
        rows.cursor = max(0, min(place, rows.row_count - 1))
        rows.refresh_rows()
        self._draw()

    def action_pair_next(self, step: int) -> None:
        """Move to the next or previous difference."""
        rows, count = self.rows, len(self._pair.visible)
        stop = self._pair.find_next_stop(rows.cursor, step)
        if stop is None:
            self._refuse("no layer differs")
            return
        place, number = stop
        if len(self._pair.visible) == count:
            rows.move_to(place)  # redraws two lines instead of the whole pane
        else:
            self._move_to(place)
        self._say(f"{number + 1:,} of {len(self._pair.stops):,}")

    def action_only(self) -> None:
        """Hide equal rows, or show them again."""
        pair = self._pair
        if not pair.stops and not pair.fact.graph:
            self._refuse("no difference")
            return
        self._move_to(pair.show_only(not pair.only, self.rows.cursor))

    def action_fold_all(self) -> None:
        """Close every group."""
        self._move_to(self._pair.fold_all(self.rows.cursor))

    def action_pair_exact(self) -> None:
        """Switch between exact and rounded figures."""
        self.rows.exact = not self.rows.exact
        self.rows.refresh()
        self._draw()

    def action_copy_command(self) -> None:
        """Copy the command that prints the same page to the terminal's clipboard."""
        if self._words:
            self.app.copy_to_clipboard(shlex.join(["explorer", *self._words]))
            self._say("sent to terminal")
        else:
            self.app.bell()


STATE, MODEL, FOLDER = "state:", "model:", "folder:"
"""Prefixes of the item ids of the dialog: a state of the history, a model, a folder."""
_MAX_FILES = 2_000
"""Maximum number of files listed from a folder."""
_MAX_VISIBLE = 12


class PairDialog(PickDialog):
    """Ask for a model: lists states of the history, then models whose path matches the typed text.

    Args:
        states: List items of the other states of the history.
        text: Initial text of the entry.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "complete", show=False, priority=True)]

    def __init__(self, states: Sequence[MenuItem], text: str) -> None:
        self._states, self._text = states, text
        super().__init__("Set beside this model", (), typed=True)
        self.HINT = "Tab complete · Enter open · Esc close"

    def on_mount(self, event: events.Mount | None = None) -> None:
        """Show the entry and the matching items, in a list of fixed height."""
        if event is not None:
            event.prevent_default()
        rows, entry = self.query_one(LineList), self.query_one(Input)
        rows.styles.height = min(_MAX_VISIBLE, max(3, self.app.size.height - 8))
        entry.value = self._text
        entry.cursor_position = len(self._text)
        entry.placeholder = "a file, a folder or the name of a model"
        self.narrow(self._text)
        entry.focus()

    def narrow(self, text: str) -> None:
        """List the items that match the typed text.

        The order is: matching states, files that begin with the text, the text itself, other matching files.
        A text that names an existing file or ends in a slash comes first.
        """
        words = text.lower().split()
        states = [s for s in self._states if all(w in f"{s.title} {s.tip}".lower() for w in words)]
        typed = text.strip()
        exists = os.path.isfile(os.path.expanduser(typed)) or typed.endswith(("/", os.sep))
        typed_name = [MenuItem(MODEL + typed, "", typed, "")] if typed else []
        files = [file for file in _find_files(typed) if file.id != MODEL + typed]
        leading = [file for file in files if file.title.startswith(typed)]
        containing = [file for file in files if not file.title.startswith(typed)]
        self.show_choices(
            [*(typed_name if exists else ()), *states, *leading, *(() if exists else typed_name), *containing]
        )

    def empty_note(self) -> str:
        """Return the line for a folder without models."""
        return super().empty_note() if self._typed_text.strip() else "no model in this folder"

    def action_complete(self) -> None:
        """Copy the selected file or folder into the entry."""
        rows, entry = self.query_one(LineList), self.query_one(Input)
        choice = rows.rows[rows.cursor] if rows.rows else None
        if choice is None or choice.id.startswith(STATE):
            self.app.bell()
            return
        entry.value = choice.title
        entry.cursor_position = len(entry.value)


def _find_files(text: str) -> Iterator[MenuItem]:
    """Yield models and folders of the typed folder whose names contain the typed name.

    Yields nothing if the folder cannot be read, and hidden entries only for a name that starts with a dot.
    """
    folder, typed_name = os.path.split(text)
    try:
        folder_path = os.path.expanduser(folder) or os.curdir
        confinement.check(folder_path)
        with os.scandir(folder_path) as entries:
            folder_entries = sorted(islice(entries, _MAX_FILES), key=lambda entry: entry.name)
        for entry in folder_entries:
            is_hidden = entry.name.startswith(".") and not typed_name.startswith(".")
            if typed_name.lower() in entry.name.lower() and not is_hidden:
                path = os.path.join(folder, entry.name)
                if entry.is_dir():
                    yield MenuItem(f"{FOLDER}{path}/", "", f"{path}/", "")
                elif headers.has_model_ending(entry.name):
                    yield MenuItem(MODEL + path, "", path, "")
    except (OSError, Misuse):
        return
