"""Writes the inferred type and shape of every value into the model (`value_info`).

onnx's own inference writes value_info for the main graph and for bodies. Here functions are included,
symbolic sizes keep their names and expressions, and declarations that contradict the inference are corrected.

A function may be called with several types. Its values are declared as far as all calls agree. A size that
depends on data gets no name: the same name would say that two sizes are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.formats.onnx.containers import Container, read_container
from explorer.engine.graph.model import Function, Graph, Model, Node, Value, list_bodies, replace_bodies
from explorer.engine.graph.tile_metadata import DOMAIN
from explorer.engine.operators.call import Type
from explorer.engine.shapes.binding import InputShapes, bind_inputs, bind_shape
from explorer.engine.shapes.inference import Inference
from explorer.engine.shapes.provenance import format_shape
from explorer.engine.shapes.shape_table import ShapeTable, find_common_sizes, find_common_type
from explorer.engine.shapes.subgraphs import name_body, name_function
from explorer.engine.symbolic.dimensions import is_data_dependent
from explorer.facts import Dim, Shape
from explorer.facts.split.infer import DeclarationStatus, ValueDeclaration

FUNCTION_VALUES_VERSION = 10
"""First IR version in which a function can declare its values."""

_FunctionKey = tuple[str, str, str]
_GraphKey = tuple[_FunctionKey | None, tuple[tuple[int, str], ...]]
"""A graph of a model: key of its function or None, then index of each node and name of its body."""


class DeclaredTypes(Struct, frozen=True):
    """A model with the inferred types of its values.

    Attributes:
        model: The model; only inputs, outputs and declarations differ from the original.
        values: Declaration of each value that a node computes.
        graphs: Number of graphs, bodies and functions with these values.
        known_count_before: Number of these values whose type and all sizes the file declares.
        known_count: Number of these values whose type and all sizes are declared now.
        notes: Limits of the inference, as sentences.
    """

    model: Model
    values: tuple[ValueDeclaration, ...]
    graphs: int
    known_count_before: int
    known_count: int
    notes: tuple[str, ...]


class ValueType(Struct, frozen=True):
    """Type of a value: of a tensor, or of another value as its declaration.

    Attributes:
        dtype: Element type of the tensor, or None if unknown.
        shape: Shape of the tensor, or None if unknown.
        other: Declaration of a value that is not a tensor, such as a sequence, or None.
    """

    dtype: str | None = None
    shape: Shape | None = None
    other: Value | None = None

    @property
    def text(self) -> str:
        """The type as text: 'float32 [batch, 10]'; '' if unknown."""
        if self.other is not None:
            container = read_container(self.other)
            return "not a tensor" if container is None else _describe_container(container)
        return _describe_type(self.dtype, self.shape)

    @property
    def open_size_count(self) -> int:
        """Number of sizes that are neither a number nor a name."""
        container = None if self.other is None else read_container(self.other)
        return ((self.shape if container is None else container.shape) or ()).count(None)

    @property
    def is_known(self) -> bool:
        """Whether the type and the rank are known."""
        if self.other is not None:
            container = read_container(self.other)
            return container is None or container.shape is not None
        return self.dtype is not None and self.shape is not None

    @property
    def is_complete(self) -> bool:
        """Whether the type and all sizes are known."""
        return self.is_known and not self.open_size_count


def _describe_type(dtype: str | None, shape: Shape | None) -> str:
    if dtype is None:
        return ""
    sizes = "" if shape is None else f" [{', '.join('?' if d is None else str(d) for d in shape)}]"
    return dtype + sizes


def _describe_container(container: Container) -> str:
    text = _describe_type(container.dtype, container.shape)
    for kind in reversed(container.kinds):  # 4 is the number of the field `sequence_type` of a TypeProto
        text = f"{'sequence' if kind == 4 else 'optional'} of {text}"
    return text


def declare_types(
    model: Model,
    inference: Inference,
    sizes: Mapping[str, int] | None = None,
    input_shapes: InputShapes | None = None,
    *,
    fresh: bool = False,
) -> DeclaredTypes:
    """Declares the inferred types of a model's values.

    Args:
        model: The model.
        inference: Its inference, with the same sizes and shapes.
        sizes: Sizes of symbolic dimensions by name. The inputs are declared with them.
        input_shapes: Type (or None for the declared type) and shape of inputs by name.
        fresh: Whether the declarations of the file are discarded. Then the inference must not know them
            either (`drop_declarations`).

    Returns:
        The model, and the declaration of each value before and after.
    """
    inputs, dim_sizes, is_overruled = bind_inputs(model, sizes, input_shapes)
    inputs = tuple([_bind_value(value, dim_sizes) for value in inputs])
    declarer = _Declarer(model, dim_sizes, fresh=fresh or is_overruled)
    declarer.collect(inference, inference.model.graph.nodes, inference.table, model.opsets, (None, ()))
    return declarer.build(inputs, inference.main.notes)


def declare_inferred(model: Model) -> Model:
    """Returns a model with the inferred types of its values; symbolic sizes stay symbolic."""
    return declare_types(model, Inference(model)).model


def drop_declarations(model: Model) -> Model:
    """Returns the model without the declared types of intermediate values and outputs."""
    outputs = tuple([Value(value.name, None, None, value.record) for value in model.graph.outputs])
    graph = replace(model.graph, values=(), outputs=outputs, nodes=_drop_in_bodies(model.graph.nodes))
    functions = {
        key: replace(function, nodes=_drop_in_bodies(function.nodes), values=())
        for key, function in model.functions.items()
    }
    return replace(model, graph=graph, functions=functions)


def _drop_in_bodies(nodes: Sequence[Node]) -> Sequence[Node]:
    """Returns the nodes, with bodies whose values and outputs are not declared.

    The list is the same if no node has a body.
    """
    changed = list(nodes)
    has_bodies = False
    for index, node in enumerate(nodes):
        bodies = list_bodies(node)
        if bodies:
            has_bodies = True
            changed[index] = replace_bodies(node, {name: _drop_in_body(body) for name, body in bodies})
    return changed if has_bodies else nodes


def _drop_in_body(body: Graph) -> Graph:
    """Returns a body without the declared types of its values and outputs."""
    outputs = tuple([Value(value.name, None, None) for value in body.outputs])
    return replace(body, values=(), outputs=outputs, nodes=_drop_in_bodies(body.nodes))


class _Declarer:
    """Collects the types of each graph of a model, then rebuilds the graphs with declarations.

    Args:
        model: The model.
        dim_sizes: Sizes of symbolic dimensions that the user fixed.
        fresh: Whether the declarations of the file are discarded.
    """

    def __init__(self, model: Model, dim_sizes: Mapping[str, int], *, fresh: bool) -> None:
        self.model = model
        self.dim_sizes = dim_sizes
        self.fresh = fresh
        self.tables: dict[_GraphKey, dict[int, ShapeTable]] = {}
        self.rows: list[ValueDeclaration] = []
        self.graphs = 0
        self.known_count_before = 0
        self.known_count = 0
        self.has_old_functions = False

    # -- collecting -----------------------------------------------------------------------------

    def collect(
        self,
        inference: Inference,
        nodes: Sequence[Node],
        table: ShapeTable,
        opsets: Mapping[str, int],
        graph_key: _GraphKey,
        calls: tuple[_FunctionKey, ...] = (),
    ) -> None:
        """Collects the types of a graph, of its bodies, and of the functions that it calls.

        Equal calls share one table, which is collected once.
        """
        tables = self.tables.setdefault(graph_key, {})
        if id(table) in tables:
            return
        tables[id(table)] = table
        functions = self.model.functions
        for index, node in enumerate(nodes):
            if functions and node.key in functions:
                if node.key not in calls:
                    inner_nodes, inner_table = inference.infer_call_table(node, table)
                    inner_opsets = {**opsets, **functions[node.key].opsets}
                    self.collect(
                        inference, inner_nodes, inner_table, inner_opsets, (node.key, ()), (*calls, node.key)
                    )
                continue
            for name, body, inner_table in inference.infer_inner_tables(node, table, opsets):
                root, path = graph_key
                self.collect(
                    inference, body.nodes, inner_table, opsets, (root, (*path, (index, name))), calls
                )

    def find_type(self, graph_key: _GraphKey, name: str) -> ValueType:
        """Returns the type of a value, as far as all tables of its graph agree."""
        tables = list(self.tables.get(graph_key, {}).values())
        if not tables:
            return ValueType()
        others = [table.containers.get(name) for table in tables]
        if others[0] is not None:
            container = _find_common_container(name, others)
            return ValueType() if container is None else ValueType(other=container)
        kind: Type | None = tables[0].types.get(name)
        for table in tables[1:]:
            kind = find_common_type(kind, table.types.get(name))
        if kind is None or kind[0] is None:
            return ValueType()
        return ValueType(kind[0], _write_shape(kind[1]))

    # -- building -------------------------------------------------------------------------------

    def build(self, inputs: tuple[Value, ...], notes: Sequence[str]) -> DeclaredTypes:
        """Rebuilds the model with declarations."""
        graph = self.build_graph(self.model.graph, (None, ()), (), inputs)
        functions = dict(self.model.functions)
        for key, function in self.model.functions.items():
            if (key, ()) in self.tables:
                functions[key] = self.build_function(function)
        if self.has_old_functions:
            notes = (
                *notes,
                f"values of functions are not declared: a file of IR version {self.model.ir_version} cannot"
                f" hold them, version {FUNCTION_VALUES_VERSION} can",
            )
        model = replace(self.model, graph=graph, functions=functions)
        return DeclaredTypes(
            model, tuple(self.rows), self.graphs, self.known_count_before, self.known_count, tuple(notes)
        )

    def build_graph(
        self,
        graph: Graph,
        graph_key: _GraphKey,
        names: tuple[str, ...],
        inputs: tuple[Value, ...] | None = None,
    ) -> Graph:
        """Rebuilds a graph with declarations; `inputs` are those of the main graph."""
        declared = {value.name: value for value in graph.values}
        output_names = {value.name for value in graph.outputs}
        computed, rows = self.add_rows(graph.nodes, names)
        nodes = self.build_bodies(graph.nodes, graph_key, names)
        written: dict[str, Value] = {}
        for name in computed:
            if name not in output_names:
                value = self.declare(declared.get(name), name, graph_key, rows)
                if value is not None:
                    written[name] = value
        outputs = tuple(
            [self.declare(v, v.name, graph_key, rows, is_output=True) or v for v in graph.outputs]
        )
        if inputs is None:
            inputs = tuple([self.declare(v, v.name, graph_key, rows) or v for v in graph.inputs])
        # declarations of inputs, outputs and stored tensors stay; the file orders the others
        values = [
            written.pop(value.name) if value.name in written else _bind_value(value, self.dim_sizes)
            for value in graph.values
            if value.name in written or not (self.fresh or value.name in rows)
        ]
        return replace(
            graph, nodes=nodes, inputs=inputs, outputs=outputs, values=(*values, *written.values())
        )

    def add_rows(self, nodes: Sequence[Node], names: tuple[str, ...]) -> tuple[list[str], dict[str, int]]:
        """Adds a row for each value that the nodes of a graph compute.

        Returns:
            The names of the values, and the index of the row by name.
        """
        self.graphs += 1
        computed = [name for node in nodes for name in node.outputs if name]
        rows = {name: len(self.rows) + index for index, name in enumerate(computed)}
        self.rows += [ValueDeclaration(name, "/".join(names), "", "", "unknown") for name in computed]
        return computed, rows

    def build_bodies(
        self, nodes: Sequence[Node], graph_key: _GraphKey, names: tuple[str, ...]
    ) -> Sequence[Node]:
        """Rebuilds the bodies of nodes. The list is the same if no node has a body."""
        root, path = graph_key
        changed: dict[int, Node] = {}
        for index, node in enumerate(nodes):
            bodies = list_bodies(node)
            if bodies and node.key not in self.model.functions:
                new_bodies = {
                    name: self.build_graph(
                        body, (root, (*path, (index, name))), (*names, name_body(node, name))
                    )
                    for name, body in bodies
                }
                changed[index] = replace_bodies(node, new_bodies)
        return [changed.get(index, node) for index, node in enumerate(nodes)] if changed else nodes

    def build_function(self, function: Function) -> Function:
        """Rebuilds a function with declarations."""
        graph_key: _GraphKey = (function.key, ())
        path_name = name_function(self.model, function)
        names = (path_name,) if path_name else (f"{function.name}()",)
        if self.model.ir_version < FUNCTION_VALUES_VERSION:
            self.has_old_functions = self.has_old_functions or function.domain != DOMAIN
            nodes = self.build_bodies(function.nodes, graph_key, names)
            return function if nodes is function.nodes else replace(function, nodes=nodes, record=None)
        declared = {value.name: value for value in function.values}
        computed, rows = self.add_rows(function.nodes, names)
        nodes = self.build_bodies(function.nodes, graph_key, names)
        values: list[Value] = []
        for name in (*function.inputs, *computed):
            value = self.declare(declared.pop(name, None), name, graph_key, rows)
            if value is not None:
                values.append(value)
        values += () if self.fresh else declared.values()
        if nodes is function.nodes and tuple(values) == function.values:
            return function
        return replace(function, nodes=nodes, values=tuple(values), record=None)

    def declare(
        self,
        value: Value | None,
        name: str,
        graph_key: _GraphKey,
        rows: Mapping[str, int],
        *,
        is_output: bool = False,
    ) -> Value | None:
        """Returns the declaration of a value, and fills in its row.

        If the type is unknown, the result is None, or the file's own declaration of a type that `ValueType`
        cannot express.

        Args:
            value: Declaration in the file, or None.
            name: Name of the value.
            graph_key: Graph of the value.
            rows: Index of the row of each computed value, which is filled in.
            is_output: Whether the value is an output of a graph, which needs a declaration.
        """
        before = ValueType() if value is None else self.read(value)
        inferred = self.find_type(graph_key, name)
        base = ValueType() if self.fresh else before
        after, is_corrected = _merge(base, inferred)
        if is_output and not after.text:
            after = before
        if name in rows:
            self.known_count_before += before.is_complete
            self.known_count += after.is_complete
            status: DeclarationStatus = (
                "unknown"
                if not after.is_known
                else "corrected"
                if is_corrected or (self.fresh and _merge(before, inferred)[1])
                else "kept"
                if before.text == after.text
                else "completed"
                if before.text
                else "added"
            )
            row = self.rows[rows[name]]
            self.rows[rows[name]] = ValueDeclaration(
                name, row.graph, before.text, after.text, status, after.open_size_count
            )
        if not after.text:
            # a kind of type that this program cannot express stays as the file has it
            return value if value is not None and value.dtype is None and not self.fresh else None
        if value is not None and after == before and not self.dim_sizes:
            return value
        if after.other is not None:
            return after.other
        assert after.dtype is not None
        return Value(name, after.dtype, after.shape)

    def read(self, value: Value) -> ValueType:
        """Returns the declared type of a value, with the user's sizes."""
        if value.dtype is not None:
            value = _bind_value(value, self.dim_sizes)
            return ValueType(value.dtype, value.shape)
        return ValueType(other=_bind_value(value, self.dim_sizes)) if read_container(value) else ValueType()


def _bind_value(value: Value, dim_sizes: Mapping[str, int]) -> Value:
    """Returns a declaration with the user's sizes."""
    if not dim_sizes:
        return value
    if value.dtype is not None:
        shape = None if value.shape is None else bind_shape(value.shape, dim_sizes)
        return value if shape == value.shape else Value(value.name, value.dtype, shape)
    container = read_container(value)
    if container is None or container.shape is None:
        return value
    return container.change_shape(lambda shape: bind_shape(shape, dim_sizes)).build_value()


def _find_common_container(name: str, declarations: Sequence[Value | None]) -> Value | None:
    """Returns the declaration on which all tables agree, with display names of sizes, or None."""
    first = declarations[0]
    containers = [None if value is None else read_container(value) for value in declarations]
    if containers[0] is None:
        records = {bytes(v.record.view()) if v is not None and v.record else b"" for v in declarations}
        return first if len(records) == 1 else None
    shape = containers[0].shape
    for container in containers[1:]:
        if (
            container is None
            or container.kinds != containers[0].kinds
            or container.dtype != containers[0].dtype
        ):
            return None
        shape = find_common_sizes(shape, container.shape)
    return Container(name, containers[0].kinds, containers[0].dtype, _write_shape(shape)).build_value()


def _write_shape(shape: Shape | None) -> Shape | None:
    """Returns a shape for a file: sizes that depend on data are None, and names have no quotes."""
    if shape is None:
        return None
    return format_shape(tuple([None if is_data_dependent(d) else d for d in shape]))


def _merge(declared: ValueType, inferred: ValueType) -> tuple[ValueType, bool]:
    """Merges a declaration with the inferred type.

    A number takes precedence over a name, and a name of the file over an inferred name.

    Returns:
        The merged type, and whether the inference contradicts the declaration.
    """
    if not inferred.text:
        return declared, False
    if not declared.text:
        return inferred, False
    if inferred.other is not None or declared.other is not None:
        return _merge_containers(declared, inferred)
    shape, is_corrected = _merge_shapes(declared.shape, inferred.shape)
    is_other_type = declared.dtype != inferred.dtype
    return ValueType(inferred.dtype, shape), is_corrected or is_other_type


def _merge_containers(declared: ValueType, inferred: ValueType) -> tuple[ValueType, bool]:
    """Does the same as `_merge` if one of the values is not a tensor."""
    a, b = (
        None if declaration.other is None else read_container(declaration.other)
        for declaration in (declared, inferred)
    )
    if a is None or b is None or (a.kinds, a.dtype) != (b.kinds, b.dtype):
        is_same = declared.other is not None and inferred.other is not None and a is b is None
        return inferred, not is_same
    shape, is_corrected = _merge_shapes(a.shape, b.shape)
    return ValueType(other=Container(a.name, a.kinds, a.dtype, shape).build_value()), is_corrected


def _merge_shapes(declared: Shape | None, inferred: Shape | None) -> tuple[Shape | None, bool]:
    """Merges two shapes, and returns whether they contradict each other."""
    if declared is None or inferred is None:
        return (inferred if declared is None else declared), False
    if len(declared) != len(inferred):
        return inferred, True
    pairs = list(zip(declared, inferred, strict=True))
    is_corrected = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
    return tuple([_merge_dims(a, b) for a, b in pairs]), is_corrected


def _merge_dims(declared: Dim, inferred: Dim) -> Dim:
    if inferred is None or declared is None:
        return inferred if declared is None else declared
    return inferred if isinstance(inferred, int) else declared
