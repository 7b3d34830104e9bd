"""Builds the node table of an ONNX file: the header, and each node with its attributes and tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from explorer.engine.costs.onnx.leaves import OperatorLeaf
from explorer.engine.costs.onnx.values import GraphContext, count_bytes, read_constant, simplify_attributes
from explorer.engine.formats.onnx import messages
from explorer.engine.formats.onnx.protobuf_wire import iterate_fields, reinterpret_signed
from explorer.engine.graph.model import FileSpan, Model, Node, Tensor, list_bodies
from explorer.engine.operators import cost_formulas
from explorer.facts.graph.nodes import FileNode, NodeTable, NodeTensor

MAX_VALUES = 64
"""Maximum number of elements of a tensor whose values are listed."""

_MAX_TEXT = 1 << 16
"""Maximum bytes read of a text: in a hostile file, it may be as long as the file."""

_MODEL_DOMAIN, _MODEL_VERSION, _MODEL_DOC, _GRAPH_DOC = 4, 5, 6, 10
"""Field numbers in ModelProto; the last is a field number in GraphProto."""

_SCALARS = ("value_int", "value_ints", "value_float", "value_floats", "value_string", "value_strings")
"""Attributes of a Constant that hold its value without a tensor."""


class NodeContexts:
    """The body of each node and the id of its row, collected during an analysis."""

    def __init__(self) -> None:
        self.contexts: dict[int, GraphContext] = {}
        self.rows: dict[int, int] = {}
        self._leaves: list[OperatorLeaf] = []

    def collect_leaves(self, leaves: Sequence[OperatorLeaf], row_ids: Sequence[int]) -> None:
        """Collects the leaves of an analysis; only the first call of a function describes its nodes."""
        self._leaves += leaves  # keeps the nodes, because `id` is unique among existing objects only
        for leaf, row_id in zip(leaves, row_ids, strict=True):
            self.contexts.setdefault(id(leaf.node), leaf.context)
            self.rows.setdefault(id(leaf.node), row_id)


def build_node_table(model: Model, node_contexts: NodeContexts, paths: Mapping[int, str]) -> NodeTable:
    """Builds the table of all nodes.

    Args:
        model: Model that was analyzed.
        node_contexts: Contexts and rows of the nodes from the analysis.
        paths: Path of each row by its id.
    """
    listing = _Listing(node_contexts, paths)
    graph = model.graph
    nodes = [*listing.list_nodes(graph.nodes, "", graph.initializers, {})]
    for function in model.functions.values():
        name = ".".join(filter(None, (function.domain, function.name, function.overload)))
        nodes += listing.list_nodes(function.nodes, name, {}, {}, len(nodes))
    header, graph_header = _decode_header(model.extra), _decode_header(graph.extra)
    version = header.get(_MODEL_VERSION)
    return NodeTable(
        graph_name=graph.name,
        model_version=version if isinstance(version, int) else None,
        doc_string=str(header.get(_MODEL_DOC, "")),
        graph_doc_string=str(graph_header.get(_GRAPH_DOC, "")),
        model_domain=str(header.get(_MODEL_DOMAIN, "")),
        ir_version=model.ir_version,
        opsets=dict(model.opsets),
        nodes=tuple(nodes),
        total_nodes=len(nodes),
        metadata=dict(model.metadata),
    )


class _Listing:
    """Lists the nodes of a graph and of its bodies."""

    def __init__(self, node_contexts: NodeContexts, paths: Mapping[int, str]) -> None:
        self._node_contexts, self._paths = node_contexts, paths

    def list_nodes(
        self,
        nodes: Sequence[Node],
        inside: str,
        initializers: Mapping[str, Tensor],
        outer: Mapping[str, Tensor | Node],
        start: int = 0,
    ) -> Iterator[FileNode]:
        """Yields the nodes of a graph or body, each followed by the nodes of its own bodies.

        Args:
            nodes: Nodes of the graph or body.
            inside: Value of `FileNode.inside`.
            initializers: Stored tensors of the graph or body by name.
            outer: Stored tensors and Constant nodes of the surrounding graphs by name.
            start: Index of the first node.
        """
        contexts = self._node_contexts.contexts
        context = next((contexts[id(node)] for node in nodes if id(node) in contexts), None)
        constants: dict[str, Tensor | Node] = {**outer, **initializers}
        index = start
        for node in nodes:
            for name in node.outputs:
                constants.pop(name, None)  # a body may define a name of the surrounding graph anew
            if node.op == "Constant" and not node.domain and node.outputs:
                constants[node.outputs[0]] = node
            node_context = contexts.get(id(node), context)
            row_id = self._node_contexts.rows.get(id(node))
            path = self._paths.get(-1 if row_id is None else row_id) or (
                f"{inside}/{node.label}" if inside else node.label
            )
            yield FileNode(
                index=index,
                path=path,
                name=node.name,
                op=node.op,
                domain=node.domain,
                inside=inside,
                attributes=_read_attributes(node),
                inputs=tuple([_describe_tensor(name, node_context, constants) for name in node.inputs]),
                outputs=tuple([_describe_tensor(name, node_context, constants) for name in node.outputs]),
            )
            index += 1
            for body_name, body in list_bodies(node):
                own_names = {value.name for value in body.inputs}
                visible = {name: source for name, source in constants.items() if name not in own_names}
                for row in self.list_nodes(
                    body.nodes, f"{path}/{body_name}", body.initializers, visible, index
                ):
                    yield row
                    index += 1


def _describe_tensor(
    name: str, context: GraphContext | None, constants: Mapping[str, Tensor | Node]
) -> NodeTensor:
    """Describes a stored tensor from the file, and any other tensor from shape inference."""
    if not name:
        return NodeTensor("", elements=0, bytes=0)
    source = constants.get(name)
    tensor = read_constant(source) if isinstance(source, Node) else source
    if tensor is not None:
        return NodeTensor(
            name,
            tensor.dtype,
            tensor.shape,
            math.prod(tensor.shape),
            tensor.nbytes + tensor.beside,
            True,
            _read_scalars(source)
            if isinstance(source, Node) and tensor.payload is None
            else _read_values(tensor),
        )
    if context is None:
        return NodeTensor(name, stored=source is not None)
    info = context.get_info(name)
    entry = (context.stored.get(name) or (None,))[0]
    elements = None if info.shape is None else cost_formulas.count(info.shape)
    size = entry.size if entry is not None and entry.sparse else count_bytes(info)
    values = _read_scalars(source) if isinstance(source, Node) else None
    return NodeTensor(name, info.dtype, info.shape, elements, size, source is not None, values)


def _read_values(tensor: Tensor) -> Any:
    """Returns the values of a small tensor with data as nested lists, else None."""
    if tensor.payload is None or tensor.stored_elements is not None or tensor.elements > MAX_VALUES:
        return None
    if tensor.dtype == "string" or tensor.payload.size != tensor.nbytes:
        return None
    array = tensor.array()
    if array.dtype.kind not in "biuf":
        if tensor.dtype.startswith("complex"):
            return None
        array = array.astype("float32")  # a type of ml_dtypes
    return array.tolist()


def _read_scalars(node: Node) -> Any:
    """Returns the value of a Constant node without a tensor, or None."""
    value = next((node.attributes[name] for name in _SCALARS if name in node.attributes), None)
    return list(value) if isinstance(value, tuple) else value


def _read_attributes(node: Node) -> dict[str, Any]:
    """Returns the attributes as plain values, with small tensors as their values."""
    attributes = dict(simplify_attributes(node))
    for name, value in node.attributes.items():
        if isinstance(value, Tensor) and (values := _read_values(value)) is not None:
            attributes[name] = values
    return attributes


def _decode_header(spans: Sequence[FileSpan]) -> dict[int, int | str]:
    """Returns the uninterpreted numbers and texts of a message by field number."""
    header: dict[int, int | str] = {}
    for span in spans:
        message = span.view()
        for number, wire, _, content, end in iterate_fields(message, 0, span.size):
            if wire == 0:
                header[number] = reinterpret_signed(content)
            elif number in (_MODEL_DOMAIN, _MODEL_DOC, _GRAPH_DOC):
                header[number] = messages.read_string(message, content, end, _MAX_TEXT)
    return header
