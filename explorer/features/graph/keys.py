"""Keys that the graph feature adds to the main screen."""

from __future__ import annotations

from explorer.tui.commands.command_key import CommandKey
from explorer.tui.text.keys import LOOK

COMMANDS = (
    CommandKey(
        "flame",
        ("exclamation_mark",),
        "!",
        "Flame view",
        "Groups as boxes as wide as what they take: time, MACs, parameters, bytes; arrows walk",
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
        "What feeds what in the chosen group, drawn; arrows walk along the edges",
        LOOK,
        "graph_screen.draw_graph",
        footer="graph",
        where=("tree", "layer"),
        menu=True,
        package=__package__,
        after="blocks",
    ),
)
