"""The features of the program, one package each, on top of the packages that all features share.

`FEATURES` lists them. Each `__init__.py` declares the additions of its feature: commands, methods, keys.
`base.features` imports the named modules only when they are used.
"""

FEATURES = (
    "tiling",
    "mapping",
    "emit",
    "quantize",
    "rewrite",
    "split",
    "convert",
    "compare",
    "check",
    "profile",
    "values",
    "graph",
    "sizes",
    "training",
    "sweep",
    "notebook",
)
