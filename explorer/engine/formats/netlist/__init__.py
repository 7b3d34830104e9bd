"""Netlists, graphs as lines of text; how they are recognised, which every start imports."""

from __future__ import annotations

from explorer.engine.formats.format import Format

__all__ = ["FORMAT"]

FORMAT = Format(
    "netlist",
    "a netlist (.netlist)",
    recognise=lambda probe: probe.head.startswith(b"netlist 1\n"),
    open="models.netlist:NetlistModel",
    endings=(".netlist",),
    recognised="its first line",
    shows="operators and shapes; weights are zeros",
)
