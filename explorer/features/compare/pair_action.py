"""Pair command: the model on show beside a state or another model, and what is asked of the two."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.errors import Cancelled, ExplorerError
from explorer.features.compare.blame_view import BlameScreen
from explorer.features.compare.compare_words import compare
from explorer.features.compare.pair_dialog import FOLDER, MODEL, STATE, PairDialog
from explorer.features.compare.pair_rows import PairRows
from explorer.features.compare.pair_screen import PairRequest, PairScreen
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
    """Two models side by side."""

    def run(self, text: str = "") -> None:
        """Ask which is set beside the one on show."""
        if self.context.ready():
            self.context.screen.run_worker(self._ask(text), exit_on_error=False)

    async def _ask(self, text: str) -> None:
        await self.context.take_history()
        history = self.store.history
        assert history is not None
        dialog = PairDialog(_states(history), text)
        self.context.ask(dialog, self._answered)

    def _answered(self, chosen: str | None) -> None:
        history = self.store.history
        if chosen is None or history is None:
            return
        if chosen.startswith(FOLDER):
            self.run(chosen.removeprefix(FOLDER))
        elif chosen.startswith(STATE):
            self.begin(lambda: None, before=int(chosen.removeprefix(STATE)), after=history.current)
        else:
            typed = chosen.removeprefix(MODEL)
            self.beside(os.path.expanduser(typed), lambda: self.run(typed))

    def beside(self, other: str, failed: Callable[[], None] = lambda: None) -> None:
        """Set a model beside the one on show; `failed` follows where it cannot be."""
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
    """Two models that are side by side: shown again when what was asked of them is closed."""

    def __init__(self, command: PairCommand, which: dict[str, Any], fact: TreeDiff, rows: PairRows) -> None:
        self._command, self._which, self._fact, self._rows = command, which, fact, rows
        self._cursor = 0

    def show(self) -> None:
        """Show both."""
        other, words = self._which.get("other"), tuple[str, ...]()
        if other is not None and not self._which["before"]:
            words = ("diff", path_word(self._command.store.source), path_word(other), "--tree")
        screen = PairScreen(self._rows, self._cursor, words, self._keep)
        self._set(other or "")
        self._command.context.ask(screen, self._wanted)

    def _set(self, beside: str) -> None:
        """What a session that is resumed has beside its model."""
        store = self._command.store
        store.beside = beside
        store.notify("focus")

    def _keep(self, cursor: int) -> None:
        self._cursor = cursor

    def _wanted(self, wish: PairRequest | None) -> None:
        context = self._command.context
        if wish is None or wish.what == "tree":
            self._set("")
        if wish is None:
            return
        if wish.what == "tree":
            # rows of a graph that was exported to be compared are none of the tree on show
            if self._fact.form != "exported" and self._which["before"] == context.store.history_place:
                self._command.panes.to_layer(wish.at)
            else:
                context.store.say("the tree on show is another one: its rows are not these")
            return
        if wish.what == "profile":
            self._ask_times()
        else:
            context.start(wish.what.capitalize(), self._tell(wish.what), self.show)

    async def _tell(self, what: str) -> None:
        command = self._command
        fact = await self._run(_TITLES[what], what, **self._which)
        names = safe(self._fact.before), safe(self._fact.after)
        if what == "diff":
            page: Any = DiffScreen(fact, *names, exact=command.store.exact, back="both models")
        elif what == "blame":
            page = BlameScreen(fact)
        elif what == "verify":
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
        """How both are timed."""
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
        """Time both in turn; Enter on a layer leads to its row."""
        store = self._command.store
        how = {"spec": request.spec, "batches": (request.size,) * 2, "machine": known_machine(store)}
        found: ProfileComparison = await self._run("profiling both", "compare_profiles", **self._which, **how)
        await self._command.context.take_history()  # it keeps what a state took
        fact = replace(found, names=(self._fact.before, self._fact.after))

        def then(at: int | None) -> None:
            if at == AGAIN:
                self._ask_times()
                return
            if at is not None:
                self._cursor = self._place(largest_first(fact)[at])
            self.show()

        self._command.context.ask(ProfileComparisonScreen(fact, exact=store.exact), then)

    def _place(self, change: LayerChange) -> int:
        """Where a layer that was timed is on show."""
        for at, row in enumerate(self._fact.rows):
            before, after = row.before and row.before.path, row.after and row.after.path
            if change.path in (before, after):
                return self._rows.reveal(at)
        return self._cursor


def _states(history: History) -> list[MenuItem]:
    """The states that the current one can stand beside, the model as opened first."""
    return [
        MenuItem(f"{STATE}{at}", "", state_name(entry, at), "a state of this session")
        for at, entry in enumerate(history.entries)
        if at != history.current
    ]
