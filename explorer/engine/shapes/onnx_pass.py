"""onnx.shape_inference for the nodes that the rules here leave open.

It runs on a skeleton of just these nodes, with what is known of their inputs declared; names and
expressions go through it as opaque names. What a file declares in its `value_info` is never shown to it:
non-strict inference keeps a stale declaration and hands it on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from explorer.engine.formats.onnx import writer
from explorer.engine.formats.onnx.containers import Container
from explorer.engine.graph.model import (
    DTYPES,
    Graph,
    Model,
    Node,
    Tensor,
    Value,
    graphs,
    subgraphs,
    tensor_from_array,
)
from explorer.engine.operators.call import Type
from explorer.engine.shapes.bodies import captured_names
from explorer.engine.shapes.constants import ConstantContents
from explorer.facts import Dim, Shape

MAX_REFUSED = 8
"""Nodes that inference refuses before the rest is given up; each takes a dozen runs to find."""


class OnnxPass(Struct):
    """Asks onnx, and remembers the nodes that it refuses.

    Attributes:
        ir_version: Of the model.
        notes: The refused nodes, in words.
        died: Whether its process died, perhaps by the machine's fault. It is not asked again.
    """

    ir_version: int
    notes: list[str]
    died: bool = False
    _refused: dict[int, tuple[Node, Node]] = field(default_factory=dict)
    _given_up: bool = False

    def types(
        self,
        nodes: Sequence[Node],
        initializers: Mapping[str, Tensor],
        types: Mapping[str, Type],
        contents: ConstantContents,
        opsets: Mapping[str, int],
        containers: Sequence[Container] = (),
    ) -> dict[str, Type]:
        """Types of the nodes' outputs, as far as onnx knows them.

        Args:
            nodes: In execution order.
            initializers: Of the graph that they stand in.
            types: Known types; names and expressions as texts.
            contents: Known contents.
            opsets: Operator sets; domains that are missing are taken as version 1.
            containers: Sequences and optionals that come from around the nodes.
        """
        graph = _cut_out(nodes, initializers, types, contents, containers)
        domains = {node.domain for inner in graphs(graph) for node in inner.nodes}
        answer = self._answer(graph, {**dict.fromkeys(sorted(domains), 1), **opsets})
        if answer is None:
            return {}
        typed: list[Value | Container] = [*graph.inputs, *graph.values, *containers]
        symbols = {d for v in typed for d in v.shape or () if isinstance(d, str)}
        output_types: dict[str, Type] = {}
        for name, code, sizes in answer:
            shape: Shape | None = None if sizes is None else tuple(_dim(d, symbols) for d in sizes)
            output_types[name] = DTYPES[code].name if code in DTYPES else None, shape
        return output_types

    def _answer(self, graph: Graph, opsets: Mapping[str, int]) -> Any:
        """The answer of onnx's inference for a graph; None if there is none.

        It refuses a whole graph for one node that does not fit its definition. That node is found by
        bisection, and from then on treated as an unknown operator.
        """
        if self.died:
            return None
        for _ in range(MAX_REFUSED):
            nodes = [self._refused.get(id(n), (n, n))[1] for n in graph.nodes]
            error = answer = self._try(graph, opsets, nodes)
            if not isinstance(answer, Exception):
                return answer
            low, high = 0, len(nodes)
            while low < high and not self.died:
                middle = (low + high) // 2
                tried = self._try(graph, opsets, nodes[:middle])
                if isinstance(tried, Exception):
                    high, error = middle, tried
                else:
                    low = middle + 1
            if self.died or not low or id(graph.nodes[low - 1]) in self._refused:
                break
            culprit = graph.nodes[low - 1]
            stand_in = Node("Refused", culprit.inputs, culprit.outputs, domain="explorer.refused")
            # keep the node beside its stand-in: its id must not be used again
            self._refused[id(culprit)] = culprit, stand_in
            words = " ".join(str(error).split())[:200]
            self.notes.append(f"shape inference refuses {culprit.op} '{culprit.label}': {words}")
        if self.died:
            self.notes.append("shape inference died of a part of this model, and was not asked again")
        elif not self._given_up:
            self._given_up = True
            self.notes.append(
                "shape inference refuses a part of this model; its shapes are known only as far as declared"
            )
        return None

    def _try(self, graph: Graph, opsets: Mapping[str, int], nodes: Sequence[Node]) -> Any:
        """Inference on some of a graph's nodes: its answer, or the exception that it raised."""
        # the import takes 5 ms, and few models have a node that the rules leave open
        from explorer.engine.shapes import onnx_subprocess

        some = Graph(graph.name, tuple(nodes), graph.inputs, (), graph.initializers, graph.values)
        opsets = {**opsets, "explorer.refused": 1} if self._refused else opsets
        model = Model(some, opsets, max(self.ir_version, 10))
        try:
            return onnx_subprocess.infer(writer.skeleton(model))
        except onnx_subprocess.InferenceDied as error:
            # the search for the node that crashes it would take a second for each try
            self.died = True
            return error
        except Exception as error:  # any error: without this node there is an answer
            return error


def _cut_out(
    nodes: Sequence[Node],
    initializers: Mapping[str, Tensor],
    types: Mapping[str, Type],
    contents: ConstantContents,
    containers: Sequence[Container],
) -> Graph:
    """A graph of the nodes alone; values from other nodes are its inputs."""
    produced = {name for node in nodes for name in node.outputs if name}
    used: dict[str, None] = {}
    for node in nodes:
        used.update(dict.fromkeys(n for n in node.inputs if n))
        for _, body in subgraphs(node):
            used.update(dict.fromkeys(sorted(captured_names(body))))
    containers_by_name = {c.name: c for c in containers}
    inputs: list[Value] = []
    inside: dict[str, Tensor] = {}
    values: list[Value] = []
    for name in used:
        if name in produced:
            continue
        if name in initializers:
            inside[name] = initializers[name]
            continue
        content = contents.get(name)
        kind = types.get(name)
        if content is not None:
            inside[name] = tensor_from_array(name, content)
        elif kind is not None and kind[0] is not None:
            inputs.append(Value(name, kind[0], kind[1]))
        elif name in containers_by_name:
            inputs.append(containers_by_name[name].value())
    for name in produced:
        kind = types.get(name)
        if kind is not None and kind[0] is not None and kind[1] is not None:
            values.append(Value(name, kind[0], kind[1]))
    return Graph("open", tuple(nodes), tuple(inputs), (), inside, tuple(values))


def _dim(dim: int | str | None, symbols: set[str]) -> Dim:
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    # inference makes up names for unknown sizes; they are no dimensions of the model
    return dim if dim in symbols else None
