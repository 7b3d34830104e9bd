"""Answers for a netlist: those of an ONNX graph, as which it is read."""

from __future__ import annotations

from explorer.engine.formats.netlist import reader
from explorer.engine.models.onnx import OnnxModel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.engine.models.opened import OpenOptions

__all__ = ["NetlistModel"]


class NetlistModel(OnnxModel):
    """A netlist."""

    format = "netlist"

    def __init__(self, source: str, options: OpenOptions) -> None:
        super().__init__(source, options, reader.read(source))
