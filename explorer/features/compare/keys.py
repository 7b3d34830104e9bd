"""Keys that the compare feature adds to the main screen."""

from __future__ import annotations

from explorer.tui.commands.command_key import CommandKey
from explorer.tui.text.keys import CHANGE

COMMANDS = (
    CommandKey(
        "verify",
        ("v",),
        "v",
        "Verify",
        "Prove that the model still computes the same as the original",
        CHANGE,
        "compare_action.verify",
        footer="verify",
        where=("diff",),
        menu=True,
        package=__package__,
        after="edit",
    ),
    CommandKey(
        "blame",
        ("B",),
        "B",
        "Blame",
        "Find the first layer that differs from the original, and how the error grows",
        CHANGE,
        "blame_screen.BlameCommand",
        menu=True,
        package=__package__,
        after="verify",
    ),
    CommandKey(
        "diff",
        ("d",),
        "d",
        "Diff",
        "Compare with the original model",
        CHANGE,
        "compare_action.diff",
        menu=True,
        package=__package__,
        after="blame",
    ),
    CommandKey(
        "pair",
        ("equals_sign",),
        "=",
        "Set beside…",
        "Show this model's tree beside that of another state, file or named model",
        CHANGE,
        "pair_action.PairCommand",
        menu=True,
        package=__package__,
        after="diff",
    ),
)
