"""Drawing of a model as a page that pans, zooms and folds, in one file that asks nobody for anything.

The layout of every group comes with the page; what is left to the browser is to make room for those that are
opened. All text is set as text: names are whoever's who made the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

from explorer.base.families import FAMILIES
from explorer.facts.graph.drawing import FIGURES, GraphBox, GraphDrawing
from explorer.features.graph.graph_labels import (
    COLORINGS,
    box_lines,
    box_title,
    heading,
    notes,
    said_of,
    tensor_text,
    value_of,
)
from explorer.features.graph.graph_svg import CELL


def page(drawing: GraphDrawing, color: str) -> Iterator[str]:
    """The page.

    Args:
        drawing: What is drawn, nested.
        color: 'family' or a figure: what is chosen at first.
    """
    outside = dict.fromkeys(name for box in _boxes(drawing) for name in box.outside)
    data = {
        "title": heading(drawing),
        "notes": notes(drawing),
        "route": drawing.route is not None,
        "color": color,
        "colorings": [*COLORINGS, *outside],
        "families": {one.name: one.color for one in FAMILIES.values()},
        "cell": CELL,
        "graph": _graph(drawing, [*FIGURES, *outside]),
    }
    before, after = files(__package__).joinpath("page.html").read_text("utf-8").split("DATA", 1)
    yield before
    # nothing in it may end the element that holds it
    yield json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    yield after


def _boxes(drawing: GraphDrawing) -> Iterator[GraphBox]:
    """All boxes, those in others too."""
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
    found: dict[str, Any] = {
        "role": box.role,
        "lines": box_lines(box, "family"),
        "about": box_title(box),
        "family": box.family,
        "figures": [value_of(box, name) for name in figures],
        "said": [said_of(box, name) for name in figures],
        "at": [box.x, box.y, box.width, box.height, box.rank],
    }
    if box.lit:
        found["lit"] = True
    if box.inside is not None:
        found["open"] = box.open
        found["inside"] = _graph(box.inside, figures)
    return found
