"""Drawing of a model as a graph: boxes in ranks, edges with the points that they go through.

Positions are whole character cells, x to the right and y down, so that a terminal draws them as they are and
a picture scales them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from explorer.facts import Layer, TensorInfo
from explorer.facts.external.overlay import OutsideFigure

BoxRole = Literal["layer", "group", "part", "input", "output", "outside"]
"""A layer; a folded group; a run of neighbours that are drawn as one; an input or output of the model; what
feeds or reads what is drawn, and stands outside of it, or is where an opened Loop or If begins and ends."""

FIGURES: Mapping[str, str] = {
    "macs": "macs",
    "params": "params",
    "activations": "activation_bytes",
    "weights": "weight_bytes",
    "read": "bytes_read",
    "written": "bytes_written",
    "ops": "elementwise_ops",
}
"""Figures of a box, and the field of a `Layer` that each is."""


def figures_of(layer: Layer) -> dict[str, int | None]:
    """The figures of a row."""
    return {name: getattr(layer, field) for name, field in FIGURES.items()}


class GraphBox(Struct, frozen=True):
    """A box of a drawing.

    Attributes:
        role: What it stands for.
        row: Id of the layer; of the first one where it stands for several; None for an input or output.
        path: Of that layer; the name of an input or output.
        name: What to write: the path without that of the drawn group.
        kind: Operator, class or group, as the layer tree has it; of an input or output its type.
        family: See `base.families`.
        repeat: How many groups that are built alike it stands for, one behind the other.
        call: Which call of how many, of a layer that runs several times in one pass and has a box for each; 0
            where the box stands for them all. Figures are of all calls.
        layers: Layers inside, without those that are folded away.
        tiles: What its tiles are: '1,234 tiles 64x64x64'; empty for what is not tiled.
        figures: By the names of `FIGURES`, of all that it stands for; None where not known.
        outside: Figures from outside, by the names of their columns; none where there is none.
        status: Of the figures, as a `Layer` has it.
        attributes: Of a layer, as it has them.
        rows: From the first that it stands for to behind the last; None for an input or output.
        unfolds: The rows that are drawn in its place when it is unfolded: of a run the first of its groups.
            None for what has nothing inside.
        lit: The path that is followed goes through it.
        open: Its inside is to be shown first.
        rank: Its layer in the drawing, 0 at the top; `order` is its place from the left.
        x, y: Its upper left corner.
        inside: What stands in it, where that was asked for.
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
        """The kind in words: 'Conv', 'Conv, tiled', 'ReLU, call 2 of 3', 'EncoderBlock ×12'."""
        call, calls = self.call
        call_text = f", call {call} of {calls}" if call else f", {calls:,} calls" if calls > 1 else ""
        return f"{self.kind}{', tiled' * bool(self.tiles)}{call_text}{f' ×{self.repeat}' * (self.repeat > 1)}"


class GraphEdge(Struct, frozen=True):
    """An edge: tensors that one box makes and another reads.

    Attributes:
        source, target: Places of the boxes among those of the drawing.
        tensor: The first of its tensors.
        tensors: How many there are.
        back: It goes up: what makes the tensor also reads what comes of it, as folded groups may.
        lit: It lies on the path that is followed.
        points: (x, y) from the lower side of the source to the upper side of the target; empty for one that
            the drawing has no room for.
    """

    source: int
    target: int
    tensor: TensorInfo
    tensors: int = 1
    back: bool = False
    lit: bool = False
    points: tuple[tuple[int, int], ...] = ()


class GraphRoute(Struct, frozen=True):
    """The paths from one layer or group to another.

    Attributes:
        source, target: Paths of the two in the layer tree; `source_row` and `target_row` their ids.
        layers: How many stand on them, without the two.
        paths: How many there are; None for more than 2^53, and where they go in a circle.
    """

    source: str
    target: str
    source_row: int
    target_row: int
    layers: int
    paths: int | None


class GraphDrawing(Struct, frozen=True):
    """A model, a group of it or the neighbourhood of a layer, laid out.

    Attributes:
        source: The model.
        path: Of the group or layer that is drawn; empty for the whole model.
        boxes: In execution order; inputs and what stands outside come first, outputs last.
        depth: How many levels of groups are opened.
        width, height: In cells.
        folded: Layers that are not drawn: constants, shape arithmetic, what does nothing.
        notes: What else is not drawn as it is, in words.
        unfolded: What was opened in its place, as `GraphBox.unfolds` says it.
        route: The paths that are followed, if any.
        same_name: Paths of other layers that the file calls as it calls this one.
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


class NodeFigures(Struct, frozen=True):
    """A figure of every node of a graph, for another program's picture of it.

    Attributes:
        source: The model.
        graph: Name of its graph.
        figure: Which of `FIGURES`, or a column from outside.
        values: By the name of the node, or of the first tensor that it makes where it has none; nodes of
            which the figure is not known are left out.
        missing: How many those are.
    """

    source: str
    graph: str
    figure: str
    values: Mapping[str, float]
    missing: int = 0
