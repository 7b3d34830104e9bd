"""Drawing of a model in Graphviz's DOT language, which lays it out anew."""

from __future__ import annotations

from collections.abc import Iterator

from explorer.facts.graph.drawing import GraphDrawing
from explorer.features.graph.graph_labels import LIT_COLOR, box_lines, fill, heading, ink, notes, tensor_text

_SHAPES = {"layer": "box", "group": "box3d", "part": "box3d"}


def dot(drawing: GraphDrawing, color: str) -> Iterator[str]:
    """The graph, a line at a time.

    Args:
        drawing: What is drawn.
        color: 'family' or a figure.
    """
    yield "digraph model {\n"
    yield f"  label={_text([heading(drawing), *notes(drawing)])};\n  labelloc=t;\n"
    yield '  node [style=filled, fontname="Helvetica", fontsize=10];\n'
    yield '  edge [color="#7a7a7a", fontname="Helvetica", fontsize=8];\n'
    for at, (box, color_of) in enumerate(zip(drawing.boxes, fill(drawing, color), strict=True)):
        shape = _SHAPES.get(box.role, "ellipse")
        lit = f', color="{LIT_COLOR}", penwidth=2.5' if box.lit else ""
        yield (
            f"  n{at} [label={_text(box_lines(box, color))}, shape={shape},"
            f' fillcolor="{color_of}", fontcolor="{ink(color_of)}"{lit}];\n'
        )
    for edge in drawing.edges:
        label = _text([tensor_text(edge.tensor, edge.tensors)])
        lit = f', color="{LIT_COLOR}", penwidth=2.5' if edge.lit else ""
        yield f"  n{edge.source} -> n{edge.target} [label={label}{lit}];\n"
    yield "}\n"


def _text(lines: list[str]) -> str:
    """A string of DOT's: a backslash would begin one of its own escapes, a quote would end it."""
    quoted = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(quoted) + '"'
