"""Keys that the rewrite feature adds to the main screen."""

from __future__ import annotations

from explorer.tui.commands.command_key import CommandKey
from explorer.tui.text.keys import CHANGE

COMMANDS = (
    CommandKey(
        "fold",
        ("ampersand",),
        "&",
        "Fold operators…",
        "Remove batch normalization, constants, Identity and Dropout, with proof",
        CHANGE,
        "fold_action.fold",
        menu=True,
        package=__package__,
        after="quantize",
    ),
    CommandKey(
        "infer",
        ("underscore",),
        "_",
        "Declare shapes…",
        "Declare the inferred type and shape of every value in the file",
        CHANGE,
        "infer_action.infer",
        menu=True,
        package=__package__,
        after="fold",
    ),
    CommandKey(
        "rebatch",
        ("asterisk",),
        "*",
        "Another batch size…",
        "Write the model with another batch size, or an open one, and compare each row",
        CHANGE,
        "rebatch_action.rebatch",
        menu=True,
        package=__package__,
        after="infer",
    ),
    CommandKey(
        "edit",
        ("comma",),
        ",",
        "Edit…",
        "Rename or delete the chosen layer's node, set an attribute, replace its operator",
        CHANGE,
        "edit_screen.EditCommand",
        menu=True,
        package=__package__,
        after="extract",
    ),
    CommandKey(
        "apply",
        ("circumflex_accent",),
        "^",
        "Apply a pass…",
        "Apply a pass of your own from a Python file or a package, with proof",
        CHANGE,
        "apply_screen.apply",
        menu=True,
        package=__package__,
        after="edit",
    ),
)
