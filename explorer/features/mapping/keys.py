"""Keys that the mapping feature adds to the main screen."""

from __future__ import annotations

from explorer.tui.commands.command_key import CommandKey
from explorer.tui.text.keys import LOOK

COMMANDS = (
    CommandKey(
        "mapping",
        ("U",),
        "U",
        "Map to memories",
        "Map the current matmul to a machine with memories: tiles, loops, cycles and energy",
        LOOK,
        "mapping_view.MappingCommand",
        menu=True,
        package=__package__,
        after="blocks",
    ),
)
