"""Shape inference of one model: the main graph once, and each body once and on demand.

A body is the graph of a function, a branch or a loop. The inference of a graph alternates between these
sources:

1. Explorer's rules infer each node. Their answers are cached by operator, attributes and types: a graph of
twenty thousand nodes has a few dozen distinct keys.

2. onnx's shape inference runs on the nodes that the rules leave open.

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
from explorer.engine.formats.onnx.containers import container
from explorer.engine.graph.blocked_channels import blocked_channels
from explorer.engine.graph.layouts import BLOCKED, NCHWC
from explorer.engine.graph.model import Function, Graph, Model, Node, Tensor, Value, subgraphs
from explorer.engine.operators import registry
from explorer.engine.operators.call import Call, ShapeMismatch, Type
from explorer.engine.operators.operator import Operator
from explorer.engine.shapes import constant_folding
from explorer.engine.shapes.binding import InputShapes, bind_inputs, bound_shape
from explorer.engine.shapes.bodies import find_captured_names, iterations, substitute_attributes
from explorer.engine.shapes.constants import ConstantContents, follow
from explorer.engine.shapes.onnx_pass import OnnxPass
from explorer.engine.shapes.provenance import (
    ShapeOrigins,
    canonical_shape,
    contradicts,
    format_shape,
    symbols_of,
)
from explorer.engine.shapes.shape_table import (
    ShapeTable,
    better,
    complete_all,
    find_common_sizes,
    find_common_type,
    is_possible,
    merge,
    take,
)
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape, TensorInfo

if TYPE_CHECKING:
    import numpy as np

    from explorer.engine.formats.onnx.containers import Container

    Constants = Mapping[str, np.ndarray[Any, Any]]

ROUNDS = 24
"""Maximum number of passes over the open nodes; each pass uses the types found by the last one."""

MAX_DEPTH = 96
"""Maximum depth of nested bodies."""

MAX_BODIES = 20_000
"""Maximum number of inferred bodies.

Each is inferred once for equal arguments, but nested loops can need billions.
"""

MAX_REMEMBERED = 8_192
"""Maximum number of rule answers that are cached from one model to the next, about 1 KB each."""

_REMEMBERED: dict[Hashable, InferredTypes] = {}
"""Answers of rules by operator, attributes, types and contents, the complete input of a rule."""

_RULES = {key: operator for key, operator in registry.OPERATORS.items() if operator.shape is not None}
_STANDARD = {op: rule for (domain, op), rule in _RULES.items() if not domain}
_DOMAINS = frozenset(domain for domain, _ in _RULES)
_KNOWN_OPS = frozenset(constant_folding.FOLDABLE) | {"Constant"}


class InferredTypes(Struct, frozen=True, eq=False):
    """The answer of a rule, shared by equal nodes.

    Attributes:
        types: Types of the outputs, None if unknown, or the mismatch of the input shapes.
        whole: Whether every type and shape is known.
    """

    types: Sequence[Type] | ShapeMismatch | None
    whole: bool


class Shapes(Struct, frozen=True):
    """Known types and contents of the values of one graph or body.

    Attributes:
        values: Facts by value name; unknown values are missing.
        constants: Known contents of small values: shapes, axes, scalars.
        dims: Sizes of the symbolic dimensions that the user or an input's shape has fixed.
        notes: Failures and assumptions of the inference, as sentences for the user.
        kinds: Types by value name. Values of equal type mostly share one object. Empty if values of equal
            type may differ in origin.
        disputed: Names of values whose shape the file, a run or a failing node also states.
        alike: Answers of rules by the id of the node, for nodes with one output.
        impossible: Nodes that cannot run, each with the reason.
        died: Whether onnx's inference crashed or ran out of time or memory, so that a repetition may give
            another answer.
        overruled: Names of values whose inferred shape a run contradicted.
    """

    values: Mapping[str, TensorInfo]
    constants: Constants
    dims: Mapping[str, int]
    notes: tuple[str, ...] = ()
    kinds: Mapping[str, Type] = field(default_factory=dict)
    disputed: frozenset[str] = frozenset()
    alike: dict[int, InferredTypes] = field(default_factory=dict)
    impossible: tuple[str, ...] = ()
    died: bool = False
    overruled: frozenset[str] = frozenset()


def forget() -> None:
    """Drops the rule answers that were cached for earlier models."""
    _REMEMBERED.clear()


def infer(
    model: Model, sizes: Mapping[str, int] | None = None, input_shapes: InputShapes | None = None
) -> Shapes:
    """Infers the shapes of the main graph's values.

    Args:
        model: The model.
        sizes: Sizes of symbolic dimensions by name.
        input_shapes: Type (or None for the declared type) and shape of inputs by name.

    Raises:
        Misuse: A dimension or an input does not exist, or a shape has another rank than its input.
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
    """

    def __init__(
        self,
        model: Model,
        sizes: Mapping[str, int] | None = None,
        input_shapes: InputShapes | None = None,
        observed: Mapping[str, Type] | None = None,
    ) -> None:
        self.model = model
        inputs, dim_sizes, overruled = bind_inputs(model, sizes, input_shapes)
        self.notes: list[str] = []
        self.impossible: list[str] = []
        self._limits: dict[str, Dim] = {}
        self._answers: dict[Hashable, InferredTypes] = {}
        self._alike: dict[int, InferredTypes] = {}
        self._pool: dict[Type, Type] = {}
        self._bodies: dict[Any, tuple[Any, Sequence[Node], ShapeTable]] = {}
        self._finished: dict[int, Shapes] = {}
        self._open: set[Any] = set()
        self._full = False
        self._onnx = OnnxPass(model.ir_version, self.notes)
        self._dims = dim_sizes
        self._blocked = blocked_channels(model.graph) if NCHWC in model.opsets else {}
        self._input_containers = {value.name: value for value in inputs if container(value) is not None}
        self._trusted = not overruled
        graph = model.graph if inputs == model.graph.inputs else replace(model.graph, inputs=inputs)
        declared = self._declared(graph)
        observed_types = {name: (t[0], canonical_shape(t[1])) for name, t in (observed or {}).items()}
        table = self._infer(
            graph, model.opsets, declared, ConstantContents(graph.initializers), observed=observed_types
        )
        if observed_types:
            table = self._infer_corrected(graph, declared, observed_types, table)
        values = ShapeOrigins(graph, table, declared, self._limits, trusted=self._trusted)
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
            values.overruled(),
        )

    @property
    def bounds(self) -> bool:
        """Whether some size depends on data. Values of origin 'bound' then hold the largest possible size."""
        return bool(self._limits)

    # -- bodies ---------------------------------------------------------------------------------

    def of_function(
        self, function: Function, call: Node, types: Sequence[TensorInfo | None], constants: Constants
    ) -> tuple[Sequence[Node], Shapes]:
        """Infers the shapes inside a function for one call.

        Args:
            function: The function.
            call: The calling node; its attributes replace attribute references in the body.
            types: Facts of the arguments, or None if unknown.
            constants: Known contents of the caller's values.

        Returns:
            The body's nodes with the attributes of the call, and the shapes of its values, arguments
            included.
        """
        doubtful = frozenset(
            name
            for name, info in zip(function.inputs, types, strict=False)
            if info is not None and info.origin == "bound"
        )
        kinds = [None if t is None else (t.dtype, canonical_shape(t.shape)) for t in types]
        nodes, table = self._function(function, call, kinds, _contents(constants), doubtful)
        return nodes, self._shapes(nodes, table)

    def _function(
        self,
        function: Function,
        call: Node,
        kinds: Sequence[Type | None],
        contents: ConstantContents,
        doubtful: frozenset[str] = frozenset(),
    ) -> tuple[Sequence[Node], ShapeTable]:
        input_contents = [contents.array(name) if name else None for name in call.inputs]
        bare = not function.attributes and not function.defaults
        attributes = "" if bare else repr(sorted(call.attributes.items(), key=lambda pair: pair[0]))
        key = (
            function.key,
            tuple(kinds),
            tuple(None if c is None else _fingerprint(c) for c in input_contents),
            attributes,
            doubtful,
        )
        if key not in self._bodies:
            nodes = function.nodes
            if not bare:
                values = {**function.defaults, **call.attributes}
                nodes = tuple(substitute_attributes(n, values) for n in nodes)
            # a call may leave out arguments at the end
            inputs = []
            body_contents = ConstantContents({})
            missing = [None] * len(function.inputs)
            arguments = zip(function.inputs, [*kinds, *missing], [*input_contents, *missing], strict=False)
            for name, kind, content in arguments:
                if kind is not None:
                    inputs.append(Value(name, kind[0], kind[1]))
                elif content is not None and content.dtype != object:
                    inputs.append(Value(name, str(content.dtype), tuple(content.shape)))
                if content is not None:
                    body_contents.set(name, content)
            graph = Graph(function.name, nodes, tuple(inputs), (), {})
            opsets = {**self.model.opsets, **function.opsets}
            table = self._infer_body(key, graph, opsets, {}, body_contents)
            table.doubtful = doubtful
            self._bodies[key] = function, nodes, table
        _, nodes, table = self._bodies[key]
        return nodes, table

    def of_body(
        self,
        body: Graph,
        types: Sequence[TensorInfo | None],
        outer: Mapping[str, TensorInfo],
        constants: Constants,
        opsets: Mapping[str, int] | None = None,
    ) -> Shapes:
        """Infers the shapes inside the body of If, Loop or Scan.

        Args:
            body: The subgraph.
            types: Facts of its formal inputs, as far as the operator determines them.
            outer: Facts of the values of the enclosing graphs, which the body may read.
            constants: Known contents of these values.
            opsets: Operator sets, or None for the model's. A function may have its own.
        """
        kinds = [None if t is None else (t.dtype, canonical_shape(t.shape)) for t in types]
        captured = find_captured_names(body)
        captured_types = {
            n: (outer[n].dtype, canonical_shape(outer[n].shape)) for n in captured if n in outer
        }
        doubtful = {n for n in captured if n in outer and outer[n].origin == "bound"}
        doubtful.update(
            v.name for v, t in zip(body.inputs, types, strict=False) if t is not None and t.origin == "bound"
        )
        contents = _contents(constants)
        table = self._body(
            body, kinds, captured_types, contents, opsets or self.model.opsets, frozenset(doubtful)
        )
        return self._shapes(body.nodes, table, self._declared(body), body)

    def _body(
        self,
        body: Graph,
        kinds: Sequence[Type | None],
        around: Mapping[str, Type],
        contents: ConstantContents,
        opsets: Mapping[str, int],
        doubtful: frozenset[str] = frozenset(),
    ) -> ShapeTable:
        captured = sorted(find_captured_names(body))
        formal = tuple(
            replace(value, shape=canonical_shape(value.shape))
            if kind is None or (kind[0] is None and container(value) is not None)
            else Value(value.name, kind[0] or value.dtype, kind[1])
            for value, kind in zip(body.inputs, [*kinds] + [None] * len(body.inputs), strict=False)
        )
        captured_contents = {n: c for n in captured if (c := contents.array(n)) is not None}
        key = (
            id(body),
            tuple((v.dtype, v.shape) for v in formal),
            tuple((n, around[n]) for n in captured if n in around),
            tuple((n, _fingerprint(c)) for n, c in captured_contents.items()),
            doubtful,
        )
        if key not in self._bodies:
            inputs = [*formal]
            body_contents = ConstantContents(body.initializers)
            defined = {v.name for v in formal} | set(body.initializers)
            for name in captured:
                if name in defined:
                    continue
                if name in captured_contents:
                    body_contents.set(name, captured_contents[name])
                if name in around:
                    container_value = self._input_containers.get(name) if around[name][0] is None else None
                    inputs.append(container_value or Value(name, *around[name]))
                elif name in captured_contents and captured_contents[name].dtype != object:
                    inputs.append(
                        Value(name, str(captured_contents[name].dtype), tuple(captured_contents[name].shape))
                    )
            graph = replace(body, inputs=tuple(inputs), extra=())
            table = self._infer_body(key, graph, opsets, self._declared(body), body_contents)
            table.doubtful = doubtful
            # the body stays referenced by the result, because its id is in the key and must not be reused
            self._bodies[key] = body, body.nodes, table
        return self._bodies[key][2]

    def _infer_body(
        self,
        key: Any,
        graph: Graph,
        opsets: Mapping[str, int],
        declared: Mapping[str, Type],
        contents: ConstantContents,
    ) -> ShapeTable:
        """Infers a body. The table of a recursive body, or beyond the limits, holds only the inputs."""
        if len(self._bodies) >= MAX_BODIES and not self._full:
            self._full = True
            self.notes.append(
                f"shapes are followed into {MAX_BODIES:,} bodies of functions and loops, no further"
            )
        if key in self._open or len(self._open) >= MAX_DEPTH or self._full:
            return ShapeTable({v.name: (v.dtype, v.shape) for v in graph.inputs}, contents)
        self._open.add(key)
        try:
            return self._infer(graph, opsets, declared, contents)
        finally:
            self._open.discard(key)

    def loop_types(
        self, node: Node, outer: Mapping[str, TensorInfo], constants: Constants, opsets: Mapping[str, int]
    ) -> list[TensorInfo | None]:
        """Infers the types of the inputs of a Loop's body: counter, condition, and the carried values.

        If an iteration changes the size of a carried value, that size is unknown.
        """
        infos = [outer.get(name) for name in node.inputs[2:]]
        kinds = [None if t is None else (t.dtype, canonical_shape(t.shape)) for t in infos]
        around = {n: (t.dtype, canonical_shape(t.shape)) for n, t in outer.items()}
        kinds = self._carried_types(node, kinds, around, _contents(constants), opsets)
        types: list[TensorInfo | None] = [TensorInfo("", "int64", ()), TensorInfo("", "bool", ())]
        for info, kind in zip(infos, kinds, strict=True):
            types.append(None if info is None or kind is None else replace(info, shape=format_shape(kind[1])))
        return types

    def _carried_types(
        self,
        node: Node,
        kinds: Sequence[Type | None],
        around: Mapping[str, Type],
        contents: ConstantContents,
        opsets: Mapping[str, int],
    ) -> list[Type | None]:
        """Infers the types that a Loop's carried values keep over all iterations."""
        body: Graph = node.attributes["body"]
        types = list(kinds)
        for _ in range(2):
            # a change in the first iteration may cause more in the next
            table = self._body(body, [("int64", ()), ("bool", ()), *types], around, contents, opsets)
            previous_types = list(types)
            for index, (kind, value) in enumerate(zip(previous_types, body.outputs[1:], strict=False)):
                end_type = table.types.get(value.name)
                if kind is None or kind[1] is None:
                    continue
                types[index] = kind[0], find_common_sizes(kind[1], None if end_type is None else end_type[1])
            if types == previous_types:
                break
        return types

    # -- one graph ------------------------------------------------------------------------------

    def _declared(self, graph: Graph) -> dict[str, Type]:
        """Returns the types in the file of intermediate values and outputs, with the user's sizes."""
        if not graph.values and not graph.outputs:
            return {}
        types: dict[str, Type] = {}
        for value in (*graph.values, *graph.outputs):
            if value.dtype is not None or value.shape is not None:
                shape = None if value.shape is None else canonical_shape(bound_shape(value.shape, self._dims))
                types[value.name] = value.dtype, shape
        return types

    def _containers(self, graph: Graph) -> list[Container]:
        """Returns the sequences and optionals among a graph's inputs, with the user's sizes."""
        containers = [
            container_value for value in graph.inputs if (container_value := container(value)) is not None
        ]
        return [c.resized(lambda shape: canonical_shape(bound_shape(shape, self._dims))) for c in containers]

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
        # equal weights share one type object: the visitor recognizes equal nodes by it
        pool = self._pool
        types: dict[str, Type] = {}
        for name, tensor_ in graph.initializers.items():
            kind = tensor_.dtype, tensor_.shape
            types[name] = pool.setdefault(kind, kind)
        if graph.extra:
            sparse = tensors.read_sparse_initializers(graph)
            types.update((name, (t.dtype, shape)) for name, (t, shape, _) in sparse.items())
        for value in graph.inputs:
            types.setdefault(value.name, (value.dtype, canonical_shape(value.shape)))
        table = ShapeTable(types, contents)
        if overruled and observed:
            types.update((name, observed[name]) for name in overruled)
            table.origins.update(dict.fromkeys(overruled, "observed"))
            table.overruled.update(overruled)
        nodes: Sequence[Node] = graph.nodes
        past_questions: set[tuple[Any, ...]] = set()
        for _ in range(ROUNDS):
            open_ = self._propagate(nodes, table, opsets)
            if not open_:
                break
            question = tuple(id(n) for n in open_), len(table.origins)
            if question not in past_questions:
                past_questions.add(question)
                containers = self._containers(graph)
                answer = self._onnx.types(open_, graph.initializers, types, contents, opsets, containers)
                if merge(types, answer):
                    continue
            if observed and take(open_, table, observed, "observed"):
                continue
            if not (self._trusted and take(open_, table, declared, "declared")):
                break
        return table

    def _infer_corrected(
        self, graph: Graph, declared: Mapping[str, Type], observed: Mapping[str, Type], table: ShapeTable
    ) -> ShapeTable:
        """Infers again with observed types until they contradict no inferred type.

        A wrong shape makes all shapes that depend on it wrong. Each round therefore replaces only the first
        wrong shapes, and the others are inferred from them.
        """
        symbols = symbols_of(graph, declared)
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
        """Infers each node once, and returns the nodes with an output that is not fully known."""
        types, contents, answers, alike = table.types, table.contents, self._answers, self._alike
        functions = self.model.functions
        get = types.get
        open_: list[Node] = []
        versions = {domain: opsets.get(domain, 1) for domain in _DOMAINS}
        unknown = (None, None)
        for node in nodes:
            outputs = node.outputs
            rule = _STANDARD.get(node.op) if not node.domain else _RULES.get((node.domain, node.op))
            if rule is None or (functions and node.key in functions):
                if not self._infer_call_or_branch(node, table, opsets):
                    open_.append(node)
                continue
            single_output = outputs[0] if len(outputs) == 1 else ""
            is_known = single_output in types if single_output else not types.keys().isdisjoint(outputs)
            if is_known and complete_all(outputs, types):
                self._fold(node, table)
                continue
            kinds = [get(name, unknown) if name else None for name in node.inputs]
            key: Hashable = None
            if node.alike is not None and not rule.fresh:
                key = (node.op, node.domain, node.alike, versions[node.domain], len(outputs), *kinds)
                if rule.reads:
                    key = (*key, *_contents_of_inputs(node, rule.reads, kinds, contents))
                answer = _REMEMBERED.get(key) or answers.get(key)
            else:
                answer = None
            if answer is None:
                answer = self._apply_rule(node, rule, kinds, contents, versions[node.domain])
                if key is not None:
                    self._remember(key, answer)
            output_types = answer.types
            if output_types is None:
                open_.append(node)
                continue
            if isinstance(output_types, ShapeMismatch):
                self._refuse(node, str(output_types), table)
                continue
            if single_output and answer.whole and not is_known:
                types[single_output] = output_types[0]
                if key is not None:
                    alike[id(node)] = answer
            else:
                whole = answer.whole
                for name, kind in zip(outputs, output_types, strict=False):
                    if not name:
                        continue
                    if name in types:
                        kind = better(types[name], kind)
                    types[name] = kind
                    if kind[1] is None or kind[0] is None or None in kind[1]:
                        whole = False
                if not whole or len(output_types) < len(outputs):
                    open_.append(node)
            if node.op in _KNOWN_OPS:
                self._fold(node, table)
        return open_

    def _remember(self, key: Hashable, answer: InferredTypes) -> None:
        if len(_REMEMBERED) >= MAX_REMEMBERED:
            _REMEMBERED.clear()
        # a mismatch holds the name of its node, so it serves this model only
        (self._answers if isinstance(answer.types, ShapeMismatch) else _REMEMBERED)[key] = answer

    def _apply_rule(
        self,
        node: Node,
        operator: Operator,
        kinds: Sequence[Type | None],
        contents: ConstantContents,
        version: int,
    ) -> InferredTypes:
        """Applies the operator's rule.

        The answer has no types if the node does not match the operator's definition.
        """
        names = node.inputs
        inputs = tuple([kind and TensorInfo(name, *kind) for name, kind in zip(names, kinds, strict=True)])
        input_contents = {
            names[i]: contents.flat(names[i]) for i in operator.reads if i < len(kinds) and kinds[i]
        }
        outputs = (None,) * len(node.outputs)
        attributes = node.attributes
        if id(node) in self._blocked:
            attributes = {**attributes, BLOCKED: self._blocked[id(node)]}
        call = Call(node.op, node.domain, attributes, inputs, outputs, input_contents, version, self._fresh)
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

    def _refuse(self, node: Node, reason: str, table: ShapeTable) -> None:
        """Adds a note that a node cannot run.

        Its outputs become unknown, so that onnx does not infer them.
        """
        if not table.conflicts.keys() >= set(node.outputs):
            self.impossible.append(f"{node.op} '{node.label}' cannot run: {reason}")
            self.notes.append(f"{self.impossible[-1]}; behind it sizes are not known")
        for name in node.outputs:
            table.conflicts[name] = reason
            if name:
                table.types.setdefault(name, (None, None))

    def _fresh(self, limit: Dim) -> Dim:
        """Returns a new name for a size that depends on data and is at most `limit`."""
        name = dims.create_name(len(self._limits) + 1)
        self._limits[name] = limit
        return name

    def _fold(self, node: Node, table: ShapeTable) -> None:
        """Adds the contents of a small value, if they follow from its inputs."""
        if node.op not in _KNOWN_OPS or node.domain or len(node.outputs) != 1:
            return
        name = node.outputs[0]
        contents = table.contents
        stored_tensor = _find_passed_tensor(node, contents)
        if stored_tensor is not None:
            contents.hold(name, stored_tensor)
            return
        array = contents.array(name)
        if array is not None and (array.dtype != object or None not in array.reshape(-1).tolist()):
            return
        shape: Shape | None = None
        if node.op in ("Shape", "Size"):
            shape = table.types.get(node.inputs[0], (None, None))[1] if node.inputs else None
            if shape is not None and any(isinstance(d, str) and "'#" in d for d in shape):
                # a data-dependent count is only an upper bound, which arithmetic does not preserve
                shape = tuple(None if isinstance(d, str) and "'#" in d else d for d in shape)
        elif node.op != "Constant":
            for input_name in node.inputs:
                if input_name and contents.array(input_name) is None:
                    return
        content = follow(node, shape, table.types.get(name, (None, None))[0], contents)
        if content is not None:
            contents.set(name, content)

    def _infer_call_or_branch(self, node: Node, table: ShapeTable, opsets: Mapping[str, int]) -> bool:
        """Infers a call, a branch or a loop. Returns whether all its outputs are known."""
        types = table.types
        if complete_all(node.outputs, types):
            return True
        function = self.model.functions.get(node.key) if self.model.functions else None
        answer: Sequence[Type | None] = ()
        if function is not None:
            kinds = [types.get(name) if name else None for name in node.inputs]
            _, body_table = self._function(function, node, kinds, table.contents)
            answer = [body_table.types.get(name) for name in function.outputs]
            for name, output_name in zip(function.outputs, node.outputs, strict=False):
                content = body_table.contents.array(name)
                if content is not None and output_name:
                    table.contents.set(output_name, content)
        elif not node.domain and node.op == "If":
            answer = self._infer_branches(node, table, opsets)
        elif not node.domain and node.op == "Loop" and isinstance(node.attributes.get("body"), Graph):
            answer = self._infer_loop(node, table, opsets)
        elif not node.domain and node.op == "Scan" and opsets.get("", 0) >= 9:
            answer = self._infer_scan(node, table, opsets)
        for name, kind in zip(node.outputs, answer, strict=False):
            if name and kind is not None:
                types[name] = better(types[name], kind) if name in types else kind
        return complete_all(node.outputs, types)

    def _infer_loop(self, node: Node, table: ShapeTable, opsets: Mapping[str, int]) -> Sequence[Type | None]:
        """Infers the types of the carried values, then of the stacked outputs.

        A stacked output has a row for each iteration.
        """
        body: Graph = node.attributes["body"]
        kinds = [table.types.get(name) if name else None for name in node.inputs[2:]]
        output_types = self._carried_types(node, kinds, table.types, table.contents, opsets)
        if len(node.outputs) <= len(output_types):
            return output_types
        trips, is_exact = iterations(node, table.contents)
        body_table = self._body(
            body, [("int64", ()), ("bool", ()), *output_types], table.types, table.contents, opsets
        )
        for value in body.outputs[1 + len(output_types) :]:
            dtype, shape = body_table.types.get(value.name, (None, None))
            output_types.append((dtype, None if shape is None else (trips if is_exact else None, *shape)))
        return output_types

    def _infer_scan(self, node: Node, table: ShapeTable, opsets: Mapping[str, int]) -> Sequence[Type | None]:
        """Infers the types of the states, then of the stacked outputs, which have a row for each element.

        onnx infers the body with its declared sizes, so a size that is open in the body is open in the
        output, too.
        """
        body, count = node.attributes.get("body"), node.attributes.get("num_scan_inputs")
        if not isinstance(body, Graph) or not isinstance(count, int) or not 0 < count <= len(node.inputs):
            return ()
        state_count = len(node.inputs) - count
        kinds = [table.types.get(name) for name in node.inputs]
        input_axes = node.attributes.get("scan_input_axes") or (0,) * count
        output_axes = node.attributes.get("scan_output_axes") or (0,) * (len(body.outputs) - state_count)
        trips: Dim = None
        for index, axis in zip(range(state_count, len(kinds)), input_axes, strict=False):
            dtype, shape = kinds[index] or (None, None)
            if shape is None or not -len(shape) <= axis < len(shape):
                return ()
            axis %= len(shape)
            trips = shape[axis] if trips is None else trips
            kinds[index] = dtype, shape[:axis] + shape[axis + 1 :]
        body_types = self._body(body, kinds, table.types, table.contents, opsets).types
        output_types: list[Type | None] = [*kinds[:state_count]]
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
        """Returns the types on which both branches agree, or the types of the branch that is known to run."""
        condition = table.contents.get(node.inputs[0]) if node.inputs else None
        bodies = dict(subgraphs(node))
        if condition is not None and condition.size == 1 and len(bodies) == 2:
            name = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
            bodies = {name: bodies[name]} if name in bodies else bodies
        branch_types: list[list[Type | None]] = []
        for body in bodies.values():
            body_table = self._body(body, (), table.types, table.contents, opsets)
            branch_types.append([body_table.types.get(v.name) for v in body.outputs])
        merged: list[Type | None] = []
        for kinds in zip(*branch_types, strict=False):
            merged_type = kinds[0]
            for kind in kinds[1:]:
                merged_type = find_common_type(merged_type, kind)
            merged.append(merged_type)
        return merged

    # -- facts ----------------------------------------------------------------------------------

    def _shapes(
        self,
        nodes: Sequence[Node],
        table: ShapeTable,
        declared: Mapping[str, Type] | None = None,
        body: Graph | None = None,
    ) -> Shapes:
        """Returns the shapes of a body, created on demand."""
        if id(table) not in self._finished:
            graph = body or Graph("", tuple(nodes), (), (), {})
            values = ShapeOrigins(graph, table, declared or {}, self._limits, trusted=self._trusted)
            kinds = {} if table.doubtful else table.types
            self._finished[id(table)] = Shapes(values, table.contents, {}, (), kinds, values.disputed)
        return self._finished[id(table)]


def _contents_of_inputs(
    node: Node, indices: Sequence[int], kinds: Sequence[Type | None], contents: ConstantContents
) -> Iterator[tuple[Any, ...] | None]:
    """Yields the contents of the inputs at `indices`, which the rule reads, or None if unknown."""
    for index in indices:
        if index < len(kinds) and kinds[index] is not None:
            flat = contents.flat(node.inputs[index])
            yield None if flat is None else tuple(flat)


def _find_passed_tensor(node: Node, contents: ConstantContents) -> Tensor | None:
    """Returns the stored tensor that a node outputs unchanged, or None."""
    if node.op == "Constant":
        value = node.attributes.get("value")
        return value if isinstance(value, Tensor) else None
    return contents.tensor(node.inputs[0]) if node.op == "Identity" and node.inputs else None


def _contents(constants: Constants) -> ConstantContents:
    if isinstance(constants, ConstantContents):
        return constants
    contents = ConstantContents({})
    for name, value in constants.items():
        contents.set(name, value)
    return contents


def _fingerprint(array: np.ndarray[Any, Any]) -> Hashable:
    if array.dtype == object:
        return tuple(str(v) for v in array.reshape(-1).tolist()), array.shape
    return array.dtype.str, array.shape, array.tobytes()
