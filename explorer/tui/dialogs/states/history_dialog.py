"""The History screen: every state of the session, to go to, to compare, to name, to keep as a script."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, Literal

from msgspec import Struct
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.report.present.compare.diff import diff
from explorer.report.present.shell.history_words import state_blocks, state_name, states, tree_rows
from explorer.tui.dialogs.dialogs import EntryDialog, SubScreen
from explorer.tui.tabs.diff import diff_entries
from explorer.tui.text.drawing import draw, row_line, title_line
from explorer.tui.text.keys import bindings, key_group, keys_line
from explorer.tui.text.lines import BLANK, Line, fit, safe
from explorer.tui.widgets.fold_list import FoldList
from explorer.tui.widgets.line_view import LineList, LineView
from explorer.tui.widgets.marked_list import MarkedList
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts import Diff, History
    from explorer.report.blocks import Block

# fmt: off
HISTORY_KEYS = key_group(
    "In the history",
    ("go", ("enter",), "Enter", "Go there", "The state becomes the current model"),
    ("mark", ("space",), "Space", "Mark", "Marks a state, or takes its mark away; as many as you like"),
    ("figures", ("t",), "t", "Table",
        "Figures of the marked states beside each other, and which is best (one: beside the opened)"),
    ("compare", ("c",), "c", "Compare", "Marks a state; on a second one, shows what changed between the two"),
    ("prove", ("v",), "v", "Prove",
        "That it computes what the one marked first does, or the model as it was opened"),
    ("rename", ("n",), "n", "Name", "What to call the state"),
    ("script", ("s",), "s", "Script…", "The commands that lead to the state, as a shell script"),
    ("script_all", ("S",), "S", "Script of all…", "The commands that make every state of every branch"),
    ("copy_command", ("y",), "y", "Copy", "Send the command that made the state to the terminal"),
)
# fmt: on


Wish = Literal["go", "compare", "figures", "prove", "script", "script_all"]


class HistoryRequest(Struct, frozen=True):
    """What the user wants of the state `at`; `other` is the earlier one of a pair, `marked` are several."""

    what: Wish
    at: int
    other: int = 0
    marked: tuple[int, ...] = ()


class _States(MarkedList):
    """A row a state, as the tree is drawn."""

    def __init__(self, history: History) -> None:
        super().__init__(id="states")
        self.take(history)
        self.to_state(history.current)

    def take(self, history: History) -> None:
        """Show these states."""
        self.history, self.table = history, states(history, "●")
        self.shown = [at for at, _ in tree_rows(history)]

    @property
    def at(self) -> int:
        """The state under the cursor."""
        return self.shown[self.cursor]

    def to_state(self, at: int) -> None:
        """Put the cursor on a state."""
        self.cursor = self.shown.index(at)

    def key_of(self, index: int) -> int:
        """The number of the state."""
        return self.shown[index]

    @property
    def row_count(self) -> int:
        """How many states there are."""
        return len(self.shown)

    def row_line(self, index: int, width: int) -> Line:
        """Row `index` in `width` cells."""
        at = self.shown[index]
        mark = (f" {self.letter(index)} ", "accent")
        return row_line(self.table, index, width, mark=mark, here=at == self.history.current)


class HistoryScreen(SubScreen[HistoryRequest]):
    """The states of the session.

    Args:
        history: They.
        rename: Gives a state another name; the history with it.
        at: Where the cursor stands at first; None for the current state.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(HISTORY_KEYS)
    FOOTER = (
        *(("Enter", "go"), ("Space", "mark"), ("t", "table"), ("c", "compare"), ("v", "prove")),
        *(("n", "name"), ("s", "script"), ("Esc", "back")),
    )
    AUTO_FOCUS = "#states"

    def __init__(
        self,
        history: History,
        rename: Callable[[int, str], Awaitable[History]],
        *,
        at: int | None = None,
    ) -> None:
        super().__init__()
        self._history, self._rename, self._at = history, rename, at

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        yield PaneHead(id="states-head")
        yield _States(self._history)
        yield LineView(id="state")
        yield Status(id="history-keys")

    def page_blocks(self) -> list[Block]:
        """The tree of all states, with what made each."""
        return [states(self._history, "*", commands=True)]

    def on_mount(self) -> None:
        """Show the state under the cursor."""
        rows = self.query_one(_States)
        self.query_one("#states-head", PaneHead).show(lambda width: (title_line(rows.table, width),))
        if self._at is not None:
            rows.to_state(min(self._at, rows.row_count - 1))
        rows.rows_changed()
        self._fit()
        self._tell()

    def on_resize(self) -> None:
        """The list takes what it needs, and half of the screen at most."""
        self._fit()

    def _fit(self) -> None:
        most = max(3, (self.size.height - 4) // 2)
        self.query_one(_States).styles.height = min(self.query_one(_States).row_count, most)

    @on(LineList.RowHighlighted)
    @on(MarkedList.RowMarked)
    def _tell(self) -> None:
        rows = self.query_one(_States)
        history, at = rows.history, rows.at
        count, later = len(history.entries), len(history.redoable)
        ends = count - len(history.children())
        counts = f"{count:,} state{'s' * (count != 1)}" + (f", {ends:,} branches" if ends > 1 else "")
        counts += f", {later:,} to redo" if later else ""
        marks = [safe(state_name(history.entries[place], place)) for place in rows.marked]
        about = "Nothing is lost: changing an earlier state begins a branch"
        if marks:
            more = f"compare {marks[0]} with: c (what changed), t (figures)"
            about = more if len(marks) == 1 else f"t compares {', '.join(marks)}"

        def head(width: int) -> tuple[Line, ...]:
            return ((" History", "strong"), (f"  {counts}", "dim")), ((fit(f" {about}", width), "dim"),)

        self.query_one(TitleBar).show(head)
        page = self.query_one("#state", LineView)
        page.show(lambda width: [BLANK, *draw(state_blocks(history, at), width - 1)], top=True)
        self._say("")

    @on(LineList.RowSelected)
    def _chosen(self) -> None:
        self._wish("go")

    def _wish(self, what: Wish, other: int = 0) -> None:
        self.dismiss(HistoryRequest(what, self.query_one(_States).at, other))

    def action_go(self) -> None:
        """Go to the state under the cursor; the list says so itself when it has the focus."""
        self._wish("go")

    def action_compare(self) -> None:
        """Mark the first of two; compare the second with it."""
        rows = self.query_one(_States)
        if not rows.marked or rows.marked[0] == rows.at:
            self.action_mark()
        else:
            self._wish("compare", rows.marked[0])

    def action_mark(self) -> None:
        """Mark the state under the cursor, whatever has the focus."""
        self.query_one(_States).action_mark()

    def action_figures(self) -> None:
        """The figures of the marked states beside each other; of one also that under the cursor."""
        rows = self.query_one(_States)
        places = rows.marked or [0]
        if len(places) == 1:
            places = list(dict.fromkeys((*places, rows.at)))
        if len(places) == 1:
            self._refuse("there is nothing to set it beside: mark another")
        else:
            self.dismiss(HistoryRequest("figures", rows.at, marked=tuple(places)))

    def action_prove(self) -> None:
        """Prove a state equal to the marked one, or to the model as it was opened."""
        rows = self.query_one(_States)
        against = rows.marked[0] if rows.marked else 0
        if against == rows.at:
            self._refuse("it would be proved equal to itself")
        else:
            self._wish("prove", against)

    def action_script(self) -> None:
        """The commands that lead to this state."""
        if self.query_one(_States).at:
            self._wish("script")
        else:
            self._refuse("no command leads to the model as opened")

    def action_script_all(self) -> None:
        """The commands that make every state."""
        if self.query_one(_States).row_count > 1:
            self._wish("script_all")
        else:
            self._refuse("nothing was done yet")

    def action_copy_command(self) -> None:
        """Send the command that made the state to the terminal."""
        rows = self.query_one(_States)
        command = rows.history.entries[rows.at].command
        if not command:
            self._refuse("no command made it")
            return
        self.app.copy_to_clipboard(command)
        message = fit(f" sent to terminal: {safe(command)}", self.size.width)
        self.query_one(Status).show(lambda width: (((fit(message, width), "dim"),),))

    def action_rename(self) -> None:
        """Ask for a name."""
        rows = self.query_one(_States)
        at = rows.at
        entry = rows.history.entries[at]

        async def rename(name: str) -> None:
            rows.take(await self._rename(at, name))
            rows.rows_changed()
            self._tell()

        def answered(name: str | None) -> None:
            if name is not None:
                self.run_worker(rename(name), exit_on_error=False)

        state = "as opened" if at == 0 else safe(entry.label)
        question = f"What to call '{state}'; nothing takes its name away"
        texts = {"placeholder": "no name", "hint": "name it"}
        dialog = EntryDialog("Name", entry.name, question, **texts, required=False)
        self.app.push_screen(dialog, answered)


class DiffScreen(SubScreen[None]):
    """What changed between any two states.

    Args:
        changes: It.
        before, after: What the user calls them.
        exact: Exact or rounded numbers.
        back: Where Esc leads.
    """

    AUTO_FOCUS = "#changes"

    def __init__(
        self, changes: Diff, before: str, after: str, *, exact: bool = False, back: str = "the history"
    ) -> None:
        super().__init__()
        self._changes, self._before, self._after, self._exact = changes, before, after, exact
        self._back = back

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        yield FoldList(id="changes")
        yield Status(id="diff-keys")

    def on_mount(self) -> None:
        """Show the differences."""
        names = ((" ", "text"), (self._before, "strong"), (" → ", "dim"), (self._after, "strong"))
        self.query_one(TitleBar).show(
            lambda width: (names, ((" What changed from one to the other", "dim"),))
        )
        changes = self.query_one(FoldList)
        changes.set_entries(diff_entries(self._changes, self._exact))
        keys = (("↑↓ Enter", "open a row"), ("Esc", f"back to {self._back}"))
        self.query_one(Status).show(lambda width: (keys_line(keys, width),))
        self.call_after_refresh(changes.to_first_foldable)

    def page_blocks(self) -> list[Block]:
        """What `explorer diff` tells."""
        return diff(self._changes)
