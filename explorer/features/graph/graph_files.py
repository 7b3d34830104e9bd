"""Writes a drawing to a file: the ending says the format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from explorer.base.errors import Misuse
from explorer.facts.graph.drawing import GraphDrawing, NodeFigures
from explorer.features.graph.graph_dot import dot
from explorer.features.graph.graph_html import page
from explorer.features.graph.graph_svg import svg
from explorer.features.graph.node_data_json import node_data
from explorer.host import output_files
from explorer.report.json_text import pieces

_WRITERS: dict[str, Callable[[GraphDrawing, str], Iterable[str]]] = {".svg": svg, ".dot": dot, ".html": page}
NODE_DATA, TEXT = ".json", ".txt"
"""Node data; and text, which is drawn as the screen draws it."""


def check(path: str) -> str:
    """The format of a file, before any work is done.

    Raises:
        Misuse: The ending is no format of ours.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in (*_WRITERS, NODE_DATA, TEXT):
        raise Misuse("the ending says the format", where=path, hint="use .svg, .html, .txt, .dot or .json")
    return ending


def write(fact: GraphDrawing | NodeFigures, color: str, format: str, path: str) -> None:
    """Writes a drawing, or figures for another program's.

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
