"""Facts about the nodes of a graph: attributes, and the tensors that each node reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import field

from explorer.base.fact import Fact, TableFact
from explorer.facts import Shape


class NodeTensor(Fact, frozen=True):
    """A tensor that a node reads or writes.

    Attributes:
        name: Name of the tensor; '' for an optional input or output that the node leaves out.
        dtype: Number type, or None if unknown.
        shape: Shape, or None if unknown.
        elements: Number of elements, or None if unknown.
        bytes: Size in bytes, or None if unknown.
        stored: Whether the file stores the tensor, as an initializer or as the value of a Constant.
        values: Values of a stored tensor with at most 64 elements, else None.
    """

    name: str
    dtype: str | None = None
    shape: Shape | None = None
    elements: int | None = None
    bytes: int | None = None
    stored: bool = False
    values: Any = None


class FileNode(Fact, frozen=True):
    """A node of the file.

    Attributes:
        index: Position in the table.
        path: Path of the node, as in `explorer layers`.
        name: Name in the file, or ''.
        op: Operator.
        domain: Domain of the operator, or '' for ONNX's own.
        inside: Path of the node or name of the function whose body contains the node, or '' for the main
            graph.
        attributes: Attributes. A tensor with at most 64 elements is given by its values.
        inputs: Input tensors in the order of the operator.
        outputs: Output tensors in the order of the operator.
    """

    index: int
    path: str
    name: str
    op: str
    domain: str
    inside: str
    attributes: Mapping[str, Any]
    inputs: tuple[NodeTensor, ...]
    outputs: tuple[NodeTensor, ...]


class NodeTable(TableFact, frozen=True):
    """The header of an ONNX file, and its nodes.

    Attributes:
        graph_name: Name of the graph.
        model_version: Version that the file gives the model, or None.
        doc_string: Description of the model in the file, or ''.
        graph_doc_string: Description of the graph in the file, or ''.
        model_domain: Domain of the model in the file, or ''.
        ir_version: Version of the file format.
        opsets: Version of each operator set; '' is ONNX's own.
        metadata: Other properties in the file.
        nodes: Selected nodes in the order of the file. The nodes of a body follow the node that contains it;
            the nodes of a function follow all other nodes.
        total_nodes: Number of all nodes in the file.
    """

    ROWS: ClassVar[str] = "nodes"

    graph_name: str
    model_version: int | None
    doc_string: str
    graph_doc_string: str
    model_domain: str
    ir_version: int
    opsets: Mapping[str, int]
    nodes: tuple[FileNode, ...]
    total_nodes: int
    metadata: Mapping[str, str] = field(default_factory=dict)
