"""Keys that the split feature adds to the main screen."""

from __future__ import annotations

from explorer.tui.commands.command_key import CommandKey
from explorer.tui.text.keys import CHANGE

COMMANDS = (
    CommandKey(
        "split",
        ("vertical_line",),
        "|",
        "Split…",
        "Cut the model into the stages of a pipeline: balance, movable cuts, schedule",
        CHANGE,
        "split_action.SplitCommand",
        menu=True,
        package=__package__,
        after="sensitivity",
    ),
    CommandKey(
        "extract",
        ("semicolon",),
        ";",
        "Extract",
        "Make the selected layers a model of their own, with proof; w writes it",
        CHANGE,
        "split_action.extract",
        menu=True,
        package=__package__,
        after="split",
    ),
)
