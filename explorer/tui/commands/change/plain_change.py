"""Plain change: a dialog with a field for each option of a change, and the job that makes the change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.dialogs.record_form import RecordForm

if TYPE_CHECKING:
    from explorer.base.checked import Spec
    from explorer.tui.commands.command_key import CommandKey
    from explorer.tui.commands.context import CommandContext


class PlainForm(RecordForm["Spec"]):
    """A dialog for the options that a record declares with a label.

    Args:
        title: Title of the dialog.
        spec: Record with the initial values.
    """

    HINT = "↑↓←→ choose · Enter apply · Esc cancel"

    def __init__(self, title: str, spec: Spec) -> None:
        super().__init__(spec)
        self.TITLE_TEXT = title


class PlainChange:
    """A change whose options need no dialog of their own.

    Args:
        context: The main screen.
        command: Command of the change. Its ID is the verb.
        record: Type of the change's options.
    """

    def __init__(self, context: CommandContext, command: CommandKey, record: type[Spec]) -> None:
        self._context, self._verb, self._record = context, command.id, record
        self._title = command.title.removesuffix("…")

    def run(self) -> None:
        """Ask for the options, then make the change."""
        if self._context.ready():
            self._context.ask(PlainForm(self._title, self._record()), self._on_answer)

    def _on_answer(self, spec: Spec | None) -> None:
        if spec is not None:
            self._context.start(self._title, self._make_change(spec))

    async def _make_change(self, spec: Spec) -> None:
        context = self._context
        previous_state = context.store.history_place
        fact = await context.jobs.run(self._title.lower(), "do", self._verb, spec)
        await context.load_history()
        await context.show_new_state("go", previous_state, command=fact.command)
