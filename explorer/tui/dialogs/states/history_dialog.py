"""The History screen: visits, compares, renames and proves states, and saves them as a script."""

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
from explorer.tui.terminal.slices import call_after_paint
from explorer.tui.text.drawing import draw, row_line, title_line
from explorer.tui.text.keys import bindings, key_group, keys_line
from explorer.tui.text.lines import BLANK, Line, escape_name, fit
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
    ("mark", ("space",), "Space", "Mark", "Mark any number of states, or remove a mark"),
    ("figures", ("t",), "t", "Table",
        "Compare the marked states and show the best of each figure (one state: with the original)"),
    ("compare", ("c",), "c", "Compare", "Mark a state; on a second state, show what changed between the two"),
    ("prove", ("v",), "v", "Prove",
        "Prove that the state computes the same as the first marked state, or as the original"),
    ("rename", ("n",), "n", "Name", "Name the state"),
    ("script", ("s",), "s", "Script…", "The commands that lead to the state, as a shell script"),
    ("script_all", ("S",), "S", "Script of all…", "Commands that make all states, of all branches"),
    ("copy_command", ("y",), "y", "Copy", "Copy the command that made the state to the clipboard"),
)
# fmt: on


HistoryAction = Literal["go", "compare", "figures", "prove", "script", "script_all"]


class HistoryRequest(Struct, frozen=True):
    """Action that the user chose for states of the history.

    Attributes:
        action: Action to run.
        state: Index of the state.
        other_state: Index of the state that was marked first, with which `state` is compared.
        marked: Indices of several states to compare.
    """

    action: HistoryAction
    state: int
    other_state: int = 0
    marked: tuple[int, ...] = ()


class _StateList(MarkedList):
    """List with one row per state, in the order of the tree of states."""

    def __init__(self, history: History) -> None:
        super().__init__(id="states")
        self.set_history(history)
        self.move_to_state(history.current)

    def set_history(self, history: History) -> None:
        """Show the states of a history."""
        self.history, self.table = history, states(history, "●")
        self.state_indices = [state for state, _ in tree_rows(history)]

    @property
    def current_state(self) -> int:
        """Index of the state under the cursor."""
        return self.state_indices[self.cursor]

    def move_to_state(self, state: int) -> None:
        """Move the cursor to a state."""
        self.cursor = self.state_indices.index(state)

    def key_of(self, index: int) -> int:
        """Return the index of the state in a row."""
        return self.state_indices[index]

    @property
    def row_count(self) -> int:
        """Number of states."""
        return len(self.state_indices)

    def row_line(self, index: int, width: int) -> Line:
        """Draw row `index` in `width` cells."""
        state = self.state_indices[index]
        mark = (f" {self.letter(index)} ", "accent")
        return row_line(self.table, index, width, mark=mark, is_current=state == self.history.current)


class HistoryScreen(SubScreen[HistoryRequest]):
    """Lists the states of the session.

    Args:
        history: History of the session.
        rename: Function that renames a state and returns the new history.
        state: Index of the state under the cursor at first, or None for the current state.
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
        state: int | None = None,
    ) -> None:
        super().__init__()
        self._history, self._rename, self._initial_state = history, rename, state

    def compose(self) -> ComposeResult:
        """Yield the widgets."""
        yield TitleBar()
        yield PaneHead(id="states-head")
        yield _StateList(self._history)
        yield LineView(id="state")
        yield Status(id="history-keys")

    def page_blocks(self) -> list[Block]:
        """Return the tree of all states with their commands."""
        return [states(self._history, "*", commands=True)]

    def on_mount(self) -> None:
        """Show the list and the state under the cursor."""
        rows = self.query_one(_StateList)
        self.query_one("#states-head", PaneHead).show(lambda width: (title_line(rows.table, width),))
        if self._initial_state is not None:
            rows.move_to_state(min(self._initial_state, rows.row_count - 1))
        rows.refresh_rows()
        self._fit_list()
        self._show_state()

    def on_resize(self) -> None:
        """Limit the height of the list to half of the screen."""
        self._fit_list()

    def _fit_list(self) -> None:
        max_height = max(3, (self.size.height - 4) // 2)
        self.query_one(_StateList).styles.height = min(self.query_one(_StateList).row_count, max_height)

    @on(LineList.RowHighlighted)
    @on(MarkedList.RowMarked)
    def _show_state(self) -> None:
        rows = self.query_one(_StateList)
        history, state = rows.history, rows.current_state
        count, redoable_count = len(history.entries), len(history.redoable)
        branch_count = count - len(history.children())
        counts = f"{count:,} state{'s' * (count != 1)}" + (
            f", {branch_count:,} branches" if branch_count > 1 else ""
        )
        counts += f", {redoable_count:,} to redo" if redoable_count else ""
        marked_names = [escape_name(state_name(history.entries[marked], marked)) for marked in rows.marked]
        hint = "Nothing is lost: changing an earlier state begins a branch"
        if len(marked_names) == 1:
            hint = f"compare {marked_names[0]} with: c (what changed), t (figures)"
        elif marked_names:
            hint = f"t compares {', '.join(marked_names)}"

        def head(width: int) -> tuple[Line, ...]:
            return ((" History", "strong"), (f"  {counts}", "dim")), ((fit(f" {hint}", width), "dim"),)

        self.query_one(TitleBar).show(head)
        page = self.query_one("#state", LineView)
        page.show(lambda width: [BLANK, *draw(state_blocks(history, state), width - 1)], top=True)
        self._say("")

    @on(LineList.RowSelected)
    def _row_selected(self) -> None:
        self._answer("go")

    def _answer(self, action: HistoryAction, other_state: int = 0) -> None:
        self.dismiss(HistoryRequest(action, self.query_one(_StateList).current_state, other_state))

    def action_go(self) -> None:
        """Make the state under the cursor the current state. If the list has the focus, it handles Enter."""
        self._answer("go")

    def action_compare(self) -> None:
        """Mark the first state of a pair, or compare the state under the cursor with it."""
        rows = self.query_one(_StateList)
        if not rows.marked or rows.marked[0] == rows.current_state:
            self.action_mark()
        else:
            self._answer("compare", rows.marked[0])

    def action_mark(self) -> None:
        """Mark the state under the cursor, even if the list is not focused."""
        self.query_one(_StateList).action_mark()

    def action_figures(self) -> None:
        """Compare the figures of the marked states, or of this state with the only mark or the original."""
        rows = self.query_one(_StateList)
        compared_states = rows.marked or [0]
        if len(compared_states) == 1:
            compared_states = list(dict.fromkeys((*compared_states, rows.current_state)))
        if len(compared_states) == 1:
            self._refuse("no other state to compare with: mark one with Space")
        else:
            self.dismiss(HistoryRequest("figures", rows.current_state, marked=tuple(compared_states)))

    def action_prove(self) -> None:
        """Prove that the state computes the same as the first marked state, or as the model as opened."""
        rows = self.query_one(_StateList)
        against = rows.marked[0] if rows.marked else 0
        if against == rows.current_state:
            self._refuse("a state is always equal to itself: mark another one")
        else:
            self._answer("prove", against)

    def action_script(self) -> None:
        """Write the commands that lead to the state as a script."""
        if self.query_one(_StateList).current_state:
            self._answer("script")
        else:
            self._refuse("the model as opened needs no command")

    def action_script_all(self) -> None:
        """Write the commands that lead to all states as a script."""
        if self.query_one(_StateList).row_count > 1:
            self._answer("script_all")
        else:
            self._refuse("no change yet: t tiles, Q quantizes")

    def action_copy_command(self) -> None:
        """Copy the command that made the state to the terminal's clipboard."""
        rows = self.query_one(_StateList)
        command = rows.history.entries[rows.current_state].command
        if not command:
            self._refuse("no command makes this state")
            return
        self.app.copy_to_clipboard(command)
        message = fit(f" sent to terminal: {escape_name(command)}", self.size.width)
        self.query_one(Status).show(lambda width: (((fit(message, width), "dim"),),))

    def action_rename(self) -> None:
        """Ask for a new name of the state."""
        rows = self.query_one(_StateList)
        state = rows.current_state
        entry = rows.history.entries[state]

        async def rename(name: str) -> None:
            rows.set_history(await self._rename(state, name))
            rows.refresh_rows()
            self._show_state()

        def handle_answer(name: str | None) -> None:
            if name is not None:
                self.run_worker(rename(name), exit_on_error=False)

        name = "as opened" if state == 0 else escape_name(entry.label)
        question = f"Name of '{name}'; an empty name removes it"
        texts = {"placeholder": "no name", "hint": "name this state"}
        dialog = EntryDialog("Name", entry.name, question, **texts, required=False)
        self.app.push_screen(dialog, handle_answer)


class DiffScreen(SubScreen[None]):
    """Shows the changes between two states.

    Args:
        changes: Differences between the states.
        before, after: Names of the states.
        exact: Whether numbers are written out instead of rounded.
        back: Name of the screen that Esc returns to.
    """

    AUTO_FOCUS = "#changes"

    def __init__(
        self, changes: Diff, before: str, after: str, *, exact: bool = False, back: str = "the history"
    ) -> None:
        super().__init__()
        self._changes, self._before, self._after, self._exact = changes, before, after, exact
        self._back = back

    def compose(self) -> ComposeResult:
        """Yield the widgets."""
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
        call_after_paint(self, changes.move_to_first_foldable)

    def page_blocks(self) -> list[Block]:
        """Return the output of `explorer diff`."""
        return diff(self._changes)
