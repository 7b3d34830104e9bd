"""Command `=`: shows the current model and a second one side by side, and answers questions about both.

The second model is a state of the session's history or another model.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.errors import Cancelled, ExplorerError
from explorer.features.compare.blame_screen import BlameScreen
from explorer.features.compare.compare_words import compare
from explorer.features.compare.pair_page import PairRows
from explorer.features.compare.pair_screen import FOLDER, MODEL, STATE, PairDialog, PairRequest, PairScreen
from explorer.features.profile.profile_comparison_words import sort_largest_first
from explorer.features.profile.profile_screen import (
    TIME_AGAIN,
    ProfileComparisonScreen,
    ProfileDialog,
    ProfileRequest,
)
from explorer.report.present.shell.history_words import state_name
from explorer.settings.parse import write_path_word
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import MenuItem, PageDialog
from explorer.tui.dialogs.proof import proof_dialog
from explorer.tui.dialogs.states.history_dialog import DiffScreen
from explorer.tui.models.opening import check_source
from explorer.tui.state.hardware import find_machine
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import escape_name

if TYPE_CHECKING:
    from explorer.facts import History
    from explorer.facts.comparison import TreeDiff
    from explorer.facts.profile.comparison import LayerChange, ProfileComparison

_TITLES = {  # title of the job by the method of `Session`
    "diff": "comparing",
    "blame": "looking for the first layer that differs",
    "compare": "counting both",
    "verify": "verifying",
}


class PairCommand(ScreenCommand):
    """Command that opens the screen with two aligned layer trees."""

    def run(self, text: str = "") -> None:
        """Ask which model to show next to the current one."""
        self.context.open_view("Set beside", self._ask(text))

    async def _ask(self, text: str) -> None:
        await self.context.load_history()
        history = self.store.history
        assert history is not None
        dialog = PairDialog(_list_states(history), text)
        self.context.ask(dialog, self._open_choice)

    def _open_choice(self, choice: str | None) -> None:
        history = self.store.history
        if choice is None or history is None:
            return
        if choice.startswith(FOLDER):
            self.run(choice.removeprefix(FOLDER))
        elif choice.startswith(STATE):
            self.begin(lambda: None, before=int(choice.removeprefix(STATE)), after=history.current)
        else:
            typed = choice.removeprefix(MODEL)
            self.beside(os.path.expanduser(typed), lambda: self.run(typed))

    def beside(self, source: str, failed: Callable[[], None] = lambda: None) -> None:
        """Show the model `source` next to the current one; call `failed` if it cannot be opened."""
        self.begin(failed, before=self.store.history_place, other=source)

    def begin(self, failed: Callable[[], None], **request: Any) -> None:
        """Align two models; `request` has `before` and `after`, or `before` and `other`, as for
        `Session.tree_diff`.
        """
        self.context.start("Side by side", self._align(request), failed)

    async def _align(self, request: dict[str, Any]) -> None:
        try:
            if "other" in request:
                await asyncio.to_thread(check_source, request["other"])
            fact: TreeDiff = await self.jobs.run("setting both side by side", "tree_diff", **request)
        except ExplorerError:
            self.store.beside = ""
            raise
        _Pair(self, request, fact, await asyncio.to_thread(PairRows, fact)).show()


class _Pair:
    """Two aligned models. The screen reopens whenever the user closes the answer to a question."""

    def __init__(self, command: PairCommand, request: dict[str, Any], fact: TreeDiff, rows: PairRows) -> None:
        self._command, self._request, self._fact, self._rows = command, request, fact, rows
        self._cursor = rows.find_first_difference()

    def show(self) -> None:
        """Open the screen with both trees."""
        second, words = self._request.get("other"), tuple[str, ...]()
        if second is not None and not self._request["before"]:
            words = ("diff", write_path_word(self._command.store.source), write_path_word(second), "--tree")
        screen = PairScreen(self._rows, self._cursor, words, self._keep_cursor)
        self._record(second or "")
        self._command.context.ask(screen, self._handle_choice)

    def _record(self, second_model: str) -> None:
        """Record the second model in the store. A resumed session then reopens it."""
        store = self._command.store
        store.beside = second_model
        store.notify("focus")

    def _keep_cursor(self, cursor: int) -> None:
        self._cursor = cursor

    def _handle_choice(self, choice: PairRequest | None) -> None:
        context = self._command.context
        if choice is None or choice.question == "tree":
            self._record("")
        if choice is None:
            return
        if choice.question == "tree":
            # the rows of an exported graph do not match the rows of the module tree on the screen
            if self._fact.form != "exported" and self._request["before"] == context.store.history_place:
                self._command.panes.move_to_layer(choice.row)
            else:
                context.store.say("the tree on the screen is another one, which lacks these rows")
            return
        if choice.question == "profile":
            self._ask_times()
        else:
            context.start(choice.question.capitalize(), self._answer(choice.question), self.show)

    async def _answer(self, question: str) -> None:
        command = self._command
        fact = await self._run(_TITLES[question], question, **self._request)
        names = escape_name(self._fact.before), escape_name(self._fact.after)
        if question == "diff":
            page: Any = DiffScreen(fact, *names, exact=command.store.exact, back="both models")
        elif question == "blame":
            page = BlameScreen(fact)
        elif question == "verify":
            page = proof_dialog(fact, f": {names[0]} and {names[1]}")
        else:
            page = PageDialog("Compare", lambda width: draw(compare(fact), width - 1))
        command.context.ask(page, lambda _: self.show())

    async def _run(self, title: str, method: str, **arguments: Any) -> Any:
        try:
            return await self._command.jobs.run(title, method, **arguments)
        except Cancelled:
            self.show()
            raise

    def _ask_times(self) -> None:
        """Ask for the settings of a timing run of both models."""
        store, context = self._command.store, self._command.context

        def on_answer(request: ProfileRequest | None) -> None:
            if request is None:
                self.show()
                return
            store.profiled = tuple(request)
            context.start("Profile", self._time(request), self.show)

        last = ProfileRequest(*store.profiled)._replace(beside="")
        context.ask(ProfileDialog(last, is_graph=store.is_graph, states={}), on_answer)

    async def _time(self, request: ProfileRequest) -> None:
        """Time both models in turn; Enter on a layer of the result goes to its row."""
        store = self._command.store
        settings = {"spec": request.spec, "batches": (request.size,) * 2, "machine": find_machine(store)}
        comparison: ProfileComparison = await self._run(
            "profiling both", "compare_profiles", **self._request, **settings
        )
        await self._command.context.load_history()  # the history keeps the profile of a state
        fact = replace(comparison, names=(self._fact.before, self._fact.after))

        def on_closed(index: int | None) -> None:
            if index == TIME_AGAIN:
                self._ask_times()
                return
            if index is not None:
                self._cursor = self._find_row(sort_largest_first(fact)[index])
            self.show()

        self._command.context.ask(ProfileComparisonScreen(fact, exact=store.exact), on_closed)

    def _find_row(self, change: LayerChange) -> int:
        """Open the groups of a timed layer and return its place; without a row, return the cursor's place."""
        for index, row in enumerate(self._fact.rows):
            before_path, after_path = row.before and row.before.path, row.after and row.after.path
            if change.path in (before_path, after_path):
                return self._rows.reveal(index)
        return self._cursor


def _list_states(history: History) -> list[MenuItem]:
    """List the states of the history except the current one, starting with the opened model."""
    return [
        MenuItem(f"{STATE}{index}", "", state_name(entry, index), "a state of this session")
        for index, entry in enumerate(history.entries)
        if index != history.current
    ]
