"""Holds the state of a visit: the recorded result, and the data that nested bodies share.

The layer tree, memory, tile coverage and group boundaries are computed from `VisitResult`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, overload

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.engine.costs.layer_tree import GroupFacts, Scope
from explorer.engine.costs.memory.liveness import ExecutionStep
from explorer.engine.costs.onnx.boundaries import NodeValues
from explorer.engine.costs.onnx.leaves import OperatorLeaf
from explorer.engine.costs.onnx.scopes import ScopedName
from explorer.engine.costs.onnx.sequences import SequenceElements
from explorer.engine.costs.onnx.tile_coverage import TileLabels
from explorer.engine.costs.onnx.values import (
    MAX_LISTED_VALUES,
    GraphContext,
    count_bytes,
    describe_initializers,
    simplify_attributes,
)
from explorer.engine.graph.model import Graph, Node
from explorer.engine.shapes import Inference, Shapes, find_captured_names
from explorer.facts import TensorInfo, TiledMacs

Visit = Callable[[GraphContext, Sequence[Node]], None]
"""Visits the nodes of a body."""


class ExecutionOrder(Sequence[ExecutionStep]):
    """The steps of a visit. The step of an operator is built from its leaf at access.

    Args:
        memory_of: For values that are views, the key of the tensor whose memory they share, for the whole
            model.
    """

    def __init__(self, memory_of: Mapping[Hashable, Hashable]) -> None:
        self.memory_of = memory_of
        self._steps: list[ExecutionStep | OperatorLeaf] = []
        self._leaf_indices = array("i")

    def append(self, step: ExecutionStep) -> None:
        """Adds a step that does not belong to one operator."""
        self._steps.append(step)
        self._leaf_indices.append(step.leaf)

    def add(self, leaf: OperatorLeaf, position: int) -> None:
        """Adds the step of an operator; `position` is the index of its leaf."""
        self._steps.append(leaf)
        self._leaf_indices.append(position)

    def __len__(self) -> int:
        return len(self._steps)

    @overload
    def __getitem__(self, index: int) -> ExecutionStep: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ExecutionStep]: ...

    def __getitem__(self, index: int | slice) -> ExecutionStep | Sequence[ExecutionStep]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._step(self._steps[index], self._leaf_indices[index])

    def __iter__(self) -> Iterator[ExecutionStep]:
        return map(self._step, self._steps, self._leaf_indices)

    def _step(self, step: ExecutionStep | OperatorLeaf, position: int) -> ExecutionStep:
        return step if isinstance(step, ExecutionStep) else step.build_step(position, self.memory_of)


class VisitResult(Struct):
    """The records of a visit.

    Attributes:
        steps: Execution order.
        tile_labels: Statements about tiles in the file, or None.
        leaves: One leaf per operator.
        groups: Facts of groups that come from a call or a control flow node, by path.
        node_values: Values that each node reads and makes; the leaves are in the order of `leaves`.
        body_outputs: Keys of each body's outputs, with the groups that contain the body.
        shapes: Shapes of all bodies, by id of the object.
        output_keys: Keys of the model's outputs.
        context: Context of the main graph.
        tiled: MACs on tiles, or None if the model has no tiles.
    """

    steps: ExecutionOrder
    tile_labels: TileLabels | None
    leaves: list[OperatorLeaf] = field(default_factory=list)
    groups: dict[str, GroupFacts] = field(default_factory=dict)
    node_values: list[NodeValues | OperatorLeaf] = field(default_factory=list)
    body_outputs: list[tuple[tuple[Scope, ...], list[Hashable]]] = field(default_factory=list)
    shapes: dict[int, Shapes] = field(default_factory=dict)
    output_keys: frozenset[Hashable] = frozenset()
    context: GraphContext | None = None
    tiled: TiledMacs | None = None


class VisitState(Struct):
    """Data that all bodies of a model share during a visit.

    Attributes:
        inference: Shapes of the model.
        result: Result that the visited body records into.
        memory_of: For values that are views, the key of the tensor whose memory they share.
        sequences: Known lengths and element types of sequences, by key.
        context_count: Number of bodies entered so far.
        bodies_by_path: Number of bodies opened at each path.
    """

    inference: Inference
    result: VisitResult
    memory_of: dict[Hashable, Hashable]
    sequences: dict[Hashable, SequenceElements] = field(default_factory=dict)
    context_count: int = 0
    bodies_by_path: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def separate_result(self) -> Iterator[VisitResult]:
        """Records visits in the `with` block into a separate result."""
        outer = self.result
        self.result = VisitResult(ExecutionOrder(self.memory_of), outer.tile_labels)
        try:
            yield self.result
        finally:
            self.result = outer

    def create_body_number(self) -> int:
        """Returns an unused number for a body's values."""
        self.context_count += 1
        return self.context_count

    def find_memory_key(self, key: Hashable) -> Hashable:
        """Returns the key of the tensor whose memory a value uses: its own, or the viewed tensor's key."""
        return self.memory_of.get(key, key)

    def open_scopes(
        self, context: GraphContext, node: Node, name: ScopedName, kind: str
    ) -> tuple[tuple[Scope, ...], str]:
        """Returns the scopes and the path prefix of a body of `node`."""
        path = context.get_path(node)
        self.bodies_by_path[path] += 1
        if self.bodies_by_path[path] > 1:
            path = f"{path}#{self.bodies_by_path[path]}"
        return (*context.list_scopes(name), Scope(path, name.name, kind)), f"{path}/"

    def create_child_context(
        self, context: GraphContext, body: Graph, shapes: Shapes, scopes: tuple[Scope, ...], path: str
    ) -> GraphContext:
        """Creates the context of a subgraph, which can read the values of the enclosing graph."""
        number = self.create_body_number()
        names = find_captured_names(body)
        captured = {n: context.stored[n] for n in names if n in context.stored}
        captured.update(describe_initializers(body, (number,)))
        body_context = replace(
            context,
            shapes=shapes,
            stored=captured,
            storage_ids={},
            keys={n: context.get_key(n) for n in names},
            scopes=scopes,
            prefix=f"{path}/",
            owner_path=path,
            body_number=number,
        )
        # inputs of a body have no producer outside it
        input_names = [v.name for v in body.inputs]
        input_keys = [*map(body_context.get_key, input_names)]
        infos = [*map(body_context.get_info, input_names)]
        self.result.node_values.append(NodeValues(scopes, (), (), input_keys, infos))
        self.result.body_outputs.append((scopes, [body_context.get_key(v.name) for v in body.outputs]))
        return body_context

    def step(
        self,
        path: str,
        read: Iterable[Hashable],
        outputs: Iterable[tuple[Hashable, TensorInfo, int | None]],
        *,
        leaf: int = -1,
        bound_reason: str = "",
    ) -> None:
        """Adds a step whose tensors are identified by their memory."""
        outputs = [(self.find_memory_key(key), info, size) for key, info, size in outputs]
        self.result.steps.append(
            ExecutionStep(path, [*map(self.find_memory_key, read)], outputs, leaf, bound_reason)
        )

    def finish(
        self, context: GraphContext, node: Node, scopes: tuple[Scope, ...], live_keys: Iterable[Hashable] = ()
    ) -> None:
        """Adds the step that produces the outputs of a node with a body, while `live_keys` are still live."""
        outputs = [context.get_info(n) for n in node.outputs if n]
        step_outputs = [(context.get_key(o.name), o, count_bytes(o)) for o in outputs]
        read = [n for n in node.inputs if n and n not in context.stored]
        keys = [context.get_key(n) for n in read]
        self.step(scopes[-1].path, (*keys, *live_keys), step_outputs)
        read_infos = [context.get_info(n) for n in read]
        output_keys = [k for k, _, _ in step_outputs]
        self.result.node_values.append(NodeValues(scopes, keys, read_infos, output_keys, outputs))

    @staticmethod
    def group(context: GraphContext, node: Node, kind: str, **facts: Any) -> GroupFacts:
        """Returns the facts of the group of a node with a body."""
        return GroupFacts(
            kind=kind,
            calls=context.trips if isinstance(context.trips, int) else 1,
            inputs=tuple(context.get_info(n) for n in node.inputs if n and n not in context.stored)[
                :MAX_LISTED_VALUES
            ],
            outputs=tuple(context.get_info(n) for n in node.outputs if n)[:MAX_LISTED_VALUES],
            attributes=simplify_attributes(node),
            **facts,
        )
