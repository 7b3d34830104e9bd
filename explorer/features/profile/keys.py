"""Keys that the profile feature adds to the main screen."""

from __future__ import annotations

from explorer.tui.commands.command_key import CommandKey
from explorer.tui.text.keys import LOOK

COMMANDS = (
    CommandKey(
        "profile",
        ("percent_sign",),
        "%",
        "Profile…",
        "Time the model on this machine: each layer with its spread, and the overhead",
        LOOK,
        "profile_screen.ProfileCommand",
        menu=True,
        package=__package__,
        after="evaluate",
    ),
)
