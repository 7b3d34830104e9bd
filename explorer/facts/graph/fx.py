"""Facts about the torch.fx graph of a module: its nodes and their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec import field

from explorer.base.fact import Fact, TableFact
from explorer.facts import Shape, TensorInfo


class FxNode(Fact, frozen=True):
    """One node of a torch.fx graph.

    Attributes:
        name: Name of the node in the graph.
        kind: 'placeholder', 'get_attr', 'call_function', 'call_module', 'call_method' or 'output'.
        target: Target of the node: the path of a module, or the name of a function, a method or an attribute.
        type: Class of the called module, 'Parameter' or 'Buffer', or the Python module of the called
            function.
        layer: Path of the module that contains the node, or '' if no module contains it or the tracer does
            not record it.
        dtype: Number type of the first output tensor, if there is one.
        inputs: Shapes of the input tensors.
        outputs: Output tensors.
        values: Statistics of the output by label, if they were requested.
    """

    name: str
    kind: str
    target: str
    type: str
    layer: str
    dtype: str | None
    inputs: tuple[Shape | None, ...]
    outputs: tuple[TensorInfo, ...]
    values: Mapping[str, float | None] = field(default_factory=dict)


class FxGraph(TableFact, frozen=True):
    """The torch.fx graph of a module.

    Attributes:
        traced_by: Tracer of the graph: 'torch.fx', or 'torch.export' if torch.fx cannot trace the module.
        reason: Reason why torch.fx cannot trace the module, and the place of the failure, or '' if it can.
        kinds: Number of nodes of each of the six kinds.
        modules: Number of calls of each class of module, most calls first.
        nodes: Nodes in the order of the graph.
        inputs_from: Origin of each input, if statistics were requested.
    """

    ROWS: ClassVar[str] = "nodes"

    traced_by: str
    reason: str
    kinds: Mapping[str, int]
    modules: tuple[tuple[str, int], ...]
    nodes: tuple[FxNode, ...]
    inputs_from: tuple[str, ...] = ()
