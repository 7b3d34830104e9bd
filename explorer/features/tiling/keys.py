"""Keys that the tiling feature adds to the main screen."""

from __future__ import annotations

from explorer.tui.commands.command_key import CommandKey
from explorer.tui.text.keys import CHANGE, LOOK

COMMANDS = (
    CommandKey(
        "blocks",
        ("i",),
        "i",
        "Into the tiles",
        "The current matmul as a grid of blocks, with the tile matmuls of each",
        LOOK,
        "tile_view.TileViewCommand",
        footer="tiles",
        where=("diff",),
        menu=True,
        package=__package__,
        after="serving",
    ),
    CommandKey(
        "tile",
        ("t",),
        "t",
        "Tile…",
        "Split matmuls into hardware-sized tiles",
        CHANGE,
        "tile_screen.TileCommand",
        menu=True,
        package=__package__,
        after="actions",
    ),
)
