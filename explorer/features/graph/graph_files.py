"""Writes a drawing to a file: Graphviz's DOT, a page that folds, node data for Model Explorer, or SVG.

The ending of the file selects the format. The page pans, zooms and folds in one file that loads nothing else:
it holds the layout of every group, and the browser only makes room for opened groups. The names in a model
come from strangers, so the page sets all text as text, never as HTML.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Any

from explorer.base.errors import Misuse
from explorer.base.families import FAMILIES
from explorer.facts.graph.drawing import FIGURES, GraphBox, GraphDrawing, NodeFigures
from explorer.features.graph.graph_labels import (
    COLORINGS,
    FULL_COLOR,
    LIT_COLOR,
    PALE_COLOR,
    box_lines,
    box_title,
    figure_label,
    fill,
    heading,
    ink,
    notes,
    tensor_text,
    value_of,
)
from explorer.features.graph.graph_svg import CELL, svg
from explorer.host import output_files
from explorer.report.json_text import pieces

_SHAPES = {"layer": "box", "group": "box3d", "part": "box3d"}


def dot(drawing: GraphDrawing, color: str) -> Iterator[str]:
    """The graph in Graphviz's DOT language, a line at a time.

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
    """Lines as one DOT string, with backslashes and quotes escaped."""
    quoted = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(quoted) + '"'


def page(drawing: GraphDrawing, color: str) -> Iterator[str]:
    """The page that pans, zooms and folds, in pieces.

    Args:
        drawing: What is drawn, nested.
        color: 'family' or a figure: what is chosen at first.
    """
    outside = dict.fromkeys(name for box in _boxes(drawing) for name in box.outside)
    page_data = {
        "title": heading(drawing),
        "notes": notes(drawing),
        "route": drawing.route is not None,
        "color": color,
        "colorings": [*COLORINGS, *outside],
        "families": {family.name: family.color for family in FAMILIES.values()},
        "cell": CELL,
        "graph": _graph(drawing, [*FIGURES, *outside]),
    }
    before, after = files(__package__).joinpath("page.html").read_text("utf-8").split("DATA", 1)
    yield before
    # no text in it may end the script element that holds it
    yield json.dumps(page_data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    yield after


def _boxes(drawing: GraphDrawing) -> Iterator[GraphBox]:
    """All boxes, nested ones included."""
    for box in drawing.boxes:
        yield box
        if box.inside is not None:
            yield from _boxes(box.inside)


def _graph(drawing: GraphDrawing, figures: Sequence[str]) -> dict[str, Any]:
    return {
        "w": drawing.width,
        "h": drawing.height,
        "boxes": [_box(box, figures) for box in drawing.boxes],
        "edges": [
            [edge.source, edge.target, tensor_text(edge.tensor, edge.tensors), edge.points, int(edge.lit)]
            for edge in drawing.edges
            if edge.points
        ],
    }


def _box(box: GraphBox, figures: Sequence[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "role": box.role,
        "lines": box_lines(box, "family"),
        "about": box_title(box),
        "family": box.family,
        "figures": [value_of(box, name) for name in figures],
        "said": [figure_label(box, name) for name in figures],
        "at": [box.x, box.y, box.width, box.height, box.rank],
    }
    if box.lit:
        fields["lit"] = True
    if box.inside is not None:
        fields["open"] = box.open
        fields["inside"] = _graph(box.inside, figures)
    return fields


def node_data(figures: NodeFigures) -> dict[str, Any]:
    """Figures as Model Explorer's node data, to be laid over its picture of the same model.

    The fields are those of `GraphNodeData`, `NodeDataResult` and `GradientItem` in the package
    `ai-edge-model-explorer`, and a test compares them. Data of one graph is laid over the graph on show. The
    key 'results' means data of many graphs, so figures with a node of that name are nested under their graph.

    Args:
        figures: What is laid over the picture.
    """
    document = {
        "results": {name: {"value": value} for name, value in figures.values.items()},
        "name": figures.figure,
        "gradient": [{"stop": 0, "bgColor": PALE_COLOR}, {"stop": 1, "bgColor": FULL_COLOR}],
    }
    return {figures.graph or "graph": document} if "results" in figures.values else document


_WRITERS: dict[str, Callable[[GraphDrawing, str], Iterable[str]]] = {".svg": svg, ".dot": dot, ".html": page}
NODE_DATA, TEXT = ".json", ".txt"
"""Endings of node data, and of text, which is drawn as the screen draws it."""


def check(path: str) -> str:
    """The format of a file, by its ending.

    Raises:
        Misuse: The ending is none of the formats.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in (*_WRITERS, NODE_DATA, TEXT):
        raise Misuse("the ending says the format", where=path, hint="use .svg, .html, .txt, .dot or .json")
    return ending


def write(fact: GraphDrawing | NodeFigures, color: str, format: str, path: str) -> None:
    """Writes a drawing, or node data for Model Explorer.

    Args:
        fact: What is drawn.
        color: 'family' or a figure.
        format: The ending that the file will have.
        path: Where to write.
    """
    with output_files.text(path) as file:
        if isinstance(fact, NodeFigures):
            file.writelines(pieces(node_data(fact)))
        else:
            file.writelines(_WRITERS[format](fact, color))
