"""Keys that the sweep feature adds to the main screen."""

from __future__ import annotations

from explorer.tui.commands.command_key import CommandKey
from explorer.tui.text.keys import CHANGE

COMMANDS = (
    CommandKey(
        "sensitivity",
        ("Z",),
        "Z",
        "Sensitivity…",
        "Compare number formats layer by layer, and search a mixed precision",
        CHANGE,
        "sensitivity_screen.sensitivity",
        menu=True,
        package=__package__,
        after="fold",
    ),
    CommandKey(
        "sweep",
        ("S",),
        "S",
        "Sweep…",
        "Compare many tilings: cycles, traffic, buffer, and the Pareto front",
        CHANGE,
        "sweep_screen.sweep",
        menu=True,
        package=__package__,
        after="tile",
    ),
)
