"""Writes a drawing as SVG, Graphviz's DOT or an HTML page that folds, and node data for Model Explorer.

The file extension selects the format. The HTML page is self-contained: it contains the layout of every group,
and the browser only moves boxes when a group opens. Model files are untrusted, so the page inserts all their
names as text, never as HTML.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise
from typing import Any

from explorer.base.errors import Misuse
from explorer.base.families import FAMILIES
from explorer.facts.graph.drawing import FIGURES, GraphBox, GraphDrawing, GraphEdge, NodeFigures
from explorer.features.graph.graph_labels import (
    COLORINGS,
    FULL_COLOR,
    LIT_COLOR,
    PALE_COLOR,
    build_box_title,
    choose_colors,
    choose_text_color,
    find_figure_value,
    format_figure_label,
    format_shape,
    heading,
    legend,
    list_box_lines,
    notes,
    shorten_box_names,
)
from explorer.host import output_files
from explorer.report.json_text import encode_document

CELL = (8, 14)
"""Width and height of a character cell, in pixels."""
_MARGIN, _LINE_HEIGHT = 24, 16
_STYLE = (
    "text{font:12px 'DejaVu Sans',Verdana,sans-serif}.n{font-weight:600}.e{fill:none;stroke:#7a7a7a}"
    ".l{fill:#5a5a5a;font-size:10px;paint-order:stroke;stroke:#fff;stroke-width:3px}"
    f".h{{font-size:15px}}.d{{fill:#5a5a5a}}.p{{stroke:{LIT_COLOR};stroke-width:2.5}}.u{{opacity:.4}}"
)


def write_svg(drawing: GraphDrawing, color: str) -> Iterator[str]:
    """Draw the graph as SVG; yield the text in pieces.

    Args:
        drawing: Graph to draw.
        color: 'family' or the name of a figure; sets the fill of the boxes.
    """
    note_lines, legend_entries = notes(drawing), [*legend(drawing, color)]
    top = _MARGIN + _LINE_HEIGHT * (2 + len(note_lines)) + (_LINE_HEIGHT + 8) * bool(legend_entries)
    legend_width = sum(len(text) * 8 + 34 for _, text in legend_entries)
    width = (
        max(
            drawing.width * CELL[0],
            legend_width,
            *(7 * len(line) for line in (heading(drawing), *note_lines)),
        )
        + 2 * _MARGIN
    )
    height = drawing.height * CELL[1] + top + _MARGIN
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}">\n<style>{_STYLE}</style>\n'
        f"<defs>{_draw_arrow('a', '#7a7a7a')}{_draw_arrow('b', LIT_COLOR)}</defs>\n"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        f'<text class="h" x="{_MARGIN}" y="{_MARGIN + 4}">{escape(heading(drawing))}</text>\n'
    )
    for index, line in enumerate(note_lines):
        y = _MARGIN + _LINE_HEIGHT * (index + 2)
        yield f'<text class="d" x="{_MARGIN}" y="{y}">{escape(line)}</text>\n'
    yield from _draw_legend(legend_entries, top - _LINE_HEIGHT - 8)
    yield f'<g transform="translate({_MARGIN} {top})">\n'
    has_route = drawing.route is not None
    for edge in sorted(drawing.edges, key=lambda edge: edge.lit):
        if edge.points:
            style, end = ("e p", "b") if edge.lit else ("e u" if has_route else "e", "a")
            yield f'<path class="{style}" d="{draw_curve(edge)}" marker-end="url(#{end})"/>\n'
    names = shorten_box_names(drawing.boxes)
    for box, name, fill in zip(drawing.boxes, names, choose_colors(drawing, color), strict=True):
        yield from _draw_box(box, fill, list_box_lines(box, color, name), has_route and not box.lit)
    yield from _draw_shape_labels(drawing.edges)
    yield "</g>\n</svg>\n"


def _draw_arrow(id: str, color: str) -> str:
    return (
        f'<marker id="{id}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
        f' markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" fill="{color}"/></marker>'
    )


def draw_curve(edge: GraphEdge) -> str:
    """Return the SVG path of an edge: straight within the ranks, curved between them."""
    points = [(x * CELL[0] + CELL[0] // 2, y * CELL[1]) for x, y in edge.points]
    # the last point is one cell above the box, where a terminal draws the arrowhead
    points[-1] = points[-1][0], points[-1][1] + (0 if edge.back else CELL[1])
    words = [f"M{points[0][0]} {points[0][1]}"]
    for (x, y), (next_x, next_y) in pairwise(points):
        half = (next_y - y) / 2
        bend = f"C{x} {y + half:g} {next_x} {next_y - half:g} {next_x} {next_y}"
        words.append(f"V{next_y}" if x == next_x else bend)
    return "".join(words)


def _draw_box(box: GraphBox, color: str, lines: Sequence[str], is_faint: bool) -> Iterator[str]:
    """Draw a box with its lines of text. `is_faint` draws it half transparent."""
    x, y, width, height = box.x * CELL[0], box.y * CELL[1], box.width * CELL[0], box.height * CELL[1]
    radius = {"group": 3, "part": 3, "layer": 6}.get(box.role, height // 2)
    style = ' class="u"' if is_faint else ""
    yield f"<g{style}><title>{escape(build_box_title(box))}</title>"
    if box.role in ("group", "part"):  # a second outline shows that the box can be opened
        yield _draw_rectangle(x + 5, y + 5, width, height, radius, color)
    yield _draw_rectangle(
        x, y, width, height, radius, color, ' class="p"' if box.lit else ' stroke="#6a6a6a"'
    )
    first_baseline = y + height / 2 - 8 * (len(lines) - 1) + 4
    for index, line in enumerate(lines):
        style = ' class="n"' if not index else ""
        yield (
            f'<text{style} x="{x + width // 2}" y="{first_baseline + 16 * index:g}" text-anchor="middle"'
            f' fill="{choose_text_color(color)}">{escape(line)}</text>'
        )
    yield "</g>\n"


def _draw_rectangle(
    x: int, y: int, width: int, height: int, radius: int, color: str, stroke: str = ' stroke="#6a6a6a"'
) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}" fill="{color}"{stroke}/>'


def _draw_shape_labels(edges: Sequence[GraphEdge]) -> Iterator[str]:
    """Write the tensor shape at the start of each edge.

    Edges of one box with the same shape share a label.
    """
    labeled: set[tuple[int, str]] = set()
    for edge in edges:
        text = format_shape(edge.tensor, edge.tensors)
        if edge.points and (edge.source, text) not in labeled:
            label_count = sum(source == edge.source for source, _ in labeled)
            labeled.add((edge.source, text))
            x, y = edge.points[0]
            yield (
                f'<text class="l" x="{x * CELL[0] + 10}" y="{y * CELL[1] + 17 + 12 * label_count}">'
                f"{escape(text)}</text>\n"
            )


def _draw_legend(entries: Sequence[tuple[str, str]], y: int) -> Iterator[str]:
    x = _MARGIN
    for color, text in entries:
        yield _draw_rectangle(x, y - 11, 14, 14, 3, color)
        yield f'<text x="{x + 19}" y="{y}">{escape(text)}</text>\n'
        x += len(text) * 8 + 34


_SHAPES = {"layer": "box", "group": "box3d", "part": "box3d"}
"""Graphviz shape by role of the box."""


def write_dot(drawing: GraphDrawing, color: str) -> Iterator[str]:
    """Write the graph in Graphviz's DOT language; yield one line at a time.

    Args:
        drawing: Graph to draw.
        color: 'family' or the name of a figure; sets the fill of the boxes.
    """
    yield "digraph model {\n"
    yield f"  label={_quote_lines([heading(drawing), *notes(drawing)])};\n  labelloc=t;\n"
    yield '  node [style=filled, fontname="Helvetica", fontsize=10];\n'
    yield '  edge [color="#7a7a7a", fontname="Helvetica", fontsize=8];\n'
    names, colors = shorten_box_names(drawing.boxes), choose_colors(drawing, color)
    for index, (box, name, fill) in enumerate(zip(drawing.boxes, names, colors, strict=True)):
        shape = _SHAPES.get(box.role, "ellipse")
        lit = f', color="{LIT_COLOR}", penwidth=2.5' if box.lit else ""
        yield (
            f"  n{index} [label={_quote_lines(list_box_lines(box, color, name))}, shape={shape},"
            f' fillcolor="{fill}", fontcolor="{choose_text_color(fill)}"{lit}];\n'
        )
    for edge in drawing.edges:
        label = _quote_lines([format_shape(edge.tensor, edge.tensors)])
        lit = f', color="{LIT_COLOR}", penwidth=2.5' if edge.lit else ""
        yield f"  n{edge.source} -> n{edge.target} [label={label}{lit}];\n"
    yield "}\n"


def _quote_lines(lines: list[str]) -> str:
    """Join lines into one quoted DOT string, with backslashes and quotes escaped."""
    quoted = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(quoted) + '"'


def write_page(drawing: GraphDrawing, color: str) -> Iterator[str]:
    """Write the HTML page that pans, zooms and folds; yield the text in pieces.

    Args:
        drawing: Graph to draw, with a nested drawing in each group.
        color: 'family' or the name of a figure; the coloring that is selected first.
    """
    outside = dict.fromkeys(name for box in _iterate_boxes(drawing) for name in box.outside)
    page_data = {
        "title": heading(drawing),
        "notes": notes(drawing),
        "route": drawing.route is not None,
        "color": color,
        "colorings": [*COLORINGS, *outside],
        "families": {family.name: family.color for family in FAMILIES.values()},
        "cell": CELL,
        "graph": _build_graph(drawing, [*FIGURES, *outside]),
    }
    page_start, page_end = files(__package__).joinpath("page.html").read_text("utf-8").split("DATA", 1)
    yield page_start
    # escape `<` so that no name in the data can close the script element
    yield json.dumps(page_data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    yield page_end


def _iterate_boxes(drawing: GraphDrawing) -> Iterator[GraphBox]:
    """Yield all boxes, including nested boxes."""
    for box in drawing.boxes:
        yield box
        if box.inside is not None:
            yield from _iterate_boxes(box.inside)


def _build_graph(drawing: GraphDrawing, figures: Sequence[str]) -> dict[str, Any]:
    return {
        "w": drawing.width,
        "h": drawing.height,
        "boxes": [
            _build_box(box, name, figures)
            for box, name in zip(drawing.boxes, shorten_box_names(drawing.boxes), strict=True)
        ],
        "edges": [
            [edge.source, edge.target, format_shape(edge.tensor, edge.tensors), edge.points, int(edge.lit)]
            for edge in drawing.edges
            if edge.points
        ],
    }


def _build_box(box: GraphBox, name: str, figures: Sequence[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "role": box.role,
        "lines": list_box_lines(box, "family", name),
        "about": build_box_title(box),
        "family": box.family,
        "figures": [find_figure_value(box, name) for name in figures],
        "said": [format_figure_label(box, name) for name in figures],
        "at": [box.x, box.y, box.width, box.height, box.rank],
    }
    if box.lit:
        fields["lit"] = True
    if box.inside is not None:
        fields["open"] = box.open
        fields["inside"] = _build_graph(box.inside, figures)
    return fields


def build_node_data(figures: NodeFigures) -> dict[str, Any]:
    """Convert figures to node data, which Model Explorer overlays on its own picture of the model.

    The fields are those of `GraphNodeData`, `NodeDataResult` and `GradientItem` in the package
    `ai-edge-model-explorer`; a test compares them. Data without a graph name applies to the displayed graph.
    The key 'results' marks the data of one graph. If a node is itself named 'results', the data is therefore
    nested under the name of its graph.

    Args:
        figures: Values to overlay, by node name.
    """
    document = {
        "results": {name: {"value": value} for name, value in figures.values.items()},
        "name": figures.figure,
        "gradient": [{"stop": 0, "bgColor": PALE_COLOR}, {"stop": 1, "bgColor": FULL_COLOR}],
    }
    return {figures.graph or "graph": document} if "results" in figures.values else document


_WRITERS: dict[str, Callable[[GraphDrawing, str], Iterable[str]]] = {
    ".svg": write_svg,
    ".dot": write_dot,
    ".html": write_page,
}
NODE_DATA, TEXT = ".json", ".txt"
"""File extensions of node data, and of text that looks like the screen."""


def check(path: str) -> str:
    """Return the format of a file: its extension in lower case.

    Raises:
        Misuse: The extension is not a known format.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in (*_WRITERS, NODE_DATA, TEXT):
        raise Misuse(
            "the file name's ending selects the format",
            where=path,
            hint="use .svg, .html, .txt, .dot or .json",
        )
    return ending


def write(fact: GraphDrawing | NodeFigures, color: str, format: str, path: str) -> None:
    """Write a drawing, or node data for Model Explorer.

    Args:
        fact: Graph or node data to write.
        color: 'family' or the name of a figure.
        format: File extension of the final file: '.svg', '.dot' or '.html' for a drawing.
        path: Path to write to.
    """
    with output_files.open_text(path) as file:
        if isinstance(fact, NodeFigures):
            file.writelines(encode_document(build_node_data(fact)))
        else:
            file.writelines(_WRITERS[format](fact, color))
