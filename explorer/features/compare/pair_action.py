"""Command that sets the current model beside a state or another model, and answers questions about both."""

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
from explorer.features.profile.profile_comparison_words import largest_first
from explorer.features.profile.profile_screen import (
    AGAIN,
    ProfileComparisonScreen,
    ProfileDialog,
    ProfileRequest,
)
from explorer.report.present.shell.history_words import state_name
from explorer.settings.parse import path_word
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import MenuItem, PageDialog
from explorer.tui.dialogs.proof import proof_dialog
from explorer.tui.dialogs.states.history_dialog import DiffScreen
from explorer.tui.models.opening import check_source
from explorer.tui.state.hardware import known_machine
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import safe

if TYPE_CHECKING:
    from explorer.facts import History
    from explorer.facts.comparison import TreeDiff
    from explorer.facts.profile.comparison import LayerChange, ProfileComparison

_TITLES = {
    "diff": "comparing",
    "blame": "looking for the layer that departs",
    "compare": "counting both",
    "verify": "verifying",
}


class PairCommand(ScreenCommand):
    """Sets two models side by side."""

    def run(self, text: str = "") -> None:
        """Ask which model to set beside the current one."""
        if self.context.ready():
            self.context.screen.run_worker(self._ask(text), exit_on_error=False)

    async def _ask(self, text: str) -> None:
        await self.context.take_history()
        history = self.store.history
        assert history is not None
        dialog = PairDialog(_states(history), text)
        self.context.ask(dialog, self._answered)

    def _answered(self, choice: str | None) -> None:
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

    def beside(self, other: str, failed: Callable[[], None] = lambda: None) -> None:
        """Set a model beside the current one; call `failed` where that fails."""
        self.begin(failed, before=self.store.history_place, other=other)

    def begin(self, failed: Callable[[], None], **which: Any) -> None:
        """Set two models side by side: `before` and `after`, or `before` and `other`."""
        self.context.start("Side by side", self._align(which), failed)

    async def _align(self, which: dict[str, Any]) -> None:
        try:
            if "other" in which:
                await asyncio.to_thread(check_source, which["other"])
            fact: TreeDiff = await self.jobs.run("setting both side by side", "tree_diff", **which)
        except ExplorerError:
            self.store.beside = ""
            raise
        _Pair(self, which, fact, await asyncio.to_thread(PairRows, fact)).show()


class _Pair:
    """Two models side by side, shown again when the answer to a question about them is closed."""

    def __init__(self, command: PairCommand, which: dict[str, Any], fact: TreeDiff, rows: PairRows) -> None:
        self._command, self._which, self._fact, self._rows = command, which, fact, rows
        self._cursor = 0

    def show(self) -> None:
        """Show both trees."""
        second, words = self._which.get("other"), tuple[str, ...]()
        if second is not None and not self._which["before"]:
            words = ("diff", path_word(self._command.store.source), path_word(second), "--tree")
        screen = PairScreen(self._rows, self._cursor, words, self._keep)
        self._record(second or "")
        self._command.context.ask(screen, self._wanted)

    def _record(self, beside: str) -> None:
        """Record the second model, so that a resumed session has it again."""
        store = self._command.store
        store.beside = beside
        store.notify("focus")

    def _keep(self, cursor: int) -> None:
        self._cursor = cursor

    def _wanted(self, wish: PairRequest | None) -> None:
        context = self._command.context
        if wish is None or wish.what == "tree":
            self._record("")
        if wish is None:
            return
        if wish.what == "tree":
            # a graph exported for the comparison has other rows than the tree on the screen
            if self._fact.form != "exported" and self._which["before"] == context.store.history_place:
                self._command.panes.to_layer(wish.at)
            else:
                context.store.say("the tree on show is another one: its rows are not these")
            return
        if wish.what == "profile":
            self._ask_times()
        else:
            context.start(wish.what.capitalize(), self._answer(wish.what), self.show)

    async def _answer(self, question: str) -> None:
        command = self._command
        fact = await self._run(_TITLES[question], question, **self._which)
        names = safe(self._fact.before), safe(self._fact.after)
        if question == "diff":
            page: Any = DiffScreen(fact, *names, exact=command.store.exact, back="both models")
        elif question == "blame":
            page = BlameScreen(fact)
        elif question == "verify":
            page = proof_dialog(fact, f": {names[0]} and {names[1]}")
        else:
            page = PageDialog("Compare", lambda width: draw(compare(fact), width - 1))
        command.context.ask(page, lambda _: self.show())

    async def _run(self, title: str, method: str, **how: Any) -> Any:
        try:
            return await self._command.jobs.run(title, method, **how)
        except Cancelled:
            self.show()
            raise

    def _ask_times(self) -> None:
        """Ask how to time both models."""
        store, context = self._command.store, self._command.context

        def take(request: ProfileRequest | None) -> None:
            if request is None:
                self.show()
                return
            store.profiled = tuple(request)
            context.start("Profile", self._time(request), self.show)

        last = ProfileRequest(*store.profiled)._replace(beside="")
        context.ask(ProfileDialog(last, graph=store.by_value, states={}), take)

    async def _time(self, request: ProfileRequest) -> None:
        """Time both models in turn; Enter on a layer goes to its row."""
        store = self._command.store
        settings = {"spec": request.spec, "batches": (request.size,) * 2, "machine": known_machine(store)}
        comparison: ProfileComparison = await self._run(
            "profiling both", "compare_profiles", **self._which, **settings
        )
        await self._command.context.take_history()  # the history keeps the profile of a state
        fact = replace(comparison, names=(self._fact.before, self._fact.after))

        def then(at: int | None) -> None:
            if at == AGAIN:
                self._ask_times()
                return
            if at is not None:
                self._cursor = self._place(largest_first(fact)[at])
            self.show()

        self._command.context.ask(ProfileComparisonScreen(fact, exact=store.exact), then)

    def _place(self, change: LayerChange) -> int:
        """The place of a timed layer among the visible rows."""
        for at, row in enumerate(self._fact.rows):
            before, after = row.before and row.before.path, row.after and row.after.path
            if change.path in (before, after):
                return self._rows.reveal(at)
        return self._cursor


def _states(history: History) -> list[MenuItem]:
    """The other states of the history, the opened model first."""
    return [
        MenuItem(f"{STATE}{at}", "", state_name(entry, at), "a state of this session")
        for at, entry in enumerate(history.entries)
        if at != history.current
    ]
