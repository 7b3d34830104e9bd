"""Interprets ONNX nodes on values of different kinds.

The proof of a tiling runs a graph twice. With symbols it finds the slice of the weight that each tile
multiplies (`proof.structure`). With float64 numbers it measures the distance of float32 from the exact result
(`proof.float64`). Both share the scopes, local functions and control flow in this module. `Semantics` defines
the values and the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, Protocol

from explorer.engine.graph.model import AttributeRef, Function, Graph, Node, Tensor, list_bodies
from explorer.engine.graph.repeated_nodes import list_stored_nodes

_CONTROL = frozenset(("If", "Loop", "Scan"))


class Semantics(Protocol):
    """Defines the values of an interpretation, and the results of operators on them."""

    def convert_constant(self, tensor: Tensor) -> Any:
        """Converts an initializer or Constant to a value."""

    def apply(self, node: Node, attributes: Mapping[str, Any], args: Sequence[Any]) -> Sequence[Any]:
        """Returns the outputs of one operator; an omitted optional input is None."""

    def take(self, value: Any, axis: int, index: int) -> Any:
        """Returns value[index] along `axis`, with the axis removed."""

    def stack(self, values: Sequence[Any], axis: int) -> Any:
        """Stacks the values along a new `axis`."""

    def read_number(self, value: Any) -> Any:
        """Returns the Python number of a scalar that controls a branch or loop."""


class ValueScope(dict[str, Any]):
    """Values by name. A missing name is converted from `constants`, or looked up in the enclosing scope."""

    def __init__(
        self, parent: ValueScope | None = None, constants: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__()
        self.parent = parent
        self.constants = constants or {}
        self.semantics: Semantics | None = parent.semantics if parent else None

    def __missing__(self, name: str) -> Any:
        tensor = self.constants.get(name)
        if tensor is not None and self.semantics is not None:
            value = self[name] = self.semantics.convert_constant(tensor)
            return value
        if self.parent is None:
            raise KeyError(name)
        return self.parent[name]


class Interpreter:
    """Runs nodes.

    Args:
        semantics: Definition of values and operators.
        functions: Local functions of the model.
        run_body: Callback that runs the nodes of a body in a scope. By default `run` does.

    Attributes:
        aliases: For each function that only passes its inputs to one operator, that operator's node.
    """

    def __init__(
        self,
        semantics: Semantics,
        functions: Mapping[tuple[str, str, str], Function],
        run_body: Callable[[Interpreter, Graph, ValueScope], None] | None = None,
    ) -> None:
        self.semantics = semantics
        self.run_body = run_body
        self.functions = functions
        self.aliases = {
            key: alias
            for key, function in functions.items()
            if (alias := _find_alias(function, functions)) is not None
        }
        self.calls: list[Node] = []
        """Function calls in progress, outermost first."""

    def create_scope(self, constants: Mapping[str, Tensor], values: Mapping[str, Any]) -> ValueScope:
        """Creates an outermost scope with input values; initializers become values at first access."""
        scope = ValueScope(None, constants)
        scope.semantics = self.semantics
        scope.update(values)
        return scope

    def run(
        self,
        nodes: Sequence[Node],
        scope: ValueScope,
        bindings: Mapping[str, Any] | None = None,
        keep: Iterable[str] | None = None,
    ) -> None:
        """Runs `nodes` and stores their outputs in `scope`.

        Args:
            nodes: Nodes in topological order.
            scope: Scope with their inputs.
            bindings: Attributes of the call and defaults of the function, if the nodes are a function's body.
            keep: Names of values that are read after the run. Every other value is dropped after its last
                use. None keeps all values.
        """
        last_uses = _find_last_uses(nodes, frozenset(keep)) if keep is not None else {}
        for index, node in enumerate(nodes):
            args = [scope[name] if name else None for name in node.inputs]
            attributes = node.attributes
            if bindings is not None:
                attributes = _resolve_references(attributes, bindings)
            results = self._run_node(node, attributes, args, scope)
            for name, value in zip(node.outputs, results, strict=False):
                if name:
                    scope[name] = value
            for name in last_uses.get(index, ()):
                scope.pop(name, None)

    def _run_node(
        self, node: Node, attributes: Mapping[str, Any], args: Sequence[Any], scope: ValueScope
    ) -> Sequence[Any]:
        """Returns the results of a node, which may call a function or run the graphs in its attributes."""
        key = node.key
        if key in self.functions:
            self.calls.append(node)
            alias = self.aliases.get(key)
            if alias is not None and len(args) == len(alias.inputs):
                results = self.semantics.apply(alias, alias.attributes, args)
            else:
                results = self._run_function(self.functions[key], attributes, args)
            self.calls.pop()
            return results
        if node.op in _CONTROL and not node.domain:
            return getattr(self, f"_run_{node.op.lower()}")(attributes, args, scope)  # type: ignore[no-any-return]
        return self.semantics.apply(node, attributes, args)

    def _run_function(
        self, function: Function, attributes: Mapping[str, Any], args: Sequence[Any]
    ) -> Sequence[Any]:
        scope = ValueScope()
        scope.semantics = self.semantics
        padded = [*args, *[None] * (len(function.inputs) - len(args))]
        scope.update(zip(function.inputs, padded, strict=False))
        self.run(function.nodes, scope, {**function.defaults, **attributes})
        return [scope[name] for name in function.outputs]

    def _run_body(self, graph: Graph, args: Sequence[Any], scope: ValueScope) -> list[Any]:
        """Runs a branch or the body of a loop once; returns the values of its outputs."""
        body_scope = ValueScope(scope, graph.initializers)
        body_scope.update(zip((v.name for v in graph.inputs), args, strict=True))
        if self.run_body is not None:
            self.run_body(self, graph, body_scope)
        else:
            self.run(graph.nodes, body_scope)
        return [body_scope[v.name] for v in graph.outputs]

    def _run_if(self, attributes: Mapping[str, Any], args: Sequence[Any], scope: ValueScope) -> Sequence[Any]:
        branch = "then_branch" if self.semantics.read_number(args[0]) else "else_branch"
        return self._run_body(attributes[branch], (), scope)

    def _run_loop(
        self, attributes: Mapping[str, Any], args: Sequence[Any], scope: ValueScope
    ) -> Sequence[Any]:
        """Runs a Loop, and returns its final state and its stacked outputs."""
        import numpy as np

        body: Graph = attributes["body"]
        limit = self.semantics.read_number(args[0]) if args[0] is not None else None
        continues = (
            bool(self.semantics.read_number(args[1])) if len(args) > 1 and args[1] is not None else True
        )
        state = list(args[2:])
        scan_outputs: list[list[Any]] = [[] for _ in body.outputs[1 + len(state) :]]
        trip = 0
        while continues and (limit is None or trip < limit):
            results = self._run_body(body, [np.int64(trip), np.bool_(True), *state], scope)
            continues = bool(self.semantics.read_number(results[0]))
            state = results[1 : 1 + len(state)]
            for values, value in zip(scan_outputs, results[1 + len(state) :], strict=True):
                values.append(value)
            trip += 1
        return [*state, *(self.semantics.stack(values, 0) for values in scan_outputs)]

    def _run_scan(
        self, attributes: Mapping[str, Any], args: Sequence[Any], scope: ValueScope
    ) -> Sequence[Any]:
        """Runs a Scan, and returns its final state and its stacked outputs."""
        body: Graph = attributes["body"]
        scan_input_count = int(attributes["num_scan_inputs"])
        state_count = len(args) - scan_input_count
        scan_output_count = len(body.outputs) - state_count
        state, scan_inputs = list(args[:state_count]), args[state_count:]
        input_axes = _fill_with_zeros(attributes.get("scan_input_axes"), scan_input_count)
        input_directions = _fill_with_zeros(attributes.get("scan_input_directions"), scan_input_count)
        output_axes = _fill_with_zeros(attributes.get("scan_output_axes"), scan_output_count)
        output_directions = _fill_with_zeros(attributes.get("scan_output_directions"), scan_output_count)
        trips = int(scan_inputs[0].shape[input_axes[0]])
        scan_outputs: list[list[Any]] = [[] for _ in range(scan_output_count)]
        for trip in range(trips):
            slices = [
                self.semantics.take(value, axis, trips - 1 - trip if is_reversed else trip)
                for value, axis, is_reversed in zip(scan_inputs, input_axes, input_directions, strict=True)
            ]
            results = self._run_body(body, [*state, *slices], scope)
            state = results[:state_count]
            for values, value in zip(scan_outputs, results[state_count:], strict=True):
                values.append(value)
        stacked_outputs = [
            self.semantics.stack(values[::-1] if is_reversed else values, axis)
            for values, axis, is_reversed in zip(scan_outputs, output_axes, output_directions, strict=True)
        ]
        return [*state, *stacked_outputs]


def _find_alias(function: Function, functions: Mapping[tuple[str, str, str], Function]) -> Node | None:
    """Returns the only operator of a function if a call does the same as that operator, else None.

    The alias saves time: a tile operator is called thousands of times, and its body is a single MatMul.
    """
    if len(function.nodes) != 1:
        return None
    (node,) = function.nodes
    passes_values = node.inputs == function.inputs and node.outputs == function.outputs
    is_operator = node.op not in _CONTROL and node.key not in functions
    return node if passes_values and is_operator and not node.attributes else None


def _fill_with_zeros(values: Sequence[int] | None, count: int) -> Sequence[int]:
    """Returns the values of an attribute, or `count` zeros if the node omits it."""
    return values if values else (0,) * count


def _resolve_references(attributes: Mapping[str, Any], bindings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the attributes of a node in a function body, with references replaced by the call's attributes.

    A reference to an attribute that the call omits is left out.
    """
    if not attributes or not any(isinstance(v, AttributeRef) for v in attributes.values()):
        return attributes
    filled = {k: bindings.get(v.name) if isinstance(v, AttributeRef) else v for k, v in attributes.items()}
    return {k: v for k, v in filled.items() if v is not None}


def list_reads(node: Node) -> Iterator[str]:
    """Yields every value that a node reads, including those that its bodies read from the enclosing graph."""
    names = filter(None, node.inputs)  # a generator takes three times as long for a run of tile products
    bodies = list_bodies(node)
    return chain(names, *(list_free_names(body) for _, body in bodies)) if bodies else names


def list_free_names(graph: Graph) -> Iterator[str]:
    """Yields the names of the values that a body reads from the enclosing graph."""
    own_names = {v.name for v in graph.inputs} | set(graph.initializers)
    for node in list_stored_nodes(graph.nodes):  # a run of repeated nodes is one node here
        for name in list_reads(node):
            if name not in own_names:
                yield name
        own_names.update(node.outputs)
    yield from (v.name for v in graph.outputs if v.name not in own_names)


class Wiring:
    """An index from values to their producers, for repeated queries of subgraphs.

    Args:
        nodes: Nodes in topological order.
        initializer_names: Names of the graph's initializers.
    """

    def __init__(self, nodes: Sequence[Node], initializer_names: Iterable[str] = ()) -> None:
        self.nodes = nodes
        self.initializer_names = frozenset(initializer_names)
        self._producer_indices = {o: index for index, node in enumerate(nodes) for o in node.outputs if o}
        self._reads: dict[int, tuple[str, ...]] = {}
        """Names of the values that a node reads, by index; cached because reading bodies is slow."""

    @classmethod
    def from_graph(cls, graph: Graph) -> Wiring:
        """Creates the index of a graph."""
        return cls(graph.nodes, graph.initializers)

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node that produces each value, by name."""
        return {name: self.nodes[index] for name, index in self._producer_indices.items()}

    def find_producer(self, name: str) -> Node | None:
        """Returns the node that produces a value, or None."""
        index = self._producer_indices.get(name)
        return None if index is None else self.nodes[index]

    def find_needed_nodes(
        self, outputs: Iterable[str], stop: Iterable[str] = ()
    ) -> tuple[list[Node], set[str]]:
        """Finds the nodes that `outputs` depend on; the search ends at the values in `stop`.

        Returns:
            The needed nodes in topological order, and the names that these nodes read but do not produce.
            These names are values in `stop`, inputs of the graph, and unknown values, but no initializers.
        """
        ends = set(stop)
        positions, names = self._search(outputs, ends)
        nodes = [self.nodes[position] for position in sorted(positions)]
        outputs_written = {o for node in nodes for o in node.outputs if o not in ends}
        return nodes, names - outputs_written - self.initializer_names

    def find_needed_indices(self, outputs: Iterable[str]) -> list[int]:
        """Returns the indices of the nodes that `outputs` depend on, in ascending order."""
        return sorted(self._search(outputs, set())[0])

    def _search(self, outputs: Iterable[str], ends: set[str]) -> tuple[set[int], set[str]]:
        """Returns the indices of the nodes that `outputs` depend on, and every name that was visited."""
        positions: set[int] = set()
        names: set[str] = set()
        pending = list(outputs)
        while pending:
            name = pending.pop()
            if name in names:
                continue
            names.add(name)
            position = None if name in ends else self._producer_indices.get(name)
            if position is not None and position not in positions:
                positions.add(position)
                inputs = self._reads.get(position)
                if inputs is None:
                    inputs = self._reads[position] = tuple(list_reads(self.nodes[position]))
                pending += inputs
        return positions, names


def _find_last_uses(nodes: Sequence[Node], keep: frozenset[str]) -> dict[int, list[str]]:
    """Returns the names that can be dropped after each node, by the index of the node."""
    last_uses: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in (*list_reads(node), *node.outputs):
            last_uses[name] = index
    drops: dict[int, list[str]] = {}
    for name, index in last_uses.items():
        if name not in keep:
            drops.setdefault(index, []).append(name)
    return drops
