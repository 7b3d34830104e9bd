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
        "Prove that the model still computes what it did when opened",
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
        "Which layer departs from the model as opened, and how the error grows from there",
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
        "Compare with the model as opened",
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
        "The two trees aligned, this model's and any other's: a state, a file or a name",
        CHANGE,
        "pair_action.PairCommand",
        menu=True,
        package=__package__,
        after="diff",
    ),
)
