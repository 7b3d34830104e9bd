"""Toy files: a product by what stands in them."""

from __future__ import annotations

from explorer.engine.formats.format import Format, graph_file

FORMAT = Format(
    "toy",
    "a toy (.toy)",
    recognise=lambda probe: probe.head[:4] == b"toy ",
    open=graph_file("toy", "formats.toy.reader:read"),
    endings=(".toy",),
    recognised="'toy '",
    shows="a product",
)
