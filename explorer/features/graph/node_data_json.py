"""Figures as Model Explorer's node data, to be laid over its picture of the same model.

The fields are those of `GraphNodeData`, `NodeDataResult` and `GradientItem` in its package
`ai-edge-model-explorer`, which a test holds this to: the package brings a web server, and is needed for
nothing else. Data of one graph goes over whichever graph is looked at; were a node called 'results', it would
be taken for data of many graphs by their names, and is written as such.
"""

from __future__ import annotations

from typing import Any

from explorer.facts.graph.drawing import NodeFigures
from explorer.features.graph.graph_labels import FULL_COLOR, PALE_COLOR


def node_data(figures: NodeFigures) -> dict[str, Any]:
    """The document.

    Args:
        figures: What is laid over the picture.
    """
    data = {
        "results": {name: {"value": value} for name, value in figures.values.items()},
        "name": figures.figure,
        "gradient": [{"stop": 0, "bgColor": PALE_COLOR}, {"stop": 1, "bgColor": FULL_COLOR}],
    }
    return {figures.graph or "graph": data} if "results" in figures.values else data
