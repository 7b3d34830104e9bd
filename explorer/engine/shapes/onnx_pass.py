"""Runs onnx.shape_inference on the nodes that Explorer's rules leave open.

The inference runs on a graph of just these nodes, in which the known types of their inputs are declared.
Dimension names and expressions are opaque names to onnx. Declarations of the file (`value_info`) are left
out: non-strict inference would keep a wrong declaration and propagate it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from explorer.engine.formats.onnx import writer
from explorer.engine.formats.onnx.containers import Container, build_typed_value, read_container
from explorer.engine.graph.model import (
    DTYPES,
    Graph,
    Model,
    Node,
    Tensor,
    Value,
    build_tensor,
    list_bodies,
    list_graphs,
)
from explorer.engine.operators.call import Type
from explorer.engine.shapes.bodies import find_captured_names
from explorer.engine.shapes.constants import ConstantContents
from explorer.facts import Dim, Shape

MAX_REFUSED = 8
"""Number of refused nodes after which the inference is given up; each takes a dozen runs to find."""


class OnnxPass(Struct):
    """Runs onnx's inference, and remembers the nodes that it refuses.

    Attributes:
        ir_version: IR version of the model.
        notes: Messages about refused nodes.
        died: Whether the process of the inference died, for example for lack of memory. If so, it is not
            started again.
    """

    ir_version: int
    notes: list[str]
    died: bool = False
    _replacements: dict[int, tuple[Node, Node]] = field(default_factory=dict)
    _given_up: bool = False

    def infer_types(
        self,
        nodes: Sequence[Node],
        initializers: Mapping[str, Tensor],
        types: Mapping[str, Type],
        contents: ConstantContents,
        opsets: Mapping[str, int],
        containers: Sequence[Container] = (),
    ) -> tuple[dict[str, Type], dict[str, Value]]:
        """Infers the types of the nodes' outputs; types that onnx cannot infer are missing.

        Args:
            nodes: Nodes in execution order.
            initializers: Initializers of the nodes' graph.
            types: Known types by value name, with dimension names and expressions as text.
            contents: Known contents.
            opsets: Operator sets; a missing domain has version 1.
            containers: Sequences and optionals that the nodes read from outside.

        Returns:
            The types of tensors, and the declarations of all other values, such as sequences, by name.
        """
        graph = _build_subgraph(nodes, initializers, types, contents, containers)
        domains = {node.domain for inner in list_graphs(graph) for node in inner.nodes}
        answer = self._infer_or_refuse(graph, {**dict.fromkeys(sorted(domains), 1), **opsets})
        if answer is None:
            return {}, {}
        declared_values: list[Value | Container] = [*graph.inputs, *graph.values, *containers]
        symbols = {d for v in declared_values for d in v.shape or () if isinstance(d, str)}
        output_types: dict[str, Type] = {}
        other_values: dict[str, Value] = {}
        for name, code, sizes, encoded_type in answer:
            if encoded_type:
                other_values[name] = _build_declaration(name, encoded_type, symbols)
                continue
            shape: Shape | None = None if sizes is None else tuple(_read_dim(d, symbols) for d in sizes)
            output_types[name] = DTYPES[code].name if code in DTYPES else None, shape
        return output_types, other_values

    def _infer_or_refuse(self, graph: Graph, opsets: Mapping[str, int]) -> Any:
        """Returns the answer of onnx's inference for a graph, or None if onnx gives none.

        onnx refuses a graph if a single node does not match its definition. Bisection finds this node, which
        is then replaced by an unknown operator.
        """
        if self.died:
            return None
        for _ in range(MAX_REFUSED):
            nodes = [self._replacements.get(id(n), (n, n))[1] for n in graph.nodes]
            error = answer = self._run_inference(graph, opsets, nodes)
            if not isinstance(answer, Exception):
                return answer
            low, high = 0, len(nodes)
            while low < high and not self.died:
                middle = (low + high) // 2
                result = self._run_inference(graph, opsets, nodes[:middle])
                if isinstance(result, Exception):
                    high, error = middle, result
                else:
                    low = middle + 1
            if self.died or not low or id(graph.nodes[low - 1]) in self._replacements:
                break
            refused = graph.nodes[low - 1]
            replacement = Node("Refused", refused.inputs, refused.outputs, domain="explorer.refused")
            # the node stays referenced, because its id is the key and must not be reused
            self._replacements[id(refused)] = refused, replacement
            message = " ".join(str(error).split())[:200]
            self.notes.append(f"shape inference refuses {refused.op} '{refused.label}': {message}")
        if self.died:
            self.notes.append("shape inference crashed on a part of this model and was not started again")
        elif not self._given_up:
            self._given_up = True
            self.notes.append(
                "shape inference refuses a part of this model; only its declared shapes are known"
            )
        return None

    def _run_inference(self, graph: Graph, opsets: Mapping[str, int], nodes: Sequence[Node]) -> Any:
        """Runs inference on some of a graph's nodes. Returns its answer or the raised exception."""
        # the import takes 5 ms, and few models have a node that the rules leave open
        from explorer.engine.shapes import onnx_subprocess

        part = Graph(graph.name, tuple(nodes), graph.inputs, (), graph.initializers, graph.values)
        opsets = {**opsets, "explorer.refused": 1} if self._replacements else opsets
        model = Model(part, opsets, max(self.ir_version, 10))
        try:
            return onnx_subprocess.infer(writer.encode_skeleton(model))
        except onnx_subprocess.InferenceDied as error:
            # no bisection: each of its steps would take a second
            self.died = True
            return error
        except Exception as error:  # onnx may raise any error; bisection finds the node
            return error


def _build_subgraph(
    nodes: Sequence[Node],
    initializers: Mapping[str, Tensor],
    types: Mapping[str, Type],
    contents: ConstantContents,
    containers: Sequence[Container],
) -> Graph:
    """Builds a graph of the nodes alone. Values from other nodes are its inputs."""
    produced = {name for node in nodes for name in node.outputs if name}
    input_names: dict[str, None] = {}
    for node in nodes:
        input_names.update(dict.fromkeys(n for n in node.inputs if n))
        for _, body in list_bodies(node):
            input_names.update(dict.fromkeys(sorted(find_captured_names(body))))
    containers_by_name = {c.name: c for c in containers}
    inputs: list[Value] = []
    known_tensors: dict[str, Tensor] = {}
    values: list[Value] = []
    for name in input_names:
        if name in produced:
            continue
        if name in initializers:
            known_tensors[name] = initializers[name]
            continue
        content = contents.get(name)
        kind = types.get(name)
        if content is not None:
            known_tensors[name] = build_tensor(name, content)
        elif kind is not None and kind[0] is not None:
            inputs.append(Value(name, kind[0], kind[1]))
        elif name in containers_by_name:
            inputs.append(containers_by_name[name].build_value())
    for name in produced:
        kind = types.get(name)
        if kind is not None and kind[0] is not None and kind[1] is not None:
            values.append(Value(name, kind[0], kind[1]))
    return Graph("open", tuple(nodes), tuple(inputs), (), known_tensors, tuple(values))


def _build_declaration(name: str, encoded_type: bytes, symbols: set[str]) -> Value:
    """Builds the declaration of a value that is not a tensor, without the names that onnx invents."""
    value = build_typed_value(name, encoded_type)
    container = read_container(value)
    if container is None or container.shape is None:
        return value
    return container.change_shape(lambda shape: tuple([_read_dim(d, symbols) for d in shape])).build_value()


def _read_dim(dim: int | str | None, symbols: set[str]) -> Dim:
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    # onnx invents names for unknown sizes, which are not dimensions of the model
    return dim if dim in symbols else None
