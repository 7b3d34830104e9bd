"""Leaves of an ONNX graph: an operator with figures that it shares with equal operators.

The row and the execution step of an operator are built at access, because large graphs have very many.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from copy import copy
from typing import Any

from msgspec import Struct

from explorer.engine.costs.layer_tree import CostFigures, Scope
from explorer.engine.costs.memory.liveness import DeferredDescription, ExecutionStep
from explorer.engine.costs.onnx.scopes import ScopedName
from explorer.engine.costs.onnx.values import GraphContext, list_attribute_parameters, list_parameters
from explorer.engine.graph.model import Node
from explorer.facts import Layer, TensorInfo


class OperatorFigures(CostFigures, frozen=True, eq=False):
    """Figures shared by nodes with equal operator, attributes and types.

    Attributes:
        formula: Formula of the MACs, as in `Layer`.
        parameters: Inputs that are parameters, in the form of `values.find_parameter_places`.
        sizes: Bytes of each output tensor.
        attributes: Attributes to show.
        is_alias: Whether the outputs are weights in another form.
    """

    formula: str
    parameters: Sequence[tuple[int, int, int]]
    sizes: tuple[int | None, ...]
    attributes: Mapping[str, Any]
    is_alias: bool = False


class OperatorLeaf(Struct, eq=False, gc=False):
    """A node of a graph as a leaf of the layer tree; see `layer_tree.Leaf`.

    Attributes:
        figures: Figures for the totals; for an unexpanded call, its finished layer.
        context, node: The node, and the graph or body that contains it.
        names, index: Scoped names of the nodes in that body, and the index of the node's own name.
        stored, nodes, counted: Properties of `Leaf`.
        constants: Constants of the body of `function`, which the context lacks, by name.
        function: Function whose body is this operator only, or ''.
        tiled: For an unexpanded call with tile products, their MACs and their number.
    """

    figures: OperatorFigures | Layer
    context: GraphContext
    node: Node
    names: Sequence[ScopedName]
    index: int
    stored: Sequence[tuple[Hashable, int, int]] = ()
    nodes: int = 1
    counted: bool = True
    constants: Mapping[str, TensorInfo] | Collection[str] = ()
    function: str = ""
    tiled: tuple[int | None, int | None] | None = None

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The groups that contain the operator, outermost first."""
        name = self.names[self.index]
        return self.context.list_scopes(name) if self.context.prefix else name.scopes

    @property
    def path(self) -> str:
        """Path from the root of the model."""
        return self.context.get_path(self.node)

    @property
    def kind(self) -> str:
        """Operator type, or the function whose body is this operator only."""
        return self.function or self.node.op

    def build_row(self) -> Layer:
        """Builds the row, without its position in the tree."""
        figures, node = self.figures, self.node
        if isinstance(figures, Layer):
            return copy(figures)
        inputs, outputs = describe_values(self.context, node, self.constants)
        entries, params = list_parameters(self.context, node, figures.parameters)
        weights: tuple[TensorInfo, ...] = ()
        if entries := [*entries, *list_attribute_parameters(self.context, node)]:
            infos = {s.name: TensorInfo(s.name, s.dtype, s.shape, "declared") for s in entries}
            weights = tuple(infos.values())
        return Layer(
            id=0,
            parent=None,
            path=self.context.get_path(node),
            name=self.names[self.index].name,
            kind=self.function or node.op,
            depth=0,
            group=False,
            calls=self.nodes,
            inputs=tuple([i for i in inputs if i is not None and i.name not in params]),
            outputs=tuple(outputs),
            weights=weights,
            macs=figures.macs,
            formula=figures.formula,
            elementwise_ops=figures.elementwise_ops,
            bytes_read=figures.bytes_read,
            bytes_written=figures.bytes_written,
            activation_bytes=figures.activation_bytes,
            attributes=figures.attributes,
            status=figures.status,
            reason=str(figures.reason),
            work_bound=figures.work_bound,
            weight_bytes_read=figures.weight_bytes_read,
        )

    def build_step(self, position: int, memory_of: Mapping[Hashable, Hashable]) -> ExecutionStep:
        """Builds the step of the execution order.

        Args:
            position: Index of the leaf.
            memory_of: For values that are views, the key of the tensor whose memory they share.
        """
        context, node, figures = self.context, self.node, self.figures
        assert isinstance(figures, OperatorFigures)
        stored_names, constants, sizes = context.stored, self.constants, figures.sizes
        values = context.shapes.values
        read: Sequence[Hashable] = [
            n for n in node.inputs if n and n not in stored_names and n not in constants
        ]
        outputs: list[tuple[Hashable, TensorInfo | DeferredDescription, int | None]] = []
        if sizes:
            sizes_by_name = zip(filter(None, node.outputs), sizes, strict=False)
            outputs = [(n, (values, n), s) for n, s in sizes_by_name if n not in stored_names]
        if context.body_number or context.keys:
            # in a body, a value may belong to the caller and have another name there
            read = [context.get_key(str(name)) for name in read]
            outputs = [(context.get_key(str(name)), info, size) for name, info, size in outputs]
        if memory_of:
            memory_key = memory_of.get
            outputs = [(memory_key(key, key), info, size) for key, info, size in outputs]
            read = [memory_key(key, key) for key in read]
        path = context.get_path(node) if context.prefix else node.name or node.label
        return ExecutionStep(path, read, outputs, position)


def describe_values(
    context: GraphContext, node: Node, constants: Collection[str] = ()
) -> tuple[list[TensorInfo | None], list[TensorInfo]]:
    """Returns the descriptions of a node's inputs (None for an omitted input) and of its outputs."""
    constant_infos: Mapping[str, TensorInfo] = constants if isinstance(constants, Mapping) else {}
    inputs = [(constant_infos.get(n) or context.get_info(n)) if n else None for n in node.inputs]
    return inputs, [context.get_info(n) for n in node.outputs if n]
