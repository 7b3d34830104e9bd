"""Command key: a command of the main screen and the keys that run it."""

from __future__ import annotations

from explorer.tui.text.keys import Key


class CommandKey(Key, frozen=True):
    """A command of the main screen.

    Attributes:
        id: Name of the command, with arguments after colons.
        runs: Module in `package` and name of a function or class; 'app' for an action of the application. For
            a record of options, a plain dialog asks for them, and the change with the name `id` is made.
        footer: Label in the key bar, or '' if it is not listed there.
        where: Panes that show the label: 'tree' and IDs of tabs; empty for all.
        menu: Whether the action menu lists the command.
        package: Package of the module.
        after: ID of the command that precedes this one; if it does not exist, this command comes last.
    """

    runs: str
    footer: str = ""
    where: tuple[str, ...] = ()
    menu: bool = False
    package: str = "explorer.tui.commands"
    after: str = ""

    @property
    def action(self) -> str:
        """Action string for Textual."""
        return f"app.{self.id}" if self.runs == "app" else f"command('{self.id}')"
