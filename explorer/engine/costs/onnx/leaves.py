"""Leaves of an ONNX graph: an operator with the figures that it shares with all of its kind.

The row of a large graph's operator, and its step of the execution order, are made when somebody looks.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from copy import copy
from typing import Any

from msgspec import Struct

from explorer.engine.costs.layer_tree import CostFigures, Scope
from explorer.engine.costs.memory.liveness import ExecutionStep, Named
from explorer.engine.costs.onnx.scopes import ScopedName
from explorer.engine.costs.onnx.values import GraphContext, attribute_parameters, parameters
from explorer.engine.graph.model import Node
from explorer.facts import Layer, TensorInfo


class OperatorFigures(CostFigures, frozen=True, eq=False):
    """The figures that nodes with equal operator, attributes and types share.

    Attributes:
        formula: As a `Layer` has it.
        parameters: Where its inputs bring parameters, as `values.parameter_places` has it.
        sizes: Bytes of every tensor that it makes.
        attributes: As shown.
    """

    formula: str
    parameters: Sequence[tuple[int, int, int]]
    sizes: tuple[int | None, ...]
    attributes: Mapping[str, Any]


class OperatorLeaf(Struct, eq=False, gc=False):
    """A node of a graph as a leaf of the layer tree; see `layer_tree.Leaf`.

    Attributes:
        figures: What it adds to the totals; of a call that stays closed its whole layer.
        context, node: What it was made from.
        names, index: Names of the nodes around it, and which is its own.
        stored, nodes, counted: As a `Leaf` has them.
        constants: Values that its context does not know, by name.
        function: The function that it is called by, if that is this operator only.
        tiled: MACs and how many of the tile products inside, for a call that stays closed and has some.
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
        """The groups around it, outermost first."""
        name = self.names[self.index]
        return self.context.scopes_of(name) if self.context.prefix else name.scopes

    @property
    def path(self) -> str:
        """Where it stands, from the root of the model."""
        return self.context.path(self.node)

    @property
    def kind(self) -> str:
        """Its operator, or the function that is this operator only."""
        return self.function or self.node.op

    def row(self) -> Layer:
        """Its row, not yet placed in the tree."""
        figures, node = self.figures, self.node
        if isinstance(figures, Layer):
            return copy(figures)
        inputs, outputs = described_values(self.context, node, self.constants)
        entries, params = parameters(self.context, node, figures.parameters)
        weights: tuple[TensorInfo, ...] = ()
        if entries := [*entries, *attribute_parameters(self.context, node)]:
            named = {s.name: TensorInfo(s.name, s.dtype, s.shape, "declared") for s in entries}
            weights = tuple(named.values())
        return Layer(
            id=0,
            parent=None,
            path=self.context.path(node),
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
            reason=figures.reason,
            weight_bytes_read=figures.weight_bytes_read,
        )

    def step(self, position: int, memory_of: Mapping[Hashable, Hashable]) -> ExecutionStep:
        """Its step of the execution order.

        Args:
            position: Its position among the leaves.
            memory_of: The tensor in whose memory a value lies that is a view, by key.
        """
        context, node, figures = self.context, self.node, self.figures
        assert isinstance(figures, OperatorFigures)
        stored_names, constants, sizes = context.stored, self.constants, figures.sizes
        values = context.shapes.values
        read: Sequence[Hashable] = [
            n for n in node.inputs if n and n not in stored_names and n not in constants
        ]
        outputs: list[tuple[Hashable, TensorInfo | Named, int | None]] = []
        if sizes:
            named = zip(filter(None, node.outputs), sizes, strict=False)
            outputs = [(n, (values, n), s) for n, s in named if n not in stored_names]
        if context.number or context.keys:
            # in a body, a value may belong to the caller under another name
            read = [context.key(str(name)) for name in read]
            outputs = [(context.key(str(name)), info, size) for name, info, size in outputs]
        if memory_of:
            memory_key = memory_of.get
            outputs = [(memory_key(key, key), info, size) for key, info, size in outputs]
            read = [memory_key(key, key) for key in read]
        path = context.path(node) if context.prefix else node.name or node.label
        return ExecutionStep(path, read, outputs, position)


def described_values(
    context: GraphContext, node: Node, constants: Collection[str] = ()
) -> tuple[list[TensorInfo | None], list[TensorInfo]]:
    """The inputs of a node, None where one is left out, and its outputs."""
    constant_infos: Mapping[str, TensorInfo] = constants if isinstance(constants, Mapping) else {}
    inputs = [(constant_infos.get(n) or context.info(n)) if n else None for n in node.inputs]
    return inputs, [context.info(n) for n in node.outputs if n]
