"""The history command: visits, compares and proves states, and saves them as a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.report.present.shell.history_words import state_name
from explorer.tui.commands.change.save import write_file
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.commands.key_table import find_command, has_command
from explorer.tui.dialogs.proof import proof_dialog
from explorer.tui.dialogs.states.figures_screen import FigureScreen
from explorer.tui.dialogs.states.history_dialog import DiffScreen, HistoryRequest, HistoryScreen
from explorer.tui.state.hardware import find_machine
from explorer.tui.text.lines import escape_name

if TYPE_CHECKING:
    from explorer.facts import Diff, History, Verification
    from explorer.facts.comparison import FigureTable


class HistoryCommand(ScreenCommand):
    """Shows the states of the session and runs the chosen action."""

    def run(self, state: int | None = None) -> None:
        """Open the History screen, with the cursor on `state` (None: the current one)."""
        self.context.open_view("History", self._show(state))

    async def _show(self, state: int | None) -> None:
        await self.context.load_history()
        assert self.store.history is not None
        screen = HistoryScreen(self.store.history, self._rename, state=state)
        self.context.ask(screen, self._handle_answer)

    async def _rename(self, state: int, name: str) -> History:
        history: History = await self.jobs.ask("name", state, name)
        self.store.history = history
        self.store.notify("history")
        return history

    def _handle_answer(self, request: HistoryRequest | None) -> None:
        if request is None:
            return
        if request.action in ("script", "script_all"):
            is_all = request.action == "script_all"
            target = "every state" if is_all else self._name_state(request.state)
            question = f"The commands that make {target} again, as a shell script, written to"
            path = f"{self.store.stem}.sh"
            write_file(
                self.context,
                "Save as a script",
                path,
                question,
                "script",
                index=request.state,
                branches=is_all,
            )
            return
        title, work = {
            "go": ("Go there", self._go),
            "compare": ("Compare", self._compare),
            "figures": ("Figures", self._show_figures),
            "prove": ("Prove", self._prove),
        }[request.action]
        self.context.start(title, work(request))

    def go(self, state: int) -> None:
        """Make a state the current one."""
        self.context.start("Go there", self._go(HistoryRequest("go", state)))

    def _name_state(self, state: int) -> str:
        assert self.store.history is not None
        return f"{state} {escape_name(state_name(self.store.history.entries[state], state))}"

    async def _go(self, request: HistoryRequest) -> None:
        assert self.store.history is not None
        previous_state = self.store.history.current
        if request.state == previous_state:
            return
        self.store.history = await self.jobs.run("going back", "go", request.state)
        await self.context.show_current("go", previous_state)
        self.store.say(f"this is {self._name_state(request.state)}")
        if self.store.tab == "diff":
            self.panes.tabs.open("diff", focus=False)

    async def _compare(self, request: HistoryRequest) -> None:
        changes: Diff = await self.jobs.run("comparing", "diff", request.other_state, request.state)
        names = self._name_state(request.other_state), self._name_state(request.state)
        self.context.ask(
            DiffScreen(changes, *names, exact=self.store.exact), lambda _: self.run(request.state)
        )

    async def _show_figures(self, request: HistoryRequest) -> None:
        find_machine(self.store)
        hardware = self.store.hardware
        table: FigureTable = await self.jobs.run("comparing", "beside", request.marked, hardware=hardware)
        self.context.ask(
            FigureScreen(table, "states", exact=self.store.exact), lambda _: self.run(request.state)
        )

    async def _prove(self, request: HistoryRequest) -> None:
        proof: Verification = await self.jobs.run("verifying", "verify", request.other_state, request.state)

        def handle_answer(is_accepted: bool | None) -> None:
            if is_accepted and not proof.passed and has_command("blame"):
                find_command("blame")(self.context).begin(before=request.other_state, after=request.state)
            else:
                self.run(request.state)

        title = f": {self._name_state(request.other_state)} and {self._name_state(request.state)}"
        self.context.ask(proof_dialog(proof, title), handle_answer)
