"""Keys that the convert feature adds to the main screen."""

from __future__ import annotations

from explorer.tui.commands.command_key import CommandKey
from explorer.tui.text.keys import CHANGE

COMMANDS = (
    CommandKey(
        "convert",
        ("W",),
        "W",
        "Convert…",
        "Write the original model in another format, and compare both",
        CHANGE,
        "convert_action.convert",
        menu=True,
        package=__package__,
        after="save",
    ),
)
