"""The reader of netlists: a line is an input, a weight, an output or an operator."""

from __future__ import annotations

from explorer.base.errors import BadModel
from explorer.engine.formats.netlist.operators import ONNX_OPERATORS
from explorer.engine.graph.model import Graph, Inline, Model, Node, Tensor, Value

__all__ = ["read"]


def read(path: str) -> Model:
    """The graph of a netlist.

    Raises:
        BadModel: A line is none of these.
    """
    values: dict[str, list[Value]] = {"input": [], "output": []}
    weights: dict[str, Tensor] = {}
    nodes: list[Node] = []
    with open(path, encoding="ascii", errors="replace") as lines:
        for number, line in enumerate(lines):
            kind, *words = line.split()
            if kind in values:
                values[kind].append(Value(words[0], "float32", _shape(words[1])))
            elif kind == "weight":
                shape = _shape(words[1])
                size = 4
                for dim in shape:
                    size *= dim
                weights[words[0]] = Tensor(words[0], "float32", shape, Inline(bytes(size)))
            elif kind in ONNX_OPERATORS:
                node = Node(ONNX_OPERATORS[kind], inputs=tuple(words[:-1]), outputs=(words[-1],))
                nodes.append(node)
            elif number:
                raise BadModel(f"line {number + 1} names no operator: {kind!r}", where=path)
    graph = Graph("netlist", nodes, tuple(values["input"]), tuple(values["output"]), weights)
    return Model(graph, {"": 17}, ir_version=8, path=path)


def _shape(word: str) -> tuple[int, ...]:
    return tuple(int(size) for size in word.split("x"))
