"""Keys of the map view."""

from __future__ import annotations

from explorer.tui.text.keys import key_group

# fmt: off
MAPPING_KEYS = key_group(
    "In the map view",
    ("map_change(1)", ("right", "l"), "→ l", "Larger tile, next order",
        "On a loop the next larger tile; on a memory the next order of the loops below it"),
    ("map_change(-1)", ("left", "h"), "← h", "Smaller tile, previous order",
        "On a loop the next smaller tile; on a memory the previous order of the loops below it"),
    ("map_order", ("o",), "o", "Order of the loops",
        "Switch to the next of the six loop orders, at the cursor's level"),
    ("map_keep", ("space",), "Space", "Keep an operand whole",
        "In the first memory on the chip: none, A, B, C in turn"),
    ("map_best", ("b",), "b", "The best mapping", "Use the best mapping of the search, or start the search"),
    ("map_constrain", ("slash",), "/", "Constraints…", "Limits of the search, such as n%32 k<=256 order=mnk"),
    ("map_objective", ("c",), "c", "Next figure", "What the search minimizes: cycles, energy, traffic, edp"),
    ("map_fuse", ("J",), "J", "Fuse the next operators",
        "Fuse bias, activation, requantization and residual into the matmul, or undo that"),
    ("map_machine", ("m",), "m", "Machine…", "Machines with memories, or a typed one"),
    ("map_plot", ("p",), "p", "Pareto front",
        "Show the front in place of the memories"),
    ("map_front(-1)", ("left_square_bracket",), "[", "Previous mapping", "Go along the Pareto front"),
    ("map_front(1)", ("right_square_bracket",), "]", "Next mapping", "Go along the Pareto front"),
    ("map_tiles", ("i",), "i", "Into the tiles",
        "The tiles of the first memory as a grid, step after step in the order of its loops"),
    ("map_site(1)", ("n",), "n", "Next matmul", "Go through the matmuls of the model"),
    ("map_site(-1)", ("N",), "N", "Previous matmul", "Go through the matmuls of the model"),
    ("map_prove", ("enter",), "Enter", "Prove", "Compile the nest as C, run it, compare numbers and bytes"),
    ("map_emit", ("x",), "x", "Emit C…", "Write the nest as C code into a folder, proved"),
    ("map_write", ("w",), "w", "Write…", "The mapping of this matmul as a file for map --mapping"),
    ("map_exact", ("e",), "e", "Exact or rounded numbers", "714,188,480 or 714.19 M"),
)
# fmt: on
