"""Infers the shapes of one model: of the main graph at once, of each body on demand.

A body is the graph of a function, a branch or a loop. The inference of a graph alternates between these
sources:

1. Explorer's rules infer each node. Equal nodes share one cached answer: a graph of twenty thousand nodes
has a few dozen different combinations of operator, attributes, types and contents.

2. onnx's shape inference runs on the nodes that the rules leave open. A node is open while the type or the
shape of one of its outputs is not fully known.

3. Types observed in a run are taken, or else types that the file declares.

After each source the rules continue, so one unknown operator does not make all later shapes unknown. An
inferred type takes precedence over a declared one, and an observed type over an inferred one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.engine.formats.onnx import tensors
from explorer.engine.formats.onnx.containers import read_container
from explorer.engine.graph.blocked_channels import find_blocked_channels
from explorer.engine.graph.layouts import NCHWC, PADDED_CHANNELS
from explorer.engine.graph.model import Function, Graph, Model, Node, Tensor, Value, list_bodies
from explorer.engine.operators import registry
from explorer.engine.operators.call import Call, ShapeMismatch, Type
from explorer.engine.operators.operator import Operator
from explorer.engine.shapes import constant_folding
from explorer.engine.shapes.binding import InputShapes, bind_inputs, bind_shape
from explorer.engine.shapes.bodies import count_iterations, find_captured_names, substitute_attributes
from explorer.engine.shapes.constants import ConstantContents, compute_contents
from explorer.engine.shapes.onnx_pass import OnnxPass
from explorer.engine.shapes.provenance import (
    ShapeOrigins,
    canonicalize_shape,
    collect_symbols,
    contradicts,
    format_shape,
)
from explorer.engine.shapes.shape_table import (
    ShapeTable,
    adopt_types,
    are_complete,
    fill_unknown_parts,
    find_common_sizes,
    find_common_type,
    is_possible,
    merge_types,
)
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape, TensorInfo

if TYPE_CHECKING:
    import numpy as np

    from explorer.engine.formats.onnx.containers import Container

    Constants = Mapping[str, np.ndarray[Any, Any]]

ROUNDS = 24
"""Maximum number of rounds over the sources for one graph, and of rounds that correct shapes by a run."""

MAX_DEPTH = 96
"""Maximum depth of nested bodies."""

MAX_BODIES = 20_000
"""Maximum number of inferred bodies.

Each is inferred once for equal arguments, but nested loops can need billions.
"""

MAX_CACHED_ANSWERS = 8_192
"""Maximum number of answers of rules that are cached from one model to the next, about 1 KB each."""

_CACHED_ANSWERS: dict[Hashable, InferredTypes] = {}
"""Answers of rules by the complete input of a rule.

A key holds the operator, its version, its attributes, the number of outputs, and the types and contents of
the inputs.
"""

_OPERATORS = {key: operator for key, operator in registry.OPERATORS.items() if operator.shape is not None}
"""Operators with a shape rule, by domain and name."""
_STANDARD_OPERATORS = {op: operator for (domain, op), operator in _OPERATORS.items() if not domain}
_DOMAINS = frozenset(domain for domain, _ in _OPERATORS)
"""The operators of the standard domain ('') by name, and all domains of operators."""

_COMPUTABLE_OPS = frozenset(constant_folding.FOLDABLE) | {"Constant"}
"""Operators whose outputs can be computed if they are small."""


class InferredTypes(Struct, frozen=True, eq=False):
    """The answer of a rule, shared by equal nodes.

    Attributes:
        types: Types of the outputs, or None if unknown. A `ShapeMismatch` if the node cannot run.
        is_complete: Whether every type and shape is known.
    """

    types: Sequence[Type] | ShapeMismatch | None
    is_complete: bool


class Shapes(Struct, frozen=True):
    """Known types and contents of the values of one graph or body.

    For a body, only `values`, `constants`, `types` and `disputed` are filled in.

    Attributes:
        values: Facts by value name; unknown values are missing.
        constants: Known contents of small values: shapes, axes, scalars.
        dims: Sizes of the symbolic dimensions that the user or an input's shape has fixed.
        notes: Failures and assumptions of the inference, as sentences for the user.
        types: Types by value name; values of equal type mostly share one object. The mapping is empty if
            values of equal type may differ in origin.
        disputed: Names of values with a possible conflict: the file declares their type, a run contradicted
            their inferred shape, or their node cannot run.
        alike: Answers of rules by the id of the node, for nodes with one output. Equal nodes share an answer.
        impossible: (operator and name, reason) of each node that cannot run.
        died: Whether onnx's inference crashed or ran out of time or memory. If so, another inference may give
            other shapes.
        overruled: Names of values whose inferred shape a run contradicted.
    """

    values: Mapping[str, TensorInfo]
    constants: Constants
    dims: Mapping[str, int]
    notes: tuple[str, ...] = ()
    types: Mapping[str, Type] = field(default_factory=dict)
    disputed: frozenset[str] = frozenset()
    alike: dict[int, InferredTypes] = field(default_factory=dict)
    impossible: tuple[tuple[str, str], ...] = ()
    died: bool = False
    overruled: frozenset[str] = frozenset()


def forget_answers() -> None:
    """Drops the answers of rules that were cached for earlier models."""
    _CACHED_ANSWERS.clear()


def infer(
    model: Model, sizes: Mapping[str, int] | None = None, input_shapes: InputShapes | None = None
) -> Shapes:
    """Infers the shapes of the main graph's values.

    Args:
        model: The model.
        sizes: Sizes of symbolic dimensions by name.
        input_shapes: Type (or None for the declared type) and shape of inputs by name.

    Raises:
        Misuse: A dimension or an input does not exist, a size is below 1, a dimension gets two sizes, or a
            shape has another rank than its input.
    """
    return Inference(model, sizes, input_shapes).main


class Inference:
    """Shapes of one model.

    Args:
        model: The model.
        sizes: Sizes of symbolic dimensions by name.
        input_shapes: Type (or None for the declared type) and shape of inputs by name.
        observed: Types seen in a run, by name of the main graph's values.

    Attributes:
        main: The shapes of the main graph.
        table: The types of the main graph, with dimension names in canonical form.
    """

    def __init__(
        self,
        model: Model,
        sizes: Mapping[str, int] | None = None,
        input_shapes: InputShapes | None = None,
        observed: Mapping[str, Type] | None = None,
    ) -> None:
        self.model = model
        inputs, dim_sizes, is_overruled = bind_inputs(model, sizes, input_shapes)
        self.notes: list[str] = []
        self.impossible: list[tuple[str, str]] = []
        self._limits: dict[str, Dim] = {}
        self._answers: dict[Hashable, InferredTypes] = {}
        self._alike: dict[int, InferredTypes] = {}
        self._shared_types: dict[Type, Type] = {}
        self._bodies: dict[Any, tuple[Any, Sequence[Node], ShapeTable]] = {}
        self._shapes_by_table: dict[int, Shapes] = {}
        self._bodies_in_progress: set[Any] = set()
        self._has_too_many_bodies = False
        self._onnx = OnnxPass(model.ir_version, self.notes)
        self._dims = dim_sizes
        self._blocked = find_blocked_channels(model.graph) if NCHWC in model.opsets else {}
        self._input_containers = {value.name: value for value in inputs if read_container(value) is not None}
        self._trusts_file = not is_overruled  # the file declares shapes for the sizes that it fixes
        graph = model.graph if inputs == model.graph.inputs else replace(model.graph, inputs=inputs)
        declared = self._read_declared_types(graph)
        observed_types = {name: (t[0], canonicalize_shape(t[1])) for name, t in (observed or {}).items()}
        table = self._infer(
            graph, model.opsets, declared, ConstantContents(graph.initializers), observed=observed_types
        )
        if observed_types:
            table = self._infer_corrected(graph, declared, observed_types, table)
        self.table = table
        values = ShapeOrigins(graph, table, declared, self._limits, trusted=self._trusts_file)
        self.main = Shapes(
            values,
            table.contents,
            dim_sizes,
            tuple(self.notes),
            table.types,
            values.disputed,
            self._alike,
            tuple(self.impossible),
            self._onnx.died,
            values.list_overruled(),
        )

    @property
    def bounds(self) -> bool:
        """Whether some size depends on data. Values of origin 'bound' then hold the largest possible size."""
        return bool(self._limits)

    # -- bodies ---------------------------------------------------------------------------------

    def infer_function(
        self, function: Function, call: Node, infos: Sequence[TensorInfo | None], constants: Constants
    ) -> tuple[Sequence[Node], Shapes]:
        """Infers the shapes inside a function for one call.

        Args:
            function: The function.
            call: The calling node; its attributes replace attribute references in the body.
            infos: Facts of the arguments, or None if unknown.
            constants: Known contents of the caller's values.

        Returns:
            The body's nodes with the attributes of the call, and the shapes of its values, arguments
            included.
        """
        bounded_names = frozenset(
            name
            for name, info in zip(function.inputs, infos, strict=False)
            if info is not None and info.origin == "bound"
        )
        argument_types = [None if t is None else (t.dtype, canonicalize_shape(t.shape)) for t in infos]
        nodes, table = self._infer_function_table(
            function, call, argument_types, _wrap_contents(constants), bounded_names
        )
        return nodes, self._build_shapes(nodes, table)

    def _infer_function_table(
        self,
        function: Function,
        call: Node,
        argument_types: Sequence[Type | None],
        contents: ConstantContents,
        bounded_names: frozenset[str] = frozenset(),
    ) -> tuple[Sequence[Node], ShapeTable]:
        """Infers the types inside a function for one call, or returns those of an equal earlier call.

        Args:
            function: The function.
            call: The calling node.
            argument_types: Types of the arguments, or None if unknown.
            contents: Known contents of the caller's values.
            bounded_names: Names of the function's inputs whose shapes are upper bounds.

        Returns:
            The body's nodes with the attributes of the call, and the table of its types.
        """
        input_contents = [contents.get_array(name) if name else None for name in call.inputs]
        has_attributes = bool(function.attributes or function.defaults)
        call_attributes = sorted(call.attributes.items(), key=lambda pair: pair[0])
        attributes = repr(call_attributes) if has_attributes else ""
        key = (
            function.key,
            tuple(argument_types),
            tuple(None if c is None else _compute_fingerprint(c) for c in input_contents),
            attributes,
            bounded_names,
        )
        if key not in self._bodies:
            nodes = function.nodes
            if has_attributes:
                values = {**function.defaults, **call.attributes}
                nodes = tuple(substitute_attributes(n, values) for n in nodes)
            # a call may leave out arguments at the end
            inputs = []
            body_contents = ConstantContents({})
            missing = [None] * len(function.inputs)
            arguments = zip(
                function.inputs, [*argument_types, *missing], [*input_contents, *missing], strict=False
            )
            for name, argument_type, content in arguments:
                if argument_type is not None:
                    inputs.append(Value(name, argument_type[0], argument_type[1]))
                elif content is not None and content.dtype != object:
                    inputs.append(Value(name, str(content.dtype), tuple(content.shape)))
                if content is not None:
                    body_contents.set_array(name, content)
            graph = Graph(function.name, nodes, tuple(inputs), (), {})
            opsets = {**self.model.opsets, **function.opsets}
            table = self._infer_within_limits(key, graph, opsets, {}, body_contents)
            table.bounded_names = bounded_names
            self._bodies[key] = function, nodes, table
        _, nodes, table = self._bodies[key]
        return nodes, table

    def infer_body(
        self,
        body: Graph,
        infos: Sequence[TensorInfo | None],
        outer: Mapping[str, TensorInfo],
        constants: Constants,
        opsets: Mapping[str, int] | None = None,
    ) -> Shapes:
        """Infers the shapes inside the body of If, Loop or Scan.

        Args:
            body: The subgraph.
            infos: Facts of its formal inputs, as far as the operator determines them.
            outer: Facts of the values of the enclosing graphs, which the body may read.
            constants: Known contents of these values.
            opsets: Operator sets, or None for the model's. A function may have its own.
        """
        input_types = [None if t is None else (t.dtype, canonicalize_shape(t.shape)) for t in infos]
        captured = find_captured_names(body)
        captured_types = {
            n: (outer[n].dtype, canonicalize_shape(outer[n].shape)) for n in captured if n in outer
        }
        bounded_names = {n for n in captured if n in outer and outer[n].origin == "bound"}
        bounded_names.update(
            v.name for v, t in zip(body.inputs, infos, strict=False) if t is not None and t.origin == "bound"
        )
        contents = _wrap_contents(constants)
        table = self._infer_body_table(
            body,
            input_types,
            captured_types,
            contents,
            opsets or self.model.opsets,
            self._input_containers,
            frozenset(bounded_names),
        )
        return self._build_shapes(body.nodes, table, self._read_declared_types(body), body)

    def _infer_body_table(
        self,
        body: Graph,
        input_types: Sequence[Type | None],
        outer_types: Mapping[str, Type],
        contents: ConstantContents,
        opsets: Mapping[str, int],
        containers: Mapping[str, Value],
        bounded_names: frozenset[str] = frozenset(),
    ) -> ShapeTable:
        """Infers the types inside the body of If, Loop or Scan, or returns those of an equal earlier run.

        Args:
            body: The subgraph.
            input_types: Types of its formal inputs, as far as the operator determines them.
            outer_types: Types of the values of the enclosing graphs, which the body may read.
            contents: Known contents of these values.
            opsets: Versions of the operator sets.
            containers: Declarations of sequences and optionals of the enclosing graphs, by name.
            bounded_names: Names of inputs and captured values whose shapes are upper bounds.
        """
        captured = sorted(find_captured_names(body))
        formal_inputs: list[Value] = []
        for value, input_type in zip(body.inputs, [*input_types] + [None] * len(body.inputs), strict=False):
            if input_type is None or (input_type[0] is None and read_container(value) is not None):
                formal_inputs.append(replace(value, shape=canonicalize_shape(value.shape)))
            else:
                formal_inputs.append(Value(value.name, input_type[0] or value.dtype, input_type[1]))
        captured_contents = {n: c for n in captured if (c := contents.get_array(n)) is not None}
        captured_containers = {
            n: containers[n] for n in captured if n in containers and outer_types.get(n, (None,))[0] is None
        }
        key = (
            id(body),
            tuple((v.dtype, v.shape) for v in formal_inputs),
            tuple((n, outer_types[n]) for n in captured if n in outer_types),
            tuple((n, _compute_fingerprint(c)) for n, c in captured_contents.items()),
            tuple((n, bytes(v.record.view())) for n, v in captured_containers.items() if v.record),
            bounded_names,
        )
        if key not in self._bodies:
            inputs = [*formal_inputs]
            body_contents = ConstantContents(body.initializers)
            defined = {v.name for v in formal_inputs} | set(body.initializers)
            for name in captured:
                if name in defined:
                    continue
                if name in captured_contents:
                    body_contents.set_array(name, captured_contents[name])
                if name in captured_containers:
                    inputs.append(captured_containers[name])
                elif name in outer_types:
                    inputs.append(Value(name, *outer_types[name]))
                elif name in captured_contents and captured_contents[name].dtype != object:
                    inputs.append(
                        Value(name, str(captured_contents[name].dtype), tuple(captured_contents[name].shape))
                    )
            graph = replace(body, inputs=tuple(inputs), extra=())
            table = self._infer_within_limits(
                key, graph, opsets, self._read_declared_types(body), body_contents
            )
            table.bounded_names = bounded_names
            # the body stays referenced by the result, because its id is in the key and must not be reused
            self._bodies[key] = body, body.nodes, table
        return self._bodies[key][2]

    def _infer_within_limits(
        self,
        key: Any,
        graph: Graph,
        opsets: Mapping[str, int],
        declared: Mapping[str, Type],
        contents: ConstantContents,
    ) -> ShapeTable:
        """Infers a body. For a recursive body, or beyond a limit, the table holds only the inputs.

        The limits are `MAX_DEPTH` and `MAX_BODIES`.
        """
        if len(self._bodies) >= MAX_BODIES and not self._has_too_many_bodies:
            self._has_too_many_bodies = True
            self.notes.append(
                f"shapes are followed into {MAX_BODIES:,} bodies of functions and loops, no further"
            )
        is_recursive = key in self._bodies_in_progress
        is_too_deep = len(self._bodies_in_progress) >= MAX_DEPTH
        if is_recursive or is_too_deep or self._has_too_many_bodies:
            return ShapeTable({v.name: (v.dtype, v.shape) for v in graph.inputs}, contents)
        self._bodies_in_progress.add(key)
        try:
            return self._infer(graph, opsets, declared, contents)
        finally:
            self._bodies_in_progress.discard(key)

    def infer_inner_tables(
        self, node: Node, table: ShapeTable, opsets: Mapping[str, int]
    ) -> Iterator[tuple[str, Graph, ShapeTable]]:
        """Infers the bodies of one node.

        Args:
            node: Node of the graph of `table`.
            table: Types of this graph.
            opsets: Versions of the operator sets.

        Yields:
            Name of the body as in `list_bodies`, the body, and its types.
        """
        for name, body in list_bodies(node):
            input_types: Sequence[Type | None] = ()
            if node.op == "Loop":
                carried = [table.types.get(carried_name) for carried_name in node.inputs[2:]]
                carried = self._infer_carried_types(
                    node, carried, table.types, table.contents, opsets, table.containers
                )
                input_types = [("int64", ()), ("bool", ()), *carried]
            elif node.op == "Scan" and opsets.get("", 0) >= 9:
                input_types, _ = _list_scan_inputs(node, table) or ((), None)
            elif node.op == "SequenceMap":
                input_types = [_find_element_type(input_name, table) for input_name in node.inputs]
            yield (
                name,
                body,
                self._infer_body_table(
                    body, input_types, table.types, table.contents, opsets, table.containers
                ),
            )

    def infer_call_table(self, node: Node, table: ShapeTable) -> tuple[Sequence[Node], ShapeTable]:
        """Infers the function that a node calls.

        Args:
            node: Call of a function of the model.
            table: Types of the graph of the node.

        Returns:
            The nodes of the function with the attributes of the call, and their types.
        """
        argument_types = [table.types.get(name) if name else None for name in node.inputs]
        return self._infer_function_table(
            self.model.functions[node.key], node, argument_types, table.contents
        )

    def infer_loop_inputs(
        self, node: Node, outer: Mapping[str, TensorInfo], constants: Constants, opsets: Mapping[str, int]
    ) -> list[TensorInfo | None]:
        """Infers the types of the inputs of a Loop's body: counter, condition, and the carried values.

        A carried value is passed from one iteration to the next. If an iteration changes a size of it, that
        size is unknown.

        Args:
            node: The Loop.
            outer: Facts of the values of the enclosing graphs.
            constants: Known contents of these values.
            opsets: Versions of the operator sets.
        """
        infos = [outer.get(name) for name in node.inputs[2:]]
        carried_types = [None if t is None else (t.dtype, canonicalize_shape(t.shape)) for t in infos]
        outer_types = {n: (t.dtype, canonicalize_shape(t.shape)) for n, t in outer.items()}
        carried_types = self._infer_carried_types(
            node, carried_types, outer_types, _wrap_contents(constants), opsets, self._input_containers
        )
        input_infos: list[TensorInfo | None] = [TensorInfo("", "int64", ()), TensorInfo("", "bool", ())]
        for info, carried_type in zip(infos, carried_types, strict=True):
            input_infos.append(
                None
                if info is None or carried_type is None
                else replace(info, shape=format_shape(carried_type[1]))
            )
        return input_infos

    def _infer_carried_types(
        self,
        node: Node,
        first_types: Sequence[Type | None],
        outer_types: Mapping[str, Type],
        contents: ConstantContents,
        opsets: Mapping[str, int],
        containers: Mapping[str, Value],
    ) -> list[Type | None]:
        """Infers the types that a Loop's carried values keep over all iterations."""
        body: Graph = node.attributes["body"]
        types = list(first_types)
        while True:
            # a size that changes in one iteration may change other sizes in the next
            table = self._infer_body_table(
                body, [("int64", ()), ("bool", ()), *types], outer_types, contents, opsets, containers
            )
            previous_types = list(types)
            for index, (previous_type, value) in enumerate(
                zip(previous_types, body.outputs[1:], strict=False)
            ):
                end_type = table.types.get(value.name)
                if previous_type is None or previous_type[1] is None:
                    continue
                types[index] = (
                    previous_type[0],
                    find_common_sizes(previous_type[1], None if end_type is None else end_type[1]),
                )
            if types == previous_types:
                return types

    # -- one graph ------------------------------------------------------------------------------

    def _read_declared_types(self, graph: Graph) -> dict[str, Type]:
        """Reads the declared types of intermediate values and outputs, and applies the user's sizes."""
        if not graph.values and not graph.outputs:
            return {}
        types: dict[str, Type] = {}
        for value in (*graph.values, *graph.outputs):
            if value.dtype is not None or value.shape is not None:
                shape = (
                    None if value.shape is None else canonicalize_shape(bind_shape(value.shape, self._dims))
                )
                types[value.name] = value.dtype, shape
        return types

    def _list_containers(self, graph: Graph) -> list[Container]:
        """Returns the sequences and optionals among a graph's inputs, with the user's sizes."""
        containers = [
            container_value
            for value in graph.inputs
            if (container_value := read_container(value)) is not None
        ]
        return [
            container.change_shape(lambda shape: canonicalize_shape(bind_shape(shape, self._dims)))
            for container in containers
        ]

    def _infer(
        self,
        graph: Graph,
        opsets: Mapping[str, int],
        declared: Mapping[str, Type],
        contents: ConstantContents,
        observed: Mapping[str, Type] | None = None,
        overruled: Mapping[str, Shape | None] | None = None,
    ) -> ShapeTable:
        """Infers a graph with rules, then onnx, then observed or declared types, until no source adds a type.

        Args:
            graph: The graph with bound inputs.
            opsets: Versions of the operator sets.
            declared: Types that the file declares for intermediate values and outputs.
            contents: Known contents of initializers and inputs.
            observed: Types seen in a run, or None.
            overruled: Inferred shapes that the run contradicted, by value name. Their observed types are
                used.
        """
        # weights of equal type share one type object, which saves memory
        types: dict[str, Type] = {}
        for name, tensor in graph.initializers.items():
            value_type = tensor.dtype, tensor.shape
            types[name] = self._shared_types.setdefault(value_type, value_type)
        if graph.extra:
            sparse = tensors.read_sparse_initializers(graph)
            types.update((name, (t.dtype, shape)) for name, (t, shape, _) in sparse.items())
        for value in graph.inputs:
            types.setdefault(value.name, (value.dtype, canonicalize_shape(value.shape)))
        table = ShapeTable(types, contents)
        table.containers.update((c.name, c.build_value()) for c in self._list_containers(graph))
        if overruled and observed:
            types.update((name, observed[name]) for name in overruled)
            table.origins.update(dict.fromkeys(overruled, "observed"))
            table.overruled.update(overruled)
        nodes: Sequence[Node] = graph.nodes
        queried_states: set[tuple[Any, ...]] = set()
        for _ in range(ROUNDS):
            open_nodes = self._propagate(nodes, table, opsets)
            if not open_nodes:
                break
            # onnx gives the same answer again for the same open nodes and adopted types
            state = tuple(id(n) for n in open_nodes), len(table.origins)
            if state not in queried_states:
                queried_states.add(state)
                containers = self._list_containers(graph)
                answer, declarations = self._onnx.infer_types(
                    open_nodes, graph.initializers, types, contents, opsets, containers
                )
                table.containers.update(declarations)
                if merge_types(types, answer):
                    continue
            if observed and adopt_types(open_nodes, table, observed, "observed"):
                continue
            if not (self._trusts_file and adopt_types(open_nodes, table, declared, "declared")):
                break
        return table

    def _infer_corrected(
        self, graph: Graph, declared: Mapping[str, Type], observed: Mapping[str, Type], table: ShapeTable
    ) -> ShapeTable:
        """Infers again until no inferred shape contradicts an observed one.

        A wrong shape makes all shapes that depend on it wrong. Each round therefore replaces only the first
        wrong shapes, and infers the others from them.

        Args:
            graph: The main graph with bound inputs.
            declared: Types that the file declares.
            observed: Types seen in a run.
            table: Result of the first inference.
        """
        symbols = collect_symbols(graph, declared)
        overruled: dict[str, Shape | None] = {}
        for _ in range(ROUNDS):
            dependents: set[str] = set()
            count_before = len(overruled)
            for node in graph.nodes:
                if not dependents.isdisjoint(node.inputs):
                    dependents.update(node.outputs)
                    continue
                for name in node.outputs:
                    shape = table.types.get(name, (None, None))[1]
                    observed_shape = observed.get(name, (None, None))[1]
                    if contradicts(observed_shape, shape, symbols):
                        overruled[name] = shape
                        dependents.add(name)
            if len(overruled) == count_before:
                break
            contents = ConstantContents(graph.initializers)
            table = self._infer(graph, self.model.opsets, declared, contents, observed, overruled)
        return table

    def _propagate(self, nodes: Sequence[Node], table: ShapeTable, opsets: Mapping[str, int]) -> list[Node]:
        """Infers each node once, and returns the open nodes."""
        types, contents, answers, alike = table.types, table.contents, self._answers, self._alike
        functions = self.model.functions
        open_nodes: list[Node] = []
        versions = {domain: opsets.get(domain, 1) for domain in _DOMAINS}
        unknown = (None, None)
        for node in nodes:
            outputs = node.outputs
            operator = (
                _OPERATORS.get((node.domain, node.op)) if node.domain else _STANDARD_OPERATORS.get(node.op)
            )
            if operator is None or (functions and node.key in functions):
                if not self._infer_call_or_branch(node, table, opsets):
                    open_nodes.append(node)
                continue
            single_output = outputs[0] if len(outputs) == 1 else ""
            is_known = single_output in types if single_output else not types.keys().isdisjoint(outputs)
            if is_known and are_complete(outputs, types):
                self._fold(node, table)
                continue
            input_types = [types.get(name, unknown) if name else None for name in node.inputs]
            key: Hashable = None
            if node.alike is not None and not operator.node_specific:
                key = (node.op, node.domain, node.alike, versions[node.domain], len(outputs), *input_types)
                if operator.shape_reads:
                    key = (*key, *_read_input_contents(node, operator.shape_reads, input_types, contents))
                answer = _CACHED_ANSWERS.get(key) or answers.get(key)
            else:
                answer = None
            if answer is None:
                answer = self._apply_rule(node, operator, input_types, contents, versions[node.domain])
                if key is not None:
                    self._cache_answer(key, answer)
            output_types = answer.types
            if output_types is None:
                open_nodes.append(node)
                continue
            if isinstance(output_types, ShapeMismatch):
                self._mark_impossible(node, str(output_types), table)
                continue
            if single_output and answer.is_complete and not is_known:
                types[single_output] = output_types[0]
                if key is not None:
                    alike[id(node)] = answer
            else:
                is_complete = answer.is_complete
                for name, output_type in zip(outputs, output_types, strict=False):
                    if not name:
                        continue
                    if name in types:
                        output_type = fill_unknown_parts(types[name], output_type)
                    types[name] = output_type
                    if output_type[1] is None or output_type[0] is None or None in output_type[1]:
                        is_complete = False
                if not is_complete or len(output_types) < len(outputs):
                    open_nodes.append(node)
            if node.op in _COMPUTABLE_OPS:
                self._fold(node, table)
        return open_nodes

    def _cache_answer(self, key: Hashable, answer: InferredTypes) -> None:
        """Caches the answer of a rule; `key` is as in `_CACHED_ANSWERS`."""
        if len(_CACHED_ANSWERS) >= MAX_CACHED_ANSWERS:
            _CACHED_ANSWERS.clear()
        # a mismatch contains the name of its node, so it is valid for this model only
        cache = self._answers if isinstance(answer.types, ShapeMismatch) else _CACHED_ANSWERS
        cache[key] = answer

    def _apply_rule(
        self,
        node: Node,
        operator: Operator,
        input_types: Sequence[Type | None],
        contents: ConstantContents,
        version: int,
    ) -> InferredTypes:
        """Applies the operator's rule.

        The answer has no types if the node does not match the operator's definition.
        """
        names = node.inputs
        inputs = tuple(
            [
                input_type and TensorInfo(name, *input_type)
                for name, input_type in zip(names, input_types, strict=True)
            ]
        )
        input_contents = {
            names[i]: contents.get_elements(names[i])
            for i in operator.shape_reads
            if i < len(input_types) and input_types[i]
        }
        outputs = (None,) * len(node.outputs)
        attributes = node.attributes
        if id(node) in self._blocked:
            attributes = {**attributes, PADDED_CHANNELS: self._blocked[id(node)]}
        call = Call(
            node.op, node.domain, attributes, inputs, outputs, input_contents, version, self._create_size_name
        )
        try:
            answer = operator.shape(call) if operator.shape is not None else None
        except ShapeMismatch as mismatch:
            return InferredTypes(mismatch, False)
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError):
            # the node does not match its definition; onnx reports the error
            return InferredTypes(None, False)
        if answer is None or not all(map(is_possible, answer)):
            return InferredTypes(None, False)
        is_complete = all(k[0] is not None and k[1] is not None and None not in k[1] for k in answer)
        return InferredTypes(answer, is_complete and bool(answer))

    def _mark_impossible(self, node: Node, reason: str, table: ShapeTable) -> None:
        """Adds a note that a node cannot run.

        The node is not passed to onnx. Its outputs without a type are recorded as unknown.
        """
        if not table.conflicts.keys() >= set(node.outputs):
            self.impossible.append((f"{node.op} '{node.label}'", reason))
            self.notes.append(
                f"{node.op} '{node.label}' cannot run: {reason}; the sizes after it are unknown"
            )
        for name in node.outputs:
            table.conflicts[name] = reason
            if name:
                table.types.setdefault(name, (None, None))

    def _create_size_name(self, limit: Dim) -> Dim:
        """Returns a new name for a size that depends on data and is at most `limit`."""
        name = dims.create_name(len(self._limits) + 1)
        self._limits[name] = limit
        return name

    def _fold(self, node: Node, table: ShapeTable) -> None:
        """Computes the contents of a node's small output, if the contents of its inputs are known."""
        if node.op not in _COMPUTABLE_OPS or node.domain or len(node.outputs) != 1:
            return
        name = node.outputs[0]
        contents = table.contents
        stored_tensor = _find_passed_tensor(node, contents)
        if stored_tensor is not None:
            contents.set_tensor(name, stored_tensor)
            return
        array = contents.get_array(name)
        if array is not None and (array.dtype != object or None not in array.reshape(-1).tolist()):
            return  # already known; in an array of objects, None stands for an unknown element
        shape: Shape | None = None
        if node.op in ("Shape", "Size"):
            shape = table.types.get(node.inputs[0], (None, None))[1] if node.inputs else None
            if shape is not None:
                # a data-dependent size is only an upper bound, and arithmetic on bounds gives no bound
                shape = tuple(None if dims.is_data_dependent(d) else d for d in shape)
        elif node.op != "Constant":
            for input_name in node.inputs:
                if input_name and contents.get_array(input_name) is None:
                    return
        content = compute_contents(node, shape, table.types.get(name, (None, None))[0], contents)
        if content is not None:
            contents.set_array(name, content)

    def _infer_call_or_branch(self, node: Node, table: ShapeTable, opsets: Mapping[str, int]) -> bool:
        """Infers a node without a rule: a call, a branch or a loop. Returns whether all outputs are known."""
        types = table.types
        if are_complete(node.outputs, types):
            return True
        function = self.model.functions.get(node.key) if self.model.functions else None
        answer: Sequence[Type | None] = ()
        if function is not None:
            argument_types = [types.get(name) if name else None for name in node.inputs]
            _, body_table = self._infer_function_table(function, node, argument_types, table.contents)
            answer = [body_table.types.get(name) for name in function.outputs]
            for name, output_name in zip(function.outputs, node.outputs, strict=False):
                content = body_table.contents.get_array(name)
                if content is not None and output_name:
                    table.contents.set_array(output_name, content)
        elif not node.domain and node.op == "If":
            answer = self._infer_branches(node, table, opsets)
        elif not node.domain and node.op == "Loop" and isinstance(node.attributes.get("body"), Graph):
            answer = self._infer_loop(node, table, opsets)
        elif not node.domain and node.op == "Scan" and opsets.get("", 0) >= 9:
            answer = self._infer_scan(node, table, opsets)
        for name, output_type in zip(node.outputs, answer, strict=False):
            if name and output_type is not None:
                types[name] = fill_unknown_parts(types[name], output_type) if name in types else output_type
        return are_complete(node.outputs, types)

    def _infer_loop(self, node: Node, table: ShapeTable, opsets: Mapping[str, int]) -> Sequence[Type | None]:
        """Infers the types of the carried values, then of the stacked outputs.

        A stacked output has a row for each iteration.
        """
        body: Graph = node.attributes["body"]
        carried_types = [table.types.get(name) if name else None for name in node.inputs[2:]]
        output_types = self._infer_carried_types(
            node, carried_types, table.types, table.contents, opsets, table.containers
        )
        if len(node.outputs) <= len(output_types):
            return output_types
        trips, is_exact = count_iterations(node, table.contents)
        body_input_types = [("int64", ()), ("bool", ()), *output_types]
        body_table = self._infer_body_table(
            body, body_input_types, table.types, table.contents, opsets, table.containers
        )
        for value in body.outputs[1 + len(output_types) :]:
            dtype, shape = body_table.types.get(value.name, (None, None))
            output_types.append((dtype, None if shape is None else (trips if is_exact else None, *shape)))
        return output_types

    def _infer_scan(self, node: Node, table: ShapeTable, opsets: Mapping[str, int]) -> Sequence[Type | None]:
        """Infers the types of the states, then of the stacked outputs, which have a row for each element.

        A size that is unknown in the body is unknown in the output.
        """
        inputs_and_trips = _list_scan_inputs(node, table)
        if inputs_and_trips is None:
            return ()
        input_types, trips = inputs_and_trips
        body: Graph = node.attributes["body"]
        state_count = len(node.inputs) - int(node.attributes["num_scan_inputs"])
        output_axes = node.attributes.get("scan_output_axes") or (0,) * (len(body.outputs) - state_count)
        body_types = self._infer_body_table(
            body, input_types, table.types, table.contents, opsets, table.containers
        ).types
        output_types: list[Type | None] = [*input_types[:state_count]]
        for value, axis in zip(body.outputs[state_count:], output_axes, strict=False):
            dtype, shape = body_types.get(value.name, (None, None))
            if shape is not None:
                position = axis % (len(shape) + 1)
                shape = (*shape[:position], trips, *shape[position:])
            output_types.append((dtype, shape))
        return output_types

    def _infer_branches(
        self, node: Node, table: ShapeTable, opsets: Mapping[str, int]
    ) -> Sequence[Type | None]:
        """Infers the types that both branches have in common.

        If the condition is known, only the branch that runs counts.
        """
        condition = table.contents.get(node.inputs[0]) if node.inputs else None
        bodies = dict(list_bodies(node))
        if condition is not None and condition.size == 1 and len(bodies) == 2:
            name = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
            bodies = {name: bodies[name]} if name in bodies else bodies
        branch_types: list[list[Type | None]] = []
        for body in bodies.values():
            body_table = self._infer_body_table(
                body, (), table.types, table.contents, opsets, table.containers
            )
            branch_types.append([body_table.types.get(v.name) for v in body.outputs])
        merged: list[Type | None] = []
        for types_of_output in zip(*branch_types, strict=False):
            merged_type = types_of_output[0]
            for other_type in types_of_output[1:]:
                merged_type = find_common_type(merged_type, other_type)
            merged.append(merged_type)
        return merged

    # -- facts ----------------------------------------------------------------------------------

    def _build_shapes(
        self,
        nodes: Sequence[Node],
        table: ShapeTable,
        declared: Mapping[str, Type] | None = None,
        body: Graph | None = None,
    ) -> Shapes:
        """Converts the table of a body to `Shapes`, once for each table."""
        if id(table) not in self._shapes_by_table:
            graph = body or Graph("", tuple(nodes), (), (), {})
            values = ShapeOrigins(graph, table, declared or {}, self._limits, trusted=self._trusts_file)
            types = {} if table.bounded_names else table.types
            self._shapes_by_table[id(table)] = Shapes(values, table.contents, {}, (), types, values.disputed)
        return self._shapes_by_table[id(table)]


def _list_scan_inputs(node: Node, table: ShapeTable) -> tuple[list[Type | None], Dim] | None:
    """Returns the types of the inputs of a Scan's body and its number of runs.

    The result is None if the Scan is malformed or the shape of a scanned input is unknown.
    """
    body, count = node.attributes.get("body"), node.attributes.get("num_scan_inputs")
    if not isinstance(body, Graph) or not isinstance(count, int) or not 0 < count <= len(node.inputs):
        return None
    input_types = [table.types.get(name) for name in node.inputs]
    axes = node.attributes.get("scan_input_axes") or (0,) * count
    trips: Dim = None
    for index, axis in zip(range(len(node.inputs) - count, len(input_types)), axes, strict=False):
        dtype, shape = input_types[index] or (None, None)
        if shape is None or not -len(shape) <= axis < len(shape):
            return None
        axis %= len(shape)
        trips = shape[axis] if trips is None else trips
        input_types[index] = dtype, shape[:axis] + shape[axis + 1 :]
    return input_types, trips


def _find_element_type(name: str, table: ShapeTable) -> Type | None:
    """Returns the type of the elements of a sequence, or the type of a tensor; None if unknown."""
    declaration = table.containers.get(name)
    container = None if declaration is None else read_container(declaration)
    return table.types.get(name) if container is None else (container.dtype, container.shape)


def _read_input_contents(
    node: Node, indices: Sequence[int], input_types: Sequence[Type | None], contents: ConstantContents
) -> Iterator[tuple[Any, ...] | None]:
    """Yields the contents of the inputs at `indices`, which the rule reads, or None if unknown."""
    for index in indices:
        if index < len(input_types) and input_types[index] is not None:
            flat = contents.get_elements(node.inputs[index])
            yield None if flat is None else tuple(flat)


def _find_passed_tensor(node: Node, contents: ConstantContents) -> Tensor | None:
    """Returns the stored tensor that a node outputs unchanged, or None."""
    if node.op == "Constant":
        value = node.attributes.get("value")
        return value if isinstance(value, Tensor) else None
    return contents.get_tensor(node.inputs[0]) if node.op == "Identity" and node.inputs else None


def _wrap_contents(constants: Constants) -> ConstantContents:
    """Returns `constants` as `ConstantContents`, converted if necessary."""
    if isinstance(constants, ConstantContents):
        return constants
    contents = ConstantContents({})
    for name, value in constants.items():
        contents.set_array(name, value)
    return contents


def _compute_fingerprint(array: np.ndarray[Any, Any]) -> Hashable:
    """Returns a value that is equal for arrays of equal type, shape and elements."""
    if array.dtype == object:
        return tuple(str(v) for v in array.reshape(-1).tolist()), array.shape
    return array.dtype.str, array.shape, array.tobytes()
