"""Keys that the graph feature adds to the main screen."""

from __future__ import annotations

from explorer.tui.commands.command_key import CommandKey
from explorer.tui.text.keys import LOOK, NO_KEY

COMMANDS = (
    CommandKey(
        "flame",
        ("exclamation_mark",),
        "!",
        "Flame view",
        "Groups as boxes whose width is time, MACs, parameters or bytes; arrows move",
        LOOK,
        "flame_screen.flame",
        menu=True,
        package=__package__,
        after="profile",
    ),
    CommandKey(
        "graph",
        ("G",),
        "G",
        "Graph",
        "Draw which layer feeds which in the current group; arrows follow the edges",
        LOOK,
        "graph_screen.draw_graph",
        footer="graph",
        where=("tree", "layer"),
        menu=True,
        package=__package__,
        after="blocks",
    ),
    CommandKey(
        "module_code",
        (),
        NO_KEY,
        "Code of the module",
        "The TorchScript code of the module under the cursor, as its file contains it",
        LOOK,
        "code_action.show_code",
        package=__package__,
        after="graph",
    ),
    CommandKey(
        "module_graph",
        (),
        NO_KEY,
        "SSA graph of the module",
        "The TorchScript graph of the module under the cursor, as torch prints it (needs --trust)",
        LOOK,
        "code_action.show_graph",
        package=__package__,
        after="module_code",
    ),
)
