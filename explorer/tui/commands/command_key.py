"""Command key: a command of the main screen, and the keys that run it."""

from __future__ import annotations

from explorer.tui.text.keys import Key


class CommandKey(Key, frozen=True):
    """A command of the main screen.

    Attributes:
        id: What it is called; behind a colon stands what it is handed.
        runs: Its module in `package` and its name there; 'app' for what the program does itself.
        footer: Label in the footer, empty if it is not there.
        where: Panes in which it is there: 'tree', ids of tabs; in all where there are none.
        menu: Whether the action menu offers it.
        package: In which its module lies.
        after: Id of the command behind which a feature's command stands; where there is none, it comes last.
    """

    runs: str
    footer: str = ""
    where: tuple[str, ...] = ()
    menu: bool = False
    package: str = "explorer.tui.commands"
    after: str = ""

    @property
    def action(self) -> str:
        """What Textual is asked to run."""
        return f"app.{self.id}" if self.runs == "app" else f"command('{self.id}')"
