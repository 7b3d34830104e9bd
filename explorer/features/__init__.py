"""Capabilities of the program, a room each, above the rooms that every capability shares.

`FEATURES` is the one list of them. What each offers stands in its `__init__.py`; `base.features` loads it by
name when it is asked for.
"""

FEATURES = (
    "tiling",
    "quantize",
    "rewrite",
    "split",
    "convert",
    "compare",
    "profile",
    "values",
    "graph",
    "sizes",
    "training",
    "sweep",
)
