"""Facts about a drawing of a model as a graph: boxes in ranks, and edges with their points.

Positions are whole character cells, x to the right and y down. A terminal draws them unchanged and a picture
scales them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import field

from explorer.base.fact import Fact
from explorer.facts import Layer, TensorInfo
from explorer.facts.external.overlay import OutsideFigure

BoxRole = Literal["layer", "group", "part", "input", "output", "outside"]
"""Role of a box. 'layer'; 'group': a folded group; 'part': consecutive siblings drawn as one box; 'input' or
'output' of the model; 'outside': a producer or reader outside the drawing, or the start or end of an opened
Loop or If.
"""

FIGURES: Mapping[str, str] = {
    "macs": "macs",
    "params": "params",
    "activations": "activation_bytes",
    "weights": "weight_bytes",
    "read": "bytes_read",
    "written": "bytes_written",
    "ops": "elementwise_ops",
}
"""Figures of a box, each with the field of `Layer` that holds it."""


def collect_figures(layer: Layer) -> dict[str, int | None]:
    """Collects the figures of a row by the names of `FIGURES`."""
    return {name: getattr(layer, field) for name, field in FIGURES.items()}


class GraphBox(Fact, frozen=True):
    """A box of a drawing.

    Attributes:
        role: Role of the box.
        row: Id of its layer, or of the first of several layers, or None for an input or output.
        path: Path of the layer `row`, or the name of an input or output.
        name: Label of the box: the path without the path of the drawn group.
        kind: Operator, class or group, as in the layer tree; type of an input or output.
        family: Family of the operator, see `base.families`.
        repeat: Number of consecutive groups with identical structure that the box represents.
        call: Call number and number of calls, if the layer has a box for each call. The number is 0 if the
            box represents all calls. Figures are those of all calls.
        layers: Number of layers in the box, without folded ones.
        tiles: Tiles of the box as text: '1,234 tiles 64x64x64', or '' if it is not tiled.
        figures: Figures by the names of `FIGURES`, summed over the layers of the box, or None if unknown.
        outside: Figures from outside the program by column name. Columns without a figure are missing.
        status: Status of the figures, as in `Layer`.
        attributes: Attributes of the layer, as in `Layer`.
        rows: Half-open range of row ids that the box represents, or None for an input or output.
        unfolds: Half-open range of row ids that replace the box when it is unfolded. For a run, the rows of
            its first group. None if the box cannot be unfolded.
        lit: Whether the highlighted path goes through the box.
        open: Whether the inside of the box is shown first.
        rank: Rank of the box in the drawing, 0 at the top.
        order: Position within the rank, from the left.
        x: Column of its upper left corner, in cells.
        y: Line of its upper left corner, in cells.
        inside: Drawing of its content, if it was requested.
    """

    role: BoxRole
    row: int | None
    path: str
    name: str
    kind: str
    family: str = "other"
    repeat: int = 1
    call: tuple[int, int] = (0, 1)
    layers: int = 1
    tiles: str = ""
    figures: Mapping[str, int | None] = field(default_factory=dict)
    outside: Mapping[str, OutsideFigure] = field(default_factory=dict)
    status: str = "exact"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[int, int] | None = None
    unfolds: tuple[int, int] | None = None
    lit: bool = False
    open: bool = False
    rank: int = 0
    order: int = 0
    x: int = 0
    y: int = 0
    width: int = 0
    height: int = 0
    inside: GraphDrawing | None = None

    @property
    def kind_text(self) -> str:
        """Kind as text: 'Conv', 'Conv, tiled', 'ReLU, call 2 of 3', 'EncoderBlock ×12'."""
        call, calls = self.call
        call_text = f", call {call} of {calls}" if call else f", {calls:,} calls" if calls > 1 else ""
        return f"{self.kind}{', tiled' * bool(self.tiles)}{call_text}{f' ×{self.repeat}' * (self.repeat > 1)}"


class GraphEdge(Fact, frozen=True):
    """An edge: tensors that one box produces and another box reads.

    Attributes:
        source: Index of the producing box among the boxes of the drawing.
        target: Index of the reading box.
        tensor: First of its tensors.
        tensors: Number of its tensors.
        back: Whether the edge points upward. Such an edge closes a cycle, which folded groups can create.
        lit: Whether the edge belongs to the highlighted path.
        points: Points (x, y) from the lower side of the source to the upper side of the target. Empty if the
            drawing has no space for the edge.
    """

    source: int
    target: int
    tensor: TensorInfo
    tensors: int = 1
    back: bool = False
    lit: bool = False
    points: tuple[tuple[int, int], ...] = ()


class GraphRoute(Fact, frozen=True):
    """All paths from one layer or group to another.

    Attributes:
        source: Path of the first layer or group in the layer tree.
        target: Path of the second.
        source_row: Id of the row of the first.
        target_row: Id of the row of the second.
        layers: Number of layers on the paths, without the two ends.
        paths: Number of paths, or None if it exceeds 2^53 or the paths contain a cycle.
    """

    source: str
    target: str
    source_row: int
    target_row: int
    layers: int
    paths: int | None


class GraphDrawing(Fact, frozen=True):
    """Layout of a model, of a group, or of the neighborhood of a layer.

    Attributes:
        source: Name of the model.
        path: Path of the drawn group or layer, or '' for the full model.
        boxes: Boxes in execution order. Inputs and boxes outside the group come first, outputs last.
        depth: Number of opened levels of groups.
        width: Width in cells.
        height: Height in cells.
        folded: Number of layers that are not drawn: constants, shape arithmetic, no-ops.
        notes: Remarks about other simplifications of the drawing.
        unfolded: Row ranges that were unfolded, as in `GraphBox.unfolds`.
        route: Highlighted paths, if any.
        same_name: Paths of other layers that have the same name in the file.
    """

    source: str
    path: str
    boxes: tuple[GraphBox, ...]
    edges: tuple[GraphEdge, ...]
    depth: int
    width: int
    height: int
    folded: int = 0
    notes: tuple[str, ...] = ()
    unfolded: tuple[tuple[int, int], ...] = ()
    route: GraphRoute | None = None
    same_name: tuple[str, ...] = ()


class NodeFigures(Fact, frozen=True):
    """One figure of every node of a graph, for the graph viewer of another program.

    Attributes:
        source: Name of the model.
        graph: Name of its graph.
        figure: Name of the figure: one of `FIGURES`, or a column from outside the program.
        values: Figure by node name, or by the name of its first output if the node has no name. Nodes with an
            unknown figure are omitted.
        missing: Number of omitted nodes.
    """

    source: str
    graph: str
    figure: str
    values: Mapping[str, float]
    missing: int = 0
